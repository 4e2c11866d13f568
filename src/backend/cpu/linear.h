// backend/cpu/linear.h - weights and the products with them (entries of backend_ops, see there).
#ifndef LOAM_BACKEND_CPU_LINEAR_H
#define LOAM_BACKEND_CPU_LINEAR_H
#include "backend/cpu/cpu_backend.h"

struct cpu_scratch_bytes cpu_linear_scratch(const struct cpu_backend *cb, const struct backend_limits *limits);

struct weight *cpu_weight_create(struct backend *be, const struct weight_desc *desc, struct err *err);
void cpu_weight_destroy(struct backend *be, struct weight *weight);
bool cpu_weights_ready(struct backend *be, struct err *err);

void cpu_embed(struct backend *be, const struct weight *table, const int32_t *ids, float scale, struct mat y);
void cpu_linear(struct backend *be, const struct linear_args *args);
float *cpu_logits(struct backend *be, struct mat x, const struct weight *head, const float *bias, float scale,
                  float softcap);
void cpu_linear_glu(struct backend *be, struct mat x, const struct weight *gate, const struct weight *up,
                    enum glu_kind kind, struct mat y);
void cpu_experts(struct backend *be, const struct experts_args *args);
#endif
