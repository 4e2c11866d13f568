// base/log.h - events with fields: log_info("engine: admitted seq=%u prompt_tokens=%u", ...).
// Any thread may log. Level and format are set once, before threads start. Never prompts or keys.
#ifndef LOAM_BASE_LOG_H
#define LOAM_BASE_LOG_H
#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

// A sink receives each line, without newline; NULL restores the default (stderr).
typedef void log_sink_fn(enum log_level level, const char *line, void *user);

void log_set_level(enum log_level level); // default LOG_WARN; LOAM_LOG=error|warn|info|debug
void log_set_json(bool json);             // one JSON object a line on stderr
void log_set_sink(log_sink_fn *sink, void *user);
bool log_enabled(enum log_level level);
bool log_level_parse(const char *name, enum log_level *out);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) (log_enabled(LOG_INFO) ? log_write(LOG_INFO, __VA_ARGS__) : (void)0)
#define log_debug(...) (log_enabled(LOG_DEBUG) ? log_write(LOG_DEBUG, __VA_ARGS__) : (void)0)
#endif
