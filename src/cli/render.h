// cli/render.h - conversations as JSON files, for the commands that render one.
#ifndef LOAM_CLI_RENDER_H
#define LOAM_CLI_RENDER_H
#include "template/template.h"

// Read a case: an object with "messages" and so on, as `loam help render` lists; "-" is standard input.
// NULL with ERR_NOT_FOUND, ERR_IO, ERR_FORMAT.
json_t *render_read_case(const char *path, struct err *err);
// Append what the chat template makes of the case. ERR_FORMAT, and as chat_template_render().
bool render_conversation(const struct chat_template *chat, const json_t *c, struct strbuf *out,
                         struct err *err);
#endif
