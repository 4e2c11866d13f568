// loam gc and loam rm: free disk space of the model cache.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "hub/gc.h"
#include "hub/resolve.h"

static const char *kind_name(enum gc_kind kind) {
    return kind == GC_SNAPSHOT ? "snapshot" : kind == GC_BLOB ? "blob" : "ref";
}

static void print_plan(const struct gc_plan *plan) {
    char bytes[FORMAT_BYTES];
    for (size_t i = 0; i < plan->n_items; i++)
        printf("%-8s %9s  %s\n", kind_name(plan->items[i].kind), format_bytes(bytes, plan->items[i].n_bytes),
               plan->items[i].path);
    for (size_t i = 0; i < plan->n_kept; i++)
        fprintf(stderr, "kept %s: %s\n", plan->kept[i].path, plan->kept[i].reason);
}

static void print_json(const struct gc_plan *plan, bool done) {
    json_t *items = json_array(), *kept = json_array();
    for (size_t i = 0; i < plan->n_items; i++)
        json_array_append_new(items, json_pack("{s:s, s:s, s:s, s:I}", "kind", kind_name(plan->items[i].kind), "path",
                                               plan->items[i].path, "repo", plan->items[i].repo, "bytes",
                                               (json_int_t)plan->items[i].n_bytes));
    for (size_t i = 0; i < plan->n_kept; i++)
        json_array_append_new(kept, json_pack("{s:s, s:s}", "path", plan->kept[i].path, "reason",
                                              plan->kept[i].reason));
    json_t *out = json_pack("{s:o, s:o, s:I, s:b}", "items", items, "kept", kept, "bytes",
                            (json_int_t)plan->n_bytes, "deleted", done);
    json_dumpf(out, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(out);
}

// Carry the plan out if `yes`, print it either way.
static int finish_plan(const char *command, const struct gc_plan *plan, const struct hub_env *env, bool yes,
                       bool json) {
    struct err err = {0};
    char bytes[FORMAT_BYTES];
    if (!json)
        print_plan(plan);
    if (yes && !gc_plan_run(plan, env, &err))
        return cli_fail(command, &err);
    if (json)
        print_json(plan, yes);
    else if (plan->n_items == 0)
        printf("nothing to delete in %s\n", env->cache);
    else if (yes)
        printf("freed %s\n", format_bytes(bytes, plan->n_bytes));
    else
        printf("%s would be freed; --yes does it\n", format_bytes(bytes, plan->n_bytes));
    return EXIT_DONE;
}

int cmd_gc(int argc, char **argv) {
    struct gc_options options = gc_defaults();
    bool yes = false, json = false;
    const struct cli_option OPTIONS[] = {
        {"--yes", "-y", CLI_SWITCH, &yes, NULL, "delete; without it the plan is only shown"},
        {"--force", NULL, CLI_SWITCH, &options.force, NULL,
         "also snapshots with foreign files, and in repositories with partial files"},
        {"--json", NULL, CLI_SWITCH, &json, NULL, "print the plan as JSON"},
    };
    const struct cli_spec spec = {
        "gc [options]",
        "Delete downloaded snapshots that no branch or tag names any more, and blobs that nothing uses.\n"
        "Partial downloads, and repositories none of whose refs resolves, are never touched.",
        CLI_OPTIONS(OPTIONS), 0};
    switch (cli_parse(&spec, argc, argv, NULL, NULL)) {
    case CLI_HELPED: return EXIT_DONE;
    case CLI_WRONG: return EXIT_USAGE;
    case CLI_RUN: break;
    }
    struct hub_env env;
    struct gc_plan plan;
    struct err err = {0};
    if (!hub_env_read(&env, &err) || !gc_plan_make(&plan, &env, &options, &err))
        return cli_fail(argv[0], &err);
    int code = finish_plan(argv[0], &plan, &env, yes, json);
    gc_plan_deinit(&plan);
    return code;
}

// A yes at the terminal stands for --yes.
static bool ask(const char *repo, uint64_t n_bytes) {
    char bytes[FORMAT_BYTES], answer[16] = "";
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return false;
    fprintf(stderr, "delete %s (%s)? [y/N] ", repo, format_bytes(bytes, n_bytes));
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int remove_repo(const char *command, const struct hub_env *env, const char *repo, bool yes, bool json) {
    struct err err = {0};
    char bytes[FORMAT_BYTES];
    uint64_t n_bytes = hub_repo_bytes(env, repo);
    yes = yes || (!json && ask(repo, n_bytes));
    if (yes && !hub_remove_repo(env, repo, &err))
        return cli_fail(command, &err);
    if (json)
        printf("{\"repo\": \"%s\", \"bytes\": %llu, \"deleted\": %s}\n", repo, (unsigned long long)n_bytes,
               yes ? "true" : "false");
    else
        printf(yes ? "deleted %s (%s)\n" : "would delete %s (%s); --yes does it\n", repo,
               format_bytes(bytes, n_bytes));
    return EXIT_DONE;
}

int cmd_rm(int argc, char **argv) {
    const char *revision = NULL;
    bool yes = false, json = false;
    const struct cli_option OPTIONS[] = {
        {"--revision", NULL, CLI_TEXT, &revision, "REV", "only this revision; also NAME@REV"},
        {"--yes", "-y", CLI_SWITCH, &yes, NULL, "delete without asking"},
        {"--json", NULL, CLI_SWITCH, &json, NULL, "print the result as JSON"},
    };
    const struct cli_spec spec = {"rm ORG/NAME[@REVISION] [options]",
                                  "Delete a downloaded model, or one revision of it.", CLI_OPTIONS(OPTIONS), 1};
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
    char name[HUB_REPO_BYTES + 256], repo[HUB_REPO_BYTES], snapshot[PATH_MAX];
    snprintf(name, sizeof name, "%s", argument);
    char *at = strchr(name, '@');
    if (at) {
        *at = '\0';
        revision = at + 1;
    }
    if (!hub_env_read(&env, &err) || !hub_resolve_repo(&env, name, repo, &err))
        return cli_fail(argv[0], &err);
    if (!revision)
        return remove_repo(argv[0], &env, repo, yes, json);
    struct gc_options options = gc_defaults();
    struct gc_plan plan;
    if (!hub_revision_check(revision, &err) || !hub_snapshot_find(&env, repo, revision, snapshot, &err))
        return cli_fail(argv[0], &err);
    options.repo = repo;
    options.commit = strrchr(snapshot, '/') + 1;
    if (!gc_plan_make(&plan, &env, &options, &err))
        return cli_fail(argv[0], &err);
    yes = yes || (!json && ask(argument, plan.n_bytes));
    int code = finish_plan(argv[0], &plan, &env, yes, json);
    gc_plan_deinit(&plan);
    return code;
}
