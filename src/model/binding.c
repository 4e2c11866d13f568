#include "model/binding.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"

void model_store_deinit(struct model_store *store) {
    for (size_t i = 0; i < store->n_weights; i++)
        store->be->ops->weight_destroy(store->be, store->weights[i]);
    for (size_t i = 0; i < store->n_vectors; i++)
        store->be->ops->free(store->be, store->vectors[i]);
    for (size_t i = 0; i < store->n_buffers; i++)
        free(store->buffers[i]);
    free(store->weights);
    free(store->vectors);
    free(store->buffers);
    *store = (struct model_store){0};
}

// Append to a growing array of pointers: capacities are the powers of two from 16.
static bool keep(void ***list, size_t *n, void *item) {
    if (*n == 0 || (*n >= 16 && (*n & (*n - 1)) == 0)) {
        size_t capacity = *n ? *n * 2 : 16;
        void **grown = realloc(*list, capacity * sizeof *grown);
        if (!grown)
            return false;
        *list = grown;
    }
    (*list)[(*n)++] = item;
    return true;
}

void *model_store_alloc(struct model_store *store, size_t n_bytes, struct err *err) {
    void *p = store->be->ops->alloc(store->be, n_bytes, err);
    if (p && !keep(&store->vectors, &store->n_vectors, p)) {
        store->be->ops->free(store->be, p);
        err_set(err, ERR_NOMEM, "out of memory for the model's tables");
        return NULL;
    }
    return p;
}

void *model_store_host(struct model_store *store, size_t n_bytes, struct err *err) {
    void *p = calloc(1, n_bytes ? n_bytes : 1);
    if (!p || !keep(&store->buffers, &store->n_buffers, p)) {
        free(p);
        err_set(err, ERR_NOMEM, "out of memory for %zu bytes of the model's tables", n_bytes);
        return NULL;
    }
    return p;
}

void binder_init(struct binder *binder, struct model_store *store, struct weights *weights,
                 const struct model_config *config, const char *probe) {
    static const char *const PREFIXES[] = {
        "model.", "language_model.model.", "model.language_model.", "model.language_model.model.", "",
        "language_model.", "transformer.", "bert.", "roberta.",
    };
    *binder = (struct binder){store, weights, config, "model."};
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++) {
        char name[BIND_PATH_BYTES];
        snprintf(name, sizeof name, "%s%s", PREFIXES[i], probe);
        if (weights_find(weights, name)) {
            binder->prefix = PREFIXES[i];
            return;
        }
    }
}

void bind_path(const struct binder *binder, char out[BIND_PATH_BYTES], const char *format, ...) {
    bool absolute = format[0] == '/';
    int n = snprintf(out, BIND_PATH_BYTES, "%s", absolute ? "" : binder->prefix);
    va_list args;
    va_start(args, format);
    vsnprintf(out + n, BIND_PATH_BYTES - (size_t)n, format + (absolute ? 1 : 0), args);
    va_end(args);
}

bool bind_has(const struct binder *binder, const char *tensor_name) {
    return weights_find(binder->weights, tensor_name) != NULL;
}

struct weight *bind_desc(struct binder *binder, const struct weight_desc *desc, size_t file_bytes,
                         const char *path, struct err *err) {
    struct model_store *store = binder->store;
    struct weight *weight = store->be->ops->weight_create(store->be, desc, err);
    if (!weight) {
        err_wrap(err, "%s", path);
        return NULL;
    }
    if (!keep((void ***)&store->weights, &store->n_weights, weight)) {
        store->be->ops->weight_destroy(store->be, weight);
        err_set(err, ERR_NOMEM, "out of memory for the model's weights");
        return NULL;
    }
    store->weight_bytes += file_bytes;
    return weight;
}

// Take `path.suffix` with dims [n_experts,] n_out_total, width and point at the wanted part.
static const uint8_t *take_part(struct binder *binder, const char *path, const char *suffix,
                                const struct bind_shape *shape, uint64_t width, enum dtype *dtype,
                                size_t *part_bytes, struct err *err) {
    char name[BIND_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    uint64_t dims[3] = {shape->n_experts, shape->n_out_total, width};
    uint32_t skip = shape->n_experts ? 0 : 1;
    const struct tensor *tensor =
        weights_take_shaped(binder->weights, name, 3 - skip, dims + skip, err);
    if (!tensor)
        return NULL;
    *dtype = tensor->dtype;
    size_t row_bytes = (size_t)width * dtype_bytes(tensor->dtype);
    *part_bytes = row_bytes * shape->n_out;
    return tensor->data.data + row_bytes * ((size_t)shape->expert * shape->n_out_total + shape->from);
}

static bool dense_format(enum dtype dtype, enum weight_format *out) {
    switch (dtype) {
    case DTYPE_F32:
        *out = WEIGHT_F32;
        return true;
    case DTYPE_F16:
        *out = WEIGHT_F16;
        return true;
    case DTYPE_BF16:
        *out = WEIGHT_BF16;
        return true;
    default:
        return false;
    }
}

// What the files hold of a module: its description, and how many bytes that is.
static bool describe_dense(struct binder *binder, const char *path, const struct bind_shape *shape,
                           struct weight_desc *desc, size_t *file_bytes, struct err *err) {
    enum dtype dtype;
    // Some exports name a stacked parameter itself, without ".weight".
    char name[BIND_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s.weight", path);
    const char *suffix = !bind_has(binder, name) && bind_has(binder, path) ? "" : ".weight";
    const uint8_t *data = take_part(binder, path, suffix, shape, shape->n_in, &dtype, file_bytes, err);
    *desc = (struct weight_desc){.n_out = shape->n_out, .n_in = shape->n_in, .data = data};
    if (data && !dense_format(dtype, &desc->format))
        return err_set(err, ERR_UNSUPPORTED, "tensor %s%s has dtype %s; loam reads F32, F16 and BF16 there",
                       path, suffix, dtype_name(dtype));
    return data != NULL;
}

static bool describe_quantized(struct binder *binder, const char *path, const struct bind_shape *shape,
                               struct weight_desc *desc, size_t *file_bytes, struct err *err) {
    struct quant_spec spec;
    if (!model_config_quant(binder->config, path, &spec, err))
        return false;
    if (spec.mode == QUANT_NONE) {
        err_set(err, ERR_FORMAT, "%s.scales is in the weights, but config.json does not say how %s is "
                "quantized", path, path);
        return false;
    }
    if (shape->n_in % spec.group || (uint64_t)shape->n_in * spec.bits % 32) {
        err_set(err, ERR_FORMAT, "%s: %u inputs cannot be cut into groups of %u weights of %u bits", path,
                shape->n_in, spec.group, spec.bits);
        return false;
    }
    uint64_t words = (uint64_t)shape->n_in * spec.bits / 32, groups = shape->n_in / spec.group;
    enum dtype dtype, scale_dtype, bias_dtype;
    size_t bytes = 0, scale_bytes = 0, bias_bytes = 0;
    *desc = (struct weight_desc){.n_out = shape->n_out, .n_in = shape->n_in, .bits = spec.bits,
                               .group = spec.group};
    desc->data = take_part(binder, path, ".weight", shape, words, &dtype, &bytes, err);
    if (!desc->data)
        return false;
    desc->scales = take_part(binder, path, ".scales", shape, groups, &scale_dtype, &scale_bytes, err);
    if (!desc->scales)
        return false;
    if (dtype != DTYPE_U32) {
        err_set(err, ERR_FORMAT, "tensor %s.weight has dtype %s; packed weights are U32", path,
                dtype_name(dtype));
        return false;
    }
    enum weight_format float_scale;
    if (spec.mode == QUANT_AFFINE) {
        desc->format = WEIGHT_AFFINE;
        desc->scale_dtype = scale_dtype;
        desc->biases = take_part(binder, path, ".biases", shape, groups, &bias_dtype, &bias_bytes, err);
        if (!desc->biases)
            return false;
        if (!dense_format(scale_dtype, &float_scale) || bias_dtype != scale_dtype) {
            err_set(err, ERR_FORMAT, "%s: scales are %s and biases %s; both must be one of F32, F16, BF16",
                    path, dtype_name(scale_dtype), dtype_name(bias_dtype));
            return false;
        }
    } else {
        desc->format = spec.mode == QUANT_MXFP4   ? WEIGHT_MXFP4
                      : spec.mode == QUANT_MXFP8 ? WEIGHT_MXFP8
                                                 : WEIGHT_NVFP4;
        desc->scale_dtype = scale_dtype;
        if (dtype_bytes(scale_dtype) != 1) {
            err_set(err, ERR_FORMAT, "%s: scales are %s; this quantization mode has one-byte scales", path,
                    dtype_name(scale_dtype));
            return false;
        }
    }
    *file_bytes = bytes + scale_bytes + bias_bytes;
    return true;
}

static bool describe(struct binder *binder, const char *path, struct bind_shape shape,
                     struct weight_desc *desc, size_t *file_bytes, struct err *err) {
    if (shape.n_out_total == 0)
        shape.n_out_total = shape.n_out;
    assert(shape.from + shape.n_out <= shape.n_out_total);
    char name[BIND_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s.scales", path);
    return bind_has(binder, name) ? describe_quantized(binder, path, &shape, desc, file_bytes, err)
                                  : describe_dense(binder, path, &shape, desc, file_bytes, err);
}

struct weight *bind_matrix(struct binder *binder, const char *path, struct bind_shape shape,
                           struct err *err) {
    struct weight_desc desc;
    size_t file_bytes;
    if (!describe(binder, path, shape, &desc, &file_bytes, err))
        return NULL;
    return bind_desc(binder, &desc, file_bytes, path, err);
}

// Copy chosen rows of row_bytes each into memory of the store; NULL stays NULL.
static bool gather_rows(struct binder *binder, const void **data, size_t row_bytes, const uint32_t *rows,
                        uint32_t n, struct err *err) {
    if (!*data)
        return true;
    uint8_t *copy = model_store_host(binder->store, row_bytes * n, err);
    if (!copy)
        return false;
    for (uint32_t i = 0; i < n; i++)
        memcpy(copy + row_bytes * i, (const uint8_t *)*data + row_bytes * rows[i], row_bytes);
    *data = copy;
    return true;
}

struct weight *bind_rows(struct binder *binder, const char *path, uint32_t n_out_total, uint32_t n_in,
                         const uint32_t *rows, uint32_t n_out, struct err *err) {
    struct weight_desc desc;
    size_t file_bytes;
    if (!describe(binder, path, (struct bind_shape){.n_out = n_out_total, .n_in = n_in}, &desc, &file_bytes,
                  err))
        return NULL;
    size_t scale_bytes = desc.scales ? dtype_bytes(desc.scale_dtype) * (n_in / desc.group) : 0;
    size_t row_bytes = file_bytes / n_out_total - scale_bytes * (desc.biases ? 2 : 1);
    if (!gather_rows(binder, &desc.data, row_bytes, rows, n_out, err) ||
        !gather_rows(binder, &desc.scales, scale_bytes, rows, n_out, err) ||
        !gather_rows(binder, &desc.biases, scale_bytes, rows, n_out, err))
        return NULL;
    desc.n_out = n_out;
    return bind_desc(binder, &desc, file_bytes / n_out_total * n_out, path, err);
}

static bool widen(const struct tensor *tensor, size_t from, float *out, size_t n, float add,
                  struct err *err) {
    const uint8_t *data = tensor->data.data + from * dtype_bytes(tensor->dtype);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        float v;
        switch (tensor->dtype) {
        case DTYPE_F32:
            memcpy(&v, data + 4 * i, 4);
            break;
        case DTYPE_F16:
            memcpy(&half, data + 2 * i, 2);
            v = f16_to_f32(half);
            break;
        case DTYPE_BF16:
            memcpy(&half, data + 2 * i, 2);
            v = bf16_to_f32(half);
            break;
        default:
            return err_set(err, ERR_UNSUPPORTED, "tensor %.*s has dtype %s; loam reads F32, F16 and BF16 "
                           "there", (int)tensor->name.n, tensor->name.data, dtype_name(tensor->dtype));
        }
        out[i] = v + add;
    }
    return true;
}

static size_t n_elements(const struct tensor *tensor) {
    return tensor->data.n / dtype_bytes(tensor->dtype);
}

bool bind_expect_shape(struct binder *binder, const char *tensor_name, uint32_t n_dims,
                       const uint64_t *dims, struct err *err) {
    return weights_take_shaped(binder->weights, tensor_name, n_dims, dims, err) != NULL;
}

bool bind_values(struct binder *binder, const char *tensor_name, float *out, size_t n, struct err *err) {
    const struct tensor *tensor = weights_take(binder->weights, tensor_name, err);
    if (!tensor)
        return false;
    if (n_elements(tensor) != n)
        return err_set(err, ERR_FORMAT, "tensor %s has %zu elements; the config asks for %zu", tensor_name,
                       n_elements(tensor), n);
    return widen(tensor, 0, out, n, 0, err);
}

float *bind_vector_part(struct binder *binder, const char *tensor_name, uint32_t n_total, uint32_t from,
                        uint32_t n, float add, struct err *err) {
    const struct tensor *tensor = weights_take(binder->weights, tensor_name, err);
    if (!tensor)
        return NULL;
    if (n_elements(tensor) != (n_total ? n_total : n)) {
        err_set(err, ERR_FORMAT, "tensor %s has %zu elements; the config asks for %u", tensor_name,
                n_elements(tensor), n_total ? n_total : n);
        return NULL;
    }
    float *host = malloc(n * sizeof *host);
    if (!host) {
        err_set(err, ERR_NOMEM, "out of memory for %s", tensor_name);
        return NULL;
    }
    float *vector = NULL;
    if (widen(tensor, from, host, n, add, err))
        vector = model_store_alloc(binder->store, n * sizeof *host, err);
    if (vector)
        binder->store->be->ops->upload(binder->store->be, vector, host, n * sizeof *host);
    free(host);
    return vector;
}

float *bind_vector(struct binder *binder, const char *tensor_name, uint32_t n, float add,
                   struct err *err) {
    return bind_vector_part(binder, tensor_name, 0, 0, n, add, err);
}
