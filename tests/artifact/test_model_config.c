#include "check.h"

#include <dirent.h>

#include "artifact/model_config.h"

static void every_zoo_config_opens(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared) {
        print_message("no shared folder: skipped\n");
        skip();
    }
    char path[4300];
    snprintf(path, sizeof path, "%s/zoo", shared);
    struct dirent **found;
    int n = scandir(path, &found, NULL, alphasort), n_opened = 0;
    for (int i = 0; i < n; i++) {
        char folder[4600], config[4700];
        snprintf(folder, sizeof folder, "%s/%s", path, found[i]->d_name);
        snprintf(config, sizeof config, "%s/config.json", folder);
        FILE *f = fopen(config, "re");
        if (f) {
            fclose(f);
            struct err err = {0};
            struct model_config *c = model_config_open(folder, &err);
            check_ok(c, &err);
            assert_true(c->n_eos > 0);
            model_config_destroy(c);
            n_opened++;
        }
        free(found[i]);
    }
    free(found);
    assert_true(n_opened >= 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_zoo_config_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
