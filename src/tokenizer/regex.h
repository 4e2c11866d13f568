// tokenizer/regex.h - the regular expressions of tokenizer files: Oniguruma's syntax on PCRE2.
// Immutable once compiled; a struct regex_scratch belongs to one thread.
#ifndef LOAM_TOKENIZER_REGEX_H
#define LOAM_TOKENIZER_REGEX_H
#include "base/bytes.h"
#include "base/err.h"

struct regex;
struct regex_scratch;

// ERR_UNSUPPORTED if PCRE2 refuses the pattern, saying where; ERR_NOMEM.
struct regex *regex_compile(struct str pattern, struct err *err);
void regex_destroy(struct regex *regex); // NULL is allowed

struct regex_scratch *regex_scratch_create(void); // NULL when out of memory
void regex_scratch_destroy(struct regex_scratch *scratch);

struct span {
    size_t from, to;
};
struct regex_matches {
    struct str text; // valid UTF-8
    size_t at;
    size_t last_end; // SIZE_MAX before the first match
};
static inline struct regex_matches regex_matches(struct str text) {
    return (struct regex_matches){text, 0, SIZE_MAX};
}
enum regex_result { REGEX_END, REGEX_MATCH, REGEX_GAVE_UP };
// The next match in *out; REGEX_GAVE_UP if a limit of PCRE2 was hit. As Oniguruma's iterator, an empty
// match right behind the last match is passed over.
enum regex_result regex_next(const struct regex *regex, struct regex_scratch *scratch,
                             struct regex_matches *matches, struct span *out);
#endif
