// How long rendering a conversation takes: 100 messages and 20 tools with each template file given.
//     bench_template qwen3.jinja llama3.1.jinja ...
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "template/template.h"

enum { N_MESSAGES = 100, N_TOOLS = 20, N_ROUNDS = 200 };

static json_t *conversation(void) {
    static const char *const TURNS[] = {
        "{\"role\": \"user\", \"content\": \"Please look up the weather in Paris and in London, compare the "
        "two and tell me which is nicer today. Use the tools you have and be brief.\"}",
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"id\": "
        "\"abc123def\", \"function\": {\"name\": \"get_weather_1\", \"arguments\": {\"city\": \"Paris\", "
        "\"unit\": \"celsius\", \"days\": 3}}}]}",
        "{\"role\": \"tool\", \"tool_call_id\": \"abc123def\", \"content\": \"{\\\"temperature\\\": 21.5, "
        "\\\"condition\\\": \\\"sunny\\\", \\\"wind\\\": {\\\"speed\\\": 12}}\"}",
        "{\"role\": \"assistant\", \"content\": \"Paris is nicer today: it is sunny and 21.5 degrees, while "
        "London has rain and only 14 degrees. Take a light jacket for the evening anyway.\"}",
    };
    json_t *messages = json_array();
    for (int i = 0; i < N_MESSAGES; i++)
        json_array_append_new(messages, json_loads(TURNS[i % 4], 0, NULL));
    return messages;
}

static json_t *toolbox(void) {
    json_t *tools = json_array();
    for (int i = 0; i < N_TOOLS; i++)
        json_array_append_new(
            tools,
            json_pack("{s:s, s:{s:o, s:s, s:{s:s, s:{s:{s:s, s:s}, s:{s:s, s:[s, s], s:s}, "
                      "s:{s:s, s:s, s:i, s:i}}, s:[s]}}}",
                      "type", "function", "function", "name", json_sprintf("get_weather_%d", i),
                      "description", "Get the weather of a city, with a forecast for some days.",
                      "parameters", "type", "object", "properties", "city", "type", "string",
                      "description", "The city and country, e.g. Paris, France", "unit", "type", "string",
                      "enum", "celsius", "fahrenheit", "description", "Unit of the temperatures", "days",
                      "type", "integer", "description", "Days of forecast", "minimum", 1, "maximum", 14,
                      "required", "city"));
    return tools;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *path, const struct chat_render_options *options) {
    struct err err = {0};
    struct strbuf source = {0}, out = {0};
    double times[N_ROUNDS];
    struct chat_template *chat = NULL;
    bool ok = file_read(path, 16 << 20, &source, &err) &&
              (chat = chat_template_create(strbuf_str(&source), NULL, &err));
    for (int i = 0; ok && i < N_ROUNDS; i++) {
        strbuf_clear(&out);
        uint64_t start = clock_ns();
        ok = chat_template_render(chat, options, &out, &err);
        times[i] = clock_ms_since(start);
    }
    if (ok) {
        qsort(times, N_ROUNDS, sizeof *times, by_value);
        printf("%s: %zu bytes, median %.3f ms, least %.3f ms\n", path, out.n, times[N_ROUNDS / 2], times[0]);
    } else {
        printf("%s: %s\n", path, err.message);
    }
    chat_template_destroy(chat);
    strbuf_deinit(&source);
    strbuf_deinit(&out);
}

int main(int argc, char **argv) {
    json_t *messages = conversation(), *tools = toolbox();
    struct chat_render_options options = {
        .messages = messages, .tools = tools, .add_generation_prompt = true};
    for (int i = 1; i < argc; i++)
        measure(argv[i], &options);
    json_decref(messages);
    json_decref(tools);
    return 0;
}
