// grammar/ebnf.h - grammars written as rules: GBNF's spelling and XGrammar's.
//
//   root ::= "text" [a-z]+ (item ("," item)*)? {2,5}  # comment
//
// A rule ends where the next "name ::=" begins, so lines may be broken anywhere. Escapes: \n \r \t \\,
// \" \' \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH. /regex/ is a regular expression. The start is the rule
// "root". Rules that call themselves on the left are rewritten when they do so directly.
// An ebnf belongs to the thread that owns its pool.
#ifndef LOAM_GRAMMAR_EBNF_H
#define LOAM_GRAMMAR_EBNF_H
#include "base/err.h"
#include "grammar/expr.h"

struct ebnf;
// NULL with ERR_INVALID: line, and what is wrong there; ERR_NOMEM. The text is not kept.
struct ebnf *ebnf_create(struct exprs *x, struct str text, struct err *err);
void ebnf_destroy(struct ebnf *g); // NULL is allowed; only after its pool was last used
expr_id ebnf_root(const struct ebnf *g);
#endif
