// hub/machine.h - how fast this machine is, and how fast others are: what `fit` predicts from.
// Any thread may call; measuring uses the backend, which belongs to one thread.
#ifndef LOAM_HUB_MACHINE_H
#define LOAM_HUB_MACHINE_H
#include "backend/backend.h"
#include "hub/scan.h"

enum speed_format { SPEED_QUANT, SPEED_DENSE, SPEED_FORMATS };

// Of matrix products as the model runs them, so that the kernels' own efficiency is in it.
struct machine_speed {
    double decode_bytes_per_s[SPEED_FORMATS];  // weights read, one token at a time
    double prefill_flops_per_s[SPEED_FORMATS]; // many tokens at once
};

// Measure (about a second). ERR_NOMEM, ERR_IO.
bool machine_speed_measure(struct backend *be, struct machine_speed *out, struct err *err);
// As measured before on this device with these threads (speed.json in loam's cache folder), else measure
// and keep. `again` measures in any case. *was_measured tells. `path` NULL = the usual file.
bool machine_speed_get(struct backend *be, const char *path, bool again, struct machine_speed *out,
                       bool *was_measured, struct err *err);

// Bytes of weights that one token reads: without the experts it does not use and the tables that only one
// row is taken from.
uint64_t machine_active_bytes(const struct hub_model *model);
// Tokens a second of one sequence whose cache and state take kv_bytes.
double machine_decode_tps(const struct machine_speed *speed, const struct hub_model *model, uint64_t kv_bytes);
// Tokens a second of a prompt.
double machine_prefill_tps(const struct machine_speed *speed, const struct hub_model *model);

// A kind of machine that people have or rent.
struct machine {
    const char *name;
    bool is_gpu;
    double memory_gb;     // of the device that holds weights and KV, 1e9 bytes
    double bandwidth_gbs; // of that memory, as its maker tells
    double tflops;        // bf16 dense, as its maker tells (CPU: int8 or bf16 units)
};
const struct machine *machine_table(size_t *n);
// What can be planned with: a GPU keeps some for its context, a host for everybody else.
uint64_t machine_usable_bytes(const struct machine *machine);
// The speeds that the makers' figures come to in practice.
struct machine_speed machine_expected_speed(const struct machine *machine);
#endif
