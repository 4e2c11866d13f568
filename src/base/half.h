// base/half.h - the 16-bit floats: IEEE binary16 (f16) and bfloat16 (bf16), by the bits.
#ifndef LOAM_BASE_HALF_H
#define LOAM_BASE_HALF_H
#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
static inline float bf16_to_f32(uint16_t h) {
    return f32_from_bits((uint32_t)h << 16);
}
// Round to nearest, ties to even; NaN stays NaN (quieted).
static inline uint16_t bf16_from_f32(float f) {
    uint32_t bits = f32_bits(f);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7FFF;
    if (magnitude >= 0x7C00) // infinity, NaN
        return f32_from_bits(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    if (magnitude >= 0x0400)
        return f32_from_bits(sign | ((magnitude << 13) + 0x38000000));
    // Subnormal: an integer times 2^-24, exact in float32.
    float f = (float)magnitude * 0x1p-24f;
    return f32_from_bits(sign | f32_bits(f));
}
// Round to nearest, ties to even; overflow gives infinity.
static inline uint16_t f16_from_f32(float f) {
    uint32_t bits = f32_bits(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) // rounds to 65536 or more
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) { // subnormal in f16: let float addition round for us
        float shifted = f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (f32_bits(shifted) - 0x3F000000));
    }
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13));
}
// E4M3 (OCP 8-bit float, "fn": no infinity, 0x7F/0xFF are NaN).
static inline float f8e4m3_to_f32(uint8_t v) {
    uint32_t sign = (uint32_t)(v & 0x80) << 24, magnitude = v & 0x7F;
    if (magnitude == 0x7F)
        return f32_from_bits(sign | 0x7FC00000);
    if (magnitude >= 0x08)
        return f32_from_bits(sign | ((magnitude << 20) + 0x3C000000));
    return f32_from_bits(sign | f32_bits((float)magnitude * 0x1p-9f));
}
// E8M0: a power of two, 2^(v-127); 255 is NaN. (0 is 2^-127, a float32 subnormal.)
static inline float f8e8m0_to_f32(uint8_t v) {
    if (v == 255)
        return f32_from_bits(0x7FC00000);
    return v ? f32_from_bits((uint32_t)v << 23) : f32_from_bits(0x00400000);
}
// E2M1: the 16 values of a 4-bit float.
static const float F4E2M1_VALUES[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
#endif
