// backend/cpu/cpu_kernels.h - the table of inner loops. cpu_kernels_fill() starts it with the scalar
// references, which are the specification, then lets each level up to the cap overwrite what it does
// better. Immutable afterwards.
//
// Every entry keeps rule 2: the bits of an output depend on the element's own inputs and on nothing
// else, not on how many rows or elements a call gets. Levels may differ from each other in bits.
#ifndef LOAM_BACKEND_CPU_CPU_KERNELS_H
#define LOAM_BACKEND_CPU_CPU_KERNELS_H
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_features.h"
#include "backend/cpu/linear_kernels.h"

// y = up * act(gate), elementwise; see enum glu_kind. y may be gate or up.
typedef void glu_fn(enum glu_kind kind, const float *gate, const float *up, float *y, size_t n, float alpha,
                    float limit);

struct cpu_kernels {
    struct linear_kernels linear; // the matrix products' own
    glu_fn *glu;
};

// The table of the best level that is not above `cap`.
void cpu_kernels_fill(struct cpu_kernels *kernels, const struct cpu_features *features, enum cpu_level cap);

void cpu_kernels_use_ref(struct cpu_kernels *kernels);
void cpu_kernels_use_avx2(struct cpu_kernels *kernels, const struct cpu_features *features);
void cpu_kernels_use_avx512(struct cpu_kernels *kernels, const struct cpu_features *features);
void cpu_kernels_use_amx(struct cpu_kernels *kernels, const struct cpu_features *features);
void cpu_kernels_use_neon(struct cpu_kernels *kernels, const struct cpu_features *features);
#endif
