// template/ast.h - a parsed template: nodes in one arena, names resolved to slots.
// Immutable after template_parse().
#ifndef LOAM_TEMPLATE_AST_H
#define LOAM_TEMPLATE_AST_H
#include "base/arena.h"
#include "template/value.h"

enum node_kind {
    // Expressions.
    N_CONST,
    N_NAME,     // name; slot, hops
    N_LIST,     // kids
    N_TUPLE,    // kids
    N_DICT,     // kids: key, value, key, value ...
    N_NEGATE,   // a
    N_POSITIVE, // a
    N_NOT,      // a
    N_BINARY,   // op; a, b
    N_AND,      // a, b
    N_OR,       // a, b
    N_CONCAT,   // kids
    N_COMPARE,  // a, then kids with ops
    N_COND,     // a if b else c (c may be NULL)
    N_ATTR,     // a.name
    N_ITEM,     // a[b]
    N_SLICE,    // a[kids[0]:kids[1]:kids[2]], NULL where left out
    N_CALL,     // a(call)
    N_FILTER,   // a|builtin(call); a is NULL in a filter block
    N_TEST,     // a is builtin(call)
    // Targets only.
    N_NAMESPACE_REF, // name.attr: name; slot, hops; value: the attribute
    // Statements.
    N_TEXT,      // value
    N_PRINT,     // a
    N_IF,        // kids: the conditions; arms: a body for each; other: else
    N_FOR,       // loop
    N_SET,       // a = b
    N_SET_BLOCK, // a = body, through filter b
    N_MACRO,     // function; slot: where it is stored
    N_CALL_BLOCK, // a: the call; function: caller
    N_FILTER_BLOCK, // body through filter b
    N_WITH,         // kids: targets then values; body
    N_SCOPE,        // body in a scope of its own
    N_AUTOESCAPE,   // a; body
    N_BLOCK,        // name; function
    N_BREAK,
    N_CONTINUE,
    N_REFUSED, // name: what cannot be done
};

enum operation {
    OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW,
    OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN,
};

struct body {
    struct node **nodes;
    uint32_t n;
};

struct keyword {
    struct str name;
    struct node *value;
};

struct call {
    struct node **args;
    struct keyword *keywords;
    uint32_t n_args, n_keywords;
    struct node *star, *star_star; // *a, **b; or NULL
};

// What a scope does when it is entered: give each of its variables its first value.
enum load_kind { LOAD_UNDEFINED, LOAD_RESOLVE, LOAD_ALIAS };
struct load {
    uint8_t kind; // enum load_kind
    uint32_t slot;
    uint32_t from_hops, from_slot; // LOAD_ALIAS
    struct str name;               // LOAD_RESOLVE,
    const struct builtin *global;  // and the global function of that name, or NULL
};
struct scope {
    struct load *loads;
    uint32_t n_loads;
};

// A body that is called: the template itself, a macro, the body of a call block, a recursive loop, a
// block. It has its own activation: slots for the variables of all scopes in it.
struct function {
    struct function *outer;
    struct str name;
    uint32_t n_slots, id;
    bool captured; // functions inside may outlive a call
    struct scope scope;
    struct body body;
    // Macros and callers: parameters in slots, NULL default where there is none.
    uint32_t n_params;
    struct param {
        struct str name;
        struct node *fallback;
        uint32_t slot;
    } *params;
    bool uses_caller, uses_kwargs, uses_varargs, explicit_caller;
    uint32_t caller_slot, kwargs_slot, varargs_slot;
};

struct for_loop {
    struct node *target, *iter, *test;
    struct body body, other;
    struct scope scope, test_scope, other_scope;
    struct node *test_target; // the same target in the test's scope
    bool recursive, uses_loop;
    uint32_t loop_slot;
    struct function *function; // recursive loops
};

struct node {
    uint8_t kind; // enum node_kind
    uint8_t op;   // enum operation
    bool toplevel; // N_SET ...: also seen by blocks
    bool constant; // N_PRINT: no names and calls in it
    uint16_t height; // of the tree of expressions below
    uint32_t line;
    uint32_t n; // of kids
    uint32_t slot, hops;
    struct node *a, *b, *c;
    struct node **kids;
    uint8_t *ops; // N_COMPARE: [n]
    struct str name;
    struct value value;
    struct body body, other;
    union {
        struct call *call;
        struct body *arms; // N_IF: [n]
        struct for_loop *loop;
        struct function *function;
        struct scope *scope;
    };
    const struct builtin *builtin; // N_FILTER, N_TEST; NULL: no such one
    int16_t str_method, dict_method, list_method; // N_ATTR: index of the method of that name, or -1
};

struct block {
    struct str name;
    struct function *function;
};

struct template {
    struct arena arena;
    struct str source; // newlines normalised
    struct function *root;
    uint32_t n_functions;
    struct block *blocks;
    uint32_t n_blocks;
};
#endif
