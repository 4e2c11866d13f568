// DESIGN rule 2: a request's logits do not depend, to the bit, on how its prompt was cut into chunks, on what
// else is in the batch, or on the number of threads. For one model of each family, in both math modes and
// every KV kind.
//   test_same_bits NAME...    these zoo models
#include "zoo.h"

static const char *const DEFAULT_MODELS[] = {
    "llama", "llama-mlx-4bit", "qwen3-shakespeare-mlx-4bit", "mistral", "qwen2", "gemma3", "qwen3_moe",
    "deepseek_v3", "gemma4-dense", "qwen3_5", "glm_moe_dsa", "gpt_oss", "smollm3", "phi3", "phi3-longrope",
    "olmo2", "granite", "starcoder2", "mixtral", "qwen3_vl", "qwen3_5_moe", "gemma4-moe", NULL,
};
// More rows of the same code: how KV is stored is none of their business.
static const char *const ROW_MODELS[] = {
    "olmo3", "seed_oss", "exaone4", "glm4", "glm", "cohere", "cohere2", "gemma", "gemma2", "ernie4_5", "hunyuan_v1_dense",
    "nemotron", "arcee", "stablelm", "apertus", "ministral3", "lfm2", "qwen2_moe", "olmoe", "granitemoe", "granitemoeshared",
    "glm4_moe", "glm4_moe_lite", "dots1", "deepseek_v2", "deepseek_v2-lite", "deepseek_v32", "ernie4_5_moe", "minimax_m2",
    "qwen3_next", NULL,
};

struct run {
    float *logits; // [n_ids, n_vocab]
    size_t n;
};

// Logits at every position of `ids`, fed in chunks of `chunk` as row `row`, beside other rows that do other
// things at other lengths in the same steps.
static void collect(const char *folder, const struct zoo_options *options, const int32_t *ids,
                    uint32_t n_ids, uint32_t chunk, uint32_t n_others, struct run *out) {
    struct zoo zoo;
    struct err err = {0};
    struct zoo_options o = *options;
    o.n_rows = 1 + n_others;
    o.chunk = chunk + n_others * 9;
    check_ok(zoo_open(&zoo, folder, &o, &err), &err);
    uint32_t n_vocab = model_config_of(zoo.model)->n_vocab;
    out->n = (size_t)n_ids * n_vocab;
    out->logits = malloc(out->n * sizeof *out->logits);
    uint32_t row = n_others / 2; // in the middle of the batch
    for (uint32_t done = 0; done < n_ids;) {
        uint32_t n = n_ids - done < chunk ? n_ids - done : chunk;
        struct direct_feed feeds[16];
        uint32_t n_feeds = 0, skip = 0;
        for (uint32_t r = 0; r <= n_others; r++) {
            if (r == row) {
                feeds[n_feeds++] = (struct direct_feed){.row = r, .ids = ids + done, .n_ids = n,
                                                        .all_logits = true};
                continue;
            }
            // The others feed 1 to 9 tokens a step and start over when they are long.
            uint32_t their = 1 + (r * 5 + done) % 9;
            if (direct_n_tokens(zoo.direct, r) + their > 140)
                direct_reset(zoo.direct, r);
            feeds[n_feeds++] = (struct direct_feed){.row = r, .ids = ids + (r * 3 + done) % (n_ids - 9),
                                                    .n_ids = their};
            if (r < row)
                skip++;
        }
        const float *logits;
        check_ok(direct_step(zoo.direct, feeds, n_feeds, false, &logits, &err), &err);
        memcpy(out->logits + (size_t)done * n_vocab, logits + (size_t)skip * n_vocab,
               (size_t)n * n_vocab * sizeof *logits);
        done += n;
    }
    zoo_close(&zoo);
}

static void check_model(const char *name, const char *folder, bool every_kind) {
    static const struct {
        uint32_t chunk, n_others, n_threads;
    } WAYS[] = {{1, 0, 1}, {7, 0, 2}, {64, 0, 2}, {150, 0, 1}, {1, 8, 2}, {7, 8, 1}, {64, 8, 3}};
    static const enum kv_kind KINDS[] = {KV_F32, KV_BF16, KV_F16, KV_Q8, KV_Q4};
    struct err err = {0};
    struct zoo zoo;
    struct zoo_options options = zoo_exact();
    check_ok(zoo_open(&zoo, folder, &options, &err), &err);
    size_t n_ids;
    const int32_t *golden_ids = zoo_golden(&zoo, "prompt2.ids", &n_ids);
    // Longer than every window of the zoo (64) and than two KV pages.
    int32_t ids[150];
    if (n_ids > 150)
        n_ids = 150;
    memcpy(ids, golden_ids, n_ids * sizeof *ids);
    zoo_close(&zoo);
    for (int mode = 0; mode < 2; mode++) {
        for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
            options.math = mode ? MATH_FAST : MATH_EXACT;
            options.kv = KINDS[k];
            // Every KV kind in fast mode; in exact mode the two ends.
            if (!mode && KINDS[k] != KV_F32 && KINDS[k] != KV_Q4)
                continue;
            if (!every_kind && KINDS[k] != (mode ? KV_BF16 : KV_F32))
                continue;
            struct run whole, other;
            options.n_threads = 2;
            collect(folder, &options, ids, (uint32_t)n_ids, (uint32_t)n_ids, 0, &whole);
            for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
                if (KINDS[k] != KV_BF16 && KINDS[k] != KV_F32 && w % 3 != 1)
                    continue; // the conversions do not know about ways: a sample is enough
                options.n_threads = WAYS[w].n_threads;
                collect(folder, &options, ids, (uint32_t)n_ids, WAYS[w].chunk, WAYS[w].n_others, &other);
                if (memcmp(whole.logits, other.logits, whole.n * sizeof *whole.logits) != 0) {
                    size_t at = 0;
                    while (memcmp(&whole.logits[at], &other.logits[at], sizeof(float)) == 0)
                        at++;
                    fail_msg("%s (%s, KV kind %d): chunks of %u beside %u rows on %u threads differ from one "
                             "prompt alone, first at position %zu: %.9g, %.9g", name,
                             mode ? "fast" : "exact", (int)KINDS[k], WAYS[w].chunk, WAYS[w].n_others,
                             WAYS[w].n_threads, at / (whole.n / n_ids), (double)whole.logits[at],
                             (double)other.logits[at]);
                }
                free(other.logits);
            }
            free(whole.logits);
        }
    }
    printf("%s: the same bits every way\n", name);
}

static const char *const *models = DEFAULT_MODELS;

static void bits_do_not_depend_on_chunks_batch_or_threads(void **state) {
    (void)state;
    uint32_t n = 0;
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX];
        if (!zoo_folder(*name, folder)) {
            print_message("%s is not here: skipped\n", *name);
            continue;
        }
        struct err err = {0};
        struct zoo zoo;
        struct zoo_options options = zoo_exact();
        if (models == DEFAULT_MODELS && !zoo_open(&zoo, folder, &options, &err)) {
            if (err.code != ERR_UNSUPPORTED)
                fail_msg("%s", err.message);
            continue; // a family that is not there yet
        }
        if (models == DEFAULT_MODELS)
            zoo_close(&zoo);
        check_model(*name, folder, models != ROW_MODELS);
        n++;
    }
    assert_true(n > 0);
}

static void nor_do_those_of_the_other_families(void **state) {
    models = ROW_MODELS;
    bits_do_not_depend_on_chunks_batch_or_threads(state);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        models = (const char *const *)argv + 1;
        const struct CMUnitTest chosen[] = {cmocka_unit_test(bits_do_not_depend_on_chunks_batch_or_threads)};
        return cmocka_run_group_tests(chosen, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_chunks_batch_or_threads),
        cmocka_unit_test(nor_do_those_of_the_other_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
