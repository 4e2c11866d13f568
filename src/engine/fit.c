#include "engine/fit.h"

#include <stdio.h>

enum { CTX_STEP = 64 };
static const uint64_t NO_LIMIT = (uint64_t)1 << 60;

// The largest context that the planner accepts for one sequence.
static uint32_t largest_context(const struct model *model, const struct engine_options *options) {
    struct engine_options o = *options;
    struct engine_plan plan;
    o.n_rows = 1;
    uint32_t fits = 0, most = model_config_of(model)->ctx_len_max;
    o.ctx_len = most;
    if (engine_plan_make(model, &o, &plan, NULL))
        return most;
    for (uint32_t low = 1, high = most / CTX_STEP; low <= high;) { // in steps of 64
        uint32_t middle = low + (high - low) / 2;
        o.ctx_len = middle * CTX_STEP;
        if (engine_plan_make(model, &o, &plan, NULL)) {
            fits = o.ctx_len;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    return fits;
}

void fit_report_make(const struct model *model, const struct hub_model *facts,
                     const struct engine_options *options, const struct machine_speed *speed,
                     struct fit_report *out) {
    struct err err = {0};
    *out = (struct fit_report){0};
    out->fits = engine_plan_make(model, options, &out->plan, &err);
    struct engine_options one = *options;
    one.n_rows = 1;
    if (!out->fits) {
        uint64_t usable = out->plan.usable_bytes;
        snprintf(out->reason, sizeof out->reason, "%s", err.message);
        one.memory_budget_bytes = NO_LIMIT;
        one.kv_budget_bytes = 0;
        err_clear(&err);
        if (!engine_plan_make(model, &one, &out->plan, &err))
            snprintf(out->reason, sizeof out->reason, "%s", err.message);
        out->plan.usable_bytes = usable;
    }
    out->ctx_len_largest = largest_context(model, options);
    const struct engine_plan *plan = &out->plan;
    out->total_bytes = plan->weight_bytes + plan->kv_bytes + plan->state_bytes + plan->workspace_bytes;

    // One full sequence's KV is what a decode step reads.
    struct engine_plan of_one;
    one = *options;
    one.n_rows = 1;
    one.ctx_len = plan->limits.ctx_len;
    one.memory_budget_bytes = NO_LIMIT;
    one.kv_budget_bytes = 0;
    uint64_t kv_bytes = engine_plan_make(model, &one, &of_one, NULL) ? of_one.kv_bytes + of_one.state_bytes : 0;
    out->prefill_tps = machine_prefill_tps(speed, facts);
    out->decode_tps = machine_decode_tps(speed, facts, kv_bytes);
}

void fit_report_machine(const struct model *model, const struct hub_model *facts,
                        const struct engine_options *options, const struct machine *machine,
                        struct fit_report *out) {
    struct engine_options o = *options;
    struct machine_speed speed = machine_expected_speed(machine);
    o.n_rows = 1;
    o.memory_budget_bytes = machine_usable_bytes(machine);
    fit_report_make(model, facts, &o, &speed, out);
}
