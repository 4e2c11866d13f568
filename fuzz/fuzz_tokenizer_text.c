// Any text through the built-in model's byte-level tokenizer comes back, as far as it is UTF-8, and any
// cut of the ids into pieces joins to the whole.
#include <stdlib.h>

#include "artifact/builtin.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct tokenizer *t;
    struct err err = {0};
    if (!t)
        t = tokenizer_create(builtin_file("tokenizer.json"), builtin_file("tokenizer_config.json"), &err);
    if (!t)
        abort();
    struct token_list ids = {0};
    struct strbuf whole = {0}, pieces = {0};
    if (!tokenizer_encode(t, (struct str){(const char *)data, n}, 0, &ids, &err) ||
        !tokenizer_decode(t, ids.ids, ids.n, false, &whole, &err))
        abort();
    if (!utf8_valid(strbuf_str(&whole)))
        abort();
    struct detokenizer *detok = detokenizer_create(t, false, &err);
    for (size_t i = 0; i < ids.n; i++) {
        size_t from = pieces.n;
        detokenizer_push(detok, ids.ids[i], &pieces);
        if (!utf8_valid(str_slice(strbuf_str(&pieces), from, pieces.n)))
            abort(); // no piece holds a broken character
    }
    detokenizer_finish(detok, &pieces);
    if (!str_eq(strbuf_str(&whole), strbuf_str(&pieces)))
        abort();
    detokenizer_destroy(detok);
    token_list_deinit(&ids);
    strbuf_deinit(&whole);
    strbuf_deinit(&pieces);
    return 0;
}
