#include "backend/cpu/simd_avx2.h"
// The vocabulary comes first.
#include "backend/cpu/kernels_simd.h"

void cpu_kernels_use_avx2(struct cpu_kernels *kernels, const struct cpu_features *features) {
    cpu_kernels_use_simd(kernels);
    linear_kernels_use_avx2(&kernels->linear, features);
}
