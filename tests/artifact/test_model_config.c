#include "check.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "artifact/model_config.h"
#include "each_model.h"

#define SHAPE                                                                                      \
    "\"num_hidden_layers\":8,\"hidden_size\":64,\"num_attention_heads\":4,\"vocab_size\":100,"     \
    "\"intermediate_size\":128"
// A minimal config of a family with more members behind it.
#define CONFIG_OF(type, more) "{\"model_type\":\"" type "\"," SHAPE more "}"
#define LLAMA(more) CONFIG_OF("llama", more)

static struct model_config *open_text(const char *config, const char *generation, struct err *err) {
    return model_config_create(str_from(config), str_from(generation), err);
}

static struct model_config *open_ok(const char *config) {
    struct err err = {0};
    struct model_config *c = open_text(config, "", &err);
    if (!c)
        fail_msg("%s: %s", config, err.message);
    return c;
}

// "FSLF" of layer_types.
static void layer_letters(const struct model_config *c, char out[64]) {
    for (uint32_t i = 0; i < c->n_layers; i++)
        out[i] = "FSL"[c->layer_types[i]];
    out[c->n_layers] = '\0';
}

// Expected values are what transformers 5 computes from the same members.
static void layer_types_follow_each_family(void **state) {
    (void)state;
    static const struct {
        const char *config, *layers;
        uint32_t window;
    } cases[] = {
        {LLAMA(""), "FFFFFFFF", 0},
        {LLAMA(",\"sliding_window\":16"), "FFFFFFFF", 0}, // llama does not read it
        {CONFIG_OF("mistral", ",\"num_key_value_heads\":4"), "SSSSSSSS", 4096},
        {CONFIG_OF("mistral", ",\"num_key_value_heads\":4,\"sliding_window\":null"), "FFFFFFFF", 0},
        {CONFIG_OF("mistral", ",\"num_key_value_heads\":4,\"sliding_window\":16"), "SSSSSSSS", 16},
        {CONFIG_OF("mixtral", ",\"num_key_value_heads\":4"), "FFFFFFFF", 0},
        {CONFIG_OF("phi3", ",\"sliding_window\":64"), "SSSSSSSS", 64},
        {CONFIG_OF("phi3", ""), "FFFFFFFF", 0},
        {CONFIG_OF("starcoder2", ",\"sliding_window\":64"), "SSSSSSSS", 64},
        {CONFIG_OF("qwen2", ",\"num_key_value_heads\":4,\"sliding_window\":16,\"max_window_layers\":2"),
         "FFFFFFFF", 0},
        {CONFIG_OF("qwen2", ",\"num_key_value_heads\":4,\"sliding_window\":16,\"max_window_layers\":5,"
                            "\"use_sliding_window\":true"),
         "FFFFFSSS", 16},
        {CONFIG_OF("qwen3", ",\"num_key_value_heads\":4,\"use_sliding_window\":true"), "FFFFFFFF", 0},
        {CONFIG_OF("qwen2_moe", ",\"num_key_value_heads\":4,\"max_window_layers\":5,"
                                "\"use_sliding_window\":true"),
         "SFSFSFFF", 4096},
        {CONFIG_OF("qwen3_moe", ",\"use_sliding_window\":true,\"sliding_window\":16"), "SSSSSSSS", 16},
        {CONFIG_OF("gemma2", ""), "SFSFSFSF", 4096},
        {CONFIG_OF("gemma3_text", ",\"sliding_window\":512"), "SSSSSFSS", 512},
        {CONFIG_OF("gemma3_text", ",\"sliding_window_pattern\":2"), "SFSFSFSF", 4096},
        {CONFIG_OF("gemma4_text", ""), "SSSSSFSF", 512}, // the last is always full
        {CONFIG_OF("cohere2", ""), "SSSFSSSF", 4096},
        {CONFIG_OF("olmo3", ""), "SSSFSSSF", 4096},
        {CONFIG_OF("gpt_oss", ",\"num_key_value_heads\":2"), "SFSFSFSF", 128},
        {CONFIG_OF("exaone4", ",\"num_key_value_heads\":2,\"sliding_window_pattern\":\"LLG\","
                              "\"sliding_window\":32"),
         "SSFSSFSS", 32},
        {CONFIG_OF("exaone4", ",\"num_key_value_heads\":2,\"sliding_window\":null,"
                              "\"sliding_window_pattern\":null"),
         "FFFFFFFF", 0},
        {CONFIG_OF("smollm3", ",\"use_sliding_window\":true,\"sliding_window\":32"), "FFFSFFFS", 32},
        {CONFIG_OF("smollm3", ",\"use_sliding_window\":true,\"sliding_window\":32,"
                              "\"no_rope_layers\":[0,1,1,1,1,1,1,0]"),
         "SFFFFFFS", 32},
        {CONFIG_OF("smollm3", ",\"sliding_window\":32"), "FFFFFFFF", 0},
        {CONFIG_OF("modernbert", ",\"local_attention\":64"), "FSSFSSFS", 64},
        {CONFIG_OF("qwen3_next", ",\"num_key_value_heads\":2"), "LLLFLLLF", 0},
        {CONFIG_OF("qwen3_5_text", ",\"full_attention_interval\":2"), "LFLFLFLF", 0},
        {LLAMA(",\"sliding_window\":16,\"layer_types\":[\"full_attention\",\"sliding_attention\","
               "\"linear_attention\",\"attention\",\"deepseek_sparse_attention\",\"full_attention\","
               "\"full_attention\",\"full_attention\"]"),
         "FSLFFFFF", 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config *c = open_ok(cases[i].config);
        char letters[64];
        layer_letters(c, letters);
        if (strcmp(letters, cases[i].layers) != 0 || c->sliding_window != cases[i].window)
            fail_msg("%s: %s window %u", cases[i].config, letters, c->sliding_window);
        model_config_destroy(c);
    }
}

static void shapes_follow_each_family(void **state) {
    (void)state;
    static const struct {
        const char *config;
        uint32_t n_kv_heads, head_dim, ctx_len_max;
        double eps;
        enum activation activation;
        bool tied;
    } cases[] = {
        {LLAMA(""), 4, 16, 2048, 1e-6, ACT_SILU, false},
        {LLAMA(",\"num_key_value_heads\":2,\"head_dim\":24,\"max_position_embeddings\":77,"
               "\"rms_norm_eps\":1e-5,\"hidden_act\":\"relu2\",\"tie_word_embeddings\":true"),
         2, 24, 77, 1e-5, ACT_RELU2, true},
        {LLAMA(",\"num_key_value_heads\":null,\"head_dim\":null,\"rms_norm_eps\":null"), 4, 16, 2048,
         1e-6, ACT_SILU, false},
        {CONFIG_OF("smollm3", ""), 4, 16, 32768, 1e-6, ACT_SILU, true},
        {CONFIG_OF("smollm3", ",\"num_key_value_heads\":null"), 4, 16, 32768, 1e-6, ACT_SILU, true},
        {CONFIG_OF("starcoder2", ",\"norm_epsilon\":1e-4,\"rms_norm_eps\":1e-3"), 2, 16, 4096, 1e-4,
         ACT_GELU_TANH, true},
        {CONFIG_OF("gemma", ",\"num_key_value_heads\":1,\"hidden_act\":\"gelu\""), 1, 256, 8192, 1e-6,
         ACT_GELU_TANH, true},
        {CONFIG_OF("gemma2", ",\"hidden_act\":\"gelu\",\"hidden_activation\":\"gelu_pytorch_tanh\""), 4,
         256, 8192, 1e-6, ACT_GELU_TANH, true},
        {CONFIG_OF("cohere2", ",\"layer_norm_eps\":1e-4"), 4, 16, 8192, 1e-4, ACT_SILU, true},
        {CONFIG_OF("bert", ""), 4, 16, 512, 1e-12, ACT_GELU, true},
        {CONFIG_OF("apertus", ""), 4, 16, 65536, 1e-5, ACT_XIELU, false},
        {CONFIG_OF("glm4", ""), 2, 128, 131072, 1.5625e-7, ACT_SILU, false},
        // Latent attention: a query head is its part without and its part with rope.
        {CONFIG_OF("deepseek_v3", ",\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":8,\"head_dim\":8"), 4,
         40, 4096, 1e-6, ACT_SILU, false},
        // GPT-2's names.
        {"{\"model_type\":\"nomic_bert\",\"n_layer\":2,\"n_embd\":48,\"n_head\":3,\"n_inner\":96,"
         "\"vocab_size\":9,\"n_positions\":128,\"activation_function\":\"swiglu\","
         "\"layer_norm_epsilon\":1e-7}",
         3, 16, 128, 1e-7, ACT_SILU, true},
        // A text_config inside, the root's tie_word_embeddings, and Gemma 3's published omissions.
        {"{\"model_type\":\"gemma3\",\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":"
         "\"gemma3_text\",\"num_hidden_layers\":3,\"hidden_size\":2560,\"sliding_window\":1024}}",
         4, 256, 131072, 1e-6, ACT_GELU_TANH, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config *c = open_ok(cases[i].config);
        if (c->n_kv_heads != cases[i].n_kv_heads || c->head_dim != cases[i].head_dim ||
            c->ctx_len_max != cases[i].ctx_len_max || c->norm_eps != (float)cases[i].eps ||
            c->activation != cases[i].activation || c->tie_embeddings != cases[i].tied)
            fail_msg("%s: kv %u dim %u ctx %u eps %g act %d tied %d", cases[i].config, c->n_kv_heads,
                     c->head_dim, c->ctx_len_max, (double)c->norm_eps, c->activation, c->tie_embeddings);
        model_config_destroy(c);
    }
}

static void nested_text_config_names_the_family(void **state) {
    (void)state;
    struct model_config *c = open_ok("{\"model_type\":\"gemma3\",\"architectures\":[\"A\",\"B\"],"
                                     "\"text_config\":" CONFIG_OF("gemma3_text", "") "}");
    check_str(c->model_type, STR("gemma3_text"));
    check_str(c->root_model_type, STR("gemma3"));
    check_str(c->architecture, STR("A"));
    assert_true(c->text != c->root);
    model_config_destroy(c);

    c = open_ok(LLAMA(",\"text_config\":null"));
    check_str(c->model_type, STR("llama"));
    check_str(c->architecture, STR(""));
    assert_ptr_equal(c->text, c->root);
    model_config_destroy(c);
}

static void rope_reads_old_and_new_style(void **state) {
    (void)state;
    static const struct {
        const char *config;
        enum rope_kind kind, sliding_kind;
        double theta, sliding_theta, partial, factor;
        uint32_t ctx_original;
    } cases[] = {
        {LLAMA(""), ROPE_DEFAULT, ROPE_DEFAULT, 1e4, 1e4, 1, 1, 0},
        {LLAMA(",\"rope_theta\":999999.4420358813"), ROPE_DEFAULT, ROPE_DEFAULT, 999999.4420358813,
         999999.4420358813, 1, 1, 0},
        {LLAMA(",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
               "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":64}"),
         ROPE_LLAMA3, ROPE_LLAMA3, 5e5, 5e5, 1, 8, 64},
        // llama3 without it: the config's context.
        {LLAMA(",\"max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
               "\"low_freq_factor\":1,\"high_freq_factor\":4}"),
         ROPE_LLAMA3, ROPE_LLAMA3, 1e4, 1e4, 1, 8, 512},
        {LLAMA(",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4,\"rope_theta\":2e4}"),
         ROPE_LINEAR, ROPE_LINEAR, 2e4, 2e4, 1, 4, 0},
        {LLAMA(",\"rope_theta\":7,\"rope_scaling\":null,\"rope_parameters\":{\"type\":\"dynamic\","
               "\"factor\":2}"),
         ROPE_DYNAMIC, ROPE_DYNAMIC, 7, 7, 1, 2, 0},
        {LLAMA(",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,2,3]}"), ROPE_DEFAULT,
         ROPE_DEFAULT, 1e4, 1e4, 1, 1, 0},
        {CONFIG_OF("glm4", ""), ROPE_DEFAULT, ROPE_DEFAULT, 1e4, 1e4, 0.5, 1, 0},
        {CONFIG_OF("qwen3_5_text", ",\"rope_parameters\":{\"rope_theta\":1e7,\"rope_type\":\"default\"}"),
         ROPE_DEFAULT, ROPE_DEFAULT, 1e7, 1e7, 0.25, 1, 0},
        {CONFIG_OF("phi3", ",\"partial_rotary_factor\":0.75,\"max_position_embeddings\":2048,"
                           "\"original_max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"su\","
                           "\"short_factor\":[1,1,1,1,1,1],\"long_factor\":[2,2,2,2,2,2]}"),
         ROPE_LONGROPE, ROPE_LONGROPE, 1e4, 1e4, 0.75, 4, 512},
        // Gemma 3: the old way scales the full layers only.
        {CONFIG_OF("gemma3_text", ",\"rope_theta\":1e6,\"rope_local_base_freq\":3e4,"
                                  "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}"),
         ROPE_LINEAR, ROPE_DEFAULT, 1e6, 3e4, 1, 8, 0},
        {CONFIG_OF("gemma3_text", ""), ROPE_DEFAULT, ROPE_DEFAULT, 1e6, 1e4, 1, 1, 0},
        {CONFIG_OF("gemma3_text", ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
                                  "\"factor\":8},\"sliding_attention\":{\"rope_theta\":5}}"),
         ROPE_LINEAR, ROPE_DEFAULT, 1e6, 5, 1, 8, 0},
        {CONFIG_OF("olmo3", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,"
                            "\"original_max_position_embeddings\":8192}"),
         ROPE_YARN, ROPE_DEFAULT, 5e5, 5e5, 1, 8, 8192},
        {CONFIG_OF("modernbert", ""), ROPE_DEFAULT, ROPE_DEFAULT, 16e4, 1e4, 1, 1, 0},
        {CONFIG_OF("gemma4_text", ""), ROPE_PROPORTIONAL, ROPE_DEFAULT, 1e6, 1e4, 0.25, 1, 0},
        {CONFIG_OF("gpt_oss", ",\"num_key_value_heads\":2"), ROPE_YARN, ROPE_YARN, 15e4, 15e4, 1, 32,
         4096},
        {CONFIG_OF("apertus", ""), ROPE_LLAMA3, ROPE_LLAMA3, 12e6, 12e6, 1, 8, 8192},
        {CONFIG_OF("ministral3", ",\"num_key_value_heads\":2"), ROPE_YARN, ROPE_YARN, 1e6, 1e6, 1, 16,
         16384},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config *c = open_ok(cases[i].config);
        const struct rope_config *r = &c->rope, *s = &c->rope_sliding;
        if (r->kind != cases[i].kind || s->kind != cases[i].sliding_kind || r->theta != cases[i].theta ||
            s->theta != cases[i].sliding_theta || r->partial != cases[i].partial ||
            r->factor != cases[i].factor || r->ctx_original != cases[i].ctx_original)
            fail_msg("%s: kinds %d %d theta %.17g %.17g partial %g factor %g original %u",
                     cases[i].config, r->kind, s->kind, r->theta, s->theta, r->partial, r->factor,
                     r->ctx_original);
        model_config_destroy(c);
    }
}

static void rope_keeps_every_parameter_of_its_kind(void **state) {
    (void)state;
    struct model_config *c =
        open_ok(LLAMA(",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"beta_fast\":30,"
                      "\"mscale\":0.7,\"mscale_all_dim\":0.9,\"truncate\":false,"
                      "\"attention_factor\":1.5}"));
    assert_true(c->rope.beta_fast == 30 && c->rope.beta_slow == 1);
    assert_true(c->rope.mscale == 0.7 && c->rope.mscale_all_dim == 0.9);
    assert_true(c->rope.attention_factor == 1.5);
    assert_false(c->rope.truncate);
    model_config_destroy(c);

    c = open_ok(CONFIG_OF("phi3", ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1.5,2],"
                                  "\"long_factor\":[4,5,6.25]}"));
    assert_int_equal(c->rope.n_factors, 3);
    assert_int_equal(c->rope.ctx_original, 4096); // Phi 3's own default
    assert_true(c->rope.short_factor[1] == 1.5 && c->rope.long_factor[2] == 6.25);
    model_config_destroy(c);
}

static void end_tokens_of_both_files_are_united(void **state) {
    (void)state;
    struct err err = {0};
    struct model_config *c = open_text(
        "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,6],\"text_config\":" CONFIG_OF(
            "gemma3_text", ",\"eos_token_id\":1,\"bos_token_id\":2,\"pad_token_id\":-1") "}",
        "{\"eos_token_id\":[106,6],\"bos_token_id\":3}", &err);
    check_ok(c, &err);
    assert_int_equal(c->n_eos, 3);
    assert_int_equal(c->eos[0], 1);
    assert_int_equal(c->eos[1], 6);
    assert_int_equal(c->eos[2], 106);
    assert_int_equal(c->bos, 3);
    assert_int_equal(c->pad, -1);
    model_config_destroy(c);
}

static void generation_defaults_say_what_is_given(void **state) {
    (void)state;
    struct err err = {0};
    struct model_config *c = open_text(LLAMA(""),
                                       "{\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"min_p\":0,"
                                       "\"repetition_penalty\":1.05,\"do_sample\":true,"
                                       "\"max_new_tokens\":2048,\"min_new_tokens\":3,\"typical_p\":0.9}",
                                       &err);
    check_ok(c, &err);
    const struct generation_defaults *g = &c->generation;
    assert_true(g->temperature == 0.6f && g->top_p == 0.95f && g->min_p == 0 &&
                g->repetition_penalty == 1.05f);
    assert_int_equal(g->top_k, 20);
    assert_int_equal(g->max_new_tokens, 2048);
    assert_int_equal(g->min_new_tokens, 3);
    assert_true(g->typical_p == 0.9f);
    assert_true(g->do_sample && g->do_sample_given);
    model_config_destroy(c);

    c = open_ok(LLAMA(""));
    g = &c->generation;
    assert_true(g->temperature == -1 && g->top_p == -1 && g->min_p == -1 && g->repetition_penalty == -1);
    assert_int_equal(g->top_k, -1);
    assert_int_equal(g->max_new_tokens, -1);
    assert_int_equal(g->min_new_tokens, -1);
    assert_true(g->typical_p == -1);
    assert_false(g->do_sample_given);
    assert_int_equal(c->bos, -1);
    assert_int_equal(c->n_eos, 0);
    model_config_destroy(c);
}

static void check_quant(const struct model_config *c, const char *path, enum quant_mode mode,
                        uint32_t bits, uint32_t group) {
    struct quant_spec spec;
    struct err err = {0};
    check_ok(model_config_quant(c, path, &spec, &err), &err);
    if (spec.mode != mode || spec.bits != bits || spec.group != group)
        fail_msg("%s: mode %d bits %u group %u", path, spec.mode, spec.bits, spec.group);
}

static void quantization_overrides_are_found_under_any_prefix(void **state) {
    (void)state;
    struct model_config *c = open_ok(
        LLAMA(",\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\","
              "\"lm_head\":{\"group_size\":64,\"bits\":8},"
              "\"model.layers.0.mlp.gate\":false,\"model.layers.1.mlp.gate\":true,"
              "\"language_model.model.layers.2.q\":{\"mode\":\"nvfp4\",\"bits\":4,\"group_size\":16},"
              "\"layers.3.q\":{\"bits\":3},\"quantized_by\":\"someone\"},"
              "\"quantization_config\":{\"group_size\":64,\"bits\":2}"));
    check_quant(c, "model.layers.9.q", QUANT_MXFP4, 4, 32);
    check_quant(c, "lm_head", QUANT_AFFINE, 8, 64); // without a mode: affine, whatever the default
    check_quant(c, "language_model.lm_head", QUANT_AFFINE, 8, 64);
    check_quant(c, "model.layers.0.mlp.gate", QUANT_NONE, 0, 0);
    check_quant(c, "layers.0.mlp.gate", QUANT_NONE, 0, 0);
    check_quant(c, "model.language_model.layers.0.mlp.gate", QUANT_NONE, 0, 0);
    check_quant(c, "model.layers.1.mlp.gate", QUANT_MXFP4, 4, 32);
    check_quant(c, "model.layers.2.q", QUANT_NVFP4, 4, 16);
    check_quant(c, "language_model.model.layers.2.q", QUANT_NVFP4, 4, 16);
    check_quant(c, "model.layers.3.q", QUANT_AFFINE, 3, 64);
    check_quant(c, "quantized_by", QUANT_MXFP4, 4, 32);
    model_config_destroy(c);

    c = open_ok(LLAMA(""));
    assert_int_equal(c->quant.mode, QUANT_NONE);
    check_quant(c, "lm_head", QUANT_NONE, 0, 0);
    model_config_destroy(c);

    // The name that MLX writes beside the first, alone; no mode in older files.
    c = open_ok(LLAMA(",\"quantization_config\":{\"group_size\":128,\"bits\":6}"));
    check_quant(c, "lm_head", QUANT_AFFINE, 6, 128);
    model_config_destroy(c);

    // The hub's gpt-oss.
    c = open_ok(CONFIG_OF("gpt_oss", ",\"num_key_value_heads\":2,\"quantization_config\":{"
                                     "\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"a\"]}"));
    check_quant(c, "model.layers.0.mlp.experts.down_proj", QUANT_MXFP4, 4, 32);
    model_config_destroy(c);
}

static void bad_configs_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation;
        enum err_code code;
        const char *message;
    } cases[] = {
        {"{\"model_type\":\"new\"," SHAPE "}", "", ERR_FORMAT, "\"max_position_embeddings\" is missing"},
        {"{\"model_type\":\"new\"}", "", ERR_FORMAT, "model type new: config.json: \"num_hidden"},
        {LLAMA(",\"max_position_embeddings\":0"), "", ERR_FORMAT, "\"max_position_embeddings\" is 0"},
        {"", "", ERR_FORMAT, "config.json"},
        {"{\"model_type\":\"llama\"", "", ERR_FORMAT, "config.json: not valid JSON: line 1"},
        {"[1]", "", ERR_FORMAT, "JSON object"},
        {"{}", "", ERR_FORMAT, "\"model_type\" is missing"},
        {"{\"model_type\":7}", "", ERR_FORMAT, "\"model_type\" must be a string"},
        {"{\"model_type\":\"llama\"}", "", ERR_FORMAT, "\"num_hidden_layers\" is missing"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":2}", "", ERR_FORMAT,
         "\"hidden_size\" is missing"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64}", "", ERR_FORMAT,
         "\"num_attention_heads\" is missing"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64,"
         "\"num_attention_heads\":4}",
         "", ERR_FORMAT, "\"vocab_size\" is missing"},
        {LLAMA(",\"num_hidden_layers\":0"), "", ERR_FORMAT, "\"num_hidden_layers\" is 0"},
        {LLAMA(",\"num_hidden_layers\":1000000000"), "", ERR_FORMAT,
         "\"num_hidden_layers\" is 1000000000, expected 1 to 4096"},
        {LLAMA(",\"num_hidden_layers\":-1"), "", ERR_FORMAT, "\"num_hidden_layers\""},
        {LLAMA(",\"num_hidden_layers\":2.5"), "", ERR_FORMAT, "\"num_hidden_layers\""},
        {LLAMA(",\"hidden_size\":\"64\""), "", ERR_FORMAT, "\"hidden_size\" must be an integer"},
        {LLAMA(",\"hidden_size\":99999999999"), "", ERR_FORMAT, "\"hidden_size\""},
        {LLAMA(",\"vocab_size\":0"), "", ERR_FORMAT, "\"vocab_size\" is 0"},
        {LLAMA(",\"intermediate_size\":4294967295"), "", ERR_FORMAT, "\"intermediate_size\""},
        {LLAMA(",\"max_position_embeddings\":4000000000"), "", ERR_FORMAT,
         "\"max_position_embeddings\""},
        {LLAMA(",\"num_attention_heads\":3"), "", ERR_FORMAT,
         "\"hidden_size\" (64) is no multiple of \"num_attention_heads\" (3)"},
        {LLAMA(",\"num_key_value_heads\":3"), "", ERR_FORMAT,
         "\"num_attention_heads\" (4) is no multiple of \"num_key_value_heads\" (3)"},
        {LLAMA(",\"num_key_value_heads\":0"), "", ERR_FORMAT, "\"num_key_value_heads\" is 0"},
        {LLAMA(",\"head_dim\":100000"), "", ERR_FORMAT, "\"head_dim\""},
        {LLAMA(",\"rms_norm_eps\":-1"), "", ERR_FORMAT, "\"rms_norm_eps\""},
        {LLAMA(",\"rms_norm_eps\":\"1e-6\""), "", ERR_FORMAT, "\"rms_norm_eps\" must be a number"},
        {LLAMA(",\"tie_word_embeddings\":1"), "", ERR_FORMAT, "\"tie_word_embeddings\""},
        {LLAMA(",\"hidden_act\":\"mish\""), "", ERR_UNSUPPORTED, "mish"},
        {LLAMA(",\"layer_types\":[\"full_attention\"]"), "", ERR_FORMAT, "1 entries for 8 layers"},
        {LLAMA(",\"layer_types\":{}"), "", ERR_FORMAT, "\"layer_types\" must be an array"},
        {LLAMA(",\"num_hidden_layers\":1,\"layer_types\":[\"chunked_attention\"]"), "", ERR_UNSUPPORTED,
         "\"chunked_attention\""},
        {LLAMA(",\"num_hidden_layers\":1,\"layer_types\":[3]"), "", ERR_UNSUPPORTED, "layer 0"},
        {LLAMA(",\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]"), "", ERR_FORMAT,
         "no \"sliding_window\""},
        {CONFIG_OF("mistral", ",\"num_key_value_heads\":4,\"sliding_window\":4000000000"), "",
         ERR_FORMAT, "\"sliding_window\""},
        {CONFIG_OF("exaone4", ",\"num_key_value_heads\":4,\"sliding_window_pattern\":\"LXG\""), "",
         ERR_UNSUPPORTED, "LXG"},
        {LLAMA(",\"rope_theta\":0"), "", ERR_FORMAT, "\"rope_theta\" must be above 0"},
        {LLAMA(",\"rope_theta\":-5"), "", ERR_FORMAT, "\"rope_theta\""},
        {LLAMA(",\"partial_rotary_factor\":1.5"), "", ERR_FORMAT, "\"partial_rotary_factor\""},
        {LLAMA(",\"rope_scaling\":7"), "", ERR_FORMAT, "must be an object"},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"spiral\"}"), "", ERR_UNSUPPORTED, "\"spiral\""},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"linear\"}"), "", ERR_FORMAT, "\"factor\""},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}"), "", ERR_FORMAT,
         "\"factor\" must be above 0"},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
               "\"high_freq_factor\":4}"),
         "", ERR_FORMAT, "\"high_freq_factor\""},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,\"mscale\":-1}"), "", ERR_FORMAT,
         "\"mscale\""},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],"
               "\"long_factor\":[1]}"),
         "", ERR_FORMAT, "\"original_max_position_embeddings\""},
        {CONFIG_OF("phi3", ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"long_factor\":[1]}"), "",
         ERR_FORMAT, "\"short_factor\""},
        {CONFIG_OF("phi3", ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1],"
               "\"long_factor\":[1]}"),
         "", ERR_FORMAT, "differ in length"},
        {CONFIG_OF("phi3", ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[\"1\"],"
               "\"long_factor\":[1]}"),
         "", ERR_FORMAT, "\"short_factor\" entry 0"},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1],"
               "\"original_max_position_embeddings\":4294967295}"),
         "", ERR_FORMAT, "\"original_max_position_embeddings\""},
        {LLAMA(",\"eos_token_id\":\"</s>\""), "", ERR_FORMAT, "\"eos_token_id\""},
        {LLAMA(",\"eos_token_id\":[1,[2]]"), "", ERR_FORMAT, "\"eos_token_id\""},
        {LLAMA(",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), "", ERR_FORMAT,
         "more than 16 end tokens"},
        {LLAMA(",\"bos_token_id\":5000000000"), "", ERR_FORMAT, "\"bos_token_id\""},
        {LLAMA(",\"quantization\":[]"), "", ERR_FORMAT, "\"quantization\" must be an object"},
        {LLAMA(",\"quantization\":{\"mode\":\"nf4\"}"), "", ERR_UNSUPPORTED, "\"nf4\""},
        {LLAMA(",\"quantization\":{\"bits\":7}"), "", ERR_UNSUPPORTED, "7 bits"},
        {LLAMA(",\"quantization\":{\"bits\":4,\"group_size\":48}"), "", ERR_UNSUPPORTED,
         "groups of 48"},
        {LLAMA(",\"quantization\":{\"mode\":\"mxfp4\",\"bits\":8,\"group_size\":32}"), "",
         ERR_UNSUPPORTED, "mxfp4"},
        {LLAMA(",\"quantization\":{\"bits\":4,\"model.layers.0.q\":{\"bits\":1}}"), "", ERR_UNSUPPORTED,
         "model.layers.0.q"},
        {LLAMA(",\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}"), "", ERR_UNSUPPORTED,
         "\"bitsandbytes\""},
        {LLAMA(",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}"), "", ERR_UNSUPPORTED,
         "\"gptq\""},
        {LLAMA(",\"quantization_config\":{\"quant_method\":\"fp8\"}"), "", ERR_UNSUPPORTED, "\"fp8\""},
        {LLAMA(""), "{", ERR_FORMAT, "generation_config.json"},
        {LLAMA(""), "[]", ERR_FORMAT, "generation_config.json must be a JSON object"},
        {LLAMA(""), "{\"temperature\":\"hot\"}", ERR_FORMAT, "generation_config.json: \"temperature\""},
        {LLAMA(""), "{\"temperature\":-0.5}", ERR_FORMAT, "generation_config.json: \"temperature\""},
        {LLAMA(""), "{\"top_p\":1.5}", ERR_FORMAT, "\"top_p\""},
        {LLAMA(""), "{\"min_p\":-0.1}", ERR_FORMAT, "\"min_p\""},
        {LLAMA(""), "{\"repetition_penalty\":0}", ERR_FORMAT, "\"repetition_penalty\""},
        {LLAMA(""), "{\"do_sample\":3}", ERR_FORMAT, "\"do_sample\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        struct model_config *c = open_text(cases[i].config, cases[i].generation, &err);
        if (c)
            fail_msg("accepted: %s %s", cases[i].config, cases[i].generation);
        if (err.code != cases[i].code || !strstr(err.message, cases[i].message))
            fail_msg("%s %s: %s \"%s\"", cases[i].config, cases[i].generation, err_code_name(err.code),
                     err.message);
        assert_null(open_text(cases[i].config, cases[i].generation, NULL));
    }
}

static void no_text_is_refused(void **state) {
    (void)state;
    struct err err = {0};
    assert_null(model_config_create((struct str){0}, (struct str){0}, &err));
    assert_int_equal(err.code, ERR_FORMAT);
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH + 1);
    memset(text, '[', DEPTH);
    text[DEPTH] = '\0';
    struct err err = {0};
    assert_null(open_text(text, "", &err));
    assert_int_equal(err.code, ERR_FORMAT);
    free(text);
}

static void folders_without_a_config_are_named(void **state) {
    (void)state;
    char folder[] = "/tmp/loam-config-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    struct err err = {0};
    assert_null(model_config_open(folder, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    check_message(&err, folder);
    check_message(&err, "has no config.json");
    assert_null(model_config_open("/nonexistent/folder", &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);

    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_null(model_config_open(folder, &err)); // a folder of that name is no file
    check_message(&err, "config.json");
    rmdir(path);

    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(LLAMA(",\"vocab_size\":0"), f);
    fclose(f);
    assert_null(model_config_open(folder, &err));
    check_message(&err, folder); // which of many folders it was
    check_message(&err, "\"vocab_size\"");
    unlink(path);
    rmdir(folder);
}

static void check_config(const char *folder, const char *name) {
    struct err err = {0};
    struct model_config *c = model_config_open(folder, &err);
    if (!c)
        fail_msg("%s: %s", name, err.message);
    bool encoder = str_find(c->model_type, STR("bert"), 0) != SIZE_MAX;
    assert_true((encoder || c->n_eos > 0 || strcmp(name, "embeddinggemma") == 0) && c->n_vocab >= 128);
    assert_true(c->rope.theta >= (encoder ? 1e3 : 1e4));
    // The folders are named after what was done to them.
    struct {
        const char *part;
        struct quant_spec spec;
    } specs[] = {
        {"mlx-2bit", {QUANT_AFFINE, 2, 64}},     {"mlx-3bit", {QUANT_AFFINE, 3, 64}},
        {"mlx-4bit-g128", {QUANT_AFFINE, 4, 128}}, {"mlx-4bit-g32", {QUANT_AFFINE, 4, 32}},
        {"mlx-5bit-g32", {QUANT_AFFINE, 5, 32}}, {"mlx-6bit", {QUANT_AFFINE, 6, 64}},
        {"mlx-8bit", {QUANT_AFFINE, 8, 64}},     {"mlx-mxfp8", {QUANT_MXFP8, 8, 32}},
        {"mxfp4", {QUANT_MXFP4, 4, 32}},         {"nvfp4", {QUANT_NVFP4, 4, 16}},
        {"mlx-4bit", {QUANT_AFFINE, 4, 64}},     {"optiq", {QUANT_AFFINE, 4, 64}},
        {"", {QUANT_NONE, 0, 0}},
    };
    size_t i = 0;
    while (!strstr(name, specs[i].part))
        i++;
    if (c->quant.mode != specs[i].spec.mode || c->quant.bits != specs[i].spec.bits ||
        c->quant.group != specs[i].spec.group)
        fail_msg("%s: mode %d bits %u group %u", name, c->quant.mode, c->quant.bits, c->quant.group);
    model_config_destroy(c);
}

static void every_model_at_hand_opens(void **state) {
    (void)state;
    each_model(check_config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_types_follow_each_family),
        cmocka_unit_test(shapes_follow_each_family),
        cmocka_unit_test(nested_text_config_names_the_family),
        cmocka_unit_test(rope_reads_old_and_new_style),
        cmocka_unit_test(rope_keeps_every_parameter_of_its_kind),
        cmocka_unit_test(end_tokens_of_both_files_are_united),
        cmocka_unit_test(generation_defaults_say_what_is_given),
        cmocka_unit_test(quantization_overrides_are_found_under_any_prefix),
        cmocka_unit_test(bad_configs_are_refused_by_name),
        cmocka_unit_test(no_text_is_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(folders_without_a_config_are_named),
        cmocka_unit_test(every_model_at_hand_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
