// server/openai_completion.h - what chat and text completions of OpenAI's API have in common: one job's
// answer, in one piece or streamed.
#ifndef LOAM_SERVER_OPENAI_COMPLETION_H
#define LOAM_SERVER_OPENAI_COMPLETION_H
#include "server/request.h"

enum completion_kind { COMPLETION_CHAT, COMPLETION_TEXT };

// Start answering `exchange` for the prompt. Answers it with an error if that is not possible. `echo` (text
// completions) is put in front of the text.
void openai_completion_start(struct server *server, struct http_exchange *exchange,
                             enum completion_kind kind, const struct generation_fields *fields,
                             const struct token_list *prompt, struct str echo);
#endif
