// tokenizer/scanner.h - the regular expressions of the big families, scanned by hand.
// Each scanner is equal to its pattern; tests/tokenizer/test_scanner.c holds them to PCRE2.
#ifndef LOAM_TOKENIZER_SCANNER_H
#define LOAM_TOKENIZER_SCANNER_H
#include "base/bytes.h"

// The end of the match that begins exactly at `at` < text.n, or `at` if none begins there. `text` is
// valid UTF-8.
typedef size_t scanner_fn(struct str text, size_t at);

struct scanner {
    const char *pattern;
    scanner_fn *scan;
    bool covers; // some match begins at every position: there are no gaps
};
extern const struct scanner SCANNERS[];
extern const size_t N_SCANNERS;

// The scanner of a pattern, or NULL.
const struct scanner *scanner_find(struct str pattern);
#endif
