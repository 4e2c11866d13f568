// tokenizer/token_hash.h - the hash of short texts in a tokenizer's tables.
// The value is part of the compiled form: changing it means raising IMAGE_VERSION.
#ifndef LOAM_TOKENIZER_TOKEN_HASH_H
#define LOAM_TOKENIZER_TOKEN_HASH_H
#include "base/bytes.h"

static inline uint64_t token_hash_mix(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t token_hash_load(const char *p, size_t n) { // n <= 8
    uint64_t word = 0;
    if (n >= 4) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        word = (uint64_t)high << 32 | low;
    } else if (n > 0) {
        word = (uint64_t)(uint8_t)p[0] << 16 | (uint64_t)(uint8_t)p[n >> 1] << 8 | (uint8_t)p[n - 1];
    }
    return word;
}

static inline uint64_t token_hash(struct str s) {
    const char *p = s.data;
    size_t n = s.n;
    uint64_t h = n;
    for (; n > 16; n -= 16, p += 16) {
        uint64_t a, b;
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 8);
        h = token_hash_mix(a ^ h, b);
    }
    uint64_t a, b = 0;
    if (n > 8) {
        memcpy(&a, p, 8);
        memcpy(&b, p + n - 8, 8);
    } else {
        a = token_hash_load(p, n);
    }
    return token_hash_mix(token_hash_mix(a ^ h, b), s.n);
}
#endif
