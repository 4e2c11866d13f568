#include "backend/cpu/cpu_kernels.h"

void cpu_kernels_use_neon(struct cpu_kernels *kernels, const struct cpu_features *features) {
    linear_kernels_use_neon(&kernels->linear, features);
}
