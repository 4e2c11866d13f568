// backend/cpu/cpu_features.h - which instruction sets this process may use, and the level they make.
#ifndef LOAM_BACKEND_CPU_CPU_FEATURES_H
#define LOAM_BACKEND_CPU_CPU_FEATURES_H
#include <stdbool.h>

// Each level of an architecture includes the ones before it.
enum cpu_level {
    CPU_LEVEL_SCALAR,
    CPU_LEVEL_AVX2,   // x86-64: AVX2, FMA, F16C
    CPU_LEVEL_AVX512, // and AVX-512 F, BW, DQ, VL, CD, VNNI, BF16, VBMI
    CPU_LEVEL_AMX,    // and AMX tiles with int8 and bf16
    CPU_LEVEL_NEON,   // arm64: Advanced SIMD
    CPU_LEVEL_N,
};

struct cpu_features {
    enum cpu_level level;              // the best
    bool avx_vnni;                     // VNNI in its 256-bit VEX form
    bool arm_dot, arm_i8mm, arm_bf16; // arm64: what a NEON level may use besides
};

// Ask the processor and the operating system. For AMX this also asks the kernel for permission to use
// the tile registers, once for the whole process.
struct cpu_features cpu_features_detect(void);

// "scalar", "avx2", "avx512", "amx", "neon".
const char *cpu_level_name(enum cpu_level level);
bool cpu_level_parse(const char *name, enum cpu_level *out);
#endif
