// KV pages, and what happens to q, k and v between the projections and attention.
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kv.cuh"

// ---- The pool -----------------------------------------------------------------------------------------
static uint64_t rounded(uint64_t n) {
    return (n + 255) / 256 * 256;
}

struct kv_pool *cuda_kv_create(struct backend *be, const struct kv_layer_desc *layers, uint32_t n_layers,
                               const uint32_t *n_pages, uint32_t n_groups, struct err *err) {
    struct cuda_backend *cu = cuda_of(be);
    struct kv_pool *pool = (struct kv_pool *)calloc(1, sizeof *pool);
    if (pool)
        pool->layers = (struct kv_view *)calloc(n_layers ? n_layers : 1, sizeof *pool->layers);
    if (!pool || !pool->layers) {
        err_set(err, ERR_NOMEM, "cuda: out of memory for a KV pool of %u layers", n_layers);
        cuda_kv_destroy(be, pool);
        return NULL;
    }
    pool->n_layers = n_layers;
    pool->n_groups = n_groups;
    memcpy(pool->n_pages, n_pages, n_groups * sizeof *n_pages);
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct kv_layer_desc *desc = &layers[i];
        struct kv_view *kv = &pool->layers[i];
        const bool quantized = desc->kind == KV_Q8 || desc->kind == KV_Q4;
        kv->n_heads = desc->n_heads, kv->k_dim = desc->k_dim, kv->v_dim = desc->v_dim;
        kv->group = desc->group, kv->kind = (uint8_t)desc->kind, kv->v_in_k = desc->v_in_k;
        kv->k_groups = quantized ? div_up(desc->k_dim, KV_QUANT_GROUP) : 0;
        kv->v_groups = quantized && !desc->v_in_k ? div_up(desc->v_dim, KV_QUANT_GROUP) : 0;
        const uint64_t tokens = (uint64_t)desc->n_heads * KV_PAGE_TOKENS;
        kv->k_meta_off = rounded(tokens * kv_k_row_bytes(*kv));
        kv->v_off = kv->k_meta_off + rounded(tokens * kv->k_groups * sizeof(__half2));
        kv->v_meta_off = kv->v_off;
        kv->page_bytes = kv->v_off;
        if (!desc->v_in_k) {
            kv->v_meta_off = kv->v_off + rounded(tokens * desc->v_dim * kv_bits(kv->kind) / 8);
            kv->page_bytes = kv->v_meta_off + rounded(tokens * kv->v_groups * sizeof(__half2));
        }
        const uint64_t n_bytes = kv->page_bytes * n_pages[desc->group];
        cudaError_t status = cudaMalloc((void **)&kv->data, n_bytes ? n_bytes : 1);
        // Masked keys are multiplied by 0: what pages hold must be finite.
        if (status == cudaSuccess)
            status = cudaMemset(kv->data, 0, n_bytes);
        if (status != cudaSuccess) {
            cudaGetLastError();
            err_set(err, ERR_NOMEM, "cuda: no room on %s for %u KV pages of layer %u (%llu MiB): %s", cu->name,
                    n_pages[desc->group], i, (unsigned long long)(n_bytes >> 20), cudaGetErrorString(status));
            cuda_kv_destroy(be, pool);
            return NULL;
        }
    }
    return pool;
}

void cuda_kv_destroy(struct backend *be, struct kv_pool *pool) {
    if (!pool)
        return;
    cudaStreamSynchronize(cuda_of(be)->stream);
    for (uint32_t i = 0; pool->layers && i < pool->n_layers; i++)
        cudaFree(pool->layers[i].data);
    free(pool->layers);
    free(pool);
}

void cuda_kv_copy_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t from,
                       uint32_t to) {
    struct cuda_backend *cu = cuda_of(be);
    for (uint32_t i = 0; i < pool->n_layers; i++) {
        struct kv_view *kv = &pool->layers[i];
        if (kv->group == group)
            cuda_check(cu, cudaMemcpyAsync(kv->data + to * kv->page_bytes, kv->data + from * kv->page_bytes,
                                           kv->page_bytes, cudaMemcpyDeviceToDevice, cu->stream),
                       "copying a KV page");
    }
}

size_t cuda_kv_page_bytes(const struct kv_pool *pool, uint32_t group) {
    size_t n = 0;
    for (uint32_t i = 0; i < pool->n_layers; i++)
        if (pool->layers[i].group == group)
            n += pool->layers[i].page_bytes;
    return n;
}

static void move_page(struct cuda_backend *cu, const struct kv_pool *pool, uint32_t group, uint32_t page,
                      uint8_t *out, const uint8_t *in) {
    size_t at = 0;
    for (uint32_t i = 0; i < pool->n_layers; i++) {
        const struct kv_view *kv = &pool->layers[i];
        if (kv->group != group)
            continue;
        uint8_t *device = kv->data + page * kv->page_bytes;
        cudaError_t status =
            out ? cudaMemcpyAsync(out + at, device, kv->page_bytes, cudaMemcpyDeviceToHost, cu->stream)
                : cudaMemcpyAsync(device, in + at, kv->page_bytes, cudaMemcpyHostToDevice, cu->stream);
        cuda_check(cu, status, "moving a KV page");
        at += kv->page_bytes;
    }
    cuda_check(cu, cudaStreamSynchronize(cu->stream), "moving a KV page");
}
void cuda_kv_read_page(struct backend *be, const struct kv_pool *pool, uint32_t group, uint32_t page,
                       void *out) {
    move_page(cuda_of(be), pool, group, page, (uint8_t *)out, NULL);
}
void cuda_kv_write_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t page,
                        const void *in) {
    move_page(cuda_of(be), pool, group, page, NULL, (const uint8_t *)in);
}

// ---- Norm, rope and the write ---------------------------------------------------------------------------
enum { QKV_WARPS = 4, QKV_DIM_MAX = 1024 };

struct qkv_kernel_args {
    kv_view kv;
    dev_step step;
    bf16 *q, *k, *v;
    uint32_t ldq, ldk, ldv;
    uint32_t n_tokens, n_heads, n_kv_heads, head_dim, v_dim;
    const float *q_norm, *k_norm, *q_norm_bias, *k_norm_bias;
    bool has_pool, layer_norm, norm_after_rope, v_norm, has_rope, interleaved;
    float eps;
    const float *inv_freq; // [2][rope_dims / 2]
    float rope_scale[2];
    uint32_t rope_dims, rope_off;
};

// A head in shared memory, by one warp.
static __device__ void head_norm(float *x, uint32_t dim, const float *weight, const float *bias, bool layer,
                                 float eps, uint32_t lane) {
    float sum = 0, mean = 0;
    if (layer) {
        for (uint32_t i = lane; i < dim; i += WARP)
            sum += x[i];
        mean = warp_sum(sum) / (float)dim;
        sum = 0;
    }
    for (uint32_t i = lane; i < dim; i += WARP)
        sum += (x[i] - mean) * (x[i] - mean);
    const float inv = rsqrtf(warp_sum(sum) / (float)dim + eps);
    for (uint32_t i = lane; i < dim; i += WARP) {
        float v = (x[i] - mean) * inv;
        if (weight)
            v *= weight[i];
        x[i] = bias ? v + bias[i] : v;
    }
    __syncwarp();
}

static __device__ void head_rope(float *x, const qkv_kernel_args &a, uint32_t position, uint32_t variant,
                                 uint32_t lane) {
    const uint32_t half = a.rope_dims / 2;
    for (uint32_t j = lane; j < half; j += WARP) {
        float sn, cs;
        sincosf((float)position * a.inv_freq[variant * half + j], &sn, &cs);
        sn *= a.rope_scale[variant], cs *= a.rope_scale[variant];
        const uint32_t i0 = a.rope_off + (a.interleaved ? 2 * j : j), i1 = i0 + (a.interleaved ? 1 : half);
        const float x0 = x[i0], x1 = x[i1];
        x[i0] = x0 * cs - x1 * sn;
        x[i1] = x1 * cs + x0 * sn;
    }
    __syncwarp();
}

static __device__ __forceinline__ __half half_clamped(float v) {
    return __float2half(fminf(fmaxf(v, -65504.0f), 65504.0f));
}

// Write a head of a token into its page.
static __device__ void head_store(const float *x, uint32_t dim, const kv_view &kv, uint8_t *page, uint32_t head,
                                  uint32_t tok, bool is_v, uint32_t lane) {
    if (kv.kind == KV_Q8 || kv.kind == KV_Q4) {
        const float levels = kv.kind == KV_Q8 ? 255.0f : 15.0f;
        for (uint32_t g0 = 0; g0 < dim; g0 += KV_QUANT_GROUP) {
            const uint32_t n = dim - g0 < KV_QUANT_GROUP ? dim - g0 : KV_QUANT_GROUP;
            float lo = INFINITY, hi = -INFINITY;
            for (uint32_t i = lane; i < n; i += WARP)
                lo = fminf(lo, x[g0 + i]), hi = fmaxf(hi, x[g0 + i]);
            lo = -warp_max(-lo), hi = warp_max(hi);
            const __half scale = half_clamped((hi - lo) / levels), bias = half_clamped(lo);
            const float s = __half2float(scale), b = __half2float(bias), inv = s > 0 ? 1.0f / s : 0.0f;
            if (lane == 0) {
                __half2 *meta = is_v ? kv_v_meta(kv, page, head, g0 / KV_QUANT_GROUP) + tok
                                     : kv_k_meta(kv, page, head, tok) + g0 / KV_QUANT_GROUP;
                *meta = __halves2half2(scale, bias);
            }
            for (uint32_t i = lane; i < n; i += WARP) {
                const float code = fminf(fmaxf(rintf((x[g0 + i] - b) * inv), 0.0f), levels);
                uint8_t *row = is_v ? kv_v_row(kv, page, head, g0 + i) : kv_k_row(kv, page, head, tok);
                const uint32_t at = is_v ? tok : g0 + i;
                if (kv.kind == KV_Q8) {
                    row[at] = (uint8_t)code;
                } else {
                    // Other threads may be writing the neighbours in this word.
                    const uint64_t address = (uint64_t)row + at / 2;
                    uint32_t *word = (uint32_t *)(address & ~3ull);
                    const uint32_t bit = (uint32_t)(address & 3) * 8 + at % 2 * 4;
                    atomicAnd(word, ~(15u << bit));
                    atomicOr(word, (uint32_t)code << bit);
                }
            }
        }
        return;
    }
    for (uint32_t i = lane; i < dim; i += WARP) {
        uint8_t *row = is_v ? kv_v_row(kv, page, head, i) : kv_k_row(kv, page, head, tok);
        const uint32_t at = is_v ? tok : i;
        if (kv.kind == KV_BF16)
            ((bf16 *)row)[at] = __float2bfloat16(x[i]);
        else if (kv.kind == KV_F16)
            ((__half *)row)[at] = half_clamped(x[i]);
        else
            ((float *)row)[at] = x[i];
    }
}

// A warp a head of a token: query heads first, then keys, then values.
static __global__ void __launch_bounds__(QKV_WARPS *WARP) qkv_kernel(const __grid_constant__ qkv_kernel_args a) {
    extern __shared__ float heads[];
    wait_for_previous();
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t slot = blockIdx.x * QKV_WARPS + warp, token = blockIdx.y;
    const uint32_t n_k = a.has_pool ? a.n_kv_heads : 0, n_v = a.has_pool && !a.kv.v_in_k ? a.n_kv_heads : 0;
    if (slot >= a.n_heads + n_k + n_v)
        return;
    const bool is_q = slot < a.n_heads, is_v = slot >= a.n_heads + n_k;
    const uint32_t head = is_q ? slot : is_v ? slot - a.n_heads - n_k : slot - a.n_heads;
    const uint32_t dim = is_v ? a.v_dim : a.head_dim;
    float *x = heads + warp * (a.head_dim > a.v_dim ? a.head_dim : a.v_dim);
    bf16 *memory = is_q   ? a.q + (uint64_t)token * a.ldq + head * a.head_dim
                   : is_v ? a.v + (uint64_t)token * a.ldv + head * a.v_dim
                          : a.k + (uint64_t)token * a.ldk + head * a.head_dim;
    for (uint32_t i = lane; i < dim; i += WARP)
        x[i] = __bfloat162float(memory[i]);
    __syncwarp();
    const uint32_t position = a.step.positions[token];
    const dev_row &row = a.step.rows[a.step.token_row[token]];
    if (is_v) {
        if (a.v_norm)
            head_norm(x, dim, NULL, NULL, false, a.eps, lane);
    } else {
        const float *weight = is_q ? a.q_norm : a.k_norm, *bias = is_q ? a.q_norm_bias : a.k_norm_bias;
        if (weight && !a.norm_after_rope)
            head_norm(x, dim, weight, bias, a.layer_norm, a.eps, lane);
        if (a.has_rope)
            head_rope(x, a, position, row.rope_variant, lane);
        if (weight && a.norm_after_rope)
            head_norm(x, dim, weight, bias, a.layer_norm, a.eps, lane);
    }
    if (!is_v || a.v_norm)
        for (uint32_t i = lane; i < dim; i += WARP)
            memory[i] = __float2bfloat16(x[i]);
    if (!is_q) {
        const uint32_t page = a.step.tables[row.table_off[a.kv.group] + position / KV_PAGE_TOKENS];
        head_store(x, dim, a.kv, a.kv.data + page * a.kv.page_bytes, head, position % KV_PAGE_TOKENS, is_v, lane);
    }
}

// The table's frequencies on the device; kept, and renewed if the same address holds another table.
static const float *rope_on_device(struct cuda_backend *cu, const struct rope_table *rope) {
    const uint32_t n = rope->n_dims / 2;
    const bool two = rope->inv_freq[1] != NULL;
    for (uint32_t i = 0; i < cu->n_ropes; i++) {
        struct rope_device *r = &cu->ropes[i];
        if (r->n == n && r->two == two && memcmp(r->host_copy, rope->inv_freq[0], n * sizeof(float)) == 0 &&
            (!two || memcmp(r->host_copy + n, rope->inv_freq[1], n * sizeof(float)) == 0))
            return r->inv_freq;
    }
    struct rope_device r = {NULL, (float *)calloc(2 * (size_t)n, sizeof(float)), n, two};
    if (cu->recording || cu->n_ropes == ROPE_CACHE_MAX || !r.host_copy ||
        cudaMalloc((void **)&r.inv_freq, 2 * n * sizeof(float)) != cudaSuccess) {
        free(r.host_copy);
        cuda_check(cu, cudaErrorMemoryAllocation, "rope table");
        return NULL;
    }
    memcpy(r.host_copy, rope->inv_freq[0], n * sizeof(float));
    memcpy(r.host_copy + n, rope->inv_freq[two ? 1 : 0], n * sizeof(float));
    cuda_check(cu, cudaMemcpyAsync(r.inv_freq, r.host_copy, 2 * n * sizeof(float), cudaMemcpyHostToDevice,
                                   cu->stream),
               "rope table");
    cu->ropes[cu->n_ropes++] = r;
    return r.inv_freq;
}

void cuda_qkv(struct backend *be, const struct qkv_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    const uint32_t n_tokens = args->q.n_rows;
    if (n_tokens == 0)
        return;
    qkv_kernel_args a = {};
    if (args->norm_whole) {
        struct norm_args norm = {args->norm_kind, args->norm_eps, args->q_norm, args->q_norm_bias,
                                 args->q.n_cols, args->q, args->q, NULL, 0};
        if (args->q_norm)
            cuda_norm(be, &norm);
        if (args->pool && args->k_norm) {
            norm.weight = args->k_norm, norm.bias = args->k_norm_bias;
            norm.width = args->k.n_cols, norm.x = norm.y = args->k;
            cuda_norm(be, &norm);
        }
    } else {
        a.q_norm = args->q_norm, a.k_norm = args->k_norm;
        a.q_norm_bias = args->q_norm_bias, a.k_norm_bias = args->k_norm_bias;
    }
    if (args->pool) {
        a.kv = args->pool->layers[args->layer];
        a.has_pool = true;
    }
    a.step = cu->step;
    a.q = (bf16 *)args->q.data, a.ldq = args->q.stride;
    a.k = (bf16 *)args->k.data, a.ldk = args->k.stride;
    a.v = (bf16 *)args->v.data, a.ldv = args->v.stride;
    a.n_tokens = n_tokens;
    a.n_heads = args->n_heads, a.n_kv_heads = args->n_kv_heads;
    a.head_dim = args->head_dim, a.v_dim = args->v_dim;
    a.layer_norm = args->norm_kind == NORM_LAYER, a.norm_after_rope = args->norm_after_rope;
    a.v_norm = args->v_norm, a.eps = args->norm_eps;
    if (args->rope) {
        a.inv_freq = rope_on_device(cu, args->rope);
        if (!a.inv_freq)
            return;
        a.has_rope = true, a.interleaved = args->rope->interleaved;
        a.rope_scale[0] = args->rope->scale[0], a.rope_scale[1] = args->rope->scale[1];
        a.rope_dims = args->rope->n_dims, a.rope_off = args->rope_off;
    }
    const uint32_t slots = a.n_heads + (a.has_pool ? a.n_kv_heads * (a.kv.v_in_k ? 1 : 2) : 0);
    const uint32_t dim = a.head_dim > a.v_dim ? a.head_dim : a.v_dim;
    if (dim > QKV_DIM_MAX) {
        cuda_check(cu, cudaErrorInvalidValue, "head wider than 1024");
        return;
    }
    launch(cu, qkv_kernel, dim3(div_up(slots, QKV_WARPS), n_tokens), QKV_WARPS * WARP, QKV_WARPS * dim * sizeof(float), "qkv",
           a);
}
