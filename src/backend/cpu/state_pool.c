#include "backend/cpu/state_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { ALIGN_FLOATS = CPU_ALIGN / sizeof(float) };

struct state_pool *cpu_state_create(struct backend *be, const size_t *n_floats, uint32_t n_states,
                                    uint32_t n_slots, struct err *err) {
    struct state_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        goto nomem;
    *pool = (struct state_pool){.n_states = n_states, .n_slots = n_slots};
    pool->offsets = calloc(n_states ? n_states : 1, sizeof *pool->offsets);
    if (!pool->offsets)
        goto nomem;
    for (uint32_t i = 0; i < n_states; i++) {
        size_t rounded;
        pool->offsets[i] = pool->slot_floats;
        if (!round_up_size(n_floats[i], ALIGN_FLOATS, &rounded) ||
            !add_size(pool->slot_floats, rounded, &pool->slot_floats))
            goto nomem;
    }
    size_t n_bytes;
    if (!mul_size(pool->slot_floats, (size_t)n_slots * sizeof(float), &n_bytes) ||
        !(pool->slots = cpu_alloc(n_bytes)))
        goto nomem;
    return pool;
nomem:
    err_set(err, ERR_NOMEM, "out of memory for %u slots of recurrent state: lower the number of sequences", n_slots);
    cpu_state_destroy(be, pool);
    return NULL;
}

void cpu_state_destroy(struct backend *be, struct state_pool *pool) {
    (void)be;
    if (!pool)
        return;
    cpu_free(pool->slots);
    free(pool->offsets);
    free(pool);
}

static float *slot_data(const struct state_pool *pool, uint32_t slot) {
    return pool->slots + slot * pool->slot_floats;
}

size_t cpu_state_slot_bytes(const struct state_pool *pool) {
    return pool->slot_floats * sizeof(float);
}

void cpu_state_clear(struct backend *be, struct state_pool *pool, uint32_t slot) {
    (void)be;
    memset(slot_data(pool, slot), 0, cpu_state_slot_bytes(pool));
}

void cpu_state_copy(struct backend *be, struct state_pool *pool, uint32_t from, uint32_t to) {
    (void)be;
    memmove(slot_data(pool, to), slot_data(pool, from), cpu_state_slot_bytes(pool));
}

void cpu_state_read(struct backend *be, const struct state_pool *pool, uint32_t slot, void *out) {
    (void)be;
    memcpy(out, slot_data(pool, slot), cpu_state_slot_bytes(pool));
}

void cpu_state_write(struct backend *be, struct state_pool *pool, uint32_t slot, const void *in) {
    (void)be;
    memcpy(slot_data(pool, slot), in, cpu_state_slot_bytes(pool));
}
