#include "tokenizer/image_store.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "base/hash.h"
#include "base/log.h"
#include "tokenizer/image.h"

enum { SETTLED_SECONDS = 2, FINGERPRINT_CHARS = 64 };

static bool store_path(const char *name, const char *suffix, char *out, size_t n) {
    char cache[PATH_MAX];
    path_cache_folder(cache, sizeof cache);
    return snprintf(out, n, "%s/tokenizer/%s-%d%s", cache, name, IMAGE_VERSION, suffix) < (int)n;
}

static bool make_folder(struct err *err) {
    char cache[PATH_MAX], path[PATH_MAX];
    path_cache_folder(cache, sizeof cache);
    if (snprintf(path, sizeof path, "%s/tokenizer", cache) >= (int)sizeof path)
        return err_set(err, ERR_INVALID, "path too long: %s", cache);
    return path_make_folders(path, err);
}

bool image_store_load(const char *fingerprint, struct file_map *map) {
    char path[PATH_MAX];
    if (!store_path(fingerprint, ".image", path, sizeof path) || !file_map_open(map, path, NULL))
        return false;
    if (image_is_whole(map->bytes))
        return true;
    log_warn("tokenizer: compiled form is damaged, rebuilding file=%s", path);
    file_map_close(map);
    return false;
}

static void save(const char *name, const char *suffix, struct bytes content) {
    char path[PATH_MAX];
    struct err err = {0};
    if (!store_path(name, suffix, path, sizeof path))
        return;
    if (!make_folder(&err) || !file_write_atomic(path, content, &err))
        log_warn("tokenizer: cannot keep the compiled form: %s", err.message);
}

void image_store_save(const char *fingerprint, struct bytes block) {
    save(fingerprint, ".image", block);
}

static bool add_identity(const char *path, struct strbuf *identity) {
    char real[PATH_MAX];
    struct stat st;
    if (!realpath(path, real) || stat(real, &st) != 0)
        return false;
    time_t now = time(NULL);
    strbuf_printf(identity, "%s %ju %ju %jd %jd.%09ld %jd.%09ld\n", real, (uintmax_t)st.st_dev,
                  (uintmax_t)st.st_ino, (intmax_t)st.st_size, (intmax_t)st.st_mtim.tv_sec,
                  st.st_mtim.tv_nsec, (intmax_t)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
    // Like git's index: a file written within the clock's grain may change once more unseen.
    return st.st_ctim.tv_sec + SETTLED_SECONDS <= now && st.st_mtim.tv_sec + SETTLED_SECONDS <= now;
}

bool image_store_identity(const char *first, const char *second, struct strbuf *identity) {
    if (!add_identity(first, identity))
        return false;
    if (path_exists(second) && !add_identity(second, identity))
        return false;
    return !identity->failed;
}

bool image_store_recall(struct str identity, char fingerprint[65]) {
    char path[PATH_MAX], name[65];
    struct strbuf text = {0};
    hash_sha256_hex(bytes_of(identity), name);
    bool ok = store_path(name, ".seen", path, sizeof path) &&
              file_read(path, FINGERPRINT_CHARS, &text, NULL) && text.n == FINGERPRINT_CHARS &&
              strspn(text.data, "0123456789abcdef") == FINGERPRINT_CHARS;
    if (ok)
        memcpy(fingerprint, text.data, FINGERPRINT_CHARS + 1);
    strbuf_deinit(&text);
    return ok;
}

void image_store_remember(struct str identity, const char *fingerprint) {
    char name[65];
    hash_sha256_hex(bytes_of(identity), name);
    save(name, ".seen", (struct bytes){(const uint8_t *)fingerprint, FINGERPRINT_CHARS});
}
