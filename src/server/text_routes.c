// POST /tokenize, /detokenize and /apply-template: what the model sees.
#include "server/chat_request.h"

void server_tokenize(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct token_list ids = {0};
    bool add_special = true, with_pieces = false;
    json_t *body = request_body(exchange, &error);
    // llama.cpp says content, vLLM prompt, others text.
    static const char *const NAMES[] = {"content", "prompt", "text"};
    const json_t *text = NULL;
    for (size_t i = 0; !text && i < sizeof NAMES / sizeof *NAMES; i++)
        text = request_given(body, NAMES[i]);
    bool ok = body && request_bool(body, "add_special", &add_special, &error) &&
              request_bool(body, "add_special_tokens", &add_special, &error) &&
              request_bool(body, "with_pieces", &with_pieces, &error);
    if (ok && request_given(body, "messages")) {
        struct chat_request r = {0};
        ok = openai_chat_read(server, body, &r, &error) && chat_request_render(server, &r, NULL, &ids, &error);
        chat_request_deinit(&r);
    } else if (ok) {
        ok = json_is_string(text) ? tokenizer_encode(server->served->bundle.tokenizer, json_str(text),
                                                     add_special ? TOKENIZER_ADD_SPECIAL : 0, &ids, &error.err)
                                  : request_wrong(&error, "content", "a string");
    }
    struct strbuf out = {0};
    strbuf_printf(&out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids.n,
                  engine_plan_of(server->served->engine)->limits.ctx_len);
    for (size_t i = 0; ok && i < ids.n; i++) {
        strbuf_append_c(&out, i ? "," : "");
        if (with_pieces) {
            strbuf_printf(&out, "{\"id\":%d,\"piece\":", ids.ids[i]);
            struct str bytes = str_of(tokenizer_token_bytes(server->served->bundle.tokenizer, ids.ids[i]));
            strbuf_json_string(&out, bytes.n ? bytes : tokenizer_token(server->served->bundle.tokenizer, ids.ids[i]));
            strbuf_char(&out, '}');
        } else {
            strbuf_printf(&out, "%d", ids.ids[i]);
        }
    }
    strbuf_append_c(&out, "]}");
    if (ok) {
        http_reply_built(exchange, &out);
    } else {
        strbuf_deinit(&out);
        request_refuse(exchange, &error);
    }
    token_list_deinit(&ids);
    json_decref(body);
}

void server_detokenize(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct token_list ids = {0};
    struct strbuf text = {0}, out = {0};
    bool skip_special = false;
    json_t *body = request_body(exchange, &error);
    const json_t *tokens = request_given(body, "tokens");
    bool ok = body && request_bool(body, "skip_special_tokens", &skip_special, &error);
    if (ok && !json_is_array(tokens))
        ok = request_wrong(&error, "tokens", "an array of token ids");
    ok = ok && request_token_ids(tokens, "tokens", "an array of token ids", &ids, &error);
    ok = ok && tokenizer_decode(server->served->bundle.tokenizer, ids.ids, ids.n, skip_special, &text, &error.err);
    if (ok) { // vLLM names it prompt, llama.cpp content
        strbuf_append_c(&out, "{\"content\":");
        strbuf_json_string(&out, strbuf_str(&text));
        strbuf_append_c(&out, ",\"prompt\":");
        strbuf_json_string(&out, strbuf_str(&text));
        strbuf_char(&out, '}');
        http_reply_built(exchange, &out);
    } else {
        request_refuse(exchange, &error);
    }
    strbuf_deinit(&text);
    token_list_deinit(&ids);
    json_decref(body);
}

void server_apply_template(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct chat_request r = {0};
    struct token_list ids = {0};
    struct strbuf text = {0}, out = {0};
    json_t *body = request_body(exchange, &error);
    if (body && openai_chat_read(server, body, &r, &error) &&
        chat_request_render(server, &r, &text, &ids, &error)) {
        strbuf_append_c(&out, "{\"prompt\":");
        strbuf_json_string(&out, strbuf_str(&text));
        strbuf_printf(&out, ",\"count\":%zu}", ids.n);
        http_reply_built(exchange, &out);
    } else {
        request_refuse(exchange, &error);
    }
    strbuf_deinit(&text);
    token_list_deinit(&ids);
    chat_request_deinit(&r);
    json_decref(body);
}
