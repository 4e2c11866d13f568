// The corpus of model outputs: each gives what is written beside it, whole, in single bytes, and split in two at
// every byte; cut or damaged anywhere it gives something, and no text is lost.
#include "check.h"

#include "base/utf8.h"
#include "server/output_parser.h"

struct got {
    struct strbuf content, reasoning, calls; // calls: "name arguments\n"
    struct strbuf arguments;
    bool open;
};

static void on_piece(void *user, const struct output_piece *piece) {
    struct got *g = user;
    switch (piece->kind) {
    case OUTPUT_CONTENT:
        strbuf_append(&g->content, piece->text);
        break;
    case OUTPUT_REASONING:
        strbuf_append(&g->reasoning, piece->text);
        break;
    case OUTPUT_CALL_BEGIN:
        assert_false(g->open);
        g->open = true;
        strbuf_append(&g->calls, piece->text);
        strbuf_char(&g->calls, ' ');
        break;
    case OUTPUT_CALL_ARGUMENTS:
        assert_true(g->open);
        strbuf_append(&g->arguments, piece->text);
        break;
    case OUTPUT_CALL_END: {
        assert_true(g->open);
        g->open = false;
        struct err err = {0};
        json_t *arguments = json_parse(strbuf_str(&g->arguments), "arguments", &err);
        if (!json_is_object(arguments))
            fail_msg("arguments are no object: %.*s", (int)g->arguments.n, g->arguments.data);
        strbuf_json(&g->calls, arguments);
        strbuf_char(&g->calls, '\n');
        json_decref(arguments);
        strbuf_clear(&g->arguments);
        break;
    }
    }
}

static void got_deinit(struct got *g) {
    strbuf_deinit(&g->content);
    strbuf_deinit(&g->reasoning);
    strbuf_deinit(&g->calls);
    strbuf_deinit(&g->arguments);
}

// Parse `text` in pieces: cuts at `cut`, or after every byte if cut is SIZE_MAX.
static struct got parse(const struct output_format *format, const json_t *tools, bool open, struct str text,
                        size_t cut) {
    struct got g = {0};
    struct err err = {0};
    struct output_parser_options options = {
        .format = format, .tools = tools, .reasoning_open = open, .fn = on_piece, .user = &g};
    struct output_parser *p = output_parser_create(&options, &err);
    assert_non_null(p);
    if (cut == SIZE_MAX) {
        for (size_t i = 0; i < text.n; i++)
            assert_true(output_parser_push(p, str_slice(text, i, i + 1)));
    } else {
        assert_true(output_parser_push(p, str_slice(text, 0, cut)));
        assert_true(output_parser_push(p, str_slice(text, cut, text.n)));
    }
    assert_true(output_parser_finish(p));
    assert_false(g.open);
    output_parser_destroy(p);
    return g;
}

static json_t *corpus(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/server/tool_corpus.json", getenv("LOAM_SOURCE_DIR"));
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        fail_msg("%s: %s", path, error.text);
    return root;
}

static void check_text(const char *id, const char *how, size_t cut, const char *what, struct str got,
                       struct str want) {
    if (!str_eq(got, want))
        fail_msg("%s, %s %zu: %s is\n%.*s\nnot\n%.*s", id, how, cut, what, (int)got.n, got.data, (int)want.n,
                 want.data);
}

struct wanted {
    struct str content, reasoning, calls;
};

static void check_case(const char *id, const char *how, size_t cut, struct got *g, const struct wanted *want) {
    check_text(id, how, cut, "content", strbuf_str(&g->content), want->content);
    check_text(id, how, cut, "reasoning", strbuf_str(&g->reasoning), want->reasoning);
    check_text(id, how, cut, "calls", strbuf_str(&g->calls), want->calls);
    got_deinit(g);
}

static void outputs_give_what_the_corpus_says_however_they_are_split(void **state) {
    (void)state;
    json_t *root = corpus(), *cases = json_object_get(root, "cases"), *tools = json_object_get(root, "tools");
    size_t n = json_array_size(cases);
    assert_true(n >= 200);
    for (size_t i = 0; i < n; i++) {
        const json_t *c = json_array_get(cases, i);
        const char *id = json_string_value(json_object_get(c, "id"));
        const struct output_format *format = output_format_by_name(json_str(json_object_get(c, "format")));
        if (!format)
            fail_msg("%s: no such format", id);
        const json_t *calls = json_object_get(c, "calls");
        struct strbuf lines = {0};
        for (size_t k = 0; k < json_array_size(calls); k++) {
            strbuf_append(&lines, json_str(json_array_get(json_array_get(calls, k), 0)));
            strbuf_char(&lines, ' ');
            strbuf_json(&lines, json_array_get(json_array_get(calls, k), 1));
            strbuf_char(&lines, '\n');
        }
        const struct wanted want = {json_str(json_object_get(c, "content")),
                                    json_str(json_object_get(c, "reasoning")), strbuf_str(&lines)};
        struct str text = json_str(json_object_get(c, "output"));
        bool open = json_is_true(json_object_get(c, "open"));
        const json_t *given = json_is_false(json_object_get(c, "tools")) ? NULL : tools;
        struct got g = parse(format, given, open, text, text.n);
        check_case(id, "whole", text.n, &g, &want);
        g = parse(format, given, open, text, SIZE_MAX);
        check_case(id, "in bytes of", text.n, &g, &want);
        for (size_t cut = 1; cut < text.n; cut++) {
            g = parse(format, given, open, text, cut);
            check_case(id, "cut at", cut, &g, &want);
        }
        strbuf_deinit(&lines);
    }
    json_decref(root);
}

// Every beginning of every output, every output with a byte left out, and every output read as another family's:
// never a crash, arguments are always an object, and splitting changes nothing.
static void damaged_outputs_give_the_same_however_they_are_split(void **state) {
    (void)state;
    json_t *root = corpus(), *cases = json_object_get(root, "cases"), *tools = json_object_get(root, "tools");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *id = json_string_value(json_object_get(c, "id"));
        const struct output_format *own = output_format_by_name(json_str(json_object_get(c, "format")));
        struct str text = json_str(json_object_get(c, "output"));
        for (size_t at = 0; at < text.n; at++) {
            struct strbuf cut = {0}, damaged = {0};
            strbuf_append(&cut, str_slice(text, 0, at));
            if (at % 2)
                strbuf_append(&cut, str_slice(text, at + 1, text.n));
            utf8_append_lossy(&damaged, strbuf_str(&cut)); // a model's text is always well-formed
            strbuf_deinit(&cut);
            struct str d = strbuf_str(&damaged);
            struct got whole = parse(own, tools, false, d, d.n), bytes = parse(own, tools, false, d, SIZE_MAX);
            const struct wanted want = {strbuf_str(&whole.content), strbuf_str(&whole.reasoning),
                                        strbuf_str(&whole.calls)};
            check_case(id, at % 2 ? "without byte" : "up to byte", at, &bytes, &want);
            got_deinit(&whole);
            strbuf_deinit(&damaged);
        }
        for (size_t f = 0; output_format_name(f); f++) {
            const struct output_format *other = output_format_by_name(str_from(output_format_name(f)));
            struct got whole = parse(other, tools, false, text, text.n);
            struct got bytes = parse(other, tools, false, text, SIZE_MAX);
            const struct wanted want = {strbuf_str(&whole.content), strbuf_str(&whole.reasoning),
                                        strbuf_str(&whole.calls)};
            check_case(id, other->name, 0, &bytes, &want);
            got_deinit(&whole);
        }
    }
    json_decref(root);
}

static void text_without_marks_is_content_byte_for_byte(void **state) {
    (void)state;
    static const char *const TEXTS[] = {"", " ", "\n\n", "plain", " a\n b \n", "a < b <", "[1, 2]", "{\"a\": 1}",
                                        "<think", "```json\n{}\n```\n", "x <|", "[TOOL", "\xF0\x9F\x98\x80"};
    json_t *root = corpus(), *tools = json_object_get(root, "tools");
    for (size_t f = 0; output_format_name(f); f++) {
        const struct output_format *format = output_format_by_name(str_from(output_format_name(f)));
        for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
            struct got g = parse(format, tools, false, str_from(TEXTS[i]), SIZE_MAX);
            const struct wanted want = {.content = str_from(TEXTS[i])};
            if (!format->harmony || TEXTS[i][0] != '<')
                check_case(format->name, TEXTS[i], 0, &g, &want);
            else
                got_deinit(&g);
        }
    }
    json_decref(root);
}

static void families_are_found_by_their_templates(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared) {
        print_message("no shared templates: skipped\n");
        skip();
    }
    static const char *const WANT[][2] = {
        {"gpt-oss", "gpt-oss"},         {"gemma4-tools", "gemma4"},     {"functiongemma", "functiongemma"},
        {"deepseek-v3.2", "deepseek-dsml"}, {"deepseek-v3.1", "deepseek-v3.1"}, {"deepseek-r1", "deepseek"},
        {"kimi-k2", "kimi"},            {"minimax-m2", "minimax"},      {"seed-oss", "seed-oss"},
        {"glm4.5", "glm"},              {"glm4.6", "glm"},              {"glm5.1", "glm-4.7"},              {"minicpm5", "minicpm"},
        {"qwen3-coder", "qwen-xml"},    {"qwen3.5", "qwen-xml"},        {"qwen3", "hermes"},
        {"qwen2.5-instruct", "hermes"}, {"mistral-nemo", "mistral-list"},    {"mistral-small-3.2", "mistral"},
        {"lfm2", "lfm2"},             {"llama3.1-instruct", "llama3"}, {"llama4-pythonic", "llama4"},
        {"functionary-v3.1", "functionary"}, {"nemotron-nano-v2", "nemotron"}, {"chatml", "generic"},
        {"command-r7b-tools", "cohere"}, {"hermes3-tools", "hermes"},  {"gemma3", "generic"},
        {"llama3.2-pythonic", "llama3-pythonic"}, {"llama4", "llama4-json"},
    };
    for (size_t i = 0; i < sizeof WANT / sizeof *WANT; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/templates/%s.json", shared, WANT[i][0]);
        json_t *file = json_load_file(path, 0, NULL);
        if (!file) {
            print_message("%s is not there\n", WANT[i][0]);
            continue;
        }
        const char *got = output_format_of(json_str(json_object_get(file, "template")))->name;
        if (strcmp(got, WANT[i][1]) != 0)
            fail_msg("%s is taken for %s, not %s", WANT[i][0], got, WANT[i][1]);
        json_decref(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_give_what_the_corpus_says_however_they_are_split),
        cmocka_unit_test(damaged_outputs_give_the_same_however_they_are_split),
        cmocka_unit_test(text_without_marks_is_content_byte_for_byte),
        cmocka_unit_test(families_are_found_by_their_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
