// backend/cuda/device.cuh - small device functions that the kernels share.
#ifndef LOAM_BACKEND_CUDA_DEVICE_CUH
#define LOAM_BACKEND_CUDA_DEVICE_CUH
#include <cuda_fp8.h>

#include "backend/cuda/cuda.h"

#define FULL_WARP 0xFFFFFFFFu

// Kernels of the step are launched while the one before still runs (programmatic dependent launch, from
// compute capability 9.0 on). Each must wait here before it touches memory that others write, even if it
// then returns: the next kernel relies on it. Weights may be fetched before.
__device__ __forceinline__ void wait_for_previous(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
template <class... P, class... A>
static void launch(struct cuda_backend *cu, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   const char *what, A &&...args) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = cu->stream;
    config.attrs = &attribute;
    config.numAttrs = cu->cc >= 90 ? 1 : 0;
    cuda_check(cu, cudaLaunchKernelEx(&config, kernel, P(args)...), what);
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d; d >>= 1)
        v += __shfl_xor_sync(FULL_WARP, v, d);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int d = 16; d; d >>= 1)
        v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, d));
    return v;
}
// Sum over the block, the same in every thread; `shared` holds 32 floats. Fixed order.
__device__ __forceinline__ float block_sum(float v, float *shared) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = v;
    __syncthreads();
    float total = 0;
    for (uint32_t i = 0; i < (blockDim.x + WARP - 1) / WARP; i++)
        total += shared[i];
    return total;
}

__device__ __forceinline__ uint32_t bf16_pair(float lo, float hi) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
    return out;
}
__device__ __forceinline__ float bf16_lo(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_hi(uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t bf16x2_mul(uint32_t a, uint32_t b) {
    uint32_t out;
    // An fma with -0: mul.bf16x2 exists from sm_90 on only.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
    return out;
}

// c += a b: a [16 x 16] by rows, b [16 x 8] by columns, float32 accumulators.
__device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes, or zeros without touching memory.
__device__ __forceinline__ uint4 load_or_zero(const void *p, bool there) {
    uint4 v;
    asm volatile("{\n .reg .pred there;\n setp.ne.u32 there, %5, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n"
                 " mov.u32 %2, 0;\n mov.u32 %3, 0;\n @there ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "r"((uint32_t)there));
    return v;
}

// Weights are read once: past L1, in program order, so that all loads of a chunk are under way together.
// Zeros, and no access, where `there` is false.
__device__ __forceinline__ uint32_t load_weight_4(const void *p, bool there) {
    uint32_t v;
    asm volatile("{\n .reg .pred there;\n setp.ne.u32 there, %2, 0;\n mov.u32 %0, 0;\n"
                 " @there ld.global.nc.L1::no_allocate.u32 %0, [%1];\n}"
                 : "=r"(v)
                 : "l"(p), "r"((uint32_t)there));
    return v;
}
__device__ __forceinline__ uint32_t load_weight_2(const void *p, bool there) {
    uint32_t v;
    asm volatile("{\n .reg .pred there;\n .reg .u16 half;\n setp.ne.u32 there, %2, 0;\n mov.u16 half, 0;\n"
                 " @there ld.global.nc.u16 half, [%1];\n cvt.u32.u16 %0, half;\n}"
                 : "=r"(v)
                 : "l"(p), "r"((uint32_t)there));
    return v;
}
__device__ __forceinline__ uint2 load_weight_8(const void *p, bool there) {
    uint2 v;
    asm volatile("{\n .reg .pred there;\n setp.ne.u32 there, %3, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n"
                 " @there ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];\n}"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p), "r"((uint32_t)there));
    return v;
}
__device__ __forceinline__ uint4 load_weight_16(const void *p, bool there) {
    uint4 v;
    asm volatile("{\n .reg .pred there;\n setp.ne.u32 there, %5, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n"
                 " mov.u32 %2, 0;\n mov.u32 %3, 0;\n"
                 " @there ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "r"((uint32_t)there));
    return v;
}
// (a & b) | c
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float gelu_erf(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}
__device__ __forceinline__ float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
__device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + __expf(-x));
}
__device__ __forceinline__ float glu_value(uint32_t kind, float gate, float up, float alpha, float limit) {
    switch (kind) {
    case GLU_SILU:
        return up * gate * sigmoid(gate);
    case GLU_GELU:
        return up * gelu_erf(gate);
    case GLU_GELU_TANH:
        return up * gelu_tanh(gate);
    case GLU_RELU:
        return up * fmaxf(gate, 0.0f);
    case GLU_CLAMPED_SWIGLU:
        gate = fminf(gate, limit);
        up = fminf(fmaxf(up, -limit), limit);
        return (up + 1.0f) * gate * sigmoid(alpha * gate);
    default: // GLU_SIGMOID
        return up * sigmoid(gate);
    }
}

__device__ __forceinline__ float e8m0_value(uint8_t v) {
    return v == 255 ? __uint_as_float(0x7FC00000u)
                    : v ? __uint_as_float((uint32_t)v << 23) : __uint_as_float(0x00400000u);
}
__device__ __forceinline__ float e4m3_value(uint8_t v) {
    uint32_t magnitude = v & 0x7F, sign = (uint32_t)(v & 0x80) << 24;
    if (magnitude == 0x7F)
        return __uint_as_float(sign | 0x7FC00000u);
    if (magnitude >= 8)
        return __uint_as_float(sign | ((magnitude << 20) + 0x3C000000u));
    return __uint_as_float(sign | __float_as_uint((float)magnitude * 0x1p-9f));
}
__device__ __forceinline__ float e2m1_value(uint32_t code) {
    // Magnitudes 0 .5 1 1.5 2 3 4 6: doubled they are integers, a nibble each.
    float magnitude = 0.5f * (float)(0xC8643210u >> (code & 7) * 4 & 15);
    return code & 8 ? -magnitude : magnitude;
}
__device__ __forceinline__ float scale_value(const void *scales, uint64_t i, uint32_t dtype) {
    if (dtype == DTYPE_BF16)
        return __bfloat162float(((const bf16 *)scales)[i]);
    if (dtype == DTYPE_F16)
        return __half2float(((const __half *)scales)[i]);
    return ((const float *)scales)[i];
}

// One element of a weight, whatever its format: the slow way.
__device__ __forceinline__ float weight_value(const struct wview &w, uint32_t row, uint32_t col) {
    const uint8_t *data = w.data + row * w.row_bytes;
    uint64_t g = (uint64_t)row * w.n_groups;
    switch (w.format) {
    case WEIGHT_F32:
        return ((const float *)data)[col];
    case WEIGHT_F16:
        return __half2float(((const __half *)data)[col]);
    case WEIGHT_BF16:
        return __bfloat162float(((const bf16 *)data)[col]);
    case WEIGHT_AFFINE: {
        uint32_t bit = col * w.bits, at = bit / 8;
        uint32_t two = data[at] | (bit % 8 + w.bits > 8 ? (uint32_t)data[at + 1] << 8 : 0);
        float q = (float)(two >> bit % 8 & ((1u << w.bits) - 1));
        g += col / w.group;
        return fmaf(scale_value(w.scales, g, w.scale_dtype), q, scale_value(w.biases, g, w.scale_dtype));
    }
    case WEIGHT_MXFP4:
        return e2m1_value(data[col / 2] >> col % 2 * 4 & 15) *
               e8m0_value(((const uint8_t *)w.scales)[g + col / 32]);
    case WEIGHT_MXFP8:
        return e4m3_value(data[col]) * e8m0_value(((const uint8_t *)w.scales)[g + col / 32]);
    default: // WEIGHT_NVFP4
        return e2m1_value(data[col / 2] >> col % 2 * 4 & 15) *
               e4m3_value(((const uint8_t *)w.scales)[g + col / 16]);
    }
}
#endif
