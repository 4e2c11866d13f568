// cache/prefix_cache.h - the prompt cache: KV pages of sequences that have been, for those to come that begin alike.
// Owned by the engine thread.
//
// A tree over token ids in steps of one page. A node stands for up to KV_PAGE_TOKENS tokens after its parent's and
// holds a reference to their page in each group of full attention:
//
//     (space) - [64 tokens | page 7] - [64 tokens | page 3] - [64 tokens | page 9]
//                                                           \ [20 tokens | page 4]   a leaf may be partial
//
// A position's KV depends only on the tokens before it, so any sequence that begins with a path's tokens may use its
// pages, the last one up to where they part (kv_seq_reserve copies a shared page before it is written). Models with
// sliding windows or recurrent state go on only where a snapshot was kept. Looking up consumes nothing. What was used
// longest ago goes first, and a page that a running sequence wants goes at once.
#ifndef LOAM_CACHE_PREFIX_CACHE_H
#define LOAM_CACHE_PREFIX_CACHE_H
#include "cache/disk_cache.h"
#include "cache/snapshot.h"

struct prefix_cache;

struct prefix_cache_options {
    struct snapshot_device device;
    uint64_t bytes_max;          // of pages and snapshots together
    uint64_t snapshot_bytes_max; // of snapshots, which take host memory beside the pool
    struct disk_cache *disk;     // where what is let go of is written to, NULL = nowhere; outlives the cache
};
struct prefix_cache *prefix_cache_create(const struct prefix_cache_options *options, struct err *err);
void prefix_cache_destroy(struct prefix_cache *cache); // gives all pages back; NULL is allowed

// What a lookup found. Borrowed until the next insert, or until the pages leave `seq`.
struct prefix_hit {
    uint32_t n_tokens; // 0 = nothing
    const void *snapshot; // NULL if none is needed
};

// The longest beginning of `tokens` (at most n_max of them) that a sequence can go on from. Its full-attention pages
// are put into `seq` (initialised, empty), which keeps them whatever happens to the cache. `space` tells apart what
// gives the same tokens another KV: adapters, media, a second rope table.
struct prefix_hit prefix_cache_find(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_max,
                                    struct kv_seq *seq);
// The rest of what prefix_cache_find promised: windows' pages and state. False if the pool lacks pages.
bool prefix_cache_restore(struct prefix_cache *cache, const struct prefix_hit *hit, struct kv_seq *seq,
                          uint32_t state_slot);

// Keep the first n_tokens positions of `seq`, whose KV is complete. n_tokens is a multiple of KV_PAGE_TOKENS if the
// sequence goes on (or its next token would copy the page). state_slot holds the state at n_tokens exactly. A model that
// needs snapshots gets one if the last one is 64 tokens or more behind. Where memory for it fails, less is kept.
void prefix_cache_insert(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_tokens,
                         const struct kv_seq *seq, uint32_t state_slot);
// Keep what pays of a prompt as it is read: positions (n_before, n_done] of n_prompt have come in this step, n_cached
// were found. Before kv_seq_slide().
void prefix_cache_keep(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_before,
                       uint32_t n_done, uint32_t n_cached, uint32_t n_prompt, const struct kv_seq *seq,
                       uint32_t state_slot);
// Where a chunk that begins at n_done must end for prefix_cache_keep() to find a recurrent state there; UINT32_MAX =
// anywhere.
uint32_t prefix_cache_chunk_end(const struct prefix_cache *cache, uint32_t n_done, uint32_t n_cached,
                                uint32_t n_prompt);

// Let go of pages, used longest ago first, until `n` of the group are free. False if there are not that many.
bool prefix_cache_give_way(struct prefix_cache *cache, uint32_t group, uint32_t n);
void prefix_cache_clear(struct prefix_cache *cache);

// ---- The second tier ----------------------------------------------------------------------------
// Whole pages, and snapshots at their ends, are written to the disk cache before they are let go of, and when they were
// not used for a while. A prompt that is known there is loaded into the tree, where prefix_cache_find() finds it.

struct prefix_load;
// Begin to load what is on disk of a prompt and goes further than what the tree has; NULL if nothing does. `tokens` are
// borrowed until prefix_load_destroy().
struct prefix_load *prefix_cache_load(struct prefix_cache *cache, uint64_t space, const int32_t *tokens,
                                      uint32_t n_max);
void prefix_load_destroy(struct prefix_load *load); // at any moment; NULL is allowed
// All is there that will come: what was damaged, or has no room, ends a load early.
bool prefix_load_is_over(const struct prefix_load *load);
// Take what has come from disk, at most n_max pages, into the trees of all loads.
void prefix_cache_take_loaded(struct prefix_cache *cache, uint32_t n_max);

// Write behind what was not used for idle_ms, at most n_max pages now. Returns in how many ms more will be due,
// UINT32_MAX = nothing is left to write.
uint32_t prefix_cache_spill(struct prefix_cache *cache, uint64_t idle_ms, uint32_t n_max);
// Write all that is not on disk yet, used last first, and wait for it, at most until the clock says so. False if
// something was not written.
bool prefix_cache_flush(struct prefix_cache *cache, uint64_t deadline_ns);

struct prefix_cache_stats {
    uint64_t bytes, bytes_max, snapshot_bytes;
    uint32_t n_nodes, n_snapshots;
    uint64_t n_evicted; // nodes that made room
    // Of the second tier: pages that came from it and how long the last load took; pages that are not there yet.
    uint64_t n_restored, n_demoted;
    uint32_t n_dirty;
    double restore_ms;
};
void prefix_cache_stats(const struct prefix_cache *cache, struct prefix_cache_stats *out);
#endif
