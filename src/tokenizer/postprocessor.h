// tokenizer/postprocessor.h - the "post_processor" of tokenizer.json: the ids that go before and
// behind those of a text. Immutable once read.
#ifndef LOAM_TOKENIZER_POSTPROCESSOR_H
#define LOAM_TOKENIZER_POSTPROCESSOR_H
#include "base/json.h"
#include "tokenizer/tokenizer.h"

enum { POST_TEXT = -2 }; // stands for the ids of the text

struct postprocessor {
    struct token_list items; // ids and POST_TEXT, in order
};

// Read the component (null: none). Ids are checked against n_ids. ERR_FORMAT, ERR_UNSUPPORTED naming
// the type, ERR_NOMEM.
bool postprocessor_init(struct postprocessor *post, const json_t *value, uint32_t n_ids,
                        struct err *err);
// Make the ids begin with `first` (or end with `last`) exactly once, or not at all: what
// tokenizer_config.json's add_bos_token and add_eos_token say. ERR_NOMEM.
bool postprocessor_begin_with(struct postprocessor *post, token_id first, bool wanted,
                              struct err *err);
bool postprocessor_end_with(struct postprocessor *post, token_id last, bool wanted,
                            struct err *err);
void postprocessor_deinit(struct postprocessor *post);
#endif
