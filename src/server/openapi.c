// GET /openapi.json: every route, its fields and its answers, in OpenAPI 3.1.
#include "base/json.h"
#include "server/server.h"

// A field is "name:type", with "!" behind what must be there.
struct operation {
    const char *method, *path, *summary;
    const char *fields; // of the JSON body, separated by spaces; NULL = no body
    const char *answer; // the content type, besides JSON for errors
    bool streams;       // with "stream": true, Server-Sent Events
};

// Fields of every generating route, besides the table of samplers, whose place is "*".
#define SAMPLING                                                                                   \
    " * seed:integer stream:boolean max_tokens:integer ignore_eos:boolean priority:string logit_bias:object "      \
    "dry_sequence_breakers:array"
#define COMPLETION SAMPLING " max_completion_tokens:integer stop:any n:integer stream_options:object"
#define JSON "application/json"
#define CHAT_FIELDS                                                                                \
    "model:string messages:array! tools:array tool_choice:any logprobs:boolean top_logprobs:integer " \
    "reasoning_effort:string enable_thinking:boolean chat_template_kwargs:object" COMPLETION
#define MESSAGES_FIELDS                                                                            \
    "model:string messages:array! system:any tools:array tool_choice:object thinking:object "      \
    "stop_sequences:array" SAMPLING

#define RESPONSES_FIELDS                                                                           \
    "model:string input:any! instructions:string previous_response_id:string store:boolean tools:array " \
    "tool_choice:any reasoning:object max_output_tokens:integer metadata:object include:array "    \
    "top_logprobs:integer" SAMPLING

static const struct operation OPERATIONS[] = {
    {"post", "/v1/chat/completions", "Answer a conversation (OpenAI)", CHAT_FIELDS, JSON, true},
    {"post", "/v1/completions", "Go on with a text (OpenAI)",
     "model:string prompt:any! suffix:string echo:boolean logprobs:integer" COMPLETION, JSON, true},
    {"post", "/v1/embeddings", "Texts as vectors (OpenAI); of an embedding model",
     "model:string input:any! dimensions:integer encoding_format:string instruction:string", JSON, false},
    {"post", "/v1/rerank", "How well each document answers a query; of a reranker",
     "model:string query:string! documents:array! top_n:integer return_documents:boolean instruction:string", JSON,
     false},
    {"post", "/v1/responses", "Answer, and keep the answer to go on from (OpenAI)",
     RESPONSES_FIELDS, JSON, true},
    {"post", "/v1/responses/input_tokens", "How many tokens a request for an answer has (OpenAI)",
     RESPONSES_FIELDS, JSON, false},
    {"get", "/v1/responses/{response_id}", "A kept answer", NULL, JSON, false},
    {"delete", "/v1/responses/{response_id}", "Forget a kept answer", NULL, JSON, false},
    {"get", "/v1/responses/{response_id}/input_items", "What a kept answer was an answer to", NULL, JSON,
     false},
    {"post", "/v1/responses/{response_id}/cancel", "Refused: answers are given while the client waits", NULL, JSON,
     false},
    {"post", "/v1/messages", "Answer a conversation (Anthropic)", MESSAGES_FIELDS, JSON, true},
    {"post", "/v1/messages/count_tokens", "How many tokens a conversation has (Anthropic)", MESSAGES_FIELDS,
     JSON, false},
    {"get", "/v1/models", "What is served", NULL, JSON, false},
    {"get", "/v1/models/{model}", "One of them", NULL, JSON, false},
    {"get", "/v1", "The server describes itself", NULL, JSON, false},
    {"post", "/tokenize", "Text or messages as token ids",
     "content:string messages:array add_special:boolean with_pieces:boolean", JSON, false},
    {"post", "/detokenize", "Token ids as text", "tokens:array! skip_special_tokens:boolean", JSON, false},
    {"post", "/apply-template", "Messages as the text that the model reads", CHAT_FIELDS, JSON, false},
    {"get", "/health", "The process is alive", NULL, JSON, false},
    {"get", "/ready", "Requests are answered", NULL, JSON, false},
    {"get", "/stats", "What the engine is doing", NULL, JSON, false},
    {"get", "/metrics", "Counters and histograms for Prometheus", NULL, "text/plain", false},
    {"get", "/fit", "The memory that the served model takes, and how fast it has answered", NULL, JSON, false},
    {"get", "/library", "The downloaded models, as read within the last 30 seconds (?refresh=1: now)", NULL, JSON, false},
    {"get", "/downloads", "What the server is fetching and has fetched lately", NULL, JSON, false},
    {"post", "/admin/cache/flush", "Write the prompt cache to its disk tier, and wait for it", NULL, JSON, false},
    {"get", "/openapi.json", "This description", NULL, JSON, false},
};

static void write_body(struct strbuf *out, const char *fields) {
    struct strbuf required = {0};
    strbuf_append_c(out, "\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":"
                         "{\"type\":\"object\",\"properties\":{");
    for (bool first = true; *fields; first = false) {
        if (*fields == '*') { // never the first
            for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++)
                strbuf_printf(out, ",\"%s\":{\"type\":\"%s\",\"minimum\":%.9g,\"maximum\":%.9g}",
                              SAMPLER_OPTIONS[i].name,
                              SAMPLER_OPTIONS[i].kind == SAMPLER_REAL ? "number" : "integer",
                              SAMPLER_OPTIONS[i].min, SAMPLER_OPTIONS[i].max);
            fields += 2;
            continue;
        }
        size_t n = strcspn(fields, " "), name_n = strcspn(fields, ":");
        struct str type = {fields + name_n + 1, n - name_n - 1};
        if (type.n && type.data[type.n - 1] == '!') {
            type.n--;
            strbuf_append_c(&required, required.n ? "," : "");
            strbuf_json_string(&required, (struct str){fields, name_n});
        }
        strbuf_append_c(out, first ? "" : ",");
        strbuf_json_string(out, (struct str){fields, name_n});
        if (str_eq_c(type, "any"))
            strbuf_append_c(out, ":{}");
        else
            strbuf_printf(out, ":{\"type\":\"%.*s\"}", (int)type.n, type.data);
        fields += n + (fields[n] == ' ');
    }
    strbuf_append_c(out, "},\"required\":[");
    strbuf_append(out, strbuf_str(&required));
    strbuf_append_c(out, "]}}}},");
    out->failed |= required.failed;
    strbuf_deinit(&required);
}

static void write_operation(struct strbuf *out, const struct operation *op) {
    strbuf_printf(out, "\"%s\":{\"summary\":\"%s\",", op->method, op->summary);
    const char *brace = strchr(op->path, '{');
    if (brace)
        strbuf_printf(out, "\"parameters\":[{\"name\":\"%.*s\",\"in\":\"path\",\"required\":true,"
                           "\"schema\":{\"type\":\"string\"}}],",
                      (int)strcspn(brace + 1, "}"), brace + 1);
    if (op->fields)
        write_body(out, op->fields);
    strbuf_printf(out, "\"responses\":{\"200\":{\"description\":\"the answer\",\"content\":{\"%s\":{}%s}},"
                       "\"default\":{\"$ref\":\"#/components/responses/%s\"}}}",
                  op->answer, op->streams ? ",\"text/event-stream\":{}" : "",
                  strncmp(op->path, "/v1/messages", 12) == 0 ? "AnthropicError" : "Error");
}

void server_openapi(struct http_exchange *exchange, void *user) {
    (void)user;
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"loam\",\"version\":\"" LOAM_VERSION
                          "\"},\"paths\":{");
    const char *path = "";
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++) {
        bool same = strcmp(path, OPERATIONS[i].path) == 0;
        path = OPERATIONS[i].path;
        if (same)
            strbuf_char(&out, ',');
        else
            strbuf_printf(&out, "%s\"%s\":{", i ? "}," : "", path);
        write_operation(&out, &OPERATIONS[i]);
    }
    strbuf_append_c(&out,
                    "}},\"components\":{\"securitySchemes\":{\"bearer\":{\"type\":\"http\",\"scheme\":"
                    "\"bearer\"},\"key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"x-api-key\"}},"
                    "\"responses\":{\"Error\":{\"description\":\"what is wrong\",\"content\":{"
                    "\"application/json\":{\"schema\":{\"type\":\"object\",\"properties\":{\"error\":{"
                    "\"type\":\"object\",\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{"
                    "\"type\":\"string\"},\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":["
                    "\"string\",\"null\"]}}}}}}}},\"AnthropicError\":{\"description\":\"what is wrong\","
                    "\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\",\"properties\":{"
                    "\"type\":{\"const\":\"error\"},\"error\":{\"type\":\"object\",\"properties\":{"
                    "\"type\":{\"type\":\"string\"},\"message\":{\"type\":\"string\"}}}}}}}}}}}");
    http_reply_built(exchange, &out);
}
