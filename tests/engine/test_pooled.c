// Embeddings and reranking through the engine, against the goldens of tests/models/qwen3-embedding.
#include "../model/zoo.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/pooled.h"

#define NAME "qwen3-embedding"

// One request's end, waited for.
struct answer {
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t ended;
    bool done;
    enum finish_reason finish;
    float values[1024];
    uint32_t n_values, n_tokens;
};

static void on_event(const struct gen_event *event, void *user) {
    struct answer *answer = user;
    pthread_mutex_lock(&answer->lock);
    answer->n_tokens += event->kind == GEN_TOKEN;
    if (event->kind == GEN_DONE) {
        answer->done = true;
        answer->finish = event->finish;
        answer->n_values = event->n_values;
        if (event->n_values && event->n_values <= sizeof answer->values / sizeof(float))
            memcpy(answer->values, event->values, event->n_values * sizeof(float));
        pthread_cond_signal(&answer->ended);
    }
    pthread_mutex_unlock(&answer->lock);
}

static struct gen_ticket *ask(struct engine *engine, struct answer *answer, enum gen_want want,
                              const token_id *ids, size_t n_ids, struct err *err) {
    *answer = (struct answer){0};
    pthread_mutex_init(&answer->lock, NULL);
    pthread_cond_init(&answer->ended, NULL);
    struct gen_request request = {.want = want, .prompt = ids, .n_prompt = (uint32_t)n_ids, .max_tokens = 4,
                                  .sampling = sampler_params_default(), .on_event = on_event, .user = answer};
    return engine_submit(engine, &request, err);
}

static void wait_for(struct answer *answer, struct gen_ticket *ticket) {
    pthread_mutex_lock(&answer->lock);
    while (!answer->done)
        pthread_cond_wait(&answer->ended, &answer->lock);
    pthread_mutex_unlock(&answer->lock);
    gen_ticket_release(ticket);
    pthread_cond_destroy(&answer->ended);
    pthread_mutex_destroy(&answer->lock);
}

// The model with its goldens' engine: exact, float32 KV, chunks shorter than the prompts.
struct served {
    struct bundle bundle;
    struct engine *engine;
    struct file_map map;
    struct safetensors *golden;
};

static void open_folder(struct served *served, const char *folder) {
    struct err err = {0};
    *served = (struct served){0};
    struct bundle_options options = {
        .folder = folder, .backend_name = "cpu", .model = {.kv = KV_F32},
        .backend = {.n_threads = 2, .math = MATH_EXACT, .cpu_level = getenv("LOAM_CPU_LEVEL"), .device = -1}};
    struct engine_options engine = {.n_rows = 4, .step_tokens = 48, .ctx_len = 640};
    check_ok(bundle_open(&served->bundle, &options, &err), &err);
    served->engine = engine_create(served->bundle.model, served->bundle.tokenizer, &engine, &err);
    check_ok(served->engine, &err);
}

static void open_model(struct served *served) {
    struct err err = {0};
    char folder[PATH_MAX], path[PATH_MAX + 32];
    assert_true(zoo_folder(NAME, folder));
    open_folder(served, folder);
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    check_ok(file_map_open(&served->map, path, &err), &err);
    served->golden = safetensors_create(served->map.bytes, path, &err);
    check_ok(served->golden, &err);
}

static void close_served(struct served *served) {
    engine_destroy(served->engine);
    bundle_close(&served->bundle);
    safetensors_destroy(served->golden);
    if (served->golden)
        file_map_close(&served->map);
}

static const void *golden(const struct served *served, const char *format, int i, size_t *n) {
    char name[64];
    snprintf(name, sizeof name, format, i);
    const struct tensor *tensor = safetensors_find(served->golden, str_from(name));
    assert_non_null(tensor);
    *n = tensor->data.n / 4;
    return tensor->data.data;
}

// Three embeddings, three logits and an answer of text side by side: each what the reference computes.
static void values_beside_each_other_equal_their_goldens(void **state) {
    (void)state;
    struct served served;
    struct answer embeds[3], logits[3], text;
    struct gen_ticket *tickets[7];
    struct err err = {0};
    size_t n;
    open_model(&served);
    for (int i = 0; i < 3; i++) {
        const token_id *ids = golden(&served, "embed%d.ids", i, &n);
        tickets[i] = ask(served.engine, &embeds[i], GEN_WANT_HIDDEN, ids, n, &err);
        ids = golden(&served, "prompt%d.ids", i, &n);
        tickets[3 + i] = ask(served.engine, &logits[i], GEN_WANT_LOGITS, ids, n, &err);
    }
    const token_id *ids = golden(&served, "prompt%d.ids", 0, &n);
    tickets[6] = ask(served.engine, &text, GEN_WANT_TEXT, ids, n, &err);
    for (int i = 0; i < 7; i++)
        check_ok(tickets[i], &err);
    for (int i = 0; i < 3; i++) {
        wait_for(&embeds[i], tickets[i]);
        wait_for(&logits[i], tickets[3 + i]);
    }
    wait_for(&text, tickets[6]);
    assert_int_equal(text.n_values, 0);
    assert_true(text.n_tokens > 0);
    for (int i = 0; i < 3; i++) {
        size_t n_golden;
        const float *want = golden(&served, "embed%d.vec", i, &n_golden);
        assert_int_equal(embeds[i].finish, FINISH_STOP);
        assert_int_equal(embeds[i].n_tokens, 0);
        assert_int_equal(embeds[i].n_values, n_golden);
        assert_int_equal(pooled_embedding(&served.bundle, embeds[i].values, embeds[i].n_values, 0, &err), n_golden);
        double d = zoo_distance(embeds[i].values, want, n_golden);
        printf("embedding %d: %.1e\n", i, d);
        assert_true(d <= 1e-4);
        want = golden(&served, "prompt%d.last_logits", i, &n_golden);
        assert_int_equal(logits[i].finish, FINISH_STOP);
        assert_int_equal(logits[i].n_values, n_golden);
        assert_true(zoo_distance(logits[i].values, want, n_golden) <= 1e-4);
    }
    struct engine_stats stats;
    engine_stats(served.engine, &stats);
    assert_int_equal(stats.n_requests, 7);
    close_served(&served);
}

static void an_embedding_prompt_ends_with_the_end_token(void **state) {
    (void)state;
    struct served served;
    struct err err = {0};
    struct token_list ids = {0};
    open_model(&served);
    check_ok(pooled_embed_prompt(&served.bundle, STR("hear me speak"), &ids, &err), &err);
    assert_true(ids.n > 1);
    assert_int_equal(ids.ids[ids.n - 1], 488); // <|endoftext|>
    token_list_deinit(&ids);
    close_served(&served);
}

static void fewer_dimensions_are_the_first_ones_at_length_1(void **state) {
    (void)state;
    struct err err = {0};
    const struct bundle bundle = {0}; // nothing behind the model
    float v[4] = {3, -4, 12, 84};
    assert_int_equal(pooled_embedding(&bundle, v, 4, 2, &err), 2);
    assert_true(v[0] == 0.6f && v[1] == -0.8f);
    float zero[2] = {0, 0};
    assert_int_equal(pooled_embedding(&bundle, zero, 2, 0, &err), 2);
    assert_true(zero[0] == 0 && zero[1] == 0);
    assert_int_equal(pooled_embedding(&bundle, v, 4, 5, &err), 0);
    assert_int_equal(err.code, ERR_INVALID);
    check_message(&err, "4 dimensions, not 5");
    float broken[2] = {1, NAN};
    assert_int_equal(pooled_embedding(&bundle, broken, 2, 0, &err), 0);
    assert_int_equal(err.code, ERR_INTERNAL);
}

// ---- Folders made here --------------------------------------------------------------------------
static void replace_all(struct strbuf *text, const char *from, const char *to) {
    struct strbuf out = {0};
    const char *at = text->data, *found;
    for (; (found = strstr(at, from)); at = found + strlen(from)) {
        strbuf_append(&out, (struct str){at, (size_t)(found - at)});
        strbuf_append_c(&out, to);
    }
    strbuf_append_c(&out, at);
    strbuf_deinit(text);
    *text = out;
}

static void write_file(const char *folder, const char *name, struct str data) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data.data, 1, data.n, file), data.n);
    assert_int_equal(fclose(file), 0);
}

static void read_of_model(const char *name, struct strbuf *out) {
    struct err err = {0};
    char folder[PATH_MAX], path[PATH_MAX + 64];
    assert_true(zoo_folder(NAME, folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    check_ok(file_read(path, 1 << 22, out, &err), &err);
}

static const char *const FILES[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"};
enum { N_FILES = sizeof FILES / sizeof *FILES };

// A copy of the model's folder where `from` is `to` in one of its files.
static void make_folder(char folder[64], const char *changed, const char *const pairs[][2], size_t n_pairs) {
    strcpy(folder, "/tmp/loam-test-pooled-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (int f = 0; f < N_FILES; f++) {
        struct strbuf text = {0};
        read_of_model(FILES[f], &text);
        for (size_t i = 0; strcmp(FILES[f], changed) == 0 && i < n_pairs; i++)
            replace_all(&text, pairs[i][0], pairs[i][1]);
        write_file(folder, FILES[f], strbuf_str(&text));
        strbuf_deinit(&text);
    }
}

static void remove_folder(const char *folder) {
    static const char *const MORE[] = {"1_Pooling/config.json", "1_Pooling"};
    char path[PATH_MAX];
    for (int f = 0; f < N_FILES + 2; f++) {
        snprintf(path, sizeof path, "%s/%s", folder, f < N_FILES ? FILES[f] : MORE[f - N_FILES]);
        remove(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void a_reranker_reads_its_cards_prompt_and_scores_yes_against_no(void **state) {
    (void)state;
    static const char *const PAIRS[][2] = {{"<|reserved_special_token_0|>", "yes"},
                                           {"<|reserved_special_token_1|>", "no"}};
    struct served served;
    struct err err = {0};
    struct token_list ids = {0};
    struct rerank_query query = {.query = STR("who speaks"), .document = STR("hear me speak")};
    open_model(&served);
    assert_false(pooled_rerank_prompt(&served.bundle, &query, &ids, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    check_message(&err, "no token \"yes\"");
    close_served(&served);

    char folder[64];
    make_folder(folder, "tokenizer.json", PAIRS, 2);
    open_folder(&served, folder);
    check_ok(pooled_rerank_prompt(&served.bundle, &query, &ids, &err), &err);
    struct strbuf text = {0};
    check_ok(tokenizer_decode(served.bundle.tokenizer, ids.ids, ids.n, false, &text, &err), &err);
    check_str(strbuf_str(&text),
              STR("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
                  "Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
                  "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
                  "<Query>: who speaks\n<Document>: hear me speak<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>"
                  "\n\n"));
    struct answer answer;
    struct gen_ticket *ticket = ask(served.engine, &answer, GEN_WANT_LOGITS, ids.ids, ids.n, &err);
    check_ok(ticket, &err);
    wait_for(&answer, ticket);
    double yes = exp((double)answer.values[499]), no = exp((double)answer.values[500]);
    assert_true(fabs(pooled_rerank_score(&served.bundle, answer.values) - yes / (yes + no)) < 1e-12);
    strbuf_deinit(&text);
    token_list_deinit(&ids);
    close_served(&served);
    remove_folder(folder);
}

static void another_pooling_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *config, *says; // says NULL: runs
    } CASES[] = {
        {"{\"word_embedding_dimension\":64,\"pooling_mode_mean_tokens\":true,\"pooling_mode_lasttoken\":false}",
         "pooling_mode_mean_tokens"},
        {"{\"pooling_mode\":\"cls\"}", "cls"},
        {"{\"pooling_mode\":\"lasttoken\"}", NULL},
        {"{\"pooling_mode_cls_token\":false,\"pooling_mode_lasttoken\":true}", NULL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct served served;
        struct err err = {0};
        struct token_list ids = {0};
        char folder[64], path[96];
        make_folder(folder, "", NULL, 0);
        snprintf(path, sizeof path, "%s/1_Pooling", folder);
        assert_int_equal(mkdir(path, 0700), 0);
        write_file(path, "config.json", str_from(CASES[i].config));
        open_folder(&served, folder);
        bool ok = pooled_embed_prompt(&served.bundle, STR("hear"), &ids, &err);
        assert_true(ok == (CASES[i].says == NULL));
        if (!ok) {
            assert_int_equal(err.code, ERR_UNSUPPORTED);
            check_message(&err, CASES[i].says);
        }
        token_list_deinit(&ids);
        close_served(&served);
        remove_folder(folder);
    }
}

// Saved as the bare model: tensors without "model.", no head, nothing tied.
static void a_model_without_a_head_makes_embeddings_only(void **state) {
    (void)state;
    static const char *const PAIRS[][2] = {{"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"}};
    char folder[64];
    make_folder(folder, "config.json", PAIRS, 1);
    struct strbuf file = {0};
    read_of_model("model.safetensors", &file);
    uint64_t n_header;
    memcpy(&n_header, file.data, sizeof n_header);
    struct strbuf header = {0};
    strbuf_append(&header, (struct str){file.data + 8, n_header});
    replace_all(&header, "\"model.", "\"");
    while (header.n < n_header) // the data stays where it is
        strbuf_char(&header, ' ');
    memcpy(file.data + 8, header.data, n_header);
    write_file(folder, "model.safetensors", strbuf_str(&file));
    strbuf_deinit(&header);
    strbuf_deinit(&file);

    struct served served, with_head;
    struct answer answer;
    struct err err = {0};
    size_t n;
    open_folder(&served, folder);
    open_model(&with_head); // for the goldens
    const token_id *ids = golden(&with_head, "embed%d.ids", 1, &n);
    struct gen_ticket *ticket = ask(served.engine, &answer, GEN_WANT_HIDDEN, ids, n, &err);
    check_ok(ticket, &err);
    wait_for(&answer, ticket);
    size_t n_golden;
    const float *want = golden(&with_head, "embed%d.vec", 1, &n_golden);
    assert_int_equal(pooled_embedding(&served.bundle, answer.values, answer.n_values, 0, &err), n_golden);
    assert_true(zoo_distance(answer.values, want, n_golden) <= 1e-4);
    for (enum gen_want w = GEN_WANT_TEXT; w <= GEN_WANT_LOGITS; w++) {
        if (w == GEN_WANT_HIDDEN)
            continue;
        assert_null(ask(served.engine, &answer, w, ids, n, &err));
        assert_int_equal(err.code, ERR_INVALID);
        check_message(&err, "embeddings only");
    }
    close_served(&with_head);
    close_served(&served);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_beside_each_other_equal_their_goldens),
        cmocka_unit_test(an_embedding_prompt_ends_with_the_end_token),
        cmocka_unit_test(fewer_dimensions_are_the_first_ones_at_length_1),
        cmocka_unit_test(a_reranker_reads_its_cards_prompt_and_scores_yes_against_no),
        cmocka_unit_test(another_pooling_is_refused_by_name),
        cmocka_unit_test(a_model_without_a_head_makes_embeddings_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
