// Mixture of experts: the router's choice, and the chosen experts' products grouped by expert.
#include <stdlib.h>

#include "backend/cuda/product.cuh"

// ---- Routing --------------------------------------------------------------------------------------------
enum { ROUTE_EXPERTS_MAX = 1024, ROUTE_GROUPS_MAX = 64, LIST_THREADS = 1024 };

struct route_kernel_args {
    const bf16 *logits;
    uint32_t ld, n_experts, n_used, kind, n_groups, n_groups_used;
    bool normalize;
    float scale;
    const float *correction, *expert_scale;
    uint32_t *experts;
    float *weights;
};

// The largest of v over the warp, ties to the lower index.
static __device__ __forceinline__ void warp_best(float &v, uint32_t &idx) {
#pragma unroll
    for (int d = 16; d; d >>= 1) {
        const float v2 = __shfl_xor_sync(FULL_WARP, v, d);
        const uint32_t idx2 = __shfl_xor_sync(FULL_WARP, idx, d);
        if (v2 > v || (v2 == v && idx2 < idx))
            v = v2, idx = idx2;
    }
}

// A warp a token.
static __global__ void route_kernel(const __grid_constant__ route_kernel_args a) {
    __shared__ float score[ROUTE_EXPERTS_MAX], choice[ROUTE_EXPERTS_MAX], group_score[ROUTE_GROUPS_MAX];
    const uint32_t token = blockIdx.x, lane = threadIdx.x;
    const bf16 *logits = a.logits + (uint64_t)token * a.ld;
    float top = -INFINITY, sum = 0;
    for (uint32_t e = lane; e < a.n_experts; e += WARP)
        top = fmaxf(top, __bfloat162float(logits[e]));
    top = warp_max(top);
    for (uint32_t e = lane; e < a.n_experts; e += WARP) {
        const float x = __bfloat162float(logits[e]);
        score[e] = a.kind == ROUTE_SIGMOID ? 1.0f / (1.0f + expf(-x)) : a.kind == ROUTE_SOFTMAX_TOPK ? expf(x - top) : x;
        sum += score[e];
    }
    sum = warp_sum(sum);
    for (uint32_t e = lane; e < a.n_experts; e += WARP) {
        if (a.kind == ROUTE_SOFTMAX_TOPK)
            score[e] /= sum;
        choice[e] = score[e] + (a.correction ? a.correction[e] : 0.0f);
    }
    __syncwarp();
    if (a.n_groups > 1) {
        const uint32_t width = a.n_experts / a.n_groups;
        for (uint32_t g = lane; g < a.n_groups; g += WARP) {
            float best = -INFINITY, second = -INFINITY;
            for (uint32_t e = g * width; e < (g + 1) * width; e++) {
                if (choice[e] > best)
                    second = best, best = choice[e];
                else
                    second = fmaxf(second, choice[e]);
            }
            group_score[g] = width > 1 ? best + second : best;
        }
        __syncwarp();
        for (uint32_t g = lane; g < a.n_groups; g += WARP) {
            uint32_t better = 0;
            for (uint32_t o = 0; o < a.n_groups; o++)
                better += group_score[o] > group_score[g] || (group_score[o] == group_score[g] && o < g);
            if (better >= a.n_groups_used)
                for (uint32_t e = g * width; e < (g + 1) * width; e++)
                    choice[e] = -INFINITY;
        }
        __syncwarp();
    }
    float total = 0, first = 0;
    uint32_t *experts = a.experts + (uint64_t)token * a.n_used;
    float *weights = a.weights + (uint64_t)token * a.n_used;
    for (uint32_t j = 0; j < a.n_used; j++) {
        float v = -INFINITY;
        uint32_t idx = UINT32_MAX;
        for (uint32_t e = lane; e < a.n_experts; e += WARP)
            if (choice[e] > v)
                v = choice[e], idx = e;
        warp_best(v, idx);
        if (idx == UINT32_MAX)
            idx = j; // nothing comparable is left (NaN): any expert, but one that exists
        float w = score[idx];
        if (a.kind == ROUTE_TOPK_SOFTMAX) {
            first = j ? first : w;
            w = expf(w - first);
        }
        total += w;
        __syncwarp();
        if (lane == 0) {
            experts[j] = idx;
            weights[j] = w;
            choice[idx] = -INFINITY;
        }
        __syncwarp();
    }
    for (uint32_t j = lane; j < a.n_used; j += WARP) {
        float w = weights[j];
        if (a.kind == ROUTE_TOPK_SOFTMAX)
            w /= total;
        else if (a.normalize)
            w /= a.kind == ROUTE_SIGMOID ? total + 1e-20f : total;
        w *= a.scale;
        if (a.expert_scale)
            w *= a.expert_scale[experts[j]];
        weights[j] = w;
    }
}

void cuda_route(struct backend *be, const struct route_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    if (args->logits.n_rows == 0)
        return;
    if (args->logits.n_cols > ROUTE_EXPERTS_MAX || args->n_groups > ROUTE_GROUPS_MAX) {
        cuda_check(cu, cudaErrorInvalidValue, "more than 1024 experts");
        return;
    }
    route_kernel_args a = {(const bf16 *)args->logits.data, args->logits.stride, args->logits.n_cols,
                           args->n_used, (uint32_t)args->kind, args->n_groups, args->n_groups_used,
                           args->normalize, args->scale, args->correction, args->expert_scale,
                           args->experts, args->weights};
    route_kernel<<<args->logits.n_rows, WARP, 0, cu->stream>>>(a);
    CUDA_LAUNCHED(cu, "route");
}

// ---- Experts ----------------------------------------------------------------------------------------------
// moe_list: offsets [n_experts + 1], active [1 + n_experts], pairs [n_tokens * n_used]. A pair is
// token * n_used + choice. The order of an expert's pairs changes no bits of their results.
size_t moe_list_words(const struct backend_limits *limits) {
    return 2 * ((size_t)limits->n_experts + 1) + (size_t)limits->n_tokens * limits->n_experts_used;
}

static __global__ void __launch_bounds__(LIST_THREADS)
    list_kernel(const uint32_t *experts, uint32_t n_pairs, uint32_t n_experts, uint32_t *offsets,
                uint32_t *active, uint32_t *pairs) {
    __shared__ uint32_t count[ROUTE_EXPERTS_MAX];
    for (uint32_t e = threadIdx.x; e < n_experts; e += LIST_THREADS)
        count[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_pairs; i += LIST_THREADS)
        atomicAdd(&count[experts[i]], 1);
    __syncthreads();
    // Each expert's thread adds up those before it.
    uint32_t e = threadIdx.x, before = 0, active_before = 0, mine = e < n_experts ? count[e] : 0;
    for (uint32_t i = 0; i < e && i < n_experts; i++)
        before += count[i], active_before += count[i] > 0;
    __syncthreads();
    if (e < n_experts) {
        offsets[e] = before;
        count[e] = before;
        if (mine)
            active[1 + active_before] = e;
        if (e == n_experts - 1)
            offsets[n_experts] = before + mine, active[0] = active_before + (mine > 0);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_pairs; i += LIST_THREADS)
        pairs[atomicAdd(&count[experts[i]], 1)] = i;
}

// y = sum of the chosen experts' results by their weights, in the order of choice.
static __global__ void combine_kernel(const float *out, const float *weights, uint32_t n_used, uint32_t d,
                                      float scale, bool add, bf16 *y, uint32_t ldy) {
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
    if (c >= d)
        return;
    float v = 0;
    for (uint32_t j = 0; j < n_used; j++)
        v += weights[token * n_used + j] * out[((uint64_t)token * n_used + j) * d + c];
    bf16 *to = y + (uint64_t)token * ldy + c;
    *to = __float2bfloat16(add ? __bfloat162float(*to) + scale * v : scale * v);
}

// The experts' views in device memory, made at the first use of the caller's array.
static const wview *experts_on_device(struct cuda_backend *cu, struct weight *const *weights, uint32_t n) {
    for (uint32_t i = 0; i < cu->n_experts_tables; i++)
        if (cu->experts[i].host == weights && cu->experts[i].first == weights[0])
            return cu->experts[i].views;
    struct experts_device table = {weights, weights[0], NULL};
    struct wview *views = (struct wview *)malloc(n * sizeof *views);
    bool same = true;
    for (uint32_t i = 0; views && i < n; i++) {
        views[i] = weights[i]->view;
        same = same && views[i].format == views[0].format && views[i].bits == views[0].bits &&
               views[i].group == views[0].group && views[i].n_in == views[0].n_in &&
               views[i].n_out == views[0].n_out && views[i].scale_dtype == views[0].scale_dtype;
    }
    if (!views || !same || cu->recording || cu->n_experts_tables == EXPERT_CACHE_MAX ||
        cudaMalloc((void **)&table.views, n * sizeof *views) != cudaSuccess ||
        cudaMemcpy(table.views, views, n * sizeof *views, cudaMemcpyHostToDevice) != cudaSuccess) {
        free(views);
        cuda_check(cu, same ? cudaErrorMemoryAllocation : cudaErrorNotSupported,
                   same ? "expert tables" : "experts of one layer in different formats");
        return NULL;
    }
    free(views);
    cu->experts[cu->n_experts_tables++] = table;
    return table.views;
}

// Memory that grows at its first use; false while recording.
static bool grow(struct cuda_backend *cu, void **memory, size_t *have, size_t want) {
    if (want <= *have)
        return true;
    if (cu->recording)
        return cuda_check(cu, cudaErrorMemoryAllocation, "expert scratch");
    cudaStreamSynchronize(cu->stream);
    cudaFree(*memory);
    *memory = NULL, *have = 0;
    if (!cuda_check(cu, cudaMalloc(memory, want), "expert scratch"))
        return false;
    *have = want;
    return true;
}

void cuda_experts(struct backend *be, const struct experts_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    const uint32_t n_tokens = args->x.n_rows, n_pairs = n_tokens * args->n_used;
    if (n_pairs == 0)
        return;
    const wview *gate = experts_on_device(cu, args->gate, args->n_experts);
    const wview *up = experts_on_device(cu, args->up, args->n_experts);
    const wview *down = experts_on_device(cu, args->down, args->n_experts);
    const struct wview *g0 = &args->gate[0]->view, *u0 = &args->up[0]->view, *d0 = &args->down[0]->view;
    // Sized for the largest step, so that it grows once.
    const size_t pairs_max = (size_t)(cu->limits.n_tokens > n_tokens ? cu->limits.n_tokens : n_tokens) * args->n_used;
    const uint32_t ld_hidden = (g0->n_out + 7) / 8 * 8;
    if (!gate || !up || !down ||
        !grow(cu, (void **)&cu->moe_hidden, &cu->moe_hidden_bytes, 2 * pairs_max * ld_hidden * sizeof(bf16)) ||
        !grow(cu, (void **)&cu->moe_out, &cu->moe_out_bytes, pairs_max * d0->n_out * sizeof(float)))
        return;
    uint32_t *offsets = cu->moe_list, *active = offsets + args->n_experts + 1, *pairs = active + args->n_experts + 1;
    if (args->n_experts > cu->limits.n_experts || pairs_max > (size_t)cu->limits.n_tokens * cu->limits.n_experts_used) {
        cuda_check(cu, cudaErrorInvalidValue, "experts beyond the reservation");
        return;
    }
    list_kernel<<<1, LIST_THREADS, 0, cu->stream>>>(args->experts, n_pairs, args->n_experts, offsets, active, pairs);
    CUDA_LAUNCHED(cu, "expert lists");

    struct product_args p = {};
    p.x = (const bf16 *)args->x.data, p.ldx = args->x.stride;
    p.active_max = args->n_experts < n_pairs ? args->n_experts : n_pairs;
    const uint32_t typical = 2 * div_up(n_pairs, p.active_max);
    p.n = n_tokens < typical ? n_tokens : typical; // chooses how many rows go at once
    p.scale = 1;
    p.active = active, p.offsets = offsets, p.pairs = pairs;
    p.pair_div = args->n_used;
    p.glu = args->glu, p.alpha = args->alpha, p.limit = args->limit;
    if (same_kernel(g0, u0)) {
        p.experts = gate, p.experts_up = up;
        p.expert_bias = args->gate_bias, p.expert_bias_up = args->up_bias;
        p.flags = PRODUCT_GLU;
        p.n_outs = 2;
        p.out[0] = {*g0, cu->moe_hidden, NULL, ld_hidden, NULL};
        p.out[1] = {*u0, NULL, NULL, 0, NULL};
        product(cu, &p);
    } else {
        bf16 *second = cu->moe_hidden + pairs_max * ld_hidden;
        struct product_args q = p;
        p.n_outs = q.n_outs = 1;
        p.experts = gate, p.expert_bias = args->gate_bias;
        p.out[0] = {*g0, cu->moe_hidden, NULL, ld_hidden, NULL};
        product(cu, &p);
        q.experts = up, q.expert_bias = args->up_bias;
        q.out[0] = {*u0, second, NULL, ld_hidden, NULL};
        product(cu, &q);
        struct mat hidden = {cu->moe_hidden, n_pairs, g0->n_out, ld_hidden};
        struct mat other = {second, n_pairs, g0->n_out, ld_hidden};
        struct glu_args glu = {args->glu, hidden, other, hidden, args->alpha, args->limit};
        cuda_glu(be, &glu);
    }
    struct product_args d = {};
    d.x = cu->moe_hidden, d.ldx = ld_hidden;
    d.n = p.n, d.scale = 1, d.n_outs = 1, d.active_max = p.active_max;
    d.active = active, d.offsets = offsets, d.pairs = pairs, d.pair_div = 1;
    d.experts = down, d.expert_bias = args->down_bias;
    d.out[0] = {*d0, NULL, cu->moe_out, d0->n_out, NULL};
    product(cu, &d);
    combine_kernel<<<dim3(div_up(d0->n_out, 256), n_tokens), 256, 0, cu->stream>>>(
        cu->moe_out, args->weights, args->n_used, d0->n_out, args->scale, args->store == LINEAR_ADD,
        (bf16 *)args->y.data, args->y.stride);
    CUDA_LAUNCHED(cu, "experts");
}
