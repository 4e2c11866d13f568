#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_regular(const char *path, struct stat *st, struct err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int saved = errno;
        err_errno(err, saved, "cannot open %s", path);
        if (err && (saved == ENOENT || saved == ENOTDIR))
            err->code = ERR_NOT_FOUND;
        return -1;
    }
    if (fstat(fd, st) != 0) {
        err_errno(err, errno, "cannot stat %s", path);
    } else if (!S_ISREG(st->st_mode)) {
        err_set(err, ERR_INVALID, "%s is not a regular file", path);
    } else {
        return fd;
    }
    close(fd);
    return -1;
}

bool file_map_open(struct file_map *map, const char *path, struct err *err) {
    *map = (struct file_map){0};
    struct stat st;
    int fd = open_regular(path, &st, err);
    if (fd < 0)
        return false;
    size_t n = (size_t)st.st_size;
    void *p = n ? mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    int saved = errno;
    close(fd);
    if (p == MAP_FAILED)
        return err_errno(err, saved, "cannot map %s", path);
    map->bytes = (struct bytes){p, n};
    return true;
}

void file_map_close(struct file_map *map) {
    if (map->bytes.data)
        munmap((void *)(uintptr_t)map->bytes.data, map->bytes.n);
    *map = (struct file_map){0};
}

bool file_read(const char *path, size_t bytes_max, struct strbuf *out, struct err *err) {
    struct stat st;
    int fd = open_regular(path, &st, err);
    if (fd < 0)
        return false;
    bool ok = true;
    // st_size is only a hint (files of /proc say 0): read until the end.
    while (ok) {
        if (!strbuf_reserve(out, 64 * 1024)) {
            ok = err_set(err, ERR_NOMEM, "out of memory reading %s", path);
            break;
        }
        ssize_t n = read(fd, out->data + out->n, 64 * 1024);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            ok = err_errno(err, errno, "cannot read %s", path);
        if (n <= 0)
            break;
        out->n += (size_t)n;
        if (out->n > bytes_max)
            ok = err_set(err, ERR_FORMAT, "%s is larger than %zu bytes, the limit for such a file",
                         path, bytes_max);
    }
    close(fd);
    if (out->data)
        out->data[out->n] = '\0';
    return ok;
}

static bool write_all(int fd, struct bytes content) {
    while (content.n) {
        ssize_t n = write(fd, content.data, content.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        content.data += n;
        content.n -= (size_t)n;
    }
    return true;
}

void path_sync_parent(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

bool file_write_atomic(const char *path, struct bytes content, struct err *err) {
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary)
        return err_set(err, ERR_INVALID, "path too long: %s", path);
    int fd = mkstemp(temporary);
    if (fd < 0)
        return err_errno(err, errno, "cannot create %s", temporary);
    mode_t mask = umask(0);
    umask(mask);
    bool ok = fchmod(fd, 0666 & ~mask) == 0 && write_all(fd, content) && fsync(fd) == 0;
    int saved = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        saved = errno;
    }
    if (!ok) {
        unlink(temporary);
        return err_errno(err, saved, "cannot write %s", path);
    }
    path_sync_parent(path);
    return true;
}

bool path_exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool path_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool path_make_folders(const char *path, struct err *err) {
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return err_set(err, ERR_INVALID, "path too long: %s", path);
    for (char *p = part + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char kept = *p;
        *p = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return err_errno(err, errno, "cannot create folder %s", part);
        *p = kept;
        if (kept == '\0')
            return true;
    }
}

void path_cache_folder(char *out, size_t n) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/')
        snprintf(out, n, "%s/loam", xdg);
    else if (home && home[0])
        snprintf(out, n, "%s/.cache/loam", home);
    else
        snprintf(out, n, "/tmp/loam-%u", (unsigned)getuid());
}
