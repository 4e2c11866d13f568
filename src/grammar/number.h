// grammar/number.h - languages of JSON numbers: ranges, equality, integers, multiples.
// Constraints are matched against canonical spellings: plain decimals of any length, and exponents
// only where writers of JSON use them (one digit before the point, at most 17 in all, no trailing
// zero, exponent at least 16 or at most -5). Every number has such a spelling, and every language here
// holds all or none of the spellings of a number: so intersection and complement (within
// number_canonical) are those of the numbers. number_multiple() leaves out some large exponents.
#ifndef LOAM_GRAMMAR_NUMBER_H
#define LOAM_GRAMMAR_NUMBER_H
#include <jansson.h>

#include "grammar/expr.h"

// A decimal number: 0.D1D2D3... * 10^point, no zeros at either end; no digits: zero.
struct decimal {
    bool negative;
    uint8_t digits[40]; // values 0 to 9
    uint32_t n_digits;
    int32_t point;
};
// The number that a JSON value holds; reals as their shortest spelling.
struct decimal decimal_of(const json_t *number);
bool decimal_is_integer(const struct decimal *d);

expr_id number_any(struct exprs *x);       // every spelling of RFC 8259
expr_id number_canonical(struct exprs *x); // every number, in the spellings above
// Numbers without a fractional part. `point_zero`: also spelled 1.0 and 1e+20.
expr_id number_integer(struct exprs *x, bool point_zero);
expr_id number_equal(struct exprs *x, const struct decimal *d);
expr_id number_at_least(struct exprs *x, const struct decimal *d, bool strictly);
expr_id number_at_most(struct exprs *x, const struct decimal *d, bool strictly);
// Multiples of d > 0. `plain_only`: no exponents, so that the complement within plain decimals is
// exact. EXPR_NONE if d has too many digits to be decided.
expr_id number_multiple(struct exprs *x, const struct decimal *d, bool plain_only);
expr_id number_plain(struct exprs *x); // plain decimals
#endif
