#include "tokenizer/source.h"

void source_deinit(struct source *source) {
    json_decref(source->spec);
    json_decref(source->config);
    arena_deinit(&source->arena);
    *source = (struct source){0};
}
