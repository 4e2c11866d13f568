#include "base/err.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int exit_code;
    int http_status;
} CODES[] = {
    [ERR_OK] = {"OK", 0, 200},
    [ERR_INVALID] = {"INVALID", 2, 400},
    [ERR_NOT_FOUND] = {"NOT_FOUND", 1, 404},
    [ERR_FORMAT] = {"FORMAT", 1, 400},
    [ERR_UNSUPPORTED] = {"UNSUPPORTED", 1, 400},
    [ERR_BUSY] = {"BUSY", 1, 429},
    [ERR_CANCELLED] = {"CANCELLED", 1, 499},
    [ERR_IO] = {"IO", 1, 500},
    [ERR_NOMEM] = {"NOMEM", 1, 503},
    [ERR_INTERNAL] = {"INTERNAL", 1, 500},
};

static void set_v(struct err *err, enum err_code code, const char *format, va_list args) {
    // The arguments may point into err->message: format into a scratch first.
    char text[ERR_MESSAGE_BYTES];
    vsnprintf(text, sizeof text, format, args);
    err->code = code;
    memcpy(err->message, text, sizeof text);
}

bool err_set(struct err *err, enum err_code code, const char *format, ...) {
    if (!err)
        return false;
    va_list args;
    va_start(args, format);
    set_v(err, code, format, args);
    va_end(args);
    return false;
}

bool err_errno(struct err *err, int saved_errno, const char *format, ...) {
    if (!err)
        return false;
    va_list args;
    va_start(args, format);
    set_v(err, ERR_IO, format, args);
    va_end(args);
    size_t n = strlen(err->message);
    char text[128];
    // strerror_r's two signatures differ between libcs; %m is glibc's and musl's common ground.
    snprintf(text, sizeof text, "%s", strerror(saved_errno));
    snprintf(err->message + n, sizeof err->message - n, ": %s", text);
    return false;
}

bool err_wrap(struct err *err, const char *format, ...) {
    if (!err)
        return false;
    char context[ERR_MESSAGE_BYTES], old[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    memcpy(old, err->message, sizeof old);
    size_t n = (size_t)snprintf(err->message, sizeof err->message, "%s: ", context);
    if (n < sizeof err->message)
        snprintf(err->message + n, sizeof err->message - n, "%s", old);
    return false;
}

void err_clear(struct err *err) {
    if (err)
        *err = (struct err){0};
}

const char *err_code_name(enum err_code code) {
    return CODES[code].name;
}

int err_exit_code(enum err_code code) {
    return CODES[code].exit_code;
}

int err_http_status(enum err_code code) {
    return CODES[code].http_status;
}
