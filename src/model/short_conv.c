#include "model/short_conv.h"

#include <stdio.h>

struct short_conv {
    struct weight *in, *out;
    const float *in_bias, *out_bias, *bias; // or NULL
    const float *conv;                      // [d_model, kernel]
    uint32_t kernel, state;
};

enum { KERNEL_MAX = 64 };

static bool bind_bias(struct binder *binder, uint32_t l, const char *name, uint32_t n, const float **out, struct err *err) {
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "layers.%u.conv.%s.bias", l, name);
    *out = bind_vector(binder, path, n, 0, err);
    return *out != NULL;
}

struct short_conv *short_conv_bind(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct short_conv *conv = arena_new(&model->arena, struct short_conv);
    const json_t *text = model->config->text;
    const uint32_t d = model->config->d_model;
    bool has_bias = false;
    if (!conv) {
        err_set(err, ERR_NOMEM, "out of memory for a convolution layer");
        return NULL;
    }
    conv->kernel = 3;
    if (!json_get_u32(text, "conv_L_cache", &conv->kernel, "config.json", err) ||
        !json_get_bool(text, "conv_bias", &has_bias, "config.json", err))
        return NULL;
    if (conv->kernel < 2 || conv->kernel > KERNEL_MAX) {
        err_set(err, ERR_FORMAT, "config.json: \"conv_L_cache\" is %u, expected 2 to %d", conv->kernel, KERNEL_MAX);
        return NULL;
    }
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "layers.%u.conv.in_proj", l);
    conv->in = bind_linear(binder, path, 3 * d, d, err);
    bind_path(binder, path, "layers.%u.conv.out_proj", l);
    conv->out = conv->in ? bind_linear(binder, path, d, d, err) : NULL;
    if (!conv->out)
        return NULL;
    bind_path(binder, path, "layers.%u.conv.conv.weight", l);
    // [d, 1, kernel], in MLX [d, kernel, 1]: one order in memory.
    const struct tensor *tensor = weights_find(binder->weights, path);
    bool mlx = tensor && tensor->n_dims == 3 && tensor->dims[2] == 1;
    const uint64_t dims[3] = {d, mlx ? conv->kernel : 1, mlx ? 1 : conv->kernel};
    conv->conv = bind_expect_shape(binder, path, 3, dims, err) ? bind_vector(binder, path, d * conv->kernel, 0, err)
                                                               : NULL;
    if (!conv->conv || (has_bias && (!bind_bias(binder, l, "in_proj", 3 * d, &conv->in_bias, err) ||
                                     !bind_bias(binder, l, "out_proj", d, &conv->out_bias, err) ||
                                     !bind_bias(binder, l, "conv", d, &conv->bias, err))))
        return NULL;
    conv->state = model_add_state(model, (size_t)(conv->kernel - 1) * d);
    return conv;
}

bool short_conv_prepare(struct model *model, uint32_t n_tokens, struct mat *scratch, struct err *err) {
    return model_new_mat(model, n_tokens, 3 * model->config->d_model, scratch, err);
}

uint64_t short_conv_workspace_bytes(const struct model *model, uint32_t n_tokens) {
    return model_mat_bytes(model, n_tokens, 3 * model->config->d_model);
}

struct mat short_conv_forward(const struct model *model, const struct short_conv *conv, struct mat scratch, struct mat x) {
    struct backend *be = model->be;
    const struct backend_ops *ops = be->ops;
    const uint32_t d = model->config->d_model;
    struct mat all = mat_first(scratch, x.n_rows);
    struct mat b = mat_cols(be, all, 0, d), c = mat_cols(be, all, d, d), mixed = mat_cols(be, all, 2 * d, d);
    ops->linear(be, &(struct linear_args){.x = x, .n_outputs = 1, .scale = 1, .outputs = {{conv->in, conv->in_bias, all}}});
    ops->mul(be, b, mixed);
    ops->conv(be, &(struct conv_args){.pool = model->states, .state = conv->state, .x = mixed, .y = mixed,
                                      .weight = conv->conv, .bias = conv->bias, .kernel = conv->kernel});
    ops->mul(be, c, mixed);
    return mixed;
}

const struct weight *short_conv_out_proj(const struct short_conv *conv) {
    return conv->out;
}

const float *short_conv_out_bias(const struct short_conv *conv) {
    return conv->out_bias;
}
