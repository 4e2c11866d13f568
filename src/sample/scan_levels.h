// sample/scan_levels.h - the instruction sets that scan.h is compiled for; the best that the processor has is used.
#ifndef LOAM_SAMPLE_SCAN_LEVELS_H
#define LOAM_SAMPLE_SCAN_LEVELS_H
#include <stdint.h>

// As the functions of scan.h.
struct scan_level {
    float (*max)(const float *x, uint32_t n);
    double (*sum_exp)(const float *x, uint32_t n, float top, float scale, double *block_sums);
    double (*sum_t_exp)(const float *x, uint32_t n, float top);
    void (*exp)(const float *x, uint32_t n, float top, float scale, float *out);
    uint32_t (*above)(const float *x, uint32_t n, float floor, int32_t *ids);
};
extern const struct scan_level SCAN_BASE, SCAN_AVX2, SCAN_AVX512; // the last two on x86-64 only
#endif
