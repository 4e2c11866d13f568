// What fit says against what is then allocated, and the pieces it is said from.
#include "hub/fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file_map.h"
#include "base/json.h"
#include "engine/fit.h"
#include "hub/kv_config.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
#else
enum { SANITIZED = 0 };
#endif

static struct backend *be;

static int open_backend(void **state) {
    (void)state;
    // Blocks of a page and more get mappings of their own, so that the process's size tells them.
    mallopt(M_MMAP_THRESHOLD, 4096);
    mallopt(M_MMAP_MAX, 1 << 20);
    struct err err = {0};
    be = backend_open("cpu", &(struct backend_options){.n_threads = 2}, &err);
    check_ok(be != NULL, &err);
    return 0;
}

static int close_backend(void **state) {
    (void)state;
    be->ops->close(be);
    return 0;
}

// Bytes of address space that are mapped.
static uint64_t mapped_bytes(void) {
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu", &pages), 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

// Plan, allocate, compare. Returns the relative error.
static double plan_error(const char *folder, enum kv_kind kv, uint32_t ctx_len, struct err *err) {
    // A backend of its own: what one model reserved is given back when the next one reserves.
    struct backend *own = backend_open("cpu", &(struct backend_options){.n_threads = 2}, err);
    check_ok(own != NULL, err);
    struct model *model = model_open(folder, own, &(struct model_options){.kv = kv}, err);
    if (!model) {
        own->ops->close(own);
        return -1;
    }
    struct engine_options options = {.ctx_len = ctx_len, .n_rows = 8, .memory_budget_bytes = (uint64_t)1 << 50};
    struct engine_plan plan;
    check_ok(engine_plan_make(model, &options, &plan, err), err);
    uint64_t before = mapped_bytes();
    check_ok(model_prepare(model, &plan.limits, err), err);
    double measured = (double)(mapped_bytes() - before);
    double planned = (double)(plan.kv_bytes + plan.state_bytes + plan.workspace_bytes);
    model_destroy(model);
    own->ops->close(own);
    // The heap grows by 132 KiB at a time, which a model of a few MiB sees as a percent: not the plan's doing.
    enum { HEAP_STEP_BYTES = 132 * 1024 };
    return fmax(fabs(measured - planned) - HEAP_STEP_BYTES, 0) / planned;
}

static void zoo_models_take_what_was_planned(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared || SANITIZED) {
        print_message("skipped: the shared folder is not there, or a sanitizer allocates for itself\n");
        skip();
    }
    char zoo[PATH_MAX], path[PATH_MAX];
    fixture_path(zoo, "%s/zoo", shared);
    DIR *dir = opendir(zoo);
    double worst = 0;
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        fixture_path(path, "%s/%s/config.json", zoo, entry->d_name);
        if (entry->d_name[0] == '.' || !path_exists(path))
            continue;
        fixture_path(path, "%s/%s", zoo, entry->d_name);
        static const enum kv_kind KINDS[] = {KV_BF16, KV_Q8};
        for (int k = 0; k < 2; k++) {
            struct err err = {0};
            double error = plan_error(path, KINDS[k], 512, &err);
            if (error < 0)
                continue; // a family that this build does not have
            if (error > 0.02)
                fail_msg("%s: the plan is off by %.1f%%", entry->d_name, 100 * error);
            worst = error > worst ? error : worst;
            n++;
        }
    }
    closedir(dir);
    print_message("%d plans, the worst off by %.2f%%\n", n, 100 * worst);
    assert_true(n > 20);
}

// A llama of 1.2 billion parameters whose weights are a hole in a file.
static void write_1b_model(const char *folder) {
    enum { D = 2048, FF = 8192, LAYERS = 16, VOCAB = 128256, KV = 512 };
    struct strbuf s = {0};
    char path[PATH_MAX];
    strbuf_printf(&s,
                  "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, "
                  "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": 32, "
                  "\"num_key_value_heads\": 8, \"head_dim\": 64, \"vocab_size\": %d, \"max_position_embeddings\": 131072, "
                  "\"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true}",
                  D, FF, LAYERS, VOCAB);
    fixture_path(path, "%s/config.json", folder);
    fixture_write(path, s.data, s.n);
    strbuf_clear(&s);
    uint64_t off = 0;
    static const struct {
        const char *name;
        int rows, cols; // cols 0: a vector
    } TENSORS[] = {{"input_layernorm", D, 0},          {"post_attention_layernorm", D, 0},
                   {"self_attn.q_proj", D, D},         {"self_attn.k_proj", KV, D},
                   {"self_attn.v_proj", KV, D},        {"self_attn.o_proj", D, D},
                   {"mlp.gate_proj", FF, D},           {"mlp.up_proj", FF, D},
                   {"mlp.down_proj", D, FF}};
    strbuf_char(&s, '{');
    for (int l = -1; l <= LAYERS; l++) {
        size_t n = l < 0 || l == LAYERS ? 1 : sizeof TENSORS / sizeof *TENSORS;
        for (size_t t = 0; t < n; t++) {
            int rows = l < 0 ? VOCAB : l == LAYERS ? D : TENSORS[t].rows;
            int cols = l < 0 ? D : l == LAYERS ? 0 : TENSORS[t].cols;
            uint64_t bytes = 2ull * (uint64_t)rows * (uint64_t)(cols ? cols : 1);
            if (l < 0)
                strbuf_append_c(&s, "\"model.embed_tokens.weight\":");
            else if (l == LAYERS)
                strbuf_append_c(&s, ",\"model.norm.weight\":");
            else
                strbuf_printf(&s, ",\"model.layers.%d.%s.weight\":", l, TENSORS[t].name);
            strbuf_printf(&s, "{\"dtype\":\"BF16\",\"shape\":[%d", rows);
            if (cols)
                strbuf_printf(&s, ",%d", cols);
            strbuf_printf(&s, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)off,
                          (unsigned long long)(off + bytes));
            off += bytes;
        }
    }
    strbuf_char(&s, '}');
    while (s.n % 8)
        strbuf_char(&s, ' ');
    fixture_path(path, "%s/model.safetensors", folder);
    uint64_t head = s.n;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && pwrite(fd, &head, 8, 0) == 8 && pwrite(fd, s.data, s.n, 8) == (ssize_t)s.n &&
                ftruncate(fd, (off_t)(8 + head + off)) == 0);
    close(fd);
    strbuf_deinit(&s);
}

static void model_of_a_billion_is_planned_and_described(void **state) {
    (void)state;
    char *folder = fixture_folder(NULL);
    write_1b_model(folder);
    struct arena arena = {0};
    struct hub_model m = {0};
    struct err err = {0};
    check_ok(hub_scan(&m, folder, &arena, &err), &err);
    assert_string_equal(m.problem, "");
    assert_int_equal(m.n_params, 1235814400); // as Llama-3.2-1B's card counts
    assert_int_equal(m.weight_bytes, 2 * m.n_params);
    assert_int_equal(m.kv_token_bytes, 16 * 2 * 512 * 2);
    assert_int_equal(m.lookup_bytes, 0); // tied: every row is read
    if (!SANITIZED) {
        double error = plan_error(folder, KV_BF16, 8192, &err);
        print_message("1B shape: the plan is off by %.2f%%\n", 100 * error);
        assert_true(error >= 0 && error <= 0.02);
    }

    // The largest context is just that: one page more does not fit.
    struct model *model = model_open(folder, be, &(struct model_options){.kv = KV_BF16}, &err);
    check_ok(model != NULL, &err);
    struct machine_speed speed = {{10e9, 20e9}, {1e12, 2e12}};
    struct engine_options options = {.memory_budget_bytes = 4000000000, .n_rows = 2};
    struct fit_report r;
    fit_report_make(model, &m, &options, &speed, &r);
    assert_true(r.fits);
    assert_true(r.total_bytes <= 4000000000);
    // Norms are copied as float32; the plan counts the matrices.
    assert_true(fabs((double)r.plan.weight_bytes / (double)m.weight_bytes - 1) < 0.001);
    assert_true(r.ctx_len_largest > 20000 && r.ctx_len_largest < 60000);
    struct engine_plan plan;
    options.n_rows = 1;
    options.ctx_len = r.ctx_len_largest;
    assert_true(engine_plan_make(model, &options, &plan, NULL));
    options.ctx_len += 64;
    assert_false(engine_plan_make(model, &options, &plan, NULL));
    // Decoding reads the weights and one sequence's cache: 2.47 GB + kv at 20 GB/s.
    options.ctx_len = 0;
    double want = 1 / ((double)m.weight_bytes / 20e9 + (double)r.plan.limits.ctx_len * 32768 / 20e9);
    assert_true(fabs(r.decode_tps / want - 1) < 0.01);
    assert_true(fabs(r.prefill_tps / (2e12 / (2 * 1235814400.0)) - 1) < 0.01);

    // A budget below the weights: no, with the reason and what it would take.
    options.memory_budget_bytes = 1000000000;
    options.ctx_len = 4096;
    fit_report_make(model, &m, &options, &speed, &r);
    assert_false(r.fits);
    assert_true(strlen(r.reason) > 20);
    assert_true(r.total_bytes > 2600000000 && r.ctx_len_largest == 0);

    size_t n_machines;
    const struct machine *machines = machine_table(&n_machines);
    for (size_t i = 0; i < n_machines; i++) {
        fit_report_machine(model, &m, &(struct engine_options){0}, &machines[i], &r);
        assert_true(r.fits && r.decode_tps > 1 && r.ctx_len_largest >= 65536);
    }
    model_destroy(model);
    arena_deinit(&arena);
    fixture_remove(folder);
}

static void unused_experts_and_tables_are_not_read(void **state) {
    (void)state;
    struct hub_model m = {.weight_bytes = 1000, .expert_bytes = 800, .n_experts = 8, .n_experts_used = 2,
                          .lookup_bytes = 100, .n_params = 2000, .quant_bits = 4};
    assert_int_equal(machine_active_bytes(&m), 1000 - 100 - 600);
    struct machine_speed speed = {{600, 100}, {4800, 1}};
    assert_true(fabs(machine_decode_tps(&speed, &m, 50) - 1 / (300.0 / 600 + 50.0 / 100)) < 1e-9);
    assert_true(fabs(machine_prefill_tps(&speed, &m) - 4800 / (2 * 600.0)) < 1e-9);
    m.n_experts = 0;
    assert_int_equal(machine_active_bytes(&m), 900);
}

static void speed_is_measured_once_and_kept(void **state) {
    (void)state;
    char *folder = fixture_folder(NULL), path[PATH_MAX], device[256];
    fixture_path(path, "%s/speed.json", folder);
    struct machine_speed first, second;
    struct err err = {0};
    bool measured;
    fixture_write(path, "{damaged", 8);
    check_ok(machine_speed_get(be, path, false, &first, &measured, &err), &err);
    assert_true(measured);
    for (int i = 0; i < SPEED_FORMATS; i++)
        assert_true(first.decode_bytes_per_s[i] > 1e7 && first.prefill_flops_per_s[i] > 1e8);
    check_ok(machine_speed_get(be, path, false, &second, &measured, &err), &err);
    assert_false(measured);
    assert_true(fabs(second.decode_bytes_per_s[0] / first.decode_bytes_per_s[0] - 1) < 1e-9);
    // Another device's figures are not this one's.
    struct strbuf text = {0};
    check_ok(file_read(path, 10000, &text, &err), &err);
    json_t *kept = json_parse(strbuf_str(&text), "kept", &err);
    be->ops->describe(be, device, sizeof device);
    assert_non_null(json_object_get(kept, device));
    json_decref(kept);
    strbuf_deinit(&text);
    fixture_remove(folder);
}

static void kv_config_names_layers_or_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *json, *message; // NULL = good
    } CASES[] = {
        {"[{\"layer_idx\": 1, \"bits\": 8, \"group_size\": 64}, {\"layer_idx\": 3, \"bits\": 4, \"group_size\": 64},"
         " {\"layer_idx\": 2, \"bits\": 16}]", NULL},
        {"{}", "array"},
        {"[3]", "no object"},
        {"[{\"bits\": 8}]", "4 layers"},
        {"[{\"layer_idx\": 4, \"bits\": 8}]", "layer_idx 4"},
        {"[{\"layer_idx\": 0, \"bits\": 3}]", "3 bits"},
        {"[{\"layer_idx\": 0, \"bits\": 4, \"group_size\": 32}]", "groups of 32"},
        {"[{\"layer_idx\": -1, \"bits\": 4}]", "layer_idx"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int8_t by_layer[4];
        struct err err = {0};
        bool ok = kv_config_parse(str_from(CASES[i].json), 4, by_layer, "kv_config.json", &err);
        if (CASES[i].message) {
            assert_false(ok);
            check_message(&err, CASES[i].message);
        } else {
            check_ok(ok, &err);
            assert_int_equal(by_layer[0], -1);
            assert_int_equal(by_layer[1], KV_Q8);
            assert_int_equal(by_layer[2], -1);
            assert_int_equal(by_layer[3], KV_Q4);
        }
    }
}

int main(void) {
    // Large allocations get mappings of their own and give them back: what one model freed must not be what the
    // next one is measured by. (glibc raises the threshold as it goes unless it is set.)
    mallopt(M_MMAP_THRESHOLD, 32 * 1024);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zoo_models_take_what_was_planned),
        cmocka_unit_test(model_of_a_billion_is_planned_and_described),
        cmocka_unit_test(unused_experts_and_tables_are_not_read),
        cmocka_unit_test(speed_is_measured_once_and_kept),
        cmocka_unit_test(kv_config_names_layers_or_is_refused),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
