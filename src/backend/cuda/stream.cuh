// backend/cuda/stream.cuh - products of a weight with up to 8 rows: the weight streams through a grid that
// fills the GPU once. Each block lays x out in shared memory, in the order that the format's octets want and
// with the sum of each block of inputs, and then walks tiles of 16 outputs (in a GLU 8 of both weights);
// its warps share out the input axis. A warp's next chunk of weights is always on its way, the first even
// before the kernel that makes x has finished. See product.cuh for how weights meet the tensor cores.
#ifndef LOAM_BACKEND_CUDA_STREAM_CUH
#define LOAM_BACKEND_CUDA_STREAM_CUH
#include "backend/cuda/product.cuh"

enum { STREAM_WARPS = 16, STREAM_ROWS = 16, STREAM_COLS = 8, STREAM_BLOCKS = 2 }; // of a multiprocessor

template <class F, int S> struct stream_chunk {
    uint32_t w[2][F::CHUNK][F::WORDS];
    uint32_t fp_scale[2][F::CHUNK];
    chunk_scales<S, F::CHUNK> scale[2], bias[2];
};

// Input elements, rounded up to whole chunks.
template <class F> __host__ __device__ __forceinline__ uint32_t stream_n_in(uint32_t n_in) {
    return (n_in + F::CHUNK * F::KBLK - 1) / (F::CHUNK * F::KBLK) * (F::CHUNK * F::KBLK);
}
// Tiles between barriers.
__host__ __device__ __forceinline__ uint32_t stream_tiles(uint32_t n) {
    return n <= 4 ? 4 : 2;
}
// x, zeros for the lanes without x, sums of x, partial sums.
template <class F> static size_t stream_shared(uint32_t n_in, uint32_t n, uint32_t n_warps) {
    const size_t padded = stream_n_in<F>(n_in);
    return n * (padded * 2 + 16) + F::CHUNK * F::KBLK * 2 + padded / F::KBLK * STREAM_COLS * sizeof(float) +
           2 * stream_tiles(n) * (size_t)n_warps * n * STREAM_ROWS * sizeof(float);
}

template <class F, int S>
__global__ void __launch_bounds__(STREAM_WARPS *WARP, STREAM_BLOCKS) stream_kernel(const __grid_constant__ product_args args) {
    constexpr int OCTS = F::KBLK / 32;
    extern __shared__ __align__(16) uint8_t shared[];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool glu = args.flags & PRODUCT_GLU;
    const uint32_t n_warps = args.n_warps, magic = args.magic, n = args.n;
    const uint32_t n_in = args.out[0].w.n_in, padded = stream_n_in<F>(n_in), x_stride = padded * 2 + 16;
    const uint32_t n_blks = n_in / F::KBLK + (n_in % F::KBLK != 0), n_chunks = padded / (F::CHUNK * F::KBLK);
    uint8_t *zeros = shared + n * x_stride;
    float *x_sum = (float *)(zeros + F::CHUNK * F::KBLK * 2), *partial = x_sum + padded / F::KBLK * STREAM_COLS;
    const uint32_t n_tiles = args.tile_end[args.n_outs - 1];
    const uint32_t dtype = args.out[0].w.scale_dtype;
    const uint32_t per_group = F::GROUPED ? args.out[0].w.group / F::KBLK : 1;
    const uint32_t shift = per_group == 4 ? 2 : per_group == 2 ? 1 : 0;

    stream_chunk<F, S> next;
    auto load_chunk = [&](uint32_t tile, uint32_t at) {
        uint32_t o = 0;
        while (o + 1 < args.n_outs && tile >= args.tile_end[o])
            o++;
        if (o)
            tile -= args.tile_end[o - 1];
        const uint32_t blk0 = at * F::CHUNK;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const wview &w = args.out[glu ? h : o].w;
            uint32_t row = glu ? tile * 8 + g : tile * 16 + h * 8 + g;
            row = row < w.n_out ? row : w.n_out - 1;
            const uint8_t *p = w.data + row * w.row_bytes + F::lane_bytes(t) + blk0 * F::BLK_BYTES;
            const uint32_t row_groups = row * w.n_groups;
#pragma unroll
            for (int u = 0; u < F::CHUNK; u++) {
                const uint32_t k = (blk0 + u) * F::KBLK + t * (F::KBLK / 4);
                F::load(next.w[h][u], p + u * F::BLK_BYTES, k < n_in);
                if constexpr (F::SCALED)
                    next.fp_scale[h][u] = F::load_scale(w.scales, row_groups, k < n_in ? k : 0);
            }
            if constexpr (F::GROUPED) {
                next.scale[h].load(w.scales, row_groups, blk0, shift, n_blks, dtype);
                next.bias[h].load(w.biases, row_groups, blk0, shift, n_blks, dtype);
            }
        }
    };
    if (blockIdx.x < n_tiles && warp < n_chunks)
        load_chunk(blockIdx.x, warp);
    wait_for_previous();

    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = threadIdx.x; i < padded / 8; i += n_warps * WARP) {
            const octet x = arrange<F::PERMUTED>(load_or_zero(args.x + (uint64_t)r * args.ldx + i * 8, i * 8 < n_in));
            *(uint4 *)(shared + r * x_stride + i * 16) = make_uint4(x.v[0], x.v[1], x.v[2], x.v[3]);
        }
    for (uint32_t i = threadIdx.x; i < F::CHUNK * F::KBLK / 8; i += n_warps * WARP)
        ((uint4 *)zeros)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if constexpr (F::GROUPED) {
        for (uint32_t i = threadIdx.x; i < padded / F::KBLK * STREAM_COLS; i += n_warps * WARP) {
            const uint32_t blk = i / STREAM_COLS, c = i % STREAM_COLS;
            float sum = 0;
            if (c < n) {
#pragma unroll
                for (int k = 0; k < F::KBLK / 8; k++) {
                    const uint4 v = *(const uint4 *)(shared + c * x_stride + (blk * F::KBLK + k * 8) * 2);
                    sum += bf16_lo(v.x) + bf16_hi(v.x) + bf16_lo(v.y) + bf16_hi(v.y) + bf16_lo(v.z) + bf16_hi(v.z) +
                           bf16_lo(v.w) + bf16_hi(v.w);
                }
            }
            x_sum[i] = sum;
        }
        __syncthreads();
    }

    // Partial sums go to one half of `partial` while the other is added up: a barrier for several tiles,
    // since what a warp does for one is mostly latency.
    const uint32_t tile_floats = n_warps * n * STREAM_ROWS, tiles_at_once = stream_tiles(n);
    const uint8_t *x_lane = (g < n ? shared + g * x_stride : zeros) + t * (F::KBLK / 4) * 2;
    const uint32_t x_step = g < n ? F::CHUNK * F::KBLK * 2 : 0;
    float *half = partial;
    for (uint32_t tile0 = blockIdx.x; tile0 < n_tiles; tile0 += tiles_at_once * gridDim.x) {
        uint32_t n_here = 0;
#pragma unroll 1
        for (uint32_t tile = tile0; n_here < tiles_at_once && tile < n_tiles; tile += gridDim.x, n_here++) {
            float acc[4] = {0, 0, 0, 0};
            for (uint32_t at = warp; at < n_chunks; at += n_warps) {
                const stream_chunk<F, S> now = next;
                if (at + n_warps < n_chunks)
                    load_chunk(tile, at + n_warps);
                else if (tile + gridDim.x < n_tiles)
                    load_chunk(tile + gridDim.x, warp);
                const uint8_t *x_at = x_lane + at * x_step;
#pragma unroll
                for (int u = 0; u < F::CHUNK; u++) {
                    float part[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int oct = 0; oct < OCTS; oct++) {
                        const uint4 v = *(const uint4 *)(x_at + u * F::KBLK * 2 + oct * 16);
                        const octet x = {{v.x, v.y, v.z, v.w}};
                        octet lo = F::unpack(now.w[0][u], oct, magic, t), hi = F::unpack(now.w[1][u], oct, magic, t);
                        if constexpr (F::SCALED) {
#pragma unroll
                            for (int i = 0; i < 4; i++) {
                                lo.v[i] = bf16x2_mul(lo.v[i], F::scale_pair(now.fp_scale[0][u]));
                                hi.v[i] = bf16x2_mul(hi.v[i], F::scale_pair(now.fp_scale[1][u]));
                            }
                        }
                        mma_octet(F::GROUPED ? part : acc, lo, hi, x);
                    }
                    if constexpr (F::GROUPED) {
                        const float2 sum = *(const float2 *)(x_sum + (at * F::CHUNK + u) * STREAM_COLS + 2 * t);
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const float s = now.scale[h].get(u), b = fmaf(-F::OFFSET, s, now.bias[h].get(u));
                            acc[2 * h] = fmaf(s, part[2 * h], fmaf(b, sum.x, acc[2 * h]));
                            acc[2 * h + 1] = fmaf(s, part[2 * h + 1], fmaf(b, sum.y, acc[2 * h + 1]));
                        }
                    }
                }
            }
            float *mine = half + n_here * tile_floats; // [warp][column][row]
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (2 * t + i % 2 < n)
                    mine[(warp * n + 2 * t + i % 2) * STREAM_ROWS + g + i / 2 * 8] = acc[i];
        }
        __syncthreads();
        const uint32_t n_rows = glu ? 8 : 16;
        for (uint32_t i = threadIdx.x; i < n_here * n_rows * n; i += n_warps * WARP) {
            const uint32_t r = i % n_rows, c = i / n_rows % n, j = i / (n_rows * n);
            uint32_t o = 0, tile = tile0 + j * gridDim.x;
            while (o + 1 < args.n_outs && tile >= args.tile_end[o])
                o++;
            if (o)
                tile -= args.tile_end[o - 1];
            const product_out &out = args.out[o];
            const uint32_t row = tile * n_rows + r;
            if (row >= out.w.n_out)
                continue;
            const float *sums = half + j * tile_floats + c * STREAM_ROWS + r;
            float v = 0, up = 0;
#pragma unroll 8
            for (uint32_t k = 0; k < n_warps; k++)
                v += sums[k * n * STREAM_ROWS];
            if (out.bias)
                v += out.bias[row];
            if (glu) {
#pragma unroll 8
                for (uint32_t k = 0; k < n_warps; k++)
                    up += sums[k * n * STREAM_ROWS + 8];
                v = glu_value(args.glu, v, up, args.alpha, args.limit);
            }
            v *= args.scale;
            if (args.softcap > 0)
                v = args.softcap * tanhf(v / args.softcap);
            const uint64_t to = (uint64_t)c * out.ldy + row;
            if (out.y32) {
                out.y32[to] = v;
            } else {
                if (args.flags & PRODUCT_ADD)
                    v += __bfloat162float(out.y[to]);
                out.y[to] = __float2bfloat16(v);
            }
        }
        half = half == partial ? partial + tiles_at_once * tile_floats : partial;
    }
}

// False if x does not fit in shared memory.
template <class F, int S> static bool stream_launch(struct cuda_backend *cu, product_args &args) {
    const uint32_t n_chunks = stream_n_in<F>(args.out[0].w.n_in) / (F::CHUNK * F::KBLK);
    // The warps among which the chunks divide best.
    uint32_t best = n_chunks < 4 ? 4 : STREAM_WARPS, waste = UINT32_MAX;
    for (uint32_t w = STREAM_WARPS; w >= 7 && n_chunks >= 7; w--) {
        const uint32_t left = div_up(n_chunks, w) * w - n_chunks;
        if (left < waste)
            waste = left, best = w;
    }
    args.n_warps = n_chunks >= 7 ? best : n_chunks < 4 ? 4 : n_chunks;
    const size_t bytes = stream_shared<F>(args.out[0].w.n_in, args.n, args.n_warps);
    if (bytes > cu->shared_max || cudaFuncSetAttribute(stream_kernel<F, S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       (int)cu->shared_max) != cudaSuccess)
        return false;
    const uint32_t n_tiles = args.tile_end[args.n_outs - 1];
    uint32_t per_sm = STREAM_BLOCKS * STREAM_WARPS / args.n_warps;
    while (per_sm > 1 && per_sm * (bytes + 1024) > cu->shared_max)
        per_sm--;
    const uint32_t all = per_sm * (uint32_t)cu->sm_count;
    launch(cu, stream_kernel<F, S>, n_tiles < all ? n_tiles : all, args.n_warps * WARP, bytes, "product", args);
    return true;
}
template <class F> static bool stream_scales(struct cuda_backend *cu, product_args &args) {
    const wview &w = args.out[0].w;
    if (w.group != F::KBLK || w.n_groups % F::CHUNK || w.scale_dtype == DTYPE_F32)
        return false;
    return w.scale_dtype == DTYPE_BF16 ? stream_launch<F, SCALES_BF16>(cu, args) : stream_launch<F, SCALES_F16>(cu, args);
}
bool stream_affine(struct cuda_backend *cu, product_args &args);
bool stream_float(struct cuda_backend *cu, product_args &args);
#endif
