#include "hub/blob.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file_map.h"

static bool digest_begin(struct blob *blob, struct err *err) {
    if (!EVP_DigestInit_ex(blob->digest, blob->is_lfs ? EVP_sha256() : EVP_sha1(), NULL))
        return err_set(err, ERR_INTERNAL, "libcrypto has no %s", blob->is_lfs ? "SHA-256" : "SHA-1");
    if (!blob->is_lfs) { // git hashes a header before the content
        char header[40];
        int n = snprintf(header, sizeof header, "blob %llu", (unsigned long long)blob->n_bytes);
        EVP_DigestUpdate(blob->digest, header, (size_t)n + 1);
    }
    return true;
}

static bool hash_prefix(struct blob *blob, struct err *err) {
    enum { READ_BYTES = 8 << 20 };
    uint8_t *buffer = malloc(READ_BYTES);
    if (!buffer)
        return err_set(err, ERR_NOMEM, "out of memory checking %s", blob->partial_path);
    bool ok = true;
    for (;;) {
        ssize_t n = read(blob->fd, buffer, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            ok = err_errno(err, errno, "cannot read %s", blob->partial_path);
        if (n <= 0)
            break;
        EVP_DigestUpdate(blob->digest, buffer, (size_t)n);
        blob->written += (uint64_t)n;
    }
    free(buffer);
    blob->synced = blob->written;
    return ok;
}

bool blob_open(struct blob *blob, const char *repo_folder, const struct hub_file *file, struct err *err) {
    char folder[PATH_MAX], path[PATH_MAX], partial[PATH_MAX];
    *blob = (struct blob){.fd = -1, .n_bytes = file->n_bytes, .is_lfs = file->is_lfs};
    snprintf(blob->hash, sizeof blob->hash, "%s", file->hash);
    if (!hub_path(folder, err, "%s/blobs", repo_folder) ||
        !hub_path(path, err, "%s/%s", folder, file->hash) ||
        !hub_path(partial, err, "%s.incomplete", path) || !path_make_folders(folder, err))
        return false;
    blob->path = strdup(path);
    blob->partial_path = strdup(partial);
    blob->digest = EVP_MD_CTX_new();
    if (!blob->path || !blob->partial_path || !blob->digest) {
        err_set(err, ERR_NOMEM, "out of memory for %s", path);
        goto failed;
    }
    blob->fd = open(partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    struct stat st;
    if (blob->fd < 0 || fstat(blob->fd, &st) != 0) {
        err_errno(err, errno, "cannot write %s", partial);
        goto failed;
    }
    if ((uint64_t)st.st_size > blob->n_bytes && ftruncate(blob->fd, 0) != 0) {
        err_errno(err, errno, "cannot truncate %s", partial);
        goto failed;
    }
    if (!digest_begin(blob, err) || !hash_prefix(blob, err))
        goto failed;
    return true;
failed:
    blob_close(blob);
    return false;
}

bool blob_append(struct blob *blob, struct bytes data, struct err *err) {
    enum { SYNC_BYTES = 32 << 20 };
    EVP_DigestUpdate(blob->digest, data.data, data.n);
    while (data.n) {
        ssize_t n = pwrite(blob->fd, data.data, data.n, (off_t)blob->written);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT))
            return err_set(err, ERR_IO,
                           "the disk of %s is full after %llu of %llu bytes; what is there is kept: free "
                           "some space (or point HF_HUB_CACHE at a larger disk) and run again",
                           blob->partial_path, (unsigned long long)blob->written,
                           (unsigned long long)blob->n_bytes);
        if (n < 0)
            return err_errno(err, errno, "cannot write %s", blob->partial_path);
        data.data += n;
        data.n -= (size_t)n;
        blob->written += (uint64_t)n;
    }
    // Begin write-back along the way, so that the fsync at the end has little left to wait for.
    if (blob->written - blob->synced >= SYNC_BYTES) {
        sync_file_range(blob->fd, (off_t)blob->synced, (off_t)(blob->written - blob->synced),
                        SYNC_FILE_RANGE_WRITE);
        blob->synced = blob->written;
    }
    return true;
}

bool blob_finish(struct blob *blob, struct err *err) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    char hex[2 * EVP_MAX_MD_SIZE + 1] = "";
    EVP_DigestFinal_ex(blob->digest, digest, &n);
    for (unsigned i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    bool ok = blob->written == blob->n_bytes && strcmp(hex, blob->hash) == 0;
    if (!ok) {
        unlink(blob->partial_path);
        err_set(err, ERR_FORMAT, "wrong content: its %s is %s, the hub lists %s; the file was deleted",
                blob->is_lfs ? "sha256" : "git hash", hex, blob->hash);
    } else if (fsync(blob->fd) != 0) {
        ok = err_errno(err, errno, "cannot write %s to the disk", blob->partial_path);
    } else if (rename(blob->partial_path, blob->path) != 0) {
        ok = err_errno(err, errno, "cannot rename %s", blob->partial_path);
    } else {
        path_sync_parent(blob->path);
    }
    blob_close(blob);
    return ok;
}

void blob_close(struct blob *blob) {
    if (blob->digest && blob->fd >= 0)
        close(blob->fd);
    EVP_MD_CTX_free(blob->digest);
    free(blob->path);
    free(blob->partial_path);
    *blob = (struct blob){.fd = -1};
}

// ---- Lock ---------------------------------------------------------------------------------------

static long read_owner(int fd) {
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    long owner = n > 0 ? strtol(text, NULL, 10) : 0;
    return owner > 0 ? owner : 0;
}

static void write_owner(int fd) {
    char text[48];
    int n = snprintf(text, sizeof text, "%ld %lld\n", (long)getpid(), (long long)time(NULL));
    // The lock holds without it: it only tells others whom they wait for.
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return;
}

enum blob_lock_result blob_lock_try_pid_file(struct blob_lock *lock, const char *path, long *owner,
                                             struct err *err) {
    enum { STALE_S = 3600 };
    *lock = (struct blob_lock){.fd = -1};
    for (int attempt = 0; attempt < 2; attempt++) {
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            write_owner(fd);
            lock->fd = fd;
            lock->pid_path = strdup(path);
            if (lock->pid_path)
                return BLOB_LOCKED;
            close(fd);
            unlink(path);
            lock->fd = -1;
            err_set(err, ERR_NOMEM, "out of memory locking %s", path);
            return BLOB_LOCK_FAILED;
        }
        if (errno != EEXIST) {
            err_errno(err, errno, "cannot create %s", path);
            return BLOB_LOCK_FAILED;
        }
        struct stat st;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) != 0) { // released in between
            if (fd >= 0)
                close(fd);
            continue;
        }
        *owner = read_owner(fd);
        close(fd);
        time_t age_s = time(NULL) - st.st_mtime;
        // A file without a process id is one that is just being made, unless it stays so.
        bool dead = *owner ? kill((pid_t)*owner, 0) != 0 && errno == ESRCH : age_s > 10;
        if (!dead && age_s < STALE_S)
            return BLOB_LOCK_BUSY;
        // Two thieves must not both succeed: only one can rename the same file away.
        char stolen[PATH_MAX];
        if (!hub_path(stolen, err, "%s.%ld", path, (long)getpid()))
            return BLOB_LOCK_FAILED;
        if (rename(path, stolen) != 0)
            continue;
        fd = open(stolen, O_RDONLY | O_CLOEXEC);
        bool is_dead_one = fd >= 0 && read_owner(fd) == *owner;
        if (fd >= 0)
            close(fd);
        // Else another thief was faster and this is its new lock: give it back.
        bool returned = !is_dead_one && link(stolen, path) == 0;
        unlink(stolen);
        if (returned)
            return BLOB_LOCK_BUSY;
    }
    return BLOB_LOCK_BUSY;
}

enum blob_lock_result blob_lock_try(struct blob_lock *lock, const char *cache, const char *repo_folder,
                                    const char *hash, long *owner, struct err *err) {
    char folder[PATH_MAX], path[PATH_MAX];
    *lock = (struct blob_lock){.fd = -1};
    *owner = 0;
    const char *name = strrchr(repo_folder, '/');
    if (!hub_path(folder, err, "%s/.locks/%s", cache, name ? name + 1 : repo_folder) ||
        !hub_path(path, err, "%s/%s.lock", folder, hash) || !path_make_folders(folder, err))
        return BLOB_LOCK_FAILED;
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) {
            err_errno(err, errno, "cannot create %s", path);
            return BLOB_LOCK_FAILED;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int saved = errno;
            if (saved == EWOULDBLOCK)
                *owner = read_owner(fd);
            close(fd);
            if (saved == EWOULDBLOCK)
                return BLOB_LOCK_BUSY;
            if (saved == EINTR)
                continue;
            if (saved == ENOSYS || saved == EOPNOTSUPP || saved == ENOLCK || saved == EINVAL) {
                char pid_path[PATH_MAX];
                if (!hub_path(pid_path, err, "%s.pid", path))
                    return BLOB_LOCK_FAILED;
                return blob_lock_try_pid_file(lock, pid_path, owner, err);
            }
            err_errno(err, saved, "cannot lock %s", path);
            return BLOB_LOCK_FAILED;
        }
        // Whoever cleans up may have unlinked the file that we locked: then it protects nothing.
        struct stat held, there;
        if (fstat(fd, &held) == 0 && stat(path, &there) == 0 && held.st_ino == there.st_ino &&
            held.st_dev == there.st_dev) {
            write_owner(fd);
            lock->fd = fd;
            return BLOB_LOCKED;
        }
        close(fd);
    }
}

void blob_lock_release(struct blob_lock *lock) {
    if (lock->pid_path) {
        unlink(lock->pid_path);
        free(lock->pid_path);
    }
    if (lock->fd >= 0)
        close(lock->fd);
    *lock = (struct blob_lock){.fd = -1};
}
