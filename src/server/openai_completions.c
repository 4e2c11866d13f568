// POST /v1/completions: the older, plain text interface.
#include "server/openai_completion.h"

// `prompt`: a string, or an array of token ids.
static bool read_prompt(const struct server *server, const json_t *body, struct token_list *out,
                        struct request_error *error) {
    const json_t *prompt = json_object_get(body, "prompt");
    error->param = "prompt";
    if (json_is_string(prompt))
        return tokenizer_encode(server->bundle->tokenizer, json_str(prompt), TOKENIZER_ADD_SPECIAL, out,
                                &error->err);
    bool ids = json_is_array(prompt) && json_array_size(prompt) > 0;
    for (size_t i = 0; ids && i < json_array_size(prompt); i++) {
        const json_t *id = json_array_get(prompt, i);
        ids = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) <= INT32_MAX;
        if (ids)
            token_list_append(out, (token_id)json_integer_value(id));
    }
    if (!ids)
        return err_set(&error->err, ERR_INVALID, "'prompt' must be a string or an array of token ids");
    return !out->failed || err_set(&error->err, ERR_NOMEM, "out of memory for the prompt");
}

void openai_completions(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct generation_fields fields = {0};
    struct token_list prompt = {0};
    json_t *body = request_body(exchange, &error);
    bool ok = body && request_fields(server, body, &fields, &error) &&
              read_prompt(server, body, &prompt, &error);
    const json_t *echo = json_object_get(body, "echo"), *text = json_object_get(body, "prompt");
    // OpenAI's default here is 16; a local server that stops there only puzzles, so none is none.
    if (ok)
        openai_completion_start(server, exchange, COMPLETION_TEXT, &fields, &prompt,
                                json_is_true(echo) && json_is_string(text) ? json_str(text)
                                                                           : (struct str){0});
    else
        request_refuse(exchange, &error);
    request_fields_deinit(&fields);
    token_list_deinit(&prompt);
    json_decref(body);
}
