#include "backend/cpu/roofline.h"

#include <string.h>

#include "backend/cpu/cpu_backend.h"
#include "base/checked.h"
#include "base/clock.h"

// ---- Arithmetic -----------------------------------------------------------------------------------
// The instructions are written out, with registers by name: so this file needs no instruction set flags, and no
// compiler can take a chain apart. Twelve independent sums hide the latency of two multipliers. All operands are
// zero, which no processor does faster.
enum { LOOPS = 20000 };

typedef double peak_fn(void); // operations done

#if defined(__x86_64__)
#define TWELVE(I) I(0) I(1) I(2) I(3) I(4) I(5) I(6) I(7) I(8) I(9) I(10) I(11)
#define CLOBBERED                                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",  \
        "xmm13", "xmm14", "xmm15", "cc"
#define ZERO(n) "vpxor %%xmm" #n ",%%xmm" #n ",%%xmm" #n "\n\t"
// Zeroing an xmm register zeroes all of it.
#define PEAK(name, I, ops_each)                                                                          \
    static double name(void) {                                                                           \
        uint32_t turns = LOOPS;                                                                          \
        __asm__ volatile(TWELVE(ZERO) ZERO(12) ZERO(13) ZERO(14) "1:\n\t" TWELVE(I)                      \
                         "decl %0\n\tjnz 1b\n\tvzeroupper"                                               \
                         : "+r"(turns)::CLOBBERED);                                                      \
        return 12.0 * LOOPS * (ops_each);                                                                \
    }
#define FMA_YMM(n) "vfmadd231ps %%ymm12,%%ymm13,%%ymm" #n "\n\t"
#define FMA_ZMM(n) "vfmadd231ps %%zmm12,%%zmm13,%%zmm" #n "\n\t"
#define BF16_ZMM(n) "vdpbf16ps %%zmm12,%%zmm13,%%zmm" #n "\n\t"
#define INT8_ZMM(n) "vpdpbusd %%zmm12,%%zmm13,%%zmm" #n "\n\t"
// Without VNNI a product of 32 codes is summed to 16 bits and added; the widening that follows now and then is left out.
#define INT8_YMM(n) "vpmaddubsw %%ymm12,%%ymm13,%%ymm14\n\tvpaddw %%ymm14,%%ymm" #n ",%%ymm" #n "\n\t"
PEAK(f32_avx2, FMA_YMM, 16)
PEAK(int8_avx2, INT8_YMM, 64)
PEAK(f32_avx512, FMA_ZMM, 32)
PEAK(bf16_avx512, BF16_ZMM, 64)
PEAK(int8_avx512, INT8_ZMM, 128)

// Four tiles of sums, two of each factor, all of 16 rows of 64 bytes (Intel SDM, "LDTILECFG").
#define AMX_PEAK(name, instruction, ops_each)                                                            \
    static double name(void) {                                                                           \
        struct {                                                                                         \
            uint8_t palette, start_row, reserved[14];                                                    \
            uint16_t row_bytes[16];                                                                      \
            uint8_t rows[16];                                                                            \
        } config = {.palette = 1};                                                                       \
        for (int i = 0; i < 8; i++) {                                                                    \
            config.row_bytes[i] = 64;                                                                    \
            config.rows[i] = 16;                                                                         \
        }                                                                                                \
        uint32_t turns = LOOPS / 4;                                                                      \
        __asm__ volatile("ldtilecfg %1\n\t"                                                              \
                         "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"  \
                         "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7\n\t"  \
                         "1:\n\t" instruction " %%tmm6,%%tmm4,%%tmm0\n\t" instruction " %%tmm7,%%tmm4,%%tmm1\n\t"  \
                         instruction " %%tmm6,%%tmm5,%%tmm2\n\t" instruction " %%tmm7,%%tmm5,%%tmm3\n\t" \
                         "decl %0\n\tjnz 1b\n\ttilerelease"                                              \
                         : "+r"(turns) : "m"(config) : "cc");                                            \
        return 4.0 * (LOOPS / 4) * (ops_each);                                                           \
    }
AMX_PEAK(int8_amx, "tdpbsud", 2.0 * 16 * 16 * 64)
AMX_PEAK(bf16_amx, "tdpbf16ps", 2.0 * 16 * 16 * 32)
#elif defined(__aarch64__)
#define TWELVE(I) I(0) I(1) I(2) I(3) I(4) I(5) I(6) I(7) I(16) I(17) I(18) I(19)
#define CLOBBERED                                                                                        \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "cc"
#define ZERO(n) "movi v" #n ".4s, #0\n\t"
#define PEAK(name, I, ops_each)                                                                          \
    static double name(void) {                                                                           \
        uint32_t turns = LOOPS;                                                                          \
        __asm__ volatile(".arch armv8.6-a+dotprod+bf16\n\t" TWELVE(ZERO) ZERO(20) ZERO(21) "1:\n\t" TWELVE(I) \
                         "subs %w0, %w0, #1\n\tb.ne 1b"                                                  \
                         : "+r"(turns)::CLOBBERED);                                                      \
        return 12.0 * LOOPS * (ops_each);                                                                \
    }
#define FMA_NEON(n) "fmla v" #n ".4s, v20.4s, v21.4s\n\t"
#define DOT_NEON(n) "sdot v" #n ".4s, v20.16b, v21.16b\n\t"
#define BF16_NEON(n) "bfdot v" #n ".4s, v20.8h, v21.8h\n\t"
PEAK(f32_neon, FMA_NEON, 8)
PEAK(int8_neon, DOT_NEON, 32)
PEAK(bf16_neon, BF16_NEON, 16)
#endif

struct peaks {
    peak_fn *int8, *bf16, *f32; // NULL: none
};

static struct peaks peaks_of(const struct cpu_backend *cb) {
    struct peaks p = {0};
#if defined(__x86_64__)
    if (cb->level >= CPU_LEVEL_AVX2)
        p = (struct peaks){int8_avx2, NULL, f32_avx2};
    if (cb->level >= CPU_LEVEL_AVX512)
        p = (struct peaks){int8_avx512, bf16_avx512, f32_avx512};
    if (cb->level >= CPU_LEVEL_AMX)
        p = (struct peaks){int8_amx, bf16_amx, f32_avx512};
#elif defined(__aarch64__)
    if (cb->level >= CPU_LEVEL_NEON)
        p = (struct peaks){cb->features.arm_dot ? int8_neon : NULL, cb->features.arm_bf16 ? bf16_neon : NULL, f32_neon};
#else
    (void)cb;
#endif
    return p;
}

enum { TURNS = 5, TILES_A_THREAD = 8 };

struct peak_job {
    peak_fn *fn;
    double ops; // of a tile, the same of each
};

static void peak_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    struct peak_job *j = job;
    double ops = j->fn();
    (void)thread_idx;
    if (tile_idx == 0)
        j->ops = ops;
}

static double peak_measure(struct cpu_backend *cb, peak_fn *fn) {
    if (!fn)
        return 0;
    struct peak_job job = {.fn = fn};
    uint32_t n_tiles = cb->n_threads * TILES_A_THREAD;
    double best = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t start = clock_ns();
        thread_pool_run(cb->pool, peak_tile, &job, n_tiles);
        double rate = job.ops * n_tiles / (clock_ms_since(start) / 1e3);
        best = rate > best ? rate : best;
    }
    return best;
}

// ---- Memory ---------------------------------------------------------------------------------------
// As decoding reads weights: each thread neighbouring pieces, in order, asked for a little ahead.
enum { READ_TILE_BYTES = 1 << 20, READ_AHEAD_BYTES = 4096 };
static const size_t READ_BYTES_MIN = (size_t)256 << 20, READ_BYTES_A_THREAD = (size_t)64 << 20;

typedef uint64_t pair __attribute__((vector_size(16)));

static void read_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const char *p = (const char *)job + (size_t)tile_idx * READ_TILE_BYTES, *end = p + READ_TILE_BYTES;
    pair sums[4] = {0};
    for (; p < end; p += 64) {
        const pair *line = (const pair *)(const void *)p;
        __builtin_prefetch(p + READ_AHEAD_BYTES);
        for (int i = 0; i < 4; i++)
            sums[i] ^= line[i];
    }
    pair all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    __asm__ volatile("" : : "r"(all[0] ^ all[1]));
}

static bool read_measure(struct cpu_backend *cb, double *bytes_per_s, struct err *err) {
    size_t n_bytes = max_size(READ_BYTES_MIN, READ_BYTES_A_THREAD * cb->n_threads);
    // A piece more, which the last tile asks for and nobody reads.
    char *memory = cpu_alloc(n_bytes + READ_AHEAD_BYTES);
    if (!memory)
        return err_set(err, ERR_NOMEM, "out of memory for %zu MiB to measure the read rate with", n_bytes >> 20);
    memset(memory, 1, n_bytes); // pages of their own, not the one page of zeros
    *bytes_per_s = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t start = clock_ns();
        thread_pool_run(cb->pool, read_tile, memory, (uint32_t)(n_bytes / READ_TILE_BYTES));
        double rate = (double)n_bytes / (clock_ms_since(start) / 1e3);
        *bytes_per_s = rate > *bytes_per_s ? rate : *bytes_per_s;
    }
    cpu_free(memory);
    return true;
}

bool cpu_roofs_measure(struct backend *be, struct cpu_roofs *out, struct err *err) {
    struct cpu_backend *cb = cpu_backend(be);
    struct peaks peaks = peaks_of(cb);
    *out = (struct cpu_roofs){0};
    if (!read_measure(cb, &out->read_bytes, err))
        return false;
    out->int8_ops = peak_measure(cb, peaks.int8);
    out->bf16_ops = peak_measure(cb, peaks.bf16);
    out->f32_ops = peak_measure(cb, peaks.f32);
    return true;
}

struct cpu_work cpu_work_done(const struct backend *be) {
    return ((const struct cpu_backend *)be)->work;
}
