// artifact/builtin.h - the model that is part of the program: a demo with nothing to download.
#ifndef LOAM_ARTIFACT_BUILTIN_H
#define LOAM_ARTIFACT_BUILTIN_H
#include "base/bytes.h"

#define BUILTIN_NAME "loam-shakespeare"

// A file of the built-in model folder ("config.json", "generation_config.json", "tokenizer.json",
// "tokenizer_config.json", "model.safetensors"), in the program's read-only data. Asserts a known name.
struct bytes builtin_file(const char *name);
#endif
