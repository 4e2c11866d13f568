#include "hub/scan.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "artifact/model_config.h"
#include "artifact/weights.h"
#include "base/file_map.h"
#include "hub/layout.h"
#include "hub/resolve.h"

enum {
    README_BYTES_MAX = 1 << 20,
    TEMPLATE_BYTES_MAX = 64 << 20,
    LS_CTX_LEN = 8192, // what an estimate of serving reckons with
    BF16_BYTES = 2,
};

static int64_t mtime_ns(const struct stat *st) {
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

bool hub_scan_stamp(const char *folder, int64_t *folder_mtime_ns, int64_t *config_mtime_ns) {
    char config[PATH_MAX];
    struct stat st;
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return false;
    *folder_mtime_ns = mtime_ns(&st);
    *config_mtime_ns =
        hub_path(config, NULL, "%s/config.json", folder) && stat(config, &st) == 0 ? mtime_ns(&st) : 0;
    return true;
}

// ---- Texts beside the weights -------------------------------------------------------------------

// The value of "key:" in the README's front matter, "" if it is not there.
static const char *front_matter(struct str text, const char *key, struct arena *arena) {
    if (!str_starts(text, STR("---")))
        return "";
    size_t n_key = strlen(key);
    for (size_t pos = 3; pos < text.n;) {
        const char *line = text.data + pos;
        const char *end = memchr(line, '\n', text.n - pos);
        size_t n = end ? (size_t)(end - line) : text.n - pos;
        pos += n + 1;
        if (n >= 3 && memcmp(line, "---", 3) == 0)
            break;
        if (n <= n_key || memcmp(line, key, n_key) != 0 || line[n_key] != ':')
            continue;
        size_t from = n_key + 1, to = n;
        while (from < to && strchr(" '\"", line[from]))
            from++;
        while (to > from && strchr(" '\"\r", line[to - 1]))
            to--;
        const char *value = arena_c_string(arena, (struct str){line + from, to - from < 100 ? to - from : 100});
        return value ? value : "";
    }
    return "";
}

static const char *read_license(const char *folder, struct arena *arena) {
    char path[PATH_MAX];
    struct strbuf text = {0};
    const char *license = "";
    if (hub_path(path, NULL, "%s/README.md", folder) && file_read(path, README_BYTES_MAX, &text, NULL)) {
        license = front_matter(strbuf_str(&text), "license", arena);
        if (strcmp(license, "other") == 0) {
            const char *name = front_matter(strbuf_str(&text), "license_name", arena);
            license = name[0] ? name : license;
        }
    }
    strbuf_deinit(&text);
    return license;
}

static bool file_says(const char *folder, const char *name, const char *after, const char *word) {
    char path[PATH_MAX];
    struct file_map map;
    if (!hub_path(path, NULL, "%s/%s", folder, name) || !file_map_open(&map, path, NULL))
        return false;
    bool found = false;
    if (map.bytes.n <= TEMPLATE_BYTES_MAX) {
        struct str text = str_of(map.bytes);
        size_t from = after ? str_find(text, str_from(after), 0) : 0;
        found = from != SIZE_MAX && str_find(text, str_from(word), from) != SIZE_MAX;
    }
    file_map_close(&map);
    return found;
}

static bool file_exists(const char *folder, const char *name) {
    char path[PATH_MAX];
    return hub_path(path, NULL, "%s/%s", folder, name) && path_exists(path);
}

// ---- Weights ------------------------------------------------------------------------------------

static bool is_tower(struct str name) {
    static const char *const PARTS[] = {"vision_tower.", "audio_tower.",  "visual.",       "vision_model.",
                                        "embed_vision.", "embed_audio.", "multi_modal_projector.",
                                        "vision_embedder."};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        size_t at = str_find(name, str_from(PARTS[i]), 0);
        if (at != SIZE_MAX && (at == 0 || name.data[at - 1] == '.'))
            return true;
    }
    return false;
}

static bool has_sibling(const struct weights *weights, struct str name, size_t n_cut, const char *end) {
    char path[512];
    return name.n < 400 && snprintf(path, sizeof path, "%.*s%s", (int)(name.n - n_cut), name.data, end) > 0 &&
           weights_find(weights, path) != NULL;
}

// Parameters that a tensor stands for: none for scales and biases of quantization, the unpacked count for
// packed weights.
static uint64_t count_params(const struct weights *weights, const struct tensor *tensor,
                             const struct model_config *config, struct hub_model *model) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        n *= tensor->dims[i];
    struct str name = tensor->name;
    if (str_ends(name, STR(".scales")) || str_ends(name, STR("_scales")) ||
        (str_ends(name, STR(".biases")) && has_sibling(weights, name, 7, ".scales")))
        return 0;
    if (str_ends(name, STR("_blocks")) && has_sibling(weights, name, 7, "_scales"))
        return 2 * n; // MXFP4 as gpt-oss stores it: two a byte
    if (tensor->dtype != DTYPE_U32 || !str_ends(name, STR(".weight")) ||
        !has_sibling(weights, name, 7, ".scales"))
        return n;
    char module[512];
    struct quant_spec spec = {0};
    snprintf(module, sizeof module, "%.*s", (int)(name.n - 7), name.data);
    if (!config || !model_config_quant(config, module, &spec, NULL) || spec.bits == 0)
        return n;
    if (spec.bits != config->quant.bits || spec.mode != config->quant.mode)
        model->is_quant_mixed = true;
    return n * 32 / spec.bits;
}

static bool is_expert(struct str name) {
    return str_find(name, STR(".experts."), 0) != SIZE_MAX || str_find(name, STR(".switch_mlp."), 0) != SIZE_MAX;
}

bool hub_is_embedding(const char *folder, const char *name) {
    return file_exists(folder, "1_Pooling/config.json") || file_exists(folder, "modules.json") ||
           (name && strcasestr(name, "embedding"));
}

// Tied embeddings are the head too: every row of them is read.
static bool is_lookup(struct str name, bool has_head) {
    return str_find(name, STR("embed_tokens_per_layer"), 0) != SIZE_MAX ||
           (has_head && str_find(name, STR("embed_tokens."), 0) != SIZE_MAX);
}

static void scan_weights(struct hub_model *model, const struct weights *weights,
                         const struct model_config *config) {
    bool has_head = weights_find(weights, "lm_head.weight") || weights_find(weights, "language_model.lm_head.weight");
    for (size_t i = 0; i < weights_n_tensors(weights); i++) {
        const struct tensor *tensor = weights_tensor(weights, i);
        model->n_params += count_params(weights, tensor, config, model);
        if (is_tower(tensor->name)) {
            model->sidecar_bytes += tensor->data.n;
            continue;
        }
        model->weight_bytes += tensor->data.n;
        if (is_expert(tensor->name))
            model->expert_bytes += tensor->data.n;
        if (is_lookup(tensor->name, has_head))
            model->lookup_bytes += tensor->data.n;
    }
}

// Safetensors files beside the language model's own (vision and audio towers of some MLX conversions).
static void scan_sidecars(struct hub_model *model, const char *folder) {
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[PATH_MAX];
        struct stat st;
        struct str name = str_from(entry->d_name);
        if (!str_ends(name, STR(".safetensors")) || !strstr(entry->d_name, "sidecar") ||
            !hub_path(path, NULL, "%s/%s", folder, entry->d_name) || stat(path, &st) != 0)
            continue;
        model->sidecar_bytes += (uint64_t)st.st_size;
        model->has_vision = model->has_vision || strstr(entry->d_name, "vision");
        model->has_audio = model->has_audio || strstr(entry->d_name, "audio");
    }
    if (dir)
        closedir(dir);
}

// ---- Config -------------------------------------------------------------------------------------

static uint32_t config_u32(const json_t *object, const char *key, uint32_t otherwise) {
    const json_t *v = json_object_get(object, key);
    json_int_t n = json_integer_value(v);
    return json_is_integer(v) && n >= 0 && n <= UINT32_MAX ? (uint32_t)n : otherwise;
}

static const char *quant_mode_name(enum quant_mode mode) {
    switch (mode) {
    case QUANT_NONE: return "";
    case QUANT_AFFINE: return "affine";
    case QUANT_MXFP4: return "mxfp4";
    case QUANT_MXFP8: return "mxfp8";
    case QUANT_NVFP4: return "nvfp4";
    }
    return "";
}

// KV and recurrent state of every layer. The engine plans with the model's own layers; this is the same sum
// told from config.json, for `ls`. Layers that reuse another's KV (Gemma's num_kv_shared_layers) store none.
static void scan_cache(struct hub_model *model, const struct model_config *config) {
    const json_t *text = config->text;
    uint32_t latent = config_u32(text, "kv_lora_rank", 0);
    uint32_t n_own = config->n_layers, n_shared = config_u32(text, "num_kv_shared_layers", 0);
    if (n_shared < n_own)
        n_own -= n_shared;
    for (uint32_t i = 0; i < n_own; i++) {
        enum layer_type type = config->layer_types[i];
        uint64_t heads = config->n_kv_heads, dim = config->head_dim, bytes;
        if (type == LAYER_LINEAR) {
            uint64_t k_heads = config_u32(text, "linear_num_key_heads", 0);
            uint64_t v_heads = config_u32(text, "linear_num_value_heads", 0);
            uint64_t k_dim = config_u32(text, "linear_key_head_dim", 0);
            uint64_t v_dim = config_u32(text, "linear_value_head_dim", 0);
            uint64_t kernel = config_u32(text, "linear_conv_kernel_dim", 1);
            model->state_bytes += 4 * (v_heads * k_dim * v_dim +
                                       (kernel - (kernel > 0)) * (2 * k_heads * k_dim + v_heads * v_dim));
            continue;
        }
        if (latent) {
            // A layer that reuses an earlier one's choice of positions has no index keys.
            const char *indexer = json_string_value(json_array_get(json_object_get(text, "indexer_types"), i));
            bool has_index = !indexer || strcmp(indexer, "shared") != 0;
            bytes = BF16_BYTES * ((uint64_t)latent + config_u32(text, "qk_rope_head_dim", 0) +
                                  (has_index ? config_u32(text, "index_head_dim", 0) : 0));
        } else {
            if (type == LAYER_FULL) { // Gemma 4: full layers have their own shape
                dim = config_u32(text, "global_head_dim", (uint32_t)dim);
                heads = config_u32(text, "num_global_key_value_heads", (uint32_t)heads);
            }
            bytes = 2 * BF16_BYTES * heads * dim;
        }
        if (type == LAYER_SLIDING)
            model->kv_window_token_bytes += bytes;
        else
            model->kv_token_bytes += bytes;
    }
    model->window = model->kv_window_token_bytes ? config->sliding_window : 0;
}

static void scan_config(struct hub_model *model, const char *folder, const struct model_config *config,
                        struct arena *arena) {
    const char *type = arena_c_string(arena, config->model_type);
    const char *architecture = arena_c_string(arena, config->architecture);
    model->model_type = type ? type : "";
    model->architecture = architecture ? architecture : "";
    model->quant_mode = quant_mode_name(config->quant.mode);
    model->quant_bits = config->quant.mode ? config->quant.bits : 0;
    model->quant_group = config->quant.mode ? config->quant.group : 0;
    model->has_vision = json_is_object(json_object_get(config->root, "vision_config")) ||
                        str_ends(config->model_type, STR("unified_vision"));
    model->has_audio = json_is_object(json_object_get(config->root, "audio_config"));
    model->is_embedding = hub_is_embedding(folder, model->repo);
    model->is_drafter = strstr(model->model_type, "_assistant") || strstr(model->architecture, "Assistant") ||
                        file_exists(folder, "dspark.json") || (model->repo && hub_is_drafter_name(model->repo));
    model->n_layers = config->n_layers;
    model->d_model = config->d_model;
    model->n_vocab = config->n_vocab;
    model->ctx_len_max = config->ctx_len_max;
    static const char *const EXPERTS[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < 3 && !model->n_experts; i++)
        model->n_experts = config_u32(config->text, EXPERTS[i], 0);
    static const char *const USED[] = {"num_experts_per_tok", "top_k_experts", "experts_per_token"};
    for (size_t i = 0; i < 3 && model->n_experts && !model->n_experts_used; i++)
        model->n_experts_used = config_u32(config->text, USED[i], 0);
    scan_cache(model, config);
}

bool hub_scan(struct hub_model *model, const char *folder, struct arena *arena, struct err *err) {
    const char *repo = model->repo, *commit = model->commit;
    *model = (struct hub_model){.repo = repo, .commit = commit, .problem = "", .model_type = "",
                                .architecture = "", .license = "", .quant_mode = ""};
    model->path = arena_c_string(arena, str_from(folder));
    if (!model->path)
        return err_set(err, ERR_NOMEM, "out of memory scanning %s", folder);
    model->scanned_at = time(NULL);
    hub_scan_stamp(folder, &model->folder_mtime_ns, &model->config_mtime_ns);

    struct err problem = {0};
    struct model_config *config = model_config_open(folder, &problem);
    struct weights *weights = NULL;
    if (config || problem.code == ERR_UNSUPPORTED) {
        struct err weights_problem = {0};
        weights = weights_open_headers(folder, &weights_problem);
        if (!weights && config)
            problem = weights_problem;
    }
    if (config)
        scan_config(model, folder, config, arena);
    if (weights) {
        scan_weights(model, weights, config);
        scan_sidecars(model, folder);
        model->has_kv_config = file_exists(folder, "kv_config.json");
        model->has_tools = file_says(folder, "chat_template.jinja", NULL, "tools") ||
                           file_says(folder, "tokenizer_config.json", "\"chat_template\"", "tools");
        model->license = read_license(folder, arena);
    }
    model_config_destroy(config);
    weights_close(weights);
    if (problem.code == ERR_NOMEM)
        return err_set(err, ERR_NOMEM, "%s", problem.message);
    if (problem.code) {
        model->problem = arena_c_string(arena, str_from(problem.message));
        if (!model->problem)
            return err_set(err, ERR_NOMEM, "out of memory scanning %s", folder);
    }
    return true;
}

uint64_t hub_model_kv_bytes(const struct hub_model *model, uint64_t n_tokens) {
    uint64_t in_window = model->window && n_tokens > model->window ? model->window : n_tokens;
    return model->kv_token_bytes * n_tokens + model->kv_window_token_bytes * in_window + model->state_bytes;
}

uint64_t hub_model_serve_bytes(const struct hub_model *model) {
    uint64_t n_tokens = model->ctx_len_max && model->ctx_len_max < LS_CTX_LEN ? model->ctx_len_max : LS_CTX_LEN;
    uint64_t bytes = model->weight_bytes + model->sidecar_bytes + hub_model_kv_bytes(model, n_tokens);
    return bytes + bytes / 20; // activations and tables
}
