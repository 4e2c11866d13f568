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

enum { PRODUCT_WARPS = 8, PRODUCT_MT = 2, PRODUCT_PREFETCH = 2048 }; // warps at most; bytes of a row

// An octet is 8 neighbouring weights of a row: four words of two bf16, in the order of the x words.
struct octet {
    uint32_t v[4];
};

// A format: in blocks of KBLK inputs lane t of a quad reads the KBLK / 4 from t * KBLK / 4 on, which are
// WORDS words; UNROLL blocks are loaded together here, CHUNK blocks in stream.cuh.
template <int WORDS> __device__ __forceinline__ void load_words(uint32_t r[WORDS], const uint8_t *p, bool there) {
    if constexpr (WORDS == 1) {
        r[0] = load_weight_4(p, there);
    } else if constexpr (WORDS == 2) {
        uint2 v = load_weight_8(p, there);
        r[0] = v.x, r[1] = v.y;
    } else {
        uint4 v = load_weight_16(p, there);
        r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
    }
}

// 4-bit affine. Nibbles i and i + 4 of a word pair up, hence PERMUTED.
template <int GROUP> struct format_q4 {
    static constexpr int KBLK = GROUP, WORDS = GROUP / 32, UNROLL = 128 / GROUP, CHUNK = 128 / GROUP, BLK_BYTES = KBLK / 2;
    static constexpr float OFFSET = 128;
    static constexpr bool GROUPED = true, PERMUTED = true, SCALED = false, SLOW = false;
    static __device__ __forceinline__ uint32_t lane_bytes(uint32_t t) { return t * (BLK_BYTES / 4); }
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const uint8_t *p, bool there) {
        load_words<WORDS>(r, p, there);
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o, uint32_t magic, uint32_t) {
        octet out;
#pragma unroll
        for (int i = 0; i < 4; i++)
            out.v[i] = and_or(r[o] >> 4 * i, 0x000F000Fu, magic);
        return out;
    }
};

// 8-bit affine. 128 + q would need 9 bits: q itself is exact in bf16.
template <int BLK> struct format_q8 {
    static constexpr int KBLK = BLK, WORDS = BLK / 16, UNROLL = 64 / BLK, CHUNK = 64 / BLK, BLK_BYTES = KBLK;
    static constexpr float OFFSET = 0;
    static constexpr bool GROUPED = true, PERMUTED = false, SCALED = false, SLOW = false;
    static __device__ __forceinline__ uint32_t lane_bytes(uint32_t t) { return t * (BLK_BYTES / 4); }
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const uint8_t *p, bool there) {
        load_words<WORDS>(r, p, there);
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o, uint32_t, uint32_t) {
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

// 2, 3, 5 and 6 bits: a lane's 8 weights are `BITS` bytes of the row's stream, from any byte on; three
// words hold them. Weights lie 12 bytes or more before the end of their memory: reading on is safe.
template <int BITS> struct format_qx {
    static constexpr int KBLK = 32, WORDS = 3, UNROLL = 2, CHUNK = 2, BLK_BYTES = 4 * BITS;
    static constexpr float OFFSET = 128;
    static constexpr bool GROUPED = true, PERMUTED = false, SCALED = false, SLOW = false;
    static __device__ __forceinline__ uint32_t lane_bytes(uint32_t t) { return t * BITS & ~3u; }
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const uint8_t *p, bool there) {
        r[0] = load_weight_4(p, there);
        r[1] = load_weight_4(p + 4, there);
        r[2] = BITS > 4 ? load_weight_4(p + 8, there) : 0;
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int, uint32_t magic, uint32_t t) {
        octet out;
        const uint32_t shift = t * BITS % 4 * 8, mask = (1u << BITS) - 1;
        const uint64_t stream = (uint64_t)__funnelshift_r(r[1], r[2], shift) << 32 | __funnelshift_r(r[0], r[1], shift);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t two = (uint32_t)(stream >> 2 * BITS * i);
            out.v[i] = and_or(two << (16 - BITS), mask << 16, and_or(two, mask, magic));
        }
        return out;
    }
};

struct format_bf16 {
    static constexpr int KBLK = 32, WORDS = 4, UNROLL = 2, CHUNK = 2, BLK_BYTES = 64;
    static constexpr bool GROUPED = false, PERMUTED = false, SCALED = false, SLOW = false;
    static __device__ __forceinline__ uint32_t lane_bytes(uint32_t t) { return t * (BLK_BYTES / 4); }
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const uint8_t *p, bool there) {
        load_words<WORDS>(r, p, there);
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int, uint32_t, uint32_t) {
        return octet{{r[0], r[1], r[2], r[3]}};
    }
};

// The scale of E8M0 as a pair of bf16: its bits are a bf16's exponent.
__device__ __forceinline__ uint32_t e8m0_pair(uint8_t e) {
    uint32_t h = e == 255 ? 0x7FC0u : e ? (uint32_t)e << 7 : 0x0040u;
    return h | h << 16;
}

// E2M1 codes: the bits of exponent and mantissa put into a bf16's are the value times 2^-126. Scales have
// few significant bits, so the products with values are exact in bf16. A lane's piece has one scale.
template <int GROUP> struct format_fp4 {
    static constexpr int KBLK = GROUP * 4, WORDS = GROUP / 8, UNROLL = 32 / GROUP, CHUNK = 32 / GROUP, BLK_BYTES = KBLK / 2;
    static constexpr bool GROUPED = false, PERMUTED = true, SCALED = true, SLOW = false;
    static __device__ __forceinline__ uint32_t lane_bytes(uint32_t t) { return t * (BLK_BYTES / 4); }
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const uint8_t *p, bool there) {
        load_words<WORDS>(r, p, there);
    }
    static __device__ __forceinline__ uint32_t load_scale(const void *scales, uint32_t row, uint32_t k) {
        return __ldg((const uint8_t *)scales + row + k / GROUP);
    }
    static __device__ __forceinline__ uint32_t scale_pair(uint32_t e) {
        if constexpr (GROUP == 32)
            return e8m0_pair((uint8_t)e);
        // E4M3: its bits as a bf16's, times 2^120. Scales are positive; NaN (0x7F) reads as 480.
        const uint32_t h = (e & 0x7F) << 4;
        return bf16x2_mul(h | h << 16, 0x7B807B80u);
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o, uint32_t, uint32_t) {
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
    static constexpr int KBLK = 64, WORDS = 4, UNROLL = 1, CHUNK = 1, BLK_BYTES = 64;
    static constexpr bool GROUPED = false, PERMUTED = false, SCALED = true, SLOW = false;
    static __device__ __forceinline__ uint32_t lane_bytes(uint32_t t) { return t * (BLK_BYTES / 4); }
    static __device__ __forceinline__ void load(uint32_t r[WORDS], const uint8_t *p, bool there) {
        load_words<WORDS>(r, p, there);
    }
    static __device__ __forceinline__ uint32_t load_scale(const void *scales, uint32_t row, uint32_t k) {
        return __ldg((const uint8_t *)scales + row + k / 32);
    }
    static __device__ __forceinline__ uint32_t scale_pair(uint32_t e) {
        return e8m0_pair((uint8_t)e);
    }
    static __device__ __forceinline__ octet unpack(const uint32_t r[WORDS], int o, uint32_t, uint32_t) {
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
    static constexpr int KBLK = 32, WORDS = 1, UNROLL = 1, BLK_BYTES = 0;
    static constexpr bool GROUPED = false, PERMUTED = false, SCALED = false, SLOW = true;
    static __device__ __forceinline__ uint32_t lane_bytes(uint32_t) { return 0; }
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

// How a kernel reads scales and biases: the neighbours of a chunk at once, of one type; or each by itself,
// any type.
enum scale_read { SCALES_BF16, SCALES_F16, SCALES_ANY };

// Scales (or biases) of a chunk's N blocks, as loaded: nothing waits for them until they are used.
template <int S, int N> struct chunk_scales {
    uint32_t raw[(N + 1) / 2];
    __device__ __forceinline__ void load(const void *scales, uint32_t at, uint32_t blk0, uint32_t, uint32_t n_blks,
                                         uint32_t) {
        const uint16_t *p = (const uint16_t *)scales + at + blk0;
        const bool there = blk0 < n_blks;
        if constexpr (N == 8) {
            const uint4 v = load_weight_16(p, there);
            raw[0] = v.x, raw[1] = v.y, raw[2] = v.z, raw[3] = v.w;
        } else if constexpr (N == 4) {
            const uint2 v = load_weight_8(p, there);
            raw[0] = v.x, raw[1] = v.y;
        } else if constexpr (N == 2) {
            raw[0] = load_weight_4(p, there);
        } else {
            raw[0] = load_weight_2(p, there);
        }
    }
    __device__ __forceinline__ float get(int u) const {
        const uint32_t two = raw[u / 2];
        if constexpr (S == SCALES_BF16)
            return u % 2 ? bf16_hi(two) : bf16_lo(two);
        return __half2float(__ushort_as_half((unsigned short)(u % 2 ? two >> 16 : two & 0xFFFF)));
    }
};
template <int N> struct chunk_scales<SCALES_ANY, N> {
    float value[N];
    __device__ __forceinline__ void load(const void *scales, uint32_t at, uint32_t blk0, uint32_t shift,
                                         uint32_t n_blks, uint32_t dtype) {
#pragma unroll
        for (int u = 0; u < N; u++) {
            const uint32_t blk = blk0 + u < n_blks ? blk0 + u : n_blks - 1;
            value[u] = scale_value(scales, at + (blk >> shift), dtype);
        }
    }
    __device__ __forceinline__ float get(int u) const {
        return value[u];
    }
};

// A chunk of a lane's rows.
template <class F, int S> struct chunk {
    uint32_t w[PRODUCT_MT][2][F::UNROLL][F::WORDS];
    uint32_t fp_scale[PRODUCT_MT][2][F::UNROLL];
    chunk_scales<S, F::UNROLL> scale[PRODUCT_MT][2], bias[PRODUCT_MT][2];
};

template <class F, int NT, int S>
__global__ void __maxnreg__(NT == 1 ? 128 : 168) product_kernel(const __grid_constant__ product_args args) {
    constexpr int MT = PRODUCT_MT, ROWS = MT * 16, COLS = NT * 8;
    __shared__ float partial[PRODUCT_WARPS][COLS][ROWS + 1];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool glu = args.flags & PRODUCT_GLU;
    const uint32_t n_warps = args.n_warps, magic = args.magic;

    // Which product, and which of its tiles.
    uint32_t o = 0, tile = blockIdx.x;
    while (o + 1 < args.n_outs && tile >= args.tile_end[o])
        o++;
    if (o)
        tile -= args.tile_end[o - 1];
    uint32_t from = 0, to = args.n, expert = 0;
    if (args.experts) {
        wait_for_previous();
        if (blockIdx.y >= args.active[0])
            return;
        expert = args.active[1 + blockIdx.y];
        from = args.offsets[expert];
        to = args.offsets[expert + 1];
    }
    const wview *w[2];
    w[0] = args.experts ? &args.experts[expert] : &args.out[o].w;
    w[1] = !glu ? w[0] : args.experts ? &args.experts_up[expert] : &args.out[1].w;
    const uint32_t tile_rows = glu ? ROWS / 2 : ROWS, row0 = tile * tile_rows;
    const uint32_t n_in = w[0]->n_in, n_out = w[0]->n_out, n_groups = w[0]->n_groups;

    // A warp's rows: in a GLU the first half of the tiles are the gate's, the second the other's.
    const uint8_t *row_data[MT][2];
    uint32_t row_at[MT][2];
    const void *scales[MT], *biases[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const wview *own = w[m / (MT / 2)];
        scales[m] = own->scales, biases[m] = own->biases;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t row = row0 + (glu ? m % (MT / 2) : m) * 16 + h * 8 + g;
            row = row < n_out ? row : n_out - 1;
            row_data[m][h] = own->data + row * own->row_bytes + F::lane_bytes(t);
            row_at[m][h] = F::SLOW ? row : row * n_groups;
        }
    }
    const uint32_t n_blks = (n_in + F::KBLK - 1) / F::KBLK, dtype = w[0]->scale_dtype;
    const uint32_t per_group = F::GROUPED ? w[0]->group / F::KBLK : 1;
    const uint32_t shift = per_group == 4 ? 2 : per_group == 2 ? 1 : 0;

    if (!args.experts) {
        // Bring the rows into L2 while the kernel before finishes: 8 threads a row.
        const uint32_t n_bytes = w[0]->row_bytes < PRODUCT_PREFETCH ? (uint32_t)w[0]->row_bytes : PRODUCT_PREFETCH;
        for (uint32_t r = threadIdx.x / 8; r < ROWS; r += n_warps * 4) {
            const uint32_t row = row0 + (glu ? r % (ROWS / 2) : r);
            const wview *own = r < ROWS / 2 ? w[0] : w[1];
            const uint8_t *p = own->data + row * own->row_bytes;
            if (row < n_out)
                for (uint32_t i = threadIdx.x % 8 * 128; i < n_bytes; i += 1024)
                    asm volatile("prefetch.global.L2 [%0];" ::"l"(p + i));
        }
        wait_for_previous();
    }

    for (uint32_t base = from; base < to; base += COLS) {
        const bf16 *x_row[NT];
        uint32_t x_end[NT]; // n_in; 0 in a column without x
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t at = base + n * 8 + g;
            x_end[n] = at < to ? n_in : 0;
            uint32_t x_at = at >= to ? 0 : args.experts ? args.pairs[at] / args.pair_div : at;
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

        if constexpr (F::SLOW) {
            for (uint32_t blk0 = warp; blk0 < n_blks; blk0 += n_warps) {
                const uint32_t k0 = blk0 * F::KBLK + t * 8;
                octet hi_part[MT][2], lo_part[MT][2];
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float f[8], rest[8];
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            f[i] = k0 + i < n_in ? weight_value(*w[m / (MT / 2)], row_at[m][h], k0 + i) : 0.0f;
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
                        f[i] = k0 + i < x_end[n] ? __bfloat162float(x_row[n][k0 + i]) : 0.0f;
                    octet x = F::high(f);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        mma_octet(acc[m][n], hi_part[m][0], hi_part[m][1], x);
                        mma_octet(acc[m][n], lo_part[m][0], lo_part[m][1], x);
                    }
                }
            }
        } else {
            // The next chunk is on its way while this one is multiplied.
            chunk<F, S> next;
            const uint32_t step = n_warps * F::UNROLL;
            auto load_chunk = [&](uint32_t blk0) {
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const uint8_t *p = row_data[m][h] + (uint64_t)blk0 * F::BLK_BYTES;
#pragma unroll
                        for (int u = 0; u < F::UNROLL; u++) {
                            const uint32_t k = (blk0 + u) * F::KBLK + t * (F::KBLK / 4);
                            F::load(next.w[m][h][u], p + u * F::BLK_BYTES, k < n_in);
                            if constexpr (F::SCALED)
                                next.fp_scale[m][h][u] = F::load_scale(scales[m], row_at[m][h], k < n_in ? k : 0);
                        }
                        if constexpr (F::GROUPED) {
                            next.scale[m][h].load(scales[m], row_at[m][h], blk0, shift, n_blks, dtype);
                            next.bias[m][h].load(biases[m], row_at[m][h], blk0, shift, n_blks, dtype);
                        }
                    }
            };
            uint32_t blk0 = warp * F::UNROLL;
            if (blk0 < n_blks)
                load_chunk(blk0);
            for (; blk0 < n_blks; blk0 += step) {
                constexpr int OCTS = F::KBLK / 32;
                const chunk<F, S> now = next;
                const uint32_t k_lane = blk0 * F::KBLK + t * (F::KBLK / 4);
                uint4 x_raw[NT == 1 ? F::UNROLL * OCTS : 1];
                if constexpr (NT == 1) {
#pragma unroll
                    for (int i = 0; i < F::UNROLL * OCTS; i++) {
                        const uint32_t k = k_lane + i / OCTS * F::KBLK + i % OCTS * 8;
                        x_raw[i] = load_or_zero(x_row[0] + k, k < x_end[0]);
                    }
                }
                if (blk0 + step < n_blks)
                    load_chunk(blk0 + step);
#pragma unroll
                for (int u = 0; u < F::UNROLL; u++) {
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
                    for (int oct = 0; oct < OCTS; oct++) {
                        octet x[NT];
#pragma unroll
                        for (int n = 0; n < NT; n++) {
                            const uint32_t k = k_lane + u * F::KBLK + oct * 8;
                            x[n] = arrange<F::PERMUTED>(NT == 1 ? x_raw[NT == 1 ? u * OCTS + oct : 0]
                                                                : load_or_zero(x_row[n] + k, k < x_end[n]));
                        }
#pragma unroll
                        for (int m = 0; m < MT; m++) {
                            octet lo = F::unpack(now.w[m][0][u], oct, magic, t), hi = F::unpack(now.w[m][1][u], oct, magic, t);
                            if constexpr (F::SCALED) {
#pragma unroll
                                for (int i = 0; i < 4; i++) {
                                    lo.v[i] = bf16x2_mul(lo.v[i], F::scale_pair(now.fp_scale[m][0][u]));
                                    hi.v[i] = bf16x2_mul(hi.v[i], F::scale_pair(now.fp_scale[m][1][u]));
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
                                const float s = now.scale[m][h].get(u), b = fmaf(-F::OFFSET, s, now.bias[m][h].get(u));
#pragma unroll
                                for (int n = 0; n < NT; n++)
#pragma unroll
                                    for (int i = 0; i < 2; i++)
                                        acc[m][n][2 * h + i] =
                                            fmaf(s, part[m][n][2 * h + i], fmaf(b, ones_part[n][i], acc[m][n][2 * h + i]));
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
            for (uint32_t k = 0; k < n_warps; k++)
                v += partial[k][c][r];
            const float *bias = args.out[o].bias;
            if (args.experts && args.expert_bias)
                bias = args.expert_bias + (uint64_t)expert * n_out;
            if (bias)
                v += bias[row];
            if (glu) {
                for (uint32_t k = 0; k < n_warps; k++)
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

template <class F, int NT, int S>
static void product_launch(struct cuda_backend *cu, const product_args &args, uint32_t tiles) {
    launch(cu, product_kernel<F, NT, S>, dim3(tiles, args.experts ? args.active_max : 1), args.n_warps * WARP, 0,
           "product", args);
}
// 8 columns at once, or 16.
template <class F, int S>
static void product_rows(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n) {
    if (n <= 8)
        product_launch<F, 1, S>(cu, args, tiles);
    else
        product_launch<F, 2, S>(cu, args, tiles);
}
// By how the scales can be read.
template <class F>
static void product_scales(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n) {
    const wview &w = args.out[0].w;
    if (w.group != F::KBLK || w.n_groups % F::UNROLL || w.scale_dtype == DTYPE_F32)
        product_rows<F, SCALES_ANY>(cu, args, tiles, n);
    else if (w.scale_dtype == DTYPE_BF16)
        product_rows<F, SCALES_BF16>(cu, args, tiles, n);
    else
        product_rows<F, SCALES_F16>(cu, args, tiles, n);
}

// One instance per file, so that they compile side by side.
void product_q4(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group);
void product_q8(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group);
void product_qx(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n, uint32_t bits);
void product_float(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n,
                   uint32_t format, bool wide);
#endif
