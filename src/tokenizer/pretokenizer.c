#include "tokenizer/pretokenizer.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/utf8.h"
#include "tokenizer/byte_letters.h"
#include "tokenizer/characters.h"
#include "tokenizer/pattern.h"
#include "tokenizer/scanner.h"

enum kind {
    BYTE_LEVEL,
    SPLIT,
    WHITESPACE,
    WHITESPACE_SPLIT,
    DIGITS,
    METASPACE,
    PUNCTUATION,
    BERT,
    CHAR_DELIMITER,
    UNICODE_SCRIPTS,
    FIXED_LENGTH,
    N_KINDS
};
static const char *const KIND_NAMES[N_KINDS] = {
    "ByteLevel",          "Split",          "Whitespace",  "WhitespaceSplit",
    "Digits",             "Metaspace",      "Punctuation", "BertPreTokenizer",
    "CharDelimiterSplit", "UnicodeScripts", "FixedLength",
};
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS, N_BEHAVIORS };
static const char *const BEHAVIOR_NAMES[N_BEHAVIORS] = {
    "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous",
};
enum prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER, N_PREPENDS };
static const char *const PREPEND_NAMES[N_PREPENDS] = {"always", "first", "never"};
enum { STEPS_MAX = 64, DEPTH_MAX = 16 };

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct pretokenizer_step {
    enum kind kind;
    enum behavior behavior;
    bool invert;
    bool use_regex, add_prefix_space; // ByteLevel
    bool individual;                  // Digits
    bool split;                       // Metaspace
    enum prepend prepend;
    struct str replacement; // Metaspace, CharDelimiterSplit
    size_t length;          // FixedLength
    struct pattern pattern;        // Split, ByteLevel
    const struct scanner *scanner; // in place of a pattern that is known, or NULL
};

// ---- Reading ----------------------------------------------------------------------------------

static bool find_name(struct str name, const char *const *names, int n, int *out) {
    for (int i = 0; i < n; i++)
        if (name.data && str_eq_c(name, names[i])) {
            *out = i;
            return true;
        }
    return false;
}

static bool read_behavior(struct pretokenizer_step *step, const json_t *value, struct err *err) {
    struct str name = json_str(json_object_get(value, "behavior"));
    int which = ISOLATED;
    if (name.data && !find_name(name, BEHAVIOR_NAMES, N_BEHAVIORS, &which))
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: split behavior \"%.*s\" is unknown; loam knows Removed, "
                       "Isolated, MergedWithPrevious, MergedWithNext and Contiguous",
                       (int)name.n, name.data);
    step->behavior = (enum behavior)which;
    return true;
}

static bool read_metaspace(struct pretokenizer *pre, struct pretokenizer_step *step,
                           const json_t *value, struct err *err) {
    struct str replacement = STR("\xE2\x96\x81");
    struct str scheme = json_str(json_object_get(value, "prepend_scheme"));
    const char *what = "tokenizer.json: pre_tokenizer Metaspace";
    bool add_prefix_space = true;
    step->split = true;
    if (!json_get_str(value, "replacement", &replacement, what, err) ||
        !json_get_bool(value, "split", &step->split, what, err) ||
        !json_get_bool(value, "add_prefix_space", &add_prefix_space, what, err))
        return false;
    int which = PREPEND_ALWAYS;
    if (scheme.data && !find_name(scheme, PREPEND_NAMES, N_PREPENDS, &which))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: prepend_scheme \"%.*s\" is unknown; loam knows always, first and never",
                       what, (int)scheme.n, scheme.data);
    // Files older than prepend_scheme say add_prefix_space.
    step->prepend = add_prefix_space || scheme.data ? (enum prepend)which : PREPEND_NEVER;
    return arena_copy(&pre->arena, replacement, &step->replacement) ||
           err_set(err, ERR_NOMEM, "tokenizer: out of memory");
}

static bool read_details(struct pretokenizer *pre, struct pretokenizer_step *step,
                         const json_t *value, struct err *err) {
    const char *what = "tokenizer.json: pre_tokenizer";
    switch (step->kind) {
    case BYTE_LEVEL:
        step->use_regex = step->add_prefix_space = true;
        step->behavior = ISOLATED;
        if (!json_get_bool(value, "use_regex", &step->use_regex, what, err) ||
            !json_get_bool(value, "add_prefix_space", &step->add_prefix_space, what, err))
            return false;
        if (step->use_regex)
            step->scanner = scanner_find(STR(GPT2_PATTERN));
        return true;
    case SPLIT: {
        const json_t *pattern = json_object_get(value, "pattern");
        const json_t *regex = json_object_get(pattern, "Regex");
        if (json_is_string(regex))
            step->scanner = scanner_find(json_str(regex));
        return read_behavior(step, value, err) &&
               json_get_bool(value, "invert", &step->invert, what, err) &&
               (step->scanner || pattern_read(&step->pattern, pattern, &pre->arena,
                                              "tokenizer.json: pre_tokenizer Split", err));
    }
    case PUNCTUATION:
        return read_behavior(step, value, err);
    case DIGITS:
        return json_get_bool(value, "individual_digits", &step->individual, what, err);
    case METASPACE:
        return read_metaspace(pre, step, value, err);
    case CHAR_DELIMITER: {
        struct str delimiter = {0};
        size_t at = 0;
        if (!json_get_str(value, "delimiter", &delimiter, what, err))
            return false;
        if (delimiter.n)
            utf8_next(delimiter, &at);
        if (!delimiter.n || at != delimiter.n)
            return err_set(err, ERR_FORMAT, "%s: \"delimiter\" must be one character", what);
        return arena_copy(&pre->arena, delimiter, &step->replacement) ||
               err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    }
    case FIXED_LENGTH: {
        uint32_t length = 5;
        if (!json_get_u32(value, "length", &length, what, err))
            return false;
        step->length = length;
        return length || err_set(err, ERR_FORMAT, "%s: \"length\" must be above 0", what);
    }
    default:
        return true;
    }
}

static bool read_steps(struct pretokenizer *pre, const json_t *value, int depth,
                       struct err *err) {
    if (depth > DEPTH_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: pre_tokenizers nest more than %d deep",
                       DEPTH_MAX);
    if (json_is_null(value) || !value)
        return true;
    if (!json_is_object(value))
        return err_set(err, ERR_FORMAT, "tokenizer.json: \"pre_tokenizer\" must be an object");
    struct str type = json_str(json_object_get(value, "type"));
    if (type.data && str_eq_c(type, "Sequence")) {
        const json_t *list = json_object_get(value, "pretokenizers");
        if (!json_is_array(list))
            return err_set(err, ERR_FORMAT, "tokenizer.json: pre_tokenizer Sequence needs the array "
                                            "\"pretokenizers\"");
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!read_steps(pre, json_array_get(list, i), depth + 1, err))
                return false;
        return true;
    }
    int kind;
    if (!find_name(type, KIND_NAMES, N_KINDS, &kind))
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: pre_tokenizer \"%.*s\" is unknown; loam knows ByteLevel, "
                       "Split, Whitespace, WhitespaceSplit, Digits, Metaspace, Punctuation, "
                       "BertPreTokenizer, CharDelimiterSplit, UnicodeScripts, FixedLength and "
                       "Sequence",
                       (int)type.n, type.data ? type.data : "");
    if (pre->n_steps == STEPS_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: more than %d pre_tokenizers", STEPS_MAX);
    struct pretokenizer_step *step = &pre->steps[pre->n_steps++];
    *step = (struct pretokenizer_step){.kind = (enum kind)kind, .behavior = ISOLATED};
    return read_details(pre, step, value, err);
}

bool pretokenizer_init(struct pretokenizer *pre, const json_t *value, struct err *err) {
    *pre = (struct pretokenizer){0};
    pre->steps = arena_array(&pre->arena, struct pretokenizer_step, STEPS_MAX);
    if (!pre->steps)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    if (read_steps(pre, value, 0, err))
        return true;
    pretokenizer_deinit(pre);
    return false;
}

void pretokenizer_deinit(struct pretokenizer *pre) {
    for (size_t i = 0; i < pre->n_steps; i++)
        pattern_deinit(&pre->steps[i].pattern);
    arena_deinit(&pre->arena);
    *pre = (struct pretokenizer){0};
}

// Every match is a word and there is nothing else.
static bool gives_matches(const struct pretokenizer_step *step) {
    return step->scanner && step->scanner->covers &&
           (step->invert ? step->behavior == REMOVED : step->behavior == ISOLATED);
}

const struct scanner *pretokenizer_scanner(const struct pretokenizer *pre) {
    if (!pre->raw_bytes || pre->n_steps == 0 || pre->n_steps > 2)
        return NULL;
    const struct pretokenizer_step *first = &pre->steps[0], *last = &pre->steps[pre->n_steps - 1];
    if (last->add_prefix_space || (last->use_regex && first != last) || !gives_matches(first))
        return NULL;
    return first->scanner;
}

bool pretokenizer_ends_in_bytes(const struct pretokenizer *pre) {
    return pre->n_steps && pre->steps[pre->n_steps - 1].kind == BYTE_LEVEL;
}

void words_deinit(struct words *words) {
    free(words->items);
    free(words->other);
    strbuf_deinit(&words->texts[0]);
    strbuf_deinit(&words->texts[1]);
}

// ---- Cutting ----------------------------------------------------------------------------------

static bool add_word(struct words *words, size_t from, size_t to, bool at_start) {
    if (from >= to)
        return true;
    if (words->n == words->capacity) {
        size_t want = words->capacity ? 2 * words->capacity : 64, n_bytes;
        struct word *grown;
        if (!mul_size(want, sizeof *grown, &n_bytes) || !(grown = realloc(words->items, n_bytes)))
            return false;
        words->items = grown;
        words->capacity = want;
    }
    words->items[words->n++] = (struct word){from, to, at_start};
    return true;
}

// What a step cuts at: the next matching span at or after *at.
struct finder {
    const struct pretokenizer_step *step;
    struct regex_scratch *regex;
    struct regex_matches matches;
    bool gave_up;
};

static bool char_matches(const struct pretokenizer_step *step, uint32_t c) {
    switch (step->kind) {
    case WHITESPACE_SPLIT:
        return char_is_space(c);
    case DIGITS:
        return char_has(c, CHAR_NUMERIC);
    default:
        return char_has(c, CHAR_PUNCTUATION);
    }
}

// Whitespace keeps \w+|[^\w\s]+.
static int whitespace_class(uint32_t c) {
    return char_has(c, CHAR_WORD) ? 2 : char_is_space(c) ? 0 : 1;
}

static bool find_next(struct finder *finder, struct span *out) {
    const struct pretokenizer_step *step = finder->step;
    struct regex_matches *m = &finder->matches;
    while (step->scanner && m->at < m->text.n) {
        size_t from = m->at, n;
        m->at = step->scanner->scan(m->text, from);
        if (m->at > from) {
            *out = (struct span){from, m->at};
            return true;
        }
        char_at(m->text.data + from, &n);
        m->at = from + n;
    }
    if (step->scanner)
        return false;
    switch (step->kind) {
    case SPLIT:
    case BYTE_LEVEL: {
        enum regex_result result = pattern_next(&step->pattern, finder->regex, m, out);
        finder->gave_up |= result == REGEX_GAVE_UP;
        return result == REGEX_MATCH;
    }
    case METASPACE:
    case CHAR_DELIMITER: {
        size_t at = str_find(m->text, step->replacement, m->at);
        if (at == SIZE_MAX || step->replacement.n == 0)
            return false;
        *out = (struct span){at, at + step->replacement.n};
        m->at = out->to;
        return true;
    }
    case WHITESPACE: {
        while (m->at < m->text.n) {
            size_t from = m->at;
            int class = whitespace_class(utf8_next(m->text, &m->at));
            if (!class)
                continue;
            for (size_t next = m->at; next < m->text.n; m->at = next)
                if (whitespace_class(utf8_next(m->text, &next)) != class)
                    break;
            *out = (struct span){from, m->at};
            return true;
        }
        return false;
    }
    default:
        while (m->at < m->text.n) {
            size_t from = m->at;
            if (char_matches(step, utf8_next(m->text, &m->at))) {
                *out = (struct span){from, m->at};
                return true;
            }
        }
        return false;
    }
}

// Spans that are kept, as HF's NormalizedString::split folds matches and gaps together.
struct folder {
    struct words *words;
    enum behavior behavior;
    bool invert, at_start;
    size_t base;       // of the word being cut
    bool any;          // a span is pending
    struct span pending;
    bool previous_match;
    bool failed;
};

static void flush(struct folder *f) {
    if (f->any && !add_word(f->words, f->base + f->pending.from, f->base + f->pending.to,
                            f->at_start && f->pending.from == 0))
        f->failed = true;
    f->any = false;
}

static void fold(struct folder *f, size_t from, size_t to, bool is_match) {
    is_match ^= f->invert;
    bool joins = false;
    switch (f->behavior) {
    case REMOVED:
        if (is_match) {
            flush(f);
            return;
        }
        break;
    case CONTIGUOUS:
        joins = is_match == f->previous_match;
        break;
    case MERGED_WITH_PREVIOUS:
        joins = is_match && !f->previous_match;
        break;
    case MERGED_WITH_NEXT: // a match waits for the gap behind it
        joins = !is_match && f->previous_match;
        break;
    default:
        break;
    }
    f->previous_match = is_match;
    if (joins && f->any) {
        f->pending.to = to;
        return;
    }
    flush(f);
    f->pending = (struct span){from, to};
    f->any = true;
}

static bool cut_word(const struct pretokenizer_step *step, struct words *words, struct word word,
                     struct err *err) {
    struct str text = str_slice(words->text, word.from, word.to);
    if (gives_matches(step)) {
        for (size_t at = 0, end; at < text.n; at = end) {
            end = step->scanner->scan(text, at);
            if (!add_word(words, word.from + at, word.from + end, word.at_start && at == 0))
                return err_set(err, ERR_NOMEM, "tokenizer: out of memory for words");
        }
        return true;
    }
    struct finder finder = {step, words->regex, regex_matches(text), false};
    struct folder folder = {.words = words, .behavior = step->behavior, .invert = step->invert,
                            .at_start = word.at_start, .base = word.from};
    if (step->kind == WHITESPACE) { // what is found is kept
        folder.behavior = REMOVED;
        folder.invert = true;
    } else if (step->kind == WHITESPACE_SPLIT || step->kind == CHAR_DELIMITER) {
        folder.behavior = REMOVED;
    } else if (step->kind == METASPACE) {
        folder.behavior = MERGED_WITH_NEXT;
    } else if (step->kind == DIGITS && !step->individual) {
        folder.behavior = CONTIGUOUS;
    }
    struct span match;
    size_t done = 0;
    while (find_next(&finder, &match)) {
        if (done != match.from)
            fold(&folder, done, match.from, false);
        fold(&folder, match.from, match.to, true);
        done = match.to;
    }
    if (done != text.n)
        fold(&folder, done, text.n, false);
    flush(&folder);
    if (folder.failed)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory for words");
    return !finder.gave_up ||
           err_set(err, ERR_UNSUPPORTED,
                   "tokenizer: the pre_tokenizer's regex needs too many steps on this text");
}

static bool cut_bert(struct words *words, struct word word) {
    size_t from = word.from;
    bool first = word.at_start, ok = true;
    for (size_t i = word.from; ok && i < word.to;) {
        size_t at = i;
        uint32_t c = utf8_next(words->text, &i);
        bool space = char_is_space(c);
        if (!space && !char_has(c, CHAR_PUNCTUATION))
            continue;
        ok = add_word(words, from, at, first && from == word.from);
        if (ok && !space)
            ok = add_word(words, at, i, first && at == word.from);
        from = i;
    }
    return ok && add_word(words, from, word.to, first && from == word.from);
}

static bool cut_fixed(struct words *words, struct word word, size_t length) {
    for (size_t i = word.from; i < word.to;) {
        size_t from = i;
        for (size_t k = 0; k < length && i < word.to; k++)
            utf8_next(words->text, &i);
        if (!add_word(words, from, i, word.at_start && from == word.from))
            return false;
    }
    return true;
}

// Where one script follows another; characters of no script go with what is before them, and vanish
// if there is nothing, as in HF.
static bool cut_scripts(struct words *words, struct word word) {
    size_t from = word.to;
    uint32_t last = 0;
    for (size_t i = word.from, n; i < word.to; i += n) {
        uint32_t c = char_at(words->text.data + i, &n), script = c == ' ' ? 0 : char_script(c);
        if (!script || script == last)
            continue;
        if (!add_word(words, from, last ? i : from, word.at_start && from == word.from))
            return false;
        from = i;
        last = script;
    }
    return add_word(words, from, word.to, word.at_start && from == word.from);
}

// Start a step: `items` become its input.
static size_t begin_step(struct words *words) {
    struct word *items = words->items;
    size_t n = words->n, capacity = words->capacity;
    words->items = words->other;
    words->capacity = words->other_capacity;
    words->other = items;
    words->other_capacity = capacity;
    words->n = 0;
    return n;
}

// Append what a word becomes.
typedef void rewrite_fn(const struct pretokenizer_step *step, struct str in, bool at_start,
                        struct strbuf *out);

static void metaspace_text(const struct pretokenizer_step *step, struct str in, bool at_start,
                           struct strbuf *out) {
    bool prepends = step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && at_start);
    size_t from = out->n;
    for (size_t i = 0; i < in.n;) {
        const char *space = memchr(in.data + i, ' ', in.n - i);
        size_t to = space ? (size_t)(space - in.data) : in.n;
        strbuf_append(out, str_slice(in, i, to));
        if (space)
            strbuf_append(out, step->replacement);
        i = to + (space != NULL);
    }
    struct str replaced = {out->data + from, out->n - from};
    if (!prepends || out->failed || str_starts(replaced, step->replacement))
        return;
    strbuf_append(out, step->replacement);
    if (out->failed)
        return;
    memmove(out->data + from + step->replacement.n, out->data + from, replaced.n);
    memcpy(out->data + from, step->replacement.data, step->replacement.n);
}

static void prefix_space_text(const struct pretokenizer_step *step, struct str in, bool at_start,
                              struct strbuf *out) {
    (void)step;
    (void)at_start;
    if (in.n && in.data[0] != ' ')
        strbuf_char(out, ' ');
    strbuf_append(out, in);
}

static void byte_letters_text(const struct pretokenizer_step *step, struct str in, bool at_start,
                              struct strbuf *out) {
    (void)step;
    (void)at_start;
    byte_letters_append(out, in);
}

// Give every word a new text, in the buffer that words->text does not use.
static bool rewrite(const struct pretokenizer_step *step, struct words *words, rewrite_fn *fn,
                    struct err *err) {
    struct strbuf *to = &words->texts[words->text.data == words->texts[0].data];
    strbuf_clear(to);
    for (size_t i = 0; i < words->n; i++) {
        struct word *word = &words->items[i];
        size_t from = to->n;
        fn(step, str_slice(words->text, word->from, word->to), word->at_start, to);
        word->from = from;
        word->to = to->n;
    }
    if (to->failed)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory for words");
    words->text = strbuf_str(to);
    return true;
}

static bool run_step(const struct pretokenizer *pre, const struct pretokenizer_step *step,
                     struct words *words, struct err *err) {
    bool last = step == &pre->steps[pre->n_steps - 1];
    if (step->kind == METASPACE && !rewrite(step, words, metaspace_text, err))
        return false;
    if (step->kind == BYTE_LEVEL && step->add_prefix_space &&
        !rewrite(step, words, prefix_space_text, err))
        return false;
    bool cuts = step->kind == BYTE_LEVEL ? step->use_regex : step->kind != METASPACE || step->split;
    if (cuts) {
        size_t n = begin_step(words);
        for (size_t i = 0; i < n; i++) {
            bool ok = true;
            if (step->kind == BERT)
                ok = cut_bert(words, words->other[i]);
            else if (step->kind == UNICODE_SCRIPTS)
                ok = cut_scripts(words, words->other[i]);
            else if (step->kind == FIXED_LENGTH)
                ok = cut_fixed(words, words->other[i], step->length);
            else if (!cut_word(step, words, words->other[i], err))
                return false;
            if (!ok)
                return err_set(err, ERR_NOMEM, "tokenizer: out of memory for words");
        }
    }
    if (step->kind == BYTE_LEVEL && !(last && pre->raw_bytes))
        return rewrite(step, words, byte_letters_text, err);
    return true;
}

bool pretokenizer_run(const struct pretokenizer *pre, struct str in, bool at_start,
                      struct words *words, struct err *err) {
    words->text = in;
    words->n = 0;
    if (!add_word(words, 0, in.n, at_start))
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory for words");
    for (size_t i = 0; i < pre->n_steps; i++)
        if (!run_step(pre, &pre->steps[i], words, err))
            return false;
    return true;
}
