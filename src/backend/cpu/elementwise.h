// backend/cpu/elementwise.h - norms, activations and row arithmetic (entries of backend_ops, see there).
#ifndef LOAM_BACKEND_CPU_ELEMENTWISE_H
#define LOAM_BACKEND_CPU_ELEMENTWISE_H
#include "backend/cpu/cpu_backend.h"

void cpu_norm(struct backend *be, const struct norm_args *args);
void cpu_glu(struct backend *be, const struct glu_args *args);
void cpu_unary(struct backend *be, enum unary_kind kind, const float p[4], struct mat x, struct mat y);
void cpu_axpby(struct backend *be, float a, struct mat x, float b, struct mat y);
void cpu_mul(struct backend *be, struct mat x, struct mat y);
void cpu_gather(struct backend *be, struct mat x, const uint32_t *rows, struct mat y);
#endif
