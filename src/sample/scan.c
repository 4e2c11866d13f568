#include "sample/scan.h"

#include <math.h>
#include <string.h>

#include "sample/scan_levels.h"

static const struct scan_level *level(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return &SCAN_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return &SCAN_AVX2;
#endif
    return &SCAN_BASE;
}

float scan_max(const float *x, uint32_t n) {
    return level()->max(x, n);
}
double scan_sum_exp(const float *x, uint32_t n, float top, float scale, double *block_sums) {
    return level()->sum_exp(x, n, top, scale, block_sums);
}
double scan_sum_t_exp(const float *x, uint32_t n, float top) {
    return level()->sum_t_exp(x, n, top);
}
void scan_exp(const float *x, uint32_t n, float top, float scale, float *out) {
    level()->exp(x, n, top, scale, out);
}
uint32_t scan_above(const float *x, uint32_t n, float floor, int32_t *ids) {
    return level()->above(x, n, floor, ids);
}

void scan_mask(const float *x, const uint32_t *mask, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += 32) {
        uint32_t word = mask[i / 32], end = n - i < 32 ? n : i + 32;
        if (word == UINT32_MAX) {
            memmove(out + i, x + i, (end - i) * sizeof *x);
            continue;
        }
        for (uint32_t j = i; j < end; j++)
            out[j] = word >> (j - i) & 1 ? x[j] : -INFINITY;
    }
}
