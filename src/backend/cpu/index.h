// backend/cpu/index.h - the sparse indexer (an entry of backend_ops, see there).
#ifndef LOAM_BACKEND_CPU_INDEX_H
#define LOAM_BACKEND_CPU_INDEX_H
#include "backend/cpu/cpu_backend.h"

struct cpu_scratch_bytes cpu_index_scratch(const struct cpu_backend *cb, const struct backend_limits *limits);
void cpu_index(struct backend *be, const struct index_args *args);
#endif
