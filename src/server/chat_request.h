// server/chat_request.h - the one internal form of a chat: every surface reads its own request into it, and
// answers from the answer that it starts.
#ifndef LOAM_SERVER_CHAT_REQUEST_H
#define LOAM_SERVER_CHAT_REQUEST_H
#include "server/answer.h"
#include "server/structured.h"

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

// Zero-initialise. Messages, tools and variables are as chat templates take them, which is OpenAI's chat form
// with plain text for content.
struct chat_request {
    struct generation_fields fields;
    json_t *messages; // owned: array of {role, content, tool_calls, tool_call_id, reasoning_content}
    json_t *tools;    // owned: array of {type: function, function: {name, description, parameters}}, or NULL
    json_t *kwargs;   // owned: further variables of the template, or NULL
    enum tool_choice tool_choice;
    struct str tool_name; // TOOL_CHOICE_NAMED; borrowed from the body
    json_t *allowed_tools; // owned: names of the tools that may be called, NULL = all
    bool one_call;         // at most one call
    struct structured structured; // what an answer that is no call must look like
    bool continue_final;  // the last message is the assistant's beginning
};
void chat_request_deinit(struct chat_request *request);

// Take over `messages` (array), checking each and joining text parts; `param` names it in errors.
bool chat_request_set_messages(struct chat_request *request, json_t *messages, const char *param,
                               struct request_error *error);
// Set a variable of the template unless the request's own chat_template_kwargs have it.
bool chat_request_set_variable(struct chat_request *request, const char *name, json_t *value,
                               struct request_error *error);
// chat_template_kwargs and reasoning_effort (also as OpenAI's reasoning.effort, `effort`, or NULL).
bool chat_request_variables(struct chat_request *request, const struct server *server, const json_t *body,
                            const json_t *effort, struct request_error *error);
// The text of a content: a string, null, or an array of text parts, joined. New reference, or NULL with *error.
json_t *chat_plain_content(const json_t *content, const char *param, size_t message_idx,
                           struct request_error *error);

// Read the body of chat completions; the request is to be deinited also on failure.
bool openai_chat_read(const struct server *server, const json_t *body, struct chat_request *request,
                      struct request_error *error);
// tool_choice's {"type": "allowed_tools"}: its mode and its tools, whose names are in `function` or beside the type.
bool chat_request_allow_tools(struct chat_request *request, const json_t *allowed, struct request_error *error);
// OpenAI's parallel_tool_calls.
bool chat_request_parallel(struct chat_request *request, const json_t *body, struct request_error *error);
// Do its parts fit each other?
bool chat_request_check(const struct chat_request *request, struct request_error *error);

// The prompt. `text` (may be NULL) gets it as text.
bool chat_request_render(const struct server *server, const struct chat_request *request,
                         struct strbuf *text, struct token_list *prompt, struct request_error *error);
// Render and start. On failure the exchange is not answered and the caller still owns the state. `body` is
// kept until the end; *n_prompt (may be NULL) gets the prompt's tokens.
bool chat_request_start(struct server *server, struct http_exchange *exchange,
                        const struct chat_request *request, json_t *body,
                        const struct answer_surface *surface, void *state, uint32_t *n_prompt,
                        struct request_error *error);
#endif
