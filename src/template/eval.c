#include <assert.h>
#include <stdlib.h>

#include "template/macro.h"
#include "template/methods.h"
#include "template/number.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL };

// Arguments of a call that fit here need no memory from the arena.
enum { ARGS_INLINE = 6 };

static struct value eval(struct render *r, const struct node *node);
static enum flow exec(struct render *r, const struct body *body);

// ---- Variables --------------------------------------------------------------------------------

static struct value *slot_at(struct render *r, uint32_t hops, uint32_t slot) {
    struct activation *activation = r->activation;
    while (hops-- > 0)
        activation = activation->outer;
    return &activation->slots[slot];
}

// The value of a variable from outside or of a global function; V_MISSING if there is none.
static struct value resolve(struct render *r, const struct load *load) {
    struct str name = load->name;
    if (r->exported) {
        const struct value *set = dict_find_str(r->exported, name);
        if (set)
            return *set;
    }
    for (uint32_t i = r->n_bindings; i-- > 0;) {
        const struct binding *binding = &r->bindings[i];
        if (!str_eq(binding->name, name))
            continue;
        struct value *value = &r->converted[i];
        if (is_missing(*value))
            *value = binding->json ? value_from_json(r, binding->json, 0) : value_bool(binding->is_true);
        return *value;
    }
    return load->global ? (struct value){.type = V_FUNCTION, .function = load->global}
                        : value_missing();
}

static bool enter(struct render *r, const struct scope *scope) {
    struct value *slots = r->activation->slots;
    for (uint32_t i = 0; i < scope->n_loads; i++) {
        const struct load *load = &scope->loads[i];
        switch ((enum load_kind)load->kind) {
        case LOAD_UNDEFINED:
            slots[load->slot] = value_missing();
            break;
        case LOAD_ALIAS:
            slots[load->slot] = *slot_at(r, load->from_hops, load->from_slot);
            break;
        case LOAD_RESOLVE:
            slots[load->slot] = resolve(r, load);
            if (is_error(slots[load->slot]))
                return false;
            break;
        }
    }
    return true;
}

static struct activation *activation_new(struct render *r, const struct function *function,
                                         struct activation *outer) {
    struct activation *activation = r->free_activations[function->id];
    if (activation)
        r->free_activations[function->id] = activation->free;
    else
        activation = render_alloc(r, sizeof *activation + function->n_slots * sizeof(struct value));
    if (activation)
        activation->outer = outer;
    return activation;
}

static void activation_done(struct render *r, const struct function *function,
                            struct activation *activation) {
    if (function->captured)
        return; // a macro made in it may still look into it
    activation->free = r->free_activations[function->id];
    r->free_activations[function->id] = activation;
}

// ---- Calls ------------------------------------------------------------------------------------

static bool frame_enter(struct render *r) {
    if (r->frames_left == 0) {
        fail(r, "the template is nested too deeply while it runs");
        return false;
    }
    r->frames_left--;
    return charge(r, 1);
}

static void frame_leave(struct render *r) { r->frames_left++; }

bool bind_args(struct render *r, const struct builtin *builtin, const struct args *args,
               struct value a[BUILTIN_PARAMS_MAX + 1]) {
    uint32_t n_params = 0;
    while (n_params < BUILTIN_PARAMS_MAX && builtin->params[n_params])
        n_params++;
    if (args->n > n_params) {
        fail(r, "%s() takes at most %u arguments, %u given", builtin->name, n_params, args->n);
        return false;
    }
    for (uint32_t i = 0; i < BUILTIN_PARAMS_MAX; i++)
        a[i + 1] = i < args->n ? args->items[i] : value_missing();
    for (uint32_t k = 0; k < args->n_keywords; k++) {
        struct str name = args->keywords[k].name;
        uint32_t i = 0;
        while (i < n_params && !str_eq_c(name, builtin->params[i]))
            i++;
        if (i == n_params || builtin->positional) {
            fail(r, "%s() got an unexpected keyword argument '%.*s'", builtin->name, (int)name.n,
                 name.data);
            return false;
        }
        if (!is_missing(a[i + 1])) {
            fail(r, "%s() got multiple values for argument '%.*s'", builtin->name, (int)name.n,
                 name.data);
            return false;
        }
        a[i + 1] = args->keywords[k].value;
    }
    for (uint32_t i = 0; i < builtin->n_required; i++)
        if (is_missing(a[i + 1])) {
            fail(r, "%s() missing required argument '%s'", builtin->name, builtin->params[i]);
            return false;
        }
    return true;
}

struct value call_builtin(struct render *r, const struct builtin *builtin, struct value first,
                          const struct args *args) {
    struct value a[BUILTIN_PARAMS_MAX + 1];
    a[0] = first;
    if (!builtin->takes_any && !bind_args(r, builtin, args, a))
        return value_error();
    return builtin->fn(r, a, args);
}

struct value call_value(struct render *r, struct value callee, const struct args *args) {
    switch ((enum value_type)callee.type) {
    case V_MACRO:
        return macro_call(r, callee.macro, args);
    case V_FUNCTION:
        return call_builtin(r, callee.function, value_none(), args);
    case V_METHOD:
        return call_builtin(r, callee.method->builtin, callee.method->self, args);
    case V_LOOP:
        return loop_call(r, callee.loop, args);
    case V_JOINER:
        if (args->n || args->n_keywords)
            return fail(r, "a joiner takes no arguments");
        if (!callee.joiner->used) {
            callee.joiner->used = true;
            return value_str(STR(""));
        }
        return callee.joiner->separator;
    case V_UNDEFINED:
        return fail_undefined(r, callee);
    default:
        return fail(r, "'%s' object is not callable", type_name(callee));
    }
}

// Evaluated arguments, and the room they lie in.
struct call_frame {
    struct args args;
    struct value items[ARGS_INLINE];
    struct keyword_value keywords[ARGS_INLINE];
};

static bool add_stars(struct render *r, struct call_frame *frame, const struct call *call) {
    struct span more = {0};
    if (call->star) {
        struct value v = eval(r, call->star);
        if (is_error(v) || !span_of(r, v, &more))
            return false;
    }
    struct dict *keywords = NULL;
    if (call->star_star) {
        struct value v = eval(r, call->star_star);
        if (is_error(v))
            return false;
        if (v.type != V_DICT) {
            fail(r, "argument after ** must be a mapping, not %s", type_name(v));
            return false;
        }
        keywords = v.dict;
    }
    struct args *args = &frame->args;
    uint32_t n = args->n + more.n, n_keywords = args->n_keywords + (keywords ? keywords->n : 0);
    struct value *items = render_array(r, struct value, n);
    struct keyword_value *named = render_array(r, struct keyword_value, n_keywords);
    if (!items || !named)
        return false;
    if (args->n)
        memcpy(items, args->items, args->n * sizeof *items);
    if (more.n)
        memcpy(items + args->n, more.items, more.n * sizeof *items);
    if (args->n_keywords)
        memcpy(named, args->keywords, args->n_keywords * sizeof *named);
    for (uint32_t i = 0; keywords && i < keywords->n; i++) {
        if (keywords->entries[i].key.type != V_STR) {
            fail(r, "keywords must be strings");
            return false;
        }
        struct str name = str_of_value(keywords->entries[i].key);
        for (uint32_t k = 0; k < args->n_keywords; k++)
            if (str_eq(named[k].name, name)) {
                fail(r, "got multiple values for keyword argument '%.*s'", (int)name.n, name.data);
                return false;
            }
        named[args->n_keywords + i] = (struct keyword_value){name, keywords->entries[i].value};
    }
    *args = (struct args){items, named, n, n_keywords};
    return true;
}

// Evaluate the arguments of a call. `caller`: one more keyword argument, or V_MISSING.
static bool eval_args(struct render *r, const struct call *call, struct value caller,
                      struct call_frame *frame) {
    struct value *items = frame->items;
    struct keyword_value *keywords = frame->keywords;
    uint32_t n_keywords = call->n_keywords + !is_missing(caller);
    if (call->n_args > ARGS_INLINE && !(items = render_array(r, struct value, call->n_args)))
        return false;
    if (n_keywords > ARGS_INLINE && !(keywords = render_array(r, struct keyword_value, n_keywords)))
        return false;
    for (uint32_t i = 0; i < call->n_args; i++) {
        items[i] = eval(r, call->args[i]);
        if (is_error(items[i]))
            return false;
    }
    for (uint32_t i = 0; i < call->n_keywords; i++) {
        keywords[i] = (struct keyword_value){call->keywords[i].name, eval(r, call->keywords[i].value)};
        if (is_error(keywords[i].value))
            return false;
    }
    if (!is_missing(caller))
        keywords[call->n_keywords] = (struct keyword_value){STR("caller"), caller};
    frame->args = (struct args){items, keywords, call->n_args, n_keywords};
    return (!call->star && !call->star_star) || add_stars(r, frame, call);
}

static struct value eval_call(struct render *r, const struct node *node, struct value caller) {
    const struct node *callee = node->a;
    struct call_frame frame;
    if (callee->kind == N_ATTR) { // a method: no need to make an object of it first
        struct value self = eval(r, callee->a);
        if (is_error(self))
            return self;
        const struct builtin *method = NULL;
        if (self.type == V_STR && callee->str_method >= 0)
            method = method_get(V_STR, callee->str_method);
        else if (self.type == V_DICT && callee->dict_method >= 0)
            method = method_get(V_DICT, callee->dict_method);
        r->line = node->line;
        if (method && method->fn) {
            if (!eval_args(r, node->call, caller, &frame))
                return value_error();
            r->line = node->line;
            return call_builtin(r, method, self, &frame.args);
        }
        struct value function = get_attribute(r, self, callee);
        if (is_error(function) || !eval_args(r, node->call, caller, &frame))
            return value_error();
        r->line = node->line;
        return call_value(r, function, &frame.args);
    }
    struct value function = eval(r, callee);
    if (is_error(function) || !eval_args(r, node->call, caller, &frame))
        return value_error();
    r->line = node->line;
    return call_value(r, function, &frame.args);
}

// node's filter or test on a value.
static struct value eval_builtin(struct render *r, const struct node *node, struct value first) {
    if (!node->builtin) {
        r->line = node->line;
        return fail(r, "no %s named '%.*s'", node->kind == N_FILTER ? "filter" : "test",
                    (int)node->name.n, node->name.data);
    }
    struct call_frame frame;
    if (!eval_args(r, node->call, value_missing(), &frame))
        return value_error();
    r->line = node->line;
    return call_builtin(r, node->builtin, first, &frame.args);
}

// The text of the filters of a filter block or a set block, applied from the innermost outwards.
static struct value eval_filters(struct render *r, const struct node *filter, struct value text) {
    if (filter->a) {
        text = eval_filters(r, filter->a, text);
        if (is_error(text))
            return text;
    }
    return eval_builtin(r, filter, text);
}

// ---- Expressions ------------------------------------------------------------------------------

static struct value eval_list(struct render *r, const struct node *node) {
    struct list *list = list_new(r, node->n);
    if (!list)
        return value_error();
    for (uint32_t i = 0; i < node->n; i++) {
        list->items[i] = eval(r, node->kids[i]);
        if (is_error(list->items[i]))
            return value_error();
    }
    return node->kind == N_LIST ? value_list(list) : value_tuple(list);
}

static struct value eval_dict(struct render *r, const struct node *node) {
    struct dict *dict = dict_new(r, node->n / 2);
    if (!dict)
        return value_error();
    for (uint32_t i = 0; i < node->n; i += 2) {
        struct value key = eval(r, node->kids[i]);
        if (is_error(key))
            return key;
        struct value value = eval(r, node->kids[i + 1]);
        if (is_error(value))
            return value;
        r->line = node->line;
        if (!dict_set(r, dict, key, value))
            return value_error();
    }
    return value_dict(dict);
}

static struct value eval_concat(struct render *r, const struct node *node) {
    struct value text = value_str(STR(""));
    for (uint32_t i = 0; i < node->n; i++) {
        struct value part = eval(r, node->kids[i]);
        if (is_error(part))
            return part;
        r->line = node->line;
        if (r->autoescape && !r->folds) { // one Markup makes all of it Markup
            part = soft_str(r, part);
            if (is_error(part))
                return part;
            text = value_binary(r, OP_ADD, text, part);
        } else {
            part = to_str(r, part);
            if (is_error(part))
                return part;
            text = i ? text_concat(r, str_of_value(text), str_of_value(part)) : part;
        }
        if (is_error(text))
            return text;
    }
    return text;
}

static struct value eval_compare(struct render *r, const struct node *node) {
    struct value left = eval(r, node->a), result = value_bool(true);
    if (is_error(left))
        return left;
    for (uint32_t i = 0; i < node->n; i++) {
        struct value right = eval(r, node->kids[i]);
        if (is_error(right))
            return right;
        r->line = node->line;
        result = value_compare(r, (enum operation)node->ops[i], left, right);
        if (is_error(result) || !result.b)
            return result;
        left = right;
    }
    return result;
}

static struct value eval_slice(struct render *r, const struct node *node) {
    struct value object = eval(r, node->a), parts[3];
    if (is_error(object))
        return object;
    for (int i = 0; i < 3; i++) {
        parts[i] = node->kids[i] ? eval(r, node->kids[i]) : value_missing();
        if (is_error(parts[i]))
            return parts[i];
    }
    r->line = node->line;
    // What Jinja prints as a constant it computes beforehand, and there takes a slice as it takes an
    // element: what cannot be sliced is undefined.
    if (r->folds && object.type != V_UNDEFINED && !is_sliceable(object, parts))
        return value_undefined(UNDEFINED_ELEMENT, (enum value_type)object.type, STR("slice"));
    return get_slice(r, object, parts);
}

static struct value eval_unary(struct render *r, const struct node *node) {
    struct value v = eval(r, node->a);
    if (is_error(v))
        return v;
    if (node->kind == N_NOT)
        return value_bool(!truth(v));
    r->line = node->line;
    if (v.type == V_UNDEFINED)
        return fail_undefined(r, v);
    if (!is_number(v))
        return fail(r, "bad operand type for unary %c: '%s'", node->kind == N_NEGATE ? '-' : '+',
                    type_name(v));
    if (node->kind == N_NEGATE) {
        v = number_negate(&r->arena, v);
        return is_error(v) ? fail_nomem(r) : v;
    }
    return v.type == V_BOOL ? value_int(v.b) : v;
}

static struct value eval_binary(struct render *r, const struct node *node) {
    struct value a = eval(r, node->a);
    if (is_error(a))
        return a;
    struct value b = eval(r, node->b);
    if (is_error(b))
        return b;
    r->line = node->line;
    return value_binary(r, (enum operation)node->op, a, b);
}

static struct value eval_item(struct render *r, const struct node *node) {
    struct value object = eval(r, node->a);
    if (is_error(object))
        return object;
    struct value key = eval(r, node->b);
    if (is_error(key))
        return key;
    r->line = node->line;
    return get_item(r, object, key);
}

static struct value eval_compound(struct render *r, const struct node *node) {
    switch ((enum node_kind)node->kind) {
    case N_LIST:
    case N_TUPLE:
        return eval_list(r, node);
    case N_DICT:
        return eval_dict(r, node);
    case N_NEGATE:
    case N_POSITIVE:
    case N_NOT:
        return eval_unary(r, node);
    case N_BINARY:
        return eval_binary(r, node);
    case N_AND:
    case N_OR: {
        struct value v = eval(r, node->a);
        if (is_error(v) || truth(v) == (node->kind == N_OR))
            return v;
        return eval(r, node->b);
    }
    case N_CONCAT:
        return eval_concat(r, node);
    case N_COMPARE:
        return eval_compare(r, node);
    case N_COND: {
        struct value condition = eval(r, node->b);
        if (is_error(condition))
            return condition;
        if (truth(condition))
            return eval(r, node->a);
        if (node->c)
            return eval(r, node->c);
        return value_hint(STR("an inline if was false and has no else"));
    }
    case N_ATTR: {
        struct value object = eval(r, node->a);
        r->line = node->line;
        return is_error(object) ? object : get_attribute(r, object, node);
    }
    case N_ITEM:
        return eval_item(r, node);
    case N_SLICE:
        return eval_slice(r, node);
    case N_CALL:
        return eval_call(r, node, value_missing());
    case N_FILTER:
    case N_TEST: {
        struct value v = eval(r, node->a);
        return is_error(v) ? v : eval_builtin(r, node, v);
    }
    default:
        break;
    }
    assert(false && "an expression");
    return value_error();
}

static struct value eval(struct render *r, const struct node *node) {
    if (node->kind == N_CONST)
        return node->value;
    if (node->kind == N_NAME) {
        struct value v = *slot_at(r, node->hops, node->slot);
        return is_missing(v) ? value_undefined(UNDEFINED_NAME, V_NONE, node->name) : v;
    }
    if (!frame_enter(r))
        return value_error();
    struct value v = eval_compound(r, node);
    frame_leave(r);
    return v;
}

// ---- Loops ------------------------------------------------------------------------------------

static bool assign(struct render *r, const struct node *target, struct value value);

// 1 and the next element that passes the loop's test, 0 at the end, -1 with the error set.
static int loop_advance(struct render *r, struct loop *loop, struct value *out) {
    if (loop->peeked) {
        loop->peeked = false;
        *out = loop->next;
        return 1;
    }
    while (loop->at < loop->n) {
        *out = loop->items[loop->at++];
        if (!loop->tests)
            return 1;
        struct activation *activation = r->activation;
        r->activation = loop->activation;
        struct value passes = value_error();
        if (enter(r, &loop->node->test_scope) && assign(r, loop->node->test_target, *out))
            passes = eval(r, loop->node->test);
        r->activation = activation;
        if (is_error(passes))
            return -1;
        if (truth(passes))
            return 1;
    }
    return 0;
}

// Look at the next element without taking it: 1, 0 at the end, -1.
static int loop_peek(struct render *r, struct loop *loop) {
    if (loop->peeked)
        return 1;
    struct value next;
    int more = loop_advance(r, loop, &next);
    if (more == 1) {
        loop->peeked = true;
        loop->next = next;
    }
    return more;
}

struct value loop_length(struct render *r, struct loop *loop) {
    if (loop->tests) { // only what is left is worth testing; do it once
        struct list *rest = list_new(r, (size_t)loop->n - loop->at + 1);
        if (!rest)
            return value_error();
        rest->n = 0;
        struct value item;
        int more;
        while ((more = loop_advance(r, loop, &item)) == 1)
            rest->items[rest->n++] = item;
        if (more < 0)
            return value_error();
        loop->tests = false;
        // Keep the counting of positions: elements already taken come before `at`.
        uint32_t done = loop->index0 + 1;
        struct list *all = list_new(r, (size_t)done + rest->n);
        if (!all)
            return value_error();
        for (uint32_t i = 0; i < rest->n; i++)
            all->items[done + i] = rest->items[i];
        loop->items = all->items;
        loop->at = done;
        loop->n = all->n;
    }
    return value_int(loop->n);
}

bool loop_append_repr(struct render *r, struct loop *loop) {
    struct value n = loop_length(r, loop);
    if (is_error(n))
        return false;
    strbuf_printf(r->out, "<LoopContext %u/%lld>", loop->index0 + 1, (long long)n.i);
    return true;
}

struct value loop_attribute(struct render *r, struct value value, struct str name) {
    struct loop *loop = value.loop;
    if (str_eq(name, STR("index")))
        return value_int((int64_t)loop->index0 + 1);
    if (str_eq(name, STR("index0")))
        return value_int(loop->index0);
    if (str_eq(name, STR("first")))
        return value_bool(loop->index0 == 0);
    if (str_eq(name, STR("last"))) {
        int more = loop_peek(r, loop);
        return more < 0 ? value_error() : value_bool(!more);
    }
    if (str_eq(name, STR("previtem")))
        return is_missing(loop->previous) ? value_hint(STR("there is no previous item")) : loop->previous;
    if (str_eq(name, STR("nextitem"))) {
        int more = loop_peek(r, loop);
        return more < 0 ? value_error() : more ? loop->next : value_hint(STR("there is no next item"));
    }
    if (str_eq(name, STR("length")))
        return loop_length(r, loop);
    if (str_eq(name, STR("revindex")) || str_eq(name, STR("revindex0"))) {
        struct value n = loop_length(r, loop);
        return is_error(n) ? n : value_int(n.i - loop->index0 - (name.n == strlen("revindex0")));
    }
    if (str_eq(name, STR("depth")))
        return value_int((int64_t)loop->depth0 + 1);
    if (str_eq(name, STR("depth0")))
        return value_int(loop->depth0);
    return method_bind(r, value, name);
}

// Run the rounds of a loop in the current activation.
static enum flow run_loop(struct render *r, const struct for_loop *node, struct value iterable,
                          uint32_t depth0) {
    struct span span;
    if (!span_of(r, iterable, &span))
        return FLOW_FAIL;
    struct loop on_stack, *loop = &on_stack;
    if (node->uses_loop && !(loop = render_alloc(r, sizeof *loop)))
        return FLOW_FAIL;
    *loop = (struct loop){.node = node,
                          .activation = r->activation,
                          .items = span.items,
                          .n = span.n,
                          .tests = node->test != NULL,
                          .current = value_missing(),
                          .previous = value_missing(),
                          .index0 = UINT32_MAX,
                          .depth0 = depth0,
                          .changed = value_missing()};
    struct value item;
    int more;
    bool any = false;
    while ((more = loop_advance(r, loop, &item)) == 1) {
        any = true;
        loop->previous = loop->current;
        loop->current = item;
        loop->index0++;
        if (!charge(r, 1) || !enter(r, &node->scope))
            return FLOW_FAIL;
        if (node->uses_loop)
            r->activation->slots[node->loop_slot] = (struct value){.type = V_LOOP, .loop = loop};
        if (!assign(r, node->target, item))
            return FLOW_FAIL;
        enum flow flow = exec(r, &node->body);
        if (flow == FLOW_FAIL)
            return flow;
        if (flow == FLOW_BREAK)
            break;
    }
    if (more < 0)
        return FLOW_FAIL;
    if (!any && node->other.n) {
        if (!enter(r, &node->other_scope))
            return FLOW_FAIL;
        return exec(r, &node->other);
    }
    return FLOW_NEXT;
}

// One level of a recursive loop, in an activation of its own.
static enum flow run_recursive(struct render *r, const struct for_loop *node, struct activation *outer,
                               struct value iterable, uint32_t depth0) {
    struct activation *caller = r->activation;
    struct activation *own = activation_new(r, node->function, outer);
    if (!own)
        return FLOW_FAIL;
    r->activation = own;
    enum flow flow = run_loop(r, node, iterable, depth0);
    r->activation = caller;
    return flow;
}

static bool call_enter(struct render *r) {
    if (r->calls_left == 0) {
        fail(r, "macros call each other too deeply");
        return false;
    }
    r->calls_left--;
    return frame_enter(r);
}

static void call_leave(struct render *r) {
    r->calls_left++;
    frame_leave(r);
}

// What was printed since `mark`, as the value of a macro or block.
static struct value take_output(struct render *r, size_t mark) {
    struct value text = text_take(r, mark);
    text.flags = !is_error(text) && r->autoescape ? STR_MARKUP : 0;
    return text;
}

struct value loop_call(struct render *r, struct loop *loop, const struct args *args) {
    if (!loop->node->recursive)
        return fail(r, "the loop must have the 'recursive' marker to be called recursively");
    if (args->n != 1 || args->n_keywords)
        return fail(r, "loop() takes exactly one argument");
    if (!call_enter(r))
        return value_error();
    size_t mark = r->out->n;
    enum flow flow = run_recursive(r, loop->node, loop->activation->outer, args->items[0],
                                   loop->depth0 + 1);
    call_leave(r);
    return flow == FLOW_FAIL ? value_error() : take_output(r, mark);
}

// ---- Macros -----------------------------------------------------------------------------------

void macro_append_repr(struct strbuf *out, const struct macro *macro) {
    if (macro->anonymous)
        strbuf_append_c(out, "<Macro anonymous>");
    else
        strbuf_printf(out, "<Macro '%.*s'>", (int)macro->function->name.n, macro->function->name.data);
}

struct value macro_attribute(struct render *r, const struct macro *macro, struct str name) {
    const struct function *function = macro->function;
    if (str_eq(name, STR("name")))
        return macro->anonymous ? value_none() : value_str(function->name);
    if (str_eq(name, STR("arguments"))) {
        struct list *list = list_new(r, function->n_params);
        if (!list)
            return value_error();
        for (uint32_t i = 0; i < list->n; i++)
            list->items[i] = value_str(function->params[i].name);
        return value_tuple(list);
    }
    if (str_eq(name, STR("catch_kwargs")))
        return value_bool(function->uses_kwargs);
    if (str_eq(name, STR("catch_varargs")))
        return value_bool(function->uses_varargs);
    if (str_eq(name, STR("caller")))
        return value_bool(function->uses_caller || function->explicit_caller);
    if (str_eq(name, STR("explicit_caller")))
        return value_bool(function->explicit_caller);
    return value_undefined(UNDEFINED_ATTRIBUTE, V_MACRO, name);
}

// Give the parameters their values, in the activation r->activation.
static bool bind_parameters(struct render *r, const struct function *function, const struct args *args) {
    struct value *slots = r->activation->slots;
    struct str name = function->name;
    uint64_t used[4] = {0}; // which keywords were taken
    bool caller_taken = false;
    if (args->n_keywords > 256) {
        fail(r, "a call has more than 256 keyword arguments");
        return false;
    }
    for (uint32_t i = 0; i < function->n_params; i++) {
        const struct param *param = &function->params[i];
        struct value v = i < args->n ? args->items[i] : value_missing();
        for (uint32_t k = 0; i >= args->n && k < args->n_keywords; k++)
            if (str_eq(args->keywords[k].name, param->name)) {
                v = args->keywords[k].value;
                used[k / 64] |= (uint64_t)1 << (k % 64);
            }
        slots[param->slot] = v;
        caller_taken |= i >= args->n && str_eq(param->name, STR("caller"));
    }
    if (function->uses_caller && !caller_taken) {
        struct value caller = value_hint(STR("no caller defined"));
        for (uint32_t k = 0; k < args->n_keywords; k++)
            if (str_eq(args->keywords[k].name, STR("caller"))) {
                caller = args->keywords[k].value;
                used[k / 64] |= (uint64_t)1 << (k % 64);
            }
        slots[function->caller_slot] = caller;
    }
    struct dict *kwargs = NULL;
    if (function->uses_kwargs) {
        if (!(kwargs = dict_new(r, args->n_keywords)))
            return false;
        slots[function->kwargs_slot] = value_dict(kwargs);
    }
    for (uint32_t k = 0; k < args->n_keywords; k++) {
        if (used[k / 64] >> (k % 64) & 1)
            continue;
        struct str key = args->keywords[k].name;
        if (!kwargs) {
            fail(r, "macro '%.*s' takes no keyword argument '%.*s'", (int)name.n, name.data, (int)key.n,
                 key.data);
            return false;
        }
        if (!dict_set(r, kwargs, value_str(key), args->keywords[k].value))
            return false;
    }
    if (function->uses_varargs) {
        uint32_t from = args->n < function->n_params ? args->n : function->n_params;
        struct value rest = list_value(r, args->items + from, args->n - from);
        if (is_error(rest))
            return false;
        rest.type = V_TUPLE;
        slots[function->varargs_slot] = rest;
    } else if (args->n > function->n_params) {
        fail(r, "macro '%.*s' takes not more than %u argument(s)", (int)name.n, name.data,
             function->n_params);
        return false;
    }
    for (uint32_t i = 0; i < function->n_params; i++) {
        const struct param *param = &function->params[i];
        if (!is_missing(slots[param->slot]))
            continue;
        slots[param->slot] = param->fallback
                                 ? eval(r, param->fallback)
                                 : value_undefined(UNDEFINED_NAME, V_NONE, param->name);
        if (is_error(slots[param->slot]))
            return false;
    }
    return true;
}

struct value macro_call(struct render *r, const struct macro *macro, const struct args *args) {
    const struct function *function = macro->function;
    if (!call_enter(r))
        return value_error();
    struct activation *caller = r->activation;
    struct activation *own = activation_new(r, function, macro->closure);
    if (!own)
        return value_error();
    r->activation = own;
    size_t mark = r->out->n;
    uint32_t line = r->line;
    bool ok = enter(r, &function->scope) && bind_parameters(r, function, args) &&
              exec(r, &function->body) != FLOW_FAIL;
    r->activation = caller;
    if (!ok)
        return value_error();
    r->line = line;
    activation_done(r, function, own);
    call_leave(r);
    return take_output(r, mark);
}

// ---- Statements -------------------------------------------------------------------------------

static bool unpack(struct render *r, const struct node *target, struct value value) {
    if (!is_iterable(value)) {
        fail(r, "cannot unpack non-iterable %s object", type_name(value));
        return false;
    }
    struct span span;
    if (!span_of(r, value, &span))
        return false;
    if (span.n != target->n) {
        if (span.n < target->n)
            fail(r, "not enough values to unpack (expected %u, got %u)", target->n, span.n);
        else
            fail(r, "too many values to unpack (expected %u)", target->n);
        return false;
    }
    for (uint32_t i = 0; i < span.n; i++)
        if (!assign(r, target->kids[i], span.items[i]))
            return false;
    return true;
}

static bool assign(struct render *r, const struct node *target, struct value value) {
    if (target->kind == N_NAME) {
        *slot_at(r, target->hops, target->slot) = value;
        return true;
    }
    r->line = target->line;
    if (target->kind == N_TUPLE)
        return unpack(r, target, value);
    struct value ns = *slot_at(r, target->hops, target->slot);
    if (ns.type != V_NAMESPACE) {
        fail(r, "cannot assign attribute on non-namespace object");
        return false;
    }
    return dict_set(r, ns.dict, target->value, value);
}

// What the top level of a template with blocks sets is seen inside its blocks.
static bool export_target(struct render *r, const struct node *target) {
    if (target->kind == N_TUPLE)
        for (uint32_t i = 0; i < target->n; i++)
            if (!export_target(r, target->kids[i]))
                return false;
    if (target->kind != N_NAME && target->kind != N_MACRO)
        return true;
    struct value v = *slot_at(r, target->hops, target->slot);
    return is_missing(v) || dict_set(r, r->exported, value_str(target->name), v);
}

static enum flow exec_print(struct render *r, const struct node *node) {
    r->folds = node->constant;
    struct value v = eval(r, node->a);
    r->folds = false;
    if (is_error(v))
        return FLOW_FAIL;
    if (r->autoescape) {
        v = escape(r, v);
        if (is_error(v))
            return FLOW_FAIL;
    }
    return append_str(r, v) && output_check(r) ? FLOW_NEXT : FLOW_FAIL;
}

static enum flow exec_if(struct render *r, const struct node *node) {
    for (uint32_t i = 0; i < node->n; i++) {
        struct value condition = eval(r, node->kids[i]);
        if (is_error(condition))
            return FLOW_FAIL;
        if (truth(condition))
            return exec(r, &node->arms[i]);
    }
    return exec(r, &node->other);
}

static enum flow exec_for(struct render *r, const struct node *node) {
    struct value iterable = eval(r, node->loop->iter);
    if (is_error(iterable))
        return FLOW_FAIL;
    r->line = node->line;
    if (node->loop->recursive)
        return run_recursive(r, node->loop, r->activation, iterable, 0);
    return run_loop(r, node->loop, iterable, 0);
}

static enum flow exec_set(struct render *r, const struct node *node) {
    struct value v = eval(r, node->b);
    if (is_error(v) || !assign(r, node->a, v))
        return FLOW_FAIL;
    return !node->toplevel || !r->exported || export_target(r, node->a) ? FLOW_NEXT : FLOW_FAIL;
}

// Run a body and take what it printed; V_MISSING if it left by break or continue (*flow says which).
static struct value captured(struct render *r, const struct node *node, enum flow *flow) {
    size_t mark = r->out->n;
    *flow = enter(r, node->scope) ? exec(r, &node->body) : FLOW_FAIL;
    if (*flow == FLOW_FAIL)
        return value_error();
    if (*flow != FLOW_NEXT) {
        r->out->n = mark;
        return value_missing();
    }
    struct value text = take_output(r, mark);
    if (is_error(text) || !node->b)
        return text;
    return eval_filters(r, node->b, text);
}

static enum flow exec_set_block(struct render *r, const struct node *node) {
    enum flow flow;
    struct value text = captured(r, node, &flow);
    if (is_error(text))
        return FLOW_FAIL;
    if (is_missing(text))
        return flow;
    if (!assign(r, node->a, text))
        return FLOW_FAIL;
    return !node->toplevel || !r->exported || export_target(r, node->a) ? FLOW_NEXT : FLOW_FAIL;
}

static enum flow exec_filter_block(struct render *r, const struct node *node) {
    enum flow flow;
    struct value text = captured(r, node, &flow);
    if (is_error(text))
        return FLOW_FAIL;
    if (is_missing(text))
        return flow;
    return append_str(r, text) && output_check(r) ? FLOW_NEXT : FLOW_FAIL;
}

static struct value new_macro(struct render *r, const struct function *function, bool anonymous) {
    struct macro *macro = render_alloc(r, sizeof *macro);
    if (!macro)
        return value_error();
    *macro = (struct macro){function, r->activation, anonymous};
    return (struct value){.type = V_MACRO, .macro = macro};
}

static enum flow exec_macro(struct render *r, const struct node *node) {
    struct value macro = new_macro(r, node->function, false);
    if (is_error(macro))
        return FLOW_FAIL;
    *slot_at(r, node->hops, node->slot) = macro;
    return !node->toplevel || !r->exported || export_target(r, node) ? FLOW_NEXT : FLOW_FAIL;
}

static enum flow exec_call_block(struct render *r, const struct node *node) {
    struct value caller = new_macro(r, node->function, true);
    if (is_error(caller))
        return FLOW_FAIL;
    struct value v = eval_call(r, node->a, caller);
    if (!is_error(v) && r->autoescape)
        v = escape(r, v);
    if (is_error(v))
        return FLOW_FAIL;
    return append_str(r, v) && output_check(r) ? FLOW_NEXT : FLOW_FAIL;
}

static enum flow exec_with(struct render *r, const struct node *node) {
    uint32_t n = node->n / 2;
    struct value *values = render_array(r, struct value, n);
    if (!values)
        return FLOW_FAIL;
    for (uint32_t i = 0; i < n; i++) {
        values[i] = eval(r, node->kids[n + i]);
        if (is_error(values[i]))
            return FLOW_FAIL;
    }
    if (!enter(r, node->scope))
        return FLOW_FAIL;
    for (uint32_t i = 0; i < n; i++)
        if (!assign(r, node->kids[i], values[i]))
            return FLOW_FAIL;
    return exec(r, &node->body);
}

static enum flow exec_autoescape(struct render *r, const struct node *node) {
    if (!enter(r, node->scope))
        return FLOW_FAIL;
    struct value on = eval(r, node->a);
    if (is_error(on))
        return FLOW_FAIL;
    bool before = r->autoescape;
    r->autoescape = truth(on);
    enum flow flow = exec(r, &node->body);
    r->autoescape = before;
    return flow;
}

static enum flow exec_block(struct render *r, const struct node *node) {
    struct activation *caller = r->activation;
    struct activation *own = activation_new(r, node->function, NULL);
    if (!own)
        return FLOW_FAIL;
    r->activation = own;
    enum flow flow = enter(r, &node->function->scope) ? exec(r, &node->function->body) : FLOW_FAIL;
    r->activation = caller;
    return flow;
}

static enum flow exec_node(struct render *r, const struct node *node) {
    switch ((enum node_kind)node->kind) {
    case N_TEXT:
        strbuf_append(r->out, str_of_value(node->value));
        return output_check(r) ? FLOW_NEXT : FLOW_FAIL;
    case N_PRINT:
        return exec_print(r, node);
    case N_IF:
        return exec_if(r, node);
    case N_FOR:
        return exec_for(r, node);
    case N_SET:
        return exec_set(r, node);
    case N_SET_BLOCK:
        return exec_set_block(r, node);
    case N_MACRO:
        return exec_macro(r, node);
    case N_CALL_BLOCK:
        return exec_call_block(r, node);
    case N_FILTER_BLOCK:
        return exec_filter_block(r, node);
    case N_WITH:
        return exec_with(r, node);
    case N_SCOPE:
        return enter(r, node->scope) ? exec(r, &node->body) : FLOW_FAIL;
    case N_AUTOESCAPE:
        return exec_autoescape(r, node);
    case N_BLOCK:
        return exec_block(r, node);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    case N_REFUSED:
        fail(r, "{%% %.*s %%} is not supported: a chat template is one file", (int)node->name.n,
             node->name.data);
        return FLOW_FAIL;
    default:
        break;
    }
    assert(false && "a statement");
    return FLOW_FAIL;
}

static enum flow exec(struct render *r, const struct body *body) {
    if (!frame_enter(r))
        return FLOW_FAIL;
    enum flow flow = FLOW_NEXT;
    for (uint32_t i = 0; i < body->n && flow == FLOW_NEXT; i++) {
        r->line = body->nodes[i]->line;
        flow = exec_node(r, body->nodes[i]);
    }
    frame_leave(r);
    return flow;
}

bool render_root(struct render *r) {
    const struct function *root = r->template->root;
    if (r->template->n_blocks && !(r->exported = dict_new(r, 0)))
        return false;
    r->activation = activation_new(r, root, NULL);
    return r->activation && enter(r, &root->scope) && exec(r, &root->body) != FLOW_FAIL;
}
