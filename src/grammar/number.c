#include "grammar/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXPONENT_FROM = 16, EXPONENT_BELOW = 5, MANTISSA_BEHIND_MAX = 16 };

struct decimal decimal_of(const json_t *number) {
    struct decimal d = {0};
    char text[64];
    if (json_is_integer(number)) {
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(number));
    } else {
        double v = json_real_value(number);
        for (int precision = 15; precision <= 17; precision++) {
            snprintf(text, sizeof text, "%.*g", precision, v);
            if (strtod(text, NULL) == v)
                break;
        }
    }
    const char *at = text;
    d.negative = *at == '-';
    at += d.negative;
    bool behind = false;
    for (; *at && *at != 'e'; at++) {
        if (*at == '.' || *at == ',') {
            behind = true;
            continue;
        }
        if (*at < '0' || *at > '9' || d.n_digits == sizeof d.digits)
            continue;
        if (d.n_digits || *at != '0') {
            d.digits[d.n_digits++] = (uint8_t)(*at - '0');
            d.point += !behind;
        } else if (behind) {
            d.point--;
        }
    }
    if (*at == 'e')
        d.point += atoi(at + 1);
    while (d.n_digits && d.digits[d.n_digits - 1] == 0)
        d.n_digits--;
    if (d.n_digits == 0)
        d = (struct decimal){0};
    return d;
}

bool decimal_is_integer(const struct decimal *d) {
    return (int32_t)d->n_digits <= d->point || d->n_digits == 0;
}

// ---- small pieces ------------------------------------------------------------------------------

static expr_id digit(struct exprs *x, int from, int to) {
    return from > to ? EXPR_NONE : expr_range(x, (uint8_t)('0' + from), (uint8_t)('0' + to));
}
static expr_id digits(struct exprs *x, uint32_t min, uint32_t max) {
    return expr_rep(x, digit(x, 0, 9), min, max);
}
static expr_id zeros(struct exprs *x) {
    return expr_rep(x, expr_byte(x, '0'), 0, EXPR_INF);
}
#define CAT(...)                                                                                   \
    expr_cat_n(x, (expr_id[]){__VA_ARGS__}, sizeof((expr_id[]){__VA_ARGS__}) / sizeof(expr_id))
#define OR(...)                                                                                    \
    expr_or(x, (expr_id[]){__VA_ARGS__}, sizeof((expr_id[]){__VA_ARGS__}) / sizeof(expr_id))

static expr_id integer_part(struct exprs *x) {
    return OR(expr_byte(x, '0'), CAT(digit(x, 1, 9), digits(x, 0, EXPR_INF)));
}
static expr_id fraction(struct exprs *x) {
    return expr_opt(x, CAT(expr_byte(x, '.'), digits(x, 1, EXPR_INF)));
}
static expr_id zero_fraction(struct exprs *x) {
    return expr_opt(x, CAT(expr_byte(x, '.'), expr_byte(x, '0'), zeros(x)));
}
static expr_id minus(struct exprs *x) {
    return expr_byte(x, '-');
}
static expr_id exponent_letter(struct exprs *x) {
    return expr_bytes(x, &(struct byte_set){{0, 1ull << ('e' - 64) | 1ull << ('E' - 64)}});
}
static expr_id plus(struct exprs *x) {
    return expr_opt(x, expr_byte(x, '+'));
}

// Digit at i of the magnitude's digits, counted from the first; zero beyond.
static int digit_at(const uint8_t *d, uint32_t n, uint32_t i) {
    return i < n ? d[i] : 0;
}

enum relation { LESS, EQUAL, GREATER };

// The digits of a whole number without leading zeros compared with those of `d` (n > 0 of them,
// d[0] > 0): texts of digits, "0" included in LESS.
static expr_id whole(struct exprs *x, const uint8_t *d, uint32_t n, enum relation relation) {
    if (relation == EQUAL) {
        expr_id all = EXPR_EPS;
        for (uint32_t i = n; i-- > 0;)
            all = CAT(digit(x, d[i], d[i]), all);
        return all;
    }
    // Same length: the first digit that differs decides; nested so that prefixes are shared.
    expr_id all = EXPR_NONE;
    for (uint32_t i = n; i-- > 0;) {
        int lowest = i == 0 ? 1 : 0;
        expr_id here = relation == LESS ? digit(x, lowest, d[i] - 1) : digit(x, d[i] + 1, 9);
        all = OR(CAT(here, digits(x, n - 1 - i, n - 1 - i)), CAT(digit(x, d[i], d[i]), all));
    }
    if (relation == GREATER)
        return OR(all, CAT(digit(x, 1, 9), digits(x, n, EXPR_INF)));
    if (n > 1)
        all = OR(all, CAT(digit(x, 1, 9), digits(x, 0, n - 2)));
    return OR(all, expr_byte(x, '0'));
}

// What follows the point (the point included, or nothing) compared with the fraction `f` (n digits,
// no trailing zero).
static expr_id behind(struct exprs *x, const uint8_t *f, uint32_t n, enum relation relation) {
    expr_id point = expr_byte(x, '.'), rest = digits(x, 0, EXPR_INF);
    if (relation == EQUAL) {
        if (n == 0)
            return zero_fraction(x);
        expr_id all = zeros(x);
        for (uint32_t i = n; i-- > 0;)
            all = CAT(digit(x, f[i], f[i]), all);
        return CAT(point, all);
    }
    // `tail`: what may follow the first i digits when they are those of f.
    expr_id tail;
    if (relation == GREATER) {
        tail = CAT(zeros(x), digit(x, 1, 9), rest);
        for (uint32_t i = n; i-- > 0;)
            tail = OR(CAT(digit(x, f[i] + 1, 9), rest), CAT(digit(x, f[i], f[i]), tail));
        return CAT(point, tail);
    }
    tail = EXPR_NONE; // f itself, with or without zeros, is not less
    for (uint32_t i = n; i-- > 0;)
        tail = OR(CAT(digit(x, 0, f[i] - 1), rest), CAT(digit(x, f[i], f[i]), tail),
                  i > 0 ? EXPR_EPS : EXPR_NONE); // a shorter fraction is less
    return n == 0 ? EXPR_NONE : OR(EXPR_EPS, CAT(point, tail));
}

// Plain unsigned decimals compared with |d| > 0.
static expr_id plain_magnitude(struct exprs *x, const struct decimal *d, enum relation relation) {
    uint8_t all[512];
    if (d->point > 400 || d->point < -400) {
        // Beyond any spelling worth matching in full: only the far side is certain.
        if (relation == EQUAL)
            return EXPR_NONE;
        bool huge = d->point > 0;
        return (relation == LESS) == huge ? CAT(integer_part(x), fraction(x)) : EXPR_NONE;
    }
    uint32_t n_whole = d->point > 0 ? (uint32_t)d->point : 0, n_behind = 0;
    for (uint32_t i = 0; i < n_whole; i++)
        all[i] = (uint8_t)digit_at(d->digits, d->n_digits, i);
    uint8_t f[512];
    for (int32_t p = d->point; p < 0; p++)
        f[n_behind++] = 0;
    for (uint32_t i = n_whole; i < d->n_digits; i++)
        f[n_behind++] = d->digits[i];
    if (n_whole == 0) {
        expr_id zero = expr_byte(x, '0');
        expr_id same = CAT(zero, behind(x, f, n_behind, relation));
        if (relation == GREATER)
            return OR(same, CAT(digit(x, 1, 9), digits(x, 0, EXPR_INF), fraction(x)));
        return same;
    }
    expr_id same = CAT(whole(x, all, n_whole, EQUAL), behind(x, f, n_behind, relation));
    if (relation == EQUAL)
        return same;
    return OR(same, CAT(whole(x, all, n_whole, relation), fraction(x)));
}

static expr_id number_of(struct exprs *x, uint32_t n, enum relation relation) {
    uint8_t d[12];
    uint32_t n_digits = 0;
    char text[12];
    snprintf(text, sizeof text, "%u", n);
    for (const char *c = text; *c; c++)
        d[n_digits++] = (uint8_t)(*c - '0');
    if (n == 0)
        return relation == LESS    ? EXPR_NONE
               : relation == EQUAL ? expr_byte(x, '0')
                                   : CAT(digit(x, 1, 9), digits(x, 0, EXPR_INF));
    return whole(x, d, n_digits, relation);
}

// Canonical exponents (sign and digits) compared with e.
static expr_id exponents(struct exprs *x, int32_t e, enum relation relation) {
    expr_id up = CAT(plus(x), zeros(x)), down = CAT(minus(x), zeros(x));
    expr_id all_up = CAT(up, number_of(x, EXPONENT_FROM - 1, GREATER));
    expr_id all_down = CAT(down, number_of(x, EXPONENT_BELOW - 1, GREATER));
    uint32_t size = (uint32_t)(e < 0 ? -(int64_t)e : e);
    if (relation == EQUAL) {
        if (e > -EXPONENT_BELOW && e < EXPONENT_FROM)
            return EXPR_NONE;
        return CAT(e < 0 ? down : up, number_of(x, size, EQUAL));
    }
    if (relation == GREATER) {
        if (e >= EXPONENT_FROM)
            return CAT(up, number_of(x, size, GREATER));
        if (e >= -EXPONENT_BELOW)
            return all_up;
        // -5 down to above e: a smaller number behind the minus, but at least 5.
        expr_id between = expr_and2(x, number_of(x, size, LESS),
                                    number_of(x, EXPONENT_BELOW - 1, GREATER));
        return OR(all_up, CAT(down, between));
    }
    if (e <= -EXPONENT_BELOW)
        return CAT(down, number_of(x, size, GREATER));
    if (e <= EXPONENT_FROM)
        return all_down;
    expr_id between = expr_and2(x, number_of(x, size, LESS),
                                number_of(x, EXPONENT_FROM - 1, GREATER));
    return OR(all_down, CAT(up, between));
}

// d, or d.ddd without a trailing zero, at most 17 digits.
static expr_id mantissa(struct exprs *x) {
    return CAT(digit(x, 1, 9),
               expr_opt(x, CAT(expr_byte(x, '.'), digits(x, 0, MANTISSA_BEHIND_MAX - 1),
                               digit(x, 1, 9))));
}

// Unsigned numbers in canonical exponent spelling compared with |d| > 0.
static expr_id exponent_magnitude(struct exprs *x, const struct decimal *d,
                                  enum relation relation) {
    int32_t e = d->point - 1;
    expr_id letter = exponent_letter(x);
    expr_id other = relation == EQUAL
                        ? EXPR_NONE
                        : CAT(mantissa(x), letter, exponents(x, e, relation));
    expr_id same_exponent = exponents(x, e, EQUAL);
    if (same_exponent == EXPR_NONE)
        return other;
    uint8_t first[] = {d->digits[0]};
    expr_id same = CAT(digit(x, first[0], first[0]),
                       behind(x, d->digits + 1, d->n_digits - 1, relation));
    if (relation != EQUAL)
        same = OR(same, CAT(relation == LESS ? digit(x, 1, first[0] - 1)
                                             : digit(x, first[0] + 1, 9),
                            fraction(x)));
    same = expr_and2(x, same, mantissa(x));
    return OR(other, CAT(same, letter, same_exponent));
}

static expr_id magnitude(struct exprs *x, const struct decimal *d, enum relation relation) {
    return OR(plain_magnitude(x, d, relation), exponent_magnitude(x, d, relation));
}

static expr_id zero(struct exprs *x) {
    return CAT(expr_byte(x, '0'), zero_fraction(x));
}

// Every canonical unsigned number, zero included or not.
static expr_id all_magnitudes(struct exprs *x, bool with_zero) {
    expr_id nonzero = OR(CAT(digit(x, 1, 9), digits(x, 0, EXPR_INF), fraction(x)),
                         CAT(expr_byte(x, '0'), expr_byte(x, '.'), zeros(x), digit(x, 1, 9),
                             digits(x, 0, EXPR_INF)));
    expr_id plain = with_zero ? CAT(integer_part(x), fraction(x)) : nonzero;
    expr_id scientific = CAT(mantissa(x), exponent_letter(x),
                             OR(exponents(x, EXPONENT_FROM - 1, GREATER),
                                exponents(x, -EXPONENT_BELOW + 1, LESS)));
    return OR(plain, scientific);
}

expr_id number_plain(struct exprs *x) {
    return CAT(expr_opt(x, minus(x)), integer_part(x), fraction(x));
}

expr_id number_any(struct exprs *x) {
    expr_id sign = expr_opt(x, expr_bytes(x, &(struct byte_set){{1ull << '+' | 1ull << '-'}}));
    expr_id exponent = CAT(exponent_letter(x), sign, digits(x, 1, EXPR_INF));
    return CAT(number_plain(x), expr_opt(x, exponent));
}

expr_id number_canonical(struct exprs *x) {
    return CAT(expr_opt(x, minus(x)), all_magnitudes(x, true));
}

expr_id number_integer(struct exprs *x, bool point_zero) {
    expr_id sign = expr_opt(x, minus(x));
    if (!point_zero)
        return CAT(sign, integer_part(x));
    return CAT(sign, OR(CAT(integer_part(x), zero_fraction(x)),
                        CAT(mantissa(x), exponent_letter(x),
                            exponents(x, EXPONENT_FROM - 1, GREATER))));
}

expr_id number_equal(struct exprs *x, const struct decimal *d) {
    if (d->n_digits == 0)
        return CAT(expr_opt(x, minus(x)), zero(x));
    expr_id same = magnitude(x, d, EQUAL);
    return d->negative ? CAT(minus(x), same) : same;
}

expr_id number_at_least(struct exprs *x, const struct decimal *d, bool strictly) {
    expr_id minus_zero = CAT(minus(x), zero(x));
    if (d->n_digits == 0)
        return strictly ? all_magnitudes(x, false) : OR(all_magnitudes(x, true), minus_zero);
    if (d->negative)
        return OR(all_magnitudes(x, true), minus_zero, CAT(minus(x), magnitude(x, d, LESS)),
                  strictly ? EXPR_NONE : CAT(minus(x), magnitude(x, d, EQUAL)));
    return OR(magnitude(x, d, GREATER), strictly ? EXPR_NONE : magnitude(x, d, EQUAL));
}

expr_id number_at_most(struct exprs *x, const struct decimal *d, bool strictly) {
    expr_id plus_zero = zero(x);
    if (d->n_digits == 0)
        return strictly ? CAT(minus(x), all_magnitudes(x, false))
                        : OR(plus_zero, CAT(minus(x), all_magnitudes(x, true)));
    if (!d->negative)
        return OR(CAT(minus(x), all_magnitudes(x, true)), magnitude(x, d, LESS),
                  strictly ? EXPR_NONE : magnitude(x, d, EQUAL));
    return CAT(minus(x),
               OR(magnitude(x, d, GREATER), strictly ? EXPR_NONE : magnitude(x, d, EQUAL)));
}

expr_id number_multiple(struct exprs *x, const struct decimal *d, bool plain_only) {
    // d = a / 10^scale
    uint64_t a = 0;
    for (uint32_t i = 0; i < d->n_digits; i++) {
        if (a > INT32_MAX / 10)
            return EXPR_NONE;
        a = a * 10 + d->digits[i];
    }
    int32_t scale = (int32_t)d->n_digits - d->point;
    for (; scale < 0; scale++) {
        if (a > INT32_MAX / 10)
            return EXPR_NONE;
        a *= 10;
    }
    if (a == 0 || a > INT32_MAX || scale > 60)
        return EXPR_NONE;
    expr_id sign = expr_opt(x, minus(x));
    expr_id plain = CAT(sign, expr_and2(x, expr_rem(x, a, (uint32_t)scale),
                                        CAT(integer_part(x), fraction(x))));
    if (plain_only)
        return plain;
    // m * 10^e with at most 16 digits behind the point is a multiple of 2^i * 5^j / 10^scale once
    // e - 16 + scale reaches i and j.
    uint64_t rest = a;
    int32_t twos = 0, fives = 0;
    for (; rest % 2 == 0; rest /= 2)
        twos++;
    for (; rest % 5 == 0; rest /= 5)
        fives++;
    if (rest != 1)
        return plain;
    int32_t from = (twos > fives ? twos : fives) - scale + MANTISSA_BEHIND_MAX;
    if (from < EXPONENT_FROM)
        from = EXPONENT_FROM;
    return OR(plain,
              CAT(sign, mantissa(x), exponent_letter(x), exponents(x, from - 1, GREATER)));
}
