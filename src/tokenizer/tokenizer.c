#include "tokenizer/tokenizer.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file_map.h"
#include "base/json.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/compile.h"
#include "tokenizer/decoder.h"
#include "tokenizer/image_store.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/postprocessor.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/scanner.h"
#include "tokenizer/source.h"
#include "tokenizer/unigram.h"
#include "tokenizer/word_cache.h"
#include "tokenizer/word_piece.h"

struct tokenizer {
    void *block;         // the image, owned, or
    struct file_map map; // the image on disk
    struct image image;
    json_t *meta;
    const json_t *config; // of meta
    char fingerprint[65];

    enum model_kind kind;
    uint32_t n_ids;
    struct vocab vocab;  // the model's tokens by text
    struct vocab added_vocab; // the added tokens by text
    struct vocab pieces; // what tokens stand for
    const uint8_t *flags;
    struct bpe bpe;               // of these three the one of `kind`
    struct unigram unigram;
    struct word_piece word_piece; // and WordLevel
    struct added_tokens added;
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    const struct scanner *scanner; // all that the pretokenizer does, or NULL
    struct postprocessor postprocessor;
    struct decoder decoder;
    enum decoder_form decoder_form;
    uint32_t n_stripped; // with DECODER_BYTE_FALLBACK
    token_id bos, eos;
};

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
}

// ---- Opening ----------------------------------------------------------------------------------

static void read_fallback(const struct vocab *vocab, token_id fallback[256]) {
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        fallback[b] = vocab_find(vocab, str_from(name));
    }
}

static bool read_bpe(struct tokenizer *t, const json_t *model, struct err *err) {
    struct bpe *bpe = &t->bpe;
    struct str unk = {0};
    const char *what = "tokenizer.json: model BPE";
    bpe->vocab = &t->vocab;
    bpe->pieces = t->pieces.slots ? &t->pieces : NULL;
    bpe->flags = t->flags;
    if (!json_get_str(model, "unk_token", &unk, what, err) ||
        !json_get_str(model, "continuing_subword_prefix", &bpe->prefix, what, err) ||
        !json_get_str(model, "end_of_word_suffix", &bpe->suffix, what, err) ||
        !json_get_bool(model, "fuse_unk", &bpe->fuse_unk, what, err) ||
        !json_get_bool(model, "byte_fallback", &bpe->byte_fallback, what, err) ||
        !json_get_bool(model, "ignore_merges", &bpe->ignore_merges, what, err) ||
        !bpe_read_merges(bpe, &t->image, err))
        return false;
    bpe->has_unk = unk.data != NULL;
    bpe->unk = unk.data ? vocab_find(&t->vocab, unk) : TOKEN_NONE;
    read_fallback(&t->vocab, bpe->fallback);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        bpe->letters[b] =
            bpe->pieces ? vocab_find(bpe->pieces, (struct str){&byte, 1}) : TOKEN_NONE;
    }
    return true;
}

static bool read_unigram(struct tokenizer *t, const json_t *model, struct err *err) {
    struct unigram *unigram = &t->unigram;
    uint32_t unk = UINT32_MAX;
    const char *what = "tokenizer.json: model Unigram";
    unigram->vocab = &t->vocab;
    if (!json_get_u32(model, "unk_id", &unk, what, err) ||
        !json_get_bool(model, "byte_fallback", &unigram->byte_fallback, what, err) ||
        !unigram_read(unigram, &t->image, err))
        return false;
    if (unk != UINT32_MAX && (unk >= t->n_ids || !(t->flags[unk] & TOKEN_IN_MODEL)))
        return err_set(err, ERR_FORMAT, "%s: unk_id %u is not in the vocabulary", what, unk);
    unigram->unk = unk == UINT32_MAX ? TOKEN_NONE : (token_id)unk;
    double least = INFINITY;
    for (uint32_t id = 0; id < t->n_ids; id++)
        if (t->flags[id] & TOKEN_IN_MODEL && unigram->scores[id] < least)
            least = unigram->scores[id];
    unigram->unk_score = least - UNIGRAM_UNK_PENALTY;
    read_fallback(&t->vocab, unigram->fallback);
    return true;
}

static bool read_word_piece(struct tokenizer *t, const json_t *model, struct err *err) {
    struct word_piece *words = &t->word_piece;
    const char *what = "tokenizer.json: model";
    words->whole_words = t->kind == MODEL_WORD_LEVEL;
    struct str unk = words->whole_words ? STR("<unk>") : STR("[UNK]");
    words->vocab = &t->vocab;
    words->prefix = STR("##");
    words->chars_max = 100;
    if (!json_get_str(model, "unk_token", &unk, what, err) ||
        !json_get_str(model, "continuing_subword_prefix", &words->prefix, what, err) ||
        !json_get_u32(model, "max_input_chars_per_word", &words->chars_max, what, err))
        return false;
    words->unk = vocab_find(&t->vocab, unk);
    return true;
}

static bool read_model(struct tokenizer *t, struct err *err) {
    const json_t *model = json_object_get(t->meta, "model");
    switch (t->kind) {
    case MODEL_BPE:
        return read_bpe(t, model, err);
    case MODEL_UNIGRAM:
        return read_unigram(t, model, err);
    default:
        return read_word_piece(t, model, err);
    }
}

// The id that tokenizer_config.json's special token `name` has.
static token_id named_token(const struct tokenizer *t, const char *name) {
    struct str text = tokenizer_special_text(t, name);
    return text.data ? tokenizer_id(t, text) : TOKEN_NONE;
}

// transformers' Llama-like classes make their own post-processor of add_bos_token and add_eos_token,
// whatever tokenizer.json has. Other classes are only ever asked to add.
static bool apply_conventions(struct tokenizer *t, struct err *err) {
    static const char *const CLASSES[] = {"Llama", "CodeLlama", "Gemma", "Cohere"};
    const char *class = json_string_value(json_object_get(t->config, "tokenizer_class"));
    bool obeys = false;
    for (size_t i = 0; class && i < sizeof CLASSES / sizeof *CLASSES; i++)
        obeys |= strncmp(class, CLASSES[i], strlen(CLASSES[i])) == 0;
    const json_t *add_bos = json_object_get(t->config, "add_bos_token");
    const json_t *add_eos = json_object_get(t->config, "add_eos_token");
    if (t->bos != TOKEN_NONE && (json_is_true(add_bos) || (obeys && json_is_false(add_bos))) &&
        !postprocessor_begin_with(&t->postprocessor, t->bos, json_is_true(add_bos), err))
        return false;
    return t->eos == TOKEN_NONE || !(json_is_true(add_eos) || (obeys && json_is_false(add_eos))) ||
           postprocessor_end_with(&t->postprocessor, t->eos, json_is_true(add_eos), err);
}

static bool read_parts(struct tokenizer *t, struct err *err) {
    const struct image *image = &t->image;
    struct str text = str_of(image->section[IMAGE_META]);
    t->meta = json_parse(text, "compiled tokenizer", err);
    if (!t->meta)
        return false;
    t->config = json_object_get(t->meta, "config");
    t->kind = (enum model_kind)json_integer_value(json_object_get(t->meta, "kind"));
    if (!vocab_read(&t->vocab, image, IMAGE_TEXT_OFF, IMAGE_TEXT, IMAGE_TEXT_SLOTS, err) ||
        !vocab_read(&t->added_vocab, image, IMAGE_TEXT_OFF, IMAGE_TEXT, IMAGE_ADDED_SLOTS, err) ||
        !vocab_read(&t->pieces, image, IMAGE_PIECE_OFF, IMAGE_PIECE, IMAGE_PIECE_SLOTS, err))
        return false;
    t->n_ids = t->vocab.n_ids;
    t->flags = image->section[IMAGE_FLAGS].data;
    if (t->pieces.n_ids != t->n_ids || image->section[IMAGE_FLAGS].n != t->n_ids ||
        image->section[IMAGE_FINGERPRINT].n != 64)
        return err_set(err, ERR_FORMAT, "compiled tokenizer: tables do not fit each other");
    memcpy(t->fingerprint, image->section[IMAGE_FINGERPRINT].data, 64);
    bool cleanup = json_is_true(json_object_get(t->config, "clean_up_tokenization_spaces"));
    if (!added_tokens_read(&t->added, image, t->n_ids, err) ||
        !normalizer_init(&t->normalizer, json_object_get(t->meta, "normalizer"), err) ||
        !pretokenizer_init(&t->pretokenizer, json_object_get(t->meta, "pre_tokenizer"), err) ||
        !postprocessor_init(&t->postprocessor, json_object_get(t->meta, "post_processor"), t->n_ids,
                            err) ||
        !decoder_init(&t->decoder, json_object_get(t->meta, "decoder"), cleanup, err))
        return false;
    t->decoder_form = decoder_form(&t->decoder, &t->n_stripped);
    t->pretokenizer.raw_bytes = t->pieces.slots != NULL;
    t->scanner = pretokenizer_scanner(&t->pretokenizer);
    if (!read_model(t, err))
        return false;
    t->bos = named_token(t, "bos_token");
    t->eos = named_token(t, "eos_token");
    return apply_conventions(t, err);
}

// Fill a tokenizer from its image, which it then owns: `block`, which free() releases, or a map.
static struct tokenizer *from_image(void *block, size_t n, struct file_map map, struct err *err) {
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        free(block);
        file_map_close(&map);
        no_memory(err);
        return NULL;
    }
    t->block = block;
    t->map = map;
    struct bytes image = block ? (struct bytes){block, n} : map.bytes;
    if (image_read(&t->image, image, err) && read_parts(t, err))
        return t;
    tokenizer_destroy(t);
    return NULL;
}

// Compile a source, which ends here; *n is the size of the tokenizer's block.
static struct tokenizer *from_source(struct source *source, size_t *n, struct err *err) {
    struct strbuf image = {0};
    bool ok = tokenizer_compile(source, &image, err);
    source_deinit(source);
    if (!ok) {
        strbuf_deinit(&image);
        return NULL;
    }
    *n = image.n;
    struct tokenizer *t = from_image(image.data, image.n, (struct file_map){0}, err);
    if (t && t->pieces.slots && !bpe_mark_whole(&t->bpe, (uint8_t *)(uintptr_t)t->flags, err)) {
        tokenizer_destroy(t);
        return NULL;
    }
    return t;
}

struct tokenizer *tokenizer_create(struct bytes tokenizer_json, struct bytes tokenizer_config_json,
                                   struct err *err) {
    struct source source;
    size_t n;
    if (!source_from_json(&source, tokenizer_json, tokenizer_config_json, err))
        return NULL;
    return from_source(&source, &n, err);
}

// The files that a tokenizer may be in, first choice first.
typedef bool source_fn(struct source *source, struct bytes file, struct bytes config,
                       struct err *err);
static const struct tokenizer_file {
    const char *name;
    source_fn *read;
} FILES[] = {
    {"tokenizer.json", source_from_json},
    {"tokenizer.model", source_from_model_file},
    {"tiktoken.model", source_from_tiktoken},
    {"qwen.tiktoken", source_from_tiktoken},
};
enum { CONFIG_BYTES_MAX = 64 << 20 };

static struct tokenizer *open_file(const struct tokenizer_file *file, const char *path,
                                   const char *config_path, struct err *err) {
    char fingerprint[65];
    struct strbuf identity = {0}, config = {0};
    struct file_map map = {0}, cached = {0};
    struct tokenizer *t = NULL;
    bool known = image_store_identity(path, config_path, &identity);
    if (known && image_store_recall(strbuf_str(&identity), fingerprint) &&
        image_store_load(fingerprint, &cached) && (t = from_image(NULL, 0, cached, NULL))) {
        strbuf_deinit(&identity);
        return t;
    }
    bool ok = file_map_open(&map, path, err) &&
              (!path_exists(config_path) || file_read(config_path, CONFIG_BYTES_MAX, &config, err));
    struct bytes config_bytes = bytes_of(strbuf_str(&config));
    if (ok && map.bytes.n > SOURCE_FILE_BYTES_MAX)
        ok = err_set(err, ERR_FORMAT, "%zu bytes, the limit is %d", map.bytes.n,
                     SOURCE_FILE_BYTES_MAX);
    if (ok) {
        source_fingerprint(map.bytes, config_bytes, fingerprint);
        if (image_store_load(fingerprint, &cached))
            t = from_image(NULL, 0, cached, NULL);
    }
    if (ok && !t) {
        struct source source;
        size_t n = 0;
        t = file->read(&source, map.bytes, config_bytes, err) ? from_source(&source, &n, err) : NULL;
        if (t) {
            image_seal(t->block, n);
            image_store_save(fingerprint, (struct bytes){t->block, n});
        }
    }
    if (t && known)
        image_store_remember(strbuf_str(&identity), fingerprint);
    if (!t)
        err_wrap(err, "%s", path);
    file_map_close(&map);
    strbuf_deinit(&config);
    strbuf_deinit(&identity);
    return t;
}

struct tokenizer *tokenizer_open(const char *folder, struct err *err) {
    char path[PATH_MAX], config_path[PATH_MAX];
    if (snprintf(config_path, sizeof config_path, "%s/tokenizer_config.json", folder) >=
        (int)sizeof config_path) {
        err_set(err, ERR_INVALID, "path too long: %s", folder);
        return NULL;
    }
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, FILES[i].name); // not longer than the config's
        if (path_exists(path))
            return open_file(&FILES[i], path, config_path, err);
    }
    err_set(err, ERR_NOT_FOUND,
            "%s has no tokenizer: none of tokenizer.json, tokenizer.model, tiktoken.model and "
            "qwen.tiktoken is there",
            folder);
    return NULL;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t)
        return;
    normalizer_deinit(&t->normalizer);
    pretokenizer_deinit(&t->pretokenizer);
    postprocessor_deinit(&t->postprocessor);
    decoder_deinit(&t->decoder);
    json_decref(t->meta);
    free(t->block);
    file_map_close(&t->map);
    free(t);
}

// ---- Encoding ---------------------------------------------------------------------------------

// What one call needs; nothing of it outlives the call.
struct encoder {
    const struct tokenizer *t;
    struct normalizer_scratch normalizer;
    struct words words;
    struct bpe_scratch bpe;
    struct word_cache cache;
    struct unigram_scratch unigram;
    struct strbuf word_piece;
    struct regex_scratch *regex;
};

static bool encode_bytes(struct encoder *e, struct str word, struct token_list *out,
                         struct err *err) {
    uint64_t hash = token_hash(word);
    if (word_cache_find(&e->cache, word, hash, out))
        return true;
    size_t from = out->n;
    if (!bpe_encode_bytes(&e->t->bpe, word, hash, &e->bpe, out, err))
        return false;
    word_cache_put(&e->cache, word, hash, out->ids + from, out->n - from);
    return true;
}

static bool encode_word(struct encoder *e, struct str word, struct token_list *out,
                        struct err *err) {
    const struct tokenizer *t = e->t;
    switch (t->kind) {
    case MODEL_BPE:
        if (t->pretokenizer.raw_bytes)
            return encode_bytes(e, word, out, err);
        return bpe_encode(&t->bpe, word, &e->bpe, out, err);
    case MODEL_UNIGRAM:
        return unigram_encode(&t->unigram, word, &e->unigram, out, err);
    default:
        return word_piece_encode(&t->word_piece, word, &e->word_piece, out, err);
    }
}

// A text without added tokens.
static bool encode_plain(struct encoder *e, struct str text, bool at_start, struct token_list *out,
                         struct err *err) {
    const struct scanner *scanner = e->t->scanner;
    for (size_t at = 0, end; scanner && at < text.n; at = end) {
        end = scanner->scan(text, at);
        if (!encode_bytes(e, str_slice(text, at, end), out, err))
            return false;
    }
    if (scanner)
        return true;
    if (!pretokenizer_run(&e->t->pretokenizer, text, at_start, &e->words, err))
        return false;
    for (size_t i = 0; i < e->words.n; i++) {
        const struct word *word = &e->words.items[i];
        if (!encode_word(e, str_slice(e->words.text, word->from, word->to), out, err))
            return false;
    }
    return true;
}

static bool encode_text(struct encoder *e, struct str text, uint32_t flags, struct token_list *out,
                        struct err *err) {
    const struct tokenizer *t = e->t;
    bool plain = flags & TOKENIZER_NO_SPECIAL_SPELLINGS;
    struct added_cutter raw = {.added = &t->added, .group = &t->added.raw, .text = text,
                               .skip_special = plain};
    struct added_part part, inner;
    while (added_next(&raw, &part)) {
        if (part.id != TOKEN_NONE) {
            token_list_append(out, part.id);
            continue;
        }
        struct str normalized;
        if (!normalizer_run(&t->normalizer, part.text, &e->normalizer, &normalized, err))
            return false;
        struct added_cutter cutter = {.added = &t->added, .group = &t->added.normalized,
                                      .text = normalized, .skip_special = plain};
        while (added_next(&cutter, &inner)) {
            if (inner.id != TOKEN_NONE)
                token_list_append(out, inner.id);
            else if (!encode_plain(e, inner.text, part.from == 0 && inner.from == 0, out, err))
                return false;
        }
    }
    return !out->failed || no_memory(err);
}

bool tokenizer_encode(const struct tokenizer *t, struct str text, uint32_t flags,
                      struct token_list *out, struct err *err) {
    struct encoder e = {.t = t, .regex = regex_scratch_create()};
    struct strbuf repaired = {0};
    bool ok = e.regex || no_memory(err);
    e.normalizer.regex = e.words.regex = e.regex;
    if (t->pretokenizer.raw_bytes)
        word_cache_init(&e.cache, text.n);
    if (ok && !utf8_valid(text)) {
        utf8_append_lossy(&repaired, text);
        text = strbuf_str(&repaired);
        ok = !repaired.failed || no_memory(err);
    }
    static const token_id ALONE[] = {POST_TEXT};
    bool special = flags & TOKENIZER_ADD_SPECIAL;
    const token_id *items = special ? t->postprocessor.items.ids : ALONE;
    size_t n_items = special ? t->postprocessor.items.n : 1;
    for (size_t i = 0; ok && i < n_items; i++) {
        if (items[i] == POST_TEXT)
            ok = encode_text(&e, text, flags, out, err);
        else
            token_list_append(out, items[i]);
    }
    ok = ok && (!out->failed || no_memory(err));
    normalizer_scratch_deinit(&e.normalizer);
    words_deinit(&e.words);
    bpe_scratch_deinit(&e.bpe);
    word_cache_deinit(&e.cache);
    unigram_scratch_deinit(&e.unigram);
    strbuf_deinit(&e.word_piece);
    regex_scratch_destroy(e.regex);
    strbuf_deinit(&repaired);
    return ok;
}

// ---- Decoding ---------------------------------------------------------------------------------

static bool is_shown(const struct tokenizer *t, token_id id, bool skip_special) {
    if (id < 0 || (uint32_t)id >= t->n_ids || !t->flags[id])
        return false;
    // HF compares the text that it shows with those of the special tokens: a renamed one is kept.
    return !skip_special || (t->flags[id] & (TOKEN_SPECIAL | TOKEN_RENAMED)) != TOKEN_SPECIAL;
}

// The text that the decoder gets for a token.
static struct str shown_text(const struct tokenizer *t, token_id id) {
    const struct added_group *group = &t->added.normalized;
    for (uint32_t i = 0; t->flags[id] & TOKEN_RENAMED && i < group->n; i++)
        if (group->tokens[i].id == id)
            return (struct str){t->added.text + group->tokens[i].off, group->tokens[i].n};
    return vocab_text(&t->vocab, id);
}

static void append_repaired(struct strbuf *out, size_t from) {
    struct str bytes = str_slice(strbuf_str(out), from, out->n);
    if (out->failed || bytes.n == 0 || utf8_valid(bytes))
        return;
    struct strbuf repaired = {0};
    utf8_append_lossy(&repaired, bytes);
    out->n = from;
    strbuf_append(out, strbuf_str(&repaired));
    out->failed |= repaired.failed;
    strbuf_deinit(&repaired);
}

static void decode_byte_fallback(const struct tokenizer *t, const token_id *ids, size_t n,
                                 bool skip_special, struct strbuf *out) {
    size_t from = out->n, run_from = SIZE_MAX;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && !is_shown(t, ids[i], skip_special))
            continue;
        bool is_byte = i < n && t->flags[ids[i]] & TOKEN_BYTE;
        if (run_from != SIZE_MAX && !is_byte) { // a run of byte tokens ends
            size_t n_run = out->n - run_from;
            if (!utf8_valid(str_slice(strbuf_str(out), run_from, out->n))) {
                out->n = run_from;
                for (size_t k = 0; k < n_run; k++)
                    strbuf_append(out, STR("\xEF\xBF\xBD"));
            }
            run_from = SIZE_MAX;
        } else if (is_byte && run_from == SIZE_MAX) {
            run_from = out->n;
        }
        if (i < n)
            strbuf_append(out, vocab_text(&t->pieces, ids[i]));
    }
    size_t n_cut = 0;
    while (n_cut < t->n_stripped && from + n_cut < out->n && out->data[from + n_cut] == ' ')
        n_cut++;
    if (n_cut) {
        memmove(out->data + from, out->data + from + n_cut, out->n - from - n_cut);
        out->n -= n_cut;
        out->data[out->n] = '\0';
    }
}

bool tokenizer_decode(const struct tokenizer *t, const token_id *ids, size_t n, bool skip_special,
                      struct strbuf *out, struct err *err) {
    size_t from = out->n;
    if (t->decoder_form == DECODER_BYTE_LEVEL) {
        for (size_t i = 0; i < n; i++)
            if (is_shown(t, ids[i], skip_special))
                strbuf_append(out, vocab_text(&t->pieces, ids[i]));
        append_repaired(out, from);
    } else if (t->decoder_form == DECODER_BYTE_FALLBACK) {
        decode_byte_fallback(t, ids, n, skip_special, out);
    } else {
        struct decoder_run run;
        if (!decoder_run_init(&run, &t->decoder, err))
            return false;
        for (size_t i = 0; i < n; i++)
            if (is_shown(t, ids[i], skip_special))
                decoder_run_push(&run, shown_text(t, ids[i]), out);
        decoder_run_finish(&run, out);
        out->failed |= run.failed;
        decoder_run_deinit(&run);
    }
    return !out->failed || no_memory(err);
}

struct detokenizer {
    const struct tokenizer *t;
    bool skip_special;
    struct decoder_run run;
};

struct detokenizer *detokenizer_create(const struct tokenizer *t, bool skip_special,
                                       struct err *err) {
    struct detokenizer *detok = calloc(1, sizeof *detok);
    if (!detok) {
        no_memory(err);
        return NULL;
    }
    detok->t = t;
    detok->skip_special = skip_special;
    if (decoder_run_init(&detok->run, &t->decoder, err))
        return detok;
    free(detok);
    return NULL;
}

void detokenizer_destroy(struct detokenizer *detok) {
    if (detok)
        decoder_run_deinit(&detok->run);
    free(detok);
}

bool detokenizer_push(struct detokenizer *detok, token_id id, struct strbuf *out) {
    if (is_shown(detok->t, id, detok->skip_special))
        decoder_run_push(&detok->run, shown_text(detok->t, id), out);
    return !out->failed && !detok->run.failed;
}

bool detokenizer_finish(struct detokenizer *detok, struct strbuf *out) {
    decoder_run_finish(&detok->run, out);
    return !out->failed && !detok->run.failed;
}

struct detokenizer *detokenizer_clone(const struct detokenizer *detok) {
    struct detokenizer *copy = calloc(1, sizeof *copy);
    if (!copy)
        return NULL;
    copy->t = detok->t;
    copy->skip_special = detok->skip_special;
    if (decoder_run_copy(&copy->run, &detok->run))
        return copy;
    free(copy);
    return NULL;
}

// ---- Looking up -------------------------------------------------------------------------------

uint32_t tokenizer_n_vocab(const struct tokenizer *t) {
    return t->n_ids;
}

token_id tokenizer_id(const struct tokenizer *t, struct str token) {
    token_id id = vocab_find(&t->added_vocab, token);
    return id != TOKEN_NONE ? id : vocab_find(&t->vocab, token);
}

static bool has_id(const struct tokenizer *t, token_id id) {
    return id >= 0 && (uint32_t)id < t->n_ids;
}

struct str tokenizer_token(const struct tokenizer *t, token_id id) {
    return has_id(t, id) ? vocab_text(&t->vocab, id) : (struct str){"", 0};
}

struct bytes tokenizer_token_bytes(const struct tokenizer *t, token_id id) {
    if (!is_shown(t, id, false) || t->flags[id] & TOKEN_SPECIAL)
        return (struct bytes){(const uint8_t *)"", 0};
    return bytes_of(vocab_text(&t->pieces, id));
}

bool tokenizer_is_special(const struct tokenizer *t, token_id id) {
    return has_id(t, id) && t->flags[id] & TOKEN_SPECIAL;
}

token_id tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

token_id tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

struct str tokenizer_special_text(const struct tokenizer *t, const char *name) {
    const json_t *text = json_object_get(t->config, name);
    return json_is_string(text) ? json_str(text) : (struct str){NULL, 0};
}

const char *tokenizer_fingerprint(const struct tokenizer *t) {
    return t->fingerprint;
}
