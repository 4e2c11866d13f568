// hub/listing.h - what a repository holds at one commit, as the hub's API lists it.
// Source: the hub's API, GET /api/models/<repo>/revision/<revision>?blobs=true.
// Immutable once parsed: any thread may read it.
#ifndef LOAM_HUB_LISTING_H
#define LOAM_HUB_LISTING_H
#include "base/arena.h"
#include "base/err.h"
#include "hub/layout.h"

struct hub_file {
    const char *path; // checked: safe below a folder
    uint64_t n_bytes;
    bool is_lfs;   // hash is the content's sha256; else the git blob sha1
    char hash[65]; // lower-case hex
};

struct hub_listing {
    struct arena arena; // owns the rest
    char commit[HUB_COMMIT_BYTES];
    struct hub_file *files; // [n_files], sorted by path, no path twice
    size_t n_files;
};

// Read the API's answer (untrusted). `what` names it in messages. ERR_FORMAT naming the file whose entry
// is wrong; ERR_NOMEM.
bool hub_listing_parse(struct hub_listing *listing, struct str json, const char *what, struct err *err);
void hub_listing_deinit(struct hub_listing *listing); // a zeroed one is allowed

// Which files to fetch. Patterns are shell globs whose * also matches '/'; one that ends in '/' means all
// below it. With `include` only what matches one of its patterns; else everything but weights in formats
// that loam does not read. `exclude` takes away from both.
struct hub_filter {
    const char *const *include, *const *exclude;
    size_t n_include, n_exclude;
};
bool hub_filter_wants(const struct hub_filter *filter, const char *path);
// Weights in a format that loam does not read (*.bin, *.gguf, onnx/ ...).
bool hub_is_foreign_weight(const char *path);
#endif
