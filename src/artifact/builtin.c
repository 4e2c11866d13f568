#include "artifact/builtin.h"

#include <assert.h>

// The assembler takes the files in as they are; LOAM_BUILTIN_DIR is models/shakespeare of the source tree.
#define EMBED(symbol, file)                                                                        \
    __asm__(".pushsection .rodata\n"                                                               \
            ".balign 64\n"                                                                         \
            ".hidden builtin_" #symbol "\n"                                                        \
            ".global builtin_" #symbol "\n"                                                        \
            "builtin_" #symbol ":\n"                                                               \
            ".incbin \"" LOAM_BUILTIN_DIR "/" file "\"\n"                                          \
            ".hidden builtin_" #symbol "_end\n"                                                    \
            ".global builtin_" #symbol "_end\n"                                                    \
            "builtin_" #symbol "_end:\n"                                                           \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const uint8_t builtin_##symbol[], builtin_##symbol##_end[];

EMBED(config, "config.json")
EMBED(generation, "generation_config.json")
EMBED(tokenizer, "tokenizer.json")
EMBED(tokenizer_config, "tokenizer_config.json")
EMBED(weights, "model.safetensors")

struct bytes builtin_file(const char *name) {
    const struct {
        const char *name;
        const uint8_t *begin, *end;
    } files[] = {
        {"config.json", builtin_config, builtin_config_end},
        {"generation_config.json", builtin_generation, builtin_generation_end},
        {"tokenizer.json", builtin_tokenizer, builtin_tokenizer_end},
        {"tokenizer_config.json", builtin_tokenizer_config, builtin_tokenizer_config_end},
        {"model.safetensors", builtin_weights, builtin_weights_end},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(files[i].name, name) == 0)
            return (struct bytes){files[i].begin, (size_t)(files[i].end - files[i].begin)};
    assert(false && "no such built-in file");
    return (struct bytes){0};
}
