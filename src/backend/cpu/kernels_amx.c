// Attention in tiles of bf16 products. What the tile unit sums, it sums in an order given by the element's
// own row and column of one 16 x 16 tile, whatever the other rows hold, so rule 2 holds as long as keys and
// dimensions are always cut at the same places: multiples of 16 and 32 from a block's start.
#include "backend/cpu/simd_avx512.h"

#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/cpu_kernels.h"

enum { KEYS = KV_PAGE_TOKENS, ROWS = 16, LINE = 64 };

// ---- Tiles ----------------------------------------------------------------------------------------
// Layout of LDTILECFG's operand (Intel SDM vol. 1, 18.3).
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

// Tiles 0-3 hold results and 4-5 the left operand, n_rows each; 6-7 the right operand, 16 rows.
static void tiles_begin(uint32_t n_rows) {
    _Alignas(64) struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.n_rows[i] = (uint8_t)(i < 6 ? n_rows : ROWS);
    }
    _tile_loadconfig(&config);
}

static void fetch_lines(const void *p, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += LINE)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

static __m512i bf16_bits(__m512 x) {
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
}

// Two vectors as pairs: first in the low half of each 32 bits.
static __m512i bf16_pairs(__m512 first, __m512 second) {
    return _mm512_or_si512(bf16_bits(first), _mm512_slli_epi32(bf16_bits(second), 16));
}

// ---- Operands -------------------------------------------------------------------------------------
static void pack_query_amx(void *packed, uint32_t i, uint32_t k_dim, const float *query) {
    uint16_t *to = (uint16_t *)packed + (size_t)i * k_dim;
    for (uint32_t d = 0; d < k_dim; d += 32) {
        __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(query + d + 16), _mm512_loadu_ps(query + d));
        _mm512_storeu_si512(to + d, (__m512i)both);
    }
}

// Keys of a bf16 block that is token-major: a transposition of pairs of dims.
static void transpose_pairs(const uint32_t *rows, uint32_t n_pairs, uint32_t *out) {
    __m512i lanes = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                       _mm512_set1_epi32((int)n_pairs));
    for (uint32_t d = 0; d < n_pairs; d++)
        for (uint32_t j = 0; j < KEYS; j += 16)
            _mm512_storeu_si512(out + (size_t)d * KEYS + j,
                                _mm512_i32gather_epi32(lanes, rows + (size_t)j * n_pairs + d, 4));
}

static void pair_rows(const float *rows, uint32_t n_rows, uint32_t n_cols, uint16_t *out) {
    for (uint32_t i = 0; i < n_rows; i += 2)
        for (uint32_t c = 0; c < n_cols; c += 16)
            _mm512_storeu_si512(out + ((size_t)i * n_cols + 2 * c),
                                bf16_pairs(_mm512_loadu_ps(rows + (size_t)i * n_cols + c),
                                           _mm512_loadu_ps(rows + (size_t)(i + 1) * n_cols + c)));
}

static void pair_bf16_rows(const uint16_t *rows, size_t stride, uint32_t n_cols, uint16_t *out) {
    for (uint32_t i = 0; i < KEYS; i += 2) {
        for (uint32_t c = 0; c < n_cols; c += 16) {
            const uint16_t *at = rows + i * stride + c;
            __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at));
            __m512i second = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(at + stride)));
            _mm512_storeu_si512(out + ((size_t)i * n_cols + 2 * c),
                                _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
        }
    }
}

static void load_tiles_amx(const struct cpu_kernels *kernels, const struct kv_layout *layout, const void *block,
                           float *spare, uint16_t *k, uint16_t *v) {
    if (layout->kind == KV_BF16) { // token-major, or it would be read where it lies
        transpose_pairs(block, layout->k_dim / 2, (uint32_t *)k);
        pair_bf16_rows(block, layout->k_dim, layout->v_dim, v);
        return;
    }
    kernels->kv_load_k(layout, block, spare);
    pair_rows(spare, layout->k_dim, KEYS, k);
    kernels->kv_load_v(layout, block, spare);
    pair_rows(spare, KEYS, layout->v_dim, v);
}

// ---- Products -------------------------------------------------------------------------------------
static void scores_amx(const uint16_t *k, uint32_t k_dim, const uint16_t *q, uint32_t n_q, uint32_t n_keys,
                       ptrdiff_t ahead, float *s) {
    tiles_begin(n_q < ROWS ? n_q : ROWS);
    size_t q_bytes = (size_t)k_dim * 2, k_bytes = KEYS * 4, s_bytes = KEYS * 4;
    for (uint32_t i = 0; i < n_q; i += ROWS) {
        const uint16_t *qi = q + (size_t)i * k_dim;
        float *si = s + (size_t)i * KEYS;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (uint32_t d = 0; d < k_dim; d += 32) {
            const uint16_t *kd = k + (size_t)d * KEYS; // 16 rows of 64 pairs
            _tile_loadd(4, qi + d, q_bytes);
            _tile_loadd(6, kd, k_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, kd + 32, k_bytes);
            _tile_dpbf16ps(1, 4, 7);
            if (n_keys > 32) {
                _tile_loadd(6, kd + 64, k_bytes);
                _tile_dpbf16ps(2, 4, 6);
                _tile_loadd(7, kd + 96, k_bytes);
                _tile_dpbf16ps(3, 4, 7);
            }
            if (i == 0 && ahead)
                fetch_lines((const char *)kd + ahead, ROWS * k_bytes);
        }
        _tile_stored(0, si, s_bytes);
        _tile_stored(1, si + 16, s_bytes);
        if (n_keys > 32) {
            _tile_stored(2, si + 32, s_bytes);
            _tile_stored(3, si + 48, s_bytes);
        }
    }
    _tile_release();
}

// A copy of the values with zeros for the tokens outside [from, to): a product with zero must be zero
// whatever an unused place of the page holds.
static const uint16_t *values_masked(const uint16_t *v, uint32_t v_dim, uint32_t from, uint32_t to, uint16_t *copy) {
    for (uint32_t j = 0; j < KEYS; j += 2) {
        uint32_t mask = (j >= from && j < to ? 0x0000FFFFu : 0) | (j + 1 >= from && j + 1 < to ? 0xFFFF0000u : 0);
        for (uint32_t d = 0; d < v_dim; d += 16) {
            size_t at = (size_t)j * v_dim + 2 * d;
            _mm512_storeu_si512(copy + at, _mm512_and_si512(_mm512_loadu_si512(v + at), _mm512_set1_epi32((int)mask)));
        }
    }
    return copy;
}

static void values_amx(const uint16_t *v, uint32_t v_dim, const float *p, uint32_t n_q, uint32_t from, uint32_t to,
                       ptrdiff_t ahead, const float *a, const float *b, float *o, size_t o_stride, uint16_t *spare) {
    _Alignas(64) uint16_t weights[ROWS][KEYS] = {{0}};
    _Alignas(64) float sums[4][ROWS][16];
    const char *fetched = (const char *)v + ahead;
    if (from > 0 || to < KEYS)
        v = values_masked(v, v_dim, from, to, spare);
    tiles_begin(n_q < ROWS ? n_q : ROWS);
    size_t v_bytes = (size_t)v_dim * 4;
    for (uint32_t i = 0; i < n_q; i += ROWS) {
        uint32_t n = n_q - i < ROWS ? n_q - i : ROWS;
        for (uint32_t r = 0; r < n; r++)
            pack_query_amx(weights, r, KEYS, p + (size_t)(i + r) * KEYS);
        _tile_loadd(4, weights, KEYS * 2);
        _tile_loadd(5, &weights[0][32], KEYS * 2);
        for (uint32_t d = 0; d < v_dim; d += 64) {
            const uint16_t *low = v + 2 * d, *high = low + (size_t)32 * v_dim; // tokens 0-31, 32-63
            uint32_t n_tiles = v_dim - d < 64 ? (v_dim - d) / 16 : 4;
            // Results in tiles 0-3: enough chains to hide the unit's latency.
            _tile_zero(0);
            _tile_loadd(6, low, v_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if (n_tiles > 1) {
                _tile_zero(1);
                _tile_loadd(7, low + 32, v_bytes);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (n_tiles > 2) {
                _tile_zero(2);
                _tile_loadd(6, low + 64, v_bytes);
                _tile_dpbf16ps(2, 4, 6);
            }
            if (n_tiles > 3) {
                _tile_zero(3);
                _tile_loadd(7, low + 96, v_bytes);
                _tile_dpbf16ps(3, 4, 7);
            }
            _tile_loadd(6, high, v_bytes);
            _tile_dpbf16ps(0, 5, 6);
            _tile_stored(0, sums[0], 64);
            if (n_tiles > 1) {
                _tile_loadd(7, high + 32, v_bytes);
                _tile_dpbf16ps(1, 5, 7);
                _tile_stored(1, sums[1], 64);
            }
            if (n_tiles > 2) {
                _tile_loadd(6, high + 64, v_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_stored(2, sums[2], 64);
            }
            if (n_tiles > 3) {
                _tile_loadd(7, high + 96, v_bytes);
                _tile_dpbf16ps(3, 5, 7);
                _tile_stored(3, sums[3], 64);
            }
            if (i == 0 && ahead)
                fetch_lines(fetched + (size_t)d * KEYS * 2, (size_t)n_tiles * 16 * KEYS * 2);
            for (uint32_t r = 0; r < n; r++) {
                __m512 va = _mm512_set1_ps(a[i + r]), vb = _mm512_set1_ps(b[i + r]);
                float *at = o + (i + r) * o_stride + d;
                for (uint32_t t = 0; t < n_tiles; t++) {
                    __m512 sum = _mm512_load_ps(sums[t][r]);
                    _mm512_storeu_ps(at + 16 * t,
                                     _mm512_fmadd_ps(_mm512_loadu_ps(at + 16 * t), va, _mm512_mul_ps(vb, sum)));
                }
            }
        }
    }
    _tile_release();
}

void cpu_kernels_use_amx(struct cpu_kernels *kernels, const struct cpu_features *features) {
    kernels->tiles = (struct attention_tiles){
        .pack_query = pack_query_amx,
        .load = load_tiles_amx,
        .scores = scores_amx,
        .values = values_amx,
    };
    linear_kernels_use_amx(&kernels->linear, features);
}
