// grammar/expr.h - expressions over bytes, hash-consed: equal expressions have equal ids.
// A pool owns them all. Regular ones (every kind but CALL and LAZY, at any depth) are also the states
// of lazily built automata: expr_step() is the derivative by one byte (Brzozowski 1964; Owens, Reppy
// and Turon 2009), so intersection, complement and counted repeats cost no construction up front.
// A pool belongs to one thread at a time.
#ifndef LOAM_GRAMMAR_EXPR_H
#define LOAM_GRAMMAR_EXPR_H
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/err.h"

typedef uint32_t expr_id;
enum {
    EXPR_NONE = 0, // matches nothing
    EXPR_EPS = 1,  // matches the empty text
};
// Counts below this end soon: expr_relax() leaves them.
enum { EXPR_RELAX_COUNT_MIN = 32 };
#define EXPR_INF UINT32_MAX

enum expr_kind {
    EXPR_KIND_NONE,
    EXPR_KIND_EPS,
    EXPR_KIND_BYTES, // one byte of a set
    EXPR_KIND_LITS,  // one of a sorted list of texts
    EXPR_KIND_CAT,
    EXPR_KIND_OR,
    EXPR_KIND_AND,
    EXPR_KIND_NOT, // any byte string that the operand does not match
    EXPR_KIND_REP,
    EXPR_KIND_REM,  // decimal digits whose number is a multiple of something
    EXPR_KIND_TERM, // its operand, kept in one piece by the parser: a token of the grammar
    EXPR_KIND_CALL, // what a rule matches; the parser keeps the return on its stack
    EXPR_KIND_LAZY, // what a rule matches, expanded in place (tail positions: automaton states)
};

// A set of bytes.
struct byte_set {
    uint64_t w[4];
};
static inline bool byte_set_has(const struct byte_set *s, uint8_t b) {
    return s->w[b >> 6] >> (b & 63) & 1;
}
static inline void byte_set_add(struct byte_set *s, uint8_t b) {
    s->w[b >> 6] |= (uint64_t)1 << (b & 63);
}
static inline void byte_set_add_range(struct byte_set *s, unsigned from, unsigned to) {
    for (unsigned b = from; b <= to; b++)
        byte_set_add(s, (uint8_t)b);
}

struct exprs;

// The body of rule `arg`, asked for once, when the parser first needs it.
typedef expr_id rule_fn(void *user, uint32_t arg);

// `nodes_max` bounds the pool (each costs about 100 bytes). NULL when out of memory.
struct exprs *exprs_create(uint32_t nodes_max);
void exprs_destroy(struct exprs *x); // NULL is allowed
// Running into a limit or out of memory sticks; constructors then return EXPR_NONE. True if all is well,
// else *err says what ran out: ERR_INVALID for a limit, ERR_NOMEM.
bool exprs_check(const struct exprs *x, struct err *err);
// Make the pool fail with a limit's name (front ends that count something of their own).
void exprs_fail(struct exprs *x, const char *limit);
bool exprs_failed(const struct exprs *x);
// Work is bounded between two calls of this, so that no operation takes much more than a second.
void exprs_refill(struct exprs *x);
bool exprs_spend(struct exprs *x, size_t n); // false once the pool has failed
size_t exprs_bytes(const struct exprs *x);
uint32_t exprs_n(const struct exprs *x);

expr_id expr_bytes(struct exprs *x, const struct byte_set *set);
expr_id expr_byte(struct exprs *x, uint8_t b);
expr_id expr_range(struct exprs *x, uint8_t from, uint8_t to);
expr_id expr_text(struct exprs *x, struct str text);
expr_id expr_c(struct exprs *x, const char *text);
expr_id expr_cat(struct exprs *x, expr_id a, expr_id b);
expr_id expr_cat_n(struct exprs *x, const expr_id *parts, size_t n);
expr_id expr_or(struct exprs *x, const expr_id *parts, size_t n);
expr_id expr_or2(struct exprs *x, expr_id a, expr_id b);
expr_id expr_and(struct exprs *x, const expr_id *parts, size_t n);
expr_id expr_and2(struct exprs *x, expr_id a, expr_id b);
expr_id expr_not(struct exprs *x, expr_id a);
expr_id expr_rep(struct exprs *x, expr_id a, uint32_t min, uint32_t max); // max: EXPR_INF
expr_id expr_opt(struct exprs *x, expr_id a);
// One of the texts (copied; any order, repeats allowed).
expr_id expr_lits(struct exprs *x, const struct str *texts, size_t n);
// "[digits][.digits]" whose value is a multiple of a / 10^scale; the syntax itself is not checked.
expr_id expr_rem(struct exprs *x, uint64_t a, uint32_t scale);
expr_id expr_term(struct exprs *x, expr_id a);
uint32_t expr_rule(struct exprs *x, rule_fn *fn, void *user, uint32_t arg);
expr_id expr_call(struct exprs *x, uint32_t rule);
expr_id expr_lazy(struct exprs *x, uint32_t rule);
// The body of a rule, expanding it the first time.
expr_id expr_rule_body(struct exprs *x, uint32_t rule);

enum expr_kind expr_kind_of(const struct exprs *x, expr_id e);
bool expr_nullable(const struct exprs *x, expr_id e); // of a regular expression
bool expr_regular(const struct exprs *x, expr_id e);
// Operands: first and second of CAT; operand of NOT, REP, TERM; rule of CALL and LAZY.
expr_id expr_a(const struct exprs *x, expr_id e);
expr_id expr_b(const struct exprs *x, expr_id e);
// Operands of OR and AND, borrowed until the next constructor.
const expr_id *expr_list(const struct exprs *x, expr_id e, size_t *n);
void expr_bounds(const struct exprs *x, expr_id e, uint32_t *min, uint32_t *max); // of REP
// True if `e` matches finitely many texts for a reason that is plain to see.
bool expr_finite(const struct exprs *x, expr_id e);

// The derivative of a regular expression: what may follow byte b. EXPR_NONE if nothing can.
expr_id expr_step(struct exprs *x, expr_id e, uint8_t b);
// Targets for every byte (UINT32_MAX: not computed yet), or NULL; borrowed until the next step.
const expr_id *expr_row(const struct exprs *x, expr_id e);
// Does the regular expression match any text at all?
bool expr_alive(struct exprs *x, expr_id e);
bool expr_match(struct exprs *x, expr_id e, struct str text);
// The length in bytes of some text that the regular expression matches, the shortest or nearly so.
// UINT32_MAX if none is known.
uint32_t expr_reach(struct exprs *x, expr_id e);
// The expression without the upper bounds of its large counts ("at most 5000 characters"), so that states
// that differ in what is left of a count are one. Large: at least count_min, which is no less than
// EXPR_RELAX_COUNT_MIN. What it matches besides is longer than *bytes, which shrinks to the smallest of
// those counts. `e` itself if there is none.
expr_id expr_relax(struct exprs *x, expr_id e, uint32_t count_min, uint32_t *bytes);
// Forget the step tables when they hold more than `bytes_max`.
void exprs_trim(struct exprs *x, size_t bytes_max);
#endif
