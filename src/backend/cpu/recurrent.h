// backend/cpu/recurrent.h - the short convolution and the gated delta rule (entries of backend_ops, see
// there).
#ifndef LOAM_BACKEND_CPU_RECURRENT_H
#define LOAM_BACKEND_CPU_RECURRENT_H
#include "backend/cpu/cpu_backend.h"

void cpu_conv(struct backend *be, const struct conv_args *args);
void cpu_delta(struct backend *be, const struct delta_args *args);
#endif
