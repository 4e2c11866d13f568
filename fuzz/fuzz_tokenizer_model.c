// tokenizer.model: SentencePiece's protobuf or tiktoken's ranks, compiled if they can be read.
#include <stdlib.h>

#include "tokenizer/compile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct err err = {0};
    struct source source;
    struct strbuf image = {0};
    bool ok = source_from_model_file(&source, (struct bytes){data, n}, (struct bytes){NULL, 0}, &err);
    if (ok) {
        ok = tokenizer_compile(&source, &image, &err);
        source_deinit(&source);
    }
    if (!ok && (err.code == ERR_OK || !err.message[0]))
        abort();
    strbuf_deinit(&image);
    return 0;
}
