#include "model/delta_net.h"

#include <stdio.h>

#include "base/checked.h"

struct delta_net {
    uint32_t n_k_heads, n_v_heads, k_dim, v_dim, kernel;
    struct weight *in_qkv, *in_z, *in_a, *in_b; // Qwen3-Next's fused rows are put in this order at load
    struct weight *out;
    const float *conv; // [channels, kernel]
    const float *a_log, *dt_bias, *norm;
    uint32_t conv_state, delta_state;
};

enum { DIM_MAX = 1 << 20 };

static uint32_t n_channels(const struct delta_net *net) {
    return 2 * net->n_k_heads * net->k_dim + net->n_v_heads * net->v_dim;
}
uint32_t delta_net_out_width(const struct delta_net *net) {
    return net->n_v_heads * net->v_dim;
}
const struct weight *delta_net_out_proj(const struct delta_net *net) {
    return net->out;
}

static bool read_config(const struct model *model, struct delta_net *net, struct err *err) {
    const json_t *text = model->config->text;
    const char *what = "config.json";
    net->kernel = 4;
    if (!json_get_u32(text, "linear_num_key_heads", &net->n_k_heads, what, err) ||
        !json_get_u32(text, "linear_num_value_heads", &net->n_v_heads, what, err) ||
        !json_get_u32(text, "linear_key_head_dim", &net->k_dim, what, err) ||
        !json_get_u32(text, "linear_value_head_dim", &net->v_dim, what, err) ||
        !json_get_u32(text, "linear_conv_kernel_dim", &net->kernel, what, err))
        return false;
    if (net->n_k_heads == 0 || net->n_v_heads == 0 || net->n_v_heads % net->n_k_heads || net->k_dim == 0 ||
        net->v_dim == 0 || net->kernel < 2 || net->kernel > 64 || net->n_v_heads > 4096 ||
        net->k_dim > 4096 || net->v_dim > 4096 || n_channels(net) > DIM_MAX)
        return err_set(err, ERR_FORMAT, "config.json: linear attention with %u key and %u value heads of %u and "
                       "%u, kernel %u, is none that loam runs", net->n_k_heads, net->n_v_heads, net->k_dim,
                       net->v_dim, net->kernel);
    return true;
}

bool delta_net_is_hub_layout(const struct model *model, const struct binder *binder) {
    for (uint32_t l = 0; l < model->config->n_layers; l++) {
        char name[BIND_PATH_BYTES];
        bind_path(binder, name, "layers.%u.linear_attn.conv1d.weight", l);
        const struct tensor *tensor = weights_find(binder->weights, name);
        if (tensor)
            return tensor->n_dims == 3 && tensor->dims[1] == 1;
    }
    return true;
}

// Qwen3-Next stores in_proj_qkvz by key head: q, k, then the v and the z of its value heads; and in_proj_ba
// likewise: b, then a. Row numbers of the parts in the order that the step wants.
static void qkvz_rows(const struct delta_net *net, uint32_t *qkv, uint32_t *z) {
    uint32_t ratio = net->n_v_heads / net->n_k_heads, v_rows = ratio * net->v_dim;
    uint32_t per_head = 2 * net->k_dim + 2 * v_rows, n = 0, n_z = 0;
    for (uint32_t part = 0; part < 3; part++) {
        uint32_t from = part * net->k_dim, count = part == 2 ? v_rows : net->k_dim;
        for (uint32_t h = 0; h < net->n_k_heads; h++)
            for (uint32_t i = 0; i < count; i++)
                qkv[n++] = h * per_head + from + i;
    }
    for (uint32_t h = 0; h < net->n_k_heads; h++)
        for (uint32_t i = 0; i < v_rows; i++)
            z[n_z++] = h * per_head + 2 * net->k_dim + v_rows + i;
}

static bool bind_fused(struct model *model, struct binder *binder, struct delta_net *net, uint32_t l,
                       struct err *err) {
    uint32_t channels = n_channels(net), width = delta_net_out_width(net), d = model->config->d_model;
    uint32_t ratio = net->n_v_heads / net->n_k_heads;
    uint32_t *rows = model_store_host(binder->store, (channels + width + 2 * net->n_v_heads) * sizeof *rows,
                                      err);
    if (!rows)
        return false;
    uint32_t *z = rows + channels, *a = z + width, *b = a + net->n_v_heads;
    qkvz_rows(net, rows, z);
    for (uint32_t v = 0; v < net->n_v_heads; v++) {
        b[v] = v / ratio * 2 * ratio + v % ratio;
        a[v] = b[v] + ratio;
    }
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "layers.%u.linear_attn.in_proj_qkvz", l);
    net->in_qkv = bind_rows(binder, path, channels + width, d, rows, channels, err);
    net->in_z = net->in_qkv ? bind_rows(binder, path, channels + width, d, z, width, err) : NULL;
    bind_path(binder, path, "layers.%u.linear_attn.in_proj_ba", l);
    net->in_a = net->in_z ? bind_rows(binder, path, 2 * net->n_v_heads, d, a, net->n_v_heads, err) : NULL;
    net->in_b = net->in_a ? bind_rows(binder, path, 2 * net->n_v_heads, d, b, net->n_v_heads, err) : NULL;
    return net->in_b != NULL;
}

static bool bind_projections(struct model *model, struct binder *binder, struct delta_net *net, uint32_t l,
                             struct err *err) {
    char path[BIND_PATH_BYTES], name[BIND_PATH_BYTES];
    uint32_t d = model->config->d_model;
    // Either of the two tells that they are fused, so that the other is missed by its name.
    bind_path(binder, path, "layers.%u.linear_attn.in_proj_ba.weight", l);
    bind_path(binder, name, "layers.%u.linear_attn.in_proj_qkvz.weight", l);
    if (bind_has(binder, name) || bind_has(binder, path))
        return bind_fused(model, binder, net, l, err);
    struct {
        const char *module;
        struct weight **to;
        uint32_t n_out;
    } parts[] = {
        {"in_proj_qkv", &net->in_qkv, n_channels(net)},
        {"in_proj_z", &net->in_z, delta_net_out_width(net)},
        {"in_proj_a", &net->in_a, net->n_v_heads},
        {"in_proj_b", &net->in_b, net->n_v_heads},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bind_path(binder, path, "layers.%u.linear_attn.%s", l, parts[i].module);
        *parts[i].to = bind_linear(binder, path, parts[i].n_out, d, err);
        if (!*parts[i].to)
            return false;
    }
    return true;
}

struct delta_net *delta_net_bind(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct delta_net *net = arena_new(&model->arena, struct delta_net);
    if (!net) {
        err_set(err, ERR_NOMEM, "out of memory for a recurrent layer");
        return NULL;
    }
    if (!read_config(model, net, err) || !bind_projections(model, binder, net, l, err))
        return NULL;
    char path[BIND_PATH_BYTES];
    uint32_t channels = n_channels(net);
    bind_path(binder, path, "layers.%u.linear_attn.out_proj", l);
    net->out = bind_linear(binder, path, model->config->d_model, delta_net_out_width(net), err);
    bind_path(binder, path, "layers.%u.linear_attn.conv1d.weight", l);
    // [C, 1, K] or [C, K, 1]: one order in memory.
    bool hub = delta_net_is_hub_layout(model, binder);
    const uint64_t dims[3] = {channels, hub ? 1 : net->kernel, hub ? net->kernel : 1};
    if (!net->out || !bind_expect_shape(binder, path, 3, dims, err))
        return NULL;
    net->conv = bind_vector(binder, path, channels * net->kernel, 0, err);
    bind_path(binder, path, "layers.%u.linear_attn.A_log", l);
    net->a_log = net->conv ? bind_vector(binder, path, net->n_v_heads, 0, err) : NULL;
    bind_path(binder, path, "layers.%u.linear_attn.dt_bias", l);
    net->dt_bias = net->a_log ? bind_vector(binder, path, net->n_v_heads, 0, err) : NULL;
    bind_path(binder, path, "layers.%u.linear_attn.norm.weight", l);
    net->norm = net->dt_bias ? bind_vector(binder, path, net->v_dim, 0, err) : NULL;
    if (!net->norm)
        return NULL;
    net->conv_state = model_add_state(model, (size_t)(net->kernel - 1) * channels);
    net->delta_state = model_add_state(model, (size_t)net->n_v_heads * net->k_dim * net->v_dim);
    model->n_cols_max = max_u32(model->n_cols_max, delta_net_out_width(net));
    return net;
}

bool delta_net_prepare(struct model *model, const struct delta_net *net, uint32_t n_tokens,
                       struct delta_net_scratch *s, struct err *err) {
    return model_new_mat(model, n_tokens, n_channels(net), &s->mixed, err) &&
           model_new_mat(model, n_tokens, delta_net_out_width(net), &s->z, err) &&
           model_new_mat(model, n_tokens, net->n_v_heads, &s->a, err) &&
           model_new_mat(model, n_tokens, net->n_v_heads, &s->b, err) &&
           model_new_mat(model, n_tokens, delta_net_out_width(net), &s->out, err);
}

uint64_t delta_net_workspace_bytes(const struct model *model, const struct delta_net *net,
                                   uint32_t n_tokens) {
    return model_mat_bytes(model, n_tokens, n_channels(net)) +
           2 * model_mat_bytes(model, n_tokens, delta_net_out_width(net)) +
           2 * model_mat_bytes(model, n_tokens, net->n_v_heads);
}

struct mat delta_net_forward(const struct model *model, const struct delta_net *net,
                             const struct delta_net_scratch *s, struct mat x) {
    struct backend *be = model->be;
    const struct backend_ops *ops = be->ops;
    uint32_t n = x.n_rows, n_k = net->n_k_heads * net->k_dim;
    struct mat mixed = mat_first(s->mixed, n), z = mat_first(s->z, n), a = mat_first(s->a, n),
               b = mat_first(s->b, n), out = mat_first(s->out, n);
    ops->linear(be, &(struct linear_args){
        .x = x, .n_outputs = 4, .scale = 1,
        .outputs = {{net->in_qkv, NULL, mixed}, {net->in_z, NULL, z}, {net->in_a, NULL, a},
                    {net->in_b, NULL, b}}});
    ops->conv(be, &(struct conv_args){.pool = model->states, .state = net->conv_state, .x = mixed,
                                      .y = mixed, .weight = net->conv, .kernel = net->kernel,
                                      .silu = true});
    ops->delta(be, &(struct delta_args){
        .pool = model->states, .state = net->delta_state, .n_k_heads = net->n_k_heads,
        .n_v_heads = net->n_v_heads, .k_dim = net->k_dim, .v_dim = net->v_dim,
        .q = mat_cols(be, mixed, 0, n_k), .k = mat_cols(be, mixed, n_k, n_k),
        .v = mat_cols(be, mixed, 2 * n_k, out.n_cols), .a = a, .b = b, .a_log = net->a_log,
        .dt_bias = net->dt_bias, .out = out});
    ops->norm(be, &(struct norm_args){.kind = NORM_RMS, .eps = model->config->norm_eps, .weight = net->norm,
                                      .width = net->v_dim, .x = out, .y = out});
    ops->glu(be, &(struct glu_args){.kind = GLU_SILU, .gate = z, .up = out, .y = out});
    return out;
}
