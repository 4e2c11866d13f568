// base/hash.h - hashes: fast ones for tables, SHA-256 and SHA-1 (libcrypto) for identity.
#ifndef LOAM_BASE_HASH_H
#define LOAM_BASE_HASH_H
#include "base/bytes.h"

// 64 bits, well mixed, for tables in memory only: the value may change between versions.
uint64_t hash_bytes(struct bytes b, uint64_t seed);
static inline uint64_t hash_str(struct str s) {
    return hash_bytes(bytes_of(s), 0);
}
static inline uint64_t hash_u64(uint64_t x) { // splitmix64's finaliser (Steele et al. 2014)
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

void hash_sha256(struct bytes b, uint8_t out[32]);
// Lower-case hex digests, NUL-terminated.
void hash_sha256_hex(struct bytes b, char out[65]);
void hash_sha1_hex(struct bytes b, char out[41]);
#endif
