#include "base/nearest.h"

#include <stdint.h>
#include <string.h>

// Levenshtein distance, capped by the length of what a person types.
static size_t edit_distance(const char *a, const char *b) {
    enum { LONGEST = 199 };
    size_t n = strlen(a), m = strlen(b), row[LONGEST + 1];
    if (n > LONGEST || m > LONGEST)
        return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

const char *text_nearest(const char *text, const char *const *candidates, size_t n) {
    const char *nearest = NULL;
    size_t best = strlen(text) / 2 + 1;
    for (size_t i = 0; i < n; i++) {
        if (!candidates[i])
            continue;
        size_t distance = edit_distance(text, candidates[i]);
        if (distance < best) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}
