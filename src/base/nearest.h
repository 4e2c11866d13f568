// base/nearest.h - the word that someone probably meant.
#ifndef LOAM_BASE_NEAREST_H
#define LOAM_BASE_NEAREST_H
#include <stddef.h>

// The candidate that is nearest to `text` by edit distance (Levenshtein), or NULL if none is near: more
// than half of it different is another word, not a slip. NULL candidates are skipped.
const char *text_nearest(const char *text, const char *const *candidates, size_t n);
#endif
