// template/value.h - the values that a rendering computes with: Python's None, bool, int, float, str,
// list, tuple, dict and a few objects of Jinja. 16 bytes, passed by value; what they point to lives in
// the rendering's arena, in the parsed template or in the caller's JSON, and never changes once it is
// seen (only namespaces, cyclers, joiners, iterators and loops do).
#ifndef LOAM_TEMPLATE_VALUE_H
#define LOAM_TEMPLATE_VALUE_H
#include "base/bytes.h"

enum value_type {
    V_ERROR,   // evaluation failed: the message is in the rendering's struct err
    V_MISSING, // no value: an argument that was not given, a variable that was never set
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, // an integer beyond 64 bits
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_VIEW,     // dict.keys(), .values(), .items()
    V_ITERATOR, // what map, select, batch ... return: read once
    V_NAMESPACE,
    V_MACRO,
    V_METHOD,   // a method with its object
    V_FUNCTION, // a global function
    V_LOOP,
    V_CYCLER,
    V_JOINER,
};

// For V_STR.
enum { STR_MARKUP = 1 }; // a markupsafe.Markup: what joins it is escaped

// For V_UNDEFINED: what to say when it is used. `s` is the name.
enum undefined_kind {
    UNDEFINED_NAME,      // 's' is undefined
    UNDEFINED_ATTRIBUTE, // '<aux> object' has no attribute 's'
    UNDEFINED_ELEMENT,   // <aux> object has no element s
    UNDEFINED_UNSAFE,    // access to attribute 's' of '<aux>' object is unsafe
    UNDEFINED_HINT,      // s itself is the sentence
};

struct list;
struct dict;
struct big;
struct range;
struct view;
struct iterator;
struct macro;
struct bound_method;
struct builtin;
struct loop;
struct cycler;
struct joiner;

struct value {
    uint8_t type;  // enum value_type
    uint8_t flags; // V_STR: STR_MARKUP; V_UNDEFINED: enum undefined_kind
    uint16_t aux;  // V_UNDEFINED: the enum value_type of the object
    uint32_t n;    // V_STR, V_UNDEFINED: bytes
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        struct big *big;
        struct list *list; // V_LIST, V_TUPLE
        struct dict *dict; // V_DICT, V_NAMESPACE
        struct range *range;
        struct view *view;
        struct iterator *iterator;
        struct macro *macro;
        struct bound_method *method;
        const struct builtin *function;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
        const void *object;
    };
};

static inline struct value value_error(void) { return (struct value){.type = V_ERROR}; }
static inline struct value value_missing(void) { return (struct value){.type = V_MISSING}; }
static inline struct value value_none(void) { return (struct value){.type = V_NONE}; }
static inline struct value value_bool(bool b) { return (struct value){.type = V_BOOL, .b = b}; }
static inline struct value value_int(int64_t i) { return (struct value){.type = V_INT, .i = i}; }
static inline struct value value_float(double f) { return (struct value){.type = V_FLOAT, .f = f}; }
// Requires s.n <= UINT32_MAX: sources, JSON and rendered text are bounded before.
static inline struct value value_str(struct str s) {
    return (struct value){.type = V_STR, .n = (uint32_t)s.n, .s = s.data ? s.data : ""};
}
static inline struct value value_list(struct list *list) {
    return (struct value){.type = V_LIST, .list = list};
}
static inline struct value value_tuple(struct list *list) {
    return (struct value){.type = V_TUPLE, .list = list};
}
static inline struct value value_dict(struct dict *dict) {
    return (struct value){.type = V_DICT, .dict = dict};
}
static inline struct value value_undefined(enum undefined_kind kind, enum value_type owner,
                                           struct str name) {
    return (struct value){.type = V_UNDEFINED, .flags = (uint8_t)kind, .aux = (uint16_t)owner,
                          .n = (uint32_t)name.n, .s = name.data};
}
static inline struct value value_hint(struct str sentence) {
    return value_undefined(UNDEFINED_HINT, V_NONE, sentence);
}
static inline struct str str_of_value(struct value v) { return (struct str){v.s, v.n}; }
static inline bool is_error(struct value v) { return v.type == V_ERROR; }
static inline bool is_str(struct value v) { return v.type == V_STR; }
static inline bool is_missing(struct value v) { return v.type == V_MISSING; }
static inline bool is_sequence_object(struct value v) {
    return v.type == V_LIST || v.type == V_TUPLE;
}

struct list {
    uint32_t n;
    bool grouped; // a tuple of groupby(): has the attributes grouper and list
    struct value *items; // [n]
    struct list_room *room; // where a longer copy may grow, or NULL
};

struct dict_entry {
    struct value key, value;
    uint64_t hash;
};
// Insertion order; an index only above DICT_SCAN_MAX entries.
enum { DICT_SCAN_MAX = 8 };
struct dict {
    uint32_t n, capacity;
    struct dict_entry *entries; // [capacity]
    uint32_t *index;            // [index_mask + 1] of entry number + 1, or NULL
    uint32_t index_mask;
};

struct range {
    int64_t start, stop, step;
    uint32_t n;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    enum view_kind kind;
    struct dict *dict;
};

struct cycler {
    uint32_t n, pos;
    struct value *items;
};

struct joiner {
    bool used;
    struct value separator;
};
#endif
