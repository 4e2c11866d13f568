// backend/backend.h - the device interface: memory, weights, KV pages and the fused operations that a
// model's step is made of. Nothing here knows what a model is.
//
// All calls on one backend come from one thread (the engine's). Operations are enqueued in order; their
// results may be read by the host only after step_end() or a download. The CPU backend is synchronous.
//
// Activations are matrices of the backend's activation type (act_bytes an element: float32 on the CPU,
// bf16 on CUDA), rows = tokens, contiguous axis last. Model code does arithmetic on shapes only and
// never dereferences `data`. Norm weights, biases, sinks and router corrections are float32 vectors in
// backend memory (backend_upload_f32). Logits are float32 in host-readable memory after step_end().
#ifndef LOAM_BACKEND_BACKEND_H
#define LOAM_BACKEND_BACKEND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

enum {
    BACKEND_ABI_VERSION = 1,
    KV_PAGE_TOKENS = 64,    // positions a page holds; also the key block of attention's fixed grid
    ATTENTION_SPLIT = 512,  // keys whose partial softmax is merged first: rule 2's fixed two-level grid
    KV_GROUPS_MAX = 8,      // block tables a row can have
    LINEAR_OUTPUTS_MAX = 4, // weights that one linear call multiplies the same input by
};
#define KV_PAGE_NONE UINT32_MAX // block table entry without a page (behind a sliding window)

struct backend;
struct weight; // a matrix in the backend's keeping
struct kv_pool;
struct state_pool;

struct mat {
    void *data;
    uint32_t n_rows, n_cols;
    uint32_t stride; // elements from one row to the next, >= n_cols
};

// ---- Weights ----------------------------------------------------------------------------------
enum weight_format {
    WEIGHT_F32,
    WEIGHT_F16,
    WEIGHT_BF16,
    WEIGHT_AFFINE, // MLX: w = scale * q + bias, q unsigned `bits` wide, a little-endian bit stream a row
    WEIGHT_MXFP4,  // E2M1 codes, low nibble first; one E8M0 scale a 32
    WEIGHT_MXFP8,  // E4M3 values; one E8M0 scale a 32
    WEIGHT_NVFP4,  // E2M1 codes; one E4M3 scale a 16
};

// A matrix as the file holds it: [n_out, n_in], rows contiguous, in host memory that stays mapped for
// as long as the weight lives.
struct weight_desc {
    enum weight_format format;
    uint32_t n_out, n_in;
    uint32_t bits, group;   // WEIGHT_AFFINE: 2,3,4,5,6,8 and 32,64,128; else ignored
    enum dtype scale_dtype; // WEIGHT_AFFINE: of scales and biases: F32, F16, BF16
    const void *data;       // n_out * n_in * bits / 8 bytes
    const void *scales;     // [n_out, n_in / group], NULL for dense
    const void *biases;     // WEIGHT_AFFINE: likewise
};

// ---- The step ---------------------------------------------------------------------------------
// T tokens laid end to end and R rows; see DESIGN "The step".
struct step_row {
    uint32_t token_off, n_tokens; // its span in the step
    uint32_t pos0;                // absolute position of its first token
    uint32_t state_slot;          // recurrent state, UINT32_MAX if the model has none
    uint32_t rope_variant;        // 0, or 1: the long-context rope table where the model has two
    // Page ids of the row by group: entry b holds positions [b * KV_PAGE_TOKENS, ...). Valid until
    // step_end(). All pages that the step reads or writes are there.
    const uint32_t *block_table[KV_GROUPS_MAX];
    uint32_t n_blocks; // entries in each table
};

struct step {
    uint32_t n_tokens, n_rows;
    const int32_t *token_ids;  // [n_tokens]
    const uint32_t *positions; // [n_tokens]: pos0 + offset
    const uint32_t *token_row; // [n_tokens]: the row it belongs to
    const struct step_row *rows;
    uint32_t n_logits;
    const uint32_t *logit_tokens; // [n_logits] ascending: tokens whose logits are wanted
};

// The most that any step will hold: scratch is sized from it at load, a step allocates nothing.
struct backend_limits {
    uint32_t n_tokens, n_rows, n_logits;
    uint32_t ctx_len;           // longest sequence
    uint32_t n_cols_max;        // widest input of a linear (d_ff, heads * head_dim ...)
    uint32_t n_vocab;           // widest logits
    uint32_t n_heads, head_dim; // largest of any layer, for attention scratch
    uint32_t n_experts, n_experts_used, d_expert; // 0 without experts
};

// ---- KV ---------------------------------------------------------------------------------------
enum kv_kind { KV_F32, KV_F16, KV_BF16, KV_Q8, KV_Q4 }; // Q: affine in groups of 64 along the head

struct kv_layer_desc {
    uint32_t group; // whose block table addresses it
    uint32_t n_heads, k_dim, v_dim;
    bool v_in_k; // MLA latent: V is the first v_dim elements of the K row and is not stored
    enum kv_kind kind;
};

// ---- Operation arguments ------------------------------------------------------------------------
enum linear_store { LINEAR_STORE, LINEAR_ADD }; // y = s * (W x + b), or y += s * (W x + b)

struct linear_output {
    const struct weight *weight; // [n_out, n_in]
    const float *bias;           // [n_out] or NULL
    struct mat y;                // [n, n_out]
};
struct linear_args {
    struct mat x; // [n, n_in]
    uint32_t n_outputs;
    struct linear_output outputs[LINEAR_OUTPUTS_MAX];
    enum linear_store store;
    float scale; // 1 for most
};

enum norm_kind { NORM_RMS, NORM_LAYER };
struct norm_args {
    enum norm_kind kind;
    float eps;
    const float *weight; // [width] or NULL for ones; families that store w - 1 fold the 1 in at load
    const float *bias;   // NORM_LAYER, or NULL
    // Rows are cut into n_cols / width independent pieces that share the weight (width = n_cols, or
    // head_dim for a norm a head).
    uint32_t width;
    struct mat x, y;            // y may be x
    const struct mat *residual; // not NULL: x += residual_scale * residual first, and x is stored
    float residual_scale;
};

// A rope table: the angle of pair j at position p is p * inv_freq[j]; cos and sin are multiplied by
// `scale`. Pairs are (j, j + n_dims/2), or (2j, 2j + 1) when interleaved. Dimensions from n_dims on pass
// unchanged.
struct rope_table {
    const float *inv_freq[2]; // [n_dims / 2] host memory, by step_row.rope_variant
    float scale[2];
    uint32_t n_dims;
    bool interleaved;
};

// Everything between the projections and attention: norms of heads, rope, and writing K and V into their
// pages. q, k and v are rewritten in place (v only by v_norm).
struct qkv_args {
    uint32_t layer;               // of the pool
    struct kv_pool *pool;         // NULL: q only (layers that reuse another's KV)
    uint32_t n_heads, n_kv_heads, head_dim, v_dim;
    struct mat q, k, v;           // [n_tokens, heads * dim]; k, v unused when pool is NULL
    const float *q_norm, *k_norm; // [head_dim], or the whole projection with norm_whole; NULL = none
    const float *q_norm_bias, *k_norm_bias; // NORM_LAYER, or NULL
    bool norm_whole;              // the norm runs over the whole projection, not a head (OLMo 2)
    enum norm_kind norm_kind;
    bool norm_after_rope;
    bool v_norm;                  // V is RMS-normed without weight (Gemma 4)
    float norm_eps;
    const struct rope_table *rope; // NULL = no position encoding
    uint32_t rope_off;            // first rotated dimension of a head (MLA: rope dims come last)
};

struct attention_args {
    uint32_t layer;
    const struct kv_pool *pool;
    uint32_t n_heads;   // query heads; a multiple of the layer's
    struct mat q, out;  // [n_tokens, n_heads * k_dim], [n_tokens, n_heads * v_dim]
    float scale;
    uint32_t window;    // 0 = all earlier positions; else positions > p - window
    float softcap;      // 0 = none; else c * tanh(s / c)
    const float *sinks; // [n_heads] logits of a virtual key without value, or NULL
    bool bidirectional; // encoders: every position of the row's own span in the step is visible
    // Sparse attention: [n_tokens, n_selected] positions that may be seen, ascending, UINT32_MAX beyond
    // the last; backend memory, from `index`. NULL = dense.
    const uint32_t *selected;
    uint32_t n_selected;
};

enum glu_kind {
    GLU_SILU,
    GLU_GELU, // erf
    GLU_GELU_TANH,
    GLU_RELU,
    GLU_CLAMPED_SWIGLU, // gpt-oss: (clamp(up) + 1) * gate * sigmoid(alpha * gate), gate <= limit
    GLU_SIGMOID,        // up * sigmoid(gate): output gates
};
struct glu_args {
    enum glu_kind kind;
    struct mat gate, up, y; // [n, d]; y may be gate or up
    float alpha, limit;     // GLU_CLAMPED_SWIGLU
};

enum unary_kind {
    UNARY_SILU,
    UNARY_GELU,
    UNARY_GELU_TANH,
    UNARY_RELU,
    UNARY_RELU2,
    UNARY_SIGMOID,
    UNARY_TANH_CAP, // p[0] * tanh(x / p[0])
    UNARY_XIELU,    // Apertus: p = {alpha_p, alpha_n, beta, eps}
};

enum route_kind {
    ROUTE_SOFTMAX_TOPK, // softmax over all, then the best (Qwen, Mixtral)
    ROUTE_TOPK_SOFTMAX, // the best logits, then softmax over them (gpt-oss, granite)
    ROUTE_SIGMOID,      // sigmoid scores, choice by score + correction (DeepSeek V3, GLM)
};
struct route_args {
    enum route_kind kind;
    struct mat logits; // [n_tokens, n_experts]
    uint32_t n_used;
    bool normalize;          // weights of the chosen are divided by their sum (+ 1e-20 for sigmoid)
    float scale;             // then multiplied by this
    const float *correction; // [n_experts] added for the choice only, or NULL
    uint32_t n_groups, n_groups_used; // group-limited choice (sum of the best two); 0 or 1 = none
    const float *expert_scale; // [n_experts] multiplies the weight of the chosen (Gemma 4), or NULL
    // Results in backend memory, [n_tokens, n_used], best first (ties: lower index first).
    uint32_t *experts;
    float *weights;
};

struct experts_args {
    struct mat x, y; // [n_tokens, d]
    enum linear_store store;
    uint32_t n_experts, n_used;
    const uint32_t *experts; // [n_tokens, n_used], from route
    const float *weights;
    struct weight *const *gate, *const *up, *const *down; // [n_experts] each; host arrays
    const float *gate_bias, *up_bias, *down_bias; // [n_experts, n_out] or NULL
    enum glu_kind glu;
    float alpha, limit;
    float scale; // of the sum
};

// Short causal convolution over channels with a carried state, then SiLU if asked (Mamba, DeltaNet).
struct conv_args {
    struct state_pool *pool;
    uint32_t state;  // index of the state tensor: float32 [kernel - 1, channels] a slot
    struct mat x, y; // [n_tokens, channels]; y may be x
    const float *weight; // [channels, kernel], newest tap last
    const float *bias;   // [channels] or NULL
    uint32_t kernel;
    bool silu;
};

// The gated delta rule (Yang et al. 2024, "Gated Delta Networks"; transformers qwen3_next): per head and
// token, S = exp(g) S; u = beta (v - S^T k); S += k u^T; out = S^T q. Always token by token in one fixed
// order, so any chunking gives the same bits.
struct delta_args {
    struct state_pool *pool;
    uint32_t state;     // float32 [n_v_heads, k_dim, v_dim] a slot
    uint32_t n_k_heads, n_v_heads, k_dim, v_dim;
    struct mat q, k, v; // [n_tokens, heads * dim]; q and k are L2-normed here (eps 1e-6), q / sqrt(k_dim)
    struct mat a, b;    // [n_tokens, n_v_heads]: g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b)
    const float *a_log, *dt_bias; // [n_v_heads]
    struct mat out;     // [n_tokens, n_v_heads * v_dim]
};

// The sparse indexer (DeepSeek V3.2): score(t, s) = sum_h w(t, h) relu(q(t, h) . k(s)) over the layer's
// cached index keys; the n_selected best positions of each token.
struct index_args {
    uint32_t layer;
    const struct kv_pool *pool;
    uint32_t n_heads, head_dim;
    struct mat q;       // [n_tokens, n_heads * head_dim]
    struct mat weights; // [n_tokens, n_heads]
    float scale;
    uint32_t n_selected;
    uint32_t *selected; // [n_tokens, n_selected] backend memory
};

// ---- The table --------------------------------------------------------------------------------
enum backend_math { MATH_FAST, MATH_EXACT };

struct backend_options {
    uint32_t n_threads; // CPU; 0 = physical cores allowed
    bool pin_threads;
    enum backend_math math;
    const char *cpu_level; // highest ISA level to use ("scalar", "avx2", "avx512", "amx"), NULL = best
    int32_t device;        // GPU index, -1 = first
    bool deterministic;    // GPU: a row's bits do not depend on the batch
};

struct backend_memory {
    uint64_t total_bytes, free_bytes; // of the device that holds weights and KV
    bool is_host;
};

// Filled by each backend, const after registration. Entries are required unless marked optional.
struct backend_ops {
    uint32_t abi_version; // BACKEND_ABI_VERSION
    uint32_t ops_bytes;   // sizeof(struct backend_ops) that the backend was built with
    const char *name;     // "cpu", "cuda"

    struct backend *(*open)(const struct backend_options *options, struct err *err);
    void (*close)(struct backend *be);
    // One line for people: "AMD EPYC, 2 threads, avx2" or "NVIDIA H200, 139 GiB".
    void (*describe)(const struct backend *be, char *out, size_t n);
    void (*memory)(const struct backend *be, struct backend_memory *out);
    bool (*reserve)(struct backend *be, const struct backend_limits *limits, struct err *err);

    // Plain memory: 64-byte aligned, zeroed. NULL with ERR_NOMEM.
    void *(*alloc)(struct backend *be, size_t n_bytes, struct err *err);
    void (*free)(struct backend *be, void *p);
    void (*upload)(struct backend *be, void *to, const void *from, size_t n_bytes);
    void (*download)(struct backend *be, void *to, const void *from, size_t n_bytes); // waits

    // Take a matrix in. The desc is copied, its data borrowed. NULL with ERR_UNSUPPORTED, ERR_NOMEM.
    struct weight *(*weight_create)(struct backend *be, const struct weight_desc *desc, struct err *err);
    void (*weight_destroy)(struct backend *be, struct weight *weight);
    // All weights are in: finish uploads, advise the kernel.
    bool (*weights_ready)(struct backend *be, struct err *err);

    // n_pages[g] pages for each group g; every layer of the group stores all of them.
    struct kv_pool *(*kv_create)(struct backend *be, const struct kv_layer_desc *layers, uint32_t n_layers,
                                 const uint32_t *n_pages, uint32_t n_groups, struct err *err);
    void (*kv_destroy)(struct backend *be, struct kv_pool *pool);
    void (*kv_copy_page)(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t from,
                         uint32_t to);
    size_t (*kv_page_bytes)(const struct kv_pool *pool, uint32_t group); // over all layers of the group
    void (*kv_read_page)(struct backend *be, const struct kv_pool *pool, uint32_t group, uint32_t page,
                         void *out);
    void (*kv_write_page)(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t page,
                          const void *in);

    // Recurrent state: n_states float32 tensors of n_floats[i], times n_slots, zeroed.
    struct state_pool *(*state_create)(struct backend *be, const size_t *n_floats, uint32_t n_states,
                                       uint32_t n_slots, struct err *err);
    void (*state_destroy)(struct backend *be, struct state_pool *pool);
    void (*state_clear)(struct backend *be, struct state_pool *pool, uint32_t slot);
    void (*state_copy)(struct backend *be, struct state_pool *pool, uint32_t from, uint32_t to);
    size_t (*state_slot_bytes)(const struct state_pool *pool);
    void (*state_read)(struct backend *be, const struct state_pool *pool, uint32_t slot, void *out);
    void (*state_write)(struct backend *be, struct state_pool *pool, uint32_t slot, const void *in);

    // Announce the step that the operations below belong to; copies what it needs to the device.
    bool (*step_begin)(struct backend *be, const struct step *step, struct err *err);
    // Wait for everything. ERR_INTERNAL or ERR_IO if the device failed.
    bool (*step_end)(struct backend *be, struct err *err);
    // Optional (GPU graphs). After step_begin: true if a step of this key was recorded and has been
    // replayed: walk no layers. Else the operations until step_end are recorded under the key. 0 never
    // replays.
    bool (*step_replay)(struct backend *be, uint64_t key);

    // y[i] = scale * row ids[i] of `table`; ids (host memory) NULL = the step's token ids.
    void (*embed)(struct backend *be, const struct weight *table, const int32_t *ids, float scale,
                  struct mat y);
    void (*linear)(struct backend *be, const struct linear_args *args);
    void (*norm)(struct backend *be, const struct norm_args *args);
    void (*qkv)(struct backend *be, const struct qkv_args *args);
    void (*attention)(struct backend *be, const struct attention_args *args);
    void (*glu)(struct backend *be, const struct glu_args *args);
    void (*unary)(struct backend *be, enum unary_kind kind, const float p[4], struct mat x, struct mat y);
    // y = a * x + b * y, elementwise; an x of one row goes to every row of y. With b = 0 y is not read.
    void (*axpby)(struct backend *be, float a, struct mat x, float b, struct mat y);
    // y *= x elementwise; an x of one column multiplies whole rows, an x of one row every row.
    void (*mul)(struct backend *be, struct mat x, struct mat y);
    // y[i] = x[rows[i]]; rows is host memory of y.n_rows entries; NULL = the step's logit_tokens.
    void (*gather)(struct backend *be, struct mat x, const uint32_t *rows, struct mat y);
    // scale * (W x + bias), softcapped if softcap > 0, into float32 host-readable [x.n_rows, n_out] that
    // stay until the next step (valid after step_end).
    float *(*logits)(struct backend *be, struct mat x, const struct weight *head, const float *bias,
                     float scale, float softcap);
    // y = act(gate x) * (up x) in one pass over x; gate and up have one shape.
    void (*linear_glu)(struct backend *be, struct mat x, const struct weight *gate, const struct weight *up,
                       enum glu_kind kind, struct mat y);

    // Optional: NULL in a backend that runs only dense models.
    void (*route)(struct backend *be, const struct route_args *args);
    void (*experts)(struct backend *be, const struct experts_args *args);
    void (*conv)(struct backend *be, const struct conv_args *args);
    void (*delta)(struct backend *be, const struct delta_args *args);
    void (*index)(struct backend *be, const struct index_args *args);

    // Optional: the bytes that reserve() takes for these limits, logits included, so that memory can be
    // planned before it is taken. NULL: the planner reckons with the logits alone.
    uint64_t (*scratch_bytes)(const struct backend *be, const struct backend_limits *limits);
};

// What every backend's struct begins with.
struct backend {
    const struct backend_ops *ops;
    uint32_t act_bytes; // of an activation element: 4 on the CPU, 2 on CUDA
};

// Columns [from, from + n) of x.
static inline struct mat mat_cols(const struct backend *be, struct mat x, uint32_t from, uint32_t n) {
    return (struct mat){(char *)x.data + (size_t)from * be->act_bytes, x.n_rows, n, x.stride};
}
// Rows [from, from + n) of x.
static inline struct mat mat_rows(const struct backend *be, struct mat x, uint32_t from, uint32_t n) {
    return (struct mat){(char *)x.data + (size_t)from * x.stride * be->act_bytes, n, x.n_cols, x.stride};
}

// The CPU backend is always there.
extern const struct backend_ops cpu_backend_ops;

// Open the backend named "cpu", "cuda" (or "cuda:N") or "auto" (CUDA if its plugin and a device are
// there, else the CPU, logged). The plugin is looked for in DESIGN's order; one with another ABI version
// is refused by a sentence that names both. ERR_NOT_FOUND, ERR_UNSUPPORTED, ERR_NOMEM.
struct backend *backend_open(const char *name, const struct backend_options *options, struct err *err);

// A float32 copy of `values` in backend memory, freed with ops->free.
float *backend_upload_f32(struct backend *be, const float *values, size_t n, struct err *err);
#endif
