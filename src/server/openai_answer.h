// server/openai_answer.h - what OpenAI's surfaces write alike: heads, usage, logprobs, errors in a stream.
#ifndef LOAM_SERVER_OPENAI_ANSWER_H
#define LOAM_SERVER_OPENAI_ANSWER_H
#include "server/answer.h"
#include "server/sse.h"

// {"id":...,"object":...,"created":...,"model":... (without the closing brace).
void openai_append_head(struct strbuf *out, const struct served *served, const char *id, const char *object,
                        long long created);
// {"prompt_tokens":...}
void openai_append_usage(struct strbuf *out, const struct answer_usage *usage);
// A token's text; ids that stand for no text have their spelling.
struct str openai_token_text(const struct served *served, int32_t id);
// {"token":...,"logprob":...,"bytes":...,"top_logprobs":[...]}
void openai_append_logprob(struct strbuf *out, const struct served *served, const struct sampled *token,
                           uint32_t n_top);
// JSON has no infinity: OpenAI writes -9999 for a token that cannot come.
double openai_logprob(float logprob);
// {"error":{...}}; param and code may be NULL.
void openai_append_error(struct strbuf *out, struct str message, const char *type, const char *param,
                         const char *code);
// The status is sent already: the error is the last event.
void openai_stream_error(struct http_exchange *exchange, const struct err *err);
#endif
