// backend/cuda/kv.cuh - reading the pages of a KV layer; see struct kv_view for their layout.
#ifndef LOAM_BACKEND_CUDA_KV_CUH
#define LOAM_BACKEND_CUDA_KV_CUH
#include "backend/cuda/device.cuh"

enum { KV_QUANT_GROUP = 64 };

__host__ __device__ __forceinline__ uint32_t kv_bits(uint32_t kind) {
    return kind == KV_F32 ? 32 : kind == KV_Q8 ? 8 : kind == KV_Q4 ? 4 : 16;
}
__host__ __device__ __forceinline__ uint32_t kv_k_row_bytes(const kv_view &kv) {
    return (kv.k_dim * kv_bits(kv.kind) + 7) / 8;
}
__device__ __forceinline__ uint8_t *kv_k_row(const kv_view &kv, uint8_t *page, uint32_t head, uint32_t tok) {
    return page + (head * KV_PAGE_TOKENS + tok) * (uint64_t)kv_k_row_bytes(kv);
}
// The 64 tokens of a dim of V.
__device__ __forceinline__ uint8_t *kv_v_row(const kv_view &kv, uint8_t *page, uint32_t head, uint32_t dim) {
    return page + kv.v_off + (head * kv.v_dim + dim) * (uint64_t)(KV_PAGE_TOKENS * kv_bits(kv.kind) / 8);
}
// (scale, bias) of a token's group.
__device__ __forceinline__ __half2 *kv_k_meta(const kv_view &kv, uint8_t *page, uint32_t head, uint32_t tok) {
    return (__half2 *)(page + kv.k_meta_off) + (head * KV_PAGE_TOKENS + tok) * kv.k_groups;
}
__device__ __forceinline__ __half2 *kv_v_meta(const kv_view &kv, uint8_t *page, uint32_t head, uint32_t group) {
    return (__half2 *)(page + kv.v_meta_off) + (head * kv.v_groups + group) * KV_PAGE_TOKENS;
}

__device__ __forceinline__ float kv_element(const uint8_t *row, uint32_t i, uint32_t kind, __half2 meta) {
    switch (kind) {
    case KV_F32:
        return ((const float *)row)[i];
    case KV_F16:
        return __half2float(((const __half *)row)[i]);
    case KV_BF16:
        return __bfloat162float(((const bf16 *)row)[i]);
    default: {
        float q = kind == KV_Q8 ? (float)row[i] : (float)(row[i / 2] >> i % 2 * 4 & 15);
        return fmaf(__low2float(meta), q, __high2float(meta));
    }
    }
}
__device__ __forceinline__ float kv_k_value(const kv_view &kv, uint8_t *page, uint32_t head, uint32_t tok,
                                            uint32_t dim) {
    __half2 meta = kv.k_groups ? kv_k_meta(kv, page, head, tok)[dim / KV_QUANT_GROUP] : __half2();
    return kv_element(kv_k_row(kv, page, head, tok), dim, kv.kind, meta);
}
__device__ __forceinline__ float kv_v_value(const kv_view &kv, uint8_t *page, uint32_t head, uint32_t tok,
                                            uint32_t dim) {
    if (kv.v_in_k)
        return kv_k_value(kv, page, head, tok, dim);
    __half2 meta = kv.v_groups ? kv_v_meta(kv, page, head, dim / KV_QUANT_GROUP)[tok] : __half2();
    return kv_element(kv_v_row(kv, page, head, dim), tok, kv.kind, meta);
}

// Eight neighbours as bf16 words. `meta` gives (scale, bias) for each: one for all, or one each.
template <int KIND> __device__ __forceinline__ uint4 kv_load8(const uint8_t *row, uint32_t i) {
    if constexpr (KIND == KV_BF16) {
        return *(const uint4 *)(row + 2 * i);
    } else if constexpr (KIND == KV_F16) {
        uint4 v = *(const uint4 *)(row + 2 * i);
        uint32_t in[4] = {v.x, v.y, v.z, v.w}, out[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 f = __half22float2(*(__half2 *)&in[j]);
            out[j] = bf16_pair(f.x, f.y);
        }
        return make_uint4(out[0], out[1], out[2], out[3]);
    } else if constexpr (KIND == KV_Q8) {
        uint2 v = *(const uint2 *)(row + i);
        return make_uint4(v.x, v.y, 0, 0);
    } else {
        return make_uint4(*(const uint32_t *)(row + i / 2), 0, 0, 0);
    }
}
template <int KIND> __device__ __forceinline__ float kv_code(uint4 raw, int i) {
    if constexpr (KIND == KV_Q8)
        return (float)((i < 4 ? raw.x : raw.y) >> i % 4 * 8 & 255);
    return (float)(raw.x >> i * 4 & 15);
}
#endif
