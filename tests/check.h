// tests/check.h - cmocka with what every test needs: include this first.
#ifndef LOAM_TESTS_CHECK_H
#define LOAM_TESTS_CHECK_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/err.h"

// Fail with the message of `err` if a call that must succeed did not.
#define check_ok(call, err)                                                                        \
    do {                                                                                           \
        if (!(call))                                                                               \
            fail_msg("%s: %s", #call, (err)->message);                                             \
    } while (0)

#define check_str(got, want)                                                                       \
    do {                                                                                           \
        struct str got_ = (got), want_ = (want);                                                   \
        if (!str_eq(got_, want_))                                                                  \
            fail_msg("%s is \"%.*s\", not \"%.*s\"", #got, (int)got_.n, got_.data, (int)want_.n,   \
                     want_.data);                                                                  \
    } while (0)

// The message must name what matters to the user.
#define check_message(err, part)                                                                   \
    do {                                                                                           \
        if (!strstr((err)->message, (part)))                                                       \
            fail_msg("message \"%s\" does not say \"%s\"", (err)->message, (part));                \
    } while (0)

// The folder of shared test data (DESIGN.md of the workplace), or NULL: skip and say so.
static inline const char *check_shared_folder(void) {
    static char path[4096];
    const char *given = getenv("LOAM_SHARED"), *source = getenv("LOAM_SOURCE_DIR");
    if (given)
        snprintf(path, sizeof path, "%s", given);
    else
        snprintf(path, sizeof path, "%s/../shared", source ? source : ".");
    char probe[4200];
    snprintf(probe, sizeof probe, "%s/zoo/README.md", path);
    FILE *f = fopen(probe, "re");
    if (!f)
        return NULL;
    fclose(f);
    return path;
}
#endif
