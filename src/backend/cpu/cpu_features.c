#include "backend/cpu/cpu_features.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static const char *const LEVEL_NAMES[CPU_LEVEL_N] = {"scalar", "avx2", "avx512", "amx", "neon"};

const char *cpu_level_name(enum cpu_level level) {
    return LEVEL_NAMES[level];
}

bool cpu_level_parse(const char *name, enum cpu_level *out) {
    for (int i = 0; i < CPU_LEVEL_N; i++) {
        if (strcmp(name, LEVEL_NAMES[i]) == 0) {
            *out = (enum cpu_level)i;
            return true;
        }
    }
    return false;
}

#if defined(__x86_64__)
struct cpuid_regs {
    uint32_t eax, ebx, ecx, edx;
};

static struct cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) {
    struct cpuid_regs r = {0};
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx))
        memset(&r, 0, sizeof r);
    return r;
}

// The register state that the operating system saves (XCR0).
static uint64_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

// Linux hands out the 8 KiB tile state only to processes that ask (Documentation/arch/x86/xstate.rst).
static bool amx_permitted(void) {
    enum { ARCH_REQ_XCOMP_PERM_ = 0x1023, XFEATURE_XTILEDATA_ = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_XTILEDATA_) == 0;
}

// Bit numbers: Intel SDM vol. 2A, CPUID, leaves 1 and 7.
struct cpu_features cpu_features_detect(void) {
    struct cpu_features out = {.level = CPU_LEVEL_SCALAR};
    struct cpuid_regs l1 = cpuid(1, 0), l7 = cpuid(7, 0), l7_1 = cpuid(7, 1);
    bool osxsave = l1.ecx >> 27 & 1;
    if (!osxsave)
        return out;
    uint64_t state = xcr0();
    bool fma = l1.ecx >> 12 & 1, f16c = l1.ecx >> 29 & 1, avx2 = l7.ebx >> 5 & 1;
    if ((state & 0x6) != 0x6 || !fma || !f16c || !avx2)
        return out;
    out.level = CPU_LEVEL_AVX2;
    out.avx_vnni = l7_1.eax >> 4 & 1;
    const uint32_t EBX = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31; // F DQ CD BW VL
    const uint32_t ECX = 1u << 1 | 1u << 11;                                   // VBMI VNNI
    bool avx512_bf16 = l7_1.eax >> 5 & 1;
    if ((state & 0xE6) != 0xE6 || (l7.ebx & EBX) != EBX || (l7.ecx & ECX) != ECX || !avx512_bf16)
        return out;
    out.level = CPU_LEVEL_AVX512;
    const uint32_t AMX = 1u << 22 | 1u << 24 | 1u << 25; // BF16 TILE INT8
    if ((state & 0x60000) == 0x60000 && (l7.edx & AMX) == AMX && amx_permitted())
        out.level = CPU_LEVEL_AMX;
    return out;
}
#elif defined(__aarch64__)
// Bit numbers: Linux, arch/arm64/include/uapi/asm/hwcap.h.
struct cpu_features cpu_features_detect(void) {
    unsigned long hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
    return (struct cpu_features){
        .level = CPU_LEVEL_NEON,
        .arm_dot = hwcap >> 20 & 1,
        .arm_i8mm = hwcap2 >> 13 & 1,
        .arm_bf16 = hwcap2 >> 14 & 1,
    };
}
#else
struct cpu_features cpu_features_detect(void) {
    return (struct cpu_features){.level = CPU_LEVEL_SCALAR};
}
#endif
