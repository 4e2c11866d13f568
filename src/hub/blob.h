// hub/blob.h - one blob of the cache while it is being written: its lock, its partial file, its hash.
// A blob belongs to one thread at a time; whoever shares it hands it over under a lock of their own.
#ifndef LOAM_HUB_BLOB_H
#define LOAM_HUB_BLOB_H
#include "base/bytes.h"
#include "base/err.h"
#include "hub/listing.h"

struct blob {
    char *path, *partial_path; // owned
    int fd;                    // of the partial file, -1 when closed
    void *digest;              // EVP_MD_CTX of what was written
    uint64_t n_bytes;          // expected
    uint64_t written;          // bytes in the partial file, all of them hashed
    uint64_t synced;           // write-back was begun up to here
    bool is_lfs;
    char hash[65];
};

// Open blobs/<hash>.incomplete below repo_folder, creating it, and hash the prefix that is there in
// reads of 8 MiB; a partial file longer than the blob starts anew. ERR_IO, ERR_NOMEM.
bool blob_open(struct blob *blob, const char *repo_folder, const struct hub_file *file, struct err *err);
// Write and hash the next bytes. ERR_IO names a full disk; what was written stays a true prefix.
bool blob_append(struct blob *blob, struct bytes data, struct err *err);
// All n_bytes are there: compare the hash, fsync, rename to blobs/<hash>, fsync the folder.
// ERR_FORMAT if the hash differs: the partial file is then deleted. ERR_IO. Closes the blob.
bool blob_finish(struct blob *blob, struct err *err);
// Keep the partial file for the next try and forget the rest. A zeroed blob is allowed.
void blob_close(struct blob *blob);

// The lock that huggingface_hub takes too: flock() on <cache>/.locks/<repo folder name>/<hash>.lock. The
// kernel drops it when its owner dies, so nothing needs to be stolen. On file systems without flock() a
// file <hash>.lock.pid made with O_EXCL stands for it; one is taken from a dead process or after an hour.
struct blob_lock {
    int fd;         // -1 = not held
    char *pid_path; // the O_EXCL file when flock() is not there, else NULL; owned
};
enum blob_lock_result { BLOB_LOCKED, BLOB_LOCK_BUSY, BLOB_LOCK_FAILED };
// Never waits. *owner is the process that holds it if it told, else 0. ERR_IO.
enum blob_lock_result blob_lock_try(struct blob_lock *lock, const char *cache, const char *repo_folder,
                                    const char *hash, long *owner, struct err *err);
void blob_lock_release(struct blob_lock *lock); // not held is allowed
// The O_EXCL variant alone, for file systems without flock() and for tests.
enum blob_lock_result blob_lock_try_pid_file(struct blob_lock *lock, const char *path, long *owner,
                                             struct err *err);
#endif
