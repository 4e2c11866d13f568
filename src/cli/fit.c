// loam fit: what serving a model takes, before it is tried.
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "cli/progress.h"
#include "engine/fit.h"
#include "hub/resolve.h"

struct fit_args {
    int64_t ctx_len, n_rows, step_tokens;
    double memory_budget_gb;
    const char *kv_quant;
    bool machines, json, again;
};

static void print_row(const char *what, uint64_t n, const char *note) {
    char bytes[FORMAT_BYTES];
    printf("  %-12s %9s  %s\n", what, format_bytes(bytes, n), note);
}

static void print_report(const char *name, const struct fit *fit, const struct fit_report *r) {
    const struct engine_plan *plan = &r->plan;
    char note[200], bytes[FORMAT_BYTES], limit[FORMAT_BYTES], free_bytes[FORMAT_BYTES];
    bool is_host = fit->device_memory.is_host;
    printf("%s on %s\n", name, fit->device);
    snprintf(note, sizeof note, "%s", is_host ? "mapped from the files" : "on the device");
    print_row("weights", plan->weight_bytes, note);
    snprintf(note, sizeof note, "%u sequence%s, context %u tokens; %s a token", plan->limits.n_rows,
             plan->limits.n_rows == 1 ? "" : "s", plan->limits.ctx_len, format_bytes(bytes, plan->kv_bytes_per_token));
    print_row("KV cache", plan->kv_bytes, note);
    if (plan->state_bytes)
        print_row("state", plan->state_bytes, "of recurrent layers");
    snprintf(note, sizeof note, "steps of %u tokens", plan->limits.n_tokens);
    print_row("workspace", plan->workspace_bytes, note);
    if (is_host)
        snprintf(note, sizeof note, "of %s usable (%s: %s, free now %s)", format_bytes(bytes, plan->usable_bytes),
                 plan->enforced ? "--memory-budget below" : fit->host.limited_by,
                 format_bytes(limit, fit->host.limit_bytes), format_bytes(free_bytes, fit->host.available_bytes));
    else
        snprintf(note, sizeof note, "of %s usable on the device, besides next to nothing of the host's memory",
                 format_bytes(bytes, plan->usable_bytes));
    print_row("total", r->total_bytes, note);
    if (r->fits)
        printf("fits: yes\n");
    else
        printf("fits: no; %s\n", r->reason);
    printf("largest context: %u tokens (one sequence; the model's own limit is %u)\n", r->ctx_len_largest,
           model_config_of(fit->model)->ctx_len_max);
    printf("predicted: prefill %.0f tokens/s, decode %.1f tokens/s at %u tokens of context\n", r->prefill_tps,
           r->decode_tps, plan->limits.ctx_len);
}

static json_t *report_json(const struct fit_report *r) {
    const struct engine_plan *plan = &r->plan;
    return json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:f, s:f, s:s}", "fits", r->fits,
                     "weights_bytes", (json_int_t)plan->weight_bytes, "kv_bytes", (json_int_t)plan->kv_bytes,
                     "kv_bytes_per_token", (json_int_t)plan->kv_bytes_per_token, "state_bytes",
                     (json_int_t)plan->state_bytes, "transient_bytes", (json_int_t)plan->workspace_bytes,
                     "total_bytes", (json_int_t)r->total_bytes, "usable_bytes", (json_int_t)plan->usable_bytes,
                     "context_length", (int)plan->limits.ctx_len, "sequences", (int)plan->limits.n_rows,
                     "max_safe_context", (int)r->ctx_len_largest, "predicted_prefill_tps", r->prefill_tps,
                     "predicted_decode_tps", r->decode_tps, "reason", r->reason);
}

static void print_machines(const struct fit *fit, json_t *into) {
    size_t n;
    const struct machine *machines = machine_table(&n);
    if (!into)
        printf("\n%-38s %8s %5s %9s %12s %12s\n", "MACHINE", "MEMORY", "FITS", "CONTEXT", "PREFILL t/s",
               "DECODE t/s");
    for (size_t i = 0; i < n; i++) {
        struct fit_report r;
        fit_report_machine(fit->model, &fit->facts, &fit->options, &machines[i], &r);
        if (into) {
            json_t *row = report_json(&r);
            json_object_set_new(row, "machine", json_string(machines[i].name));
            json_object_set_new(row, "gpu", json_boolean(machines[i].is_gpu));
            json_array_append_new(into, row);
        } else if (r.fits) {
            printf("%-38s %5.0f GB %5s %9u %12.0f %12.1f\n", machines[i].name, machines[i].memory_gb, "yes",
                   r.ctx_len_largest, r.prefill_tps, r.decode_tps);
        } else {
            printf("%-38s %5.0f GB %5s %9s %12s %12s\n", machines[i].name, machines[i].memory_gb, "no", "-", "-", "-");
        }
    }
}

static void print_json(const char *name, const struct fit *fit, const struct fit_report *r, bool machines) {
    bool is_host = fit->device_memory.is_host;
    json_t *out = report_json(r);
    json_object_set_new(out, "model", json_string(name));
    json_object_set_new(out, "machine", json_string(fit->device));
    json_object_set_new(out, "host_bytes", json_integer(is_host ? (json_int_t)r->total_bytes : 0));
    json_object_set_new(out, "device_bytes", json_integer(is_host ? 0 : (json_int_t)r->total_bytes));
    json_object_set_new(out, "limited_by", json_string(is_host ? fit->host.limited_by : "device memory"));
    json_object_set_new(out, "limit_bytes", json_integer((json_int_t)(is_host ? fit->host.limit_bytes
                                                                                    : fit->device_memory.total_bytes)));
    json_object_set_new(out, "free_bytes", json_integer((json_int_t)(is_host ? fit->host.available_bytes
                                                                                   : fit->device_memory.free_bytes)));
    if (machines) {
        json_t *rows = json_array();
        print_machines(fit, rows);
        json_object_set_new(out, "machines", rows);
    }
    json_dumpf(out, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(out);
}

int cmd_fit(int argc, char **argv) {
    struct model_args model = model_args_default();
    struct fit_args args = {0};
    const struct cli_option OPTIONS[] = {
        {.name = "--ctx", .alias = "--context-length", .kind = CLI_INT, .out = &args.ctx_len, .value = "N", .min = 1,
         .max = 1e9, .help = "context to plan for (the model's, or what memory allows)"},
        {.name = "--kv-quant", .kind = CLI_CHOICE, .out = &args.kv_quant, .value = "4|8|config|off",
         .help = "quantized KV cache; config: as kv_config.json says"},
        {.name = "--batch", .kind = CLI_INT, .out = &args.n_rows, .value = "N", .min = 1, .max = 4096,
         .help = "sequences that run together (8)"},
        {.name = "--step-tokens", .kind = CLI_INT, .out = &args.step_tokens, .value = "N", .min = 1, .max = 65536,
         .help = "tokens a step (512)"},
        {.name = "--memory-budget", .kind = CLI_REAL, .out = &args.memory_budget_gb, .value = "GB", .min = 0,
         .max = 1e6, .help = "plan within this much"},
        {.name = "--machines", .kind = CLI_SWITCH, .out = &args.machines, .help = "the same on common machines"},
        {.name = "--measure", .kind = CLI_SWITCH, .out = &args.again, .help = "measure this device's speed again"},
        {.name = "--json", .kind = CLI_SWITCH, .out = &args.json, .help = "print JSON"},
        MODEL_OPTIONS(&model),
    };
    const struct cli_spec spec = {
        "fit MODEL [options]",
        "Tell what serving a model takes: the very plan that serve allocates, the largest context that fits, and\n"
        "predicted speeds from what products of this device were measured to reach.",
        CLI_OPTIONS(OPTIONS), 1};
    const char *positional = NULL;
    switch (cli_parse(&spec, argc, argv, &positional, NULL)) {
    case CLI_HELPED: return EXIT_DONE;
    case CLI_WRONG: return EXIT_USAGE;
    case CLI_RUN: break;
    }
    if (model.builtin || (!model.model && !positional))
        return cli_wrong(argv[0], "which model? usage: loam %s", spec.usage);
    struct bundle_options options;
    struct err err = {0};
    char folder[PATH_MAX];
    if (!model_args_resolve(&model, positional, folder, &options, &err))
        return cli_fail(argv[0], &err);
    struct fit_question question = {
        .folder = folder,
        .backend_name = options.backend_name,
        .backend = options.backend,
        .model = options.model,
        .use_kv_config = args.kv_quant && strcmp(args.kv_quant, "config") == 0,
        .measure_again = args.again,
        .engine = {.n_rows = (uint32_t)args.n_rows, .ctx_len = (uint32_t)args.ctx_len,
                   .step_tokens = (uint32_t)args.step_tokens,
                   .memory_budget_bytes = (uint64_t)(args.memory_budget_gb * 1e9)},
    };
    if (args.kv_quant && args.kv_quant[0] == '8')
        question.model.kv = KV_Q8;
    if (args.kv_quant && args.kv_quant[0] == '4')
        question.model.kv = KV_Q4;
    struct fit fit;
    if (!fit_open(&fit, &question, &err))
        return cli_fail(argv[0], &err);
    if (fit.was_measured)
        fprintf(stderr, "measured this device's speed and kept it for the next time (--measure does it again)\n");
    // The whole name of what part of a name meant.
    struct hub_env env;
    struct hub_resolved found;
    const char *name = model.model ? model.model : positional;
    if (hub_env_read(&env, NULL) && hub_resolve_model(&env, name, &found, NULL) && found.repo[0])
        name = found.repo;
    struct fit_report report;
    fit_report_make(fit.model, &fit.facts, &fit.options, &fit.speed, &report);
    if (args.json) {
        print_json(name, &fit, &report, args.machines);
    } else {
        print_report(name, &fit, &report);
        if (args.machines)
            print_machines(&fit, NULL);
    }
    fit_close(&fit);
    return EXIT_DONE;
}
