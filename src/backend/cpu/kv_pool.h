// backend/cpu/kv_pool.h - the pages of all layers. A layer's memory is [page][KV head] of blocks
// (kv_layout.h), so a page of a layer is one flat copy.
#ifndef LOAM_BACKEND_CPU_KV_POOL_H
#define LOAM_BACKEND_CPU_KV_POOL_H
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv_layout.h"

struct kv_layer {
    struct kv_layout layout;
    uint32_t group, n_heads, n_pages;
    size_t page_bytes; // n_heads blocks
    char *pages;       // [n_pages] of page_bytes
};

struct kv_pool {
    uint32_t n_layers;
    struct kv_layer *layers;
};

static inline void *kv_block(const struct kv_layer *layer, uint32_t page, uint32_t head) {
    return layer->pages + page * layer->page_bytes + head * layer->layout.block_bytes;
}

// Entries of backend_ops.
struct kv_pool *cpu_kv_create(struct backend *be, const struct kv_layer_desc *layers, uint32_t n_layers,
                              const uint32_t *n_pages, uint32_t n_groups, struct err *err);
void cpu_kv_destroy(struct backend *be, struct kv_pool *pool);
void cpu_kv_copy_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t from, uint32_t to);
size_t cpu_kv_page_bytes(const struct kv_pool *pool, uint32_t group);
void cpu_kv_read_page(struct backend *be, const struct kv_pool *pool, uint32_t group, uint32_t page, void *out);
void cpu_kv_write_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t page, const void *in);
#endif
