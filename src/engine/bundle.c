#include "engine/bundle.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "artifact/builtin.h"
#include "base/clock.h"
#include "base/file_map.h"
#include "base/json.h"
#include "hub/scan.h"
#include "sample/sampler_options.h"

// The folder's own name; in a hub cache, models--org--name/snapshots/<commit> is org/name.
static char *name_of_folder(const char *folder) {
    char real[PATH_MAX];
    if (!realpath(folder, real))
        return str_dup(str_from(folder));
    char *hub = strstr(real, "/models--");
    char *end = hub ? strchr(hub + 9, '/') : NULL;
    if (hub && end && strncmp(end, "/snapshots/", 11) == 0) {
        *end = '\0';
        char *name = hub + 9, *split = strstr(name, "--");
        if (split) {
            *split = '/';
            memmove(split + 1, split + 2, strlen(split + 2) + 1);
        }
        return str_dup(str_from(name));
    }
    char *slash = strrchr(real, '/');
    return str_dup(str_from(slash && slash[1] ? slash + 1 : real));
}

static struct model *open_builtin(struct backend *be, const struct model_options *options,
                                  struct err *err) {
    struct model_config *config = model_config_create(str_of(builtin_file("config.json")),
                                                      str_of(builtin_file("generation_config.json")), err);
    struct weights *weights =
        config ? weights_create(builtin_file("model.safetensors"), BUILTIN_NAME, err) : NULL;
    if (!weights) {
        model_config_destroy(config);
        return NULL;
    }
    return model_create(config, weights, be, options, err);
}

struct tokenizer *bundle_open_tokenizer(const char *folder, struct err *err) {
    return folder ? tokenizer_open(folder, err)
                  : tokenizer_create(builtin_file("tokenizer.json"), builtin_file("tokenizer_config.json"), err);
}

struct chat_template *bundle_open_chat(const char *folder, struct err *err) {
    if (folder)
        return chat_template_open(folder, err);
    json_t *config = json_parse(str_of(builtin_file("tokenizer_config.json")), BUILTIN_NAME, err);
    struct chat_template *chat =
        config ? chat_template_create(json_str(json_object_get(config, "chat_template")), config, err)
               : NULL;
    json_decref(config);
    return chat;
}

// How embeddings are made: as the folder says; encoders that say nothing are pooled by the mean, as
// sentence-transformers does it.
static bool read_sentence(struct bundle *bundle, const char *folder, struct err *err) {
    struct sentence *s = &bundle->sentence;
    bool is_encoder = model_is_encoder(bundle->model);
    if (!sentence_open(s, folder, model_config_of(bundle->model)->d_model, err))
        return false;
    if (!s->given && is_encoder)
        s->pooling = MODEL_POOL_MEAN;
    if (!is_encoder && s->pooling != MODEL_POOL_LAST && !s->lacking)
        s->lacking = s->pooling == MODEL_POOL_MEAN ? "pooling_mode_mean_tokens" : "pooling_mode_cls_token";
    model_set_pooling(bundle->model, s->pooling);
    return true;
}

static int makes_the_model(const struct dirent *item) {
    struct str name = str_from(item->d_name);
    return str_ends(name, STR(".safetensors")) || str_eq_c(name, "config.json") || str_eq_c(name, "kv_config.json");
}

// A file that was replaced by another of its size and time is taken for the same one.
static char *identity_of(const char *folder, const struct tokenizer *tokenizer, struct err *err) {
    struct strbuf text = {0};
    struct dirent **items = NULL;
    int n = folder ? scandir(folder, &items, makes_the_model, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        struct stat st;
        if (snprintf(path, sizeof path, "%s/%s", folder, items[i]->d_name) < (int)sizeof path && stat(path, &st) == 0)
            strbuf_printf(&text, "%s %jd %jd.%09ld\n", items[i]->d_name, (intmax_t)st.st_size,
                          (intmax_t)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
        free(items[i]);
    }
    free(items);
    strbuf_append_c(&text, folder ? "" : "builtin\n");
    strbuf_append_c(&text, tokenizer ? tokenizer_fingerprint(tokenizer) : "");
    char *identity = strbuf_take(&text);
    if (!identity)
        err_set(err, ERR_NOMEM, "out of memory");
    return identity;
}

bool bundle_open(struct bundle *bundle, const struct bundle_options *o, struct err *err) {
    uint64_t start = clock_ns();
    *bundle = (struct bundle){.is_builtin = o->folder == NULL};
    bundle->name = o->name     ? str_dup(str_from(o->name))
                   : o->folder ? name_of_folder(o->folder)
                               : str_dup(str_from(BUILTIN_NAME));
    if (!bundle->name) {
        err_set(err, ERR_NOMEM, "out of memory");
        goto failed;
    }
    bundle->be = backend_open(o->backend_name ? o->backend_name : "auto", &o->backend, err);
    if (!bundle->be)
        goto failed;
    if (o->lock_weights && bundle->be->ops != &cpu_backend_ops) {
        err_set(err, ERR_INVALID, "--mlock keeps weights in the host's memory, but %s copies them to its own: add --device cpu",
                bundle->be->ops->name);
        goto failed;
    }
    bundle->model = o->folder ? model_open(o->folder, bundle->be, &o->model, err)
                              : open_builtin(bundle->be, &o->model, err);
    if (!bundle->model || (o->folder && !read_sentence(bundle, o->folder, err)))
        goto failed;
    if (o->lock_weights && !model_lock_weights(bundle->model, err))
        goto failed;
    bundle->is_embedding = !model_has_head(bundle->model) ||
                           (o->folder && hub_is_embedding(o->folder, bundle->name));
    if (!o->without_tokenizer) {
        bundle->tokenizer = bundle_open_tokenizer(o->folder, err);
        bundle->chat = bundle->tokenizer ? bundle_open_chat(o->folder, err) : NULL;
        if (!bundle->chat)
            goto failed;
    }
    bundle->identity = identity_of(o->folder, bundle->tokenizer, err);
    if (!bundle->identity)
        goto failed;
    bundle->load_ms = clock_ms_since(start);
    return true;
failed:
    bundle_close(bundle);
    return false;
}

void bundle_close(struct bundle *bundle) {
    sentence_close(&bundle->sentence);
    chat_template_destroy(bundle->chat);
    tokenizer_destroy(bundle->tokenizer);
    model_destroy(bundle->model);
    if (bundle->be)
        bundle->be->ops->close(bundle->be);
    free(bundle->name);
    free(bundle->identity);
    *bundle = (struct bundle){0};
}

bool kv_kind_parse(const char *name, enum kv_kind *out, struct err *err) {
    static const char *const NAMES[] = {"f32", "f16", "bf16", "q8", "q4"};
    static const enum kv_kind KINDS[] = {KV_F32, KV_F16, KV_BF16, KV_Q8, KV_Q4};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(name, NAMES[i]) == 0) {
            *out = KINDS[i];
            return true;
        }
    }
    return err_set(err, ERR_INVALID, "kv_dtype is one of bf16, f16, f32, q8, q4, not \"%s\"", name);
}

struct sampler_params bundle_sampling(const struct bundle *bundle) {
    const struct generation_defaults *d = &model_config_of(bundle->model)->generation;
    struct sampler_params p = sampler_params_default();
    bool greedy = d->do_sample_given && !d->do_sample;
    p.temperature = greedy ? 0 : d->temperature >= 0 ? d->temperature : 0.7f;
    p.top_p = d->top_p >= 0 ? d->top_p : p.top_p;
    p.min_p = d->min_p >= 0 ? d->min_p : p.min_p;
    p.top_k = d->top_k >= 0 ? d->top_k : p.top_k;
    p.typical_p = d->typical_p >= 0 ? d->typical_p : p.typical_p;
    if (d->repetition_penalty >= 0) { // transformers looks back over everything
        p.repetition_penalty = d->repetition_penalty;
        p.repetition_context = 0;
    }
    p.min_tokens = d->min_new_tokens >= 0 ? (uint32_t)d->min_new_tokens : p.min_tokens;
    // What an author asks for beyond the range of a request is its end, not a model that answers nobody.
    for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++) {
        double value = sampler_option_get(&p, i), max = SAMPLER_OPTIONS[i].max;
        if (value > max)
            sampler_option_set(&p, i, max);
    }
    return p;
}

uint32_t bundle_max_tokens(const struct bundle *bundle) {
    int32_t n = model_config_of(bundle->model)->generation.max_new_tokens;
    return n > 0 ? (uint32_t)n : 0;
}
