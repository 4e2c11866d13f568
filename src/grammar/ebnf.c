#include "grammar/ebnf.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/utf8.h"
#include "grammar/charset.h"
#include "grammar/regex.h"

enum { EBNF_RULES_MAX = 8192, EBNF_DEPTH_MAX = 200, EBNF_REPEAT_MAX = 100000 };

enum part_kind { PART_REGULAR, PART_RULE, PART_SEQUENCE, PART_CHOICE, PART_REPEAT };

struct part {
    enum part_kind kind;
    expr_id e;         // PART_REGULAR
    uint32_t rule;     // PART_RULE
    uint32_t min, max; // PART_REPEAT
    struct part *child, *next;
};

struct rule {
    struct str name;
    struct part *body; // NULL until its definition was read
    uint32_t line;     // where it is first mentioned
    bool regular, nullable, resolved;
    uint8_t colour; // of the searches
    uint32_t call;  // its rule in the pool
    expr_id e;
};

struct ebnf {
    struct exprs *x;
    struct arena arena;
    struct rule *rules;
    uint32_t n_rules, capacity;
    expr_id root;
    // reading
    struct str in;
    size_t pos;
    uint32_t line, depth;
    struct err *err;
};

static void *bad(struct ebnf *g, const char *what) {
    if (g->err->code == ERR_OK)
        err_set(g->err, ERR_INVALID, "grammar: line %u: %s", g->line, what);
    return NULL;
}

static int peek(const struct ebnf *g) {
    return g->pos < g->in.n ? (unsigned char)g->in.data[g->pos] : -1;
}

static void skip_space(struct ebnf *g) {
    for (int c; (c = peek(g)) >= 0;) {
        if (c == '#') {
            while ((c = peek(g)) >= 0 && c != '\n')
                g->pos++;
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            g->line += c == '\n';
            g->pos++;
        } else {
            return;
        }
    }
}

static bool is_name(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_' || c == '-' || c == '.';
}

static struct str peek_name(const struct ebnf *g) {
    size_t end = g->pos;
    while (end < g->in.n && is_name((unsigned char)g->in.data[end]))
        end++;
    return str_slice(g->in, g->pos, end);
}

// Does a rule begin here?
static bool at_definition(struct ebnf *g) {
    struct str name = peek_name(g);
    if (name.n == 0)
        return false;
    size_t pos = g->pos;
    uint32_t line = g->line;
    g->pos += name.n;
    skip_space(g);
    bool yes = str_starts(str_slice(g->in, g->pos, g->in.n), STR("::="));
    g->pos = pos;
    g->line = line;
    return yes;
}

static uint32_t rule_named(struct ebnf *g, struct str name) {
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (str_eq(g->rules[i].name, name))
            return i;
    if (g->n_rules == g->capacity) {
        uint32_t capacity = g->capacity ? g->capacity * 2 : 32;
        struct rule *rules = realloc(g->rules, capacity * sizeof *rules);
        if (!rules || capacity > EBNF_RULES_MAX) {
            if (rules)
                g->rules = rules;
            bad(g, "too many rules");
            return 0;
        }
        g->rules = rules;
        g->capacity = capacity;
    }
    struct str copy;
    if (!arena_copy(&g->arena, name, &copy)) {
        bad(g, "out of memory");
        return 0;
    }
    g->rules[g->n_rules] = (struct rule){.name = copy, .line = g->line};
    return g->n_rules++;
}

static struct part *part_new(struct ebnf *g, enum part_kind kind) {
    struct part *part = arena_new(&g->arena, struct part);
    if (!part)
        return bad(g, "out of memory");
    part->kind = kind;
    return part;
}

static struct part *regular(struct ebnf *g, expr_id e) {
    struct part *part = part_new(g, PART_REGULAR);
    if (part)
        part->e = e;
    return part;
}

static bool take_hex(struct ebnf *g, size_t n, uint32_t *out) {
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        int c = peek(g), v = c >= '0' && c <= '9'                 ? c - '0'
                             : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                                  : -1;
        if (v < 0)
            return bad(g, "an escape with too few hex digits"), false;
        *out = *out << 4 | (uint32_t)v;
        g->pos++;
    }
    return true;
}

// One character of a literal or class, escapes resolved. *byte: a raw byte (\xHH above 7F in a literal).
static bool take_char(struct ebnf *g, uint32_t *out) {
    if (peek(g) != '\\') {
        g->line += peek(g) == '\n';
        *out = utf8_next(g->in, &g->pos);
        if (*out == UTF8_INVALID)
            return bad(g, "ill-formed UTF-8"), false;
        return true;
    }
    g->pos++;
    int c = peek(g);
    if (c < 0)
        return bad(g, "a lone backslash"), false;
    g->pos++;
    switch (c) {
    case 'n':
        *out = '\n';
        return true;
    case 'r':
        *out = '\r';
        return true;
    case 't':
        *out = '\t';
        return true;
    case 'x':
        return take_hex(g, 2, out);
    case 'u':
        return take_hex(g, 4, out);
    case 'U':
        return take_hex(g, 8, out);
    default:
        if (is_name(c) && c != '-' && c != '.' && c != '_')
            return bad(g, "an unknown escape"), false;
        *out = (uint32_t)c;
        return true;
    }
}

static struct part *parse_literal(struct ebnf *g, int quote) {
    struct strbuf text = {0};
    g->pos++;
    while (peek(g) >= 0 && peek(g) != quote) {
        uint32_t c;
        if (!take_char(g, &c)) {
            strbuf_deinit(&text);
            return NULL;
        }
        strbuf_code_point(&text, c);
    }
    struct part *part = NULL;
    if (peek(g) != quote || text.failed)
        bad(g, text.failed ? "out of memory" : "a text without its closing quote");
    else
        part = regular(g, expr_text(g->x, strbuf_str(&text)));
    g->pos++;
    strbuf_deinit(&text);
    return part;
}

static struct part *parse_class(struct ebnf *g) {
    struct char_set set = {0};
    g->pos++;
    bool negated = peek(g) == '^';
    g->pos += negated;
    bool ok = true;
    while (ok && peek(g) >= 0 && peek(g) != ']') {
        uint32_t from, to;
        ok = take_char(g, &from);
        to = from;
        if (ok && peek(g) == '-' && g->pos + 1 < g->in.n && g->in.data[g->pos + 1] != ']') {
            g->pos++;
            ok = take_char(g, &to);
        }
        if (ok && from > to) {
            bad(g, "a range out of order");
            ok = false;
        }
        if (ok)
            char_set_add(&set, from, to);
    }
    struct part *part = NULL;
    if (ok && peek(g) != ']') {
        bad(g, "[ without ]");
    } else if (ok) {
        g->pos++;
        char_set_normalize(&set);
        if (negated)
            char_set_invert(&set);
        part = regular(g, char_set_expr(g->x, &set, SPELL_PLAIN));
    }
    char_set_deinit(&set);
    return part;
}

static struct part *parse_regex(struct ebnf *g) {
    size_t from = ++g->pos;
    for (bool in_class = false; peek(g) >= 0 && (in_class || peek(g) != '/'); g->pos++) {
        if (peek(g) == '\n')
            break;
        if (peek(g) == '\\')
            g->pos++;
        else if (peek(g) == '[')
            in_class = true;
        else if (peek(g) == ']')
            in_class = false;
    }
    if (peek(g) != '/')
        return bad(g, "/ without /");
    struct str pattern = str_slice(g->in, from, g->pos++);
    struct err err = {0};
    expr_id e = regex_expr(g->x, pattern, SPELL_PLAIN, REGEX_WHOLE, &err);
    if (err.code != ERR_OK && g->err->code == ERR_OK)
        err_set(g->err, err.code, "grammar: line %u: %s", g->line, err.message);
    return err.code == ERR_OK ? regular(g, e) : NULL;
}

static struct part *parse_choice(struct ebnf *g);

static bool take_number(struct ebnf *g, uint32_t *out) {
    if (peek(g) < '0' || peek(g) > '9')
        return false;
    uint64_t n = 0;
    for (; peek(g) >= '0' && peek(g) <= '9'; g->pos++)
        n = n > EBNF_REPEAT_MAX ? n : n * 10 + (uint64_t)(peek(g) - '0');
    if (n > EBNF_REPEAT_MAX)
        bad(g, "a repeat count out of range");
    *out = (uint32_t)n;
    return true;
}

static struct part *parse_item(struct ebnf *g) {
    int c = peek(g);
    struct part *part = NULL;
    if (c == '"' || c == '\'') {
        part = parse_literal(g, c);
    } else if (c == '[') {
        part = parse_class(g);
    } else if (c == '/') {
        part = parse_regex(g);
    } else if (c == '.') {
        g->pos++;
        part = regular(g, char_any(g->x, SPELL_PLAIN));
    } else if (c == '(') {
        g->pos++;
        part = parse_choice(g);
        if (!part)
            return NULL;
        skip_space(g);
        if (peek(g) != ')')
            return bad(g, "( without )");
        g->pos++;
    } else if (is_name(c)) {
        struct str name = peek_name(g);
        g->pos += name.n;
        part = part_new(g, PART_RULE);
        if (part)
            part->rule = rule_named(g, name);
    } else {
        return bad(g, "this begins no text, class, group or rule name");
    }
    while (part) {
        uint32_t min = 0, max = EXPR_INF;
        size_t pos = g->pos;
        uint32_t line = g->line;
        skip_space(g);
        c = peek(g);
        if (c == '*') {
        } else if (c == '+') {
            min = 1;
        } else if (c == '?') {
            max = 1;
        } else if (c == '{') {
            g->pos++;
            skip_space(g);
            bool has_min = take_number(g, &min);
            skip_space(g);
            if (peek(g) == ',') {
                g->pos++;
                skip_space(g);
                if (!take_number(g, &max) && !has_min)
                    return bad(g, "{} needs a number");
                skip_space(g);
            } else {
                max = min;
                if (!has_min)
                    return bad(g, "{} needs a number");
            }
            if (peek(g) != '}' || min > max)
                return bad(g, "a repeat must be {m}, {m,} or {m,n}");
        } else {
            g->pos = pos;
            g->line = line;
            return part;
        }
        g->pos++;
        struct part *repeat = part_new(g, PART_REPEAT);
        if (!repeat)
            return NULL;
        repeat->child = part;
        repeat->min = min;
        repeat->max = max;
        part = repeat;
    }
    return NULL;
}

static struct part *parse_sequence(struct ebnf *g) {
    struct part *sequence = part_new(g, PART_SEQUENCE);
    struct part **end = sequence ? &sequence->child : NULL;
    while (sequence) {
        skip_space(g);
        int c = peek(g);
        if (c < 0 || c == '|' || c == ')' || at_definition(g))
            return sequence;
        *end = parse_item(g);
        if (!*end)
            return NULL;
        end = &(*end)->next;
    }
    return NULL;
}

static struct part *parse_choice(struct ebnf *g) {
    if (++g->depth > EBNF_DEPTH_MAX)
        return bad(g, "groups nested too deeply");
    struct part *choice = part_new(g, PART_CHOICE);
    struct part **end = choice ? &choice->child : NULL;
    while (choice) {
        *end = parse_sequence(g);
        if (!*end)
            return NULL;
        end = &(*end)->next;
        skip_space(g);
        if (peek(g) != '|')
            break;
        g->pos++;
    }
    g->depth--;
    return choice;
}

static bool parse_rules(struct ebnf *g) {
    skip_space(g);
    while (peek(g) >= 0) {
        if (!at_definition(g))
            return bad(g, "expected a rule: name ::= ..."), false;
        struct str name = peek_name(g);
        g->pos += name.n;
        skip_space(g);
        g->pos += 3;
        uint32_t rule = rule_named(g, name);
        if (g->err->code != ERR_OK)
            return false;
        if (g->rules[rule].body)
            return bad(g, "a rule of this name was defined before"), false;
        struct part *body = parse_choice(g);
        if (!body)
            return false;
        if (peek(g) == ')')
            return bad(g, ") without ("), false;
        g->rules[rule].body = body;
        skip_space(g);
    }
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (!g->rules[i].body) {
            err_set(g->err, ERR_INVALID, "grammar: line %u: the rule \"%.*s\" is not defined",
                    g->rules[i].line, (int)g->rules[i].name.n, g->rules[i].name.data);
            return false;
        }
    return true;
}

// ---- analysis ----------------------------------------------------------------------------------

static bool part_nullable(const struct ebnf *g, const struct part *p) {
    switch (p->kind) {
    case PART_REGULAR:
        return expr_nullable(g->x, p->e);
    case PART_RULE:
        return g->rules[p->rule].nullable;
    case PART_REPEAT:
        return p->min == 0 || part_nullable(g, p->child);
    case PART_SEQUENCE:
        for (const struct part *c = p->child; c; c = c->next)
            if (!part_nullable(g, c))
                return false;
        return true;
    case PART_CHOICE:
        for (const struct part *c = p->child; c; c = c->next)
            if (part_nullable(g, c))
                return true;
        return false;
    }
    return false;
}

static void find_nullable(struct ebnf *g) {
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < g->n_rules; i++)
            if (!g->rules[i].nullable && part_nullable(g, g->rules[i].body))
                changed = g->rules[i].nullable = true;
    }
}

// Is a rule reachable from itself? Colours: 0 new, 1 on the path, 2 done.
static bool rule_regular(struct ebnf *g, uint32_t rule, uint32_t depth);

static bool part_regular(struct ebnf *g, const struct part *p, uint32_t depth) {
    if (p->kind == PART_RULE)
        return rule_regular(g, p->rule, depth);
    bool all = true;
    for (const struct part *c = p->child; c; c = c->next)
        all = part_regular(g, c, depth) && all;
    return all;
}

static bool rule_regular(struct ebnf *g, uint32_t rule, uint32_t depth) {
    struct rule *r = &g->rules[rule];
    if (r->colour == 1 || depth > EBNF_RULES_MAX)
        return false; // leads back to itself
    if (r->colour == 0) {
        r->colour = 1;
        r->regular = part_regular(g, r->body, depth + 1);
        r->colour = 2;
    }
    return r->regular;
}

// A ::= A x | y  becomes  A ::= y x*.
static void rewrite_left_recursion(struct ebnf *g, uint32_t rule) {
    struct part *loops = NULL, **loops_end = &loops, *others = NULL, **others_end = &others;
    for (struct part *alt = g->rules[rule].body->child, *next; alt; alt = next) {
        next = alt->next;
        alt->next = NULL;
        struct part *first = alt->kind == PART_SEQUENCE ? alt->child : NULL;
        if (first && first->kind == PART_RULE && first->rule == rule) {
            alt->child = first->next;
            *loops_end = alt;
            loops_end = &alt->next;
        } else {
            *others_end = alt;
            others_end = &alt->next;
        }
    }
    g->rules[rule].body->child = others;
    if (!loops)
        return;
    struct part *sequence = part_new(g, PART_SEQUENCE), *choice = part_new(g, PART_CHOICE);
    struct part *repeat = part_new(g, PART_REPEAT), *first = part_new(g, PART_CHOICE);
    struct part *body = part_new(g, PART_CHOICE);
    if (!sequence || !choice || !repeat || !first || !body)
        return;
    first->child = others;
    choice->child = loops;
    repeat->child = choice;
    repeat->max = EXPR_INF;
    sequence->child = first;
    first->next = repeat;
    body->child = sequence;
    g->rules[rule].body = body;
}

// Do the leftmost calls of a rule come back to it?
static bool left_search(struct ebnf *g, const struct part *p, uint32_t depth);

static bool left_search_rule(struct ebnf *g, uint32_t rule, uint32_t depth) {
    struct rule *r = &g->rules[rule];
    if (r->regular || r->colour == 2)
        return true;
    if (r->colour == 1 || depth > EBNF_RULES_MAX) {
        if (g->err->code == ERR_OK)
            err_set(g->err, ERR_INVALID,
                    "grammar: the rule \"%.*s\" comes back to itself before it has read anything "
                    "(left recursion through other rules): write it as a repetition",
                    (int)r->name.n, r->name.data);
        return false;
    }
    r->colour = 1;
    bool ok = left_search(g, r->body, depth + 1);
    r->colour = 2;
    return ok;
}

static bool left_search(struct ebnf *g, const struct part *p, uint32_t depth) {
    if (p->kind == PART_RULE)
        return left_search_rule(g, p->rule, depth);
    for (const struct part *c = p->child; c; c = c->next) {
        if (!left_search(g, c, depth))
            return false;
        if (p->kind == PART_SEQUENCE && !part_nullable(g, c))
            break;
    }
    return true;
}

// ---- expressions -------------------------------------------------------------------------------

static expr_id rule_expr(struct ebnf *g, uint32_t rule, bool inside_regular);

static expr_id part_expr(struct ebnf *g, const struct part *p, bool inside_regular) {
    struct exprs *x = g->x;
    switch (p->kind) {
    case PART_REGULAR:
        return p->e;
    case PART_RULE:
        return rule_expr(g, p->rule, inside_regular);
    case PART_REPEAT:
        return expr_rep(x, part_expr(g, p->child, inside_regular), p->min, p->max);
    case PART_SEQUENCE:
    case PART_CHOICE:
        break;
    }
    size_t n = 0, i = 0;
    for (const struct part *c = p->child; c; c = c->next)
        n++;
    expr_id *parts = malloc((n + 1) * sizeof *parts);
    if (!parts) {
        exprs_fail(x, "memory");
        return EXPR_NONE;
    }
    for (const struct part *c = p->child; c; c = c->next)
        parts[i++] = part_expr(g, c, inside_regular);
    expr_id all = EXPR_EPS;
    if (p->kind == PART_CHOICE) {
        all = expr_or(x, parts, n);
    } else {
        // Beside calls, runs of regular parts are read by one automaton each.
        for (size_t k = n; k > 0; k--) {
            expr_id part = parts[k - 1];
            if (!inside_regular && expr_regular(x, part)) {
                while (k > 1 && expr_regular(x, parts[k - 2]) &&
                       expr_kind_of(x, parts[k - 2]) != EXPR_KIND_TERM)
                    part = expr_cat(x, parts[--k - 1], part);
                part = expr_term(x, part);
            }
            all = expr_cat(x, part, all);
        }
    }
    free(parts);
    return all;
}

static expr_id rule_body(void *user, uint32_t rule) {
    struct ebnf *g = user;
    return part_expr(g, g->rules[rule].body, false);
}

static expr_id rule_expr(struct ebnf *g, uint32_t rule, bool inside_regular) {
    struct rule *r = &g->rules[rule];
    if (!r->resolved) {
        r->resolved = true;
        if (r->regular)
            r->e = part_expr(g, r->body, true);
        else
            r->call = expr_rule(g->x, rule_body, g, rule);
    }
    if (!r->regular)
        return expr_call(g->x, r->call);
    return inside_regular ? r->e : expr_term(g->x, r->e);
}

struct ebnf *ebnf_create(struct exprs *x, struct str text, struct err *err) {
    err_clear(err);
    struct ebnf *g = calloc(1, sizeof *g);
    if (!g) {
        err_set(err, ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    g->x = x;
    g->in = text;
    g->line = 1;
    g->err = err;
    if (parse_rules(g)) {
        uint32_t root = UINT32_MAX;
        for (uint32_t i = 0; i < g->n_rules; i++)
            if (str_eq_c(g->rules[i].name, "root"))
                root = i;
        if (root == UINT32_MAX)
            err_set(err, ERR_INVALID, "grammar: there is no rule named \"root\"");
        for (uint32_t i = 0; i < g->n_rules; i++)
            rewrite_left_recursion(g, i);
        if (err->code == ERR_OK) {
            find_nullable(g);
            for (uint32_t i = 0; i < g->n_rules; i++) {
                // The search marks a rule regular only if nothing below leads back: start afresh.
                for (uint32_t k = 0; k < g->n_rules; k++)
                    if (g->rules[k].colour != 2)
                        g->rules[k].colour = 0;
                rule_regular(g, i, 0);
            }
            for (uint32_t i = 0; i < g->n_rules; i++)
                g->rules[i].colour = 0;
            for (uint32_t i = 0; i < g->n_rules && err->code == ERR_OK; i++)
                left_search_rule(g, i, 0);
        }
        if (err->code == ERR_OK)
            g->root = rule_expr(g, root, false);
    }
    if (err->code == ERR_OK)
        return g;
    ebnf_destroy(g);
    return NULL;
}

void ebnf_destroy(struct ebnf *g) {
    if (!g)
        return;
    free(g->rules);
    arena_deinit(&g->arena);
    free(g);
}

expr_id ebnf_root(const struct ebnf *g) {
    return g->root;
}
