// What a damaged model folder gets: every tensor renamed or reshaped is named in the refusal, and every
// allocation of a load may fail.
#include "check.h"

#include <limits.h>

#include "artifact/weights.h"
#include "base/file_map.h"
#include "base/json.h"
#include "base/log.h"
#include "failing_alloc.h"
#include "model/family.h"
#include "model/model.h"

#include "../artifact/each_model.h"

static struct backend *be;
static const struct model_options OPTIONS = {.kv = KV_F32};

static int open_backend(void **state) {
    (void)state;
    struct backend_options options = {.n_threads = 1, .math = MATH_EXACT, .device = -1};
    struct err err = {0};
    be = backend_open("cpu", &options, &err);
    return be ? 0 : -1;
}

static int close_backend(void **state) {
    (void)state;
    be->ops->close(be);
    return 0;
}

// The folder's type if loam runs it and its weights are one file: that file, mapped, and its header.
struct subject {
    const char *folder;
    struct file_map map;
    json_t *header;
    struct bytes data;
};

static bool subject_open(struct subject *subject, const char *folder) {
    struct err err = {0};
    *subject = (struct subject){.folder = folder};
    struct model_config *config = model_config_open(folder, &err);
    check_ok(config, &err);
    bool runs = family_find(config->model_type) != NULL;
    model_config_destroy(config);
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!runs || !path_exists(path))
        return false;
    check_ok(file_map_open(&subject->map, path, &err), &err);
    uint64_t n_header;
    memcpy(&n_header, subject->map.bytes.data, 8);
    subject->header = json_parse(
        (struct str){(const char *)subject->map.bytes.data + 8, (size_t)n_header}, path, &err);
    check_ok(subject->header, &err);
    subject->data = (struct bytes){subject->map.bytes.data + 8 + n_header,
                                   subject->map.bytes.n - 8 - (size_t)n_header};
    return true;
}

static void subject_close(struct subject *subject) {
    json_decref(subject->header);
    file_map_close(&subject->map);
}

// Load with another header; true if that worked.
static bool loads(const struct subject *subject, const json_t *header, struct err *err) {
    struct strbuf text = {0}, file = {0};
    strbuf_json(&text, header);
    while (text.n % 8)
        strbuf_char(&text, ' ');
    uint64_t n = text.n;
    strbuf_append(&file, (struct str){(const char *)&n, 8});
    strbuf_append(&file, strbuf_str(&text));
    strbuf_append(&file, str_of(subject->data));
    assert_false(file.failed);
    struct model_config *config = model_config_open(subject->folder, err);
    check_ok(config, err);
    struct weights *weights = weights_create(bytes_of(strbuf_str(&file)), "changed", err);
    check_ok(weights, err);
    struct model *model = model_create(config, weights, be, &OPTIONS, err);
    bool loaded = model != NULL;
    model_destroy(model);
    strbuf_deinit(&file);
    strbuf_deinit(&text);
    return loaded;
}

static void check_refused(const struct subject *subject, const char *name, const json_t *header,
                          const char *change) {
    struct err err = {0};
    if (loads(subject, header, &err))
        fail_msg("%s: loads with %s %s", subject->folder, name, change);
    if (err.code != ERR_FORMAT && err.code != ERR_UNSUPPORTED)
        fail_msg("%s: %s %s: %s %s", subject->folder, name, change, err_code_name(err.code),
                 err.message);
    // The module at least: scales that are gone make its weight the one that does not fit.
    char module[PATH_MAX];
    snprintf(module, sizeof module, "%s", name);
    char *dot = strrchr(module, '.');
    if (dot)
        *dot = '\0';
    // The table of embeddings tells the prefix of all names; without it, it is missed under the usual one.
    static const char *const TABLES[] = {"embed_tokens", "word_embeddings", "tok_embeddings"};
    const char *named = module;
    for (size_t i = 0; i < sizeof TABLES / sizeof *TABLES; i++)
        if (strstr(module, TABLES[i]))
            named = TABLES[i];
    if (!strstr(err.message, named))
        fail_msg("%s: %s %s: the message does not name it: %s", subject->folder, name, change,
                 err.message);
}

static json_t *with_shape(const json_t *header, const char *name, json_t *shape) {
    json_t *changed = json_deep_copy(header);
    json_object_set_new(json_object_get(changed, name), "shape", shape);
    return changed;
}

// Tensors that the family recognises and leaves alone: towers, draft heads, layers after the last.
static bool is_left_alone(const struct subject *subject, const char *name, uint32_t n_layers) {
    struct str all = str_from(name);
    static const char *const PARTS[] = {"mtp.", "visual.", "vision_", "audio_", "embed_vision", "embed_audio",
                                        "pooler."};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (str_find(all, str_from(PARTS[i]), 0) != SIZE_MAX)
            return true;
    const char *layer = strstr(name, "layers.");
    if (layer && (uint32_t)strtoul(layer + 7, NULL, 10) >= n_layers)
        return true;
    // Gemma 4's hub folders keep the projections of layers that share another's KV.
    return strstr(subject->folder, "gemma4") && strstr(name, "self_attn.") &&
           (strstr(name, ".k_") || strstr(name, ".v_"));
}

static void check_every_tensor(const char *folder, const char *folder_name) {
    (void)folder_name;
    struct subject subject;
    if (!subject_open(&subject, folder))
        return;
    struct err err = {0};
    struct model_config *config = model_config_open(folder, &err);
    check_ok(config, &err);
    uint32_t n_layers = config->n_layers;
    bool is_drafter = str_eq_c(config->root_model_type, "gemma4_assistant");
    model_config_destroy(config);
    if (is_drafter) { // refused by name: see the families' own tests
        subject_close(&subject);
        return;
    }
    check_ok(loads(&subject, subject.header, &err), &err);
    const char *name;
    json_t *tensor;
    json_object_foreach(subject.header, name, tensor) {
        if (!json_is_array(json_object_get(tensor, "shape")))
            continue; // __metadata__
        if (is_left_alone(&subject, name, n_layers))
            continue;
        const json_t *shape = json_object_get(tensor, "shape");
        // Gone, and something else there instead.
        char other[512];
        snprintf(other, sizeof other, "%s.stray", name);
        json_t *changed = json_copy(subject.header);
        json_object_del(changed, name);
        json_object_set(changed, other, tensor);
        check_refused(&subject, name, changed, "renamed");
        json_decref(changed);

        // Vectors count their elements, in whatever shape.
        if (json_array_size(shape) < 2 || strstr(name, "e_score_correction_bias"))
            continue;
        json_t *longer = json_deep_copy(shape);
        json_array_append_new(longer, json_integer(1));
        changed = with_shape(subject.header, name, longer);
        check_refused(&subject, name, changed, "with a dimension more");
        json_decref(changed);
        json_t *rows = json_array_get(shape, 0), *cols = json_array_get(shape, 1);
        if (json_equal(rows, cols))
            continue;
        json_t *turned = json_deep_copy(shape);
        json_array_set(turned, 0, cols);
        json_array_set(turned, 1, rows);
        changed = with_shape(subject.header, name, turned);
        check_refused(&subject, name, changed, "turned");
        json_decref(changed);
    }
    // One too many: an empty tensor needs no data.
    json_t *changed = json_copy(subject.header);
    json_object_set_new(changed, "model.stray",
                        json_pack("{s:s,s:[i],s:[i,i]}", "dtype", "F32", "shape", 0, "data_offsets", 0, 0));
    check_refused(&subject, "model.stray", changed, "added");
    json_decref(changed);
    subject_close(&subject);
}

static void damaged_tensors_are_named(void **state) {
    (void)state;
    each_model(check_every_tensor);
}

static void check_sweep(const char *folder, const char *name) {
    (void)name;
    struct subject subject;
    if (!subject_open(&subject, folder))
        return;
    for (size_t idx = 0;; idx++) {
        struct err err = {0};
        failing_alloc_start(idx, false);
        struct model *model = model_open(folder, be, &OPTIONS, &err);
        model_destroy(model);
        bool hit = failing_alloc_hit();
        size_t n_lost = failing_alloc_stop();
        if (n_lost)
            fail_msg("%s: allocation %zu failed and %zu blocks were lost", folder, idx, n_lost);
        if (hit == (model != NULL))
            fail_msg("%s: allocation %zu failed: %d, loaded: %d %s", folder, idx, hit, model != NULL,
                     err.message);
        if (hit && err.code != ERR_NOMEM)
            fail_msg("%s: allocation %zu failed: %s %s", folder, idx, err_code_name(err.code),
                     err.message);
        if (!hit)
            break;
    }
    subject_close(&subject);
}

static void loads_survive_every_failing_allocation(void **state) {
    (void)state;
    char folder[PATH_MAX];
    const char *source = getenv("LOAM_SOURCE_DIR");
    static const char *const names[] = {"llama", "llama-mlx-4bit"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(folder, sizeof folder, "%s/tests/models/%s", source ? source : ".", names[i]);
        check_sweep(folder, names[i]);
    }
}

// A folder of tests/models with one key of its config set to a JSON text, or taken out (NULL); its weights borrow `map`.
static struct model *folder_with(const char *name, const char *key, const char *value, struct file_map *map,
                                 struct err *err) {
    const char *source = getenv("LOAM_SOURCE_DIR");
    char config_path[PATH_MAX], weights_path[PATH_MAX];
    snprintf(config_path, sizeof config_path, "%s/tests/models/%s/config.json", source ? source : ".", name);
    snprintf(weights_path, sizeof weights_path, "%s/tests/models/%s/model.safetensors", source ? source : ".", name);
    struct strbuf text = {0}, changed = {0};
    check_ok(file_read(config_path, 1 << 20, &text, err), err);
    check_ok(file_map_open(map, weights_path, err), err);
    json_t *root = json_parse(strbuf_str(&text), config_path, err);
    check_ok(root, err);
    if (value)
        json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(root, key);
    strbuf_json(&changed, root);
    struct model_config *config = model_config_create(strbuf_str(&changed), (struct str){0}, err);
    struct weights *weights = config ? weights_create(map->bytes, name, err) : NULL;
    strbuf_deinit(&changed);
    strbuf_deinit(&text);
    json_decref(root);
    if (!config)
        return NULL;
    check_ok(weights, err);
    return model_create(config, weights, be, &OPTIONS, err);
}

static struct model *llama_with(const char *key, const char *value, struct file_map *map, struct err *err) {
    return folder_with("llama", key, value, map, err);
}

// Keys that decide what one family computes: another value than loam implements, one that is missing where the class's own
// default is no neutral one, and lists of another length than there are layers. Each is named.
static void odd_keys_of_a_family_are_named(void **state) {
    (void)state;
    static const struct {
        const char *folder, *key, *value, *message; // message NULL: it loads
    } CASES[] = {
        {"cohere", "use_qk_norm", "true", "\"use_qk_norm\""},
        {"stablelm", "use_parallel_residual", "true", "\"use_parallel_residual\""},
        {"stablelm", "qk_layernorm", "true", "\"qk_layernorm\""},
        {"stablelm", "qk_layernorm", "false", NULL},
        {"olmoe", "clip_qkv", "8.0", "\"clip_qkv\""},
        {"olmoe", "hidden_act", "\"gelu\"", "\"hidden_act\""},
        {"glm4_moe", "norm_topk_prob", NULL, "\"norm_topk_prob\" is missing"},
        {"glm4_moe", "routed_scaling_factor", NULL, "\"routed_scaling_factor\" is missing"},
        {"glm4_moe", "n_group", "null", "\"n_group\" is missing"},
        {"glm4_moe", "topk_group", NULL, "\"topk_group\" is missing"},
        {"glm4_moe", "n_group", "3", "8 experts in 3 groups"},
        {"glm4_moe", "scoring_func", "\"softmax\"", "\"scoring_func\" is \"softmax\""},
        {"glm4_moe", "num_experts_per_tok", NULL, "8 experts, 0 of them used"},
        {"dots1", "scoring_func", "\"noaux_tc\"", NULL},
        {"deepseek_v2", "topk_method", "\"noaux_tc\"", "\"topk_method\" is \"noaux_tc\""},
        {"deepseek_v2", "scoring_func", "\"sigmoid\"", "\"scoring_func\" is \"sigmoid\""},
        {"deepseek_v32", "moe_layer_freq", "2", "\"moe_layer_freq\" is 2"},
        {"deepseek_v32", "index_topk", "0", "choosing 0 keys"},
        {"glm4_moe_lite", "mlp_layer_types", "[\"dense\", \"sparse\", \"other\"]", "\"mlp_layer_types\""},
        {"glm4_moe_lite", "mlp_layer_types", "[\"dense\", \"sparse\"]", "of layer 2"},
        {"glm4_moe_lite", "mlp_layer_types", "[\"dense\", \"sparse\", \"sparse\"]", NULL},
        {"ernie4_5_moe", "use_bias", "true", "\"use_bias\""},
        {"ernie4_5_moe", "moe_gate_act", "\"sigmoid\"", "\"moe_gate_act\" is \"sigmoid\""},
        {"ernie4_5_moe", "moe_layer_start_index", "[1, 2]", "\"moe_layer_start_index\""},
        {"minimax_m2", "rotary_dim", "64", "\"rotary_dim\" must not exceed 1"},
        {"exaone4", "layer_types", "[\"full_attention\"]", "1 entries for 4 layers"},
        {"exaone4", "layer_types", "[\"conv\", \"full_attention\", \"full_attention\", \"full_attention\"]",
         "layer 0 is a convolution"},
        {"exaone4", "layer_types",
         "[\"chunked_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]", "\"chunked_attention\""},
        {"lfm2", "conv_L_cache", "1", "\"conv_L_cache\" is 1"},
        {"lfm2", "conv_L_cache", "4", "conv.conv.weight"},
        {"gemma2", "query_pre_attn_scalar", "0", "\"query_pre_attn_scalar\""},
        {"granitemoe", "logits_scaling", "0", "\"logits_scaling\" is 0"},
        {"ministral3", "rope_parameters", "{\"rope_type\": \"spiral\"}", "\"spiral\""},
        {"bert", "is_decoder", "true", "\"is_decoder\""},
        {"bert", "position_embedding_type", "\"relative_key\"", "\"relative_key\""},
        {"bert", "hidden_size", "64", "word_embeddings"},
        {"xlm-roberta", "pad_token_id", "159", "positions begin at 160"},
        {"nomic_bert", "prenorm", "true", "\"prenorm\""},
        {"nomic_bert", "moe_every_n_layers", "2", "\"moe_every_n_layers\""},
        {"nomic_bert", "rotary_emb_interleaved", "true", "\"rotary_emb_interleaved\""},
        {"modernbert", "norm_bias", "true", "\"norm_bias\""},
        {"embeddinggemma", "use_bidirectional_attention", "\"all\"", "\"use_bidirectional_attention\""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct err err = {0};
        struct file_map map;
        struct model *model = folder_with(CASES[i].folder, CASES[i].key, CASES[i].value, &map, &err);
        if (!CASES[i].message)
            check_ok(model, &err);
        else if (model)
            fail_msg("%s: %s = %s loads", CASES[i].folder, CASES[i].key, CASES[i].value ? CASES[i].value : "(missing)");
        else
            check_message(&err, CASES[i].message);
        model_destroy(model);
        file_map_close(&map);
    }
}

static void keys_that_change_the_computation_are_refused(void **state) {
    (void)state;
    static const char BETA[] = "{\"rope_type\": \"yarn\", \"factor\": 2, \"original_max_position_embeddings\": 64, "
                               "\"llama_4_scaling_beta\": 0.1}";
    static const struct {
        const char *key, *value;
        bool loads;
    } CASES[] = {
        {"use_bidirectional_attention", "true", false},
        {"use_bidirectional_attention", "\"all\"", false},
        {"use_bidirectional_attention", "\"vision\"", true},
        {"use_bidirectional_attention", "false", true},
        {"use_bidirectional_attention", "null", true},
        {"is_causal", "false", false},
        {"is_causal", "true", true},
        {"clip_qkv", "8.0", false},
        {"clip_qkv", "null", true},
        {"is_encoder_decoder", "true", false},
        {"is_encoder_decoder", "false", true},
        {"add_cross_attention", "true", false},
        {"alibi", "true", false},
        {"attn_output_gate", "false", false},
        {"attn_output_gate", "true", true},
        {"attn_logit_softcapping", "50.0", false},
        {"attn_logit_softcapping", "null", true},
        {"final_logit_softcapping", "30.0", false},
        {"rope_scaling", BETA, false},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct err err = {0};
        struct file_map map;
        struct model *model = llama_with(CASES[i].key, CASES[i].value, &map, &err);
        if (CASES[i].loads) {
            check_ok(model, &err);
        } else {
            if (model)
                fail_msg("%s = %s loads", CASES[i].key, CASES[i].value);
            assert_int_equal(err.code, ERR_UNSUPPORTED);
            check_message(&err, CASES[i].value == BETA ? "llama_4_scaling_beta" : CASES[i].key);
        }
        model_destroy(model);
        file_map_close(&map);
    }
}

// Up to the trained context the frequencies are the plain ones; beyond it they would change with every token.
static void dynamic_rope_stops_at_the_trained_context(void **state) {
    (void)state;
    struct err err = {0};
    struct file_map map;
    struct model *model = llama_with("rope_scaling", "{\"rope_type\": \"dynamic\", \"factor\": 2}", &map, &err);
    check_ok(model, &err);
    uint32_t ctx = model_config_of(model)->ctx_len_max;
    struct model_limits limits = {.n_tokens = 8, .n_rows = 1, .n_logits = 1, .ctx_len = ctx + 1, .n_pages = {2, 2}};
    assert_false(model_prepare(model, &limits, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    check_message(&err, "dynamic");
    limits.ctx_len = ctx;
    check_ok(model_prepare(model, &limits, &err), &err);
    model_destroy(model);
    file_map_close(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_tensors_are_named),
        cmocka_unit_test(keys_that_change_the_computation_are_refused),
        cmocka_unit_test(odd_keys_of_a_family_are_named),
        cmocka_unit_test(dynamic_rope_stops_at_the_trained_context),
        cmocka_unit_test(loads_survive_every_failing_allocation),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
