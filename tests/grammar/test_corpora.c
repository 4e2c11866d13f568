// Schemas found in the wild with valid and invalid instances, byte by byte: none of the invalid ones is
// accepted, and none of the valid ones refused, where no keyword is left out. Skipped without the
// shared data.
#include "base/file_map.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "toy_vocab.h"

static bool accepts_text(struct grammar *g, const char *text) {
    struct err err = {0};
    struct grammar_state *state = grammar_state_create(g, &err);
    assert_non_null(state);
    bool yes = true;
    for (const char *c = text; *c && yes; c++)
        yes = grammar_state_advance(state, TOY_FIRST_BYTE + (uint8_t)*c);
    yes = yes && grammar_state_eos_allowed(state);
    grammar_state_destroy(state);
    return yes;
}

static bool accepts(struct grammar *g, json_t *data) {
    bool yes = false;
    json_t *ordered = grammar_order(g, data);
    json_t *tries[] = {data, ordered};
    for (int i = 0; i < 2 && !yes; i++) {
        char *text = json_dumps(tries[i], JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        yes = accepts_text(g, text);
        free(text);
    }
    json_decref(ordered);
    return yes;
}

static void real_schemas_are_exact(void **unused) {
    (void)unused;
    const char *shared = check_shared_folder();
    char path[4300];
    snprintf(path, sizeof path, "%s/jsonschema/maskbench.jsonl", shared ? shared : "");
    struct strbuf file = {0};
    if (!shared || !file_read(path, 64 << 20, &file, NULL)) {
        print_message("skipped: no shared folder with jsonschema/maskbench.jsonl\n");
        skip();
    }
    struct grammar_vocab *vocab = toy_vocab(false);
    uint32_t n_schemas = 0, n_refused = 0, n_tests = 0;
    struct str text = strbuf_str(&file);
    for (size_t pos = 0; pos < text.n; n_schemas++) {
        size_t end = str_find(text, STR("\n"), pos);
        end = end == SIZE_MAX ? text.n : end;
        json_t *line = json_loadb(text.data + pos, end - pos, JSON_ALLOW_NUL, NULL), *test;
        pos = end + 1;
        assert_non_null(line);
        struct strbuf schema = {0};
        strbuf_json(&schema, json_object_get(line, "schema"));
        struct err err = {0};
        struct grammar_spec spec = {.kind = GRAMMAR_JSON_SCHEMA, .text = strbuf_str(&schema)};
        struct grammar *g = grammar_compile(&spec, vocab, &err);
        n_refused += !g;
        size_t i;
        json_array_foreach(json_object_get(line, "tests"), i, test) {
            bool valid = json_is_true(json_object_get(test, "valid"));
            if (!g || grammar_n_ignored(g))
                continue;
            n_tests++;
            if (accepts(g, json_object_get(test, "data")) != valid)
                fail_msg("%s: test %zu is %s", json_string_value(json_object_get(line, "name")), i,
                         valid ? "valid, but refused" : "invalid, but accepted");
        }
        grammar_release(g);
        strbuf_deinit(&schema);
        json_decref(line);
    }
    print_message("%u schemas, %u refused, %u instances\n", n_schemas, n_refused, n_tests);
    assert_true(n_refused * 50 < n_schemas);
    grammar_vocab_destroy(vocab);
    strbuf_deinit(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(real_schemas_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
