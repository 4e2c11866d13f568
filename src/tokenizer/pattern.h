// tokenizer/pattern.h - the "pattern" of Split and Replace: a literal text or a regular expression.
#ifndef LOAM_TOKENIZER_PATTERN_H
#define LOAM_TOKENIZER_PATTERN_H
#include "base/arena.h"
#include "base/json.h"
#include "tokenizer/regex.h"

struct pattern {
    struct str literal;  // used if `regex` is NULL; an empty one never matches
    struct regex *regex; // owned
};

// Read {"String": ...} or {"Regex": ...}. ERR_FORMAT, ERR_UNSUPPORTED, ERR_NOMEM.
bool pattern_read(struct pattern *pattern, const json_t *value, struct arena *arena,
                  const char *what, struct err *err);
void pattern_deinit(struct pattern *pattern);
enum regex_result pattern_next(const struct pattern *pattern, struct regex_scratch *scratch,
                               struct regex_matches *matches, struct span *out);
#endif
