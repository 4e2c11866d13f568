// loam bench: tokens a second, in llama-bench's manner: random tokens, no sampling, medians. With --roofline also
// what the machine could do, and what part of it each test reaches.
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "backend/cpu/roofline.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "engine/direct.h"
#include "sample/sampler.h"

enum { BATCH_DEPTH = 128, BATCH_STEPS = 32, REPEATS_MAX = 100 };

struct bench_args {
    int64_t n_prompt, n_generate, n_rows, depth, n_repeats, chunk;
    bool json, roofline;
};

struct bench_result {
    char test[32];
    uint32_t depth;
    double samples[REPEATS_MAX]; // tokens a second
    uint32_t n;
    struct cpu_work work; // of one run
    uint32_t n_tokens;    // of one run
};

struct bench {
    const struct bench_args *args;
    struct model *model;
    struct direct *direct;
    int32_t *ids; // random tokens, as many as the longest sequence
    struct cpu_work work; // of the last run, if it ran on the CPU
    struct err *err;
};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int32_t best_token(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static bool fill(struct bench *b, uint32_t row, uint32_t n) {
    direct_reset(b->direct, row);
    const float *logits;
    return n == 0 || direct_prefill(b->direct, row, b->ids, n, &logits, b->err);
}

static bool on_cpu(const struct bench *b) { return model_backend(b->model)->ops == &cpu_backend_ops; }

// The part of a run that counts begins and ends; between them lie n_tokens.
static uint64_t clock_start(struct bench *b) {
    if (on_cpu(b))
        b->work = cpu_work_done(model_backend(b->model));
    return clock_ns();
}

static double clock_stop(struct bench *b, uint64_t start, uint32_t n_tokens) {
    double seconds = clock_ms_since(start) / 1e3;
    if (on_cpu(b)) {
        struct cpu_work now = cpu_work_done(model_backend(b->model));
        b->work = (struct cpu_work){now.weight_bytes - b->work.weight_bytes, now.kv_bytes - b->work.kv_bytes,
                                    now.int8_ops - b->work.int8_ops, now.float_ops - b->work.float_ops};
    }
    return n_tokens / seconds;
}

// A prompt after `depth` tokens; the last token's logits only.
static bool prompt_once(struct bench *b, double *tokens_per_s) {
    const float *logits;
    uint32_t n = (uint32_t)b->args->n_prompt;
    if (!fill(b, 0, (uint32_t)b->args->depth))
        return false;
    uint64_t start = clock_start(b);
    if (!direct_prefill(b->direct, 0, b->ids, n, &logits, b->err))
        return false;
    *tokens_per_s = clock_stop(b, start, n);
    return true;
}

// Greedy single-token steps after `depth` tokens.
static bool generate_once(struct bench *b, double *tokens_per_s) {
    const float *logits;
    uint32_t n = (uint32_t)b->args->n_generate, n_vocab = model_config_of(b->model)->n_vocab;
    if (!fill(b, 0, (uint32_t)b->args->depth))
        return false;
    int32_t id = b->ids[0];
    uint64_t start = clock_start(b);
    for (uint32_t i = 0; i < n; i++) {
        struct direct_feed feed = {.ids = &id, .n_ids = 1};
        if (!direct_step(b->direct, &feed, 1, false, &logits, b->err))
            return false;
        id = best_token(logits, n_vocab);
    }
    *tokens_per_s = clock_stop(b, start, n);
    return true;
}

// All rows decode together after BATCH_DEPTH tokens each; every row's tokens count.
static bool batch_once(struct bench *b, double *tokens_per_s) {
    uint32_t n_rows = (uint32_t)b->args->n_rows, n_vocab = model_config_of(b->model)->n_vocab;
    struct direct_feed *feeds = calloc(n_rows, sizeof *feeds);
    int32_t *next = calloc(n_rows, sizeof *next);
    bool ok = feeds && next;
    for (uint32_t r = 0; ok && r < n_rows; r++) {
        ok = fill(b, r, BATCH_DEPTH);
        next[r] = b->ids[r];
        feeds[r] = (struct direct_feed){.row = r, .ids = &next[r], .n_ids = 1};
    }
    uint64_t start = clock_start(b);
    for (uint32_t i = 0; ok && i < BATCH_STEPS; i++) {
        const float *logits;
        ok = direct_step(b->direct, feeds, n_rows, false, &logits, b->err);
        for (uint32_t r = 0; ok && r < n_rows; r++)
            next[r] = best_token(logits + (size_t)r * n_vocab, n_vocab);
    }
    *tokens_per_s = clock_stop(b, start, n_rows * BATCH_STEPS);
    free(feeds);
    free(next);
    return ok;
}

static bool measure(struct bench *b, bool (*once)(struct bench *, double *), struct bench_result *result) {
    double warm_up;
    if (!once(b, &warm_up))
        return false;
    for (result->n = 0; result->n < (uint32_t)b->args->n_repeats; result->n++)
        if (!once(b, &result->samples[result->n]))
            return false;
    result->work = b->work;
    qsort(result->samples, result->n, sizeof *result->samples, ascending);
    return true;
}

static double median(const struct bench_result *r) {
    return r->n % 2 ? r->samples[r->n / 2] : (r->samples[r->n / 2 - 1] + r->samples[r->n / 2]) / 2;
}

// What a test did a second, at its median.
struct rates {
    double bytes, int8_ops, float_ops;
};

static struct rates rates_of(const struct bench_result *r) {
    double runs_a_second = median(r) / r->n_tokens;
    return (struct rates){
        .bytes = (double)(r->work.weight_bytes + r->work.kv_bytes) * runs_a_second,
        .int8_ops = (double)r->work.int8_ops * runs_a_second,
        .float_ops = (double)r->work.float_ops * runs_a_second,
    };
}

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

static void print_roofs(const struct cpu_roofs *roofs, const struct bench_result *results, uint32_t n) {
    printf("\nroofs: read %.1f GB/s, int8 %.2f TOPS, bf16 %.2f TFLOPS, f32 %.2f TFLOPS (0: not at this level)\n",
           roofs->read_bytes / 1e9, roofs->int8_ops / 1e12, roofs->bf16_ops / 1e12, roofs->f32_ops / 1e12);
    printf("%-8s %7s %10s %7s %10s %7s %10s %7s\n", "test", "depth", "read GB/s", "", "int8 TOPS", "", "TFLOPS",
           "of f32");
    for (uint32_t i = 0; i < n; i++) {
        struct rates r = rates_of(&results[i]);
        printf("%-8s %7u %10.2f %6.1f%% %10.3f %6.1f%% %10.3f %6.1f%%\n", results[i].test, results[i].depth,
               r.bytes / 1e9, percent(r.bytes, roofs->read_bytes), r.int8_ops / 1e12,
               percent(r.int8_ops, roofs->int8_ops), r.float_ops / 1e12, percent(r.float_ops, roofs->f32_ops));
    }
}

static void append_roofs(struct strbuf *out, const struct cpu_roofs *roofs) {
    strbuf_printf(out, ",\"roofs\":{\"read_gb_s\":%.3f,\"int8_tops\":%.4f,\"bf16_tflops\":%.4f,\"f32_tflops\":%.4f}",
                  roofs->read_bytes / 1e9, roofs->int8_ops / 1e12, roofs->bf16_ops / 1e12, roofs->f32_ops / 1e12);
}

static long peak_rss_mib(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss / 1024;
}

static void print_results(const struct bundle *bundle, const struct bench_args *args, uint32_t threads,
                          const struct bench_result *results, uint32_t n, long rss_mib,
                          const struct cpu_roofs *roofs) {
    if (!args->json) {
        char device[256];
        bundle->be->ops->describe(bundle->be, device, sizeof device);
        fprintf(stderr, "%s on %s, loaded in %.1f ms, %ld MiB resident at most\n", bundle->name, device,
                bundle->load_ms, rss_mib);
        printf("%-8s %7s %10s %10s %10s\n", "test", "depth", "min", "median", "max");
        for (uint32_t i = 0; i < n; i++)
            printf("%-8s %7u %10.2f %10.2f %10.2f\n", results[i].test, results[i].depth,
                   results[i].samples[0], median(&results[i]), results[i].samples[results[i].n - 1]);
        if (roofs)
            print_roofs(roofs, results, n);
        return;
    }
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"model\":");
    strbuf_json_string(&out, str_from(bundle->name));
    strbuf_printf(&out, ",\"load_ms\":%.3f,\"peak_rss_mib\":%ld,\"results\":[", bundle->load_ms,
                  rss_mib);
    for (uint32_t i = 0; i < n; i++) {
        strbuf_printf(&out, "%s{\"test\":\"%s\",\"depth\":%u,\"threads\":%u,\"min\":%.3f,\"median\":%.3f,"
                      "\"max\":%.3f", i ? "," : "", results[i].test, results[i].depth, threads,
                      results[i].samples[0], median(&results[i]), results[i].samples[results[i].n - 1]);
        if (roofs) {
            struct rates r = rates_of(&results[i]);
            strbuf_printf(&out, ",\"read_gb_s\":%.3f,\"int8_tops\":%.4f,\"float_tflops\":%.4f", r.bytes / 1e9,
                          r.int8_ops / 1e12, r.float_ops / 1e12);
        }
        strbuf_append_c(&out, "}");
    }
    strbuf_append_c(&out, "]");
    if (roofs)
        append_roofs(&out, roofs);
    strbuf_append_c(&out, "}\n");
    if (out.data)
        fwrite(out.data, 1, out.n, stdout);
    strbuf_deinit(&out);
}

static bool run(const struct bench_args *args, const struct bundle *bundle, uint32_t threads,
                struct err *err) {
    uint32_t n_vocab = model_config_of(bundle->model)->n_vocab;
    uint64_t longest = (uint64_t)args->depth + (uint64_t)(args->n_prompt > args->n_generate
                                                              ? args->n_prompt : args->n_generate);
    if (longest < BATCH_DEPTH + BATCH_STEPS && args->n_rows)
        longest = BATCH_DEPTH + BATCH_STEPS;
    if (longest > 1u << 24)
        return err_set(err, ERR_INVALID, "a sequence of %llu tokens is too long to bench",
                       (unsigned long long)longest);
    uint32_t n_rows = max_u32((uint32_t)args->n_rows, 1);
    struct bench b = {.args = args, .model = bundle->model, .err = err};
    b.ids = malloc((longest + n_rows) * sizeof *b.ids);
    if (!b.ids)
        return err_set(err, ERR_NOMEM, "out of memory for %llu tokens", (unsigned long long)longest);
    for (uint64_t i = 0; i < longest + n_rows; i++) {
        uint32_t random[4] = {(uint32_t)i, 0, 0, 0};
        philox4x32(random, 42);
        b.ids[i] = (int32_t)(random[0] % n_vocab);
    }
    struct bench_result results[3] = {0};
    struct cpu_roofs roofs;
    uint32_t n = 0;
    if (args->roofline && !on_cpu(&b)) {
        free(b.ids);
        return err_set(err, ERR_INVALID, "--roofline measures the CPU: add --device cpu");
    }
    b.direct = direct_create(bundle->model, n_rows, (uint32_t)longest, (uint32_t)args->chunk, n_rows, err);
    bool ok = b.direct != NULL;
    if (ok && args->n_prompt) {
        struct bench_result *r = &results[n++];
        r->depth = (uint32_t)args->depth;
        snprintf(r->test, sizeof r->test, "pp%lld", (long long)args->n_prompt);
        r->n_tokens = (uint32_t)args->n_prompt;
        ok = measure(&b, prompt_once, r);
    }
    if (ok && args->n_generate) {
        struct bench_result *r = &results[n++];
        r->depth = (uint32_t)args->depth;
        snprintf(r->test, sizeof r->test, "tg%lld", (long long)args->n_generate);
        r->n_tokens = (uint32_t)args->n_generate;
        ok = measure(&b, generate_once, r);
    }
    if (ok && args->n_rows) {
        struct bench_result *r = &results[n++];
        r->depth = BATCH_DEPTH;
        snprintf(r->test, sizeof r->test, "bg%lld", (long long)args->n_rows);
        r->n_tokens = n_rows * BATCH_STEPS;
        ok = measure(&b, batch_once, r);
    }
    long rss_mib = peak_rss_mib(); // before the roofs take memory
    if (ok && args->roofline)
        ok = cpu_roofs_measure(bundle->be, &roofs, err);
    if (ok)
        print_results(bundle, args, threads, results, n, rss_mib, args->roofline ? &roofs : NULL);
    direct_destroy(b.direct);
    free(b.ids);
    return ok;
}

int cmd_bench(int argc, char **argv) {
    struct model_args model = model_args_default();
    struct bench_args args = {.n_prompt = 512, .n_generate = 128, .n_repeats = 3, .chunk = 512};
    const struct cli_option options[] = {
        {.name = "-p", .alias = "--prompt-tokens", .kind = CLI_INT, .out = &args.n_prompt, .value = "N",
         .min = 0, .max = 1e6, .help = "read a prompt of N tokens (512; 0 = leave out)"},
        {.name = "-n", .alias = "--tokens", .kind = CLI_INT, .out = &args.n_generate, .value = "N",
         .min = 0, .max = 1e6, .help = "generate N tokens, one by one (128; 0 = leave out)"},
        {.name = "-b", .alias = "--rows", .kind = CLI_INT, .out = &args.n_rows, .value = "ROWS", .min = 0,
         .max = 4096, .help = "and ROWS sequences decoding together (0 = leave out)"},
        {.name = "-d", .alias = "--depth", .kind = CLI_INT, .out = &args.depth, .value = "D", .min = 0,
         .max = 1e7, .help = "after D tokens of context"},
        {.name = "-r", .alias = "--runs", .kind = CLI_INT, .out = &args.n_repeats, .value = "R", .min = 1,
         .max = REPEATS_MAX, .help = "repeat each R times (3), after one warm-up"},
        {.name = "--chunk", .kind = CLI_INT, .out = &args.chunk, .value = "N", .min = 1, .max = 65536,
         .help = "tokens a prompt step (512)"},
        {.name = "--roofline", .kind = CLI_SWITCH, .out = &args.roofline,
         .help = "and what part of the CPU's read rate and arithmetic each test reaches"},
        {.name = "--json", .kind = CLI_SWITCH, .out = &args.json, .help = "one JSON object on stdout"},
        MODEL_OPTIONS(&model),
    };
    const struct cli_spec spec = {"bench (MODEL | --builtin) [options]",
                                  "Measure a model's speed in tokens a second.", CLI_OPTIONS(options), 1};
    const char *positional = NULL;
    uint32_t n;
    enum cli_outcome outcome = cli_parse(&spec, argc, argv, &positional, &n);
    if (outcome != CLI_RUN)
        return outcome == CLI_HELPED ? EXIT_DONE : EXIT_USAGE;
    struct err err = {0};
    struct bundle bundle;
    if (!model_args_open(&model, positional, true, &bundle, &err))
        return cli_fail("bench", &err);
    uint32_t threads = model.n_threads ? (uint32_t)model.n_threads : thread_pool_default_threads();
    bool ok = run(&args, &bundle, threads, &err);
    bundle_close(&bundle);
    return ok ? EXIT_DONE : cli_fail("bench", &err);
}
