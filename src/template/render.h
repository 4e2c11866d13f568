// template/render.h - one rendering under way: its memory, limits and output, and what the builtins
// share. A struct render belongs to one thread.
#ifndef LOAM_TEMPLATE_RENDER_H
#define LOAM_TEMPLATE_RENDER_H
#include "base/err.h"
#include "template/ast.h"
#include "template/template.h"

// The variables of one call of a function.
struct activation {
    struct activation *outer; // of the function around it
    struct activation *free;  // next in the list of those that can be used again
    struct value slots[];
};

// A variable from outside. The JSON is borrowed and converted when it is first read.
struct binding {
    struct str name;
    const json_t *json;
    bool is_true; // json is NULL: the value is a bool
};

struct render {
    const struct template *template;
    struct arena arena;
    struct err *err;
    struct strbuf *out; // output, and above it whatever text is being built
    size_t output_bytes_max, memory_bytes_max;
    size_t out_start;
    uint64_t steps_left;
    uint32_t frames_left, calls_left;
    uint32_t line; // of what is being evaluated
    bool autoescape;
    bool folds; // what is being printed is a constant expression
    char *text_at, *text_end; // room where texts are put together
    char no_room[1];          // where they point at first
    struct activation *activation;
    struct activation **free_activations; // by function id
    const struct binding *bindings;
    uint32_t n_bindings;
    struct value *converted; // [n_bindings], V_MISSING until first read
    struct dict *exported;   // what the top level set, for blocks; or NULL
};

// Builtins get their arguments bound to parameters, V_MISSING where not given, ...
enum { BUILTIN_PARAMS_MAX = 6 };
struct keyword_value {
    struct str name;
    struct value value;
};
struct args {
    const struct value *items;
    const struct keyword_value *keywords;
    uint32_t n, n_keywords;
};
// ... the first being the filtered, tested or called-on value; `args` are as written.
typedef struct value builtin_fn(struct render *r, struct value *a, const struct args *args);
struct builtin {
    const char *name;
    builtin_fn *fn;
    uint8_t n_required; // of the parameters behind the first value
    bool takes_any;     // reads `args` itself
    bool positional;    // takes no keywords
    const char *params[BUILTIN_PARAMS_MAX];
};

// Whether that is the builtin's name. Most are told apart by their first letter.
static inline bool builtin_is_named(const struct builtin *builtin, struct str name) {
    return name.n && builtin->name[0] == name.data[0] && str_eq_c(name, builtin->name);
}

// ---- Failing ----------------------------------------------------------------------------------
// Each returns V_ERROR, with *r->err set.
struct value fail(struct render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct value fail_nomem(struct render *r);
struct value fail_undefined(struct render *r, struct value undefined);
// Count n units of work; false once the limit is reached.
bool charge(struct render *r, uint64_t n);

// ---- Memory -----------------------------------------------------------------------------------
// From the rendering's arena, zeroed; NULL with the error set.
void *render_alloc(struct render *r, size_t n);
void *render_array_of(struct render *r, size_t n, size_t element_bytes);
#define render_array(r, type, n) ((type *)render_array_of((r), (n), sizeof(type)))
struct value text_copy(struct render *r, struct str s);
// Text may be built above the output: note r->out->n, append to r->out, then take it off again.
struct value text_take(struct render *r, size_t mark);
struct value text_concat(struct render *r, struct str a, struct str b);
bool output_check(struct render *r);

struct list *list_new(struct render *r, size_t n);
struct value list_value(struct render *r, const struct value *items, uint32_t n); // a copy
struct dict *dict_new(struct render *r, uint32_t capacity);
// False with the error set, for instance if the key is not hashable.
bool dict_set(struct render *r, struct dict *dict, struct value key, struct value value);
struct value *dict_find(struct render *r, const struct dict *dict, struct value key);
struct value *dict_find_str(const struct dict *dict, struct str key);
struct value value_from_json(struct render *r, const json_t *json, uint32_t depth);

// ---- What Python does with values -------------------------------------------------------------
const char *type_name(struct value v);
bool truth(struct value v);
bool is_hashable(struct value v);
// 1, 0, or -1 with the error set.
int value_equal(struct render *r, struct value a, struct value b);
int value_contains(struct render *r, struct value container, struct value item);
// a op b for OP_LT, OP_LE, OP_GT, OP_GE.
int value_order(struct render *r, enum operation op, struct value a, struct value b);
struct value value_binary(struct render *r, enum operation op, struct value a, struct value b);
struct value value_compare(struct render *r, enum operation op, struct value a, struct value b);
struct value value_length(struct render *r, struct value v); // V_INT

// The elements of anything iterable; an iterator is used up. False with the error set.
struct span {
    const struct value *items;
    uint32_t n;
};
bool span_of(struct render *r, struct value v, struct span *out);
bool is_iterable(struct value v);
// The numbers of `keys` in ascending or descending order, equal ones as they stand; NULL with the error
// set.
uint32_t *sort_order(struct render *r, const struct value *keys, uint32_t n, bool reverse);

// An iterator makes its elements when they are first asked for.
struct iterator {
    struct value (*produce)(struct render *r, struct iterator *it); // NULL once it has; else a V_LIST
    const char *type;
    struct value source;
    struct args args;
    const struct value *items;
    uint32_t n, pos;
};
struct value iterator_new(struct render *r, const char *type, struct value source,
                          const struct args *args,
                          struct value (*produce)(struct render *, struct iterator *));
struct value iterator_of_list(struct render *r, const char *type, struct list *list);
bool iterator_fill(struct render *r, struct iterator *it);

// str(v), repr(v) at the end of r->out.
bool append_str(struct render *r, struct value v);
bool append_repr(struct render *r, struct value v);
struct value to_str(struct render *r, struct value v); // a V_STR; Markup becomes plain
struct value soft_str(struct render *r, struct value v); // Markup stays Markup
void append_escaped(struct strbuf *out, struct str s);
struct value escape(struct render *r, struct value v); // a Markup
// json.dumps
struct json_style {
    bool ensure_ascii, sort_keys;
    bool has_indent;
    struct str indent; // one level
    struct str item_separator, key_separator;
};
bool append_json(struct render *r, struct value v, const struct json_style *style);

// obj.name and obj[key], and slices.
bool is_sliceable(struct value object, const struct value parts[3]); // no error of types
struct value get_attribute(struct render *r, struct value object, const struct node *node);
struct value get_attribute_named(struct render *r, struct value object, struct str name);
struct value get_item(struct render *r, struct value object, struct value key);
struct value get_slice(struct render *r, struct value object, const struct value parts[3]);

// ---- Calling ----------------------------------------------------------------------------------
bool bind_args(struct render *r, const struct builtin *builtin, const struct args *args,
               struct value a[BUILTIN_PARAMS_MAX + 1]);
struct value call_builtin(struct render *r, const struct builtin *builtin, struct value first,
                          const struct args *args);
struct value call_value(struct render *r, struct value callee, const struct args *args);

// Arguments as numbers. A missing one leaves *out alone. False with the error set.
bool arg_int(struct render *r, struct value v, const char *name, int64_t *out);
bool arg_str(struct render *r, struct value v, const char *name, struct str *out);

// str % args, and str.format.
struct value format_percent(struct render *r, struct value format, struct value args);
struct value format_braces(struct render *r, struct value format, const struct args *args);
#endif
