// Opening, encoding and decoding with every one of their allocations failing: an error or the same answer
// each time, never another one, and nothing lost. The tokenizers are the fuzz targets' seeds.
#include "check.h"

#include "base/file_map.h"
#include "base/log.h"
#include "failing_alloc.h"
#include "tokenizer/compile.h"
#include "tokenizer/tokenizer.h"

struct answer {
    struct token_list ids;
    struct strbuf text, pieces, image;
};

static void answer_deinit(struct answer *answer) {
    token_list_deinit(&answer->ids);
    strbuf_deinit(&answer->text);
    strbuf_deinit(&answer->pieces);
    strbuf_deinit(&answer->image);
}

static bool same_answer(const struct answer *a, const struct answer *b) {
    return a->ids.n == b->ids.n &&
           (a->ids.n == 0 || memcmp(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids) == 0) &&
           str_eq(strbuf_str(&a->text), strbuf_str(&b->text)) &&
           str_eq(strbuf_str(&a->pieces), strbuf_str(&b->pieces)) &&
           str_eq(strbuf_str(&a->image), strbuf_str(&b->image));
}

typedef bool work_fn(struct bytes file, struct answer *answer, struct err *err);

static bool use_json(struct bytes file, struct answer *answer, struct err *err) {
    struct str text = STR("Hello  w\xC3\xB6rld's 123!\n\xE4\xB8\x96 <s>x\xF0\x9F\x98\x80\xFF Wor a");
    struct tokenizer *t = tokenizer_create(file, bytes_of(STR("{\"bos_token\":\"<s>\",\"add_bos_token\":true}")),
                                           err);
    bool ok = t && tokenizer_encode(t, text, TOKENIZER_ADD_SPECIAL, &answer->ids, err) &&
              tokenizer_decode(t, answer->ids.ids, answer->ids.n, true, &answer->text, err);
    struct detokenizer *detok = ok ? detokenizer_create(t, true, err) : NULL;
    ok = ok && detok;
    for (size_t i = 0; ok && i < answer->ids.n; i++) {
        if (i == 3) { // the copy carries on
            struct detokenizer *copy = detokenizer_clone(detok);
            ok = copy || err_set(err, ERR_NOMEM, "no copy");
            detokenizer_destroy(detok);
            detok = copy;
        }
        ok = ok && (detokenizer_push(detok, answer->ids.ids[i], &answer->pieces) ||
                    err_set(err, ERR_NOMEM, "no piece"));
    }
    ok = ok && (detokenizer_finish(detok, &answer->pieces) || err_set(err, ERR_NOMEM, "no end"));
    detokenizer_destroy(detok);
    tokenizer_destroy(t);
    return ok;
}

static bool use_model_file(struct bytes file, struct answer *answer, struct err *err) {
    struct source source;
    if (!source_from_model_file(&source, file, (struct bytes){NULL, 0}, err))
        return false;
    bool ok = tokenizer_compile(&source, &answer->image, err);
    source_deinit(&source);
    return ok;
}

static void sweep(const char *folder, const char *name, work_fn *work) {
    char path[4096];
    struct err err = {0};
    struct strbuf file = {0};
    snprintf(path, sizeof path, "%s/fuzz/seeds/%s/%s", getenv("LOAM_SOURCE_DIR"), folder, name);
    check_ok(file_read(path, 1 << 20, &file, &err), &err);
    struct answer want = {0};
    check_ok(work(bytes_of(strbuf_str(&file)), &want, &err), &err);
    size_t idx = 0;
    for (bool hit = true; hit; idx++) {
        struct answer got = {0};
        err_clear(&err);
        failing_alloc_start(idx, false);
        bool ok = work(bytes_of(strbuf_str(&file)), &got, &err);
        hit = failing_alloc_hit();
        bool same = ok && same_answer(&got, &want);
        answer_deinit(&got);
        size_t n_lost = failing_alloc_stop();
        if (n_lost)
            fail_msg("%s: %zu blocks lost after allocation %zu failed", name, n_lost, idx);
        if (ok && !same)
            fail_msg("%s: another answer after allocation %zu failed", name, idx);
        if (!ok && err.code != ERR_NOMEM)
            fail_msg("%s: allocation %zu: %s \"%s\"", name, idx, err_code_name(err.code), err.message);
    }
    print_message("%s: %zu allocations\n", name, idx);
    answer_deinit(&want);
    strbuf_deinit(&file);
}

static void tokenizer_json_survives(void **state) {
    (void)state;
    static const char *const NAMES[] = {"bpe_bytes", "bpe_chars", "unigram", "wordpiece", "wordlevel"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        sweep("tokenizer_json", NAMES[i], use_json);
}

static void model_files_survive(void **state) {
    (void)state;
    static const char *const NAMES[] = {"ranks", "spm1", "spm2"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        sweep("tokenizer_model", NAMES[i], use_model_file);
}

int main(void) {
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_json_survives),
        cmocka_unit_test(model_files_survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
