// The table of model types. A family of the common block is one row of switches; each row is held to the
// goldens of its model in tests/model.
#include "model/block.h"
#include "model/encoder.h"
#include "model/gemma4.h"
#include "model/mla.h"
#include "model/moe.h"

#include <pthread.h>
#include <stdio.h>

static const struct block_traits LLAMA = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .mlp_bias = BIAS_MLP_KEY};
static const struct block_traits MISTRAL = {0};
static const struct block_traits MINISTRAL3 = {.query_beta = true};
static const struct block_traits APERTUS = {
    .norm_names = {"attention_layernorm", NULL, "feedforward_layernorm", NULL}, .head_norm = HEAD_NORM_HEAD,
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .mlp = MLP_PLAIN};
static const struct block_traits QWEN2 = {.qkv_bias = BIAS_ALWAYS};
static const struct block_traits QWEN3 = {
    .head_norm = HEAD_NORM_HEAD, .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY};
static const struct block_traits SMOLLM3 = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .mlp_bias = BIAS_MLP_KEY,
    .no_rope_layers = true};
static const struct block_traits PHI3 = {.qkv_fused = true, .mlp = MLP_GLU_FUSED};
static const struct block_traits OLMO2 = {
    .norm_place = NORMS_AFTER, .head_norm = HEAD_NORM_WHOLE, .qkv_bias = BIAS_ATTENTION_KEY,
    .o_bias = BIAS_ATTENTION_KEY};
static const struct block_traits SEED_OSS = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_OUT_KEY, .mlp_bias = BIAS_MLP_KEY};
static const struct block_traits EXAONE4 = {
    .norm_place = NORMS_AFTER, .head_norm = HEAD_NORM_HEAD, .rope_layers = ROPE_SLIDING_MIXED};
static const struct block_traits GLM4 = {
    .norm_place = NORMS_BOTH, .norm_names = {NULL, "post_self_attn_layernorm", NULL, "post_mlp_layernorm"},
    .qkv_bias = BIAS_ATTENTION_KEY, .mlp = MLP_GLU_FUSED, .rope_interleaved = true};
static const struct block_traits GLM = {
    .qkv_bias = BIAS_ATTENTION_KEY, .mlp = MLP_GLU_FUSED, .rope_interleaved = true};
static const struct block_traits ERNIE4_5 = {
    .qkv_bias = BIAS_USE_KEY_OFF, .o_bias = BIAS_USE_KEY_OFF, .mlp_bias = BIAS_USE_KEY_OFF,
    .rope_interleaved = true};
static const struct block_traits HUNYUAN_DENSE = {
    .head_norm = HEAD_NORM_HEAD, .head_norm_after_rope = true,
    .head_norm_names = {"query_layernorm", "key_layernorm"}, .qkv_bias = BIAS_ATTENTION_KEY,
    .o_bias = BIAS_ATTENTION_KEY};
static const struct block_traits NEMOTRON = {
    .norm = NORM_LAYER, .norm_bias = true, .norm_add = 1, .qkv_bias = BIAS_ATTENTION_KEY,
    .o_bias = BIAS_ATTENTION_KEY, .mlp_bias = BIAS_MLP_KEY, .mlp = MLP_PLAIN};
static const struct block_traits ARCEE = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .mlp_bias = BIAS_MLP_KEY, .mlp = MLP_PLAIN};
static const struct block_traits STABLELM = {
    .norm = NORM_LAYER, .norm_bias = true, .qkv_bias = BIAS_USE_QKV_KEY,
    .refused = {"use_parallel_residual", "qk_layernorm"}};
static const struct block_traits LFM2 = {
    .norm_names = {"operator_norm", NULL, "ffn_norm", NULL}, .head_norm = HEAD_NORM_HEAD,
    .head_norm_names = {"q_layernorm", "k_layernorm"}, .o_name = "out_proj", .mlp_module = "feed_forward",
    .mlp_names = {"w1", "w3", "w2"}, .final_norm = "embedding_norm", .short_conv = true};
static const struct block_traits COHERE = {
    .norm = NORM_LAYER, .norm_place = NORM_SHARED, .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY,
    .rope_interleaved = true, .logit_scale = true, .refused = {"use_qk_norm"}};
static const struct block_traits COHERE2 = {
    .norm = NORM_LAYER, .norm_place = NORM_SHARED, .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY,
    .rope_interleaved = true, .rope_layers = ROPE_SLIDING, .logit_scale = true};
static const struct block_traits GRANITE = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .mlp_bias = BIAS_MLP_KEY,
    .multipliers = true};
static const struct block_traits STARCODER2 = {
    .norm = NORM_LAYER, .norm_bias = true, .qkv_bias = BIAS_USE_KEY, .o_bias = BIAS_USE_KEY,
    .mlp_bias = BIAS_USE_KEY, .mlp = MLP_PLAIN, .mlp_names = {NULL, "c_fc", "c_proj"}};
static const struct block_traits GEMMA = {.norm_add = 1, .embed_sqrt_d = true};
#define GEMMA_NORMS                                                                                \
    {NULL, NULL, "pre_feedforward_layernorm", NULL}
static const struct block_traits GEMMA2 = {
    .norm_place = NORMS_BOTH, .norm_add = 1, .norm_names = GEMMA_NORMS, .embed_sqrt_d = true,
    .query_scale = true, .softcaps = true, .softcap_defaults = {50, 30}};
static const struct block_traits GEMMA3 = {
    .norm_place = NORMS_BOTH, .norm_add = 1, .head_norm = HEAD_NORM_HEAD, .norm_names = GEMMA_NORMS,
    .embed_sqrt_d = true, .query_scale = true, .softcaps = true, .bidirectional_key = true};

static const struct moe_traits MIXTRAL_MOE = {
    .router = "block_sparse_moe.gate", .experts = "block_sparse_moe.experts",
    .stacked = "block_sparse_moe.switch_mlp", .names = {"w1", "w3", "w2"}, .route = ROUTE_SOFTMAX_TOPK,
    .normalize = MOE_NORMALIZE_ALWAYS, .n_experts_key = "num_local_experts"};
static const struct block_traits MIXTRAL = {.moe = &MIXTRAL_MOE};
static const struct moe_traits QWEN3_MOE_EXPERTS = {
    .router = "mlp.gate", .experts = "mlp.experts", .stacked = "mlp.switch_mlp",
    .route = ROUTE_SOFTMAX_TOPK, .n_experts_key = "num_experts", .ff_key = "moe_intermediate_size"};
static const struct block_traits QWEN3_MOE = {
    .head_norm = HEAD_NORM_HEAD, .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY,
    .moe = &QWEN3_MOE_EXPERTS};
static const struct moe_traits OLMOE_EXPERTS = {
    .router = "mlp.gate", .experts = "mlp.experts", .stacked = "mlp.switch_mlp",
    .route = ROUTE_SOFTMAX_TOPK, .n_experts_key = "num_experts"};
static const struct block_traits OLMOE = {
    .head_norm = HEAD_NORM_WHOLE, .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY,
    .moe = &OLMOE_EXPERTS};
#define GRANITEMOE_NAMES                                                                           \
    .router = "block_sparse_moe.router.layer", .experts = "block_sparse_moe.experts",              \
    .stacked = "block_sparse_moe.switch_mlp", .layout = MOE_FUSED,                                 \
    .fused_up = "block_sparse_moe.input_linear", .fused_down = "block_sparse_moe.output_linear",   \
    .route = ROUTE_TOPK_SOFTMAX, .normalize = MOE_NORMALIZE_NEVER, .n_experts_key = "num_local_experts"
static const struct moe_traits GRANITEMOE_EXPERTS = {GRANITEMOE_NAMES};
static const struct moe_traits GRANITEMOESHARED_EXPERTS = {
    GRANITEMOE_NAMES, .shared = "shared_mlp", .shared_names = {"input_linear", "output_linear"},
    .shared_ff_key = "shared_intermediate_size"};
static const struct block_traits GRANITEMOESHARED = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .multipliers = true,
    .moe = &GRANITEMOESHARED_EXPERTS};
static const struct block_traits GRANITEMOE = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .multipliers = true,
    .moe = &GRANITEMOE_EXPERTS};
static const struct moe_traits GPT_OSS_EXPERTS = {
    .router = "mlp.router", .experts = "mlp.experts", .stacked = "mlp.experts", .layout = MOE_GPT_OSS,
    .route = ROUTE_TOPK_SOFTMAX, .normalize = MOE_NORMALIZE_NEVER, .n_experts_key = "num_local_experts",
    .router_bias = true, .glu = GLU_CLAMPED_SWIGLU};
static const struct block_traits GPT_OSS = {
    .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY, .sinks = true, .moe = &GPT_OSS_EXPERTS};

static const struct block_traits QWEN3_5 = {
    .norm_add_in_hub = true, .head_norm = HEAD_NORM_HEAD, .qkv_bias = BIAS_ATTENTION_KEY,
    .o_bias = BIAS_ATTENTION_KEY, .attention_gate = true};
static const struct moe_traits QWEN3_5_EXPERTS = {
    .router = "mlp.gate", .experts = "mlp.experts", .stacked = "mlp.switch_mlp", .layout = MOE_FUSED,
    .fused_up = "mlp.experts.gate_up_proj", .fused_down = "mlp.experts.down_proj",
    .route = ROUTE_SOFTMAX_TOPK, .normalize = MOE_NORMALIZE_ALWAYS, .n_experts_key = "num_experts",
    .ff_key = "moe_intermediate_size", .shared = "mlp.shared_expert", .shared_gate = "mlp.shared_expert_gate",
    .shared_ff_key = "shared_expert_intermediate_size"};
static const struct block_traits QWEN3_5_MOE = {
    .norm_add_in_hub = true, .head_norm = HEAD_NORM_HEAD, .qkv_bias = BIAS_ATTENTION_KEY,
    .o_bias = BIAS_ATTENTION_KEY, .attention_gate = true, .moe = &QWEN3_5_EXPERTS};
#define QWEN_SHARED                                                                                \
    .router = "mlp.gate", .experts = "mlp.experts", .stacked = "mlp.switch_mlp",                   \
    .route = ROUTE_SOFTMAX_TOPK, .n_experts_key = "num_experts", .ff_key = "moe_intermediate_size", \
    .shared = "mlp.shared_expert", .shared_gate = "mlp.shared_expert_gate",                        \
    .shared_ff_key = "shared_expert_intermediate_size"
static const struct moe_traits QWEN2_MOE_EXPERTS = {QWEN_SHARED};
static const struct block_traits QWEN2_MOE = {.qkv_bias = BIAS_QKV_KEY, .moe = &QWEN2_MOE_EXPERTS};
static const struct moe_traits QWEN3_NEXT_EXPERTS = {QWEN_SHARED, .normalize = MOE_NORMALIZE_KEY_ON};
static const struct block_traits QWEN3_NEXT = {
    .norm_add_in_hub = true, .head_norm = HEAD_NORM_HEAD, .qkv_bias = BIAS_ATTENTION_KEY,
    .o_bias = BIAS_ATTENTION_KEY, .attention_gate = true, .moe = &QWEN3_NEXT_EXPERTS};

static const struct moe_traits DEEPSEEK_V3_EXPERTS = {
    .router = "mlp.gate", .experts = "mlp.experts", .stacked = "mlp.switch_mlp", .route = ROUTE_SIGMOID,
    .normalize = MOE_NORMALIZE_KEY_NEEDED, .n_experts_key = "n_routed_experts", .ff_key = "moe_intermediate_size",
    .correction = "mlp.gate.e_score_correction_bias", .groups = true, .scaling = true,
    .shared = "mlp.shared_experts", .first_dense_key = "first_k_dense_replace"};
static const struct block_traits GLM4_MOE = {
    .head_norm = HEAD_NORM_KEY, .qkv_bias = BIAS_ATTENTION_KEY, .moe = &DEEPSEEK_V3_EXPERTS, .extra_layers = true};
static const struct block_traits DOTS1 = {
    .head_norm = HEAD_NORM_HEAD, .qkv_bias = BIAS_ATTENTION_KEY, .o_bias = BIAS_ATTENTION_KEY,
    .moe = &DEEPSEEK_V3_EXPERTS};
static const struct moe_traits ERNIE4_5_EXPERTS = {
    .router = "mlp.gate", .experts = "mlp.experts", .stacked = "mlp.switch_mlp", .route = ROUTE_SOFTMAX_TOPK,
    .normalize = MOE_NORMALIZE_ALWAYS, .n_experts_key = "moe_num_experts", .n_used_key = "moe_k",
    .ff_key = "moe_intermediate_size", .correction = "mlp.moe_statics.e_score_correction_bias",
    .shared = "mlp.shared_experts", .n_shared_key = "moe_num_shared_experts",
    .first_dense_key = "moe_layer_start_index", .last_key = "moe_layer_end_index",
    .every_key = "moe_layer_interval"};
static const struct block_traits ERNIE4_5_MOE = {
    .rope_interleaved = true, .refused = {"use_bias"}, .moe = &ERNIE4_5_EXPERTS};
static const struct moe_traits MINIMAX_M2_EXPERTS = {
    .router = "block_sparse_moe.gate", .experts = "block_sparse_moe.experts",
    .stacked = "block_sparse_moe.switch_mlp", .names = {"w1", "w3", "w2"}, .route = ROUTE_SIGMOID,
    .normalize = MOE_NORMALIZE_ALWAYS, .n_experts_key = "num_local_experts",
    .correction = "block_sparse_moe.e_score_correction_bias"};
static const struct block_traits MINIMAX_M2 = {.head_norm = HEAD_NORM_WHOLE, .moe = &MINIMAX_M2_EXPERTS};
static const struct moe_traits DEEPSEEK_V2_EXPERTS = {
    .router = "mlp.gate", .experts = "mlp.experts", .stacked = "mlp.switch_mlp", .route = ROUTE_SOFTMAX_TOPK,
    .normalize = MOE_NORMALIZE_NEVER, .n_experts_key = "n_routed_experts", .ff_key = "moe_intermediate_size",
    .groups = true, .scaling = true, .shared = "mlp.shared_experts",
    .first_dense_key = "first_k_dense_replace"};
static const struct mla_traits DEEPSEEK_V3_MLA = {.interleave_key = "rope_interleave"};
static const struct block_traits DEEPSEEK_V3 = {
    .mla = &DEEPSEEK_V3_MLA, .moe = &DEEPSEEK_V3_EXPERTS, .extra_layers = true};
static const struct block_traits DEEPSEEK_V2 = {.mla = &DEEPSEEK_V3_MLA, .moe = &DEEPSEEK_V2_EXPERTS};
static const struct mla_traits DEEPSEEK_V32_MLA = {.indexer = true, .interleave_key = "rope_interleave"};
static const struct block_traits DEEPSEEK_V32 = {
    .mla = &DEEPSEEK_V32_MLA, .moe = &DEEPSEEK_V3_EXPERTS, .extra_layers = true};
static const struct mla_traits GLM_MOE_DSA_MLA = {
    .indexer = true, .index_interleaved = true, .interleave_key = "rope_interleave"};
static const struct block_traits GLM_MOE_DSA = {
    .mla = &GLM_MOE_DSA_MLA, .moe = &DEEPSEEK_V3_EXPERTS, .extra_layers = true};

// Tensors of towers and draft heads.
static const char *const QWEN_OTHERS[] = {"mtp.", "model.visual.", "visual.", "vision_tower.",
                                          "model.mtp.", "language_model.mtp.", NULL};

static const char *const MISTRAL_OTHERS[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                             "model.multi_modal_projector.", NULL};

static const char *const ERNIE_OTHERS[] = {"model.mtp_", "model.mtp.", NULL};

static const char *const GEMMA4_OTHERS[] = {
    "model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio.", "vision_tower.",
    "audio_tower.", "embed_vision.", "embed_audio.", "multi_modal_projector.", NULL};
#define GEMMA4(type)                                                                               \
    {type, NULL, GEMMA4_OTHERS, gemma4_bind, gemma4_prepare, gemma4_workspace_bytes, gemma4_forward}

#define ENCODER(type)                                                                              \
    {type, NULL, NULL, encoder_bind, encoder_prepare, encoder_workspace_bytes, encoder_forward}

#define BLOCK_BESIDE(type, traits, others)                                                         \
    {type, &(traits), others, block_bind, block_prepare, block_workspace_bytes, block_forward}
#define BLOCK(type, traits) BLOCK_BESIDE(type, traits, NULL)
static const struct family FAMILIES[] = {
    BLOCK("llama", LLAMA),
    BLOCK_BESIDE("mistral", MISTRAL, MISTRAL_OTHERS),
    BLOCK_BESIDE("ministral3", MINISTRAL3, MISTRAL_OTHERS),
    BLOCK("qwen2", QWEN2),
    BLOCK("qwen3", QWEN3),
    BLOCK("smollm3", SMOLLM3),
    BLOCK("phi3", PHI3),
    BLOCK("olmo2", OLMO2),
    BLOCK("olmo3", OLMO2),
    BLOCK("seed_oss", SEED_OSS),
    BLOCK("exaone4", EXAONE4),
    BLOCK("glm4", GLM4),
    BLOCK("glm", GLM),
    BLOCK("ernie4_5", ERNIE4_5),
    BLOCK("hunyuan_v1_dense", HUNYUAN_DENSE),
    BLOCK("nemotron", NEMOTRON),
    BLOCK("arcee", ARCEE),
    BLOCK("stablelm", STABLELM),
    BLOCK("lfm2", LFM2),
    BLOCK("cohere", COHERE),
    BLOCK("cohere2", COHERE2),
    BLOCK("granite", GRANITE),
    BLOCK("starcoder2", STARCODER2),
    BLOCK("apertus", APERTUS),
    BLOCK("gemma", GEMMA),
    BLOCK("gemma2", GEMMA2),
    BLOCK("gemma3_text", GEMMA3),
    BLOCK("mixtral", MIXTRAL),
    BLOCK("qwen2_moe", QWEN2_MOE),
    BLOCK("qwen3_moe", QWEN3_MOE),
    BLOCK("olmoe", OLMOE),
    BLOCK("granitemoe", GRANITEMOE),
    BLOCK("granitemoeshared", GRANITEMOESHARED),
    BLOCK("glm4_moe", GLM4_MOE),
    BLOCK("dots1", DOTS1),
    BLOCK_BESIDE("ernie4_5_moe", ERNIE4_5_MOE, ERNIE_OTHERS),
    BLOCK("minimax_m2", MINIMAX_M2),
    BLOCK("gpt_oss", GPT_OSS),
    BLOCK("deepseek_v2", DEEPSEEK_V2),
    BLOCK("deepseek_v3", DEEPSEEK_V3),
    BLOCK("glm4_moe_lite", DEEPSEEK_V3),
    BLOCK("deepseek_v32", DEEPSEEK_V32),
    BLOCK("glm_moe_dsa", GLM_MOE_DSA),
    GEMMA4("gemma4_text"),
    GEMMA4("gemma4_unified_text"),
    BLOCK_BESIDE("qwen3_vl_text", QWEN3, QWEN_OTHERS),
    BLOCK_BESIDE("qwen3_5_text", QWEN3_5, QWEN_OTHERS),
    BLOCK_BESIDE("qwen3_5_moe_text", QWEN3_5_MOE, QWEN_OTHERS),
    BLOCK_BESIDE("qwen3_next", QWEN3_NEXT, QWEN_OTHERS),
    ENCODER("bert"),
    ENCODER("roberta"),
    ENCODER("xlm-roberta"),
    ENCODER("nomic_bert"),
    ENCODER("modernbert"),
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

const struct family *family_find(struct str model_type) {
    for (int i = 0; i < N_FAMILIES; i++)
        if (str_eq_c(model_type, FAMILIES[i].model_type))
            return &FAMILIES[i];
    return NULL;
}

static char supported_types[1024];

static void list_types(void) {
    size_t n = 0;
    for (int i = 0; i < N_FAMILIES; i++)
        n += (size_t)snprintf(supported_types + n, sizeof supported_types - n, "%s%s", i ? ", " : "",
                              FAMILIES[i].model_type);
}

const char *model_supported_types(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT; // built once, whichever thread asks first
    pthread_once(&once, list_types);
    return supported_types;
}
