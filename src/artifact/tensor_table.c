#include "artifact/tensor_table.h"

#include <sys/random.h>

#include "base/checked.h"
#include "base/hash.h"

bool tensor_table_init(struct tensor_table *table, struct arena *arena, size_t n) {
    size_t n_slots = 8, n_min;
    if (!mul_size(n, 2, &n_min))
        return false;
    while (n_slots < n_min)
        if (!mul_size(n_slots, 2, &n_slots))
            return false;
    *table = (struct tensor_table){arena_array(arena, const struct tensor *, n_slots), n_slots - 1, 0};
    // Without entropy the table still works; only a crafted file could make it slow.
    if (getrandom(&table->seed, sizeof table->seed, GRND_NONBLOCK) < 0)
        table->seed = (uint64_t)(uintptr_t)table->slots;
    return table->slots != NULL;
}

static const struct tensor **slot_of(const struct tensor_table *table, struct str name) {
    size_t i = (size_t)hash_bytes(bytes_of(name), table->seed) & table->mask;
    while (table->slots[i] && !str_eq(table->slots[i]->name, name))
        i = (i + 1) & table->mask;
    return &table->slots[i];
}

const struct tensor *tensor_table_insert(struct tensor_table *table, const struct tensor *tensor) {
    const struct tensor **slot = slot_of(table, tensor->name);
    if (*slot)
        return *slot;
    *slot = tensor;
    return NULL;
}

const struct tensor *tensor_table_find(const struct tensor_table *table, struct str name) {
    return *slot_of(table, name);
}
