// POST /v1/completions: the older, plain text interface.
#include <stdlib.h>
#include <time.h>

#include "server/openai_answer.h"
#include "server/structured.h"

enum { PROMPTS_MAX = 2048 };

struct text_choice {
    struct strbuf text; // of an answer in one piece
    struct strbuf tokens, token_logprobs, top_logprobs, text_offset; // elements that are not sent yet
    size_t n_chars;     // of all tokens so far
    bool begun;         // the echo is sent
    const char *finish;
};

struct completion {
    const struct served *served; // the answer holds it
    struct http_exchange *exchange;
    bool stream, include_usage, begun, want_logprobs;
    uint32_t n_top_logprobs, n_choices, n_per_prompt, n_done;
    char id[64];
    long long created;
    struct strbuf *echoes; // [n_choices / n_per_prompt], or NULL
    struct text_choice choices[];
};

static void free_state(void *state) {
    struct completion *c = state;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct text_choice *choice = &c->choices[i];
        strbuf_deinit(&choice->text);
        strbuf_deinit(&choice->tokens);
        strbuf_deinit(&choice->token_logprobs);
        strbuf_deinit(&choice->top_logprobs);
        strbuf_deinit(&choice->text_offset);
        if (c->echoes && i % c->n_per_prompt == 0)
            strbuf_deinit(&c->echoes[i / c->n_per_prompt]);
    }
    free(c->echoes);
    free(c);
}

static void append_logprobs(struct strbuf *out, struct text_choice *choice, bool want) {
    if (!want) {
        strbuf_append_c(out, "null");
        return;
    }
    strbuf_append_c(out, "{\"tokens\":[");
    strbuf_append(out, strbuf_str(&choice->tokens));
    strbuf_append_c(out, "],\"token_logprobs\":[");
    strbuf_append(out, strbuf_str(&choice->token_logprobs));
    strbuf_append_c(out, "],\"top_logprobs\":[");
    strbuf_append(out, strbuf_str(&choice->top_logprobs));
    strbuf_append_c(out, "],\"text_offset\":[");
    strbuf_append(out, strbuf_str(&choice->text_offset));
    strbuf_append_c(out, "]}");
    strbuf_clear(&choice->tokens);
    strbuf_clear(&choice->token_logprobs);
    strbuf_clear(&choice->top_logprobs);
    strbuf_clear(&choice->text_offset);
}

static void append_choice(struct strbuf *out, struct completion *c, uint32_t idx, struct str text,
                          const char *finish, bool want_logprobs) {
    strbuf_printf(out, "{\"index\":%u,\"text\":", idx);
    strbuf_json_string(out, text);
    strbuf_append_c(out, ",\"logprobs\":");
    append_logprobs(out, &c->choices[idx], want_logprobs);
    strbuf_append_c(out, ",\"finish_reason\":");
    if (finish)
        strbuf_json_string(out, str_from(finish));
    else
        strbuf_append_c(out, "null");
    strbuf_char(out, '}');
}

static void send_chunk(struct completion *c, uint32_t idx, struct str text, const char *finish) {
    struct strbuf out = {0};
    if (!c->begun)
        sse_begin(c->exchange);
    c->begun = true;
    openai_append_head(&out, c->served, c->id, "text_completion", c->created);
    strbuf_append_c(&out, ",\"choices\":[");
    append_choice(&out, c, idx, text, finish, c->want_logprobs && c->choices[idx].tokens.n);
    strbuf_append_c(&out, c->include_usage ? "],\"usage\":null}" : "]}");
    sse_data(c->exchange, strbuf_str(&out));
    strbuf_deinit(&out);
}

static struct str echo_of(const struct completion *c, uint32_t idx) {
    return c->echoes ? strbuf_str(&c->echoes[idx / c->n_per_prompt]) : (struct str){0};
}

static void begin(struct completion *c, uint32_t idx) {
    if (!c->choices[idx].begun && echo_of(c, idx).n)
        send_chunk(c, idx, echo_of(c, idx), NULL);
    c->choices[idx].begun = true;
}

static void on_quiet(void *state) {
    struct completion *c = state;
    if (!c->begun)
        sse_begin(c->exchange);
    c->begun = true;
    sse_keep_alive(c->exchange);
}

static void append_top(struct strbuf *out, const struct completion *c, const struct sampled *token) {
    strbuf_char(out, '{');
    bool chosen_is_top = false;
    uint32_t n = token->n_top < c->n_top_logprobs ? token->n_top : c->n_top_logprobs;
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            strbuf_char(out, ',');
        strbuf_json_string(out, openai_token_text(c->served, token->top[i].id));
        strbuf_printf(out, ":%.9g", openai_logprob(token->top[i].logprob));
        chosen_is_top |= token->top[i].id == token->id;
    }
    if (!chosen_is_top) { // OpenAI adds the chosen token, so there may be one more than asked for
        strbuf_append_c(out, n ? "," : "");
        strbuf_json_string(out, openai_token_text(c->served, token->id));
        strbuf_printf(out, ":%.9g", openai_logprob(token->logprob));
    }
    strbuf_char(out, '}');
}

static size_t n_characters(struct str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.data[i] & 0xC0) != 0x80;
    return n;
}

static void on_tokens(void *state, uint32_t idx, const struct sampled *tokens, size_t n) {
    struct completion *c = state;
    struct text_choice *choice = &c->choices[idx];
    for (size_t i = 0; i < n; i++) {
        const char *comma = choice->tokens.n ? "," : "";
        struct str text = openai_token_text(c->served, tokens[i].id);
        strbuf_append_c(&choice->tokens, comma);
        strbuf_json_string(&choice->tokens, text);
        strbuf_printf(&choice->token_logprobs, "%s%.9g", comma, openai_logprob(tokens[i].logprob));
        strbuf_append_c(&choice->top_logprobs, comma);
        if (c->n_top_logprobs)
            append_top(&choice->top_logprobs, c, &tokens[i]);
        else
            strbuf_append_c(&choice->top_logprobs, "null");
        strbuf_printf(&choice->text_offset, "%s%zu", comma,
                      n_characters(echo_of(c, idx)) + choice->n_chars);
        choice->n_chars += n_characters(text);
    }
}

static void on_piece(void *state, uint32_t idx, const struct output_piece *piece) {
    struct completion *c = state;
    if (!c->stream) {
        strbuf_append(&c->choices[idx].text, piece->text);
        return;
    }
    begin(c, idx);
    send_chunk(c, idx, piece->text, NULL);
}

static void on_choice_done(void *state, uint32_t idx, const struct answer_end *end) {
    struct completion *c = state;
    c->choices[idx].finish = finish_reason_name(end->finish);
    if (!c->stream)
        return;
    begin(c, idx);
    send_chunk(c, idx, (struct str){0}, c->choices[idx].finish);
}

static void on_done(void *state, const struct answer_usage *usage, const struct err *err) {
    struct completion *c = state;
    struct strbuf out = {0};
    if (err && c->begun) {
        openai_stream_error(c->exchange, err);
    } else if (err) {
        http_fail_err(c->exchange, err);
    } else if (c->stream) {
        if (c->include_usage) {
            openai_append_head(&out, c->served, c->id, "text_completion", c->created);
            strbuf_append_c(&out, ",\"choices\":[],\"usage\":");
            openai_append_usage(&out, usage);
            strbuf_char(&out, '}');
            sse_data(c->exchange, strbuf_str(&out));
            strbuf_deinit(&out);
        }
        sse_data(c->exchange, STR("[DONE]"));
        http_stream_end(c->exchange);
    } else {
        openai_append_head(&out, c->served, c->id, "text_completion", c->created);
        strbuf_append_c(&out, ",\"choices\":[");
        for (uint32_t i = 0; i < c->n_choices; i++) {
            struct strbuf text = {0};
            strbuf_append(&text, echo_of(c, i));
            strbuf_append(&text, strbuf_str(&c->choices[i].text));
            if (i)
                strbuf_char(&out, ',');
            append_choice(&out, c, i, strbuf_str(&text), c->choices[i].finish, c->want_logprobs);
            out.failed |= text.failed || c->choices[i].text.failed || c->choices[i].top_logprobs.failed;
            strbuf_deinit(&text);
        }
        strbuf_append_c(&out, "],\"usage\":");
        openai_append_usage(&out, usage);
        strbuf_char(&out, '}');
        http_reply_built(c->exchange, &out);
    }
    free_state(c);
}

static const struct answer_surface SURFACE = {on_tokens, on_piece, on_choice_done, on_done, free_state};

// ---- The request ----------------------------------------------------------------------------------
static const char PROMPT_WANTED[] = "a string, an array of strings, an array of token ids, or an array of those";

// Fill-in-the-middle: the model's own marks around prefix and suffix.
static bool read_with_suffix(const struct server *server, struct str prefix, struct str suffix,
                             struct token_list *out, struct request_error *error) {
    static const char *const MARKS[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
        {"<PRE>", "<SUF>", "<MID>"},
        {"[PREFIX]", "[SUFFIX]", "[MIDDLE]"},
    };
    const struct tokenizer *tokenizer = server->served->bundle.tokenizer;
    for (size_t i = 0; i < sizeof MARKS / sizeof *MARKS; i++) {
        token_id ids[3];
        for (int m = 0; m < 3; m++)
            ids[m] = tokenizer_id(tokenizer, str_from(MARKS[i][m]));
        if (ids[0] == TOKEN_NONE || ids[1] == TOKEN_NONE || ids[2] == TOKEN_NONE)
            continue;
        token_list_append(out, ids[0]);
        bool ok = tokenizer_encode(tokenizer, prefix, TOKENIZER_NO_SPECIAL_SPELLINGS, out, &error->err);
        token_list_append(out, ids[1]);
        ok = ok && tokenizer_encode(tokenizer, suffix, TOKENIZER_NO_SPECIAL_SPELLINGS, out, &error->err);
        token_list_append(out, ids[2]);
        return ok && (!out->failed || err_set(&error->err, ERR_NOMEM, "out of memory for the prompt"));
    }
    error->param = "suffix";
    return err_set(&error->err, ERR_INVALID, "'suffix' needs a model with fill-in-the-middle tokens; %s has "
                   "none", server->served->bundle.name);
}

static bool read_one(const struct server *server, const json_t *prompt, const json_t *suffix,
                     struct token_list *out, struct request_error *error) {
    if (json_is_array(prompt))
        return json_array_size(prompt) ? request_token_ids(prompt, "prompt", PROMPT_WANTED, out, error)
                                       : request_wrong(error, "prompt", PROMPT_WANTED);
    if (!json_is_string(prompt))
        return request_wrong(error, "prompt", PROMPT_WANTED);
    if (suffix)
        return read_with_suffix(server, json_str(prompt), json_str(suffix), out, error);
    return tokenizer_encode(server->served->bundle.tokenizer, json_str(prompt), TOKENIZER_ADD_SPECIAL, out,
                            &error->err);
}

struct prompts {
    struct token_list *lists; // [n]
    struct strbuf *echoes;    // [n], or NULL
    uint32_t n;
};

static void prompts_deinit(struct prompts *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        token_list_deinit(&p->lists[i]);
        if (p->echoes)
            strbuf_deinit(&p->echoes[i]);
    }
    free(p->lists);
    free(p->echoes);
}

static bool read_prompts(const struct server *server, const json_t *body, struct prompts *out,
                         struct request_error *error) {
    const json_t *prompt = json_object_get(body, "prompt"), *suffix = request_given(body, "suffix");
    bool echo = false;
    if (!request_bool(body, "echo", &echo, error))
        return false;
    if (suffix && !json_is_string(suffix))
        return request_wrong(error, "suffix", "a string");
    size_t n = request_n_prompts(prompt);
    if (n == 0 || n > PROMPTS_MAX)
        return request_wrong(error, "prompt", PROMPT_WANTED);
    out->lists = calloc(n, sizeof *out->lists);
    out->echoes = echo ? calloc(n, sizeof *out->echoes) : NULL;
    if (!out->lists || (echo && !out->echoes))
        return err_set(&error->err, ERR_NOMEM, "out of memory for the prompts");
    out->n = (uint32_t)n;
    for (uint32_t i = 0; i < out->n; i++) {
        const json_t *one = request_prompt_at(prompt, i);
        if (!read_one(server, one, suffix, &out->lists[i], error))
            return false;
        if (echo && json_is_string(one))
            strbuf_append(&out->echoes[i], json_str(one));
        else if (echo && !tokenizer_decode(server->served->bundle.tokenizer, out->lists[i].ids, out->lists[i].n,
                                           false, &out->echoes[i], &error->err))
            return false;
    }
    return true;
}

static bool read_logprobs(const json_t *body, struct generation_fields *fields, struct request_error *error) {
    int64_t n = -1;
    // A number here; some clients send the chat form's switch.
    if (json_is_boolean(json_object_get(body, "logprobs")))
        n = json_is_true(json_object_get(body, "logprobs")) ? 0 : -1;
    else if (!request_int(body, "logprobs", 0, SAMPLER_TOP_LOGPROBS_MAX, &n, error))
        return false;
    fields->sampling.want_logprob = n >= 0;
    fields->sampling.n_top_logprobs = n > 0 ? (uint32_t)n : 0;
    return true;
}

void openai_completions(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct generation_fields fields = {0};
    struct prompts prompts = {0};
    struct structured structured = {0};
    struct completion *c = NULL;
    json_t *body = request_body(exchange, &error);
    // OpenAI's default of 16 tokens is not kept: a local server that stops there only puzzles.
    bool ok = body && request_fields(server, body, &fields, &error) &&
              request_completion_fields(body, &fields, &error) && read_logprobs(body, &fields, &error) &&
              structured_read(body, NULL, &structured, &error) &&
              read_prompts(server, body, &prompts, &error);
    if (ok && structured.given) {
        fields.grammar = structured_grammar(server, exchange, &structured, &error);
        ok = fields.grammar != NULL;
    }
    uint32_t n_choices = ok ? prompts.n * fields.n : 0;
    if (ok) {
        c = calloc(1, sizeof *c + n_choices * sizeof *c->choices);
        ok = c || err_set(&error.err, ERR_NOMEM, "out of memory for a request");
    }
    if (ok) {
        c->served = server->served;
        c->exchange = exchange;
        c->stream = fields.stream;
        c->include_usage = fields.include_usage;
        c->want_logprobs = fields.sampling.want_logprob;
        c->n_top_logprobs = fields.sampling.n_top_logprobs;
        c->n_choices = n_choices;
        c->n_per_prompt = fields.n;
        c->created = (long long)time(NULL);
        c->echoes = prompts.echoes;
        prompts.echoes = NULL;
        request_new_id("cmpl-", c->id, sizeof c->id);
        struct answer_options options = {.fields = &fields, .prompts = prompts.lists,
                                         .n_prompts = prompts.n, .keep = body};
        ok = answer_start(server, exchange, &options, &SURFACE, c, &error.err);
        for (uint32_t i = 0; !ok && i < prompts.n; i++)
            if (prompts.lists[i].n >= engine_plan_of(server->served->engine)->limits.ctx_len)
                error.code = "context_length_exceeded";
    }
    if (!ok) {
        request_refuse(exchange, &error);
        if (c)
            free_state(c);
    } else if (c->stream) {
        http_on_quiet(exchange, SSE_QUIET_MS, on_quiet, c);
    }
    prompts_deinit(&prompts);
    structured_deinit(&structured);
    request_fields_deinit(&fields);
    json_decref(body);
}
