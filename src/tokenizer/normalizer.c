#include "tokenizer/normalizer.h"

#include <openssl/evp.h>
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
    BERT,
    PRECOMPILED,
    N_KINDS
};
static const char *const KIND_NAMES[N_KINDS] = {
    "NFC",     "NFD",     "NFKC",      "NFKD", "Lowercase", "Strip", "StripAccents",
    "Replace", "Prepend", "ByteLevel", "Nmt",  "BertNormalizer", "Precompiled",
};
enum { STEPS_MAX = 256, DEPTH_MAX = 16, CHARSMAP_BYTES_MAX = 64 << 20 };

struct normalizer_step {
    enum kind kind;
    bool left, right;       // Strip
    struct pattern pattern; // Replace
    struct str content;     // Replace, Prepend
    bool clean_text, chinese_chars, strip_accents, lowercase; // BertNormalizer
    const uint32_t *units; // Precompiled: a Darts double array, owned by the arena
    size_t n_units;
    struct str targets; // Precompiled: NUL-terminated texts that the array's values point into
};

// ---- Reading ----------------------------------------------------------------------------------

static bool read_bert(struct normalizer_step *step, const json_t *value, struct err *err) {
    const char *what = "tokenizer.json: normalizer BertNormalizer";
    step->clean_text = step->chinese_chars = step->lowercase = true;
    if (!json_get_bool(value, "lowercase", &step->lowercase, what, err))
        return false;
    step->strip_accents = step->lowercase; // if it is null
    return json_get_bool(value, "clean_text", &step->clean_text, what, err) &&
           json_get_bool(value, "handle_chinese_chars", &step->chinese_chars, what, err) &&
           json_get_bool(value, "strip_accents", &step->strip_accents, what, err);
}

// base64 of: u32 bytes of the array, the array, the texts. SentencePiece, src/normalizer.cc.
static bool read_charsmap(struct normalizer *normalizer, struct normalizer_step *step,
                          const json_t *value, struct err *err) {
    struct str text = {0};
    const char *what = "tokenizer.json: normalizer Precompiled";
    if (!json_get_str(value, "precompiled_charsmap", &text, what, err))
        return false;
    if (text.n == 0)
        return true; // nothing is mapped
    if (text.n > CHARSMAP_BYTES_MAX || text.n % 4)
        return err_set(err, ERR_FORMAT, "%s: precompiled_charsmap is not base64", what);
    unsigned char *raw = arena_alloc(&normalizer->arena, text.n / 4 * 3 + 8);
    if (!raw)
        return err_set(err, ERR_NOMEM, "%s: out of memory", what);
    // The array starts at byte 4 and must be aligned.
    int n_raw = EVP_DecodeBlock(raw, (const unsigned char *)text.data, (int)text.n);
    if (n_raw < 0)
        return err_set(err, ERR_FORMAT, "%s: precompiled_charsmap is not base64", what);
    size_t n = (size_t)n_raw;
    for (size_t k = 1; k <= 2 && text.data[text.n - k] == '='; k++)
        n--; // of at least 3 bytes: the text is a multiple of 4 above 0
    uint32_t n_array;
    if (n < 4)
        return err_set(err, ERR_FORMAT, "%s: precompiled_charsmap is cut short", what);
    memcpy(&n_array, raw, 4);
    if (n_array % 4 || n_array > n - 4)
        return err_set(err, ERR_FORMAT, "%s: precompiled_charsmap says %u bytes, has %zu", what,
                       n_array, n - 4);
    step->units = (const uint32_t *)(const void *)(raw + 4);
    step->n_units = n_array / 4;
    step->targets = (struct str){(const char *)raw + 4 + n_array, n - 4 - n_array};
    return true;
}

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
    // From here on the step is undone with the others.
    normalizer->steps[normalizer->n_steps++] = step;
    struct normalizer_step *kept = &normalizer->steps[normalizer->n_steps - 1];
    if (step.kind == BERT)
        return read_bert(kept, value, err);
    return step.kind != PRECOMPILED || read_charsmap(normalizer, kept, value, err);
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

static bool is_ascii(struct str in) {
    size_t i = 0;
    for (; in.n - i >= 8; i += 8) {
        uint64_t word;
        memcpy(&word, in.data + i, 8);
        if (word & 0x8080808080808080u)
            return false;
    }
    for (; i < in.n; i++)
        if ((uint8_t)in.data[i] >= 0x80)
            return false;
    return true;
}

// A span without characters that HF does not know, through utf8proc.
static void map_span(enum kind kind, struct str in, struct strbuf *out) {
    int options = UTF8PROC_STABLE;
    options |= kind == NFC || kind == NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (kind == NFKC || kind == NFKD)
        options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t *mapped = NULL;
    if (in.n == 0)
        return;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)in.data, (utf8proc_ssize_t)in.n,
                                      &mapped, (utf8proc_option_t)options);
    if (n < 0)
        out->failed = true;
    else
        strbuf_append(out, (struct str){(const char *)mapped, (size_t)n});
    free(mapped);
}

// Inert characters neither change nor combine nor let others combine across them.
static void unicode_form(enum kind kind, struct str in, struct strbuf *out) {
    size_t done = 0;
    for (size_t i = 0; i < in.n;) {
        size_t n;
        if (char_has(char_at(in.data + i, &n), CHAR_INERT)) {
            map_span(kind, str_slice(in, done, i), out);
            strbuf_append(out, str_slice(in, i, i + n));
            done = i + n;
        }
        i += n;
    }
    map_span(kind, str_slice(in, done, in.n), out);
}

// The first character that NFC may change, at or after `at`.
static size_t find_needs_nfc(struct str in, size_t at) {
    while (at < in.n) {
        if ((uint8_t)in.data[at] < 0xCC) { // below U+0300 nothing changes
            at++;
            continue;
        }
        size_t n;
        if (char_has(char_at(in.data + at, &n), CHAR_NEEDS_NFC))
            return at;
        at += n;
    }
    return in.n;
}

// Only spans around characters that may change are mapped: from the one before, with which they may
// combine, to the last of them. False if there is none: `in` is its own form.
static bool nfc(struct str in, struct strbuf *out) {
    size_t done = 0, found = find_needs_nfc(in, 0);
    if (found == in.n)
        return false;
    while (found < in.n) {
        size_t from = found, to = found, n;
        if (from > done)
            do
                from--;
            while (from > done && ((uint8_t)in.data[from] & 0xC0) == 0x80);
        while (to < in.n && char_has(char_at(in.data + to, &n), CHAR_NEEDS_NFC))
            to += n;
        strbuf_append(out, str_slice(in, done, from));
        unicode_form(NFC, str_slice(in, from, to), out);
        done = to;
        found = find_needs_nfc(in, done);
    }
    strbuf_append(out, str_slice(in, done, in.n));
    return true;
}

static void lowercase(struct str in, struct strbuf *out) {
    for (size_t i = 0; i < in.n;) {
        uint32_t c = utf8_next(in, &i);
        if (c == 0x130) // the one character whose lower case is two
            strbuf_append_c(out, "i\xCC\x87");
        else if (c < 0x80)
            strbuf_char(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
        else
            strbuf_code_point(out, char_lower(c));
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
        if (!char_has(utf8_next(in, &i), CHAR_MARK))
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

static bool is_chinese(uint32_t c) { // HF's list; U+2B920 is its own slip
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static void bert_clean(const struct normalizer_step *step, struct str in, struct strbuf *out) {
    for (size_t i = 0; i < in.n;) {
        size_t from = i;
        uint32_t c = utf8_next(in, &i);
        if (step->clean_text && char_has(c, CHAR_CLEANED))
            continue;
        bool chinese = step->chinese_chars && is_chinese(c);
        if (chinese)
            strbuf_char(out, ' ');
        if (step->clean_text && char_is_space(c))
            strbuf_char(out, ' ');
        else
            strbuf_append(out, str_slice(in, from, i));
        if (chinese)
            strbuf_char(out, ' ');
    }
}

static void bert(const struct normalizer_step *step, struct str in, struct strbuf *out) {
    struct strbuf cleaned = {0}, decomposed = {0}, stripped = {0};
    bert_clean(step, in, &cleaned);
    struct str text = strbuf_str(&cleaned);
    if (step->strip_accents && text.n) {
        unicode_form(NFD, text, &decomposed);
        struct str all = strbuf_str(&decomposed);
        for (size_t i = 0; i < all.n;) {
            size_t from = i;
            if (!char_has(utf8_next(all, &i), CHAR_ACCENT))
                strbuf_append(&stripped, str_slice(all, from, i));
        }
        text = strbuf_str(&stripped);
    }
    if (step->lowercase)
        lowercase(text, out);
    else
        strbuf_append(out, text);
    out->failed |= cleaned.failed || decomposed.failed || stripped.failed;
    strbuf_deinit(&cleaned);
    strbuf_deinit(&decomposed);
    strbuf_deinit(&stripped);
}

// The text that the shortest key at the front of `in` maps to; data is NULL if there is none. The
// array is not trusted: each step stays inside. Units: Darts-clone's DoubleArrayUnit (Yata).
static struct str charsmap_find(const struct normalizer_step *step, struct str in) {
    const uint32_t *units = step->units;
    struct str none = {NULL, 0};
    if (step->n_units == 0)
        return none;
    size_t at = 0;
    uint32_t unit = units[0];
    at ^= (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
    for (size_t i = 0; i < in.n; i++) {
        uint8_t c = (uint8_t)in.data[i];
        if (c == 0)
            return none;
        at ^= c;
        if (at >= step->n_units || (units[at] & (1u << 31 | 0xFF)) != c)
            return none;
        unit = units[at];
        at ^= (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
        if (unit >> 8 & 1) {
            uint32_t value = at < step->n_units ? units[at] & 0x7FFFFFFF : UINT32_MAX;
            if (value >= step->targets.n)
                return none;
            const char *target = step->targets.data + value;
            return (struct str){target, strnlen(target, step->targets.n - value)};
        }
    }
    return none;
}

// Does c begin a grapheme? HF's graphemes are of Unicode 17: a mark that an older utf8proc does not know extends
// what it follows as well, unless that is a control.
static bool begins_grapheme(utf8proc_int32_t last, utf8proc_int32_t c, utf8proc_int32_t *state) {
    if (!utf8proc_grapheme_break_stateful(last, c, state))
        return false;
    if (!char_has((uint32_t)c, CHAR_EXTENDS) || utf8proc_category(c) != UTF8PROC_CATEGORY_CN)
        return true;
    unsigned before = utf8proc_get_property(last)->boundclass;
    return before == UTF8PROC_BOUNDCLASS_CR || before == UTF8PROC_BOUNDCLASS_LF ||
           before == UTF8PROC_BOUNDCLASS_CONTROL;
}

// By grapheme if it is short and mapped, else by character, as HF does.
static void precompiled(const struct normalizer_step *step, struct str in, struct strbuf *out) {
    for (size_t from = 0, to; from < in.n; from = to) {
        size_t n;
        utf8proc_int32_t state = 0, last = (utf8proc_int32_t)char_at(in.data + from, &n);
        for (to = from + n; to < in.n; to += n) {
            utf8proc_int32_t c = (utf8proc_int32_t)char_at(in.data + to, &n);
            if (begins_grapheme(last, c, &state))
                break;
            last = c;
        }
        struct str grapheme = str_slice(in, from, to);
        struct str target = grapheme.n < 6 ? charsmap_find(step, grapheme) : (struct str){NULL, 0};
        if (target.data) {
            strbuf_append(out, target);
            continue;
        }
        for (size_t i = 0; i < grapheme.n; i += n) {
            char_at(grapheme.data + i, &n);
            struct str part = str_slice(grapheme, i, i + n);
            target = charsmap_find(step, part);
            strbuf_append(out, target.data ? target : part);
        }
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
            if (!nfc(in, to))
                continue;
            break;
        case NFKC:
        case NFD:
        case NFKD:
            if (is_ascii(in))
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
        case BERT:
            bert(step, in, to);
            break;
        case PRECOMPILED:
            precompiled(step, in, to);
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
