#include "check.h"

#include <unistd.h>

#include "cli/cli.h"

static int64_t port;
static double temp;
static const char *model, *mode;
static bool quiet, cache, given;
static struct cli_texts stops;

static enum cli_outcome parse(int argc, const char *const *argv, const char **positional, uint32_t *n) {
    port = 8080;
    temp = 0.7;
    model = NULL;
    mode = "fast";
    quiet = false;
    cache = true;
    given = false;
    stops = (struct cli_texts){0};
    const struct cli_option options[] = {
        {.name = "--port", .kind = CLI_INT, .out = &port, .value = "N", .min = 1, .max = 65535},
        {.name = "--temp", .alias = "--temperature", .kind = CLI_REAL, .out = &temp, .value = "T",
         .min = 0, .max = 5, .env = "LOAM_TEST_TEMP", .given = &given},
        {.name = "--model", .alias = "-m", .kind = CLI_TEXT, .out = &model, .value = "DIR"},
        {.name = "--math", .kind = CLI_CHOICE, .out = &mode, .value = "exact|fast"},
        {.name = "--quiet", .kind = CLI_SWITCH, .out = &quiet},
        {.name = "--cache", .kind = CLI_ON_OFF, .out = &cache},
        {.name = "--stop", .kind = CLI_LIST, .out = &stops, .value = "TEXT"},
    };
    const struct cli_spec spec = {"test", "", CLI_OPTIONS(options), 2};
    return cli_parse(&spec, argc, (char **)(uintptr_t)argv, positional, n);
}

static void options_take_both_spellings(void **state) {
    (void)state;
    const char *positional[2];
    uint32_t n;
    const char *argv[] = {"serve", "a", "--port=9", "-m", "x y", "--quiet", "--stop", "A", "--stop=B",
                          "--cache", "off", "--", "--b"};
    assert_int_equal(parse(13, argv, positional, &n), CLI_RUN);
    assert_int_equal(n, 2);
    assert_string_equal(positional[1], "--b");
    assert_int_equal(port, 9);
    assert_string_equal(model, "x y");
    assert_true(quiet);
    assert_false(cache);
    assert_int_equal(stops.n, 2);
    assert_string_equal(stops.values[1], "B");
    assert_false(given);
}

static void variables_set_what_options_do_not(void **state) {
    (void)state;
    const char *positional[2];
    uint32_t n;
    setenv("LOAM_TEST_TEMP", "1.5", 1);
    const char *argv[] = {"serve", "--temperature", "0.25"};
    assert_int_equal(parse(1, argv, positional, &n), CLI_RUN);
    assert_true(temp == 1.5 && given);
    assert_int_equal(parse(3, argv, positional, &n), CLI_RUN);
    assert_true(temp == 0.25);
    unsetenv("LOAM_TEST_TEMP");
}

static void mistakes_are_refused(void **state) {
    (void)state;
    const char *positional[2];
    uint32_t n;
    static const char *const wrong[][4] = {
        {"serve", "--prot", "1", NULL},     {"serve", "--port", "0", NULL},
        {"serve", "--port", "80x", NULL},   {"serve", "--port", NULL, NULL},
        {"serve", "--temp", "nan", NULL},   {"serve", "--math", "exac", NULL},
        {"serve", "a", "b", "c"},           {"serve", "--cache", "maybe", NULL},
    };
    FILE *saved = stderr;
    stderr = fopen("/dev/null", "w");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int argc = 0;
        while (argc < 4 && wrong[i][argc])
            argc++;
        assert_int_equal(parse(argc, wrong[i], positional, &n), CLI_WRONG);
    }
    fclose(stderr);
    stderr = saved;
    static const char *const names[] = {"--port", "--host", "--model"};
    assert_string_equal(cli_nearest("--prot", names, 3), "--port");
    assert_null(cli_nearest("--zzzzzzzz", names, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_take_both_spellings),
        cmocka_unit_test(variables_set_what_options_do_not),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
