// backend/cpu/route.h - which experts a token goes to (an entry of backend_ops, see there).
#ifndef LOAM_BACKEND_CPU_ROUTE_H
#define LOAM_BACKEND_CPU_ROUTE_H
#include "backend/cpu/cpu_backend.h"

struct cpu_scratch_bytes cpu_route_scratch(const struct cpu_backend *cb, const struct backend_limits *limits);
void cpu_route(struct backend *be, const struct route_args *args);
#endif
