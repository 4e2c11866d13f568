#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "template/builtins.h"
#include "template/methods.h"
#include "template/number.h"
#include "template/text.h"
#include "template/unicode.h"

// ---- Arguments --------------------------------------------------------------------------------

bool arg_int(struct render *r, struct value v, const char *name, int64_t *out) {
    if (is_missing(v))
        return true;
    if (v.type == V_UNDEFINED) {
        fail_undefined(r, v);
        return false;
    }
    if (!is_integer(v)) {
        fail(r, "%s must be an integer, not '%s'", name, type_name(v));
        return false;
    }
    *out = number_clamp(v);
    return true;
}

bool arg_str(struct render *r, struct value v, const char *name, struct str *out) {
    if (is_missing(v))
        return true;
    if (v.type != V_STR) {
        fail(r, "%s must be a string, not '%s'", name, type_name(v));
        return false;
    }
    *out = str_of_value(v);
    return true;
}

static struct value taken_as(struct render *r, size_t mark, struct value like) {
    struct value v = text_take(r, mark);
    v.flags = is_error(v) || like.type != V_STR ? 0 : like.flags;
    return v;
}

// ---- Attributes of elements -------------------------------------------------------------------

// What "attribute=" of map, sort, groupby ... takes from an element: item.a.b.0, or item itself.
struct getter {
    struct value attribute; // V_STR, an integer, or none
    struct value fallback;  // instead of what is undefined, or V_MISSING
    bool fold_case;
};

static struct value lower_case(struct render *r, struct value v) {
    return v.type == V_STR ? change_case(r, v, CASE_LOWER) : v;
}

static struct value get_part(struct render *r, const struct getter *getter, struct value item,
                             struct value part) {
    item = get_item(r, item, part);
    if (item.type == V_UNDEFINED && !is_missing(getter->fallback) && getter->fallback.type != V_NONE)
        return getter->fallback;
    return item;
}

static struct value get_path(struct render *r, const struct getter *getter, struct value item,
                             struct str path) {
    for (size_t from = 0; !is_error(item);) {
        size_t dot = str_find(path, STR("."), from);
        struct str part = str_slice(path, from, dot == SIZE_MAX ? path.n : dot);
        bool digits = part.n > 0 && part.n < 18;
        int64_t index = 0;
        for (size_t i = 0; digits && i < part.n; i++) {
            digits = part.data[i] >= '0' && part.data[i] <= '9';
            index = index * 10 + (part.data[i] - '0');
        }
        item = get_part(r, getter, item, digits ? value_int(index) : value_str(part));
        if (dot == SIZE_MAX)
            break;
        from = dot + 1;
    }
    return item;
}

static struct value get(struct render *r, const struct getter *getter, struct value item) {
    if (getter->attribute.type == V_STR)
        item = get_path(r, getter, item, str_of_value(getter->attribute));
    else if (getter->attribute.type != V_NONE && getter->attribute.type != V_MISSING)
        item = get_part(r, getter, item, getter->attribute);
    return getter->fold_case && !is_error(item) ? lower_case(r, item) : item;
}

// The same for sort's "attribute=a,b", as a list.
static struct value get_many(struct render *r, const struct getter *getter, struct value item) {
    if (getter->attribute.type != V_STR || !memchr(getter->attribute.s, ',', getter->attribute.n)) {
        item = get(r, getter, item);
        return is_error(item) ? item : list_value(r, &item, 1);
    }
    struct str all = str_of_value(getter->attribute);
    uint32_t n = 1;
    for (size_t i = 0; i < all.n; i++)
        n += all.data[i] == ',';
    struct list *list = list_new(r, n);
    if (!list)
        return value_error();
    size_t from = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t comma = str_find(all, STR(","), from);
        struct getter one = *getter;
        one.attribute = value_str(str_slice(all, from, comma == SIZE_MAX ? all.n : comma));
        list->items[i] = get(r, &one, item);
        if (is_error(list->items[i]))
            return value_error();
        from = comma + 1;
    }
    return value_list(list);
}

// ---- Sorting ----------------------------------------------------------------------------------

static struct value sorted(struct render *r, struct span span, const struct value *keys, bool reverse) {
    uint32_t *order = sort_order(r, keys, span.n, reverse);
    struct list *list = order ? list_new(r, span.n) : NULL;
    if (!list)
        return value_error();
    for (uint32_t i = 0; i < span.n; i++)
        list->items[i] = span.items[order[i]];
    return value_list(list);
}

// `many`: each key is a list, whose elements are first looked at for being equal.
static struct value *keys_of(struct render *r, struct span span, const struct getter *getter, bool many) {
    struct value *keys = render_array(r, struct value, span.n);
    for (uint32_t i = 0; keys && i < span.n; i++) {
        keys[i] = many ? get_many(r, getter, span.items[i]) : get(r, getter, span.items[i]);
        if (is_error(keys[i]))
            return NULL;
    }
    return keys;
}

static struct value filter_sort(struct render *r, struct value *a, const struct args *args) {
    (void)args; // reverse, case_sensitive, attribute
    struct getter getter = {a[3], value_missing(), !truth(a[2])};
    struct span span;
    if (!span_of(r, a[0], &span))
        return value_error();
    struct value *keys = keys_of(r, span, &getter, true);
    return keys ? sorted(r, span, keys, truth(a[1])) : value_error();
}

static struct value filter_dictsort(struct render *r, struct value *a, const struct args *args) {
    (void)args; // case_sensitive, by, reverse
    if (a[0].type != V_DICT)
        return a[0].type == V_UNDEFINED ? fail_undefined(r, a[0])
                                        : fail(r, "'%s' object has no attribute 'items'", type_name(a[0]));
    struct str by = STR("key");
    if (!arg_str(r, a[2], "by", &by))
        return value_error();
    bool by_value = str_eq(by, STR("value"));
    if (!by_value && !str_eq(by, STR("key")))
        return fail(r, "You can only sort by either \"key\" or \"value\"");
    struct view view = {VIEW_ITEMS, a[0].dict};
    struct span span;
    if (!span_of(r, (struct value){.type = V_VIEW, .view = &view}, &span))
        return value_error();
    struct getter getter = {value_int(by_value), value_missing(), !truth(a[1])};
    struct value *keys = keys_of(r, span, &getter, false);
    return keys ? sorted(r, span, keys, truth(a[3])) : value_error();
}

static struct value filter_unique(struct render *r, struct value *a, const struct args *args) {
    (void)args; // case_sensitive, attribute
    struct getter getter = {a[2], value_missing(), !truth(a[1])};
    struct span span;
    if (!span_of(r, a[0], &span))
        return value_error();
    struct dict *seen = dict_new(r, 0);
    struct list *list = list_new(r, span.n);
    if (!seen || !list)
        return value_error();
    list->n = 0;
    for (uint32_t i = 0; i < span.n; i++) {
        struct value key = get(r, &getter, span.items[i]);
        uint32_t before = seen->n;
        if (is_error(key) || !dict_set(r, seen, key, value_none()))
            return value_error();
        if (seen->n > before)
            list->items[list->n++] = span.items[i];
    }
    return iterator_of_list(r, "generator", list);
}

static struct value least(struct render *r, struct value *a, enum operation op) {
    struct getter getter = {a[2], value_missing(), !truth(a[1])}; // case_sensitive, attribute
    struct span span;
    if (!span_of(r, a[0], &span))
        return value_error();
    if (!span.n)
        return value_hint(STR("no aggregated item, sequence was empty"));
    struct value best = span.items[0], best_key = get(r, &getter, best);
    for (uint32_t i = 1; i < span.n && !is_error(best_key); i++) {
        struct value key = get(r, &getter, span.items[i]);
        int better = is_error(key) ? -1 : value_order(r, op, key, best_key);
        if (better < 0)
            return value_error();
        if (better) {
            best = span.items[i];
            best_key = key;
        }
    }
    return is_error(best_key) ? best_key : best;
}

static struct value filter_min(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return least(r, a, OP_LT);
}

static struct value filter_max(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return least(r, a, OP_GT);
}

static struct value filter_groupby(struct render *r, struct value *a, const struct args *args) {
    (void)args; // attribute, default, case_sensitive
    bool fold = !truth(a[3]);
    struct getter getter = {a[1], a[2], fold};
    struct span span;
    if (!span_of(r, a[0], &span))
        return value_error();
    struct value *keys = render_array(r, struct value, span.n);
    for (uint32_t i = 0; keys && i < span.n; i++) {
        keys[i] = get(r, &getter, span.items[i]);
        if (is_error(keys[i]))
            return value_error();
    }
    uint32_t *order = keys ? sort_order(r, keys, span.n, false) : NULL;
    struct list *groups = order ? list_new(r, span.n) : NULL;
    if (!groups)
        return value_error();
    groups->n = 0;
    for (uint32_t from = 0, to; from < span.n; from = to) {
        int same = 1;
        for (to = from + 1; to < span.n; to++) {
            same = value_equal(r, keys[order[from]], keys[order[to]]);
            if (same != 1)
                break;
        }
        if (same < 0)
            return value_error();
        struct list *members = list_new(r, to - from), *group = list_new(r, 2);
        if (!members || !group)
            return value_error();
        for (uint32_t i = from; i < to; i++)
            members->items[i - from] = span.items[order[i]];
        getter.fold_case = false;
        group->grouped = true;
        group->items[0] = get(r, &getter, members->items[0]);
        group->items[1] = value_list(members);
        groups->items[groups->n++] = value_tuple(group);
    }
    return value_list(groups);
}

// ---- Choosing and changing elements -----------------------------------------------------------

static struct value produce_map(struct render *r, struct iterator *it) {
    struct span span = {0};
    struct list *list = NULL;
    if (truth(it->source) && !span_of(r, it->source, &span))
        return value_error();
    if (!(list = list_new(r, span.n)))
        return value_error();
    if (!truth(it->source))
        return value_list(list);
    const struct args *args = &it->args;
    struct getter getter = {value_missing(), value_missing(), false};
    const struct builtin *filter = NULL;
    struct args rest = {0};
    if (args->n == 0) {
        for (uint32_t i = 0; i < args->n_keywords; i++) {
            struct str name = args->keywords[i].name;
            if (str_eq(name, STR("attribute")))
                getter.attribute = args->keywords[i].value;
            else if (str_eq(name, STR("default")))
                getter.fallback = args->keywords[i].value;
            else
                return fail(r, "map: unexpected keyword argument '%.*s'", (int)name.n, name.data);
        }
        if (is_missing(getter.attribute))
            return fail(r, "map requires a filter argument");
    } else {
        if (args->items[0].type != V_STR)
            return fail(r, "map: the filter's name must be a string");
        struct str name = str_of_value(args->items[0]);
        if (!(filter = filter_find(name)))
            return fail(r, "no filter named '%.*s'", (int)name.n, name.data);
        rest = (struct args){args->items + 1, args->keywords, args->n - 1, args->n_keywords};
    }
    for (uint32_t i = 0; i < span.n; i++) {
        list->items[i] = filter ? call_builtin(r, filter, span.items[i], &rest)
                                : get(r, &getter, span.items[i]);
        if (is_error(list->items[i]) || !charge(r, 1))
            return value_error();
    }
    return value_list(list);
}

static struct value filter_map(struct render *r, struct value *a, const struct args *args) {
    return iterator_new(r, "generator", a[0], args, produce_map);
}

static struct value choose(struct render *r, struct iterator *it, bool by_attribute, bool wanted) {
    struct span span = {0};
    if (truth(it->source) && !span_of(r, it->source, &span))
        return value_error();
    struct list *list = list_new(r, span.n);
    if (!list)
        return value_error();
    list->n = 0;
    if (!truth(it->source))
        return value_list(list);
    const struct args *args = &it->args;
    struct getter getter = {value_none(), value_missing(), false};
    uint32_t used = 0;
    if (by_attribute) {
        if (!args->n)
            return fail(r, "missing parameter for attribute name");
        getter.attribute = args->items[used++];
    }
    const struct builtin *test = NULL;
    struct args rest = {0};
    if (args->n > used) {
        if (args->items[used].type != V_STR)
            return fail(r, "the test's name must be a string");
        struct str name = str_of_value(args->items[used++]);
        if (!(test = test_find(name)))
            return fail(r, "no test named '%.*s'", (int)name.n, name.data);
        rest = (struct args){args->items + used, args->keywords, args->n - used, args->n_keywords};
    }
    for (uint32_t i = 0; i < span.n; i++) {
        struct value v = get(r, &getter, span.items[i]);
        if (test && !is_error(v))
            v = call_builtin(r, test, v, &rest);
        if (is_error(v) || !charge(r, 1))
            return value_error();
        if (truth(v) == wanted)
            list->items[list->n++] = span.items[i];
    }
    return value_list(list);
}

static struct value produce_select(struct render *r, struct iterator *it) {
    return choose(r, it, false, true);
}
static struct value produce_reject(struct render *r, struct iterator *it) {
    return choose(r, it, false, false);
}
static struct value produce_selectattr(struct render *r, struct iterator *it) {
    return choose(r, it, true, true);
}
static struct value produce_rejectattr(struct render *r, struct iterator *it) {
    return choose(r, it, true, false);
}
static struct value filter_select(struct render *r, struct value *a, const struct args *args) {
    return iterator_new(r, "generator", a[0], args, produce_select);
}
static struct value filter_reject(struct render *r, struct value *a, const struct args *args) {
    return iterator_new(r, "generator", a[0], args, produce_reject);
}
static struct value filter_selectattr(struct render *r, struct value *a, const struct args *args) {
    return iterator_new(r, "generator", a[0], args, produce_selectattr);
}
static struct value filter_rejectattr(struct render *r, struct value *a, const struct args *args) {
    return iterator_new(r, "generator", a[0], args, produce_rejectattr);
}

static struct value filter_first(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    if (a[0].type == V_ITERATOR) { // takes one and leaves the rest
        struct iterator *it = a[0].iterator;
        if (!iterator_fill(r, it))
            return value_error();
        if (it->pos < it->n)
            return it->items[it->pos++];
        return value_hint(STR("no first item, sequence was empty"));
    }
    struct span span;
    if (!span_of(r, a[0], &span))
        return value_error();
    return span.n ? span.items[0] : value_hint(STR("no first item, sequence was empty"));
}

static struct value filter_last(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct span span;
    if (a[0].type == V_ITERATOR || a[0].type == V_LOOP)
        return fail(r, "'%s' object is not reversible", type_name(a[0]));
    if (!span_of(r, a[0], &span))
        return value_error();
    return span.n ? span.items[span.n - 1] : value_hint(STR("no last item, sequence was empty"));
}

static struct value filter_reverse(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    if (a[0].type == V_STR)
        return get_slice(r, a[0],
                         (struct value[]){value_missing(), value_missing(), value_int(-1)});
    struct span span;
    if (!span_of(r, a[0], &span))
        return value_error();
    struct list *list = list_new(r, span.n);
    if (!list)
        return value_error();
    for (uint32_t i = 0; i < span.n; i++)
        list->items[i] = span.items[span.n - 1 - i];
    if (a[0].type == V_ITERATOR) // what cannot be reversed is made a list first
        return value_list(list);
    return iterator_of_list(r, a[0].type == V_LIST ? "list_reverseiterator" : "reversed", list);
}

static struct value filter_list(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct span span;
    return span_of(r, a[0], &span) ? list_value(r, span.items, span.n) : value_error();
}

static struct value filter_length(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return value_length(r, a[0]);
}

static struct value filter_items(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct list empty = {0};
    if (a[0].type == V_UNDEFINED)
        return iterator_of_list(r, "generator", &empty);
    if (a[0].type != V_DICT)
        return fail(r, "Can only get item pairs from a mapping.");
    struct view view = {VIEW_ITEMS, a[0].dict};
    struct span span;
    if (!span_of(r, (struct value){.type = V_VIEW, .view = &view}, &span))
        return value_error();
    struct list pairs = {.n = span.n, .items = (struct value *)span.items};
    return iterator_of_list(r, "generator", &pairs);
}

static struct value filter_sum(struct render *r, struct value *a, const struct args *args) {
    (void)args; // attribute, start
    struct getter getter = {a[1], value_missing(), false};
    struct value sum = is_missing(a[2]) ? value_int(0) : a[2];
    struct span span;
    if (sum.type == V_STR)
        return fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    if (!span_of(r, a[0], &span))
        return value_error();
    for (uint32_t i = 0; i < span.n && !is_error(sum); i++) {
        struct value item = get(r, &getter, span.items[i]);
        sum = is_error(item) ? item : value_binary(r, OP_ADD, sum, item);
    }
    return sum;
}

static struct value filter_batch(struct render *r, struct value *a, const struct args *args) {
    (void)args; // linecount, fill_with
    int64_t size = 0;
    struct span span;
    if (!arg_int(r, a[1], "linecount", &size) || !span_of(r, a[0], &span))
        return value_error();
    bool fills = !is_missing(a[2]) && a[2].type != V_NONE;
    // A batch of none is never full: everything goes into one.
    uint32_t step = size < 1 || size > span.n ? (span.n ? span.n : 1) : (uint32_t)size;
    bool empty_first = size == 0 && span.n; // an empty batch of none is full at once
    struct list *batches = list_new(r, ((size_t)span.n + step - 1) / step + empty_first);
    if (!batches)
        return value_error();
    if (empty_first && is_error(batches->items[0] = list_value(r, NULL, 0)))
        return value_error();
    for (uint32_t i = empty_first; i < batches->n; i++) {
        uint32_t from = (i - empty_first) * step, n = span.n - from < step ? span.n - from : step;
        struct value batch = list_value(r, span.items + from, n);
        if (is_error(batch))
            return batch;
        if (fills && (int64_t)n < size) {
            if (size > 1000000)
                return fail(r, "batch: more than a million elements to fill in");
            struct list *filled = list_new(r, (size_t)size);
            if (!filled)
                return value_error();
            for (uint32_t k = 0; k < filled->n; k++)
                filled->items[k] = k < n ? batch.list->items[k] : a[2];
            batch = value_list(filled);
        }
        batches->items[i] = batch;
    }
    return iterator_of_list(r, "generator", batches);
}

static struct value filter_slice(struct render *r, struct value *a, const struct args *args) {
    (void)args; // slices, fill_with
    int64_t n_slices = 0;
    struct span span;
    if (!arg_int(r, a[1], "slices", &n_slices) || !span_of(r, a[0], &span))
        return value_error();
    if (n_slices == 0)
        return fail(r, "integer division or modulo by zero");
    n_slices = n_slices < 0 ? 0 : n_slices;
    if (n_slices > 100000)
        return fail(r, "slice: more than 100000 slices");
    bool fills = !is_missing(a[2]) && a[2].type != V_NONE;
    struct list *slices = list_new(r, (size_t)n_slices);
    if (!slices)
        return value_error();
    uint32_t each = n_slices ? span.n / (uint32_t)n_slices : 0;
    uint32_t extra = n_slices ? span.n % (uint32_t)n_slices : 0, at = 0;
    for (uint32_t i = 0; i < slices->n; i++) {
        uint32_t n = each + (i < extra);
        struct list *one = list_new(r, (size_t)n + (fills && i >= extra));
        if (!one)
            return value_error();
        for (uint32_t k = 0; k < one->n; k++)
            one->items[k] = k < n ? span.items[at + k] : a[2];
        at += n;
        slices->items[i] = value_list(one);
    }
    return iterator_of_list(r, "generator", slices);
}

static struct value filter_join(struct render *r, struct value *a, const struct args *args) {
    (void)args; // d, attribute
    struct getter getter = {a[2], value_missing(), false};
    struct span span;
    struct value separator = is_missing(a[1]) ? value_str(STR("")) : soft_str(r, a[1]);
    if (is_error(separator) || !span_of(r, a[0], &span))
        return value_error();
    bool by_attribute = !is_missing(a[2]) && a[2].type != V_NONE, markup = false;
    struct value *items = (struct value *)span.items;
    if (by_attribute || r->autoescape) {
        if (!(items = render_array(r, struct value, span.n)))
            return value_error();
        for (uint32_t i = 0; i < span.n; i++) {
            items[i] = get(r, &getter, span.items[i]);
            if (is_error(items[i]))
                return value_error();
            markup |= items[i].type == V_STR && items[i].flags;
        }
    }
    // With autoescape on, one Markup among them makes all of it Markup.
    markup = r->autoescape && (markup || separator.flags);
    if (markup)
        separator = escape(r, separator);
    size_t mark = r->out->n;
    for (uint32_t i = 0; i < span.n; i++) {
        if (i)
            strbuf_append(r->out, str_of_value(separator));
        struct value item = markup ? escape(r, items[i]) : items[i];
        if (is_error(item) || !append_str(r, item) || !output_check(r))
            return value_error();
    }
    struct value text = text_take(r, mark);
    text.flags = markup && !is_error(text) ? STR_MARKUP : 0;
    return text;
}

// ---- Numbers ----------------------------------------------------------------------------------

static struct value filter_abs(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    if (!is_number(a[0]))
        return fail(r, "bad operand type for abs(): '%s'", type_name(a[0]));
    if (a[0].type == V_FLOAT)
        return value_float(fabs(a[0].f));
    if (!number_is_negative(a[0]))
        return a[0].type == V_BOOL ? value_int(a[0].b) : a[0];
    struct value v = number_negate(&r->arena, a[0]);
    return is_error(v) ? fail_nomem(r) : v;
}

static struct value filter_int(struct render *r, struct value *a, const struct args *args) {
    (void)args; // default, base
    struct value fallback = is_missing(a[1]) ? value_int(0) : a[1], v;
    int64_t base = 10;
    if (!arg_int(r, a[2], "base", &base))
        return value_error();
    double f;
    switch ((enum value_type)a[0].type) {
    case V_STR:
        if (base != 0 && (base < 2 || base > 36))
            return fallback;
        if (number_int_from_text(&r->arena, str_of_value(a[0]), (int)base, &v))
            return is_error(v) ? fallback : v;
        if (!number_float_from_text(str_of_value(a[0]), &f) || !isfinite(f))
            return fallback;
        break;
    case V_FLOAT:
        f = a[0].f;
        if (isnan(f))
            return fallback;
        if (isinf(f))
            return fail(r, "cannot convert float infinity to integer");
        break;
    case V_BOOL:
        return value_int(a[0].b);
    case V_INT:
    case V_BIG:
        return a[0];
    case V_UNDEFINED:
        return fail_undefined(r, a[0]);
    default:
        return fallback;
    }
    v = number_int_from_float(&r->arena, f);
    return is_error(v) ? fail_nomem(r) : v;
}

static struct value filter_float(struct render *r, struct value *a, const struct args *args) {
    (void)args; // default
    double f;
    if (a[0].type == V_STR && number_float_from_text(str_of_value(a[0]), &f))
        return value_float(f);
    if (is_number(a[0])) {
        f = number_to_double(a[0]);
        return a[0].type == V_BIG && isinf(f) ? fail(r, "int too large to convert to float")
                                              : value_float(f);
    }
    if (a[0].type == V_UNDEFINED)
        return fail_undefined(r, a[0]);
    return is_missing(a[1]) ? value_float(0) : a[1];
}

static struct value power_of_ten(struct render *r, int64_t n) {
    return value_binary(r, OP_POW, value_int(10), value_int(n));
}

// round(v, precision) to even, as Python rounds.
static struct value round_common(struct render *r, struct value v, int64_t precision) {
    if (v.type == V_FLOAT) {
        if (!isfinite(v.f) || precision > 323)
            return v;
        if (precision >= 0) { // printf rounds the exact value, half to even
            char text[700];
            snprintf(text, sizeof text, "%.*f", (int)precision, v.f);
            return value_float(strtod(text, NULL));
        }
        if (precision < -308)
            return value_float(copysign(0.0, v.f));
        double unit = pow(10, (double)-precision);
        return value_float(nearbyint(v.f / unit) * unit);
    }
    if (precision >= 0)
        return v.type == V_BOOL ? value_int(v.b) : v;
    if (precision < -NUMBER_DIGITS_MAX)
        return value_int(0);
    struct value unit = power_of_ten(r, -precision);
    struct value rest = is_error(unit) ? unit : value_binary(r, OP_MOD, v, unit);
    struct value low = is_error(rest) ? rest : value_binary(r, OP_SUB, v, rest);
    struct value twice = is_error(low) ? low : value_binary(r, OP_MUL, rest, value_int(2));
    if (is_error(twice))
        return twice;
    enum ordering order = number_compare(twice, unit);
    struct value quotient = value_binary(r, OP_FLOORDIV, low, unit);
    struct value odd = is_error(quotient) ? quotient : value_binary(r, OP_MOD, quotient, value_int(2));
    if (is_error(odd))
        return odd;
    bool up = order == ORDER_GREATER || (order == ORDER_EQUAL && !number_is_zero(odd));
    return up ? value_binary(r, OP_ADD, low, unit) : low;
}

static struct value filter_round(struct render *r, struct value *a, const struct args *args) {
    (void)args; // precision, method
    int64_t precision = 0;
    struct str method = STR("common");
    if (a[1].type == V_NONE && a[0].type == V_FLOAT && isfinite(a[0].f)) { // to an integer
        struct value v = number_int_from_float(&r->arena, nearbyint(a[0].f));
        return is_error(v) ? fail_nomem(r) : v;
    }
    if ((a[1].type != V_NONE && !arg_int(r, a[1], "precision", &precision)) || !arg_str(r, a[2], "method", &method))
        return value_error();
    bool up = str_eq(method, STR("ceil")), down = str_eq(method, STR("floor"));
    if (!up && !down && !str_eq(method, STR("common")))
        return fail(r, "method must be common, ceil or floor");
    if (a[0].type == V_UNDEFINED)
        return fail_undefined(r, a[0]);
    if (!is_number(a[0]))
        return fail(r, "type %s doesn't define __round__ method", type_name(a[0]));
    if (!up && !down)
        return round_common(r, a[0], precision);
    struct value unit = power_of_ten(r, precision);
    struct value scaled = is_error(unit) ? unit : value_binary(r, OP_MUL, a[0], unit);
    if (is_error(scaled))
        return scaled;
    if (scaled.type == V_FLOAT) {
        if (!isfinite(scaled.f))
            return fail(r, "cannot convert float %s to integer", isnan(scaled.f) ? "NaN" : "infinity");
        scaled = number_int_from_float(&r->arena, up ? ceil(scaled.f) : floor(scaled.f));
        if (is_error(scaled))
            return fail_nomem(r);
    }
    return value_binary(r, OP_DIV, scaled, unit);
}

static struct value filter_filesizeformat(struct render *r, struct value *a, const struct args *args) {
    (void)args; // binary
    double bytes;
    if (is_number(a[0]))
        bytes = number_to_double(a[0]);
    else if (a[0].type != V_STR || !number_float_from_text(str_of_value(a[0]), &bytes))
        return fail(r, "could not convert %s to float", type_name(a[0]));
    static const char *const UNITS[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    bool binary = truth(a[1]);
    double base = binary ? 1024 : 1000, unit = base;
    size_t mark = r->out->n;
    if (bytes == 1) {
        strbuf_append_c(r->out, "1 Byte");
    } else if (bytes < base) {
        strbuf_printf(r->out, "%.0f Bytes", trunc(bytes) + 0.0); // not -0
    } else {
        int i = 0;
        for (unit = base * base; i < 7 && bytes >= unit; unit *= base)
            i++;
        strbuf_printf(r->out, "%.1f %s", base * bytes / unit, UNITS[binary][i]);
    }
    return text_take(r, mark);
}

// ---- Text -------------------------------------------------------------------------------------

static struct value filter_string(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return soft_str(r, a[0]);
}

static struct value filter_upper(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = soft_str(r, a[0]);
    return is_error(v) ? v : change_case(r, v, CASE_UPPER);
}

static struct value filter_lower(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = soft_str(r, a[0]);
    return is_error(v) ? v : change_case(r, v, CASE_LOWER);
}

static struct value filter_capitalize(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = soft_str(r, a[0]);
    return is_error(v) ? v : capitalize(r, v);
}

static bool separates_title(uint32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || unicode_is_space(c);
}

static struct value filter_title(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = soft_str(r, a[0]);
    if (is_error(v))
        return v;
    size_t mark = r->out->n;
    struct str s = str_of_value(v);
    for (size_t i = 0; i < s.n;) { // words and what is between them in turns
        size_t start = i;
        bool separator = false;
        for (bool first = true; i < s.n; first = false) {
            size_t next = i;
            bool is = separates_title(unicode_next(s, &next));
            if (!first && is != separator)
                break;
            separator = is;
            i = next;
        }
        size_t rest = start;
        unicode_append_case(r->out, unicode_next(s, &rest), CASE_UPPER);
        unicode_append_str_case(r->out, str_slice(s, rest, i), CASE_LOWER);
    }
    return taken_as(r, mark, (struct value){.type = V_STR}); // "".join makes it plain
}

static struct value filter_trim(struct render *r, struct value *a, const struct args *args) {
    struct value v = soft_str(r, a[0]);
    if (is_error(v))
        return v;
    (void)args; // chars
    return strip(r, v, a[1], true, true);
}

static struct value filter_replace(struct render *r, struct value *a, const struct args *args) {
    (void)args; // old, new, count
    int64_t count = -1;
    if (a[3].type != V_NONE && !arg_int(r, a[3], "count", &count))
        return value_error();
    struct value s = a[0], old = to_str(r, a[1]), new = a[2];
    if (r->autoescape) {
        bool any = (a[1].type == V_STR && a[1].flags) || (new.type == V_STR && new.flags);
        s = any && !(s.type == V_STR && s.flags) ? escape(r, s) : soft_str(r, s);
        new = is_error(s) || !s.flags ? soft_str(r, new) : escape(r, new);
    } else {
        s = to_str(r, s);
        new = to_str(r, new);
    }
    if (is_error(s) || is_error(old) || is_error(new))
        return value_error();
    struct value v = replace(r, str_of_value(s), str_of_value(old), str_of_value(new), count);
    v.flags = is_error(v) ? 0 : s.flags;
    return v;
}

static struct value filter_format(struct render *r, struct value *a, const struct args *args) {
    if (args->n && args->n_keywords)
        return fail(r, "can't handle positional and keyword arguments at the same time");
    struct value format = soft_str(r, a[0]), values;
    if (is_error(format))
        return format;
    if (args->n_keywords) {
        struct dict *dict = dict_new(r, args->n_keywords);
        if (!dict)
            return value_error();
        for (uint32_t i = 0; i < args->n_keywords; i++)
            if (!dict_set(r, dict, value_str(args->keywords[i].name), args->keywords[i].value))
                return value_error();
        values = value_dict(dict);
    } else {
        values = list_value(r, args->items, args->n);
        if (is_error(values))
            return values;
        values.type = V_TUPLE;
    }
    return format_percent(r, format, values);
}

static struct value filter_indent(struct render *r, struct value *a, const struct args *args) {
    (void)args; // width, first, blank
    struct str indent = STR("    ");
    struct value s = a[0];
    if (s.type == V_UNDEFINED)
        return fail_undefined(r, s);
    if (s.type != V_STR)
        return fail(r, "indent: can only indent a string, not '%s'", type_name(s));
    if (a[1].type == V_STR) {
        indent = str_of_value(a[1]);
    } else if (!is_missing(a[1])) {
        int64_t width = 0;
        if (!arg_int(r, a[1], "width", &width))
            return value_error();
        struct value spaces = value_binary(r, OP_MUL, value_str(STR(" ")), value_int(width));
        if (is_error(spaces))
            return spaces;
        indent = str_of_value(spaces);
    }
    bool blank = truth(a[3]);
    size_t mark = r->out->n;
    struct str text = str_of_value(s);
    if (truth(a[2]))
        strbuf_append(r->out, indent);
    // The quirk of the original: a newline is added, then lines are split, so the text's own last
    // newline leaves an empty last line.
    size_t at = 0;
    for (bool first = true;; first = false) {
        size_t end, next;
        find_line_end(text, at, &end, &next);
        if (!first) {
            strbuf_char(r->out, '\n');
            if (blank || end > at)
                strbuf_append(r->out, indent);
        }
        strbuf_append(r->out, str_slice(text, at, end));
        if (!output_check(r))
            return value_error();
        if (end == text.n)
            break;
        at = next;
    }
    return taken_as(r, mark, s);
}

static struct value filter_center(struct render *r, struct value *a, const struct args *args) {
    (void)args; // width
    struct value v = soft_str(r, a[0]);
    int64_t width = 80;
    if (is_error(v) || !arg_int(r, a[1], "width", &width))
        return value_error();
    return pad(r, v, width, ' ', PAD_CENTER);
}

static struct value filter_truncate(struct render *r, struct value *a, const struct args *args) {
    (void)args; // length, killwords, end, leeway
    int64_t length = 255, leeway = 5;
    struct str end = STR("...");
    struct value v = a[0], n = value_length(r, v);
    if (is_error(n) || !arg_int(r, a[1], "length", &length) || !arg_str(r, a[3], "end", &end))
        return value_error();
    if (a[4].type != V_NONE && !arg_int(r, a[4], "leeway", &leeway))
        return value_error();
    int64_t n_end = (int64_t)unicode_count(end);
    if (length < n_end)
        return fail(r, "expected length >= %lld, got %lld", (long long)n_end, (long long)length);
    if (leeway < 0)
        return fail(r, "expected leeway >= 0, got %lld", (long long)leeway);
    if (n.i <= length || n.i - length <= leeway)
        return v;
    if (v.type != V_STR)
        return fail(r, "truncate: object of type '%s' is not a string", type_name(v));
    struct str s = str_of_value(v);
    struct str head = str_slice(s, 0, unicode_offset(s, (size_t)(length - n_end)));
    if (!truth(a[2])) {
        const char *space = memrchr(head.data, ' ', head.n);
        if (space)
            head.n = (size_t)(space - head.data);
    }
    struct value text = text_concat(r, head, end);
    text.flags = is_error(text) ? 0 : v.flags;
    return text;
}

static struct value filter_wordcount(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = soft_str(r, a[0]);
    if (is_error(v) || !charge(r, v.n / 16))
        return value_error();
    int64_t n = 0;
    bool inside = false;
    for (size_t i = 0; i < v.n;) {
        bool word = unicode_is_word(unicode_next(str_of_value(v), &i));
        n += word && !inside;
        inside = word;
    }
    return value_int(n);
}

static struct value filter_safe(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = to_str(r, a[0]);
    v.flags = is_error(v) ? 0 : STR_MARKUP;
    return v;
}

static struct value filter_escape(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return escape(r, a[0]);
}

static struct value filter_forceescape(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = to_str(r, a[0]);
    return is_error(v) ? v : escape(r, v);
}

static struct value filter_striptags(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = to_str(r, a[0]);
    if (is_error(v))
        return v;
    struct str s = str_of_value(v);
    // Without comments, then without tags, then white space as single spaces, entities last.
    size_t mark = r->out->n;
    bool space = false, any = false;
    for (size_t i = 0; i < s.n;) {
        if (s.data[i] == '<') {
            bool is_comment = s.n - i >= 4 && memcmp(s.data + i, "<!--", 4) == 0;
            size_t end = str_find(s, is_comment ? STR("-->") : STR(">"), i);
            if (end != SIZE_MAX) {
                i = end + (is_comment ? 3 : 1);
                continue;
            }
        }
        size_t start = i;
        if (unicode_is_space(unicode_next(s, &i))) {
            space = any;
            continue;
        }
        if (space)
            strbuf_char(r->out, ' ');
        space = false;
        any = true;
        static const struct {
            const char *entity, *text;
        } ENTITIES[] = {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""},
                        {"&#39;", "'"}, {"&quot;", "\""}, {"&nbsp;", "\xC2\xA0"}};
        bool found = false;
        for (size_t k = 0; k < sizeof ENTITIES / sizeof *ENTITIES && s.data[start] == '&'; k++)
            if (str_starts(str_slice(s, start, s.n), str_from(ENTITIES[k].entity))) {
                strbuf_append_c(r->out, ENTITIES[k].text);
                i = start + strlen(ENTITIES[k].entity);
                found = true;
                break;
            }
        if (!found)
            strbuf_append(r->out, str_slice(s, start, i));
    }
    return text_take(r, mark);
}

static void append_url(struct strbuf *out, struct str s, bool slash) {
    for (size_t i = 0; i < s.n; i++) {
        char c = s.data[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' ||
                     c == '.' || c == '-' || c == '~' || (slash && c == '/');
        if (plain)
            strbuf_char(out, c);
        else if (c == ' ' && !slash)
            strbuf_char(out, '+');
        else
            strbuf_printf(out, "%%%02X", (unsigned)(uint8_t)c);
    }
}

static struct value filter_urlencode(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    if (a[0].type == V_STR || !is_iterable(a[0])) {
        struct value v = to_str(r, a[0]);
        if (is_error(v))
            return v;
        size_t mark = r->out->n;
        append_url(r->out, str_of_value(v), true);
        return text_take(r, mark);
    }
    struct value source = a[0];
    struct view view = {VIEW_ITEMS, a[0].dict};
    if (source.type == V_DICT)
        source = (struct value){.type = V_VIEW, .view = &view};
    struct span span;
    if (!span_of(r, source, &span))
        return value_error();
    size_t mark = r->out->n;
    for (uint32_t i = 0; i < span.n; i++) {
        if (!is_sequence_object(span.items[i]) || span.items[i].list->n != 2)
            return fail(r, "urlencode: expected pairs");
        struct value key = to_str(r, span.items[i].list->items[0]);
        struct value value = is_error(key) ? key : to_str(r, span.items[i].list->items[1]);
        if (is_error(value))
            return value;
        if (i)
            strbuf_char(r->out, '&');
        append_url(r->out, str_of_value(key), false);
        strbuf_char(r->out, '=');
        append_url(r->out, str_of_value(value), false);
    }
    return text_take(r, mark);
}

static struct value filter_xmlattr(struct render *r, struct value *a, const struct args *args) {
    (void)args; // autospace
    if (a[0].type != V_DICT)
        return fail(r, "'%s' object has no attribute 'items'", type_name(a[0]));
    size_t mark = r->out->n;
    bool any = false;
    for (uint32_t i = 0; i < a[0].dict->n; i++) {
        const struct dict_entry *entry = &a[0].dict->entries[i];
        if (entry->value.type == V_NONE || entry->value.type == V_UNDEFINED)
            continue;
        if (entry->key.type == V_STR)
            for (size_t k = 0; k < entry->key.n;) {
                uint32_t c = unicode_next(str_of_value(entry->key), &k);
                if (unicode_is_space(c) || c == '/' || c == '>' || c == '=')
                    return fail(r, "invalid character in attribute name: '%.*s'", (int)entry->key.n,
                                entry->key.s);
            }
        struct value key = escape(r, entry->key), value = escape(r, entry->value);
        if (is_error(key) || is_error(value))
            return value_error();
        if (any || is_missing(a[1]) || truth(a[1]))
            strbuf_char(r->out, ' ');
        any = true;
        strbuf_append(r->out, str_of_value(key));
        strbuf_append_c(r->out, "=\"");
        strbuf_append(r->out, str_of_value(value));
        strbuf_char(r->out, '"');
    }
    return text_take(r, mark);
}

// ---- Other ------------------------------------------------------------------------------------

static struct value filter_default(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args; // default_value, boolean
    if (a[0].type == V_UNDEFINED || (truth(a[2]) && !truth(a[0])))
        return is_missing(a[1]) ? value_str(STR("")) : a[1];
    return a[0];
}

static struct value filter_attr(struct render *r, struct value *a, const struct args *args) {
    (void)args; // name
    struct value name = to_str(r, a[1]);
    if (is_error(name))
        return name;
    if (a[0].type == V_DICT) { // not its keys
        struct value method = method_bind(r, a[0], str_of_value(name));
        return method;
    }
    return get_attribute_named(r, a[0], str_of_value(name));
}

static struct value filter_tojson(struct render *r, struct value *a, const struct args *args) {
    (void)args; // ensure_ascii, indent, separators, sort_keys
    struct json_style style = {.ensure_ascii = truth(a[1]), .sort_keys = truth(a[4])};
    style.has_indent = !is_missing(a[2]) && a[2].type != V_NONE;
    style.item_separator = style.has_indent ? STR(",") : STR(", ");
    style.key_separator = STR(": ");
    if (a[2].type == V_STR) {
        style.indent = str_of_value(a[2]);
    } else if (style.has_indent && !is_integer(a[2])) {
        if (a[0].type != V_STR) // for which the indent is not looked at
            return fail(r, "tojson: indent must be an integer or a string, not '%s'",
                        type_name(a[2]));
    } else if (style.has_indent) {
        int64_t width = number_clamp(a[2]);
        struct value spaces = value_binary(r, OP_MUL, value_str(STR(" ")), value_int(width));
        if (is_error(spaces))
            return spaces;
        style.indent = str_of_value(spaces);
    }
    if (!is_missing(a[3]) && a[3].type != V_NONE) {
        struct span both;
        if (!span_of(r, a[3], &both))
            return value_error();
        if (both.n != 2 || both.items[0].type != V_STR || both.items[1].type != V_STR)
            return fail(r, "separators must be two strings");
        style.item_separator = str_of_value(both.items[0]);
        style.key_separator = str_of_value(both.items[1]);
    }
    size_t mark = r->out->n;
    return append_json(r, a[0], &style) ? text_take(r, mark) : value_error();
}

// Not Jinja's: other engines offer it, and templates for them parse arguments with it.
static struct value filter_from_json(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    if (a[0].type != V_STR)
        return fail(r, "from_json: the JSON object must be a string, not '%s'", type_name(a[0]));
    struct err err = {0};
    json_t *json = json_parse(str_of_value(a[0]), "from_json", &err);
    if (!json)
        return fail(r, "%s", err.message);
    struct value v = value_from_json(r, json, 0);
    // Texts of the value lie in the JSON: keep them by copying through our own memory.
    if (!is_error(v))
        v = detach(r, v);
    json_decref(json);
    return v;
}

static const struct builtin FILTERS[] = {
    {"abs", filter_abs, 0, false, false, {0}},
    {"attr", filter_attr, 1, false, false, {"name"}},
    {"batch", filter_batch, 1, false, false, {"linecount", "fill_with"}},
    {"capitalize", filter_capitalize, 0, false, false, {0}},
    {"center", filter_center, 0, false, false, {"width"}},
    {"count", filter_length, 0, false, false, {0}},
    {"d", filter_default, 0, false, false, {"default_value", "boolean"}},
    {"default", filter_default, 0, false, false, {"default_value", "boolean"}},
    {"dictsort", filter_dictsort, 0, false, false, {"case_sensitive", "by", "reverse"}},
    {"e", filter_escape, 0, false, false, {0}},
    {"escape", filter_escape, 0, false, false, {0}},
    {"filesizeformat", filter_filesizeformat, 0, false, false, {"binary"}},
    {"first", filter_first, 0, false, false, {0}},
    {"float", filter_float, 0, false, false, {"default"}},
    {"forceescape", filter_forceescape, 0, false, false, {0}},
    {"format", filter_format, 0, true, false, {0}},
    {"from_json", filter_from_json, 0, false, false, {0}},
    {"fromjson", filter_from_json, 0, false, false, {0}},
    {"groupby", filter_groupby, 1, false, false, {"attribute", "default", "case_sensitive"}},
    {"indent", filter_indent, 0, false, false, {"width", "first", "blank"}},
    {"int", filter_int, 0, false, false, {"default", "base"}},
    {"items", filter_items, 0, false, false, {0}},
    {"join", filter_join, 0, false, false, {"d", "attribute"}},
    {"last", filter_last, 0, false, false, {0}},
    {"length", filter_length, 0, false, false, {0}},
    {"list", filter_list, 0, false, false, {0}},
    {"lower", filter_lower, 0, false, false, {0}},
    {"map", filter_map, 0, true, false, {0}},
    {"max", filter_max, 0, false, false, {"case_sensitive", "attribute"}},
    {"min", filter_min, 0, false, false, {"case_sensitive", "attribute"}},
    {"reject", filter_reject, 0, true, false, {0}},
    {"rejectattr", filter_rejectattr, 0, true, false, {0}},
    {"replace", filter_replace, 2, false, false, {"old", "new", "count"}},
    {"reverse", filter_reverse, 0, false, false, {0}},
    {"round", filter_round, 0, false, false, {"precision", "method"}},
    {"safe", filter_safe, 0, false, false, {0}},
    {"select", filter_select, 0, true, false, {0}},
    {"selectattr", filter_selectattr, 0, true, false, {0}},
    {"slice", filter_slice, 1, false, false, {"slices", "fill_with"}},
    {"sort", filter_sort, 0, false, false, {"reverse", "case_sensitive", "attribute"}},
    {"string", filter_string, 0, false, false, {0}},
    {"striptags", filter_striptags, 0, false, false, {0}},
    {"sum", filter_sum, 0, false, false, {"attribute", "start"}},
    {"title", filter_title, 0, false, false, {0}},
    {"tojson", filter_tojson, 0, false, false,
     {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", filter_trim, 0, false, false, {"chars"}},
    {"truncate", filter_truncate, 0, false, false, {"length", "killwords", "end", "leeway"}},
    {"unique", filter_unique, 0, false, false, {"case_sensitive", "attribute"}},
    {"upper", filter_upper, 0, false, false, {0}},
    {"urlencode", filter_urlencode, 0, false, false, {0}},
    {"wordcount", filter_wordcount, 0, false, false, {0}},
    {"xmlattr", filter_xmlattr, 0, false, false, {"autospace"}},
};

const struct builtin *filter_find(struct str name) {
    for (size_t i = 0; i < sizeof FILTERS / sizeof *FILTERS; i++)
        if (builtin_is_named(&FILTERS[i], name))
            return &FILTERS[i];
    return NULL;
}
