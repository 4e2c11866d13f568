// loam scan: read what is downloaded into the registry.
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/commands.h"
#include "hub/registry.h"

int cmd_scan(int argc, char **argv) {
    bool json = false;
    const struct cli_option OPTIONS[] = {
        {"--json", NULL, CLI_SWITCH, &json, NULL, "print the result as JSON"},
    };
    const struct cli_spec spec = {
        "scan [options]",
        "Read config.json and the weights' headers of every downloaded model again. Rarely needed: the commands\n"
        "that list models notice by themselves what is new.",
        CLI_OPTIONS(OPTIONS), 0};
    switch (cli_parse(&spec, argc, argv, NULL, NULL)) {
    case CLI_HELPED: return EXIT_DONE;
    case CLI_WRONG: return EXIT_USAGE;
    case CLI_RUN: break;
    }
    struct hub_env env;
    struct err err = {0};
    struct registry_update update = {0};
    struct hub_models list = {0};
    uint64_t start = clock_ns();
    if (!hub_env_read(&env, &err))
        return cli_fail(argv[0], &err);
    struct registry *registry = registry_open(NULL, &err);
    bool ok = registry && registry_update(registry, &env, true, &update, &err) &&
              registry_list(registry, &env, &list, &err);
    registry_close(registry);
    if (!ok)
        return cli_fail(argv[0], &err);
    size_t n_usable = 0;
    for (size_t i = 0; i < list.n; i++) {
        n_usable += list.models[i].problem[0] == '\0';
        if (list.models[i].problem[0])
            fprintf(stderr, "left out %s: %s\n", list.models[i].repo, list.models[i].problem);
    }
    double ms = clock_ms_since(start);
    if (json)
        printf("{\"models\": %zu, \"left_out\": %zu, \"scanned\": %u, \"removed\": %u, \"ms\": %.1f}\n", n_usable,
               list.n - n_usable, update.n_scanned, update.n_removed, ms);
    else
        printf("%zu model%s in %s (%zu left out, %u forgotten), %.0f ms\n", n_usable, n_usable == 1 ? "" : "s",
               env.cache, list.n - n_usable, update.n_removed, ms);
    hub_models_deinit(&list);
    return EXIT_DONE;
}
