#include "base/host_memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

// The number in a small file, or `otherwise` (no file, or "max").
static uint64_t read_number(const char *folder, const char *name, uint64_t otherwise) {
    char path[PATH_MAX + 64];
    unsigned long long v;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return otherwise;
    bool ok = fscanf(f, "%llu", &v) == 1;
    fclose(f);
    return ok ? v : otherwise;
}

// The value behind "field" in a file of "field value" lines; 0 if it is not there.
static uint64_t read_field(const char *path, const char *field) {
    char line[128];
    unsigned long long v = 0;
    size_t n = strlen(field);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, n) == 0 && sscanf(line + n, " %llu", &v) == 1)
            break;
    if (f)
        fclose(f);
    return v;
}

// Apply the limits of a cgroup folder and of all above it up to `top`: each of them holds.
static void apply_cgroup(const char *top, const char *below, const char *limit_file, const char *usage_file,
                         const char *cache_field, const char *name, struct host_memory *out) {
    char folder[PATH_MAX], stat[PATH_MAX + 32];
    snprintf(folder, sizeof folder, "%s%s", top, below);
    for (;;) {
        uint64_t limit = read_number(folder, limit_file, UINT64_MAX);
        if (limit < UINT64_MAX) {
            // Page cache is given back under pressure: it does not count as used.
            snprintf(stat, sizeof stat, "%s/memory.stat", folder);
            uint64_t used = read_number(folder, usage_file, 0), cache = read_field(stat, cache_field);
            used = used > cache ? used - cache : 0;
            uint64_t left = limit > used ? limit - used : 0;
            if (limit < out->limit_bytes) {
                out->limit_bytes = limit;
                out->limited_by = name;
            }
            if (left < out->available_bytes)
                out->available_bytes = left;
        }
        char *slash = strrchr(folder, '/');
        if (!slash || strlen(folder) <= strlen(top))
            return;
        *slash = '\0';
    }
}

// The path of this process in the hierarchy with controller "memory" (v1) or "" (v2), "" if there is none.
static void cgroup_path(const char *root, const char *controller, char *out, size_t n) {
    char line[PATH_MAX + 64], path[PATH_MAX];
    out[0] = '\0';
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) { // "4:memory:/a/b", "0::/a/b"
        line[strcspn(line, "\n")] = '\0';
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (!second)
            continue;
        *second = '\0';
        bool found = false;
        if (controller[0] == '\0')
            found = first[1] == '\0';
        for (char *word = strtok(first + 1, ","); word && !found; word = strtok(NULL, ","))
            found = strcmp(word, controller) == 0;
        if (found) {
            snprintf(out, n, "%s", strcmp(second + 1, "/") == 0 ? "" : second + 1);
            break;
        }
    }
    if (f)
        fclose(f);
}

void host_memory_read_at(const char *root, struct host_memory *out) {
    char path[PATH_MAX], top[PATH_MAX], below[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    out->physical_bytes = read_field(path, "MemTotal:") * 1024;
    out->available_bytes = read_field(path, "MemAvailable:") * 1024;
    out->limit_bytes = out->physical_bytes;
    out->limited_by = "physical memory";

    snprintf(top, sizeof top, "%s/sys/fs/cgroup", root);
    cgroup_path(root, "", below, sizeof below);
    apply_cgroup(top, below, "memory.max", "memory.current", "file ", "cgroup v2", out);
    apply_cgroup(top, below, "memory.high", "memory.current", "file ", "cgroup v2", out);
    snprintf(top, sizeof top, "%s/sys/fs/cgroup/memory", root);
    cgroup_path(root, "memory", below, sizeof below);
    apply_cgroup(top, below, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ", "cgroup v1", out);

    struct rlimit as;
    if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY && as.rlim_cur < out->limit_bytes) {
        out->limit_bytes = as.rlim_cur;
        out->limited_by = "RLIMIT_AS";
    }
    if (out->available_bytes > out->limit_bytes)
        out->available_bytes = out->limit_bytes;
}

void host_memory_read(struct host_memory *out) {
    host_memory_read_at("", out);
}
