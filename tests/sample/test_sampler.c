#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "artifact/builtin.h"
#include "base/file_map.h"
#include "base/json.h"
#include "sample/candidates.h"
#include "sample/sampler.h"
#include "sample/sampler_options.h"
#include "sample/scan.h"
#include "sample/scan_levels.h"

// goldens.json is written by goldens.py, a model of its own in float64.
static json_t *goldens;

static int read_goldens(void **state) {
    (void)state;
    char path[4096];
    struct strbuf text = {0};
    struct err err = {0};
    snprintf(path, sizeof path, "%s/tests/sample/goldens.json", getenv("LOAM_SOURCE_DIR"));
    if (!file_read(path, 1 << 24, &text, &err) || !(goldens = json_parse(strbuf_str(&text), path, &err)))
        fprintf(stderr, "%s\n", err.message);
    strbuf_deinit(&text);
    return goldens ? 0 : 1;
}

static int drop_goldens(void **state) {
    (void)state;
    json_decref(goldens);
    return 0;
}

static double real(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}

static uint64_t lcg_state;
static uint32_t lcg(void) { // 20 bits
    lcg_state = lcg_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(lcg_state >> 44);
}

static float *logits_of(const json_t *c, uint32_t n) {
    float *logits = malloc(n * sizeof *logits);
    int64_t spread = (int64_t)real(c, "spread");
    lcg_state = (uint64_t)real(c, "seed");
    for (uint32_t i = 0; i < n; i++) { // the shift rounds down, as Python's division does
        int64_t x = (int64_t)lcg() - (1 << 19);
        logits[i] = (float)(x * spread >> 19) / 1024;
    }
    return logits;
}

struct ids {
    int32_t ids[64];
    uint32_t n;
};
static struct ids ids_of(const json_t *object, const char *name) {
    struct ids out = {.n = 0};
    const json_t *array = json_object_get(object, name);
    for (size_t i = 0; i < json_array_size(array); i++)
        out.ids[out.n++] = (int32_t)json_integer_value(json_array_get(array, i));
    return out;
}

static struct sampler_params params_of(const json_t *given, struct logit_bias *bias) {
    struct sampler_params p = sampler_params_default();
    size_t n_used = 0;
    for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++) {
        const json_t *value = json_object_get(given, SAMPLER_OPTIONS[i].name);
        if (value)
            sampler_option_set(&p, i, json_number_value(value));
        n_used += value != NULL;
    }
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(given, "logit_bias"), key, value)
        bias[p.n_bias++] = (struct logit_bias){atoi(key), (float)json_number_value(value)};
    p.bias = bias;
    assert_int_equal(n_used + (p.n_bias > 0), json_object_size(given)); // no option went unread
    p.want_logprob = true;
    p.n_top_logprobs = SAMPLER_TOP_LOGPROBS_MAX;
    return p;
}

// Pearson's statistic of what was drawn against what was expected, in units of its standard deviation above its
// mean; bins of less than 5 expected draws are put together.
static double chi_square(const uint32_t *drawn, const double *p, uint32_t n, double n_draws) {
    double sum = 0, rest_seen = 0, rest_expected = 0;
    uint32_t n_bins = 0;
    for (uint32_t i = 0; i < n; i++) {
        double expected = p[i] * n_draws;
        if (expected < 5) {
            rest_seen += drawn[i];
            rest_expected += expected;
            continue;
        }
        sum += (drawn[i] - expected) * (drawn[i] - expected) / expected;
        n_bins++;
    }
    if (rest_expected > 1) {
        sum += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        n_bins++;
    }
    return n_bins < 2 ? 0 : (sum - (n_bins - 1)) / sqrt(2.0 * (n_bins - 1));
}

static void check_case(const json_t *c) {
    const char *name = json_string_value(json_object_get(c, "name"));
    uint32_t n = (uint32_t)real(c, "n"), drawn[64] = {0}, n_bins = n <= 64 ? n : 16, mask_words[2] = {0};
    float *logits = logits_of(c, n);
    struct logit_bias bias[8];
    struct sampler_params params = params_of(json_object_get(c, "params"), bias);
    struct ids tokens = ids_of(c, "tokens"), ends = ids_of(c, "ends"), newlines = ids_of(c, "newlines"),
               mask = ids_of(c, "mask");
    struct sampler_vocab vocab = {n, ends.ids, newlines.ids, ends.n, newlines.n};
    struct sampler_context context = {tokens.ids, tokens.n, (uint32_t)real(c, "n_prompt")};
    struct err err = {0};
    struct sampler_scratch *scratch = sampler_scratch_create(n, 64, &err);
    for (uint32_t i = 0; i < mask.n; i++)
        mask_words[mask.ids[i] / 32] |= 1u << mask.ids[i] % 32;
    const json_t *top = json_object_get(c, "top");
    uint32_t n_draws = n <= 64 ? 20000 : 1500;
    for (uint32_t i = 0; i < n_draws; i++) {
        params.seed = i * 0x9E3779B97F4A7C15u + 17;
        if (i > 0)
            params.n_top_logprobs = 0;
        struct sampler *sampler = sampler_create(&params, &vocab, NULL, &err);
        struct sampled got;
        assert_non_null(sampler);
        if (!sampler_sample(sampler, scratch, logits, mask.n ? mask_words : NULL, &context, &got))
            fail_msg("%s: no token", name);
        sampler_destroy(sampler);
        for (uint32_t k = 0; i == 0 && k < json_array_size(top); k++) {
            const json_t *want = json_array_get(top, k);
            if (got.top[k].id != json_integer_value(json_array_get(want, 0)) ||
                fabs((double)got.top[k].logprob - json_number_value(json_array_get(want, 1))) > 2e-5)
                fail_msg("%s: rank %u is token %d at %.7f", name, k, got.top[k].id, (double)got.top[k].logprob);
        }
        if (n > 64 && ((double)logits[got.id] < real(c, "least") || (double)logits[got.id] > real(c, "most")))
            fail_msg("%s: drew a logit of %f", name, (double)logits[got.id]);
        drawn[n <= 64 ? got.id : got.id % 16]++;
    }
    double p[64];
    for (uint32_t i = 0; i < n_bins; i++) {
        p[i] = json_number_value(json_array_get(json_object_get(c, n <= 64 ? "probabilities" : "buckets"), i));
        if (drawn[i] && p[i] == 0)
            fail_msg("%s: token %u came, which cannot", name, i);
        if (!drawn[i] && p[i] * n_draws > 20)
            fail_msg("%s: token %u never came", name, i);
    }
    double off = chi_square(drawn, p, n_bins, n_draws);
    if (off > 4)
        fail_msg("%s: the draws are %.1f standard deviations off", name, off);
    sampler_scratch_destroy(scratch);
    free(logits);
}

static void draws_follow_the_model(void **state) {
    (void)state;
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(goldens, "cases"), i, c)
        check_case(c);
    assert_true(i > 40);
}

static void dry_follows_the_model(void **state) {
    (void)state;
    struct err err = {0};
    struct tokenizer *tokenizer = tokenizer_create(builtin_file("tokenizer.json"),
                                                   builtin_file("tokenizer_config.json"), &err);
    uint32_t n_vocab = tokenizer_n_vocab(tokenizer), spare[256];
    uint32_t *by_token = calloc(n_vocab, sizeof *by_token);
    float *logits = malloc(n_vocab * sizeof *logits);
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(goldens, "dry"), i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        int32_t tokens[256];
        uint32_t n_tokens = 0, n_texts = 0;
        struct str texts[8];
        size_t k;
        json_t *one;
        json_array_foreach(json_object_get(c, "tokens"), k, one)
            tokens[n_tokens++] = (int32_t)json_integer_value(one);
        json_array_foreach(json_object_get(c, "breakers"), k, one)
            texts[n_texts++] = json_str(one);
        struct dry_breakers *breakers = dry_breakers_create(tokenizer, texts, n_texts, &err);
        struct dry_params p = {(float)real(c, "multiplier"), (float)real(c, "base"),
                               (uint32_t)real(c, "allowed_length"), (int32_t)real(c, "last_n")};
        memset(logits, 0, n_vocab * sizeof *logits);
        dry_apply(&p, breakers, tokens, n_tokens, spare, by_token, logits, n_vocab);
        json_array_foreach(json_object_get(c, "penalties"), k, one) {
            int64_t id = json_integer_value(json_array_get(one, 0));
            double want = json_number_value(json_array_get(one, 1));
            if (fabs((double)-logits[id] - want) > 1e-5 * want)
                fail_msg("%s: token %lld loses %g, not %g", name, (long long)id, (double)-logits[id], want);
            logits[id] = 0;
        }
        for (uint32_t id = 0; id < n_vocab; id++) {
            if (logits[id] != 0)
                fail_msg("%s: token %u loses %g, which it should not", name, id, (double)-logits[id]);
            assert_int_equal(by_token[id], 0);
        }
        dry_breakers_release(breakers);
    }
    assert_true(i > 10);
    struct str wrong[] = {STR("")};
    assert_null(dry_breakers_create(tokenizer, wrong, 1, &err));
    assert_int_equal(err.code, ERR_INVALID);
    free(logits);
    free(by_token);
    tokenizer_destroy(tokenizer);
}

static int high_first(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void ranks_are_those_of_sorting(void **state) {
    (void)state;
    enum { N_MAX = 3000 };
    static uint64_t keys[N_MAX], sorted[N_MAX];
    static float weights[N_MAX];
    lcg_state = 99;
    for (int round = 0; round < 400; round++) {
        uint32_t n = 1 + lcg() % (round < 200 ? 60 : N_MAX), spread = 1 + lcg() % 5000;
        for (uint32_t i = 0; i < n; i++) {
            float score = (float)(lcg() % spread) - (float)spread / 2; // many equal ones
            sorted[i] = keys[i] = candidate_key(score, (int32_t)i);
            weights[i] = 1 + fabsf(score); // whole and half numbers: sums are exact in any order
        }
        qsort(sorted, n, sizeof *sorted, high_first);
        bool by_weight = lcg() & 1;
        double target = by_weight ? lcg() % (spread * n) / 4.0 : 1 + lcg() % n, reached = 0;
        uint32_t want = 0;
        while (want < n) {
            uint32_t bits = (uint32_t)(sorted[want] >> 32);
            float score;
            bits = bits >> 31 ? bits & 0x7FFFFFFF : ~bits;
            memcpy(&score, &bits, sizeof score);
            reached += by_weight ? 1 + fabs((double)score) : 1;
            want++;
            if (reached >= target)
                break;
        }
        struct candidates c = {keys, weights, n};
        candidates_keep_best(&c, target, by_weight);
        assert_int_equal(c.n, want);
        qsort(keys, c.n, sizeof *keys, high_first);
        assert_memory_equal(keys, sorted, want * sizeof *keys);
        assert_int_equal(candidate_id(candidate_key(-3.5f, 12345)), 12345);
    }
}

static void scans_are_right_at_every_length(void **state) {
    (void)state;
    enum { N = 3000 };
    static float x[N], e[N];
    static int32_t ids[N];
    const struct {
        const struct scan_level *level;
        bool here;
    } LEVELS[] = {
        {&SCAN_BASE, true},
#if defined(__x86_64__)
        {&SCAN_AVX2, __builtin_cpu_supports("avx2")},
        {&SCAN_AVX512, __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")},
#endif
    };
    lcg_state = 5;
    for (uint32_t n = 0; n < N; n += n < 70 ? 1 : 331) {
        float top = -INFINITY;
        double sum = 0, t_sum = 0, got_blocks = 0, block_sums[N / SCAN_BLOCK + 1];
        uint32_t n_above = 0;
        for (uint32_t i = 0; i < n; i++) {
            x[i] = i % 97 == 5 ? -INFINITY : i % 89 == 7 ? NAN : (float)lcg() / 20000 - 40;
            top = x[i] > top ? x[i] : top;
        }
        assert_true(scan_max(x, n) == top);
        for (uint32_t i = 0; i < n; i++) {
            double t = (double)(x[i] - top), exact = isnan(x[i]) ? 0 : exp(t);
            sum += isnan(x[i]) ? 0 : exp(t * 0.5);
            t_sum += exact > 0 ? t * exact : 0;
            n_above += x[i] > top - 9;
        }
        double got = scan_sum_exp(x, n, top, 0.5f, block_sums);
        assert_true(fabs(got - sum) <= 1e-6 * sum);
        for (uint32_t b = 0; b * SCAN_BLOCK < n; b++)
            got_blocks += block_sums[b];
        assert_true(fabs(got_blocks - got) <= 1e-12 * got);
        assert_true(fabs(scan_sum_t_exp(x, n, top) - t_sum) <= 1e-6 * fabs(t_sum) + 1e-30);
        scan_exp(x, n, top, 1, e);
        for (uint32_t i = 0; i < n; i++) {
            double exact = isnan(x[i]) ? 0 : exp((double)(x[i] - top));
            assert_true(fabs((double)e[i] - exact) <= 3e-7 * exact + 1e-37);
        }
        for (size_t l = 0; l < sizeof LEVELS / sizeof *LEVELS; l++) { // to the bit
            if (!LEVELS[l].here)
                continue;
            const struct scan_level *level = LEVELS[l].level;
            static float other[N];
            static int32_t other_ids[N];
            double t_total = scan_sum_t_exp(x, n, top), t_other = level->sum_t_exp(x, n, top);
            double other_sum = level->sum_exp(x, n, top, 0.5f, NULL);
            level->exp(x, n, top, 1, other);
            assert_true(level->max(x, n) == top);
            assert_memory_equal(&other_sum, &got, sizeof got);
            assert_memory_equal(&t_other, &t_total, sizeof t_total);
            assert_memory_equal(other, e, n * sizeof *e);
            assert_int_equal(level->above(x, n, top - 9, other_ids), scan_above(x, n, top - 9, ids));
            assert_memory_equal(other_ids, ids, n_above * sizeof *ids);
        }
        assert_int_equal(scan_above(x, n, top - 9, ids), n_above);
        for (uint32_t i = 0; i < n_above; i++)
            assert_true(x[ids[i]] > top - 9 && (i == 0 || ids[i] > ids[i - 1]));
    }
}

static void what_is_no_number_gives_no_token(void **state) {
    (void)state;
    float logits[40];
    struct err err = {0};
    struct sampler_vocab vocab = {.n_vocab = 40};
    struct sampler_params params = sampler_params_default();
    struct sampler_scratch *scratch = sampler_scratch_create(40, 8, &err);
    struct sampler *sampler = sampler_create(&params, &vocab, NULL, &err);
    struct sampler_context context = {0};
    struct sampled got;
    static const float BAD[] = {NAN, -INFINITY, INFINITY};
    for (size_t b = 0; b < 3; b++) {
        for (int i = 0; i < 40; i++)
            logits[i] = BAD[b];
        assert_false(sampler_sample(sampler, scratch, logits, NULL, &context, &got));
    }
    for (int i = 0; i < 40; i++)
        logits[i] = (float)i;
    uint32_t none[2] = {0};
    assert_false(sampler_sample(sampler, scratch, logits, none, &context, &got));
    uint32_t one[2] = {1u << 7};
    assert_true(sampler_sample(sampler, scratch, logits, one, &context, &got));
    assert_int_equal(got.id, 7);
    sampler_destroy(sampler);
    sampler_scratch_destroy(scratch);
}

static void wrong_values_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++) {
        const struct sampler_option *o = &SAMPLER_OPTIONS[i];
        struct sampler_params p = sampler_params_default();
        struct err err = {0};
        assert_true(sampler_params_check(&p, 100, &err));
        sampler_option_set(&p, i, o->max * 2 + 1);
        assert_false(sampler_params_check(&p, 100, &err));
        assert_non_null(strstr(err.message, o->name));
        for (double v = o->min;; v = o->max) { // the ends of the range are in it, and read back
            sampler_option_set(&p, i, v);
            assert_true(fabs(sampler_option_get(&p, i) - v) <= 1e-7 * fabs(v));
            assert_true(sampler_params_check(&p, 100, &err));
            if (v == o->max)
                break;
        }
    }
    struct sampler_params p = sampler_params_default();
    struct logit_bias bias = {100, 1};
    struct err err = {0};
    p.bias = &bias;
    p.n_bias = 1;
    assert_false(sampler_params_check(&p, 100, &err));
    assert_non_null(strstr(err.message, "logit_bias"));
}

static void random_numbers_are_philox(void **state) {
    (void)state;
    // Known answers of the authors' Random123 library (kat_vectors, philox4x32 10).
    uint32_t zero[4] = {0}, ones[4] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    philox4x32(zero, 0);
    assert_true(zero[0] == 0x6627e8d5 && zero[1] == 0xe169c58d && zero[2] == 0xbc57ac4c && zero[3] == 0x9b00dbd8);
    philox4x32(ones, UINT64_MAX);
    assert_true(ones[0] == 0x408f276d && ones[1] == 0x41c83b0e && ones[2] == 0xa20bc7c6 && ones[3] == 0x6d5451fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_model),
        cmocka_unit_test(dry_follows_the_model),
        cmocka_unit_test(ranks_are_those_of_sorting),
        cmocka_unit_test(scans_are_right_at_every_length),
        cmocka_unit_test(what_is_no_number_gives_no_token),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(random_numbers_are_philox),
    };
    return cmocka_run_group_tests(tests, read_goldens, drop_goldens);
}
