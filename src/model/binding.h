// model/binding.h - from names in a model folder to weights in a backend's keeping.
// What a model binds is kept in its store and freed with it. Owned by the loading thread.
#ifndef LOAM_MODEL_BINDING_H
#define LOAM_MODEL_BINDING_H
#include "artifact/model_config.h"
#include "artifact/weights.h"
#include "backend/backend.h"

// Everything a model took from a backend, for one exit path.
struct model_store {
    struct backend *be;
    struct weight **weights; // [n_weights] owned
    void **vectors;          // [n_vectors] owned: backend memory
    void **buffers;          // [n_buffers] owned: host memory that weights borrow (transposed copies)
    size_t n_weights, n_vectors, n_buffers;
    uint64_t weight_bytes; // of the files, as bound
};
void model_store_deinit(struct model_store *store); // a zeroed one is allowed
// Zeroed backend memory that lives with the store.
void *model_store_alloc(struct model_store *store, size_t n_bytes, struct err *err);
// Zeroed host memory likewise.
void *model_store_host(struct model_store *store, size_t n_bytes, struct err *err);

struct binder {
    struct model_store *store;
    struct weights *weights;
    const struct model_config *config;
    const char *prefix; // of the text model's tensors: "model.", "language_model.model.", ...
};

// Find the prefix: the one under which `probe` ("embed_tokens.weight") exists. Without any it is "model.",
// so that the message about the missing tensor reads naturally.
void binder_init(struct binder *binder, struct model_store *store, struct weights *weights,
                 const struct model_config *config, const char *probe);

// A path formatted under the binder's prefix; a leading '/' means no prefix ("/lm_head").
enum { BIND_PATH_BYTES = 256 };
void bind_path(const struct binder *binder, char out[BIND_PATH_BYTES], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool bind_has(const struct binder *binder, const char *tensor_name);

// A part of a stored matrix: rows [from, from + n_out) of n_out_total, of one expert of a stack.
struct bind_shape {
    uint32_t n_out, n_in;
    uint32_t n_out_total, from; // n_out_total 0: the whole matrix
    uint32_t n_experts, expert; // n_experts 0: no stack
};

// The matrix of the module at `path` (path.weight, and path.scales, path.biases if it is quantized), with
// its shape checked. NULL with ERR_FORMAT (missing, wrong shape, packing that does not divide),
// ERR_UNSUPPORTED (a format that loam does not read), or the backend's error.
struct weight *bind_matrix(struct binder *binder, const char *path, struct bind_shape shape,
                           struct err *err);
static inline struct weight *bind_linear(struct binder *binder, const char *path, uint32_t n_out,
                                         uint32_t n_in, struct err *err) {
    return bind_matrix(binder, path, (struct bind_shape){.n_out = n_out, .n_in = n_in}, err);
}

// A matrix that the family describes itself, in memory that lives with the store or the mapping; file_bytes
// is what it takes in the files.
struct weight *bind_desc(struct binder *binder, const struct weight_desc *desc, size_t file_bytes,
                         const char *path, struct err *err);

// The matrix made of n_out chosen rows of the module's n_out_total, in that order: a copy in host memory, for
// layouts that interleave what belongs apart.
struct weight *bind_rows(struct binder *binder, const char *path, uint32_t n_out_total, uint32_t n_in,
                         const uint32_t *rows, uint32_t n_out, struct err *err);

// Vectors are taken by their number of elements; where a file's tensor has more dimensions than one, this holds
// them to what they must be. ERR_FORMAT naming both shapes.
bool bind_expect_shape(struct binder *binder, const char *tensor_name, uint32_t n_dims,
                       const uint64_t *dims, struct err *err);

// A float32 vector of a dense tensor of n elements (any shape), each plus `add`. `from` of a longer
// tensor of n_total elements; n_total 0 = n.
float *bind_vector(struct binder *binder, const char *tensor_name, uint32_t n, float add, struct err *err);
float *bind_vector_part(struct binder *binder, const char *tensor_name, uint32_t n_total, uint32_t from,
                        uint32_t n, float add, struct err *err);
// The elements of a dense tensor as float32 in host memory `out` [n]. ERR_FORMAT if its count differs.
bool bind_values(struct binder *binder, const char *tensor_name, float *out, size_t n, struct err *err);
#endif
