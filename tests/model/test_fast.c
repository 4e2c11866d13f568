// Fast math against exact math on text that the trained zoo models know: the mean KL divergence of the next-token
// distributions and how often the likeliest token is the same, over the held-out text of the goldens.
//   test_fast            all trained models, a table
//   test_fast NAME...    these
#include "zoo.h"

enum { WINDOW = 256, N_WINDOWS = 4 };
static const double KL_MAX = 2e-3, SAME_TOP_MIN = 0.98;

static const char *const DEFAULT_MODELS[] = {
    "qwen3-shakespeare", "qwen3-shakespeare-mlx-4bit", "qwen3moe-shakespeare", "qwen3_5-shakespeare",
    "qwen3_5-shakespeare-mlx-4bit", "gemma4-shakespeare", "gemma4-shakespeare-mlx-4bit",
    "llama-draft-shakespeare", "stories260K", "stories260K-mlx-4bit", "stories260K-mlx-4bit-g32", NULL,
};
static const char *const *models = DEFAULT_MODELS;

static uint32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static double log_sum(const float *x, uint32_t n) {
    double max = (double)x[argmax(x, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

// KL(p || q) of the softmaxes of two rows of logits, in nats.
static double divergence(const float *p, const float *q, uint32_t n) {
    double log_p = log_sum(p, n), log_q = log_sum(q, n), sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double a = (double)p[i] - log_p, b = (double)q[i] - log_q;
        sum += exp(a) * (a - b);
    }
    return sum;
}

static const float *window_logits(struct zoo *zoo, const int32_t *ids) {
    struct err err = {0};
    const float *logits;
    struct direct_feed feed = {.ids = ids, .n_ids = WINDOW, .all_logits = true};
    direct_reset(zoo->direct, 0);
    check_ok(direct_step(zoo->direct, &feed, 1, false, &logits, &err), &err);
    return logits;
}

static void check_model(const char *name, const char *folder) {
    struct err err = {0};
    struct zoo exact, fast;
    struct zoo_options options = zoo_exact();
    options.chunk = WINDOW;
    check_ok(zoo_open(&exact, folder, &options, &err), &err);
    options.math = MATH_FAST;
    options.kv = KV_BF16; // as people run it
    check_ok(zoo_open(&fast, folder, &options, &err), &err);
    size_t n_ids;
    const int32_t *ids = zoo_golden(&exact, "ppl.ids", &n_ids);
    if (!ids) // stories260K: its longest prompt
        ids = zoo_golden(&exact, "prompt2.ids", &n_ids);
    uint32_t n_windows = n_ids / WINDOW < N_WINDOWS ? (uint32_t)(n_ids / WINDOW) : N_WINDOWS;
    if (n_windows == 0)
        fail_msg("%s: its goldens hold no text of %d tokens", name, WINDOW);
    uint32_t n_vocab = model_config_of(exact.model)->n_vocab, n_same = 0, n = WINDOW * n_windows;
    double sum = 0, worst = 0;
    for (uint32_t w = 0; w < n_windows; w++) {
        const float *p = window_logits(&exact, ids + w * WINDOW), *q = window_logits(&fast, ids + w * WINDOW);
        for (size_t i = 0; i < WINDOW; i++, p += n_vocab, q += n_vocab) {
            double kl = divergence(p, q, n_vocab);
            sum += kl;
            worst = kl > worst ? kl : worst;
            n_same += argmax(p, n_vocab) == argmax(q, n_vocab);
        }
    }
    printf("%-30s mean KL %.1e  worst %.1e  same likeliest token %.2f %%\n", name, sum / n, worst,
           100.0 * n_same / n);
    zoo_close(&exact);
    zoo_close(&fast);
    if (!(sum / n <= KL_MAX) || n_same < SAME_TOP_MIN * n)
        fail_msg("%s: fast math is too far from exact math", name);
}

static void fast_math_stays_near_exact_math(void **state) {
    (void)state;
    uint32_t n = 0;
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX];
        if (!zoo_folder(*name, folder)) {
            print_message("%s is not here: skipped\n", *name);
            continue;
        }
        check_model(*name, folder);
        n++;
    }
    assert_true(n > 0);
}

int main(int argc, char **argv) {
    if (argc > 1)
        models = (const char *const *)argv + 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_math_stays_near_exact_math)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
