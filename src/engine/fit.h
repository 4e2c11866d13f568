// engine/fit.h - will it fit, and how fast will it be: the engine's own plan, put into words.
// Uses the model, which belongs to one thread; changes nothing.
#ifndef LOAM_ENGINE_FIT_H
#define LOAM_ENGINE_FIT_H
#include "engine/plan.h"
#include "hub/machine.h"

struct fit_report {
    bool fits;              // serve would start with these options
    char reason[ERR_MESSAGE_BYTES]; // why not
    // What serve would allocate; if it does not fit, what one sequence of the asked context would need.
    struct engine_plan plan;
    uint64_t total_bytes;   // weights, KV, state and workspace together
    uint32_t ctx_len_largest; // of one sequence, 0 = none
    double prefill_tps, decode_tps; // predicted; decoding with a full context
};

// The plan for these options, as serve makes it.
void fit_report_make(const struct model *model, const struct hub_model *facts,
                     const struct engine_options *options, const struct machine_speed *speed,
                     struct fit_report *out);
// The same for a machine of the table: its memory is the budget, its figures the speed. One sequence.
void fit_report_machine(const struct model *model, const struct hub_model *facts,
                        const struct engine_options *options, const struct machine *machine,
                        struct fit_report *out);
#endif
