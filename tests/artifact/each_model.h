// tests/artifact/each_model.h - every model folder at hand, one after the other.
#ifndef LOAM_TESTS_ARTIFACT_EACH_MODEL_H
#define LOAM_TESTS_ARTIFACT_EACH_MODEL_H
#include "check.h"

#include <dirent.h>
#include <limits.h>

#include "base/file_map.h"

// Call `visit` for each folder in `parent` that has a config.json. Returns how many there were.
static inline int each_model_in(const char *parent,
                                void (*visit)(const char *folder, const char *name)) {
    struct dirent **found;
    int n = scandir(parent, &found, NULL, alphasort), n_visited = 0;
    for (int i = 0; i < n; i++) {
        char folder[PATH_MAX], config[PATH_MAX + 16];
        bool fits = snprintf(folder, sizeof folder, "%s/%s", parent, found[i]->d_name) < PATH_MAX;
        snprintf(config, sizeof config, "%s/config.json", folder);
        if (fits && path_exists(config)) {
            visit(folder, found[i]->d_name);
            n_visited++;
        }
        free(found[i]);
    }
    if (n >= 0)
        free(found);
    return n_visited;
}

// The copies in tests/models, and the shared zoo where there is one.
static inline void each_model(void (*visit)(const char *folder, const char *name)) {
    const char *source = getenv("LOAM_SOURCE_DIR"), *shared = check_shared_folder();
    char parent[PATH_MAX + 8];
    snprintf(parent, sizeof parent, "%s/tests/models", source ? source : ".");
    assert_true(each_model_in(parent, visit) >= 5);
    if (!shared) {
        print_message("no shared folder with a zoo: only tests/models\n");
        return;
    }
    snprintf(parent, sizeof parent, "%s/zoo", shared);
    assert_true(each_model_in(parent, visit) >= 60);
}
#endif
