#include "hub/machine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "hub/layout.h"

enum {
    N_IN = 4096,
    DATA_BYTES_MAX = 256 << 20, // more than the caches of most machines hold
    DATA_BYTES_MIN = 32 << 20,
    PREFILL_TOKENS = 256,
    PREFILL_OUT = 2048,
    GROUP = 64,
    REPEATS = 3,
    SPEED_FILE_BYTES_MAX = 1 << 20,
};

// ---- Measuring ----------------------------------------------------------------------------------

struct trial {
    struct backend *be;
    uint8_t *data, *scales; // host memory that stands for weights
    size_t data_bytes;
    void *x, *y;            // backend memory
    uint32_t n_out_max;
};

static struct weight *make_weight(const struct trial *t, enum speed_format format, uint32_t n_out, struct err *err) {
    struct weight_desc desc = {.n_out = n_out, .n_in = N_IN, .data = t->data, .format = WEIGHT_BF16};
    if (format == SPEED_QUANT) {
        desc.format = WEIGHT_AFFINE;
        desc.bits = 4;
        desc.group = GROUP;
        desc.scale_dtype = DTYPE_BF16;
        desc.scales = desc.biases = t->scales;
    }
    return t->be->ops->weight_create(t->be, &desc, err);
}

static uint64_t weight_bytes(enum speed_format format, uint32_t n_out) {
    uint64_t n = (uint64_t)n_out * N_IN;
    return format == SPEED_QUANT ? n / 2 + n / GROUP * 4 : 2 * n;
}

// The least time of some runs, in seconds; 0 on failure.
static double time_linear(const struct trial *t, struct weight *weight, uint32_t n_out, uint32_t n_tokens,
                          struct err *err) {
    const struct backend_ops *ops = t->be->ops;
    static const int32_t IDS[PREFILL_TOKENS];
    static const uint32_t ROW_OF[PREFILL_TOKENS];
    uint32_t positions[PREFILL_TOKENS];
    for (uint32_t i = 0; i < n_tokens; i++)
        positions[i] = i;
    struct step_row row = {.n_tokens = n_tokens, .state_slot = UINT32_MAX};
    struct step step = {.n_tokens = n_tokens, .n_rows = 1, .token_ids = IDS, .positions = positions,
                        .token_row = ROW_OF, .rows = &row};
    struct linear_args args = {
        .x = {t->x, n_tokens, N_IN, N_IN},
        .n_outputs = 1,
        .outputs = {{.weight = weight, .y = {t->y, n_tokens, n_out, n_out}}},
        .store = LINEAR_STORE,
        .scale = 1,
    };
    double best = 0;
    for (int i = 0; i <= REPEATS; i++) { // the first one warms up
        uint64_t start = clock_ns();
        if (!ops->step_begin(t->be, &step, err))
            return 0;
        ops->linear(t->be, &args);
        if (!ops->step_end(t->be, err))
            return 0;
        double seconds = clock_ms_since(start) / 1000;
        if (i == 1 || (i > 1 && seconds < best))
            best = seconds;
    }
    return best > 0 ? best : 1e-9;
}

static bool measure_format(const struct trial *t, enum speed_format format, struct machine_speed *out,
                           struct err *err) {
    uint32_t rows = (uint32_t)(t->data_bytes / (format == SPEED_QUANT ? N_IN / 2 : N_IN * 2));
    const uint32_t n_out[2] = {rows < t->n_out_max ? rows : t->n_out_max, PREFILL_OUT};
    const uint32_t n_tokens[2] = {1, PREFILL_TOKENS};
    for (int i = 0; i < 2; i++) {
        struct weight *weight = make_weight(t, format, n_out[i], err);
        if (!weight)
            return false;
        bool ok = t->be->ops->weights_ready(t->be, err);
        double seconds = ok ? time_linear(t, weight, n_out[i], n_tokens[i], err) : 0;
        t->be->ops->weight_destroy(t->be, weight);
        if (seconds == 0)
            return false;
        if (i == 0)
            out->decode_bytes_per_s[format] = (double)weight_bytes(format, n_out[i]) / seconds;
        else
            out->prefill_flops_per_s[format] = 2.0 * N_IN * n_out[i] * n_tokens[i] / seconds;
    }
    return true;
}

static bool prepare(struct trial *t, struct err *err) {
    struct host_memory memory;
    host_memory_read(&memory);
    t->data_bytes = DATA_BYTES_MAX;
    while (t->data_bytes > DATA_BYTES_MIN && t->data_bytes > memory.available_bytes / 8)
        t->data_bytes /= 2;
    t->n_out_max = (uint32_t)(t->data_bytes / (N_IN / 2));
    size_t scale_bytes = (size_t)t->n_out_max * (N_IN / GROUP) * 2;
    t->data = aligned_alloc(64, t->data_bytes);
    t->scales = aligned_alloc(64, scale_bytes);
    if (!t->data || !t->scales)
        return err_set(err, ERR_NOMEM, "out of memory measuring this machine's speed");
    uint64_t x = 1;
    for (size_t i = 0; i < t->data_bytes; i += 8) { // bf16 numbers near 0.01 of both signs, or any nibbles
        x = hash_u64(x + 1);
        uint64_t four = (x & 0x80FF80FF80FF80FFu) | 0x3C003C003C003C00u;
        memcpy(t->data + i, &four, 8);
    }
    uint16_t small = bf16_from_f32(0.01f);
    for (size_t i = 0; i < scale_bytes; i += 2)
        memcpy(t->scales + i, &small, 2);
    const struct backend_ops *ops = t->be->ops;
    struct backend_limits limits = {
        .n_tokens = PREFILL_TOKENS, .n_rows = 1, .n_logits = 1, .ctx_len = PREFILL_TOKENS,
        .n_cols_max = N_IN, .n_vocab = 1, .n_heads = 1, .head_dim = 64,
    };
    size_t y_n = t->n_out_max > PREFILL_TOKENS * PREFILL_OUT ? t->n_out_max : (size_t)PREFILL_TOKENS * PREFILL_OUT;
    return ops->reserve(t->be, &limits, err) &&
           (t->x = ops->alloc(t->be, (size_t)PREFILL_TOKENS * N_IN * t->be->act_bytes, err)) &&
           (t->y = ops->alloc(t->be, y_n * t->be->act_bytes, err));
}

bool machine_speed_measure(struct backend *be, struct machine_speed *out, struct err *err) {
    struct trial t = {.be = be};
    bool ok = prepare(&t, err);
    for (int format = 0; ok && format < SPEED_FORMATS; format++)
        ok = measure_format(&t, format, out, err);
    if (t.x)
        be->ops->free(be, t.x);
    if (t.y)
        be->ops->free(be, t.y);
    free(t.data);
    free(t.scales);
    return ok;
}

// ---- Keeping ------------------------------------------------------------------------------------

static const char *const KEYS[4] = {"decode_bytes_per_s_quantized", "decode_bytes_per_s_dense",
                                    "prefill_flops_per_s_quantized", "prefill_flops_per_s_dense"};

static double *member(struct machine_speed *speed, int key) {
    return key < 2 ? &speed->decode_bytes_per_s[key] : &speed->prefill_flops_per_s[key - 2];
}

static bool read_kept(const json_t *kept, const char *device, struct machine_speed *out) {
    const json_t *entry = json_object_get(kept, device);
    for (int i = 0; i < 4; i++) {
        double v = json_number_value(json_object_get(entry, KEYS[i]));
        if (!(v > 0))
            return false;
        *member(out, i) = v;
    }
    return true;
}

bool machine_speed_get(struct backend *be, const char *path, bool again, struct machine_speed *out,
                       bool *was_measured, struct err *err) {
    char device[256], standard[PATH_MAX], folder[PATH_MAX];
    be->ops->describe(be, device, sizeof device);
    path_cache_folder(folder, sizeof folder);
    if (!path) {
        if (!hub_path(standard, err, "%s/speed.json", folder))
            return false;
        path_make_folders(folder, NULL);
        path = standard;
    }
    struct strbuf text = {0};
    json_t *kept = NULL;
    if (file_read(path, SPEED_FILE_BYTES_MAX, &text, NULL))
        kept = json_parse(strbuf_str(&text), path, NULL); // a damaged file is as good as none
    strbuf_deinit(&text);
    *was_measured = again || !read_kept(kept, device, out);
    bool ok = true;
    if (*was_measured) {
        ok = machine_speed_measure(be, out, err);
        if (!json_is_object(kept)) {
            json_decref(kept);
            kept = json_object();
        }
        json_t *entry = json_object();
        for (int i = 0; i < 4; i++)
            json_object_set_new(entry, KEYS[i], json_real(*member(out, i)));
        json_object_set_new(kept, device, entry);
        strbuf_json(&text, kept);
        if (ok && !text.failed) // where it cannot be kept, the next run measures again
            file_write_atomic(path, bytes_of(strbuf_str(&text)), NULL);
        strbuf_deinit(&text);
    }
    json_decref(kept);
    return ok;
}

// ---- Predicting ---------------------------------------------------------------------------------

uint64_t machine_active_bytes(const struct hub_model *model) {
    uint64_t bytes = model->weight_bytes - model->lookup_bytes;
    if (model->n_experts && model->n_experts_used && model->n_experts_used < model->n_experts)
        bytes -= model->expert_bytes / model->n_experts * (model->n_experts - model->n_experts_used);
    return bytes;
}

static enum speed_format format_of(const struct hub_model *model) {
    return model->quant_bits ? SPEED_QUANT : SPEED_DENSE;
}

double machine_decode_tps(const struct machine_speed *speed, const struct hub_model *model, uint64_t kv_bytes) {
    double seconds = (double)machine_active_bytes(model) / speed->decode_bytes_per_s[format_of(model)] +
                     (double)kv_bytes / speed->decode_bytes_per_s[SPEED_DENSE];
    return seconds > 0 ? 1 / seconds : 0;
}

double machine_prefill_tps(const struct machine_speed *speed, const struct hub_model *model) {
    if (model->weight_bytes == 0)
        return 0;
    double active = (double)model->n_params * (double)machine_active_bytes(model) / (double)model->weight_bytes;
    return active > 0 ? speed->prefill_flops_per_s[format_of(model)] / (2 * active) : 0;
}

// ---- Machines -----------------------------------------------------------------------------------

// GPUs: memory, bandwidth and dense tensor products with float32 sums as the makers' data sheets tell them. Hosts:
// bandwidth is channels times rate (for an instance its share of the whole chip's); their compute is an estimate.
static const struct machine MACHINES[] = {
    {"laptop, 16 GB DDR5-5600", false, 16, 89.6, 1},
    {"laptop, 32 GB LPDDR5X-7500", false, 32, 120, 2},
    {"Ryzen AI Max+ 395, 128 GB", false, 128, 256, 4},
    {"desktop, 64 GB DDR5-6000", false, 64, 96, 2},
    {"Threadripper PRO, 256 GB, 8 channels", false, 256, 333, 10},
    {"EPYC 9005, 768 GB, 12 channels", false, 768, 576, 20},
    {"Xeon 6 with AMX, 512 GB, 8 channels", false, 512, 410, 60},
    {"AWS m7i.4xlarge, 64 GB", false, 64, 60, 8},
    {"AWS c8g.8xlarge (Graviton4), 64 GB", false, 64, 180, 8},
    {"RTX 3060 12 GB", true, 12, 360, 25},
    {"RTX 3090 24 GB", true, 24, 936, 71},
    {"RTX 4090 24 GB", true, 24, 1008, 165},
    {"RTX 5090 32 GB", true, 32, 1792, 209},
    {"RTX PRO 6000 Blackwell 96 GB", true, 96, 1792, 252},
    {"L4 24 GB (AWS g6, GCP g2)", true, 24, 300, 121},
    {"A10G 24 GB (AWS g5)", true, 24, 600, 70},
    {"L40S 48 GB", true, 48, 864, 362},
    {"A100 40 GB", true, 40, 1555, 312},
    {"A100 80 GB", true, 80, 2039, 312},
    {"H100 SXM 80 GB", true, 80, 3350, 989},
    {"H200 141 GB", true, 141, 4800, 989},
    {"B200 180 GB", true, 180, 7700, 2250},
};

const struct machine *machine_table(size_t *n) {
    *n = sizeof MACHINES / sizeof *MACHINES;
    return MACHINES;
}

uint64_t machine_usable_bytes(const struct machine *machine) {
    double bytes = machine->memory_gb * 1e9;
    return (uint64_t)(machine->is_gpu ? bytes * 0.95 - 0.5e9 : bytes * 0.9);
}

struct machine_speed machine_expected_speed(const struct machine *machine) {
    // Shares of the data sheet that matrix kernels reach when they are good: memory 0.75, compute 0.5.
    double bytes = machine->bandwidth_gbs * 1e9 * 0.75, flops = machine->tflops * 1e12 * 0.5;
    return (struct machine_speed){{bytes, bytes}, {flops, flops}};
}
