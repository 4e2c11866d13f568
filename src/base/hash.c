#include "base/hash.h"

#include <openssl/evp.h>

uint64_t hash_bytes(struct bytes b, uint64_t seed) {
    uint64_t h = seed ^ (b.n * 0x9E3779B97F4A7C15u);
    size_t i = 0;
    for (; b.n - i >= 8; i += 8) {
        uint64_t word;
        memcpy(&word, b.data + i, 8);
        h = hash_u64(h ^ word);
    }
    uint64_t tail = 0;
    if (i < b.n)
        memcpy(&tail, b.data + i, b.n - i);
    return hash_u64(h ^ tail ^ 0x9E3779B97F4A7C15u);
}

void hash_sha256(struct bytes b, uint8_t out[32]) {
    EVP_Digest(b.data ? b.data : (const uint8_t *)"", b.n, out, NULL, EVP_sha256(), NULL);
}

static void digest_hex(const EVP_MD *kind, struct bytes b, char *out) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_Digest(b.data ? b.data : (const uint8_t *)"", b.n, digest, &n, kind, NULL);
    static const char HEX[] = "0123456789abcdef";
    for (unsigned i = 0; i < n; i++) {
        out[2 * i] = HEX[digest[i] >> 4];
        out[2 * i + 1] = HEX[digest[i] & 15];
    }
    out[2 * n] = '\0';
}

void hash_sha256_hex(struct bytes b, char out[65]) {
    digest_hex(EVP_sha256(), b, out);
}

void hash_sha1_hex(struct bytes b, char out[41]) {
    digest_hex(EVP_sha1(), b, out);
}
