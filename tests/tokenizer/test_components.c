// Every component of tokenizer.json against goldens.json: what Hugging Face's tokenizers give for small
// tokenizers that together have them all (written by differential/compare.mjs --goldens).
#include "check.h"

#include "base/file_map.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

static void check_text(const char *name, const char *what, const struct strbuf *got, const json_t *want) {
    if (!str_eq(strbuf_str(got), json_str(want)))
        fail_msg("%s: %s is \"%s\", not \"%s\"", name, what, got->n ? got->data : "",
                 json_string_value(want));
}

static void check_result(const char *name, const struct tokenizer *t, struct str text,
                         const json_t *result) {
    struct err err = {0};
    struct token_list ids = {0};
    const json_t *want = json_array_get(result, 0);
    check_ok(tokenizer_encode(t, text, TOKENIZER_ADD_SPECIAL, &ids, &err), &err);
    bool equal = ids.n == json_array_size(want);
    for (size_t i = 0; equal && i < ids.n; i++)
        equal = ids.ids[i] == json_integer_value(json_array_get(want, i));
    if (!equal)
        fail_msg("%s: \"%.*s\" has other ids", name, (int)text.n, text.data);
    for (int skip = 0; skip < 2; skip++) {
        struct strbuf whole = {0}, pieces = {0};
        check_ok(tokenizer_decode(t, ids.ids, ids.n, skip, &whole, &err), &err);
        check_text(name, skip ? "the text without special tokens" : "the text", &whole,
                   json_array_get(result, (size_t)(1 + skip)));
        struct detokenizer *detok = detokenizer_create(t, skip, &err);
        check_ok(detok, &err);
        for (size_t i = 0; i < ids.n; i++)
            assert_true(detokenizer_push(detok, ids.ids[i], &pieces));
        assert_true(detokenizer_finish(detok, &pieces));
        check_text(name, "the joined pieces", &pieces, json_array_get(result, (size_t)(1 + skip)));
        detokenizer_destroy(detok);
        strbuf_deinit(&whole);
        strbuf_deinit(&pieces);
    }
    token_list_deinit(&ids);
}

static void components_give_the_oracles_ids_and_texts(void **state) {
    (void)state;
    struct err err = {0};
    struct strbuf file = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/tokenizer/goldens.json", getenv("LOAM_SOURCE_DIR"));
    check_ok(file_read(path, 16 << 20, &file, &err), &err);
    json_t *goldens = json_parse(strbuf_str(&file), path, &err);
    check_ok(goldens, &err);
    const json_t *texts = json_object_get(goldens, "texts"), *cases = json_object_get(goldens, "cases");
    json_t *models = json_object_get(goldens, "models");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        json_t *spec = json_object_get(c, "tokenizer");
        size_t model = (size_t)json_integer_value(json_object_get(spec, "model"));
        json_object_set(spec, "model", json_array_get(models, model));
        struct strbuf text = {0};
        strbuf_json(&text, spec);
        struct tokenizer *t = tokenizer_create(bytes_of(strbuf_str(&text)), (struct bytes){NULL, 0}, &err);
        if (!t)
            fail_msg("%s: %s", name, err.message);
        for (size_t k = 0; k < json_array_size(texts); k++)
            check_result(name, t, json_str(json_array_get(texts, k)),
                         json_array_get(json_object_get(c, "results"), k));
        tokenizer_destroy(t);
        strbuf_deinit(&text);
    }
    print_message("%zu tokenizers\n", json_array_size(cases));
    assert_true(json_array_size(cases) > 100);
    json_decref(goldens);
    strbuf_deinit(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(components_give_the_oracles_ids_and_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
