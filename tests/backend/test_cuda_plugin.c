// The plugin as the loader meets it, on machines with and without a GPU. Its path is in LOAM_BACKEND_CUDA.
#include "check.h"

#include "backend/backend.h"

static void without_a_gpu_opening_says_why_in_a_sentence(void **state) {
    (void)state;
    struct err err = {0};
    struct backend_options options = {.device = -1};
    struct backend *be = backend_open("cuda", &options, &err);
    if (be) {
        char text[256];
        be->ops->describe(be, text, sizeof text);
        assert_true(strlen(text) > 0);
        assert_int_equal(be->act_bytes, 2);
        be->ops->close(be);
        return;
    }
    assert_true(err.code == ERR_NOT_FOUND || err.code == ERR_UNSUPPORTED || err.code == ERR_IO);
    check_message(&err, "cuda: ");
    check_message(&err, "NVIDIA driver");
}

static void auto_falls_back_to_the_cpu(void **state) {
    (void)state;
    struct err err = {0};
    struct backend_options options = {.device = -1, .n_threads = 1};
    struct backend *be = backend_open("auto", &options, &err);
    if (!be)
        fail_msg("%s", err.message);
    assert_true(strcmp(be->ops->name, "cpu") == 0 || strcmp(be->ops->name, "cuda") == 0);
    be->ops->close(be);
}

static void a_gpu_beyond_the_last_is_refused(void **state) {
    (void)state;
    struct err err = {0};
    struct backend_options options = {.device = -1};
    assert_null(backend_open("cuda:4000", &options, &err));
    check_message(&err, "cuda: ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_gpu_opening_says_why_in_a_sentence),
        cmocka_unit_test(auto_falls_back_to_the_cpu),
        cmocka_unit_test(a_gpu_beyond_the_last_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
