#include "hub/listing.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"

enum { FILES_MAX = 100000 };
static const int64_t FILE_BYTES_MAX = (int64_t)1 << 50;

static bool copy_hash(struct str hash, size_t n_digits, char out[65]) {
    if (str_starts(hash, STR("sha256:")))
        hash = str_slice(hash, 7, hash.n);
    if (hash.n != n_digits)
        return false;
    for (size_t i = 0; i < hash.n; i++)
        if (!strchr("0123456789abcdef", hash.data[i]) || hash.data[i] == '\0')
            return false;
    memcpy(out, hash.data, hash.n);
    out[hash.n] = '\0';
    return true;
}

static bool parse_file(struct hub_listing *listing, const json_t *entry, struct hub_file *file,
                       const char *what, struct err *err) {
    struct str path = {0}, blob = {0}, sha256 = {0};
    int64_t n_bytes = -1;
    if (!json_is_object(entry))
        return err_set(err, ERR_FORMAT, "%s: an entry of \"siblings\" is no object", what);
    if (!json_get_str(entry, "rfilename", &path, what, err))
        return false;
    if (!hub_file_path_check(path, what, err))
        return false;
    file->path = arena_c_string(&listing->arena, path);
    if (!file->path)
        return err_set(err, ERR_NOMEM, "out of memory reading %s", what);
    const json_t *lfs = json_object_get(entry, "lfs");
    file->is_lfs = json_is_object(lfs);
    if (!json_get_i64(entry, "size", &n_bytes, what, err) ||
        !json_get_str(entry, "blobId", &blob, what, err))
        return err_wrap(err, "%s", file->path);
    if (file->is_lfs) {
        if (!json_get_i64(lfs, "size", &n_bytes, what, err) ||
            !json_get_str(lfs, "oid", &sha256, what, err) ||
            !json_get_str(lfs, "sha256", &sha256, what, err))
            return err_wrap(err, "%s", file->path);
    }
    if (n_bytes < 0 || n_bytes > FILE_BYTES_MAX)
        return err_set(err, ERR_FORMAT, "%s: no credible size for %s", what, file->path);
    file->n_bytes = (uint64_t)n_bytes;
    if (!(file->is_lfs ? copy_hash(sha256, 64, file->hash) : copy_hash(blob, 40, file->hash)))
        return err_set(err, ERR_FORMAT, "%s: no %s for %s", what,
                       file->is_lfs ? "sha256" : "git blob hash", file->path);
    return true;
}

static int compare_files(const void *a, const void *b) {
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static bool parse(struct hub_listing *listing, const json_t *root, const char *what, struct err *err) {
    struct str commit = {0};
    if (!json_is_object(root))
        return err_set(err, ERR_FORMAT, "%s is no JSON object", what);
    if (!json_get_str(root, "sha", &commit, what, err))
        return false;
    if (!copy_hash(commit, 40, listing->commit) && !copy_hash(commit, 64, listing->commit))
        return err_set(err, ERR_FORMAT, "%s: no commit in \"sha\"", what);
    const json_t *files = json_object_get(root, "siblings");
    if (!json_is_array(files))
        return err_set(err, ERR_FORMAT, "%s has no list of files (\"siblings\")", what);
    size_t n = json_array_size(files);
    if (n > FILES_MAX)
        return err_set(err, ERR_FORMAT, "%s lists %zu files, more than %d", what, n, FILES_MAX);
    listing->files = arena_array(&listing->arena, struct hub_file, n);
    if (!listing->files)
        return err_set(err, ERR_NOMEM, "out of memory reading %s", what);
    for (size_t i = 0; i < n; i++)
        if (!parse_file(listing, json_array_get(files, i), &listing->files[i], what, err))
            return false;
    listing->n_files = n;
    if (n)
        qsort(listing->files, n, sizeof *listing->files, compare_files);
    for (size_t i = 1; i < n; i++)
        if (strcmp(listing->files[i - 1].path, listing->files[i].path) == 0)
            return err_set(err, ERR_FORMAT, "%s lists %s twice", what, listing->files[i].path);
    return true;
}

bool hub_listing_parse(struct hub_listing *listing, struct str json, const char *what, struct err *err) {
    *listing = (struct hub_listing){0};
    json_t *root = json_parse(json, what, err);
    if (!root)
        return false;
    bool ok = parse(listing, root, what, err);
    json_decref(root);
    if (!ok)
        hub_listing_deinit(listing);
    return ok;
}

void hub_listing_deinit(struct hub_listing *listing) {
    arena_deinit(&listing->arena);
    *listing = (struct hub_listing){0};
}

// ---- Filter -------------------------------------------------------------------------------------

static bool matches(const char *pattern, const char *path) {
    size_t n = strlen(pattern);
    if (n && pattern[n - 1] == '/') // all below a folder
        return strncmp(path, pattern, n) == 0;
    return fnmatch(pattern, path, 0) == 0;
}

static bool matches_any(const char *const *patterns, size_t n, const char *path) {
    for (size_t i = 0; i < n; i++)
        if (matches(patterns[i], path))
            return true;
    return false;
}

bool hub_is_foreign_weight(const char *path) {
    static const char *const PATTERNS[] = {
        "*.bin",       "*.gguf",     "*.ggml",    "*.pt",      "*.pth",          "*.ckpt",
        "*.h5",        "*.msgpack",  "*.onnx",    "*.onnx_data", "onnx/",        "*/onnx/*",
        "*.tflite",    "*.ot",       "*.mlmodel", "*.mlpackage/*", "coreml/",    "openvino/",
        "*.npz",       "original/",  "*.nemo",    "*.llamafile", "*.pkl",        "*.bin.index.json",
    };
    return matches_any(PATTERNS, sizeof PATTERNS / sizeof *PATTERNS, path);
}

bool hub_filter_wants(const struct hub_filter *filter, const char *path) {
    if (matches_any(filter->exclude, filter->n_exclude, path))
        return false;
    if (filter->n_include)
        return matches_any(filter->include, filter->n_include, path);
    return !hub_is_foreign_weight(path);
}
