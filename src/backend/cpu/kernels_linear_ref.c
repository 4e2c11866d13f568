#include "backend/cpu/linear_kernels.h"

static float dot_f32_ref(const float *x, const float *y, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

void linear_kernels_use_ref(struct linear_kernels *kernels) {
    *kernels = (struct linear_kernels){.dot_f32 = dot_f32_ref};
}
