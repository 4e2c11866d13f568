#include "tokenizer/normalizer.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "tokenizer/byte_letters.h"
#include "tokenizer/characters.h"
#include "tokenizer/pattern.h"

enum kind {
    NFC,
    NFD,
    NFKC,
    NFKD,
    LOWERCASE,
    STRIP,
    STRIP_ACCENTS,
    REPLACE,
    PREPEND,
    BYTE_LEVEL,
    NMT,
    N_KINDS
};
static const char *const KIND_NAMES[N_KINDS] = {
    "NFC",     "NFD",     "NFKC",      "NFKD", "Lowercase", "Strip", "StripAccents",
    "Replace", "Prepend", "ByteLevel", "Nmt",
};
enum { STEPS_MAX = 256, DEPTH_MAX = 16 };

struct normalizer_step {
    enum kind kind;
    bool left, right;       // Strip
    struct pattern pattern; // Replace
    struct str content;     // Replace, Prepend
};

// ---- Reading ----------------------------------------------------------------------------------

static bool read_step(struct normalizer *normalizer, const json_t *value, struct err *err) {
    struct str type = json_str(json_object_get(value, "type"));
    struct normalizer_step step = {.kind = N_KINDS, .left = true, .right = true};
    for (int i = 0; i < N_KINDS; i++)
        if (type.data && str_eq_c(type, KIND_NAMES[i]))
            step.kind = (enum kind)i;
    if (step.kind == N_KINDS)
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: normalizer \"%.*s\" is unknown; loam knows NFC, NFD, NFKC, "
                       "NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, ByteLevel, "
                       "Nmt, BertNormalizer, Precompiled and Sequence",
                       (int)type.n, type.data ? type.data : "");
    if (normalizer->n_steps == STEPS_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: more than %d normalizers", STEPS_MAX);
    struct str content = {0};
    const char *content_key = step.kind == PREPEND ? "prepend" : "content";
    const char *what = "tokenizer.json: normalizer";
    if (!json_get_bool(value, "strip_left", &step.left, what, err) ||
        !json_get_bool(value, "strip_right", &step.right, what, err) ||
        !json_get_str(value, content_key, &content, what, err))
        return false;
    if (!arena_copy(&normalizer->arena, content, &step.content))
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    if (step.kind == REPLACE &&
        !pattern_read(&step.pattern, json_object_get(value, "pattern"), &normalizer->arena,
                      "tokenizer.json: normalizer Replace", err))
        return false;
    normalizer->steps[normalizer->n_steps++] = step;
    return true;
}

static bool read_steps(struct normalizer *normalizer, const json_t *value, int depth,
                       struct err *err) {
    if (depth > DEPTH_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: normalizers nest more than %d deep",
                       DEPTH_MAX);
    if (json_is_null(value) || !value)
        return true;
    if (!json_is_object(value))
        return err_set(err, ERR_FORMAT, "tokenizer.json: \"normalizer\" must be an object");
    struct str type = json_str(json_object_get(value, "type"));
    if (!type.data || !str_eq_c(type, "Sequence"))
        return read_step(normalizer, value, err);
    const json_t *list = json_object_get(value, "normalizers");
    if (!json_is_array(list))
        return err_set(err, ERR_FORMAT,
                       "tokenizer.json: normalizer Sequence needs the array \"normalizers\"");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!read_steps(normalizer, json_array_get(list, i), depth + 1, err))
            return false;
    return true;
}

bool normalizer_init(struct normalizer *normalizer, const json_t *value, struct err *err) {
    *normalizer = (struct normalizer){0};
    normalizer->steps = arena_array(&normalizer->arena, struct normalizer_step, STEPS_MAX);
    if (!normalizer->steps)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    if (read_steps(normalizer, value, 0, err))
        return true;
    normalizer_deinit(normalizer);
    return false;
}

void normalizer_deinit(struct normalizer *normalizer) {
    for (size_t i = 0; i < normalizer->n_steps; i++)
        pattern_deinit(&normalizer->steps[i].pattern);
    arena_deinit(&normalizer->arena);
    *normalizer = (struct normalizer){0};
}

void normalizer_scratch_deinit(struct normalizer_scratch *scratch) {
    strbuf_deinit(&scratch->texts[0]);
    strbuf_deinit(&scratch->texts[1]);
}

// ---- Running ----------------------------------------------------------------------------------

static bool is_below_300(struct str in) {
    for (size_t i = 0; i < in.n; i++)
        if ((uint8_t)in.data[i] >= 0xCC) // the lead byte of U+0300
            return false;
    return true;
}
static bool is_ascii(struct str in) {
    for (size_t i = 0; i < in.n; i++)
        if ((uint8_t)in.data[i] >= 0x80)
            return false;
    return true;
}

static void unicode_form(enum kind kind, struct str in, struct strbuf *out) {
    int options = UTF8PROC_STABLE;
    options |= kind == NFC || kind == NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (kind == NFKC || kind == NFKD)
        options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)in.data, (utf8proc_ssize_t)in.n,
                                      &mapped, (utf8proc_option_t)options);
    if (n < 0)
        out->failed = true;
    else
        strbuf_append(out, (struct str){(const char *)mapped, (size_t)n});
    free(mapped);
}

static void lowercase(struct str in, struct strbuf *out) {
    for (size_t i = 0; i < in.n;) {
        uint32_t c = utf8_next(in, &i);
        if (c == 0x130) // the one character whose lower case is two
            strbuf_append_c(out, "i\xCC\x87");
        else if (c < 0x80)
            strbuf_char(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
        else
            strbuf_code_point(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    }
}

static struct str strip(const struct normalizer_step *step, struct str in) {
    size_t from = 0, to = in.n;
    while (step->left && from < to) {
        size_t next = from;
        if (!char_is_space(utf8_next(in, &next)))
            break;
        from = next;
    }
    while (step->right && to > from) {
        size_t last = to - 1;
        while (last > from && ((uint8_t)in.data[last] & 0xC0) == 0x80)
            last--;
        size_t at = last;
        if (!char_is_space(utf8_next(in, &at)))
            break;
        to = last;
    }
    return str_slice(in, from, to);
}

static void strip_accents(struct str in, struct strbuf *out) {
    for (size_t i = 0; i < in.n;) {
        size_t from = i;
        if (!char_is_mark(utf8_next(in, &i)))
            strbuf_append(out, str_slice(in, from, i));
    }
}

// Controls go, other separators become a space: SentencePiece's "nmt" rules.
static void nmt(struct str in, struct strbuf *out) {
    for (size_t i = 0; i < in.n;) {
        size_t from = i;
        uint32_t c = utf8_next(in, &i);
        if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
            c == 0x8F || c == 0x9F)
            continue;
        if (c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
            (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
            c == 0xFEFF || c == 0xFFFD)
            strbuf_char(out, ' ');
        else
            strbuf_append(out, str_slice(in, from, i));
    }
}

static bool replace(const struct normalizer_step *step, struct str in,
                    struct normalizer_scratch *scratch, struct strbuf *out, struct err *err) {
    struct regex_matches matches = regex_matches(in);
    struct span match;
    size_t done = 0;
    enum regex_result result;
    while ((result = pattern_next(&step->pattern, scratch->regex, &matches, &match)) ==
           REGEX_MATCH) {
        strbuf_append(out, str_slice(in, done, match.from));
        strbuf_append(out, step->content);
        done = match.to;
    }
    strbuf_append(out, str_slice(in, done, in.n));
    if (result == REGEX_GAVE_UP)
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer: the normalizer's regex needs too many steps on this text");
    return true;
}

bool normalizer_run(const struct normalizer *normalizer, struct str in,
                    struct normalizer_scratch *scratch, struct str *out, struct err *err) {
    size_t which = 0;
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        const struct normalizer_step *step = &normalizer->steps[i];
        struct strbuf *to = &scratch->texts[which];
        strbuf_clear(to);
        switch (step->kind) {
        case NFC:
        case NFKC:
        case NFD:
        case NFKD:
            if (step->kind == NFC ? is_below_300(in) : is_ascii(in))
                continue;
            unicode_form(step->kind, in, to);
            break;
        case LOWERCASE:
            lowercase(in, to);
            break;
        case STRIP:
            in = strip(step, in);
            continue;
        case STRIP_ACCENTS:
            strip_accents(in, to);
            break;
        case REPLACE:
            if (!replace(step, in, scratch, to, err))
                return false;
            break;
        case PREPEND:
            if (in.n == 0)
                continue;
            strbuf_append(to, step->content);
            strbuf_append(to, in);
            break;
        case BYTE_LEVEL:
            byte_letters_append(to, in);
            break;
        case NMT:
            nmt(in, to);
            break;
        case N_KINDS:
            continue;
        }
        if (to->failed)
            return err_set(err, ERR_NOMEM, "tokenizer: out of memory normalizing %zu bytes", in.n);
        in = strbuf_str(to);
        which = !which;
    }
    *out = in;
    return true;
}
