// cli/commands.h - declares every command of commands.inc.
#ifndef LOAM_CLI_COMMANDS_H
#define LOAM_CLI_COMMANDS_H
#include "cli/cli.h"
#define CLI_COMMAND(name, alias, function, summary) cli_command_fn function;
#include "cli/commands.inc"
#undef CLI_COMMAND
#endif
