// hub/kv_config.h - kv_config.json of a model folder: which layers' KV cache is quantized, and how.
// Source: the MLX OptiQ folders: an array of {"layer_idx", "bits", "group_size"}; layers not listed stay.
#ifndef LOAM_HUB_KV_CONFIG_H
#define LOAM_HUB_KV_CONFIG_H
#include "backend/backend.h"
#include "base/bytes.h"

// Fill by_layer[n_layers] with KV_Q8 or KV_Q4 where the file says so, -1 elsewhere (as model_options wants
// it). ERR_NOT_FOUND ("<folder> has no kv_config.json"), ERR_FORMAT naming the entry, ERR_UNSUPPORTED (other
// bits or groups), ERR_IO.
bool kv_config_read(const char *folder, uint32_t n_layers, int8_t *by_layer, struct err *err);
// The same from the file's text, untrusted.
bool kv_config_parse(struct str json, uint32_t n_layers, int8_t *by_layer, const char *what, struct err *err);
#endif
