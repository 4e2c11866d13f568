// loam get: download a model.
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "hub/get.h"
#include "hub/resolve.h"

static atomic_bool cancel;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    atomic_store(&cancel, true);
}

static void show(void *user, const struct hub_progress *p) {
    struct progress *progress = user;
    char detail[96];
    if (p->waiting_for_process)
        snprintf(detail, sizeof detail, "%u/%u files, waiting for process %ld", p->n_files_done, p->n_files,
                 p->waiting_for_process);
    else
        snprintf(detail, sizeof detail, "%u/%u files%s", p->n_files_done, p->n_files,
                 p->checking ? ", checking what is there" : "");
    if (p->note)
        progress_note(progress, p->note);
    if (p->n_files == 0)
        return; // no list of files yet
    if (p->finished && progress->is_shown)
        progress->last_ns = 0; // the last state is drawn whatever the clock says
    progress_bytes(progress, p->bytes_done, p->bytes_total, p->bytes_per_s, p->seconds_left, detail);
    if (p->finished)
        progress_end(progress);
}

static void print_json(const struct hub_get_options *options, const struct hub_get_result *result,
                       double seconds) {
    json_t *out = json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:i, s:f}", "repo", options->repo, "commit",
                            result->commit, "path", result->snapshot, "files", (int)result->n_files, "skipped",
                            (int)result->n_skipped, "bytes", (json_int_t)result->bytes_total, "received",
                            (json_int_t)result->bytes_received, "retries", (int)result->n_retries, "seconds",
                            seconds);
    json_dumpf(out, stdout, 0);
    putchar('\n');
    json_decref(out);
}

int cmd_get(int argc, char **argv) {
    struct hub_get_options options = hub_get_defaults();
    struct cli_texts include = {0}, exclude = {0};
    int64_t n_connections = options.n_connections;
    bool json = false;
    const struct cli_option OPTIONS[] = {
        {"--revision", NULL, CLI_TEXT, &options.revision, "REV", "branch, tag or commit; also NAME@REV"},
        {"--include", NULL, CLI_LIST, &include, "GLOB", "only files that match (may be repeated)"},
        {"--exclude", NULL, CLI_LIST, &exclude, "GLOB", "not files that match (may be repeated)"},
        {"--connections", NULL, CLI_INT, &n_connections, "N", "connections at once", 1, 32},
        {"--json", NULL, CLI_SWITCH, &json, NULL, "print the result as JSON"},
    };
    const struct cli_spec spec = {
        "get ORG/NAME[@REVISION] [options]",
        "Download a model into the Hugging Face cache, verified, resuming what is there, and print its folder.\n"
        "Weights in formats that loam does not read are left out unless --include asks for them.\n"
        "HF_TOKEN (or the token file of `hf auth login`) opens gated repositories; HF_ENDPOINT names a mirror.",
        CLI_OPTIONS(OPTIONS), 1};
    const char *argument = NULL;
    uint32_t n = 0;
    switch (cli_parse(&spec, argc, argv, &argument, &n)) {
    case CLI_HELPED: return EXIT_DONE;
    case CLI_WRONG: return EXIT_USAGE;
    case CLI_RUN: break;
    }
    if (n == 0)
        return cli_wrong(argv[0], "which model? usage: loam %s", spec.usage);
    struct hub_env env;
    struct err err = {0};
    if (!hub_env_read(&env, &err))
        return cli_fail(argv[0], &err);
    char name[HUB_REPO_BYTES + 256], downloaded[HUB_REPO_BYTES];
    snprintf(name, sizeof name, "%s", argument);
    char *at = strchr(name, '@');
    if (at) {
        if (options.revision)
            return cli_wrong(argv[0], "the revision is given twice: %s and --revision %s", argument,
                             options.revision);
        *at = '\0';
        options.revision = at + 1;
    }
    options.repo = name;
    // Part of a downloaded model's name brings that one up to date.
    if (!strchr(name, '/') && hub_resolve_repo(&env, name, downloaded, &err))
        options.repo = downloaded;
    else if (err.code == ERR_INVALID)
        return cli_fail(argv[0], &err);
    options.filter = (struct hub_filter){include.values, exclude.values, include.n, exclude.n};
    options.n_connections = (uint32_t)n_connections;
    struct progress progress;
    progress_begin(&progress);
    options.progress = show;
    options.user = &progress;
    options.cancel = &cancel;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND}; // a second one kills
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    uint64_t start = clock_ns();
    struct hub_get_result result;
    err_clear(&err);
    if (!hub_get(&env, &options, &result, &err))
        return cli_fail(argv[0], &err);
    double seconds = clock_ms_since(start) / 1000;
    char received[FORMAT_BYTES], rate[FORMAT_BYTES];
    if (result.bytes_received)
        fprintf(stderr, "%s: received %s in %.1f s (%s/s), verified\n", options.repo,
                format_bytes(received, result.bytes_received), seconds,
                format_bytes(rate, (uint64_t)((double)result.bytes_received / seconds)));
    else
        fprintf(stderr, "%s: complete, nothing to fetch\n", options.repo);
    if (result.n_skipped)
        fprintf(stderr, "left out %u file%s in formats that loam does not read (--include fetches them)\n",
                result.n_skipped, result.n_skipped == 1 ? "" : "s");
    if (json)
        print_json(&options, &result, seconds);
    else
        printf("%s\n", result.snapshot);
    return EXIT_DONE;
}
