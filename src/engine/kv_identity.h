// engine/kv_identity.h - what decides the bytes of KV pages, as a name: two processes with the same one may read each
// other's pages (the prompt cache's disk tier), and any difference that changes a bit gives another one.
#ifndef LOAM_ENGINE_KV_IDENTITY_H
#define LOAM_ENGINE_KV_IDENTITY_H
#include "engine/step_builder.h"
#include "model/model.h"

// Of a prepared model whose pages nobody holds yet: a hash of loam's version, the backend, `files` (what is known of the
// model's files, any text) and the KV and the state that a fixed text of one page gives. So weights, numbers, kernels and
// the pages' layout all count, whatever their names say. Costs the prefill of a page. Errors of model_step(); ERR_NOMEM.
bool kv_identity(struct model *model, struct kv_cache *kv, struct step_builder *step, const char *files, char out[65],
                 struct err *err);
#endif
