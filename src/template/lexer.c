#include "template/lexer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "template/unicode.h"

struct lexer {
    struct arena *arena;
    struct str source;
    struct err *err;
    size_t pos;
    struct token *tokens; // malloc'ed while it grows
    uint32_t n_tokens, capacity;
    size_t counted; // source bytes whose newlines are in `line`
    uint32_t line;
    struct {
        char close;
        uint32_t pos;
    } *open; // brackets inside the tag
    uint32_t n_open, open_capacity;
};

uint32_t source_line(struct str source, size_t pos) {
    uint32_t line = 1;
    for (size_t i = 0; i < pos && i < source.n; i++)
        line += source.data[i] == '\n';
    return line;
}

bool syntax_error(struct err *err, struct str source, size_t pos, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t line_start = pos < source.n ? pos : source.n, column = 1;
    while (line_start > 0 && source.data[line_start - 1] != '\n')
        line_start--;
    for (size_t i = line_start; i < pos && i < source.n;) {
        unicode_next(source, &i);
        column++;
    }
    return err_set(err, ERR_FORMAT, "line %u column %zu: %s", source_line(source, pos), column, text);
}

bool lexer_normalise(struct arena *arena, struct str source, struct str *out) {
    char *copy = arena_alloc(arena, source.n + 1);
    if (!copy)
        return false;
    size_t n = 0;
    for (size_t i = 0; i < source.n; i++) {
        char c = source.data[i];
        if (c == '\r') {
            if (i + 1 < source.n && source.data[i + 1] == '\n')
                i++;
            c = '\n';
        }
        copy[n++] = c;
    }
    if (n && copy[n - 1] == '\n')
        n--;
    copy[n] = '\0';
    *out = (struct str){copy, n};
    return true;
}

static bool out_of_memory(struct lexer *lx) {
    return err_set(lx->err, ERR_NOMEM, "template: out of memory");
}

static bool push(struct lexer *lx, enum token_kind kind, size_t pos, struct str text) {
    if (lx->n_tokens == lx->capacity) {
        uint32_t capacity = lx->capacity ? lx->capacity * 2 : 256;
        struct token *tokens = realloc(lx->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return out_of_memory(lx);
        lx->tokens = tokens;
        lx->capacity = capacity;
    }
    for (; lx->counted < pos; lx->counted++)
        lx->line += lx->source.data[lx->counted] == '\n';
    lx->tokens[lx->n_tokens++] = (struct token){
        .kind = (uint8_t)kind, .pos = (uint32_t)pos, .line = lx->line, .text = text};
    return true;
}

static bool at(const struct lexer *lx, size_t pos, const char *text) {
    size_t n = strlen(text);
    return lx->source.n - pos >= n && memcmp(lx->source.data + pos, text, n) == 0;
}

static char byte_at(const struct lexer *lx, size_t pos) {
    return pos < lx->source.n ? lx->source.data[pos] : '\0';
}

static void skip_space(struct lexer *lx) {
    while (lx->pos < lx->source.n) {
        size_t next = lx->pos;
        if (!unicode_is_space(unicode_next(lx->source, &next)))
            return;
        lx->pos = next;
    }
}

// Whether a raw tag ("raw" or "endraw") stands at pos, which is at "{%". Past its end if so.
static bool raw_tag(const struct lexer *lx, size_t pos, const char *word, char *sign, size_t *end,
                    char *end_sign) {
    struct lexer probe = *lx;
    probe.pos = pos + 2;
    *sign = byte_at(lx, probe.pos);
    if (*sign == '-' || *sign == '+')
        probe.pos++;
    else
        *sign = 0;
    skip_space(&probe);
    if (!at(&probe, probe.pos, word))
        return false;
    probe.pos += strlen(word);
    skip_space(&probe);
    *end_sign = byte_at(&probe, probe.pos);
    if (*end_sign == '-' || *end_sign == '+')
        probe.pos++;
    else
        *end_sign = 0;
    if (!at(&probe, probe.pos, "%}"))
        return false;
    *end = probe.pos + 2;
    return true;
}

// The text between two tags, without what the tag behind it strips.
static bool push_data(struct lexer *lx, size_t from, size_t to, char sign, bool is_variable,
                      bool line_starting) {
    struct str text = str_slice(lx->source, from, to);
    if (sign == '-') {
        text = unicode_strip_space(text, false, true);
    } else if (sign != '+' && !is_variable) {
        size_t line = text.n;
        while (line > 0 && text.data[line - 1] != '\n')
            line--;
        if (line > 0 || line_starting) {
            struct str rest = str_slice(text, line, text.n);
            if (unicode_strip_space(rest, true, false).n == 0)
                text.n = line;
        }
    }
    return text.n == 0 || push(lx, T_DATA, from, text);
}

// Behind a tag's closing marks: with '-' all white space goes, else (trim_blocks) one newline.
static void after_tag(struct lexer *lx, char sign, bool trims_newline) {
    if (sign == '-')
        skip_space(lx);
    else if (trims_newline && sign != '+' && byte_at(lx, lx->pos) == '\n')
        lx->pos++;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Digits with single underscores between them, from pos; the offset behind them.
static size_t digits_end(const struct lexer *lx, size_t pos, int base) {
    size_t end = pos;
    for (size_t i = pos; i < lx->source.n; i++) {
        char c = lx->source.data[i];
        int digit = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
        if (digit < base)
            end = i + 1;
        else if (c != '_' || (i > 0 && lx->source.data[i - 1] == '_'))
            break;
    }
    return end;
}

static bool number(struct lexer *lx) {
    size_t start = lx->pos, end = digits_end(lx, start, 10);
    bool behind_dot = start > 0 && lx->source.data[start - 1] == '.';
    if (!behind_dot) {
        size_t fraction = end;
        if (byte_at(lx, end) == '.' && is_digit(byte_at(lx, end + 1)))
            fraction = digits_end(lx, end + 1, 10);
        size_t exponent = fraction;
        if ((byte_at(lx, exponent) | 32) == 'e') {
            exponent++;
            if (byte_at(lx, exponent) == '+' || byte_at(lx, exponent) == '-')
                exponent++;
            exponent = is_digit(byte_at(lx, exponent)) ? digits_end(lx, exponent, 10) : fraction;
        }
        if (exponent > end) {
            lx->pos = exponent;
            return push(lx, T_FLOAT, start, str_slice(lx->source, start, exponent));
        }
    }
    if (lx->source.data[start] == '0') {
        char c = (char)(byte_at(lx, start + 1) | 32);
        int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        size_t from = start + 2;
        if (base && byte_at(lx, from) == '_')
            from++;
        size_t prefixed = base ? digits_end(lx, from, base) : from;
        if (prefixed > from) {
            end = prefixed;
        } else { // only zeros may follow a zero
            end = start + 1;
            while (byte_at(lx, end) == '0' || (byte_at(lx, end) == '_' && byte_at(lx, end + 1) == '0'))
                end++;
        }
    }
    lx->pos = end;
    return push(lx, T_INTEGER, start, str_slice(lx->source, start, end));
}

static int hex_value(char c) {
    return is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

// Decode the inside of a quoted string: Python's "unicode-escape".
static bool unescape(struct lexer *lx, size_t from, size_t to, struct str *out) {
    struct str raw = str_slice(lx->source, from, to);
    if (!memchr(raw.data, '\\', raw.n)) {
        *out = raw;
        return true;
    }
    struct strbuf buf = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < raw.n;) {
        char c = raw.data[i++];
        if (c != '\\' || i >= raw.n) {
            strbuf_char(&buf, c);
            continue;
        }
        static const char FROM[] = "\\'\"abfnrtv", TO[] = "\\'\"\a\b\f\n\r\t\v";
        c = raw.data[i++];
        const char *simple = c ? strchr(FROM, c) : NULL;
        if (c == '\n') {
        } else if (simple) {
            strbuf_char(&buf, TO[simple - FROM]);
        } else if (c >= '0' && c <= '7') {
            uint32_t code = (uint32_t)(c - '0');
            for (int k = 0; k < 2 && i < raw.n && raw.data[i] >= '0' && raw.data[i] <= '7'; k++)
                code = code * 8 + (uint32_t)(raw.data[i++] - '0');
            strbuf_code_point(&buf, code);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            uint64_t code = 0;
            size_t k = 0;
            for (; k < n && i < raw.n && hex_value(raw.data[i]) >= 0; k++)
                code = code * 16 + (uint64_t)hex_value(raw.data[i++]);
            if (k < n || code > 0x10FFFF) {
                ok = syntax_error(lx->err, lx->source, from + i, "bad \\%c escape in a string", c);
                break;
            }
            // A surrogate pair written as two escapes is one character for everyone but Python.
            if (code >= 0xD800 && code < 0xDC00 && raw.n - i >= 6 && raw.data[i] == '\\' &&
                raw.data[i + 1] == 'u') {
                uint32_t low = 0;
                for (size_t d = 2; d < 6; d++)
                    low = low * 16 + (uint32_t)(hex_value(raw.data[i + d]) & 0xFF);
                if (low >= 0xDC00 && low < 0xE000) {
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                    i += 6;
                }
            }
            strbuf_code_point(&buf, (uint32_t)code);
        } else if (c == 'N') {
            ok = syntax_error(lx->err, lx->source, from + i,
                              "\\N{...} escapes are not supported: write the character itself");
        } else {
            strbuf_char(&buf, '\\');
            strbuf_char(&buf, c);
        }
    }
    if (ok && (buf.failed || !arena_copy(lx->arena, strbuf_str(&buf), out)))
        ok = out_of_memory(lx);
    strbuf_deinit(&buf);
    return ok;
}

static bool string(struct lexer *lx) {
    size_t start = lx->pos, i = start + 1;
    char quote = lx->source.data[start];
    while (i < lx->source.n && lx->source.data[i] != quote)
        i += lx->source.data[i] == '\\' ? 2 : 1;
    if (i >= lx->source.n)
        return syntax_error(lx->err, lx->source, start, "unexpected char '%c': a string is not closed",
                            quote);
    struct str text = {0};
    if (!unescape(lx, start + 1, i, &text))
        return false;
    lx->pos = i + 1;
    return push(lx, T_STRING, start, text);
}

static bool bracket(struct lexer *lx, char c) {
    char close = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (close) {
        if (lx->n_open == lx->open_capacity) {
            uint32_t capacity = lx->open_capacity ? lx->open_capacity * 2 : 16;
            void *open = realloc(lx->open, capacity * sizeof *lx->open);
            if (!open)
                return out_of_memory(lx);
            lx->open = open;
            lx->open_capacity = capacity;
        }
        lx->open[lx->n_open].pos = (uint32_t)lx->pos;
        lx->open[lx->n_open++].close = close;
    } else if (c == ')' || c == ']' || c == '}') {
        if (!lx->n_open)
            return syntax_error(lx->err, lx->source, lx->pos, "unexpected '%c'", c);
        if (lx->open[--lx->n_open].close != c)
            return syntax_error(lx->err, lx->source, lx->pos, "unexpected '%c', expected '%c'", c,
                                lx->open[lx->n_open].close);
    }
    return true;
}

// One token inside a tag, which is not white space and not the tag's end.
static bool tag_token(struct lexer *lx) {
    char c = lx->source.data[lx->pos];
    if (is_digit(c))
        return number(lx);
    if (c == '\'' || c == '"')
        return string(lx);
    size_t end = lx->pos;
    while (end < lx->source.n) {
        size_t next = end;
        if (!unicode_is_word(unicode_next(lx->source, &next)))
            break;
        end = next;
    }
    if (end > lx->pos) {
        struct str name = str_slice(lx->source, lx->pos, end);
        if (!unicode_is_identifier(name))
            return syntax_error(lx->err, lx->source, lx->pos, "invalid character in identifier");
        size_t start = lx->pos;
        lx->pos = end;
        return push(lx, T_NAME, start, name);
    }
    static const char *const TWO[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t n = 0;
    for (size_t i = 0; i < sizeof TWO / sizeof *TWO; i++)
        n = at(lx, lx->pos, TWO[i]) ? 2 : n;
    if (!n && c && strchr("+-/*%~[](){}><=.:|,;", c))
        n = 1;
    if (!n) {
        size_t next = lx->pos;
        unicode_next(lx->source, &next);
        return syntax_error(lx->err, lx->source, lx->pos, "unexpected char '%.*s'",
                            (int)(next - lx->pos), lx->source.data + lx->pos);
    }
    if (n == 1 && !bracket(lx, c))
        return false;
    if (!push(lx, T_OP, lx->pos, str_slice(lx->source, lx->pos, lx->pos + n)))
        return false;
    struct token *token = &lx->tokens[lx->n_tokens - 1];
    token->op[0] = c;
    token->op[1] = n == 2 ? lx->source.data[lx->pos + 1] : '\0';
    lx->pos += n;
    return true;
}

// The tokens of a tag up to and with its end. lx->pos is behind the opening marks.
static bool tag(struct lexer *lx, bool is_variable) {
    const char *close = is_variable ? "}}" : "%}";
    lx->n_open = 0;
    for (;;) {
        skip_space(lx);
        if (lx->pos >= lx->source.n) {
            if (lx->n_open)
                return syntax_error(lx->err, lx->source, lx->open[lx->n_open - 1].pos,
                                    "'%c' is missing: the template ends inside a tag",
                                    lx->open[lx->n_open - 1].close);
            return push(lx, T_EOF, lx->pos, (struct str){0});
        }
        if (!lx->n_open) {
            char sign = byte_at(lx, lx->pos);
            bool signed_end = (sign == '-' || (sign == '+' && !is_variable)) && at(lx, lx->pos + 1, close);
            if (signed_end || at(lx, lx->pos, close)) {
                size_t pos = lx->pos;
                lx->pos += signed_end ? 3 : 2;
                after_tag(lx, signed_end ? sign : 0, !is_variable);
                return push(lx, is_variable ? T_VARIABLE_END : T_BLOCK_END, pos,
                            str_slice(lx->source, pos, pos + 2));
            }
        }
        if (!tag_token(lx))
            return false;
    }
}

static bool comment(struct lexer *lx) {
    size_t end = str_find(lx->source, STR("#}"), lx->pos);
    if (end == SIZE_MAX)
        return syntax_error(lx->err, lx->source, lx->pos, "missing end of comment tag");
    char sign = end > lx->pos ? lx->source.data[end - 1] : '\0';
    lx->pos = end + 2;
    after_tag(lx, sign == '-' || sign == '+' ? sign : 0, true);
    return true;
}

static bool raw(struct lexer *lx, size_t tag_pos, bool line_starting) {
    for (size_t i = lx->pos; (i = str_find(lx->source, STR("{%"), i)) != SIZE_MAX; i++) {
        char sign, end_sign;
        size_t end;
        if (!raw_tag(lx, i, "endraw", &sign, &end, &end_sign))
            continue;
        if (!push_data(lx, lx->pos, i, sign, false, line_starting))
            return false;
        lx->pos = end;
        after_tag(lx, end_sign, true);
        return true;
    }
    return syntax_error(lx->err, lx->source, tag_pos, "missing end of raw directive");
}

static bool run(struct lexer *lx) {
    bool line_starting = true;
    for (;;) {
        size_t start = lx->pos, i = start;
        for (;; i++) {
            const char *brace = i < lx->source.n ? memchr(lx->source.data + i, '{', lx->source.n - i) : NULL;
            i = brace ? (size_t)(brace - lx->source.data) : lx->source.n;
            char next = byte_at(lx, i + 1);
            if (i >= lx->source.n || next == '{' || next == '%' || next == '#')
                break;
        }
        if (i >= lx->source.n) {
            if (i > start && !push(lx, T_DATA, start, str_slice(lx->source, start, i)))
                return false;
            return push(lx, T_EOF, lx->source.n, (struct str){0});
        }
        char kind = lx->source.data[i + 1], sign, end_sign;
        size_t raw_end;
        if (kind == '%' && raw_tag(lx, i, "raw", &sign, &raw_end, &end_sign) && end_sign != '+') {
            if (!push_data(lx, start, i, sign, false, line_starting))
                return false;
            lx->pos = raw_end;
            after_tag(lx, end_sign, false);
            if (!raw(lx, i, lx->source.data[lx->pos - 1] == '\n'))
                return false;
        } else {
            sign = byte_at(lx, i + 2);
            if (sign != '-' && sign != '+')
                sign = 0;
            if (!push_data(lx, start, i, sign, kind == '{', line_starting))
                return false;
            lx->pos = i + (sign ? 3 : 2);
            if (kind == '#') {
                if (!comment(lx))
                    return false;
            } else {
                if (!push(lx, kind == '{' ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, i, (struct str){0}) ||
                    !tag(lx, kind == '{'))
                    return false;
                if (lx->tokens[lx->n_tokens - 1].kind == T_EOF)
                    return true;
            }
        }
        line_starting = lx->source.data[lx->pos - 1] == '\n';
    }
}

bool lexer_run(struct arena *arena, struct str source, struct tokens *out, struct err *err) {
    struct lexer lx = {.arena = arena, .source = source, .err = err, .line = 1};
    bool ok = run(&lx);
    if (ok) {
        struct token *items = arena_array(arena, struct token, lx.n_tokens);
        ok = items || out_of_memory(&lx);
        if (ok) {
            memcpy(items, lx.tokens, lx.n_tokens * sizeof *items);
            *out = (struct tokens){items, lx.n_tokens};
        }
    }
    free(lx.tokens);
    free(lx.open);
    return ok;
}
