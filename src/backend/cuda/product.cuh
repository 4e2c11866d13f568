// backend/cuda/product.cuh - products of a weight with a few rows, on the tensor cores, dequantized in
// registers. Included by product_*.cu, which instantiate it for their formats.
//
// A block owns MT tiles of 16 output rows; its warps share out the input axis in chunks and their sums
// are added in warp order, so the bits of a result depend on the weight's shape alone, never on how many
// rows x has. mma.m16n8k16 takes the weight as its left operand: a lane (g = lane / 4, t = lane % 4)
// supplies rows g and g + 8. The order of the summed axis is ours to choose, and chosen so that a lane
// reads KBLK / 4 neighbouring weights of a row: one wide load, no shuffles, no shared memory.
//
// Affine formats stay integers: 128 + q is exact in bf16, the group's sum is scaled in float32, and
// a product with ones gives the sum of x that the bias (less 128 scales) multiplies.
#ifndef LOAM_BACKEND_CUDA_PRODUCT_CUH
#define LOAM_BACKEND_CUDA_PRODUCT_CUH
#include "backend/cuda/device.cuh"

enum { PRODUCT_WARPS = 8, PRODUCT_MT = 2 };

// An octet is 8 neighbouring weights of a row: four words of two bf16, in the order of the x words.
struct octet {
    uint32_t v[4];
};

__device__ __forceinline__ uint32_t ldg32(const uint8_t *p) {
    return __ldg((const unsigned int *)p);
}

// 4-bit affine. Nibbles i and i + 4 of a word pair up, hence PERMUTED.
template <int GROUP> struct format_q4 {
    static constexpr int KBLK = GROUP, WORDS = GROUP / 32, UNROLL = 4;
    static constexpr float OFFSET = 128;
    static constexpr bool GROUPED = true, PERMUTED = true, SPLIT = false, SCALED = false, SLOW = false;
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const wview &, const uint8_t *row,
                                                uint32_t k) {
        const uint8_t *p = row + k / 2;
        if constexpr (WORDS == 1) {
            r[0] = ldg32(p);
        } else if constexpr (WORDS == 2) {
            uint2 v = __ldg((const uint2 *)p);
            r[0] = v.x, r[1] = v.y;
        } else {
            uint4 v = __ldg((const uint4 *)p);
            r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
        }
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o) {
        octet out;
#pragma unroll
        for (int i = 0; i < 4; i++)
            out.v[i] = (r[o] >> 4 * i & 0x000F000Fu) | 0x43004300u;
        return out;
    }
};

// 8-bit affine. 128 + q would need 9 bits: q itself is exact in bf16.
template <int BLK> struct format_q8 {
    static constexpr int KBLK = BLK, WORDS = BLK / 16, UNROLL = 4;
    static constexpr float OFFSET = 0;
    static constexpr bool GROUPED = true, PERMUTED = false, SPLIT = false, SCALED = false, SLOW = false;
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const wview &, const uint8_t *row,
                                                uint32_t k) {
        if constexpr (WORDS == 2) {
            uint2 v = __ldg((const uint2 *)(row + k));
            r[0] = v.x, r[1] = v.y;
        } else {
            uint4 v = __ldg((const uint4 *)(row + k));
            r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
        }
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o) {
        octet out;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // 2^23 + q as a float32 by its bits, less 2^23.
            float f[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                f[j] = __uint_as_float(__byte_perm(r[2 * o + i], 0x4B000000u, 0x7440 + j)) - 8388608.0f;
            out.v[2 * i] = bf16_pair(f[0], f[1]);
            out.v[2 * i + 1] = bf16_pair(f[2], f[3]);
        }
        return out;
    }
};

// 2, 3, 5 and 6 bits: 8 weights are `BITS` bytes of the row's stream, at any byte.
template <int BITS> struct format_qx {
    static constexpr int KBLK = 32, WORDS = 2, UNROLL = 4;
    static constexpr float OFFSET = 128;
    static constexpr bool GROUPED = true, PERMUTED = false, SPLIT = false, SCALED = false, SLOW = false;
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const wview &, const uint8_t *row,
                                                uint32_t k) {
        // Weights lie 32 bytes or more before the end of their memory: reading on a little is safe.
        uint32_t at = k / 8 * BITS, shift = at % 4 * 8;
        const uint8_t *p = row + (at & ~3u);
        uint32_t w0 = ldg32(p), w1 = ldg32(p + 4), w2 = BITS > 4 ? ldg32(p + 8) : 0;
        r[0] = __funnelshift_r(w0, w1, shift);
        r[1] = __funnelshift_r(w1, w2, shift);
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int) {
        octet out;
        uint64_t stream = (uint64_t)r[1] << 32 | r[0];
        const uint32_t mask = (1u << BITS) - 1;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t two = (uint32_t)(stream >> 2 * BITS * i);
            out.v[i] = 0x43004300u | (two & mask) | (two << (16 - BITS) & mask << 16);
        }
        return out;
    }
};

struct format_bf16 {
    static constexpr int KBLK = 32, WORDS = 4, UNROLL = 4;
    static constexpr bool GROUPED = false, PERMUTED = false, SPLIT = false, SCALED = false, SLOW = false;
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const wview &, const uint8_t *row,
                                                uint32_t k) {
        uint4 v = __ldg((const uint4 *)(row + 2 * (uint64_t)k));
        r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int) {
        return octet{{r[0], r[1], r[2], r[3]}};
    }
};

// The scale of E8M0 as a pair of bf16: its bits are a bf16's exponent.
__device__ __forceinline__ uint32_t e8m0_pair(uint8_t e) {
    uint32_t h = e == 255 ? 0x7FC0u : e ? (uint32_t)e << 7 : 0x0040u;
    return h | h << 16;
}

// E2M1 codes: the bits of exponent and mantissa put into a bf16's are the value times 2^-126. Scales have
// few significant bits, so the products with values are exact in bf16.
template <int GROUP> struct format_fp4 {
    static constexpr int KBLK = GROUP * 4, WORDS = GROUP / 8, UNROLL = 2;
    static constexpr bool GROUPED = false, PERMUTED = true, SPLIT = false, SCALED = true, SLOW = false;
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const wview &, const uint8_t *row,
                                                uint32_t k) {
        if constexpr (WORDS == 2) {
            uint2 v = __ldg((const uint2 *)(row + k / 2));
            r[0] = v.x, r[1] = v.y;
        } else {
            uint4 v = __ldg((const uint4 *)(row + k / 2));
            r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
        }
    }
    static __device__ __forceinline__ uint32_t load_scale(const wview &w, uint64_t row_groups, uint32_t k) {
        uint8_t e = __ldg((const uint8_t *)w.scales + row_groups + k / GROUP);
        if constexpr (GROUP == 32)
            return e8m0_pair(e);
        float s = e4m3_value(e);
        return bf16_pair(s, s);
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o) {
        octet out;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w = r[o] >> 4 * i;
            out.v[i] = bf16x2_mul((w << 6 & 0x01C001C0u) | (w << 12 & 0x80008000u), 0x7E807E80u); // 2^126
        }
        return out;
    }
};

struct format_fp8 {
    static constexpr int KBLK = 64, WORDS = 4, UNROLL = 2;
    static constexpr bool GROUPED = false, PERMUTED = false, SPLIT = false, SCALED = true, SLOW = false;
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const wview &, const uint8_t *row,
                                                uint32_t k) {
        uint4 v = __ldg((const uint4 *)(row + k));
        r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
    }
    static __device__ __forceinline__ uint32_t load_scale(const wview &w, uint64_t row_groups, uint32_t k) {
        return e8m0_pair(__ldg((const uint8_t *)w.scales + row_groups + k / 32));
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o) {
        octet out;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // Bytes 2i and 2i + 1 to the low bytes of two halves; then as for E2M1, times 2^120.
            uint32_t two = __byte_perm(r[2 * o + i / 2], 0, i % 2 ? 0x4342 : 0x4140);
            out.v[i] = bf16x2_mul((two << 4 & 0x07F007F0u) | (two << 8 & 0x80008000u), 0x7B807B80u);
        }
        return out;
    }
};

// Anything, element by element: float32 and float16 weights, which a high and a low bf16 carry, and rows
// that no wide load can read.
struct format_any {
    static constexpr int KBLK = 32, WORDS = 8, UNROLL = 1;
    static constexpr bool GROUPED = false, PERMUTED = false, SPLIT = true, SCALED = false, SLOW = true;
    static __device__ __forceinline__ octet high(const float f[8]) {
        octet out;
#pragma unroll
        for (int i = 0; i < 4; i++)
            out.v[i] = bf16_pair(f[2 * i], f[2 * i + 1]);
        return out;
    }
};

// x words of an octet in the order that the format's octets have.
template <bool PERMUTED> __device__ __forceinline__ octet arrange(uint4 v) {
    if constexpr (!PERMUTED)
        return octet{{v.x, v.y, v.z, v.w}};
    return octet{{__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                  __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)}};
}

// acc += two k-steps of 16.
__device__ __forceinline__ void mma_octet(float acc[4], const octet &lo, const octet &hi, const octet &x) {
    const uint32_t a0[4] = {lo.v[0], hi.v[0], lo.v[1], hi.v[1]};
    const uint32_t a1[4] = {lo.v[2], hi.v[2], lo.v[3], hi.v[3]};
    mma_bf16(acc, a0, x.v[0], x.v[1]);
    mma_bf16(acc, a1, x.v[2], x.v[3]);
}

__device__ __forceinline__ float pair_half(uint32_t two, bool high, bool is_bf16) {
    if (is_bf16)
        return high ? bf16_hi(two) : bf16_lo(two);
    return __half2float(__ushort_as_half((unsigned short)(high ? two >> 16 : two & 0xFFFF)));
}

// Scales (or biases) of four blocks from blk0 on.
__device__ __forceinline__ void load_four(float out[4], const void *scales, uint64_t row_groups, uint32_t blk0,
                                          uint32_t shift, uint32_t n_blks, uint32_t dtype, bool wide) {
    if (wide) {
        uint2 v = __ldg((const uint2 *)((const uint16_t *)scales + row_groups + blk0));
        bool is_bf16 = dtype == DTYPE_BF16;
        out[0] = pair_half(v.x, false, is_bf16);
        out[1] = pair_half(v.x, true, is_bf16);
        out[2] = pair_half(v.y, false, is_bf16);
        out[3] = pair_half(v.y, true, is_bf16);
        return;
    }
#pragma unroll
    for (int u = 0; u < 4; u++) {
        uint32_t blk = blk0 + u < n_blks ? blk0 + u : n_blks - 1;
        out[u] = scale_value(scales, row_groups + (blk >> shift), dtype);
    }
}

template <class F, int NT>
__global__ void __launch_bounds__(PRODUCT_WARPS *WARP)
    product_kernel(const __grid_constant__ product_args args) {
    constexpr int MT = PRODUCT_MT, ROWS = MT * 16, COLS = NT * 8;
    __shared__ float partial[PRODUCT_WARPS][COLS][ROWS + 1];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool glu = args.flags & PRODUCT_GLU;

    // Which product, and which of its tiles.
    uint32_t o = 0, tile = blockIdx.x;
    while (o + 1 < args.n_outs && tile >= args.tile_end[o])
        o++;
    if (o)
        tile -= args.tile_end[o - 1];
    uint32_t from = 0, to = args.n, expert = 0;
    if (args.experts) {
        if (blockIdx.y >= args.active[0])
            return;
        expert = args.active[1 + blockIdx.y];
        from = args.offsets[expert];
        to = args.offsets[expert + 1];
    }
    const wview w0 = args.experts ? args.experts[expert] : args.out[o].w;
    const wview w1 = !glu ? w0 : args.experts ? args.experts_up[expert] : args.out[1].w;
    const uint32_t tile_rows = glu ? ROWS / 2 : ROWS, row0 = tile * tile_rows;
    const uint32_t n_in = w0.n_in, n_out = w0.n_out;

    const uint8_t *row_data[MT][2];
    uint64_t row_groups[MT][2];
    uint32_t row_at[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t row = row0 + (glu ? m % (MT / 2) : m) * 16 + h * 8 + g;
            row = row < n_out ? row : n_out - 1;
            const wview &w = glu && m >= MT / 2 ? w1 : w0;
            row_data[m][h] = w.data + row * w.row_bytes;
            row_groups[m][h] = (uint64_t)row * w.n_groups;
            row_at[m][h] = row;
        }
    const uint32_t n_blks = (n_in + F::KBLK - 1) / F::KBLK;
    const uint32_t shift = F::GROUPED ? (w0.group / F::KBLK == 4 ? 2 : w0.group / F::KBLK == 2 ? 1 : 0) : 0;
    const bool wide = F::GROUPED && shift == 0 && w0.n_groups % 4 == 0 && w0.scale_dtype != DTYPE_F32;

    for (uint32_t base = from; base < to; base += COLS) {
        const bf16 *x_row[NT];
        bool x_there[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t at = base + n * 8 + g;
            x_there[n] = at < to;
            uint32_t x_at = !x_there[n] ? 0 : args.experts ? args.pairs[at] / args.pair_div : at;
            x_row[n] = args.x + (uint64_t)x_at * args.ldx;
        }
        float acc[MT][NT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[m][n][i] = 0;

        for (uint32_t blk0 = warp * F::UNROLL; blk0 < n_blks; blk0 += PRODUCT_WARPS * F::UNROLL) {
            if constexpr (F::SLOW) {
                const uint32_t k0 = blk0 * F::KBLK + t * 8;
                octet hi_part[MT][2], lo_part[MT][2];
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const wview &w = glu && m >= MT / 2 ? w1 : w0;
                        float f[8], rest[8];
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            f[i] = k0 + i < n_in ? weight_value(w, row_at[m][h], k0 + i) : 0.0f;
                            rest[i] = f[i] - __bfloat162float(__float2bfloat16(f[i]));
                        }
                        hi_part[m][h] = F::high(f);
                        lo_part[m][h] = F::high(rest);
                    }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    float f[8];
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        f[i] = x_there[n] && k0 + i < n_in ? __bfloat162float(x_row[n][k0 + i]) : 0.0f;
                    octet x = F::high(f);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        mma_octet(acc[m][n], hi_part[m][0], hi_part[m][1], x);
                        mma_octet(acc[m][n], lo_part[m][0], lo_part[m][1], x);
                    }
                }
            } else {
                uint32_t raw[MT][2][F::UNROLL][F::WORDS];
                uint32_t fp_scale[MT][2][F::UNROLL];
                float scale[MT][2][4], bias[MT][2][4];
#pragma unroll
                for (int u = 0; u < F::UNROLL; u++) {
                    // A lane whose part lies beyond the row reads its start; its x are zeros.
                    uint32_t k = (blk0 + u) * F::KBLK + t * (F::KBLK / 4);
                    k = k < n_in ? k : 0;
#pragma unroll
                    for (int m = 0; m < MT; m++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            F::load(raw[m][h][u], w0, row_data[m][h], k);
                            if constexpr (F::SCALED)
                                fp_scale[m][h][u] =
                                    F::load_scale(glu && m >= MT / 2 ? w1 : w0, row_groups[m][h], k);
                        }
                }
                if constexpr (F::GROUPED) {
#pragma unroll
                    for (int m = 0; m < MT; m++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const wview &w = glu && m >= MT / 2 ? w1 : w0;
                            load_four(scale[m][h], w.scales, row_groups[m][h], blk0, shift, n_blks,
                                      w0.scale_dtype, wide);
                            load_four(bias[m][h], w.biases, row_groups[m][h], blk0, shift, n_blks,
                                      w0.scale_dtype, wide);
                        }
                }
#pragma unroll
                for (int u = 0; u < F::UNROLL; u++) {
                    if (blk0 + u >= n_blks)
                        break;
                    const uint32_t k0 = (blk0 + u) * F::KBLK + t * (F::KBLK / 4);
                    float part[MT][NT][4], ones_part[NT][4];
                    if constexpr (F::GROUPED) {
#pragma unroll
                        for (int n = 0; n < NT; n++)
#pragma unroll
                            for (int i = 0; i < 4; i++) {
                                ones_part[n][i] = 0;
#pragma unroll
                                for (int m = 0; m < MT; m++)
                                    part[m][n][i] = 0;
                            }
                    }
#pragma unroll
                    for (int oct = 0; oct < F::KBLK / 32; oct++) {
                        octet x[NT];
#pragma unroll
                        for (int n = 0; n < NT; n++) {
                            uint4 v = make_uint4(0, 0, 0, 0);
                            if (x_there[n] && k0 + oct * 8 < n_in)
                                v = *(const uint4 *)(x_row[n] + k0 + oct * 8);
                            x[n] = arrange<F::PERMUTED>(v);
                        }
#pragma unroll
                        for (int m = 0; m < MT; m++) {
                            octet lo = F::unpack(raw[m][0][u], oct), hi = F::unpack(raw[m][1][u], oct);
                            if constexpr (F::SCALED) {
#pragma unroll
                                for (int i = 0; i < 4; i++) {
                                    lo.v[i] = bf16x2_mul(lo.v[i], fp_scale[m][0][u]);
                                    hi.v[i] = bf16x2_mul(hi.v[i], fp_scale[m][1][u]);
                                }
                            }
#pragma unroll
                            for (int n = 0; n < NT; n++)
                                mma_octet(F::GROUPED ? part[m][n] : acc[m][n], lo, hi, x[n]);
                        }
                        if constexpr (F::GROUPED) {
                            const octet ones = {{0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u}};
#pragma unroll
                            for (int n = 0; n < NT; n++)
                                mma_octet(ones_part[n], ones, ones, x[n]);
                        }
                    }
                    if constexpr (F::GROUPED) {
#pragma unroll
                        for (int m = 0; m < MT; m++)
#pragma unroll
                            for (int h = 0; h < 2; h++) {
                                float s = scale[m][h][u], b = bias[m][h][u] - F::OFFSET * s;
#pragma unroll
                                for (int n = 0; n < NT; n++)
#pragma unroll
                                    for (int i = 0; i < 2; i++)
                                        acc[m][n][2 * h + i] +=
                                            s * part[m][n][2 * h + i] + b * ones_part[n][i];
                            }
                    }
                }
            }
        }

        // Sum over the warps and finish.
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    partial[warp][n * 8 + 2 * t + i % 2][m * 16 + g + i / 2 * 8] = acc[m][n][i];
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < tile_rows * COLS; i += blockDim.x) {
            const uint32_t r = i % tile_rows, c = i / tile_rows, at = base + c, row = row0 + r;
            if (row >= n_out || at >= to)
                continue;
            float v = 0, up = 0;
#pragma unroll
            for (int k = 0; k < PRODUCT_WARPS; k++)
                v += partial[k][c][r];
            const float *bias = args.out[o].bias;
            if (args.experts && args.expert_bias)
                bias = args.expert_bias + (uint64_t)expert * n_out;
            if (bias)
                v += bias[row];
            if (glu) {
#pragma unroll
                for (int k = 0; k < PRODUCT_WARPS; k++)
                    up += partial[k][c][r + ROWS / 2];
                const float *bias_up = args.out[1].bias;
                if (args.experts && args.expert_bias_up)
                    bias_up = args.expert_bias_up + (uint64_t)expert * n_out;
                if (bias_up)
                    up += bias_up[row];
                v = glu_value(args.glu, v, up, args.alpha, args.limit);
            }
            v *= args.scale;
            if (args.softcap > 0)
                v = args.softcap * tanhf(v / args.softcap);
            const uint64_t out_at = (uint64_t)(args.experts ? args.pairs[at] : at) * args.out[o].ldy + row;
            if (args.out[o].y32) {
                args.out[o].y32[out_at] = v;
            } else {
                if (args.flags & PRODUCT_ADD)
                    v += __bfloat162float(args.out[o].y[out_at]);
                args.out[o].y[out_at] = __float2bfloat16(v);
            }
        }
    }
}

template <class F, int NT> static void product_launch(cudaStream_t stream, const product_args &args, uint32_t tiles) {
    product_kernel<F, NT><<<dim3(tiles, args.experts ? args.active_max : 1), PRODUCT_WARPS * WARP, 0, stream>>>(
        args);
}
// As many columns at once as there are rows, up to 32.
template <class F> static void product_rows(cudaStream_t stream, const product_args &args, uint32_t tiles,
                                            uint32_t n) {
    if (n <= 8)
        product_launch<F, 1>(stream, args, tiles);
    else if (n <= 16)
        product_launch<F, 2>(stream, args, tiles);
    else
        product_launch<F, 4>(stream, args, tiles);
}

// One instance per file, so that they compile side by side.
void product_q4(cudaStream_t stream, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group);
void product_q8(cudaStream_t stream, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group);
void product_qx(cudaStream_t stream, const product_args &args, uint32_t tiles, uint32_t n, uint32_t bits);
void product_float(cudaStream_t stream, const product_args &args, uint32_t tiles, uint32_t n,
                   uint32_t format, bool wide);
#endif
