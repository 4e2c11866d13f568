// base/clock.h - time that only moves forward.
#ifndef LOAM_BASE_CLOCK_H
#define LOAM_BASE_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static inline double clock_ms_since(uint64_t start_ns) {
    return (double)(clock_ns() - start_ns) / 1e6;
}
#endif
