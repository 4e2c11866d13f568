#include "server/json_mend.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>

enum state {
    VALUE,      // a value, or a closing bracket
    KEY,        // a key, or a closing brace
    COLON,
    AFTER,      // behind a value: a comma or a closing bracket
    STRING,
    ESCAPE,     // behind a backslash
    UNICODE,    // inside \uXXXX
    QUOTE_SEEN, // behind a quote that ends the string unless text follows
    BARE,       // inside a word without quotes
    DONE,
};
enum { MARK = 1 }; // `quote` of a string in string_mark

void json_mend_init(struct json_mend *m, const char *string_mark, bool python) {
    *m = (struct json_mend){.string_mark = string_mark, .python = python};
}

void json_mend_deinit(struct json_mend *m) {
    strbuf_deinit(&m->held);
}

bool json_mend_in_string(const struct json_mend *m) {
    return m->state == STRING || m->state == ESCAPE || m->state == UNICODE;
}

static char top(const struct json_mend *m) {
    return m->depth ? m->stack[m->depth - 1] : 0;
}

static bool in_object(const struct json_mend *m) {
    return top(m) == '}' || top(m) == ')';
}

static void comma(struct json_mend *m, struct strbuf *out) {
    if (m->comma_due)
        strbuf_char(out, ',');
    m->comma_due = false;
}

static void push_bracket(struct json_mend *m, char closer, struct strbuf *out) {
    m->stack[m->depth++] = closer;
    strbuf_char(out, in_object(m) ? '{' : '[');
    m->state = in_object(m) ? KEY : VALUE;
}

void json_mend_open_object(struct json_mend *m, char closer, struct strbuf *out) {
    push_bracket(m, closer, out);
}

static void value_ended(struct json_mend *m) {
    m->state = m->depth ? AFTER : DONE;
    m->complete = m->depth == 0;
}

static void pop_bracket(struct json_mend *m, struct strbuf *out) {
    if (in_object(m) && m->state == COLON)
        strbuf_append_c(out, ":null");
    else if (in_object(m) && m->state == VALUE)
        strbuf_append_c(out, "null");
    strbuf_char(out, in_object(m) ? '}' : ']');
    m->depth--;
    m->comma_due = false;
    value_ended(m);
}

// A closing bracket: closes the nearest that fits and all inside it; none fits: it is one too many.
static void close_bracket(struct json_mend *m, char closer, struct strbuf *out) {
    int at = m->depth - 1;
    while (at >= 0 && m->stack[at] != closer && !(closer == ')' && m->stack[at] == '>'))
        at--;
    if (at < 0)
        return;
    while (m->depth > at)
        pop_bracket(m, out);
}

static void open_string(struct json_mend *m, uint8_t quote, struct strbuf *out) {
    comma(m, out);
    m->is_key = m->state == KEY;
    m->quote = quote;
    m->state = STRING;
    strbuf_char(out, '"');
}

static void flush_surrogate(struct json_mend *m, struct strbuf *out) {
    if (m->high_surrogate)
        strbuf_append_c(out, "\\ufffd");
    m->high_surrogate = 0;
}

static void close_string(struct json_mend *m, struct strbuf *out) {
    flush_surrogate(m, out);
    strbuf_char(out, '"');
    if (m->is_key)
        m->state = COLON;
    else
        value_ended(m);
}

static void string_byte(struct json_mend *m, char c, struct strbuf *out) {
    flush_surrogate(m, out);
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
        if ((unsigned char)c < 0x20 || c == 0x7F)
            strbuf_printf(out, "\\u%04x", (unsigned)(unsigned char)c);
        else
            strbuf_char(out, c);
    }
}

static void unicode_done(struct json_mend *m, struct strbuf *out) {
    uint16_t unit = m->hex;
    m->state = STRING;
    if (unit >= 0xD800 && unit < 0xDC00) {
        flush_surrogate(m, out);
        m->high_surrogate = unit;
        return;
    }
    if (unit >= 0xDC00 && unit < 0xE000) {
        if (m->high_surrogate)
            strbuf_printf(out, "\\u%04x\\u%04x", m->high_surrogate, unit);
        else
            strbuf_append_c(out, "\\ufffd");
        m->high_surrogate = 0;
        return;
    }
    flush_surrogate(m, out);
    strbuf_printf(out, "\\u%04x", unit);
}

static bool is_json_number(const char *s) {
    s += *s == '-';
    if (!isdigit((unsigned char)*s) || (*s == '0' && isdigit((unsigned char)s[1])))
        return false;
    while (isdigit((unsigned char)*s))
        s++;
    if (*s == '.') {
        if (!isdigit((unsigned char)*++s))
            return false;
        while (isdigit((unsigned char)*s))
            s++;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '+' || *s == '-';
        if (!isdigit((unsigned char)*s))
            return false;
        while (isdigit((unsigned char)*s))
            s++;
    }
    return *s == 0;
}

static void end_bare(struct json_mend *m, struct strbuf *out) {
    static const struct {
        const char *word, *json;
    } WORDS[] = {{"true", "true"}, {"True", "true"}, {"false", "false"}, {"False", "false"},
                 {"null", "null"}, {"None", "null"}};
    while (m->held.n && isspace((unsigned char)m->held.data[m->held.n - 1]))
        m->held.data[--m->held.n] = '\0';
    bool as_is = !m->is_key && m->held.n && memchr(m->held.data, 0, m->held.n) == NULL &&
                 is_json_number(m->held.data);
    const char *json = as_is ? m->held.data : NULL;
    for (size_t i = 0; !m->is_key && i < sizeof WORDS / sizeof *WORDS; i++)
        if (str_eq_c(strbuf_str(&m->held), WORDS[i].word))
            json = WORDS[i].json;
    if (json) {
        strbuf_append_c(out, json);
    } else {
        strbuf_char(out, '"');
        for (size_t i = 0; i < m->held.n; i++)
            string_byte(m, m->held.data[i], out);
        strbuf_char(out, '"');
    }
    strbuf_clear(&m->held);
    if (m->is_key)
        m->state = COLON;
    else
        value_ended(m);
}

static void begin_bare(struct json_mend *m, char c, struct strbuf *out) {
    comma(m, out);
    m->is_key = m->state == KEY;
    m->state = BARE;
    strbuf_clear(&m->held);
    strbuf_char(&m->held, c);
}

static bool is_colon(const struct json_mend *m, char c) {
    return c == ':' || (m->python && c == '=');
}

// A byte outside strings and words that is no white space.
static void significant(struct json_mend *m, char c, struct strbuf *out) {
    if (m->state == AFTER) {
        if (c == ',' || c == ';') {
            m->comma_due = true;
            m->state = in_object(m) ? KEY : VALUE;
            return;
        }
        if (c != '}' && c != ']' && c != ')') { // a comma is missing
            m->comma_due = true;
            m->state = in_object(m) ? KEY : VALUE;
        }
    }
    if (m->state == COLON) {
        if (is_colon(m, c)) {
            strbuf_char(out, ':');
            m->state = VALUE;
            return;
        }
        if (c == ',') {
            strbuf_append_c(out, ":null");
            m->comma_due = true;
            m->state = KEY;
            return;
        }
        if (c != '}' && c != ']' && c != ')') {
            strbuf_char(out, ':');
            m->state = VALUE;
        }
    }
    switch (c) {
    case '}':
    case ']':
        close_bracket(m, c, out);
        return;
    case ')':
        if (m->python)
            close_bracket(m, c, out);
        return;
    case ',':
        if (m->state == VALUE && in_object(m)) {
            strbuf_append_c(out, "null");
            m->comma_due = true;
            m->state = KEY;
        }
        return; // one too many
    case '"':
    case '\'':
        open_string(m, (uint8_t)c, out);
        return;
    default:
        break;
    }
    if (m->state == VALUE && m->depth < JSON_MEND_DEPTH_MAX &&
        (c == '{' || c == '[' || (m->python && c == '('))) {
        comma(m, out);
        push_bracket(m, c == '{' ? '}' : c == '[' ? ']' : '>', out);
        return;
    }
    if (m->state == KEY && (c == '{' || c == ':' || c == '='))
        return; // nothing can be meant here
    begin_bare(m, c, out);
}

// Behind a quote: does `c` show that the string has ended there?
static bool ends_string(const struct json_mend *m, char c) {
    if (m->is_key)
        return is_colon(m, c) || c == '}' || c == ',';
    if (m->depth == 0)
        return true;
    return c == ',' || c == '}' || c == ']' || (m->python && c == ')') ||
           (m->after_quote_newline && (c == '"' || c == '\''));
}

static void byte(struct json_mend *m, char c, struct strbuf *out) {
    switch ((enum state)m->state) {
    case STRING:
        if (c == '\\' && m->quote != MARK) {
            m->state = ESCAPE;
        } else if (m->quote != MARK && c == (char)m->quote) {
            m->state = QUOTE_SEEN;
            m->after_quote_newline = false;
            strbuf_clear(&m->held);
        } else {
            string_byte(m, c, out);
        }
        return;
    case ESCAPE:
        m->state = STRING;
        if (c == 'u') {
            m->state = UNICODE;
            m->hex_n = 0;
            m->hex = 0;
            return;
        }
        flush_surrogate(m, out);
        if (c == '\'') {
            strbuf_char(out, c);
        } else if (c && strchr("\"\\/bfnrt", c)) {
            strbuf_char(out, '\\');
            strbuf_char(out, c);
        } else if (c != '\n') { // a line that goes on; else the backslash was meant
            strbuf_append_c(out, "\\\\");
            string_byte(m, c, out);
        }
        return;
    case UNICODE:
        if (isxdigit((unsigned char)c)) {
            int digit = isdigit((unsigned char)c) ? c - '0' : (c | 0x20) - 'a' + 10;
            m->hex = (uint16_t)(m->hex << 4 | digit);
            if (++m->hex_n == 4)
                unicode_done(m, out);
            return;
        }
        flush_surrogate(m, out);
        strbuf_append_c(out, "\\\\u");
        for (int i = m->hex_n - 1; i >= 0; i--)
            strbuf_char(out, "0123456789abcdef"[m->hex >> (4 * i) & 15]);
        m->state = STRING;
        byte(m, c, out);
        return;
    case QUOTE_SEEN:
        if (isspace((unsigned char)c)) {
            m->after_quote_newline |= c == '\n';
            strbuf_char(&m->held, c);
            return;
        }
        if (ends_string(m, c)) {
            strbuf_clear(&m->held);
            close_string(m, out);
            if (!m->complete)
                significant(m, c, out);
            return;
        }
        m->state = STRING; // the quote belongs to the text
        string_byte(m, (char)m->quote, out);
        for (size_t i = 0; i < m->held.n; i++)
            string_byte(m, m->held.data[i], out);
        strbuf_clear(&m->held);
        byte(m, c, out);
        return;
    case BARE:
        if (c == ',' || c == '}' || c == ']' || c == '\n' || (m->is_key && is_colon(m, c)) ||
            (m->python && c == ')')) {
            end_bare(m, out);
            if (!m->complete && c != '\n')
                significant(m, c, out);
            return;
        }
        strbuf_char(&m->held, c);
        return;
    case DONE:
        return;
    default:
        if (!isspace((unsigned char)c))
            significant(m, c, out);
    }
}

static bool mark_may_begin(const struct json_mend *m) {
    return m->state == VALUE || m->state == KEY || m->state == AFTER || m->state == COLON ||
           (m->state == STRING && m->quote == MARK);
}

void json_mend_push(struct json_mend *m, char c, struct strbuf *out) {
    assert(!m->complete);
    const char *mark = m->string_mark;
    if (!mark || (m->mark_seen == 0 && !mark_may_begin(m))) {
        byte(m, c, out);
        return;
    }
    if (c == mark[m->mark_seen]) {
        if (mark[++m->mark_seen])
            return;
        m->mark_seen = 0;
        if (m->state == STRING) {
            close_string(m, out);
            return;
        }
        if (m->state == AFTER) {
            m->comma_due = true;
            m->state = in_object(m) ? KEY : VALUE;
        } else if (m->state == COLON) {
            strbuf_char(out, ':');
            m->state = VALUE;
        }
        open_string(m, MARK, out);
        return;
    }
    // Not the mark after all. (No mark has a beginning that repeats inside it.)
    uint8_t seen = m->mark_seen;
    m->mark_seen = 0;
    for (uint8_t i = 0; i < seen; i++)
        byte(m, mark[i], out);
    if (m->complete)
        return;
    if (seen)
        json_mend_push(m, c, out);
    else
        byte(m, c, out);
}

void json_mend_finish(struct json_mend *m, struct strbuf *out) {
    if (m->state == VALUE && m->depth == 0)
        return;
    for (uint8_t i = 0; i < m->mark_seen && !m->complete && m->quote != MARK; i++)
        byte(m, m->string_mark[i], out);
    m->mark_seen = 0;
    if (m->state == UNICODE)
        m->state = STRING; // too little of the escape to mean anything
    if (m->state == ESCAPE)
        m->state = STRING;
    if (m->state == STRING || m->state == QUOTE_SEEN)
        close_string(m, out);
    if (m->state == BARE)
        end_bare(m, out);
    while (m->depth)
        pop_bracket(m, out);
}
