// Every zoo model's tokenizer_cases: ids by Hugging Face transformers, see the zoo's README.
#include "check.h"

#include <dirent.h>

#include "base/file_map.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

static void check_ids(const char *model, struct str text, const struct token_list *got,
                      const json_t *want) {
    bool equal = got->n == json_array_size(want);
    for (size_t i = 0; equal && i < got->n; i++)
        equal = got->ids[i] == json_integer_value(json_array_get(want, i));
    if (equal)
        return;
    struct strbuf show = {0};
    strbuf_json(&show, want);
    strbuf_append_c(&show, " got ");
    for (size_t i = 0; i < got->n; i++)
        strbuf_printf(&show, "%d,", got->ids[i]);
    fail_msg("%s: \"%.*s\": want %s", model, (int)text.n, text.data, show.data);
}

static void check_case(const char *model, const struct tokenizer *t, const json_t *c) {
    static const struct {
        const char *key;
        uint32_t flags;
    } KINDS[] = {{"ids", 0}, {"ids_special", TOKENIZER_ADD_SPECIAL}};
    struct str text = json_str(json_object_get(c, "text"));
    struct err err = {0};
    for (size_t k = 0; k < 2; k++) {
        struct token_list got = {0};
        check_ok(tokenizer_encode(t, text, KINDS[k].flags, &got, &err), &err);
        check_ids(model, text, &got, json_object_get(c, KINDS[k].key));
        struct strbuf whole = {0}, pieces = {0};
        check_ok(tokenizer_decode(t, got.ids, got.n, false, &whole, &err), &err);
        struct detokenizer *detok = detokenizer_create(t, false, &err);
        check_ok(detok, &err);
        for (size_t i = 0; i < got.n; i++)
            assert_true(detokenizer_push(detok, got.ids[i], &pieces));
        assert_true(detokenizer_finish(detok, &pieces));
        check_str(strbuf_str(&pieces), strbuf_str(&whole));
        detokenizer_destroy(detok);
        strbuf_deinit(&whole);
        strbuf_deinit(&pieces);
        token_list_deinit(&got);
    }
}

static void gives_the_zoos_ids_with_and_without_special_tokens(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared) {
        print_message("no shared folder: skipped\n");
        skip();
    }
    char path[4300];
    snprintf(path, sizeof path, "%s/zoo", shared);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    size_t n_models = 0, n_cases = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char folder[4700], file[4800];
        snprintf(folder, sizeof folder, "%s/zoo/%s", shared, entry->d_name);
        snprintf(file, sizeof file, "%s/golden.json", folder);
        if (entry->d_name[0] == '.' || !path_exists(file))
            continue;
        struct err err = {0};
        struct strbuf golden = {0};
        check_ok(file_read(file, 64 << 20, &golden, &err), &err);
        json_t *json = json_parse(strbuf_str(&golden), file, &err);
        check_ok(json, &err);
        const json_t *cases = json_object_get(json, "tokenizer_cases");
        struct tokenizer *t = json_array_size(cases) ? tokenizer_open(folder, &err) : NULL;
        if (json_array_size(cases))
            check_ok(t, &err);
        for (size_t i = 0; i < json_array_size(cases); i++, n_cases++)
            check_case(entry->d_name, t, json_array_get(cases, i));
        n_models += t != NULL;
        tokenizer_destroy(t);
        json_decref(json);
        strbuf_deinit(&golden);
    }
    closedir(dir);
    print_message("%zu cases of %zu models\n", n_cases, n_models);
    assert_true(n_models > 0 && n_cases > 0);
}

int main(void) {
    // Compiled forms belong to this build, not to the user's cache.
    const char *build = getenv("LOAM_BUILD_DIR");
    char cache[4200];
    snprintf(cache, sizeof cache, "%s/test-cache", build ? build : "/tmp");
    setenv("XDG_CACHE_HOME", cache, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_zoos_ids_with_and_without_special_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
