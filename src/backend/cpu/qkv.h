// backend/cpu/qkv.h - norms of heads, rope and the KV append (an entry of backend_ops, see there), and
// the step's cache of rope angles.
#ifndef LOAM_BACKEND_CPU_QKV_H
#define LOAM_BACKEND_CPU_QKV_H
#include "backend/cpu/cpu_backend.h"

size_t cpu_rope_cache_bytes(const struct backend_limits *limits); // SIZE_MAX: too much
bool cpu_rope_cache_reserve(struct rope_cache *cache, const struct backend_limits *limits);
void cpu_rope_cache_free(struct rope_cache *cache);

void cpu_qkv(struct backend *be, const struct qkv_args *args);
#endif
