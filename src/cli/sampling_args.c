#include "cli/sampling_args.h"

void sampling_args_options(struct cli_option *out, struct sampler_given *given) {
    for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++) {
        const struct sampler_option *o = &SAMPLER_OPTIONS[i];
        out[i] = (struct cli_option){.name = o->flag, .alias = o->alias,
                                     .kind = o->kind == SAMPLER_REAL ? CLI_REAL : CLI_WHOLE,
                                     .out = &given->values[i], .given = &given->given[i],
                                     .value = o->value, .help = o->help, .min = o->min, .max = o->max};
    }
}
