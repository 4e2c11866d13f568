// cache/disk_cache.h - blobs in files, named by keys: the prompt cache's second tier, which outlives evictions and
// restarts. It knows nothing of trees and models.
//
//   FOLDER/loam-kv-1/<identity>/<depth>-<key>.<kind>     a file: header, SHA-256 of all, the blob
//
// Files are written to a temporary, synced and renamed by a thread of its own, which reads them too (reads first). There
// is no index on disk: the folder is listed at the start. What is damaged is removed and counted. Nothing that happens to
// the files of a running cache is more than a miss. Everything here is called by the owner's thread, but for what says
// "any thread".
#ifndef LOAM_CACHE_DISK_CACHE_H
#define LOAM_CACHE_DISK_CACHE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct disk_cache;

// A key stands for all that its blob depends on but the identity.
struct disk_key {
    uint8_t bytes[32];
};
// The key of what begins with nothing, and of `parent` with n more tokens.
struct disk_key disk_key_root(uint64_t space);
struct disk_key disk_key_next(const struct disk_key *parent, const int32_t *tokens, uint32_t n);

enum disk_kind { DISK_PAGE, DISK_STATE };

struct disk_cache_options {
    const char *folder;   // copied; made if need be
    const char *identity; // what else decides every blob's bytes; any text, copied
    uint64_t bytes_max;   // of all files under the folder, other identities' too; 0 = no limit
    size_t pending_bytes_max; // of blobs that wait to be written; 0 = 256 MiB
    // A read or write is over: disk_cache_next() may have something, and there is room to write. On the cache's thread,
    // must not block.
    void (*on_progress)(void *user);
    void *user;
};
// ERR_IO if the folder cannot be made or listed; ERR_INVALID if its path is too long; ERR_NOMEM.
struct disk_cache *disk_cache_create(const struct disk_cache_options *options, struct err *err);
// What waits to be written is lost (see disk_cache_wait). NULL is allowed.
void disk_cache_destroy(struct disk_cache *cache);

// Room for a blob, for disk_cache_write() or disk_blob_free(). NULL when out of memory.
void *disk_blob_create(size_t n_bytes);
void disk_blob_free(void *blob); // NULL is allowed

bool disk_cache_has(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key);
// The same, or on its way there.
bool disk_cache_will_have(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key);
// Is there room for so many more bytes to wait? False also for a while after a write failed.
bool disk_cache_has_room(struct disk_cache *cache, size_t n_bytes);
// Write a blob of n_bytes behind, and take it over. `depth`: of what was used together the deepest goes first.
void disk_cache_write(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key, uint32_t depth,
                      void *blob, size_t n_bytes);
// This was used just now.
void disk_cache_touch(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key);
// Count one that there was no room for.
void disk_cache_count_dropped(struct disk_cache *cache);

// Ask for a blob of n_bytes; its answer comes from disk_cache_next(), in the order of asking. False: out of memory.
bool disk_cache_read(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key, size_t n_bytes,
                     uint64_t tag);
struct disk_answer {
    uint64_t tag;
    void *blob; // the caller's; NULL: there is no such file any more, or it was damaged
};
bool disk_cache_next(struct disk_cache *cache, struct disk_answer *out); // false: nothing has come

// Wait until nothing waits to be written, at most until the clock (clock_ns) says so. False if something still does.
bool disk_cache_wait(struct disk_cache *cache, uint64_t deadline_ns);
// Or until there is room for n_bytes.
bool disk_cache_wait_room(struct disk_cache *cache, size_t n_bytes, uint64_t deadline_ns);

struct disk_cache_stats {
    uint64_t bytes, bytes_max, pending_bytes;
    uint32_t n_entries, n_pending; // files of this identity; blobs that wait to be written
    uint64_t n_written, n_read, n_dropped, n_failed, n_damaged, n_evicted;
};
void disk_cache_stats(struct disk_cache *cache, struct disk_cache_stats *out); // any thread
#endif
