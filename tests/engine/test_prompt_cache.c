// The prompt cache: what comes from it equals, to the bit of every logprob, what is computed; and as much comes from
// it as can. For models of each kind of attention and state and every KV kind.
//   test_prompt_cache NAME...    these zoo models
#include "lane.h"

static const char *const DEFAULT_MODELS[] = {"llama",   "qwen3-shakespeare-mlx-4bit", "gemma3", "qwen3_5", "gpt_oss",
                                             "deepseek_v3", "glm_moe_dsa", "gemma4-dense", NULL};

static struct lane_options lane_options(enum kv_kind kv, bool cached, uint32_t n_threads) {
    return (struct lane_options){
        .math = MATH_FAST, .kv = kv, .n_threads = n_threads,
        .engine = {.n_rows = 4, .step_tokens = 96, .ctx_len = 640, .prompt_cache_bytes = cached ? 1u << 30 : 0}};
}

static uint32_t random_state;
static uint32_t next_random(void) { // LCG of Numerical Recipes
    random_state = random_state * 1664525 + 1013904223;
    return random_state >> 8;
}

// A conversation's turns: each is `common` tokens of the one before (its prompt and answer), then new ones.
struct turn {
    uint32_t common, n_prompt;
    uint32_t n_cached; // by models that only need pages
    bool any;          // others find something too
};
static const struct turn TURNS[] = {
    {0, 300, 0, false},
    {320, 400, 319, true},  // goes on where the answer ended (whose last token was never computed)
    {400, 400, 399, true},  // the same again
    {310, 350, 310, true},  // parts within the answer before
    {100, 300, 100, false}, // parts within a page
    {3, 90, 3, false},
    {90, 91, 90, false},
};
enum { N_TURNS = sizeof TURNS / sizeof *TURNS, N_ANSWER = 20 };

static void run_turns(const char *folder, const struct lane_options *options, struct lane_answer *answers,
                      uint32_t n_vocab) {
    struct lane lane;
    struct err err = {0};
    token_id ids[640];
    check_ok(lane_open(&lane, folder, options, &err), &err);
    random_state = 7;
    for (int i = 0; i < N_TURNS; i++) {
        const struct turn *turn = &TURNS[i];
        uint32_t n = turn->common;
        for (; n < turn->n_prompt; n++)
            ids[n] = (token_id)(next_random() % n_vocab);
        lane_ask(&lane, &answers[i], ids, turn->n_prompt, N_ANSWER, (uint64_t)i);
        lane_wait(&answers[i]);
        assert_int_equal(answers[i].n_tokens, N_ANSWER);
        memcpy(ids + n, answers[i].tokens, N_ANSWER * sizeof *ids);
    }
    struct engine_stats stats;
    lane_settle(&lane, &stats);
    if (options->engine.prompt_cache_bytes) {
        assert_true(stats.cache.n_nodes > 0 && stats.cache.bytes > 0);
        assert_int_equal(stats.n_cache_hits + stats.n_cache_misses, N_TURNS);
    }
    lane_close(&lane);
}

static void check_model(const char *name, const char *folder) {
    static const enum kv_kind KINDS[] = {KV_BF16, KV_F32, KV_F16, KV_Q8, KV_Q4};
    static struct lane_answer plain[N_TURNS], cached[N_TURNS];
    struct lane lane;
    struct err err = {0};
    struct lane_options options = lane_options(KV_BF16, false, 1);
    check_ok(lane_open(&lane, folder, &options, &err), &err);
    uint32_t n_vocab = model_config_of(lane.model)->n_vocab;
    bool pages_only = !model_state_pool(lane.model);
    struct model_memory memory;
    model_memory(lane.model, &memory);
    for (uint32_t g = 0; g < memory.n_groups; g++)
        pages_only &= memory.group_window[g] == 0;
    lane_close(&lane);
    uint32_t n_from_cache = 0;
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
        options = lane_options(KINDS[k], false, 2);
        run_turns(folder, &options, plain, n_vocab);
        options = lane_options(KINDS[k], true, 1 + (uint32_t)k % 3);
        run_turns(folder, &options, cached, n_vocab);
        for (int i = 0; i < N_TURNS; i++) {
            char what[96];
            snprintf(what, sizeof what, "%s, KV kind %d, turn %d (%u from the cache)", name, (int)KINDS[k], i,
                     cached[i].usage.n_cached);
            lane_check_same(&plain[i], &cached[i], what);
            assert_int_equal(plain[i].usage.n_cached, 0);
            n_from_cache += k ? 0 : cached[i].usage.n_cached;
            if (pages_only && cached[i].usage.n_cached != TURNS[i].n_cached)
                fail_msg("%s: %u expected", what, TURNS[i].n_cached);
            if (TURNS[i].any && cached[i].usage.n_cached == 0)
                fail_msg("%s", what);
            assert_true(cached[i].usage.n_cached <= TURNS[i].n_cached);
        }
    }
    printf("%s: the same bits, %u prompt tokens from the cache\n", name, n_from_cache);
}

static const char *const *models = DEFAULT_MODELS;

static void cached_answers_equal_computed_ones(void **state) {
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

// In a pool of one sequence, which holds what the cache keeps too: the cache gives way, down to the page that a
// prompt shares with it, and running rows give way to each other.
static void the_cache_gives_way_in_a_small_pool(void **state) {
    (void)state;
    enum { N = 24, N_TOGETHER = 4 };
    static struct lane_answer want[N], got[N];
    static token_id prompts[N][600];
    char folder[PATH_MAX];
    if (!zoo_folder("llama", folder))
        fail_msg("tests/models/llama is not here");
    struct lane_options options = lane_options(KV_BF16, false, 1);
    options.engine.n_rows = N_TOGETHER;
    for (int cached = 0; cached < 2; cached++) {
        struct lane lane;
        struct err err = {0};
        options.engine.prompt_cache_bytes = cached ? 1u << 30 : 0;
        check_ok(lane_open(&lane, folder, &options, &err), &err);
        if (cached) { // once more, with just what one sequence takes
            options.engine.kv_budget_bytes = engine_plan_of(lane.engine)->kv_bytes / N_TOGETHER + 4096;
            lane_close(&lane);
            check_ok(lane_open(&lane, folder, &options, &err), &err);
        }
        struct lane_answer *answers = cached ? got : want;
        uint32_t n_vocab = model_config_of(lane.model)->n_vocab;
        random_state = 11;
        for (int i = 0; i < N; i += N_TOGETHER) {
            for (int k = i; k < i + N_TOGETHER; k++) {
                uint32_t n = k ? 60 + next_random() % 540 : 600, common = k ? next_random() % n : 0;
                if (k)
                    memcpy(prompts[k], prompts[next_random() % (uint32_t)k], common * sizeof **prompts);
                for (uint32_t j = common; j < n; j++)
                    prompts[k][j] = (token_id)(next_random() % n_vocab);
                lane_ask(&lane, &answers[k], prompts[k], n, 30, (uint64_t)k);
                if (!cached)
                    lane_wait(&answers[k]);
            }
            for (int k = i; cached && k < i + N_TOGETHER; k++)
                lane_wait(&answers[k]);
        }
        struct engine_stats stats;
        lane_settle(&lane, &stats);
        if (cached) {
            assert_true(stats.n_pages[0] < 2 * 640 / KV_PAGE_TOKENS);
            assert_true(stats.cache.n_evicted > 0);
        }
        lane_close(&lane);
    }
    for (int k = 0; k < N; k++) {
        char what[32];
        snprintf(what, sizeof what, "request %d", k);
        lane_check_same(&want[k], &got[k], what);
    }
}

// ---- Requests for one prompt at the same time ---------------------------------------------------
enum { N_SAME = 4, N_SAME_PROMPT = 300 };

// A request during which, on the engine's thread so that they come together, N_SAME requests for another prompt are made
// and, a step later, the first `n_cancel` of them given up.
struct opener {
    struct lane *lane;
    const token_id *ids; // [N_SAME_PROMPT]
    struct lane_answer *answers;
    uint32_t n_events, n_cancel;
    struct lane_answer own;
};

static void on_opener_event(const struct gen_event *event, void *user) {
    struct opener *o = user;
    if (event->kind == GEN_TOKEN && ++o->n_events == 2)
        for (uint64_t i = 0; i < N_SAME; i++)
            lane_ask(o->lane, &o->answers[i], o->ids, N_SAME_PROMPT, N_ANSWER, i);
    if (event->kind == GEN_TOKEN && o->n_events == 4)
        for (uint32_t i = 0; i < o->n_cancel; i++)
            gen_ticket_cancel(o->answers[i].ticket);
    lane_on_event(event, &o->own);
}

static void ask_together(struct lane *lane, const token_id *ids, struct lane_answer *answers, uint32_t n_cancel) {
    static struct opener opener;
    struct err err = {0};
    opener = (struct opener){.lane = lane, .ids = ids, .answers = answers, .n_cancel = n_cancel};
    pthread_mutex_init(&opener.own.lock, NULL);
    pthread_cond_init(&opener.own.ended, NULL);
    struct gen_request request = {.prompt = ids + N_SAME_PROMPT, .n_prompt = 3, .max_tokens = 40, .ignore_eos = true,
                                  .sampling = sampler_params_default(), .on_event = on_opener_event,
                                  .user = &opener};
    opener.own.ticket = engine_submit(lane->engine, &request, &err);
    check_ok(opener.own.ticket, &err);
    lane_wait(&opener.own);
    for (uint32_t i = 0; i < N_SAME; i++)
        lane_wait(&answers[i]);
}

// One prompt is read once for all who ask for it together, with and without a cache, and each gets the bits that it
// gets alone; also when the one who read it for the others leaves halfway.
static void requests_for_one_prompt_read_it_once(void **state) {
    (void)state;
    static struct lane_answer want[N_SAME], got[N_SAME];
    token_id ids[N_SAME_PROMPT + 3];
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX], what[96];
        if (!zoo_folder(*name, folder))
            continue;
        for (int round = 0; round < 4; round++) {
            struct lane lane;
            struct err err = {0};
            struct engine_stats stats;
            struct lane_options options = lane_options(KV_BF16, round % 2, 2);
            options.engine.n_rows = N_SAME + 1;
            check_ok(lane_open(&lane, folder, &options, &err), &err);
            random_state = 5;
            for (uint32_t i = 0; i < N_SAME_PROMPT + 3; i++)
                ids[i] = (token_id)(next_random() % model_config_of(lane.model)->n_vocab);
            for (uint32_t i = 0; round == 0 && i < N_SAME; i++) {
                lane_ask(&lane, &want[i], ids, N_SAME_PROMPT, N_ANSWER, i);
                lane_wait(&want[i]);
            }
            lane_settle(&lane, &stats);
            uint64_t n_read = stats.n_prompt_tokens;
            uint32_t n_cancel = round / 2;
            ask_together(&lane, ids, got, n_cancel);
            lane_settle(&lane, &stats);
            n_read = stats.n_prompt_tokens - n_read;
            assert_int_equal(stats.n_forked, N_SAME - 1 - n_cancel);
            // Logits are of the last token of each prompt, which is not counted. Who leaves has read some of it.
            uint32_t least = N_SAME_PROMPT - 1 + 2;
            if (n_cancel ? n_read < least || n_read > least + N_SAME_PROMPT : n_read != least)
                fail_msg("%s, round %d: %u tokens of prompts were read", *name, round, (unsigned)n_read);
            for (uint32_t i = 0; i < N_SAME; i++) {
                snprintf(what, sizeof what, "%s, round %d, request %u of one prompt", *name, round, i);
                lane_check_same(&want[i], &got[i], what);
                assert_true((got[i].finish == FINISH_CANCELLED) == (i < n_cancel));
                if (i > n_cancel)
                    assert_int_equal(got[i].usage.n_cached, N_SAME_PROMPT);
                else if (n_cancel == 0 || round % 2 == 0) // else what the one before had read
                    assert_int_equal(got[i].usage.n_cached, 0);
            }
            lane_close(&lane);
        }
    }
}

// ---- The disk tier ------------------------------------------------------------------------------
static char disk[PATH_MAX];

static int make_disk(void **state) {
    (void)state;
    snprintf(disk, sizeof disk, "%s/loam-tier-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(disk) ? 0 : -1;
}
static int remove_disk(void **state) {
    (void)state;
    char line[PATH_MAX + 16];
    snprintf(line, sizeof line, "rm -rf '%s'", disk);
    return system(line);
}

static struct lane_options disk_options(enum kv_kind kv) {
    struct lane_options options = lane_options(kv, true, 2);
    options.engine.disk_folder = disk;
    options.engine.disk_identity = "test";
    return options;
}

// The turns' prompts, as run_turns() asks for them; each equals `want` and finds at least n_least tokens.
static void check_turns_again(const char *name, const char *folder, const struct lane_options *options,
                              struct lane_answer *want, uint32_t n_least, struct engine_stats *stats) {
    static struct lane_answer got[N_TURNS];
    uint32_t n_cached = 0;
    struct lane lane;
    struct err err = {0};
    check_ok(lane_open(&lane, folder, options, &err), &err);
    uint32_t n_vocab = model_config_of(lane.model)->n_vocab;
    lane_close(&lane);
    run_turns(folder, options, got, n_vocab);
    for (int i = 0; i < N_TURNS; i++) {
        char what[96];
        snprintf(what, sizeof what, "%s, KV kind %d, turn %d (%u from the cache)", name, (int)options->kv, i,
                 got[i].usage.n_cached);
        lane_check_same(&want[i], &got[i], what);
        n_cached += i == 0 ? got[i].usage.n_cached : 0;
    }
    if (n_cached < n_least)
        fail_msg("%s, KV kind %d: %u tokens of the first prompt came from disk", name, (int)options->kv, n_cached);
    check_ok(lane_open(&lane, folder, options, &err), &err);
    lane_settle(&lane, stats);
    lane_close(&lane);
}

// An engine finds what the one before it had, in another folder's files nothing, in damaged ones nothing; and its
// answers are the same bits.
static void a_restart_finds_what_the_run_before_had(void **state) {
    (void)state;
    static const enum kv_kind KINDS[] = {KV_BF16, KV_Q8, KV_Q4};
    static struct lane_answer want[N_TURNS];
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX], line[PATH_MAX + 128];
        if (!zoo_folder(*name, folder))
            continue;
        for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
            struct lane lane;
            struct err err = {0};
            struct engine_stats stats;
            struct lane_options options = lane_options(KINDS[k], false, 1);
            check_ok(lane_open(&lane, folder, &options, &err), &err);
            uint32_t n_vocab = model_config_of(lane.model)->n_vocab;
            lane_close(&lane);
            run_turns(folder, &options, want, n_vocab);
            options = disk_options(KINDS[k]);
            check_turns_again(*name, folder, &options, want, 0, &stats);
            assert_true(stats.has_disk && stats.disk.n_entries > 0 && stats.disk.n_failed == 0);
            // 300 tokens: four whole pages; models with snapshots have one there.
            check_turns_again(*name, folder, &options, want, 256, &stats);
            assert_int_equal(stats.disk.n_damaged, 0);
            options.engine.disk_identity = "of other files";
            check_turns_again(*name, folder, &options, want, 0, &stats);
            options.engine.disk_identity = "test";
            snprintf(line, sizeof line, "find '%s' -type f -exec truncate -s -7 {} +", disk);
            assert_int_equal(system(line), 0);
            check_turns_again(*name, folder, &options, want, 0, &stats);
        }
    }
}

// After a restart, requests for one prompt that come together wait for one load of it.
static void requests_for_one_prompt_wait_for_one_load(void **state) {
    (void)state;
    static struct lane_answer want[N_SAME], got[N_SAME];
    token_id ids[N_SAME_PROMPT + 3];
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX], what[96];
        struct engine_stats stats = {0};
        if (!zoo_folder(*name, folder))
            continue;
        for (int run = 0; run < 3; run++) {
            struct lane lane;
            struct err err = {0};
            struct lane_options options = run ? disk_options(KV_BF16) : lane_options(KV_BF16, false, 1);
            options.engine.n_rows = N_SAME + 1;
            check_ok(lane_open(&lane, folder, &options, &err), &err);
            random_state = 9;
            for (uint32_t i = 0; i < N_SAME_PROMPT + 3; i++)
                ids[i] = (token_id)(next_random() % model_config_of(lane.model)->n_vocab);
            for (uint32_t i = 0; run == 0 && i < N_SAME; i++) {
                lane_ask(&lane, &want[i], ids, N_SAME_PROMPT, N_ANSWER, i);
                lane_wait(&want[i]);
            }
            if (run) {
                ask_together(&lane, ids, got, run == 2);
                for (uint32_t i = 0; i < N_SAME; i++) {
                    snprintf(what, sizeof what, "%s, run %d, request %u of one prompt", *name, run, i);
                    lane_check_same(&want[i], &got[i], what);
                }
            }
            lane_settle(&lane, &stats);
            lane_close(&lane);
        }
        // Less than two pages more than in memory are not worth a load: those of the first may have stopped there.
        assert_true(stats.cache.n_restored + 1 >= N_SAME_PROMPT / KV_PAGE_TOKENS);
        assert_true(stats.cache.n_restored <= 2 * (N_SAME_PROMPT / KV_PAGE_TOKENS)); // the first was given up halfway
    }
}

static void on_flushed(void *user, bool complete, const struct disk_cache_stats *stats) {
    assert_int_equal(stats->n_pending, 0);
    *(_Atomic int *)user = complete ? 1 : -1;
}

// What a small pool lets go of comes back from disk, also while others run; with a limit on the disk as well.
static void what_is_let_go_of_comes_back_from_disk(void **state) {
    (void)state;
    enum { N = 12, N_ROUNDS = 3 };
    static struct lane_answer want[N], got[N];
    static token_id prompts[N][500];
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX], what[96];
        if (!zoo_folder(*name, folder))
            continue;
        for (int limited = 0; limited < 2; limited++) {
            struct lane lane;
            struct err err = {0};
            struct engine_stats stats;
            struct lane_options options = lane_options(KV_BF16, false, 2);
            check_ok(lane_open(&lane, folder, &options, &err), &err);
            uint32_t n_vocab = model_config_of(lane.model)->n_vocab;
            uint64_t kv_bytes = engine_plan_of(lane.engine)->kv_bytes;
            random_state = 3;
            for (uint32_t i = 0; i < N; i++) {
                for (uint32_t j = 0; j < 500; j++)
                    prompts[i][j] = (token_id)(next_random() % n_vocab);
                if (i % 3) // some begin alike
                    memcpy(prompts[i], prompts[i - 1], 200 * sizeof **prompts);
                lane_ask(&lane, &want[i], prompts[i], 300 + 16 * i, N_ANSWER, i);
                lane_wait(&want[i]);
            }
            lane_close(&lane);
            options = disk_options(KV_BF16);
            options.engine.kv_budget_bytes = kv_bytes / 2;
            options.engine.disk_bytes_max = limited ? kv_bytes / 2 : 0;
            check_ok(lane_open(&lane, folder, &options, &err), &err);
            for (int round = 0; round < N_ROUNDS; round++) {
                for (uint32_t i = 0; i < N; i++) {
                    lane_ask(&lane, &got[i], prompts[i], 300 + 16 * i, N_ANSWER, i);
                    if (round % 2 == 0 || i % 4 == 3) // one after the other, or four together
                        for (uint32_t k = round % 2 == 0 ? i : i - 3; k <= i; k++)
                            lane_wait(&got[k]);
                }
                for (uint32_t i = 0; i < N; i++) {
                    snprintf(what, sizeof what, "%s, round %d, request %u (%u from the cache)", *name, round, i,
                             got[i].usage.n_cached);
                    lane_check_same(&want[i], &got[i], what);
                }
            }
            _Atomic int flushed = 0;
            check_ok(engine_flush(lane.engine, on_flushed, (void *)&flushed, &err), &err);
            uint64_t deadline = clock_ns() + 20000000000u;
            while (!flushed && clock_ns() < deadline)
                ;
            assert_true(limited || flushed == 1);
            lane_settle(&lane, &stats);
            assert_int_equal(stats.cache.n_dirty, 0);
            assert_int_equal(stats.disk.n_pending, 0);
            assert_true(limited || stats.disk.n_written > 0);
            printf("%s: %u pages of %u came from disk\n", *name, (unsigned)stats.cache.n_restored,
                   (unsigned)stats.disk.n_written);
            lane_close(&lane);
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1)
        models = (const char *const *)argv + 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_answers_equal_computed_ones),
        cmocka_unit_test(the_cache_gives_way_in_a_small_pool),
        cmocka_unit_test(requests_for_one_prompt_read_it_once),
        cmocka_unit_test_setup_teardown(a_restart_finds_what_the_run_before_had, make_disk, remove_disk),
        cmocka_unit_test_setup_teardown(requests_for_one_prompt_wait_for_one_load, make_disk, remove_disk),
        cmocka_unit_test_setup_teardown(what_is_let_go_of_comes_back_from_disk, make_disk, remove_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
