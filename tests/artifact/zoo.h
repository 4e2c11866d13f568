// tests/artifact/zoo.h - every model folder of the shared zoo, one after the other.
#ifndef LOAM_TESTS_ARTIFACT_ZOO_H
#define LOAM_TESTS_ARTIFACT_ZOO_H
#include "check.h"

#include <dirent.h>
#include <unistd.h>

enum { ZOO_PATH_BYTES = 3 * 4096 };

// Call `visit` with the path of each folder that has a config.json, and return how many there were;
// skips the test, saying so, when the zoo is not here.
static inline int zoo_each(void (*visit)(const char *folder, const char *name)) {
    const char *shared = check_shared_folder();
    if (!shared) {
        print_message("no shared folder with a zoo: skipped\n");
        skip();
        return 0;
    }
    char zoo[2 * ZOO_PATH_BYTES / 3];
    snprintf(zoo, sizeof zoo, "%s/zoo", shared);
    struct dirent **found;
    int n = scandir(zoo, &found, NULL, alphasort), n_visited = 0;
    for (int i = 0; i < n; i++) {
        char folder[ZOO_PATH_BYTES], config[ZOO_PATH_BYTES + 16];
        snprintf(folder, sizeof folder, "%s/%s", zoo, found[i]->d_name);
        snprintf(config, sizeof config, "%s/config.json", folder);
        if (access(config, R_OK) == 0) {
            visit(folder, found[i]->d_name);
            n_visited++;
        }
        free(found[i]);
    }
    free(found);
    return n_visited;
}
#endif
