// tiktoken's rank files: one token a line, its bytes in base64, a space, its rank. Turned into what
// Hugging Face's TikTokenConverter makes of them.
#include <openssl/evp.h>

#include "tokenizer/byte_letters.h"
#include "tokenizer/source_tables.h"

enum { LINE_BYTES_MAX = 65536 };

#define CL100K                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"      \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define KIMI                                                                                       \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS                \
    "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" CONTRACTIONS                           \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static bool bad_line(struct err *err, uint32_t nth) {
    return err_set(err, ERR_FORMAT, "line %u is not a token in base64, a space and a rank", nth);
}

static bool read_line(struct source *source, struct str line, uint32_t nth, struct strbuf *scratch,
                      struct err *err) {
    size_t space = str_find(line, STR(" "), 0);
    if (space == SIZE_MAX || space == 0 || space % 4 || line.n > LINE_BYTES_MAX)
        return bad_line(err, nth);
    int64_t rank = 0;
    for (size_t i = space + 1; i < line.n; i++) {
        if (line.data[i] < '0' || line.data[i] > '9' || rank >= SOURCE_TOKENS_MAX)
            return bad_line(err, nth);
        rank = rank * 10 + (line.data[i] - '0');
    }
    if (space + 1 == line.n || rank >= SOURCE_TOKENS_MAX)
        return bad_line(err, nth);
    strbuf_clear(scratch);
    if (!strbuf_reserve(scratch, space))
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    int n = EVP_DecodeBlock((unsigned char *)scratch->data, (const unsigned char *)line.data,
                            (int)space);
    if (n < 0)
        return bad_line(err, nth);
    for (int k = 1; k <= 2 && line.data[space - (size_t)k] == '='; k++)
        n--; // of at least 3 bytes: `space` is a multiple of 4 above 0
    struct strbuf letters = {0};
    byte_letters_append(&letters, (struct str){scratch->data, (size_t)n});
    struct source_token *token = &source->tokens[source->n_tokens++];
    *token = (struct source_token){.id = (token_id)rank, .score = (double)rank};
    bool ok = !letters.failed && arena_copy(&source->arena, strbuf_str(&letters), &token->text);
    strbuf_deinit(&letters);
    return ok || err_set(err, ERR_NOMEM, "tokenizer: out of memory");
}

static bool read_ranks(struct source *source, struct bytes file, struct err *err) {
    struct str text = str_of(file);
    size_t n_lines = 1;
    for (size_t i = 0; i < text.n; i++)
        n_lines += text.data[i] == '\n';
    if (n_lines > SOURCE_TOKENS_MAX)
        return err_set(err, ERR_FORMAT, "%zu lines, the limit is %d", n_lines, SOURCE_TOKENS_MAX);
    source->tokens = arena_array(&source->arena, struct source_token, n_lines);
    if (!source->tokens)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    struct strbuf scratch = {0};
    bool ok = true;
    uint32_t nth = 1;
    for (size_t at = 0; ok && at < text.n; nth++) {
        size_t end = str_find(text, STR("\n"), at);
        end = end == SIZE_MAX ? text.n : end;
        struct str line = str_slice(text, at, end > at && text.data[end - 1] == '\r' ? end - 1 : end);
        ok = line.n == 0 || read_line(source, line, nth, &scratch, err);
        at = end + 1;
    }
    strbuf_deinit(&scratch);
    return ok && (source->n_tokens || err_set(err, ERR_FORMAT, "no tokens"));
}

bool source_from_tiktoken(struct source *source, struct bytes ranks,
                          struct bytes tokenizer_config_json, struct err *err) {
    *source = (struct source){.model = MODEL_BPE, .declared_ids = true};
    bool ok = read_ranks(source, ranks, err) &&
              source_read_config(source, tokenizer_config_json, err);
    const char *class = json_string_value(json_object_get(source->config, "tokenizer_class"));
    const char *pattern = CL100K;
    if (class && strncmp(class, "QWen", 4) == 0)
        pattern = QWEN;
    else if (class && strcmp(class, "TikTokenTokenizer") == 0)
        pattern = KIMI;
    if (ok) {
        source->spec = json_pack(
            "{s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]},s:{s:s},s:{s:b}}", "pre_tokenizer", "type",
            "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", pattern, "behavior",
            "Isolated", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "decoder", "type",
            "ByteLevel", "model", "ignore_merges", 1);
        ok = source->spec || err_set(err, ERR_NOMEM, "tokenizer: out of memory");
    }
    ok = ok && source_add_config_tokens(source, err) && source_derive_merges(source, true, err);
    if (ok)
        source_fingerprint(ranks, tokenizer_config_json, source->fingerprint);
    else
        source_deinit(source);
    return ok;
}

bool source_from_model_file(struct source *source, struct bytes file,
                            struct bytes tokenizer_config_json, struct err *err) {
    // A ModelProto begins with the tag of its first piece, 0x0A; a rank file with base64.
    bool is_proto = file.n == 0 || file.data[0] < ' ' || file.data[0] >= 0x80;
    return (is_proto ? source_from_sentencepiece : source_from_tiktoken)(source, file,
                                                                        tokenizer_config_json, err);
}
