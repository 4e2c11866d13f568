#include "backend/cpu/linear_x86.h"

// ---- Int products on tiles ------------------------------------------------------------------------
// A tile product takes 16 rows of x, 16 outputs and a group's elements to exact int32 sums, 64 elements at a
// time, from where x and the panel lie: a panel is a tile operand as it stands. The float steps that follow
// cost more than the tile product: they keep 16 rows of sums in registers, and run while the tiles of the
// groups ahead are under way.
enum { TILE_ROWS = 16, AHEAD = 2, RING = 4 };

// Tile shapes for one size of group (Intel SDM, "LDTILECFG").
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Tiles 0..3 are sums, 4 is x, 5 the panel.
static void configure(uint32_t n_k) {
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < RING; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = TILE_ROWS;
    }
    c.row_bytes[4] = (uint16_t)n_k;
    c.rows[4] = TILE_ROWS;
    c.row_bytes[5] = 64;
    c.rows[5] = (uint8_t)(n_k / 4);
    _tile_loadconfig(&c);
}

// One tile register's products of a group, which the instruction names at compile time.
#define GROUP_TILE(tile)                                                                                 \
    do {                                                                                                 \
        _tile_zero(tile);                                                                                \
        for (uint32_t k = 0; k < group; k += n_k) {                                                      \
            _tile_loadd(4, x + k, x_stride);                                                             \
            _tile_loadd(5, codes + (size_t)k * PANEL_OUTS, 64);                                          \
            _tile_dpbsud(tile, 4, 5);                                                                    \
        }                                                                                                \
        _tile_stored(tile, to, 64);                                                                      \
    } while (0)

ALWAYS void group_tile(uint32_t at, const int8_t *x, size_t x_stride, const uint8_t *codes, uint32_t group,
                       uint32_t n_k, int32_t *to) {
    if (at % 2 == 0)
        GROUP_TILE(0);
    else
        GROUP_TILE(1);
}

// 16 rows of x by a panel.
ALWAYS void tile_rows(const struct int_panels *p, const uint8_t *codes, const float *scales, const float *biases,
                      const int8_t *q, size_t q_stride, const float *const x_scales[TILE_ROWS],
                      const float *const x_sums[TILE_ROWS], const int32_t *const x_isums[TILE_ROWS], float *acc,
                      size_t acc_stride, uint32_t n_k, const bool has_bias) {
    _Alignas(64) int32_t ring[RING][TILE_ROWS][PANEL_OUTS];
    uint32_t n_groups = p->n_k / p->group;
    __m512 sum[TILE_ROWS];
    UNROLL for (int r = 0; r < TILE_ROWS; r++)
        sum[r] = _mm512_loadu_ps(acc + r * acc_stride);
    for (uint32_t g = 0; g < n_groups + AHEAD; g++) {
        if (g < n_groups)
            group_tile(g, q + (size_t)g * p->group, q_stride, codes + (size_t)g * p->group * PANEL_OUTS, p->group, n_k,
                       ring[g % RING][0]);
        if (g < AHEAD)
            continue;
        uint32_t done = g - AHEAD;
        __m512 scale = _mm512_load_ps(scales + done * PANEL_OUTS), bias;
        if (has_bias)
            bias = _mm512_load_ps(biases + done * PANEL_OUTS);
        UNROLL for (int r = 0; r < TILE_ROWS; r++) {
            __m512i dot = _mm512_load_si512(ring[done % RING][r]);
            if (!has_bias)
                dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(p->code_zero * x_isums[r][done]));
            __m512 both = _mm512_mul_ps(_mm512_set1_ps(x_scales[r][done]), scale);
            sum[r] = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(dot), sum[r]);
            if (has_bias)
                sum[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(x_sums[r][done]), sum[r]);
        }
    }
    UNROLL for (int r = 0; r < TILE_ROWS; r++)
        _mm512_storeu_ps(acc + r * acc_stride, sum[r]);
}

static void int_panels(const struct int_panels *p, const struct int_rows *x, float *acc, size_t acc_stride) {
    uint32_t n_full = p->group >= 32 ? x->n / TILE_ROWS * TILE_ROWS : 0, n_groups = p->n_k / p->group;
    uint32_t n_k = p->group < 64 ? p->group : 64;
    if (n_full)
        configure(n_k);
    for (uint32_t panel = 0; panel < p->n_panels && n_full; panel++) {
        const uint8_t *codes = p->codes + (size_t)panel * p->n_k * PANEL_OUTS;
        const float *scales = p->scales + (size_t)panel * n_groups * PANEL_OUTS;
        const float *biases = p->biases ? p->biases + (size_t)panel * n_groups * PANEL_OUTS : NULL;
        for (uint32_t r = 0; r < n_full; r += TILE_ROWS) {
            _Alignas(64) int8_t gathered[TILE_ROWS][PANEL_K];
            const float *x_scales[TILE_ROWS], *x_sums[TILE_ROWS];
            const int32_t *x_isums[TILE_ROWS];
            const int8_t *q = x->q + (x->idx ? 0 : r * x->q_stride);
            size_t q_stride = x->q_stride;
            for (uint32_t i = 0; i < TILE_ROWS; i++) {
                size_t row = row_at(x->idx, r + i);
                x_scales[i] = x->scales + row * x->group_stride;
                x_sums[i] = x->sums + row * x->group_stride;
                x_isums[i] = x->isums + row * x->group_stride;
                if (x->idx)
                    memcpy(gathered[i], x->q + row * x->q_stride, p->n_k);
            }
            if (x->idx) {
                q = gathered[0];
                q_stride = PANEL_K;
            }
            float *to = acc + r * acc_stride + panel * PANEL_OUTS;
            if (biases)
                tile_rows(p, codes, scales, biases, q, q_stride, x_scales, x_sums, x_isums, to, acc_stride, n_k, true);
            else
                tile_rows(p, codes, scales, NULL, q, q_stride, x_scales, x_sums, x_isums, to, acc_stride, n_k, false);
        }
    }
    if (n_full)
        _tile_release();
    if (n_full == x->n)
        return;
    // Rows that fill no tile: the same bits.
    struct int_rows rest = *x;
    rest.n = x->n - n_full;
    if (x->idx) {
        rest.idx += n_full;
    } else {
        rest.q += n_full * x->q_stride;
        rest.scales += n_full * x->group_stride;
        rest.sums += n_full * x->group_stride;
        rest.isums += n_full * x->group_stride;
    }
    linear_int_panels_avx512(p, &rest, acc + n_full * acc_stride, acc_stride);
}

void linear_kernels_use_amx(struct linear_kernels *kernels, const struct cpu_features *features) {
    (void)features;
    kernels->int_panels = int_panels;
}
