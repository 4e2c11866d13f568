// What choosing one token costs: microseconds by vocabulary and options.
//   ninja -C build bench/bench_sampler && build/bench/bench_sampler
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sample/sampler.h"

enum { N_LOGITS = 8, REPEATS = 15, CALLS = 8, CONTEXT = 32768 };

// Zipf's law, as a trained model's next token has it: the token of rank r weighs r^-1.5, more or less, so that some
// hundreds of tokens hold 95 %. Ranks are scattered over the ids. `flat`: nobody stands out, the worst there is.
static void fill(float *logits, uint32_t n, uint32_t seed, bool flat) {
    for (uint32_t rank = 0; rank < n; rank++) {
        uint32_t c[4] = {rank, seed, 0, 0};
        philox4x32(c, 1);
        uint32_t id = (uint32_t)((uint64_t)rank * 1000003u % n); // a prime that divides no n here
        logits[id] = (float)c[1] * 0x1p-31f + (flat ? 0 : -1.5f * logf((float)(rank + 1)));
    }
}

static int up(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    static const uint32_t VOCABS[] = {32000, 151936, 262144};
    struct sampler_params base = sampler_params_default(), p;
    struct {
        const char *name;
        struct sampler_params params;
    } cases[12];
    size_t n_cases = 0;
#define CASE(text, ...)                                                                            \
    p = base;                                                                                      \
    __VA_ARGS__;                                                                                   \
    cases[n_cases].name = text;                                                                    \
    cases[n_cases++].params = p
    CASE("greedy", p.temperature = 0);
    CASE("greedy, logprobs", p.temperature = 0, p.want_logprob = true, p.n_top_logprobs = 5);
    CASE("temperature", p.temperature = 0.7f);
    CASE("top_p 0.95", p.top_p = 0.95f);
    CASE("top_k 40", p.top_k = 40);
    CASE("top_p, min_p, top_k, t 0.7", p.top_p = 0.95f, p.min_p = 0.02f, p.top_k = 64, p.temperature = 0.7f);
    CASE("typical_p 0.9", p.typical_p = 0.9f);
    CASE("xtc 0.5", p.xtc_probability = 0.5f);
    CASE("penalties (20), top_p", p.repetition_penalty = 1.1f, p.presence_penalty = 0.5f, p.top_p = 0.95f);
    CASE("penalties (32k), top_p", p.repetition_penalty = 1.1f, p.repetition_context = 0, p.top_p = 0.95f);
    CASE("dry (32k), top_p", p.dry.multiplier = 0.8f, p.top_p = 0.95f);
    CASE("top_p 0.95, flat logits", p.top_p = 0.95f);
    int32_t *tokens = malloc(CONTEXT * sizeof *tokens);
    for (size_t v = 0; v < sizeof VOCABS / sizeof *VOCABS; v++) {
        uint32_t n = VOCABS[v];
        struct err err = {0};
        struct sampler_vocab vocab = {.n_vocab = n};
        struct sampler_scratch *scratch = sampler_scratch_create(n, CONTEXT, &err);
        float *logits[N_LOGITS];
        for (int i = 0; i < N_LOGITS; i++)
            fill(logits[i] = malloc(n * sizeof **logits), n, (uint32_t)i, false);
        for (uint32_t i = 0; i < CONTEXT; i++)
            tokens[i] = (int32_t)(i * 2654435761u % n / (1 + i % 7));
        printf("vocabulary of %u\n", n);
        for (size_t k = 0; k < n_cases; k++) {
            for (int i = 0; k == n_cases - 1 && i < N_LOGITS; i++)
                fill(logits[i], n, (uint32_t)i, true);
            double us[REPEATS];
            struct sampler *sampler = sampler_create(&cases[k].params, &vocab, NULL, &err);
            for (int r = 0; r < REPEATS; r++) {
                uint64_t start = clock_ns();
                for (uint32_t i = 0; i < CALLS; i++) {
                    struct sampled got;
                    struct sampler_context context = {tokens, CONTEXT - i, 0};
                    sampler_sample(sampler, scratch, logits[i % N_LOGITS], NULL, &context, &got);
                }
                us[r] = (double)(clock_ns() - start) / 1e3 / CALLS;
            }
            qsort(us, REPEATS, sizeof *us, up);
            printf("  %-28s median %7.1f us, worst %7.1f\n", cases[k].name, us[REPEATS / 2], us[REPEATS - 1]);
            sampler_destroy(sampler);
        }
        for (int i = 0; i < N_LOGITS; i++)
            free(logits[i]);
        sampler_scratch_destroy(scratch);
    }
    free(tokens);
    return 0;
}
