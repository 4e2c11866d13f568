#include "template/render.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/utf8.h"
#include "template/macro.h"
#include "template/number.h"
#include "template/unicode.h"

// How deep lists may be nested where they are compared or printed.
enum { NESTING_MAX = 500 };

struct list_room {
    uint32_t used, capacity;
};

// ---- Failing ----------------------------------------------------------------------------------

struct value fail(struct render *r, const char *format, ...) {
    char text[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err_set(r->err, ERR_FORMAT, "line %u: %s", r->line, text);
    return value_error();
}

struct value fail_nomem(struct render *r) {
    err_set(r->err, ERR_NOMEM, "template: out of memory at line %u", r->line);
    return value_error();
}

struct value fail_undefined(struct render *r, struct value undefined) {
    struct str s = str_of_value(undefined);
    const char *owner = type_name((struct value){.type = (uint8_t)undefined.aux});
    switch ((enum undefined_kind)undefined.flags) {
    case UNDEFINED_NAME:
        return fail(r, "'%.*s' is undefined", (int)s.n, s.data);
    case UNDEFINED_ATTRIBUTE:
        if (undefined.aux == V_NONE)
            return fail(r, "'None' has no attribute '%.*s'", (int)s.n, s.data);
        return fail(r, "'%s object' has no attribute '%.*s'", owner, (int)s.n, s.data);
    case UNDEFINED_ELEMENT:
        if (undefined.aux == V_NONE)
            return fail(r, "None has no element %.*s", (int)s.n, s.data);
        return fail(r, "%s object has no element %.*s", owner, (int)s.n, s.data);
    case UNDEFINED_UNSAFE:
        return fail(r, "access to attribute '%.*s' of '%s' object is unsafe", (int)s.n, s.data, owner);
    case UNDEFINED_HINT:
        break;
    }
    return fail(r, "%.*s", (int)s.n, s.data);
}

bool charge(struct render *r, uint64_t n) {
    if (r->steps_left >= n) {
        r->steps_left -= n;
        return true;
    }
    r->steps_left = 0;
    fail(r, "the template does more work than the limit allows");
    return false;
}

// ---- Memory -----------------------------------------------------------------------------------

void *render_alloc(struct render *r, size_t n) {
    if (n > r->memory_bytes_max || r->arena.used_bytes > r->memory_bytes_max - n) {
        fail(r, "the template uses more than %zu MiB of memory, the limit",
             r->memory_bytes_max >> 20);
        return NULL;
    }
    void *p = arena_alloc(&r->arena, n);
    if (!p)
        fail_nomem(r);
    return p;
}

void *render_array_of(struct render *r, size_t n, size_t element_bytes) {
    size_t total;
    if (__builtin_mul_overflow(n, element_bytes, &total)) {
        fail_nomem(r);
        return NULL;
    }
    return render_alloc(r, total);
}

enum { TEXT_ROOM_BYTES = 16 * 1024 };

// Room for n bytes at r->text_at.
static bool text_room(struct render *r, size_t n) {
    if ((size_t)(r->text_end - r->text_at) >= n)
        return true;
    if (n > UINT32_MAX / 4) {
        fail(r, "a text is longer than 1 GiB");
        return false;
    }
    // Twice what is asked for, so that a text that is added to again and again is copied rarely.
    size_t room = n * 2 < TEXT_ROOM_BYTES ? TEXT_ROOM_BYTES : n * 2;
    char *at = render_alloc(r, room);
    if (!at)
        return false;
    r->text_at = at;
    r->text_end = at + room;
    return true;
}

struct value text_copy(struct render *r, struct str s) {
    if (!text_room(r, s.n))
        return value_error();
    char *at = r->text_at;
    if (s.n)
        memcpy(at, s.data, s.n);
    r->text_at += s.n;
    return value_str((struct str){at, s.n});
}

struct value text_take(struct render *r, size_t mark) {
    if (r->out->failed)
        return fail_nomem(r);
    if (!charge(r, (r->out->n - mark) / 64))
        return value_error();
    struct value v = text_copy(r, str_slice(strbuf_str(r->out), mark, r->out->n));
    r->out->n = mark;
    return v;
}

struct value text_concat(struct render *r, struct str a, struct str b) {
    if (!charge(r, b.n / 64))
        return value_error();
    if (a.n && a.data + a.n == r->text_at && (size_t)(r->text_end - r->text_at) >= b.n) {
        if (b.n)
            memcpy(r->text_at, b.data, b.n); // a is the last text made: it grows where it is
        r->text_at += b.n;
        return value_str((struct str){a.data, a.n + b.n});
    }
    if (!charge(r, a.n / 64) || !text_room(r, a.n + b.n))
        return value_error();
    char *at = r->text_at;
    if (a.n)
        memcpy(at, a.data, a.n);
    if (b.n)
        memcpy(at + a.n, b.data, b.n);
    r->text_at += a.n + b.n;
    return value_str((struct str){at, a.n + b.n});
}

bool output_check(struct render *r) {
    if (r->out->failed) {
        fail_nomem(r);
        return false;
    }
    if (r->out->n - r->out_start > r->output_bytes_max) {
        fail(r, "the output is longer than the limit of %zu bytes", r->output_bytes_max);
        return false;
    }
    return true;
}

struct list *list_new(struct render *r, size_t n) {
    if (n > UINT32_MAX) {
        fail(r, "a list has more than %u elements", UINT32_MAX);
        return NULL;
    }
    struct list *list = render_alloc(r, sizeof *list);
    if (!list || !(list->items = render_array(r, struct value, n)))
        return NULL;
    list->n = (uint32_t)n;
    return list;
}

struct value list_value(struct render *r, const struct value *items, uint32_t n) {
    struct list *list = list_new(r, n);
    if (!list)
        return value_error();
    if (n)
        memcpy(list->items, items, n * sizeof *items);
    return value_list(list);
}

// a + b, growing in a's room if a is what filled it last.
static struct value list_concat(struct render *r, struct value a, struct value b) {
    const struct list *x = a.list, *y = b.list;
    struct list *sum = render_alloc(r, sizeof *sum);
    size_t n = (size_t)x->n + y->n;
    if (!sum || !charge(r, y->n) || n > UINT32_MAX)
        return n > UINT32_MAX ? fail(r, "a list is too long") : value_error();
    sum->n = (uint32_t)n;
    if (x->room && x->room->used == x->n && x->room->capacity >= n) {
        sum->items = x->items;
        sum->room = x->room;
    } else {
        if (!charge(r, x->n))
            return value_error();
        sum->room = render_alloc(r, sizeof *sum->room);
        size_t capacity = n < 8 ? 8 : n + n / 2;
        if (!sum->room || !(sum->items = render_array(r, struct value, capacity)))
            return value_error();
        sum->room->capacity = (uint32_t)capacity;
        if (x->n)
            memcpy(sum->items, x->items, x->n * sizeof *x->items);
    }
    if (y->n)
        memcpy(sum->items + x->n, y->items, y->n * sizeof *y->items);
    sum->room->used = (uint32_t)n;
    return (struct value){.type = a.type, .list = sum};
}

// ---- Dictionaries -----------------------------------------------------------------------------

bool is_hashable(struct value v) {
    if (v.type == V_TUPLE) {
        for (uint32_t i = 0; i < v.list->n; i++)
            if (!is_hashable(v.list->items[i]))
                return false;
        return true;
    }
    return v.type != V_LIST && v.type != V_DICT &&
           (v.type != V_VIEW || v.view->kind == VIEW_VALUES);
}

static uint64_t hash_of(struct value v) {
    switch ((enum value_type)v.type) {
    case V_STR:
        return hash_str(str_of_value(v));
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        return number_hash(v);
    case V_TUPLE: {
        uint64_t h = v.list->n;
        for (uint32_t i = 0; i < v.list->n; i++)
            h = hash_u64(h * 31 + hash_of(v.list->items[i]));
        return h;
    }
    case V_NONE:
    case V_UNDEFINED:
        return v.type;
    default:
        return hash_u64((uint64_t)(uintptr_t)v.object);
    }
}

static bool same_key(struct value a, struct value b) {
    if (a.type == V_STR && b.type == V_STR)
        return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    if (is_number(a) && is_number(b))
        return number_compare(a, b) == ORDER_EQUAL;
    if (a.type != b.type)
        return false;
    if (a.type == V_TUPLE) {
        bool same = a.list->n == b.list->n;
        for (uint32_t i = 0; same && i < a.list->n; i++)
            same = same_key(a.list->items[i], b.list->items[i]);
        return same;
    }
    return a.type == V_NONE || a.type == V_UNDEFINED || a.object == b.object;
}

struct dict *dict_new(struct render *r, uint32_t capacity) {
    struct dict *dict = render_alloc(r, sizeof *dict);
    if (!dict || !(dict->entries = render_array(r, struct dict_entry, capacity)))
        return NULL;
    dict->capacity = capacity;
    return dict;
}

static void index_entry(struct dict *dict, uint32_t number) {
    uint32_t i = (uint32_t)dict->entries[number].hash & dict->index_mask;
    while (dict->index[i])
        i = (i + 1) & dict->index_mask;
    dict->index[i] = number + 1;
}

static bool dict_grow(struct render *r, struct dict *dict) {
    if (dict->n == dict->capacity) {
        uint32_t capacity = dict->capacity < 4 ? 8 : dict->capacity * 2;
        struct dict_entry *entries = render_array(r, struct dict_entry, capacity);
        if (!entries)
            return false;
        if (dict->n)
            memcpy(entries, dict->entries, dict->n * sizeof *entries);
        dict->entries = entries;
        dict->capacity = capacity;
    }
    if (dict->n >= DICT_SCAN_MAX && (!dict->index || dict->n * 2 > dict->index_mask)) {
        uint32_t slots = 32;
        while (slots < dict->capacity * 2)
            slots *= 2;
        uint32_t *index = render_array(r, uint32_t, slots);
        if (!index)
            return false;
        bool hashed = dict->index != NULL;
        dict->index = index;
        dict->index_mask = slots - 1;
        for (uint32_t i = 0; i < dict->n; i++) {
            if (!hashed)
                dict->entries[i].hash = hash_of(dict->entries[i].key);
            index_entry(dict, i);
        }
    }
    return true;
}

static struct value *find_entry(const struct dict *dict, struct value key) {
    if (!dict->index) {
        for (uint32_t i = 0; i < dict->n; i++)
            if (same_key(dict->entries[i].key, key))
                return &dict->entries[i].value;
        return NULL;
    }
    uint64_t hash = hash_of(key);
    for (uint32_t i = (uint32_t)hash & dict->index_mask; dict->index[i]; i = (i + 1) & dict->index_mask) {
        struct dict_entry *entry = &dict->entries[dict->index[i] - 1];
        if (entry->hash == hash && same_key(entry->key, key))
            return &entry->value;
    }
    return NULL;
}

struct value *dict_find_str(const struct dict *dict, struct str key) {
    if (!dict->index) {
        for (uint32_t i = 0; i < dict->n; i++) {
            const struct value *k = &dict->entries[i].key;
            if (k->n == key.n && k->type == V_STR && memcmp(k->s, key.data, key.n) == 0)
                return &dict->entries[i].value;
        }
        return NULL;
    }
    return find_entry(dict, value_str(key));
}

struct value *dict_find(struct render *r, const struct dict *dict, struct value key) {
    if (is_hashable(key))
        return find_entry(dict, key);
    fail(r, "unhashable type: '%s'", type_name(key));
    return NULL;
}

// Add a key that is known to be hashable and not there yet.
static bool dict_add(struct render *r, struct dict *dict, struct value key, struct value value) {
    if (!dict_grow(r, dict))
        return false;
    uint32_t number = dict->n++;
    dict->entries[number] = (struct dict_entry){.key = key, .value = value};
    if (dict->index) {
        dict->entries[number].hash = hash_of(key);
        index_entry(dict, number);
    }
    return true;
}

bool dict_set(struct render *r, struct dict *dict, struct value key, struct value value) {
    if (!is_hashable(key)) {
        fail(r, "unhashable type: '%s'", type_name(key));
        return false;
    }
    struct value *there = find_entry(dict, key);
    if (there) {
        *there = value;
        return true;
    }
    return dict_add(r, dict, key, value);
}

struct value value_from_json(struct render *r, const json_t *json, uint32_t depth) {
    if (depth > 2048)
        return fail(r, "a variable is nested more than 2048 deep");
    switch (json_typeof(json)) {
    case JSON_OBJECT: {
        json_t *object = (json_t *)json; // jansson iterates only over what is not const
        size_t n = json_object_size(json);
        struct dict *dict = n > UINT32_MAX / 4 ? NULL : dict_new(r, (uint32_t)n);
        if (!dict)
            return value_error();
        for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
            struct value value = value_from_json(r, json_object_iter_value(at), depth + 1);
            struct str key = {json_object_iter_key(at), json_object_iter_key_len(at)};
            if (is_error(value) || !dict_add(r, dict, value_str(key), value))
                return value_error();
        }
        return value_dict(dict);
    }
    case JSON_ARRAY: {
        size_t n = json_array_size(json);
        struct list *list = list_new(r, n);
        if (!list)
            return value_error();
        for (size_t i = 0; i < n; i++) {
            list->items[i] = value_from_json(r, json_array_get(json, i), depth + 1);
            if (is_error(list->items[i]))
                return value_error();
        }
        return value_list(list);
    }
    case JSON_STRING:
        if (json_string_length(json) > UINT32_MAX / 4)
            return fail(r, "a text is longer than 1 GiB");
        return value_str(json_str(json));
    case JSON_INTEGER:
        return value_int(json_integer_value(json));
    case JSON_REAL:
        return value_float(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return value_bool(json_is_true(json));
    case JSON_NULL:
        break;
    }
    return value_none();
}

// ---- Types, truth, equality -------------------------------------------------------------------

const char *type_name(struct value v) {
    switch ((enum value_type)v.type) {
    case V_ERROR:
    case V_MISSING:
        return "missing";
    case V_UNDEFINED:
        return "Undefined";
    case V_NONE:
        return "NoneType";
    case V_BOOL:
        return "bool";
    case V_INT:
    case V_BIG:
        return "int";
    case V_FLOAT:
        return "float";
    case V_STR:
        return "str";
    case V_LIST:
        return "list";
    case V_TUPLE:
        return "tuple";
    case V_DICT:
        return "dict";
    case V_RANGE:
        return "range";
    case V_VIEW:
        if (!v.view)
            return "dict_view";
        return v.view->kind == VIEW_KEYS     ? "dict_keys"
               : v.view->kind == VIEW_VALUES ? "dict_values"
                                             : "dict_items";
    case V_ITERATOR:
        return v.iterator ? v.iterator->type : "generator";
    case V_NAMESPACE:
        return "Namespace";
    case V_MACRO:
        return "Macro";
    case V_METHOD:
        return "builtin_function_or_method";
    case V_FUNCTION:
        return "function";
    case V_LOOP:
        return "LoopContext";
    case V_CYCLER:
        return "Cycler";
    case V_JOINER:
        return "Joiner";
    }
    return "object";
}

bool truth(struct value v) {
    switch ((enum value_type)v.type) {
    case V_ERROR:
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STR:
        return v.n != 0;
    case V_LIST:
    case V_TUPLE:
        return v.list->n != 0;
    case V_DICT:
        return v.dict->n != 0;
    case V_RANGE:
        return v.range->n != 0;
    case V_VIEW:
        return v.view->dict->n != 0;
    case V_BIG:
    case V_ITERATOR:
    case V_NAMESPACE:
    case V_MACRO:
    case V_METHOD:
    case V_FUNCTION:
    case V_LOOP:
    case V_CYCLER:
    case V_JOINER:
        return true;
    }
    return true;
}

static int equal(struct render *r, struct value a, struct value b, uint32_t depth) {
    if (a.type == V_STR && b.type == V_STR)
        return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    if (is_number(a) && is_number(b))
        return number_compare(a, b) == ORDER_EQUAL;
    if (a.type != b.type)
        return 0;
    if (depth > NESTING_MAX) {
        fail(r, "maximum recursion depth exceeded in comparison");
        return -1;
    }
    switch ((enum value_type)a.type) {
    case V_NONE:
    case V_UNDEFINED:
        return 1;
    case V_LIST:
    case V_TUPLE:
        if (a.list->n != b.list->n)
            return 0;
        if (!charge(r, a.list->n))
            return -1;
        for (uint32_t i = 0; i < a.list->n; i++) {
            int same = equal(r, a.list->items[i], b.list->items[i], depth + 1);
            if (same != 1)
                return same;
        }
        return 1;
    case V_DICT:
        if (a.dict->n != b.dict->n)
            return 0;
        if (!charge(r, a.dict->n))
            return -1;
        for (uint32_t i = 0; i < a.dict->n; i++) {
            const struct value *other = find_entry(b.dict, a.dict->entries[i].key);
            int same = other ? equal(r, a.dict->entries[i].value, *other, depth + 1) : 0;
            if (same != 1)
                return same;
        }
        return 1;
    case V_RANGE:
        return a.range->n == b.range->n &&
               (a.range->n == 0 || (a.range->start == b.range->start &&
                                    (a.range->n == 1 || a.range->step == b.range->step)));
    case V_VIEW: {
        if (a.view->kind == VIEW_VALUES || a.view->kind != b.view->kind)
            return a.view == b.view;
        const struct dict *x = a.view->dict, *y = b.view->dict;
        if (x->n != y->n)
            return 0;
        for (uint32_t i = 0; i < x->n; i++) {
            const struct value *other = find_entry(y, x->entries[i].key);
            int same = !other ? 0 : a.view->kind == VIEW_KEYS ? 1
                                  : equal(r, x->entries[i].value, *other, depth + 1);
            if (same != 1)
                return same;
        }
        return 1;
    }
    default:
        return a.object == b.object;
    }
}

int value_equal(struct render *r, struct value a, struct value b) { return equal(r, a, b, 0); }

static const char *const OPERATORS[] = {
    [OP_ADD] = "+",      [OP_SUB] = "-", [OP_MUL] = "*",  [OP_DIV] = "/", [OP_FLOORDIV] = "//",
    [OP_MOD] = "%",      [OP_POW] = "** or pow()",        [OP_EQ] = "==", [OP_NE] = "!=",
    [OP_LT] = "<",       [OP_LE] = "<=", [OP_GT] = ">",   [OP_GE] = ">=", [OP_IN] = "in",
    [OP_NOT_IN] = "not in"};

static int ordered(enum operation op, enum ordering order) {
    switch (op) {
    case OP_LT:
        return order == ORDER_LESS;
    case OP_LE:
        return order == ORDER_LESS || order == ORDER_EQUAL;
    case OP_GT:
        return order == ORDER_GREATER;
    default:
        return order == ORDER_GREATER || order == ORDER_EQUAL;
    }
}

static int order_depth(struct render *r, enum operation op, struct value a, struct value b,
                       uint32_t depth) {
    if (is_number(a) && is_number(b))
        return ordered(op, number_compare(a, b));
    if (a.type == V_STR && b.type == V_STR) { // UTF-8 sorts as code points do
        uint32_t n = a.n < b.n ? a.n : b.n;
        int c = n ? memcmp(a.s, b.s, n) : 0;
        if (c == 0)
            c = a.n < b.n ? -1 : a.n > b.n;
        return ordered(op, c < 0 ? ORDER_LESS : c > 0 ? ORDER_GREATER : ORDER_EQUAL);
    }
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED) {
        fail_undefined(r, a.type == V_UNDEFINED ? a : b);
        return -1;
    }
    if (a.type == b.type && is_sequence_object(a)) {
        if (depth > NESTING_MAX) {
            fail(r, "maximum recursion depth exceeded in comparison");
            return -1;
        }
        uint32_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
        if (!charge(r, n))
            return -1;
        for (uint32_t i = 0; i < n; i++) {
            int same = equal(r, a.list->items[i], b.list->items[i], depth + 1);
            if (same == 0)
                return order_depth(r, op, a.list->items[i], b.list->items[i], depth + 1);
            if (same < 0)
                return -1;
        }
        return ordered(op, a.list->n < b.list->n   ? ORDER_LESS
                           : a.list->n > b.list->n ? ORDER_GREATER
                                                   : ORDER_EQUAL);
    }
    fail(r, "'%s' not supported between instances of '%s' and '%s'", OPERATORS[op], type_name(a),
         type_name(b));
    return -1;
}

int value_order(struct render *r, enum operation op, struct value a, struct value b) {
    return order_depth(r, op, a, b, 0);
}

int value_contains(struct render *r, struct value container, struct value item) {
    switch ((enum value_type)container.type) {
    case V_STR:
        if (item.type != V_STR) {
            fail(r, "'in <string>' requires string as left operand, not %s", type_name(item));
            return -1;
        }
        if (!charge(r, container.n / 256))
            return -1;
        return str_find(str_of_value(container), str_of_value(item), 0) != SIZE_MAX;
    case V_DICT: {
        const struct value *there = dict_find(r, container.dict, item);
        return there ? 1 : is_hashable(item) ? 0 : -1;
    }
    case V_RANGE: {
        if (!is_number(item))
            return 0;
        const struct range *range = container.range;
        if (item.type == V_FLOAT && item.f != trunc(item.f))
            return 0;
        double f = number_to_double(item);
        if (fabs(f) > 9e18 || range->n == 0)
            return 0;
        int64_t i = item.type == V_FLOAT ? (int64_t)f : number_clamp(item), off = i - range->start;
        return off % range->step == 0 && off / range->step >= 0 && off / range->step < range->n;
    }
    case V_VIEW:
        if (container.view->kind == VIEW_KEYS)
            return value_contains(r, value_dict(container.view->dict), item);
        // fall through
    default: {
        if (!is_iterable(container)) {
            fail(r, "argument of type '%s' is not iterable", type_name(container));
            return -1;
        }
        struct span span;
        if (!span_of(r, container, &span) || !charge(r, span.n))
            return -1;
        for (uint32_t i = 0; i < span.n; i++) {
            int same = value_equal(r, span.items[i], item);
            if (same != 0)
                return same;
        }
        return 0;
    }
    }
}

struct value value_compare(struct render *r, enum operation op, struct value a, struct value b) {
    int result;
    switch (op) {
    case OP_EQ:
        result = value_equal(r, a, b);
        break;
    case OP_NE:
        result = value_equal(r, a, b);
        result = result < 0 ? result : !result;
        break;
    case OP_IN:
        result = value_contains(r, b, a);
        break;
    case OP_NOT_IN:
        result = value_contains(r, b, a);
        result = result < 0 ? result : !result;
        break;
    default:
        result = value_order(r, op, a, b);
        break;
    }
    return result < 0 ? value_error() : value_bool(result);
}

// ---- Arithmetic -------------------------------------------------------------------------------

// Whether a * b repeats a sequence: which one and how often.
static bool repetition(struct value *a, struct value *b) {
    if (is_integer(*a) && (is_str(*b) || is_sequence_object(*b))) {
        struct value t = *a;
        *a = *b;
        *b = t;
        return true;
    }
    return is_integer(*b) && (is_str(*a) || is_sequence_object(*a));
}

static struct value repeat(struct render *r, struct value sequence, struct value times) {
    int64_t n = number_clamp(times);
    n = n < 0 ? 0 : n;
    uint64_t one = is_str(sequence) ? sequence.n : sequence.list->n;
    if (one && (uint64_t)n > UINT32_MAX / 4 / one)
        return fail(r, "a repeated sequence is too long");
    if (!charge(r, one * (uint64_t)n / (is_str(sequence) ? 64 : 1)))
        return value_error();
    if (is_str(sequence)) {
        size_t mark = r->out->n;
        if (one)
            for (int64_t i = 0; i < n; i++)
                strbuf_append(r->out, str_of_value(sequence));
        struct value v = text_take(r, mark);
        v.flags = is_error(v) ? 0 : sequence.flags;
        return v;
    }
    struct list *list = list_new(r, one * (uint64_t)n);
    if (!list)
        return value_error();
    if (one)
        for (int64_t i = 0; i < n; i++)
            memcpy(list->items + (uint64_t)i * one, sequence.list->items, one * sizeof *list->items);
    return (struct value){.type = sequence.type, .list = list};
}

static struct value add_str(struct render *r, struct value a, struct value b) {
    if (a.flags == b.flags) {
        struct value v = text_concat(r, str_of_value(a), str_of_value(b));
        v.flags = is_error(v) ? 0 : a.flags;
        return v;
    }
    // One is Markup: the other is escaped.
    struct value x = escape(r, a), y = escape(r, b);
    struct value v = is_error(x) || is_error(y) ? value_error()
                                                : text_concat(r, str_of_value(x), str_of_value(y));
    v.flags = is_error(v) ? 0 : STR_MARKUP;
    return v;
}

struct value value_binary(struct render *r, enum operation op, struct value a, struct value b) {
    if (is_number(a) && is_number(b)) {
        const char *problem = NULL;
        struct value v = number_binary(&r->arena, op, a, b, &problem);
        return is_error(v) ? problem ? fail(r, "%s", problem) : fail_nomem(r) : v;
    }
    if (op == OP_MOD && a.type == V_STR)
        return format_percent(r, a, b);
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED)
        return fail_undefined(r, a.type == V_UNDEFINED ? a : b);
    if (op == OP_ADD) {
        if (a.type == V_STR && b.type == V_STR)
            return add_str(r, a, b);
        if (a.type == b.type && is_sequence_object(a))
            return list_concat(r, a, b);
        if (is_str(a) || is_sequence_object(a))
            return fail(r, "can only concatenate %s (not \"%s\") to %s", type_name(a), type_name(b),
                        type_name(a));
    }
    if (op == OP_MUL && repetition(&a, &b))
        return repeat(r, a, b);
    return fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", OPERATORS[op], type_name(a),
                type_name(b));
}

// ---- Sequences --------------------------------------------------------------------------------

struct value value_length(struct render *r, struct value v) {
    switch ((enum value_type)v.type) {
    case V_UNDEFINED:
        return value_int(0);
    case V_STR:
        if (!charge(r, v.n / 64))
            return value_error();
        return value_int((int64_t)unicode_count(str_of_value(v)));
    case V_LIST:
    case V_TUPLE:
        return value_int(v.list->n);
    case V_DICT:
        return value_int(v.dict->n);
    case V_RANGE:
        return value_int(v.range->n);
    case V_VIEW:
        return value_int(v.view->dict->n);
    case V_LOOP:
        return loop_length(r, v.loop);
    default:
        return fail(r, "object of type '%s' has no len()", type_name(v));
    }
}

bool is_iterable(struct value v) {
    switch ((enum value_type)v.type) {
    case V_UNDEFINED:
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
    case V_VIEW:
    case V_ITERATOR:
    case V_LOOP:
        return true;
    default:
        return false;
    }
}

struct value iterator_new(struct render *r, const char *type, struct value source,
                          const struct args *args,
                          struct value (*produce)(struct render *, struct iterator *)) {
    struct iterator *it = render_alloc(r, sizeof *it);
    if (!it)
        return value_error();
    it->type = type;
    it->source = source;
    it->produce = produce;
    // The arguments lie on the caller's stack: keep copies.
    struct value *items = render_array(r, struct value, args->n);
    struct keyword_value *keywords = render_array(r, struct keyword_value, args->n_keywords);
    if (!items || !keywords)
        return value_error();
    if (args->n)
        memcpy(items, args->items, args->n * sizeof *items);
    if (args->n_keywords)
        memcpy(keywords, args->keywords, args->n_keywords * sizeof *keywords);
    it->args = (struct args){items, keywords, args->n, args->n_keywords};
    return (struct value){.type = V_ITERATOR, .iterator = it};
}

struct value iterator_of_list(struct render *r, const char *type, struct list *list) {
    struct iterator *it = render_alloc(r, sizeof *it);
    if (!it)
        return value_error();
    it->type = type;
    it->items = list->items;
    it->n = list->n;
    return (struct value){.type = V_ITERATOR, .iterator = it};
}

bool iterator_fill(struct render *r, struct iterator *it) {
    if (!it->produce)
        return true;
    struct value (*produce)(struct render *, struct iterator *) = it->produce;
    it->produce = NULL;
    struct value list = produce(r, it);
    if (is_error(list))
        return false;
    it->items = list.list->items;
    it->n = list.list->n;
    return true;
}

bool span_of(struct render *r, struct value v, struct span *out) {
    struct value *items = NULL;
    uint32_t n = 0;
    switch ((enum value_type)v.type) {
    case V_UNDEFINED:
        break;
    case V_LIST:
    case V_TUPLE:
        *out = (struct span){v.list->items, v.list->n};
        return true;
    case V_ITERATOR:
        if (!iterator_fill(r, v.iterator))
            return false;
        *out = (struct span){0};
        if (v.iterator->pos < v.iterator->n)
            *out = (struct span){v.iterator->items + v.iterator->pos,
                                 v.iterator->n - v.iterator->pos};
        v.iterator->pos = v.iterator->n;
        return true;
    case V_STR: {
        n = (uint32_t)unicode_count(str_of_value(v));
        if (!charge(r, n) || !(items = render_array(r, struct value, n)))
            return false;
        uint32_t k = 0;
        for (size_t i = 0; i < v.n; k++) {
            size_t start = i;
            unicode_next(str_of_value(v), &i);
            items[k] = value_str(str_slice(str_of_value(v), start, i));
        }
        break;
    }
    case V_DICT:
        n = v.dict->n;
        if (!charge(r, n) || !(items = render_array(r, struct value, n)))
            return false;
        for (uint32_t i = 0; i < n; i++)
            items[i] = v.dict->entries[i].key;
        break;
    case V_VIEW: {
        const struct dict *dict = v.view->dict;
        n = dict->n;
        if (!charge(r, n) || !(items = render_array(r, struct value, n)))
            return false;
        // Pairs and their tuples in two allocations.
        struct list *pairs = NULL;
        struct value *both = NULL;
        if (v.view->kind == VIEW_ITEMS && (!(pairs = render_array(r, struct list, n)) ||
                                           !(both = render_array(r, struct value, (size_t)n * 2))))
            return false;
        for (uint32_t i = 0; i < n; i++) {
            const struct dict_entry *entry = &dict->entries[i];
            if (!pairs) {
                items[i] = v.view->kind == VIEW_KEYS ? entry->key : entry->value;
                continue;
            }
            both[2 * i] = entry->key;
            both[2 * i + 1] = entry->value;
            pairs[i] = (struct list){.n = 2, .items = &both[2 * i]};
            items[i] = value_tuple(&pairs[i]);
        }
        break;
    }
    case V_RANGE:
        n = v.range->n;
        if (!charge(r, n) || !(items = render_array(r, struct value, n)))
            return false;
        for (uint32_t i = 0; i < n; i++)
            items[i] = value_int(v.range->start + (int64_t)i * v.range->step);
        break;
    default:
        fail(r, "'%s' object is not iterable", type_name(v));
        return false;
    }
    *out = (struct span){items, n};
    return true;
}

static struct value undefined_element(struct render *r, struct value object, struct value key) {
    size_t mark = r->out->n;
    if (!append_repr(r, key))
        return value_error();
    struct value text = text_take(r, mark);
    return is_error(text) ? text
                          : value_undefined(UNDEFINED_ELEMENT, (enum value_type)object.type,
                                            str_of_value(text));
}

struct value get_item(struct render *r, struct value object, struct value key) {
    if (object.type == V_DICT) {
        if (is_hashable(key)) {
            const struct value *there = find_entry(object.dict, key);
            if (there)
                return *there;
        }
    } else if (object.type == V_UNDEFINED) {
        return fail_undefined(r, object);
    } else if (is_integer(key)) {
        int64_t i = number_clamp(key);
        if (is_sequence_object(object)) {
            i += i < 0 ? object.list->n : 0;
            if (i >= 0 && i < object.list->n)
                return object.list->items[i];
        } else if (object.type == V_STR) {
            struct str s = str_of_value(object);
            if (!charge(r, s.n / 64))
                return value_error();
            size_t from = s.n, to = s.n;
            if (i >= 0) {
                from = unicode_offset(s, (size_t)i);
            } else { // backwards from the end
                int64_t k = i;
                for (; k < 0 && from > 0; k++)
                    unicode_before(s, &from);
                if (k < 0)
                    from = s.n;
            }
            if (from < s.n) {
                to = from;
                unicode_next(s, &to);
                struct value v = value_str(str_slice(s, from, to));
                v.flags = object.flags;
                return v;
            }
        } else if (object.type == V_RANGE) {
            i += i < 0 ? object.range->n : 0;
            if (i >= 0 && i < object.range->n)
                return value_int(object.range->start + i * object.range->step);
        }
    }
    if (key.type == V_STR) // a key that is not there may name an attribute
        return get_attribute_named(r, object, str_of_value(key));
    return undefined_element(r, object, key);
}

bool is_sliceable(struct value object, const struct value parts[3]) {
    for (int i = 0; i < 3; i++)
        if (!is_missing(parts[i]) && parts[i].type != V_NONE && !is_integer(parts[i]))
            return false;
    return is_str(object) || is_sequence_object(object) || object.type == V_RANGE;
}

// One bound of a slice: an integer or none.
static bool slice_bound(struct render *r, struct value v, bool *given, int64_t *out) {
    *given = v.type != V_NONE && v.type != V_MISSING;
    if (!*given)
        return true;
    if (v.type == V_UNDEFINED) {
        fail(r, "slice indices must be integers or None or have an __index__ method");
        return false;
    }
    if (!is_integer(v)) {
        fail(r, "slice indices must be integers or None or have an __index__ method");
        return false;
    }
    *out = number_clamp(v);
    return true;
}

struct value get_slice(struct render *r, struct value object, const struct value parts[3]) {
    if (object.type == V_UNDEFINED)
        return fail_undefined(r, object);
    int64_t n;
    if (object.type == V_STR)
        n = (int64_t)unicode_count(str_of_value(object));
    else if (is_sequence_object(object))
        n = object.list->n;
    else if (object.type == V_RANGE)
        n = object.range->n;
    else if (object.type == V_DICT)
        return fail(r, "unhashable type: 'slice'");
    else
        return fail(r, "'%s' object is not subscriptable", type_name(object));
    if (object.type == V_STR && !charge(r, object.n / 64))
        return value_error();
    bool has_from, has_to, has_step;
    int64_t from = 0, to = 0, step = 1;
    if (!slice_bound(r, parts[0], &has_from, &from) || !slice_bound(r, parts[1], &has_to, &to) ||
        !slice_bound(r, parts[2], &has_step, &step))
        return value_error();
    if (step == 0)
        return fail(r, "slice step cannot be zero");
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    if (!has_from)
        from = step < 0 ? high : low;
    else
        from = from < 0 ? (from < -n ? low : from + n) : (from > high ? high : from);
    if (!has_to)
        to = step < 0 ? low : high;
    else
        to = to < 0 ? (to < -n ? low : to + n) : (to > high ? high : to);
    int64_t count = 0;
    if (step > 0 && from < to)
        count = (to - from - 1) / step + 1;
    else if (step < 0 && from > to)
        count = step == INT64_MIN ? 1 : (from - to - 1) / -step + 1;
    if (!charge(r, (uint64_t)count / 16))
        return value_error();
    if (object.type == V_RANGE) {
        struct range *range = render_alloc(r, sizeof *range);
        if (!range)
            return value_error();
        *range = (struct range){.n = (uint32_t)count};
        const struct range *all = object.range;
        if (__builtin_mul_overflow(from, all->step, &range->start) ||
            __builtin_add_overflow(range->start, all->start, &range->start) ||
            __builtin_mul_overflow(to, all->step, &range->stop) ||
            __builtin_add_overflow(range->stop, all->start, &range->stop) ||
            __builtin_mul_overflow(step, all->step, &range->step))
            return fail(r, "a range with a step of more than 64 bits");
        return (struct value){.type = V_RANGE, .range = range};
    }
    if (object.type == V_STR) {
        struct str s = str_of_value(object);
        struct value v;
        if (step == 1 || count <= 1) {
            size_t start = unicode_offset(s, (size_t)(count ? from : 0));
            struct str rest = str_slice(s, start, s.n);
            v = value_str(str_slice(rest, 0, count ? unicode_offset(rest, (size_t)count) : 0));
        } else {
            struct span span;
            if (!span_of(r, object, &span))
                return value_error();
            size_t mark = r->out->n;
            for (int64_t k = 0; k < count; k++)
                strbuf_append(r->out, str_of_value(span.items[from + k * step]));
            v = text_take(r, mark);
        }
        v.flags = is_error(v) ? 0 : object.flags;
        return v;
    }
    struct list *list;
    if (step == 1) { // a window on the same elements
        list = render_alloc(r, sizeof *list);
        if (!list)
            return value_error();
        *list = (struct list){.n = (uint32_t)count, .items = object.list->items + (count ? from : 0)};
    } else {
        list = list_new(r, (size_t)count);
        if (!list)
            return value_error();
        for (int64_t k = 0; k < count; k++)
            list->items[k] = object.list->items[from + k * step];
    }
    return (struct value){.type = object.type, .list = list};
}

// ---- Sorting ----------------------------------------------------------------------------------

// Stable merge sort of keys[from..to) through `order`, which holds their numbers.
static bool merge_sort(struct render *r, const struct value *keys, uint32_t *order, uint32_t *room,
                       uint32_t n, bool reverse) {
    if (n < 2)
        return true;
    uint32_t half = n / 2;
    if (!merge_sort(r, keys, order, room, half, reverse) ||
        !merge_sort(r, keys, order + half, room, n - half, reverse) || !charge(r, n))
        return false;
    memcpy(room, order, half * sizeof *room);
    uint32_t i = 0, k = half, at = 0;
    while (i < half && k < n) {
        struct value left = keys[room[i]], right = keys[order[k]];
        int before = value_order(r, OP_LT, reverse ? left : right, reverse ? right : left);
        if (before < 0)
            return false;
        order[at++] = before ? order[k++] : room[i++];
    }
    while (i < half)
        order[at++] = room[i++];
    return true;
}

uint32_t *sort_order(struct render *r, const struct value *keys, uint32_t n, bool reverse) {
    uint32_t *order = render_array(r, uint32_t, n), *room = render_array(r, uint32_t, n);
    if (!order || !room)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    return merge_sort(r, keys, order, room, n, reverse) ? order : NULL;
}

// ---- Printing ---------------------------------------------------------------------------------

static void append_quoted(struct strbuf *out, struct str s) {
    char quote = memchr(s.data ? s.data : "", '\'', s.n) && !memchr(s.data, '"', s.n) ? '"' : '\'';
    strbuf_char(out, quote);
    size_t plain = 0;
    for (size_t i = 0; i < s.n;) {
        size_t start = i;
        uint32_t c = unicode_next(s, &i);
        if (c != (uint8_t)quote && c != '\\' && unicode_is_printable(c))
            continue;
        strbuf_append(out, str_slice(s, plain, start));
        plain = i;
        if (c == (uint8_t)quote || c == '\\')
            strbuf_printf(out, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            strbuf_append_c(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (c < 0x100)
            strbuf_printf(out, "\\x%02x", c);
        else
            strbuf_printf(out, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    strbuf_append(out, str_slice(s, plain, s.n));
    strbuf_char(out, quote);
}

static bool repr_depth(struct render *r, struct value v, uint32_t depth);

static bool append_items(struct render *r, const struct value *items, uint32_t n, uint32_t depth) {
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            strbuf_append_c(r->out, ", ");
        if (!repr_depth(r, items[i], depth + 1))
            return false;
    }
    return true;
}

static bool append_dict(struct render *r, const struct dict *dict, uint32_t depth) {
    strbuf_char(r->out, '{');
    for (uint32_t i = 0; i < dict->n; i++) {
        if (i)
            strbuf_append_c(r->out, ", ");
        if (!repr_depth(r, dict->entries[i].key, depth + 1))
            return false;
        strbuf_append_c(r->out, ": ");
        if (!repr_depth(r, dict->entries[i].value, depth + 1))
            return false;
    }
    strbuf_char(r->out, '}');
    return true;
}

static bool repr_depth(struct render *r, struct value v, uint32_t depth) {
    struct strbuf *out = r->out;
    if (depth > NESTING_MAX) {
        fail(r, "maximum recursion depth exceeded while printing a value");
        return false;
    }
    if (!charge(r, 1) || !output_check(r))
        return false;
    switch ((enum value_type)v.type) {
    case V_ERROR:
    case V_MISSING:
        strbuf_append_c(out, "missing");
        break;
    case V_UNDEFINED:
        strbuf_append_c(out, "Undefined");
        break;
    case V_NONE:
        strbuf_append_c(out, "None");
        break;
    case V_BOOL:
        strbuf_append_c(out, v.b ? "True" : "False");
        break;
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        number_append(out, v);
        break;
    case V_STR:
        if (v.flags & STR_MARKUP)
            strbuf_append_c(out, "Markup(");
        append_quoted(out, str_of_value(v));
        if (v.flags & STR_MARKUP)
            strbuf_char(out, ')');
        break;
    case V_LIST:
        strbuf_char(out, '[');
        if (!append_items(r, v.list->items, v.list->n, depth))
            return false;
        strbuf_char(out, ']');
        break;
    case V_TUPLE:
        strbuf_char(out, '(');
        if (!append_items(r, v.list->items, v.list->n, depth))
            return false;
        strbuf_append_c(out, v.list->n == 1 ? ",)" : ")");
        break;
    case V_DICT:
        return append_dict(r, v.dict, depth);
    case V_NAMESPACE:
        strbuf_append_c(out, "<Namespace ");
        if (!append_dict(r, v.dict, depth))
            return false;
        strbuf_char(out, '>');
        break;
    case V_RANGE:
        strbuf_printf(out, "range(%lld, %lld", (long long)v.range->start, (long long)v.range->stop);
        if (v.range->step != 1)
            strbuf_printf(out, ", %lld", (long long)v.range->step);
        strbuf_char(out, ')');
        break;
    case V_VIEW: {
        struct span span;
        strbuf_printf(out, "%s([", type_name(v));
        if (!span_of(r, v, &span) || !append_items(r, span.items, span.n, depth))
            return false;
        strbuf_append_c(out, "])");
        break;
    }
    case V_MACRO:
        macro_append_repr(out, v.macro);
        break;
    case V_LOOP:
        return loop_append_repr(r, v.loop);
    case V_ITERATOR:
    case V_METHOD:
    case V_FUNCTION:
    case V_CYCLER:
    case V_JOINER: // Python prints an address
        strbuf_printf(out, "<%s object>", type_name(v));
        break;
    }
    return true;
}

bool append_repr(struct render *r, struct value v) { return repr_depth(r, v, 0); }

bool append_str(struct render *r, struct value v) {
    if (v.type == V_STR) {
        strbuf_append(r->out, str_of_value(v));
        return true;
    }
    return v.type == V_UNDEFINED || append_repr(r, v);
}

struct value to_str(struct render *r, struct value v) {
    if (v.type == V_STR) {
        v.flags = 0;
        return v;
    }
    if (v.type == V_UNDEFINED)
        return value_str(STR(""));
    size_t mark = r->out->n;
    return append_repr(r, v) ? text_take(r, mark) : value_error();
}

struct value soft_str(struct render *r, struct value v) { return v.type == V_STR ? v : to_str(r, v); }

void append_escaped(struct strbuf *out, struct str s) {
    size_t plain = 0;
    for (size_t i = 0; i < s.n; i++) {
        const char *entity = NULL;
        switch (s.data[i]) {
        case '&':
            entity = "&amp;";
            break;
        case '<':
            entity = "&lt;";
            break;
        case '>':
            entity = "&gt;";
            break;
        case '"':
            entity = "&#34;";
            break;
        case '\'':
            entity = "&#39;";
            break;
        default:
            continue;
        }
        strbuf_append(out, str_slice(s, plain, i));
        strbuf_append_c(out, entity);
        plain = i + 1;
    }
    strbuf_append(out, str_slice(s, plain, s.n));
}

struct value escape(struct render *r, struct value v) {
    if (v.type == V_STR && (v.flags & STR_MARKUP))
        return v;
    struct value text = to_str(r, v);
    if (is_error(text))
        return text;
    size_t mark = r->out->n;
    append_escaped(r->out, str_of_value(text));
    text = text_take(r, mark);
    text.flags = is_error(text) ? 0 : STR_MARKUP;
    return text;
}

// ---- json.dumps -------------------------------------------------------------------------------

static void append_json_str(struct strbuf *out, struct str s, bool ensure_ascii) {
    strbuf_char(out, '"');
    size_t plain = 0;
    for (size_t i = 0; i < s.n;) {
        size_t start = i;
        uint8_t byte = (uint8_t)s.data[i];
        if (byte >= 0x20 && byte != '"' && byte != '\\' && (!ensure_ascii || byte < 0x7F)) {
            i++;
            continue;
        }
        uint32_t c = unicode_next(s, &i);
        strbuf_append(out, str_slice(s, plain, start));
        plain = i;
        switch (c) {
        case '"':
            strbuf_append_c(out, "\\\"");
            break;
        case '\\':
            strbuf_append_c(out, "\\\\");
            break;
        case '\n':
            strbuf_append_c(out, "\\n");
            break;
        case '\r':
            strbuf_append_c(out, "\\r");
            break;
        case '\t':
            strbuf_append_c(out, "\\t");
            break;
        case '\f':
            strbuf_append_c(out, "\\f");
            break;
        case '\b':
            strbuf_append_c(out, "\\b");
            break;
        default:
            if (c >= 0x10000) {
                c -= 0x10000;
                strbuf_printf(out, "\\u%04x\\u%04x", 0xD800 + (c >> 10), 0xDC00 + (c & 0x3FF));
            } else {
                strbuf_printf(out, "\\u%04x", c);
            }
        }
    }
    strbuf_append(out, str_slice(s, plain, s.n));
    strbuf_char(out, '"');
}

static void json_newline(struct render *r, const struct json_style *style, uint32_t depth) {
    if (!style->has_indent)
        return;
    strbuf_char(r->out, '\n');
    for (uint32_t i = 0; i < depth; i++)
        strbuf_append(r->out, style->indent);
}

static bool json_depth(struct render *r, struct value v, const struct json_style *style, uint32_t depth);

static bool append_json_key(struct render *r, struct value key, const struct json_style *style) {
    if (key.type == V_STR) {
        append_json_str(r->out, str_of_value(key), style->ensure_ascii);
        return true;
    }
    if (!is_number(key) && key.type != V_NONE) {
        fail(r, "keys must be str, int, float, bool or None, not %s", type_name(key));
        return false;
    }
    strbuf_char(r->out, '"');
    bool ok = json_depth(r, key, style, 0);
    strbuf_char(r->out, '"');
    return ok;
}

static bool json_list(struct render *r, struct value v, const struct json_style *style, uint32_t depth) {
    strbuf_char(r->out, '[');
    for (uint32_t i = 0; i < v.list->n; i++) {
        if (i)
            strbuf_append(r->out, style->item_separator);
        json_newline(r, style, depth + 1);
        if (!json_depth(r, v.list->items[i], style, depth + 1))
            return false;
    }
    if (v.list->n)
        json_newline(r, style, depth);
    strbuf_char(r->out, ']');
    return true;
}

static bool json_dict(struct render *r, struct value v, const struct json_style *style, uint32_t depth) {
    uint32_t *order = NULL;
    if (style->sort_keys) {
        struct span keys;
        struct view view = {VIEW_KEYS, v.dict};
        if (!span_of(r, (struct value){.type = V_VIEW, .view = &view}, &keys) ||
            !(order = sort_order(r, keys.items, keys.n, false)))
            return false;
    }
    strbuf_char(r->out, '{');
    for (uint32_t i = 0; i < v.dict->n; i++) {
        const struct dict_entry *entry = &v.dict->entries[order ? order[i] : i];
        if (i)
            strbuf_append(r->out, style->item_separator);
        json_newline(r, style, depth + 1);
        if (!append_json_key(r, entry->key, style))
            return false;
        strbuf_append(r->out, style->key_separator);
        if (!json_depth(r, entry->value, style, depth + 1))
            return false;
    }
    if (v.dict->n)
        json_newline(r, style, depth);
    strbuf_char(r->out, '}');
    return true;
}

static bool json_depth(struct render *r, struct value v, const struct json_style *style, uint32_t depth) {
    if (depth > NESTING_MAX) {
        fail(r, "maximum recursion depth exceeded in tojson");
        return false;
    }
    if (!charge(r, 1) || !output_check(r))
        return false;
    switch ((enum value_type)v.type) {
    case V_NONE:
        strbuf_append_c(r->out, "null");
        return true;
    case V_BOOL:
        strbuf_append_c(r->out, v.b ? "true" : "false");
        return true;
    case V_FLOAT:
        if (isnan(v.f))
            strbuf_append_c(r->out, "NaN");
        else if (isinf(v.f))
            strbuf_append_c(r->out, v.f < 0 ? "-Infinity" : "Infinity");
        else
            number_append(r->out, v);
        return true;
    case V_INT:
    case V_BIG:
        number_append(r->out, v);
        return true;
    case V_STR:
        append_json_str(r->out, str_of_value(v), style->ensure_ascii);
        return true;
    case V_LIST:
    case V_TUPLE:
        return json_list(r, v, style, depth);
    case V_DICT:
        return json_dict(r, v, style, depth);
    default:
        fail(r, "Object of type %s is not JSON serializable", type_name(v));
        return false;
    }
}

bool append_json(struct render *r, struct value v, const struct json_style *style) {
    return json_depth(r, v, style, 0);
}
