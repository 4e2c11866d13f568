// grammar/regex.h - regular expressions as JSON Schema patterns and guided decoding write them
// (ECMA-262 with the usual extensions), turned into expressions. Each function is pure.
#ifndef LOAM_GRAMMAR_REGEX_H
#define LOAM_GRAMMAR_REGEX_H
#include "grammar/charset.h"

enum regex_mode {
    REGEX_WHOLE,  // the text matches from end to end
    REGEX_SEARCH, // some part of it matches, as JSON Schema's "pattern"
};

// Literals, ., classes, \d \w \s \D \W \S, \p{..} of general categories, \x \u \c escapes, groups of
// every kind, alternation, greedy and lazy quantifiers, ^ and $ anywhere, lookahead. As in ECMA-262's
// Unicode mode, \d and \w are ASCII and . leaves out line ends.
// EXPR_NONE with ERR_INVALID if it is no regular expression (the message says where), with
// ERR_UNSUPPORTED naming what no automaton can do (backreferences) or loam does not do
// (lookbehind, word boundaries, assertions under an unbounded quantifier, Unicode scripts).
// A pattern that can never match is EXPR_NONE with err->code ERR_OK.
expr_id regex_expr(struct exprs *x, struct str pattern, enum spelling spelling,
                   enum regex_mode mode, struct err *err);
#endif
