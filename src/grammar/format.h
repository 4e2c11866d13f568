// grammar/format.h - the "format" keyword of JSON Schema as languages of string content.
#ifndef LOAM_GRAMMAR_FORMAT_H
#define LOAM_GRAMMAR_FORMAT_H
#include "grammar/charset.h"

enum format_kind {
    FORMAT_UNKNOWN,    // an annotation only
    FORMAT_ENFORCED,   // *out is its language
    FORMAT_UNENFORCED, // defined by JSON Schema, but no automaton decides it
};
// `name` as JSON Schema (2020-12, 7.3) defines it.
enum format_kind format_expr(struct exprs *x, struct str name, expr_id *out);
#endif
