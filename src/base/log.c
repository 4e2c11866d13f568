#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"

static const char *const NAMES[] = {"error", "warn", "info", "debug"};

// Set once before threads start (STYLE: the log sink is one of the two mutable globals).
static struct {
    enum log_level level;
    bool json;
    log_sink_fn *sink;
    void *user;
} config = {.level = LOG_WARN};

void log_set_level(enum log_level level) { config.level = level; }
void log_set_json(bool json) { config.json = json; }

void log_set_sink(log_sink_fn *sink, void *user) {
    config.sink = sink;
    config.user = user;
}

bool log_enabled(enum log_level level) {
    return level <= config.level;
}

bool log_level_parse(const char *name, enum log_level *out) {
    for (unsigned i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(name, NAMES[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

void log_write(enum log_level level, const char *format, ...) {
    if (!log_enabled(level))
        return;
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (config.sink) {
        config.sink(level, line, config.user);
        return;
    }
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    struct strbuf out = {0};
    if (config.json) {
        strbuf_printf(&out, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"message\":", stamp,
                      now.tv_nsec / 1000000, NAMES[level]);
        strbuf_json_string(&out, str_from(line));
        strbuf_append_c(&out, "}\n");
    } else {
        strbuf_printf(&out, "%s.%03ldZ %-5s %s\n", stamp, now.tv_nsec / 1000000, NAMES[level], line);
    }
    // One write a line keeps lines of several threads apart.
    if (!out.failed)
        fwrite(out.data, 1, out.n, stderr);
    strbuf_deinit(&out);
}
