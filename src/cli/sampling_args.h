// cli/sampling_args.h - the options that shape sampling, as the table of samplers has them.
#ifndef LOAM_CLI_SAMPLING_ARGS_H
#define LOAM_CLI_SAMPLING_ARGS_H
#include "cli/cli.h"
#include "sample/sampler_options.h"

// Fill SAMPLER_OPTIONS_N entries of a command's table, which write what the user gave into `given`.
void sampling_args_options(struct cli_option *out, struct sampler_given *given);
#endif
