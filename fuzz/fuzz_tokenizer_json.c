// tokenizer.json: whatever the bytes are, opening fails with an error or gives a tokenizer that works.
#include <stdlib.h>

#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct err err = {0};
    struct tokenizer *t = tokenizer_create((struct bytes){data, n}, (struct bytes){NULL, 0}, &err);
    if (!t) {
        if (err.code == ERR_OK || !err.message[0])
            abort();
        return 0;
    }
    struct token_list ids = {0};
    struct strbuf whole = {0}, pieces = {0};
    struct str text = STR("Hello  w\xC3\xB6rld's 123!\n\xE4\xB8\x96 <s>\xF0\x9F\x98\x80\xFF a");
    if (tokenizer_encode(t, text, TOKENIZER_ADD_SPECIAL, &ids, &err)) {
        for (uint32_t id = 0; id < tokenizer_n_vocab(t) && id < 64; id++)
            token_list_append(&ids, (token_id)id);
        struct detokenizer *detok = detokenizer_create(t, false, &err);
        for (size_t i = 0; i < ids.n; i++)
            detokenizer_push(detok, ids.ids[i], &pieces);
        detokenizer_finish(detok, &pieces);
        detokenizer_destroy(detok);
        if (tokenizer_decode(t, ids.ids, ids.n, false, &whole, &err) &&
            !str_eq(strbuf_str(&whole), strbuf_str(&pieces)))
            abort(); // pieces join to the whole
    }
    token_list_deinit(&ids);
    strbuf_deinit(&whole);
    strbuf_deinit(&pieces);
    tokenizer_destroy(t);
    return 0;
}
