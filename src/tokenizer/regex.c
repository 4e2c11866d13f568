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

// Rewrite what the two libraries read differently.
static void translate(struct str in, struct strbuf *out) {
    bool in_class = false;
    for (size_t i = 0; i < in.n; i++) {
        char c = in.data[i];
        if (c == '\\' && i + 1 < in.n) {
            char e = in.data[++i];
            if (e == 's' || e == 'S') {
                if (!in_class)
                    strbuf_append_c(out, e == 's' ? "[" : "[^");
                strbuf_append_c(out, in_class && e == 'S' ? NOT_SPACES : SPACES);
                if (!in_class)
                    strbuf_char(out, ']');
            } else {
                strbuf_char(out, '\\');
                strbuf_char(out, e);
            }
            continue;
        }
        if (!in_class && c == '[') {
            in_class = true;
            strbuf_char(out, c);
            if (i + 1 < in.n && in.data[i + 1] == '^')
                strbuf_char(out, in.data[++i]);
            if (i + 1 < in.n && in.data[i + 1] == ']') { // a first ] is a member
                strbuf_append_c(out, "\\]");
                i++;
            }
            continue;
        }
        if (in_class && c == ']')
            in_class = false;
        strbuf_char(out, c);
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
