#include "base/json.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/utf8.h"

// jansson 2.14 cannot cope with a lexer buffer that does not grow: it drops the character and reads on, in
// the worst case beyond the buffer. So while a text is parsed, an allocation that fails is served from a
// reserve that is large enough for such a buffer, no more text is fed, and the result is thrown away. The
// allocator that the program has set is kept underneath.
static json_malloc_t program_malloc;
static json_free_t program_free;

enum { FEED_BYTES = 64, RESERVE_BYTES_MIN = 64 * 1024, RESERVE_ALIGN = 16 };

static _Thread_local struct {
    char *reserve; // NULL outside of parse()
    size_t n_reserve, n_used;
    bool failed;
} parsing;

static void *watched_malloc(size_t n) {
    void *p = program_malloc(n);
    if (p || !parsing.reserve)
        return p;
    parsing.failed = true;
    size_t rounded;
    if (!round_up_size(n, RESERVE_ALIGN, &rounded) || rounded > parsing.n_reserve - parsing.n_used)
        return NULL; // too large for the lexer's buffer: the rest of jansson bears that
    parsing.n_used += rounded;
    return parsing.reserve + parsing.n_used - rounded;
}

static void watched_free(void *p) {
    uintptr_t from = (uintptr_t)parsing.reserve;
    if (!from || (uintptr_t)p - from >= parsing.n_reserve)
        program_free(p);
}

static void watch_allocations(void) {
    json_get_alloc_funcs(&program_malloc, &program_free);
    json_set_alloc_funcs(watched_malloc, watched_free);
}

static size_t feed(void *to, size_t n, void *user) {
    struct str *rest = user;
    n = parsing.failed ? 0 : min_size(min_size(n, FEED_BYTES), rest->n);
    if (n == 0)
        return 0;
    memcpy(to, rest->data, n);
    *rest = str_slice(*rest, n, rest->n);
    return n;
}

// No token is longer than the longest stretch between quotes that no backslash precedes.
static size_t longest_token(struct str text) {
    size_t longest = 0, from = 0;
    while (from < text.n) {
        const char *quote = memchr(text.data + from, '"', text.n - from);
        size_t at = quote ? (size_t)(quote - text.data) : text.n;
        while (quote && at > 0 && text.data[at - 1] == '\\') {
            quote = memchr(text.data + at + 1, '"', text.n - at - 1);
            at = quote ? (size_t)(quote - text.data) : text.n;
        }
        longest = max_size(longest, at - from);
        from = at + 1;
    }
    return longest;
}

// JSON's integers have no bound, jansson's have 64 bits; and files are full of 1e30 written out ("model_max_length"
// of a tokenizer without a limit). A copy of the text with ".0" behind every integer that may be too long.
static void long_integers_as_reals(struct str text, struct strbuf *out) {
    enum { DIGITS_SAFE = 18 };
    bool in_string = false;
    size_t from = 0;
    for (size_t i = 0; i < text.n;) {
        char c = text.data[i];
        if (in_string) {
            in_string = c != '"';
            i += c == '\\' ? 2 : 1;
        } else if (c >= '0' && c <= '9') {
            size_t end = i;
            while (end < text.n && text.data[end] >= '0' && text.data[end] <= '9')
                end++;
            char before = i ? text.data[i - 1] : ' ', after = end < text.n ? text.data[end] : ' ';
            bool whole = before != '.' && before != 'e' && before != 'E' && before != '+' && after != '.' &&
                         after != 'e' && after != 'E';
            if (whole && end - i > DIGITS_SAFE) {
                strbuf_append(out, str_slice(text, from, end));
                strbuf_append(out, STR(".0"));
                from = end;
            }
            i = end;
        } else {
            in_string = c == '"';
            i++;
        }
    }
    strbuf_append(out, str_slice(text, from, text.n));
}

static json_t *parse(struct str text, size_t flags, const char *what, struct err *err);

// Once more, when an integer was too long. A number that is too long even as a real fails again.
static json_t *parse_with_reals(struct str text, size_t flags, const char *what, struct err *err) {
    struct strbuf copy = {0};
    long_integers_as_reals(text, &copy);
    json_t *value = NULL;
    if (copy.failed)
        err_set(err, ERR_NOMEM, "%s: out of memory", what);
    else if (copy.n == text.n) // no long integer: it is a real that overflows
        err_set(err, ERR_FORMAT, "%s: not valid JSON: a number is too large", what);
    else
        value = parse(strbuf_str(&copy), flags, what, err);
    strbuf_deinit(&copy);
    return value;
}

static json_t *parse(struct str text, size_t flags, const char *what, struct err *err) {
    const struct str whole = text;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_allocations);
    // The buffer doubles when it is full.
    size_t n_reserve;
    bool fits = mul_size(longest_token(text), 2, &n_reserve) &&
                add_size(n_reserve, RESERVE_BYTES_MIN, &n_reserve);
    parsing.reserve = fits ? malloc(n_reserve) : NULL;
    if (!parsing.reserve) {
        err_set(err, ERR_NOMEM, "%s: out of memory", what);
        return NULL;
    }
    parsing.n_reserve = n_reserve;
    parsing.n_used = 0;
    parsing.failed = false;
    json_error_t where;
    json_t *value = json_load_callback(feed, &text, flags | JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    bool too_long = !value && !parsing.failed && json_error_code(&where) == json_error_numeric_overflow;
    if (parsing.failed) {
        json_decref(value);
        value = NULL;
        err_set(err, ERR_NOMEM, "%s: out of memory", what);
    } else if (!value && !too_long) {
        err_set(err, ERR_FORMAT, "%s: not valid JSON: line %d column %d: %s", what, where.line,
                where.column, where.text);
    }
    free(parsing.reserve);
    parsing.reserve = NULL;
    return too_long ? parse_with_reals(whole, flags, what, err) : value;
}

json_t *json_parse(struct str text, const char *what, struct err *err) {
    return parse(text, 0, what, err);
}

json_t *json_parse_unique(struct str text, const char *what, struct err *err) {
    return parse(text, JSON_REJECT_DUPLICATES, what, err);
}

static bool wrong(struct err *err, const char *what, const char *key, const char *expected) {
    return err_set(err, ERR_FORMAT, "%s: \"%s\" must be %s", what, key, expected);
}

// The member, or NULL if it is absent or null.
static const json_t *member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

bool json_get_i64(const json_t *object, const char *key, int64_t *out, const char *what,
                  struct err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_real_value(value);
    // Some configs write integers as 1e6 or 32.0.
    if (json_is_real(value) && real == floor(real) && fabs(real) < 9e15) {
        *out = (int64_t)real;
        return true;
    }
    return wrong(err, what, key, "an integer");
}

bool json_get_u32(const json_t *object, const char *key, uint32_t *out, const char *what,
                  struct err *err) {
    int64_t v = *out;
    if (!json_get_i64(object, key, &v, what, err))
        return false;
    if (v < 0 || v > UINT32_MAX)
        return wrong(err, what, key, "an integer from 0 to 4294967295");
    *out = (uint32_t)v;
    return true;
}

bool json_get_f64(const json_t *object, const char *key, double *out, const char *what,
                  struct err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (!json_is_number(value))
        return wrong(err, what, key, "a number");
    *out = json_number_value(value);
    return true;
}

bool json_get_f32(const json_t *object, const char *key, float *out, const char *what,
                  struct err *err) {
    double v = (double)*out;
    if (!json_get_f64(object, key, &v, what, err))
        return false;
    *out = (float)v;
    return true;
}

bool json_get_bool(const json_t *object, const char *key, bool *out, const char *what,
                   struct err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (!json_is_boolean(value))
        return wrong(err, what, key, "true or false");
    *out = json_is_true(value);
    return true;
}

bool json_get_str(const json_t *object, const char *key, struct str *out, const char *what,
                  struct err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (!json_is_string(value))
        return wrong(err, what, key, "a string");
    *out = json_str(value);
    return true;
}

static void escape_into(struct strbuf *out, struct str s) {
    size_t plain_from = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.data[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F)
            continue;
        strbuf_append(out, str_slice(s, plain_from, i));
        plain_from = i + 1;
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
        default:
            strbuf_printf(out, "\\u%04x", c);
        }
    }
    strbuf_append(out, str_slice(s, plain_from, s.n));
}

void strbuf_json_string(struct strbuf *out, struct str s) {
    strbuf_char(out, '"');
    if (utf8_valid(s)) {
        escape_into(out, s);
    } else {
        struct strbuf clean = {0};
        utf8_append_lossy(&clean, s);
        out->failed |= clean.failed;
        escape_into(out, strbuf_str(&clean));
        strbuf_deinit(&clean);
    }
    strbuf_char(out, '"');
}

static int append_chunk(const char *data, size_t n, void *user) {
    strbuf_append(user, (struct str){data, n});
    return 0;
}

void strbuf_json(struct strbuf *out, const json_t *value) {
    if (json_dump_callback(value, append_chunk, out, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        out->failed = true;
}
