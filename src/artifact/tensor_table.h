// artifact/tensor_table.h - finds tensors by name: open addressing over borrowed tensors.
// Built by one thread; afterwards any thread may read.
#ifndef LOAM_ARTIFACT_TENSOR_TABLE_H
#define LOAM_ARTIFACT_TENSOR_TABLE_H
#include "artifact/weights.h"
#include "base/arena.h"

struct tensor_table {
    const struct tensor **slots; // [mask + 1], NULL = free; at most half are taken
    size_t mask;
    uint64_t seed; // random: names come from files, which may be made to collide
};

// Room for n tensors, in the arena. False when out of memory.
bool tensor_table_init(struct tensor_table *table, struct arena *arena, size_t n);
// Add a tensor (at most n in all). Returns the one that already has its name, and then adds nothing;
// else NULL.
const struct tensor *tensor_table_insert(struct tensor_table *table, const struct tensor *tensor);
const struct tensor *tensor_table_find(const struct tensor_table *table, struct str name);
#endif
