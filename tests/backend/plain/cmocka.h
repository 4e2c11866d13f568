// tests/backend/plain/cmocka.h - the part of cmocka's interface that the kernel tests use, so that they
// also build as static programs and for other processors, where cmocka's library is not at hand. A
// failure ends the program.
#ifndef LOAM_TESTS_BACKEND_PLAIN_CMOCKA_H
#define LOAM_TESTS_BACKEND_PLAIN_CMOCKA_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(fn) {#fn, fn}

#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(1);                                                                                   \
    } while (0)
#define assert_true(x)                                                                             \
    do {                                                                                           \
        if (!(x))                                                                                  \
            fail_msg("%s is false", #x);                                                           \
    } while (0)
#define assert_false(x) assert_true(!(x))
#define assert_non_null(x) assert_true((x) != NULL)
#define assert_null(x) assert_true((x) == NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
#define print_message(...) printf(__VA_ARGS__)

#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                  \
    cmocka_run_group_tests(tests, setup, teardown)
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    plain_run(tests, sizeof(tests) / sizeof *(tests))
static inline int plain_run(const struct CMUnitTest *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        printf("%s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
    }
    printf("all %zu passed\n", n);
    return 0;
}
#endif
