// backend/cpu/linear_kernels.h - the inner loops of the matrix products, a part of struct cpu_kernels.
//
// Two arithmetics, each with one order of summation that every level and every shape keeps, so that a
// product has the same bits on all of them:
//
// float: 16 running sums an output; lane l takes the products of elements l, l + 16, l + 32 ... in that
//   order with fused multiply-adds; lanes_sum() adds the lanes in a fixed tree. A last piece shorter
//   than 16 is padded with zeros.
//
// int: activations are rounded to int8 a group (the weight's own groups): scale s_x = absmax / 127. A
//   group's dot product d of codes and rounded activations is exact in int32, so it does not matter how
//   it is computed. Over groups in ascending order, in float32:
//     affine    acc = fma(s_x * s_w, d, acc), acc = fma(bias_w, s_x * sum(x_q), acc)
//     4-bit float    acc = fma(s_x * s_w, d, acc) with codes of twice the value
//
// Weights are read where they are (file layout). The int kernels work on panels: 16 outputs by up to
// PANEL_K elements, unpacked to bytes so that four consecutive codes of an output make a 32-bit lane:
//   codes[n_k / 4][16][4], scales[n_k / group][16]
// which is the operand of vpdpbusd, of an AMX tile, and (by four outputs) of NEON's sdot.
#ifndef LOAM_BACKEND_CPU_LINEAR_KERNELS_H
#define LOAM_BACKEND_CPU_LINEAR_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_features.h"

enum {
    PANEL_OUTS = 16,
    PANEL_K = 1024,
    PANEL_GROUPS = PANEL_K / 16, // most groups that a panel can have
    PANELS_MAX = 8,              // panels that one call of int_panels may get
    FLOAT_LANES = 16,
    FLOAT_OUTS = 24, // outputs and
    FLOAT_K = 512,   // elements of a block of float32 weights
};

struct weight {
    struct weight_desc desc;
    size_t row_bytes;
    uint32_t group, n_groups; // of a row; 0 without scales
    uint32_t bits;            // of an element
    bool is_int;              // has the int arithmetic
    // Panels hold the codes of each aligned 8 elements in the order 0 2 4 6 1 3 5 7, which is how nibbles
    // come out of a register; so must the activations.
    bool nibbles;
    uint8_t code_max;
    uint8_t code_zero; // 4-bit floats are stored as 2 * value + 12, to be unsigned
};

// Rows of rounded activations. Row r is at index idx[r], or r when idx is NULL.
struct int_rows {
    const int8_t *q;
    size_t q_stride;
    const float *scales, *sums; // s_x and s_x * sum(x_q) of each group
    const int32_t *isums;       // sum(x_q)
    size_t group_stride;
    const uint32_t *idx;
    uint32_t n;
};
struct float_rows {
    const float *x;
    size_t stride;
    const uint32_t *idx;
    uint32_t n;
};
static inline size_t row_at(const uint32_t *idx, uint32_t r) { return idx ? idx[r] : r; }

struct int_panels {
    const uint8_t *codes; // [n_panels][n_k / 4][16][4]
    const float *scales;  // [n_panels][n_k / group][16]
    const float *biases;  // likewise; NULL without
    uint32_t n_panels, n_k, group;
    uint8_t code_max, code_zero;
};

struct linear_kernels {
    // Round n values (a multiple of `group`) and describe each group.
    void (*quantize)(const float *x, uint32_t n, uint32_t group, bool nibbles, int8_t *q, float *scales,
                     float *sums, int32_t *isums);
    // A panel's codes and scales: outputs [out, out + 16), those from n_out on being any. As many bytes
    // from `following` on are likely to be wanted soon: prefetched, never read.
    void (*pack_codes)(const struct weight *w, uint32_t out, uint32_t k, uint32_t n_k, const void *following,
                       uint8_t *codes);
    void (*pack_scales)(const struct weight *w, uint32_t out, uint32_t group, uint32_t n_groups,
                        float *scales, float *biases);
    // acc[r * acc_stride + 16 * panel + output] goes on over the panels' groups.
    void (*int_panels)(const struct int_panels *panels, const struct int_rows *x, float *acc,
                       size_t acc_stride);
    // Optional. acc[r * acc_stride + output] of outputs [out, out + 16) and up to few_rows rows of x, read
    // straight from the weight. False if there is no such form for this weight: then panels do it, with the
    // same bits.
    bool (*int_few)(const struct weight *w, uint32_t out, const struct int_rows *x, float *acc, size_t acc_stride);
    uint32_t few_rows;
    // From this many rows on, int_panels wants PANELS_MAX panels at once, below just one.
    uint32_t many_rows;

    // Elements [k, k + n) of row `row` as float32; k is a multiple of 32.
    void (*dequantize)(const struct weight *w, uint32_t row, uint32_t k, uint32_t n, float *out);
    // lanes[(r * n_outs + o) * 16 + l] go on over n_k elements. Weights are padded with zeros to a
    // multiple of 16, x is not; n_k is a multiple of 16 but in the last call.
    void (*float_block)(const float *w, size_t w_stride, uint32_t n_outs, const struct float_rows *x,
                        uint32_t n_k, float *lanes);
    // out[o] = row o of a dense matrix times one x, straight from its layout; rows are `stride` bytes
    // apart.
    void (*dense_dot)(enum weight_format format, const void *w, size_t stride, uint32_t n_outs,
                      const float *x, uint32_t n, float *out);
};

void linear_kernels_use_ref(struct linear_kernels *kernels);
void linear_kernels_use_avx2(struct linear_kernels *kernels, const struct cpu_features *features);
void linear_kernels_use_avx512(struct linear_kernels *kernels, const struct cpu_features *features);
void linear_kernels_use_amx(struct linear_kernels *kernels, const struct cpu_features *features);
void linear_kernels_use_neon(struct linear_kernels *kernels, const struct cpu_features *features);

// ---- Shared by the levels -----------------------------------------------------------------------
// Before a loop of a constant number of turns over an array that is meant to be registers: GCC's -O2 leaves
// the loop as it is, and with it the array in memory, whenever the copies would be more code.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

static inline float lanes_sum(const float lanes[FLOAT_LANES]) {
    float s[8];
    for (int i = 0; i < 8; i++)
        s[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++)
        s[i] += s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

// Twice the value of an E2M1 code, plus 12.
static const uint8_t F4_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// The scalar forms, for what a level leaves to them.
void linear_unpack_ref(const struct weight *w, uint32_t row, uint32_t k, uint32_t n, uint8_t *codes);
float linear_scale_ref(const struct weight *w, uint32_t row, uint32_t group);
float linear_bias_ref(const struct weight *w, uint32_t row, uint32_t group);
void linear_pack_codes_ref(const struct weight *w, uint32_t out, uint32_t k, uint32_t n_k,
                           const void *following, uint8_t *codes);
void linear_pack_scales_ref(const struct weight *w, uint32_t out, uint32_t group, uint32_t n_groups,
                            float *scales, float *biases);
void linear_dequantize_ref(const struct weight *w, uint32_t row, uint32_t k, uint32_t n, float *out);
#endif
