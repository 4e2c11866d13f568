// Encoders through the engine: tokens, hidden states and embeddings of texts as transformers and sentence-transformers
// make them (tests/models/hf_goldens.py), and the same bits whatever is beside a text.
#include "../model/zoo.h"

#include <pthread.h>

#include "engine/engine.h"
#include "engine/pooled.h"

enum { N_TEXTS = 5, VALUES_MAX = 256 };
static const char *const NAMES[] = {"bert", "bert-cls", "xlm-roberta", "nomic_bert", "modernbert", "embeddinggemma"};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

struct answer {
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t ended;
    bool done;
    enum finish_reason finish;
    float values[VALUES_MAX];
    uint32_t n_values;
};

static void on_event(const struct gen_event *event, void *user) {
    struct answer *answer = user;
    if (event->kind != GEN_DONE)
        return;
    pthread_mutex_lock(&answer->lock);
    answer->done = true;
    answer->finish = event->finish;
    answer->n_values = event->n_values;
    if (event->n_values <= VALUES_MAX && event->n_values)
        memcpy(answer->values, event->values, event->n_values * sizeof(float));
    pthread_cond_signal(&answer->ended);
    pthread_mutex_unlock(&answer->lock);
}

static struct gen_ticket *ask(struct engine *engine, struct answer *answer, const token_id *ids, size_t n_ids) {
    struct err err = {0};
    *answer = (struct answer){0};
    pthread_mutex_init(&answer->lock, NULL);
    pthread_cond_init(&answer->ended, NULL);
    struct gen_request request = {.want = GEN_WANT_HIDDEN, .prompt = ids, .n_prompt = (uint32_t)n_ids,
                                  .sampling = sampler_params_default(), .on_event = on_event, .user = answer};
    struct gen_ticket *ticket = engine_submit(engine, &request, &err);
    check_ok(ticket, &err);
    return ticket;
}

static void wait_for(struct answer *answer, struct gen_ticket *ticket) {
    pthread_mutex_lock(&answer->lock);
    while (!answer->done)
        pthread_cond_wait(&answer->ended, &answer->lock);
    pthread_mutex_unlock(&answer->lock);
    gen_ticket_release(ticket);
    pthread_cond_destroy(&answer->ended);
    pthread_mutex_destroy(&answer->lock);
    assert_int_equal(answer->finish, FINISH_STOP);
}

struct golden {
    struct file_map map;
    struct safetensors *file;
    json_t *info;
};

static void open_golden(struct golden *golden, const char *folder) {
    struct err err = {0};
    char path[PATH_MAX + 32];
    struct strbuf text = {0};
    snprintf(path, sizeof path, "%s/golden.json", folder);
    check_ok(file_read(path, 1 << 20, &text, &err), &err);
    golden->info = json_parse(strbuf_str(&text), path, &err);
    check_ok(golden->info, &err);
    strbuf_deinit(&text);
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    check_ok(file_map_open(&golden->map, path, &err), &err);
    golden->file = safetensors_create(golden->map.bytes, path, &err);
    check_ok(golden->file, &err);
}

static void close_golden(struct golden *golden) {
    json_decref(golden->info);
    safetensors_destroy(golden->file);
    file_map_close(&golden->map);
}

static const void *tensor(const struct golden *golden, int i, const char *what, size_t *n) {
    char name[64];
    snprintf(name, sizeof name, "text%d.%s", i, what);
    const struct tensor *found = safetensors_find(golden->file, str_from(name));
    assert_non_null(found);
    *n = found->data.n / 4;
    return found->data.data;
}

static void open_bundle(struct bundle *bundle, const char *folder, uint32_t n_threads, enum backend_math math) {
    struct err err = {0};
    struct bundle_options options = {
        .folder = folder, .backend_name = "cpu", .model = {.kv = KV_F32},
        .backend = {.n_threads = n_threads, .math = math, .cpu_level = getenv("LOAM_CPU_LEVEL"), .device = -1}};
    check_ok(bundle_open(bundle, &options, &err), &err);
    assert_true(model_is_encoder(bundle->model));
    assert_true(bundle->is_embedding);
}

// ---- Against the goldens ------------------------------------------------------------------------
static void check_folder(const char *name, const char *folder) {
    struct err err = {0};
    struct golden golden = {0};
    struct bundle bundle;
    struct engine_options options = {.n_rows = 3, .step_tokens = 16};
    open_golden(&golden, folder);
    open_bundle(&bundle, folder, 2, MATH_EXACT);
    struct engine *engine = engine_create(bundle.model, bundle.tokenizer, &options, &err);
    check_ok(engine, &err);
    struct answer answers[N_TEXTS];
    struct gen_ticket *tickets[N_TEXTS];
    size_t n;
    for (int i = 0; i < N_TEXTS; i++) { // more than run at once
        struct token_list ids = {0};
        const token_id *want = tensor(&golden, i, "ids", &n);
        struct str text = json_str(json_array_get(json_object_get(golden.info, "texts"), (size_t)i));
        check_ok(pooled_embed_prompt(&bundle, text, &ids, &err), &err);
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.ids, want, n * sizeof *want);
        tickets[i] = ask(engine, &answers[i], ids.ids, ids.n);
        token_list_deinit(&ids);
    }
    double worst = 0;
    for (int i = 0; i < N_TEXTS; i++) {
        wait_for(&answers[i], tickets[i]);
        const float *want = tensor(&golden, i, "vec", &n);
        assert_int_equal(pooled_embedding(&bundle, answers[i].values, answers[i].n_values, 0, &err), n);
        worst = fmax(worst, zoo_distance(answers[i].values, want, n));
    }
    printf("%-16s embeddings %.1e", name, worst);
    engine_destroy(engine);
    bundle_close(&bundle);
    close_golden(&golden);
    assert_true(worst < 1e-4);
}

struct states {
    struct model *model;
    float *values;
    size_t n;
};

static void take_states(void *user, int layer, struct mat x) {
    struct states *states = user;
    if (layer != (int)model_config_of(states->model)->n_layers)
        return;
    assert_int_equal((size_t)x.n_rows * x.n_cols, states->n);
    for (uint32_t i = 0; i < x.n_rows; i++)
        memcpy(states->values + (size_t)i * x.n_cols, (const float *)x.data + (size_t)i * x.stride,
               x.n_cols * sizeof(float));
}

// The states of text i, alone or beside the others, on so many threads; the caller frees them.
static float *states_of(const char *folder, const struct golden *golden, int i, bool beside, uint32_t n_threads,
                        enum backend_math math, size_t *n_out) {
    struct err err = {0};
    struct bundle bundle;
    open_bundle(&bundle, folder, n_threads, math);
    uint32_t ctx_len = model_config_of(bundle.model)->ctx_len_max, d = model_config_of(bundle.model)->d_model;
    struct direct *direct = direct_create(bundle.model, N_TEXTS, ctx_len, N_TEXTS * 150, N_TEXTS * 150, &err);
    check_ok(direct, &err);
    struct direct_feed feeds[N_TEXTS];
    uint32_t n_feeds = 0, before = 0, n_all = 0;
    for (int j = 0; j < N_TEXTS; j++) {
        size_t n;
        const int32_t *ids = tensor(golden, j, "ids", &n);
        if (!beside && j != i)
            continue;
        if (j == i)
            before = n_all, *n_out = n * d;
        n_all += (uint32_t)n;
        feeds[n_feeds++] = (struct direct_feed){.row = (uint32_t)j, .ids = ids, .n_ids = (uint32_t)n, .all_logits = true};
    }
    struct states states = {bundle.model, malloc((size_t)n_all * d * sizeof(float)), (size_t)n_all * d};
    model_set_tap(bundle.model, take_states, &states);
    check_ok(direct_step(direct, feeds, n_feeds, false, NULL, &err), &err);
    memmove(states.values, states.values + (size_t)before * d, *n_out * sizeof(float));
    direct_destroy(direct);
    bundle_close(&bundle);
    return states.values;
}

static void embeddings_and_states_equal_their_goldens(void **state) {
    (void)state;
    for (int m = 0; m < N_NAMES; m++) {
        char folder[PATH_MAX];
        assert_true(zoo_folder(NAMES[m], folder));
        check_folder(NAMES[m], folder);
        struct golden golden = {0};
        open_golden(&golden, folder);
        double worst = 0;
        for (int i = 0; i < N_TEXTS; i++) {
            size_t n, n_golden;
            const float *want = tensor(&golden, i, "hidden", &n_golden);
            float *got = states_of(folder, &golden, i, true, 2, MATH_EXACT, &n);
            assert_int_equal(n, n_golden);
            worst = fmax(worst, zoo_distance(got, want, n));
            free(got);
        }
        printf("  states %.1e\n", worst);
        close_golden(&golden);
        assert_true(worst < 1e-4);
    }
}

static void a_texts_bits_do_not_depend_on_its_neighbours(void **state) {
    (void)state;
    for (int m = 0; m < N_NAMES; m++) {
        char folder[PATH_MAX];
        struct golden golden = {0};
        assert_true(zoo_folder(NAMES[m], folder));
        open_golden(&golden, folder);
        for (int math = 0; math < 2; math++) {
            for (int i = 1; i < N_TEXTS; i += 3) {
                size_t n, n_beside;
                float *alone = states_of(folder, &golden, i, false, 1, math ? MATH_EXACT : MATH_FAST, &n);
                float *beside = states_of(folder, &golden, i, true, 3, math ? MATH_EXACT : MATH_FAST, &n_beside);
                assert_int_equal(n, n_beside);
                assert_memory_equal(alone, beside, n * sizeof *alone);
                free(alone);
                free(beside);
            }
        }
        close_golden(&golden);
    }
}

// ---- Limits -------------------------------------------------------------------------------------
static void a_text_may_fill_the_positions_and_not_more(void **state) {
    (void)state;
    struct err err = {0};
    char folder[PATH_MAX];
    struct bundle bundle;
    assert_true(zoo_folder("xlm-roberta", folder));
    open_bundle(&bundle, folder, 2, MATH_EXACT);
    uint32_t ctx_len = model_config_of(bundle.model)->ctx_len_max;
    assert_int_equal(ctx_len, 160 - 2); // the first two positions are the padding's
    struct engine_options options = {.n_rows = 2};
    struct engine *engine = engine_create(bundle.model, bundle.tokenizer, &options, &err);
    check_ok(engine, &err);
    assert_true(engine_plan_of(engine)->limits.n_tokens >= ctx_len);
    token_id ids[160];
    for (int i = 0; i < 160; i++)
        ids[i] = 5 + i % 100;
    struct answer answer;
    wait_for(&answer, ask(engine, &answer, ids, ctx_len));
    struct gen_request request = {.want = GEN_WANT_HIDDEN, .prompt = ids, .n_prompt = ctx_len + 1,
                                  .sampling = sampler_params_default(), .on_event = on_event, .user = &answer};
    assert_null(engine_submit(engine, &request, &err));
    assert_int_equal(err.code, ERR_INVALID);
    check_message(&err, "159 tokens");
    request.n_prompt = 3;
    request.want = GEN_WANT_TEXT;
    assert_null(engine_submit(engine, &request, &err));
    check_message(&err, "no output head");
    engine_destroy(engine);
    bundle_close(&bundle);
    // A context beyond the table of positions is refused before anything is read.
    open_bundle(&bundle, folder, 1, MATH_EXACT);
    options.ctx_len = 512;
    assert_null(engine_create(bundle.model, bundle.tokenizer, &options, &err));
    check_message(&err, "up to 158 tokens, not 512");
    bundle_close(&bundle);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_and_states_equal_their_goldens),
        cmocka_unit_test(a_texts_bits_do_not_depend_on_its_neighbours),
        cmocka_unit_test(a_text_may_fill_the_positions_and_not_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
