// POST /v1/chat/completions.
#include "server/openai_completion.h"

// The messages, checked as far as every template relies on it: objects with a role.
static const json_t *messages_of(const json_t *body, struct request_error *error) {
    const json_t *messages = json_object_get(body, "messages");
    error->param = "messages";
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        err_set(&error->err, ERR_INVALID, "'messages' must be an array with at least one message");
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const json_t *content = json_object_get(message, "content");
        if (!json_is_string(json_object_get(message, "role"))) {
            err_set(&error->err, ERR_INVALID, "'messages[%zu]' must be an object with a 'role'", i);
            return NULL;
        }
        if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content)) {
            err_set(&error->err, ERR_INVALID, "'messages[%zu].content' must be a string or an array of parts",
                    i);
            return NULL;
        }
    }
    error->param = NULL;
    return messages;
}

// Text parts join to one string: most templates want strings. Other parts are refused by name.
static json_t *with_plain_content(const json_t *messages, struct request_error *error) {
    json_t *plain = json_deep_copy(messages);
    for (size_t i = 0; plain && i < json_array_size(plain); i++) {
        json_t *message = json_array_get(plain, i);
        const json_t *parts = json_object_get(message, "content");
        if (!json_is_array(parts))
            continue;
        struct strbuf text = {0};
        for (size_t p = 0; p < json_array_size(parts); p++) {
            const json_t *part = json_array_get(parts, p), *type = json_object_get(part, "type");
            const json_t *part_text = json_object_get(part, "text");
            if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0 ||
                !json_is_string(part_text)) {
                error->param = "messages";
                err_set(&error->err, ERR_INVALID, "'messages[%zu].content[%zu]' is of type \"%s\"; this "
                        "model takes text only", i, p,
                        json_is_string(type) ? json_string_value(type) : "?");
                strbuf_deinit(&text);
                json_decref(plain);
                return NULL;
            }
            strbuf_append(&text, json_str(part_text));
        }
        json_object_set_new(message, "content", json_stringn(text.data ? text.data : "", text.n));
        strbuf_deinit(&text);
    }
    if (!plain)
        err_set(&error->err, ERR_NOMEM, "out of memory for the messages");
    return plain;
}

static bool render(const struct server *server, const json_t *body, struct token_list *prompt,
                   struct request_error *error) {
    const json_t *messages = messages_of(body, error);
    json_t *plain = messages ? with_plain_content(messages, error) : NULL;
    if (!plain)
        return false;
    const json_t *kwargs = json_object_get(body, "chat_template_kwargs");
    const json_t *tools = json_object_get(body, "tools");
    struct chat_render_options options = {
        .messages = plain,
        .tools = json_is_array(tools) && json_array_size(tools) ? tools : NULL,
        .kwargs = json_is_object(kwargs) ? kwargs : server->options.template_kwargs,
        .add_generation_prompt = true,
    };
    struct strbuf text = {0};
    bool ok = chat_template_render(server->bundle->chat, &options, &text, &error->err) &&
              tokenizer_encode(server->bundle->tokenizer, strbuf_str(&text), 0, prompt, &error->err);
    if (!ok && error->err.code != ERR_NOMEM) { // the template refuses these messages
        error->err.code = ERR_INVALID;
        error->param = "messages";
    }
    strbuf_deinit(&text);
    json_decref(plain);
    return ok;
}

void openai_chat(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct generation_fields fields = {0};
    struct token_list prompt = {0};
    json_t *body = request_body(exchange, &error);
    if (body && request_fields(server, body, &fields, &error) && render(server, body, &prompt, &error))
        openai_completion_start(server, exchange, COMPLETION_CHAT, &fields, &prompt, (struct str){0});
    else
        request_refuse(exchange, &error);
    request_fields_deinit(&fields);
    token_list_deinit(&prompt);
    json_decref(body);
}
