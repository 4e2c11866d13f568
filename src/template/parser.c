#include "template/parser.h"

#include <errno.h>
#include <stdlib.h>

#include "template/builtins.h"
#include "template/methods.h"
#include "template/number.h"

struct parser {
    struct template *template;
    struct arena *arena;
    struct err *err;
    const struct token *token; // the current one
    uint32_t n_statements, n_brackets, n_loops;
    bool soft; // inside if: an unknown filter or test fails only when it is reached
    const struct token *unknown; // the first unknown filter or test elsewhere
    const char *unknown_kind;
};

// A list of pointers that grows in the arena.
struct nodes {
    struct node **items;
    uint32_t n, capacity;
};

static struct node *expression(struct parser *p, bool with_condition);
static struct node *primary(struct parser *p);
static struct node *postfix(struct parser *p, struct node *node);
static struct node *unary(struct parser *p, bool with_filter);
static bool body_until(struct parser *p, struct body *out, const char *const *ends);

static struct node *fail_at(struct parser *p, const struct token *token, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static struct node *fail_at(struct parser *p, const struct token *token, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    syntax_error(p->err, p->template->source, token->pos, "%s", text);
    return NULL;
}

static void *out_of_memory(struct parser *p) {
    err_set(p->err, ERR_NOMEM, "template: out of memory");
    return NULL;
}

static struct str describe(const struct token *token) {
    switch ((enum token_kind)token->kind) {
    case T_EOF:
        return STR("end of template");
    case T_DATA:
        return STR("template data");
    case T_VARIABLE_BEGIN:
        return STR("begin of print statement");
    case T_VARIABLE_END:
        return STR("end of print statement");
    case T_BLOCK_BEGIN:
        return STR("begin of statement block");
    case T_BLOCK_END:
        return STR("end of statement block");
    case T_STRING:
        return STR("string");
    case T_INTEGER:
        return STR("integer");
    case T_FLOAT:
        return STR("float");
    case T_NAME:
    case T_OP:
        break;
    }
    return token->text;
}

static struct node *unexpected(struct parser *p, const char *expected) {
    struct str got = describe(p->token);
    if (expected)
        return fail_at(p, p->token, "expected %s, got '%.*s'", expected, (int)got.n, got.data);
    return fail_at(p, p->token, "unexpected '%.*s'", (int)got.n, got.data);
}

static void next(struct parser *p) {
    if (p->token->kind != T_EOF)
        p->token++;
}

static bool is_op(const struct token *token, const char *op) {
    return token->kind == T_OP && token->op[0] == op[0] && token->op[1] == op[1];
}

static bool at_op(const struct parser *p, const char *op) { return is_op(p->token, op); }

static bool at_name(const struct parser *p, const char *name) {
    return p->token->kind == T_NAME && str_eq_c(p->token->text, name);
}

static bool skip_op(struct parser *p, const char *op) {
    bool there = at_op(p, op);
    if (there)
        next(p);
    return there;
}

static bool skip_name(struct parser *p, const char *name) {
    bool there = at_name(p, name);
    if (there)
        next(p);
    return there;
}

static bool expect_op(struct parser *p, const char *op) {
    if (skip_op(p, op))
        return true;
    char quoted[8];
    snprintf(quoted, sizeof quoted, "'%s'", op);
    unexpected(p, quoted);
    return false;
}

static bool expect_kind(struct parser *p, enum token_kind kind, const char *what) {
    if (p->token->kind != kind) {
        unexpected(p, what);
        return false;
    }
    next(p);
    return true;
}

static struct node *new_node(struct parser *p, enum node_kind kind, const struct token *token) {
    struct node *node = arena_new(p->arena, struct node);
    if (!node)
        return out_of_memory(p);
    node->kind = (uint8_t)kind;
    node->line = token->line;
    node->str_method = node->dict_method = node->list_method = -1;
    return node;
}

// Note that `node` stands above `child`. False if the tree becomes too high to walk safely.
static bool above(struct parser *p, struct node *node, const struct node *child) {
    if (child && child->height >= node->height)
        node->height = (uint16_t)(child->height + 1);
    if (node->height <= PARSE_HEIGHT_MAX)
        return true;
    fail_at(p, p->token, "an expression is nested more than %d deep", PARSE_HEIGHT_MAX);
    return false;
}

static struct node *branch(struct parser *p, enum node_kind kind, const struct token *token,
                           struct node *a, struct node *b) {
    struct node *node = new_node(p, kind, token);
    if (!node || !above(p, node, a) || !above(p, node, b))
        return NULL;
    node->a = a;
    node->b = b;
    return node;
}

static struct node *constant(struct parser *p, const struct token *token, struct value value) {
    struct node *node = new_node(p, N_CONST, token);
    if (node)
        node->value = value;
    return node;
}

static bool append(struct parser *p, struct nodes *nodes, struct node *node) {
    if (nodes->n == nodes->capacity) {
        uint32_t capacity = nodes->capacity ? nodes->capacity * 2 : 4;
        struct node **items = arena_array(p->arena, struct node *, capacity);
        if (!items)
            return out_of_memory(p);
        if (nodes->n)
            memcpy(items, nodes->items, nodes->n * sizeof *items);
        nodes->items = items;
        nodes->capacity = capacity;
    }
    nodes->items[nodes->n++] = node;
    return true;
}

static bool adopt(struct parser *p, struct node *node, const struct nodes *kids) {
    node->kids = kids->items;
    node->n = kids->n;
    for (uint32_t i = 0; i < kids->n; i++)
        if (!above(p, node, kids->items[i]))
            return false;
    return true;
}

// Whether an expression depends on nothing of the rendering.
static bool is_constant(const struct node *node) {
    if (!node || node->kind == N_CONST)
        return true;
    if (node->kind == N_NAME || node->kind == N_CALL)
        return false;
    bool constant = is_constant(node->a) && is_constant(node->b) && is_constant(node->c);
    for (uint32_t i = 0; constant && i < node->n; i++)
        constant = is_constant(node->kids[i]);
    if (node->kind == N_FILTER || node->kind == N_TEST) {
        for (uint32_t i = 0; constant && i < node->call->n_args; i++)
            constant = is_constant(node->call->args[i]);
        for (uint32_t i = 0; constant && i < node->call->n_keywords; i++)
            constant = is_constant(node->call->keywords[i].value);
    }
    return constant;
}

// ---- Expressions ------------------------------------------------------------------------------

static bool at_tuple_end(const struct parser *p, const char *extra_name) {
    return p->token->kind == T_VARIABLE_END || p->token->kind == T_BLOCK_END || at_op(p, ")") ||
           (extra_name && at_name(p, extra_name));
}

enum tuple_of { TUPLE_EXPRESSIONS, TUPLE_NO_CONDITIONS, TUPLE_TARGETS };

static struct node *target_primary(struct parser *p) {
    const struct token *token = p->token;
    if (token->kind == T_NAME && is_op(token + 1, ".")) {
        next(p);
        next(p);
        const struct token *attribute = p->token;
        if (!expect_kind(p, T_NAME, "a name"))
            return NULL;
        struct node *node = new_node(p, N_NAMESPACE_REF, token);
        if (node) {
            node->name = token->text;
            node->value = value_str(attribute->text);
        }
        return node;
    }
    return primary(p);
}

static struct node *tuple(struct parser *p, enum tuple_of of, const char *extra_end, bool parentheses) {
    const struct token *start = p->token;
    struct nodes items = {0};
    bool is_tuple = false;
    for (;;) {
        if (at_tuple_end(p, extra_end))
            break;
        struct node *item = of == TUPLE_TARGETS ? target_primary(p)
                                                : expression(p, of == TUPLE_EXPRESSIONS);
        if (!item || !append(p, &items, item))
            return NULL;
        if (!skip_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple) {
        if (items.n)
            return items.items[0];
        if (!parentheses)
            return unexpected(p, "an expression");
    }
    struct node *node = new_node(p, N_TUPLE, start);
    return node && adopt(p, node, &items) ? node : NULL;
}

static struct node *list_literal(struct parser *p) {
    const struct token *start = p->token;
    struct nodes items = {0};
    next(p);
    while (!at_op(p, "]")) {
        if (items.n && !expect_op(p, ","))
            return NULL;
        if (at_op(p, "]"))
            break;
        struct node *item = expression(p, true);
        if (!item || !append(p, &items, item))
            return NULL;
    }
    next(p);
    struct node *node = new_node(p, N_LIST, start);
    return node && adopt(p, node, &items) ? node : NULL;
}

static struct node *dict_literal(struct parser *p) {
    const struct token *start = p->token;
    struct nodes items = {0};
    next(p);
    while (!at_op(p, "}")) {
        if (items.n && !expect_op(p, ","))
            return NULL;
        if (at_op(p, "}"))
            break;
        struct node *key = expression(p, true);
        if (!key || !expect_op(p, ":"))
            return NULL;
        struct node *value = expression(p, true);
        if (!value || !append(p, &items, key) || !append(p, &items, value))
            return NULL;
    }
    next(p);
    struct node *node = new_node(p, N_DICT, start);
    return node && adopt(p, node, &items) ? node : NULL;
}

static struct node *strings(struct parser *p) {
    const struct token *start = p->token;
    struct str text = start->text;
    next(p);
    if (p->token->kind == T_STRING) { // adjacent strings are one
        struct strbuf all = {0};
        strbuf_append(&all, text);
        for (; p->token->kind == T_STRING; next(p))
            strbuf_append(&all, p->token->text);
        bool ok = !all.failed && arena_copy(p->arena, strbuf_str(&all), &text);
        strbuf_deinit(&all);
        if (!ok)
            return out_of_memory(p);
    }
    return constant(p, start, value_str(text));
}

static struct node *number_literal(struct parser *p) {
    const struct token *token = p->token;
    struct value value;
    if (!number_parse_literal(p->arena, token->text, token->kind == T_FLOAT, &value))
        return out_of_memory(p);
    if (is_error(value))
        return fail_at(p, token, "the number has more than %d digits", NUMBER_DIGITS_MAX);
    next(p);
    return constant(p, token, value);
}

static struct node *name_or_literal(struct parser *p) {
    static const struct {
        const char *name;
        struct value value;
    } LITERALS[] = {
        {"true", {.type = V_BOOL, .b = true}},   {"True", {.type = V_BOOL, .b = true}},
        {"false", {.type = V_BOOL, .b = false}}, {"False", {.type = V_BOOL, .b = false}},
        {"none", {.type = V_NONE}},              {"None", {.type = V_NONE}},
    };
    const struct token *token = p->token;
    next(p);
    for (size_t i = 0; i < sizeof LITERALS / sizeof *LITERALS; i++)
        if (str_eq_c(token->text, LITERALS[i].name))
            return constant(p, token, LITERALS[i].value);
    struct node *node = new_node(p, N_NAME, token);
    if (node)
        node->name = token->text;
    return node;
}

static struct node *primary(struct parser *p) {
    if (p->n_brackets >= PARSE_BRACKETS_MAX)
        return fail_at(p, p->token, "an expression is nested more than %d deep", PARSE_BRACKETS_MAX);
    struct node *node = NULL;
    p->n_brackets++;
    switch ((enum token_kind)p->token->kind) {
    case T_NAME:
        node = name_or_literal(p);
        break;
    case T_STRING:
        node = strings(p);
        break;
    case T_INTEGER:
    case T_FLOAT:
        node = number_literal(p);
        break;
    case T_OP:
        if (skip_op(p, "(")) {
            node = tuple(p, TUPLE_EXPRESSIONS, NULL, true);
            if (node && !expect_op(p, ")"))
                node = NULL;
            break;
        }
        if (at_op(p, "[")) {
            node = list_literal(p);
            break;
        }
        if (at_op(p, "{")) {
            node = dict_literal(p);
            break;
        }
        unexpected(p, NULL);
        break;
    case T_EOF:
    case T_DATA:
    case T_VARIABLE_BEGIN:
    case T_VARIABLE_END:
    case T_BLOCK_BEGIN:
    case T_BLOCK_END:
        unexpected(p, NULL);
        break;
    }
    p->n_brackets--;
    return node;
}

// The arguments of a call, from "(" to behind ")".
static struct call *arguments(struct parser *p) {
    struct call *call = arena_new(p->arena, struct call);
    if (!call)
        return out_of_memory(p);
    if (!expect_op(p, "("))
        return NULL;
    struct nodes args = {0};
    uint32_t keywords_capacity = 0;
    for (bool first = true; !at_op(p, ")"); first = false) {
        if (!first && !expect_op(p, ","))
            return NULL;
        if (at_op(p, ")"))
            break;
        const struct token *start = p->token;
        bool out_of_order = call->star_star != NULL;
        if (skip_op(p, "*")) {
            out_of_order |= call->star != NULL;
            if (!(call->star = expression(p, true)))
                return NULL;
        } else if (skip_op(p, "**")) {
            if (!(call->star_star = expression(p, true)))
                return NULL;
        } else if (start->kind == T_NAME && is_op(start + 1, "=")) {
            next(p);
            next(p);
            struct node *value = expression(p, true);
            if (!value)
                return NULL;
            for (uint32_t i = 0; i < call->n_keywords; i++)
                if (str_eq(call->keywords[i].name, start->text)) {
                    fail_at(p, start, "keyword argument repeated: %.*s", (int)start->text.n,
                            start->text.data);
                    return NULL;
                }
            if (call->n_keywords == keywords_capacity) {
                keywords_capacity = keywords_capacity ? keywords_capacity * 2 : 4;
                struct keyword *keywords = arena_array(p->arena, struct keyword, keywords_capacity);
                if (!keywords)
                    return out_of_memory(p);
                if (call->n_keywords)
                    memcpy(keywords, call->keywords, call->n_keywords * sizeof *keywords);
                call->keywords = keywords;
            }
            call->keywords[call->n_keywords++] = (struct keyword){start->text, value};
        } else {
            out_of_order |= call->star != NULL || call->n_keywords > 0;
            struct node *value = expression(p, true);
            if (!value || !append(p, &args, value))
                return NULL;
        }
        if (out_of_order) {
            fail_at(p, start, "invalid syntax for function call expression");
            return NULL;
        }
    }
    next(p);
    call->args = args.items;
    call->n_args = args.n;
    return call;
}

static bool above_call(struct parser *p, struct node *node, const struct call *call) {
    bool ok = above(p, node, call->star) && above(p, node, call->star_star);
    for (uint32_t i = 0; ok && i < call->n_args; i++)
        ok = above(p, node, call->args[i]);
    for (uint32_t i = 0; ok && i < call->n_keywords; i++)
        ok = above(p, node, call->keywords[i].value);
    return ok;
}

static struct node *call_of(struct parser *p, struct node *callee) {
    const struct token *start = p->token;
    struct call *call = arguments(p);
    struct node *node = call ? branch(p, N_CALL, start, callee, NULL) : NULL;
    if (!node || !above_call(p, node, call))
        return NULL;
    node->call = call;
    return node;
}

static struct node *attribute(struct parser *p, struct node *object) {
    const struct token *token = p->token;
    next(p);
    if (token->kind == T_NAME) {
        struct node *node = branch(p, N_ATTR, token, object, NULL);
        if (node) {
            node->name = token->text;
            node->str_method = method_find(V_STR, token->text);
            node->dict_method = method_find(V_DICT, token->text);
            node->list_method = method_find(V_LIST, token->text);
        }
        return node;
    }
    if (token->kind != T_INTEGER)
        return fail_at(p, token, "expected name or number after '.'");
    p->token = token;
    struct node *index = number_literal(p);
    return index ? branch(p, N_ITEM, token, object, index) : NULL;
}

static bool slice_part(struct parser *p, struct node **out) {
    if (at_op(p, ":") || at_op(p, "]") || at_op(p, ","))
        return true;
    *out = expression(p, true);
    return *out != NULL;
}

static struct node *subscript(struct parser *p, struct node *object) {
    const struct token *start = p->token;
    next(p);
    struct node *parts[3] = {0};
    if (!slice_part(p, &parts[0]))
        return NULL;
    if (skip_op(p, ":")) {
        if (!slice_part(p, &parts[1]))
            return NULL;
        if (skip_op(p, ":") && !slice_part(p, &parts[2]))
            return NULL;
        if (!expect_op(p, "]"))
            return NULL;
        struct node *node = branch(p, N_SLICE, start, object, NULL);
        struct nodes kids = {0};
        for (int i = 0; node && i < 3; i++)
            if (!append(p, &kids, parts[i]))
                return NULL;
        return node && adopt(p, node, &kids) ? node : NULL;
    }
    if (!parts[0])
        return unexpected(p, "an expression");
    struct node *key = parts[0];
    if (at_op(p, ",")) {
        struct nodes items = {0};
        if (!append(p, &items, key))
            return NULL;
        while (skip_op(p, ",")) {
            struct node *item = expression(p, true);
            if (!item || !append(p, &items, item))
                return NULL;
        }
        key = new_node(p, N_TUPLE, start);
        if (!key || !adopt(p, key, &items))
            return NULL;
    }
    return expect_op(p, "]") ? branch(p, N_ITEM, start, object, key) : NULL;
}

static struct node *postfix(struct parser *p, struct node *node) {
    while (node) {
        if (skip_op(p, "."))
            node = attribute(p, node);
        else if (at_op(p, "["))
            node = subscript(p, node);
        else if (at_op(p, "("))
            node = call_of(p, node);
        else
            break;
    }
    return node;
}

// A filter's or test's name: words joined by dots.
static bool dotted_name(struct parser *p, struct str *out) {
    const struct token *first = p->token;
    if (!expect_kind(p, T_NAME, "a name"))
        return false;
    *out = first->text;
    while (at_op(p, ".")) {
        next(p);
        const struct token *part = p->token;
        if (!expect_kind(p, T_NAME, "a name"))
            return false;
        const char *joined = arena_printf(p->arena, "%.*s.%.*s", (int)out->n, out->data,
                                          (int)part->text.n, part->text.data);
        if (!joined)
            return out_of_memory(p);
        *out = str_from(joined);
    }
    return true;
}

static void note_unknown(struct parser *p, const struct token *name, const char *kind) {
    if (p->soft || p->unknown)
        return;
    p->unknown = name;
    p->unknown_kind = kind;
}

static struct call *no_arguments(struct parser *p) {
    struct call *call = arena_new(p->arena, struct call);
    return call ? call : out_of_memory(p);
}

// "name(args)|name ..." applied to `node`; the first "|" is already behind us.
static struct node *filters(struct parser *p, struct node *node) {
    do {
        const struct token *start = p->token;
        struct str name;
        if (!dotted_name(p, &name))
            return NULL;
        const struct builtin *filter = filter_find(name);
        if (!filter)
            note_unknown(p, start, "filter");
        struct call *call = at_op(p, "(") ? arguments(p) : no_arguments(p);
        struct node *filtered = call ? branch(p, N_FILTER, start, node, NULL) : NULL;
        if (!filtered || !above_call(p, filtered, call))
            return NULL;
        filtered->name = name;
        filtered->builtin = filter;
        filtered->call = call;
        node = filtered;
    } while (skip_op(p, "|"));
    return node;
}

static struct node *test(struct parser *p, struct node *node) {
    const struct token *start = p->token;
    bool negated = skip_name(p, "not");
    struct str name;
    if (!dotted_name(p, &name))
        return NULL;
    const struct builtin *found = test_find(name);
    if (!found)
        note_unknown(p, start, "test");
    struct call *call = NULL;
    enum token_kind kind = (enum token_kind)p->token->kind;
    if (at_op(p, "(")) {
        call = arguments(p);
    } else if (kind == T_STRING || kind == T_INTEGER || kind == T_FLOAT || at_op(p, "[") ||
               at_op(p, "{") ||
               (kind == T_NAME && !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and"))) {
        if (at_name(p, "is"))
            return fail_at(p, p->token, "you cannot chain multiple tests with is");
        call = no_arguments(p);
        struct nodes args = {0};
        struct node *arg = call ? primary(p) : NULL;
        arg = arg ? postfix(p, arg) : NULL;
        if (!arg || !append(p, &args, arg))
            return NULL;
        call->args = args.items;
        call->n_args = 1;
    } else {
        call = no_arguments(p);
    }
    struct node *tested = call ? branch(p, N_TEST, start, node, NULL) : NULL;
    if (!tested || !above_call(p, tested, call))
        return NULL;
    tested->name = name;
    tested->builtin = found;
    tested->call = call;
    return negated ? branch(p, N_NOT, start, tested, NULL) : tested;
}

static struct node *filter_expression(struct parser *p, struct node *node) {
    while (node) {
        if (skip_op(p, "|"))
            node = filters(p, node);
        else if (skip_name(p, "is"))
            node = test(p, node);
        else if (at_op(p, "(")) // calls are valid behind filters and tests
            node = call_of(p, node);
        else
            break;
    }
    return node;
}

static struct node *unary(struct parser *p, bool with_filter) {
    const struct token *start = p->token;
    struct node *node;
    if (at_op(p, "-") || at_op(p, "+")) {
        if (p->n_brackets >= PARSE_BRACKETS_MAX)
            return fail_at(p, start, "an expression is nested more than %d deep", PARSE_BRACKETS_MAX);
        next(p);
        p->n_brackets++;
        node = unary(p, false);
        p->n_brackets--;
        node = node ? branch(p, start->op[0] == '-' ? N_NEGATE : N_POSITIVE, start, node, NULL) : NULL;
    } else {
        node = primary(p);
        node = node ? postfix(p, node) : NULL;
    }
    return node && with_filter ? filter_expression(p, node) : node;
}

static struct node *binary(struct parser *p, const struct token *start, enum operation op,
                           struct node *a, struct node *b) {
    struct node *node = a && b ? branch(p, N_BINARY, start, a, b) : NULL;
    if (node)
        node->op = (uint8_t)op;
    return node;
}

static struct node *power(struct parser *p) {
    struct node *node = unary(p, true);
    while (node && at_op(p, "**")) {
        const struct token *start = p->token;
        next(p);
        struct node *exponent = unary(p, true);
        // Jinja writes a negative constant into its Python code without parentheses, where "**" binds
        // more tightly than "-", unless it computes the whole power beforehand.
        bool minus_last = exponent && node->kind == N_NEGATE && node->a->kind == N_CONST &&
                          !is_constant(exponent);
        node = binary(p, start, OP_POW, minus_last ? node->a : node, exponent);
        if (node && minus_last)
            node = branch(p, N_NEGATE, start, node, NULL);
    }
    return node;
}

static struct node *product(struct parser *p) {
    struct node *node = power(p);
    while (node) {
        const struct token *start = p->token;
        enum operation op;
        if (at_op(p, "*"))
            op = OP_MUL;
        else if (at_op(p, "/"))
            op = OP_DIV;
        else if (at_op(p, "//"))
            op = OP_FLOORDIV;
        else if (at_op(p, "%"))
            op = OP_MOD;
        else
            break;
        next(p);
        node = binary(p, start, op, node, power(p));
    }
    return node;
}

static struct node *concatenation(struct parser *p) {
    const struct token *start = p->token;
    struct node *first = product(p);
    if (!first || !at_op(p, "~"))
        return first;
    struct nodes parts = {0};
    if (!append(p, &parts, first))
        return NULL;
    while (skip_op(p, "~")) {
        struct node *part = product(p);
        if (!part || !append(p, &parts, part))
            return NULL;
    }
    struct node *node = new_node(p, N_CONCAT, start);
    return node && adopt(p, node, &parts) ? node : NULL;
}

static struct node *sum(struct parser *p) {
    struct node *node = concatenation(p);
    while (node && (at_op(p, "+") || at_op(p, "-"))) {
        const struct token *start = p->token;
        next(p);
        node = binary(p, start, start->op[0] == '+' ? OP_ADD : OP_SUB, node, concatenation(p));
    }
    return node;
}

static bool comparison_operator(struct parser *p, enum operation *op) {
    static const struct {
        const char *text;
        enum operation op;
    } OPS[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT}, {"<=", OP_LE}, {">", OP_GT}, {">=", OP_GE}};
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++)
        if (skip_op(p, OPS[i].text)) {
            *op = OPS[i].op;
            return true;
        }
    if (skip_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    if (at_name(p, "not") && p->token[1].kind == T_NAME && str_eq_c(p->token[1].text, "in")) {
        next(p);
        next(p);
        *op = OP_NOT_IN;
        return true;
    }
    return false;
}

static struct node *comparison(struct parser *p) {
    const struct token *start = p->token;
    struct node *first = sum(p);
    enum operation op;
    if (!first || !comparison_operator(p, &op))
        return first;
    struct nodes operands = {0};
    struct strbuf ops = {0};
    bool ok = true;
    do {
        struct node *operand = sum(p);
        ok = operand && append(p, &operands, operand);
        strbuf_char(&ops, (char)op);
    } while (ok && comparison_operator(p, &op));
    struct str kept = {0};
    if (ok && (ops.failed || !arena_copy(p->arena, strbuf_str(&ops), &kept)))
        ok = out_of_memory(p);
    strbuf_deinit(&ops);
    struct node *node = ok ? branch(p, N_COMPARE, start, first, NULL) : NULL;
    if (!node || !adopt(p, node, &operands))
        return NULL;
    node->ops = (uint8_t *)kept.data;
    return node;
}

static struct node *negation(struct parser *p) {
    const struct token *start = p->token;
    if (!skip_name(p, "not"))
        return comparison(p);
    if (p->n_brackets >= PARSE_BRACKETS_MAX)
        return fail_at(p, start, "an expression is nested more than %d deep", PARSE_BRACKETS_MAX);
    p->n_brackets++;
    struct node *node = negation(p);
    p->n_brackets--;
    return node ? branch(p, N_NOT, start, node, NULL) : NULL;
}

static struct node *conjunction(struct parser *p) {
    struct node *node = negation(p);
    while (node && at_name(p, "and")) {
        const struct token *start = p->token;
        next(p);
        struct node *right = negation(p);
        node = right ? branch(p, N_AND, start, node, right) : NULL;
    }
    return node;
}

static struct node *disjunction(struct parser *p) {
    struct node *node = conjunction(p);
    while (node && at_name(p, "or")) {
        const struct token *start = p->token;
        next(p);
        struct node *right = conjunction(p);
        node = right ? branch(p, N_OR, start, node, right) : NULL;
    }
    return node;
}

static struct node *conditional(struct parser *p) {
    const struct token *start = p->token;
    const struct token *unknown = p->unknown;
    struct node *node = disjunction(p);
    while (node && skip_name(p, "if")) {
        bool soft = p->soft;
        p->unknown = unknown; // the first part is conditional too
        p->soft = true;
        struct node *condition = disjunction(p), *other = NULL;
        bool ok = condition != NULL;
        if (ok && skip_name(p, "else")) {
            other = expression(p, true);
            ok = other != NULL;
        }
        p->soft = soft;
        node = ok ? branch(p, N_COND, start, node, condition) : NULL;
        if (!node || !above(p, node, other))
            return NULL;
        node->c = other;
    }
    return node;
}

static struct node *expression(struct parser *p, bool with_condition) {
    if (p->n_brackets >= PARSE_BRACKETS_MAX)
        return fail_at(p, p->token, "an expression is nested more than %d deep", PARSE_BRACKETS_MAX);
    p->n_brackets++;
    struct node *node = with_condition ? conditional(p) : disjunction(p);
    p->n_brackets--;
    return node;
}

// ---- Statements -------------------------------------------------------------------------------

static bool check_target(struct parser *p, const struct node *node, bool with_namespace,
                         const struct token *token) {
    switch ((enum node_kind)node->kind) {
    case N_NAME:
        return true;
    case N_NAMESPACE_REF:
        if (with_namespace)
            return true;
        break;
    case N_TUPLE:
        for (uint32_t i = 0; i < node->n; i++)
            if (!check_target(p, node->kids[i], with_namespace, token))
                return false;
        return true;
    default:
        break;
    }
    fail_at(p, token, "can't assign to '%s'", node->kind == N_CONST ? "const" : "an expression");
    return false;
}

static struct node *assign_target(struct parser *p, const char *extra_end, bool with_namespace) {
    const struct token *start = p->token;
    struct node *node = tuple(p, TUPLE_TARGETS, extra_end, false);
    return node && check_target(p, node, with_namespace, start) ? node : NULL;
}

static struct node *name_target(struct parser *p) {
    const struct token *start = p->token;
    if (start->kind != T_NAME)
        return unexpected(p, "a name");
    struct node *node = name_or_literal(p);
    return node && check_target(p, node, false, start) ? node : NULL;
}

// The body of a tag: the rest of the tag's end, statements, and the end tag's name, left current.
static bool tag_body(struct parser *p, struct body *out, const char *const *ends) {
    skip_op(p, ":");
    return expect_kind(p, T_BLOCK_END, "end of statement block") && body_until(p, out, ends);
}

#define ENDS(...) ((const char *const[]){__VA_ARGS__, NULL})

// The same, with the checks of "if" for unknown filters as given, and the end tag's name skipped.
static bool inner_body(struct parser *p, struct body *out, const char *end) {
    bool soft = p->soft;
    p->soft = false;
    bool ok = tag_body(p, out, ENDS(end));
    p->soft = soft;
    if (ok)
        next(p);
    return ok;
}

static struct node *if_statement(struct parser *p, const struct token *start) {
    struct nodes conditions = {0};
    struct body *arms = NULL;
    uint32_t capacity = 0;
    struct node *node = new_node(p, N_IF, start);
    bool soft = p->soft;
    p->soft = true;
    for (bool more = node != NULL; more;) {
        struct node *condition = tuple(p, TUPLE_NO_CONDITIONS, NULL, false);
        if (!condition || !append(p, &conditions, condition))
            return NULL;
        if (conditions.n > capacity) {
            capacity = capacity ? capacity * 2 : 2;
            struct body *grown = arena_array(p->arena, struct body, capacity);
            if (!grown)
                return out_of_memory(p);
            if (arms)
                memcpy(grown, arms, (conditions.n - 1) * sizeof *arms);
            arms = grown;
        }
        if (!tag_body(p, &arms[conditions.n - 1], ENDS("elif", "else", "endif")))
            return NULL;
        more = skip_name(p, "elif");
    }
    if (!node)
        return NULL;
    if (skip_name(p, "else") && !tag_body(p, &node->other, ENDS("endif")))
        return NULL;
    p->soft = soft;
    next(p);
    node->arms = arms;
    node->kids = conditions.items;
    node->n = conditions.n;
    return node;
}

static struct node *clone_target(struct parser *p, const struct node *target) {
    struct node *node = arena_new(p->arena, struct node);
    if (!node)
        return out_of_memory(p);
    *node = *target;
    if (target->n) {
        node->kids = arena_array(p->arena, struct node *, target->n);
        if (!node->kids)
            return out_of_memory(p);
        for (uint32_t i = 0; i < target->n; i++)
            if (!(node->kids[i] = clone_target(p, target->kids[i])))
                return NULL;
    }
    return node;
}

static struct function *new_function(struct parser *p, struct str name) {
    struct function *function = arena_new(p->arena, struct function);
    if (!function)
        return out_of_memory(p);
    function->name = name;
    function->id = p->template->n_functions++;
    return function;
}

static struct node *for_statement(struct parser *p, const struct token *start) {
    struct node *node = new_node(p, N_FOR, start);
    struct for_loop *loop = arena_new(p->arena, struct for_loop);
    if (!node || !loop)
        return out_of_memory(p);
    node->loop = loop;
    if (!(loop->target = assign_target(p, "in", false)))
        return NULL;
    if (!skip_name(p, "in"))
        return unexpected(p, "'in'");
    if (!(loop->iter = tuple(p, TUPLE_NO_CONDITIONS, "recursive", false)))
        return NULL;
    if (skip_name(p, "if") &&
        (!(loop->test = expression(p, true)) || !(loop->test_target = clone_target(p, loop->target))))
        return NULL;
    if (skip_name(p, "recursive")) {
        loop->recursive = true;
        if (!(loop->function = new_function(p, STR("loop"))))
            return NULL;
    }
    bool soft = p->soft;
    p->soft = false;
    p->n_loops++;
    bool ok = tag_body(p, &loop->body, ENDS("else", "endfor"));
    p->n_loops--;
    if (!ok || (skip_name(p, "else") && !tag_body(p, &loop->other, ENDS("endfor"))))
        return NULL;
    p->soft = soft;
    next(p);
    return node;
}

static struct node *set_statement(struct parser *p, const struct token *start) {
    struct node *target = assign_target(p, NULL, true);
    if (!target)
        return NULL;
    struct node *node;
    if (skip_op(p, "=")) {
        struct node *value = tuple(p, TUPLE_EXPRESSIONS, NULL, false);
        node = value ? new_node(p, N_SET, start) : NULL;
        if (node) {
            node->a = target;
            node->b = value;
        }
        return node;
    }
    node = new_node(p, N_SET_BLOCK, start);
    if (!node || !(node->scope = arena_new(p->arena, struct scope)))
        return out_of_memory(p);
    node->a = target;
    if (skip_op(p, "|") && !(node->b = filters(p, NULL)))
        return NULL;
    return inner_body(p, &node->body, "endset") ? node : NULL;
}

// "(a, b=1)" of a macro or a call block.
static bool signature(struct parser *p, struct function *function) {
    if (!expect_op(p, "("))
        return false;
    uint32_t capacity = 0;
    while (!at_op(p, ")")) {
        if (function->n_params && !expect_op(p, ","))
            return false;
        const struct token *start = p->token;
        struct node *name = name_target(p);
        if (!name)
            return false;
        struct node *fallback = NULL;
        if (skip_op(p, "=")) {
            if (!(fallback = expression(p, true)))
                return false;
        } else if (function->n_params && function->params[function->n_params - 1].fallback) {
            fail_at(p, start, "non-default argument follows default argument");
            return false;
        }
        for (uint32_t i = 0; i < function->n_params; i++)
            if (str_eq(function->params[i].name, name->name)) {
                fail_at(p, start, "duplicate argument '%.*s'", (int)name->name.n, name->name.data);
                return false;
            }
        if (function->n_params == capacity) {
            capacity = capacity ? capacity * 2 : 4;
            struct param *params = arena_array(p->arena, struct param, capacity);
            if (!params)
                return out_of_memory(p);
            if (function->n_params)
                memcpy(params, function->params, function->n_params * sizeof *params);
            function->params = params;
        }
        function->params[function->n_params++] = (struct param){.name = name->name, .fallback = fallback};
    }
    next(p);
    return true;
}

// The body of a function: no break or continue reaches out of it.
static bool function_body(struct parser *p, struct function *function, const char *end) {
    uint32_t n_loops = p->n_loops;
    p->n_loops = 0;
    bool ok = inner_body(p, &function->body, end);
    p->n_loops = n_loops;
    return ok;
}

static struct node *macro_statement(struct parser *p, const struct token *start) {
    struct node *name = name_target(p);
    struct node *node = name ? new_node(p, N_MACRO, start) : NULL;
    if (!node || !(node->function = new_function(p, name->name)))
        return NULL;
    node->name = name->name;
    return signature(p, node->function) && function_body(p, node->function, "endmacro") ? node : NULL;
}

static struct node *call_statement(struct parser *p, const struct token *start) {
    struct node *node = new_node(p, N_CALL_BLOCK, start);
    if (!node || !(node->function = new_function(p, STR("caller"))))
        return NULL;
    if (at_op(p, "(") && !signature(p, node->function))
        return NULL;
    const struct token *call_start = p->token;
    if (!(node->a = expression(p, true)))
        return NULL;
    if (node->a->kind != N_CALL)
        return fail_at(p, call_start, "expected call");
    return function_body(p, node->function, "endcall") ? node : NULL;
}

static struct node *generation_statement(struct parser *p, const struct token *start) {
    struct node *node = new_node(p, N_SCOPE, start);
    if (!node || !(node->scope = arena_new(p->arena, struct scope)))
        return out_of_memory(p);
    uint32_t n_loops = p->n_loops;
    p->n_loops = 0;
    bool ok = inner_body(p, &node->body, "endgeneration");
    p->n_loops = n_loops;
    return ok ? node : NULL;
}

static struct node *filter_statement(struct parser *p, const struct token *start) {
    struct node *node = new_node(p, N_FILTER_BLOCK, start);
    if (!node || !(node->scope = arena_new(p->arena, struct scope)))
        return out_of_memory(p);
    if (!(node->b = filters(p, NULL)))
        return NULL;
    return inner_body(p, &node->body, "endfilter") ? node : NULL;
}

static struct node *with_statement(struct parser *p, const struct token *start) {
    struct node *node = new_node(p, N_WITH, start);
    if (!node || !(node->scope = arena_new(p->arena, struct scope)))
        return out_of_memory(p);
    struct nodes targets = {0}, values = {0};
    while (p->token->kind != T_BLOCK_END) {
        if (targets.n && !expect_op(p, ","))
            return NULL;
        const struct token *at = p->token;
        struct node *target = target_primary(p);
        if (!target || !check_target(p, target, false, at) || !expect_op(p, "="))
            return NULL;
        struct node *value = expression(p, true);
        if (!value || !append(p, &targets, target) || !append(p, &values, value))
            return NULL;
    }
    for (uint32_t i = 0; i < values.n; i++)
        if (!append(p, &targets, values.items[i]))
            return NULL;
    node->kids = targets.items;
    node->n = targets.n;
    return inner_body(p, &node->body, "endwith") ? node : NULL;
}

static struct node *autoescape_statement(struct parser *p, const struct token *start) {
    struct node *node = new_node(p, N_AUTOESCAPE, start);
    if (!node || !(node->scope = arena_new(p->arena, struct scope)))
        return out_of_memory(p);
    if (!(node->a = expression(p, true)))
        return NULL;
    return inner_body(p, &node->body, "endautoescape") ? node : NULL;
}

static struct node *block_statement(struct parser *p, const struct token *start) {
    const struct token *name = p->token;
    struct template *template = p->template;
    if (!expect_kind(p, T_NAME, "a name"))
        return NULL;
    skip_name(p, "scoped");
    skip_name(p, "required");
    for (uint32_t i = 0; i < template->n_blocks; i++)
        if (str_eq(template->blocks[i].name, name->text))
            return fail_at(p, name, "block '%.*s' defined twice", (int)name->text.n, name->text.data);
    struct node *node = new_node(p, N_BLOCK, start);
    if (!node || !(node->function = new_function(p, name->text)))
        return NULL;
    node->name = name->text;
    struct block *blocks = arena_array(p->arena, struct block, template->n_blocks + 1);
    if (!blocks)
        return out_of_memory(p);
    if (template->n_blocks)
        memcpy(blocks, template->blocks, template->n_blocks * sizeof *blocks);
    blocks[template->n_blocks++] = (struct block){name->text, node->function};
    template->blocks = blocks;
    if (!function_body(p, node->function, "endblock"))
        return NULL;
    if (p->token->kind == T_NAME && str_eq(p->token->text, name->text))
        next(p);
    return node;
}

static struct node *refused_statement(struct parser *p, const struct token *start) {
    struct node *node = new_node(p, N_REFUSED, start);
    if (!node)
        return NULL;
    node->name = start->text;
    while (p->token->kind != T_BLOCK_END && p->token->kind != T_EOF)
        next(p);
    return node;
}

static struct node *loop_control(struct parser *p, const struct token *start, enum node_kind kind) {
    if (!p->n_loops)
        return fail_at(p, start, "'%.*s' outside loop", (int)start->text.n, start->text.data);
    return new_node(p, kind, start);
}

static bool statement(struct parser *p, struct nodes *out) {
    const struct token *start = p->token;
    if (start->kind != T_NAME) {
        fail_at(p, start, "tag name expected");
        return false;
    }
    next(p);
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *, const struct token *);
    } STATEMENTS[] = {
        {"if", if_statement},
        {"for", for_statement},
        {"set", set_statement},
        {"macro", macro_statement},
        {"call", call_statement},
        {"generation", generation_statement},
        {"filter", filter_statement},
        {"with", with_statement},
        {"autoescape", autoescape_statement},
        {"block", block_statement},
        {"include", refused_statement},
        {"import", refused_statement},
        {"from", refused_statement},
        {"extends", refused_statement},
    };
    if (str_eq_c(start->text, "print")) {
        for (bool first = true; p->token->kind != T_BLOCK_END; first = false) {
            if (!first && !expect_op(p, ","))
                return false;
            struct node *node = new_node(p, N_PRINT, start);
            if (!node || !(node->a = expression(p, true)) || !append(p, out, node))
                return false;
        }
        return true;
    }
    struct node *node = NULL;
    bool known = true;
    if (str_eq_c(start->text, "break")) {
        node = loop_control(p, start, N_BREAK);
    } else if (str_eq_c(start->text, "continue")) {
        node = loop_control(p, start, N_CONTINUE);
    } else {
        known = false;
        for (size_t i = 0; i < sizeof STATEMENTS / sizeof *STATEMENTS; i++)
            if (str_eq_c(start->text, STATEMENTS[i].name)) {
                node = STATEMENTS[i].parse(p, start);
                known = true;
                break;
            }
    }
    if (!known)
        fail_at(p, start, "encountered unknown tag '%.*s'", (int)start->text.n, start->text.data);
    return node && append(p, out, node);
}

static bool at_end_tag(const struct parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (at_name(p, *ends))
            return true;
    return false;
}

// Statements until a tag named in `ends` (its name becomes current), or with NULL until the end.
static bool body_until(struct parser *p, struct body *out, const char *const *ends) {
    if (p->n_statements >= PARSE_STATEMENTS_MAX) {
        fail_at(p, p->token, "statements are nested more than %d deep", PARSE_STATEMENTS_MAX);
        return false;
    }
    p->n_statements++;
    struct nodes nodes = {0};
    const struct token *start = p->token;
    for (;;) {
        const struct token *token = p->token;
        if (token->kind == T_DATA) {
            struct node *node = new_node(p, N_TEXT, token);
            if (!node || !append(p, &nodes, node))
                return false;
            node->value = value_str(token->text);
            next(p);
        } else if (token->kind == T_VARIABLE_BEGIN) {
            next(p);
            struct node *node = new_node(p, N_PRINT, token);
            if (!node || !(node->a = tuple(p, TUPLE_EXPRESSIONS, NULL, false)) ||
                !append(p, &nodes, node) || !expect_kind(p, T_VARIABLE_END, "end of print statement"))
                return false;
            node->constant = is_constant(node->a);
        } else if (token->kind == T_BLOCK_BEGIN) {
            next(p);
            if (at_end_tag(p, ends))
                break;
            if (!statement(p, &nodes) || !expect_kind(p, T_BLOCK_END, "end of statement block"))
                return false;
        } else if (ends) {
            const char *last = *ends;
            for (const char *const *end = ends; *end; end++)
                last = *end;
            fail_at(p, start, "unexpected end of template: '%s' is missing for the block that begins here",
                    last);
            return false;
        } else {
            break;
        }
    }
    *out = (struct body){nodes.items, nodes.n};
    p->n_statements--;
    return true;
}

bool parser_run(struct template *template, struct err *err) {
    struct parser p = {.template = template, .arena = &template->arena, .err = err};
    struct tokens tokens;
    if (!lexer_run(p.arena, template->source, &tokens, err))
        return false;
    p.token = tokens.items;
    template->root = new_function(&p, STR("template"));
    if (!template->root || !body_until(&p, &template->root->body, NULL))
        return false;
    if (p.unknown)
        fail_at(&p, p.unknown, "no %s named '%.*s'", p.unknown_kind, (int)p.unknown->text.n,
                p.unknown->text.data);
    return !p.unknown;
}
