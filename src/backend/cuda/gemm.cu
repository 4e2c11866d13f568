// Tiled bf16 products for many rows: cuBLASLt where its library is installed, else our own kernel.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "backend/cuda/device.cuh"

// ---- Our kernel -----------------------------------------------------------------------------------
// y[n, n_out] = x W^T. A block makes 128 x 128 of y with 8 warps of 64 x 32, from three stages of
// cp.async in shared memory. Rows of a stage are 64 bytes (32 k); 16-byte pieces are stored at
// piece ^ (row / 2 % 4), so that ldmatrix meets no bank twice.
enum { TILE_X = 128, TILE_W = 128, TILE_K = 32, STAGES = 3, STAGE_BYTES = (TILE_X + TILE_W) * TILE_K * 2 };

struct gemm_args {
    const bf16 *x, *w;
    uint32_t ldx, n, n_out, n_in, ldy;
    const float *bias;
    float scale;
    bool add;
    bf16 *y;
};

__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t piece) {
    return row * (TILE_K * 2) + ((piece ^ (row >> 1 & 3)) << 4);
}
__device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
__device__ __forceinline__ void ldmatrix_4(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void load_stage(const gemm_args &a, uint32_t shared, uint32_t x0, uint32_t w0,
                                                  uint32_t k0) {
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TILE_X * 4; i += 256) {
        uint32_t row = i / 4, piece = i % 4, k = k0 + piece * 8;
        bool there = x0 + row < a.n && k < a.n_in;
        copy_16(shared + swizzled(row, piece), there ? a.x + (uint64_t)(x0 + row) * a.ldx + k : a.x, there);
    }
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TILE_W * 4; i += 256) {
        uint32_t row = i / 4, piece = i % 4, k = k0 + piece * 8;
        bool there = w0 + row < a.n_out && k < a.n_in;
        copy_16(shared + TILE_X * TILE_K * 2 + swizzled(row, piece),
                there ? a.w + (uint64_t)(w0 + row) * a.n_in + k : a.w, there);
    }
    asm volatile("cp.async.commit_group;");
}

static __global__ void __launch_bounds__(256) gemm_kernel(const __grid_constant__ gemm_args a) {
    extern __shared__ __align__(128) uint8_t stages[];
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(stages);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t x0 = blockIdx.x * TILE_X, w0 = blockIdx.y * TILE_W;
    const uint32_t warp_x = warp % 2 * 64, warp_w = warp / 2 * 32;
    float acc[4][4][4] = {};
    const uint32_t n_k = (a.n_in + TILE_K - 1) / TILE_K;
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n_k)
            load_stage(a, shared + s * STAGE_BYTES, x0, w0, s * TILE_K);
        else
            asm volatile("cp.async.commit_group;");
    }
    for (uint32_t kt = 0; kt < n_k; kt++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        if (kt + STAGES - 1 < n_k)
            load_stage(a, shared + (kt + STAGES - 1) % STAGES * STAGE_BYTES, x0, w0,
                       (kt + STAGES - 1) * TILE_K);
        else
            asm volatile("cp.async.commit_group;");
        const uint32_t at_x = shared + kt % STAGES * STAGE_BYTES, at_w = at_x + TILE_X * TILE_K * 2;
#pragma unroll
        for (int ks = 0; ks < 2; ks++) {
            uint32_t xf[4][4], wf[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                ldmatrix_4(xf[i], at_x + swizzled(warp_x + i * 16 + lane % 16, ks * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < 2; j++)
                ldmatrix_4(wf[j], at_w + swizzled(warp_w + j * 16 + lane % 8 + lane / 16 * 8,
                                                  ks * 2 + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    mma_bf16(acc[i][j], xf[i], wf[j / 2][j % 2 * 2], wf[j / 2][j % 2 * 2 + 1]);
        }
    }
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t row = x0 + warp_x + i * 16 + h * 8 + g, col = w0 + warp_w + j * 8 + 2 * t;
                if (row >= a.n || col >= a.n_out)
                    continue;
                float v0 = acc[i][j][2 * h], v1 = acc[i][j][2 * h + 1];
                if (a.bias)
                    v0 += a.bias[col], v1 += a.bias[col + 1];
                v0 *= a.scale, v1 *= a.scale;
                uint32_t *to = (uint32_t *)(a.y + (uint64_t)row * a.ldy + col);
                if (a.add)
                    v0 += bf16_lo(*to), v1 += bf16_hi(*to);
                *to = bf16_pair(v0, v1);
            }
}

// ---- cuBLASLt ---------------------------------------------------------------------------------------
// Opened at run time: a machine with a driver alone can still run the plugin.
enum { PLANS_MAX = 256, WORKSPACE_BYTES = 64 << 20 };

struct gemm_plan {
    uint32_t n, n_out, n_in, ldx, ldy;
    bool add, usable;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algo;
};

struct gemm_library {
    void *library;
    cublasLtHandle_t handle;
    void *workspace;
    struct gemm_plan plans[PLANS_MAX];
    uint32_t n_plans, next_plan;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
};

template <class T> static bool find_symbol(void *library, const char *name, T *out) {
    void *symbol = dlsym(library, name);
    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

void gemm_open(struct cuda_backend *cu) {
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    struct gemm_library *lt = (struct gemm_library *)calloc(1, sizeof *lt);
    if (lt && find_symbol(library, "cublasLtCreate", &lt->create) &&
        find_symbol(library, "cublasLtDestroy", &lt->destroy) &&
        find_symbol(library, "cublasLtMatmul", &lt->matmul) &&
        find_symbol(library, "cublasLtMatmulDescCreate", &lt->desc_create) &&
        find_symbol(library, "cublasLtMatmulDescDestroy", &lt->desc_destroy) &&
        find_symbol(library, "cublasLtMatmulDescSetAttribute", &lt->desc_set) &&
        find_symbol(library, "cublasLtMatrixLayoutCreate", &lt->layout_create) &&
        find_symbol(library, "cublasLtMatrixLayoutDestroy", &lt->layout_destroy) &&
        find_symbol(library, "cublasLtMatmulPreferenceCreate", &lt->preference_create) &&
        find_symbol(library, "cublasLtMatmulPreferenceDestroy", &lt->preference_destroy) &&
        find_symbol(library, "cublasLtMatmulPreferenceSetAttribute", &lt->preference_set) &&
        find_symbol(library, "cublasLtMatmulAlgoGetHeuristic", &lt->heuristic) &&
        cudaMalloc(&lt->workspace, WORKSPACE_BYTES) == cudaSuccess) {
        if (lt->create(&lt->handle) == CUBLAS_STATUS_SUCCESS) {
            lt->library = library;
            cu->gemm = lt;
            return;
        }
        cudaFree(lt->workspace);
    }
    cudaGetLastError();
    free(lt);
    dlclose(library);
}

static void plan_destroy(struct gemm_library *lt, struct gemm_plan *plan) {
    if (plan->desc)
        lt->desc_destroy(plan->desc);
    if (plan->w)
        lt->layout_destroy(plan->w);
    if (plan->x)
        lt->layout_destroy(plan->x);
    if (plan->y)
        lt->layout_destroy(plan->y);
    *plan = {};
}

void gemm_close(struct cuda_backend *cu) {
    struct gemm_library *lt = cu->gemm;
    if (!lt)
        return;
    for (uint32_t i = 0; i < lt->n_plans; i++)
        plan_destroy(lt, &lt->plans[i]);
    lt->destroy(lt->handle);
    cudaFree(lt->workspace);
    dlclose(lt->library);
    free(lt);
    cu->gemm = NULL;
}

// cuBLAS counts by columns: y^T [n_out, n] = (W^T)^T x^T.
static struct gemm_plan *plan_for(struct gemm_library *lt, const gemm_args *a) {
    for (uint32_t i = 0; i < lt->n_plans; i++) {
        struct gemm_plan *p = &lt->plans[i];
        if (p->n == a->n && p->n_out == a->n_out && p->n_in == a->n_in && p->ldx == a->ldx &&
            p->ldy == a->ldy && p->add == a->add)
            return p;
    }
    struct gemm_plan *p = &lt->plans[lt->next_plan];
    lt->next_plan = (lt->next_plan + 1) % PLANS_MAX;
    if (lt->n_plans < PLANS_MAX)
        lt->n_plans++;
    plan_destroy(lt, p);
    p->n = a->n, p->n_out = a->n_out, p->n_in = a->n_in, p->ldx = a->ldx, p->ldy = a->ldy, p->add = a->add;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference = NULL;
    const size_t workspace = WORKSPACE_BYTES;
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    p->usable =
        lt->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ==
            CUBLAS_STATUS_SUCCESS &&
        lt->layout_create(&p->w, CUDA_R_16BF, a->n_in, a->n_out, a->n_in) == CUBLAS_STATUS_SUCCESS &&
        lt->layout_create(&p->x, CUDA_R_16BF, a->n_in, a->n, a->ldx) == CUBLAS_STATUS_SUCCESS &&
        lt->layout_create(&p->y, CUDA_R_16BF, a->n_out, a->n, a->ldy) == CUBLAS_STATUS_SUCCESS &&
        lt->preference_create(&preference) == CUBLAS_STATUS_SUCCESS &&
        lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                           sizeof workspace) == CUBLAS_STATUS_SUCCESS &&
        lt->heuristic(lt->handle, p->desc, p->w, p->x, p->y, p->y, preference, 1, &found, &n_found) ==
            CUBLAS_STATUS_SUCCESS &&
        n_found > 0;
    if (p->usable)
        p->algo = found.algo;
    if (preference)
        lt->preference_destroy(preference);
    return p;
}

// y += scale * bias, which cuBLASLt would want in bf16.
static __global__ void add_bias_kernel(bf16 *y, uint32_t ldy, uint32_t n_out, const float *bias, float scale) {
    uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col < n_out) {
        bf16 *to = y + (uint64_t)blockIdx.y * ldy + col;
        *to = __float2bfloat16(__bfloat162float(*to) + scale * bias[col]);
    }
}

static bool gemm_lt(struct cuda_backend *cu, const gemm_args *a) {
    struct gemm_library *lt = cu->gemm;
    struct gemm_plan *p = plan_for(lt, a);
    if (!p->usable)
        return false;
    float beta = a->add ? 1.0f : 0.0f;
    if (lt->matmul(lt->handle, p->desc, &a->scale, a->w, p->w, a->x, p->x, &beta, a->y, p->y, a->y, p->y,
                   &p->algo, lt->workspace, WORKSPACE_BYTES, cu->stream) != CUBLAS_STATUS_SUCCESS) {
        p->usable = false;
        return false;
    }
    if (a->bias) {
        add_bias_kernel<<<dim3(div_up(a->n_out, 256), a->n), 256, 0, cu->stream>>>(a->y, a->ldy, a->n_out,
                                                                                    a->bias, a->scale);
        CUDA_LAUNCHED(cu, "bias");
    }
    return true;
}

void gemm_bf16(struct cuda_backend *cu, const bf16 *x, uint32_t ldx, uint32_t n, const bf16 *w,
               uint32_t n_out, uint32_t n_in, const float *bias, float scale, bool add, bf16 *y,
               uint32_t ldy) {
    gemm_args a = {x, w, ldx, n, n_out, n_in, ldy, bias, scale, add, y};
    if (cu->gemm && gemm_lt(cu, &a))
        return;
    static_assert(STAGES * STAGE_BYTES <= 48 << 10, "needs no opt-in");
    gemm_kernel<<<dim3(div_up(n, TILE_X), div_up(n_out, TILE_W)), 256, STAGES * STAGE_BYTES, cu->stream>>>(a);
    CUDA_LAUNCHED(cu, "gemm");
}
