#include "engine/fit.h"

#include <stdio.h>
#include <stdlib.h>

#include "hub/kv_config.h"

enum { CTX_STEP = 64 };
static const uint64_t NO_LIMIT = (uint64_t)1 << 60;

// ---- Opening ------------------------------------------------------------------------------------

static bool look_at_device(struct fit *fit, const struct fit_question *q, struct err *err) {
    struct backend *be = backend_open(q->backend_name ? q->backend_name : "auto", &q->backend, err);
    if (!be)
        return false;
    be->ops->describe(be, fit->device, sizeof fit->device);
    be->ops->memory(be, &fit->device_memory);
    host_memory_read(&fit->host);
    bool ok = machine_speed_get(be, NULL, q->measure_again, &fit->speed, &fit->was_measured, err);
    if (ok && fit->device_memory.is_host) {
        fit->be = be;
        return true;
    }
    be->ops->close(be);
    if (!ok)
        return false;
    if (!fit->options.memory_budget_bytes)
        fit->options.memory_budget_bytes = fit->device_memory.free_bytes - fit->device_memory.free_bytes / 20;
    fit->be = backend_open("cpu", &q->backend, err);
    return fit->be != NULL;
}

static bool open_model(struct fit *fit, const struct fit_question *q, struct err *err) {
    struct model_options options = q->model;
    int8_t *by_layer = NULL;
    bool ok = true;
    if (q->use_kv_config) {
        by_layer = malloc(fit->facts.n_layers);
        ok = by_layer ? kv_config_read(q->folder, fit->facts.n_layers, by_layer, err)
                      : err_set(err, ERR_NOMEM, "out of memory");
        options.kv_by_layer = by_layer;
    }
    if (ok)
        fit->model = model_open(q->folder, fit->be, &options, err);
    free(by_layer);
    return fit->model != NULL;
}

bool fit_open(struct fit *fit, const struct fit_question *q, struct err *err) {
    *fit = (struct fit){.options = q->engine};
    bool ok = hub_scan(&fit->facts, q->folder, &fit->arena, err);
    if (ok && fit->facts.problem[0])
        ok = err_set(err, ERR_UNSUPPORTED, "%s", fit->facts.problem);
    if (ok && look_at_device(fit, q, err) && open_model(fit, q, err))
        return true;
    fit_close(fit);
    return false;
}

void fit_close(struct fit *fit) {
    model_destroy(fit->model);
    if (fit->be)
        fit->be->ops->close(fit->be);
    arena_deinit(&fit->arena);
    *fit = (struct fit){0};
}

// ---- Reports ------------------------------------------------------------------------------------

uint32_t fit_largest_context(const struct model *model, const struct engine_options *options) {
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
    out->ctx_len_largest = fit_largest_context(model, options);
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
