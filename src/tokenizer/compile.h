// tokenizer/compile.h - from what a tokenizer's files say to the image that tokenizers run on.
#ifndef LOAM_TOKENIZER_COMPILE_H
#define LOAM_TOKENIZER_COMPILE_H
#include "tokenizer/source.h"

// Append the image to *out. ERR_FORMAT if the parts do not fit each other (a merge that names an
// absent token ...), ERR_UNSUPPORTED naming a component, ERR_NOMEM.
bool tokenizer_compile(struct source *source, struct strbuf *out, struct err *err);
#endif
