// The loam command: picks the subcommand. Only this file ends the process.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/commands.h"

static int cmd_help(int argc, char **argv);

const struct cli_command CLI_COMMANDS[] = {
#define CLI_COMMAND(name, alias, function, summary) {name, alias, function, summary},
#include "cli/commands.inc"
#undef CLI_COMMAND
    {"help", NULL, cmd_help, "this list, or the options of a command"},
    {NULL, NULL, NULL, NULL},
};

static const struct cli_command *find_command(const char *name) {
    for (const struct cli_command *c = CLI_COMMANDS; c->name; c++)
        if (strcmp(c->name, name) == 0 || (c->alias && strcmp(c->alias, name) == 0))
            return c;
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[64];
    size_t n = 0;
    for (const struct cli_command *c = CLI_COMMANDS; c->name && n < 64; c++)
        names[n++] = c->name;
    const char *near = cli_nearest(name, names, n);
    if (near)
        fprintf(stderr, "loam: unknown command \"%s\"; did you mean \"loam %s\"?\n", name, near);
    else
        fprintf(stderr, "loam: unknown command \"%s\"; \"loam help\" lists the commands\n", name);
    return EXIT_USAGE;
}

static int cmd_help(int argc, char **argv) {
    if (argc > 1) {
        const struct cli_command *command = find_command(argv[1]);
        if (!command)
            return unknown_command(argv[1]);
        char help[] = "--help";
        char *args[] = {argv[1], help, NULL};
        return command->run(2, args);
    }
    printf("loam %s - large language models on your own machine\n\n"
           "Usage: loam COMMAND [arguments]     (loam alone is loam serve)\n\nCommands:\n",
           LOAM_VERSION);
    for (const struct cli_command *c = CLI_COMMANDS; c->name; c++)
        printf("  %-12s %s\n", c->name, c->summary);
    printf("\n\"loam help COMMAND\" shows a command's options.\n"
           "A MODEL is a folder, an org/name, or part of the name of one downloaded model.\n");
    return EXIT_DONE;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); // a reader that went away is a failed write, not our end
    const char *level_name = getenv("LOAM_LOG");
    enum log_level level;
    if (level_name && level_name[0]) {
        if (!log_level_parse(level_name, &level)) {
            fprintf(stderr, "loam: LOAM_LOG is one of error, warn, info, debug, not \"%s\"\n", level_name);
            return EXIT_USAGE;
        }
        log_set_level(level);
    }
    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)) {
        printf("loam %s\n", LOAM_VERSION);
        return cli_finish_stdout(EXIT_DONE);
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return cli_finish_stdout(cmd_help(1, argv));
    const struct cli_command *command;
    char serve[] = "serve";
    if (argc < 2 || argv[1][0] == '-') { // bare loam, perhaps with serve's options
        command = find_command("serve");
        if (!command)
            return cli_finish_stdout(cmd_help(1, argv));
        argv[0] = serve;
        return cli_finish_stdout(command->run(argc, argv));
    }
    command = find_command(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    return cli_finish_stdout(command->run(argc - 1, argv + 1));
}
