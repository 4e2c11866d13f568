// tokenizer/source_tables.h - making a struct source from files that are not tokenizer.json.
#ifndef LOAM_TOKENIZER_SOURCE_TABLES_H
#define LOAM_TOKENIZER_SOURCE_TABLES_H
#include "tokenizer/source.h"

// Find the tokens' indices by text while a source is being made.
struct token_index {
    uint32_t *slots; // index + 1; owned
    uint32_t mask;
    const struct source_token *tokens;
};
bool token_index_init(struct token_index *index, const struct source *source, struct err *err);
void token_index_deinit(struct token_index *index);
// The index in source->tokens, or UINT32_MAX.
uint32_t token_index_find(const struct token_index *index, struct str text);

// Derive the merges that give every token from two others, as Hugging Face's converters do: best first
// by `ascending` or descending score; of one score the longer left part first if descending.
bool source_derive_merges(struct source *source, bool ascending, struct err *err);

// Parse tokenizer_config.json (may be empty) into source->config.
bool source_read_config(struct source *source, struct bytes config, struct err *err);
// Put the config's added_tokens_decoder into spec's "added_tokens", as far as they are not there.
bool source_add_config_tokens(struct source *source, struct err *err);
#endif
