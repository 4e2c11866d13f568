// loam/loam_error.h - how the library's functions fail: they return 0, or a code with a sentence in
// *error (which may be NULL).
#ifndef LOAM_ERROR_H
#define LOAM_ERROR_H

#ifndef LOAM_API
#define LOAM_API __attribute__((visibility("default")))
#endif

enum loam_code {
    LOAM_OK = 0,
    LOAM_INVALID,     // change the arguments
    LOAM_NOT_FOUND,   // the named thing does not exist
    LOAM_FORMAT,      // a file or answer is damaged
    LOAM_UNSUPPORTED, // well formed, but loam does not do it
    LOAM_BUSY,        // try again later
    LOAM_CANCELLED,   // as asked
    LOAM_IO,          // disk, network, permissions
    LOAM_NOMEM,
    LOAM_INTERNAL,    // a mistake of loam's
};

struct loam_error {
    int code; // enum loam_code
    char message[1024];
};
#endif
