#include "grammar/charset.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/utf8.h"

enum { CODE_POINT_MAX = 0x10FFFF, SURROGATE_FROM = 0xD800, SURROGATE_TO = 0xDFFF };

void char_set_deinit(struct char_set *set) {
    free(set->ranges);
    *set = (struct char_set){0};
}

void char_set_add(struct char_set *set, uint32_t from, uint32_t to) {
    if (from > to || set->failed)
        return;
    if (set->n == set->capacity) {
        uint32_t capacity = set->capacity ? set->capacity * 2 : 8;
        struct char_range *ranges = realloc(set->ranges, capacity * sizeof *ranges);
        if (!ranges) {
            set->failed = true;
            return;
        }
        set->ranges = ranges;
        set->capacity = capacity;
    }
    set->ranges[set->n++] = (struct char_range){from, to};
}

void char_set_add_set(struct char_set *set, const struct char_set *other) {
    for (uint32_t i = 0; i < other->n; i++)
        char_set_add(set, other->ranges[i].from, other->ranges[i].to);
    set->failed |= other->failed;
}

static int by_from(const void *a, const void *b) {
    uint32_t i = ((const struct char_range *)a)->from, j = ((const struct char_range *)b)->from;
    return (i > j) - (i < j);
}

void char_set_normalize(struct char_set *set) {
    if (set->n == 0)
        return;
    qsort(set->ranges, set->n, sizeof *set->ranges, by_from);
    uint32_t n = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        struct char_range r = set->ranges[i];
        if (n > 0 && r.from <= set->ranges[n - 1].to + 1) {
            if (r.to > set->ranges[n - 1].to)
                set->ranges[n - 1].to = r.to;
        } else {
            set->ranges[n++] = r;
        }
    }
    set->n = n;
}

void char_set_invert(struct char_set *set) {
    char_set_normalize(set);
    struct char_set out = {.failed = set->failed};
    uint32_t from = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->ranges[i].from > from)
            char_set_add(&out, from, set->ranges[i].from - 1);
        from = set->ranges[i].to + 1;
    }
    if (from <= CODE_POINT_MAX)
        char_set_add(&out, from, CODE_POINT_MAX);
    char_set_deinit(set);
    *set = out;
}

bool char_set_has(const struct char_set *set, uint32_t c) {
    for (uint32_t i = 0; i < set->n; i++)
        if (c >= set->ranges[i].from && c <= set->ranges[i].to)
            return true;
    return false;
}

// Unicode's short and long names of the general categories (UCD, PropertyValueAliases.txt).
static const struct {
    const char *name, *alias;
    uint32_t categories; // a bit for each utf8proc_category_t
} CATEGORIES[] = {
#define CAT(c) (1u << UTF8PROC_CATEGORY_##c)
    {"Lu", "Uppercase_Letter", CAT(LU)},
    {"Ll", "Lowercase_Letter", CAT(LL)},
    {"Lt", "Titlecase_Letter", CAT(LT)},
    {"LC", "Cased_Letter", CAT(LU) | CAT(LL) | CAT(LT)},
    {"Lm", "Modifier_Letter", CAT(LM)},
    {"Lo", "Other_Letter", CAT(LO)},
    {"L", "Letter", CAT(LU) | CAT(LL) | CAT(LT) | CAT(LM) | CAT(LO)},
    {"Mn", "Nonspacing_Mark", CAT(MN)},
    {"Mc", "Spacing_Mark", CAT(MC)},
    {"Me", "Enclosing_Mark", CAT(ME)},
    {"M", "Mark", CAT(MN) | CAT(MC) | CAT(ME)},
    {"Nd", "Decimal_Number", CAT(ND)},
    {"Nl", "Letter_Number", CAT(NL)},
    {"No", "Other_Number", CAT(NO)},
    {"N", "Number", CAT(ND) | CAT(NL) | CAT(NO)},
    {"Pc", "Connector_Punctuation", CAT(PC)},
    {"Pd", "Dash_Punctuation", CAT(PD)},
    {"Ps", "Open_Punctuation", CAT(PS)},
    {"Pe", "Close_Punctuation", CAT(PE)},
    {"Pi", "Initial_Punctuation", CAT(PI)},
    {"Pf", "Final_Punctuation", CAT(PF)},
    {"Po", "Other_Punctuation", CAT(PO)},
    {"P", "Punctuation", CAT(PC) | CAT(PD) | CAT(PS) | CAT(PE) | CAT(PI) | CAT(PF) | CAT(PO)},
    {"Sm", "Math_Symbol", CAT(SM)},
    {"Sc", "Currency_Symbol", CAT(SC)},
    {"Sk", "Modifier_Symbol", CAT(SK)},
    {"So", "Other_Symbol", CAT(SO)},
    {"S", "Symbol", CAT(SM) | CAT(SC) | CAT(SK) | CAT(SO)},
    {"Zs", "Space_Separator", CAT(ZS)},
    {"Zl", "Line_Separator", CAT(ZL)},
    {"Zp", "Paragraph_Separator", CAT(ZP)},
    {"Z", "Separator", CAT(ZS) | CAT(ZL) | CAT(ZP)},
    {"Cc", "Control", CAT(CC)},
    {"Cf", "Format", CAT(CF)},
    {"Co", "Private_Use", CAT(CO)},
    {"Cn", "Unassigned", CAT(CN)},
    {"C", "Other", CAT(CC) | CAT(CF) | CAT(CS) | CAT(CO) | CAT(CN)},
    {"nd", "digit", CAT(ND)},
    {"po", "punct", CAT(PC) | CAT(PD) | CAT(PS) | CAT(PE) | CAT(PI) | CAT(PF) | CAT(PO)},
#undef CAT
};

bool char_set_add_property(struct char_set *set, struct str name) {
    static const char *const PREFIXES[] = {"General_Category=", "gc="};
    for (size_t i = 0; i < 2; i++)
        if (str_starts(name, str_from(PREFIXES[i])))
            name = str_slice(name, strlen(PREFIXES[i]), name.n);
    if (str_eq_c(name, "Any")) {
        char_set_add(set, 0, CODE_POINT_MAX);
        return true;
    }
    if (str_eq_c(name, "ASCII")) {
        char_set_add(set, 0, 0x7F);
        return true;
    }
    uint32_t wanted = 0;
    bool known = false;
    for (size_t i = 0; i < sizeof CATEGORIES / sizeof *CATEGORIES; i++)
        if (str_eq_c(name, CATEGORIES[i].name) || str_eq_c(name, CATEGORIES[i].alias)) {
            wanted = CATEGORIES[i].categories;
            known = true;
        }
    if (str_eq_c(name, "Assigned")) {
        wanted = ~(1u << UTF8PROC_CATEGORY_CN);
        known = true;
    }
    if (!known)
        return false;
    uint32_t from = UINT32_MAX;
    for (uint32_t c = 0; c <= CODE_POINT_MAX + 1; c++) {
        bool in = c <= CODE_POINT_MAX &&
                  wanted >> (unsigned)utf8proc_category((utf8proc_int32_t)c) & 1;
        if (in && from == UINT32_MAX) {
            from = c;
        } else if (!in && from != UINT32_MAX) {
            char_set_add(set, from, c - 1);
            from = UINT32_MAX;
        }
    }
    return true;
}

// ---- spellings ---------------------------------------------------------------------------------

// Expression for one digit position that may take the values [from, to].
typedef expr_id digit_fn(struct exprs *x, uint32_t from, uint32_t to);

// All sequences of n digits between lo and hi, digit values [min, max] in the free positions.
static expr_id sequences(struct exprs *x, digit_fn *digit, const uint32_t *lo, const uint32_t *hi,
                         size_t n, uint32_t min, uint32_t max) {
    if (n == 1)
        return digit(x, lo[0], hi[0]);
    uint32_t low[4], high[4];
    for (size_t i = 0; i < n; i++) {
        low[i] = min;
        high[i] = max;
    }
    if (lo[0] == hi[0])
        return expr_cat(x, digit(x, lo[0], lo[0]),
                        sequences(x, digit, lo + 1, hi + 1, n - 1, min, max));
    // A first part that starts at lo's tail, a last part that ends at hi's, and a free middle.
    expr_id parts[3];
    size_t n_parts = 0;
    uint32_t from = lo[0], to = hi[0];
    bool lo_free = true, hi_free = true;
    for (size_t i = 1; i < n; i++) {
        lo_free &= lo[i] == min;
        hi_free &= hi[i] == max;
    }
    if (!lo_free) {
        parts[n_parts++] = expr_cat(x, digit(x, from, from),
                                    sequences(x, digit, lo + 1, high, n - 1, min, max));
        from++;
    }
    if (!hi_free) {
        parts[n_parts++] =
            expr_cat(x, digit(x, to, to), sequences(x, digit, low, hi + 1, n - 1, min, max));
        to--;
    }
    if (from <= to)
        parts[n_parts++] =
            expr_cat(x, digit(x, from, to), sequences(x, digit, low, high, n - 1, min, max));
    return expr_or(x, parts, n_parts);
}

static expr_id byte_digit(struct exprs *x, uint32_t from, uint32_t to) {
    return expr_range(x, (uint8_t)from, (uint8_t)to);
}

static expr_id utf8_range(struct exprs *x, uint32_t from, uint32_t to) {
    static const uint32_t ENDS[] = {0x7F, 0x7FF, 0xFFFF, CODE_POINT_MAX};
    expr_id parts[4];
    size_t n_parts = 0;
    for (size_t k = 0; k < 4 && from <= to; k++) {
        if (from > ENDS[k])
            continue;
        uint32_t end = to < ENDS[k] ? to : ENDS[k];
        char a[4], b[4];
        size_t n = utf8_encode(from, a);
        utf8_encode(end, b);
        uint32_t lo[4], hi[4];
        for (size_t i = 0; i < n; i++) {
            lo[i] = (uint8_t)a[i];
            hi[i] = (uint8_t)b[i];
        }
        parts[n_parts++] = sequences(x, byte_digit, lo, hi, n, 0x80, 0xBF);
        from = end + 1;
    }
    return expr_or(x, parts, n_parts);
}

static expr_id hex_digit(struct exprs *x, uint32_t from, uint32_t to) {
    struct byte_set set = {0};
    for (uint32_t v = from; v <= to; v++) {
        byte_set_add(&set, (uint8_t)"0123456789abcdef"[v]);
        byte_set_add(&set, (uint8_t)"0123456789ABCDEF"[v]);
    }
    return expr_bytes(x, &set);
}

// \uXXXX for the 16-bit values [from, to], without the backslash.
static expr_id hex_range(struct exprs *x, uint32_t from, uint32_t to) {
    uint32_t lo[4], hi[4];
    for (int i = 0; i < 4; i++) {
        lo[i] = from >> (12 - 4 * i) & 15;
        hi[i] = to >> (12 - 4 * i) & 15;
    }
    return expr_cat(x, expr_byte(x, 'u'), sequences(x, hex_digit, lo, hi, 4, 0, 15));
}

// Surrogate pairs for [from, to] above the BMP, without the first backslash.
static expr_id pair_range(struct exprs *x, uint32_t from, uint32_t to) {
    from -= 0x10000;
    to -= 0x10000;
    expr_id parts[3], slash = expr_byte(x, '\\');
    size_t n = 0;
    uint32_t h0 = from >> 10, h1 = to >> 10;
#define PAIR(a, b, c, d)                                                                           \
    expr_cat(x, hex_range(x, 0xD800 + (a), 0xD800 + (b)),                                          \
             expr_cat(x, slash, hex_range(x, 0xDC00 + (c), 0xDC00 + (d))))
    if (h0 == h1) {
        parts[n++] = PAIR(h0, h0, from & 0x3FF, to & 0x3FF);
    } else {
        parts[n++] = PAIR(h0, h0, from & 0x3FF, 0x3FF);
        parts[n++] = PAIR(h1, h1, 0, to & 0x3FF);
        if (h0 + 1 <= h1 - 1)
            parts[n++] = PAIR(h0 + 1, h1 - 1, 0, 0x3FF);
    }
#undef PAIR
    return expr_or(x, parts, n);
}

struct parts {
    expr_id *ids;
    size_t n, capacity;
    bool failed;
};

static void add_part(struct parts *p, expr_id e) {
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 64;
        expr_id *ids = realloc(p->ids, capacity * sizeof *ids);
        if (!ids) {
            p->failed = true;
            return;
        }
        p->ids = ids;
        p->capacity = capacity;
    }
    p->ids[p->n++] = e;
}

// Call fn for the part of [from, to] inside [lo, hi].
static bool clip(struct char_range r, uint32_t lo, uint32_t hi, struct char_range *out) {
    out->from = r.from > lo ? r.from : lo;
    out->to = r.to < hi ? r.to : hi;
    return out->from <= out->to;
}

static expr_id finish(struct exprs *x, struct parts *p) {
    expr_id e = p->failed ? EXPR_NONE : expr_or(x, p->ids, p->n);
    if (p->failed)
        exprs_fail(x, "memory");
    free(p->ids);
    return e;
}

static expr_id spell_plain(struct exprs *x, const struct char_set *set) {
    struct parts p = {0};
    struct char_range r;
    for (uint32_t i = 0; i < set->n; i++) {
        if (clip(set->ranges[i], 0, SURROGATE_FROM - 1, &r))
            add_part(&p, utf8_range(x, r.from, r.to));
        if (clip(set->ranges[i], SURROGATE_TO + 1, CODE_POINT_MAX, &r))
            add_part(&p, utf8_range(x, r.from, r.to));
    }
    return finish(x, &p);
}

static expr_id spell_json(struct exprs *x, const struct char_set *set) {
    static const struct {
        char code, letter;
    } SHORT[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'\b', 'b'},
                 {'\f', 'f'}, {'\n', 'n'},  {'\r', 'r'}, {'\t', 't'}};
    struct parts plain = {0}, escaped = {0};
    struct char_range r;
    struct byte_set letters = {0};
    for (size_t i = 0; i < sizeof SHORT / sizeof *SHORT; i++)
        if (char_set_has(set, (uint8_t)SHORT[i].code))
            byte_set_add(&letters, (uint8_t)SHORT[i].letter);
    add_part(&escaped, expr_bytes(x, &letters));
    for (uint32_t i = 0; i < set->n; i++) {
        static const struct char_range RAW[] = {{0x20, 0x21},
                                                {0x23, 0x5B},
                                                {0x5D, SURROGATE_FROM - 1},
                                                {SURROGATE_TO + 1, CODE_POINT_MAX}};
        static const struct char_range HEX[] = {
            {0, 0x1F}, {0x80, SURROGATE_FROM - 1}, {SURROGATE_TO + 1, 0xFFFF}};
        for (size_t k = 0; k < 4; k++)
            if (clip(set->ranges[i], RAW[k].from, RAW[k].to, &r))
                add_part(&plain, utf8_range(x, r.from, r.to));
        for (size_t k = 0; k < 3; k++)
            if (clip(set->ranges[i], HEX[k].from, HEX[k].to, &r))
                add_part(&escaped, hex_range(x, r.from, r.to));
        if (clip(set->ranges[i], 0x10000, CODE_POINT_MAX, &r))
            add_part(&escaped, pair_range(x, r.from, r.to));
    }
    expr_id after_slash = finish(x, &escaped);
    add_part(&plain, expr_cat(x, expr_byte(x, '\\'), after_slash));
    return finish(x, &plain);
}

expr_id char_set_expr(struct exprs *x, const struct char_set *set, enum spelling spelling) {
    if (set->failed) {
        exprs_fail(x, "memory");
        return EXPR_NONE;
    }
    return spelling == SPELL_PLAIN ? spell_plain(x, set) : spell_json(x, set);
}

expr_id char_any(struct exprs *x, enum spelling spelling) {
    struct char_range all = {0, CODE_POINT_MAX};
    return char_set_expr(x, &(struct char_set){.ranges = &all, .n = 1}, spelling);
}

expr_id char_any_json_loose(struct exprs *x) {
    expr_id needless = expr_cat(x, expr_byte(x, '\\'), hex_range(x, 0x20, 0x7F));
    return expr_or2(x, char_any(x, SPELL_JSON), needless);
}

expr_id char_text(struct exprs *x, struct str text, enum spelling spelling) {
    if (spelling == SPELL_PLAIN)
        return expr_text(x, text);
    bool plain = true; // nothing to escape: the usual case
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.data[i];
        plain &= c >= 0x20 && c < 0x80 && c != '"' && c != '\\' && c != '/';
    }
    if (plain)
        return expr_text(x, text);
    // From the last character to the first, so that the chain is built once.
    expr_id all = EXPR_EPS;
    for (size_t end = text.n; end > 0;) {
        size_t from = end - 1;
        while (from > 0 && ((unsigned char)text.data[from] & 0xC0) == 0x80 && end - from < 4)
            from--;
        size_t pos = from;
        uint32_t c = utf8_next(text, &pos);
        if (c == UTF8_INVALID || pos != end) {
            from = end - 1;
            all = expr_cat(x, expr_byte(x, (uint8_t)text.data[from]), all);
        } else {
            struct char_range one = {c, c};
            struct char_set set = {.ranges = &one, .n = 1};
            all = expr_cat(x, char_set_expr(x, &set, spelling), all);
        }
        end = from;
    }
    return all;
}
