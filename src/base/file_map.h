// base/file_map.h - whole files: mapped read-only, or read into memory, or replaced atomically.
#ifndef LOAM_BASE_FILE_MAP_H
#define LOAM_BASE_FILE_MAP_H
#include "base/bytes.h"
#include "base/err.h"

struct file_map {
    struct bytes bytes; // borrowed until file_map_close
};

// Map `path` read-only. An empty file maps to zero bytes. ERR_NOT_FOUND, ERR_IO.
bool file_map_open(struct file_map *map, const char *path, struct err *err);
void file_map_close(struct file_map *map); // a zeroed map is allowed

// Read a small file (JSON, templates) into *out, at most `bytes_max`. ERR_NOT_FOUND, ERR_IO,
// ERR_FORMAT if it is larger, ERR_NOMEM.
bool file_read(const char *path, size_t bytes_max, struct strbuf *out, struct err *err);

// Write a file so that a crash at any moment leaves the old one or the new one: temporary beside
// it, fsync, rename, fsync of the folder. ERR_IO.
bool file_write_atomic(const char *path, struct bytes content, struct err *err);

// fsync the folder that holds `path`, so that a rename or link in it survives a power cut. What the file
// system refuses is not an error.
void path_sync_parent(const char *path);

bool path_exists(const char *path);
bool path_is_folder(const char *path);
// mkdir -p, mode 0777 & ~umask. ERR_IO.
bool path_make_folders(const char *path, struct err *err);
// $XDG_CACHE_HOME/loam, else $HOME/.cache/loam, else /tmp/loam-<uid>; `out` at least PATH_MAX bytes.
void path_cache_folder(char *out, size_t n);
#endif
