#include "backend/cpu/kv_pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

struct kv_pool *cpu_kv_create(struct backend *be, const struct kv_layer_desc *layers, uint32_t n_layers,
                              const uint32_t *n_pages, uint32_t n_groups, struct err *err) {
    struct kv_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        goto nomem;
    pool->layers = calloc(n_layers ? n_layers : 1, sizeof *pool->layers);
    if (!pool->layers)
        goto nomem;
    pool->n_layers = n_layers;
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct kv_layer_desc *desc = &layers[i];
        struct kv_layer *layer = &pool->layers[i];
        assert(desc->group < n_groups);
        if (desc->v_in_k && desc->v_dim > desc->k_dim) {
            err_set(err, ERR_INVALID, "layer %u takes %u value dimensions from keys of %u", i, desc->v_dim,
                    desc->k_dim);
            goto fail;
        }
        if (desc->k_dim > KV_DIM_MAX || desc->v_dim > KV_DIM_MAX) {
            err_set(err, ERR_UNSUPPORTED, "layer %u has heads of %u dimensions, the limit is %d", i,
                    max_u32(desc->k_dim, desc->v_dim), KV_DIM_MAX);
            goto fail;
        }
        layer->layout = kv_layout_make(desc->kind, desc->k_dim, desc->v_dim, desc->v_in_k);
        layer->group = desc->group;
        layer->n_heads = desc->n_heads;
        layer->n_pages = n_pages[desc->group];
        layer->page_bytes = desc->n_heads * layer->layout.block_bytes;
        size_t n_bytes;
        if (!mul_size(layer->page_bytes, layer->n_pages, &n_bytes) ||
            !add_size(n_bytes, KV_SLACK, &n_bytes) || !(layer->pages = cpu_alloc(n_bytes)))
            goto nomem;
    }
    return pool;
nomem:
    err_set(err, ERR_NOMEM, "out of memory for the KV cache of %u layers: lower the context or the KV bits",
            n_layers);
fail:
    cpu_kv_destroy(be, pool);
    return NULL;
}

void cpu_kv_destroy(struct backend *be, struct kv_pool *pool) {
    (void)be;
    if (!pool)
        return;
    for (uint32_t i = 0; i < pool->n_layers; i++)
        cpu_free(pool->layers[i].pages);
    free(pool->layers);
    free(pool);
}

void cpu_kv_copy_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t from, uint32_t to) {
    (void)be;
    for (uint32_t i = 0; i < pool->n_layers; i++) {
        struct kv_layer *layer = &pool->layers[i];
        if (layer->group == group)
            memcpy(kv_block(layer, to, 0), kv_block(layer, from, 0), layer->page_bytes);
    }
}

size_t cpu_kv_page_bytes(const struct kv_pool *pool, uint32_t group) {
    size_t n = 0;
    for (uint32_t i = 0; i < pool->n_layers; i++)
        if (pool->layers[i].group == group)
            n += pool->layers[i].page_bytes;
    return n;
}

void cpu_kv_read_page(struct backend *be, const struct kv_pool *pool, uint32_t group, uint32_t page, void *out) {
    (void)be;
    char *to = out;
    for (uint32_t i = 0; i < pool->n_layers; i++) {
        const struct kv_layer *layer = &pool->layers[i];
        if (layer->group != group)
            continue;
        memcpy(to, kv_block(layer, page, 0), layer->page_bytes);
        to += layer->page_bytes;
    }
}

void cpu_kv_write_page(struct backend *be, struct kv_pool *pool, uint32_t group, uint32_t page, const void *in) {
    (void)be;
    const char *from = in;
    for (uint32_t i = 0; i < pool->n_layers; i++) {
        struct kv_layer *layer = &pool->layers[i];
        if (layer->group != group)
            continue;
        memcpy(kv_block(layer, page, 0), from, layer->page_bytes);
        from += layer->page_bytes;
    }
}
