// tests/backend/test_cuda.h - getting at the plugin without the program that loads it.
#ifndef LOAM_TESTS_BACKEND_TEST_CUDA_H
#define LOAM_TESTS_BACKEND_TEST_CUDA_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "loam/loam_backend.h"

static inline const struct backend_ops *load_plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, LOAM_BACKEND_ENTRY) : NULL;
    if (!symbol) {
        printf("cannot load %s: %s\n", path, dlerror());
        exit(1);
    }
    loam_backend_entry_fn *entry;
    memcpy(&entry, &symbol, sizeof entry);
    const struct backend_ops *ops = entry(BACKEND_ABI_VERSION);
    if (ops->abi_version != BACKEND_ABI_VERSION || ops->ops_bytes != sizeof *ops) {
        printf("%s has ABI version %u\n", path, ops->abi_version);
        exit(1);
    }
    return ops;
}
#endif
