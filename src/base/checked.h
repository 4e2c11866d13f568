// base/checked.h - arithmetic on sizes that come from outside: false instead of wrapping round.
#ifndef LOAM_BASE_CHECKED_H
#define LOAM_BASE_CHECKED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
// The least multiple of `to` (a power of two) that is not below n; false if that does not fit.
static inline bool round_up_size(size_t n, size_t to, size_t *out) {
    if (!add_size(n, to - 1, out))
        return false;
    *out &= ~(to - 1);
    return true;
}
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
#endif
