#include "server/output_format.h"

#define THINK .think_open = "<think>", .think_close = "</think>"

// In order: the first row whose marks are all in the template's source. Sources: the chat templates that the
// families publish, and their model cards.
static const struct output_format FORMATS[] = {
    {.name = "gpt-oss", .detect = {"<|channel|>", "<|message|>"}, .harmony = true},
    {.name = "gemma4", .detect = {"<|tool_call>", "<|\"|>"}, .think_open = "<|channel>thought\n",
     .think_close = "<channel|>", .body = CALL_NAMED, .call_open = "<|tool_call>",
     .call_close = "<tool_call|>", .name_open = "call:", .string_mark = "<|\"|>"},
    {.name = "functiongemma", .detect = {"<start_function_call>"}, .body = CALL_NAMED,
     .call_open = "<start_function_call>", .call_close = "<end_function_call>", .name_open = "call:",
     .string_mark = "<escape>"},
    {.name = "deepseek-dsml", .detect = {"DSML"}, THINK, .body = CALL_TAGGED,
     .section_open = "<｜DSML｜function_calls>", .section_close = "</｜DSML｜function_calls>",
     .call_open = "<｜DSML｜invoke name=\"", .call_close = "</｜DSML｜invoke>", .name_close = "\">",
     .key_open = "<｜DSML｜parameter name=\"", .key_close = "\">",
     .value_close = "</｜DSML｜parameter>"},
    {.name = "deepseek", .detect = {"<｜tool▁calls▁begin｜>"}, THINK, .body = CALL_NAMED,
     .section_open = "<｜tool▁calls▁begin｜>", .section_close = "<｜tool▁calls▁end｜>",
     .call_open = "<｜tool▁call▁begin｜>", .call_close = "<｜tool▁call▁end｜>",
     .name_open = "function<｜tool▁sep｜>", .name_close = "<｜tool▁sep｜>"},
    {.name = "kimi", .detect = {"<|tool_calls_section_begin|>"}, THINK, .body = CALL_NAMED,
     .section_open = "<|tool_calls_section_begin|>", .section_close = "<|tool_calls_section_end|>",
     .call_open = "<|tool_call_begin|>", .call_close = "<|tool_call_end|>",
     .name_close = "<|tool_call_argument_begin|>"},
    {.name = "minimax", .detect = {"<minimax:tool_call>"}, THINK, .body = CALL_TAGGED,
     .section_open = "<minimax:tool_call>", .section_close = "</minimax:tool_call>",
     .call_open = "<invoke name=\"", .call_close = "</invoke>", .name_close = "\">",
     .key_open = "<parameter name=\"", .key_close = "\">", .value_close = "</parameter>"},
    {.name = "seed-oss", .detect = {"<seed:tool_call>"}, .think_open = "<seed:think>",
     .think_close = "</seed:think>", .body = CALL_TAGGED, .section_open = "<seed:tool_call>",
     .section_close = "</seed:tool_call>", .call_open = "<function=", .call_close = "</function>",
     .name_close = ">", .key_open = "<parameter=", .key_close = ">", .value_close = "</parameter>"},
    {.name = "glm", .detect = {"<arg_key>"}, THINK, .body = CALL_TAGGED, .call_open = "<tool_call>",
     .call_close = "</tool_call>", .name_close = "\n", .key_open = "<arg_key>",
     .key_close = "</arg_key>", .value_open = "<arg_value>", .value_close = "</arg_value>"},
    {.name = "minicpm", .detect = {"<function name=\"", "<param name=\""}, THINK, .body = CALL_TAGGED,
     .call_open = "<function name=\"", .call_close = "</function>", .name_close = "\">",
     .key_open = "<param name=\"", .key_close = "\">", .value_close = "</param>"},
    {.name = "qwen-xml", .detect = {"<function=", "<parameter="}, THINK, .body = CALL_TAGGED,
     .section_open = "<tool_call>", .section_close = "</tool_call>", .call_open = "<function=",
     .call_close = "</function>", .name_close = ">", .key_open = "<parameter=", .key_close = ">",
     .value_close = "</parameter>"},
    {.name = "functionary", .detect = {"<function=", "</function>"}, .body = CALL_NAMED,
     .call_open = "<function=", .call_close = "</function>", .name_close = ">"},
    {.name = "mistral", .detect = {"[TOOL_CALLS]"}, .think_open = "[THINK]", .think_close = "[/THINK]",
     .body = CALL_NAMED, .call_open = "[TOOL_CALLS]", .name_close = "[ARGS]"},
    {.name = "cohere", .detect = {"<|START_ACTION|>"}, .think_open = "<|START_THINKING|>",
     .think_close = "<|END_THINKING|>", .body = CALL_JSON, .call_open = "<|START_ACTION|>",
     .call_close = "<|END_ACTION|>"},
    {.name = "nemotron", .detect = {"<TOOLCALL>"}, THINK, .body = CALL_JSON, .call_open = "<TOOLCALL>",
     .call_close = "</TOOLCALL>"},
    {.name = "phi4", .detect = {"<|/tool_call|>"}, .body = CALL_JSON, .call_open = "<|tool_call|>",
     .call_close = "<|/tool_call|>"},
    {.name = "granite", .detect = {"<|tool_call|>", "granite"}, THINK, .body = CALL_JSON,
     .call_open = "<|tool_call|>"},
    {.name = "lfm2", .detect = {"<|tool_list_start|>"}, THINK, .body = CALL_PYTHON,
     .call_open = "<|tool_call_start|>", .call_close = "<|tool_call_end|>"},
    {.name = "internlm2", .detect = {"<|action_start|>"}, .body = CALL_JSON,
     .call_open = "<|action_start|><|plugin|>", .call_close = "<|action_end|>"},
    {.name = "firefunction", .detect = {"functools["}, .body = CALL_JSON, .call_open = "functools"},
    {.name = "tool-calls", .detect = {"<tool_calls>"}, THINK, .body = CALL_JSON,
     .call_open = "<tool_calls>", .call_close = "</tool_calls>"},
    {.name = "llama4", .detect = {"<|header_start|>", "func_name1"}, .body = CALL_PYTHON,
     .section_open = "<|python_start|>", .section_close = "<|python_end|>"},
    {.name = "llama4-json", .detect = {"<|header_start|>", "\"parameters\""}, .body = CALL_JSON,
     .section_open = "<|python_start|>", .section_close = "<|python_end|>"},
    {.name = "llama3-pythonic", .detect = {"<|start_header_id|>", "func_name1"}, .body = CALL_PYTHON},
    {.name = "llama3", .detect = {"<|start_header_id|>", "\"parameters\""}, .body = CALL_JSON,
     .section_open = "<|python_tag|>"},
    {.name = "hermes", .detect = {"<tool_call>"}, THINK, .body = CALL_JSON, .call_open = "<tool_call>",
     .call_close = "</tool_call>"},
    // Any other template: its reasoning, if it has one, is <think>; and <tool_call> with JSON is what loam
    // itself asks for when a template knows no tools.
    {.name = "generic", THINK, .body = CALL_JSON, .call_open = "<tool_call>",
     .call_close = "</tool_call>"},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

const struct output_format *output_format_of(struct str source) {
    for (size_t i = 0; i < N_FORMATS - 1; i++) {
        bool all = true;
        for (size_t d = 0; d < OUTPUT_DETECT_MAX && FORMATS[i].detect[d]; d++)
            all &= str_find(source, str_from(FORMATS[i].detect[d]), 0) != SIZE_MAX;
        if (all)
            return &FORMATS[i];
    }
    return &FORMATS[N_FORMATS - 1];
}

const struct output_format *output_format_of_tokens(bool (*is_special)(void *user, struct str text),
                                                     void *user) {
    for (size_t i = 0; i < N_FORMATS - 1; i++) {
        const char *mark = FORMATS[i].section_open ? FORMATS[i].section_open : FORMATS[i].call_open;
        if (mark && is_special(user, str_from(mark)))
            return &FORMATS[i];
    }
    return &FORMATS[N_FORMATS - 1];
}

const struct output_format *output_format_by_name(struct str name) {
    for (size_t i = 0; i < N_FORMATS; i++)
        if (str_eq_c(name, FORMATS[i].name))
            return &FORMATS[i];
    return NULL;
}

const char *output_format_name(size_t i) {
    return i < N_FORMATS ? FORMATS[i].name : NULL;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

bool output_format_reasoning_open(const struct output_format *format, struct str prompt) {
    if (!format->think_open)
        return false;
    while (prompt.n && is_space(prompt.data[prompt.n - 1]))
        prompt.n--;
    struct str open = str_from(format->think_open);
    while (open.n && is_space(open.data[open.n - 1]))
        open.n--;
    return str_ends(prompt, open);
}

void output_format_marks(const struct output_format *f, void (*fn)(void *user, struct str mark), void *user) {
    static const char *const HARMONY[] = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>",
                                          "<|return|>", "<|constrain|>"};
    if (f->harmony) {
        for (size_t i = 0; i < sizeof HARMONY / sizeof *HARMONY; i++)
            fn(user, str_from(HARMONY[i]));
        return;
    }
    const char *const marks[] = {f->think_open, f->think_close, f->section_open, f->section_close,
                                 f->call_open,  f->call_close,  f->name_open,    f->name_close,
                                 f->key_open,   f->key_close,   f->value_open,   f->value_close,
                                 f->string_mark};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (marks[i])
            fn(user, str_from(marks[i]));
}
