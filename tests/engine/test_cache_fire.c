// The prompt cache under fire: hundreds of requests whose prompts form a tree arrive at random, many at once, some twice
// at the same moment, some given up at any point of their life, in a pool too small for them, beside a disk tier with
// a limit; every answer equals, to the bit of its logprobs, the one that the same request gets alone without a cache.
//   test_cache_fire [NAME...]    these zoo models; LOAM_FIRE_N=1000: so many requests each; LOAM_FIRE_SEED
#include "lane.h"

#include <unistd.h>

static const char *const DEFAULT_MODELS[] = {"llama", "gemma3", "qwen3_5", "gpt_oss", "deepseek_v3", "gemma4-dense",
                                             "phi3-longrope", NULL};
static const char *const *models = DEFAULT_MODELS;

enum { N_PROMPTS = 40, N_PROMPT_MAX = 500, N_ANSWER_MAX = 24, N_OPEN_MAX = 24 };

static uint32_t random_state, n_fired = 150, first_seed = 1;
static uint32_t draw(uint32_t n) { // LCG of Numerical Recipes
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

struct prompt {
    token_id ids[N_PROMPT_MAX];
    uint32_t n, n_answer;
    struct lane_answer alone;
};
static struct prompt prompts[N_PROMPTS];

// One that runs.
struct shot {
    struct lane_answer answer;
    const struct prompt *prompt; // NULL = free
    uint32_t n_before_cancel;    // tokens after which it is given up, UINT32_MAX = never
};
static struct shot shots[N_OPEN_MAX];

static void on_shot_event(const struct gen_event *event, void *user) {
    struct lane_answer *a = user;
    struct shot *shot = (struct shot *)a; // its first member
    bool enough = event->kind == GEN_TOKEN && a->n_tokens + 1 == shot->n_before_cancel;
    pthread_mutex_lock(&a->lock);
    struct gen_ticket *ticket = a->ticket;
    pthread_mutex_unlock(&a->lock);
    if (enough && ticket)
        gen_ticket_cancel(ticket);
    lane_on_event(event, user);
}

static void fire(struct lane *lane, struct shot *shot, const struct prompt *prompt) {
    struct err err = {0};
    *shot = (struct shot){.prompt = prompt};
    shot->n_before_cancel = draw(6) ? UINT32_MAX : draw(N_ANSWER_MAX);
    pthread_mutex_init(&shot->answer.lock, NULL);
    pthread_cond_init(&shot->answer.ended, NULL);
    struct gen_request request = {.prompt = prompt->ids, .n_prompt = prompt->n, .max_tokens = prompt->n_answer,
                                  .ignore_eos = true, .sampling = sampler_params_default(),
                                  .on_event = on_shot_event, .user = &shot->answer};
    request.sampling.temperature = 1;
    request.sampling.seed = (uint64_t)(prompt - prompts);
    request.sampling.want_logprob = true;
    struct gen_ticket *ticket = engine_submit(lane->engine, &request, &err);
    check_ok(ticket, &err);
    pthread_mutex_lock(&shot->answer.lock);
    shot->answer.ticket = ticket;
    pthread_mutex_unlock(&shot->answer.lock);
    if (shot->n_before_cancel == 0) { // before it is admitted, or while its prompt is read
        if (draw(2))
            usleep(draw(5000));
        gen_ticket_cancel(ticket);
    }
}

static void check_shot(const char *what, struct shot *shot) {
    char text[128];
    lane_wait(&shot->answer);
    snprintf(text, sizeof text, "%s, prompt %d (%u of %u tokens from the cache)", what, (int)(shot->prompt - prompts),
             shot->answer.usage.n_cached, shot->prompt->n);
    lane_check_same(&shot->prompt->alone, &shot->answer, text);
    if (shot->n_before_cancel == UINT32_MAX && shot->answer.finish != FINISH_LENGTH)
        fail_msg("%s: it ended as %s", text, finish_reason_name(shot->answer.finish));
    assert_true(shot->answer.usage.n_cached <= shot->prompt->n);
    shot->prompt = NULL;
}

static void make_prompts(const char *folder, enum kv_kind kv) {
    struct lane lane;
    struct err err = {0};
    struct lane_options options = {.math = MATH_FAST, .kv = kv, .n_threads = 2,
                                   .engine = {.n_rows = 1, .step_tokens = 128, .ctx_len = 640}};
    check_ok(lane_open(&lane, folder, &options, &err), &err);
    uint32_t n_vocab = model_config_of(lane.model)->n_vocab;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct prompt *p = &prompts[i];
        const struct prompt *like = &prompts[i ? draw(i) : 0];
        uint32_t n_same = i && draw(8) ? draw(like->n + 1) : 0;
        p->n = n_same + 1 + draw(N_PROMPT_MAX - n_same);
        p->n = p->n > N_PROMPT_MAX ? N_PROMPT_MAX : p->n;
        p->n_answer = 1 + draw(N_ANSWER_MAX);
        for (uint32_t k = 0; k < p->n; k++)
            p->ids[k] = k < n_same ? like->ids[k] : (token_id)draw(n_vocab);
        lane_ask(&lane, &p->alone, p->ids, p->n, p->n_answer, i);
        lane_wait(&p->alone);
        assert_int_equal(p->alone.finish, FINISH_LENGTH);
    }
    lane_close(&lane);
}

static void on_flushed(void *user, bool complete, const struct disk_cache_stats *stats) {
    (void)stats;
    *(_Atomic int *)user = complete ? 1 : -1;
}

static void fire_at(const char *name, const char *folder, enum kv_kind kv, uint32_t seed) {
    char disk[] = "/tmp/loam-fire-XXXXXX", what[64], line[64];
    struct lane lane;
    struct err err = {0};
    struct engine_stats stats;
    assert_non_null(mkdtemp(disk));
    random_state = seed;
    snprintf(what, sizeof what, "%s, KV kind %d, seed %u", name, (int)kv, seed);
    make_prompts(folder, kv);
    struct lane_options options = {.math = MATH_FAST, .kv = kv, .n_threads = 1 + seed % 3,
                                   .engine = {.n_rows = 3 + seed % 4, .step_tokens = 96, .ctx_len = 640,
                                              .n_waiting_max = N_OPEN_MAX, .prompt_cache_bytes = 1u << 30}};
    check_ok(lane_open(&lane, folder, &options, &err), &err);
    uint64_t kv_bytes = engine_plan_of(lane.engine)->kv_bytes / options.engine.n_rows * 2; // of two sequences
    lane_close(&lane);
    options.engine.kv_budget_bytes = kv_bytes + 4096;
    options.engine.disk_folder = disk;
    options.engine.disk_identity = "fire";
    options.engine.disk_bytes_max = 3 * kv_bytes;
    options.engine.disk_idle_s = 1;
    for (int half = 0; half < 2; half++) { // a restart in between
        check_ok(lane_open(&lane, folder, &options, &err), &err);
        for (uint32_t i = 0; i < n_fired / 2; i++) {
            const struct prompt *prompt = &prompts[draw(N_PROMPTS)];
            for (uint32_t n = draw(5) ? 1 : 2 + draw(3); n > 0; n--) { // some at the same moment
                struct shot *shot = &shots[draw(N_OPEN_MAX)];
                if (shot->prompt)
                    check_shot(what, shot);
                fire(&lane, shot, prompt);
            }
            if (draw(4) == 0)
                usleep(draw(3000));
            if (draw(40) == 0) { // all end, and it is idle for a moment
                for (uint32_t k = 0; k < N_OPEN_MAX; k++)
                    if (shots[k].prompt)
                        check_shot(what, &shots[k]);
                usleep(draw(20000));
            }
        }
        for (uint32_t k = 0; k < N_OPEN_MAX; k++)
            if (shots[k].prompt)
                check_shot(what, &shots[k]);
        _Atomic int flushed = 0;
        check_ok(engine_flush(lane.engine, on_flushed, (void *)&flushed, &err), &err);
        for (uint64_t deadline = clock_ns() + 30000000000u; !flushed && clock_ns() < deadline;)
            usleep(100);
        assert_true(flushed != 0);
        lane_settle(&lane, &stats);
        assert_true(stats.cache.bytes <= stats.cache.bytes_max);
        assert_int_equal(stats.disk.n_damaged + stats.disk.n_failed, 0);
        printf("%s: %u hits, %u misses, %u forked, %u preempted, %u pages evicted; %u pages from disk, %u files written, "
               "%u evicted\n", what, (unsigned)stats.n_cache_hits, (unsigned)stats.n_cache_misses,
               (unsigned)stats.n_forked, (unsigned)stats.n_preempted, (unsigned)stats.cache.n_evicted,
               (unsigned)stats.cache.n_restored, (unsigned)stats.disk.n_written, (unsigned)stats.disk.n_evicted);
        assert_true(stats.n_cache_hits > 0 && stats.cache.n_evicted > 0 && stats.disk.n_written > 0);
        lane_close(&lane);
    }
    snprintf(line, sizeof line, "rm -rf %s", disk);
    assert_int_equal(system(line), 0);
}

static void every_answer_is_that_of_a_lone_run(void **state) {
    (void)state;
    static const enum kv_kind KINDS[] = {KV_BF16, KV_Q8, KV_F16, KV_Q4, KV_F32};
    uint32_t n = 0;
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX];
        if (!zoo_folder(*name, folder)) {
            print_message("%s is not here: skipped\n", *name);
            continue;
        }
        fire_at(*name, folder, KINDS[(first_seed + n) % 5], first_seed + n);
        n++;
    }
    assert_true(n > 0);
}

int main(int argc, char **argv) {
    if (argc > 1)
        models = (const char *const *)argv + 1;
    if (getenv("LOAM_FIRE_N"))
        n_fired = (uint32_t)atoi(getenv("LOAM_FIRE_N"));
    if (getenv("LOAM_FIRE_SEED"))
        first_seed = (uint32_t)atoi(getenv("LOAM_FIRE_SEED"));
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_answer_is_that_of_a_lone_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
