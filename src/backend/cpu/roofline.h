// backend/cpu/roofline.h - what the machine could do, and what the operations did, so that a speed can be read
// as a fraction of the machine's.
#ifndef LOAM_BACKEND_CPU_ROOFLINE_H
#define LOAM_BACKEND_CPU_ROOFLINE_H
#include "backend/backend.h"

// Of all threads of the backend together, a second, at the backend's level. 0: that level has no such instruction.
// An operation is a multiplication or an addition.
struct cpu_roofs {
    double read_bytes; // memory, read in order
    double int8_ops, bf16_ops, f32_ops;
};

// Measure for about a second: the best of several turns, since others can only take from a roof. Call between
// steps. `be` is a CPU backend. ERR_NOMEM.
bool cpu_roofs_measure(struct backend *be, struct cpu_roofs *out, struct err *err);

// What linear and attention operations have needed since the backend was opened: each weight counted once a pass
// over its rows, keys and values once a row of the step, whatever the caches did.
struct cpu_work {
    uint64_t weight_bytes, kv_bytes;
    uint64_t int8_ops;  // of weights with codes in fast mode
    uint64_t float_ops; // of all other weights and of attention
};
struct cpu_work cpu_work_done(const struct backend *be);
#endif
