#include "engine/sentence.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file_map.h"
#include "base/half.h"
#include "base/json.h"

enum { FILE_BYTES_MAX = 1 << 20, DENSE_DIMS_MAX = 1 << 16 };

// A small JSON file of the folder; *out NULL if it is not there.
static bool read_json(const char *folder, const char *name, json_t **out, struct err *err) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    *out = NULL;
    if (n < 0 || (size_t)n >= sizeof path || !path_exists(path))
        return true;
    struct strbuf text = {0};
    *out = file_read(path, FILE_BYTES_MAX, &text, err) ? json_parse(strbuf_str(&text), path, err) : NULL;
    strbuf_deinit(&text);
    return *out != NULL;
}

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "out of memory for the layers behind the model");
}

static void pool_by(struct sentence *s, struct str name, const char *whole) {
    static const struct {
        const char *name;
        enum model_pooling pooling;
    } WAYS[] = {{"lasttoken", MODEL_POOL_LAST}, {"cls", MODEL_POOL_FIRST}, {"mean", MODEL_POOL_MEAN},
                {"cls_token", MODEL_POOL_FIRST}, {"mean_tokens", MODEL_POOL_MEAN}};
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        if (str_eq_c(name, WAYS[i].name)) {
            if (s->given && s->pooling != WAYS[i].pooling)
                s->lacking = "several poolings at once";
            s->given = true;
            s->pooling = WAYS[i].pooling;
            return;
        }
    }
    s->lacking = arena_printf(&s->arena, "%.60s", whole);
}

static bool read_pooling(struct sentence *s, const char *folder, struct err *err) {
    json_t *config, *value;
    const char *key;
    if (!read_json(folder, "1_Pooling/config.json", &config, err))
        return false;
    json_object_foreach(config, key, value) {
        if (strncmp(key, "pooling_mode", 12) == 0 && json_is_string(value))
            pool_by(s, json_str(value), json_string_value(value));
        else if (strncmp(key, "pooling_mode_", 13) == 0 && json_is_true(value))
            pool_by(s, str_from(key + 13), key);
    }
    json_decref(config);
    return true;
}

// A float32 copy of a tensor of n elements; NULL with *err.
static const float *read_tensor(struct sentence *s, const struct weights *weights, const char *name, size_t n,
                                const char *path, struct err *err) {
    const struct tensor *tensor = weights_find(weights, name);
    size_t n_bytes;
    if (!tensor || tensor->data.n / dtype_bytes(tensor->dtype) != n) {
        err_set(err, ERR_FORMAT, "%s: tensor %s %s", path, name, tensor ? "has another shape than the layer's config says"
                                                                        : "is missing");
        return NULL;
    }
    float *out = mul_size(n, sizeof *out, &n_bytes) ? arena_array(&s->arena, float, n) : NULL;
    if (!out) {
        no_memory(err);
        return NULL;
    }
    const uint8_t *in = tensor->data.data;
    for (size_t i = 0; i < n; i++) {
        uint16_t narrow;
        switch (tensor->dtype) {
        case DTYPE_F32:
            memcpy(&out[i], in + 4 * i, 4);
            break;
        case DTYPE_BF16:
        case DTYPE_F16:
            memcpy(&narrow, in + 2 * i, 2);
            out[i] = tensor->dtype == DTYPE_BF16 ? bf16_to_f32(narrow) : f16_to_f32(narrow);
            break;
        default:
            err_set(err, ERR_UNSUPPORTED, "%s: tensor %s has dtype %s; loam reads F32, F16 and BF16 there", path, name,
                    dtype_name(tensor->dtype));
            return NULL;
        }
    }
    return out;
}

static bool read_dense(struct sentence *s, const char *folder, const char *module, struct err *err) {
    char path[PATH_MAX], name[PATH_MAX];
    snprintf(name, sizeof name, "%.200s/config.json", module);
    snprintf(path, sizeof path, "%.3000s/%.200s", folder, module);
    json_t *config;
    if (!read_json(folder, name, &config, err))
        return false;
    struct sentence_dense *d = &s->dense[s->n_dense];
    bool bias = true;
    struct str activation = STR("torch.nn.modules.activation.Tanh");
    bool ok = config != NULL || err_set(err, ERR_NOT_FOUND, "%s: there is no config.json", path);
    ok = ok && json_get_u32(config, "in_features", &d->n_in, path, err) &&
         json_get_u32(config, "out_features", &d->n_out, path, err) && json_get_bool(config, "bias", &bias, path, err) &&
         json_get_str(config, "activation_function", &activation, path, err);
    bool identity = str_eq_c(activation, "torch.nn.modules.linear.Identity");
    d->tanh = str_eq_c(activation, "torch.nn.modules.activation.Tanh");
    if (ok && !identity && !d->tanh)
        s->lacking = arena_printf(&s->arena, "%.*s", (int)min_size(activation.n, 60), activation.data);
    json_decref(config);
    if (ok && (d->n_in == 0 || d->n_in > DENSE_DIMS_MAX || d->n_out == 0 || d->n_out > DENSE_DIMS_MAX))
        ok = err_set(err, ERR_FORMAT, "%s: a layer of %u to %u dimensions is none that loam runs", path, d->n_in, d->n_out);
    struct weights *weights = ok ? weights_open(path, err) : NULL;
    if (!weights)
        return false;
    d->weight = read_tensor(s, weights, "linear.weight", (size_t)d->n_in * d->n_out, path, err);
    d->bias = d->weight && bias ? read_tensor(s, weights, "linear.bias", d->n_out, path, err) : NULL;
    weights_close(weights);
    if (!d->weight || (bias && !d->bias))
        return false;
    s->n_dense++;
    return true;
}

static bool read_modules(struct sentence *s, const char *folder, uint32_t n_dims, struct err *err) {
    json_t *modules;
    if (!read_json(folder, "modules.json", &modules, err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(modules); i++) {
        const json_t *module = json_array_get(modules, i);
        const char *type = json_string_value(json_object_get(module, "type"));
        const char *path = json_string_value(json_object_get(module, "path"));
        const char *kind = type ? strrchr(type, '.') : NULL;
        kind = kind ? kind + 1 : "";
        if (strcmp(kind, "Transformer") == 0 || strcmp(kind, "Pooling") == 0 || strcmp(kind, "Normalize") == 0)
            continue;
        if (strcmp(kind, "Dense") != 0 || !path || strstr(path, "..") || path[0] == '/' || s->n_dense == SENTENCE_DENSE_MAX)
            s->lacking = arena_printf(&s->arena, "%.60s", kind);
        else
            ok = read_dense(s, folder, path, err);
    }
    json_decref(modules);
    for (uint32_t i = 0; ok && i < s->n_dense; i++)
        if (s->dense[i].n_in != (i ? s->dense[i - 1].n_out : n_dims))
            ok = err_set(err, ERR_FORMAT, "%s: its dense layers do not fit each other", folder);
    if (ok && s->n_dense && s->dense[s->n_dense - 1].n_out != n_dims)
        s->lacking = "a dense layer that changes the dimensions";
    return ok;
}

static bool read_prompt(struct sentence *s, const char *folder, struct err *err) {
    json_t *config;
    if (!read_json(folder, "config_sentence_transformers.json", &config, err))
        return false;
    const char *name = json_string_value(json_object_get(config, "default_prompt_name"));
    struct str prompt = name ? json_str(json_object_get(json_object_get(config, "prompts"), name)) : (struct str){0};
    bool ok = prompt.n == 0 || arena_copy(&s->arena, prompt, &s->prompt) || no_memory(err);
    json_decref(config);
    return ok;
}

bool sentence_open(struct sentence *s, const char *folder, uint32_t n_dims, struct err *err) {
    *s = (struct sentence){.pooling = MODEL_POOL_LAST};
    return read_pooling(s, folder, err) && read_modules(s, folder, n_dims, err) && read_prompt(s, folder, err);
}

void sentence_close(struct sentence *s) {
    arena_deinit(&s->arena);
    *s = (struct sentence){0};
}

bool sentence_apply(const struct sentence *s, float *values, uint32_t n, struct err *err) {
    uint32_t widest = n;
    for (uint32_t i = 0; i < s->n_dense; i++)
        widest = max_u32(widest, s->dense[i].n_out);
    float *in = s->n_dense ? malloc(2 * (size_t)widest * sizeof *in) : NULL, *out = in ? in + widest : NULL;
    if (s->n_dense && !in)
        return no_memory(err);
    if (in)
        memcpy(in, values, n * sizeof *in);
    for (uint32_t i = 0; i < s->n_dense; i++) {
        const struct sentence_dense *d = &s->dense[i];
        for (uint32_t o = 0; o < d->n_out; o++) {
            double sum = d->bias ? (double)d->bias[o] : 0;
            for (uint32_t j = 0; j < d->n_in; j++)
                sum += (double)d->weight[(size_t)o * d->n_in + j] * (double)in[j];
            out[o] = (float)(d->tanh ? tanh(sum) : sum);
        }
        memcpy(in, out, d->n_out * sizeof *in);
    }
    if (in)
        memcpy(values, in, n * sizeof *in);
    free(in);
    return true;
}
