// base/err.h - how a failure is reported: a code that says what the caller can do, and a sentence.
// A struct err belongs to one thread at a time.
#ifndef LOAM_BASE_ERR_H
#define LOAM_BASE_ERR_H
#include <stdarg.h>
#include <stdbool.h>

enum err_code {
    ERR_OK = 0,
    ERR_INVALID,     // the caller passed something wrong: change the request or the flag
    ERR_NOT_FOUND,   // the named thing does not exist
    ERR_FORMAT,      // a file or message is damaged or is not what it claims to be
    ERR_UNSUPPORTED, // well formed, but loam does not implement it
    ERR_BUSY,        // a bounded resource is full: try again later
    ERR_CANCELLED,   // the caller asked to stop
    ERR_IO,          // the operating system refused: disk, network, permissions
    ERR_NOMEM,       // memory or a planned pool ran out
    ERR_INTERNAL,    // our own mistake
};

enum { ERR_MESSAGE_BYTES = 1024 };

struct err {
    enum err_code code;
    char message[ERR_MESSAGE_BYTES]; // one sentence, always NUL-terminated; too long is cut
};

// Set *err (which may be NULL) and return false, so that a failure is one `return` line.
bool err_set(struct err *err, enum err_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// As err_set(), adding ": " and the text of errno value `saved_errno`.
bool err_errno(struct err *err, int saved_errno, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Put "<context>: " in front of the message that is there. Returns false.
bool err_wrap(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Forget what is there.
void err_clear(struct err *err);

// "INVALID", "NOT_FOUND", ...
const char *err_code_name(enum err_code code);

// The process exit code for a failure: 2 for ERR_INVALID (wrong usage), else 1.
int err_exit_code(enum err_code code);

// The HTTP status for a failure.
int err_http_status(enum err_code code);
#endif
