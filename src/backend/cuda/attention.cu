// Attention over paged keys and values.
//
// The fast kernel: a warp owns 16 query rows, a row being (token, query head of the group), and walks the
// keys 32 at a time with mma.m16n8k16. Both operands come straight from the pages: K rows and V's
// transposed rows are read in 16-byte pieces, and the order of the summed axes and of the keys within
// the 32 is chosen so that each lane's piece is what the mma wants from it:
//   dims   lane t reads dims 32 b + 8 t .. + 8 of a key: two k-steps;
//   keys   column c of score tile i is key 8 (c / 2) + 2 i + c % 2, so that lane t ends up with the
//          probabilities of keys 8 t .. 8 t + 7, which is the piece of V's row that it reads.
// Decode: the four warps of a block share out the keys of one tile, blocks share out the rest (split);
// the last block of a tile to finish merges, in the order of the splits. Prefill: each warp has its own
// tile and sees all keys.
#include "backend/cuda/kv.cuh"

enum { ATTN_WARPS = 4, ATTN_CHUNK_MIN = 128 };
static const float LOG2E = 1.44269504088896341f;

struct attn_args {
    kv_view kv;
    dev_step step;
    const bf16 *q;
    bf16 *out;
    uint32_t ldq, ldo;
    uint32_t n_heads, group; // group: query heads a KV head
    float scale, softcap;
    uint32_t window;
    bool bidirectional;
    const float *sinks;
    uint32_t tokens_min, tokens_max; // rows of the step with more or fewer tokens are another launch's
    uint32_t tile0;                  // first tile of this launch
    uint32_t n_splits;
    uint32_t fixed_chunk;            // not 0: splits at multiples of it, whatever the length
    float *part;
    uint32_t *count;
    const uint32_t *selected;
    uint32_t n_selected;
};

struct key_range {
    uint32_t lo, hi; // [lo, hi)
};
__device__ __forceinline__ key_range visible(const attn_args &a, const dev_row &row, uint32_t position) {
    key_range r;
    r.lo = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
    r.hi = position + 1;
    if (a.bidirectional) {
        r.hi = row.pos0 + row.n_tokens;
        if (a.window && r.hi - position > a.window)
            r.hi = position + a.window;
    }
    return r;
}
// Through its exponential: a call of tanhf for each score would be most of the kernel's code.
__device__ __forceinline__ float capped(float s, float softcap) {
    if (softcap <= 0)
        return s;
    // tanh(x) = 1 - 2 / (e^2x + 1); both ends come out right.
    return softcap * (1.0f - __fdividef(2.0f, exp2_fast(s / softcap * (2.0f * LOG2E)) + 1.0f));
}

// ---- The fast kernel ------------------------------------------------------------------------------------
template <int D> struct attn_tile {
    static constexpr int KB = (D + 31) / 32, VT = D / 8;
    uint32_t q[KB][2][4]; // A fragments: [block of 32 dims][k-step]
    float o[VT][4];
    float m[2], l[2];     // of rows g and g + 8; m in log2 units
};

template <int D, int KIND>
__device__ __forceinline__ void attend_32(attn_tile<D> &s, const attn_args &a, uint32_t kv_head, uint8_t *page,
                                          uint32_t key0, const key_range range[2], uint32_t lane) {
    constexpr int KB = attn_tile<D>::KB, VT = attn_tile<D>::VT;
    const uint32_t g = lane / 4, t = lane % 4, tok0 = key0 % KV_PAGE_TOKENS;
    float score[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t tok = tok0 + 8 * (g / 2) + 2 * i + g % 2;
        const uint8_t *row = kv_k_row(a.kv, page, kv_head, tok);
#pragma unroll
        for (int j = 0; j < 4; j++)
            score[i][j] = 0;
#pragma unroll
        for (int b = 0; b < KB; b++) {
            // Beyond the head's end q is zero: any key element will do.
            const uint32_t want = 32 * b + 8 * t, dim = want < a.kv.k_dim ? want : 0;
            uint4 k = kv_load8<KIND>(row, dim);
            if constexpr (KIND == KV_Q8 || KIND == KV_Q4) {
                const float2 meta = __half22float2(kv_k_meta(a.kv, page, kv_head, tok)[dim / KV_QUANT_GROUP]);
                float f[8];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    f[j] = fmaf(meta.x, kv_code<KIND>(k, j), meta.y);
                k = make_uint4(bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]), bf16_pair(f[4], f[5]),
                               bf16_pair(f[6], f[7]));
            }
            mma_bf16(score[i], s.q[b][0], k.x, k.y);
            mma_bf16(score[i], s.q[b][1], k.z, k.w);
        }
    }
    // Softmax. Lane t of a quad holds columns 2t, 2t + 1 of tile i: keys 8 t + 2 i + {0, 1}.
    uint32_t p[4][2]; // [tile][row half]
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = s.m[h];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t key = key0 + 8 * t + 2 * i + e;
                float v = capped(score[i][2 * h + e] * a.scale, a.softcap) * LOG2E;
                v = key >= range[h].lo && key < range[h].hi ? v : -INFINITY;
                score[i][2 * h + e] = v;
                top = fmaxf(top, v);
            }
        top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
        top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
        const float base = top == -INFINITY ? 0.0f : top;
        const float keep = exp2_fast(s.m[h] - base);
        s.m[h] = top;
        s.l[h] *= keep;
#pragma unroll
        for (int j = 0; j < VT; j++)
            s.o[j][2 * h] *= keep, s.o[j][2 * h + 1] *= keep;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p0 = exp2_fast(score[i][2 * h] - base), p1 = exp2_fast(score[i][2 * h + 1] - base);
            p[i][h] = bf16_pair(p0, p1);
            s.l[h] += p0 + p1; // of this lane's keys; the quad's are added at the end
        }
    }
    const uint32_t p0[4] = {p[0][0], p[0][1], p[1][0], p[1][1]};
    const uint32_t p1[4] = {p[2][0], p[2][1], p[3][0], p[3][1]};
    float2 meta[8];
#pragma unroll
    for (int j = 0; j < VT; j++) {
        // Beyond the values' end the result is not stored: any will do.
        const uint32_t dim = 8u * j < a.kv.v_dim ? 8 * j + g : g;
        if constexpr (KIND == KV_Q8 || KIND == KV_Q4) {
            if (j % 8 == 0) {
                const __half2 *from = kv_v_meta(a.kv, page, kv_head, dim / KV_QUANT_GROUP) + tok0 + 8 * t;
#pragma unroll
                for (int k = 0; k < 8; k++)
                    meta[k] = __half22float2(from[k]);
            }
        }
        uint4 v = kv_load8<KIND>(kv_v_row(a.kv, page, kv_head, dim), tok0 + 8 * t);
        if constexpr (KIND == KV_Q8 || KIND == KV_Q4) {
            float f[8];
#pragma unroll
            for (int k = 0; k < 8; k++)
                f[k] = fmaf(meta[k].x, kv_code<KIND>(v, k), meta[k].y);
            v = make_uint4(bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]), bf16_pair(f[4], f[5]),
                           bf16_pair(f[6], f[7]));
        }
        mma_bf16(s.o[j], p0, v.x, v.y);
        mma_bf16(s.o[j], p1, v.z, v.w);
    }
}

// Result of a query row: out = o / (l + sink).
__device__ __forceinline__ float sink_weight(const attn_args &a, uint32_t head, float m) {
    return a.sinks ? exp2_fast(a.sinks[head] * LOG2E - m) : 0.0f;
}

template <int D, int KIND, bool SPLIT>
static __global__ void __launch_bounds__(ATTN_WARPS *WARP) attn_kernel(const __grid_constant__ attn_args a) {
    constexpr int KB = attn_tile<D>::KB, VT = attn_tile<D>::VT;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    wait_for_previous();
    const dev_row &row = a.step.rows[blockIdx.z];
    if (row.n_tokens < a.tokens_min || row.n_tokens > a.tokens_max)
        return;
    const uint32_t n_kv_heads = a.kv.n_heads, kv_head = blockIdx.y % n_kv_heads;
    // Prefill runs its longest tiles first: the last ones of a row.
    uint32_t tile;
    if (SPLIT)
        tile = a.tile0 + blockIdx.y / n_kv_heads;
    else
        tile = (gridDim.x - 1 - blockIdx.x) * ATTN_WARPS + warp;
    const uint32_t n_queries = row.n_tokens * a.group, first = tile * 16;
    if (first >= n_queries)
        return; // in a split kernel the whole block; in prefill no barrier follows
    const uint32_t last = first + 15 < n_queries ? first + 15 : n_queries - 1;

    // Rows g and g + 8 of the tile: which token and head.
    uint32_t token[2], head[2];
    bool there[2];
    key_range range[2];
    attn_tile<D> s;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t at = first + g + 8 * h, q_row = at < n_queries ? at : last;
        there[h] = at < n_queries;
        token[h] = row.token_off + q_row / a.group;
        head[h] = kv_head * a.group + q_row % a.group;
        range[h] = visible(a, row, row.pos0 + q_row / a.group);
        const bf16 *q = a.q + (uint64_t)token[h] * a.ldq + head[h] * a.kv.k_dim;
#pragma unroll
        for (int b = 0; b < KB; b++) {
            const uint32_t dim = 32 * b + 8 * t;
            uint4 v = dim < a.kv.k_dim ? *(const uint4 *)(q + dim) : make_uint4(0, 0, 0, 0);
            s.q[b][0][h] = v.x, s.q[b][0][2 + h] = v.y, s.q[b][1][h] = v.z, s.q[b][1][2 + h] = v.w;
        }
        s.m[h] = -INFINITY;
        s.l[h] = 0;
    }
#pragma unroll
    for (int j = 0; j < VT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.o[j][i] = 0;

    // Keys that any query of the tile sees.
    const uint32_t lo = visible(a, row, row.pos0 + first / a.group).lo;
    const uint32_t hi = visible(a, row, row.pos0 + last / a.group).hi;
    const uint32_t *table = a.step.tables + row.table_off[a.kv.group];
    uint32_t split_first = 0, split_last = 0;
    if (SPLIT) {
        uint32_t base = 0, chunk = a.fixed_chunk;
        if (!chunk) {
            base = lo & ~(KV_PAGE_TOKENS - 1u);
            const uint32_t even = (hi - base + a.n_splits - 1) / a.n_splits;
            chunk = (even + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
            chunk = chunk < ATTN_CHUNK_MIN ? ATTN_CHUNK_MIN : chunk;
        }
        split_first = (lo - base) / chunk;
        split_last = (hi - 1 - base) / chunk;
        if (blockIdx.x < split_first || blockIdx.x > split_last)
            return;
        const uint32_t from = base + blockIdx.x * chunk, to = from + chunk < hi ? from + chunk : hi;
        for (uint32_t key0 = from + 32 * warp; key0 < to; key0 += 32 * ATTN_WARPS) {
            if (key0 + 32 <= lo)
                continue;
            uint8_t *page = a.kv.data + table[key0 / KV_PAGE_TOKENS] * a.kv.page_bytes;
            attend_32<D, KIND>(s, a, kv_head, page, key0, range, lane);
        }
    } else {
        for (uint32_t key0 = lo & ~31u; key0 < hi; key0 += 32) {
            uint8_t *page = a.kv.data + table[key0 / KV_PAGE_TOKENS] * a.kv.page_bytes;
            attend_32<D, KIND>(s, a, kv_head, page, key0, range, lane);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.l[h] += __shfl_xor_sync(FULL_WARP, s.l[h], 1);
        s.l[h] += __shfl_xor_sync(FULL_WARP, s.l[h], 2);
    }

    if (!SPLIT) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (!there[h])
                continue;
            const float l = s.l[h] + sink_weight(a, head[h], s.m[h]), inv = l > 0 ? 1.0f / l : 0.0f;
            bf16 *out = a.out + (uint64_t)token[h] * a.ldo + head[h] * a.kv.v_dim;
#pragma unroll
            for (int j = 0; j < VT; j++)
                if (8u * j < a.kv.v_dim)
                    *(uint32_t *)(out + 8 * j + 2 * t) = bf16_pair(s.o[j][2 * h] * inv, s.o[j][2 * h + 1] * inv);
        }
        return;
    }

    // Add the warps up, in order, in shared memory: rows 0 to 7 of the tile, then, if it has more, the rest.
    constexpr int STRIDE = D + 4, PART_FLOATS = 16 * (D + 2);
    __shared__ float top[ATTN_WARPS][16], sum[ATTN_WARPS][16], most[16], total[16];
    __shared__ float o[ATTN_WARPS][8][STRIDE];
    __shared__ uint32_t arrived;
    const uint32_t v_dim = a.kv.v_dim, n_rows = last - first + 1;
    const uint32_t n_parts = split_last - split_first + 1, tile_at = blockIdx.z * gridDim.y + blockIdx.y;
    float *parts = a.part + (uint64_t)tile_at * gridDim.x * PART_FLOATS, *mine = parts + blockIdx.x * PART_FLOATS;
    // Result d of tile row r.
    auto store = [&](uint32_t r, uint32_t d, float value) {
        const uint32_t at = first + r, h = kv_head * a.group + at % a.group;
        const float l = total[r] + sink_weight(a, h, most[r]);
        a.out[(uint64_t)(row.token_off + at / a.group) * a.ldo + h * v_dim + d] =
            __float2bfloat16(l > 0 ? value / l : 0.0f);
    };
    if (t == 0) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            top[warp][g + 8 * h] = s.m[h], sum[warp][g + 8 * h] = s.l[h];
    }
    __syncthreads();
    float weight[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = -INFINITY, l = 0;
#pragma unroll
        for (int w = 0; w < ATTN_WARPS; w++)
            m = fmaxf(m, top[w][g + 8 * h]);
        const float base = m == -INFINITY ? 0.0f : m;
#pragma unroll
        for (int w = 0; w < ATTN_WARPS; w++)
            l += sum[w][g + 8 * h] * exp2_fast(top[w][g + 8 * h] - base);
        weight[h] = exp2_fast(s.m[h] - base);
        if (warp == 0 && t == 0)
            most[g + 8 * h] = m, total[g + 8 * h] = l;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t n_here = n_rows > 8u * h ? n_rows - 8 * h : 0;
        if (n_here == 0)
            break;
        if (g < n_here) {
#pragma unroll
            for (int j = 0; j < VT; j++)
                *(float2 *)&o[warp][g][8 * j + 2 * t] =
                    make_float2(s.o[j][2 * h] * weight[h], s.o[j][2 * h + 1] * weight[h]);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < (n_here < 8 ? n_here : 8) * D; i += ATTN_WARPS * WARP) {
            const uint32_t r = i / D, d = i % D;
            float v = 0;
#pragma unroll
            for (int w = 0; w < ATTN_WARPS; w++)
                v += o[w][r][d];
            if (n_parts > 1)
                mine[(r + 8 * h) * D + d] = v;
            else if (d < v_dim)
                store(r + 8 * h, d, v);
        }
        __syncthreads();
    }
    if (n_parts == 1)
        return;

    // The last block of the tile to arrive adds up the splits.
    if (threadIdx.x < 16)
        mine[16 * D + threadIdx.x] = most[threadIdx.x], mine[16 * D + 16 + threadIdx.x] = total[threadIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        arrived = atomicAdd(&a.count[tile_at], 1);
    __syncthreads();
    if (arrived != n_parts - 1)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        a.count[tile_at] = 0;
    parts += split_first * PART_FLOATS;
    // Each row's maximum, then sum, by a thread for each row and eighth of the splits (by absolute number: which are
    // added first must not depend on where the tile begins).
    {
        const uint32_t r = threadIdx.x / 8, eighth = threadIdx.x % 8;
        float m = -INFINITY, l = 0;
#pragma unroll 4
        for (uint32_t p = (eighth - split_first) & 7; p < n_parts; p += 8)
            m = fmaxf(m, __ldcg(&parts[p * PART_FLOATS + 16 * D + r]));
        for (int d = 4; d; d >>= 1)
            m = fmaxf(m, __shfl_xor_sync(FULL_WARP, m, d));
        const float base = m == -INFINITY ? 0.0f : m;
#pragma unroll 4
        for (uint32_t p = (eighth - split_first) & 7; p < n_parts; p += 8)
            l += __ldcg(&parts[p * PART_FLOATS + 16 * D + 16 + r]) *
                 exp2_fast(__ldcg(&parts[p * PART_FLOATS + 16 * D + r]) - base);
        for (int d = 4; d; d >>= 1)
            l += __shfl_xor_sync(FULL_WARP, l, d);
        __syncthreads();
        if (eighth == 0)
            most[r] = m, total[r] = l;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_rows * D / 4; i += ATTN_WARPS * WARP) {
        const uint32_t r = i / (D / 4), d = i % (D / 4) * 4;
        const float base = most[r] == -INFINITY ? 0.0f : most[r];
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (uint32_t p = 0; p < n_parts; p++) {
            const float4 part = __ldcg((const float4 *)&parts[p * PART_FLOATS + r * D + d]);
            const float by = exp2_fast(__ldcg(&parts[p * PART_FLOATS + 16 * D + r]) - base);
            v.x += part.x * by, v.y += part.y * by, v.z += part.z * by, v.w += part.w * by;
        }
        if (d < v_dim) // dims are multiples of 8
            store(r, d, v.x), store(r, d + 1, v.y), store(r, d + 2, v.z), store(r, d + 3, v.w);
    }
}

template <int D, int KIND> static void attn_launch(struct cuda_backend *cu, attn_args &a, dim3 grid, bool split) {
    launch(cu, split ? attn_kernel<D, KIND, true> : attn_kernel<D, KIND, false>, grid, ATTN_WARPS * WARP, 0, "attention", a);
}
template <int D> static void attn_kind(struct cuda_backend *cu, attn_args &a, dim3 grid, bool split) {
    if (a.kv.kind == KV_BF16)
        attn_launch<D, KV_BF16>(cu, a, grid, split);
    else if (a.kv.kind == KV_F16)
        attn_launch<D, KV_F16>(cu, a, grid, split);
    else if (a.kv.kind == KV_Q8)
        attn_launch<D, KV_Q8>(cu, a, grid, split);
    else
        attn_launch<D, KV_Q4>(cu, a, grid, split);
}
static uint32_t fast_dim(const struct kv_view *kv) {
    const uint32_t dim = kv->k_dim > kv->v_dim ? kv->k_dim : kv->v_dim;
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}
static void attn_dim(struct cuda_backend *cu, attn_args &a, dim3 grid, bool split) {
    const uint32_t dim = fast_dim(&a.kv);
    if (dim == 64)
        attn_kind<64>(cu, a, grid, split);
    else if (dim == 128)
        attn_kind<128>(cu, a, grid, split);
    else
        attn_kind<256>(cu, a, grid, split);
}

// ---- The general kernel -----------------------------------------------------------------------------------
// A block a (token, head): any dims, kinds and selections, in float32.
enum { GENERAL_THREADS = 128 };
static __global__ void __launch_bounds__(GENERAL_THREADS) attn_general_kernel(const __grid_constant__ attn_args a) {
    extern __shared__ float memory[];
    __shared__ float reduce[32];
    float *q = memory, *o = q + a.kv.k_dim, *p = o + a.kv.v_dim;
    __shared__ uint32_t keys[GENERAL_THREADS];
    const uint32_t token = blockIdx.x, head = blockIdx.y, kv_head = head / a.group, tid = threadIdx.x;
    const dev_row &row = a.step.rows[a.step.token_row[token]];
    const uint32_t *table = a.step.tables + row.table_off[a.kv.group];
    for (uint32_t i = tid; i < a.kv.k_dim; i += GENERAL_THREADS)
        q[i] = __bfloat162float(a.q[(uint64_t)token * a.ldq + head * a.kv.k_dim + i]);
    for (uint32_t i = tid; i < a.kv.v_dim; i += GENERAL_THREADS)
        o[i] = 0;
    __syncthreads();
    const key_range range = visible(a, row, a.step.positions[token]);
    const uint32_t *selected = a.selected ? a.selected + (uint64_t)token * a.n_selected : NULL;
    const uint32_t from = selected ? 0 : range.lo, to = selected ? a.n_selected : range.hi;
    float m = -INFINITY, l = 0;
    for (uint32_t base = from; base < to; base += GENERAL_THREADS) {
        const uint32_t at = base + tid;
        uint32_t key = at < to ? selected ? selected[at] : at : UINT32_MAX;
        if (key < range.lo || key >= range.hi)
            key = UINT32_MAX;
        keys[tid] = key;
        float s = -INFINITY;
        if (key != UINT32_MAX) {
            uint8_t *page = a.kv.data + table[key / KV_PAGE_TOKENS] * a.kv.page_bytes;
            const uint32_t tok = key % KV_PAGE_TOKENS;
            s = 0;
            for (uint32_t d = 0; d < a.kv.k_dim; d++)
                s += q[d] * kv_k_value(a.kv, page, kv_head, tok, d);
            s = capped(s * a.scale, a.softcap) * LOG2E;
        }
        // The block's maximum.
        float top = warp_max(s);
        __syncthreads();
        if (tid % WARP == 0)
            reduce[tid / WARP] = top;
        __syncthreads();
        top = m;
        for (int w = 0; w < GENERAL_THREADS / WARP; w++)
            top = fmaxf(top, reduce[w]);
        const float floor = top == -INFINITY ? 0.0f : top, keep = exp2_fast(m - floor);
        const float mine = exp2_fast(s - floor);
        p[tid] = mine;
        m = top;
        l = l * keep + block_sum(mine, reduce); // has barriers: p is complete
        const uint32_t n = to - base < GENERAL_THREADS ? to - base : GENERAL_THREADS;
        for (uint32_t d = tid; d < a.kv.v_dim; d += GENERAL_THREADS) {
            float sum = o[d] * keep;
            for (uint32_t i = 0; i < n; i++) {
                if (keys[i] == UINT32_MAX)
                    continue;
                uint8_t *page = a.kv.data + table[keys[i] / KV_PAGE_TOKENS] * a.kv.page_bytes;
                sum += p[i] * kv_v_value(a.kv, page, kv_head, keys[i] % KV_PAGE_TOKENS, d);
            }
            o[d] = sum;
        }
        __syncthreads();
    }
    l += sink_weight(a, head, m == -INFINITY ? 0.0f : m);
    for (uint32_t d = tid; d < a.kv.v_dim; d += GENERAL_THREADS)
        a.out[(uint64_t)token * a.ldo + head * a.kv.v_dim + d] = __float2bfloat16(l > 0 ? o[d] / l : 0.0f);
}

// ---- Dispatch -----------------------------------------------------------------------------------------------
static bool can_be_fast(const struct attention_args *args, const struct kv_view *kv) {
    return !args->selected && !kv->v_in_k && kv->kind != KV_F32 && kv->k_dim % 8 == 0 && kv->v_dim % 8 == 0 &&
           kv->k_dim <= 256 && kv->v_dim <= 256 && args->q.stride % 8 == 0 && args->out.stride % 2 == 0 &&
           (uintptr_t)args->q.data % 16 == 0 && (uintptr_t)args->out.data % 4 == 0;
}

// Rows of few tokens: their tiles are short of work for a GPU, so keys are split over blocks.
static void attend_split(struct cuda_backend *cu, attn_args &a, uint32_t tokens_max) {
    const uint32_t n_tiles = div_up(tokens_max * a.group, 16), dim = fast_dim(&a.kv);
    const uint32_t blocks_max = (uint32_t)(cu->attn_part_floats / (16 * (dim + 2)));
    const uint32_t a_tile = cu->n_rows * a.kv.n_heads; // blocks of one tile of every row, unsplit
    if (cu->deterministic) {
        a.fixed_chunk = ATTENTION_SPLIT;
        a.n_splits = div_up(cu->limits.ctx_len, ATTENTION_SPLIT);
    } else {
        const uint32_t wanted = 2u * (uint32_t)cu->sm_count / (a_tile * n_tiles);
        const uint32_t useful = div_up(cu->limits.ctx_len, ATTN_CHUNK_MIN);
        a.n_splits = wanted < 1 ? 1 : wanted > SPLITS_MAX ? (uint32_t)SPLITS_MAX : wanted;
        a.n_splits = a.n_splits < useful ? a.n_splits : useful;
    }
    // As many tiles at once as the memory for partial results holds.
    uint32_t at_once = a.n_splits == 1 ? n_tiles : blocks_max / (a_tile * a.n_splits);
    if (at_once == 0) {
        cuda_check(cu, cudaErrorInvalidValue, "attention scratch");
        return;
    }
    for (uint32_t tile = 0; tile < n_tiles; tile += at_once) {
        a.tile0 = tile;
        const uint32_t n = n_tiles - tile < at_once ? n_tiles - tile : at_once;
        attn_dim(cu, a, dim3(a.n_splits, n * a.kv.n_heads, cu->n_rows), true);
    }
}

void cuda_attention(struct backend *be, const struct attention_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    if (cu->n_tokens == 0)
        return;
    attn_args a = {};
    a.kv = args->pool->layers[args->layer];
    a.step = cu->step;
    a.q = (const bf16 *)args->q.data, a.ldq = args->q.stride;
    a.out = (bf16 *)args->out.data, a.ldo = args->out.stride;
    a.n_heads = args->n_heads, a.group = args->n_heads / a.kv.n_heads;
    a.scale = args->scale, a.softcap = args->softcap, a.window = args->window;
    a.bidirectional = args->bidirectional, a.sinks = args->sinks;
    a.selected = args->selected, a.n_selected = args->n_selected;
    a.part = cu->attn_part, a.count = cu->attn_count;
    if (!can_be_fast(args, &a.kv)) {
        const size_t shared = (a.kv.k_dim + a.kv.v_dim + GENERAL_THREADS) * sizeof(float);
        attn_general_kernel<<<dim3(cu->n_tokens, args->n_heads), GENERAL_THREADS, shared, cu->stream>>>(a);
        CUDA_LAUNCHED(cu, "attention");
        return;
    }
    // Rows of few tokens (decode, verification) split their keys; longer ones are prefill.
    if (cu->row_tokens_few) {
        a.tokens_min = 0, a.tokens_max = cu->few_tokens;
        attend_split(cu, a, cu->row_tokens_few);
    }
    if (cu->row_tokens_max > cu->few_tokens) {
        a.tokens_min = cu->few_tokens + 1, a.tokens_max = UINT32_MAX;
        const uint32_t n_tiles = div_up(cu->row_tokens_max * a.group, 16);
        attn_dim(cu, a, dim3(div_up(n_tiles, ATTN_WARPS), a.kv.n_heads, cu->n_rows), false);
    }
}
