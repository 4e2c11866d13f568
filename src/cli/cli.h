// cli/cli.h - the frame of the loam command: options, help, exit codes.
// A command is `int cmd_name(int argc, char **argv)` with argv[0] its own name; it returns the process
// exit code: 0 done, 1 failed, 2 wrong usage. Results go to stdout, everything else to stderr.
#ifndef LOAM_CLI_CLI_H
#define LOAM_CLI_CLI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/err.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

enum cli_kind {
    CLI_SWITCH, // bool *: present = true; --no-name = false
    CLI_ON_OFF, // bool *: takes on|off|true|false|1|0
    CLI_TEXT,   // const char **
    CLI_LIST,   // struct cli_texts *: may be given several times
    CLI_INT,    // int64_t *, within [min, max]
    CLI_REAL,   // double *, within [min, max]
    CLI_WHOLE,  // double *: a whole number within [min, max]
    CLI_CHOICE, // const char **: one of `choices`, separated by '|'
};

struct cli_texts {
    const char *values[32];
    uint32_t n;
};

struct cli_option {
    const char *name;  // "--port", or "-p" alone
    const char *alias; // another spelling, or NULL
    enum cli_kind kind;
    void *out;          // where the value goes; holds the default before
    const char *value;  // how help names the value: "N", "DIR"; CLI_CHOICE: the choices
    const char *help;   // one line; NULL hides the option
    double min, max;    // both 0 = any
    const char *env;    // environment variable that sets it when the option is absent, or NULL
    bool *given;        // set to true when the option or its variable was there, or NULL
};

struct cli_spec {
    const char *usage;   // "serve [MODEL] [options]"
    const char *summary; // a few lines
    const struct cli_option *options;
    size_t n_options;
    uint32_t n_positional_max;
};
#define CLI_OPTIONS(array) (array), sizeof(array) / sizeof *(array)

enum cli_outcome { CLI_RUN, CLI_HELPED, CLI_WRONG };

// Read the arguments after argv[0] into the options. --name value and --name=value both work; "--" ends
// options. --help prints help on stdout (CLI_HELPED). A mistake is told on stderr in one sentence with
// the nearest option (CLI_WRONG). positional[] must hold n_positional_max entries.
enum cli_outcome cli_parse(const struct cli_spec *spec, int argc, char **argv,
                           const char **positional, uint32_t *n_positional);

// Print "loam <command>: <message>" on stderr and return the exit code for the error.
int cli_fail(const char *command, const struct err *err);
// Print a usage mistake the same way and return EXIT_USAGE.
int cli_wrong(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The candidate that is nearest to `text` by edit distance, or NULL if none is near.
const char *cli_nearest(const char *text, const char *const *candidates, size_t n);

// Read a whole file, or standard input for "-". As file_read().
bool cli_read(const char *path, size_t bytes_max, struct strbuf *out, struct err *err);

// Make stdout whole: flush it, and report a full disk or closed pipe as EXIT_FAILED.
int cli_finish_stdout(int exit_code);

// ---- Commands -----------------------------------------------------------------------------------
typedef int cli_command_fn(int argc, char **argv);
struct cli_command {
    const char *name, *alias; // alias may be NULL
    cli_command_fn *run;
    const char *summary; // one line for `loam help`
};
extern const struct cli_command CLI_COMMANDS[]; // ends with a NULL name
#endif
