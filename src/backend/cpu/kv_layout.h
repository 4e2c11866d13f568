// backend/cpu/kv_layout.h - the memory of a KV block: what a page holds of one layer and one KV head.
//
// A block is its keys, then its values, each part 64-byte aligned. Keys lie transposed, so that
// neighbouring keys are neighbouring lanes and a score needs no sum across lanes; bf16 and q4 pair two
// elements so that unpacking is a shift and a mask:
//
//   kind   keys                                values
//   f32    [k_dim][64]                         [64][v_dim]
//   f16    [k_dim][64]                         [64][v_dim]
//   bf16   [k_dim/2][64][2 dims]               [32][v_dim][2 tokens]
//   q8     [k_dim][64] u8                      [64][v_dim] u8
//   q4     [k_dim/2][64] u8, even dim low      [64][v_dim/2] u8, dim d low and d + v_dim/2 high
//
// Odd dimensions round up. No two tokens share a byte, so they may be written by two threads. q8 and q4 add, behind the codes, f16 scales [n_groups][64 tokens] and then
// f16 biases of the same shape; groups are 64 elements of the head, the last one what is left.
//
// An MLA layer (v_in_k) has no value part: both uses read one token-major copy, [64][k_dim] of plain
// elements (q4: as values above), scales and biases as above.
#ifndef LOAM_BACKEND_CPU_KV_LAYOUT_H
#define LOAM_BACKEND_CPU_KV_LAYOUT_H
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"

enum {
    KV_GROUP = 64,
    KV_DIM_MAX = 1024, // widest head that kernels take
    KV_SLACK = 64,     // bytes behind the last block that kernels may read
};

struct kv_layout {
    enum kv_kind kind;
    bool v_in_k;
    uint32_t k_dim, v_dim;
    // Offsets in a block. Scales and biases exist for the quantized kinds only.
    size_t k_scales, k_biases, v_codes, v_scales, v_biases;
    size_t block_bytes;
};

static inline uint32_t kv_n_groups(uint32_t dim) { return (dim + KV_GROUP - 1) / KV_GROUP; }

struct kv_layout kv_layout_make(enum kv_kind kind, uint32_t k_dim, uint32_t v_dim, bool v_in_k);

// Element (token, dim) of a block, as float32.
float kv_key_at(const struct kv_layout *layout, const void *block, uint32_t token, uint32_t dim);
float kv_value_at(const struct kv_layout *layout, const void *block, uint32_t token, uint32_t dim);

// Write token `token` of a block. `v` is ignored for v_in_k.
void kv_store_token(const struct kv_layout *layout, void *block, uint32_t token, const float *k, const float *v);
#endif
