// engine/fit.h - will it fit, and how fast will it be: the engine's own plan, put into words.
// Uses the model, which belongs to one thread; changes nothing.
#ifndef LOAM_ENGINE_FIT_H
#define LOAM_ENGINE_FIT_H
#include "base/host_memory.h"
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

// What is asked.
struct fit_question {
    const char *folder;       // of the model
    const char *backend_name; // NULL = auto
    struct backend_options backend;
    struct model_options model;
    bool use_kv_config;       // KV kinds by layer as the folder's kv_config.json says
    bool measure_again;       // the device's speed, even if it is known
    struct engine_options engine;
};

// A model opened to be planned with. On a GPU only memory and speed are asked of the device: the model is
// mapped on the CPU, so that one that does not fit need not be loaded to be told so.
struct fit {
    struct backend *be;  // of `model`
    struct model *model;
    struct hub_model facts;
    struct arena arena;  // owns the facts' texts
    struct engine_options options;
    struct machine_speed speed;
    bool was_measured;   // the speed, just now
    char device[256];    // where it would run
    struct backend_memory device_memory;
    struct host_memory host;
};
// ERR_NOT_FOUND, ERR_FORMAT, ERR_UNSUPPORTED, ERR_IO, ERR_NOMEM.
bool fit_open(struct fit *fit, const struct fit_question *question, struct err *err);
void fit_close(struct fit *fit); // a zeroed one is allowed

// The largest context that the planner accepts for one sequence, 0 = none.
uint32_t fit_largest_context(const struct model *model, const struct engine_options *options);
// The plan for these options, as serve makes it.
void fit_report_make(const struct model *model, const struct hub_model *facts,
                     const struct engine_options *options, const struct machine_speed *speed,
                     struct fit_report *out);
// The same for a machine of the table: its memory is the budget, its figures the speed. One sequence.
void fit_report_machine(const struct model *model, const struct hub_model *facts,
                        const struct engine_options *options, const struct machine *machine,
                        struct fit_report *out);
#endif
