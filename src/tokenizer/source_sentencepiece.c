// SentencePiece's ModelProto (sentencepiece_model.proto), turned into what Hugging Face's converters
// make of it (transformers, convert_slow_tokenizer.py: LlamaConverter for BPE, SpmConverter for Unigram).
#include <openssl/evp.h>
#include <stdlib.h>

#include "base/reader.h"
#include "base/utf8.h"
#include "tokenizer/source_tables.h"

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4 };
enum { UNIGRAM = 1, BPE = 2 };
enum { PIECE_BYTES_MAX = 65536 };
#define MARK "\xE2\x96\x81"

struct spm {
    struct source *source;
    size_t n_tokens_max;
    json_t *added;
    uint64_t model_type;
    bool byte_fallback, add_dummy_prefix, remove_extra_whitespaces;
    int32_t unk_id, bos_id, eos_id;
    struct str unk_piece;
    struct bytes charsmap;
    bool failed; // out of memory while building JSON
};

static void append(struct spm *spm, json_t *list, json_t *value) {
    spm->failed |= json_array_append_new(list, value) != 0;
}
static void set(struct spm *spm, json_t *object, const char *key, json_t *value) {
    spm->failed |= json_object_set_new(object, key, value) != 0;
}

static bool damaged(struct err *err, const char *what) {
    return err_set(err, ERR_FORMAT, "not a SentencePiece model: %s", what);
}

// One field: its number, and its value as an integer or as bytes.
struct field {
    uint64_t number;
    uint64_t integer;
    struct bytes bytes;
};

static bool next_field(struct reader *in, struct field *field) {
    if (reader_remaining(in) == 0 || in->failed)
        return false;
    uint64_t tag = reader_varint(in);
    *field = (struct field){.number = tag >> 3};
    switch (tag & 7) {
    case 0:
        field->integer = reader_varint(in);
        break;
    case 1:
        field->integer = reader_u64(in);
        break;
    case 2: {
        uint64_t n = reader_varint(in);
        if (n > reader_remaining(in))
            in->failed = true;
        else
            field->bytes = reader_bytes(in, (size_t)n);
        break;
    }
    case 5:
        field->integer = reader_u32(in);
        break;
    default:
        in->failed = true;
    }
    return !in->failed;
}

static bool read_piece(struct spm *spm, struct bytes bytes, struct err *err) {
    struct reader in = reader_init(bytes);
    struct field f;
    struct str text = {"", 0};
    uint32_t score_bits = 0;
    uint64_t type = 1;
    while (next_field(&in, &f)) {
        if (f.number == 1)
            text = str_of(f.bytes);
        else if (f.number == 2)
            score_bits = (uint32_t)f.integer;
        else if (f.number == 3)
            type = f.integer;
    }
    struct source *source = spm->source;
    if (in.failed || text.n > PIECE_BYTES_MAX || !utf8_valid(text))
        return damaged(err, "a piece is damaged");
    float score;
    memcpy(&score, &score_bits, sizeof score);
    struct source_token *token = &source->tokens[source->n_tokens];
    token->id = (token_id)source->n_tokens++;
    token->score = score;
    if (!arena_copy(&source->arena, text, &token->text))
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
    if (special || type == TYPE_USER_DEFINED)
        append(spm, spm->added,
               json_pack("{s:i,s:s%,s:b,s:b}", "id", token->id, "content", text.data,
                                        text.n, "special", special, "normalized", 0));
    return true;
}

static bool read_trainer(struct spm *spm, struct bytes bytes, struct err *err) {
    struct reader in = reader_init(bytes);
    struct field f;
    while (next_field(&in, &f)) {
        switch (f.number) {
        case 3:
            spm->model_type = f.integer;
            break;
        case 35:
            spm->byte_fallback = f.integer;
            break;
        case 40:
            spm->unk_id = (int32_t)f.integer;
            break;
        case 41:
            spm->bos_id = (int32_t)f.integer;
            break;
        case 42:
            spm->eos_id = (int32_t)f.integer;
            break;
        case 45:
            spm->unk_piece = str_of(f.bytes);
            break;
        }
    }
    return !in.failed || damaged(err, "its trainer_spec is damaged");
}

static bool read_normalizer(struct spm *spm, struct bytes bytes, struct err *err) {
    struct reader in = reader_init(bytes);
    struct field f;
    while (next_field(&in, &f)) {
        if (f.number == 2)
            spm->charsmap = f.bytes;
        else if (f.number == 3)
            spm->add_dummy_prefix = f.integer;
        else if (f.number == 4)
            spm->remove_extra_whitespaces = f.integer;
    }
    return !in.failed || damaged(err, "its normalizer_spec is damaged");
}

static bool read_model(struct spm *spm, struct bytes model, struct err *err) {
    struct reader in = reader_init(model);
    struct field f;
    size_t n_pieces = 0;
    while (next_field(&in, &f))
        n_pieces += f.number == 1;
    if (in.failed || n_pieces == 0)
        return damaged(err, in.failed ? "it is cut short or no protobuf" : "it has no pieces");
    if (n_pieces > SOURCE_TOKENS_MAX)
        return damaged(err, "too many pieces");
    spm->source->tokens = arena_array(&spm->source->arena, struct source_token, n_pieces);
    if (!spm->source->tokens)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    in = reader_init(model);
    while (next_field(&in, &f))
        if ((f.number == 1 && !read_piece(spm, f.bytes, err)) ||
            (f.number == 2 && !read_trainer(spm, f.bytes, err)) ||
            (f.number == 3 && !read_normalizer(spm, f.bytes, err)))
            return false;
    return true;
}

// ---- As tokenizer.json would say it -------------------------------------------------------------

static json_t *precompiled(struct bytes charsmap) {
    size_t n = (charsmap.n + 2) / 3 * 4;
    unsigned char *text = malloc(n + 1);
    if (!text)
        return NULL;
    EVP_EncodeBlock(text, charsmap.data, (int)charsmap.n);
    json_t *value = json_pack("{s:s,s:s}", "type", "Precompiled", "precompiled_charsmap", text);
    free(text);
    return value;
}

static json_t *normalizer(struct spm *spm) {
    json_t *list = json_array();
    bool unigram = spm->model_type == UNIGRAM;
    if (spm->charsmap.n)
        append(spm, list, precompiled(spm->charsmap));
    if (spm->remove_extra_whitespaces) {
        append(spm, list, json_pack("{s:s,s:b,s:b}", "type", "Strip", "strip_left", !unigram,
                                              "strip_right", 1));
        append(spm, list, json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern",
                                              "Regex", " {2,}", "content", unigram ? MARK : " "));
    }
    if (!unigram && spm->add_dummy_prefix)
        append(spm, list, json_pack("{s:s,s:s}", "type", "Prepend", "prepend", MARK));
    if (!unigram)
        append(spm, list, json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern",
                                              "String", " ", "content", MARK));
    return json_pack("{s:s,s:o}", "type", "Sequence", "normalizers", list);
}

static json_t *metaspace(const struct spm *spm) {
    return json_pack("{s:s,s:s,s:s,s:b}", "type", "Metaspace", "replacement", MARK, "prepend_scheme",
                     spm->add_dummy_prefix ? "always" : "never", "split", 1);
}

static json_t *bpe_decoder(struct spm *spm) {
    json_t *list = json_pack("[{s:s,s:{s:s},s:s},{s:s},{s:s}]", "type", "Replace", "pattern", "String",
                             MARK, "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (spm->add_dummy_prefix)
        append(spm, list, json_pack("{s:s,s:s,s:i,s:i}", "type", "Strip", "content", " ",
                                              "start", 1, "stop", 0));
    return json_pack("{s:s,s:o}", "type", "Sequence", "decoders", list);
}

static bool has_piece(const struct spm *spm, int32_t id) {
    return id >= 0 && (uint32_t)id < spm->source->n_tokens;
}

// Llama and Gemma begin with BOS unless told otherwise, T5 ends with EOS.
static json_t *post_processor(struct spm *spm) {
    json_t *config = spm->source->config;
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    const json_t *add_eos = json_object_get(config, "add_eos_token");
    bool t5 = class && (strncmp(class, "T5", 2) == 0 || strncmp(class, "MT5", 3) == 0);
    bool bos = json_is_boolean(add_bos) ? json_is_true(add_bos) : spm->model_type == BPE;
    bool eos = json_is_boolean(add_eos) ? json_is_true(add_eos) : t5;
    json_t *single = json_array(), *tokens = json_object();
    const struct source_token *all = spm->source->tokens;
    for (int i = 0; i < 3; i++) {
        int32_t id = i == 0 ? spm->bos_id : spm->eos_id;
        if (i == 1) {
            append(spm, single, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
        } else if ((i == 0 ? bos : eos) && has_piece(spm, id)) {
            const char *name = all[id].text.data; // NUL-terminated by the arena
            append(spm, single, json_pack("{s:{s:s}}", "SpecialToken", "id", name));
            set(spm, tokens, name, json_pack("{s:[i]}", "ids", id));
        }
    }
    return json_pack("{s:s,s:o,s:o}", "type", "TemplateProcessing", "single", single,
                     "special_tokens", tokens);
}

// Names of special tokens that the config leaves out.
static void name_specials(struct spm *spm) {
    struct source *source = spm->source;
    if (!source->config)
        source->config = json_object();
    const struct {
        const char *key;
        int32_t id;
    } names[] = {{"unk_token", spm->unk_id}, {"bos_token", spm->bos_id}, {"eos_token", spm->eos_id}};
    for (size_t i = 0; i < 3; i++)
        if (!json_object_get(source->config, names[i].key) && has_piece(spm, names[i].id))
            set(spm, source->config, names[i].key,
                                json_string(source->tokens[names[i].id].text.data));
}

static bool describe(struct spm *spm, struct err *err) {
    struct source *source = spm->source;
    bool bpe = spm->model_type == BPE;
    json_t *model = json_object();
    source->model = bpe ? MODEL_BPE : MODEL_UNIGRAM;
    set(spm, model, "byte_fallback", json_boolean(spm->byte_fallback));
    if (bpe) {
        set(spm, model, "fuse_unk", json_true());
        if (has_piece(spm, spm->unk_id))
            set(spm, model, "unk_token",
                                json_string(source->tokens[spm->unk_id].text.data));
    } else if (has_piece(spm, spm->unk_id)) {
        set(spm, model, "unk_id", json_integer(spm->unk_id));
    }
    name_specials(spm);
    source->spec = json_object();
    set(spm, source->spec, "normalizer", normalizer(spm));
    set(spm, source->spec, "pre_tokenizer", bpe ? json_null() : metaspace(spm));
    set(spm, source->spec, "decoder", bpe ? bpe_decoder(spm) : metaspace(spm));
    set(spm, source->spec, "post_processor", post_processor(spm));
    set(spm, source->spec, "model", model);
    set(spm, source->spec, "added_tokens", json_incref(spm->added));
    if (spm->failed)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    return source_add_config_tokens(source, err);
}

bool source_from_sentencepiece(struct source *source, struct bytes model,
                               struct bytes tokenizer_config_json, struct err *err) {
    *source = (struct source){.declared_ids = true};
    struct spm spm = {.source = source, .model_type = UNIGRAM, .unk_id = 0, .bos_id = 1, .eos_id = 2,
                      .add_dummy_prefix = true, .remove_extra_whitespaces = true,
                      .added = json_array()};
    bool ok = spm.added || err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    ok = ok && read_model(&spm, model, err) &&
         source_read_config(source, tokenizer_config_json, err);
    if (ok && spm.model_type != UNIGRAM && spm.model_type != BPE)
        ok = err_set(err, ERR_UNSUPPORTED, "a SentencePiece %s model; loam knows BPE and Unigram",
                     spm.model_type == 3 ? "WORD" : "CHAR");
    ok = ok && describe(&spm, err);
    if (ok && spm.model_type == BPE)
        ok = source_derive_merges(source, false, err);
    json_decref(spm.added);
    if (ok)
        source_fingerprint(model, tokenizer_config_json, source->fingerprint);
    else
        source_deinit(source);
    return ok;
}
