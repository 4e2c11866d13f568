// grammar/charset.h - sets of Unicode code points, and the expressions that match their spellings:
// plain UTF-8, or inside a JSON string.
// A char_set is built by one thread; zero-initialise it.
#ifndef LOAM_GRAMMAR_CHARSET_H
#define LOAM_GRAMMAR_CHARSET_H
#include "grammar/expr.h"

struct char_range {
    uint32_t from, to; // inclusive
};
struct char_set {
    struct char_range *ranges; // owned; sorted and disjoint after char_set_normalize()
    uint32_t n, capacity;
    bool failed; // out of memory
};
void char_set_deinit(struct char_set *set);
void char_set_add(struct char_set *set, uint32_t from, uint32_t to);
void char_set_add_set(struct char_set *set, const struct char_set *other);
void char_set_normalize(struct char_set *set);
// Every scalar value that is not in the set. Normalizes.
void char_set_invert(struct char_set *set);
bool char_set_has(const struct char_set *set, uint32_t c); // of a normalized set
// Add the code points of a Unicode property: a general category in its short or long name ("Lu",
// "Letter", "General_Category=L"), "Any", "ASCII" or "Assigned". False if loam does not know it.
bool char_set_add_property(struct char_set *set, struct str name);

// How a character is spelled in the text that the grammar describes.
enum spelling {
    // UTF-8.
    SPELL_PLAIN,
    // Inside a JSON string (RFC 8259, section 7), as writers of JSON spell it: printable ASCII as
    // itself (also \/ ), the two-letter escapes, other controls as \u00XX, the rest as itself or as
    // \uXXXX with surrogate pairs. Every text has a spelling, and every spelling means one text: so
    // intersection and complement of spelled languages are those of the texts.
    SPELL_JSON,
};
// One character of a normalized set.
expr_id char_set_expr(struct exprs *x, const struct char_set *set, enum spelling spelling);
// Any one character.
expr_id char_any(struct exprs *x, enum spelling spelling);
// Any one character of a JSON string in every spelling that RFC 8259 allows, needless escapes too.
expr_id char_any_json_loose(struct exprs *x);
// A given text. Ill-formed UTF-8 is matched byte by byte.
expr_id char_text(struct exprs *x, struct str text, enum spelling spelling);
#endif
