// loam generate: one prompt, one answer, on stdout.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file_map.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "cli/sampling_args.h"
#include "engine/engine.h"

enum { PROMPT_BYTES_MAX = 64 << 20 };

struct generate_args {
    const char *prompt, *prompt_file, *tokens_file, *system;
    bool raw, ignore_eos, json;
    int64_t max_tokens, seed, ctx_len;
    struct sampler_given sampling;
    struct cli_texts stops, dry_breakers;
};

// What the engine thread tells us; main waits on it.
struct answer {
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t done_cond;
    bool done, stream;
    enum finish_reason finish;
    struct gen_usage usage;
    struct strbuf text;
    struct token_list ids;
    struct err err;
};

static struct gen_ticket *_Atomic interrupted_ticket; // SIGINT -> cancel; set before the signal can come

static void on_interrupt(int signal_number) {
    (void)signal_number;
    struct gen_ticket *ticket = atomic_load(&interrupted_ticket);
    if (ticket)
        gen_ticket_cancel(ticket); // one atomic store
}

static void on_event(const struct gen_event *event, void *user) {
    struct answer *answer = user;
    pthread_mutex_lock(&answer->lock);
    if (event->kind == GEN_TOKEN)
        token_list_append(&answer->ids, event->token.id);
    strbuf_append(&answer->text, event->text);
    if (answer->stream && event->text.n) {
        fwrite(event->text.data, 1, event->text.n, stdout);
        fflush(stdout);
    }
    if (event->kind == GEN_DONE) {
        answer->done = true;
        answer->finish = event->finish;
        answer->usage = *event->usage;
        if (event->err)
            answer->err = *event->err;
        pthread_cond_signal(&answer->done_cond);
    }
    pthread_mutex_unlock(&answer->lock);
}

// The ids of the prompt: from the file, the raw text, or the text as a user's message in the template.
static bool prompt_ids(const struct generate_args *args, const struct bundle *bundle, const char *prompt,
                       struct token_list *out, struct err *err) {
    if (args->tokens_file)
        return read_token_file(args->tokens_file, out, err);
    struct strbuf text = {0};
    bool ok = true;
    bool raw = args->raw || bundle->is_builtin || chat_template_is_fallback(bundle->chat);
    if (args->prompt_file) {
        ok = file_read(args->prompt_file, PROMPT_BYTES_MAX, &text, err);
    } else if (prompt) {
        strbuf_append_c(&text, prompt);
    } else { // from a pipe
        char chunk[65536];
        size_t n;
        while (ok && (n = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
            strbuf_append(&text, (struct str){chunk, n});
            if (text.n > PROMPT_BYTES_MAX)
                ok = err_set(err, ERR_INVALID, "the prompt is longer than %d bytes", PROMPT_BYTES_MAX);
        }
    }
    if (ok && !raw) {
        json_t *messages = json_array();
        if (args->system)
            json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content",
                                                      args->system));
        json_t *content = json_stringn(text.data ? text.data : "", text.n);
        if (!content)
            ok = err_set(err, ERR_INVALID, "the prompt is not valid UTF-8; --raw takes any bytes");
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content",
                                                  content ? content : json_null()));
        struct chat_render_options render = {.messages = messages, .add_generation_prompt = true};
        strbuf_clear(&text);
        ok = ok && chat_template_render(bundle->chat, &render, &text, err);
        json_decref(messages);
    }
    if (text.failed)
        ok = err_set(err, ERR_NOMEM, "out of memory for the prompt");
    // A rendered template spells its own special tokens and BOS; raw text gets the tokenizer's.
    ok = ok && tokenizer_encode(bundle->tokenizer, strbuf_str(&text), raw ? TOKENIZER_ADD_SPECIAL : 0, out,
                                err);
    strbuf_deinit(&text);
    return ok;
}

static struct sampler_params sampling_of(const struct generate_args *args, const struct bundle *bundle) {
    struct sampler_params p = bundle_sampling(bundle);
    sampler_given_apply(&args->sampling, &p);
    p.seed = (uint64_t)args->seed;
    return p;
}

static void print_json(const struct bundle *bundle, const struct answer *answer) {
    struct strbuf out = {0};
    const struct gen_usage *u = &answer->usage;
    strbuf_printf(&out, "{\"model\":");
    strbuf_json_string(&out, str_from(bundle->name));
    strbuf_printf(&out, ",\"prompt_tokens\":%u,\"tokens\":[", u->n_prompt);
    for (size_t i = 0; i < answer->ids.n; i++)
        strbuf_printf(&out, "%s%d", i ? "," : "", answer->ids.ids[i]);
    strbuf_append_c(&out, "],\"text\":");
    strbuf_json_string(&out, strbuf_str(&answer->text));
    double decoded = u->n_generated > 1 ? u->n_generated - 1 : 0; // the first comes with the prompt
    strbuf_printf(&out,
                  ",\"finish_reason\":\"%s\",\"timings\":{\"load_ms\":%.3f,\"prefill_ms\":%.3f,"
                  "\"prefill_tps\":%.3f,\"decode_ms\":%.3f,\"decode_tps\":%.3f}}\n",
                  finish_reason_name(answer->finish), bundle->load_ms, u->prefill_ms,
                  u->prefill_ms > 0 ? u->n_prompt / u->prefill_ms * 1e3 : 0, u->decode_ms,
                  u->decode_ms > 0 ? decoded / u->decode_ms * 1e3 : 0);
    if (out.data)
        fwrite(out.data, 1, out.n, stdout);
    strbuf_deinit(&out);
}

static bool generate(const struct generate_args *args, const struct bundle *bundle, const char *prompt,
                     struct err *err) {
    struct token_list ids = {0};
    struct engine *engine = NULL;
    struct gen_ticket *ticket = NULL;
    struct answer answer = {.stream = !args->json};
    pthread_mutex_init(&answer.lock, NULL);
    pthread_cond_init(&answer.done_cond, NULL);
    struct str stops[32], breakers[32];
    for (uint32_t i = 0; i < args->stops.n; i++)
        stops[i] = str_from(args->stops.values[i]);
    for (uint32_t i = 0; i < args->dry_breakers.n; i++)
        breakers[i] = str_from(args->dry_breakers.values[i]);
    uint32_t max_tokens = args->max_tokens ? (uint32_t)args->max_tokens : bundle_max_tokens(bundle);
    bool ok = prompt_ids(args, bundle, prompt, &ids, err);
    if (ok) {
        // Room for this request alone; without a limit, for what the model's context allows.
        uint64_t want = max_tokens ? ids.n + (uint64_t)max_tokens : 0;
        uint32_t ctx_max = model_config_of(bundle->model)->ctx_len_max;
        struct engine_options options = {.n_rows = 1,
                                         .ctx_len = args->ctx_len          ? (uint32_t)args->ctx_len
                                                    : want && want < ctx_max ? (uint32_t)want + 1
                                                                             : 0};
        engine = engine_create(bundle->model, bundle->tokenizer, &options, err);
        ok = engine != NULL;
    }
    if (ok) {
        struct gen_request request = {
            .prompt = ids.ids, .n_prompt = (uint32_t)ids.n, .max_tokens = max_tokens,
            .stops = stops, .n_stops = args->stops.n, .ignore_eos = args->ignore_eos,
            .dry_breakers = breakers, .n_dry_breakers = args->dry_breakers.n,
            .dry_breakers_given = args->dry_breakers.n > 0,
            .sampling = sampling_of(args, bundle), .on_event = on_event, .user = &answer};
        ticket = engine_submit(engine, &request, err);
        ok = ticket != NULL;
    }
    if (ok) {
        atomic_store(&interrupted_ticket, ticket);
        signal(SIGINT, on_interrupt);
        pthread_mutex_lock(&answer.lock);
        while (!answer.done)
            pthread_cond_wait(&answer.done_cond, &answer.lock);
        pthread_mutex_unlock(&answer.lock);
        signal(SIGINT, SIG_DFL);
        atomic_store(&interrupted_ticket, NULL);
        if (answer.finish == FINISH_ERROR) {
            *err = answer.err;
            ok = false;
        } else if (args->json) {
            print_json(bundle, &answer);
        } else {
            if (answer.text.n == 0 || answer.text.data[answer.text.n - 1] != '\n')
                putchar('\n');
            if (isatty(STDERR_FILENO))
                fprintf(stderr, "[%u prompt tokens, %.0f/s; %u generated, %.1f/s]\n", answer.usage.n_prompt,
                        answer.usage.n_prompt / (answer.usage.prefill_ms + 1e-9) * 1e3,
                        answer.usage.n_generated,
                        answer.usage.n_generated > 1
                            ? (answer.usage.n_generated - 1) / (answer.usage.decode_ms + 1e-9) * 1e3
                            : 0);
        }
    }
    gen_ticket_release(ticket);
    engine_destroy(engine);
    token_list_deinit(&ids);
    token_list_deinit(&answer.ids);
    strbuf_deinit(&answer.text);
    pthread_cond_destroy(&answer.done_cond);
    pthread_mutex_destroy(&answer.lock);
    return ok;
}

int cmd_generate(int argc, char **argv) {
    struct model_args model = model_args_default();
    struct generate_args args = {0};
    const struct cli_option own[] = {
        {.name = "--prompt", .alias = "-p", .kind = CLI_TEXT, .out = &args.prompt, .value = "TEXT",
         .help = "the prompt, where it is not the second argument; else stdin"},
        {.name = "--prompt-file", .alias = "-f", .kind = CLI_TEXT, .out = &args.prompt_file, .value = "F",
         .help = "read the prompt from a file"},
        {.name = "--tokens-file", .kind = CLI_TEXT, .out = &args.tokens_file, .value = "F",
         .help = "a JSON array of token ids as the prompt"},
        {.name = "--system", .kind = CLI_TEXT, .out = &args.system, .value = "TEXT",
         .help = "a system message before the prompt"},
        {.name = "--raw", .kind = CLI_SWITCH, .out = &args.raw,
         .help = "take the prompt as it is, without the chat template"},
        {.name = "--max-tokens", .alias = "-n", .kind = CLI_INT, .out = &args.max_tokens, .value = "N",
         .min = 1, .max = 1e9, .help = "stop after N tokens (until the model ends)"},
        {.name = "--seed", .kind = CLI_INT, .out = &args.seed, .value = "S",
         .help = "same seed, same text (0)"},
        {.name = "--stop", .kind = CLI_LIST, .out = &args.stops, .value = "TEXT",
         .help = "end before this text; may be repeated"},
        {.name = "--dry-sequence-breaker", .kind = CLI_LIST, .out = &args.dry_breakers, .value = "TEXT",
         .help = "where DRY's repetitions end; may be repeated (newline : \" *)"},
        {.name = "--ignore-eos", .kind = CLI_SWITCH, .out = &args.ignore_eos,
         .help = "go on after the model's end token"},
        {.name = "--context-length", .kind = CLI_INT, .out = &args.ctx_len, .value = "N", .min = 16,
         .max = 1e9, .help = "room for prompt and answer together"},
        {.name = "--json", .kind = CLI_SWITCH, .out = &args.json, .help = "one JSON object on stdout"},
        MODEL_OPTIONS(&model),
    };
    struct cli_option options[sizeof own / sizeof *own + SAMPLER_OPTIONS_N];
    memcpy(options, own, sizeof own);
    sampling_args_options(options + sizeof own / sizeof *own, &args.sampling);
    const struct cli_spec spec = {"generate (MODEL | --builtin) [PROMPT] [options]",
                                  "Answer one prompt. The text goes to stdout as it is produced.",
                                  CLI_OPTIONS(options), 2};
    const char *positional[2] = {NULL, NULL};
    uint32_t n;
    enum cli_outcome outcome = cli_parse(&spec, argc, argv, positional, &n);
    if (outcome != CLI_RUN)
        return outcome == CLI_HELPED ? EXIT_DONE : EXIT_USAGE;
    // With --builtin or --model the first argument is the prompt already.
    bool model_named = model.builtin || model.model;
    const char *prompt = args.prompt ? args.prompt : model_named ? positional[0] : positional[1];
    if (model_named && positional[1])
        return cli_wrong("generate", "unexpected argument \"%s\"", positional[1]);
    if (args.seed < 0)
        return cli_wrong("generate", "--seed must not be negative");
    if ((prompt != NULL) + (args.prompt_file != NULL) + (args.tokens_file != NULL) > 1)
        return cli_wrong("generate", "give the prompt once: as text, --prompt-file or --tokens-file");
    struct err err = {0};
    struct bundle bundle;
    if (!model_args_open(&model, model_named ? NULL : positional[0], false, &bundle, &err))
        return cli_fail("generate", &err);
    bool ok = generate(&args, &bundle, prompt, &err);
    bundle_close(&bundle);
    return ok ? EXIT_DONE : cli_fail("generate", &err);
}
