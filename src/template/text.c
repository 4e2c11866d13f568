#include "template/text.h"

struct value change_case(struct render *r, struct value text, enum unicode_case to) {
    size_t mark = r->out->n;
    unicode_append_str_case(r->out, str_of_value(text), to);
    struct value v = text_take(r, mark);
    v.flags = is_error(v) ? 0 : text.flags;
    return v;
}

struct value capitalize(struct render *r, struct value text) {
    if (!text.n)
        return text;
    size_t mark = r->out->n, i = 0;
    uint32_t first = unicode_next(str_of_value(text), &i);
    unicode_append_case(r->out, first, CASE_TITLE);
    unicode_append_case_from(r->out, str_of_value(text), i, CASE_LOWER);
    struct value v = text_take(r, mark);
    v.flags = is_error(v) ? 0 : text.flags;
    return v;
}

static bool in_set(struct str set, uint32_t c) {
    for (size_t i = 0; i < set.n;)
        if (unicode_next(set, &i) == c)
            return true;
    return false;
}

struct value strip(struct render *r, struct value text, struct value chars, bool left, bool right) {
    struct str s = str_of_value(text);
    if (is_missing(chars) || chars.type == V_NONE) {
        s = unicode_strip_space(s, left, right);
    } else {
        struct str set = {0};
        if (!arg_str(r, chars, "strip: the argument", &set) || !charge(r, s.n / 64 * (set.n + 1)))
            return value_error();
        size_t from = 0, to = s.n;
        while (left && from < to) {
            size_t next = from;
            if (!in_set(set, unicode_next(s, &next)))
                break;
            from = next;
        }
        while (right && to > from) {
            size_t before = to;
            if (!in_set(set, unicode_before(s, &before)))
                break;
            to = before;
        }
        s = str_slice(s, from, to);
    }
    struct value v = value_str(s);
    v.flags = text.flags;
    return v;
}

struct value replace(struct render *r, struct str s, struct str old, struct str new, int64_t count) {
    size_t mark = r->out->n, at = 0;
    if (!charge(r, s.n / 64))
        return value_error();
    if (count == 0 || (old.n && str_find(s, old, 0) == SIZE_MAX))
        return value_str(s);
    while (count != 0) {
        size_t found = str_find(s, old, at);
        if (found == SIZE_MAX)
            break;
        if (!old.n) { // between all characters, and at both ends
            strbuf_append(r->out, new);
            count--;
            if (at >= s.n)
                break;
            size_t start = at;
            unicode_next(s, &at);
            strbuf_append(r->out, str_slice(s, start, at));
        } else {
            strbuf_append(r->out, str_slice(s, at, found));
            strbuf_append(r->out, new);
            at = found + old.n;
            count--;
        }
        if (!output_check(r))
            return value_error();
    }
    strbuf_append(r->out, str_slice(s, at, s.n));
    return text_take(r, mark);
}

struct value pad(struct render *r, struct value text, int64_t width, uint32_t fill, enum pad where) {
    struct str s = str_of_value(text);
    int64_t n = (int64_t)unicode_count(s);
    if (width <= n)
        return text;
    if ((uint64_t)width > r->output_bytes_max)
        return fail(r, "a width of %lld is more than the output may have", (long long)width);
    int64_t more = width - n, left = 0;
    if (where == PAD_RIGHT)
        left = more;
    if (where == PAD_CENTER)
        left = more / 2 + (more & width & 1);
    size_t mark = r->out->n;
    for (int64_t i = 0; i < left; i++)
        strbuf_code_point(r->out, fill);
    strbuf_append(r->out, s);
    for (int64_t i = left; i < more; i++)
        strbuf_code_point(r->out, fill);
    struct value v = text_take(r, mark);
    v.flags = is_error(v) ? 0 : text.flags;
    return v;
}

void find_line_end(struct str s, size_t at, size_t *end, size_t *next) {
    for (size_t i = at; i < s.n;) {
        *end = i;
        uint32_t c = unicode_next(s, &i);
        if ((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) {
            if (c == '\r' && i < s.n && s.data[i] == '\n')
                i++;
            *next = i;
            return;
        }
    }
    *end = *next = s.n;
}

struct value detach(struct render *r, struct value v) {
    switch ((enum value_type)v.type) {
    case V_STR:
        return text_copy(r, str_of_value(v));
    case V_LIST:
        for (uint32_t i = 0; i < v.list->n; i++) {
            v.list->items[i] = detach(r, v.list->items[i]);
            if (is_error(v.list->items[i]))
                return value_error();
        }
        return v;
    case V_DICT:
        for (uint32_t i = 0; i < v.dict->n; i++) {
            struct dict_entry *entry = &v.dict->entries[i];
            entry->key = detach(r, entry->key);
            entry->value = detach(r, entry->value);
            if (is_error(entry->key) || is_error(entry->value))
                return value_error();
        }
        return v;
    default:
        return v;
    }
}
