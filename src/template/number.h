// template/number.h - Python's int (of any size up to a limit), float and bool: arithmetic, comparison,
// reading and printing.
#ifndef LOAM_TEMPLATE_NUMBER_H
#define LOAM_TEMPLATE_NUMBER_H
#include "base/arena.h"
#include "template/ast.h"

// Python refuses to print or read integers of more digits.
enum { NUMBER_DIGITS_MAX = 4300 };

static inline bool is_integer(struct value v) {
    return v.type == V_BOOL || v.type == V_INT || v.type == V_BIG;
}
static inline bool is_number(struct value v) { return is_integer(v) || v.type == V_FLOAT; }

// A literal as the lexer accepts it ("1_000", "0x1f", "1.5e3"). *out is V_ERROR if it is too long.
// False when out of memory.
bool number_parse_literal(struct arena *arena, struct str text, bool is_float, struct value *out);

// int(text, base) and float(text) as Python reads them, white space and underscores included.
// False if the text is no number; *out is V_ERROR when out of memory or too long.
bool number_int_from_text(struct arena *arena, struct str text, int base, struct value *out);
bool number_float_from_text(struct str text, double *out);
// int(f) for a finite f.
struct value number_int_from_float(struct arena *arena, double f);

// a op b for two numbers and an arithmetic operation. V_ERROR with *problem: a sentence.
struct value number_binary(struct arena *arena, enum operation op, struct value a, struct value b,
                           const char **problem);
struct value number_negate(struct arena *arena, struct value v);
double number_to_double(struct value v); // infinite if an integer is too large
// The 64-bit value of an integer; clamped if it does not fit.
int64_t number_clamp(struct value v);
bool number_is_zero(struct value v);
bool number_is_negative(struct value v);

enum ordering { ORDER_LESS = -1, ORDER_EQUAL = 0, ORDER_GREATER = 1, ORDER_NONE = 2 }; // NONE: nan
enum ordering number_compare(struct value a, struct value b);
uint64_t number_hash(struct value v);

// As str() prints it. A bool prints as a number here.
void number_append(struct strbuf *out, struct value v);
void number_append_float(struct strbuf *out, double f);
// The magnitude of an integer in base 2, 8, 10 or 16, lower case.
void number_append_digits(struct strbuf *out, struct value v, int base);
#endif
