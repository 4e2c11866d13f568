// What bf16 activations cost a model, and whether a GPU departs from that anywhere: a model's steps (prefill, then
// decode) are laid op by op beside those of the CPU in exact mode, with the same experts and keys chosen.
//   test_bf16                 all models: the CPU, rounding as a backend of bf16 activations does
//   test_bf16 [-v] NAME...    these; -v prints each operation whose error leaps
// With LOAM_TEST_DEVICE=cuda the GPU is compared as well, and may lose half as much again as the rounding CPU.
// Choices that differ are counted and replaced by the exact ones: random experts in a near tie say nothing of
// arithmetic, and everything after them would.
#include <dirent.h>
#include <unistd.h>

#include "base/json.h"
#include "model/family.h"
#include "trace.h"
#include "zoo.h"

// Of the logits' standard deviation, root mean square over a prompt; of the mean divergence in nats. What rounding
// alone costs is above it for gemma4's random models, whose scores are not scaled down, and just so for qwen3_next's.
static const double RMS_MAX = 2e-2, KL_MAX = 2e-3, RMS_MAX_NOISY = 4e-2, KL_MAX_NOISY = 5e-3, DEVICE_FACTOR = 1.5;
// An operation with more error than so many times that of what is before it, and than this, is worth a line.
static const double LEAP = 1.5, LEAP_MIN = 1e-2;
enum { CHUNK = 64, N_DECODED = 8 };

static bool verbose;
static uint32_t n_failed; // all models are seen before the test ends
static unsigned rounding = TRACE_ROUND_STREAM | TRACE_ROUND_OUTPUTS | TRACE_ROUND_ROUTER;
static const char *device;

// ||a - b|| / ||b||
static double relative(const float *a, const float *b, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return s > 0 ? sqrt(d / s) : d > 0 ? 1.0 : 0.0;
}
static double kl_of(const float *p, const float *q, uint32_t n) {
    double mp = (double)p[0], mq = (double)q[0], sp = 0, sq = 0, kl = 0;
    for (uint32_t i = 1; i < n; i++)
        mp = fmax(mp, (double)p[i]), mq = fmax(mq, (double)q[i]);
    for (uint32_t i = 0; i < n; i++)
        sp += exp((double)p[i] - mp), sq += exp((double)q[i] - mq);
    for (uint32_t i = 0; i < n; i++)
        kl += exp((double)p[i] - mp) / sp * ((double)p[i] - mp - log(sp) - (double)q[i] + mq + log(sq));
    return kl;
}

struct outcome {
    double square, kl; // sums over the positions
    uint32_t n_positions;
};

static uint32_t router_width(const struct model_config *config) {
    static const char *const KEYS[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *n = json_object_get(config->text, KEYS[i]);
        if (json_is_integer(n))
            return (uint32_t)json_integer_value(n);
    }
    return 0;
}

// One of the models that are run side by side: the exact one, the rounding one, the device's.
struct side {
    struct zoo zoo;
    struct trace trace;
    struct outcome prompt;   // so far
    double worst_rms, worst_kl, max;
    uint32_t n_flips, n_choices;
};
enum { EXACT, ROUNDING, DEVICE, N_SIDES };
static struct side sides[N_SIDES];

static void compare_ops(struct side *side) {
    const struct trace *a = &sides[EXACT].trace, *b = &side->trace;
    double before = 0;
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct trace_entry *x = &a->entries[i], *y = &b->entries[i];
        const uint32_t n = x->n_rows * x->n_cols;
        assert_string_equal(x->op, y->op);
        assert_int_equal(n, y->n_rows * y->n_cols);
        if (x->ids) {
            for (uint32_t k = 0; k < n; k++)
                side->n_flips += x->values[k] != y->values[k];
            side->n_choices += n;
            continue;
        }
        double d = relative(y->values, x->values, n);
        if (verbose && d > LEAP_MIN && d > LEAP * before)
            printf("    side %d: op %u, %s [%u, %u]: %.2e after %.2e\n", (int)(side - sides), i, x->op, x->n_rows,
                   x->n_cols, d, before);
        before = d > before ? d : before;
    }
}

static void compare_logits(struct side *side, const float *want, const float *got, uint32_t n, uint32_t n_vocab) {
    struct outcome *out = &side->prompt;
    for (uint32_t i = 0; i < n; i++, want += n_vocab, got += n_vocab) {
        double square = 0, std = zoo_std(want, n_vocab);
        for (uint32_t k = 0; k < n_vocab; k++)
            square += ((double)got[k] - (double)want[k]) * ((double)got[k] - (double)want[k]);
        out->square += square / n_vocab / (std * std);
        out->kl += kl_of(want, got, n_vocab);
        side->max = fmax(side->max, zoo_distance(got, want, n_vocab));
    }
    out->n_positions += n;
}

// The same tokens into all.
static void step(const int32_t *ids, uint32_t n_ids) {
    struct err err = {0};
    const float *logits[N_SIDES];
    const struct model_config *config = model_config_of(sides[EXACT].zoo.model);
    struct direct_feed feed = {.ids = ids, .n_ids = n_ids, .all_logits = true};
    for (int i = 0; i < N_SIDES; i++) {
        struct side *side = &sides[i];
        if (!side->zoo.direct)
            continue;
        trace_begin(side->zoo.be, &side->trace, i == EXACT ? NULL : &sides[EXACT].trace, i == ROUNDING ? rounding : 0,
                    router_width(config));
        check_ok(direct_step(side->zoo.direct, &feed, 1, false, &logits[i], &err), &err);
        trace_end(side->zoo.be);
        if (i == EXACT)
            continue;
        compare_ops(side);
        compare_logits(side, logits[EXACT], logits[i], n_ids, config->n_vocab);
    }
    for (int i = 0; i < N_SIDES; i++)
        trace_clear(&sides[i].trace);
}

static void check_prompt(int p) {
    char text[64];
    size_t n_ids, n_greedy;
    snprintf(text, sizeof text, "prompt%d.ids", p);
    const int32_t *ids = zoo_golden(&sides[EXACT].zoo, text, &n_ids);
    snprintf(text, sizeof text, "prompt%d.greedy_ids", p);
    const int32_t *greedy = zoo_golden(&sides[EXACT].zoo, text, &n_greedy);
    if (!ids)
        return;
    for (int i = 0; i < N_SIDES; i++)
        if (sides[i].zoo.direct)
            direct_reset(sides[i].zoo.direct, 0);
    for (size_t at = 0; at < n_ids; at += CHUNK)
        step(ids + at, (uint32_t)(n_ids - at < CHUNK ? n_ids - at : CHUNK));
    for (size_t i = 0; greedy && i < n_greedy && i < N_DECODED; i++)
        step(greedy + i, 1);
    for (int i = ROUNDING; i < N_SIDES; i++) {
        struct side *side = &sides[i];
        if (!side->zoo.direct)
            continue;
        const double rms = sqrt(side->prompt.square / side->prompt.n_positions);
        const double kl = side->prompt.kl / side->prompt.n_positions;
        side->worst_rms = rms <= side->worst_rms ? side->worst_rms : rms; // NaN stays
        side->worst_kl = kl <= side->worst_kl ? side->worst_kl : kl;
        side->prompt = (struct outcome){0};
    }
}

static void check_model(const char *folder, const char *name) {
    struct err err = {0};
    struct zoo_options options = zoo_exact();
    memset(sides, 0, sizeof sides);
    unsetenv("LOAM_TEST_DEVICE");
    check_ok(zoo_open(&sides[EXACT].zoo, folder, &options, &err), &err);
    options.kv = KV_BF16;
    check_ok(zoo_open(&sides[ROUNDING].zoo, folder, &options, &err), &err);
    if (device) {
        setenv("LOAM_TEST_DEVICE", device, 1);
        check_ok(zoo_open(&sides[DEVICE].zoo, folder, &options, &err), &err);
    }
    for (int p = 0; p < 3; p++)
        check_prompt(p);
    struct str type = model_config_of(sides[EXACT].zoo.model)->model_type;
    bool noisy = str_starts(type, str_from("gemma4")) || str_eq_c(type, "qwen3_next");
    for (int i = 0; i < N_SIDES; i++) {
        struct side *side = &sides[i];
        if (i > EXACT && side->zoo.direct)
            printf("%-28s %-8s logits rms %.1e max %.1e of std  KL %.1e  %u of %u choices differ\n", name,
                   i == DEVICE ? device : "rounding", side->worst_rms, side->max, side->worst_kl, side->n_flips,
                   side->n_choices);
        zoo_close(&side->zoo);
    }
    const struct side *r = &sides[ROUNDING], *d = &sides[DEVICE];
    if (!(r->worst_rms <= (noisy ? RMS_MAX_NOISY : RMS_MAX)) || !(r->worst_kl <= (noisy ? KL_MAX_NOISY : KL_MAX)))
        print_error("%s loses more to bf16 than it should\n", name), n_failed++;
    if (!(d->worst_rms <= fmax(RMS_MAX, DEVICE_FACTOR * r->worst_rms)) ||
        !(d->worst_kl <= fmax(KL_MAX, 2 * DEVICE_FACTOR * r->worst_kl)))
        print_error("%s: %s departs from what bf16 explains\n", name, device), n_failed++;
}

static void check_folder_of_models(const char *root) {
    DIR *dir = opendir(root);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char folder[PATH_MAX + 256];
        snprintf(folder, sizeof folder, "%s/%s", root, entry->d_name);
        if (entry->d_name[0] != '.' && zoo_is_decoder(folder))
            check_model(folder, entry->d_name);
    }
    if (dir)
        closedir(dir);
}

static char **chosen;
static void bf16_activations_cost_no_more_than_rounding(void **state) {
    (void)state;
    char root[PATH_MAX];
    for (char **name = chosen; *name; name++) {
        if (!zoo_folder(*name, root))
            fail_msg("no zoo model %s", *name);
        check_model(root, *name);
    }
    if (*chosen) {
        assert_int_equal(n_failed, 0);
        return;
    }
    const char *source = getenv("LOAM_SOURCE_DIR"), *shared = check_shared_folder();
    snprintf(root, sizeof root, "%s/tests/models", source ? source : ".");
    check_folder_of_models(root);
    if (!shared)
        print_message("the shared zoo is not here: its models are skipped\n");
    else if (snprintf(root, sizeof root, "%s/zoo", shared) < (int)sizeof root)
        check_folder_of_models(root);
    assert_int_equal(n_failed, 0);
}

int main(int argc, char **argv) {
    const char *asked = getenv("LOAM_TEST_ROUNDING");
    if (asked)
        rounding = (unsigned)atoi(asked);
    device = getenv("LOAM_TEST_DEVICE");
    chosen = argv + 1;
    if (argc > 1 && strcmp(argv[1], "-v") == 0)
        verbose = true, chosen++;
    const struct CMUnitTest tests[] = {cmocka_unit_test(bf16_activations_cost_no_more_than_rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
