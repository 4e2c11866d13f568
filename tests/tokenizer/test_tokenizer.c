// What tokenizers answer to files and texts that are wrong, large, or cut anywhere.
#include "check.h"

#include <sys/stat.h>
#include <unistd.h>

#include "artifact/builtin.h"
#include "base/clock.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

static struct tokenizer *builtin(void) {
    struct err err = {0};
    struct tokenizer *t = tokenizer_create(builtin_file("tokenizer.json"),
                                           builtin_file("tokenizer_config.json"), &err);
    check_ok(t, &err);
    return t;
}

static struct tokenizer *from_text(const char *json, const char *config, struct err *err) {
    return tokenizer_create(bytes_of(str_from(json)), bytes_of(str_from(config)), err);
}

// ---- Wrong files ------------------------------------------------------------------------------

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static void damaged_files_are_refused_with_their_reason(void **state) {
    (void)state;
    static const struct {
        const char *json;
        enum err_code code;
        const char *part;
    } CASES[] = {
        {"", ERR_FORMAT, "tokenizer.json"},
        {"{", ERR_FORMAT, "line 1"},
        {"[]", ERR_FORMAT, "model"},
        {"{}", ERR_FORMAT, "model"},
        {"{\"model\":{\"type\":\"Markov\"}}", ERR_UNSUPPORTED, "Markov"},
        {"{\"model\":{\"type\":\"BPE\"}}", ERR_FORMAT, "vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", ERR_FORMAT, "merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", ERR_FORMAT, "\"a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", ERR_FORMAT, "-1"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999999},\"merges\":[]}}", ERR_FORMAT,
         "99999999999"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":16000000},\"merges\":[]}}", ERR_FORMAT,
         "16000000"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", ERR_FORMAT,
         "same id 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a z\"]}}", ERR_FORMAT, "\"z\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", ERR_FORMAT, "\"aa\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", ERR_FORMAT,
         "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", ERR_FORMAT,
         "merge 0"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", ERR_FORMAT, "entry 0"},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":5,\"vocab\":[[\"a\",0]]}}", ERR_FORMAT, "unk_id 5"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Rot13\"}}", ERR_UNSUPPORTED, "Rot13"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Magic\"}}", ERR_UNSUPPORTED, "Magic"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Enigma\"}}", ERR_UNSUPPORTED, "Enigma"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Later\"}}", ERR_UNSUPPORTED, "Later"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\"}}", ERR_FORMAT, "normalizers"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}}", ERR_FORMAT, "pattern"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"////\"}}",
         ERR_FORMAT, "precompiled_charsmap"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"====\"}}",
         ERR_FORMAT, "precompiled_charsmap"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(\"},"
         "\"behavior\":\"Isolated\"}}", ERR_UNSUPPORTED, "\"a(\""},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
         "\"behavior\":\"Sideways\"}}", ERR_UNSUPPORTED, "Sideways"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0}}", ERR_FORMAT, "length"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
         "{\"id\":\"<s>\"}}],\"special_tokens\":{}}}", ERR_FORMAT, "piece 0"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",99],\"sep\":[\"y\",1]}}",
         ERR_FORMAT, "no token"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct err err = {0};
        struct tokenizer *t = from_text(CASES[i].json, "", &err);
        if (t)
            fail_msg("%s was opened", CASES[i].json);
        if (err.code != CASES[i].code || !strstr(err.message, CASES[i].part))
            fail_msg("%s: %s \"%s\"", CASES[i].json, err_code_name(err.code), err.message);
    }
}

static void a_folder_without_tokenizer_is_not_found(void **state) {
    (void)state;
    struct err err = {0};
    assert_null(tokenizer_open("/nonexistent", &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    check_message(&err, "tokenizer.model");
}

static void cut_files_never_open_half(void **state) {
    (void)state;
    struct bytes whole = builtin_file("tokenizer.json");
    for (size_t n = 0; n < whole.n; n += 1 + whole.n / 400) {
        struct err err = {0};
        assert_null(tokenizer_create((struct bytes){whole.data, n}, (struct bytes){NULL, 0}, &err));
        assert_int_equal(err.code, ERR_FORMAT);
    }
}

// ---- Conventions ------------------------------------------------------------------------------

static void bos_is_added_once(void **state) {
    (void)state;
    static const char PLAIN[] = "{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}]}";
    static const char WITH_BOS[] =
        "{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
        "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[3]}}}}";
    static const struct {
        const char *json, *config;
        size_t n;
    } CASES[] = {
        {PLAIN, "{\"bos_token\":\"<s>\"}", 1},
        {PLAIN, "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 2},
        {PLAIN, "{\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":true,\"add_eos_token\":true,"
                "\"eos_token\":\"<s>\"}", 3},
        {WITH_BOS, "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 2},
        {WITH_BOS, "{\"bos_token\":\"<s>\"}", 2},
        {WITH_BOS, "{\"bos_token\":\"<s>\",\"add_bos_token\":false,\"tokenizer_class\":\"LlamaTokenizerFast\"}", 1},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct err err = {0};
        struct tokenizer *t = from_text(CASES[i].json, CASES[i].config, &err);
        check_ok(t, &err);
        struct token_list ids = {0};
        check_ok(tokenizer_encode(t, STR("ab"), TOKENIZER_ADD_SPECIAL, &ids, &err), &err);
        if (ids.n != CASES[i].n)
            fail_msg("case %zu gives %zu ids", i, ids.n);
        assert_int_equal(tokenizer_bos(t), 3);
        token_list_deinit(&ids);
        tokenizer_destroy(t);
    }
}

static void spellings_of_special_tokens_can_be_plain_text(void **state) {
    (void)state;
    struct err err = {0};
    struct tokenizer *t = builtin();
    struct token_list special = {0}, plain = {0};
    struct strbuf text = {0};
    token_id end = tokenizer_id(t, STR("<|im_end|>"));
    assert_true(end != TOKEN_NONE && tokenizer_is_special(t, end));
    check_ok(tokenizer_encode(t, STR("a<|im_end|>"), 0, &special, &err), &err);
    check_ok(tokenizer_encode(t, STR("a<|im_end|>"), TOKENIZER_NO_SPECIAL_SPELLINGS, &plain, &err), &err);
    assert_int_equal(special.ids[special.n - 1], end);
    for (size_t i = 0; i < plain.n; i++)
        assert_int_not_equal(plain.ids[i], end);
    check_ok(tokenizer_decode(t, plain.ids, plain.n, true, &text, &err), &err);
    check_str(strbuf_str(&text), STR("a<|im_end|>"));
    strbuf_clear(&text);
    check_ok(tokenizer_decode(t, special.ids, special.n, true, &text, &err), &err);
    check_str(strbuf_str(&text), STR("a"));
    assert_int_equal(tokenizer_token_bytes(t, end).n, 0);
    token_list_deinit(&special);
    token_list_deinit(&plain);
    strbuf_deinit(&text);
    tokenizer_destroy(t);
}

static void cleanup_works_the_same_whole_and_in_pieces(void **state) {
    (void)state;
    static const char JSON[] =
        "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"a\":0,\".\":1,\"'\":2,\"s\":3,"
        "\"n't\":4,\"\":5,\"?\":6}}}";
    static const struct {
        token_id ids[4];
        const char *want;
    } CASES[] = {{{0, 1, 0, 6}, "a. a?"}, {{0, 2, 3, 0}, "a's a"}, {{0, 4, 0, 1}, "an't a."},
                 {{0, 5, 2, 3}, "a 's"}};
    struct err err = {0};
    struct tokenizer *t = from_text(JSON, "{\"clean_up_tokenization_spaces\":true}", &err);
    check_ok(t, &err);
    for (size_t i = 0; i < 3; i++) {
        struct strbuf whole = {0}, pieces = {0};
        check_ok(tokenizer_decode(t, CASES[i].ids, 4, false, &whole, &err), &err);
        check_str(strbuf_str(&whole), str_from(CASES[i].want));
        struct detokenizer *detok = detokenizer_create(t, false, &err);
        for (size_t k = 0; k < 4; k++)
            assert_true(detokenizer_push(detok, CASES[i].ids[k], &pieces));
        assert_true(detokenizer_finish(detok, &pieces));
        check_str(strbuf_str(&pieces), strbuf_str(&whole));
        detokenizer_destroy(detok);
        strbuf_deinit(&whole);
        strbuf_deinit(&pieces);
    }
    tokenizer_destroy(t);
}

// ---- Pieces -----------------------------------------------------------------------------------

static void a_copy_of_a_detokenizer_goes_its_own_way(void **state) {
    (void)state;
    struct err err = {0};
    struct tokenizer *t = builtin();
    struct token_list ids = {0};
    check_ok(tokenizer_encode(t, STR("\xF0\x9F\x98\x80"), 0, &ids, &err), &err);
    assert_true(ids.n > 1);
    struct strbuf a = {0}, b = {0};
    struct detokenizer *first = detokenizer_create(t, true, &err);
    assert_true(detokenizer_push(first, ids.ids[0], &a));
    assert_int_equal(a.n, 0); // a part of a character is held back
    struct detokenizer *second = detokenizer_clone(first);
    for (size_t i = 1; i < ids.n; i++)
        assert_true(detokenizer_push(first, ids.ids[i], &a));
    check_str(strbuf_str(&a), STR("\xF0\x9F\x98\x80"));
    assert_true(detokenizer_finish(second, &b));
    check_str(strbuf_str(&b), STR("\xEF\xBF\xBD"));
    detokenizer_destroy(first);
    detokenizer_destroy(second);
    strbuf_deinit(&a);
    strbuf_deinit(&b);
    token_list_deinit(&ids);
    tokenizer_destroy(t);
}

static void one_letter_a_million_times_stays_fast(void **state) {
    (void)state;
    // Nothing cuts the text into words here: one merge queue holds all of it.
    static const char JSON[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2,\"aaaaaaaa\":3},"
        "\"merges\":[\"a a\",\"aa aa\",\"aaaa aaaa\"]}}";
    struct err err = {0};
    struct tokenizer *t = from_text(JSON, "", &err);
    check_ok(t, &err);
    size_t n = 1 << 20;
    char *text = malloc(n);
    memset(text, 'a', n);
    struct token_list ids = {0};
    uint64_t start = clock_ns();
    check_ok(tokenizer_encode(t, (struct str){text, n}, 0, &ids, &err), &err);
    assert_true(clock_ms_since(start) < 20000); // quadratic would be hours
    assert_int_equal(ids.n, n / 8);
    assert_int_equal(ids.ids[n / 8 - 1], 3);
    free(text);
    token_list_deinit(&ids);
    tokenizer_destroy(t);
}

// ---- Files ------------------------------------------------------------------------------------

static char folder[64];

static void write_file(const char *name, struct bytes content) {
    char path[256];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    check_ok(file_write_atomic(path, content, &err), &err);
}

static void check_ids(const struct tokenizer *t, const char *text, uint32_t flags, const token_id *want,
                      size_t n) {
    struct err err = {0};
    struct token_list ids = {0};
    check_ok(tokenizer_encode(t, str_from(text), flags, &ids, &err), &err);
    bool equal = ids.n == n && memcmp(ids.ids, want, n * sizeof *want) == 0;
    for (size_t i = 0; !equal && i < ids.n; i++)
        print_message("%d ", ids.ids[i]);
    if (!equal)
        fail_msg("\"%s\" has other ids", text);
    token_list_deinit(&ids);
}

static void rank_files_are_read(void **state) {
    (void)state;
    struct err err = {0};
    // Bytes "a" "b" " " and "ab", " a", " ab": joined by rank.
    write_file("tokenizer.model", bytes_of(STR("YQ== 0\nYg== 1\nIA== 2\nYWI= 3\nIGE= 4\nIGFi 5\n")));
    write_file("tokenizer_config.json",
               bytes_of(STR("{\"added_tokens_decoder\":{\"9\":{\"content\":\"<|end|>\",\"special\":true}},"
                            "\"eos_token\":\"<|end|>\"}")));
    struct tokenizer *t = tokenizer_open(folder, &err);
    check_ok(t, &err);
    check_ids(t, "ab ab<|end|>ba", 0, (token_id[]){3, 5, 9, 1, 0}, 5);
    assert_int_equal(tokenizer_eos(t), 9);
    assert_int_equal(tokenizer_n_vocab(t), 10);
    tokenizer_destroy(t);
    write_file("tokenizer.model", bytes_of(STR("YQ== 0\nYg 1\n")));
    assert_null(tokenizer_open(folder, &err));
    assert_int_equal(err.code, ERR_FORMAT);
    check_message(&err, "line 2");
    write_file("tokenizer.model", bytes_of(STR("YQ== 0\n======== 1\n"))); // padding alone
    tokenizer_destroy(tokenizer_open(folder, &err));
}

// A ModelProto, written by hand.
static void put_piece(struct strbuf *out, const char *text, float score, char type) {
    size_t n = strlen(text);
    strbuf_char(out, 0x0A);
    strbuf_char(out, (char)(2 + n + 5 + 2));
    strbuf_char(out, 0x0A);
    strbuf_char(out, (char)n);
    strbuf_append_c(out, text);
    strbuf_char(out, 0x15);
    strbuf_append(out, (struct str){(const char *)&score, 4});
    strbuf_char(out, 0x18);
    strbuf_char(out, type);
}

static void put_model(struct strbuf *out, char model_type) {
    static const char *const PIECES[] = {"\xE2\x96\x81", "a", "b", "ab", ("\xE2\x96\x81" "ab")};
    strbuf_clear(out);
    put_piece(out, "<unk>", 0, 2);
    put_piece(out, "<s>", 0, 3);
    put_piece(out, "</s>", 0, 3);
    put_piece(out, "<0xC3>", 0, 6);
    put_piece(out, "<0xA9>", 0, 6);
    for (int i = 0; i < 5; i++)
        put_piece(out, PIECES[i], model_type == 1 ? -4.0f + (float)i : -(float)(5 - i), 1);
    // trainer_spec {model_type, byte_fallback = 1}, normalizer_spec {dummy prefix, spaces kept}
    strbuf_append(out, (struct str){(char[]){0x12, 5, 0x18, model_type, (char)0x98, 2, 1}, 7});
    strbuf_append(out, (struct str){(char[]){0x1A, 4, 0x18, 1, 0x20, 0}, 6});
}

static void sentencepiece_files_are_read(void **state) {
    (void)state;
    struct err err = {0};
    struct strbuf model = {0};
    write_file("tokenizer_config.json", bytes_of(STR("{}")));
    put_model(&model, 2);
    write_file("tokenizer.model", bytes_of(strbuf_str(&model)));
    struct tokenizer *t = tokenizer_open(folder, &err);
    check_ok(t, &err);
    check_ids(t, "ab ab", TOKENIZER_ADD_SPECIAL, (token_id[]){1, 9, 9}, 3);
    check_ids(t, "b\xC3\xA9z", 0, (token_id[]){5, 7, 3, 4, 0}, 5);
    struct strbuf text = {0};
    check_ok(tokenizer_decode(t, (token_id[]){1, 9, 9, 3, 4}, 5, true, &text, &err), &err);
    check_str(strbuf_str(&text), STR("ab ab\xC3\xA9"));
    tokenizer_destroy(t);
    put_model(&model, 1);
    write_file("tokenizer.model", bytes_of(strbuf_str(&model)));
    t = tokenizer_open(folder, &err);
    check_ok(t, &err);
    check_ids(t, "ab b", 0, (token_id[]){9, 5, 7}, 3);
    tokenizer_destroy(t);
    put_model(&model, 3);
    write_file("tokenizer.model", bytes_of(strbuf_str(&model)));
    assert_null(tokenizer_open(folder, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    for (size_t n = 0; n < model.n; n++) { // cut anywhere
        write_file("tokenizer.model", (struct bytes){(const uint8_t *)model.data, n});
        tokenizer_destroy(tokenizer_open(folder, &err));
    }
    strbuf_deinit(&model);
    strbuf_deinit(&text);
}

// The one file of the cache with this suffix.
static void cached_file(const char *suffix, char *out, size_t n) {
    char command[256];
    snprintf(command, sizeof command, "ls %s/cache/loam/tokenizer/*%s", folder, suffix);
    FILE *list = popen(command, "re");
    assert_true(list && fgets(out, (int)n, list));
    pclose(list);
    out[strcspn(out, "\n")] = '\0';
}

static void quiet(enum log_level level, const char *line, void *user) {
    (void)level;
    (void)line;
    ++*(int *)user;
}

static void the_compiled_form_is_used_and_rebuilt_when_damaged(void **state) {
    (void)state;
    struct err err = {0};
    char command[256], path[512];
    snprintf(command, sizeof command, "rm -rf %s/*", folder);
    assert_int_equal(system(command), 0);
    write_file("tokenizer.json", builtin_file("tokenizer.json"));
    write_file("tokenizer_config.json", builtin_file("tokenizer_config.json"));
    struct tokenizer *fresh = tokenizer_open(folder, &err);
    check_ok(fresh, &err);
    struct token_list want = {0};
    struct str text = STR("First Citizen: w\xC3\xB6rld 123\n\n<|im_end|>");
    check_ok(tokenizer_encode(fresh, text, 0, &want, &err), &err);
    cached_file(".image", path, sizeof path);
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    int n_warnings = 0;
    log_set_sink(quiet, &n_warnings);
    for (int round = 0; round < 4; round++) {
        if (round >= 2) { // one byte changed, then cut short
            FILE *file = fopen(path, "r+e");
            assert_non_null(file);
            fseek(file, before.st_size / 2, SEEK_SET);
            fputc(0xA5 + round, file);
            fclose(file);
            assert_int_equal(round == 3 ? truncate(path, before.st_size / 2) : 0, 0);
        }
        struct tokenizer *t = tokenizer_open(folder, &err);
        check_ok(t, &err);
        check_ids(t, text.data, 0, want.ids, want.n);
        assert_string_equal(tokenizer_fingerprint(t), tokenizer_fingerprint(fresh));
        tokenizer_destroy(t);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(after.st_size, before.st_size);
        assert_int_equal(after.st_ino == before.st_ino, round < 2);
        before = after;
    }
    assert_int_equal(n_warnings, 2);
    log_set_sink(NULL, NULL);
    token_list_deinit(&want);
    tokenizer_destroy(fresh);
}

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/loam-tokenizer-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    char cache[128];
    snprintf(cache, sizeof cache, "%s/cache", folder);
    return setenv("XDG_CACHE_HOME", cache, 1);
}

static int tear_down(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_are_refused_with_their_reason),
        cmocka_unit_test(a_folder_without_tokenizer_is_not_found),
        cmocka_unit_test(cut_files_never_open_half),
        cmocka_unit_test(bos_is_added_once),
        cmocka_unit_test(spellings_of_special_tokens_can_be_plain_text),
        cmocka_unit_test(cleanup_works_the_same_whole_and_in_pieces),
        cmocka_unit_test(a_copy_of_a_detokenizer_goes_its_own_way),
        cmocka_unit_test(one_letter_a_million_times_stays_fast),
        cmocka_unit_test(rank_files_are_read),
        cmocka_unit_test(sentencepiece_files_are_read),
        cmocka_unit_test(the_compiled_form_is_used_and_rebuilt_when_damaged),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
