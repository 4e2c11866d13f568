#include "hub/kv_config.h"

#include "base/file_map.h"
#include "base/json.h"
#include "hub/layout.h"

enum { KV_CONFIG_BYTES_MAX = 1 << 20, KV_GROUP = 64 };

static bool read_entry(const json_t *entry, uint32_t n_layers, int8_t *by_layer, const char *what,
                       struct err *err) {
    uint32_t layer = UINT32_MAX, bits = 0, group = KV_GROUP;
    if (!json_is_object(entry))
        return err_set(err, ERR_FORMAT, "%s: an entry is no object", what);
    if (!json_get_u32(entry, "layer_idx", &layer, what, err) || !json_get_u32(entry, "bits", &bits, what, err) ||
        !json_get_u32(entry, "group_size", &group, what, err))
        return false;
    if (layer >= n_layers)
        return err_set(err, ERR_FORMAT, "%s: layer_idx %u, but the model has %u layers", what, layer, n_layers);
    if (bits >= 16) { // not quantized
        by_layer[layer] = -1;
        return true;
    }
    if ((bits != 4 && bits != 8) || group != KV_GROUP)
        return err_set(err, ERR_UNSUPPORTED, "%s: layer %u wants %u bits in groups of %u; loam has 8 and 4 bits in "
                       "groups of %d", what, layer, bits, group, KV_GROUP);
    by_layer[layer] = bits == 8 ? KV_Q8 : KV_Q4;
    return true;
}

bool kv_config_parse(struct str json, uint32_t n_layers, int8_t *by_layer, const char *what, struct err *err) {
    json_t *root = json_parse(json, what, err);
    if (!root)
        return false;
    bool ok = json_is_array(root) || err_set(err, ERR_FORMAT, "%s must be an array of layers", what);
    memset(by_layer, -1, n_layers);
    for (size_t i = 0; ok && i < json_array_size(root); i++)
        ok = read_entry(json_array_get(root, i), n_layers, by_layer, what, err);
    json_decref(root);
    return ok;
}

bool kv_config_read(const char *folder, uint32_t n_layers, int8_t *by_layer, struct err *err) {
    char path[PATH_MAX];
    struct strbuf text = {0};
    if (!hub_path(path, err, "%s/kv_config.json", folder))
        return false;
    bool ok = path_exists(path) ? file_read(path, KV_CONFIG_BYTES_MAX, &text, err)
                                : err_set(err, ERR_NOT_FOUND, "%s has no kv_config.json", folder);
    ok = ok && kv_config_parse(strbuf_str(&text), n_layers, by_layer, path, err);
    strbuf_deinit(&text);
    return ok;
}
