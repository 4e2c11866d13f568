#include "artifact/weights.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "artifact/tensor_table.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/file_map.h"
#include "base/json.h"
#include "base/log.h"

#define INDEX_NAME "model.safetensors.index.json"

enum {
    INDEX_BYTES_MAX = 256 * 1024 * 1024,
    SHARDS_MAX = 16384,
    AUDIT_NAMES_MAX = 3,          // unused tensors that a message names
    SUGGESTION_NAME_BYTES_MAX = 256,
};

// Buffers that old exporters saved with the weights and that every loader computes itself. A name
// matches if it is the pattern or ends with "." and the pattern.
static const char *const IGNORABLE[] = {
    "rotary_emb.inv_freq",     // llama, mistral and others, until 2023
    "rotary_pos_emb.inv_freq", // glm
    "attn.masked_bias",        // GPT-2's causal mask
    "attention.masked_bias",   // GPT-NeoX's
    "embeddings.position_ids", // bert: 0, 1, 2 ...
};

// Files beside a model's weights that are no part of them, and the same weights under Mistral's own
// names: matched as a prefix.
static const char *const FOREIGN_FILES[] = {"adapter", "golden", "consolidated", "optimizer",
                                            "training_args"};

struct shard {
    struct file_map map;
    struct safetensors *file;
    const char *name; // in the arena
};

struct entry {
    struct tensor tensor; // first: weights_ignore() goes from the tensor to its entry
    const char *shard;
    bool used;
};

struct weights {
    struct arena arena; // owns the arrays below
    struct shard *shards;
    size_t n_shards;
    struct entry *entries; // [n]
    size_t n;
    struct tensor_table table;
    uint64_t n_bytes;
    bool look_only; // the data will not be read
    void **copies;  // [n_copies], malloc'ed: see align_entry()
    size_t n_copies;
};

// ---- Opening ------------------------------------------------------------------------------------

static bool no_memory(const char *what, struct err *err) {
    return err_set(err, ERR_NOMEM, "%s: out of memory", what);
}

// Files written before safetensors padded its header can leave tensors at odd addresses, which typed
// loads must not see. Only those are copied.
static bool align_entry(struct weights *weights, struct entry *entry, struct err *err) {
    struct bytes *data = &entry->tensor.data;
    size_t element = dtype_bytes(entry->tensor.dtype);
    if (weights->look_only || data->n == 0 || (uintptr_t)data->data % element == 0)
        return true;
    if (!weights->copies) {
        log_warn("artifact: unaligned tensors are copied to memory file=%s", entry->shard);
        weights->copies = arena_array(&weights->arena, void *, weights->n);
    }
    void *copy = weights->copies ? malloc(data->n) : NULL;
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s: out of memory for tensor %s", entry->shard,
                       entry->tensor.name.data);
    memcpy(copy, data->data, data->n);
    data->data = copy;
    weights->copies[weights->n_copies++] = copy;
    return true;
}

// Put the tensors of all shards into one table.
static bool collect(struct weights *weights, const char *what, struct err *err) {
    size_t n = 0;
    for (size_t i = 0; i < weights->n_shards; i++)
        n += safetensors_n_tensors(weights->shards[i].file);
    weights->entries = arena_array(&weights->arena, struct entry, n);
    if (!weights->entries || !tensor_table_init(&weights->table, &weights->arena, n))
        return no_memory(what, err);
    weights->n = n;
    struct entry *entry = weights->entries;
    for (size_t i = 0; i < weights->n_shards; i++) {
        const struct shard *shard = &weights->shards[i];
        for (size_t k = 0; k < safetensors_n_tensors(shard->file); k++, entry++) {
            *entry = (struct entry){*safetensors_tensor(shard->file, k), shard->name, false};
            const struct tensor *other = tensor_table_insert(&weights->table, &entry->tensor);
            if (other)
                return err_set(err, ERR_FORMAT, "%s: tensor %s is in two files, %s and %s", what,
                               entry->tensor.name.data, ((const struct entry *)other)->shard,
                               shard->name);
            weights->n_bytes += entry->tensor.data.n;
            if (!align_entry(weights, entry, err))
                return false;
        }
    }
    return true;
}

static bool open_shard(struct weights *weights, const char *folder, struct str name, struct err *err) {
    struct shard *shard = &weights->shards[weights->n_shards++];
    const char *path = arena_printf(&weights->arena, "%s/%.*s", folder, (int)name.n, name.data);
    shard->name = arena_c_string(&weights->arena, name);
    if (!path || !shard->name)
        return no_memory(folder, err);
    if (!file_map_open(&shard->map, path, err))
        return false;
    shard->file = safetensors_create(shard->map.bytes, path, err);
    return shard->file != NULL;
}

// A file name of this folder, not a path out of it.
static bool shard_name_ok(struct str name) {
    return name.n > 0 && name.n <= NAME_MAX && name.data[0] != '.' && strlen(name.data) == name.n &&
           !memchr(name.data, '/', name.n);
}

// Shards in the order of their first mention.
static bool open_index_shards(struct weights *weights, const char *folder, const json_t *map,
                              json_t *seen, struct err *err) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        if (!json_is_string(value) || !shard_name_ok(json_str(value)))
            return err_set(err, ERR_FORMAT,
                           "%s/" INDEX_NAME ": tensor %.200s: \"%.200s\" is not the name of a file in "
                           "this folder",
                           folder, tensor, json_is_string(value) ? json_string_value(value) : "");
        if (!json_object_get(seen, json_string_value(value)) &&
            json_object_set_new(seen, json_string_value(value), json_true()) != 0)
            return no_memory(folder, err);
    }
    size_t n = json_object_size(seen);
    if (n == 0 || n > SHARDS_MAX)
        return err_set(err, ERR_FORMAT, "%s/" INDEX_NAME ": names %zu files, expected 1 to %d", folder,
                       n, SHARDS_MAX);
    weights->shards = arena_array(&weights->arena, struct shard, n);
    if (!weights->shards)
        return no_memory(folder, err);
    const char *shard;
    json_object_foreach(seen, shard, value) {
        if (open_shard(weights, folder, str_from(shard), err))
            continue;
        if (err && err->code == ERR_NOT_FOUND)
            err_set(err, ERR_NOT_FOUND,
                    "%s: " INDEX_NAME " names %s, which is missing: download the model again", folder,
                    shard);
        return false;
    }
    return true;
}

// Every tensor that the index promises is there, in the file it names.
static bool check_index(const struct weights *weights, const char *folder, const json_t *root,
                        const json_t *map, struct err *err) {
    const char *name;
    json_t *shard;
    json_object_foreach((json_t *)map, name, shard) {
        const struct entry *entry =
            (const struct entry *)tensor_table_find(&weights->table, str_from(name));
        if (!entry || strcmp(entry->shard, json_string_value(shard)) != 0)
            return err_set(err, ERR_FORMAT, "%s: tensor %.200s is not in %s, where " INDEX_NAME
                           " says it is",
                           folder, name, json_string_value(shard));
    }
    const json_t *total = json_object_get(json_object_get(root, "metadata"), "total_size");
    if (json_is_integer(total) && (uint64_t)json_integer_value(total) != weights->n_bytes)
        log_info("artifact: total_size differs index=%lld tensors=%" PRIu64 " folder=%s",
                 (long long)json_integer_value(total), weights->n_bytes, folder);
    return true;
}

static bool open_index(struct weights *weights, const char *folder, const char *path, struct err *err) {
    struct strbuf text = {0};
    json_t *root = NULL, *seen = json_object();
    bool ok = seen ? file_read(path, INDEX_BYTES_MAX, &text, err) : no_memory(folder, err);
    if (ok) {
        root = json_parse_unique(strbuf_str(&text), path, err);
        ok = root != NULL;
    }
    strbuf_deinit(&text);
    const json_t *map = json_object_get(root, "weight_map");
    if (ok && !json_is_object(map))
        ok = err_set(err, ERR_FORMAT, "%s: \"weight_map\" must be an object", path);
    ok = ok && open_index_shards(weights, folder, map, seen, err) && collect(weights, folder, err) &&
         check_index(weights, folder, root, map, err);
    json_decref(root);
    json_decref(seen);
    return ok;
}

static bool is_weights_file(const char *name) {
    if (name[0] == '.' || !str_ends(str_from(name), STR(".safetensors")))
        return false;
    for (size_t i = 0; i < sizeof FOREIGN_FILES / sizeof *FOREIGN_FILES; i++)
        if (str_starts(str_from(name), str_from(FOREIGN_FILES[i])))
            return false;
    return !strstr(name, "sidecar");
}


// Every weights file of a folder that has neither an index nor a model.safetensors.
static bool open_all(struct weights *weights, const char *folder, struct err *err) {
    struct dirent **found;
    int n_found = scandir(folder, &found, NULL, alphasort);
    if (n_found < 0) {
        int saved = errno;
        err_errno(err, saved, "cannot read folder %s", folder);
        if (err && (saved == ENOENT || saved == ENOTDIR))
            err->code = ERR_NOT_FOUND;
        return false;
    }
    bool ok = true;
    weights->shards = arena_array(&weights->arena, struct shard, (size_t)n_found);
    if (!weights->shards)
        ok = no_memory(folder, err);
    for (int i = 0; i < n_found; i++) {
        if (ok && is_weights_file(found[i]->d_name))
            ok = open_shard(weights, folder, str_from(found[i]->d_name), err);
        free(found[i]);
    }
    free(found);
    if (ok && weights->n_shards == 0)
        ok = err_set(err, ERR_NOT_FOUND,
                     "%s has no weights: neither " INDEX_NAME " nor a .safetensors file", folder);
    return ok && collect(weights, folder, err);
}

static bool open_folder(struct weights *weights, const char *folder, struct err *err) {
    const char *index = arena_printf(&weights->arena, "%s/" INDEX_NAME, folder);
    const char *single = arena_printf(&weights->arena, "%s/model.safetensors", folder);
    if (!index || !single)
        return no_memory(folder, err);
    if (path_exists(index))
        return open_index(weights, folder, index, err);
    if (!path_exists(single))
        return open_all(weights, folder, err);
    weights->shards = arena_new(&weights->arena, struct shard);
    if (!weights->shards)
        return no_memory(folder, err);
    return open_shard(weights, folder, STR("model.safetensors"), err) && collect(weights, folder, err);
}

static struct weights *open_weights(const char *folder, bool look_only, struct err *err) {
    struct weights *weights = calloc(1, sizeof *weights);
    if (!weights)
        no_memory(folder, err);
    else if (weights->look_only = look_only, open_folder(weights, folder, err))
        return weights;
    weights_close(weights);
    return NULL;
}

struct weights *weights_open(const char *folder, struct err *err) {
    return open_weights(folder, false, err);
}

struct weights *weights_open_headers(const char *folder, struct err *err) {
    return open_weights(folder, true, err);
}

struct weights *weights_create(struct bytes file, const char *what, struct err *err) {
    struct weights *weights = calloc(1, sizeof *weights);
    if (weights)
        weights->shards = arena_new(&weights->arena, struct shard);
    if (!weights || !weights->shards) {
        no_memory(what, err);
    } else {
        struct shard *shard = &weights->shards[weights->n_shards++];
        shard->name = arena_c_string(&weights->arena, str_from(what));
        shard->file = safetensors_create(file, what, err);
        if (shard->file && !shard->name)
            no_memory(what, err);
        else if (shard->file && collect(weights, what, err))
            return weights;
    }
    weights_close(weights);
    return NULL;
}

void weights_close(struct weights *weights) {
    if (!weights)
        return;
    for (size_t i = 0; i < weights->n_copies; i++)
        free(weights->copies[i]);
    for (size_t i = 0; i < weights->n_shards; i++) {
        safetensors_destroy(weights->shards[i].file);
        file_map_close(&weights->shards[i].map);
    }
    arena_deinit(&weights->arena);
    free(weights);
}

// ---- Taking -------------------------------------------------------------------------------------

size_t weights_n_tensors(const struct weights *weights) {
    return weights->n;
}

const struct tensor *weights_tensor(const struct weights *weights, size_t idx) {
    return &weights->entries[idx].tensor;
}

uint64_t weights_bytes(const struct weights *weights) {
    return weights->n_bytes;
}

const struct tensor *weights_find(const struct weights *weights, const char *name) {
    return tensor_table_find(&weights->table, str_from(name));
}

// Levenshtein's distance, or `limit` if it is not below. b.n is at most SUGGESTION_NAME_BYTES_MAX.
static size_t edit_distance(struct str a, struct str b, size_t limit) {
    size_t row[SUGGESTION_NAME_BYTES_MAX + 1];
    for (size_t k = 0; k <= b.n; k++)
        row[k] = k;
    for (size_t i = 0; i < a.n; i++) {
        size_t diagonal = row[0], row_min = row[0] = i + 1;
        for (size_t k = 0; k < b.n; k++) {
            size_t changed = diagonal + (a.data[i] != b.data[k]);
            diagonal = row[k + 1];
            row[k + 1] = min_size(changed, min_size(diagonal, row[k]) + 1);
            row_min = min_size(row_min, row[k + 1]);
        }
        if (row_min >= limit)
            return limit;
    }
    return min_size(row[b.n], limit);
}

// The existing name that a missing one was most likely meant to be, or NULL.
static const struct tensor *nearest(const struct weights *weights, struct str name) {
    const struct tensor *best = NULL;
    size_t best_distance = name.n / 4 + 1; // farther is no help
    for (size_t i = 0; i < weights->n && name.n <= SUGGESTION_NAME_BYTES_MAX; i++) {
        const struct tensor *tensor = &weights->entries[i].tensor;
        struct str other = tensor->name;
        size_t distance = best_distance;
        if (str_ends(other, name) || str_ends(name, other)) // another prefix
            distance = 1;
        else if (other.n < name.n + best_distance && name.n < other.n + best_distance &&
                 other.n <= SUGGESTION_NAME_BYTES_MAX)
            distance = edit_distance(name, other, best_distance);
        if (distance < best_distance) {
            best = tensor;
            best_distance = distance;
        }
    }
    return best;
}

const struct tensor *weights_take(struct weights *weights, const char *name, struct err *err) {
    const struct tensor *tensor = weights_find(weights, name);
    if (tensor) {
        weights_ignore(weights, tensor);
        return tensor;
    }
    const struct tensor *near = err ? nearest(weights, str_from(name)) : NULL;
    if (near)
        err_set(err, ERR_FORMAT, "missing tensor %s (there is %s)", name, near->name.data);
    else
        err_set(err, ERR_FORMAT, "missing tensor %s", name);
    return NULL;
}

// "[2, 3]"
static void format_shape(char *out, size_t n_out, uint32_t n_dims, const uint64_t *dims) {
    size_t n = (size_t)snprintf(out, n_out, "[");
    for (uint32_t i = 0; i < n_dims && n < n_out; i++)
        n += (size_t)snprintf(out + n, n_out - n, "%s%" PRIu64, i ? ", " : "", dims[i]);
    if (n < n_out)
        snprintf(out + n, n_out - n, "]");
}

const struct tensor *weights_take_shaped(struct weights *weights, const char *name, uint32_t n_dims,
                                         const uint64_t *dims, struct err *err) {
    const struct tensor *tensor = weights_take(weights, name, err);
    if (!tensor || (tensor->n_dims == n_dims &&
                    (n_dims == 0 || memcmp(tensor->dims, dims, n_dims * sizeof *dims) == 0)))
        return tensor;
    char got[TENSOR_DIMS_MAX * 22 + 3], want[TENSOR_DIMS_MAX * 22 + 3];
    format_shape(got, sizeof got, tensor->n_dims, tensor->dims);
    format_shape(want, sizeof want, n_dims, dims);
    err_set(err, ERR_FORMAT, "tensor %s has shape %s, expected %s", name, got, want);
    return NULL;
}

void weights_ignore(struct weights *weights, const struct tensor *tensor) {
    weights->entries[(const struct entry *)tensor - weights->entries].used = true;
}

static bool is_ignorable(struct str name) {
    for (size_t i = 0; i < sizeof IGNORABLE / sizeof *IGNORABLE; i++) {
        struct str pattern = str_from(IGNORABLE[i]);
        if (str_ends(name, pattern) &&
            (name.n == pattern.n || name.data[name.n - pattern.n - 1] == '.'))
            return true;
    }
    return false;
}

bool weights_audit(const struct weights *weights, const char *model_type, struct err *err) {
    const char *unused[AUDIT_NAMES_MAX] = {0};
    size_t n = 0;
    for (size_t i = 0; i < weights->n; i++) {
        const struct entry *entry = &weights->entries[i];
        if (entry->used || is_ignorable(entry->tensor.name))
            continue;
        if (n < AUDIT_NAMES_MAX)
            unused[n] = entry->tensor.name.data;
        n++;
    }
    if (n == 0)
        return true;
    char more[64] = "";
    if (n > AUDIT_NAMES_MAX)
        snprintf(more, sizeof more, " and %zu more", n - AUDIT_NAMES_MAX);
    return err_set(err, ERR_FORMAT, "%s %.200s%s%.200s%s%.200s%s %s not used by model type %s",
                   n == 1 ? "tensor" : "tensors", unused[0], n > 1 ? ", " : "", n > 1 ? unused[1] : "",
                   n > 2 ? ", " : "", n > 2 ? unused[2] : "", more, n == 1 ? "is" : "are", model_type);
}

bool weights_lock(const struct weights *weights, struct err *err) {
    uint64_t wanted = 0;
    for (size_t i = 0; i < weights->n_shards; i++)
        wanted += weights->shards[i].map.bytes.n;
    for (size_t i = 0; i < weights->n_shards; i++) {
        struct bytes b = weights->shards[i].map.bytes;
        if (b.n == 0 || mlock(b.data, b.n) == 0)
            continue;
        struct rlimit limit = {0};
        getrlimit(RLIMIT_MEMLOCK, &limit);
        if (limit.rlim_cur == RLIM_INFINITY)
            return err_set(err, ERR_NOMEM, "cannot lock %" PRIu64 " MiB of weights in memory: %s", wanted >> 20,
                           strerror(errno));
        return err_set(err, ERR_NOMEM,
                       "cannot lock %" PRIu64 " MiB of weights in memory, where this process may lock %" PRIu64
                       " KiB: raise the limit (ulimit -l, LimitMEMLOCK of a service) or leave out --mlock",
                       wanted >> 20, (uint64_t)limit.rlim_cur >> 10);
    }
    return true;
}

void weights_prefetch(const struct weights *weights) {
    for (size_t i = 0; i < weights->n_shards; i++) {
        struct bytes b = weights->shards[i].map.bytes;
        if (b.n)
            madvise((void *)(uintptr_t)b.data, b.n, MADV_WILLNEED);
    }
}
