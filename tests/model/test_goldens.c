// Every zoo model that loam runs, in exact mode with a float32 KV cache, against what Hugging Face
// transformers computes in float32 (the folders of tests/models that reference.py made: what that pass computes):
// logits, hidden states, greedy tokens, perplexity.
//   test_goldens            all models
//   test_goldens NAME...    these, with figures
#include <dirent.h>

#include "trace.h"
#include "zoo.h"

// Of the logits' standard deviation; the golden margin below which another token is no error; of a perplexity.
// A GPU computes in bf16 (LOAM_TEST_DEVICE=cuda): the zoo's random models amplify that by their noise gain.
static double TOLERANCE = 1e-4, PPL_TOLERANCE = 1e-4;
static float NEAR_TIE = 1e-3f;
static bool on_gpu;
static unsigned rounding; // LOAM_TEST_ROUNDING: the CPU as if it had bf16 activations (trace.h)

static bool verbose;
static uint32_t n_models;

struct outcome {
    double worst_logit, worst_hidden, worst_ppl;
    uint32_t n_greedy, n_near_ties;
};

static void worse(double *worst, double d) {
    if (!(d <= *worst))
        *worst = d;
}

struct tap {
    const struct zoo *zoo;
    struct outcome *outcome;
};

static void compare_hidden(void *user, int layer, struct mat x) {
    struct tap *tap = user;
    char name[64];
    int n_layers = (int)model_config_of(tap->zoo->model)->n_layers;
    if (layer < 0)
        snprintf(name, sizeof name, "prompt0.hidden.embed");
    else if (layer == n_layers)
        snprintf(name, sizeof name, "prompt0.hidden.norm");
    else
        snprintf(name, sizeof name, "prompt0.hidden.%d", layer);
    size_t n;
    const float *golden = zoo_golden(tap->zoo, name, &n);
    if (!golden || n != (size_t)x.n_rows * x.n_cols)
        return;
    float *got = malloc(n * sizeof *got);
    for (uint32_t i = 0; i < x.n_rows; i++)
        memcpy(got + (size_t)i * x.n_cols, (const float *)x.data + (size_t)i * x.stride,
               x.n_cols * sizeof *got);
    double d = zoo_distance(got, golden, n);
    if (verbose && d > TOLERANCE)
        printf("  hidden of layer %d: %.2e\n", layer, d);
    worse(&tap->outcome->worst_hidden, d);
    free(got);
}

static void check_prompt0(struct zoo *zoo, struct outcome *outcome) {
    struct err err = {0};
    size_t n_ids, n_logits;
    const int32_t *ids = zoo_golden(zoo, "prompt0.ids", &n_ids);
    const float *golden = zoo_golden(zoo, "prompt0.logits", &n_logits), *logits;
    struct tap tap = {zoo, outcome};
    direct_reset(zoo->direct, 0);
    if (!on_gpu) // hidden states are float32 in host memory there
        model_set_tap(zoo->model, compare_hidden, &tap);
    struct direct_feed feed = {.ids = ids, .n_ids = (uint32_t)n_ids, .all_logits = true};
    check_ok(direct_step(zoo->direct, &feed, 1, false, &logits, &err), &err);
    model_set_tap(zoo->model, NULL, NULL);
    size_t n_vocab = n_logits / n_ids;
    assert_int_equal(n_vocab, model_config_of(zoo->model)->n_vocab);
    for (size_t i = 0; i < n_ids; i++)
        worse(&outcome->worst_logit, zoo_distance(logits + i * n_vocab, golden + i * n_vocab, n_vocab));
}

static int32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

// Continue greedily after what is in; `margins` may be NULL (then every step must agree).
static void check_greedy(struct zoo *zoo, const float *logits, const char *ids_name,
                         const char *margins_name, struct outcome *outcome) {
    struct err err = {0};
    size_t n_want, n_margins;
    uint32_t n_vocab = model_config_of(zoo->model)->n_vocab;
    const int32_t *want = zoo_golden(zoo, ids_name, &n_want);
    const float *margins = margins_name ? zoo_golden(zoo, margins_name, &n_margins) : NULL;
    for (size_t i = 0; want && i < n_want; i++) {
        int32_t got = argmax(logits, n_vocab);
        if (got != want[i]) {
            float margin = margins ? margins[i] : logits[got] - logits[want[i]];
            if (margin >= NEAR_TIE)
                fail_msg("%s: %s[%zu] is %d, not %d (margin %g)", zoo->folder, ids_name, i, got, want[i],
                         (double)margin);
            outcome->n_near_ties++;
            return; // the rest says nothing
        }
        outcome->n_greedy++;
        struct direct_feed feed = {.ids = &got, .n_ids = 1};
        check_ok(direct_step(zoo->direct, &feed, 1, false, &logits, &err), &err);
    }
}

static void check_prompt(struct zoo *zoo, int p, struct outcome *outcome) {
    struct err err = {0};
    char name[64], margins[64];
    size_t n_ids, n;
    uint32_t n_vocab = model_config_of(zoo->model)->n_vocab;
    snprintf(name, sizeof name, "prompt%d.ids", p);
    const int32_t *ids = zoo_golden(zoo, name, &n_ids);
    snprintf(name, sizeof name, "prompt%d.last_logits", p);
    const float *golden = zoo_golden(zoo, name, &n), *logits;
    if (!ids || !golden)
        return;
    direct_reset(zoo->direct, 0);
    check_ok(direct_prefill(zoo->direct, 0, ids, (uint32_t)n_ids, &logits, &err), &err);
    double d = zoo_distance(logits, golden, n_vocab);
    if (verbose)
        printf("  prompt %d (%zu tokens): %.2e\n", p, n_ids, d);
    worse(&outcome->worst_logit, d);
    snprintf(name, sizeof name, "prompt%d.greedy_ids", p);
    snprintf(margins, sizeof margins, "prompt%d.greedy_margin", p);
    check_greedy(zoo, logits, name, margins, outcome);
}

static double nll(const float *logits, uint32_t n, int32_t id) {
    double max = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum) - (double)logits[id];
}

// Mean negative log-likelihood of ids[1..] given what is before them, scored from position 0.
static double mean_nll(struct zoo *zoo, const int32_t *ids, size_t n_ids) {
    struct err err = {0};
    uint32_t n_vocab = model_config_of(zoo->model)->n_vocab;
    double sum = 0;
    direct_reset(zoo->direct, 0);
    for (size_t done = 0; done < n_ids;) {
        uint32_t n = n_ids - done < 64 ? (uint32_t)(n_ids - done) : 64;
        const float *logits;
        struct direct_feed feed = {.ids = ids + done, .n_ids = n, .all_logits = true};
        check_ok(direct_step(zoo->direct, &feed, 1, false, &logits, &err), &err);
        for (uint32_t i = 0; i < n && done + i + 1 < n_ids; i++)
            sum += nll(logits + (size_t)i * n_vocab, n_vocab, ids[done + i + 1]);
        done += n;
    }
    return sum / (double)(n_ids - 1);
}

static double mean(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / (double)n;
}

static void check_perplexity(struct zoo *zoo, struct outcome *outcome) {
    size_t n_ids, n_nll;
    const int32_t *ids = zoo_golden(zoo, "prompt1.ids", &n_ids);
    const float *golden = zoo_golden(zoo, "prompt1.token_nll", &n_nll);
    if (ids && golden)
        worse(&outcome->worst_ppl, fabs(expm1(mean_nll(zoo, ids, n_ids) - mean(golden, n_nll))));
    ids = zoo_golden(zoo, "ppl.ids", &n_ids);
    golden = zoo_golden(zoo, "ppl.token_nll", &n_nll);
    if (ids && golden) {
        enum { WINDOW = 256 };
        double sum = 0;
        size_t n_windows = n_ids / WINDOW;
        for (size_t w = 0; w < n_windows; w++)
            sum += mean_nll(zoo, ids + w * WINDOW, WINDOW);
        double got = sum / (double)n_windows;
        if (verbose)
            printf("  held-out perplexity %.4f\n", exp(got));
        worse(&outcome->worst_ppl, fabs(expm1(got - mean(golden, n_nll))));
    }
}

static void check_model(const char *folder, const char *name) {
    struct zoo zoo;
    struct err err = {0};
    struct zoo_options options = zoo_exact();
    struct outcome outcome = {0};
    check_ok(zoo_open(&zoo, folder, &options, &err), &err);
    if (rounding)
        trace_begin(zoo.be, NULL, NULL, rounding, 0);
    check_prompt0(&zoo, &outcome);
    for (int p = 0; p < 3; p++)
        check_prompt(&zoo, p, &outcome);
    size_t n;
    if (zoo_golden(&zoo, "long.greedy_ids", &n)) {
        const float *logits;
        const int32_t *ids = zoo_golden(&zoo, "prompt0.ids", &n);
        direct_reset(zoo.direct, 0);
        check_ok(direct_prefill(zoo.direct, 0, ids, (uint32_t)n, &logits, &err), &err);
        check_greedy(&zoo, logits, "long.greedy_ids", NULL, &outcome);
    }
    check_perplexity(&zoo, &outcome);
    printf("%-32s logits %.1e  hidden %.1e  perplexity %.1e  greedy %u equal, %u near ties\n", name,
           outcome.worst_logit, outcome.worst_hidden, outcome.worst_ppl, outcome.n_greedy,
           outcome.n_near_ties);
    zoo_close(&zoo);
    if (!(outcome.worst_logit <= TOLERANCE) || !(outcome.worst_hidden <= TOLERANCE) ||
        !(outcome.worst_ppl <= PPL_TOLERANCE))
        fail_msg("%s is off its goldens", name);
    n_models++;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void check_folder_of_models(const char *root) {
    char *names[256];
    size_t n = 0;
    DIR *dir = opendir(root);
    for (struct dirent *entry; dir && (entry = readdir(dir)) && n < 256;)
        if (entry->d_name[0] != '.')
            names[n++] = strdup(entry->d_name);
    if (dir)
        closedir(dir);
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%s/%s", root, names[i]);
        if (zoo_is_decoder(folder))
            check_model(folder, names[i]);
        free(names[i]);
    }
}

static void own_models_equal_their_goldens(void **state) {
    (void)state;
    char root[PATH_MAX];
    const char *source = getenv("LOAM_SOURCE_DIR");
    snprintf(root, sizeof root, "%s/tests/models", source ? source : ".");
    check_folder_of_models(root);
    assert_true(n_models > 0);
}

static void zoo_models_equal_their_goldens(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared) {
        print_message("the shared zoo is not here: skipped\n");
        skip();
    }
    char root[PATH_MAX];
    snprintf(root, sizeof root, "%s/zoo", shared);
    n_models = 0;
    check_folder_of_models(root);
    printf("%u models equal their goldens\n", n_models);
}

static char **chosen;
static void chosen_models_equal_their_goldens(void **state) {
    (void)state;
    verbose = true;
    for (char **name = chosen; *name; name++) {
        char folder[PATH_MAX];
        if (!zoo_folder(*name, folder))
            fail_msg("no zoo model %s", *name);
        check_model(folder, *name);
    }
}

int main(int argc, char **argv) {
    const char *device = getenv("LOAM_TEST_DEVICE");
    const char *rounds = getenv("LOAM_TEST_ROUNDING");
    if (rounds)
        rounding = (unsigned)atoi(rounds);
    if (rounding || (device && strcmp(device, "cpu") != 0)) {
        on_gpu = true;
        TOLERANCE = 0.3;
        PPL_TOLERANCE = 0.03;
        NEAR_TIE = 0.5f;
    }
    if (argc > 1) {
        chosen = argv + 1;
        const struct CMUnitTest tests[] = {cmocka_unit_test(chosen_models_equal_their_goldens)};
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_models_equal_their_goldens),
        cmocka_unit_test(zoo_models_equal_their_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
