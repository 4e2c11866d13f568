// backend/cuda/batch.cuh - products of a quantized weight with 17 rows and more, on the tensor cores. As in
// product.cuh a lane reads its piece of the weight's rows straight from memory into registers; here the
// weights become bf16 there (scaled, with their bias), and a block's warps share x in shared memory, which
// cp.async fills two stages ahead. A block makes 128 outputs (in a GLU 64, of both weights) of 64 rows of
// x; blocks of one such tile divide the input axis, and the last to finish adds up in order.
#ifndef LOAM_BACKEND_CUDA_BATCH_CUH
#define LOAM_BACKEND_CUDA_BATCH_CUH
#include "backend/cuda/product.cuh"

enum {
    BATCH_WARPS = 4,
    BATCH_ROWS = BATCH_WARPS * 32,
    BATCH_COLS = 64,
    BATCH_K = 128, // input elements a stage
    BATCH_STAGES = 3,
    BATCH_STRIDE = BATCH_K * 2 + 16, // bytes of a row of x in shared memory: the pad spreads banks
    BATCH_STAGE_BYTES = BATCH_COLS * BATCH_STRIDE,
    BATCH_SHARED = BATCH_STAGES * BATCH_STAGE_BYTES,
    BATCH_OUT_STRIDE = BATCH_ROWS + 4, // floats
};

struct batch_args {
    product_args p;
    uint32_t n_splits;
    float *part;     // [tile][split][BATCH_COLS][BATCH_ROWS]
    uint32_t *count; // [tile]
};

// What a lane reads of its rows for a stage.
template <class F> struct batch_raw {
    static constexpr int NB = BATCH_K / F::KBLK;
    uint32_t w[2][2][NB][F::WORDS];
    uint32_t s[2][2][NB], b[2][2][NB];
};

__device__ __forceinline__ uint32_t bf16x2_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}
// A 16-bit scale as a pair of bf16.
__device__ __forceinline__ uint32_t scale_twice(uint32_t bits, bool is_bf16) {
    const float f = __half2float(__ushort_as_half((unsigned short)bits));
    return is_bf16 ? bits | bits << 16 : bf16_pair(f, f);
}

template <class F>
__global__ void __launch_bounds__(BATCH_WARPS *WARP, 2) batch_kernel(const __grid_constant__ batch_args a) {
    constexpr int NB = batch_raw<F>::NB, NT = BATCH_COLS / 8;
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ uint32_t arrived;
    const product_args &args = a.p;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool glu = args.flags & PRODUCT_GLU;
    uint32_t o = 0, tile = blockIdx.x;
    while (o + 1 < args.n_outs && tile >= args.tile_end[o])
        o++;
    if (o)
        tile -= args.tile_end[o - 1];
    const wview *w[2] = {&args.out[o].w, glu ? &args.out[1].w : &args.out[o].w};
    const uint32_t n_in = w[0]->n_in, n_out = w[0]->n_out, n_groups = w[0]->n_groups;
    const uint32_t tile_rows = glu ? BATCH_ROWS / 2 : BATCH_ROWS, row0 = tile * tile_rows;
    const uint32_t col0 = blockIdx.y * BATCH_COLS, split = blockIdx.z;
    const bool is_bf16 = w[0]->scale_dtype == DTYPE_BF16;
    const uint32_t per_group = F::GROUPED ? w[0]->group / F::KBLK : 1;
    const uint32_t shift = per_group == 4 ? 2 : per_group == 2 ? 1 : 0;

    const uint8_t *row_data[2][2];
    uint32_t row_at[2][2];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t row = row0 + (glu ? warp * 16 : warp * 32 + m * 16) + h * 8 + g;
            row = row < n_out ? row : n_out - 1;
            row_data[m][h] = w[m]->data + row * w[m]->row_bytes + F::lane_bytes(t);
            row_at[m][h] = row * n_groups;
        }
    const void *scales[2] = {w[0]->scales, w[1]->scales}, *biases[2] = {w[0]->biases, w[1]->biases};

    const uint32_t n_stages = (n_in + BATCH_K - 1) / BATCH_K;
    const uint32_t from = n_stages * split / a.n_splits, to = n_stages * (split + 1) / a.n_splits;

    batch_raw<F> next;
    auto load_raw = [&](uint32_t stage) {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < NB; i++) {
                    uint32_t k = stage * BATCH_K + i * F::KBLK + t * (F::KBLK / 4);
                    F::load(next.w[m][h][i], row_data[m][h] + (uint64_t)(stage * NB + i) * F::BLK_BYTES, k < n_in);
                    k = k < n_in ? k : 0; // x is zero there
                    if constexpr (F::SCALED)
                        next.s[m][h][i] = F::load_scale(scales[m], row_at[m][h], k);
                    if constexpr (F::GROUPED) {
                        const uint32_t at = row_at[m][h] + (k / F::KBLK >> shift);
                        next.s[m][h][i] = __ldg((const uint16_t *)scales[m] + at);
                        next.b[m][h][i] = __ldg((const uint16_t *)biases[m] + at);
                    }
                }
    };
    const uint32_t shared_at = (uint32_t)__cvta_generic_to_shared(shared);
    auto load_x = [&](uint32_t stage) {
        const uint32_t to_at = shared_at + stage % BATCH_STAGES * BATCH_STAGE_BYTES;
#pragma unroll
        for (uint32_t i = 0; i < BATCH_COLS * (BATCH_K / 8) / (BATCH_WARPS * WARP); i++) {
            const uint32_t p = i * BATCH_WARPS * WARP + threadIdx.x, row = p / (BATCH_K / 8), piece = p % (BATCH_K / 8);
            const uint32_t k = stage * BATCH_K + piece * 8;
            const bool there = stage < to && col0 + row < args.n && k < n_in;
            const bf16 *x = there ? args.x + (uint64_t)(col0 + row) * args.ldx + k : args.x;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_at + row * BATCH_STRIDE + piece * 16),
                         "l"(x), "r"(there ? 16 : 0));
        }
        asm volatile("cp.async.commit_group;");
    };

    float acc[2][NT][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[m][n][i] = 0;
    load_raw(from);
    wait_for_previous();
    load_x(from);
    load_x(from + 1);
    for (uint32_t stage = from; stage < to; stage++) {
        batch_raw<F> raw = next;
        if (stage + 1 < to)
            load_raw(stage + 1);
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        load_x(stage + 2); // into the stage that all have left
        const uint8_t *x_stage = shared + stage % BATCH_STAGES * BATCH_STAGE_BYTES + g * BATCH_STRIDE;
#pragma unroll
        for (int i = 0; i < NB; i++) {
            uint32_t s[2][2], b[2][2];
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if constexpr (F::SCALED)
                        s[m][h] = F::scale_pair(raw.s[m][h][i]);
                    if constexpr (F::GROUPED) {
                        s[m][h] = scale_twice(raw.s[m][h][i], is_bf16);
                        b[m][h] = scale_twice(raw.b[m][h][i], is_bf16);
                    }
                }
#pragma unroll
            for (int oct = 0; oct < F::KBLK / 32; oct++) {
                octet wt[2][2];
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        wt[m][h] = F::unpack(raw.w[m][h][i], oct, args.magic, t);
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            if constexpr (F::SCALED)
                                wt[m][h].v[j] = bf16x2_mul(wt[m][h].v[j], s[m][h]);
                            if constexpr (F::GROUPED) {
                                if constexpr (F::OFFSET != 0) // 128 + q less 128, exactly
                                    wt[m][h].v[j] = bf16x2_fma(wt[m][h].v[j], 0x3F803F80u, 0xC300C300u);
                                wt[m][h].v[j] = bf16x2_fma(wt[m][h].v[j], s[m][h], b[m][h]);
                            }
                        }
                    }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const octet x = arrange<F::PERMUTED>(
                        *(const uint4 *)(x_stage + n * 8 * BATCH_STRIDE + (i * F::KBLK + t * (F::KBLK / 4) + oct * 8) * 2));
#pragma unroll
                    for (int m = 0; m < 2; m++)
                        mma_octet(acc[m][n], wt[m][0], wt[m][1], x);
                }
            }
        }
    }

    // The tile through shared memory, [column][row], for whole lines.
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    float *tile_out = (float *)shared;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t r = (glu ? m * (BATCH_ROWS / 2) + warp * 16 : warp * 32 + m * 16) + i / 2 * 8 + g;
                tile_out[(n * 8 + 2 * t + i % 2) * BATCH_OUT_STRIDE + r] = acc[m][n][i];
            }
    __syncthreads();
    const uint32_t n_cols = args.n - col0 < BATCH_COLS ? args.n - col0 : (uint32_t)BATCH_COLS;
    if (a.n_splits > 1) {
        const uint32_t at = blockIdx.y * gridDim.x + blockIdx.x;
        float *parts = a.part + (uint64_t)at * a.n_splits * BATCH_COLS * BATCH_ROWS;
        float *mine = parts + split * BATCH_COLS * BATCH_ROWS;
        for (uint32_t i = threadIdx.x; i < n_cols * BATCH_ROWS / 4; i += BATCH_WARPS * WARP) {
            const uint32_t c = i / (BATCH_ROWS / 4), r = i % (BATCH_ROWS / 4) * 4;
            *(float4 *)(mine + c * BATCH_ROWS + r) = *(const float4 *)(tile_out + c * BATCH_OUT_STRIDE + r);
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            arrived = atomicAdd(&a.count[at], 1);
        __syncthreads();
        if (arrived != a.n_splits - 1)
            return;
        __threadfence();
        if (threadIdx.x == 0)
            a.count[at] = 0;
        for (uint32_t i = threadIdx.x; i < n_cols * BATCH_ROWS / 4; i += BATCH_WARPS * WARP) {
            const uint32_t c = i / (BATCH_ROWS / 4), r = i % (BATCH_ROWS / 4) * 4;
            float4 sum = make_float4(0, 0, 0, 0);
            for (uint32_t k = 0; k < a.n_splits; k++) {
                const float4 v = __ldcg((const float4 *)(parts + (k * BATCH_COLS + c) * BATCH_ROWS + r));
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            *(float4 *)(tile_out + c * BATCH_OUT_STRIDE + r) = sum;
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < tile_rows * n_cols; i += BATCH_WARPS * WARP) {
        const uint32_t r = i % tile_rows, c = i / tile_rows, row = row0 + r;
        if (row >= n_out)
            continue;
        float v = tile_out[c * BATCH_OUT_STRIDE + r];
        if (args.out[o].bias)
            v += args.out[o].bias[row];
        if (glu)
            v = glu_value(args.glu, v, tile_out[c * BATCH_OUT_STRIDE + r + BATCH_ROWS / 2], args.alpha, args.limit);
        v *= args.scale;
        if (args.softcap > 0)
            v = args.softcap * tanhf(v / args.softcap);
        const uint64_t at = (uint64_t)(col0 + c) * args.out[o].ldy + row;
        if (args.out[o].y32) {
            args.out[o].y32[at] = v;
        } else {
            if (args.flags & PRODUCT_ADD)
                v += __bfloat162float(args.out[o].y[at]);
            args.out[o].y[at] = __float2bfloat16(v);
        }
    }
}

template <class F> static bool batch_launch(struct cuda_backend *cu, const batch_args &a, dim3 grid) {
    if (cudaFuncSetAttribute(batch_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, BATCH_SHARED) != cudaSuccess)
        return false;
    launch(cu, batch_kernel<F>, grid, BATCH_WARPS * WARP, BATCH_SHARED, "product of a batch", a);
    return true;
}
// False if there is no kernel for this format.
bool batch_affine(struct cuda_backend *cu, const batch_args &a, dim3 grid);
bool batch_float(struct cuda_backend *cu, const batch_args &a, dim3 grid);
#endif
