#include "backend/cpu/cpu_kernels.h"

void cpu_kernels_use_avx512(struct cpu_kernels *kernels, const struct cpu_features *features) {
    linear_kernels_use_avx512(&kernels->linear, features);
}
