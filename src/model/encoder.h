// model/encoder.h - encoders of the BERT class: every token sees the whole text, and what comes out is a state a token.
// Source: Devlin et al. 2018; transformers modeling_bert.py, modeling_xlm_roberta.py, modeling_modernbert.py and the
// modeling_hf_nomic_bert.py that Nomic AI publishes with its models.
#ifndef LOAM_MODEL_ENCODER_H
#define LOAM_MODEL_ENCODER_H
#include "model/family.h"

// Names are modules below the prefix, or below the layer.
struct encoder_traits {
    const char *word, *position, *type, *embed_norm; // position, type NULL: none
    bool position_after_pad;                         // positions begin after the padding token's id (RoBERTa)
    const char *layer;                               // "encoder.layer"
    const char *qkv[3];                              // or one fused module and NULL
    const char *o, *attention_norm;
    const char *up, *gate, *down, *mlp_norm; // gate NULL: a plain MLP
    bool glu_fused;                          // `up` holds the activated half, then the other
    bool pre_norm;                           // ModernBERT: norms before, none before the first attention, one at the end
    const char *final_norm;
    bool rope;
    bool norm_bias;                                             // else if norm_bias says so
    const char *qkv_bias_key, *o_bias_key, *up_bias_key, *down_bias_key; // NULL = there are biases
    const char *refused[6]; // keys of the config that, if set, mean a computation that loam lacks
    const char *ignored[6]; // modules below the prefix, or with '/' without it, that are left alone
};
extern const struct encoder_traits ENCODER_BERT, ENCODER_XLM_ROBERTA, ENCODER_NOMIC_BERT, ENCODER_MODERNBERT;

bool encoder_bind(struct model *model, struct binder *binder, struct err *err);
bool encoder_prepare(struct model *model, const struct model_limits *limits, struct err *err);
uint64_t encoder_workspace_bytes(const struct model *model, const struct model_limits *limits);
void encoder_forward(struct model *model, const struct step *step);
#endif
