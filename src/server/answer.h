// server/answer.h - the generations behind one exchange: one choice, n choices, or those of several prompts,
// each split into reasoning, content and tool calls. Every generating surface answers from here. Event thread.
#ifndef LOAM_SERVER_ANSWER_H
#define LOAM_SERVER_ANSWER_H
#include "server/output_parser.h"
#include "server/request.h"

struct answer_end {
    enum finish_reason finish; // FINISH_STOP, FINISH_STOP_TEXT or FINISH_LENGTH
    struct str stop_text;      // FINISH_STOP_TEXT: which
    uint32_t n_calls;
};
struct answer_usage {
    uint32_t n_prompt, n_cached, n_generated, n_reasoning; // tokens; a prompt counts once
};

// What a surface does with it. The surface answers the exchange in done(); before that it may stream. After
// done() or gone() the answer is gone, and so must be the surface's state.
struct answer_surface {
    // New tokens of a choice, before the pieces that they settle. Only with logprobs; may be NULL.
    void (*tokens)(void *state, uint32_t choice, const struct sampled *tokens, size_t n);
    void (*piece)(void *state, uint32_t choice, const struct output_piece *piece);
    void (*choice_done)(void *state, uint32_t choice, const struct answer_end *end);
    void (*done)(void *state, const struct answer_usage *usage, const struct err *err);
    void (*gone)(void *state); // the client went away
};

struct answer_options {
    const struct generation_fields *fields; // what it borrows must live in `keep`
    struct token_list *prompts;             // [n_prompts], taken over
    uint32_t n_prompts;                     // prompt p's choice c has the index p * fields->n + c
    const struct output_format *format;     // NULL: all text is content
    const json_t *tools;                    // as output_parser_options
    bool reasoning_open, exact, whole;      // as output_parser_options
    json_t *keep; // a reference is held until the end, or NULL
};
// On failure the exchange is not answered and the caller still owns the state (and the prompts).
bool answer_start(struct server *server, struct http_exchange *exchange, const struct answer_options *options,
                  const struct answer_surface *surface, void *state, struct err *err);
#endif
