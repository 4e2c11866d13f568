#include "template/scope.h"

#include <assert.h>
#include <stdlib.h>

#include "base/hash.h"
#include "template/builtins.h"

enum symbol_kind { SYMBOL_PARAMETER, SYMBOL_UNDEFINED, SYMBOL_RESOLVE, SYMBOL_ALIAS };

struct symbol {
    struct str name;
    uint64_t hash;
    uint8_t kind; // enum symbol_kind
    uint32_t slot;
    uint32_t from_hops, from_slot;
};

// One scope while it is analysed. Scopes of one function share its slots.
struct frame {
    struct frame *parent;
    struct function *function;
    struct symbol *symbols; // malloc'ed
    uint32_t n, capacity;
    uint32_t *index; // malloc'ed: number + 1 by hash
    uint32_t index_mask;
    uint32_t n_ifs; // enclosing if statements of what is being declared
};

struct resolver {
    struct template *template;
    struct err *err;
    bool failed;
};

static void bind_body(struct resolver *rs, struct frame *frame, const struct body *body);

static void out_of_memory(struct resolver *rs) {
    if (!rs->failed)
        err_set(rs->err, ERR_NOMEM, "template: out of memory");
    rs->failed = true;
}

static void frame_deinit(struct frame *frame) {
    free(frame->symbols);
    free(frame->index);
}

static struct symbol *own_symbol(const struct frame *frame, struct str name, uint64_t hash) {
    if (!frame->index)
        return NULL;
    for (uint32_t i = (uint32_t)hash & frame->index_mask; frame->index[i];
         i = (i + 1) & frame->index_mask) {
        struct symbol *symbol = &frame->symbols[frame->index[i] - 1];
        if (symbol->hash == hash && str_eq(symbol->name, name))
            return symbol;
    }
    return NULL;
}

// The symbol that `name` means in `frame`, and how many functions further out it lives.
static struct symbol *find(const struct frame *frame, struct str name, uint64_t hash, uint32_t *hops) {
    const struct function *function = frame->function;
    *hops = 0;
    for (; frame; frame = frame->parent) {
        for (; function != frame->function; function = function->outer)
            ++*hops;
        struct symbol *symbol = own_symbol(frame, name, hash);
        if (symbol)
            return symbol;
    }
    return NULL;
}

static bool grow(struct frame *frame) {
    uint32_t capacity = frame->capacity ? frame->capacity * 2 : 8;
    struct symbol *symbols = realloc(frame->symbols, capacity * sizeof *symbols);
    if (!symbols)
        return false;
    frame->symbols = symbols;
    uint32_t *index = calloc(capacity * 2, sizeof *index);
    if (!index)
        return false;
    free(frame->index);
    frame->index = index;
    frame->index_mask = capacity * 2 - 1;
    frame->capacity = capacity;
    for (uint32_t k = 0; k < frame->n; k++) {
        uint32_t i = (uint32_t)symbols[k].hash & frame->index_mask;
        while (index[i])
            i = (i + 1) & frame->index_mask;
        index[i] = k + 1;
    }
    return true;
}

static struct symbol *define(struct resolver *rs, struct frame *frame, struct str name, uint64_t hash,
                             enum symbol_kind kind) {
    struct symbol *symbol = own_symbol(frame, name, hash);
    if (!symbol) {
        if (frame->n == frame->capacity && !grow(frame)) {
            out_of_memory(rs);
            return NULL;
        }
        uint32_t i = (uint32_t)hash & frame->index_mask;
        while (frame->index[i])
            i = (i + 1) & frame->index_mask;
        symbol = &frame->symbols[frame->n++];
        frame->index[i] = frame->n;
        *symbol = (struct symbol){.name = name, .hash = hash, .slot = frame->function->n_slots++};
    }
    symbol->kind = (uint8_t)kind;
    return symbol;
}

static uint32_t declare_parameter(struct resolver *rs, struct frame *frame, struct str name) {
    struct symbol *symbol = define(rs, frame, name, hash_str(name), SYMBOL_PARAMETER);
    return symbol ? symbol->slot : 0;
}

static void declare_store(struct resolver *rs, struct frame *frame, struct str name) {
    uint64_t hash = hash_str(name);
    if (own_symbol(frame, name, hash))
        return;
    uint32_t hops;
    struct symbol *outer = find(frame, name, hash, &hops);
    struct symbol from = outer ? *outer : (struct symbol){0};
    enum symbol_kind kind = outer ? SYMBOL_ALIAS : frame->n_ifs ? SYMBOL_RESOLVE : SYMBOL_UNDEFINED;
    struct symbol *symbol = define(rs, frame, name, hash, kind);
    if (symbol) {
        symbol->from_hops = hops;
        symbol->from_slot = from.slot;
    }
}

static void declare_load(struct resolver *rs, struct frame *frame, struct str name) {
    uint64_t hash = hash_str(name);
    uint32_t hops;
    if (!find(frame, name, hash, &hops))
        define(rs, frame, name, hash, SYMBOL_RESOLVE);
}

// ---- Walking ----------------------------------------------------------------------------------

typedef void name_fn(void *user, struct node *name);

static void walk_call(const struct call *call, name_fn *fn, void *user);

// Call fn for every N_NAME and N_NAMESPACE_REF in an expression or target, in order.
static void walk(struct node *node, name_fn *fn, void *user) {
    if (!node)
        return;
    if (node->kind == N_NAME || node->kind == N_NAMESPACE_REF) {
        fn(user, node);
        return;
    }
    walk(node->a, fn, user);
    walk(node->b, fn, user);
    walk(node->c, fn, user);
    for (uint32_t i = 0; i < node->n; i++)
        walk(node->kids[i], fn, user);
    if (node->kind == N_CALL || node->kind == N_FILTER || node->kind == N_TEST)
        walk_call(node->call, fn, user);
}

static void walk_call(const struct call *call, name_fn *fn, void *user) {
    for (uint32_t i = 0; i < call->n_args; i++)
        walk(call->args[i], fn, user);
    for (uint32_t i = 0; i < call->n_keywords; i++)
        walk(call->keywords[i].value, fn, user);
    walk(call->star, fn, user);
    walk(call->star_star, fn, user);
}

// Whether a body reads `name` anywhere before it sets it, nested macros and loops included.
struct search {
    struct str name;
    bool found, hidden;
};

static void search_load(void *user, struct node *name) {
    struct search *search = user;
    if (!search->hidden && str_eq(name->name, search->name))
        search->found = true;
}

static void search_store(void *user, struct node *name) {
    struct search *search = user;
    if (name->kind == N_NAME && str_eq(name->name, search->name))
        search->hidden = true;
}

static void search_body(struct search *search, const struct body *body);

static void search_function(struct search *search, const struct function *function) {
    for (uint32_t i = 0; i < function->n_params; i++)
        if (str_eq(function->params[i].name, search->name))
            search->hidden = true;
    for (uint32_t i = 0; i < function->n_params; i++)
        walk(function->params[i].fallback, search_load, search);
    search_body(search, &function->body);
}

static void search_node(struct search *search, struct node *node) {
    switch ((enum node_kind)node->kind) {
    case N_IF:
        for (uint32_t i = 0; i < node->n; i++) {
            walk(node->kids[i], search_load, search);
            search_body(search, &node->arms[i]);
        }
        search_body(search, &node->other);
        break;
    case N_FOR:
        walk(node->loop->target, search_store, search);
        walk(node->loop->iter, search_load, search);
        search_body(search, &node->loop->body);
        search_body(search, &node->loop->other);
        walk(node->loop->test, search_load, search);
        break;
    case N_SET:
        walk(node->a, search_store, search);
        walk(node->b, search_load, search);
        break;
    case N_SET_BLOCK:
        walk(node->a, search_store, search);
        walk(node->b, search_load, search);
        search_body(search, &node->body);
        break;
    case N_MACRO:
        search_function(search, node->function);
        break;
    case N_CALL_BLOCK:
        walk(node->a, search_load, search);
        search_function(search, node->function);
        break;
    case N_WITH:
        for (uint32_t i = 0; i < node->n / 2; i++)
            walk(node->kids[i], search_store, search);
        for (uint32_t i = node->n / 2; i < node->n; i++)
            walk(node->kids[i], search_load, search);
        search_body(search, &node->body);
        break;
    case N_FILTER_BLOCK:
    case N_SCOPE:
    case N_AUTOESCAPE:
        search_body(search, &node->body);
        walk(node->a, search_load, search);
        walk(node->b, search_load, search);
        break;
    case N_PRINT:
        walk(node->a, search_load, search);
        break;
    default:
        break;
    }
}

static void search_body(struct search *search, const struct body *body) {
    for (uint32_t i = 0; i < body->n && !search->found; i++)
        search_node(search, body->nodes[i]);
}

static bool reads(const struct body *body, struct str name) {
    struct search search = {.name = name};
    search_body(&search, body);
    return search.found;
}

// ---- First pass over a scope: which names it defines ------------------------------------------

struct visit {
    struct resolver *rs;
    struct frame *frame;
};

static void visit_load(void *user, struct node *name) {
    struct visit *visit = user;
    declare_load(visit->rs, visit->frame, name->name);
}

static void visit_store(void *user, struct node *name) {
    struct visit *visit = user;
    if (name->kind == N_NAMESPACE_REF)
        declare_load(visit->rs, visit->frame, name->name);
    else
        declare_store(visit->rs, visit->frame, name->name);
}

static void visit_parameter(void *user, struct node *name) {
    struct visit *visit = user;
    declare_parameter(visit->rs, visit->frame, name->name);
}

static void declare_body(struct resolver *rs, struct frame *frame, const struct body *body) {
    struct visit visit = {rs, frame};
    for (uint32_t i = 0; i < body->n; i++) {
        struct node *node = body->nodes[i];
        switch ((enum node_kind)node->kind) {
        case N_PRINT:
        case N_CALL_BLOCK:
            walk(node->a, visit_load, &visit);
            break;
        case N_IF:
            walk(node->kids[0], visit_load, &visit);
            frame->n_ifs++;
            for (uint32_t k = 0; k < node->n; k++) {
                if (k)
                    walk(node->kids[k], visit_load, &visit);
                declare_body(rs, frame, &node->arms[k]);
            }
            declare_body(rs, frame, &node->other);
            frame->n_ifs--;
            break;
        case N_FOR:
            walk(node->loop->iter, visit_load, &visit);
            break;
        case N_SET:
            walk(node->b, visit_load, &visit);
            walk(node->a, visit_store, &visit);
            break;
        case N_SET_BLOCK:
            walk(node->a, visit_store, &visit);
            break;
        case N_MACRO:
            declare_store(rs, frame, node->name);
            break;
        case N_FILTER_BLOCK:
            walk(node->b, visit_load, &visit);
            break;
        case N_WITH:
            for (uint32_t k = node->n / 2; k < node->n; k++)
                walk(node->kids[k], visit_load, &visit);
            break;
        default:
            break;
        }
    }
}

// ---- Second pass: slots into nodes, nested scopes ---------------------------------------------

static void bind_name(void *user, struct node *name) {
    struct visit *visit = user;
    if (visit->rs->failed)
        return;
    uint32_t hops;
    struct symbol *symbol = find(visit->frame, name->name, hash_str(name->name), &hops);
    if (!symbol) { // a name that the first pass does not look at, as Jinja's does not
        symbol = define(visit->rs, visit->frame, name->name, hash_str(name->name), SYMBOL_RESOLVE);
        if (!symbol)
            return;
        hops = 0;
    }
    name->slot = symbol->slot;
    name->hops = hops;
}

static void bind(struct resolver *rs, struct frame *frame, struct node *node) {
    walk(node, bind_name, &(struct visit){rs, frame});
}

static void finish_scope(struct resolver *rs, struct frame *frame, struct scope *scope) {
    struct load *loads = arena_array(&rs->template->arena, struct load, frame->n);
    if (!loads) {
        out_of_memory(rs);
        return;
    }
    scope->loads = loads;
    for (uint32_t i = 0; i < frame->n; i++) {
        const struct symbol *symbol = &frame->symbols[i];
        if (symbol->kind == SYMBOL_PARAMETER)
            continue;
        loads[scope->n_loads++] = (struct load){
            .kind = (uint8_t)(symbol->kind == SYMBOL_ALIAS     ? LOAD_ALIAS
                              : symbol->kind == SYMBOL_RESOLVE ? LOAD_RESOLVE
                                                               : LOAD_UNDEFINED),
            .slot = symbol->slot,
            .from_hops = symbol->from_hops,
            .from_slot = symbol->from_slot,
            .name = symbol->name,
            .global = global_find(symbol->name)};
    }
}

// A scope that holds just a body.
static void bind_scope(struct resolver *rs, struct frame *parent, struct scope *scope,
                       const struct body *body, struct node *filter) {
    struct frame frame = {.parent = parent, .function = parent->function};
    declare_body(rs, &frame, body);
    walk(filter, visit_load, &(struct visit){rs, &frame});
    bind_body(rs, &frame, body);
    bind(rs, &frame, filter);
    finish_scope(rs, &frame, scope);
    frame_deinit(&frame);
}

static bool has_parameter(const struct function *function, const char *name) {
    for (uint32_t i = 0; i < function->n_params; i++)
        if (str_eq_c(function->params[i].name, name))
            return true;
    return false;
}

static void bind_function(struct resolver *rs, struct frame *parent, struct function *function) {
    struct frame frame = {.parent = parent, .function = function};
    function->outer = parent ? parent->function : NULL;
    if (function->outer)
        function->outer->captured = true;
    for (uint32_t i = 0; i < function->n_params; i++)
        function->params[i].slot = declare_parameter(rs, &frame, function->params[i].name);
    for (uint32_t i = 0; i < function->n_params; i++)
        walk(function->params[i].fallback, visit_load, &(struct visit){rs, &frame});
    declare_body(rs, &frame, &function->body);
    if (parent) {
        function->explicit_caller = has_parameter(function, "caller");
        function->uses_caller = !function->explicit_caller && reads(&function->body, STR("caller"));
        if (function->uses_caller)
            function->caller_slot = declare_parameter(rs, &frame, STR("caller"));
        function->uses_kwargs =
            !has_parameter(function, "kwargs") && reads(&function->body, STR("kwargs"));
        if (function->uses_kwargs)
            function->kwargs_slot = declare_parameter(rs, &frame, STR("kwargs"));
        function->uses_varargs =
            !has_parameter(function, "varargs") && reads(&function->body, STR("varargs"));
        if (function->uses_varargs)
            function->varargs_slot = declare_parameter(rs, &frame, STR("varargs"));
    }
    for (uint32_t i = 0; i < function->n_params; i++)
        bind(rs, &frame, function->params[i].fallback);
    bind_body(rs, &frame, &function->body);
    finish_scope(rs, &frame, &function->scope);
    frame_deinit(&frame);
}

static void bind_for(struct resolver *rs, struct frame *parent, struct for_loop *loop) {
    struct function *function = parent->function;
    if (loop->recursive) { // body, test and else run in an activation of their own at each level
        loop->function->outer = function;
        function->captured = true;
        function = loop->function;
    }
    loop->uses_loop = loop->recursive || reads(&loop->body, STR("loop"));

    struct frame frame = {.parent = parent, .function = function};
    if (loop->uses_loop)
        loop->loop_slot = declare_parameter(rs, &frame, STR("loop"));
    walk(loop->target, visit_parameter, &(struct visit){rs, &frame});
    declare_body(rs, &frame, &loop->body);
    bind(rs, &frame, loop->target);
    bind_body(rs, &frame, &loop->body);
    finish_scope(rs, &frame, &loop->scope);
    frame_deinit(&frame);

    if (loop->test) {
        struct frame test = {.parent = parent, .function = function};
        walk(loop->test_target, visit_parameter, &(struct visit){rs, &test});
        walk(loop->test, visit_load, &(struct visit){rs, &test});
        bind(rs, &test, loop->test_target);
        bind(rs, &test, loop->test);
        finish_scope(rs, &test, &loop->test_scope);
        frame_deinit(&test);
    }
    if (loop->other.n) {
        struct frame inner = {.parent = parent, .function = function};
        declare_body(rs, &inner, &loop->other);
        bind_body(rs, &inner, &loop->other);
        finish_scope(rs, &inner, &loop->other_scope);
        frame_deinit(&inner);
    }
}

static void bind_with(struct resolver *rs, struct frame *parent, struct node *node) {
    uint32_t half = node->n / 2;
    for (uint32_t i = half; i < node->n; i++)
        bind(rs, parent, node->kids[i]);
    struct frame frame = {.parent = parent, .function = parent->function};
    for (uint32_t i = 0; i < half; i++)
        walk(node->kids[i], visit_store, &(struct visit){rs, &frame});
    declare_body(rs, &frame, &node->body);
    for (uint32_t i = 0; i < half; i++)
        bind(rs, &frame, node->kids[i]);
    bind_body(rs, &frame, &node->body);
    finish_scope(rs, &frame, node->scope);
    frame_deinit(&frame);
}

static void bind_body(struct resolver *rs, struct frame *frame, const struct body *body) {
    for (uint32_t i = 0; i < body->n && !rs->failed; i++) {
        struct node *node = body->nodes[i];
        bool at_root = !frame->parent && frame->function == rs->template->root;
        switch ((enum node_kind)node->kind) {
        case N_PRINT:
            bind(rs, frame, node->a);
            break;
        case N_IF:
            for (uint32_t k = 0; k < node->n; k++) {
                bind(rs, frame, node->kids[k]);
                bind_body(rs, frame, &node->arms[k]);
            }
            bind_body(rs, frame, &node->other);
            break;
        case N_FOR:
            bind(rs, frame, node->loop->iter);
            bind_for(rs, frame, node->loop);
            break;
        case N_SET:
            bind(rs, frame, node->b);
            bind(rs, frame, node->a);
            node->toplevel = at_root;
            break;
        case N_SET_BLOCK:
            bind_scope(rs, frame, node->scope, &node->body, node->b);
            bind(rs, frame, node->a);
            node->toplevel = at_root;
            break;
        case N_MACRO:
            bind_name(&(struct visit){rs, frame}, node);
            bind_function(rs, frame, node->function);
            node->toplevel = at_root;
            break;
        case N_CALL_BLOCK:
            bind(rs, frame, node->a);
            bind_function(rs, frame, node->function);
            break;
        case N_FILTER_BLOCK:
        case N_SCOPE:
            bind_scope(rs, frame, node->scope, &node->body, node->b);
            break;
        case N_AUTOESCAPE:
            bind_scope(rs, frame, node->scope, &node->body, node->a);
            break;
        case N_WITH:
            bind_with(rs, frame, node);
            break;
        case N_BLOCK:
            bind_function(rs, NULL, node->function);
            break;
        default:
            break;
        }
    }
}

bool scope_resolve(struct template *template, struct err *err) {
    struct resolver rs = {.template = template, .err = err};
    bind_function(&rs, NULL, template->root);
    return !rs.failed;
}
