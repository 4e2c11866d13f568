#include "template/methods.h"

#include "template/macro.h"
#include "template/number.h"
#include "template/text.h"
#include "template/unicode.h"

// ---- str --------------------------------------------------------------------------------------

static struct value like(struct value v, struct value self) {
    v.flags = v.type == V_STR ? self.flags : v.flags;
    return v;
}

static struct value str_upper(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return change_case(r, a[0], CASE_UPPER);
}

static struct value str_lower(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return change_case(r, a[0], CASE_LOWER);
}

static struct value str_casefold(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return change_case(r, a[0], CASE_FOLD);
}

static struct value str_capitalize(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return capitalize(r, a[0]);
}

static struct value str_title(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    size_t mark = r->out->n;
    bool inside = false;
    for (size_t i = 0; i < a[0].n;) {
        size_t start = i;
        uint32_t c = unicode_next(str_of_value(a[0]), &i);
        unicode_append_case_at(r->out, str_of_value(a[0]), start, inside ? CASE_LOWER : CASE_TITLE);
        inside = unicode_is_cased(c);
    }
    return like(text_take(r, mark), a[0]);
}

static struct value str_swapcase(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    size_t mark = r->out->n;
    for (size_t i = 0; i < a[0].n;) {
        size_t start = i;
        bool upper = unicode_is_upper(unicode_next(str_of_value(a[0]), &i));
        unicode_append_case_at(r->out, str_of_value(a[0]), start, upper ? CASE_LOWER : CASE_UPPER);
    }
    return like(text_take(r, mark), a[0]);
}

static struct value str_strip(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return strip(r, a[0], a[1], true, true);
}

static struct value str_lstrip(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return strip(r, a[0], a[1], true, false);
}

static struct value str_rstrip(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return strip(r, a[0], a[1], false, true);
}

// Growing list of parts of a text.
struct parts {
    struct list *list;
    uint32_t capacity;
    uint8_t flags;
};

static bool parts_add(struct render *r, struct parts *parts, struct str part) {
    if (!parts->list && !(parts->list = list_new(r, 0)))
        return false;
    if (parts->list->n == parts->capacity) {
        uint32_t capacity = parts->capacity ? parts->capacity * 2 : 4;
        struct value *items = render_array(r, struct value, capacity);
        if (!items)
            return false;
        if (parts->list->n)
            memcpy(items, parts->list->items, parts->list->n * sizeof *items);
        parts->list->items = items;
        parts->capacity = capacity;
    }
    struct value v = value_str(part);
    v.flags = parts->flags;
    parts->list->items[parts->list->n++] = v;
    return charge(r, 1);
}

static struct value parts_value(struct render *r, struct parts *parts) {
    if (!parts->list && !(parts->list = list_new(r, 0)))
        return value_error();
    return value_list(parts->list);
}

static bool split_args(struct render *r, struct value *a, struct str *separator, bool *by_space,
                       int64_t *n_max) {
    *n_max = -1;
    *by_space = is_missing(a[1]) || a[1].type == V_NONE;
    if ((!*by_space && !arg_str(r, a[1], "split: the separator", separator)) ||
        !arg_int(r, a[2], "split: maxsplit", n_max) || !charge(r, a[0].n / 64))
        return false;
    if (!*by_space && !separator->n) {
        fail(r, "empty separator");
        return false;
    }
    if (*n_max < 0)
        *n_max = INT64_MAX;
    return true;
}

static struct value str_split(struct render *r, struct value *a, const struct args *args) {
    (void)args; // sep, maxsplit
    struct str s = str_of_value(a[0]), separator = {0};
    struct parts parts = {.flags = a[0].flags};
    bool by_space;
    int64_t n_max;
    if (!split_args(r, a, &separator, &by_space, &n_max))
        return value_error();
    size_t at = 0;
    if (!by_space) {
        for (size_t found; n_max > 0 && (found = str_find(s, separator, at)) != SIZE_MAX; n_max--) {
            if (!parts_add(r, &parts, str_slice(s, at, found)))
                return value_error();
            at = found + separator.n;
        }
        return parts_add(r, &parts, str_slice(s, at, s.n)) ? parts_value(r, &parts) : value_error();
    }
    for (;;) {
        struct str rest = unicode_strip_space(str_slice(s, at, s.n), true, false);
        at = s.n - rest.n;
        if (at >= s.n)
            break;
        size_t end = at;
        if (n_max-- <= 0) {
            end = s.n; // the last part keeps the white space inside and behind it
        } else {
            while (end < s.n) {
                size_t next = end;
                if (unicode_is_space(unicode_next(s, &next)))
                    break;
                end = next;
            }
        }
        if (!parts_add(r, &parts, str_slice(s, at, end)))
            return value_error();
        at = end;
    }
    return parts_value(r, &parts);
}

// The last `needle` in s[0..to), or SIZE_MAX.
static size_t find_last(struct str s, struct str needle, size_t to) {
    if (needle.n > to)
        return SIZE_MAX;
    for (size_t i = to - needle.n + 1; i-- > 0;)
        if (memcmp(s.data + i, needle.data, needle.n) == 0)
            return i;
    return SIZE_MAX;
}

static struct value str_rsplit(struct render *r, struct value *a, const struct args *args) {
    (void)args; // sep, maxsplit
    struct str s = str_of_value(a[0]), separator = {0};
    struct parts parts = {.flags = a[0].flags};
    bool by_space;
    int64_t n_max;
    if (!split_args(r, a, &separator, &by_space, &n_max))
        return value_error();
    size_t end = s.n;
    if (!by_space) {
        for (size_t found; n_max > 0 && (found = find_last(s, separator, end)) != SIZE_MAX; n_max--) {
            if (!parts_add(r, &parts, str_slice(s, found + separator.n, end)))
                return value_error();
            end = found;
        }
        if (!parts_add(r, &parts, str_slice(s, 0, end)))
            return value_error();
    } else {
        while ((end = unicode_strip_space(str_slice(s, 0, end), false, true).n) > 0) {
            size_t start = n_max > 0 ? end : 0;
            while (start > 0) {
                size_t before = start;
                if (unicode_is_space(unicode_before(s, &before)))
                    break;
                start = before;
            }
            if (n_max-- <= 0 && !parts_add(r, &parts, str_slice(s, 0, end)))
                return value_error();
            if (n_max < 0)
                break;
            if (!parts_add(r, &parts, str_slice(s, start, end)))
                return value_error();
            end = start;
        }
    }
    struct value v = parts_value(r, &parts);
    for (uint32_t i = 0; !is_error(v) && i < v.list->n / 2; i++) {
        struct value t = v.list->items[i];
        v.list->items[i] = v.list->items[v.list->n - 1 - i];
        v.list->items[v.list->n - 1 - i] = t;
    }
    return v;
}

static struct value str_splitlines(struct render *r, struct value *a, const struct args *args) {
    (void)args; // keepends
    struct str s = str_of_value(a[0]);
    struct parts parts = {.flags = a[0].flags};
    for (size_t at = 0, end, next; at < s.n; at = next) {
        find_line_end(s, at, &end, &next);
        if (!parts_add(r, &parts, str_slice(s, at, truth(a[1]) ? next : end)))
            return value_error();
    }
    return parts_value(r, &parts);
}

static struct value partition(struct render *r, struct value *a, bool last) {
    struct str s = str_of_value(a[0]), separator = {0};
    if (!arg_str(r, a[1], "partition: the separator", &separator))
        return value_error();
    if (!separator.n)
        return fail(r, "empty separator");
    size_t found = last ? find_last(s, separator, s.n) : str_find(s, separator, 0);
    struct list *list = list_new(r, 3);
    if (!list)
        return value_error();
    struct str three[3] = {s, STR(""), STR("")};
    if (found != SIZE_MAX) {
        three[0] = str_slice(s, 0, found);
        three[1] = separator;
        three[2] = str_slice(s, found + separator.n, s.n);
    } else if (last) {
        three[0] = STR("");
        three[2] = s;
    }
    for (int i = 0; i < 3; i++)
        list->items[i] = like(value_str(three[i]), a[0]);
    return value_tuple(list);
}

static struct value str_partition(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return partition(r, a, false);
}

static struct value str_rpartition(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return partition(r, a, true);
}

// The part of a text between two optional positions in characters: its bytes.
static bool window(struct render *r, struct value self, struct value start, struct value stop,
                   size_t *from, size_t *to) {
    struct value parts[3] = {start, stop, value_missing()};
    *from = 0;
    *to = self.n;
    if ((is_missing(start) || start.type == V_NONE) && (is_missing(stop) || stop.type == V_NONE))
        return true;
    int64_t n = (int64_t)unicode_count(str_of_value(self)), bounds[2] = {0, n};
    for (int i = 0; i < 2; i++) {
        if (parts[i].type == V_NONE)
            parts[i] = value_missing();
        if (!arg_int(r, parts[i], "a position", &bounds[i]))
            return false;
        if (bounds[i] < 0)
            bounds[i] = bounds[i] + n < 0 ? 0 : bounds[i] + n;
    }
    if (bounds[0] > n) { // nothing is found there, not even the empty text
        *from = SIZE_MAX;
        return true;
    }
    bounds[1] = bounds[1] > n ? n : bounds[1];
    *from = unicode_offset(str_of_value(self), (size_t)bounds[0]);
    *to = unicode_offset(str_of_value(self), (size_t)bounds[1]);
    if (*to < *from)
        *from = SIZE_MAX;
    return true;
}

static struct value affix(struct render *r, struct value *a, bool at_end) {
    size_t from, to;
    if (!window(r, a[0], a[2], a[3], &from, &to))
        return value_error();
    struct value one = a[1];
    struct span any = {&one, 1};
    if (one.type == V_TUPLE)
        any = (struct span){one.list->items, one.list->n};
    for (uint32_t i = 0; i < any.n; i++) {
        if (any.items[i].type != V_STR)
            return fail(r, "%s first arg must be str or a tuple of str, not %s",
                        at_end ? "endswith" : "startswith", type_name(any.items[i]));
        if (from == SIZE_MAX)
            continue;
        struct str part = str_slice(str_of_value(a[0]), from, to);
        if (at_end ? str_ends(part, str_of_value(any.items[i]))
                   : str_starts(part, str_of_value(any.items[i])))
            return value_bool(true);
    }
    return value_bool(false);
}

static struct value str_startswith(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return affix(r, a, false);
}

static struct value str_endswith(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return affix(r, a, true);
}

// The position in characters of the first or last `sub`, or -1.
static struct value find(struct render *r, struct value *a, bool last) {
    struct str s = str_of_value(a[0]), sub = {0};
    size_t from, to, found = SIZE_MAX;
    if (!arg_str(r, a[1], "find: the argument", &sub) || !window(r, a[0], a[2], a[3], &from, &to) ||
        !charge(r, s.n / 64))
        return value_error();
    if (from != SIZE_MAX) {
        struct str part = str_slice(s, from, to);
        found = last ? find_last(part, sub, part.n) : str_find(part, sub, 0);
    }
    return value_int(found == SIZE_MAX ? -1 : (int64_t)unicode_count(str_slice(s, 0, from + found)));
}

static struct value str_find_method(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return find(r, a, false);
}

static struct value str_rfind(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return find(r, a, true);
}

static struct value found_or_fail(struct render *r, struct value v) {
    return v.type == V_INT && v.i < 0 ? fail(r, "substring not found") : v;
}

static struct value str_index(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return found_or_fail(r, find(r, a, false));
}

static struct value str_rindex(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return found_or_fail(r, find(r, a, true));
}

static struct value str_count(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct str s = str_of_value(a[0]), sub = {0};
    size_t from, to;
    if (!arg_str(r, a[1], "count: the argument", &sub) || !window(r, a[0], a[2], a[3], &from, &to) ||
        !charge(r, s.n / 64))
        return value_error();
    if (from == SIZE_MAX)
        return value_int(0);
    struct str part = str_slice(s, from, to);
    if (!sub.n)
        return value_int((int64_t)unicode_count(part) + 1);
    int64_t n = 0;
    for (size_t i = 0; (i = str_find(part, sub, i)) != SIZE_MAX; i += sub.n)
        n++;
    return value_int(n);
}

static struct value str_replace(struct render *r, struct value *a, const struct args *args) {
    (void)args; // old, new, count
    struct str old = {0};
    int64_t count = -1;
    if (!arg_str(r, a[1], "replace: the first argument", &old) ||
        !arg_int(r, a[3], "replace: count", &count))
        return value_error();
    if (a[2].type != V_STR)
        return fail(r, "replace() argument 2 must be str, not %s", type_name(a[2]));
    struct value new = a[0].flags ? escape(r, a[2]) : a[2];
    if (is_error(new))
        return new;
    return like(replace(r, str_of_value(a[0]), old, str_of_value(new), count), a[0]);
}

static struct value str_join(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct span span;
    if (!span_of(r, a[1], &span))
        return value_error();
    size_t mark = r->out->n;
    for (uint32_t i = 0; i < span.n; i++) {
        struct value item = span.items[i];
        if (a[0].flags) {
            item = escape(r, item);
            if (is_error(item))
                return item;
        } else if (item.type != V_STR) {
            return fail(r, "sequence item %u: expected str instance, %s found", i, type_name(item));
        }
        if (i)
            strbuf_append(r->out, str_of_value(a[0]));
        strbuf_append(r->out, str_of_value(item));
        if (!output_check(r))
            return value_error();
    }
    return like(text_take(r, mark), a[0]);
}

static struct value justify(struct render *r, struct value *a, enum pad where, const char *name) {
    int64_t width = 0;
    struct str fill = STR(" ");
    if (!arg_int(r, a[1], "the width", &width) || !arg_str(r, a[2], "the fill character", &fill))
        return value_error();
    if (unicode_count(fill) != 1)
        return fail(r, "%s: the fill character must be exactly one character long", name);
    size_t i = 0;
    return pad(r, a[0], width, unicode_next(fill, &i), where);
}

static struct value str_ljust(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return justify(r, a, PAD_LEFT, "ljust");
}

static struct value str_rjust(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return justify(r, a, PAD_RIGHT, "rjust");
}

static struct value str_center(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return justify(r, a, PAD_CENTER, "center");
}

static struct value str_zfill(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    int64_t width = 0;
    if (!arg_int(r, a[1], "the width", &width))
        return value_error();
    struct str s = str_of_value(a[0]);
    bool sign = s.n && (s.data[0] == '-' || s.data[0] == '+');
    struct value digits = value_str(str_slice(s, sign, s.n));
    digits = pad(r, digits, width - sign, '0', PAD_RIGHT);
    if (is_error(digits) || !sign)
        return like(digits, a[0]);
    return like(text_concat(r, str_slice(s, 0, 1), str_of_value(digits)), a[0]);
}

static struct value str_removeprefix(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct str s = str_of_value(a[0]), prefix = {0};
    if (!arg_str(r, a[1], "removeprefix: the argument", &prefix))
        return value_error();
    return like(value_str(str_starts(s, prefix) ? str_slice(s, prefix.n, s.n) : s), a[0]);
}

static struct value str_removesuffix(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct str s = str_of_value(a[0]), suffix = {0};
    if (!arg_str(r, a[1], "removesuffix: the argument", &suffix))
        return value_error();
    return like(value_str(str_ends(s, suffix) ? str_slice(s, 0, s.n - suffix.n) : s), a[0]);
}

static struct value str_expandtabs(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    int64_t tab = 8, column = 0;
    if (!arg_int(r, a[1], "tabsize", &tab))
        return value_error();
    if (tab > 1000)
        return fail(r, "expandtabs: a tab of more than 1000 columns");
    size_t mark = r->out->n;
    for (size_t i = 0; i < a[0].n;) {
        size_t start = i;
        uint32_t c = unicode_next(str_of_value(a[0]), &i);
        if (c == '\t') {
            for (int64_t n = tab > 0 ? tab - column % tab : 0; n > 0; n--, column++)
                strbuf_char(r->out, ' ');
            if (!output_check(r))
                return value_error();
        } else {
            strbuf_append(r->out, str_slice(str_of_value(a[0]), start, i));
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
    }
    return like(text_take(r, mark), a[0]);
}

static struct value str_format(struct render *r, struct value *a, const struct args *args) {
    return format_braces(r, a[0], args);
}

static struct value str_format_map(struct render *r, struct value *a, const struct args *args) {
    if (args->n != 1 || args->n_keywords || args->items[0].type != V_DICT)
        return fail(r, "format_map() takes exactly one argument, a mapping");
    const struct dict *dict = args->items[0].dict;
    struct keyword_value *keywords = render_array(r, struct keyword_value, dict->n);
    if (!keywords)
        return value_error();
    uint32_t n = 0;
    for (uint32_t i = 0; i < dict->n; i++)
        if (dict->entries[i].key.type == V_STR)
            keywords[n++] = (struct keyword_value){str_of_value(dict->entries[i].key),
                                                   dict->entries[i].value};
    return format_braces(r, a[0], &(struct args){.keywords = keywords, .n_keywords = n});
}

// True if the text has characters and all of them are of a class.
static struct value all_are(struct render *r, struct value self, bool (*is)(uint32_t)) {
    if (!charge(r, self.n / 16))
        return value_error();
    for (size_t i = 0; i < self.n;)
        if (!is(unicode_next(str_of_value(self), &i)))
            return value_bool(false);
    return value_bool(self.n > 0);
}

static bool is_alnum(uint32_t c) { return c != '_' && unicode_is_word(c); }

#define ALL_ARE(name, is)                                                                          \
    static struct value name(struct render *r, struct value *a, const struct args *args) {         \
        (void)args;                                                                                \
        return all_are(r, a[0], is);                                                               \
    }
ALL_ARE(str_isalpha, unicode_is_alpha)
ALL_ARE(str_isalnum, is_alnum)
ALL_ARE(str_isdecimal, unicode_is_decimal)
ALL_ARE(str_isdigit, unicode_is_digit)
ALL_ARE(str_isnumeric, unicode_is_numeric)
ALL_ARE(str_isspace, unicode_is_space)

static struct value str_isprintable(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return a[0].n ? all_are(r, a[0], unicode_is_printable) : value_bool(true);
}

static struct value str_isascii(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    for (uint32_t i = 0; i < a[0].n; i++)
        if ((uint8_t)a[0].s[i] >= 0x80)
            return value_bool(false);
    return value_bool(true);
}

static struct value str_isidentifier(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    return value_bool(unicode_is_identifier(str_of_value(a[0])));
}

bool text_is_upper(struct str s) {
    bool any = false;
    for (size_t i = 0; i < s.n;) {
        uint32_t c = unicode_next(s, &i);
        if (unicode_is_lower(c) || unicode_is_title(c))
            return false;
        any |= unicode_is_upper(c);
    }
    return any;
}

bool text_is_lower(struct str s) {
    bool any = false;
    for (size_t i = 0; i < s.n;) {
        uint32_t c = unicode_next(s, &i);
        if (unicode_is_upper(c) || unicode_is_title(c))
            return false;
        any |= unicode_is_lower(c);
    }
    return any;
}

static struct value str_isupper(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    return value_bool(text_is_upper(str_of_value(a[0])));
}

static struct value str_islower(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    return value_bool(text_is_lower(str_of_value(a[0])));
}

static struct value str_istitle(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    bool any = false, inside = false;
    for (size_t i = 0; i < a[0].n;) {
        uint32_t c = unicode_next(str_of_value(a[0]), &i);
        bool upper = unicode_is_upper(c) || unicode_is_title(c), lower = unicode_is_lower(c);
        if (upper ? inside : lower && !inside)
            return value_bool(false);
        inside = upper || lower;
        any |= inside;
    }
    return value_bool(any);
}

// ---- dict, list, tuple, numbers ---------------------------------------------------------------

static struct value dict_get(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    if (!is_hashable(a[1]))
        return fail(r, "unhashable type: '%s'", type_name(a[1]));
    const struct value *there = dict_find(r, a[0].dict, a[1]);
    return there ? *there : is_missing(a[2]) ? value_none() : a[2];
}

static struct value view_of(struct render *r, struct value dict, enum view_kind kind) {
    struct view *view = render_alloc(r, sizeof *view);
    if (!view)
        return value_error();
    *view = (struct view){kind, dict.dict};
    return (struct value){.type = V_VIEW, .view = view};
}

static struct value dict_keys(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return view_of(r, a[0], VIEW_KEYS);
}

static struct value dict_values(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return view_of(r, a[0], VIEW_VALUES);
}

static struct value dict_items(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return view_of(r, a[0], VIEW_ITEMS);
}

static struct value same_object(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    return a[0]; // nothing can change it: a copy would be the same
}

static struct value dict_fromkeys(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct span span;
    struct dict *dict = dict_new(r, 0);
    if (!dict || !span_of(r, a[1], &span))
        return value_error();
    for (uint32_t i = 0; i < span.n; i++)
        if (!dict_set(r, dict, span.items[i], is_missing(a[2]) ? value_none() : a[2]))
            return value_error();
    return value_dict(dict);
}

static struct value list_index(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    int64_t n, bounds[2] = {0, INT64_MAX};
    struct span span;
    if (!span_of(r, a[0], &span) || !charge(r, span.n))
        return value_error();
    n = span.n;
    for (int i = 0; i < 2; i++) {
        if (!arg_int(r, a[2 + i], "a position", &bounds[i]))
            return value_error();
        if (bounds[i] < 0)
            bounds[i] = bounds[i] + n < 0 ? 0 : bounds[i] + n;
    }
    for (int64_t i = bounds[0]; i < n && i < bounds[1]; i++) {
        int same = value_equal(r, span.items[i], a[1]);
        if (same)
            return same < 0 ? value_error() : value_int(i);
    }
    return fail(r, "%s.index(x): x not in %s", type_name(a[0]), type_name(a[0]));
}

static struct value list_count(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    int64_t n = 0;
    struct span span;
    if (!span_of(r, a[0], &span) || !charge(r, span.n))
        return value_error();
    for (uint32_t i = 0; i < span.n; i++) {
        int same = value_equal(r, span.items[i], a[1]);
        if (same < 0)
            return value_error();
        n += same;
    }
    return value_int(n);
}

static struct value float_is_integer(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    return value_bool(a[0].type != V_FLOAT || a[0].f == __builtin_trunc(a[0].f));
}

static struct value int_bit_length(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    size_t mark = r->out->n;
    number_append_digits(r->out, a[0], 2);
    size_t n = r->out->n - mark;
    r->out->n = mark;
    return value_int(number_is_zero(a[0]) ? 0 : (int64_t)n);
}

// ---- Jinja's objects --------------------------------------------------------------------------

static struct value cycler_next(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    struct cycler *cycler = a[0].cycler;
    struct value v = cycler->items[cycler->pos];
    cycler->pos = (cycler->pos + 1) % cycler->n;
    return v;
}

static struct value cycler_reset(struct render *r, struct value *a, const struct args *args) {
    (void)r;
    (void)args;
    a[0].cycler->pos = 0;
    return value_none();
}

static struct value loop_cycle(struct render *r, struct value *a, const struct args *args) {
    if (!args->n || args->n_keywords)
        return fail(r, "no items for cycling given");
    return args->items[a[0].loop->index0 % args->n];
}

static struct value loop_changed(struct render *r, struct value *a, const struct args *args) {
    struct loop *loop = a[0].loop;
    struct value now = list_value(r, args->items, args->n);
    if (is_error(now))
        return now;
    int same = is_missing(loop->changed) ? 0 : value_equal(r, now, loop->changed);
    if (same < 0)
        return value_error();
    loop->changed = now;
    return value_bool(!same);
}

// ---- Tables -----------------------------------------------------------------------------------

#define METHOD(name, fn, required, ...) {name, fn, required, false, true, {__VA_ARGS__}}
#define KEYWORDS(name, fn, required, ...) {name, fn, required, false, false, {__VA_ARGS__}}
#define ANY(name, fn) {name, fn, 0, true, false, {0}}
#define UNSAFE(name) {name, NULL, 0, false, false, {0}}

static const struct builtin STR_METHODS[] = {
    METHOD("capitalize", str_capitalize, 0, 0),
    METHOD("casefold", str_casefold, 0, 0),
    METHOD("center", str_center, 1, "width", "fillchar"),
    METHOD("count", str_count, 1, "sub", "start", "end"),
    METHOD("endswith", str_endswith, 1, "suffix", "start", "end"),
    KEYWORDS("expandtabs", str_expandtabs, 0, "tabsize"),
    METHOD("find", str_find_method, 1, "sub", "start", "end"),
    ANY("format", str_format),
    ANY("format_map", str_format_map),
    METHOD("index", str_index, 1, "sub", "start", "end"),
    METHOD("isalnum", str_isalnum, 0, 0),
    METHOD("isalpha", str_isalpha, 0, 0),
    METHOD("isascii", str_isascii, 0, 0),
    METHOD("isdecimal", str_isdecimal, 0, 0),
    METHOD("isdigit", str_isdigit, 0, 0),
    METHOD("isidentifier", str_isidentifier, 0, 0),
    METHOD("islower", str_islower, 0, 0),
    METHOD("isnumeric", str_isnumeric, 0, 0),
    METHOD("isprintable", str_isprintable, 0, 0),
    METHOD("isspace", str_isspace, 0, 0),
    METHOD("istitle", str_istitle, 0, 0),
    METHOD("isupper", str_isupper, 0, 0),
    METHOD("join", str_join, 1, "iterable"),
    METHOD("ljust", str_ljust, 1, "width", "fillchar"),
    METHOD("lower", str_lower, 0, 0),
    METHOD("lstrip", str_lstrip, 0, "chars"),
    METHOD("partition", str_partition, 1, "sep"),
    METHOD("removeprefix", str_removeprefix, 1, "prefix"),
    METHOD("removesuffix", str_removesuffix, 1, "suffix"),
    METHOD("replace", str_replace, 2, "old", "new", "count"),
    METHOD("rfind", str_rfind, 1, "sub", "start", "end"),
    METHOD("rindex", str_rindex, 1, "sub", "start", "end"),
    METHOD("rjust", str_rjust, 1, "width", "fillchar"),
    METHOD("rpartition", str_rpartition, 1, "sep"),
    KEYWORDS("rsplit", str_rsplit, 0, "sep", "maxsplit"),
    METHOD("rstrip", str_rstrip, 0, "chars"),
    KEYWORDS("split", str_split, 0, "sep", "maxsplit"),
    KEYWORDS("splitlines", str_splitlines, 0, "keepends"),
    METHOD("startswith", str_startswith, 1, "prefix", "start", "end"),
    METHOD("strip", str_strip, 0, "chars"),
    METHOD("swapcase", str_swapcase, 0, 0),
    METHOD("title", str_title, 0, 0),
    METHOD("upper", str_upper, 0, 0),
    METHOD("zfill", str_zfill, 1, "width"),
};

static const struct builtin DICT_METHODS[] = {
    METHOD("get", dict_get, 1, "key", "default"),
    METHOD("items", dict_items, 0, 0),
    METHOD("keys", dict_keys, 0, 0),
    METHOD("values", dict_values, 0, 0),
    METHOD("copy", same_object, 0, 0),
    METHOD("fromkeys", dict_fromkeys, 1, "iterable", "value"),
    UNSAFE("clear"),
    UNSAFE("pop"),
    UNSAFE("popitem"),
    UNSAFE("setdefault"),
    UNSAFE("update"),
};

static const struct builtin LIST_METHODS[] = {
    METHOD("index", list_index, 1, "value", "start", "stop"),
    METHOD("count", list_count, 1, "value"),
    METHOD("copy", same_object, 0, 0),
    UNSAFE("append"),
    UNSAFE("clear"),
    UNSAFE("extend"),
    UNSAFE("insert"),
    UNSAFE("pop"),
    UNSAFE("remove"),
    UNSAFE("reverse"),
    UNSAFE("sort"),
};

static const struct builtin TUPLE_METHODS[] = { // and of ranges
    METHOD("index", list_index, 1, "value", "start", "stop"),
    METHOD("count", list_count, 1, "value"),
};

static const struct builtin FLOAT_METHODS[] = {
    METHOD("is_integer", float_is_integer, 0, 0),
    METHOD("conjugate", same_object, 0, 0),
};

static const struct builtin INT_METHODS[] = {
    METHOD("bit_length", int_bit_length, 0, 0),
    METHOD("conjugate", same_object, 0, 0),
};

static const struct builtin CYCLER_METHODS[] = {
    METHOD("next", cycler_next, 0, 0),
    METHOD("reset", cycler_reset, 0, 0),
};

static const struct builtin LOOP_METHODS[] = {
    ANY("cycle", loop_cycle),
    ANY("changed", loop_changed),
};

static const struct builtin *table(enum value_type type, int16_t *n) {
    switch (type) {
#define TABLE(which)                                                                               \
    *n = sizeof(which) / sizeof *(which);                                                          \
    return which
    case V_STR:
        TABLE(STR_METHODS);
    case V_DICT:
        TABLE(DICT_METHODS);
    case V_LIST:
        TABLE(LIST_METHODS);
    case V_TUPLE:
    case V_RANGE:
        TABLE(TUPLE_METHODS);
    case V_BOOL:
    case V_INT:
    case V_BIG:
        TABLE(INT_METHODS);
    case V_FLOAT:
        TABLE(FLOAT_METHODS);
    case V_CYCLER:
        TABLE(CYCLER_METHODS);
    case V_LOOP:
        TABLE(LOOP_METHODS);
#undef TABLE
    default:
        *n = 0;
        return NULL;
    }
}

int16_t method_find(enum value_type type, struct str name) {
    int16_t n;
    const struct builtin *methods = table(type, &n);
    for (int16_t i = 0; i < n; i++)
        if (builtin_is_named(&methods[i], name))
            return i;
    return -1;
}

const struct builtin *method_get(enum value_type type, int16_t index) {
    int16_t n;
    return &table(type, &n)[index];
}

static struct value bind(struct render *r, struct value self, const struct builtin *builtin) {
    if (!builtin->fn)
        return value_undefined(UNDEFINED_UNSAFE, (enum value_type)self.type, str_from(builtin->name));
    struct bound_method *method = render_alloc(r, sizeof *method);
    if (!method)
        return value_error();
    *method = (struct bound_method){self, builtin};
    return (struct value){.type = V_METHOD, .method = method};
}

struct value method_bind(struct render *r, struct value self, struct str name) {
    int16_t index = method_find((enum value_type)self.type, name);
    if (index < 0)
        return value_undefined(UNDEFINED_ATTRIBUTE, (enum value_type)self.type, name);
    return bind(r, self, method_get((enum value_type)self.type, index));
}

// Attributes that are not methods.
static struct value plain_attribute(struct render *r, struct value object, struct str name) {
    switch ((enum value_type)object.type) {
    case V_NAMESPACE: {
        const struct value *there = dict_find_str(object.dict, name);
        return there ? *there : value_undefined(UNDEFINED_ATTRIBUTE, V_NAMESPACE, name);
    }
    case V_MACRO:
        return macro_attribute(r, object.macro, name);
    case V_TUPLE:
        if (object.list->grouped && str_eq(name, STR("grouper")))
            return object.list->items[0];
        if (object.list->grouped && str_eq(name, STR("list")))
            return object.list->items[1];
        break;
    case V_CYCLER:
        if (str_eq(name, STR("current")))
            return object.cycler->items[object.cycler->pos];
        if (str_eq(name, STR("pos")))
            return value_int(object.cycler->pos);
        break;
    case V_JOINER:
        if (str_eq(name, STR("sep")))
            return object.joiner->separator;
        if (str_eq(name, STR("used")))
            return value_bool(object.joiner->used);
        break;
    case V_RANGE:
        if (str_eq(name, STR("start")))
            return value_int(object.range->start);
        if (str_eq(name, STR("stop")))
            return value_int(object.range->stop);
        if (str_eq(name, STR("step")))
            return value_int(object.range->step);
        break;
    case V_BOOL:
    case V_INT:
    case V_BIG:
        if (str_eq(name, STR("numerator")) || str_eq(name, STR("real")))
            return object.type == V_BOOL ? value_int(object.b) : object;
        if (str_eq(name, STR("imag")))
            return value_int(0);
        if (str_eq(name, STR("denominator")))
            return value_int(1);
        break;
    case V_FLOAT:
        if (str_eq(name, STR("real")))
            return object;
        if (str_eq(name, STR("imag")))
            return value_float(0);
        break;
    default:
        break;
    }
    return value_missing();
}

struct value get_attribute_named(struct render *r, struct value object, struct str name) {
    if (object.type == V_UNDEFINED)
        return fail_undefined(r, object);
    if (object.type == V_LOOP)
        return loop_attribute(r, object, name);
    struct value v = plain_attribute(r, object, name);
    return is_missing(v) ? method_bind(r, object, name) : v;
}

struct value get_attribute(struct render *r, struct value object, const struct node *node) {
    if (object.type == V_DICT) {
        if (node->dict_method >= 0) // methods hide keys
            return bind(r, object, method_get(V_DICT, node->dict_method));
        const struct value *there = dict_find_str(object.dict, node->name);
        return there ? *there : value_undefined(UNDEFINED_ATTRIBUTE, V_DICT, node->name);
    }
    return get_attribute_named(r, object, node->name);
}
