#include "cache/snapshot.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/checked.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

static uint32_t blocks_of(uint32_t n_tokens) {
    return n_tokens / KV_PAGE_TOKENS + (n_tokens % KV_PAGE_TOKENS != 0);
}

// The first block that a query at n_tokens sees through a window.
static uint32_t first_block(uint32_t window, uint32_t n_tokens) {
    return n_tokens < window ? 0 : (n_tokens - window + 1) / KV_PAGE_TOKENS;
}

// Blocks of a windowed group that a query at n_tokens sees; 0 for a group without window.
static uint32_t n_seen(const struct snapshot_device *device, uint32_t group, uint32_t n_tokens) {
    uint32_t window = kv_cache_window(device->kv, group), n = blocks_of(n_tokens);
    uint32_t first = first_block(window, n_tokens);
    return window && first < n ? n - first : 0;
}

bool snapshot_is_needed(const struct snapshot_device *device) {
    for (uint32_t g = 0; g < kv_cache_n_groups(device->kv); g++)
        if (kv_cache_window(device->kv, g))
            return true;
    return device->states != NULL;
}

size_t snapshot_bytes(const struct snapshot_device *device, uint32_t n_tokens) {
    size_t n = device->states ? device->be->ops->state_slot_bytes(device->states) : 0;
    for (uint32_t g = 0; g < kv_cache_n_groups(device->kv); g++)
        n += n_seen(device, g, n_tokens) * device->page_bytes[g];
    return n;
}

void *snapshot_alloc(size_t n_bytes) {
    size_t all;
    if (n_bytes < 2 * HUGE_PAGE_BYTES || !round_up_size(n_bytes, HUGE_PAGE_BYTES, &all))
        return malloc(max_size(n_bytes, 1));
    void *data = aligned_alloc(HUGE_PAGE_BYTES, all);
    if (data)
        madvise(data, all, MADV_HUGEPAGE);
    return data;
}

bool snapshot_take(const struct snapshot_device *device, const struct kv_seq *seq, uint32_t state_slot,
                   uint32_t n_tokens, void *out) {
    const struct backend_ops *ops = device->be->ops;
    uint32_t n = blocks_of(n_tokens);
    char *to = out;
    for (uint32_t g = 0; g < kv_cache_n_groups(device->kv); g++) {
        for (uint32_t b = n - n_seen(device, g, n_tokens); b < n; b++) {
            if (seq->table[g][b] == KV_PAGE_NONE)
                return false;
            ops->kv_read_page(device->be, device->pool, g, seq->table[g][b], to);
            to += device->page_bytes[g];
        }
    }
    if (device->states)
        ops->state_read(device->be, device->states, state_slot, to);
    return true;
}

bool snapshot_restore(const struct snapshot_device *device, struct kv_seq *seq, uint32_t state_slot,
                      uint32_t n_tokens, const void *in) {
    const struct backend_ops *ops = device->be->ops;
    uint32_t n = blocks_of(n_tokens), n_groups = kv_cache_n_groups(device->kv);
    const char *from = in;
    for (uint32_t g = 0; g < n_groups; g++)
        if (n_seen(device, g, n_tokens) > kv_cache_n_free(device->kv, g))
            return false;
    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t seen = n_seen(device, g, n_tokens);
        if (kv_cache_window(device->kv, g))
            seq->first_block[g] = n - seen;
        for (uint32_t b = n - seen; b < n; b++) {
            seq->table[g][b] = kv_cache_take(device->kv, g);
            ops->kv_write_page(device->be, device->pool, g, seq->table[g][b], from);
            from += device->page_bytes[g];
        }
    }
    if (device->states)
        ops->state_write(device->be, device->states, state_slot, from);
    return true;
}
