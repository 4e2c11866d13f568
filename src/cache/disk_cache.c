#include "cache/disk_cache.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/log.h"

static const char HOUSE[] = "loam-kv-1"; // the folder's layout and the files' format
static const char *const KIND_NAMES[] = {"page", "state"};
enum {
    N_KINDS = 2,
    NAME_BYTES = 8 + 1 + 64 + 1, // depth, key; the kind follows
    PENDING_BYTES_DEFAULT = 256 << 20,
    PAUSE_MS = 10000,    // no writes after one that failed
    EVICT_PARTS = 20,    // at the limit a 20th of it is freed at once
    TABLE_ENTRIES_MIN = 64,
};

// The beginning of a file, in the machine's byte order (the blob is the machine's too).
struct header {
    char magic[8]; // "LOAMKV1\n"
    uint32_t kind, depth;
    uint64_t n_bytes; // of the blob
    struct disk_key key;
    uint8_t identity[32];
    uint8_t reserved[8];
    uint8_t checksum[32]; // SHA-256 of the header before it and the blob
};
_Static_assert(sizeof(struct header) == 128, "a blob stays aligned behind its header");
static const char MAGIC[8] = {'L', 'O', 'A', 'M', 'K', 'V', '1', '\n'};

// A file, or one that will be. In a table with linear probing; a removed one keeps its place until the table grows.
struct entry {
    struct disk_key key;
    uint32_t depth;
    uint8_t kind;
    enum { FREE, REMOVED, PENDING, PRESENT } state;
    uint64_t n_bytes; // of the file
    uint64_t used_ns; // of the day's clock, as the file's time says it
    bool was_used;    // since the file's time was set
};

// A file of another identity: only good for making room.
struct stranger {
    char *path;
    uint64_t n_bytes, used_ns;
};

struct job {
    struct job *next;
    enum disk_kind kind;
    struct disk_key key;
    uint32_t depth;
    uint64_t tag;
    size_t n_bytes;
    void *blob;
};
struct job_list {
    struct job *first, **last;
};

struct disk_cache {
    struct disk_cache_options options;
    char folder[PATH_MAX]; // of this identity
    uint8_t identity[32];
    pthread_t thread;
    bool thread_started;

    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t work, progress;
    bool stopping;
    struct entry *table; // [n_table], a power of two
    size_t n_table, n_taken; // entries that are not FREE
    struct stranger *strangers; // [n_strangers], used longest ago last
    size_t n_strangers;
    struct job_list reads, writes, answers;
    uint64_t pause_until_ns;
    bool has_warned;
    struct disk_cache_stats stats;
};

// ---- Keys and blobs -----------------------------------------------------------------------------
struct disk_key disk_key_root(uint64_t space) {
    struct disk_key key;
    hash_sha256((struct bytes){(const uint8_t *)&space, sizeof space}, key.bytes);
    return key;
}

struct disk_key disk_key_next(const struct disk_key *parent, const int32_t *tokens, uint32_t n) {
    uint8_t text[sizeof *parent + 64 * sizeof *tokens];
    assert(n <= 64);
    memcpy(text, parent->bytes, sizeof *parent);
    memcpy(text + sizeof *parent, tokens, n * sizeof *tokens);
    struct disk_key key;
    hash_sha256((struct bytes){text, sizeof *parent + n * sizeof *tokens}, key.bytes);
    return key;
}

void *disk_blob_create(size_t n_bytes) {
    size_t all;
    char *block = add_size(n_bytes, sizeof(struct header), &all) ? malloc(all) : NULL;
    return block ? block + sizeof(struct header) : NULL;
}

static struct header *header_of(void *blob) {
    return (struct header *)((char *)blob - sizeof(struct header));
}

void disk_blob_free(void *blob) {
    free(blob ? header_of(blob) : NULL);
}

// Puts the checksum of a blob and its header into the header; before, the field is taken as zero.
static void set_checksum(void *blob, size_t n_bytes) {
    struct header *header = header_of(blob);
    uint8_t checksum[sizeof header->checksum];
    memset(header->checksum, 0, sizeof header->checksum);
    hash_sha256((struct bytes){(const uint8_t *)header, sizeof *header + n_bytes}, checksum);
    memcpy(header->checksum, checksum, sizeof checksum);
}

// ---- Lists of jobs ------------------------------------------------------------------------------
static void list_init(struct job_list *list) {
    *list = (struct job_list){NULL, &list->first};
}

static void list_push(struct job_list *list, struct job *job) {
    job->next = NULL;
    *list->last = job;
    list->last = &job->next;
}

static struct job *list_pop(struct job_list *list) {
    struct job *job = list->first;
    if (job) {
        list->first = job->next;
        if (!list->first)
            list->last = &list->first;
    }
    return job;
}

static void job_free(struct job *job) {
    disk_blob_free(job->blob);
    free(job);
}

static void list_free(struct job_list *list) {
    for (struct job *job; (job = list_pop(list));)
        job_free(job);
}

// ---- The table of files -------------------------------------------------------------------------
static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t place_of(const struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key) {
    uint64_t word;
    memcpy(&word, key->bytes, sizeof word);
    return (size_t)hash_u64(word + kind) & (cache->n_table - 1);
}

static struct entry *find_locked(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key) {
    for (size_t i = place_of(cache, kind, key);; i = (i + 1) & (cache->n_table - 1)) {
        struct entry *entry = &cache->table[i];
        if (entry->state == FREE)
            return NULL;
        if (entry->state != REMOVED && entry->kind == kind && memcmp(&entry->key, key, sizeof *key) == 0)
            return entry;
    }
}

static void place_locked(struct disk_cache *cache, const struct entry *entry) {
    size_t i = place_of(cache, entry->kind, &entry->key);
    while (cache->table[i].state != FREE)
        i = (i + 1) & (cache->n_table - 1);
    cache->table[i] = *entry;
    cache->n_taken++;
}

// At most half of the table is taken, so that a search ends.
static bool grow_locked(struct disk_cache *cache) {
    if ((cache->n_taken + 1) * 2 <= cache->n_table)
        return true;
    size_t n_before = cache->n_table, n = TABLE_ENTRIES_MIN;
    while (n < ((size_t)cache->stats.n_entries + cache->stats.n_pending + 1) * 4)
        n *= 2;
    struct entry *before = cache->table, *table = calloc(n, sizeof *table);
    if (!table)
        return false;
    cache->table = table;
    cache->n_table = n;
    cache->n_taken = 0;
    for (size_t i = 0; i < n_before; i++)
        if (before[i].state == PENDING || before[i].state == PRESENT)
            place_locked(cache, &before[i]);
    free(before);
    return true;
}

static void remove_locked(struct disk_cache *cache, struct entry *entry) {
    if (entry->state == PRESENT) {
        cache->stats.n_entries--;
        cache->stats.bytes -= entry->n_bytes;
    }
    entry->state = REMOVED;
}

// ---- Files --------------------------------------------------------------------------------------
static bool path_of(const struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key, uint32_t depth,
                    char out[PATH_MAX]) {
    char hex[65];
    for (size_t i = 0; i < sizeof key->bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", key->bytes[i]);
    return snprintf(out, PATH_MAX, "%s/%08x-%s.%s", cache->folder, depth, hex, KIND_NAMES[kind]) < PATH_MAX;
}

// The depth, key and kind that a name tells. False: it is no name of ours.
static bool parse_name(const char *name, struct entry *out) {
    static const char HEX[] = "0123456789abcdef";
    if (strlen(name) <= NAME_BYTES || name[8] != '-' || name[NAME_BYTES - 1] != '.' || strspn(name, HEX) != 8 ||
        strspn(name + 9, HEX) != 64)
        return false;
    out->depth = (uint32_t)strtoul(name, NULL, 16);
    for (size_t i = 0; i < sizeof out->key.bytes; i++) {
        char pair[3] = {name[9 + 2 * i], name[10 + 2 * i], '\0'};
        out->key.bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    for (out->kind = 0; out->kind < N_KINDS; out->kind++)
        if (strcmp(name + NAME_BYTES, KIND_NAMES[out->kind]) == 0)
            return true;
    return false;
}

static bool move_bytes(int fd, char *data, size_t n, bool write_them) {
    while (n) {
        ssize_t moved = write_them ? write(fd, data, n) : read(fd, data, n);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0) {
            errno = moved == 0 ? EIO : errno;
            return false;
        }
        data += moved;
        n -= (size_t)moved;
    }
    return true;
}

static bool write_file(struct disk_cache *cache, struct job *job, struct err *err) {
    char path[PATH_MAX], temporary[PATH_MAX + 8];
    if (!path_of(cache, job->kind, &job->key, job->depth, path))
        return err_set(err, ERR_INVALID, "path too long: %s", cache->folder);
    struct header *header = header_of(job->blob);
    *header = (struct header){.kind = job->kind, .depth = job->depth, .n_bytes = job->n_bytes, .key = job->key};
    memcpy(header->magic, MAGIC, sizeof MAGIC);
    memcpy(header->identity, cache->identity, sizeof header->identity);
    set_checksum(job->blob, job->n_bytes);
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, errno, "cannot create a file in %s", cache->folder);
    flock(fd, LOCK_EX | LOCK_NB); // says that its writer lives
    bool ok = move_bytes(fd, (char *)header, sizeof *header + job->n_bytes, true) && fdatasync(fd) == 0;
    int saved = errno;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); // memory is better used for weights
    if (close(fd) != 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        saved = errno;
    }
    if (ok)
        return true;
    unlink(temporary);
    return err_errno(err, saved, "cannot write %s", path);
}

// NULL: not there (*damaged false), or not what it should be. Any size is told by the file system, not believed.
static void *read_file(struct disk_cache *cache, const struct job *job, const char *path, bool *damaged) {
    *damaged = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct stat st;
    uint8_t checksum[32];
    size_t all = sizeof(struct header) + job->n_bytes;
    *damaged = fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != all;
    void *blob = *damaged ? NULL : disk_blob_create(job->n_bytes);
    if (blob && !move_bytes(fd, (char *)header_of(blob), all, false)) {
        disk_blob_free(blob);
        blob = NULL;
        *damaged = true;
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (!blob)
        return NULL;
    const struct header *header = header_of(blob);
    memcpy(checksum, header->checksum, sizeof checksum);
    set_checksum(blob, job->n_bytes);
    *damaged = memcmp(header->magic, MAGIC, sizeof MAGIC) != 0 || header->kind != job->kind ||
               header->depth != job->depth || header->n_bytes != job->n_bytes ||
               memcmp(&header->key, &job->key, sizeof job->key) != 0 ||
               memcmp(header->identity, cache->identity, sizeof cache->identity) != 0 ||
               memcmp(header->checksum, checksum, sizeof checksum) != 0;
    if (*damaged) {
        disk_blob_free(blob);
        blob = NULL;
    }
    return blob;
}

static void set_time(const char *path, uint64_t used_ns) {
    struct timespec t = {.tv_sec = (time_t)(used_ns / 1000000000u), .tv_nsec = (long)(used_ns % 1000000000u)};
    utimensat(AT_FDCWD, path, (struct timespec[2]){t, t}, 0);
}

// ---- The start: what is there already -----------------------------------------------------------
static bool add_stranger(struct disk_cache *cache, const char *path, const struct stat *st) {
    if ((cache->n_strangers & (cache->n_strangers + 1)) == 0) { // room for 2^k - 1, then for twice that
        struct stranger *more = realloc(cache->strangers, (cache->n_strangers * 2 + 1) * sizeof *more);
        if (!more)
            return false;
        cache->strangers = more;
    }
    char *copy = str_dup(str_from(path));
    if (!copy)
        return false;
    cache->strangers[cache->n_strangers++] = (struct stranger){
        copy, (uint64_t)st->st_size, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec};
    cache->stats.bytes += (uint64_t)st->st_size;
    return true;
}

// A temporary of ours (a name of ours, a point, six letters) whose writer is gone.
static bool is_abandoned(const char *name, const char *path) {
    const char *point = strrchr(name, '.');
    char whole[NAME_BYTES + 16];
    struct entry entry;
    if (!point || strlen(point) != 7 || (size_t)(point - name) >= sizeof whole)
        return false;
    memcpy(whole, name, (size_t)(point - name));
    whole[point - name] = '\0';
    int fd = parse_name(whole, &entry) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    bool abandoned = flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return abandoned;
}

static bool list_identity(struct disk_cache *cache, const char *folder, struct err *err) {
    bool own = strcmp(folder, cache->folder) == 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return !own || err_errno(err, errno, "cannot list %s", folder);
    bool ok = true;
    for (struct dirent *item; ok && (item = readdir(dir));) {
        char path[PATH_MAX];
        struct stat st;
        struct entry entry = {.state = PRESENT};
        if (snprintf(path, sizeof path, "%s/%s", folder, item->d_name) >= (int)sizeof path || lstat(path, &st) != 0 ||
            !S_ISREG(st.st_mode))
            continue;
        if (!parse_name(item->d_name, &entry)) {
            if (is_abandoned(item->d_name, path))
                unlink(path);
            continue;
        }
        if (!own) {
            ok = add_stranger(cache, path, &st);
        } else if ((ok = grow_locked(cache))) {
            entry.n_bytes = (uint64_t)st.st_size;
            entry.used_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
            place_locked(cache, &entry);
            cache->stats.n_entries++;
            cache->stats.bytes += entry.n_bytes;
        }
    }
    closedir(dir);
    return ok || err_set(err, ERR_NOMEM, "out of memory listing %s", folder);
}

static int newer_first(const void *a, const void *b) {
    const struct stranger *x = a, *y = b;
    return x->used_ns < y->used_ns ? 1 : x->used_ns > y->used_ns ? -1 : 0;
}

static bool list_all(struct disk_cache *cache, const char *house, struct err *err) {
    DIR *dir = opendir(house);
    if (!dir)
        return err_errno(err, errno, "cannot list %s", house);
    bool ok = true;
    for (struct dirent *item; ok && (item = readdir(dir));) {
        char path[PATH_MAX];
        if (item->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", house, item->d_name) < (int)sizeof path &&
            path_is_folder(path))
            ok = list_identity(cache, path, err);
    }
    closedir(dir);
    if (cache->n_strangers)
        qsort(cache->strangers, cache->n_strangers, sizeof *cache->strangers, newer_first);
    return ok;
}

// ---- Making room --------------------------------------------------------------------------------
static int older_first(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->used_ns != y->used_ns)
        return x->used_ns < y->used_ns ? -1 : 1;
    return x->depth > y->depth ? -1 : x->depth < y->depth;
}

static void unlink_entry(struct disk_cache *cache, const struct entry *entry) {
    char path[PATH_MAX];
    if (path_of(cache, entry->kind, &entry->key, entry->depth, path))
        unlink(path);
}

// On the cache's thread: files used longest ago go until all that are left take a 20th less than the limit.
static void evict(struct disk_cache *cache) {
    uint64_t most = cache->options.bytes_max, least = most - most / EVICT_PARTS;
    pthread_mutex_lock(&cache->lock);
    if (most == 0 || cache->stats.bytes <= most) {
        pthread_mutex_unlock(&cache->lock);
        return;
    }
    size_t n = 0;
    struct entry *list = malloc(max_size(cache->stats.n_entries, 1) * sizeof *list);
    for (size_t i = 0; list && i < cache->n_table; i++)
        if (cache->table[i].state == PRESENT)
            list[n++] = cache->table[i];
    pthread_mutex_unlock(&cache->lock);
    if (!list)
        return; // the next write tries again
    qsort(list, n, sizeof *list, older_first);
    size_t i = 0;
    for (;;) {
        pthread_mutex_lock(&cache->lock);
        bool over = cache->stats.bytes > least;
        struct stranger *stranger = cache->n_strangers ? &cache->strangers[cache->n_strangers - 1] : NULL;
        if (over && stranger && (i == n || stranger->used_ns <= list[i].used_ns)) {
            struct stranger gone = *stranger;
            cache->n_strangers--;
            cache->stats.bytes -= gone.n_bytes;
            cache->stats.n_evicted++;
            pthread_mutex_unlock(&cache->lock);
            unlink(gone.path);
            free(gone.path);
            continue;
        }
        struct entry *entry = over && i < n ? find_locked(cache, list[i].kind, &list[i].key) : NULL;
        bool same = entry && entry->state == PRESENT && entry->used_ns == list[i].used_ns; // else used meanwhile
        if (same) {
            remove_locked(cache, entry);
            cache->stats.n_evicted++;
        }
        pthread_mutex_unlock(&cache->lock);
        if (same)
            unlink_entry(cache, &list[i]);
        if (!over || i >= n)
            break;
        i++;
    }
    free(list);
}

// ---- The cache's thread -------------------------------------------------------------------------
static void do_read(struct disk_cache *cache, struct job *job) {
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find_locked(cache, job->kind, &job->key);
    bool present = entry && entry->state == PRESENT;
    job->depth = present ? entry->depth : 0;
    pthread_mutex_unlock(&cache->lock);
    char path[PATH_MAX];
    bool damaged = false;
    if (present && path_of(cache, job->kind, &job->key, job->depth, path)) {
        job->blob = read_file(cache, job, path, &damaged);
        if (damaged) {
            log_warn("prompt cache: removed a damaged file file=%s", path);
            unlink(path);
        }
    }
    pthread_mutex_lock(&cache->lock);
    cache->stats.n_damaged += damaged;
    cache->stats.n_read += job->blob != NULL;
    entry = present && !job->blob ? find_locked(cache, job->kind, &job->key) : NULL;
    if (entry && entry->state == PRESENT)
        remove_locked(cache, entry);
    list_push(&cache->answers, job);
    pthread_mutex_unlock(&cache->lock);
}

static void do_write(struct disk_cache *cache, struct job *job) {
    struct err err = {0};
    uint64_t n_bytes = sizeof(struct header) + job->n_bytes, limit = cache->options.bytes_max;
    bool fits = limit == 0 || n_bytes <= limit - limit / EVICT_PARTS;
    bool ok = fits && write_file(cache, job, &err);
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find_locked(cache, job->kind, &job->key);
    assert(entry && entry->state == PENDING); // only this thread changes a pending one
    cache->stats.n_pending--;
    cache->stats.pending_bytes -= job->n_bytes;
    bool warn = false;
    if (ok) {
        entry->state = PRESENT;
        entry->n_bytes = n_bytes;
        cache->stats.bytes += n_bytes;
        cache->stats.n_entries++;
        cache->stats.n_written++;
        cache->has_warned = false;
    } else {
        remove_locked(cache, entry);
        cache->stats.n_failed++;
        if (fits) {
            warn = !cache->has_warned;
            cache->has_warned = true;
            cache->pause_until_ns = clock_ns() + (uint64_t)PAUSE_MS * 1000000;
        }
    }
    pthread_mutex_unlock(&cache->lock);
    if (warn)
        log_warn("prompt cache: %s; the cache goes on in memory and tries again every %d s", err.message,
                 PAUSE_MS / 1000);
    job_free(job);
    if (ok)
        evict(cache);
}

static void *disk_main(void *user) {
    struct disk_cache *cache = user;
    evict(cache); // the limit may be another than last time
    pthread_mutex_lock(&cache->lock);
    while (!cache->stopping) {
        struct job *read = list_pop(&cache->reads), *write = read ? NULL : list_pop(&cache->writes);
        if (!read && !write) {
            pthread_cond_wait(&cache->work, &cache->lock);
            continue;
        }
        pthread_mutex_unlock(&cache->lock);
        if (read)
            do_read(cache, read);
        else
            do_write(cache, write);
        pthread_mutex_lock(&cache->lock);
        pthread_cond_broadcast(&cache->progress);
        pthread_mutex_unlock(&cache->lock);
        if (cache->options.on_progress)
            cache->options.on_progress(cache->options.user);
        pthread_mutex_lock(&cache->lock);
    }
    pthread_mutex_unlock(&cache->lock);
    return NULL;
}

// ---- Life ---------------------------------------------------------------------------------------
struct disk_cache *disk_cache_create(const struct disk_cache_options *options, struct err *err) {
    struct disk_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        err_set(err, ERR_NOMEM, "out of memory for the disk cache");
        return NULL;
    }
    cache->options = *options;
    cache->stats.bytes_max = options->bytes_max;
    if (!cache->options.pending_bytes_max)
        cache->options.pending_bytes_max = PENDING_BYTES_DEFAULT;
    list_init(&cache->reads);
    list_init(&cache->writes);
    list_init(&cache->answers);
    pthread_mutex_init(&cache->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&cache->work, &monotonic);
    pthread_cond_init(&cache->progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
    char house[PATH_MAX], hex[65];
    struct bytes identity = bytes_of(str_from(options->identity));
    hash_sha256_hex(identity, hex);
    hash_sha256(identity, cache->identity);
    bool ok = snprintf(house, sizeof house, "%s/%s", options->folder, HOUSE) < (int)sizeof house &&
              snprintf(cache->folder, sizeof cache->folder, "%s/%.16s", house, hex) +
                  NAME_BYTES + 16 < (int)sizeof cache->folder;
    if (!ok)
        err_set(err, ERR_INVALID, "path too long: %s", options->folder);
    ok = ok && path_make_folders(cache->folder, err);
    if (ok && !grow_locked(cache))
        ok = err_set(err, ERR_NOMEM, "out of memory for the disk cache");
    ok = ok && list_all(cache, house, err);
    if (ok) {
        int rc = pthread_create(&cache->thread, NULL, disk_main, cache);
        cache->thread_started = rc == 0;
        ok = rc == 0 || err_errno(err, rc, "cannot start the disk cache's thread");
    }
    cache->options.folder = cache->options.identity = NULL; // the caller's
    if (ok)
        return cache;
    disk_cache_destroy(cache);
    return NULL;
}

// When files were used last, for the next run.
static void save_times(struct disk_cache *cache) {
    char path[PATH_MAX];
    for (size_t i = 0; i < cache->n_table; i++) {
        const struct entry *entry = &cache->table[i];
        if (entry->state == PRESENT && entry->was_used && path_of(cache, entry->kind, &entry->key, entry->depth, path))
            set_time(path, entry->used_ns);
    }
}

void disk_cache_destroy(struct disk_cache *cache) {
    if (!cache)
        return;
    if (cache->thread_started) {
        pthread_mutex_lock(&cache->lock);
        cache->stopping = true;
        pthread_cond_broadcast(&cache->work);
        pthread_mutex_unlock(&cache->lock);
        pthread_join(cache->thread, NULL);
        save_times(cache);
    }
    list_free(&cache->reads);
    list_free(&cache->writes);
    list_free(&cache->answers);
    for (size_t i = 0; i < cache->n_strangers; i++)
        free(cache->strangers[i].path);
    free(cache->strangers);
    free(cache->table);
    pthread_mutex_destroy(&cache->lock);
    pthread_cond_destroy(&cache->work);
    pthread_cond_destroy(&cache->progress);
    free(cache);
}

// ---- The owner's side ---------------------------------------------------------------------------
static bool has(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key, bool pending_too) {
    pthread_mutex_lock(&cache->lock);
    const struct entry *entry = find_locked(cache, kind, key);
    bool found = entry && (entry->state == PRESENT || pending_too);
    pthread_mutex_unlock(&cache->lock);
    return found;
}

bool disk_cache_has(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key) {
    return has(cache, kind, key, false);
}

bool disk_cache_will_have(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key) {
    return has(cache, kind, key, true);
}

static bool has_room_locked(const struct disk_cache *cache, size_t n_bytes) {
    return cache->stats.n_pending == 0 ||
           (n_bytes <= cache->options.pending_bytes_max &&
            cache->stats.pending_bytes <= cache->options.pending_bytes_max - n_bytes);
}

bool disk_cache_has_room(struct disk_cache *cache, size_t n_bytes) {
    pthread_mutex_lock(&cache->lock);
    bool room = has_room_locked(cache, n_bytes) && clock_ns() >= cache->pause_until_ns;
    pthread_mutex_unlock(&cache->lock);
    return room;
}

void disk_cache_write(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key, uint32_t depth,
                      void *blob, size_t n_bytes) {
    struct job *job = calloc(1, sizeof *job);
    pthread_mutex_lock(&cache->lock);
    bool ok = job && !find_locked(cache, kind, key) && grow_locked(cache);
    if (ok) {
        *job = (struct job){.kind = kind, .key = *key, .depth = depth, .n_bytes = n_bytes, .blob = blob};
        place_locked(cache, &(struct entry){.key = *key, .depth = depth, .kind = (uint8_t)kind, .state = PENDING,
                                            .used_ns = now_ns(), .was_used = true});
        cache->stats.n_pending++;
        cache->stats.pending_bytes += n_bytes;
        list_push(&cache->writes, job);
        pthread_cond_signal(&cache->work);
    }
    pthread_mutex_unlock(&cache->lock);
    if (!ok) {
        disk_blob_free(blob);
        free(job);
    }
}

void disk_cache_touch(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key) {
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find_locked(cache, kind, key);
    if (entry) {
        entry->used_ns = now_ns();
        entry->was_used = true;
    }
    pthread_mutex_unlock(&cache->lock);
}

void disk_cache_count_dropped(struct disk_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    cache->stats.n_dropped++;
    pthread_mutex_unlock(&cache->lock);
}

bool disk_cache_read(struct disk_cache *cache, enum disk_kind kind, const struct disk_key *key, size_t n_bytes,
                     uint64_t tag) {
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return false;
    *job = (struct job){.kind = kind, .key = *key, .n_bytes = n_bytes, .tag = tag};
    pthread_mutex_lock(&cache->lock);
    list_push(&cache->reads, job);
    pthread_cond_signal(&cache->work);
    pthread_mutex_unlock(&cache->lock);
    return true;
}

bool disk_cache_next(struct disk_cache *cache, struct disk_answer *out) {
    pthread_mutex_lock(&cache->lock);
    struct job *job = list_pop(&cache->answers);
    pthread_mutex_unlock(&cache->lock);
    if (!job)
        return false;
    *out = (struct disk_answer){job->tag, job->blob};
    free(job);
    return true;
}

// Under the lock, until the condition or the deadline; a pause ends the wait.
static bool wait_locked(struct disk_cache *cache, uint64_t deadline_ns) {
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u), .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&cache->progress, &cache->lock, &t) == 0;
}

bool disk_cache_wait(struct disk_cache *cache, uint64_t deadline_ns) {
    pthread_mutex_lock(&cache->lock);
    while (cache->stats.n_pending && wait_locked(cache, deadline_ns))
        ;
    bool done = cache->stats.n_pending == 0;
    pthread_mutex_unlock(&cache->lock);
    return done;
}

bool disk_cache_wait_room(struct disk_cache *cache, size_t n_bytes, uint64_t deadline_ns) {
    pthread_mutex_lock(&cache->lock);
    while (!has_room_locked(cache, n_bytes) && wait_locked(cache, deadline_ns))
        ;
    bool room = has_room_locked(cache, n_bytes) && clock_ns() >= cache->pause_until_ns;
    pthread_mutex_unlock(&cache->lock);
    return room;
}

void disk_cache_stats(struct disk_cache *cache, struct disk_cache_stats *out) {
    pthread_mutex_lock(&cache->lock);
    *out = cache->stats;
    pthread_mutex_unlock(&cache->lock);
}
