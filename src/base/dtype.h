// base/dtype.h - element types of stored tensors.
#ifndef LOAM_BASE_DTYPE_H
#define LOAM_BASE_DTYPE_H
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F64,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_F8_E8M0,
    DTYPE_BOOL,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_U16,
    DTYPE_I16,
    DTYPE_U32,
    DTYPE_I32,
    DTYPE_U64,
    DTYPE_I64,
    DTYPE_N,
};

// Bytes of one element.
static inline size_t dtype_bytes(enum dtype dtype) {
    static const uint8_t BYTES[DTYPE_N] = {4, 2, 2, 8, 1, 1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8};
    return BYTES[dtype];
}

// As safetensors spells it: "F32", "BF16", "F8_E4M3", ...
static inline const char *dtype_name(enum dtype dtype) {
    static const char *const NAMES[DTYPE_N] = {"F32",     "F16",     "BF16", "F64", "F8_E4M3", "F8_E5M2",
                                               "F8_E8M0", "BOOL",    "U8",   "I8",  "U16",     "I16",
                                               "U32",     "I32",     "U64",  "I64"};
    return NAMES[dtype];
}
#endif
