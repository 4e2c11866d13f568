#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "artifact/tensor_table.h"
#include "artifact/weights.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/json.h"
#include "base/reader.h"

enum {
    HEADER_BYTES_MAX = 100 * 1000 * 1000, // the limit of the format's own library
    NAME_BYTES_MAX = 1024,
};

struct safetensors {
    struct arena arena;     // owns the tensors, their names and the table
    struct tensor *tensors; // [n], by data offset
    size_t n;
    struct tensor_table table;
};

// What is being read, for messages and bounds.
struct header {
    const char *what;
    uint64_t data_bytes;  // of the file behind the header
    const uint8_t *data;  // NULL when only the header is here
};

// A tensor and where its data begins, to sort by.
struct placed {
    struct tensor tensor;
    uint64_t begin;
};

static bool parse_dtype(const json_t *value, enum dtype *out) {
    for (int i = 0; i < DTYPE_N; i++) {
        if (str_eq_c(json_str(value), dtype_name((enum dtype)i))) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

static bool name_is_plain(struct str name) {
    if (name.n == 0 || name.n > NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.data[i] < 0x20 || name.data[i] == 0x7F)
            return false;
    return true;
}

// One of the two numbers of data_offsets, or a dimension.
static bool parse_count(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool parse_shape(const json_t *shape, const struct header *header, struct tensor *out,
                        uint64_t *n_bytes, struct err *err) {
    const char *what = header->what, *name = out->name.data;
    if (!json_is_array(shape))
        return err_set(err, ERR_FORMAT, "%s: tensor %s: \"shape\" must be an array", what, name);
    if (json_array_size(shape) > TENSOR_DIMS_MAX)
        return err_set(err, ERR_FORMAT, "%s: tensor %s has %zu dimensions, limit %d", what, name,
                       json_array_size(shape), TENSOR_DIMS_MAX);
    out->n_dims = (uint32_t)json_array_size(shape);
    bool fits = true;
    *n_bytes = dtype_bytes(out->dtype);
    for (uint32_t i = 0; i < out->n_dims; i++) {
        if (!parse_count(json_array_get(shape, i), &out->dims[i]))
            return err_set(err, ERR_FORMAT,
                           "%s: tensor %s: dimension %u is not an integer of 0 or more", what, name, i);
        fits = fits && !__builtin_mul_overflow(*n_bytes, out->dims[i], n_bytes);
    }
    // A product that wraps is wrong even if a later dimension is 0: nothing real looks like that.
    if (!fits)
        return err_set(err, ERR_FORMAT, "%s: tensor %s: the shape is larger than any file", what, name);
    return true;
}

static bool parse_tensor(struct safetensors *file, const struct header *header, struct str name,
                         const json_t *value, struct placed *placed, struct err *err) {
    const char *what = header->what;
    struct tensor *out = &placed->tensor;
    if (!name_is_plain(name))
        return err_set(err, ERR_FORMAT,
                       "%s: a tensor's name is empty, longer than %d bytes or has control characters",
                       what, NAME_BYTES_MAX);
    if (!arena_copy(&file->arena, name, &out->name))
        return err_set(err, ERR_NOMEM, "%s: out of memory", what);
    const json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape"),
                 *offsets = json_object_get(value, "data_offsets");
    if (!json_is_string(dtype))
        return err_set(err, ERR_FORMAT, "%s: tensor %s has no \"dtype\"", what, name.data);
    if (!parse_dtype(dtype, &out->dtype))
        return err_set(err, ERR_UNSUPPORTED, "%s: tensor %s has dtype %.64s, which loam does not read",
                       what, name.data, json_string_value(dtype));
    uint64_t n_bytes = 0, begin, end;
    if (!parse_shape(shape, header, out, &n_bytes, err))
        return false;
    if (json_array_size(offsets) != 2 || !parse_count(json_array_get(offsets, 0), &begin) ||
        !parse_count(json_array_get(offsets, 1), &end) || begin > end)
        return err_set(err, ERR_FORMAT,
                       "%s: tensor %s: \"data_offsets\" must be two ascending numbers", what, name.data);
    if (end > header->data_bytes)
        return err_set(err, ERR_FORMAT,
                       "%s: tensor %s ends at data byte %" PRIu64 ", but the file has only %" PRIu64
                       ": it is truncated; download it again",
                       what, name.data, end, header->data_bytes);
    if (end - begin != n_bytes)
        return err_set(err, ERR_FORMAT,
                       "%s: tensor %s has %" PRIu64 " bytes, but its shape and dtype %s need %" PRIu64,
                       what, name.data, end - begin, dtype_name(out->dtype), n_bytes);
    placed->begin = begin;
    out->data = (struct bytes){header->data ? header->data + begin : NULL, (size_t)n_bytes};
    return true;
}

static int by_offset(const void *a, const void *b) {
    const struct placed *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    // An empty tensor shares its offset with the one behind it.
    if (x->tensor.data.n != y->tensor.data.n)
        return x->tensor.data.n < y->tensor.data.n ? -1 : 1;
    return strcmp(x->tensor.name.data, y->tensor.name.data);
}

// The data section is covered exactly: no byte twice, none unused.
static bool check_layout(const struct placed *placed, size_t n, const struct header *header,
                         struct err *err) {
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (placed[i].begin < at)
            return err_set(err, ERR_FORMAT, "%s: tensors %s and %s overlap", header->what,
                           placed[i - 1].tensor.name.data, placed[i].tensor.name.data);
        if (placed[i].begin > at)
            return err_set(err, ERR_FORMAT,
                           "%s: %" PRIu64 " bytes before tensor %s belong to no tensor", header->what,
                           placed[i].begin - at, placed[i].tensor.name.data);
        at = placed[i].begin + placed[i].tensor.data.n;
    }
    if (at != header->data_bytes)
        return err_set(err, ERR_FORMAT, "%s: %" PRIu64 " bytes at the end belong to no tensor",
                       header->what, header->data_bytes - at);
    return true;
}

static bool read_tensors(struct safetensors *file, const struct header *header, json_t *root,
                         struct err *err) {
    size_t n = json_object_size(root);
    struct placed *placed = calloc(n ? n : 1, sizeof *placed);
    if (!placed)
        return err_set(err, ERR_NOMEM, "%s: out of memory for %zu tensors", header->what, n);
    bool ok = true;
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            if (!json_is_object(value))
                ok = err_set(err, ERR_FORMAT, "%s: \"__metadata__\" must be an object", header->what);
        } else {
            ok = parse_tensor(file, header, str_from(key), value, &placed[file->n], err);
            file->n += ok;
        }
        if (!ok)
            break;
    }
    if (ok) {
        qsort(placed, file->n, sizeof *placed, by_offset);
        ok = check_layout(placed, file->n, header, err);
    }
    if (ok) {
        file->tensors = arena_array(&file->arena, struct tensor, file->n);
        ok = file->tensors && tensor_table_init(&file->table, &file->arena, file->n);
        if (!ok)
            err_set(err, ERR_NOMEM, "%s: out of memory for %zu tensors", header->what, n);
    }
    for (size_t i = 0; ok && i < file->n; i++) {
        file->tensors[i] = placed[i].tensor;
        tensor_table_insert(&file->table, &file->tensors[i]); // names differ: the JSON reader checked
    }
    free(placed);
    return ok;
}

static bool read_file(struct safetensors *file, struct bytes head, uint64_t file_bytes, bool with_data,
                      const char *what, struct err *err) {
    struct reader in = reader_init(head);
    uint64_t n_header = reader_u64(&in);
    if (in.failed || file_bytes < 8)
        return err_set(err, ERR_FORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file", what,
                       file_bytes);
    if (n_header > HEADER_BYTES_MAX)
        return err_set(err, ERR_FORMAT,
                       "%s: a header of %" PRIu64 " bytes (limit %d): this is no safetensors file", what,
                       n_header, HEADER_BYTES_MAX);
    if (n_header > file_bytes - 8 || n_header > reader_remaining(&in))
        return err_set(err, ERR_FORMAT,
                       "%s: the header says %" PRIu64 " bytes, but only %" PRIu64
                       " follow: the file is truncated; download it again",
                       what, n_header, file_bytes - 8);
    struct str text = reader_str(&in, (size_t)n_header);
    json_t *root = json_parse_unique(text, what, err);
    bool ok = root != NULL;
    if (ok && !json_is_object(root))
        ok = err_set(err, ERR_FORMAT, "%s: the header must be a JSON object", what);
    struct header header = {what, file_bytes - 8 - n_header,
                            with_data ? head.data + 8 + n_header : NULL};
    ok = ok && read_tensors(file, &header, root, err);
    json_decref(root);
    return ok;
}

static struct safetensors *create(struct bytes head, uint64_t file_bytes, bool with_data,
                                  const char *what, struct err *err) {
    struct safetensors *file = calloc(1, sizeof *file);
    if (!file)
        err_set(err, ERR_NOMEM, "%s: out of memory", what);
    else if (read_file(file, head, file_bytes, with_data, what, err))
        return file;
    safetensors_destroy(file);
    return NULL;
}

struct safetensors *safetensors_create(struct bytes bytes, const char *what, struct err *err) {
    return create(bytes, bytes.n, true, what, err);
}

struct safetensors *safetensors_create_header(struct bytes head, uint64_t file_bytes, const char *what,
                                              struct err *err) {
    return create(head, file_bytes, false, what, err);
}

void safetensors_destroy(struct safetensors *file) {
    if (file)
        arena_deinit(&file->arena);
    free(file);
}

size_t safetensors_n_tensors(const struct safetensors *file) {
    return file->n;
}

const struct tensor *safetensors_tensor(const struct safetensors *file, size_t idx) {
    return &file->tensors[idx];
}

const struct tensor *safetensors_find(const struct safetensors *file, struct str name) {
    return tensor_table_find(&file->table, name);
}
