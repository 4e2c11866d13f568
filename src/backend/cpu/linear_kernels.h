// backend/cpu/linear_kernels.h - the inner loops of the matrix products, a part of struct cpu_kernels.
#ifndef LOAM_BACKEND_CPU_LINEAR_KERNELS_H
#define LOAM_BACKEND_CPU_LINEAR_KERNELS_H
#include <stddef.h>

#include "backend/cpu/cpu_features.h"

typedef float dot_f32_fn(const float *x, const float *y, size_t n);

struct linear_kernels {
    dot_f32_fn *dot_f32;
};

void linear_kernels_use_ref(struct linear_kernels *kernels);
void linear_kernels_use_avx2(struct linear_kernels *kernels, const struct cpu_features *features);
void linear_kernels_use_avx512(struct linear_kernels *kernels, const struct cpu_features *features);
void linear_kernels_use_amx(struct linear_kernels *kernels, const struct cpu_features *features);
void linear_kernels_use_neon(struct linear_kernels *kernels, const struct cpu_features *features);
#endif
