// cli/model_args.h - the options that every command with a model shares, and opening it.
#ifndef LOAM_CLI_MODEL_ARGS_H
#define LOAM_CLI_MODEL_ARGS_H
#include "cli/cli.h"
#include "engine/bundle.h"

struct model_args {
    const char *model; // --model, else the positional argument
    bool builtin;
    const char *device, *math, *kv_dtype, *cpu_level;
    int64_t n_threads;
    bool pin, lock_weights;
};
struct model_args model_args_default(void);

// The options, to be put into a command's table: `args` must live as long as the table.
#define MODEL_OPTIONS(args)                                                                        \
    {.name = "--model", .alias = "-m", .kind = CLI_TEXT, .out = &(args)->model, .value = "MODEL",  \
     .help = "the model, where it is not the first argument"},                                     \
    {.name = "--builtin", .kind = CLI_SWITCH, .out = &(args)->builtin,                             \
     .help = "use the small demo model inside the program"},                                       \
    {.name = "--device", .kind = CLI_TEXT, .out = &(args)->device, .value = "auto|cpu|cuda[:N]",   \
     .help = "where to compute (auto)", .env = "LOAM_DEVICE"},                                     \
    {.name = "--threads", .alias = "-t", .kind = CLI_INT, .out = &(args)->n_threads, .value = "N", \
     .min = 0, .max = 1024, .help = "CPU threads (0 = physical cores allowed)",                    \
     .env = "LOAM_THREADS"},                                                                       \
    {.name = "--pin", .kind = CLI_SWITCH, .out = &(args)->pin, .help = "pin each thread to a core"}, \
    {.name = "--mlock", .kind = CLI_SWITCH, .out = &(args)->lock_weights,                          \
     .help = "read the weights into memory at once and keep them there"},                          \
    {.name = "--math", .kind = CLI_CHOICE, .out = &(args)->math, .value = "exact|fast",            \
     .help = "float32 activations, or rounded ones (fast)", .env = "LOAM_MATH"},                   \
    {.name = "--kv-dtype", .kind = CLI_CHOICE, .out = &(args)->kv_dtype, .value = "f32|bf16|f16|q8|q4", \
     .help = "how the KV cache is stored (bf16)"},                                                 \
    {.name = "--cpu-level", .kind = CLI_TEXT, .out = &(args)->cpu_level, .value = "LEVEL",         \
     .help = "highest instruction set to use, to bisect", .env = "LOAM_CPU_LEVEL"}

// Fill bundle options from the arguments; `positional` may be NULL. ERR_INVALID, ERR_NOT_FOUND.
// The options borrow from args and from `folder`, which must hold PATH_MAX bytes.
bool model_args_resolve(const struct model_args *args, const char *positional, char *folder,
                        struct bundle_options *options, struct err *err);
// Resolve and open.
bool model_args_open(const struct model_args *args, const char *positional, bool without_tokenizer,
                     struct bundle *bundle, struct err *err);

// Read a JSON array of token ids. ERR_NOT_FOUND, ERR_FORMAT.
bool read_token_file(const char *path, struct token_list *out, struct err *err);
#endif
