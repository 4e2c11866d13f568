// server/pooled_answer.h - the prompts behind one exchange of embeddings or reranking: each is read for values of
// its last token. As many as the engine takes run at once. Event thread.
#ifndef LOAM_SERVER_POOLED_ANSWER_H
#define LOAM_SERVER_POOLED_ANSWER_H
#include "server/request.h"

struct pooled_surface {
    // The values of prompt `idx`, which the surface may change in place. False with *err set ends it all.
    bool (*values)(void *state, uint32_t idx, float *values, uint32_t n_values, struct err *err);
    // The surface answers the exchange and frees its state. n_tokens of all prompts.
    void (*done)(void *state, uint64_t n_tokens, const struct err *err);
    void (*gone)(void *state); // the client went away
};

enum { POOLED_PROMPTS_MAX = 2048 };

// Start reading prompts[n_prompts], taken over. `param` names the field in errors. On failure the exchange is not
// answered and the caller still owns the state and the prompts.
bool pooled_answer_start(struct server *server, struct http_exchange *exchange, enum gen_want want,
                         struct token_list *prompts, uint32_t n_prompts, const char *param,
                         const struct pooled_surface *surface, void *state, struct request_error *error);
#endif
