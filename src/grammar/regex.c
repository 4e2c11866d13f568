#include "grammar/regex.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/utf8.h"

enum { REGEX_BYTES_MAX = 65536, REGEX_DEPTH_MAX = 200, REGEX_REPEAT_MAX = 100000 };

enum re_kind { RE_SET, RE_CAT, RE_ALT, RE_REP, RE_BOL, RE_EOL, RE_LOOK };

struct re {
    enum re_kind kind;
    bool negative;       // RE_LOOK
    bool asserts;        // holds BOL, EOL or LOOK
    bool has_bol;        // holds BOL
    bool maybe_empty;    // can match without consuming
    bool always_empty;   // cannot consume
    uint32_t min, max;   // RE_REP
    struct char_set set; // RE_SET
    struct re *child;    // RE_REP, RE_LOOK; first operand of RE_CAT and RE_ALT
    struct re *next;     // next operand
    struct re *all;      // every node, to free the sets
};

struct parser {
    struct exprs *x;
    struct arena arena;
    struct str in;
    size_t pos;
    uint32_t depth;
    struct re *nodes;
    struct err *err;
    enum spelling spelling;
    expr_id any; // any one character
};

static struct re *node_new(struct parser *p, enum re_kind kind) {
    struct re *node = arena_new(&p->arena, struct re);
    if (!node) {
        err_set(p->err, ERR_NOMEM, "regex: out of memory");
        return NULL;
    }
    node->kind = kind;
    node->all = p->nodes;
    p->nodes = node;
    return node;
}

static struct re *bad(struct parser *p, const char *what) {
    if (p->err->code == ERR_OK)
        err_set(p->err, ERR_INVALID, "regex: %s at byte %zu of \"%.*s\"", what, p->pos,
                (int)(p->in.n < 200 ? p->in.n : 200), p->in.data);
    return NULL;
}

static struct re *unsupported(struct parser *p, const char *what) {
    if (p->err->code == ERR_OK)
        err_set(p->err, ERR_UNSUPPORTED, "regex: %s at byte %zu of \"%.*s\" cannot be enforced",
                what, p->pos, (int)(p->in.n < 200 ? p->in.n : 200), p->in.data);
    return NULL;
}

static int peek(const struct parser *p) {
    return p->pos < p->in.n ? (unsigned char)p->in.data[p->pos] : -1;
}
static bool take(struct parser *p, const char *text) {
    struct str rest = str_slice(p->in, p->pos, p->in.n);
    if (!str_starts(rest, str_from(text)))
        return false;
    p->pos += strlen(text);
    return true;
}

static void add_class(struct char_set *set, int letter) {
    struct char_set one = {0};
    switch (letter | 0x20) {
    case 'd':
        char_set_add(&one, '0', '9');
        break;
    case 'w':
        char_set_add(&one, '0', '9');
        char_set_add(&one, 'A', 'Z');
        char_set_add(&one, 'a', 'z');
        char_set_add(&one, '_', '_');
        break;
    default: // s: ECMA-262 WhiteSpace and LineTerminator
        char_set_add(&one, 9, 13);
        char_set_add(&one, ' ', ' ');
        char_set_add(&one, 0xA0, 0xA0);
        char_set_add(&one, 0x1680, 0x1680);
        char_set_add(&one, 0x2000, 0x200A);
        char_set_add(&one, 0x2028, 0x2029);
        char_set_add(&one, 0x202F, 0x202F);
        char_set_add(&one, 0x205F, 0x205F);
        char_set_add(&one, 0x3000, 0x3000);
        char_set_add(&one, 0xFEFF, 0xFEFF);
    }
    if (!(letter & 0x20))
        char_set_invert(&one);
    char_set_add_set(set, &one);
    char_set_deinit(&one);
}

static int hex_value(int c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// n hex digits at the position; false (and nothing consumed) if they are not there.
static bool take_hex(struct parser *p, size_t n, uint32_t *out) {
    uint32_t v = 0;
    if (p->in.n - p->pos < n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int digit = hex_value((unsigned char)p->in.data[p->pos + i]);
        if (digit < 0)
            return false;
        v = v << 4 | (uint32_t)digit;
    }
    p->pos += n;
    *out = v;
    return true;
}

// What follows a backslash, in a class or outside: a set, or a single character in *one (else
// *one is UINT32_MAX). False on error.
static bool parse_escape(struct parser *p, bool in_class, struct char_set *set, uint32_t *one) {
    int c = peek(p);
    *one = UINT32_MAX;
    if (c < 0)
        return bad(p, "a lone backslash"), false;
    if (strchr("dDwWsS", c)) {
        p->pos++;
        add_class(set, c);
        return true;
    }
    if (c == 'p' || c == 'P') {
        p->pos++;
        if (!take(p, "{"))
            return bad(p, "\\p without {...}"), false;
        size_t end = str_find(p->in, STR("}"), p->pos);
        if (end == SIZE_MAX)
            return bad(p, "\\p{ without }"), false;
        struct char_set property = {0};
        if (!char_set_add_property(&property, str_slice(p->in, p->pos, end)))
            return unsupported(p, "this Unicode property"), false;
        p->pos = end + 1;
        if (c == 'P')
            char_set_invert(&property);
        char_set_add_set(set, &property);
        char_set_deinit(&property);
        return true;
    }
    if (!in_class && (c == 'b' || c == 'B'))
        return unsupported(p, "a word boundary"), false;
    if (!in_class && c >= '1' && c <= '9')
        return unsupported(p, "a backreference"), false;
    if (!in_class && c == 'k')
        return unsupported(p, "a backreference"), false;
    if (!in_class && (c == 'A' || c == 'Z' || c == 'z' || c == 'G'))
        return unsupported(p, "this anchor (write ^ and $)"), false;
    p->pos++;
    static const char FROM[] = "tnrvf0", TO[] = "\t\n\r\v\f";
    const char *at = strchr(FROM, c);
    uint32_t v;
    if (at) {
        *one = (uint8_t)TO[at - FROM]; // the last is \0
    } else if (c == 'b') {
        *one = 8;
    } else if (c == 'c' && ((peek(p) | 0x20) >= 'a' && (peek(p) | 0x20) <= 'z')) {
        *one = (uint32_t)peek(p) & 31;
        p->pos++;
    } else if (c == 'x' && take_hex(p, 2, &v)) {
        *one = v;
    } else if (c == 'u' && peek(p) == '{') {
        size_t end = str_find(p->in, STR("}"), p->pos);
        size_t n = end == SIZE_MAX ? 0 : end - p->pos - 1;
        p->pos++;
        if (n < 1 || n > 6 || !take_hex(p, n, &v) || v > 0x10FFFF)
            return bad(p, "\\u{...} is not a code point"), false;
        p->pos++;
        *one = v;
    } else if (c == 'u' && take_hex(p, 4, &v)) {
        uint32_t low;
        size_t before = p->pos;
        if (v >= 0xD800 && v <= 0xDBFF && take(p, "\\u") && take_hex(p, 4, &low) &&
            low >= 0xDC00 && low <= 0xDFFF)
            v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        else
            p->pos = before;
        *one = v;
    } else if (c >= 0x80) {
        p->pos--;
        *one = utf8_next(p->in, &p->pos);
    } else {
        *one = (uint32_t)c; // identity escape
    }
    return true;
}

static bool parse_class_item(struct parser *p, struct char_set *set, uint32_t *one) {
    if (take(p, "[:")) { // POSIX class names, as GBNF users and PCRE write them
        static const struct {
            const char *name;
            const char *ranges;
        } POSIX[] = {{"alpha", "AZaz"},   {"digit", "09"},     {"alnum", "AZaz09"},
                     {"upper", "AZ"},     {"lower", "az"},     {"xdigit", "09AFaf"},
                     {"space", "\t\r  "}, {"punct", "!/:@[`{~"}};
        for (size_t i = 0; i < sizeof POSIX / sizeof *POSIX; i++) {
            size_t before = p->pos;
            if (take(p, POSIX[i].name) && take(p, ":]")) {
                for (const char *r = POSIX[i].ranges; *r; r += 2)
                    char_set_add(set, (uint8_t)r[0], (uint8_t)r[1]);
                *one = UINT32_MAX;
                return true;
            }
            p->pos = before;
        }
        *one = '[';
        p->pos--;
        return true;
    }
    if (take(p, "\\"))
        return parse_escape(p, true, set, one);
    *one = utf8_next(p->in, &p->pos);
    if (*one == UTF8_INVALID)
        return bad(p, "ill-formed UTF-8"), false;
    return true;
}

static struct re *parse_class(struct parser *p) {
    struct re *node = node_new(p, RE_SET);
    if (!node)
        return NULL;
    bool negated = take(p, "^");
    for (;;) {
        if (peek(p) < 0)
            return bad(p, "[ without ]");
        if (take(p, "]"))
            break;
        uint32_t from, to;
        if (!parse_class_item(p, &node->set, &from))
            return NULL;
        size_t before = p->pos;
        if (take(p, "-") && peek(p) >= 0 && peek(p) != ']') {
            size_t n_before = node->set.n;
            if (!parse_class_item(p, &node->set, &to))
                return NULL;
            if (from != UINT32_MAX && to != UINT32_MAX) {
                if (from > to)
                    return bad(p, "a range out of order");
                char_set_add(&node->set, from, to);
                continue;
            }
            // "[\w-.]": the hyphen is itself; read what follows again.
            node->set.n = (uint32_t)n_before;
        }
        p->pos = before;
        if (from != UINT32_MAX)
            char_set_add(&node->set, from, from);
    }
    char_set_normalize(&node->set);
    if (negated)
        char_set_invert(&node->set);
    return node;
}

static struct re *parse_alternatives(struct parser *p);

static struct re *parse_group(struct parser *p) {
    struct re *look = NULL;
    if (take(p, "?")) {
        if (take(p, "=") || take(p, "!")) {
            look = node_new(p, RE_LOOK);
            if (!look)
                return NULL;
            look->negative = p->in.data[p->pos - 1] == '!';
        } else if (take(p, "<=") || take(p, "<!")) {
            return unsupported(p, "lookbehind");
        } else if (take(p, "<") || take(p, "P<")) {
            size_t end = str_find(p->in, STR(">"), p->pos);
            if (end == SIZE_MAX || end == p->pos)
                return bad(p, "a group name without >");
            p->pos = end + 1;
        } else if (!take(p, ":")) {
            return unsupported(p, "this kind of group");
        }
    }
    struct re *inner = parse_alternatives(p);
    if (!inner)
        return NULL;
    if (!take(p, ")"))
        return bad(p, "( without )");
    if (!look)
        return inner;
    look->child = inner;
    look->asserts = look->maybe_empty = look->always_empty = true;
    look->has_bol = inner->has_bol;
    return look;
}

// {m}, {m,}, {m,n}; otherwise the brace is itself.
static bool take_counts(struct parser *p, uint32_t *min, uint32_t *max, bool *error) {
    size_t i = p->pos + 1;
    uint64_t v[2] = {0, EXPR_INF};
    size_t digits[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        uint64_t n = 0;
        for (; i < p->in.n && p->in.data[i] >= '0' && p->in.data[i] <= '9'; i++, digits[k]++)
            n = n > REGEX_REPEAT_MAX ? n : n * 10 + (uint64_t)(p->in.data[i] - '0');
        if (digits[k])
            v[k] = n;
        if (k == 0 && i < p->in.n && p->in.data[i] == ',') {
            i++;
            continue;
        }
        if (k == 0)
            v[1] = v[0];
        break;
    }
    if (i >= p->in.n || p->in.data[i] != '}' || digits[0] == 0)
        return false;
    *error = v[0] > REGEX_REPEAT_MAX || (v[1] != EXPR_INF && v[1] > REGEX_REPEAT_MAX) ||
             v[0] > v[1];
    p->pos = i + 1;
    *min = (uint32_t)v[0];
    *max = (uint32_t)v[1];
    return true;
}

static struct re *parse_quantified(struct parser *p) {
    struct re *atom = NULL;
    int c = peek(p);
    if (take(p, "(")) {
        atom = parse_group(p);
    } else if (take(p, "[")) {
        atom = parse_class(p);
    } else if (take(p, "^")) {
        atom = node_new(p, RE_BOL);
        if (atom)
            atom->asserts = atom->has_bol = atom->maybe_empty = atom->always_empty = true;
    } else if (take(p, "$")) {
        atom = node_new(p, RE_EOL);
        if (atom)
            atom->asserts = atom->maybe_empty = atom->always_empty = true;
    } else if (c == '*' || c == '+' || c == '?') {
        return bad(p, "a quantifier with nothing before it");
    } else {
        atom = node_new(p, RE_SET);
        if (!atom)
            return NULL;
        uint32_t one = UINT32_MAX;
        if (take(p, ".")) {
            char_set_add(&atom->set, '\n', '\n');
            char_set_add(&atom->set, '\r', '\r');
            char_set_add(&atom->set, 0x2028, 0x2029);
            char_set_invert(&atom->set);
        } else if (take(p, "\\")) {
            if (!parse_escape(p, false, &atom->set, &one))
                return NULL;
        } else {
            one = utf8_next(p->in, &p->pos);
            if (one == UTF8_INVALID)
                return bad(p, "ill-formed UTF-8");
        }
        if (one != UINT32_MAX)
            char_set_add(&atom->set, one, one);
        char_set_normalize(&atom->set);
    }
    if (!atom)
        return NULL;
    for (;;) {
        uint32_t min = 0, max = EXPR_INF;
        bool error = false;
        if (take(p, "*")) {
        } else if (take(p, "+")) {
            min = 1;
        } else if (take(p, "?")) {
            max = 1;
        } else if (peek(p) != '{' || !take_counts(p, &min, &max, &error)) {
            return atom;
        }
        if (error)
            return bad(p, "a repeat count out of range");
        if (!take(p, "?") && peek(p) == '+')
            return unsupported(p, "a possessive quantifier");
        struct re *rep = node_new(p, RE_REP);
        if (!rep)
            return NULL;
        rep->child = atom;
        rep->min = min;
        rep->max = max;
        rep->asserts = atom->asserts;
        rep->has_bol = atom->has_bol;
        rep->maybe_empty = min == 0 || atom->maybe_empty;
        rep->always_empty = max == 0 || atom->always_empty;
        atom = rep;
    }
}

static struct re *parse_sequence(struct parser *p) {
    struct re *cat = node_new(p, RE_CAT);
    if (!cat)
        return NULL;
    cat->maybe_empty = cat->always_empty = true;
    struct re **end = &cat->child;
    while (peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        struct re *part = parse_quantified(p);
        if (!part)
            return NULL;
        cat->asserts |= part->asserts;
        cat->has_bol |= part->has_bol;
        cat->maybe_empty &= part->maybe_empty;
        cat->always_empty &= part->always_empty;
        // A node can be shared only by its own REP parents, so linking it here is safe.
        *end = part;
        end = &part->next;
    }
    return cat;
}

static struct re *parse_alternatives(struct parser *p) {
    if (++p->depth > REGEX_DEPTH_MAX)
        return bad(p, "groups nested too deeply");
    struct re *alt = node_new(p, RE_ALT);
    if (!alt)
        return NULL;
    alt->always_empty = true;
    struct re **end = &alt->child;
    do {
        struct re *part = parse_sequence(p);
        if (!part)
            return NULL;
        alt->asserts |= part->asserts;
        alt->has_bol |= part->has_bol;
        alt->maybe_empty |= part->maybe_empty;
        alt->always_empty &= part->always_empty;
        *end = part;
        end = &part->next;
    } while (take(p, "|"));
    p->depth--;
    return alt;
}

// ---- translation -------------------------------------------------------------------------------

// A part without assertions, by itself.
static expr_id plain(struct parser *p, const struct re *node) {
    switch (node->kind) {
    case RE_SET:
        return char_set_expr(p->x, &node->set, p->spelling);
    case RE_REP:
        return expr_rep(p->x, plain(p, node->child), node->min, node->max);
    case RE_CAT:
    case RE_ALT: {
        size_t n = 0;
        for (const struct re *c = node->child; c; c = c->next)
            n++;
        expr_id *parts = arena_array(&p->arena, expr_id, n);
        if (!parts) {
            err_set(p->err, ERR_NOMEM, "regex: out of memory");
            return EXPR_NONE;
        }
        n = 0;
        for (const struct re *c = node->child; c; c = c->next)
            parts[n++] = plain(p, c);
        return node->kind == RE_CAT ? expr_cat_n(p->x, parts, n) : expr_or(p->x, parts, n);
    }
    default:
        return EXPR_EPS;
    }
}

static expr_id any_text(struct parser *p) {
    return expr_rep(p->x, p->any, 0, EXPR_INF);
}

static expr_id translate(struct parser *p, const struct re *node, expr_id then, bool start);

static expr_id translate_sequence(struct parser *p, const struct re *part, expr_id then,
                                  bool start) {
    if (!part)
        return then;
    if (part->always_empty || !start)
        return translate(p, part, translate_sequence(p, part->next, then, start), start);
    expr_id rest = translate_sequence(p, part->next, then, false);
    expr_id all = translate(p, part, rest, true);
    bool bol_later = false;
    for (const struct re *c = part->next; c; c = c->next)
        bol_later |= c->has_bol;
    if (part->maybe_empty && bol_later) // ^ still holds if this part matched nothing
        all = expr_or2(p->x, all, translate_sequence(p, part->next, then, true));
    return all;
}

// What `node` matches followed by `then`, which reaches to the end of the text: that is what lets
// $ and lookahead see everything that follows. `start`: nothing lies before.
static expr_id translate(struct parser *p, const struct re *node, expr_id then, bool start) {
    if (p->err->code != ERR_OK || exprs_failed(p->x))
        return EXPR_NONE;
    if (!node->asserts)
        return expr_cat(p->x, plain(p, node), then);
    switch (node->kind) {
    case RE_BOL:
        return start ? then : EXPR_NONE;
    case RE_EOL:
        return expr_nullable(p->x, then) ? EXPR_EPS : EXPR_NONE;
    case RE_LOOK: {
        expr_id ahead = translate(p, node->child, any_text(p), start);
        return expr_and2(p->x, then, node->negative ? expr_not(p->x, ahead) : ahead);
    }
    case RE_ALT: {
        expr_id all = EXPR_NONE;
        for (const struct re *c = node->child; c; c = c->next)
            all = expr_or2(p->x, all, translate(p, c, then, start));
        return all;
    }
    case RE_CAT:
        return translate_sequence(p, node->child, then, start);
    case RE_REP: {
        if (node->always_empty || node->max == 1) {
            expr_id once = translate(p, node->child, then, start);
            return node->min ? once : expr_or2(p->x, once, then);
        }
        if (node->max > 32) {
            unsupported(p, "an assertion under a large quantifier");
            return EXPR_NONE;
        }
        expr_id all = node->min == 0 ? then : EXPR_NONE;
        // Unrolled: k copies, the innermost first; only the first copy can be at the start.
        expr_id chain = then;
        for (uint32_t k = 1; k <= node->max; k++) {
            if (k >= node->min)
                all = expr_or2(p->x, all, translate(p, node->child, chain, start));
            chain = translate(p, node->child, chain, false);
        }
        return all;
    }
    default:
        return EXPR_NONE;
    }
}

expr_id regex_expr(struct exprs *x, struct str pattern, enum spelling spelling,
                   enum regex_mode mode, struct err *err) {
    err_clear(err);
    struct parser p = {.x = x, .in = pattern, .err = err, .spelling = spelling};
    if (pattern.n > REGEX_BYTES_MAX) {
        err_set(err, ERR_INVALID, "regex: %zu bytes are more than the limit of %d", pattern.n,
                REGEX_BYTES_MAX);
        return EXPR_NONE;
    }
    expr_id result = EXPR_NONE;
    struct re *tree = parse_alternatives(&p);
    if (tree && p.pos < pattern.n)
        tree = bad(&p, ") without (");
    if (tree) {
        p.any = char_any(x, spelling);
        if (mode == REGEX_WHOLE) {
            result = translate(&p, tree, EXPR_EPS, true);
        } else {
            expr_id all = any_text(&p);
            expr_id inside = translate(&p, tree, all, false);
            if (!tree->asserts && tree->maybe_empty)
                result = all; // the empty match is everywhere
            else
                result = expr_cat(x, all, inside);
            if (tree->has_bol)
                result = expr_or2(x, translate(&p, tree, all, true),
                                  expr_cat(x, expr_rep(x, p.any, 1, EXPR_INF), inside));
        }
    }
    for (struct re *node = p.nodes; node; node = node->all)
        char_set_deinit(&node->set);
    arena_deinit(&p.arena);
    if (err->code != ERR_OK)
        return EXPR_NONE;
    return result;
}
