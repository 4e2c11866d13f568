#include "model/moe.h"

#include <string.h>

#include "base/checked.h"
#include "model/block.h"

struct moe {
    const struct moe_traits *traits;
    uint32_t n_experts, n_used, d_expert, d_shared;
    bool normalize;
    float scale, limit;
    uint32_t n_groups, n_groups_used;
    struct weight *router;
    const float *router_bias, *correction, *expert_scale;
    struct weight **gate, **up, **down; // [n_experts]
    const float *gate_bias, *up_bias, *down_bias;
    struct weight *shared_gate_proj, *shared_up, *shared_down, *shared_gate; // NULL without
};

enum { EXPERTS_MAX = 4096, EXPERTS_USED_MAX = 64 };

bool moe_layer_is_sparse(const struct model *model, const struct moe_traits *traits, uint32_t l, bool *out,
                         struct err *err) {
    const json_t *text = model->config->text;
    const char *what = "config.json";
    uint32_t first_dense = 0, every = 1;
    int64_t last = -1;
    if ((traits->first_dense_key && !json_get_u32(text, traits->first_dense_key, &first_dense, what, err)) ||
        (traits->last_key && !json_get_i64(text, traits->last_key, &last, what, err)) ||
        !json_get_u32(text, traits->every_key ? traits->every_key : "decoder_sparse_step", &every, what, err))
        return false;
    *out = l >= first_dense && (last < 0 || l <= last) && every > 0 && (l + 1) % every == 0;
    const json_t *types = json_object_get(text, "mlp_layer_types"); // says it all, where it is given
    if (json_is_array(types)) {
        const char *type = json_string_value(json_array_get(types, l));
        *out = type && strcmp(type, "sparse") == 0;
        return *out || (type && strcmp(type, "dense") == 0) ||
               err_set(err, ERR_FORMAT, "config.json: \"mlp_layer_types\" does not say \"dense\" or \"sparse\" of layer %u",
                       l);
    }
    const json_t *dense = json_object_get(text, "mlp_only_layers");
    for (size_t i = 0; i < json_array_size(dense); i++)
        if (json_integer_value(json_array_get(dense, i)) == l)
            *out = false;
    return true;
}

static bool needed(const json_t *text, bool is_needed, const char *key, struct err *err) {
    const json_t *value = json_object_get(text, key);
    return !is_needed || (value && !json_is_null(value)) ||
           err_set(err, ERR_FORMAT, "config.json: \"%s\" is missing", key);
}

// Other functions and ways to choose than the family's own, which some configs name.
static bool check_routing(const struct model *model, const struct moe_traits *t, struct str method, struct err *err) {
    static const char *const KEYS[] = {"scoring_func", "moe_gate_act"};
    const json_t *text = model->config->text;
    bool is_sigmoid = t->route == ROUTE_SIGMOID;
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        struct str name = {0};
        if (!json_get_str(text, KEYS[i], &name, "config.json", err))
            return false;
        // dots1 says "noaux_tc" and means DeepSeek V3's.
        if (name.n && !str_eq_c(name, is_sigmoid ? "sigmoid" : "softmax") && !(is_sigmoid && str_eq_c(name, "noaux_tc")))
            return err_set(err, ERR_UNSUPPORTED, "config.json: \"%s\" is \"%.64s\", which loam does not implement for model "
                           "type %s", KEYS[i], name.data, model->family->model_type);
    }
    bool known = is_sigmoid ? str_eq_c(method, "noaux_tc")
                            : str_eq_c(method, "greedy") || str_eq_c(method, "group_limited_greedy");
    if (method.n && !known)
        return err_set(err, ERR_UNSUPPORTED, "config.json: \"topk_method\" is \"%.64s\", which loam does not implement for "
                       "model type %s", method.data, model->family->model_type);
    uint32_t every = 1;
    if (!json_get_u32(text, "moe_layer_freq", &every, "config.json", err))
        return false;
    if (every != 1)
        return err_set(err, ERR_UNSUPPORTED, "config.json: \"moe_layer_freq\" is %u; loam implements 1", every);
    enum glu_kind glu;
    if (t->glu != GLU_CLAMPED_SWIGLU && (!glu_of_activation(model->config->activation, &glu) || glu != t->glu))
        return err_set(err, ERR_UNSUPPORTED, "config.json: loam does not implement this \"hidden_act\" in the experts of model "
                       "type %s", model->family->model_type);
    return true;
}

static bool read_config(const struct model *model, struct moe *moe, struct err *err) {
    const struct moe_traits *t = moe->traits;
    const json_t *text = model->config->text;
    const char *what = "config.json";
    uint32_t n_shared = 0;
    moe->scale = 1;
    bool is_sigmoid = t->route == ROUTE_SIGMOID, by_key = t->normalize < MOE_NORMALIZE_ALWAYS;
    moe->normalize = t->normalize == MOE_NORMALIZE_ALWAYS || t->normalize == MOE_NORMALIZE_KEY_ON;
    if (!needed(text, t->normalize == MOE_NORMALIZE_KEY_NEEDED, "norm_topk_prob", err) ||
        !needed(text, t->scaling && is_sigmoid, "routed_scaling_factor", err) ||
        !needed(text, t->groups && is_sigmoid, "n_group", err) ||
        !needed(text, t->groups && is_sigmoid, "topk_group", err))
        return false;
    moe->d_expert = model->config->d_ff;
    if (!json_get_u32(text, t->n_experts_key, &moe->n_experts, what, err) ||
        !json_get_u32(text, t->n_used_key ? t->n_used_key : "num_experts_per_tok", &moe->n_used, what, err) ||
        (t->ff_key && !json_get_u32(text, t->ff_key, &moe->d_expert, what, err)) ||
        (by_key && !json_get_bool(text, "norm_topk_prob", &moe->normalize, what, err)) ||
        (t->scaling && !json_get_f32(text, "routed_scaling_factor", &moe->scale, what, err)) ||
        (t->groups && (!json_get_u32(text, "n_group", &moe->n_groups, what, err) ||
                       !json_get_u32(text, "topk_group", &moe->n_groups_used, what, err))) ||
        !json_get_u32(text, t->n_shared_key ? t->n_shared_key : "n_shared_experts", &n_shared, what, err))
        return false;
    struct str method = {0};
    if (!json_get_str(text, "topk_method", &method, what, err) || !check_routing(model, t, method, err))
        return false;
    if (str_eq_c(method, "greedy")) // DeepSeek V2 Lite: no groups
        moe->n_groups = 0;
    if (t->glu == GLU_CLAMPED_SWIGLU) {
        moe->limit = 7;
        if (!json_get_f32(text, "swiglu_limit", &moe->limit, what, err))
            return false;
    }
    if (moe->n_experts == 0 || moe->n_experts > EXPERTS_MAX || moe->n_used == 0 ||
        moe->n_used > moe->n_experts || moe->n_used > EXPERTS_USED_MAX || moe->d_expert == 0)
        return err_set(err, ERR_FORMAT, "config.json: %u experts, %u of them used, %u wide, is no mixture of "
                       "experts that loam runs", moe->n_experts, moe->n_used, moe->d_expert);
    if (moe->n_groups > 1 && (moe->n_experts % moe->n_groups || moe->n_groups_used == 0 ||
                              moe->n_groups_used > moe->n_groups))
        return err_set(err, ERR_FORMAT, "config.json: %u experts in %u groups of which %u are used",
                       moe->n_experts, moe->n_groups, moe->n_groups_used);
    if (t->shared && t->shared_ff_key) {
        if (!json_get_u32(text, t->shared_ff_key, &moe->d_shared, what, err))
            return false;
    } else if (t->shared) {
        moe->d_shared = n_shared * moe->d_expert;
    }
    return true;
}

// ---- Experts in their layouts -------------------------------------------------------------------
// A layout is recognised by any of its tensors, so that one that is missing is missed by its name.
static bool has_any(const struct binder *binder, const char *base, const char *const suffixes[], int n) {
    for (int i = 0; i < n; i++) {
        char name[BIND_PATH_BYTES + 32];
        snprintf(name, sizeof name, "%s.%s", base, suffixes[i]);
        if (bind_has(binder, name))
            return true;
    }
    return false;
}

static bool bind_separate(struct binder *binder, struct moe *moe, uint32_t l, uint32_t d, struct err *err) {
    static const char *const DEFAULT_NAMES[3] = {"gate_proj", "up_proj", "down_proj"};
    const struct moe_traits *t = moe->traits;
    struct weight **lists[3] = {moe->gate, moe->up, moe->down};
    static const char *const STACKED[] = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "layers.%u.%s", l, t->stacked);
    bool stacked = has_any(binder, path, STACKED, 3);
    for (int i = 0; i < 3; i++) {
        struct bind_shape shape = {.n_out = i == 2 ? d : moe->d_expert, .n_in = i == 2 ? moe->d_expert : d};
        for (uint32_t e = 0; e < moe->n_experts; e++) {
            if (stacked) {
                bind_path(binder, path, "layers.%u.%s.%s", l, t->stacked, DEFAULT_NAMES[i]);
                shape.n_experts = moe->n_experts;
                shape.expert = e;
            } else {
                bind_path(binder, path, "layers.%u.%s.%u.%s", l, t->experts, e,
                          t->names[i] ? t->names[i] : DEFAULT_NAMES[i]);
            }
            lists[i][e] = bind_matrix(binder, path, shape, err);
            if (!lists[i][e])
                return false;
        }
    }
    return true;
}

static bool bind_fused(struct binder *binder, struct moe *moe, uint32_t l, uint32_t d, struct err *err) {
    char up[BIND_PATH_BYTES], down[BIND_PATH_BYTES];
    bind_path(binder, up, "layers.%u.%s", l, moe->traits->fused_up);
    bind_path(binder, down, "layers.%u.%s", l, moe->traits->fused_down);
    for (uint32_t e = 0; e < moe->n_experts; e++) {
        struct bind_shape half = {.n_out = moe->d_expert, .n_in = d, .n_out_total = 2 * moe->d_expert,
                                  .n_experts = moe->n_experts, .expert = e};
        struct bind_shape second = half;
        second.from = moe->d_expert;
        struct bind_shape back = {.n_out = d, .n_in = moe->d_expert, .n_experts = moe->n_experts,
                                  .expert = e};
        moe->gate[e] = bind_matrix(binder, up, half, err);
        moe->up[e] = moe->gate[e] ? bind_matrix(binder, up, second, err) : NULL;
        moe->down[e] = moe->up[e] ? bind_matrix(binder, down, back, err) : NULL;
        if (!moe->down[e])
            return false;
    }
    return true;
}

// Copies of 16-bit matrices [n_rows, n_cols] with the axes swapped, taking every step-th column from `from`:
// out [n_cols / step, n_rows].
static void swap_axes(const uint8_t *in, size_t n_rows, size_t n_cols, size_t from, size_t step,
                      uint16_t *out) {
    for (size_t c = from, o = 0; c < n_cols; c += step, o++)
        for (size_t r = 0; r < n_rows; r++)
            memcpy(&out[o * n_rows + r], in + 2 * (r * n_cols + c), 2);
}

// gpt-oss as published in bf16: [E, in, out]. Kept as copies in the order that the kernels read.
static bool bind_gpt_oss_dense(struct binder *binder, struct moe *moe, const char *base, uint32_t d,
                               struct err *err) {
    uint32_t ff = moe->d_expert, n = moe->n_experts;
    char name[BIND_PATH_BYTES + 32];
    snprintf(name, sizeof name, "%s.gate_up_proj", base);
    const struct tensor *wide = weights_take_shaped(binder->weights, name, 3,
                                                    (const uint64_t[]){n, d, 2 * (uint64_t)ff}, err);
    snprintf(name, sizeof name, "%s.down_proj", base);
    const struct tensor *back =
        wide ? weights_take_shaped(binder->weights, name, 3, (const uint64_t[]){n, ff, d}, err) : NULL;
    if (!back)
        return false;
    if (dtype_bytes(wide->dtype) != 2 || back->dtype != wide->dtype)
        return err_set(err, ERR_UNSUPPORTED, "%s: experts of dtype %s; loam reads BF16, F16 and MXFP4 there",
                       base, dtype_name(wide->dtype));
    size_t each = (size_t)d * ff;
    uint16_t *copies = model_store_host(binder->store, each * 3 * n * sizeof *copies, err);
    if (!copies)
        return false;
    for (uint32_t e = 0; e < n; e++) {
        struct weight **to[3] = {&moe->gate[e], &moe->up[e], &moe->down[e]};
        for (int i = 0; i < 3; i++, copies += each) {
            struct weight_desc desc = {.format = wide->dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16,
                                       .n_out = i == 2 ? d : ff, .n_in = i == 2 ? ff : d, .data = copies};
            if (i == 2)
                swap_axes(back->data.data + 2 * each * e, ff, d, 0, 1, copies);
            else
                swap_axes(wide->data.data + 4 * each * e, d, 2 * (size_t)ff, (size_t)i, 2, copies);
            *to[i] = bind_desc(binder, &desc, each * 2, base, err);
            if (!*to[i])
                return false;
        }
    }
    return true;
}

// Every second row, from `from`, of n_rows * 2 rows of row_bytes.
static void take_alternate_rows(const uint8_t *in, size_t n_rows, size_t row_bytes, size_t from,
                                uint8_t *out) {
    for (size_t r = 0; r < n_rows; r++)
        memcpy(out + r * row_bytes, in + (2 * r + from) * row_bytes, row_bytes);
}

// gpt-oss as published in MXFP4: blocks [E, out, in / 32, 16] and scales [E, out, in / 32]. down is read in
// place; gate and up, interleaved row by row, are kept as copies.
static bool bind_gpt_oss_mxfp4(struct binder *binder, struct moe *moe, const char *base, uint32_t d,
                               struct err *err) {
    uint32_t ff = moe->d_expert, n = moe->n_experts;
    if (d % 32 || ff % 32)
        return err_set(err, ERR_FORMAT, "%s: %u x %u experts cannot be cut into MXFP4 blocks of 32", base, d,
                       ff);
    const struct tensor *parts[4];
    static const char *const NAMES[4] = {"gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks",
                                         "down_proj_scales"};
    for (int i = 0; i < 4; i++) {
        char name[BIND_PATH_BYTES + 32];
        snprintf(name, sizeof name, "%s.%s", base, NAMES[i]);
        uint64_t dims[4] = {n, i < 2 ? 2 * (uint64_t)ff : d, (i < 2 ? d : ff) / 32, 16};
        parts[i] = weights_take_shaped(binder->weights, name, i % 2 ? 3 : 4, dims, err);
        if (!parts[i])
            return false;
        if (parts[i]->dtype != DTYPE_U8)
            return err_set(err, ERR_FORMAT, "tensor %s has dtype %s; MXFP4 parts are U8", name,
                           dtype_name(parts[i]->dtype));
    }
    size_t data_row = d / 2, scale_row = d / 32;
    uint8_t *copies = model_store_host(binder->store, (data_row + scale_row) * 2 * ff * n, err);
    if (!copies)
        return false;
    for (uint32_t e = 0; e < n; e++) {
        for (size_t half = 0; half < 2; half++) {
            uint8_t *data = copies, *scales = copies + data_row * ff;
            copies += (data_row + scale_row) * ff;
            take_alternate_rows(parts[0]->data.data + data_row * 2 * ff * e, ff, data_row, half, data);
            take_alternate_rows(parts[1]->data.data + scale_row * 2 * ff * e, ff, scale_row, half, scales);
            struct weight_desc desc = {.format = WEIGHT_MXFP4, .n_out = ff, .n_in = d, .bits = 4, .group = 32,
                                       .scale_dtype = DTYPE_U8, .data = data, .scales = scales};
            struct weight **to = half ? &moe->up[e] : &moe->gate[e];
            *to = bind_desc(binder, &desc, (data_row + scale_row) * ff, base, err);
            if (!*to)
                return false;
        }
        size_t bytes = (size_t)d * ff / 2, n_scales = (size_t)d * ff / 32;
        struct weight_desc desc = {.format = WEIGHT_MXFP4, .n_out = d, .n_in = ff, .bits = 4, .group = 32,
                                   .scale_dtype = DTYPE_U8, .data = parts[2]->data.data + bytes * e,
                                   .scales = parts[3]->data.data + n_scales * e};
        moe->down[e] = bind_desc(binder, &desc, bytes + n_scales, base, err);
        if (!moe->down[e])
            return false;
    }
    return true;
}

// [n_experts, n] as one vector.
static float *bind_expert_vectors(struct binder *binder, const char *name, uint32_t n_experts, uint32_t n,
                                  struct err *err) {
    if (!bind_expect_shape(binder, name, 2, (const uint64_t[]){n_experts, n}, err))
        return NULL;
    return bind_vector(binder, name, n_experts * n, 0, err);
}

// The biases of gpt-oss's experts: interleaved [E, 2 ff] and [E, d], or one a projection (MLX).
static bool bind_gpt_oss_biases(struct model *model, struct binder *binder, struct moe *moe,
                                const char *base, uint32_t d, struct err *err) {
    uint32_t ff = moe->d_expert, n = moe->n_experts;
    char name[BIND_PATH_BYTES + 32];
    static const char *const SPLIT[] = {"gate_proj.bias", "up_proj.bias", "down_proj.bias"};
    if (has_any(binder, base, SPLIT, 3)) {
        snprintf(name, sizeof name, "%s.gate_proj.bias", base);
        moe->gate_bias = bind_expert_vectors(binder, name, n, ff, err);
        snprintf(name, sizeof name, "%s.up_proj.bias", base);
        moe->up_bias = moe->gate_bias ? bind_expert_vectors(binder, name, n, ff, err) : NULL;
        snprintf(name, sizeof name, "%s.down_proj.bias", base);
        moe->down_bias = moe->up_bias ? bind_expert_vectors(binder, name, n, d, err) : NULL;
        return moe->down_bias != NULL;
    }
    snprintf(name, sizeof name, "%s.down_proj_bias", base);
    moe->down_bias = bind_expert_vectors(binder, name, n, d, err);
    float *both = moe->down_bias ? model_store_host(binder->store, (size_t)4 * n * ff * sizeof *both, err)
                                 : NULL;
    snprintf(name, sizeof name, "%s.gate_up_proj_bias", base);
    if (!both || !bind_expect_shape(binder, name, 2, (const uint64_t[]){n, 2 * (uint64_t)ff}, err) ||
        !bind_values(binder, name, both, (size_t)2 * n * ff, err))
        return false;
    float *apart = both + (size_t)2 * n * ff;
    for (size_t i = 0; i < (size_t)n * ff; i++) {
        apart[i] = both[2 * i];
        apart[(size_t)n * ff + i] = both[2 * i + 1];
    }
    float *gate = model_store_alloc(binder->store, (size_t)n * ff * sizeof *gate, err);
    float *up = gate ? model_store_alloc(binder->store, (size_t)n * ff * sizeof *up, err) : NULL;
    if (!up)
        return false;
    model->be->ops->upload(model->be, gate, apart, (size_t)n * ff * sizeof *gate);
    model->be->ops->upload(model->be, up, apart + (size_t)n * ff, (size_t)n * ff * sizeof *up);
    moe->gate_bias = gate;
    moe->up_bias = up;
    return true;
}

static bool bind_gpt_oss(struct model *model, struct binder *binder, struct moe *moe, uint32_t l, uint32_t d,
                         struct err *err) {
    char base[BIND_PATH_BYTES];
    bind_path(binder, base, "layers.%u.%s", l, moe->traits->experts);
    if (!bind_gpt_oss_biases(model, binder, moe, base, d, err))
        return false;
    static const char *const BLOCKS[] = {"gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks",
                                         "down_proj_scales"};
    static const char *const DENSE[] = {"gate_up_proj", "down_proj"};
    if (has_any(binder, base, BLOCKS, 4))
        return bind_gpt_oss_mxfp4(binder, moe, base, d, err);
    return has_any(binder, base, DENSE, 2) ? bind_gpt_oss_dense(binder, moe, base, d, err)
                                           : bind_separate(binder, moe, l, d, err);
}

static bool bind_shared(struct binder *binder, struct moe *moe, uint32_t l, uint32_t d, struct err *err) {
    static const char *const NAMES[3] = {"gate_proj", "up_proj", "down_proj"};
    struct weight **to[3] = {&moe->shared_gate_proj, &moe->shared_up, &moe->shared_down};
    char path[BIND_PATH_BYTES];
    const char *const *fused = moe->traits->shared_names;
    for (int i = 0; i < 3; i++) {
        bind_path(binder, path, "layers.%u.%s.%s", l, moe->traits->shared, fused[0] ? fused[i / 2] : NAMES[i]);
        if (fused[0] && i < 2) { // gate first, then up
            struct bind_shape half = {.n_out = moe->d_shared, .n_in = d, .n_out_total = 2 * moe->d_shared,
                                      .from = i ? moe->d_shared : 0};
            *to[i] = bind_matrix(binder, path, half, err);
            if (!*to[i])
                return false;
            continue;
        }
        *to[i] = bind_linear(binder, path, i == 2 ? d : moe->d_shared, i == 2 ? moe->d_shared : d, err);
        if (!*to[i])
            return false;
    }
    if (!moe->traits->shared_gate)
        return true;
    bind_path(binder, path, "layers.%u.%s", l, moe->traits->shared_gate);
    moe->shared_gate = bind_linear(binder, path, 1, d, err);
    return moe->shared_gate != NULL;
}

struct moe *moe_bind(struct model *model, struct binder *binder, const struct moe_traits *traits, uint32_t l,
                     struct err *err) {
    uint32_t d = model->config->d_model;
    struct moe *moe = arena_new(&model->arena, struct moe);
    if (!moe) {
        err_set(err, ERR_NOMEM, "out of memory for the experts");
        return NULL;
    }
    moe->traits = traits;
    if (!read_config(model, moe, err))
        return NULL;
    moe->gate = arena_array(&model->arena, struct weight *, moe->n_experts);
    moe->up = arena_array(&model->arena, struct weight *, moe->n_experts);
    moe->down = arena_array(&model->arena, struct weight *, moe->n_experts);
    if (!moe->gate || !moe->up || !moe->down) {
        err_set(err, ERR_NOMEM, "out of memory for %u experts", moe->n_experts);
        return NULL;
    }
    char path[BIND_PATH_BYTES], name[BIND_PATH_BYTES + 16];
    bind_path(binder, path, "layers.%u.%s", l, traits->router);
    moe->router = bind_linear(binder, path, moe->n_experts, d, err);
    if (!moe->router)
        return NULL;
    if (traits->router_bias) {
        snprintf(name, sizeof name, "%s.bias", path);
        moe->router_bias = bind_vector(binder, name, moe->n_experts, 0, err);
        if (!moe->router_bias)
            return NULL;
    }
    if (traits->correction) {
        bind_path(binder, path, "layers.%u.%s", l, traits->correction);
        moe->correction = bind_vector(binder, path, moe->n_experts, 0, err);
        if (!moe->correction)
            return NULL;
    }
    if (traits->expert_scale) {
        bind_path(binder, path, "layers.%u.%s", l, traits->expert_scale);
        moe->expert_scale = bind_vector(binder, path, moe->n_experts, 0, err);
        if (!moe->expert_scale)
            return NULL;
    }
    bool bound = traits->layout == MOE_GPT_OSS ? bind_gpt_oss(model, binder, moe, l, d, err) : true;
    if (traits->layout == MOE_FUSED) { // MLX splits it into stacked projections
        bind_path(binder, path, "layers.%u", l);
        char up[128], down[128]; // a parameter of its own, or a module's weight
        snprintf(up, sizeof up, "%s.weight", traits->fused_up);
        snprintf(down, sizeof down, "%s.weight", traits->fused_down);
        const char *fused[] = {traits->fused_up, traits->fused_down, up, down};
        bound = has_any(binder, path, fused, 4) ? bind_fused(binder, moe, l, d, err)
                                                : bind_separate(binder, moe, l, d, err);
    } else if (traits->layout == MOE_SEPARATE) {
        bound = bind_separate(binder, moe, l, d, err);
    }
    if (!bound || (moe->d_shared && !bind_shared(binder, moe, l, d, err)))
        return NULL;
    model->n_experts = max_u32(model->n_experts, moe->n_experts);
    model->n_experts_used = max_u32(model->n_experts_used, moe->n_used);
    model->d_expert = max_u32(model->d_expert, moe->d_expert);
    model->n_cols_max = max_u32(model->n_cols_max, max_u32(moe->d_expert, moe->d_shared));
    return moe;
}

// ---- The step -----------------------------------------------------------------------------------
bool moe_prepare(struct model *model, const struct moe *moe, uint32_t n_tokens, struct moe_scratch *s,
                 struct err *err) {
    size_t n_chosen = (size_t)n_tokens * moe->n_used;
    s->experts = model_store_alloc(&model->store, n_chosen * sizeof *s->experts, err);
    s->weights = s->experts ? model_store_alloc(&model->store, n_chosen * sizeof *s->weights, err) : NULL;
    if (!s->weights || !model_new_mat(model, n_tokens, moe->n_experts, &s->logits, err))
        return false;
    return moe->d_shared == 0 ||
           (model_new_mat(model, n_tokens, moe->d_shared, &s->shared, err) &&
            model_new_mat(model, n_tokens, model->config->d_model, &s->shared_out, err) &&
            model_new_mat(model, n_tokens, 1, &s->shared_gate, err));
}

uint64_t moe_workspace_bytes(const struct model *model, const struct moe *moe, uint32_t n_tokens) {
    uint64_t total = (uint64_t)n_tokens * moe->n_used * 8 + model_mat_bytes(model, n_tokens, moe->n_experts);
    if (moe->d_shared)
        total += model_mat_bytes(model, n_tokens, moe->d_shared) +
                 model_mat_bytes(model, n_tokens, model->config->d_model) +
                 model_mat_bytes(model, n_tokens, 1);
    return total;
}

static void shared_forward(const struct model *model, const struct moe *moe, const struct moe_scratch *s,
                           struct mat x, struct mat y, float scale) {
    const struct backend_ops *ops = model->be->ops;
    struct mat inner = mat_first(s->shared, x.n_rows);
    ops->linear_glu(model->be, x, moe->shared_gate_proj, moe->shared_up, GLU_SILU, inner);
    if (!moe->shared_gate) {
        ops->linear(model->be, &(struct linear_args){.x = inner, .n_outputs = 1, .store = LINEAR_ADD,
                                                     .scale = scale,
                                                     .outputs = {{moe->shared_down, NULL, y}}});
        return;
    }
    struct mat out = mat_first(s->shared_out, x.n_rows), gate = mat_first(s->shared_gate, x.n_rows);
    ops->linear(model->be, &(struct linear_args){.x = inner, .n_outputs = 1, .scale = scale,
                                                 .outputs = {{moe->shared_down, NULL, out}}});
    ops->linear(model->be, &(struct linear_args){.x = x, .n_outputs = 1, .scale = 1,
                                                 .outputs = {{moe->shared_gate, NULL, gate}}});
    ops->unary(model->be, UNARY_SIGMOID, (const float[4]){0}, gate, gate);
    ops->mul(model->be, gate, out);
    ops->axpby(model->be, 1, out, 1, y);
}

void moe_route(const struct model *model, const struct moe *moe, const struct moe_scratch *s, struct mat x) {
    const struct backend_ops *ops = model->be->ops;
    struct mat logits = mat_first(s->logits, x.n_rows);
    ops->linear(model->be, &(struct linear_args){.x = x, .n_outputs = 1, .scale = 1,
                                                 .outputs = {{moe->router, moe->router_bias, logits}}});
    ops->route(model->be, &(struct route_args){
        .kind = moe->traits->route, .logits = logits, .n_used = moe->n_used, .normalize = moe->normalize,
        .scale = moe->scale, .correction = moe->correction, .n_groups = moe->n_groups,
        .n_groups_used = moe->n_groups_used, .expert_scale = moe->expert_scale, .experts = s->experts,
        .weights = s->weights});
}

void moe_experts(const struct model *model, const struct moe *moe, const struct moe_scratch *s, struct mat x,
                 struct mat y, enum linear_store store, float scale) {
    model->be->ops->experts(model->be, &(struct experts_args){
        .x = x, .y = y, .store = store, .n_experts = moe->n_experts, .n_used = moe->n_used,
        .experts = s->experts, .weights = s->weights, .gate = moe->gate, .up = moe->up, .down = moe->down,
        .gate_bias = moe->gate_bias, .up_bias = moe->up_bias, .down_bias = moe->down_bias,
        .glu = moe->traits->glu, .alpha = 1.702f, .limit = moe->limit, .scale = scale});
    if (moe->d_shared)
        shared_forward(model, moe, s, x, y, scale);
}

void moe_forward(const struct model *model, const struct moe *moe, const struct moe_scratch *s, struct mat x,
                 struct mat y, enum linear_store store, float scale) {
    moe_route(model, moe, s, x);
    moe_experts(model, moe, s, x, y, store, scale);
}
