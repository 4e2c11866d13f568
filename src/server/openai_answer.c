#include "server/openai_answer.h"

#include <math.h>

void openai_append_head(struct strbuf *out, const struct served *served, const char *id, const char *object,
                        long long created) {
    strbuf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", id, object, created);
    strbuf_json_string(out, str_from(served->bundle.name));
}

void openai_append_usage(struct strbuf *out, const struct answer_usage *usage) {
    strbuf_printf(out,
                  "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
                  usage->n_prompt, usage->n_generated, usage->n_prompt + usage->n_generated,
                  usage->n_cached, usage->n_reasoning);
}

struct str openai_token_text(const struct served *served, int32_t id) {
    struct str text = str_of(tokenizer_token_bytes(served->bundle.tokenizer, id));
    return text.n ? text : tokenizer_token(served->bundle.tokenizer, id);
}

double openai_logprob(float logprob) {
    return isfinite(logprob) ? (double)logprob : -9999.0;
}

static void append_token(struct strbuf *out, const struct served *served, int32_t id, float logprob) {
    struct str text = openai_token_text(served, id);
    strbuf_append_c(out, "{\"token\":");
    strbuf_json_string(out, text);
    strbuf_printf(out, ",\"logprob\":%.9g,\"bytes\":[", openai_logprob(logprob));
    for (size_t i = 0; i < text.n; i++)
        strbuf_printf(out, "%s%u", i ? "," : "", (unsigned char)text.data[i]);
    strbuf_char(out, ']');
}

void openai_append_logprob(struct strbuf *out, const struct served *served, const struct sampled *token,
                           uint32_t n_top) {
    append_token(out, served, token->id, token->logprob);
    strbuf_append_c(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < n_top && i < token->n_top; i++) {
        if (i)
            strbuf_char(out, ',');
        append_token(out, served, token->top[i].id, token->top[i].logprob);
        strbuf_char(out, '}');
    }
    strbuf_append_c(out, "]}");
}

void openai_append_error(struct strbuf *out, struct str message, const char *type, const char *param,
                         const char *code) {
    strbuf_append_c(out, "{\"error\":{\"message\":");
    strbuf_json_string(out, message);
    strbuf_append_c(out, ",\"type\":");
    strbuf_json_string(out, str_from(type));
    strbuf_append_c(out, ",\"param\":");
    param ? strbuf_json_string(out, str_from(param)) : strbuf_append_c(out, "null");
    strbuf_append_c(out, ",\"code\":");
    code ? strbuf_json_string(out, str_from(code)) : strbuf_append_c(out, "null");
    strbuf_append_c(out, "}}");
}

void openai_stream_error(struct http_exchange *exchange, const struct err *err) {
    struct strbuf out = {0};
    openai_append_error(&out, str_from(err->message), "server_error", NULL, NULL);
    sse_data(exchange, strbuf_str(&out));
    strbuf_deinit(&out);
    http_stream_end(exchange);
}
