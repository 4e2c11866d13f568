// sample/sampler_options.h - the table of sampling options: one name, range and place for the HTTP fields, the
// command line's flags and the checks.
#ifndef LOAM_SAMPLE_SAMPLER_OPTIONS_H
#define LOAM_SAMPLE_SAMPLER_OPTIONS_H
#include "sample/sampler.h"

enum { SAMPLER_OPTIONS_N = 18 };
enum sampler_option_kind { SAMPLER_REAL, SAMPLER_COUNT, SAMPLER_INT }; // float, uint32_t, int32_t

struct sampler_option {
    const char *name;  // of the JSON field
    const char *flag;  // "--" and the name with dashes
    const char *alias; // another flag, or NULL
    enum sampler_option_kind kind;
    size_t offset; // in struct sampler_params
    double min, max;
    const char *value, *help; // for the command line's help
};
extern const struct sampler_option SAMPLER_OPTIONS[SAMPLER_OPTIONS_N];

double sampler_option_get(const struct sampler_params *params, size_t idx);
void sampler_option_set(struct sampler_params *params, size_t idx, double value);

// Values that somebody gave, by index into the table.
struct sampler_given {
    bool given[SAMPLER_OPTIONS_N];
    double values[SAMPLER_OPTIONS_N];
};
void sampler_given_apply(const struct sampler_given *given, struct sampler_params *params);
#endif
