#include "backend/backend.h"

#include <assert.h>
#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "loam/loam_backend.h"

#if defined(__x86_64__)
#define ARCH_NAME "x64"
#elif defined(__aarch64__)
#define ARCH_NAME "arm64"
#else
#define ARCH_NAME "other"
#endif
#define PLUGIN_FILE "libloam-cuda.so"
enum { PLUGIN_PLACES_MAX = 4 };

struct places {
    char path[PLUGIN_PLACES_MAX][PATH_MAX];
    uint32_t n;
};

static void add_place(struct places *places, const char *folder, const char *below) {
    int n = snprintf(places->path[places->n], PATH_MAX, "%s%s/" PLUGIN_FILE, folder, below);
    if (n > 0 && n < PATH_MAX)
        places->n++;
}

// Where the plugin may be, first choice first. LOAM_BACKEND_CUDA names a file and rules alone.
static struct places plugin_places(void) {
    struct places places = {.n = 0};
    const char *given = getenv("LOAM_BACKEND_CUDA");
    if (given && *given) {
        snprintf(places.path[places.n++], PATH_MAX, "%s", given);
        return places;
    }
    char folder[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n > 0) {
        folder[n] = '\0';
        char *slash = strrchr(folder, '/');
        if (slash)
            *slash = '\0';
        add_place(&places, folder, "");
    }
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache)
        add_place(&places, cache, "/loam/native-v" LOAM_VERSION "-" ARCH_NAME);
    else if (home && *home)
        add_place(&places, home, "/.cache/loam/native-v" LOAM_VERSION "-" ARCH_NAME);
    add_place(&places, LOAM_LIB_DIR, "");
    return places;
}

// Every entry that is not marked optional in backend.h.
static bool ops_complete(const struct backend_ops *ops) {
    return ops->name && ops->open && ops->close && ops->describe && ops->memory && ops->reserve && ops->alloc &&
           ops->free && ops->upload && ops->download && ops->weight_create && ops->weight_destroy &&
           ops->weights_ready && ops->kv_create && ops->kv_destroy && ops->kv_copy_page && ops->kv_page_bytes &&
           ops->kv_read_page && ops->kv_write_page && ops->state_create && ops->state_destroy &&
           ops->state_clear && ops->state_copy && ops->state_slot_bytes && ops->state_read && ops->state_write &&
           ops->step_begin && ops->step_end && ops->embed && ops->linear && ops->norm && ops->qkv &&
           ops->attention && ops->glu && ops->unary && ops->axpby && ops->mul && ops->gather && ops->logits &&
           ops->linear_glu;
}

// The plugin's table, which stays loaded for the life of the process: its code may be on the stack of a
// driver thread when the backend closes.
static const struct backend_ops *load_plugin(const char *path, struct err *err) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        err_set(err, ERR_UNSUPPORTED, "cannot load the GPU plugin: %s", dlerror());
        return NULL;
    }
    loam_backend_entry_fn *plugin;
    void *symbol = dlsym(library, LOAM_BACKEND_ENTRY);
    memcpy(&plugin, &symbol, sizeof plugin);
    if (!plugin) {
        err_set(err, ERR_UNSUPPORTED, "%s is not a loam backend plugin: it has no " LOAM_BACKEND_ENTRY, path);
        goto unload;
    }
    const struct backend_ops *ops = plugin(BACKEND_ABI_VERSION);
    if (ops->abi_version != BACKEND_ABI_VERSION || ops->ops_bytes != sizeof(struct backend_ops)) {
        err_set(err, ERR_UNSUPPORTED,
                "%s has backend ABI version %u (table of %u bytes), this loam needs version %d (%zu bytes): "
                "install the plugin of loam " LOAM_VERSION,
                path, ops->abi_version, ops->ops_bytes, BACKEND_ABI_VERSION, sizeof(struct backend_ops));
        goto unload;
    }
    if (!ops_complete(ops)) {
        err_set(err, ERR_UNSUPPORTED, "%s lacks an operation that every backend must have", path);
        goto unload;
    }
    return ops;
unload:
    dlclose(library);
    return NULL;
}

static struct backend *open_cuda(const struct backend_options *options, struct err *err) {
    struct places places = plugin_places();
    for (uint32_t i = 0; i < places.n; i++) {
        if (access(places.path[i], F_OK) != 0)
            continue;
        const struct backend_ops *ops = load_plugin(places.path[i], err);
        return ops ? ops->open(options, err) : NULL;
    }
    err_set(err, ERR_NOT_FOUND, "no GPU plugin: %s is not there (LOAM_BACKEND_CUDA=/path names another)",
            places.n ? places.path[places.n - 1] : PLUGIN_FILE);
    return NULL;
}

static struct backend *open_auto(const struct backend_options *options, struct err *err) {
    struct err why = {0};
    struct backend *be = open_cuda(options, &why);
    if (!be) {
        if (why.code == ERR_NOT_FOUND)
            log_info("backend: cpu, because %s", why.message);
        else
            log_warn("backend: cpu, because %s", why.message);
        be = cpu_backend_ops.open(options, err);
    }
    return be;
}

struct backend *backend_open(const char *name, const struct backend_options *options, struct err *err) {
    assert(ops_complete(&cpu_backend_ops));
    if (strcmp(name, "cpu") == 0)
        return cpu_backend_ops.open(options, err);
    if (strcmp(name, "auto") == 0)
        return open_auto(options, err);
    if (strcmp(name, "cuda") == 0)
        return open_cuda(options, err);
    if (strncmp(name, "cuda:", 5) == 0 && isdigit((unsigned char)name[5])) {
        char *end;
        unsigned long device = strtoul(name + 5, &end, 10);
        if (*end == '\0' && device <= INT32_MAX) {
            struct backend_options with_device = *options;
            with_device.device = (int32_t)device;
            return open_cuda(&with_device, err);
        }
    }
    err_set(err, ERR_INVALID, "\"%s\" is no backend: use auto, cpu, cuda or cuda:N", name);
    return NULL;
}

float *backend_upload_f32(struct backend *be, const float *values, size_t n, struct err *err) {
    float *copy = be->ops->alloc(be, n * sizeof *values, err);
    if (copy)
        be->ops->upload(be, copy, values, n * sizeof *values);
    return copy;
}
