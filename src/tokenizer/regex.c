#include "tokenizer/regex.h"

#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/utf8.h"

struct regex {
    pcre2_code *code;
};

struct regex_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

// PCRE2's \s also takes U+180E, which Unicode no longer calls white space: spell the set out.
#define SPACES                                                                                     \
    "\\x09-\\x0D\\x20\\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"            \
    "\\x{205F}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x00-\\x08\\x0E-\\x1F\\x21-\\x84\\x86-\\x9F\\xA1-\\x{167F}\\x{1681}-\\x{1FFF}"               \
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"                 \
    "\\x{3001}-\\x{10FFFF}"

// The end of the class that begins at in.data[at] == '[', nested ones included, or in.n; *both is where
// its "&&" is, or SIZE_MAX.
static size_t class_end(struct str in, size_t at, size_t *both) {
    size_t depth = 0;
    *both = SIZE_MAX;
    for (size_t i = at; i < in.n; i++) {
        char c = in.data[i];
        if (c == '\\') {
            i++;
        } else if (c == '[') {
            depth++;
            if (i + 1 < in.n && in.data[i + 1] == '^')
                i++;
            if (i + 1 < in.n && in.data[i + 1] == ']') // a first ] is a member
                i++;
        } else if (c == ']' && --depth == 0) {
            return i + 1;
        } else if (depth == 1 && c == '&' && i + 1 < in.n && in.data[i + 1] == '&' &&
                   *both == SIZE_MAX) {
            *both = i;
        }
    }
    return in.n;
}

static void translate_escape(char e, bool in_class, struct strbuf *out) {
    if (e != 's' && e != 'S') {
        strbuf_char(out, '\\');
        strbuf_char(out, e);
        return;
    }
    if (!in_class)
        strbuf_append_c(out, e == 's' ? "[" : "[^");
    strbuf_append_c(out, in_class && e == 'S' ? NOT_SPACES : SPACES);
    if (!in_class)
        strbuf_char(out, ']');
}

static void translate_class(struct str in, struct strbuf *out) {
    size_t i = 0;
    strbuf_char(out, in.data[i++]);
    if (i < in.n && in.data[i] == '^')
        strbuf_char(out, in.data[i++]);
    if (i < in.n && in.data[i] == ']') {
        strbuf_append_c(out, "\\]");
        i++;
    }
    for (; i < in.n; i++) {
        if (in.data[i] == '\\' && i + 1 < in.n)
            translate_escape(in.data[++i], true, out);
        else
            strbuf_char(out, in.data[i]);
    }
}

// Rewrite what Oniguruma and PCRE2 read differently: \s, and [A&&[B]], which becomes (?:(?=[B])[A]).
static void translate(struct str in, struct strbuf *out) {
    for (size_t i = 0; i < in.n; i++) {
        char c = in.data[i];
        if (c == '\\' && i + 1 < in.n) {
            translate_escape(in.data[++i], false, out);
            continue;
        }
        if (c != '[') {
            strbuf_char(out, c);
            continue;
        }
        size_t both, end = class_end(in, i, &both);
        bool nested = both != SIZE_MAX && end - both > 4 && in.data[both + 2] == '[' &&
                      in.data[end - 2] == ']' && in.data[i + 1] != '^';
        if (nested) {
            strbuf_append_c(out, "(?:(?=");
            translate_class(str_slice(in, both + 2, end - 1), out);
            strbuf_char(out, ')');
            translate_class(str_slice(in, i, both), out);
            strbuf_append_c(out, "])");
        } else {
            translate_class(str_slice(in, i, end), out);
        }
        i = end - 1;
    }
}

struct regex *regex_compile(struct str pattern, struct err *err) {
    struct regex *regex = calloc(1, sizeof *regex);
    struct strbuf translated = {0};
    translate(pattern, &translated);
    if (!regex || translated.failed) {
        err_set(err, ERR_NOMEM, "regex: out of memory");
        goto failed;
    }
    int code;
    size_t at;
    regex->code = pcre2_compile((PCRE2_SPTR)(translated.n ? translated.data : ""), translated.n,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    if (!regex->code) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        err_set(err, ERR_UNSUPPORTED, "regex \"%.*s\": %s (near offset %zu)",
                (int)(pattern.n < 200 ? pattern.n : 200), pattern.data, (const char *)text, at);
        goto failed;
    }
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE); // without it, pcre2_match() interprets
    strbuf_deinit(&translated);
    return regex;
failed:
    strbuf_deinit(&translated);
    regex_destroy(regex);
    return NULL;
}

void regex_destroy(struct regex *regex) {
    if (regex)
        pcre2_code_free(regex->code);
    free(regex);
}

struct regex_scratch *regex_scratch_create(void) {
    return calloc(1, sizeof(struct regex_scratch));
}

// Most texts meet no regex: what PCRE2 needs is made when the first one comes.
static bool scratch_ready(struct regex_scratch *scratch) {
    if (scratch->stack)
        return true;
    if (!scratch->match)
        scratch->match = pcre2_match_data_create(1, NULL);
    if (!scratch->context)
        scratch->context = pcre2_match_context_create(NULL);
    if (!scratch->match || !scratch->context)
        return false;
    scratch->stack = pcre2_jit_stack_create(64 * 1024, 16 * 1024 * 1024, NULL);
    if (scratch->stack)
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    return scratch->stack;
}

void regex_scratch_destroy(struct regex_scratch *scratch) {
    if (!scratch)
        return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

enum regex_result regex_next(const struct regex *regex, struct regex_scratch *scratch,
                             struct regex_matches *matches, struct span *out) {
    struct str text = matches->text;
    if (!scratch_ready(scratch))
        return REGEX_GAVE_UP;
    while (matches->at <= text.n) {
        int rc = pcre2_match(regex->code, (PCRE2_SPTR)(text.data ? text.data : ""), text.n,
                             matches->at, PCRE2_NO_UTF_CHECK, scratch->match, scratch->context);
        if (rc < 0)
            return rc == PCRE2_ERROR_NOMATCH ? REGEX_END : REGEX_GAVE_UP;
        const size_t *ends = pcre2_get_ovector_pointer(scratch->match);
        out->from = ends[0];
        out->to = ends[1];
        if (out->to <= out->from && matches->last_end == out->to) {
            if (matches->at >= text.n)
                return REGEX_END;
            utf8_next(text, &matches->at);
            continue;
        }
        matches->at = matches->last_end = out->to;
        return REGEX_MATCH;
    }
    return REGEX_END;
}
