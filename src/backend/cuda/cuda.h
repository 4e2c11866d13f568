// backend/cuda/cuda.h - what the files of the CUDA plugin share: its state, device views of weights, KV
// and the step, and the checks around CUDA calls. Used by the engine thread only.
#ifndef LOAM_BACKEND_CUDA_CUDA_H
#define LOAM_BACKEND_CUDA_CUDA_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "backend/backend.h"
}

typedef __nv_bfloat16 bf16;

enum {
    WARP = 32,
    GRAPHS_MAX = 256,       // recorded steps kept; the oldest goes first
    ROPE_CACHE_MAX = 64,    // rope tables of all layers
    EXPERT_CACHE_MAX = 1024,// tables of expert weights, three a layer
    SPLITS_MAX = 64,        // parts that the keys of one query are divided into
};

// ---- Weights ------------------------------------------------------------------------------------
// A matrix in device memory, in the file's own layout. Passed to kernels by value.
struct wview {
    const uint8_t *data;
    const void *scales, *biases;
    uint64_t row_bytes;
    uint32_t n_out, n_in;
    uint32_t n_groups;   // scales in a row
    uint16_t group;
    uint8_t bits;
    uint8_t format;      // enum weight_format
    uint8_t scale_dtype; // enum dtype
};

struct weight {
    struct wview view;
    void *memory; // one allocation: data, scales, biases
};

// ---- The step on the device -----------------------------------------------------------------------
struct dev_row {
    uint32_t token_off, n_tokens, pos0, state_slot, rope_variant, n_blocks;
    uint32_t table_off[KV_GROUPS_MAX]; // into dev_step.tables
};

// Fixed addresses for the life of the reservation: recorded graphs hold them.
struct dev_step {
    const struct dev_row *rows;
    const int32_t *token_ids;
    const uint32_t *positions, *token_row, *logit_tokens, *tables;
};

// ---- KV -------------------------------------------------------------------------------------------
// A page of a layer: K as [heads][64 tokens][k_dim], then V transposed, [heads][v_dim][64 tokens], so
// that both products of attention read their operand in 16-byte pieces along the summed axis. The Q
// kinds store codes in the same order and after them a (scale, bias) pair of f16 for each group of 64
// dims of a token: K [heads][64 tokens][groups], V [heads][groups][64 tokens].
struct kv_view {
    uint8_t *data;
    uint64_t page_bytes;     // of this layer
    uint64_t k_meta_off, v_off, v_meta_off; // within a page
    uint32_t n_heads, k_dim, v_dim;
    uint32_t k_groups, v_groups;
    uint32_t group;          // whose block table
    uint8_t kind;
    bool v_in_k;
};

struct kv_pool {
    struct kv_view *layers;
    uint32_t n_layers, n_groups;
    uint32_t n_pages[KV_GROUPS_MAX];
};

struct state_pool {
    float **data;     // [n_states], each [n_slots][n_floats]
    size_t *n_floats; // [n_states]
    uint32_t n_states, n_slots;
};

struct graph_slot {
    uint64_t key;
    cudaGraphExec_t exec; // NULL: seen once, not yet recorded
    bool never;           // cannot be recorded
    uint32_t n_tokens, n_rows, n_logits;
    uint64_t used;        // step count when last used
};

struct rope_device {
    float *inv_freq;  // [2][n]
    float *host_copy; // the same, to compare with
    uint32_t n;
    bool two;
};

struct experts_device {
    struct weight *const *host; // the caller's array: the key
    const struct weight *first; // and what it held
    struct wview *views;        // [n] in device memory
};

struct uploader;
struct gemm_library;

struct cuda_backend {
    struct backend base; // first: see backend.h
    int device, sm_count, cc;
    size_t shared_max; // bytes of shared memory that a block may have
    char name[256];
    size_t total_bytes;
    bool deterministic;
    cudaStream_t stream;
    cudaError_t failed; // the first failure since step_begin
    const char *failed_at;

    struct backend_limits limits;
    // The step.
    uint8_t *step_host, *step_device; // pinned; the same layout
    size_t step_bytes_max, tables_off;
    struct dev_step step;
    uint32_t n_tokens, n_rows, n_logits;
    uint32_t few_tokens;     // rows of at most so many tokens attend as decode does
    uint32_t row_tokens_few; // the longest such row of the step, 0 without one
    uint32_t row_tokens_min, row_tokens_max;
    uint32_t positions_max;  // the last position in the step
    bool once; // the step read host indices, which a replay would not renew
    uint64_t n_steps;
    struct graph_slot graphs[GRAPHS_MAX];
    struct graph_slot *recording;

    // Logits: device, and pinned host.
    float *logits_device, *logits_host;
    size_t logits_floats, logits_used;

    // Scratch, sized by reserve.
    void *dequant;        // a weight as bf16
    size_t dequant_bytes;
    float *attn_part;     // partial attention: [tokens][heads][splits][v_dim + 2]
    size_t attn_part_floats;
    uint32_t *attn_count; // arrivals of splits
    size_t attn_counts;
    uint32_t *moe_list;   // see moe.cu
    bf16 *moe_hidden;
    float *moe_out;
    size_t moe_hidden_bytes, moe_out_bytes;
    float *index_scores;
    size_t index_floats;
    int32_t *ids;         // embed and gather with host indices
    size_t ids_max, ids_used;
    int32_t *ids_host;
    bf16 *scratch;        // [n_tokens, n_cols_max]
    size_t scratch_elements;

    struct rope_device ropes[ROPE_CACHE_MAX];
    uint32_t n_ropes;
    struct experts_device experts[EXPERT_CACHE_MAX];
    uint32_t n_experts_tables;
    size_t weight_elements_max; // largest matrix, for `dequant`
    struct uploader *uploader;
    struct gemm_library *gemm;
};

static inline struct cuda_backend *cuda_of(struct backend *be) {
    return (struct cuda_backend *)be;
}

// Remember the first failure; step_end reports it. True if the call succeeded.
bool cuda_check(struct cuda_backend *cu, cudaError_t status, const char *what);
// After a launch.
#define CUDA_LAUNCHED(cu, what) ((void)cuda_check((cu), cudaGetLastError(), (what)))

static inline uint32_t div_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

// Whether one kernel reads both.
static inline bool same_kernel(const struct wview *a, const struct wview *b) {
    return a->format == b->format && a->bits == b->bits && a->group == b->group &&
           a->scale_dtype == b->scale_dtype;
}

// ---- Operations, by file --------------------------------------------------------------------------
// weight.cu
struct weight *cuda_weight_create(struct backend *be, const struct weight_desc *desc, struct err *err);
void cuda_weight_destroy(struct backend *be, struct weight *weight);
bool cuda_weights_ready(struct backend *be, struct err *err);
bool uploader_create(struct cuda_backend *cu, struct err *err);
void uploader_destroy(struct cuda_backend *cu);
// Rows [row0, row0 + n_rows) of a weight as bf16, contiguous.
void dequantize(struct cuda_backend *cu, const struct wview *w, uint32_t row0, uint32_t n_rows, bf16 *out);

// linear.cu
void cuda_linear(struct backend *be, const struct linear_args *args);
void cuda_linear_glu(struct backend *be, struct mat x, const struct weight *gate, const struct weight *up,
                     enum glu_kind kind, struct mat y);
float *cuda_logits(struct backend *be, struct mat x, const struct weight *head, const float *bias,
                   float scale, float softcap);

// What a product's rows become. One of y and y32 is set.
struct product_out {
    struct wview w;
    bf16 *y;
    float *y32;
    uint32_t ldy;
    const float *bias;
};
enum { PRODUCT_GLU = 1, PRODUCT_ADD = 2 };
// y[i] = W x[i] for a few rows (any number works; this reads W once for every 32 rows).
struct product_args {
    struct product_out out[LINEAR_OUTPUTS_MAX]; // with PRODUCT_GLU: gate, up; the result goes to out[0]
    uint32_t n_outs;
    uint32_t tile_end[LINEAR_OUTPUTS_MAX]; // running sums of tiles, filled by product()
    const bf16 *x;
    uint32_t ldx, n;
    uint32_t flags;
    uint32_t glu;
    float alpha, limit;
    float scale, softcap;
    uint32_t n_warps; // of a block; filled by product(), as is
    uint32_t magic;   // 0x43004300: two bf16 of 128. Were it a constant, ptxas would spend two LOP3 on (w & m) | it
    // Experts (NULL for a plain product): blockIdx.y walks the active experts.
    const struct wview *experts, *experts_up; // [n_experts]; _up with PRODUCT_GLU
    const uint32_t *active;    // [0] = how many, then their ids
    const uint32_t *offsets;   // [n_experts + 1] into pairs
    const uint32_t *pairs;     // pair ids sorted by expert
    uint32_t pair_div;         // x row = pair / pair_div
    const float *expert_bias, *expert_bias_up; // [n_experts, n_out]
    uint32_t active_max;
};
void product(struct cuda_backend *cu, struct product_args *args);

// gemm.cu
void gemm_open(struct cuda_backend *cu);
void gemm_close(struct cuda_backend *cu);
// y = scale * (W x + b) (+ y), W bf16 [n_out, n_in] contiguous; for many rows.
void gemm_bf16(struct cuda_backend *cu, const bf16 *x, uint32_t ldx, uint32_t n, const bf16 *w,
               uint32_t n_out, uint32_t n_in, const float *bias, float scale, bool add, bf16 *y,
               uint32_t ldy);

// elementwise.cu
void cuda_embed(struct backend *be, const struct weight *table, const int32_t *ids, float scale,
                struct mat y);
void cuda_norm(struct backend *be, const struct norm_args *args);
void cuda_glu(struct backend *be, const struct glu_args *args);
void cuda_unary(struct backend *be, enum unary_kind kind, const float p[4], struct mat x, struct mat y);
void cuda_axpby(struct backend *be, float a, struct mat x, float b, struct mat y);
void cuda_mul(struct backend *be, struct mat x, struct mat y);
void cuda_gather(struct backend *be, struct mat x, const uint32_t *rows, struct mat y);
// Host indices to the device, in an area that stays until the step's end.
const int32_t *upload_ids(struct cuda_backend *cu, const int32_t *ids, uint32_t n);

// kv.cu
struct kv_pool *cuda_kv_create(struct backend *be, const struct kv_layer_desc *layers, uint32_t n_layers,
                               const uint32_t *n_pages, uint32_t n_groups, struct err *err);
void cuda_kv_destroy(struct backend *be, struct kv_pool *pool);
void cuda_kv_copy_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t from,
                       uint32_t to);
size_t cuda_kv_page_bytes(const struct kv_pool *pool, uint32_t group);
void cuda_kv_read_page(struct backend *be, const struct kv_pool *pool, uint32_t group, uint32_t page,
                       void *out);
void cuda_kv_write_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t page,
                        const void *in);
void cuda_qkv(struct backend *be, const struct qkv_args *args);
// attention.cu
void cuda_attention(struct backend *be, const struct attention_args *args);
// index.cu
void cuda_index(struct backend *be, const struct index_args *args);

// moe.cu
void cuda_route(struct backend *be, const struct route_args *args);
void cuda_experts(struct backend *be, const struct experts_args *args);
size_t moe_list_words(const struct backend_limits *limits);

// recurrent.cu
struct state_pool *cuda_state_create(struct backend *be, const size_t *n_floats, uint32_t n_states,
                                     uint32_t n_slots, struct err *err);
void cuda_state_destroy(struct backend *be, struct state_pool *pool);
void cuda_state_clear(struct backend *be, struct state_pool *pool, uint32_t slot);
void cuda_state_copy(struct backend *be, struct state_pool *pool, uint32_t from, uint32_t to);
size_t cuda_state_slot_bytes(const struct state_pool *pool);
void cuda_state_read(struct backend *be, const struct state_pool *pool, uint32_t slot, void *out);
void cuda_state_write(struct backend *be, struct state_pool *pool, uint32_t slot, const void *in);
void cuda_conv(struct backend *be, const struct conv_args *args);
void cuda_delta(struct backend *be, const struct delta_args *args);
#endif
