// template/template.h - chat templates: Jinja as Hugging Face transformers renders it.
// A template is immutable once parsed: any thread may render it without a lock.
#ifndef LOAM_TEMPLATE_TEMPLATE_H
#define LOAM_TEMPLATE_TEMPLATE_H
#include "base/json.h"

struct template;

// Parse a template (UTF-8, not trusted, not kept). NULL with ERR_FORMAT: "line L column C: ..." for a
// syntax error; ERR_NOMEM.
struct template *template_parse(struct str source, struct err *err);
void template_destroy(struct template *template); // NULL is allowed

// What a rendering may cost: 0 means the default.
struct template_limits {
    uint64_t steps_max;     // evaluated nodes; default 20 million
    uint32_t depth_max;     // nested calls and expressions; default 200
    size_t output_bytes_max; // default 64 MiB
    size_t memory_bytes_max; // values made on the way; default 1 GiB
};

// Render with the members of `context` (a JSON object) as variables, appending to *out.
// A fixed clock for strftime_now comes from LOAM_NOW=2026-01-15T12:34:56.
// ERR_INVALID with the template's own text if it calls raise_exception(); ERR_FORMAT for any other
// error of the template, naming the line; ERR_NOMEM.
bool template_render(const struct template *template, const json_t *context,
                     const struct template_limits *limits, struct strbuf *out, struct err *err);

// ---- Chat -------------------------------------------------------------------------------------
struct chat_template;

// The chat templates of a model folder: chat_template.jinja, additional_chat_templates/, or
// tokenizer_config.json's chat_template (a string, or a list of named ones). A folder without one gets
// ChatML, logged. NULL with ERR_FORMAT, ERR_IO, ERR_NOMEM.
struct chat_template *chat_template_open(const char *folder, struct err *err);
// One template from its source, with its special tokens (members like "bos_token"; may be NULL).
struct chat_template *chat_template_create(struct str source, const json_t *special_tokens,
                                           struct err *err);
void chat_template_destroy(struct chat_template *chat);
// The source of the default template, for those who look for a family's marks in it.
struct str chat_template_source(const struct chat_template *chat);
bool chat_template_is_fallback(const struct chat_template *chat); // ChatML because there was none

struct chat_render_options {
    const json_t *messages;   // array
    const json_t *tools;      // array, or NULL for none
    const json_t *documents;  // array, or NULL for none
    const json_t *kwargs;     // object of further variables (enable_thinking ...), or NULL
    bool add_generation_prompt;
    bool continue_final_message;
    const char *template_name; // a named template, or NULL: "tool_use" with tools if there is one
};

// Append the prompt text. Errors as template_render(), prefixed "chat template".
bool chat_template_render(const struct chat_template *chat, const struct chat_render_options *options,
                          struct strbuf *out, struct err *err);
#endif
