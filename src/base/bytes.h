// base/bytes.h - borrowed bytes and text, and a growing buffer of text.
// struct bytes and struct str own nothing. A struct strbuf belongs to one thread at a time.
#ifndef LOAM_BASE_BYTES_H
#define LOAM_BASE_BYTES_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    const uint8_t *data;
    size_t n;
};

// UTF-8 unless a comment says otherwise; not NUL-terminated; may hold NUL.
struct str {
    const char *data;
    size_t n;
};

#define STR(literal) ((struct str){"" literal, sizeof(literal) - 1})

static inline struct str str_from(const char *c_string) {
    return (struct str){c_string, c_string ? strlen(c_string) : 0};
}
static inline struct bytes bytes_of(struct str s) {
    return (struct bytes){(const uint8_t *)s.data, s.n};
}
static inline struct str str_of(struct bytes b) {
    return (struct str){(const char *)b.data, b.n};
}
static inline struct str str_slice(struct str s, size_t from, size_t to) {
    return (struct str){from ? s.data + from : s.data, to - from}; // data may be NULL
}
bool str_eq(struct str a, struct str b);
bool str_eq_c(struct str a, const char *c_string);
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
// Offset of the first `needle` at or after `from`, or SIZE_MAX.
size_t str_find(struct str s, struct str needle, size_t from);
// A malloc'ed NUL-terminated copy, NULL when out of memory.
char *str_dup(struct str s);

// Text that grows. Zero-initialise. Running out of memory sticks in `failed`; appends then do
// nothing, so that a builder checks once, at the end.
struct strbuf {
    char *data; // NUL-terminated once anything was appended; owned, freed by strbuf_deinit
    size_t n, capacity;
    bool failed;
};

void strbuf_deinit(struct strbuf *buf);
void strbuf_clear(struct strbuf *buf); // keeps the memory, clears `failed`
void strbuf_append(struct strbuf *buf, struct str s);
void strbuf_append_c(struct strbuf *buf, const char *c_string);
void strbuf_char(struct strbuf *buf, char c);
void strbuf_printf(struct strbuf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Append a Unicode scalar value as UTF-8 (U+FFFD if it is not one).
void strbuf_code_point(struct strbuf *buf, uint32_t code_point);
// Make room for n more bytes; false when out of memory.
bool strbuf_reserve(struct strbuf *buf, size_t n);
static inline struct str strbuf_str(const struct strbuf *buf) {
    return (struct str){buf->data, buf->n};
}
// Hand over the text (malloc'ed, NUL-terminated) and empty the buffer; NULL if an append failed.
char *strbuf_take(struct strbuf *buf);
#endif
