#include "tokenizer/decoder.h"

#include <stdlib.h>

#include "base/utf8.h"
#include "tokenizer/byte_letters.h"
#include "tokenizer/pattern.h"

enum kind {
    BYTE_LEVEL,
    BYTE_FALLBACK,
    FUSE,
    METASPACE,
    REPLACE,
    STRIP,
    WORD_PIECE,
    BPE,
    CTC,
    N_KINDS,        // those that tokenizer.json names
    JOIN = N_KINDS, // no decoder at all
    CLEANUP,        // one replacement in the joined text
};
static const char *const KIND_NAMES[N_KINDS] = {
    "ByteLevel", "ByteFallback", "Fuse",       "Metaspace", "Replace",
    "Strip",     "WordPiece",    "BPEDecoder", "CTC",
};
enum { STEPS_MAX = 64, DEPTH_MAX = 16 };
#define REPLACEMENT STR("\xEF\xBF\xBD")

struct decoder_step {
    enum kind kind;
    bool fused;   // its input is one token that arrives in parts
    bool cleanup; // WordPiece, CTC
    bool strip_first;       // Metaspace: the first token loses its marks
    uint32_t start, stop;   // Strip
    struct str mark;        // Metaspace's replacement, Strip's content, WordPiece's prefix,
                            // BPEDecoder's suffix, CTC's pad_token, CLEANUP's pattern
    struct str content;     // Replace, CLEANUP; CTC's word_delimiter_token
    struct pattern pattern; // Replace
};

// What transformers replaces for clean_up_tokenization_spaces, in order.
static const struct replacement {
    struct str from, to;
} CLEANUPS[] = {
    {{" .", 2}, {".", 1}},     {{" ?", 2}, {"?", 1}},   {{" !", 2}, {"!", 1}},
    {{" ,", 2}, {",", 1}},     {{" ' ", 3}, {"'", 1}},  {{" n't", 4}, {"n't", 3}},
    {{" 'm", 3}, {"'m", 2}},   {{" 's", 3}, {"'s", 2}}, {{" 've", 4}, {"'ve", 3}},
    {{" 're", 4}, {"'re", 3}},
};
// What WordPiece and CTC replace in a token, in order.
static const struct replacement TOKEN_CLEANUPS[] = {
    {{" .", 2}, {".", 1}},     {{" ?", 2}, {"?", 1}},
    {{" !", 2}, {"!", 1}},     {{" ,", 2}, {",", 1}},
    {{" ' ", 3}, {"'", 1}},    {{" n't", 4}, {"n't", 3}},
    {{" 'm", 3}, {"'m", 2}},   {{" do not", 7}, {" don't", 6}},
    {{" 's", 3}, {"'s", 2}},   {{" 've", 4}, {"'ve", 3}},
    {{" 're", 4}, {"'re", 3}},
};

struct decoder_state {
    bool any;           // a token has come
    uint32_t n_cut;     // Strip: characters cut from the front so far
    bool front_done;    // Strip: something else came
    struct strbuf held; // what may still change
};

// ---- Reading ----------------------------------------------------------------------------------

static bool read_details(struct decoder *decoder, struct decoder_step *step, const json_t *value,
                         struct err *err) {
    static const struct {
        const char *mark, *mark_default, *content, *content_default;
    } KEYS[N_KINDS] = {
        [METASPACE] = {"replacement", "\xE2\x96\x81", NULL, NULL},
        [REPLACE] = {NULL, NULL, "content", ""},
        [STRIP] = {"content", "", NULL, NULL},
        [WORD_PIECE] = {"prefix", "##", NULL, NULL},
        [BPE] = {"suffix", "</w>", NULL, NULL},
        [CTC] = {"pad_token", "<pad>", "word_delimiter_token", "|"},
    };
    const char *what = "tokenizer.json: decoder";
    struct str mark = str_from(KEYS[step->kind].mark_default);
    struct str content = str_from(KEYS[step->kind].content_default);
    bool add_prefix_space = true;
    step->cleanup = true;
    if ((KEYS[step->kind].mark && !json_get_str(value, KEYS[step->kind].mark, &mark, what, err)) ||
        (KEYS[step->kind].content &&
         !json_get_str(value, KEYS[step->kind].content, &content, what, err)) ||
        !json_get_bool(value, "cleanup", &step->cleanup, what, err) ||
        !json_get_bool(value, "add_prefix_space", &add_prefix_space, what, err) ||
        (step->kind == STRIP && (!json_get_u32(value, "start", &step->start, what, err) ||
                                 !json_get_u32(value, "stop", &step->stop, what, err))))
        return false;
    struct str scheme = json_str(json_object_get(value, "prepend_scheme"));
    step->strip_first = scheme.data ? !str_eq_c(scheme, "never") : add_prefix_space;
    if (step->kind == REPLACE &&
        !pattern_read(&step->pattern, json_object_get(value, "pattern"), &decoder->arena,
                      "tokenizer.json: decoder Replace", err))
        return false;
    if (!arena_copy(&decoder->arena, mark, &step->mark) ||
        !arena_copy(&decoder->arena, content, &step->content))
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    return true;
}

static struct decoder_step *add_step(struct decoder *decoder, enum kind kind, struct err *err) {
    if (decoder->n_steps == STEPS_MAX) {
        err_set(err, ERR_FORMAT, "tokenizer.json: more than %d decoders", STEPS_MAX);
        return NULL;
    }
    bool fused = false;
    for (size_t i = 0; i < decoder->n_steps; i++)
        fused |= decoder->steps[i].kind == FUSE || decoder->steps[i].kind == BYTE_LEVEL ||
                 decoder->steps[i].kind == JOIN;
    struct decoder_step *step = &decoder->steps[decoder->n_steps++];
    *step = (struct decoder_step){.kind = kind, .fused = fused};
    return step;
}

static bool read_steps(struct decoder *decoder, const json_t *value, int depth, struct err *err) {
    struct str type = json_str(json_object_get(value, "type"));
    if (depth > DEPTH_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: decoders nest more than %d deep",
                       DEPTH_MAX);
    if (type.data && str_eq_c(type, "Sequence")) {
        const json_t *list = json_object_get(value, "decoders");
        if (!json_is_array(list))
            return err_set(err, ERR_FORMAT,
                           "tokenizer.json: decoder Sequence needs the array \"decoders\"");
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!read_steps(decoder, json_array_get(list, i), depth + 1, err))
                return false;
        return true;
    }
    for (int i = 0; i < N_KINDS; i++)
        if (type.data && str_eq_c(type, KIND_NAMES[i])) {
            struct decoder_step *step = add_step(decoder, (enum kind)i, err);
            return step && read_details(decoder, step, value, err);
        }
    return err_set(err, ERR_UNSUPPORTED,
                   "tokenizer.json: decoder \"%.*s\" is unknown; loam knows ByteLevel, ByteFallback, "
                   "Fuse, Metaspace, Replace, Strip, WordPiece, BPEDecoder, CTC and Sequence",
                   (int)type.n, type.data ? type.data : "");
}

bool decoder_init(struct decoder *decoder, const json_t *value, bool cleanup, struct err *err) {
    *decoder = (struct decoder){0};
    decoder->steps = arena_array(&decoder->arena, struct decoder_step, STEPS_MAX);
    bool ok = decoder->steps || err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    if (ok && value && !json_is_null(value))
        ok = read_steps(decoder, value, 0, err);
    else if (ok)
        ok = add_step(decoder, JOIN, err);
    for (size_t i = 0; ok && cleanup && i < sizeof CLEANUPS / sizeof *CLEANUPS; i++) {
        struct decoder_step *step = add_step(decoder, CLEANUP, err);
        if (step) {
            step->mark = CLEANUPS[i].from;
            step->content = CLEANUPS[i].to;
        }
        ok = step != NULL;
    }
    if (!ok)
        decoder_deinit(decoder);
    return ok;
}

void decoder_deinit(struct decoder *decoder) {
    for (size_t i = 0; i < decoder->n_steps; i++)
        pattern_deinit(&decoder->steps[i].pattern);
    arena_deinit(&decoder->arena);
    *decoder = (struct decoder){0};
}

enum decoder_form decoder_form(const struct decoder *decoder, uint32_t *n_stripped) {
    const struct decoder_step *steps = decoder->steps;
    size_t n = decoder->n_steps, i = 0;
    *n_stripped = 0;
    if (n == 1 && steps[0].kind == BYTE_LEVEL)
        return DECODER_BYTE_LEVEL;
    while (i < n && steps[i].kind == REPLACE && !steps[i].pattern.regex)
        i++;
    if (i + 2 > n || steps[i].kind != BYTE_FALLBACK || steps[i + 1].kind != FUSE)
        return DECODER_GENERAL;
    if (i + 3 == n && steps[i + 2].kind == STRIP && steps[i + 2].stop == 0 &&
        str_eq_c(steps[i + 2].mark, " "))
        *n_stripped = steps[i + 2].start;
    else if (i + 2 != n)
        return DECODER_GENERAL;
    return DECODER_BYTE_FALLBACK;
}

int decoder_byte_token(struct str t) {
    if (t.n != 6 || memcmp(t.data, "<0x", 3) != 0 || t.data[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = t.data[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0 && !(i == 3 && c == '+')) // Rust's from_str_radix takes a sign
            return -1;
        value = value * 16 + (digit < 0 ? 0 : digit);
    }
    return value;
}

// ---- Replacing --------------------------------------------------------------------------------

static void replace_literal(struct str in, struct str from, struct str to, struct strbuf *out) {
    size_t done = 0, at;
    while (from.n && (at = str_find(in, from, done)) != SIZE_MAX) {
        strbuf_append(out, str_slice(in, done, at));
        strbuf_append(out, to);
        done = at + from.n;
    }
    strbuf_append(out, str_slice(in, done, in.n));
}

static bool replace_pattern(const struct decoder_step *step, struct regex_scratch *regex,
                            struct str in, struct strbuf *out) {
    struct regex_matches matches = regex_matches(in);
    struct span match;
    size_t done = 0;
    while (pattern_next(&step->pattern, regex, &matches, &match) == REGEX_MATCH) {
        strbuf_append(out, str_slice(in, done, match.from));
        strbuf_append(out, step->content);
        done = match.to;
    }
    strbuf_append(out, str_slice(in, done, in.n));
    return !out->failed;
}

static void clean_token(struct strbuf *text) {
    for (size_t i = 0; i < sizeof TOKEN_CLEANUPS / sizeof *TOKEN_CLEANUPS; i++) {
        if (str_find(strbuf_str(text), TOKEN_CLEANUPS[i].from, 0) == SIZE_MAX)
            continue;
        struct strbuf cleaned = {0};
        replace_literal(strbuf_str(text), TOKEN_CLEANUPS[i].from, TOKEN_CLEANUPS[i].to, &cleaned);
        cleaned.failed |= text->failed;
        strbuf_deinit(text);
        *text = cleaned;
    }
}

static struct str strip_ends(const struct decoder_step *step, struct str in) {
    size_t from = 0, to = in.n, n = step->mark.n;
    if (n == 0)
        return in;
    for (uint32_t i = 0; i < step->start && in.n - from >= n &&
                         memcmp(in.data + from, step->mark.data, n) == 0; i++)
        from += n;
    for (uint32_t i = 0; i < step->stop && to - from >= n &&
                         memcmp(in.data + to - n, step->mark.data, n) == 0; i++)
        to -= n;
    return str_slice(in, from, to);
}

// What a step makes of a token of which nothing but its place in the list matters.
static void transform(const struct decoder_step *step, struct regex_scratch *regex, struct str token,
                      bool first, bool last, struct strbuf *out) {
    switch (step->kind) {
    case REPLACE:
        replace_pattern(step, regex, token, out);
        return;
    case METASPACE:
        replace_literal(token, step->mark, first && step->strip_first ? STR("") : STR(" "), out);
        return;
    case STRIP:
        strbuf_append(out, strip_ends(step, token));
        return;
    case WORD_PIECE:
        if (!first && step->mark.n && str_starts(token, step->mark)) {
            token = str_slice(token, step->mark.n, token.n);
        } else if (!first && step->mark.n) {
            strbuf_char(out, ' ');
        }
        strbuf_append(out, token);
        if (step->cleanup)
            clean_token(out);
        return;
    case BPE:
        replace_literal(token, step->mark, last ? STR("") : STR(" "), out);
        return;
    case CTC:
        replace_literal(token, step->mark, STR(""), out);
        if (step->cleanup) {
            clean_token(out);
            struct strbuf spaced = {0};
            replace_literal(strbuf_str(out), step->content, STR(" "), &spaced);
            spaced.failed |= out->failed;
            strbuf_deinit(out);
            *out = spaced;
        }
        return;
    case JOIN:
        if (!first)
            strbuf_char(out, ' ');
        strbuf_append(out, token);
        return;
    default:
        strbuf_append(out, token);
        return;
    }
}

bool decoder_piece(const struct decoder *decoder, struct str text,
                   struct decoder_piece_scratch *scratch, struct str *out, bool *is_byte) {
    size_t which = 0;
    *is_byte = false;
    for (size_t i = 0; i < decoder->n_steps && !*is_byte; i++) {
        const struct decoder_step *step = &decoder->steps[i];
        struct strbuf *next = &scratch->texts[which];
        strbuf_clear(next);
        int byte = step->kind == BYTE_FALLBACK ? decoder_byte_token(text) : -1;
        *is_byte = byte >= 0;
        // Steps behind a fused one concern the ends of the whole text.
        if (step->fused || (step->kind == BYTE_FALLBACK && byte < 0) || step->kind == FUSE)
            continue;
        if (step->kind == REPLACE && !step->pattern.regex &&
            str_find(text, step->pattern.literal, 0) == SIZE_MAX)
            continue;
        if (step->kind == BYTE_LEVEL) {
            if (!byte_letters_read(next, text))
                strbuf_append(next, text);
        } else if (byte >= 0) {
            strbuf_char(next, (char)byte);
        } else {
            transform(step, scratch->regex, text, false, false, next);
        }
        if (next->failed)
            return false;
        text = strbuf_str(next);
        which = !which;
    }
    *out = text;
    return true;
}

// ---- Running ----------------------------------------------------------------------------------

bool decoder_run_init(struct decoder_run *run, const struct decoder *decoder, struct err *err) {
    *run = (struct decoder_run){.decoder = decoder};
    run->states = calloc(decoder->n_steps + 1, sizeof *run->states);
    run->regex = regex_scratch_create();
    if (run->states && run->regex)
        return true;
    decoder_run_deinit(run);
    return err_set(err, ERR_NOMEM, "tokenizer: out of memory for a decoder");
}

void decoder_run_deinit(struct decoder_run *run) {
    for (size_t i = 0; run->states && i < run->decoder->n_steps; i++)
        strbuf_deinit(&run->states[i].held);
    free(run->states);
    regex_scratch_destroy(run->regex);
    *run = (struct decoder_run){0};
}

bool decoder_run_copy(struct decoder_run *run, const struct decoder_run *from) {
    if (!decoder_run_init(run, from->decoder, NULL))
        return false;
    run->failed = from->failed;
    for (size_t i = 0; i < from->decoder->n_steps; i++) {
        run->states[i] = from->states[i];
        run->states[i].held = (struct strbuf){0};
        strbuf_append(&run->states[i].held, strbuf_str(&from->states[i].held));
        if (run->states[i].held.failed) {
            decoder_run_deinit(run);
            return false;
        }
    }
    return true;
}

static void give(struct decoder_run *run, size_t at, struct str text, struct strbuf *out);

// Transform one token and hand it on.
static void pass(struct decoder_run *run, size_t at, struct str token, bool first, bool last,
                 struct strbuf *out) {
    const struct decoder_step *step = &run->decoder->steps[at];
    struct strbuf changed = {0};
    transform(step, run->regex, token, first, last, &changed);
    run->failed |= changed.failed;
    if (!changed.failed && !(step->kind == CTC && changed.n == 0))
        give(run, at + 1, strbuf_str(&changed), out);
    strbuf_deinit(&changed);
}

static void drop_held(struct strbuf *held, size_t n) {
    memmove(held->data, held->data + n, held->n - n);
    held->n -= n;
}

// Bytes of the joined text: give on whole characters, U+FFFD for what can no longer become one.
static void give_bytes(struct decoder_run *run, size_t at, bool end, struct strbuf *out) {
    struct strbuf *held = &run->states[at].held;
    size_t keep = end ? 0 : utf8_incomplete_tail(strbuf_str(held)), n = held->n - keep;
    if (n == 0)
        return;
    struct str ready = {held->data, n};
    if (utf8_valid(ready)) {
        give(run, at + 1, ready, out);
    } else {
        struct strbuf repaired = {0};
        utf8_append_lossy(&repaired, ready);
        run->failed |= repaired.failed;
        give(run, at + 1, strbuf_str(&repaired), out);
        strbuf_deinit(&repaired);
    }
    drop_held(held, n);
}

// A run of byte tokens has ended: its text, or one U+FFFD for each if it is no UTF-8.
static void give_fallback(struct decoder_run *run, size_t at, struct strbuf *out) {
    struct strbuf *held = &run->states[at].held;
    if (held->n == 0)
        return;
    if (utf8_valid(strbuf_str(held)))
        give(run, at + 1, strbuf_str(held), out);
    else
        for (size_t i = 0; i < held->n; i++)
            give(run, at + 1, REPLACEMENT, out);
    strbuf_clear(held);
}

// One replacement in a text that arrives in parts: hold back what may be the pattern's beginning.
static void clean_up(struct decoder_run *run, size_t at, struct str text, bool end,
                     struct strbuf *out) {
    const struct decoder_step *step = &run->decoder->steps[at];
    struct strbuf *held = &run->states[at].held, changed = {0};
    strbuf_append(held, text);
    struct str all = strbuf_str(held);
    size_t done = 0, found;
    while ((found = str_find(all, step->mark, done)) != SIZE_MAX) {
        strbuf_append(&changed, str_slice(all, done, found));
        strbuf_append(&changed, step->content);
        done = found + step->mark.n;
    }
    size_t keep = end ? 0 : step->mark.n - 1;
    if (keep > all.n - done)
        keep = all.n - done;
    while (keep && memcmp(all.data + all.n - keep, step->mark.data, keep) != 0)
        keep--;
    strbuf_append(&changed, str_slice(all, done, all.n - keep));
    run->failed |= changed.failed || held->failed;
    if (changed.n)
        give(run, at + 1, strbuf_str(&changed), out);
    if (all.n)
        drop_held(held, all.n - keep);
    strbuf_deinit(&changed);
}

static void cut_front(struct decoder_run *run, size_t at, struct str text, struct strbuf *out) {
    const struct decoder_step *step = &run->decoder->steps[at];
    struct decoder_state *state = &run->states[at];
    while (!state->front_done && step->mark.n && state->n_cut < step->start && text.n) {
        if (!str_starts(text, step->mark)) {
            state->front_done = true; // the front is done
            break;
        }
        text = str_slice(text, step->mark.n, text.n);
        state->n_cut++;
    }
    if (text.n)
        give(run, at + 1, text, out);
}

static void give(struct decoder_run *run, size_t at, struct str text, struct strbuf *out) {
    if (at == run->decoder->n_steps) {
        strbuf_append(out, text);
        return;
    }
    const struct decoder_step *step = &run->decoder->steps[at];
    struct decoder_state *state = &run->states[at];
    bool first = !state->any;
    state->any = true;
    if (step->kind == CLEANUP) {
        clean_up(run, at, text, false, out);
        return;
    }
    if (step->kind == FUSE) {
        give(run, at + 1, text, out);
        return;
    }
    if (step->fused) {
        // Parts of a character of content never arrive apart: parts are whole characters.
        if (step->kind == STRIP && step->stop == 0)
            cut_front(run, at, text, out);
        else // a step that sees the whole joined text waits for its end
            strbuf_append(&state->held, text);
        run->failed |= state->held.failed;
        return;
    }
    int byte;
    switch (step->kind) {
    case BYTE_LEVEL:
        if (!byte_letters_read(&state->held, text))
            strbuf_append(&state->held, text);
        give_bytes(run, at, false, out);
        break;
    case BYTE_FALLBACK:
        byte = decoder_byte_token(text);
        if (byte >= 0) {
            strbuf_char(&state->held, (char)byte);
            break;
        }
        give_fallback(run, at, out);
        give(run, at + 1, text, out);
        break;
    case BPE: // the last token is treated apart: stay one behind
        if (!first) {
            struct strbuf before = state->held;
            state->held = (struct strbuf){0};
            pass(run, at, strbuf_str(&before), false, false, out);
            strbuf_deinit(&before);
        }
        strbuf_append(&state->held, text);
        break;
    case CTC: // a repeated token counts once
        if (!first && str_eq(strbuf_str(&state->held), text))
            break;
        strbuf_clear(&state->held);
        strbuf_append(&state->held, text);
        pass(run, at, text, first, false, out);
        break;
    default:
        pass(run, at, text, first, false, out);
        break;
    }
    run->failed |= state->held.failed;
}

static void finish_step(struct decoder_run *run, size_t at, struct strbuf *out) {
    const struct decoder_step *step = &run->decoder->steps[at];
    struct decoder_state *state = &run->states[at];
    struct strbuf held = state->held;
    if (step->kind == CLEANUP) {
        clean_up(run, at, STR(""), true, out);
        return;
    }
    if (step->kind == BYTE_LEVEL && !step->fused) {
        give_bytes(run, at, true, out);
        return;
    }
    if (step->kind == BYTE_FALLBACK && !step->fused) {
        give_fallback(run, at, out);
        return;
    }
    bool waits = (step->fused && step->kind != FUSE && !(step->kind == STRIP && step->stop == 0)) ||
                 step->kind == BPE;
    if (!waits || !state->any)
        return;
    state->held = (struct strbuf){0};
    if (step->kind == BYTE_LEVEL) {
        struct strbuf bytes = {0}, repaired = {0};
        if (!byte_letters_read(&bytes, strbuf_str(&held)))
            strbuf_append(&bytes, strbuf_str(&held));
        utf8_append_lossy(&repaired, strbuf_str(&bytes));
        run->failed |= bytes.failed || repaired.failed;
        give(run, at + 1, strbuf_str(&repaired), out);
        strbuf_deinit(&bytes);
        strbuf_deinit(&repaired);
    } else if (step->kind == BYTE_FALLBACK && decoder_byte_token(strbuf_str(&held)) >= 0) {
        char byte = (char)decoder_byte_token(strbuf_str(&held));
        give(run, at + 1, (uint8_t)byte < 0x80 ? (struct str){&byte, 1} : REPLACEMENT, out);
    } else {
        pass(run, at, strbuf_str(&held), true, true, out);
    }
    strbuf_deinit(&held);
}

void decoder_run_push(struct decoder_run *run, struct str token, struct strbuf *out) {
    give(run, 0, token, out);
}

void decoder_run_finish(struct decoder_run *run, struct strbuf *out) {
    for (size_t i = 0; i < run->decoder->n_steps; i++)
        finish_step(run, i, out);
    for (size_t i = 0; i < run->decoder->n_steps; i++) {
        strbuf_deinit(&run->states[i].held);
        run->states[i] = (struct decoder_state){0};
    }
}
