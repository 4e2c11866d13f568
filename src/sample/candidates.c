#include "sample/candidates.h"

enum { SORTED_MAX = 24 }; // a rest as small as this is sorted

static void swap(struct candidates *c, uint32_t a, uint32_t b) {
    uint64_t key = c->keys[a];
    float weight = c->weights[a];
    c->keys[a] = c->keys[b];
    c->weights[a] = c->weights[b];
    c->keys[b] = key;
    c->weights[b] = weight;
}

static uint64_t median(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

static void sort(struct candidates *c, uint32_t from, uint32_t to) {
    for (uint32_t i = from + 1; i < to; i++)
        for (uint32_t j = i; j > from && c->keys[j - 1] < c->keys[j]; j--)
            swap(c, j - 1, j);
}

void candidates_keep_best(struct candidates *c, double target, bool by_weight) {
    uint32_t from = 0, to = c->n; // where the cut lies; what is before `from` stays and weighs `reached`
    double reached = 0;
    while (to - from > SORTED_MAX) {
        // Keys differ, so something is below the median of three, and the span shrinks on either side.
        uint64_t pivot = median(c->keys[from], c->keys[from + (to - from) / 2], c->keys[to - 1]);
        uint32_t better = from;
        double weight = 0;
        for (uint32_t i = from; i < to; i++) {
            if (c->keys[i] < pivot)
                continue;
            weight += by_weight ? (double)c->weights[i] : 1;
            swap(c, better++, i);
        }
        if (reached + weight >= target) {
            to = better;
        } else {
            reached += weight;
            from = better;
        }
    }
    sort(c, from, to);
    for (uint32_t i = from; i < to; i++) {
        reached += by_weight ? (double)c->weights[i] : 1;
        if (reached >= target) {
            c->n = i + 1;
            return;
        }
    }
    c->n = to; // all there are, or what rounding left out of the sums
}
