// artifact/weights.h - the tensors of a model folder: safetensors, one file or shards with an index,
// mapped read-only and completely checked at the door.
// Owned by the loading thread while tensors are taken; afterwards immutable, any thread may read.
#ifndef LOAM_ARTIFACT_WEIGHTS_H
#define LOAM_ARTIFACT_WEIGHTS_H
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/err.h"

enum { TENSOR_DIMS_MAX = 8 };

struct tensor {
    struct str name;
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t dims[TENSOR_DIMS_MAX]; // contiguous axis last
    struct bytes data;              // borrowed from the mapping, until weights_close
};

// ---- One safetensors file -----------------------------------------------------------------------
// Source: the safetensors format (huggingface/safetensors README): u64 header bytes, JSON header,
// data. Parsed from bytes, not paths.
struct safetensors;

// Read the header of a whole file's bytes (borrowed until safetensors_destroy). Header length, JSON
// shape, offsets, holes, overlaps, and shape x dtype = bytes are all checked. `what` names the file in
// messages. NULL with ERR_FORMAT (what is wrong and with which tensor), ERR_UNSUPPORTED (a dtype
// unknown here), ERR_NOMEM.
struct safetensors *safetensors_create(struct bytes file, const char *what, struct err *err);
// The same from the header alone, the whole file being file_bytes long: tensors' data are NULL with
// their lengths set. For scanning without mapping (`head` must hold at least the header).
struct safetensors *safetensors_create_header(struct bytes head, uint64_t file_bytes, const char *what,
                                              struct err *err);
void safetensors_destroy(struct safetensors *file);
size_t safetensors_n_tensors(const struct safetensors *file);
const struct tensor *safetensors_tensor(const struct safetensors *file, size_t idx); // file order
const struct tensor *safetensors_find(const struct safetensors *file, struct str name);

// ---- A model folder's weights -----------------------------------------------------------------
struct weights;

// Map every shard of `folder`: model.safetensors.index.json's, else model.safetensors, else all
// *.safetensors files that are no adapter, golden or sidecar. ERR_NOT_FOUND if there is none, or if
// the index names a shard that is missing; ERR_FORMAT; ERR_IO; ERR_NOMEM.
struct weights *weights_open(const char *folder, struct err *err);
// The same to look at names, shapes and sizes only: data may be unaligned and are never touched.
struct weights *weights_open_headers(const char *folder, struct err *err);
// One file's bytes as a folder's weights (the built-in model). The bytes stay the caller's.
struct weights *weights_create(struct bytes file, const char *what, struct err *err);
void weights_close(struct weights *weights); // NULL is allowed

size_t weights_n_tensors(const struct weights *weights);
const struct tensor *weights_tensor(const struct weights *weights, size_t idx);
uint64_t weights_bytes(const struct weights *weights); // of tensor data, all shards

// Look without touching: NULL if there is no such tensor.
const struct tensor *weights_find(const struct weights *weights, const char *name);

// The tensor, marked as read. NULL with ERR_FORMAT "missing tensor <name>".
const struct tensor *weights_take(struct weights *weights, const char *name, struct err *err);
// The same, and its shape must be these n_dims dims: else ERR_FORMAT naming both shapes.
const struct tensor *weights_take_shaped(struct weights *weights, const char *name, uint32_t n_dims,
                                         const uint64_t *dims, struct err *err);
// Mark as read what a family recognises and leaves alone.
void weights_ignore(struct weights *weights, const struct tensor *tensor);

// The audit: every tensor must have been taken, ignored, or be in the table of known-ignorable names
// (weights.c). Else ERR_FORMAT "tensor <name> ... is not used by model type <type>" (the first few,
// and how many more).
bool weights_audit(const struct weights *weights, const char *model_type, struct err *err);

// Read all shards into memory and keep them there until weights_close(), whatever else wants memory. ERR_NOMEM says
// how much is wanted and what the process may lock.
bool weights_lock(const struct weights *weights, struct err *err);
// Tell the kernel that all will be read soon (MADV_WILLNEED).
void weights_prefetch(const struct weights *weights);
#endif
