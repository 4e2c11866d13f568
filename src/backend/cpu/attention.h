// backend/cpu/attention.h - paged attention (an entry of backend_ops, see there).
#ifndef LOAM_BACKEND_CPU_ATTENTION_H
#define LOAM_BACKEND_CPU_ATTENTION_H
#include "backend/cpu/cpu_backend.h"

struct cpu_scratch_bytes cpu_attention_scratch(const struct cpu_backend *cb, const struct backend_limits *limits);
void cpu_attention(struct backend *be, const struct attention_args *args);
#endif
