// tests/model/zoo.h - opening a zoo model with its goldens.
#ifndef LOAM_TESTS_MODEL_ZOO_H
#define LOAM_TESTS_MODEL_ZOO_H
#include "check.h"

#include <limits.h>
#include <math.h>

#include "artifact/weights.h"
#include "base/file_map.h"
#include "base/json.h"
#include "engine/direct.h"
#include "model/encoder.h"
#include "model/family.h"
#include "model/model.h"

struct zoo {
    char folder[PATH_MAX];
    struct backend *be;
    struct model *model;
    struct direct *direct;
    struct file_map golden_map;
    struct safetensors *golden;
};

struct zoo_options {
    enum backend_math math;
    enum kv_kind kv;
    uint32_t n_threads, n_rows, ctx_len, chunk;
    const char *cpu_level;
};
static inline struct zoo_options zoo_exact(void) {
    return (struct zoo_options){.math = MATH_EXACT, .kv = KV_F32, .n_threads = 2, .n_rows = 1,
                                .ctx_len = 640, .chunk = 64,
                                .cpu_level = getenv("LOAM_CPU_LEVEL")};
}

// The folder of a zoo model: a copy in tests/models, or the shared zoo; false if neither is there.
static inline bool zoo_folder(const char *name, char out[PATH_MAX]) {
    const char *source = getenv("LOAM_SOURCE_DIR"), *shared = check_shared_folder();
    snprintf(out, PATH_MAX, "%s/tests/models/%s", source ? source : ".", name);
    if (path_is_folder(out))
        return true;
    if (!shared)
        return false;
    snprintf(out, PATH_MAX, "%s/zoo/%s", shared, name);
    return path_is_folder(out);
}

// False for drafters, encoders and models whose text part needs media: other tests hold them.
static inline bool zoo_is_decoder(const char *folder) {
    struct err err = {0};
    struct model_config *config = model_config_open(folder, &err);
    const struct family *family = config ? family_find(config->model_type) : NULL;
    bool decodes = family && !str_eq_c(config->root_model_type, "gemma4_assistant") && family->bind != encoder_bind &&
                   !json_is_true(json_object_get(config->text, "use_bidirectional_attention"));
    model_config_destroy(config);
    return decodes;
}

static inline void zoo_close(struct zoo *zoo) {
    direct_destroy(zoo->direct);
    model_destroy(zoo->model);
    if (zoo->be)
        zoo->be->ops->close(zoo->be);
    safetensors_destroy(zoo->golden);
    file_map_close(&zoo->golden_map);
    *zoo = (struct zoo){0};
}

static inline bool zoo_open(struct zoo *zoo, const char *folder, const struct zoo_options *o,
                            struct err *err) {
    *zoo = (struct zoo){0};
    snprintf(zoo->folder, sizeof zoo->folder, "%s", folder);
    struct backend_options be_options = {.n_threads = o->n_threads, .math = o->math,
                                         .cpu_level = o->cpu_level, .device = -1};
    struct model_options model_options = {.kv = o->kv};
    const char *device = getenv("LOAM_TEST_DEVICE"); // another backend, by hand
    zoo->be = backend_open(device ? device : "cpu", &be_options, err);
    zoo->model = zoo->be ? model_open(folder, zoo->be, &model_options, err) : NULL;
    zoo->direct = zoo->model ? direct_create(zoo->model, o->n_rows, o->ctx_len, o->chunk, o->chunk, err)
                             : NULL;
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    bool ok = zoo->direct && file_map_open(&zoo->golden_map, path, err);
    zoo->golden = ok ? safetensors_create(zoo->golden_map.bytes, path, err) : NULL;
    if (!zoo->golden)
        zoo_close(zoo);
    return zoo->golden != NULL;
}

// A golden tensor's data, *n its elements; NULL if the golden has none.
static inline const void *zoo_golden(const struct zoo *zoo, const char *name, size_t *n) {
    const struct tensor *tensor = safetensors_find(zoo->golden, str_from(name));
    *n = 0;
    if (!tensor)
        return NULL;
    *n = tensor->data.n / dtype_bytes(tensor->dtype);
    return tensor->data.data;
}

static inline double zoo_std(const float *x, size_t n) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
    return sqrt(square);
}

// max |a - b| in units of b's standard deviation.
static inline double zoo_distance(const float *a, const float *b, size_t n) {
    double worst = 0, std = zoo_std(b, n);
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) // NaN counts as worst
            worst = d;
    }
    return worst / std;
}
#endif
