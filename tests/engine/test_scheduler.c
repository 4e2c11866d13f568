// The scheduler: who goes first, who gives way, and that no bit of an answer depends on it.
//   test_scheduler NAME...    the fire test on these zoo models
#include "../model/zoo.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "engine/engine.h"

enum { TOKENS_MAX = 64 };

// One request: what is asked, and what came.
struct ask {
    const token_id *prompt;
    uint32_t n_prompt, max_tokens, cancel_at; // cancel_at 0 = never
    float temperature;
    uint64_t seed;
    enum gen_priority priority;

    _Atomic(struct gen_ticket *) ticket; // the submitter -> on_event
    _Atomic bool *gate;                  // on_event waits for it at the first token, or NULL
    _Atomic uint32_t *order;             // counts ends
    _Atomic bool begun, done;
    uint32_t n, ended_as; // tokens; the how manieth to end
    token_id tokens[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    enum finish_reason finish;
    struct gen_usage usage;
};

static void on_event(const struct gen_event *event, void *user) {
    struct ask *a = user;
    if (event->kind == GEN_TOKEN) {
        a->tokens[a->n] = event->token.id;
        a->logprobs[a->n++] = event->token.logprob;
        atomic_store(&a->begun, true);
        while (a->gate && !atomic_load(a->gate))
            sched_yield();
        if (a->n == a->cancel_at) {
            while (!atomic_load(&a->ticket))
                sched_yield();
            gen_ticket_cancel(a->ticket);
        }
        return;
    }
    a->finish = event->finish;
    a->usage = *event->usage;
    a->ended_as = a->order ? atomic_fetch_add(a->order, 1) : 0;
    atomic_store(&a->done, true);
}

static void start(struct engine *engine, struct ask *a) {
    struct err err = {0};
    struct gen_request request = {
        .prompt = a->prompt, .n_prompt = a->n_prompt, .max_tokens = a->max_tokens, .ignore_eos = true,
        .priority = a->priority, .sampling = sampler_params_default(), .on_event = on_event, .user = a};
    request.sampling.temperature = a->temperature;
    request.sampling.seed = a->seed;
    request.sampling.want_logprob = true;
    a->ticket = engine_submit(engine, &request, &err);
    check_ok(a->ticket, &err);
}

static void wait_flag(_Atomic bool *flag) {
    while (!atomic_load(flag))
        sched_yield();
}

static void end(struct ask *a) {
    wait_flag(&a->done);
    gen_ticket_release(a->ticket);
}

// A model with its engine.
struct stand {
    struct backend *be;
    struct model *model;
    struct engine *engine;
};

static void stand_open(struct stand *s, const char *folder, enum kv_kind kv, uint32_t n_threads,
                       const struct engine_options *options) {
    struct err err = {0};
    struct backend_options be = {.n_threads = n_threads, .math = MATH_FAST,
                                 .cpu_level = getenv("LOAM_CPU_LEVEL"), .device = -1};
    struct model_options model = {.kv = kv};
    s->be = backend_open("cpu", &be, &err);
    check_ok(s->be, &err);
    s->model = model_open(folder, s->be, &model, &err);
    check_ok(s->model, &err);
    s->engine = engine_create(s->model, NULL, options, &err);
    check_ok(s->engine, &err);
}

static void stand_close(struct stand *s) {
    engine_destroy(s->engine);
    model_destroy(s->model);
    s->be->ops->close(s->be);
}

static const token_id PROMPT[] = {5, 9, 2, 7, 11, 3, 8, 6};

static struct ask ask_of(uint32_t max_tokens, enum gen_priority priority, _Atomic uint32_t *order) {
    return (struct ask){.prompt = PROMPT, .n_prompt = 8, .max_tokens = max_tokens, .seed = 1,
                        .priority = priority, .order = order};
}

static void open_llama(struct stand *s, const struct engine_options *options) {
    char folder[PATH_MAX];
    assert_true(zoo_folder("llama", folder));
    stand_open(s, folder, KV_BF16, 1, options);
}

// One place: interactive requests go first, but of five that are admitted one is the batch request that waits longest.
static void batch_waits_for_four_interactive_and_no_more(void **state) {
    (void)state;
    struct stand s;
    struct engine_options options = {.n_rows = 1, .ctx_len = 512};
    open_llama(&s, &options);
    _Atomic bool gate = false;
    _Atomic uint32_t order = 0;
    struct ask blocker = ask_of(2, GEN_INTERACTIVE, NULL), batch[2], interactive[6];
    blocker.gate = &gate;
    start(s.engine, &blocker);
    wait_flag(&blocker.begun);
    for (uint32_t i = 0; i < 2; i++) {
        batch[i] = ask_of(2, GEN_BATCH, &order);
        start(s.engine, &batch[i]);
    }
    for (uint32_t i = 0; i < 6; i++) {
        interactive[i] = ask_of(2, GEN_INTERACTIVE, &order);
        start(s.engine, &interactive[i]);
    }
    atomic_store(&gate, true);
    end(&blocker);
    for (uint32_t i = 0; i < 6; i++)
        end(&interactive[i]);
    for (uint32_t i = 0; i < 2; i++)
        end(&batch[i]);
    static const uint32_t WANT[6] = {0, 1, 2, 3, 5, 6};
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(interactive[i].ended_as, WANT[i]);
    assert_int_equal(batch[0].ended_as, 4);
    assert_int_equal(batch[1].ended_as, 7);
    stand_close(&s);
}

// An interactive request takes a batch request's place, which it gets back; its text stays what it is.
static void batch_gives_its_place_to_an_interactive_request(void **state) {
    (void)state;
    struct stand s;
    struct engine_options options = {.n_rows = 1, .ctx_len = 512};
    open_llama(&s, &options);
    _Atomic uint32_t order = 0;
    struct ask lone = ask_of(30, GEN_INTERACTIVE, NULL);
    start(s.engine, &lone);
    end(&lone);
    _Atomic bool gate = false;
    struct ask batch = ask_of(30, GEN_BATCH, &order), interactive = ask_of(5, GEN_INTERACTIVE, &order);
    batch.gate = &gate;
    start(s.engine, &batch);
    wait_flag(&batch.begun);
    start(s.engine, &interactive);
    atomic_store(&gate, true);
    end(&interactive);
    end(&batch);
    assert_int_equal(interactive.ended_as, 0);
    assert_int_equal(batch.ended_as, 1);
    assert_int_equal(batch.usage.n_preempted, 1);
    assert_int_equal(interactive.usage.n_preempted, 0);
    assert_int_equal(batch.n, 30);
    assert_memory_equal(batch.tokens, lone.tokens, sizeof lone.tokens);
    assert_memory_equal(batch.logprobs, lone.logprobs, sizeof lone.logprobs);
    stand_close(&s);
}

// However many interactive requests come, a batch request is interrupted GEN_PASSED_MAX times at most.
static void batch_ends_though_interactive_requests_keep_coming(void **state) {
    (void)state;
    struct stand s;
    struct engine_options options = {.n_rows = 1, .ctx_len = 512};
    open_llama(&s, &options);
    enum { N = 40 };
    _Atomic uint32_t order = 0;
    static struct ask others[N];
    _Atomic bool gate = false;
    struct ask batch = ask_of(TOKENS_MAX, GEN_BATCH, &order);
    batch.gate = &gate;
    start(s.engine, &batch);
    wait_flag(&batch.begun);
    for (uint32_t i = 0; i < N; i++) { // one after the other
        others[i] = ask_of(1, GEN_INTERACTIVE, &order);
        start(s.engine, &others[i]);
        atomic_store(&gate, true);
        end(&others[i]);
    }
    end(&batch);
    assert_in_range(batch.usage.n_preempted, 1, GEN_PASSED_MAX);
    assert_true(batch.ended_as < N);
    stand_close(&s);
}

static void a_full_queue_is_busy(void **state) {
    (void)state;
    struct stand s;
    struct engine_options options = {.n_rows = 1, .n_waiting_max = 2, .ctx_len = 512};
    open_llama(&s, &options);
    _Atomic bool gate = false;
    struct ask asks[3];
    for (uint32_t i = 0; i < 3; i++) {
        asks[i] = ask_of(2, GEN_INTERACTIVE, NULL);
        asks[i].gate = &gate;
        start(s.engine, &asks[i]);
    }
    struct err err = {0};
    struct gen_request one_more = {.prompt = PROMPT, .n_prompt = 8, .sampling = sampler_params_default(),
                                   .on_event = on_event, .user = &asks[0]};
    assert_null(engine_submit(s.engine, &one_more, &err));
    assert_int_equal(err.code, ERR_BUSY);
    check_message(&err, "2 requests are waiting");
    atomic_store(&gate, true);
    for (uint32_t i = 0; i < 3; i++)
        end(&asks[i]);
    stand_close(&s);
}

// ---- Under fire ---------------------------------------------------------------------------------
static uint32_t draw(uint64_t *random, uint32_t below) {
    *random = hash_u64(*random);
    return (uint32_t)(*random % below);
}

static void make_asks(struct ask *asks, uint32_t n, const int32_t *ids, uint32_t n_ids, uint64_t seed) {
    uint64_t random = seed;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = draw(&random, 3) ? draw(&random, n_ids - 1) : 0; // a third begins alike
        asks[i] = (struct ask){.prompt = ids + from, .n_prompt = 1 + draw(&random, n_ids - from),
                               .max_tokens = 1 + draw(&random, TOKENS_MAX), .seed = random,
                               .temperature = draw(&random, 2) ? 1.0f : 0.0f,
                               .priority = draw(&random, 3) ? GEN_INTERACTIVE : GEN_BATCH};
    }
}

static void fire(const char *name, const char *folder, enum kv_kind kv, uint32_t n_threads, uint64_t seed) {
    enum { N = 40 };
    struct err err = {0};
    struct zoo zoo;
    struct zoo_options zoo_options = zoo_exact();
    check_ok(zoo_open(&zoo, folder, &zoo_options, &err), &err);
    size_t n_ids;
    const int32_t *golden = zoo_golden(&zoo, "prompt2.ids", &n_ids);
    static int32_t ids[150];
    n_ids = n_ids < 150 ? n_ids : 150;
    memcpy(ids, golden, n_ids * sizeof *ids);
    zoo_close(&zoo);

    static struct ask lone[N], fired[N];
    struct stand s;
    struct engine_options one = {.n_rows = 1, .ctx_len = 256, .step_tokens = 200};
    stand_open(&s, folder, kv, 2, &one);
    make_asks(lone, N, ids, (uint32_t)n_ids, seed);
    for (uint32_t i = 0; i < N; i++) {
        start(s.engine, &lone[i]);
        end(&lone[i]);
    }
    stand_close(&s);

    // Pages for a sequence and a half: somebody is always out of memory.
    uint64_t random = seed;
    struct engine_options many = {.n_rows = 5, .ctx_len = 256, .step_tokens = 24 + draw(&random, 40)};
    struct engine_plan plan;
    stand_open(&s, folder, kv, n_threads, &one);
    plan = *engine_plan_of(s.engine);
    stand_close(&s);
    many.kv_budget_bytes = plan.kv_bytes + plan.kv_bytes / 2;
    many.prompt_cache_bytes = seed % 2 ? 0 : 64 << 20; // the pool bounds it first
    stand_open(&s, folder, kv, n_threads, &many);
    make_asks(fired, N, ids, (uint32_t)n_ids, seed);
    for (uint32_t i = 0; i < N; i++) {
        if (draw(&random, 4) == 0)
            fired[i].cancel_at = 1 + draw(&random, fired[i].max_tokens);
        start(s.engine, &fired[i]);
        if (draw(&random, 8) == 0)
            wait_flag(&fired[i].done);
    }
    for (uint32_t i = 0; i < N; i++)
        end(&fired[i]);
    struct engine_stats stats;
    bool leaked = false;
    do { // the last event comes before the last count
        engine_stats(s.engine, &stats);
    } while (stats.n_running + stats.n_waiting);
    for (uint32_t g = 0; g < stats.n_groups; g++) {
        // A group of full attention has one page for each node of the prompt cache, a window's has none.
        uint32_t n_held = stats.n_pages[g] - stats.n_pages_free[g];
        leaked |= n_held != 0 && n_held != stats.cache.n_nodes;
    }
    stand_close(&s);
    if (leaked || stats.n_preempted == 0)
        fail_msg("%s, KV kind %d, seed %llu: pages leaked %d, %llu preempted", name, (int)kv,
                 (unsigned long long)seed, leaked, (unsigned long long)stats.n_preempted);
    for (uint32_t i = 0; i < N; i++) {
        bool cancelled = fired[i].finish == FINISH_CANCELLED;
        uint32_t n = fired[i].n;
        if (cancelled ? n > lone[i].n : n != lone[i].n || fired[i].finish != lone[i].finish)
            fail_msg("%s, KV kind %d, seed %llu: request %u has %u tokens, alone %u", name, (int)kv,
                     (unsigned long long)seed, i, n, lone[i].n);
        if (memcmp(fired[i].tokens, lone[i].tokens, n * sizeof *lone->tokens) != 0 ||
            memcmp(fired[i].logprobs, lone[i].logprobs, n * sizeof *lone->logprobs) != 0)
            fail_msg("%s, KV kind %d, seed %llu: request %u differs from its lone run", name, (int)kv,
                     (unsigned long long)seed, i);
    }
}

static const char *const *models; // ends with NULL

static void every_answer_is_that_of_a_lone_run(void **state) {
    (void)state;
    static const enum kv_kind KINDS[] = {KV_BF16, KV_Q8, KV_Q4, KV_F32};
    uint64_t seed = 7;
    for (const char *const *name = models; *name; name++) {
        char folder[PATH_MAX];
        if (!zoo_folder(*name, folder)) {
            print_message("%s is not there: skipped\n", *name);
            continue;
        }
        for (uint32_t i = 0; i < 4; i++, seed++)
            fire(*name, folder, KINDS[i], 1 + i, seed);
    }
}

int main(int argc, char **argv) {
    static const char *const DEFAULT_MODELS[] = {"llama-mlx-4bit", "qwen3-shakespeare-mlx-4bit", "gemma3",
                                                 "qwen3_5", NULL};
    models = argc > 1 ? (const char *const *)(argv + 1) : DEFAULT_MODELS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_waits_for_four_interactive_and_no_more),
        cmocka_unit_test(batch_gives_its_place_to_an_interactive_request),
        cmocka_unit_test(batch_ends_though_interactive_requests_keep_coming),
        cmocka_unit_test(a_full_queue_is_busy),
        cmocka_unit_test(every_answer_is_that_of_a_lone_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
