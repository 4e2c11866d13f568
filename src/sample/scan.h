// sample/scan.h - passes over a whole vocabulary of logits, in vectors of 16.
// A sum has one order, given by positions, and no step depends on the instruction set: the bits are the same on
// every machine. Any thread.
#ifndef LOAM_SAMPLE_SCAN_H
#define LOAM_SAMPLE_SCAN_H
#include <stddef.h>
#include <stdint.h>

enum { SCAN_BLOCK = 1024 }; // elements that are summed in float32 before their sum goes to a double

// The largest of x [n]; -infinity if there is none. NaN counts as absent, here and below.
float scan_max(const float *x, uint32_t n);
// The sum over x [n] of e^t, t = (x - top) * scale; requires t <= 0. A term below e^-87 is 0, others are within
// 2e-7 of themselves. block_sums [ceil(n / SCAN_BLOCK)] gets what each block adds, or is NULL.
double scan_sum_exp(const float *x, uint32_t n, float top, float scale, double *block_sums);
// The sum of t e^t, likewise with scale 1: what an entropy is made of.
double scan_sum_t_exp(const float *x, uint32_t n, float top);
// The terms themselves, into out [n], which may be x.
void scan_exp(const float *x, uint32_t n, float top, float scale, float *out);
// The positions where x > floor, ascending, into ids [n]; how many.
uint32_t scan_above(const float *x, uint32_t n, float floor, int32_t *ids);
// out [n] = x where the bit of `mask` (bit i % 32 of word i / 32) is set, else -infinity. out may be x.
void scan_mask(const float *x, const uint32_t *mask, uint32_t n, float *out);
#endif
