// loam_error.h - how the library's functions fail: a code that says what the caller can do, and one sentence.
#ifndef LOAM_ERROR_H
#define LOAM_ERROR_H

#ifndef LOAM_API
#define LOAM_API __attribute__((visibility("default")))
#endif

enum loam_error_code {
    LOAM_OK = 0,
    LOAM_INVALID,     // change the arguments
    LOAM_NOT_FOUND,   // the named thing does not exist
    LOAM_FORMAT,      // a file or an answer is damaged or not what it claims to be
    LOAM_UNSUPPORTED, // well formed, but not implemented
    LOAM_BUSY,        // too much is going on: try again later
    LOAM_CANCELLED,   // as the caller asked
    LOAM_IO,          // disk, network or permissions
    LOAM_NOMEM,       // memory ran out
    LOAM_INTERNAL,    // loam's own mistake
};

struct loam_error {
    enum loam_error_code code;
    char message[1024]; // one sentence, NUL-terminated
};
#endif
