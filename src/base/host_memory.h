// base/host_memory.h - how much memory this process may use. Any thread may call it.
#ifndef LOAM_BASE_HOST_MEMORY_H
#define LOAM_BASE_HOST_MEMORY_H
#include <stdint.h>

struct host_memory {
    uint64_t physical_bytes;
    uint64_t limit_bytes;     // the least of physical memory, cgroup limits and RLIMIT_AS
    uint64_t available_bytes; // of the limit, what is free now (page cache counts as free)
    const char *limited_by;   // "physical memory", "cgroup v2", "cgroup v1", "RLIMIT_AS"
};
void host_memory_read(struct host_memory *out);

// The same below another root, where sys/fs/cgroup and proc are looked up (tests). RLIMIT_AS is this process's.
void host_memory_read_at(const char *root, struct host_memory *out);
#endif
