// The public API of models on disk: include/loam/loam_hub.h over hub/ and engine/fit.
#include "loam/loam_hub.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/fit.h"
#include "hub/gc.h"
#include "hub/get.h"
#include "hub/registry.h"
#include "hub/resolve.h"

_Static_assert((int)LOAM_OK == (int)ERR_OK && (int)LOAM_CANCELLED == (int)ERR_CANCELLED &&
                   (int)LOAM_INTERNAL == (int)ERR_INTERNAL,
               "the public codes are the internal ones");
_Static_assert(sizeof((struct loam_error *)0)->message == ERR_MESSAGE_BYTES, "a message fits");
_Static_assert(LOAM_PATH_BYTES >= PATH_MAX, "a path fits");

// Hand an error over; returns its code.
static int give(const struct err *err, struct loam_error *out) {
    if (out) {
        out->code = (enum loam_error_code)err->code;
        snprintf(out->message, sizeof out->message, "%s", err->message);
    }
    return (int)err->code;
}

// ---- Download -----------------------------------------------------------------------------------
struct watcher {
    const struct loam_hub_get_options *options;
    atomic_bool cancel;
};

static void watch(void *user, const struct hub_progress *p) {
    struct watcher *w = user;
    struct loam_hub_progress out = {
        .bytes_done = p->bytes_done,
        .bytes_total = p->bytes_total,
        .bytes_received = p->bytes_received,
        .n_files_done = p->n_files_done,
        .n_files = p->n_files,
        .bytes_per_s = p->bytes_per_s,
        .seconds_left = p->seconds_left,
        .note = p->note,
    };
    if (w->options->progress(w->options->user, &out) != 0)
        atomic_store(&w->cancel, true);
}

int loam_hub_get(const struct loam_hub_get_options *options, char folder[LOAM_PATH_BYTES],
                 struct loam_error *error) {
    struct hub_env env;
    struct err err = {0};
    struct watcher w = {.options = options};
    struct hub_get_options o = hub_get_defaults();
    struct hub_get_result result;
    o.repo = options->repo;
    o.revision = options->revision;
    o.filter = (struct hub_filter){options->include, options->exclude, options->n_include, options->n_exclude};
    if (options->n_connections)
        o.n_connections = options->n_connections;
    o.progress = options->progress ? watch : NULL;
    o.user = &w;
    o.cancel = &w.cancel;
    if (hub_env_read(&env, &err) && hub_get(&env, &o, &result, &err))
        snprintf(folder, LOAM_PATH_BYTES, "%s", result.snapshot);
    return give(&err, error);
}

// ---- What is there ------------------------------------------------------------------------------
int loam_hub_resolve(const char *model, char folder[LOAM_PATH_BYTES], struct loam_error *error) {
    struct hub_env env;
    struct hub_resolved found;
    struct err err = {0};
    if (hub_env_read(&env, &err) && hub_resolve_model(&env, model, &found, &err))
        snprintf(folder, LOAM_PATH_BYTES, "%s", found.folder);
    return give(&err, error);
}

struct loam_hub_list {
    struct hub_models models; // owns the texts
    struct loam_hub_model *out;
    size_t n;
};

struct loam_hub_list *loam_hub_list(struct loam_error *error) {
    struct hub_env env;
    struct err err = {0};
    struct loam_hub_list *list = calloc(1, sizeof *list);
    bool ok = list ? hub_env_read(&env, &err) && hub_models_read(&env, &list->models, NULL, &err)
                   : err_set(&err, ERR_NOMEM, "out of memory");
    if (ok)
        list->out = arena_array(&list->models.arena, struct loam_hub_model, list->models.n);
    if (ok && !list->out)
        ok = err_set(&err, ERR_NOMEM, "out of memory listing %zu models", list->models.n);
    for (size_t i = 0; ok && i < list->models.n; i++) {
        const struct hub_model *m = &list->models.models[i];
        if (m->problem[0])
            continue;
        list->out[list->n++] = (struct loam_hub_model){
            .id = m->repo,
            .revision = m->commit,
            .path = m->path,
            .model_type = m->model_type,
            .license = m->license,
            .quant_mode = m->quant_mode,
            .quant_bits = m->quant_bits,
            .quant_group = m->quant_group,
            .context_length = m->ctx_len_max,
            .n_params = m->n_params,
            .weight_bytes = m->weight_bytes,
            .sidecar_bytes = m->sidecar_bytes,
            .kv_bytes_per_token = m->kv_token_bytes,
            .has_tools = m->has_tools,
            .has_vision = m->has_vision,
            .has_audio = m->has_audio,
            .is_embedding = m->is_embedding,
            .is_drafter = m->is_drafter,
            .is_canonical = m->is_canonical,
        };
    }
    give(&err, error);
    if (ok)
        return list;
    loam_hub_list_free(list);
    return NULL;
}

size_t loam_hub_list_n(const struct loam_hub_list *list) {
    return list->n;
}

const struct loam_hub_model *loam_hub_list_model(const struct loam_hub_list *list, size_t idx) {
    return idx < list->n ? &list->out[idx] : NULL;
}

void loam_hub_list_free(struct loam_hub_list *list) {
    if (list)
        hub_models_deinit(&list->models);
    free(list);
}

int loam_hub_scan(size_t *n_models, struct loam_error *error) {
    struct hub_env env;
    struct err err = {0};
    struct registry_update update;
    struct registry *registry = hub_env_read(&env, &err) ? registry_open(NULL, &err) : NULL;
    if (registry && registry_update(registry, &env, true, &update, &err) && n_models)
        *n_models = update.n_models;
    registry_close(registry);
    return give(&err, error);
}

// ---- Deleting -----------------------------------------------------------------------------------
int loam_hub_gc(int force, int act, size_t *n_items, uint64_t *n_bytes, struct loam_error *error) {
    struct hub_env env;
    struct err err = {0};
    struct gc_plan plan = {0};
    struct gc_options options = gc_defaults();
    options.force = force != 0;
    if (hub_env_read(&env, &err) && gc_plan_make(&plan, &env, &options, &err)) {
        if (n_items)
            *n_items = plan.n_items;
        if (n_bytes)
            *n_bytes = plan.n_bytes;
        if (act)
            gc_plan_run(&plan, &env, &err);
    }
    gc_plan_deinit(&plan);
    return give(&err, error);
}

int loam_hub_remove(const char *model, struct loam_error *error) {
    struct hub_env env;
    struct err err = {0};
    char repo[HUB_REPO_BYTES];
    if (hub_env_read(&env, &err) && hub_resolve_repo(&env, model, repo, &err))
        hub_remove_repo(&env, repo, &err);
    return give(&err, error);
}

// ---- Fitting ------------------------------------------------------------------------------------
static bool fit_question_of(const struct loam_fit_options *o, struct fit_question *q, struct err *err) {
    const char *kv = o->kv_quant ? o->kv_quant : "off";
    q->backend_name = o->device;
    q->engine = (struct engine_options){.ctx_len = o->context_length, .n_rows = o->n_sequences,
                                        .step_tokens = o->step_tokens,
                                        .memory_budget_bytes = o->memory_budget_bytes};
    if (strcmp(kv, "8") == 0)
        q->model.kv = KV_Q8;
    else if (strcmp(kv, "4") == 0)
        q->model.kv = KV_Q4;
    else if (strcmp(kv, "config") == 0)
        q->use_kv_config = true;
    else if (strcmp(kv, "off") != 0)
        return err_set(err, ERR_INVALID, "kv_quant is \"4\", \"8\", \"config\" or \"off\", not \"%s\"", kv);
    return true;
}

int loam_fit(const char *model, const struct loam_fit_options *options, struct loam_fit_report *report,
             struct loam_error *error) {
    static const struct loam_fit_options DEFAULTS;
    struct hub_env env;
    struct hub_resolved found;
    struct err err = {0};
    struct fit fit;
    struct fit_report r;
    struct fit_question question = {.folder = found.folder, .backend.device = -1, .model.kv = KV_BF16};
    if (!fit_question_of(options ? options : &DEFAULTS, &question, &err) || !hub_env_read(&env, &err) ||
        !hub_resolve_model(&env, model, &found, &err) || !fit_open(&fit, &question, &err))
        return give(&err, error);
    fit_report_make(fit.model, &fit.facts, &fit.options, &fit.speed, &r);
    *report = (struct loam_fit_report){
        .fits = r.fits,
        .weight_bytes = r.plan.weight_bytes,
        .kv_bytes = r.plan.kv_bytes,
        .state_bytes = r.plan.state_bytes,
        .workspace_bytes = r.plan.workspace_bytes,
        .total_bytes = r.total_bytes,
        .usable_bytes = r.plan.usable_bytes,
        .kv_bytes_per_token = r.plan.kv_bytes_per_token,
        .context_length = r.plan.limits.ctx_len,
        .n_sequences = r.plan.limits.n_rows,
        .context_length_largest = r.ctx_len_largest,
        .prefill_tps = r.prefill_tps,
        .decode_tps = r.decode_tps,
    };
    snprintf(report->reason, sizeof report->reason, "%s", r.reason);
    fit_close(&fit);
    return give(&err, error);
}
