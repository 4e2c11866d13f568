#include "backend/cpu/cpu_kernels.h"

void cpu_kernels_fill(struct cpu_kernels *kernels, const struct cpu_features *features, enum cpu_level cap) {
    cpu_kernels_use_ref(kernels);
    enum cpu_level level = features->level < cap ? features->level : cap;
#if defined(__x86_64__)
    if (level >= CPU_LEVEL_AVX2)
        cpu_kernels_use_avx2(kernels, features);
    if (level >= CPU_LEVEL_AVX512)
        cpu_kernels_use_avx512(kernels, features);
    if (level >= CPU_LEVEL_AMX)
        cpu_kernels_use_amx(kernels, features);
#elif defined(__aarch64__)
    if (level >= CPU_LEVEL_NEON)
        cpu_kernels_use_neon(kernels, features);
#else
    (void)level;
#endif
}
