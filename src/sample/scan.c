#include "sample/scan.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

// The compiler's own vectors: written once, compiled for each level below, where a vector is one, two or four
// registers. Without fused products (the build forbids contraction) all levels give the same bits.
enum { LANES = 16 };
typedef float vf __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t vi __attribute__((vector_size(LANES * sizeof(int32_t))));
#define INLINE static inline __attribute__((always_inline))

// The first n lanes of p (n >= LANES: all), the rest -infinity.
INLINE void load(const float *p, uint32_t n, vf *out) {
    if (n >= LANES) {
        memcpy(out, p, sizeof *out);
        return;
    }
    for (int j = 0; j < LANES; j++)
        (*out)[j] = -INFINITY;
    memcpy(out, p, n * sizeof(float));
}

// e^t for t <= 0: t = k ln 2 + r, e^r by its series to r^6, which is within 1e-7 for |r| <= ln(2)/2; 2^k by the
// exponent's bits. Below -87, where 2^k would be subnormal, and for NaN it is 0.
INLINE void exp_of(const vf *in, vf *out) {
    vf t = *in;
    vi seen = t > -87.0f;
    t = (vf)((vi)t & seen); // others become 0 and are dropped at the end
    vf k = t * 1.44269504f + 12582912.0f; // 1.5 * 2^23: rounds to a whole number in the low bits
    vi power = (vi)k << 23;
    k -= 12582912.0f;
    vf r = t - k * 0.693145751953125f;
    r -= k * 1.42860682030941723e-6f;
    vf p = r * (1.0f / 720) + (1.0f / 120);
    p = p * r + (1.0f / 24);
    p = p * r + (1.0f / 6);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    p *= (vf)(power + 0x3F800000);
    *out = (vf)((vi)p & seen);
}

INLINE double sum_of(const vf *v) {
    double sum = 0;
    for (int j = 0; j < LANES; j++)
        sum += (double)(*v)[j];
    return sum;
}

INLINE float max_body(const float *x, uint32_t n) {
    vf best;
    load(x, 0, &best);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v;
        load(x + i, n - i, &v);
        vi better = v > best;
        best = (vf)(((vi)v & better) | ((vi)best & ~better));
    }
    float top = -INFINITY;
    for (int j = 0; j < LANES; j++)
        top = best[j] > top ? best[j] : top;
    return top;
}

INLINE double sum_body(const float *x, uint32_t n, float top, float scale, double *block_sums, bool times_t) {
    double total = 0;
    for (uint32_t from = 0, b = 0; from < n; from += SCAN_BLOCK, b++) {
        uint32_t end = n - from < SCAN_BLOCK ? n : from + SCAN_BLOCK;
        vf sum = {0};
        for (uint32_t i = from; i < end; i += LANES) {
            vf v, e;
            load(x + i, end - i, &v);
            v = (v - top) * scale;
            exp_of(&v, &e);
            if (times_t)
                e = (vf)((vi)(e * v) & (vi)(e > 0.0f)); // 0 * -infinity is no number
            sum += e;
        }
        double of_block = sum_of(&sum);
        if (block_sums)
            block_sums[b] = of_block;
        total += of_block;
    }
    return total;
}

INLINE void exp_body(const float *x, uint32_t n, float top, float scale, float *out) {
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v, e;
        load(x + i, n - i, &v);
        v = (v - top) * scale;
        exp_of(&v, &e);
        memcpy(out + i, &e, (n - i < LANES ? n - i : LANES) * sizeof(float));
    }
}

INLINE uint32_t above_body(const float *x, uint32_t n, float floor, int32_t *ids) {
    enum { STRIDE = 4 * LANES };
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i += STRIDE) {
        uint32_t end = n - i < STRIDE ? n : i + STRIDE;
        vi any = {0};
        for (uint32_t j = i; j < end; j += LANES) {
            vf v;
            load(x + j, end - j, &v);
            any |= v > floor;
        }
        uint64_t words[sizeof any / sizeof(uint64_t)], bits = 0;
        memcpy(words, &any, sizeof any);
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            bits |= words[w];
        if (!bits)
            continue;
        for (uint32_t j = i; j < end; j++) { // without a branch: candidates come in no order to predict
            ids[found] = (int32_t)j;
            found += x[j] > floor;
        }
    }
    return found;
}

#if defined(__x86_64__)
#define EACH_LEVEL(LEVEL)                                                                          \
    LEVEL(avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"))))                   \
    LEVEL(avx2, __attribute__((target("avx2"))))                                                   \
    LEVEL(base, )
#define PICK(fn, ...)                                                                              \
    (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") ? fn##_avx512(__VA_ARGS__) \
     : __builtin_cpu_supports("avx2")                                         ? fn##_avx2(__VA_ARGS__)   \
                                                                              : fn##_base(__VA_ARGS__))
#else
#define EACH_LEVEL(LEVEL) LEVEL(base, )
#define PICK(fn, ...) fn##_base(__VA_ARGS__)
#endif

#define LEVEL(level, attribute)                                                                    \
    attribute static float max_##level(const float *x, uint32_t n) {                               \
        return max_body(x, n);                                                                     \
    }                                                                                              \
    attribute static double sum_exp_##level(const float *x, uint32_t n, float top, float scale,    \
                                            double *block_sums) {                                  \
        return sum_body(x, n, top, scale, block_sums, false);                                      \
    }                                                                                              \
    attribute static double sum_t_exp_##level(const float *x, uint32_t n, float top) {             \
        return sum_body(x, n, top, 1, NULL, true);                                                 \
    }                                                                                              \
    attribute static void exp_##level(const float *x, uint32_t n, float top, float scale, float *out) { \
        exp_body(x, n, top, scale, out);                                                           \
    }                                                                                              \
    attribute static uint32_t above_##level(const float *x, uint32_t n, float floor, int32_t *ids) { \
        return above_body(x, n, floor, ids);                                                       \
    }
EACH_LEVEL(LEVEL)

float scan_max(const float *x, uint32_t n) {
    return PICK(max, x, n);
}
double scan_sum_exp(const float *x, uint32_t n, float top, float scale, double *block_sums) {
    return PICK(sum_exp, x, n, top, scale, block_sums);
}
double scan_sum_t_exp(const float *x, uint32_t n, float top) {
    return PICK(sum_t_exp, x, n, top);
}
void scan_exp(const float *x, uint32_t n, float top, float scale, float *out) {
    PICK(exp, x, n, top, scale, out);
}
uint32_t scan_above(const float *x, uint32_t n, float floor, int32_t *ids) {
    return PICK(above, x, n, floor, ids);
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
