// loam serve: one model behind the OpenAI API.
#include <limits.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#include "base/host_memory.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/sampling_args.h"
#include "cli/starter.h"
#include "hub/pick.h"
#include "hub/resolve.h"
#include "server/probe.h"
#include "server/server.h"

struct serve_args {
    const char *ssd_cache;
    const char *host, *unix_path, *log_format, *api_key, *cors, *tls_cert, *tls_key;
    int64_t port, n_connections_max, idle_s, head_s, n_rows, ctx_len, max_tokens, step_tokens, step_ms, drain_s;
    int64_t ssd_idle_s;
    double memory_budget_gb, kv_budget_gb, prompt_cache_gib, ssd_max_gib;
    struct sampler_given sampling;
    bool verbose, get, get_given, ssd_max_given, ssd_idle_given;
};

// A server while it runs: what the switch to a fetched model needs.
struct serving {
    const struct serve_args *args;
    struct model_args model;
    struct server *server;
    struct hub_downloads *downloads;
    struct starter *starter;
    // What to fetch, "" = nothing; download_gb 0 = unknown.
    char repo[HUB_REPO_BYTES], revision[256];
    double download_gb;
};

// Refuse a port where somebody answers already, before any weight is read.
static bool port_is_free(const struct serve_args *args, struct err *err) {
    if (args->unix_path)
        return true;
    struct strbuf models = {0};
    switch (server_probe(args->host, (uint16_t)args->port, &models)) {
    case PROBE_SERVING:
        err_set(err, ERR_IO, "port %lld is already serving %s; use that server, stop it, or choose another "
                "port with --port", (long long)args->port, models.n ? models.data : "a model");
        break;
    case PROBE_OTHER:
        err_set(err, ERR_IO, "port %lld is in use by another program; choose another port with --port",
                (long long)args->port);
        break;
    case PROBE_FREE:
        strbuf_deinit(&models);
        return true;
    }
    strbuf_deinit(&models);
    return false;
}

static void print_banner(const struct served *served) {
    const struct bundle *bundle = &served->bundle;
    const struct engine_plan *plan = engine_plan_of(served->engine);
    char device[256];
    bundle->be->ops->describe(bundle->be, device, sizeof device);
    fprintf(stderr, "loam %s serves %s on %s\n", LOAM_VERSION, bundle->name, device);
    fprintf(stderr, "context %u tokens, %u at once, KV pool %.1f MiB, weights %.1f MiB\n",
            plan->limits.ctx_len, plan->limits.n_rows, (double)plan->kv_bytes / 0x1p20,
            (double)plan->weight_bytes / 0x1p20);
}

static void print_takeover(const struct served *served) {
    fprintf(stderr, "%s is ready and answers from now on.\n", served->bundle.name);
    print_banner(served);
}

// ---- A model to begin with ------------------------------------------------------------------------
// The memory that a model has here: the GPU's, if one is used, else this process's.
static const struct hub_starter *starter_here(const struct backend *be) {
    struct backend_memory device;
    struct host_memory host;
    be->ops->memory(be, &device);
    host_memory_read(&host);
    return hub_starter(device.is_host ? host.limit_bytes : device.total_bytes);
}

static struct engine_options engine_options_of(const struct serve_args *args) {
    return (struct engine_options){
        .n_rows = (uint32_t)args->n_rows, .ctx_len = (uint32_t)args->ctx_len,
        .step_tokens = (uint32_t)args->step_tokens, .step_ms = (uint32_t)args->step_ms,
        .memory_budget_bytes = (uint64_t)(args->memory_budget_gb * 1e9),
        .kv_budget_bytes = (uint64_t)(args->kv_budget_gb * 1e9),
        .prompt_cache_bytes = (uint64_t)(args->prompt_cache_gib * 0x1p30), .disk_folder = args->ssd_cache,
        .disk_bytes_max = (uint64_t)(args->ssd_max_gib * 0x1p30), .disk_idle_s = (uint32_t)args->ssd_idle_s};
}

static void fetch_starter(struct serving *s) {
    struct starter_options options = {
        .repo = s->repo, .revision = s->revision[0] ? s->revision : NULL, .model = s->model,
        .engine = engine_options_of(s->args), .server = s->server, .downloads = s->downloads,
        .on_switch = print_takeover};
    struct err err = {0};
    s->starter = starter_start(&options, &err);
    if (!s->starter)
        fprintf(stderr, "loam serve: cannot fetch %s: %s\n", s->repo, err.message);
    else
        fprintf(stderr, "fetching %s in the background; it takes over when it is ready\n", s->repo);
}

// May the person at the terminal be asked? Not when this process was put into its background.
static bool may_ask(void) {
    return isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1 && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

// On the event thread: a line was typed.
static void on_answer(void *user) {
    struct serving *s = user;
    char line[64] = "";
    if (!may_ask()) // reading would stop a process in the background
        return;
    ssize_t n = read(STDIN_FILENO, line, sizeof line - 1);
    if (n > 0)
        line[strcspn(line, "\r\n")] = '\0';
    if (n > 0 && (strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0))
        fetch_starter(s);
    else
        fprintf(stderr, "Not now. `loam get %s` fetches it at any time.\n", s->repo);
}

// The built-in model serves: say what would suit this machine, and fetch it, ask, or leave it.
static void offer_starter(struct serving *s) {
    char size[32] = "";
    if (s->download_gb > 0)
        snprintf(size, sizeof size, " (about %.1f GB)", s->download_gb);
    fprintf(stderr, "This is the built-in demo: a tiny model that only knows Shakespeare's sound.\n");
    if (s->download_gb > 0)
        fprintf(stderr, "One that suits this machine: %s%s\n", s->repo, size);
    if (s->args->get) {
        fetch_starter(s);
    } else if (!s->args->get_given && may_ask() && server_on_readable(s->server, STDIN_FILENO, on_answer, s)) {
        fprintf(stderr, "Fetch it now and switch to it when it is there? [y/N] ");
        fflush(stderr);
    } else {
        fprintf(stderr, "  loam get %s\nloam serve takes it from then on (loam serve --get does both).\n", s->repo);
    }
}

// With --get, an org/name that is not downloaded is what to fetch.
static bool to_be_fetched(struct serving *s, const char *name) {
    struct hub_env env;
    struct hub_resolved found;
    struct err err = {0};
    char repo[HUB_REPO_BYTES];
    size_t n = strcspn(name, "@");
    if (!s->args->get || !memchr(name, '/', n) || n >= sizeof repo)
        return false;
    snprintf(repo, sizeof repo, "%.*s", (int)n, name);
    if (!hub_repo_check(repo, NULL) || (name[n] && !hub_revision_check(name + n + 1, NULL)) || !hub_env_read(&env, NULL) ||
        hub_resolve_model(&env, name, &found, &err) || err.code != ERR_NOT_FOUND)
        return false;
    snprintf(s->repo, sizeof s->repo, "%s", repo);
    snprintf(s->revision, sizeof s->revision, "%s", name[n] ? name + n + 1 : "");
    return true;
}

// The folder of the downloaded model that suits this machine best. What goes wrong here only means the
// built-in model.
static bool pick_downloaded(char folder[PATH_MAX]) {
    struct hub_env env;
    struct hub_models models = {0};
    struct host_memory memory;
    struct err err = {0};
    if (!hub_env_read(&env, &err) || !hub_models_read(&env, &models, NULL, &err)) {
        log_warn("serve: cannot look for downloaded models: %s", err.message);
        return false;
    }
    host_memory_read(&memory);
    const struct hub_model *best = hub_pick_model(&models, memory.limit_bytes);
    if (best)
        snprintf(folder, PATH_MAX, "%s", best->path);
    hub_models_deinit(&models);
    return best != NULL;
}

static bool serve(const struct serve_args *args, const struct model_args *model_args, const char *positional,
                  struct err *err) {
    struct server_options options = server_options_default();
    options.host = args->host;
    options.port = (uint16_t)args->port;
    options.unix_path = args->unix_path;
    options.api_key = args->api_key && args->api_key[0] ? args->api_key : NULL;
    options.cors_origins = args->cors;
    options.tls_cert = args->tls_cert;
    options.tls_key = args->tls_key;
    options.n_connections_max = (uint32_t)args->n_connections_max;
    options.idle_timeout_ms = (uint32_t)args->idle_s * 1000;
    options.head_timeout_ms = (uint32_t)args->head_s * 1000;
    options.sampling = args->sampling;
    options.max_tokens = args->max_tokens;
    options.drain_ms = (uint32_t)args->drain_s * 1000;
    if (!args->tls_cert != !args->tls_key)
        return err_set(err, ERR_INVALID, "--tls-cert and --tls-key go together");
    if (!port_is_free(args, err))
        return false;
    struct serving serving = {.args = args, .model = *model_args};
    struct model_args with_default = *model_args;
    const char *name = model_args->model ? model_args->model : positional;
    char picked[PATH_MAX];
    bool nobody_asked = !name && !model_args->builtin;
    if (nobody_asked && pick_downloaded(picked)) {
        with_default.model = picked;
    } else if (nobody_asked || (name && to_be_fetched(&serving, name))) {
        with_default.model = positional = NULL;
        with_default.builtin = true;
    }
    serving.downloads = options.downloads = hub_downloads_create(err);
    if (!serving.downloads)
        return false;
    struct server *server = server_create(&options, err); // a port that is taken ends it here
    if (!server) {
        hub_downloads_destroy(serving.downloads);
        return false;
    }
    struct bundle bundle = {0};
    struct engine *engine = NULL;
    struct served *served = NULL;
    bool opened = model_args_open(&with_default, positional, false, &bundle, err);
    if (!opened && with_default.model == picked) { // nobody asked for that one: the demo serves at least
        fprintf(stderr, "loam serve: cannot serve a downloaded model: %s\n", err->message);
        err_clear(err);
        with_default.model = NULL;
        with_default.builtin = true;
        opened = model_args_open(&with_default, positional, false, &bundle, err);
    }
    if (opened) {
        struct engine_options engine_options = engine_options_of(args);
        engine_options.disk_identity = bundle.identity;
        engine = engine_create(bundle.model, bundle.tokenizer, &engine_options, err);
        if (!engine)
            bundle_close(&bundle);
    }
    if (engine)
        served = served_create(&bundle, engine, err);
    if (served) {
        serving.server = server;
        server_attach(server, served);
        print_banner(served);
        if (args->unix_path)
            fprintf(stderr, "ready unix:%s\n", args->unix_path);
        else
            fprintf(stderr, strchr(args->host, ':') ? "ready %s://[%s]:%u\n" : "ready %s://%s:%u\n",
                    args->tls_cert ? "https" : "http", args->host, server_port(server));
        if (with_default.builtin && !serving.repo[0]) {
            const struct hub_starter *starter = starter_here(served->bundle.be);
            snprintf(serving.repo, sizeof serving.repo, "%s", starter->repo);
            serving.download_gb = starter->download_gb;
        }
        if (with_default.builtin && (!model_args->builtin || args->get))
            offer_starter(&serving);
        else if (args->get)
            fprintf(stderr, "nothing to fetch: %s is downloaded\n", served->bundle.name);
        server_run(server);
        starter_stop(serving.starter);
    }
    server_destroy(server);
    starter_destroy(serving.starter);
    hub_downloads_destroy(serving.downloads);
    return served != NULL;
}

int cmd_serve(int argc, char **argv) {
    struct model_args model = model_args_default();
    struct serve_args args = {.host = "127.0.0.1", .port = 8080, .n_connections_max = SERVER_CONNECTIONS_MAX,
                              .idle_s = SERVER_IDLE_TIMEOUT_MS / 1000, .head_s = SERVER_HEAD_TIMEOUT_MS / 1000,
                              .log_format = "text", .drain_s = 30,
                              .prompt_cache_gib = ENGINE_PROMPT_CACHE_GIB};
    const struct cli_option own[] = {
        {.name = "--host", .kind = CLI_TEXT, .out = &args.host, .value = "H",
         .help = "address to listen on (127.0.0.1: this machine only)", .env = "LOAM_HOST"},
        {.name = "--port", .kind = CLI_INT, .out = &args.port, .value = "N", .min = 0, .max = 65535,
         .help = "port to listen on (8080; 0 = any free one)", .env = "LOAM_PORT"},
        {.name = "--unix", .kind = CLI_TEXT, .out = &args.unix_path, .value = "PATH",
         .help = "listen on a socket file instead"},
        {.name = "--api-key", .kind = CLI_TEXT, .out = &args.api_key, .value = "KEY",
         .help = "ask every request for this key (better: LOAM_API_KEY, which no list of processes shows)",
         .env = "LOAM_API_KEY"},
        {.name = "--cors", .kind = CLI_TEXT, .out = &args.cors, .value = "ORIGINS",
         .help = "web pages that may ask: origins, comma-separated, or * (local pages only)"},
        {.name = "--tls-cert", .kind = CLI_TEXT, .out = &args.tls_cert, .value = "PEM",
         .help = "serve HTTPS with this certificate chain"},
        {.name = "--tls-key", .kind = CLI_TEXT, .out = &args.tls_key, .value = "PEM",
         .help = "and this private key"},
        {.name = "--max-connections", .kind = CLI_INT, .out = &args.n_connections_max, .value = "N",
         .min = 1, .max = 1e6, .help = "connections at once; more wait (4096)"},
        {.name = "--idle-timeout", .kind = CLI_INT, .out = &args.idle_s, .value = "S", .min = 1, .max = 86400,
         .help = "seconds after which a silent connection is closed (120)"},
        {.name = "--header-timeout", .kind = CLI_INT, .out = &args.head_s, .value = "S", .min = 1, .max = 86400,
         .help = "seconds that a request's headers may take to arrive (20)"},
        {.name = "--batch", .alias = "--decode-concurrency", .kind = CLI_INT, .out = &args.n_rows,
         .value = "N", .min = 0, .max = 4096, .help = "sequences that run together (8)"},
        {.name = "--context-length", .kind = CLI_INT, .out = &args.ctx_len, .value = "N", .min = 0,
         .max = 1e9, .help = "longest prompt and answer together (the model's, or what memory allows)"},
        {.name = "--step-tokens", .kind = CLI_INT, .out = &args.step_tokens, .value = "N", .min = 0,
         .max = 65536, .help = "tokens of a step, at most (512)"},
        {.name = "--step-ms", .kind = CLI_INT, .out = &args.step_ms, .value = "MS", .min = 0, .max = 60000,
         .help = "how long a prompt being read may hold up running answers at a time (250)"},
        {.name = "--memory-budget", .kind = CLI_REAL, .out = &args.memory_budget_gb, .value = "GB",
         .min = 0, .max = 1e6, .help = "weights, cache and scratch must fit into this much (0 = advise only)"},
        {.name = "--kv-budget", .kind = CLI_REAL, .out = &args.kv_budget_gb, .value = "GB", .min = 0,
         .max = 1e6, .help = "the KV cache must fit into this much"},
        {.name = "--prompt-cache", .kind = CLI_REAL, .out = &args.prompt_cache_gib, .value = "GiB", .min = 0,
         .max = 1e6, .help = "keep so much of past requests' KV for prompts that begin alike (8; 0 = off)"},
        {.name = "--ssd-cache", .kind = CLI_TEXT, .out = &args.ssd_cache, .value = "DIR",
         .help = "keep on disk what the prompt cache lets go of; it survives restarts"},
        {.name = "--ssd-cache-max", .kind = CLI_REAL, .out = &args.ssd_max_gib, .given = &args.ssd_max_given,
         .value = "GiB", .min = 0, .max = 1e9, .help = "files of --ssd-cache together (0 = no limit)"},
        {.name = "--ssd-demote-idle", .kind = CLI_INT, .out = &args.ssd_idle_s, .given = &args.ssd_idle_given,
         .value = "S", .min = 1, .max = 86400, .help = "seconds without use after which it is written there (300)"},
        {.name = "--max-tokens", .kind = CLI_INT, .out = &args.max_tokens, .value = "N", .min = 1,
         .max = 1e9, .help = "for requests that do not say (the model's, else until it ends)"},
        {.name = "--drain", .kind = CLI_INT, .out = &args.drain_s, .value = "S", .min = 1, .max = 86400,
         .help = "seconds that running answers have to finish when told to stop (30)"},
        {.name = "--log-format", .kind = CLI_CHOICE, .out = &args.log_format, .value = "text|json",
         .help = "how log lines look on stderr"},
        {.name = "--get", .kind = CLI_SWITCH, .out = &args.get, .given = &args.get_given,
         .help = "if nothing is downloaded (or not this MODEL, an org/name): serve the demo, fetch it, switch to it"},
        {.name = "--verbose", .alias = "-v", .kind = CLI_SWITCH, .out = &args.verbose,
         .help = "log every request"},
        MODEL_OPTIONS(&model),
    };
    struct cli_option options[sizeof own / sizeof *own + SAMPLER_OPTIONS_N];
    memcpy(options, own, sizeof own);
    sampling_args_options(options + sizeof own / sizeof *own, &args.sampling);
    const struct cli_spec spec = {"serve [MODEL] [options]",
                                  "Serve a model over the OpenAI API; without a MODEL, the downloaded one that suits this\n"
                                  "machine best, else the built-in demo. Sampling options are for requests that do not say.",
                                  CLI_OPTIONS(options), 1};
    const char *positional = NULL;
    uint32_t n;
    enum cli_outcome outcome = cli_parse(&spec, argc, argv, &positional, &n);
    if (outcome != CLI_RUN)
        return outcome == CLI_HELPED ? EXIT_DONE : EXIT_USAGE;
    log_set_json(strcmp(args.log_format, "json") == 0);
    if (args.verbose && !log_enabled(LOG_INFO))
        log_set_level(LOG_INFO);
    struct err err = {0};
    if ((args.ssd_max_given || args.ssd_idle_given) && !args.ssd_cache)
        err_set(&err, ERR_INVALID, "--ssd-cache-max and --ssd-demote-idle need --ssd-cache DIR");
    else if (args.ssd_cache && args.prompt_cache_gib <= 0)
        err_set(&err, ERR_INVALID, "--ssd-cache is the second tier of the prompt cache, which --prompt-cache 0 turns off");
    if (err.code)
        return cli_fail("serve", &err);
    return serve(&args, &model, positional, &err) ? EXIT_DONE : cli_fail("serve", &err);
}
