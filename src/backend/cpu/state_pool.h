// backend/cpu/state_pool.h - recurrent state: per slot, the float32 tensors that a sequence carries.
// Memory is [slot][state tensor], so a slot is one flat copy.
#ifndef LOAM_BACKEND_CPU_STATE_POOL_H
#define LOAM_BACKEND_CPU_STATE_POOL_H
#include "backend/cpu/cpu_backend.h"

struct state_pool {
    uint32_t n_states, n_slots;
    size_t *offsets;    // [n_states] in floats
    size_t slot_floats; // a multiple of CPU_ALIGN bytes
    float *slots;
};

static inline float *state_tensor(const struct state_pool *pool, uint32_t slot, uint32_t state) {
    return pool->slots + slot * pool->slot_floats + pool->offsets[state];
}

// Entries of backend_ops.
struct state_pool *cpu_state_create(struct backend *be, const size_t *n_floats, uint32_t n_states,
                                    uint32_t n_slots, struct err *err);
void cpu_state_destroy(struct backend *be, struct state_pool *pool);
void cpu_state_clear(struct backend *be, struct state_pool *pool, uint32_t slot);
void cpu_state_copy(struct backend *be, struct state_pool *pool, uint32_t from, uint32_t to);
size_t cpu_state_slot_bytes(const struct state_pool *pool);
void cpu_state_read(struct backend *be, const struct state_pool *pool, uint32_t slot, void *out);
void cpu_state_write(struct backend *be, struct state_pool *pool, uint32_t slot, const void *in);
#endif
