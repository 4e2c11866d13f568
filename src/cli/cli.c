#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/nearest.h"

const char *cli_nearest(const char *text, const char *const *candidates, size_t n) {
    return text_nearest(text, candidates, n);
}

int cli_fail(const char *command, const struct err *err) {
    fprintf(stderr, "loam %s: %s\n", command, err->message);
    return err->code == ERR_OK ? EXIT_FAILED : err_exit_code(err->code);
}

int cli_wrong(const char *command, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "loam %s: ", command);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_USAGE;
}

bool cli_read(const char *path, size_t bytes_max, struct strbuf *out, struct err *err) {
    if (strcmp(path, "-") != 0)
        return file_read(path, bytes_max, out, err);
    size_t n = 1;
    while (n && out->n <= bytes_max && strbuf_reserve(out, 65536)) {
        n = fread(out->data + out->n, 1, 65536, stdin);
        out->n += n;
        out->data[out->n] = '\0';
    }
    if (out->failed)
        return err_set(err, ERR_NOMEM, "out of memory reading standard input");
    if (out->n > bytes_max)
        return err_set(err, ERR_FORMAT, "standard input is larger than %zu bytes", bytes_max);
    return !ferror(stdin) || err_errno(err, errno, "cannot read standard input");
}

int cli_finish_stdout(int exit_code) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        // A reader that went away (`loam ... | head`) wants no message.
        if (errno != EPIPE)
            fprintf(stderr, "loam: cannot write the result: %s\n", strerror(errno));
        return exit_code == EXIT_DONE ? EXIT_FAILED : exit_code;
    }
    return exit_code;
}

static bool parse_on_off(const char *text, bool *out) {
    static const char *const ON[] = {"on", "true", "1", "yes"}, *const OFF[] = {"off", "false", "0", "no"};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(text, ON[i]) == 0 || strcmp(text, OFF[i]) == 0) {
            *out = strcmp(text, ON[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool is_choice(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, text, n) == 0)
            return true;
    }
    return false;
}

// Store `text` into the option. `named` is how the user named it, for the message.
static bool store(const struct cli_option *option, const char *named, const char *text,
                  struct err *err) {
    char *end;
    switch (option->kind) {
    case CLI_SWITCH:
    case CLI_ON_OFF:
        if (!parse_on_off(text, option->out))
            return err_set(err, ERR_INVALID, "%s takes on or off, not \"%s\"", named, text);
        break;
    case CLI_TEXT:
        *(const char **)option->out = text;
        break;
    case CLI_LIST: {
        struct cli_texts *list = option->out;
        if (list->n == sizeof list->values / sizeof *list->values)
            return err_set(err, ERR_INVALID, "%s was given more than %u times", named, list->n);
        list->values[list->n++] = text;
        break;
    }
    case CLI_INT:
    case CLI_WHOLE: {
        errno = 0;
        long long v = strtoll(text, &end, 10);
        if (*text == '\0' || *end != '\0' || errno != 0)
            return err_set(err, ERR_INVALID, "%s takes a whole number, not \"%s\"", named, text);
        if ((option->min != 0 || option->max != 0) &&
            ((double)v < option->min || (double)v > option->max))
            return err_set(err, ERR_INVALID, "%s must be from %.0f to %.0f, not %lld", named,
                           option->min, option->max, v);
        if (option->kind == CLI_WHOLE)
            *(double *)option->out = (double)v;
        else
            *(int64_t *)option->out = v;
        break;
    }
    case CLI_REAL: {
        double v = strtod(text, &end);
        if (*text == '\0' || *end != '\0' || !isfinite(v))
            return err_set(err, ERR_INVALID, "%s takes a number, not \"%s\"", named, text);
        if ((option->min != 0 || option->max != 0) && (v < option->min || v > option->max))
            return err_set(err, ERR_INVALID, "%s must be from %g to %g, not %g", named, option->min,
                           option->max, v);
        *(double *)option->out = v;
        break;
    }
    case CLI_CHOICE:
        if (!is_choice(option->value, text))
            return err_set(err, ERR_INVALID, "%s is one of %s, not \"%s\"", named, option->value, text);
        *(const char **)option->out = text;
        break;
    }
    if (option->given)
        *option->given = true;
    return true;
}

static void print_help(const struct cli_spec *spec) {
    printf("Usage: loam %s\n\n%s\n", spec->usage, spec->summary);
    if (spec->n_options)
        printf("\nOptions:\n");
    for (size_t i = 0; i < spec->n_options; i++) {
        const struct cli_option *o = &spec->options[i];
        if (!o->help)
            continue;
        char left[96];
        snprintf(left, sizeof left, "%s%s%s%s%s", o->name, o->alias ? ", " : "",
                 o->alias ? o->alias : "", o->kind == CLI_SWITCH ? "" : " ",
                 o->kind == CLI_SWITCH ? "" : (o->kind == CLI_ON_OFF ? "on|off" : o->value));
        if (strlen(left) > 28)
            printf("  %s\n  %-28s  %s", left, "", o->help);
        else
            printf("  %-28s  %s", left, o->help);
        if (o->env)
            printf(" [%s]", o->env);
        putchar('\n');
    }
}

static const struct cli_option *find(const struct cli_spec *spec, const char *name, size_t n) {
    for (size_t i = 0; i < spec->n_options; i++) {
        const struct cli_option *o = &spec->options[i];
        if ((strlen(o->name) == n && memcmp(o->name, name, n) == 0) ||
            (o->alias && strlen(o->alias) == n && memcmp(o->alias, name, n) == 0))
            return o;
    }
    return NULL;
}

static bool unknown(const struct cli_spec *spec, const char *name, struct err *err) {
    const char *names[256];
    size_t n = 0;
    for (size_t i = 0; i < spec->n_options && n < 254; i++) {
        names[n++] = spec->options[i].name;
        if (spec->options[i].alias)
            names[n++] = spec->options[i].alias;
    }
    const char *near = cli_nearest(name, names, n);
    if (near)
        return err_set(err, ERR_INVALID, "unknown option %s; did you mean %s?", name, near);
    return err_set(err, ERR_INVALID, "unknown option %s; --help lists the options", name);
}

// One argument that begins with '-'. Moves *i past a value that it takes.
static bool take_option(const struct cli_spec *spec, int argc, char **argv, int *i, struct err *err) {
    const char *arg = argv[*i];
    size_t n = strcspn(arg, "=");
    const char *attached = arg[n] == '=' ? arg + n + 1 : NULL;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)n, arg);
    const struct cli_option *option = find(spec, arg, n);
    if (!option && strncmp(name, "--no-", 5) == 0) {
        char positive[64];
        snprintf(positive, sizeof positive, "--%s", name + 5);
        option = find(spec, positive, strlen(positive));
        if (option && option->kind == CLI_SWITCH && !attached)
            return store(option, name, "off", err);
        option = NULL;
    }
    if (!option)
        return unknown(spec, name, err);
    if (option->kind == CLI_SWITCH)
        return store(option, name, attached ? attached : "on", err);
    if (!attached) {
        if (*i + 1 >= argc)
            return err_set(err, ERR_INVALID, "%s needs a value (%s)", name,
                           option->kind == CLI_ON_OFF ? "on|off" : option->value);
        attached = argv[++*i];
    }
    return store(option, name, attached, err);
}

enum cli_outcome cli_parse(const struct cli_spec *spec, int argc, char **argv,
                           const char **positional, uint32_t *n_positional) {
    struct err err = {0};
    const char *command = argv[0];
    uint32_t n = 0;
    bool options_end = false;
    for (size_t i = 0; i < spec->n_options; i++) {
        const struct cli_option *o = &spec->options[i];
        const char *text = o->env ? getenv(o->env) : NULL;
        if (text && text[0] && !store(o, o->env, text, &err))
            goto wrong;
    }
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        bool is_number = arg[0] == '-' && ((arg[1] >= '0' && arg[1] <= '9') || arg[1] == '.');
        if (options_end || arg[0] != '-' || arg[1] == '\0' || is_number) {
            if (n == spec->n_positional_max) {
                err_set(&err, ERR_INVALID, "unexpected argument \"%s\"; usage: loam %s", arg, spec->usage);
                goto wrong;
            }
            positional[n++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            options_end = true;
        } else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            print_help(spec);
            return CLI_HELPED;
        } else if (!take_option(spec, argc, argv, &i, &err)) {
            goto wrong;
        }
    }
    if (n_positional)
        *n_positional = n;
    return CLI_RUN;
wrong:
    cli_fail(command, &err);
    return CLI_WRONG;
}
