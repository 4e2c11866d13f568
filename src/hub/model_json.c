#include "hub/model_json.h"

bool hub_model_fits(const struct hub_model *m, uint64_t limit) {
    return hub_model_serve_bytes(m) <= limit - limit / 10;
}

json_t *hub_model_json(const struct hub_model *m, uint64_t limit, bool with_path) {
    json_t *out = json_pack(
        "{s:s, s:s, s:b, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:i, s:i, s:b, s:i, s:i, s:i, s:i, s:b, s:b, "
        "s:b, s:b, s:b, s:b, s:I, s:I, s:b}",
        "id", m->repo, "revision", m->commit, "canonical", m->is_canonical, "model_type",
        m->model_type, "architecture", m->architecture, "license", m->license, "params", (json_int_t)m->n_params,
        "weights_bytes", (json_int_t)m->weight_bytes, "sidecar_bytes", (json_int_t)m->sidecar_bytes,
        "experts_bytes", (json_int_t)m->expert_bytes, "quant_mode", m->quant_mode, "quant_bits",
        (int)m->quant_bits, "quant_group_size", (int)m->quant_group, "quant_mixed", m->is_quant_mixed,
        "context_length", (int)m->ctx_len_max, "layers", (int)m->n_layers, "hidden_size", (int)m->d_model,
        "vocab_size", (int)m->n_vocab, "tools", m->has_tools, "vision", m->has_vision, "audio", m->has_audio,
        "embedding", m->is_embedding, "drafter", m->is_drafter, "kv_config", m->has_kv_config,
        "kv_bytes_per_token", (json_int_t)m->kv_token_bytes, "serve_bytes",
        (json_int_t)hub_model_serve_bytes(m), "fits", hub_model_fits(m, limit));
    if (out && with_path && json_object_set_new(out, "path", json_string(m->path)) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}
