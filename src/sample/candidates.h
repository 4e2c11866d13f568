// sample/candidates.h - the tokens that may still be drawn, and cutting them by rank without sorting them.
// Owned by its sampler's scratch; one thread.
#ifndef LOAM_SAMPLE_CANDIDATES_H
#define LOAM_SAMPLE_CANDIDATES_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// Parallel arrays. A key orders candidates: by a score, high first, then by id, low first.
struct candidates {
    uint64_t *keys;
    float *weights;
    uint32_t n;
};

static inline uint64_t candidate_key(float score, int32_t id) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u; // the order of floats as that of integers
    return (uint64_t)bits << 32 | (uint32_t)~id;
}
static inline int32_t candidate_id(uint64_t key) {
    return (int32_t)~(uint32_t)key;
}

// Keep the best ones: the fewest whose weights together reach `target` (by_weight), or `target` of them. All, if
// they do not reach it. Those kept are in no order. Expected time linear in n (Hoare's FIND with sums).
void candidates_keep_best(struct candidates *c, double target, bool by_weight);
#endif
