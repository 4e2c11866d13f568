#include "backend/cpu/linear_x86.h"
#include "base/half.h"

// ---- Rounding -----------------------------------------------------------------------------------
// Eight values as int32, by the rules of the scalar form.
ALWAYS __m256i round8(const float *x, __m256 to_int) {
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x), to_int);
    return _mm256_cvtps_epi32(_mm256_max_ps(v, _mm256_set1_ps(-127.0f))); // a NaN gives -127
}

ALWAYS int32_t sum_epi32(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

static void quantize(const float *x, uint32_t n, uint32_t group, bool nibbles, int8_t *q, float *scales,
                     float *sums, int32_t *isums) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    const __m128i order = nibbles ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                                  : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (uint32_t g = 0; g < n / group; g++, x += group, q += group) {
        __m256i top8 = _mm256_setzero_si256();
        for (uint32_t i = 0; i < group; i += 8)
            top8 = _mm256_max_epi32(
                top8, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude));
        __m128i top = _mm_max_epi32(_mm256_castsi256_si128(top8), _mm256_extracti128_si256(top8, 1));
        top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4E));
        top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xB1));
        float absmax = f32_from_bits((uint32_t)_mm_cvtsi128_si32(top));
        bool zero = absmax < 0x1p-100f;
        __m256 to_int = _mm256_set1_ps(zero ? 0.0f : 127.0f / absmax);
        __m256i sum8 = _mm256_setzero_si256();
        for (uint32_t i = 0; i < group; i += 16) {
            __m256i a = round8(x + i, to_int), b = round8(x + i + 8, to_int);
            sum8 = _mm256_add_epi32(sum8, _mm256_add_epi32(a, b));
            __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
            __m128i bytes =
                _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
            _mm_storeu_si128((__m128i *)(q + i), _mm_shuffle_epi8(bytes, order));
        }
        int32_t sum = sum_epi32(sum8);
        scales[g] = zero ? 0.0f : absmax * (1.0f / 127.0f);
        sums[g] = scales[g] * (float)sum;
        isums[g] = sum;
    }
}

// ---- Unpacking ----------------------------------------------------------------------------------
// Codes of 2, 3, 5 or 6 bits in their natural order, 32 at a time: a byte shuffle brings the two bytes that
// hold a code into a 16-bit lane, a multiplication shifts the code to the lane's top.
struct unpacker {
    __m256i bytes[2]; // of codes 0..7 and 8..15 of each half
    __m256i shift;
};

static struct unpacker unpacker_init(uint32_t bits) {
    uint8_t bytes[2][16];
    uint16_t shift[8];
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t bit = i * bits, byte = bit / 8;
        uint32_t next = bit % 8 + bits > 8 ? byte + 1 : byte;
        for (uint32_t half = 0; half < 2; half++) {
            bytes[half][2 * i] = (uint8_t)(byte + half * bits);
            bytes[half][2 * i + 1] = (uint8_t)(next + half * bits);
        }
        shift[i] = (uint16_t)(1u << (16 - bits - bit % 8));
    }
    struct unpacker u;
    for (int half = 0; half < 2; half++)
        u.bytes[half] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes[half]));
    u.shift = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)shift));
    return u;
}

ALWAYS __m256i load_halves(const uint8_t *low, const uint8_t *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

ALWAYS __m256i unpack32(const struct unpacker *u, const uint8_t *src, const uint32_t bits) {
    __m256i data = load_halves(src, src + 2 * bits); // 16 codes a half
    __m256i low = _mm256_mullo_epi16(_mm256_shuffle_epi8(data, u->bytes[0]), u->shift);
    __m256i high = _mm256_mullo_epi16(_mm256_shuffle_epi8(data, u->bytes[1]), u->shift);
    int down = (int)(16 - bits);
    return _mm256_packus_epi16(_mm256_srli_epi16(low, down), _mm256_srli_epi16(high, down));
}

// n is a multiple of 32. `src` may end with the last code, which a load of 16 bytes would pass.
ALWAYS void unpack_width(const struct unpacker *u, const uint8_t *src, uint32_t n, uint8_t *codes,
                         const uint32_t bits) {
    uint32_t i = 0;
    for (; n - i >= 16 + 128 / bits && n - i >= 32; i += 32, src += 4 * bits)
        _mm256_storeu_si256((__m256i *)(codes + i), unpack32(u, src, bits));
    for (; i < n; i += 32, src += 4 * bits) {
        uint8_t last[32] = {0};
        memcpy(last, src, 4 * bits);
        _mm256_storeu_si256((__m256i *)(codes + i), unpack32(u, last, bits));
    }
}

static void unpack_codes(const struct unpacker *u, uint32_t bits, const uint8_t *src, uint32_t n, uint8_t *codes) {
    if (bits == 2)
        unpack_width(u, src, n, codes, 2);
    else if (bits == 3)
        unpack_width(u, src, n, codes, 3);
    else if (bits == 4)
        unpack_width(u, src, n, codes, 4);
    else if (bits == 5)
        unpack_width(u, src, n, codes, 5);
    else
        unpack_width(u, src, n, codes, 6);
}

// ---- Panels -------------------------------------------------------------------------------------
// Sixteen bytes of each of eight rows: to[i] = their 32-bit piece i, row after row.
ALWAYS void transpose(const uint8_t *const rows[8], size_t at, __m256i to[4]) {
    __m256i r0 = load_halves(rows[0] + at, rows[4] + at), r1 = load_halves(rows[1] + at, rows[5] + at);
    __m256i r2 = load_halves(rows[2] + at, rows[6] + at), r3 = load_halves(rows[3] + at, rows[7] + at);
    __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpackhi_epi32(r0, r1);
    __m256i c = _mm256_unpacklo_epi32(r2, r3), d = _mm256_unpackhi_epi32(r2, r3);
    to[0] = _mm256_unpacklo_epi64(a, c);
    to[1] = _mm256_unpackhi_epi64(a, c);
    to[2] = _mm256_unpacklo_epi64(b, d);
    to[3] = _mm256_unpackhi_epi64(b, d);
}

// Pieces of 16 bytes, each 32 codes.
ALWAYS void pack_nibbles(const uint8_t *const rows[8], uint32_t n_k, const char *next, uint8_t *codes, bool f4) {
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i f4_codes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)F4_CODES));
    for (uint32_t at = 0; at < n_k / 2; at += 16, codes += 512) {
        if (at % 64 == 0)
            next = prefetch_eight(next);
        __m256i words[4];
        transpose(rows, at, words);
        UNROLL for (int i = 0; i < 4; i++) {
            __m256i even = _mm256_and_si256(words[i], low);
            __m256i odd = _mm256_and_si256(_mm256_srli_epi16(words[i], 4), low);
            if (f4) {
                even = _mm256_shuffle_epi8(f4_codes, even);
                odd = _mm256_shuffle_epi8(f4_codes, odd);
            }
            _mm256_store_si256((__m256i *)(codes + 128 * i), even);
            _mm256_store_si256((__m256i *)(codes + 128 * i + 64), odd);
        }
    }
}

// Pieces of 16 bytes, each 16 codes.
ALWAYS void pack_bytes(const uint8_t *const rows[8], uint32_t n_k, const char *next, uint8_t *codes, bool prefetch) {
    for (uint32_t at = 0; at < n_k; at += 16, codes += 256) {
        if (prefetch && at % 64 == 0)
            next = prefetch_eight(next);
        __m256i words[4];
        transpose(rows, at, words);
        UNROLL for (int i = 0; i < 4; i++)
            _mm256_store_si256((__m256i *)(codes + 64 * i), words[i]);
    }
}

static void pack_codes(const struct weight *w, uint32_t out, uint32_t k, uint32_t n_k, const void *following,
                       uint8_t *codes) {
    if (w->nibbles && n_k % 32 != 0) { // NVFP4's odd number of groups
        linear_pack_codes_ref(w, out, k, n_k, following, codes);
        return;
    }
    for (uint32_t half = 0; half < 2; half++) {
        const char *next = (const char *)following + (size_t)half * n_k * w->bits;
        const uint8_t *rows[8];
        rows_from(w, (const uint8_t *)w->desc.data + (size_t)k * w->bits / 8, w->row_bytes, out + 8 * half, rows);
        uint8_t *to = codes + 32 * half;
        if (w->bits == 8) {
            pack_bytes(rows, n_k, next, to, true);
        } else if (w->nibbles) {
            if (w->code_zero)
                pack_nibbles(rows, n_k, next, to, true);
            else
                pack_nibbles(rows, n_k, next, to, false);
        } else {
            enum { PIECE = 256 };
            _Alignas(32) uint8_t plain[8][PIECE];
            const uint8_t *plain_rows[8];
            struct unpacker u = unpacker_init(w->bits);
            for (uint32_t from = 0, n; from < n_k; from += n) {
                n = n_k - from < PIECE ? n_k - from : PIECE;
                for (uint32_t r = 0; r < 8; r++) {
                    const uint8_t *src = rows[r] + (size_t)from * w->bits / 8;
                    for (uint32_t b = 0; b < n * w->bits / 8; b += 64, next += 64)
                        _mm_prefetch(next, _MM_HINT_T1);
                    unpack_codes(&u, w->bits, src, n, plain[r]);
                    plain_rows[r] = plain[r];
                }
                pack_bytes(plain_rows, n, NULL, to + (size_t)from * PANEL_OUTS, false);
            }
        }
    }
}

ALWAYS void pack_scale_kind(const struct weight *w, const void *data, uint32_t out, uint32_t group,
                            uint32_t n_groups, enum scale_kind kind, float *to) {
    for (uint32_t half = 0; half < 2; half++) {
        const uint8_t *rows[8];
        rows_from(w, data, (size_t)w->n_groups * (kind <= SCALE_F16 ? 2 : 1), out + 8 * half, rows);
        uint32_t g = 0;
        for (; g + 8 <= n_groups; g += 8)
            scale_block(rows, group + g, 8, kind, to + 8 * half + g * PANEL_OUTS, PANEL_OUTS);
        if (g < n_groups)
            scale_block(rows, group + g, n_groups - g, kind, to + 8 * half + g * PANEL_OUTS, PANEL_OUTS);
    }
}

static void pack_scales(const struct weight *w, uint32_t out, uint32_t group, uint32_t n_groups, float *scales,
                        float *biases) {
    const void *s = w->desc.scales, *b = w->desc.biases;
    if (w->desc.format == WEIGHT_NVFP4) {
        pack_scale_kind(w, s, out, group, n_groups, SCALE_E4M3, scales);
    } else if (w->desc.format == WEIGHT_MXFP4) {
        pack_scale_kind(w, s, out, group, n_groups, SCALE_E8M0, scales);
    } else if (w->desc.scale_dtype == DTYPE_BF16) {
        pack_scale_kind(w, s, out, group, n_groups, SCALE_BF16, scales);
        pack_scale_kind(w, b, out, group, n_groups, SCALE_BF16, biases);
    } else if (w->desc.scale_dtype == DTYPE_F16) {
        pack_scale_kind(w, s, out, group, n_groups, SCALE_F16, scales);
        pack_scale_kind(w, b, out, group, n_groups, SCALE_F16, biases);
    } else {
        linear_pack_scales_ref(w, out, group, n_groups, scales, biases);
    }
}

// ---- Int products -------------------------------------------------------------------------------
// R rows of x by the 16 outputs of a panel. Codes up to 63 are multiplied as they are; vpmaddubsw's
// 16-bit sums hold `flush` products of pairs before they must be widened (2 * code_max * 127 * flush
// < 2^15). 8-bit codes become q - 128, of which vpmaddubsw takes the magnitude and x the sign
// (2 * 128 * 127 < 2^15), and 128 * sum(x_q) is added.
struct int_tile {
    const int8_t *q[4];
    const float *scales[4], *sums[4];
    const int32_t *isums[4];
    float *acc[4];
};

// Keeps the compiler from collecting products first and adding them up in a tree, for which there are
// too few registers.
ALWAYS __m256i in_order(__m256i v) {
    __asm__("" : "+x"(v));
    return v;
}

ALWAYS void int_rows(const struct int_panels *p, const uint8_t *codes, const float *scales, const float *biases,
                     const struct int_tile *t, const int R, const uint32_t flush, const bool bytes,
                     const bool has_bias) {
    const __m256i ones = _mm256_set1_epi16(1), sign_bit = _mm256_set1_epi8((char)0x80);
    uint32_t n_groups = p->n_k / p->group, steps = p->group / 4;
    int32_t code_zero = bytes ? -128 : p->code_zero;
    const int8_t *q[4];
    UNROLL for (int r = 0; r < R; r++)
        q[r] = t->q[r];
    for (uint32_t g = 0; g < n_groups; g++) {
        __m256i dot[4][2];
        UNROLL for (int r = 0; r < R; r++)
            dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        if (bytes) {
            for (uint32_t s = 0; s < steps; s++, codes += 64) {
                __m256i w0 = _mm256_xor_si256(_mm256_load_si256((const __m256i *)codes), sign_bit);
                __m256i w1 = _mm256_xor_si256(_mm256_load_si256((const __m256i *)(codes + 32)), sign_bit);
                __m256i m0 = _mm256_abs_epi8(w0), m1 = _mm256_abs_epi8(w1);
                UNROLL for (int r = 0; r < R; r++) {
                    int32_t four;
                    memcpy(&four, q[r] + 4 * s, sizeof four);
                    __m256i x = _mm256_set1_epi32(four);
                    __m256i p0 = _mm256_maddubs_epi16(m0, _mm256_sign_epi8(x, w0));
                    __m256i p1 = _mm256_maddubs_epi16(m1, _mm256_sign_epi8(x, w1));
                    dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(p0, ones));
                    dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(p1, ones));
                }
            }
        } else {
            for (uint32_t s = 0; s < steps; s += flush) {
                __m256i sum[4][2];
                UNROLL for (int r = 0; r < R; r++)
                    sum[r][0] = sum[r][1] = _mm256_setzero_si256();
                for (uint32_t f = 0; f < flush; f++, codes += 64) {
                    __m256i w0 = _mm256_load_si256((const __m256i *)codes);
                    __m256i w1 = _mm256_load_si256((const __m256i *)(codes + 32));
                    UNROLL for (int r = 0; r < R; r++) {
                        int32_t four;
                        memcpy(&four, q[r] + 4 * (s + f), sizeof four);
                        __m256i x = _mm256_set1_epi32(four);
                        __m256i p0 = _mm256_maddubs_epi16(w0, x), p1 = _mm256_maddubs_epi16(w1, x);
                        sum[r][0] = in_order(_mm256_add_epi16(sum[r][0], p0));
                        sum[r][1] = in_order(_mm256_add_epi16(sum[r][1], p1));
                    }
                }
                UNROLL for (int r = 0; r < R; r++) {
                    dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(sum[r][0], ones));
                    dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(sum[r][1], ones));
                }
            }
        }
        UNROLL for (int r = 0; r < R; r++) {
            q[r] += p->group;
            __m256 scale = _mm256_broadcast_ss(t->scales[r] + g), sum = _mm256_broadcast_ss(t->sums[r] + g);
            UNROLL for (int h = 0; h < 2; h++) {
                if (bytes || !has_bias)
                    dot[r][h] = _mm256_sub_epi32(dot[r][h], _mm256_set1_epi32(code_zero * t->isums[r][g]));
                __m256 a = _mm256_loadu_ps(t->acc[r] + 8 * h);
                a = _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_load_ps(scales + 8 * h)),
                                    _mm256_cvtepi32_ps(dot[r][h]), a);
                if (has_bias)
                    a = _mm256_fmadd_ps(_mm256_load_ps(biases + 8 * h), sum, a);
                _mm256_storeu_ps(t->acc[r] + 8 * h, a);
            }
        }
        scales += PANEL_OUTS;
        if (has_bias)
            biases += PANEL_OUTS;
    }
}

// The loop over rows of a panel, for one kind of code.
#define INT_PANEL(name, flush, bytes, has_bias)                                                          \
    static void name(const struct int_panels *p, const uint8_t *codes, const float *scales,              \
                     const float *biases, const struct int_rows *x, float *acc, size_t acc_stride) {     \
        for (uint32_t r = 0; r < x->n; r += 4) {                                                         \
            struct int_tile t;                                                                           \
            uint32_t n = x->n - r < 4 ? x->n - r : 4;                                                    \
            for (uint32_t i = 0; i < n; i++) {                                                           \
                size_t row = row_at(x->idx, r + i);                                                      \
                t.q[i] = x->q + row * x->q_stride;                                                       \
                t.scales[i] = x->scales + row * x->group_stride;                                         \
                t.sums[i] = x->sums + row * x->group_stride;                                             \
                t.isums[i] = x->isums + row * x->group_stride;                                           \
                t.acc[i] = acc + (r + i) * acc_stride;                                                   \
            }                                                                                            \
            if (n == 4)                                                                                  \
                int_rows(p, codes, scales, biases, &t, 4, flush, bytes, has_bias);                                 \
            else if (n == 3)                                                                             \
                int_rows(p, codes, scales, biases, &t, 3, flush, bytes, has_bias);                                 \
            else if (n == 2)                                                                             \
                int_rows(p, codes, scales, biases, &t, 2, flush, bytes, has_bias);                                 \
            else                                                                                         \
                int_rows(p, codes, scales, biases, &t, 1, flush, bytes, has_bias);                                 \
        }                                                                                                \
    }
INT_PANEL(panel_4bit, 8, false, true)
INT_PANEL(panel_5bit, 4, false, true)
INT_PANEL(panel_6bit, 2, false, true)
INT_PANEL(panel_8bit, 1, true, true)
INT_PANEL(panel_f4, 4, false, false)

static void int_panels(const struct int_panels *p, const struct int_rows *x, float *acc, size_t acc_stride) {
    uint32_t n_groups = p->n_k / p->group;
    for (uint32_t i = 0; i < p->n_panels; i++) {
        const uint8_t *codes = p->codes + (size_t)i * p->n_k * PANEL_OUTS;
        const float *scales = p->scales + (size_t)i * n_groups * PANEL_OUTS;
        const float *biases = p->biases ? p->biases + (size_t)i * n_groups * PANEL_OUTS : NULL;
        (p->code_zero        ? panel_f4
         : p->code_max <= 15 ? panel_4bit
         : p->code_max <= 31 ? panel_5bit
         : p->code_max <= 63 ? panel_6bit
                             : panel_8bit)(p, codes, scales, biases, x, acc + i * PANEL_OUTS, acc_stride);
    }
}

// R rows of x by eight outputs straight from the file's layout: codes are taken apart in registers, once for
// all rows. The same sums as a panel's.
ALWAYS void few_rows8(const struct weight *w, uint32_t out, const struct int_tile *x, uint32_t acc_off,
                      const char *next, const int R, const bool bytes, const bool f4, const enum scale_kind kind) {
    // 16-bit sums: four steps of 4-bit floats fill one, eight of 4-bit codes; one row wants two chains.
    const int chains = f4 || R == 1 ? 2 : 1;
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15), sign_bit = _mm256_set1_epi8((char)0x80);
    const __m256i f4_codes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)F4_CODES));
    const uint8_t *rows[8], *scale_rows[8], *bias_rows[8];
    size_t scale_row_bytes = (size_t)w->n_groups * (kind <= SCALE_F16 ? 2 : 1);
    rows_from(w, w->desc.data, w->row_bytes, out, rows);
    rows_from(w, w->desc.scales, scale_row_bytes, out, scale_rows);
    if (!f4)
        rows_from(w, w->desc.biases, scale_row_bytes, out, bias_rows);
    size_t next_scales = ((size_t)out + PANEL_OUTS) * scale_row_bytes;
    uint32_t piece = bytes ? 16 : 32, pieces = w->group / piece, n_groups = w->n_groups, at = 0, k = 0;
    __m256 sum[4];
    UNROLL for (int r = 0; r < R; r++)
        sum[r] = _mm256_setzero_ps();
    for (uint32_t first = 0, n; first < n_groups; first += n) {
        _Alignas(32) float scales[8][8], biases[8][8];
        n = n_groups - first < 8 ? n_groups - first : 8;
        size_t scale_bytes = 8 * scale_row_bytes / n_groups * n;
        prefetch_lines((const char *)w->desc.scales + next_scales, scale_bytes);
        if (!f4)
            prefetch_lines((const char *)w->desc.biases + next_scales, scale_bytes);
        next_scales += scale_bytes;
        scale_block(scale_rows, first, n, kind, scales[0], 8);
        if (!f4)
            scale_block(bias_rows, first, n, kind, biases[0], 8);
        for (uint32_t i = 0; i < n; i++) {
            __m256i dot[4];
            UNROLL for (int r = 0; r < R; r++)
                dot[r] = _mm256_setzero_si256();
            for (uint32_t p = 0; p < pieces; p++, at += 16, k += piece) {
                if (at % 64 == 0)
                    next = prefetch_eight(next);
                __m256i words[4];
                transpose(rows, at, words);
                if (bytes) {
                    UNROLL for (int j = 0; j < 4; j++) {
                        __m256i v = _mm256_xor_si256(words[j], sign_bit), magnitude = _mm256_abs_epi8(v);
                        UNROLL for (int r = 0; r < R; r++) {
                            int32_t four;
                            memcpy(&four, x->q[r] + k + 4 * j, sizeof four);
                            __m256i product =
                                _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(_mm256_set1_epi32(four), v));
                            dot[r] = in_order(_mm256_add_epi32(dot[r], _mm256_madd_epi16(product, ones)));
                        }
                    }
                    continue;
                }
                __m256i sums[4][2];
                UNROLL for (int j = 0; j < 4; j++) {
                    __m256i even = _mm256_and_si256(words[j], low);
                    __m256i odd = _mm256_and_si256(_mm256_srli_epi16(words[j], 4), low);
                    if (f4) {
                        even = _mm256_shuffle_epi8(f4_codes, even);
                        odd = _mm256_shuffle_epi8(f4_codes, odd);
                    }
                    UNROLL for (int r = 0; r < R; r++) {
                        int32_t four[2];
                        memcpy(four, x->q[r] + k + 8 * j, sizeof four);
                        __m256i p0 = _mm256_maddubs_epi16(even, _mm256_set1_epi32(four[0]));
                        __m256i p1 = _mm256_maddubs_epi16(odd, _mm256_set1_epi32(four[1]));
                        sums[r][0] = j ? _mm256_add_epi16(sums[r][0], p0) : p0;
                        if (chains == 2)
                            sums[r][1] = j ? _mm256_add_epi16(sums[r][1], p1) : p1;
                        else
                            sums[r][0] = in_order(_mm256_add_epi16(sums[r][0], p1));
                    }
                }
                UNROLL for (int r = 0; r < R; r++) {
                    __m256i all = sums[r][0];
                    if (f4)
                        dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(sums[r][1], ones));
                    else if (chains == 2)
                        all = _mm256_add_epi16(all, sums[r][1]);
                    dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(all, ones));
                }
            }
            uint32_t g = first + i;
            UNROLL for (int r = 0; r < R; r++) {
                __m256i whole = dot[r];
                if (f4)
                    whole = _mm256_sub_epi32(whole, _mm256_set1_epi32(w->code_zero * x->isums[r][g]));
                if (bytes)
                    whole = _mm256_add_epi32(whole, _mm256_set1_epi32(128 * x->isums[r][g]));
                __m256 scale = _mm256_mul_ps(_mm256_broadcast_ss(x->scales[r] + g), _mm256_load_ps(scales[i]));
                sum[r] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(whole), sum[r]);
                if (!f4)
                    sum[r] = _mm256_fmadd_ps(_mm256_load_ps(biases[i]), _mm256_broadcast_ss(x->sums[r] + g), sum[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        _mm256_storeu_ps(x->acc[r] + acc_off, sum[r]);
}

// Three go as four, the last one twice. More than four lose to panels: the processor is busy with products.
enum { FEW_ROWS_MAX = 4 };
#define FEW_ROWS(name, bytes, f4, kind)                                                                  \
    static void name(const struct weight *w, uint32_t out, const struct int_tile *x, uint32_t n) {       \
        for (uint32_t o = 0; o < PANEL_OUTS; o += 8) {                                                   \
            const char *behind = (const char *)w->desc.data + ((size_t)out + PANEL_OUTS + o) * w->row_bytes; \
            if (n == 1)                                                                                  \
                few_rows8(w, out + o, x, o, behind, 1, bytes, f4, kind);                                 \
            else if (n == 2)                                                                             \
                few_rows8(w, out + o, x, o, behind, 2, bytes, f4, kind);                                 \
            else                                                                                         \
                few_rows8(w, out + o, x, o, behind, 4, bytes, f4, kind);                                 \
        }                                                                                                \
    }
FEW_ROWS(rows_4bit_bf16, false, false, SCALE_BF16)
FEW_ROWS(rows_4bit_f16, false, false, SCALE_F16)
FEW_ROWS(rows_8bit_bf16, true, false, SCALE_BF16)
FEW_ROWS(rows_8bit_f16, true, false, SCALE_F16)
FEW_ROWS(rows_mxfp4, false, true, SCALE_E8M0)

typedef void few_rows_fn(const struct weight *w, uint32_t out, const struct int_tile *x, uint32_t n);

static few_rows_fn *few_rows_of(const struct weight *w) {
    bool bf16 = w->desc.scale_dtype == DTYPE_BF16;
    if (w->desc.format == WEIGHT_MXFP4)
        return rows_mxfp4;
    if (w->desc.format != WEIGHT_AFFINE || w->desc.scale_dtype == DTYPE_F32)
        return NULL;
    if (w->bits == 4)
        return bf16 ? rows_4bit_bf16 : rows_4bit_f16;
    return w->bits != 8 ? NULL : bf16 ? rows_8bit_bf16 : rows_8bit_f16;
}

static bool int_few(const struct weight *w, uint32_t out, const struct int_rows *x, float *acc, size_t acc_stride) {
    few_rows_fn *fn = few_rows_of(w);
    if (!fn)
        return false;
    struct int_tile t;
    for (uint32_t i = 0; i < (x->n <= 2 ? x->n : FEW_ROWS_MAX); i++) {
        uint32_t r = i < x->n ? i : x->n - 1;
        size_t row = row_at(x->idx, r);
        t.q[i] = x->q + row * x->q_stride;
        t.scales[i] = x->scales + row * x->group_stride;
        t.sums[i] = x->sums + row * x->group_stride;
        t.isums[i] = x->isums + row * x->group_stride;
        t.acc[i] = acc + r * acc_stride;
    }
    fn(w, out, &t, x->n);
    return true;
}

// ---- Float --------------------------------------------------------------------------------------
ALWAYS __m256 load_dense(enum weight_format format, const char *row, size_t i) {
    if (format == WEIGHT_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + i);
    __m128i h = _mm_loadu_si128((const __m128i *)(row + 2 * i));
    return format == WEIGHT_F16 ? _mm256_cvtph_ps(h)
                                : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

ALWAYS __m256i load_codes8(const uint8_t *codes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes));
}

// 32 codes of one group's scale and bias.
ALWAYS void dequantize32(const struct weight *w, const uint8_t *codes, __m256 scale, __m256 bias, float *out) {
    const __m256 f4_values = _mm256_loadu_ps(F4E2M1_VALUES);
    for (uint32_t j = 0; j < 32; j += 8) {
        __m256i code = load_codes8(codes + j);
        __m256 v;
        if (w->desc.format == WEIGHT_AFFINE) {
            v = _mm256_add_ps(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(code)), bias);
        } else if (w->desc.format == WEIGHT_MXFP8) {
            v = _mm256_mul_ps(scale, f8_to_f32(code));
        } else {
            __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(code, 3), 31));
            v = _mm256_mul_ps(scale, _mm256_or_ps(_mm256_permutevar8x32_ps(f4_values, code), sign));
        }
        _mm256_storeu_ps(out + j, v);
    }
}

static void dequantize(const struct weight *w, uint32_t row, uint32_t k, uint32_t n, float *out) {
    const char *data = (const char *)w->desc.data + row * w->row_bytes;
    uint32_t i = 0;
    if (w->desc.format == WEIGHT_F32) {
        memcpy(out, data + 4 * (size_t)k, n * sizeof *out);
        return;
    }
    if (w->desc.format == WEIGHT_BF16) {
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, load_dense(WEIGHT_BF16, data, k + i));
    } else if (w->desc.format == WEIGHT_F16) {
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, load_dense(WEIGHT_F16, data, k + i));
    } else if (w->group >= 32) { // every group begins at a multiple of 32
        struct unpacker u = unpacker_init(w->bits < 8 ? w->bits : 2);
        for (; i + 32 <= n; i += 32) {
            _Alignas(32) uint8_t codes[32];
            const uint8_t *src = (const uint8_t *)data + (size_t)(k + i) * w->bits / 8;
            if (w->bits == 8)
                memcpy(codes, src, sizeof codes);
            else
                unpack_codes(&u, w->bits, src, sizeof codes, codes);
            uint32_t group = (k + i) / w->group;
            float bias = w->desc.format == WEIGHT_AFFINE ? linear_bias_ref(w, row, group) : 0.0f;
            dequantize32(w, codes, _mm256_set1_ps(linear_scale_ref(w, row, group)), _mm256_set1_ps(bias), out + i);
        }
    }
    if (i < n)
        linear_dequantize_ref(w, row, k + i, n - i, out + i);
}

ALWAYS float lanes_sum8(__m256 low, __m256 high) {
    __m256 s8 = _mm256_add_ps(low, high);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s4 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s4, _mm_movehdup_ps(s4)));
}

ALWAYS __m256i tail_mask(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// A block's tile: R rows by O outputs, the half of the lanes that begins at `half` (0 or 8), which leaves
// registers for 4 by 3 sums.
ALWAYS void float_tile(const float *const x[4], const float *w, size_t w_stride, uint32_t n_k, uint32_t half,
                       float *lanes, size_t row_lanes, const int R, const int O) {
    __m256 acc[4][3];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int o = 0; o < O; o++)
            acc[r][o] = _mm256_loadu_ps(lanes + (size_t)r * row_lanes + o * FLOAT_LANES + half);
    uint32_t i = half;
    for (; i + 8 <= n_k; i += 16) {
        __m256 weights[3];
        UNROLL for (int o = 0; o < O; o++)
            weights[o] = _mm256_loadu_ps(w + o * w_stride + i);
        UNROLL for (int r = 0; r < R; r++) {
            __m256 v = _mm256_loadu_ps(x[r] + i);
            UNROLL for (int o = 0; o < O; o++)
                acc[r][o] = _mm256_fmadd_ps(v, weights[o], acc[r][o]);
        }
    }
    if (i - half < n_k) { // padded, also where nothing but padding is left for this half
        __m256i mask = tail_mask(n_k > i ? n_k - i : 0);
        UNROLL for (int r = 0; r < R; r++) {
            __m256 v = _mm256_maskload_ps(x[r] + i, mask);
            UNROLL for (int o = 0; o < O; o++)
                acc[r][o] = _mm256_fmadd_ps(v, _mm256_loadu_ps(w + o * w_stride + i), acc[r][o]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int o = 0; o < O; o++)
            _mm256_storeu_ps(lanes + (size_t)r * row_lanes + o * FLOAT_LANES + half, acc[r][o]);
}

static void float_block(const float *w, size_t w_stride, uint32_t n_outs, const struct float_rows *x,
                        uint32_t n_k, float *lanes) {
    size_t row_lanes = (size_t)n_outs * FLOAT_LANES;
    for (uint32_t r = 0; r < x->n; r += 4) {
        const float *rows[4];
        uint32_t n = x->n - r < 4 ? x->n - r : 4;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = x->x + row_at(x->idx, r + i) * x->stride;
        for (uint32_t o = 0; o < n_outs; o += 3) {
            uint32_t m = n_outs - o < 3 ? n_outs - o : 3;
            float *to = lanes + r * row_lanes + o * FLOAT_LANES;
            const float *from = w + o * w_stride;
            for (uint32_t half = 0; half < 16; half += 8) {
                if (m < 3)
                    for (uint32_t i = 0; i < n; i++)
                        for (uint32_t j = 0; j < m; j++)
                            float_tile(rows + i, from + j * w_stride, w_stride, n_k, half,
                                       to + i * row_lanes + j * FLOAT_LANES, row_lanes, 1, 1);
                else if (n == 4)
                    float_tile(rows, from, w_stride, n_k, half, to, row_lanes, 4, 3);
                else if (n == 3)
                    float_tile(rows, from, w_stride, n_k, half, to, row_lanes, 3, 3);
                else if (n == 2)
                    float_tile(rows, from, w_stride, n_k, half, to, row_lanes, 2, 3);
                else
                    float_tile(rows, from, w_stride, n_k, half, to, row_lanes, 1, 3);
            }
        }
    }
}

ALWAYS void dense_rows(enum weight_format format, const char *w, size_t stride, const float *x, uint32_t n,
                       float *out, const int O) {
    size_t bytes = format == WEIGHT_F32 ? 4 : 2;
    __m256 acc[4][2];
    UNROLL for (int o = 0; o < O; o++)
        acc[o][0] = acc[o][1] = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + i + 8);
        UNROLL for (int o = 0; o < O; o++) {
            const char *row = w + o * stride;
            _mm_prefetch(row + i * bytes + 1024, _MM_HINT_T1);
            acc[o][0] = _mm256_fmadd_ps(x0, load_dense(format, row, i), acc[o][0]);
            acc[o][1] = _mm256_fmadd_ps(x1, load_dense(format, row, i + 8), acc[o][1]);
        }
    }
    if (i < n) {
        float x_last[16] = {0};
        memcpy(x_last, x + i, (n - i) * sizeof *x);
        __m256 x0 = _mm256_loadu_ps(x_last), x1 = _mm256_loadu_ps(x_last + 8);
        UNROLL for (int o = 0; o < O; o++) {
            char last[64] = {0};
            memcpy(last, w + o * stride + i * bytes, (n - i) * bytes);
            acc[o][0] = _mm256_fmadd_ps(x0, load_dense(format, last, 0), acc[o][0]);
            acc[o][1] = _mm256_fmadd_ps(x1, load_dense(format, last, 8), acc[o][1]);
        }
    }
    UNROLL for (int o = 0; o < O; o++)
        out[o] = lanes_sum8(acc[o][0], acc[o][1]);
}

ALWAYS void dense_outs(enum weight_format format, const char *w, size_t stride, uint32_t n_outs, const float *x,
                       uint32_t n, float *out) {
    uint32_t o = 0;
    for (; o + 4 <= n_outs; o += 4)
        dense_rows(format, w + o * stride, stride, x, n, out + o, 4);
    for (; o < n_outs; o++)
        dense_rows(format, w + o * stride, stride, x, n, out + o, 1);
}

static void dense_dot(enum weight_format format, const void *w, size_t stride, uint32_t n_outs, const float *x,
                      uint32_t n, float *out) {
    if (format == WEIGHT_BF16)
        dense_outs(WEIGHT_BF16, w, stride, n_outs, x, n, out);
    else if (format == WEIGHT_F16)
        dense_outs(WEIGHT_F16, w, stride, n_outs, x, n, out);
    else
        dense_outs(WEIGHT_F32, w, stride, n_outs, x, n, out);
}

void linear_kernels_use_avx2(struct linear_kernels *kernels, const struct cpu_features *features) {
    (void)features;
    kernels->quantize = quantize;
    kernels->pack_codes = pack_codes;
    kernels->pack_scales = pack_scales;
    kernels->int_panels = int_panels;
    kernels->int_few = int_few;
    kernels->few_rows = FEW_ROWS_MAX;
    kernels->dequantize = dequantize;
    kernels->float_block = float_block;
    kernels->dense_dot = dense_dot;
}
