#include "sample/sampler_options.h"

#include <string.h>

#define OPTION(kind, name, field, flag, alias, min, max, value, help)                              \
    {name, flag, alias, kind, offsetof(struct sampler_params, field), min, max, value, help}

const struct sampler_option SAMPLER_OPTIONS[SAMPLER_OPTIONS_N] = {
    OPTION(SAMPLER_REAL, "temperature", temperature, "--temperature", "--temp", 0, 5, "T", "0 = always the likeliest token"),
    OPTION(SAMPLER_REAL, "top_p", top_p, "--top-p", NULL, 0, 1, "P", "only the likeliest tokens that together have this probability"),
    OPTION(SAMPLER_INT, "top_k", top_k, "--top-k", NULL, -1, 1e6, "N",
           "only the N likeliest tokens (0 = all)"),
    OPTION(SAMPLER_REAL, "min_p", min_p, "--min-p", NULL, 0, 1, "P", "only tokens at least this fraction as likely as the best"),
    OPTION(SAMPLER_REAL, "typical_p", typical_p, "--typical-p", NULL, 0, 1, "P",
         "only the tokens of most typical surprise that together have this probability"),
    OPTION(SAMPLER_REAL, "xtc_probability", xtc_probability, "--xtc-probability", NULL, 0, 1, "P", "how often the likeliest choices are left out"),
    OPTION(SAMPLER_REAL, "xtc_threshold", xtc_threshold, "--xtc-threshold", NULL, 0, 0.5, "P", "of tokens above this, all but the least likely (0.1)"),
    OPTION(SAMPLER_REAL, "repetition_penalty", repetition_penalty, "--repetition-penalty", NULL, 0, 10, "R",
         "divide the logits of tokens that were there (1 = off)"),
    OPTION(SAMPLER_COUNT, "repetition_context_size", repetition_context, "--repetition-context-size", NULL, 0, 1e9, "N",
           "in the last N tokens (20; 0 = all)"),
    OPTION(SAMPLER_REAL, "presence_penalty", presence_penalty, "--presence-penalty", NULL, -2, 2, "R", "take this from the logits of tokens that were there"),
    OPTION(SAMPLER_COUNT, "presence_context_size", presence_context, "--presence-context-size", NULL, 0, 1e9, "N",
           "in the last N tokens (20; 0 = all)"),
    OPTION(SAMPLER_REAL, "frequency_penalty", frequency_penalty, "--frequency-penalty", NULL, -2, 2, "R", "and this for each time that they were"),
    OPTION(SAMPLER_COUNT, "frequency_context_size", frequency_context, "--frequency-context-size", NULL, 0, 1e9, "N",
           "in the last N tokens (20; 0 = all)"),
    OPTION(SAMPLER_REAL, "dry_multiplier", dry.multiplier, "--dry-multiplier", NULL, 0, 100, "R", "against repeated sequences (0 = off)"),
    OPTION(SAMPLER_REAL, "dry_base", dry.base, "--dry-base", NULL, 1, 100, "R", "how its penalty grows with their length (1.75)"),
    OPTION(SAMPLER_COUNT, "dry_allowed_length", dry.allowed_length, "--dry-allowed-length", NULL, 1, 1e6, "N",
           "sequences of N tokens cost the multiplier (2)"),
    OPTION(SAMPLER_INT, "dry_penalty_last_n", dry.last_n, "--dry-penalty-last-n", NULL, -1, 1e9, "N",
           "looked for in the last N tokens (-1 = all)"),
    OPTION(SAMPLER_COUNT, "min_tokens", min_tokens, "--min-tokens", NULL, 0, 1e9, "N",
           "no end token before N tokens"),
};

double sampler_option_get(const struct sampler_params *params, size_t idx) {
    const char *at = (const char *)params + SAMPLER_OPTIONS[idx].offset;
    float real;
    uint32_t count;
    int32_t whole;
    switch (SAMPLER_OPTIONS[idx].kind) {
    case SAMPLER_REAL:
        memcpy(&real, at, sizeof real);
        return (double)real;
    case SAMPLER_COUNT:
        memcpy(&count, at, sizeof count);
        return count;
    case SAMPLER_INT:
        memcpy(&whole, at, sizeof whole);
        return whole;
    }
    return 0;
}

void sampler_option_set(struct sampler_params *params, size_t idx, double value) {
    char *at = (char *)params + SAMPLER_OPTIONS[idx].offset;
    float real = (float)value;
    switch (SAMPLER_OPTIONS[idx].kind) {
    case SAMPLER_REAL:
        memcpy(at, &real, sizeof real);
        break;
    case SAMPLER_COUNT:
        memcpy(at, &(uint32_t){(uint32_t)value}, sizeof(uint32_t));
        break;
    case SAMPLER_INT:
        memcpy(at, &(int32_t){(int32_t)value}, sizeof(int32_t));
        break;
    }
}

void sampler_given_apply(const struct sampler_given *given, struct sampler_params *params) {
    for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++)
        if (given->given[i])
            sampler_option_set(params, i, given->values[i]);
}
