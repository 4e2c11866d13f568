// backend/cpu/cpu_kernels.h - the table of inner loops. cpu_kernels_fill() starts it with the scalar
// references, which are the specification, then lets each level up to the cap overwrite what it does
// better. Immutable afterwards.
//
// Every entry keeps rule 2: the bits of an output depend on the element's own inputs and on nothing
// else, not on how many rows or elements a call gets. Levels may differ from each other in bits.
#ifndef LOAM_BACKEND_CPU_CPU_KERNELS_H
#define LOAM_BACKEND_CPU_CPU_KERNELS_H
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_features.h"
#include "backend/cpu/kv_layout.h"
#include "backend/cpu/linear_kernels.h"

// y[i] = x[i] * w[i] / sqrt(mean(x^2) + eps); w NULL = ones. y may be x. Zhang & Sennrich 2019.
typedef void norm_rms_fn(const float *x, const float *w, float eps, float *y, size_t n);
// y[i] = (x[i] - mean) / sqrt(var + eps) * w[i] + b[i]; w, b NULL = ones, zeros. y may be x.
typedef void norm_layer_fn(const float *x, const float *w, const float *b, float eps, float *y, size_t n);
// y = up * act(gate), elementwise; see enum glu_kind. y may be gate or up.
typedef void glu_fn(enum glu_kind kind, const float *gate, const float *up, float *y, size_t n, float alpha,
                    float limit);
// y = act(x), elementwise; see enum unary_kind. y may be x.
typedef void unary_fn(enum unary_kind kind, const float p[4], const float *x, float *y, size_t n);
// y = a * x + b * y, each product rounded.
typedef void axpby_fn(float a, const float *x, float b, float *y, size_t n);
// y *= x
typedef void mul_fn(const float *x, float *y, size_t n);
// y *= a
typedef void scale_fn(float a, float *y, size_t n);
// Rotate n_pairs pairs of x in place by the angles whose cosines and sines are given:
// (a, b) -> (a cos - b sin, b cos + a sin). Pairs are (j, j + n_pairs), or (2j, 2j + 1) when interleaved.
typedef void rope_fn(float *x, const float *cos, const float *sin, size_t n_pairs, bool interleaved);

enum { ATTENTION_PANEL = 4 };

// Attention works on blocks of KV_PAGE_TOKENS keys of one KV head; see kv_layout.h for a block's memory
// and attention.c for the order of summation that these keep.
//
// Dequantize all of a block's keys to float32 [k_dim, KV_PAGE_TOKENS], its values to
// [KV_PAGE_TOKENS, v_dim]: element = fma(scale, code, bias) for the quantized kinds.
typedef void kv_load_fn(const struct kv_layout *layout, const void *block, float *out);
// s[i][j] = sum over d, ascending, of q[i][d] * k[d][j], one fma a term. The queries come in panels of
// ATTENTION_PANEL, [k_dim, ATTENTION_PANEL] each, the last one with columns to spare; s is [n_q,
// KV_PAGE_TOKENS]. Keys from n_keys on may be left out. What lies `ahead` bytes behind the keys read is
// fetched into the cache.
typedef void attention_scores_fn(const struct kv_layout *layout, const void *block, const float *q,
                                 uint32_t n_q, uint32_t n_keys, ptrdiff_t ahead, float *s);
// The same for keys that kv_load_k has unpacked.
typedef void attention_scores_f32_fn(const float *k, uint32_t k_dim, const float *q, uint32_t n_q,
                                     uint32_t n_keys, float *s);
// In place: s = p = exp(cap(scale * s) - m) for the keys whose bit is set in `seen`, 0 for the others; m is
// their maximum, and the sum of p goes to *l. cap(x) = softcap * tanh(x / softcap) if softcap > 0. Requires
// a bit in `seen`.
typedef void attention_softmax_fn(float *s, uint64_t seen, float scale, float softcap, float *m, float *l);
// o[i][d] = fma(o[i][d], a[i], b[i] * sum over j in [from, to), ascending, of p[i][j] * v[j][d]).
// p is [n_q, KV_PAGE_TOKENS], o [n_q, v_dim] with rows o_stride apart. `ahead` as for the keys.
typedef void attention_values_fn(const struct kv_layout *layout, const void *block, const float *p,
                                 uint32_t n_q, uint32_t from, uint32_t to, ptrdiff_t ahead, const float *a,
                                 const float *b, float *o, size_t o_stride);
typedef void attention_values_f32_fn(const float *v, uint32_t v_dim, const float *p, uint32_t n_q,
                                     uint32_t from, uint32_t to, const float *a, const float *b, float *o,
                                     size_t o_stride);
// Unpack tokens[0], tokens[1], ... of a block: keys to k [k_dim, KV_PAGE_TOKENS], one a column, values to
// v [n, v_dim].
typedef void kv_gather_fn(const struct kv_layout *layout, const void *block, const uint8_t *tokens, uint32_t n,
                          float *k, float *v);
// o = fma(o, a, b * x)
typedef void attention_merge_fn(float a, float *o, float b, const float *x, size_t n);
// The level's one exponential, for the few that merging needs.
typedef float exp_fn(float x);

// y = softmax(x); y may be x.
typedef void softmax_fn(const float *x, float *y, size_t n);
// y[c] = bias[c] + sum over t, ascending, of w[t][c] * x[t][c], one fma a tap; bias NULL = 0. y may be one
// of x.
typedef void conv_fn(const float *const *x, const float *const *w, uint32_t n_taps, const float *bias, float *y,
                     size_t n);
// One token of the gated delta rule over n columns of a head's state, rows state_stride apart; k and q are
// [k_dim], v and out [n]: S *= decay; u = beta (v - S^T k); S += k u^T; out = S^T q.
typedef void delta_fn(float *state, size_t state_stride, const float *k, const float *q, uint32_t k_dim,
                      const float *v, float decay, float beta, float *out, uint32_t n);
// out[j] = scale * sum over h, ascending, of w[h] * max(s[h][j], 0), for KV_PAGE_TOKENS keys.
typedef void index_reduce_fn(const float *s, const float *w, uint32_t n_heads, float scale, float *out);

struct cpu_kernels;

// Attention by tiles of bf16 products with float32 sums, for MATH_FAST and the KV kinds that are no finer;
// all NULL where a level has none. k_dim is a multiple of 32, v_dim of 16, and the query heads of a tile
// start at a multiple of ATTENTION_TILE_ROWS.
enum { ATTENTION_TILE_ROWS = 16 };
struct attention_tiles {
    // Query i into bf16 [n_q, k_dim].
    void (*pack_query)(void *packed, uint32_t i, uint32_t k_dim, const float *query);
    // Unpack a block to what KV_BF16 holds (kv_layout.h). `spare` is KV_PAGE_TOKENS * max(k_dim, v_dim)
    // floats.
    void (*load)(const struct cpu_kernels *kernels, const struct kv_layout *layout, const void *block,
                 float *spare, uint16_t *k, uint16_t *v);
    // As attention_scores_fn. Rows of s up to the next multiple of 16 are overwritten.
    void (*scores)(const uint16_t *k, uint32_t k_dim, const uint16_t *q, uint32_t n_q, uint32_t n_keys,
                   ptrdiff_t ahead, float *s);
    // As attention_values_fn, but p may be 0 for some queries within [from, to). `spare` is KV_PAGE_TOKENS
    // * v_dim elements.
    void (*values)(const uint16_t *v, uint32_t v_dim, const float *p, uint32_t n_q, uint32_t from,
                   uint32_t to, ptrdiff_t ahead, const float *a, const float *b, float *o, size_t o_stride,
                   uint16_t *spare);
};

struct cpu_kernels {
    struct attention_tiles tiles;
    struct linear_kernels linear; // the matrix products' own
    norm_rms_fn *norm_rms;
    norm_layer_fn *norm_layer;
    glu_fn *glu;
    unary_fn *unary;
    axpby_fn *axpby;
    mul_fn *mul;
    scale_fn *scale;
    rope_fn *rope;
    kv_load_fn *kv_load_k, *kv_load_v;
    attention_scores_fn *attention_scores;
    attention_scores_f32_fn *attention_scores_f32;
    attention_softmax_fn *attention_softmax;
    attention_values_fn *attention_values;
    attention_values_f32_fn *attention_values_f32;
    kv_gather_fn *kv_gather;
    attention_merge_fn *attention_merge;
    softmax_fn *softmax;
    conv_fn *conv;
    delta_fn *delta;
    index_reduce_fn *index_reduce;
    exp_fn *exp;
};

// The table of the best level that is not above `cap`.
void cpu_kernels_fill(struct cpu_kernels *kernels, const struct cpu_features *features, enum cpu_level cap);

void cpu_kernels_use_ref(struct cpu_kernels *kernels);
void cpu_kernels_use_avx2(struct cpu_kernels *kernels, const struct cpu_features *features);
void cpu_kernels_use_avx512(struct cpu_kernels *kernels, const struct cpu_features *features);
void cpu_kernels_use_amx(struct cpu_kernels *kernels, const struct cpu_features *features);
void cpu_kernels_use_neon(struct cpu_kernels *kernels, const struct cpu_features *features);
#endif
