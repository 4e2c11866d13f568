#include <math.h>

#include "backend/cpu/cpu_kernels.h"

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static void glu_ref(enum glu_kind kind, const float *gate, const float *up, float *y, size_t n, float alpha,
                    float limit) {
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i];
        switch (kind) {
        case GLU_SILU:
            y[i] = g * sigmoid(g) * u;
            break;
        case GLU_GELU:
            y[i] = 0.5f * g * (1.0f + erff(g * 0.70710678f)) * u;
            break;
        case GLU_GELU_TANH:
            y[i] = 0.5f * g * (1.0f + tanhf(0.79788456f * (g + 0.044715f * g * g * g))) * u;
            break;
        case GLU_RELU:
            y[i] = (g > 0 ? g : 0.0f) * u;
            break;
        case GLU_CLAMPED_SWIGLU:
            g = g > limit ? limit : g;
            u = u > limit ? limit : u < -limit ? -limit : u;
            y[i] = (u + 1.0f) * (g * sigmoid(alpha * g));
            break;
        case GLU_SIGMOID:
            y[i] = u * sigmoid(g);
            break;
        }
    }
}

void cpu_kernels_use_ref(struct cpu_kernels *kernels) {
    *kernels = (struct cpu_kernels){.glu = glu_ref};
    linear_kernels_use_ref(&kernels->linear);
}
