#include "tokenizer/compile.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_letters.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/unigram.h"

struct compiler {
    struct source *source;
    struct image_builder image;
    struct arena arena;
    uint32_t n_ids;      // model and added tokens
    uint32_t n_ids_max;  // room in the arrays
    struct str *texts;   // [n_ids_max]
    uint8_t *flags;      // [n_ids_max]
    struct str *pieces;  // [n_ids_max]
    struct vocab_slot *slots; // text -> index in `texts` + 1, while compiling
    uint32_t slot_mask;
    bool decodes_bytes; // the decoder is ByteLevel
    struct added *added;
    uint32_t n_added, next_added_id;
};

// An added token of the files.
struct added {
    struct str content, found_by;
    token_id id;
    uint32_t flags;
};

enum { DECLARED_HOLE_MAX = 65536 }; // unused ids before a declared one

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "tokenizer: out of memory while compiling");
}

#define SHOWN(s) (int)((s).n < 100 ? (s).n : 100), (s).data

// ---- Vocabulary -------------------------------------------------------------------------------

static token_id find_text(const struct compiler *c, struct str text) {
    uint64_t hash = token_hash(text);
    for (uint32_t i = (uint32_t)hash;; i++) {
        const struct vocab_slot *slot = &c->slots[i & c->slot_mask];
        if (!slot->id_next)
            return TOKEN_NONE;
        if (slot->tag == (uint32_t)(hash >> 32) && str_eq(c->texts[slot->id_next - 1], text))
            return (token_id)(slot->id_next - 1);
    }
}

static bool place_tokens(struct compiler *c, struct err *err) {
    const struct source *source = c->source;
    size_t n_added = json_array_size(json_object_get(source->spec, "added_tokens"));
    for (uint32_t i = 0; i < source->n_tokens; i++)
        if ((uint32_t)source->tokens[i].id >= c->n_ids)
            c->n_ids = (uint32_t)source->tokens[i].id + 1;
    // Ids may have holes, but a file's size bounds what its ids may cost.
    if (c->n_ids > 16 * (uint64_t)source->n_tokens + DECLARED_HOLE_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer: id %u in a vocabulary of %u tokens",
                       c->n_ids - 1, source->n_tokens);
    if (n_added > SOURCE_TOKENS_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: %zu added tokens", n_added);
    c->n_ids_max = c->n_ids + (uint32_t)n_added;
    for (size_t i = 0; c->source->declared_ids && i < n_added; i++) {
        const json_t *token = json_array_get(json_object_get(source->spec, "added_tokens"), i);
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        if (id >= c->n_ids_max && id < c->n_ids_max + DECLARED_HOLE_MAX)
            c->n_ids_max = (uint32_t)id + 1;
    }
    c->texts = arena_array(&c->arena, struct str, c->n_ids_max + 1);
    c->pieces = arena_array(&c->arena, struct str, c->n_ids_max + 1);
    c->flags = arena_array(&c->arena, uint8_t, c->n_ids_max + 1);
    uint32_t n_slots = vocab_n_slots(source->n_tokens);
    c->slots = arena_array(&c->arena, struct vocab_slot, n_slots);
    if (!c->texts || !c->pieces || !c->flags || !c->slots)
        return no_memory(err);
    c->slot_mask = n_slots - 1;
    for (uint32_t i = 0; i < source->n_tokens; i++) {
        const struct source_token *token = &source->tokens[i];
        if (c->flags[token->id] & TOKEN_IN_MODEL)
            return err_set(err, ERR_FORMAT, "tokenizer: \"%.*s\" and \"%.*s\" have the same id %d",
                           SHOWN(c->texts[token->id]), SHOWN(token->text), token->id);
        c->texts[token->id] = token->text;
        c->flags[token->id] = TOKEN_IN_MODEL;
        uint64_t hash = token_hash(token->text);
        uint32_t at = (uint32_t)hash & c->slot_mask;
        while (c->slots[at].id_next && !(c->slots[at].tag == (uint32_t)(hash >> 32) &&
                                         str_eq(c->texts[c->slots[at].id_next - 1], token->text)))
            at = (at + 1) & c->slot_mask;
        if (c->slots[at].id_next && source->model != MODEL_UNIGRAM)
            return err_set(err, ERR_FORMAT, "tokenizer: \"%.*s\" is in the vocabulary twice",
                           SHOWN(token->text));
        c->slots[at] = (struct vocab_slot){(uint32_t)(hash >> 32), (uint32_t)token->id + 1};
    }
    return true;
}

// ---- Added tokens -----------------------------------------------------------------------------

static struct added *find_added(struct compiler *c, struct str content, token_id in_model) {
    if (in_model != TOKEN_NONE && !(c->flags[in_model] & TOKEN_ADDED))
        return NULL;
    for (uint32_t i = 0; i < c->n_added; i++)
        if (str_eq(c->added[i].content, content))
            return &c->added[i];
    return NULL;
}

static bool read_added_token(struct compiler *c, const json_t *value, struct err *err) {
    const char *what = "tokenizer.json: added token";
    struct str content = {0};
    static const struct {
        const char *key;
        uint32_t flag;
    } FLAGS[] = {{"lstrip", ADDED_LSTRIP},
                 {"rstrip", ADDED_RSTRIP},
                 {"single_word", ADDED_SINGLE_WORD},
                 {"normalized", ADDED_NORMALIZED},
                 {"special", ADDED_SPECIAL}};
    uint32_t flags = 0, declared = UINT32_MAX;
    if (!json_is_object(value))
        return err_set(err, ERR_FORMAT, "tokenizer.json: \"added_tokens\" must hold objects");
    if (!json_get_str(value, "content", &content, what, err) ||
        !json_get_u32(value, "id", &declared, what, err))
        return false;
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        bool set = false;
        if (!json_get_bool(value, FLAGS[i].key, &set, what, err))
            return false;
        flags |= set ? FLAGS[i].flag : 0;
    }
    if (content.n == 0)
        return true; // HF passes over it too
    token_id in_model = find_text(c, content);
    struct added *added = find_added(c, content, in_model);
    if (!added) {
        added = &c->added[c->n_added];
        // HF numbers new tokens on from the last one, whatever the file declares; in a vocabulary with
        // holes that may be another token's id, and the declared one is better.
        uint32_t id = in_model != TOKEN_NONE ? (uint32_t)in_model : c->next_added_id;
        bool taken = id < c->n_ids_max && c->flags[id];
        if (in_model == TOKEN_NONE && (taken || c->source->declared_ids))
            id = declared;
        if (id >= c->n_ids_max || (in_model == TOKEN_NONE && c->flags[id]))
            return err_set(err, ERR_FORMAT, "%s \"%.*s\" has no free id", what, SHOWN(content));
        added->id = (token_id)id;
        if ((uint32_t)added->id >= c->next_added_id)
            c->next_added_id = (uint32_t)added->id + 1;
        c->n_added++;
    }
    if (declared != UINT32_MAX && declared != (uint32_t)added->id)
        log_warn("tokenizer: added token declared=%u has id=%d", declared, added->id);
    added->content = content;
    added->flags = flags;
    c->texts[added->id] = content;
    c->flags[added->id] |= (uint8_t)(TOKEN_ADDED | (flags & ADDED_SPECIAL ? TOKEN_SPECIAL : 0));
    if ((uint32_t)added->id >= c->n_ids)
        c->n_ids = (uint32_t)added->id + 1;
    return true;
}

static int compare_added(const void *a, const void *b) {
    const struct added *x = a, *y = b;
    bool xn = x->flags & ADDED_NORMALIZED, yn = y->flags & ADDED_NORMALIZED;
    if (xn != yn)
        return xn ? 1 : -1;
    size_t n = x->found_by.n < y->found_by.n ? x->found_by.n : y->found_by.n;
    int order = n ? memcmp(x->found_by.data, y->found_by.data, n) : 0;
    if (order)
        return order;
    if (x->found_by.n != y->found_by.n)
        return x->found_by.n < y->found_by.n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool normalize_added(struct compiler *c, struct err *err) {
    struct normalizer normalizer;
    struct normalizer_scratch scratch = {.regex = regex_scratch_create()};
    bool ok = scratch.regex || no_memory(err);
    ok = ok && normalizer_init(&normalizer, json_object_get(c->source->spec, "normalizer"), err);
    if (!ok) {
        regex_scratch_destroy(scratch.regex);
        return false;
    }
    for (uint32_t i = 0; ok && i < c->n_added; i++) {
        struct added *added = &c->added[i];
        added->found_by = added->content;
        if (added->flags & ADDED_NORMALIZED) {
            struct str normalized;
            ok = normalizer_run(&normalizer, added->content, &scratch, &normalized, err) &&
                 (arena_copy(&c->arena, normalized, &added->found_by) || no_memory(err));
            if (ok && !str_eq(added->content, added->found_by))
                c->flags[added->id] |= TOKEN_RENAMED;
        }
    }
    normalizer_deinit(&normalizer);
    normalizer_scratch_deinit(&scratch);
    regex_scratch_destroy(scratch.regex);
    return ok;
}

static bool compile_added(struct compiler *c, struct err *err) {
    const json_t *list = json_object_get(c->source->spec, "added_tokens");
    size_t n = json_array_size(list);
    c->next_added_id = c->source->n_tokens;
    c->added = arena_array(&c->arena, struct added, n + 1);
    if (!c->added)
        return no_memory(err);
    for (size_t i = 0; i < n; i++)
        if (!read_added_token(c, json_array_get(list, i), err))
            return false;
    if (!normalize_added(c, err))
        return false;
    qsort(c->added, c->n_added, sizeof *c->added, compare_added);
    uint32_t off = 0;
    for (uint32_t i = 0; i < c->n_added; i++) {
        const struct added *added = &c->added[i];
        // An empty one would match everywhere; of equal ones the first counts.
        if (added->found_by.n == 0 ||
            (i && str_eq(added->found_by, c->added[i - 1].found_by) &&
             !((added->flags ^ c->added[i - 1].flags) & ADDED_NORMALIZED)))
            continue;
        struct added_token token = {off, (uint32_t)added->found_by.n, added->id, added->flags};
        image_append(&c->image, IMAGE_ADDED, &token, sizeof token);
        strbuf_append(&c->image.section[IMAGE_ADDED_TEXT], added->found_by);
        off += token.n;
    }
    return true;
}

// ---- Pieces -----------------------------------------------------------------------------------

static bool compile_pieces(struct compiler *c, struct err *err) {
    struct decoder decoder;
    struct decoder_piece_scratch scratch = {0};
    if (!decoder_init(&decoder, json_object_get(c->source->spec, "decoder"), false, err))
        return false;
    uint32_t n_stripped;
    c->decodes_bytes = decoder_form(&decoder, &n_stripped) == DECODER_BYTE_LEVEL;
    scratch.regex = regex_scratch_create();
    bool ok = scratch.regex != NULL;
    for (uint32_t id = 0; ok && id < c->n_ids; id++) {
        bool is_byte;
        struct str text = c->texts[id], piece;
        for (uint32_t i = 0; c->flags[id] & TOKEN_RENAMED && i < c->n_added; i++)
            if (c->added[i].id == (token_id)id)
                text = c->added[i].found_by;
        ok = decoder_piece(&decoder, text, &scratch, &piece, &is_byte);
        if (ok && piece.data == text.data && piece.n == text.n)
            c->pieces[id] = text;
        else if (ok)
            ok = arena_copy(&c->arena, piece, &c->pieces[id]);
        c->flags[id] |= is_byte ? TOKEN_BYTE : 0;
    }
    regex_scratch_destroy(scratch.regex);
    strbuf_deinit(&scratch.texts[0]);
    strbuf_deinit(&scratch.texts[1]);
    decoder_deinit(&decoder);
    return ok || no_memory(err);
}

// ---- BPE --------------------------------------------------------------------------------------

static bool compile_merges(struct compiler *c, struct err *err) {
    const struct source *source = c->source;
    struct str prefix = {0};
    const json_t *model = json_object_get(source->spec, "model");
    if (!json_get_str(model, "continuing_subword_prefix", &prefix, "tokenizer.json: model", err))
        return false;
    size_t n_prefix = 0; // HF cuts as many bytes as the prefix has characters
    for (size_t i = 0; i < prefix.n; n_prefix++)
        utf8_next(prefix, &i);
    struct merge *merges = arena_array(&c->arena, struct merge, source->n_merges);
    struct strbuf joined = {0};
    bool ok = merges || no_memory(err);
    for (uint32_t i = 0; ok && i < source->n_merges; i++) {
        struct str a = source->merges[i].a, b = source->merges[i].b;
        merges[i].a = find_text(c, a);
        merges[i].b = find_text(c, b);
        strbuf_clear(&joined);
        strbuf_append(&joined, a);
        if (b.n >= n_prefix)
            strbuf_append(&joined, str_slice(b, n_prefix, b.n));
        merges[i].joined = find_text(c, strbuf_str(&joined));
        struct str absent = merges[i].a == TOKEN_NONE   ? a
                            : merges[i].b == TOKEN_NONE ? b
                                                        : strbuf_str(&joined);
        if (joined.failed)
            ok = no_memory(err);
        else if (merges[i].a == TOKEN_NONE || merges[i].b == TOKEN_NONE ||
                 merges[i].joined == TOKEN_NONE)
            ok = err_set(err, ERR_FORMAT,
                         "tokenizer: merge %u names \"%.*s\", which the vocabulary does not have", i,
                         SHOWN(absent));
    }
    strbuf_deinit(&joined);
    return ok && bpe_build_merges(&c->image, merges, source->n_merges, err);
}

static bool compile_unigram(struct compiler *c, struct err *err) {
    double *scores = arena_array(&c->arena, double, c->n_ids + 1);
    if (!scores)
        return no_memory(err);
    for (uint32_t i = 0; i < c->source->n_tokens; i++)
        scores[c->source->tokens[i].id] = c->source->tokens[i].score;
    image_append(&c->image, IMAGE_SCORES, scores, c->n_ids * sizeof *scores);
    return unigram_build_trie(&c->image, c->texts, c->flags, c->n_ids, err);
}

// ---- All --------------------------------------------------------------------------------------

// What opening needs of tokenizer_config.json: scalars, and the texts of the special tokens. NULL when
// out of memory.
static json_t *small_config(const json_t *config) {
    json_t *small = json_object();
    bool ok = small != NULL;
    for (void *it = json_object_iter((json_t *)config); ok && it;
         it = json_object_iter_next((json_t *)config, it)) {
        const char *key = json_object_iter_key(it);
        json_t *value = json_object_iter_value(it);
        if (json_is_object(value) && json_is_string(json_object_get(value, "content")))
            value = json_object_get(value, "content");
        bool is_template = strcmp(key, "chat_template") == 0;
        if (!is_template && !json_is_object(value) && !json_is_array(value))
            ok = json_object_set(small, key, value) == 0;
    }
    if (ok)
        return small;
    json_decref(small);
    return NULL;
}

static bool compile_meta(struct compiler *c, struct err *err) {
    static const char *const KEPT[] = {"normalizer", "pre_tokenizer", "post_processor", "decoder",
                                       "model"};
    json_t *meta = json_object();
    bool ok = meta && json_object_set_new(meta, "config", small_config(c->source->config)) == 0 &&
              json_object_set_new(meta, "kind", json_integer(c->source->model)) == 0;
    for (size_t i = 0; ok && i < sizeof KEPT / sizeof *KEPT; i++) {
        json_t *part = json_object_get(c->source->spec, KEPT[i]);
        ok = !part || json_object_set(meta, KEPT[i], part) == 0;
    }
    if (ok)
        strbuf_json(&c->image.section[IMAGE_META], meta);
    json_decref(meta);
    image_append(&c->image, IMAGE_FINGERPRINT, c->source->fingerprint, 64);
    return (ok && !c->image.section[IMAGE_META].failed) || no_memory(err);
}

static bool compile_all(struct compiler *c, struct err *err) {
    if (!place_tokens(c, err) || !compile_added(c, err) || !compile_pieces(c, err))
        return false;
    bool byte_level = false;
    if (c->source->model == MODEL_BPE) {
        struct pretokenizer pre;
        if (!compile_merges(c, err) ||
            !pretokenizer_init(&pre, json_object_get(c->source->spec, "pre_tokenizer"), err))
            return false;
        byte_level = c->decodes_bytes && pretokenizer_ends_in_bytes(&pre);
        pretokenizer_deinit(&pre);
    }
    if (byte_level) {
        struct strbuf bytes = {0};
        for (uint32_t id = 0; id < c->n_ids; id++) {
            strbuf_clear(&bytes);
            if (c->flags[id] & TOKEN_IN_MODEL && byte_letters_read(&bytes, c->texts[id]))
                c->flags[id] |= TOKEN_LETTERS;
        }
        strbuf_deinit(&bytes);
    }
    if (!vocab_build(&c->image, c->texts, c->n_ids, IMAGE_TEXT_OFF, IMAGE_TEXT, err) ||
        !vocab_build(&c->image, c->pieces, c->n_ids, IMAGE_PIECE_OFF, IMAGE_PIECE, err) ||
        !vocab_build_slots(&c->image, c->texts, c->n_ids, c->flags, TOKEN_IN_MODEL,
                           IMAGE_TEXT_SLOTS, err) ||
        !vocab_build_slots(&c->image, c->texts, c->n_ids, c->flags, TOKEN_ADDED,
                           IMAGE_ADDED_SLOTS, err) ||
        (byte_level && !vocab_build_slots(&c->image, c->pieces, c->n_ids, c->flags, TOKEN_LETTERS,
                                          IMAGE_PIECE_SLOTS, err)))
        return false;
    image_append(&c->image, IMAGE_FLAGS, c->flags, c->n_ids);
    if (c->source->model == MODEL_UNIGRAM && !compile_unigram(c, err))
        return false;
    return compile_meta(c, err);
}

bool tokenizer_compile(struct source *source, struct strbuf *out, struct err *err) {
    struct compiler c = {.source = source};
    bool ok = compile_all(&c, err) && image_finish(&c.image, out, err);
    image_builder_deinit(&c.image);
    arena_deinit(&c.arena);
    return ok;
}
