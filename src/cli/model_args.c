#include "cli/model_args.h"

#include <limits.h>
#include <stdio.h>

#include "base/file_map.h"
#include "hub/resolve.h"

struct model_args model_args_default(void) {
    return (struct model_args){.device = "auto", .math = "fast", .kv_dtype = "bf16"};
}

bool model_args_resolve(const struct model_args *args, const char *positional, char *folder,
                        struct bundle_options *options, struct err *err) {
    const char *model = args->model ? args->model : positional;
    if (args->builtin && model)
        return err_set(err, ERR_INVALID, "--builtin and the model \"%s\" exclude each other", model);
    if (!args->builtin && !model)
        return err_set(err, ERR_INVALID, "which model? Give a folder or a name, or --builtin");
    enum kv_kind kv;
    if (!kv_kind_parse(args->kv_dtype, &kv, err))
        return false;
    *options = (struct bundle_options){
        .backend_name = args->device,
        .backend = {.n_threads = (uint32_t)args->n_threads, .pin_threads = args->pin,
                    .math = strcmp(args->math, "exact") == 0 ? MATH_EXACT : MATH_FAST,
                    .cpu_level = args->cpu_level, .device = -1},
        .model = {.kv = kv},
    };
    if (args->builtin && args->lock_weights)
        return err_set(err, ERR_INVALID, "--mlock is for models in files: the demo model lies inside the program");
    options->lock_weights = args->lock_weights;
    if (args->builtin)
        return true;
    struct hub_env env;
    struct hub_resolved found;
    if (!hub_env_read(&env, err) || !hub_resolve_model(&env, model, &found, err))
        return false;
    snprintf(folder, PATH_MAX, "%s", found.folder);
    options->folder = folder;
    return true;
}

bool model_args_open(const struct model_args *args, const char *positional, bool without_tokenizer,
                     struct bundle *bundle, struct err *err) {
    char folder[PATH_MAX];
    struct bundle_options options;
    if (!model_args_resolve(args, positional, folder, &options, err))
        return false;
    options.without_tokenizer = without_tokenizer;
    return bundle_open(bundle, &options, err);
}

bool read_token_file(const char *path, struct token_list *out, struct err *err) {
    struct strbuf text = {0};
    bool ok = file_read(path, 256 << 20, &text, err);
    json_t *array = ok ? json_parse(strbuf_str(&text), path, err) : NULL;
    strbuf_deinit(&text);
    if (!array)
        return false;
    ok = json_is_array(array) && json_array_size(array) > 0;
    for (size_t i = 0; ok && i < json_array_size(array); i++) {
        const json_t *id = json_array_get(array, i);
        ok = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) <= INT32_MAX;
        if (ok)
            token_list_append(out, (token_id)json_integer_value(id));
    }
    json_decref(array);
    if (!ok)
        return err_set(err, ERR_FORMAT, "%s: must be a JSON array of token ids, not empty", path);
    return out->failed ? err_set(err, ERR_NOMEM, "out of memory for %s", path) : true;
}
