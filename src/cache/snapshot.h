// cache/snapshot.h - what a sequence needs at one position beside its full-attention pages, copied to host memory:
// the pages that its sliding windows still see, and its recurrent state. Owned by the engine thread.
//
// A full layer's page serves every position up to its own; a window's pages and a recurrent state serve one
// position only. So the first are shared where they lie and the second are copied at chosen positions.
#ifndef LOAM_CACHE_SNAPSHOT_H
#define LOAM_CACHE_SNAPSHOT_H
#include "cache/kv_cache.h"

// Where sequences live. The backend and its pools are not touched by a model without windows and states.
struct snapshot_device {
    struct kv_cache *kv;
    struct backend *be;
    struct kv_pool *pool;
    struct state_pool *states;              // NULL if the model has none
    uint64_t page_bytes[KV_GROUPS_MAX];     // of one page of a group
};

// True if a sequence of this model cannot go on from its full-attention pages alone.
bool snapshot_is_needed(const struct snapshot_device *device);
// Bytes of a snapshot at position n_tokens.
size_t snapshot_bytes(const struct snapshot_device *device, uint32_t n_tokens);
// Memory for one, for free(). Large ones get huge pages: a snapshot's memory is written from end to end at once, and
// the first touch of its pages can cost ten times the copy.
void *snapshot_alloc(size_t n_bytes);
// Copy into `out` [snapshot_bytes] what `seq`, which holds at least the first n_tokens positions, needs to go on
// at n_tokens. False if pages that it needs are gone already (behind a window).
bool snapshot_take(const struct snapshot_device *device, const struct kv_seq *seq, uint32_t state_slot,
                   uint32_t n_tokens, void *out);
// Make `seq`, whose full-attention pages of the first n_tokens positions are in its tables and whose n_blocks
// says so, go on at n_tokens. False (nothing taken) if the pool lacks pages.
bool snapshot_restore(const struct snapshot_device *device, struct kv_seq *seq, uint32_t state_slot,
                      uint32_t n_tokens, const void *in);
#endif
