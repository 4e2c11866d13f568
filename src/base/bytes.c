#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/utf8.h"

bool str_eq(struct str a, struct str b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.data, b.data, a.n) == 0);
}

bool str_eq_c(struct str a, const char *c_string) {
    return str_eq(a, str_from(c_string));
}

bool str_starts(struct str s, struct str prefix) {
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.data, prefix.data, prefix.n) == 0);
}

bool str_ends(struct str s, struct str suffix) {
    return s.n >= suffix.n &&
           (suffix.n == 0 || memcmp(s.data + (s.n - suffix.n), suffix.data, suffix.n) == 0);
}

size_t str_find(struct str s, struct str needle, size_t from) {
    if (from > s.n)
        return SIZE_MAX;
    if (needle.n == 0)
        return from;
    if (needle.n > s.n - from)
        return SIZE_MAX;
    const char *at = memmem(s.data + from, s.n - from, needle.data, needle.n);
    return at ? (size_t)(at - s.data) : SIZE_MAX;
}

char *str_dup(struct str s) {
    char *copy = malloc(s.n + 1);
    if (!copy)
        return NULL;
    if (s.n)
        memcpy(copy, s.data, s.n);
    copy[s.n] = '\0';
    return copy;
}

void strbuf_deinit(struct strbuf *buf) {
    free(buf->data);
    *buf = (struct strbuf){0};
}

void strbuf_clear(struct strbuf *buf) {
    buf->n = 0;
    buf->failed = false;
    if (buf->data)
        buf->data[0] = '\0';
}

bool strbuf_reserve(struct strbuf *buf, size_t n) {
    size_t need;
    if (buf->failed || !add_size(buf->n, n, &need) || !add_size(need, 1, &need)) {
        buf->failed = true;
        return false;
    }
    if (need <= buf->capacity)
        return true;
    size_t capacity = max_size(need, buf->capacity + buf->capacity / 2);
    capacity = max_size(capacity, 64);
    char *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void strbuf_append(struct strbuf *buf, struct str s) {
    if (!strbuf_reserve(buf, s.n))
        return;
    if (s.n)
        memcpy(buf->data + buf->n, s.data, s.n);
    buf->n += s.n;
    buf->data[buf->n] = '\0';
}

void strbuf_append_c(struct strbuf *buf, const char *c_string) {
    strbuf_append(buf, str_from(c_string));
}

void strbuf_char(struct strbuf *buf, char c) {
    strbuf_append(buf, (struct str){&c, 1});
}

void strbuf_printf(struct strbuf *buf, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !strbuf_reserve(buf, (size_t)n)) {
        buf->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(buf->data + buf->n, (size_t)n + 1, format, args);
    va_end(args);
    buf->n += (size_t)n;
}

void strbuf_code_point(struct strbuf *buf, uint32_t code_point) {
    char encoded[4];
    size_t n = utf8_encode(code_point, encoded);
    strbuf_append(buf, (struct str){encoded, n});
}

char *strbuf_take(struct strbuf *buf) {
    if (!strbuf_reserve(buf, 0)) {
        strbuf_deinit(buf);
        return NULL;
    }
    buf->data[buf->n] = '\0';
    char *data = buf->data;
    *buf = (struct strbuf){0};
    return data;
}
