// config.json, and behind a zero byte generation_config.json.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct str config_json = {(const char *)data, n}, generation_json = {0};
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    if (zero) {
        config_json.n = (size_t)(zero - data);
        generation_json = (struct str){(const char *)zero + 1, n - config_json.n - 1};
    }
    struct err err;
    struct model_config *c = model_config_create(config_json, generation_json, &err);
    if (!c)
        return 0;
    // What the model room takes for granted.
    bool slides = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        slides = slides || c->layer_types[i] == LAYER_SLIDING;
    if (c->n_layers == 0 || c->n_heads == 0 || c->n_kv_heads == 0 || c->head_dim == 0 ||
        c->d_model == 0 || c->n_vocab == 0 || c->n_heads % c->n_kv_heads != 0 ||
        slides != (c->sliding_window > 0) || c->n_eos > MODEL_EOS_MAX || c->model_type.n == 0)
        abort();
    for (int i = 0; i < 2; i++) {
        const struct rope_config *rope = i ? &c->rope_sliding : &c->rope;
        if (!(rope->theta > 0) || !isfinite(rope->theta) || !(rope->partial > 0) || rope->partial > 1 ||
            !(rope->factor > 0))
            abort();
        double sum = 0;
        for (uint32_t k = 0; k < rope->n_factors; k++)
            sum += rope->short_factor[k] + rope->long_factor[k];
        if (!(sum >= 0))
            abort();
    }
    struct quant_spec spec;
    model_config_quant(c, "model.layers.0.mlp.down_proj", &spec, &err);
    model_config_destroy(c);
    return 0;
}
