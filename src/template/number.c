#include "template/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/utf8.h"
#include "template/unicode.h"

// Magnitude in limbs of 32 bits, lowest first, no zero limb at the top; always beyond 64 bits' range
// once stored, so that equal integers have equal forms.
struct big {
    bool negative;
    uint32_t n;
    uint32_t limbs[];
};

// A borrowed magnitude with a sign.
struct digits {
    bool negative;
    uint32_t n;
    const uint32_t *limbs;
};

// About 4820 decimal digits: a little more than may be printed.
enum { LIMBS_MAX = 500 };

static struct digits digits_of(struct value v, uint32_t room[2]) {
    if (v.type == V_BIG)
        return (struct digits){v.big->negative, v.big->n, v.big->limbs};
    int64_t i = v.type == V_BOOL ? v.b : v.i;
    uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
    room[0] = (uint32_t)magnitude;
    room[1] = (uint32_t)(magnitude >> 32);
    return (struct digits){i < 0, room[1] ? 2 : room[0] ? 1 : 0, room};
}

static struct digits trimmed(bool negative, const uint32_t *limbs, uint32_t n) {
    while (n && !limbs[n - 1])
        n--;
    return (struct digits){negative && n, n, limbs};
}

// The value of a magnitude; V_ERROR when out of memory or above LIMBS_MAX.
static struct value from_digits(struct arena *arena, struct digits d) {
    if (d.n <= 2) {
        uint64_t magnitude = (d.n > 0 ? d.limbs[0] : 0) | (uint64_t)(d.n > 1 ? d.limbs[1] : 0) << 32;
        if (magnitude <= INT64_MAX)
            return value_int(d.negative ? -(int64_t)magnitude : (int64_t)magnitude);
        if (d.negative && magnitude == (uint64_t)1 << 63)
            return value_int(INT64_MIN);
    }
    if (d.n > LIMBS_MAX)
        return value_error();
    struct big *big = arena_alloc(arena, sizeof *big + d.n * sizeof(uint32_t));
    if (!big)
        return value_error();
    big->negative = d.negative;
    big->n = d.n;
    memcpy(big->limbs, d.limbs, d.n * sizeof(uint32_t));
    return (struct value){.type = V_BIG, .big = big};
}

static int compare_magnitude(struct digits a, struct digits b) {
    if (a.n != b.n)
        return a.n < b.n ? -1 : 1;
    for (uint32_t i = a.n; i-- > 0;)
        if (a.limbs[i] != b.limbs[i])
            return a.limbs[i] < b.limbs[i] ? -1 : 1;
    return 0;
}

static struct value add(struct arena *arena, struct digits a, struct digits b) {
    uint32_t sum[LIMBS_MAX + 1];
    if (a.negative == b.negative) {
        uint64_t carry = 0;
        uint32_t n = a.n > b.n ? a.n : b.n;
        for (uint32_t i = 0; i < n; i++) {
            carry += (uint64_t)(i < a.n ? a.limbs[i] : 0) + (i < b.n ? b.limbs[i] : 0);
            sum[i] = (uint32_t)carry;
            carry >>= 32;
        }
        sum[n] = (uint32_t)carry;
        return from_digits(arena, trimmed(a.negative, sum, n + 1));
    }
    if (compare_magnitude(a, b) < 0) {
        struct digits t = a;
        a = b;
        b = t;
    }
    int64_t borrow = 0;
    for (uint32_t i = 0; i < a.n; i++) {
        int64_t d = (int64_t)a.limbs[i] - (i < b.n ? b.limbs[i] : 0) + borrow;
        sum[i] = (uint32_t)d;
        borrow = d < 0 ? -1 : 0;
    }
    return from_digits(arena, trimmed(a.negative, sum, a.n));
}

static struct value multiply(struct arena *arena, struct digits a, struct digits b) {
    uint32_t product[2 * LIMBS_MAX] = {0};
    for (uint32_t i = 0; i < a.n; i++) {
        uint64_t carry = 0;
        for (uint32_t k = 0; k < b.n; k++) {
            carry += (uint64_t)a.limbs[i] * b.limbs[k] + product[i + k];
            product[i + k] = (uint32_t)carry;
            carry >>= 32;
        }
        product[i + b.n] = (uint32_t)carry;
    }
    return from_digits(arena, trimmed(a.negative != b.negative, product, a.n + b.n));
}

// Quotient and remainder of magnitudes, bit by bit: integers this large are rare and bounded.
static void divide_magnitude(struct digits a, struct digits b, uint32_t *quotient, uint32_t *remainder) {
    memset(quotient, 0, (a.n + 1) * sizeof *quotient);
    memset(remainder, 0, (b.n + 1) * sizeof *remainder);
    for (uint32_t bit = a.n * 32; bit-- > 0;) {
        uint32_t carry = a.limbs[bit / 32] >> (bit % 32) & 1;
        for (uint32_t i = 0; i <= b.n; i++) {
            uint32_t top = remainder[i] >> 31;
            remainder[i] = remainder[i] << 1 | carry;
            carry = top;
        }
        if (compare_magnitude(trimmed(false, remainder, b.n + 1), b) < 0)
            continue;
        int64_t borrow = 0;
        for (uint32_t i = 0; i <= b.n; i++) {
            int64_t d = (int64_t)remainder[i] - (i < b.n ? b.limbs[i] : 0) + borrow;
            remainder[i] = (uint32_t)d;
            borrow = d < 0 ? -1 : 0;
        }
        quotient[bit / 32] |= (uint32_t)1 << (bit % 32);
    }
}

// Rounded towards minus infinity, as Python divides; the remainder has b's sign.
static struct value floor_divide(struct arena *arena, struct digits a, struct digits b, bool want_mod) {
    uint32_t quotient[LIMBS_MAX + 2], remainder[LIMBS_MAX + 2];
    divide_magnitude(a, b, quotient, remainder);
    struct digits q = trimmed(a.negative != b.negative, quotient, a.n + 1);
    struct digits r = trimmed(a.negative, remainder, b.n + 1);
    bool adjust = r.n && a.negative != b.negative;
    if (want_mod)
        return adjust ? add(arena, r, b) : from_digits(arena, r);
    if (!adjust)
        return from_digits(arena, q);
    static const uint32_t ONE[] = {1};
    q.negative = true;
    return add(arena, q, (struct digits){true, 1, ONE});
}

static double digits_to_double(struct digits d) {
    // Exact rounding: the top 64 bits with a sticky bit below them, then one conversion.
    if (!d.n)
        return 0;
    uint64_t top = 0;
    int exponent = 0;
    if (d.n <= 2) {
        top = d.limbs[0] | (uint64_t)(d.n > 1 ? d.limbs[1] : 0) << 32;
    } else {
        int shift = __builtin_clz(d.limbs[d.n - 1]);
        unsigned __int128 high = (unsigned __int128)d.limbs[d.n - 1] << 64 |
                                 (uint64_t)d.limbs[d.n - 2] << 32 | d.limbs[d.n - 3];
        high <<= shift;
        top = (uint64_t)(high >> 32);
        bool sticky = (uint32_t)high != 0;
        for (uint32_t i = 0; i + 3 < d.n; i++)
            sticky |= d.limbs[i] != 0;
        top |= sticky;
        exponent = (int)(d.n - 2) * 32 - shift;
    }
    double f = ldexp((double)top, exponent);
    return d.negative ? -f : f;
}

double number_to_double(struct value v) {
    switch ((enum value_type)v.type) {
    case V_FLOAT:
        return v.f;
    case V_BOOL:
        return v.b;
    case V_BIG:
        return digits_to_double((struct digits){v.big->negative, v.big->n, v.big->limbs});
    default:
        return (double)v.i;
    }
}

int64_t number_clamp(struct value v) {
    if (v.type == V_BIG)
        return v.big->negative ? INT64_MIN : INT64_MAX;
    return v.type == V_BOOL ? v.b : v.i;
}

bool number_is_zero(struct value v) {
    return v.type == V_FLOAT ? v.f == 0 : v.type != V_BIG && number_clamp(v) == 0;
}

bool number_is_negative(struct value v) { return v.type == V_FLOAT ? v.f < 0 : number_clamp(v) < 0; }

struct value number_int_from_float(struct arena *arena, double f) {
    f = trunc(f);
    if (fabs(f) < 9e18)
        return value_int((int64_t)f);
    int exponent;
    double fraction = frexp(fabs(f), &exponent); // in [0.5, 1)
    uint64_t mantissa = (uint64_t)ldexp(fraction, 64);
    uint32_t limbs[DBL_MAX_EXP / 32 + 4] = {0};
    int shift = exponent - 64; // at least -1: f is at least 2^63
    if (shift < 0) {
        mantissa >>= -shift;
        shift = 0;
    }
    unsigned __int128 wide = (unsigned __int128)mantissa << (shift % 32);
    uint32_t at = (uint32_t)shift / 32;
    for (int i = 0; i < 3; i++)
        limbs[at + (uint32_t)i] = (uint32_t)(wide >> (32 * i));
    return from_digits(arena, trimmed(f < 0, limbs, at + 3));
}

static double float_mod(double a, double b) {
    double m = fmod(a, b);
    if (m != 0) {
        if ((b < 0) != (m < 0))
            m += b;
    } else {
        m = copysign(0.0, b);
    }
    return m;
}

static double float_floordiv(double a, double b) {
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0))
        div -= 1;
    if (div == 0)
        return copysign(0.0, a / b);
    double floored = floor(div);
    return div - floored > 0.5 ? floored + 1 : floored;
}

static struct value float_binary(enum operation op, double a, double b, const char **problem) {
    switch (op) {
    case OP_ADD:
        return value_float(a + b);
    case OP_SUB:
        return value_float(a - b);
    case OP_MUL:
        return value_float(a * b);
    case OP_DIV:
        if (b == 0)
            break;
        return value_float(a / b);
    case OP_FLOORDIV:
        if (b == 0)
            break;
        return value_float(float_floordiv(a, b));
    case OP_MOD:
        if (b == 0)
            break;
        return value_float(float_mod(a, b));
    case OP_POW: {
        if (a == 0 && b < 0) {
            *problem = "0.0 cannot be raised to a negative power";
            return value_error();
        }
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) {
            *problem = "a negative number to a fractional power is a complex number, which templates "
                       "do not have";
            return value_error();
        }
        double f = pow(a, b);
        if (isinf(f) && isfinite(a) && isfinite(b)) {
            *problem = "(34, 'Numerical result out of range')";
            return value_error();
        }
        return value_float(f);
    }
    default:
        break;
    }
    *problem = "division by zero";
    return value_error();
}

static struct value int_power(struct arena *arena, struct value base, struct value exponent,
                              const char **problem) {
    if (number_is_negative(exponent))
        return float_binary(OP_POW, number_to_double(base), number_to_double(exponent), problem);
    int64_t n = number_clamp(exponent);
    struct value result = value_int(1);
    while (n > 0) {
        if (n & 1)
            result = number_binary(arena, OP_MUL, result, base, problem);
        n >>= 1;
        if (n && !is_error(result))
            base = number_binary(arena, OP_MUL, base, base, problem);
        if (is_error(result) || is_error(base))
            return value_error();
    }
    return result;
}

struct value number_binary(struct arena *arena, enum operation op, struct value a, struct value b,
                           const char **problem) {
    if (a.type == V_FLOAT || b.type == V_FLOAT) {
        double x = number_to_double(a), y = number_to_double(b);
        if ((isinf(x) && a.type == V_BIG) || (isinf(y) && b.type == V_BIG)) {
            *problem = "int too large to convert to float";
            return value_error();
        }
        return float_binary(op, x, y, problem);
    }
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && number_is_zero(b)) {
        *problem = op == OP_DIV ? "division by zero" : "integer division or modulo by zero";
        return value_error();
    }
    if (op == OP_POW)
        return int_power(arena, a, b, problem);
    if (op == OP_DIV) {
        double x = number_to_double(a), y = number_to_double(b);
        if (isinf(x) || isinf(y)) {
            *problem = "int too large to convert to float";
            return value_error();
        }
        return value_float(x / y);
    }
    if (a.type != V_BIG && b.type != V_BIG) {
        int64_t x = number_clamp(a), y = number_clamp(b), z;
        switch (op) {
        case OP_ADD:
            if (!__builtin_add_overflow(x, y, &z))
                return value_int(z);
            break;
        case OP_SUB:
            if (!__builtin_sub_overflow(x, y, &z))
                return value_int(z);
            break;
        case OP_MUL:
            if (!__builtin_mul_overflow(x, y, &z))
                return value_int(z);
            break;
        case OP_FLOORDIV:
        case OP_MOD:
            if (y == -1) { // INT64_MIN / -1 does not fit
                if (op == OP_MOD)
                    return value_int(0);
                return number_negate(arena, value_int(x));
            }
            z = op == OP_MOD ? x % y : x / y;
            if (x % y != 0 && (x < 0) != (y < 0))
                z += op == OP_MOD ? y : -1;
            return value_int(z);
        default:
            break;
        }
    }
    uint32_t room_a[2], room_b[2];
    struct digits x = digits_of(a, room_a), y = digits_of(b, room_b);
    struct value result;
    switch (op) {
    case OP_SUB:
        y.negative = !y.negative;
        result = add(arena, x, y);
        break;
    case OP_MUL:
        result = multiply(arena, x, y);
        break;
    case OP_FLOORDIV:
    case OP_MOD:
        result = floor_divide(arena, x, y, op == OP_MOD);
        break;
    default:
        result = add(arena, x, y);
        break;
    }
    if (is_error(result))
        *problem = "an integer has more than 4800 digits: that is the limit here";
    return result;
}

struct value number_negate(struct arena *arena, struct value v) {
    if (v.type == V_FLOAT)
        return value_float(-v.f);
    uint32_t room[2];
    struct digits d = digits_of(v, room);
    d.negative = !d.negative && d.n;
    return from_digits(arena, d);
}

enum ordering number_compare(struct value a, struct value b) {
    if (a.type != V_BIG && b.type != V_BIG && a.type != V_FLOAT && b.type != V_FLOAT) {
        int64_t x = number_clamp(a), y = number_clamp(b);
        return x < y ? ORDER_LESS : x > y ? ORDER_GREATER : ORDER_EQUAL;
    }
    if (a.type == V_FLOAT && b.type == V_FLOAT)
        return isnan(a.f) || isnan(b.f) ? ORDER_NONE
               : a.f < b.f              ? ORDER_LESS
               : a.f > b.f              ? ORDER_GREATER
                                        : ORDER_EQUAL;
    if (b.type == V_FLOAT) {
        enum ordering order = number_compare(b, a);
        return order == ORDER_LESS ? ORDER_GREATER : order == ORDER_GREATER ? ORDER_LESS : order;
    }
    if (a.type == V_FLOAT) {
        if (isnan(a.f))
            return ORDER_NONE;
        if (isinf(a.f))
            return a.f < 0 ? ORDER_LESS : ORDER_GREATER;
        double y = number_to_double(b);
        if (a.f != y || b.type == V_BIG || fabs(a.f) > 9e18)
            return a.f < y ? ORDER_LESS : a.f > y ? ORDER_GREATER : ORDER_EQUAL;
        int64_t x = (int64_t)a.f, z = number_clamp(b);
        return x < z ? ORDER_LESS : x > z ? ORDER_GREATER : ORDER_EQUAL;
    }
    uint32_t room_a[2], room_b[2];
    struct digits x = digits_of(a, room_a), y = digits_of(b, room_b);
    if (x.negative != y.negative)
        return x.negative ? ORDER_LESS : ORDER_GREATER;
    int order = compare_magnitude(x, y);
    order = x.negative ? -order : order;
    return order < 0 ? ORDER_LESS : order > 0 ? ORDER_GREATER : ORDER_EQUAL;
}

uint64_t number_hash(struct value v) {
    if (v.type == V_FLOAT && v.f == trunc(v.f) && fabs(v.f) < 9e18)
        return hash_u64((uint64_t)(int64_t)v.f);
    if (v.type == V_FLOAT || v.type == V_BIG) {
        double f = number_to_double(v);
        uint64_t bits;
        memcpy(&bits, &f, sizeof bits);
        return hash_u64(bits);
    }
    return hash_u64((uint64_t)number_clamp(v));
}

// ---- Text -------------------------------------------------------------------------------------

static int digit_of(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

// A run of digits of `base`, with underscores to skip.
static struct value int_from_digits(struct arena *arena, struct str text, int base, bool negative) {
    uint32_t limbs[LIMBS_MAX + 1];
    uint32_t n = 0;
    uint64_t small = 0;
    size_t i = 0, n_digits = 0;
    for (; i < text.n && small < (uint64_t)1 << 56; i++)
        if (text.data[i] != '_')
            small = small * (uint64_t)base + (uint64_t)digit_of(text.data[i]);
    limbs[0] = (uint32_t)small;
    limbs[1] = (uint32_t)(small >> 32);
    n = 2;
    for (; i < text.n; i++) {
        if (text.data[i] == '_')
            continue;
        if (++n_digits > NUMBER_DIGITS_MAX)
            return value_error();
        uint64_t carry = (uint64_t)digit_of(text.data[i]);
        for (uint32_t k = 0; k < n; k++) {
            carry += (uint64_t)limbs[k] * (uint64_t)base;
            limbs[k] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry) {
            if (n >= LIMBS_MAX)
                return value_error();
            limbs[n++] = (uint32_t)carry;
        }
    }
    return from_digits(arena, trimmed(negative, limbs, n));
}

bool number_parse_literal(struct arena *arena, struct str text, bool is_float, struct value *out) {
    if (is_float) {
        double f = 0;
        number_float_from_text(text, &f);
        *out = value_float(f);
        return true;
    }
    int base = 10;
    if (text.n > 2 && text.data[0] == '0') {
        char c = text.data[1] | 32;
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        if (base != 10)
            text = str_slice(text, 2, text.n);
    }
    *out = int_from_digits(arena, text, base, false);
    return true;
}

// Any script's decimal digits as ASCII, as int() and float() read them. True if `text` has any others;
// then *out is a copy.
static bool plain_digits(struct str text, struct strbuf *out) {
    bool any = false;
    for (size_t i = 0; i < text.n && !any; i++)
        any = (uint8_t)text.data[i] >= 0x80;
    for (size_t i = 0; any && i < text.n;) {
        size_t start = i;
        int digit = unicode_decimal_value(unicode_next(text, &i));
        if (digit >= 0)
            strbuf_char(out, (char)('0' + digit));
        else
            strbuf_append(out, str_slice(text, start, i));
    }
    return any && !out->failed;
}

static bool int_from_plain_text(struct arena *arena, struct str text, int base, struct value *out) {
    text = unicode_strip_space(text, true, true);
    bool negative = false;
    if (text.n && (text.data[0] == '-' || text.data[0] == '+')) {
        negative = text.data[0] == '-';
        text = str_slice(text, 1, text.n);
    }
    bool prefixed = false;
    if (text.n > 2 && text.data[0] == '0') {
        char c = text.data[1] | 32;
        int marked = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (marked && (marked == base || base == 0)) {
            text = str_slice(text, 2, text.n);
            base = marked;
            prefixed = true;
        }
    }
    if (base == 0) {
        base = 10;
        if (text.n > 1 && text.data[0] == '0') // only zeros may follow
            for (size_t i = 0; i < text.n; i++)
                if (text.data[i] != '0' && text.data[i] != '_')
                    return false;
    }
    bool after_digit = prefixed; // an underscore may follow the prefix
    if (!text.n)
        return false;
    for (size_t i = 0; i < text.n; i++) {
        if (text.data[i] == '_') {
            if (!after_digit)
                return false;
            after_digit = false;
        } else {
            if (digit_of(text.data[i]) >= base)
                return false;
            after_digit = true;
        }
    }
    if (!after_digit)
        return false;
    *out = int_from_digits(arena, text, base, negative);
    return true;
}

bool number_int_from_text(struct arena *arena, struct str text, int base, struct value *out) {
    struct strbuf plain = {0};
    if (plain_digits(text, &plain))
        text = strbuf_str(&plain);
    bool ok = int_from_plain_text(arena, text, base, out);
    strbuf_deinit(&plain);
    return ok;
}

static bool float_from_plain_text(struct str text, double *out) {
    text = unicode_strip_space(text, true, true);
    char room[512];
    size_t n = 0;
    bool digits = false, after_digit = false;
    char *heap = text.n < sizeof room ? NULL : malloc(text.n + 1);
    char *copy = text.n < sizeof room ? room : heap;
    if (!copy)
        return false;
    bool ok = text.n > 0;
    for (size_t i = 0; ok && i < text.n; i++) {
        char c = text.data[i];
        bool digit = c >= '0' && c <= '9';
        if (c == '_') {
            ok = after_digit && i + 1 < text.n && text.data[i + 1] >= '0' && text.data[i + 1] <= '9';
        } else {
            copy[n++] = c;
            digits |= digit;
        }
        after_digit = digit;
    }
    copy[n] = '\0';
    if (ok) {
        const char *word = copy + (copy[0] == '-' || copy[0] == '+');
        bool named = !strcasecmp(word, "inf") || !strcasecmp(word, "infinity") || !strcasecmp(word, "nan");
        ok = named || (digits && !strpbrk(copy, "xXpPiInN") && strlen(copy) == n);
        char *end = copy;
        double f = ok ? strtod(copy, &end) : 0;
        ok = ok && end == copy + n;
        if (ok)
            *out = f;
    }
    free(heap);
    return ok;
}

bool number_float_from_text(struct str text, double *out) {
    struct strbuf plain = {0};
    if (plain_digits(text, &plain))
        text = strbuf_str(&plain);
    bool ok = float_from_plain_text(text, out);
    strbuf_deinit(&plain);
    return ok;
}

void number_append_float(struct strbuf *out, double f) {
    if (isnan(f) || isinf(f)) {
        strbuf_append_c(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    // The shortest digits that read back as the same float. Below the normal range fewer than 15 digits
    // can already be unique, so start from one there.
    char digits[40];
    for (int precision = fabs(f) < DBL_MIN ? 0 : 14; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, f);
        if (strtod(digits, NULL) == f)
            break;
    }
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    const char *p = digits;
    if (*p == '-') {
        strbuf_char(out, '-');
        p++;
    }
    char plain[32]; // the digits alone
    int n = 0;
    for (const char *c = p; c < e; c++)
        if (*c != '.')
            plain[n++] = *c;
    while (n > 1 && plain[n - 1] == '0')
        n--;
    if (exponent < -4 || exponent >= 16) {
        strbuf_char(out, plain[0]);
        if (n > 1) {
            strbuf_char(out, '.');
            strbuf_append(out, (struct str){plain + 1, (size_t)(n - 1)});
        }
        strbuf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        strbuf_append_c(out, "0.");
        for (int i = -1; i > exponent; i--)
            strbuf_char(out, '0');
        strbuf_append(out, (struct str){plain, (size_t)n});
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1)
                strbuf_char(out, '.');
            strbuf_char(out, i < n ? plain[i] : '0');
        }
        if (n <= exponent + 1)
            strbuf_append_c(out, ".0");
    }
}

void number_append_digits(struct strbuf *out, struct value v, int base) {
    static const char DIGITS[] = "0123456789abcdef";
    uint32_t room[2], work[LIMBS_MAX];
    struct digits d = digits_of(v, room);
    char reversed[LIMBS_MAX * 32 + 1];
    size_t n = 0;
    memcpy(work, d.limbs, d.n * sizeof *work);
    uint32_t chunk = base == 10 ? 1000000000u : base == 16 ? 1u << 28 : base == 8 ? 1u << 30 : 1u << 31;
    int chunk_digits = base == 10 ? 9 : base == 16 ? 7 : base == 8 ? 10 : 31;
    for (uint32_t top = d.n; top > 0;) {
        uint64_t rest = 0;
        for (uint32_t i = top; i-- > 0;) {
            rest = rest << 32 | work[i];
            work[i] = (uint32_t)(rest / chunk);
            rest %= chunk;
        }
        while (top && !work[top - 1])
            top--;
        for (int i = 0; i < chunk_digits && (top || rest); i++) {
            reversed[n++] = DIGITS[rest % (uint64_t)base];
            rest /= (uint64_t)base;
        }
    }
    if (!n)
        reversed[n++] = '0';
    while (n > 0)
        strbuf_char(out, reversed[--n]);
}

void number_append(struct strbuf *out, struct value v) {
    if (v.type == V_FLOAT) {
        number_append_float(out, v.f);
        return;
    }
    if (v.type != V_BIG) {
        char text[24];
        int64_t i = number_clamp(v);
        uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
        size_t at = sizeof text;
        do
            text[--at] = (char)('0' + magnitude % 10);
        while (magnitude /= 10);
        if (i < 0)
            text[--at] = '-';
        strbuf_append(out, (struct str){text + at, sizeof text - at});
        return;
    }
    if (v.big->negative)
        strbuf_char(out, '-');
    number_append_digits(out, v, 10);
}
