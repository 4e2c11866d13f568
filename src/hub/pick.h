// hub/pick.h - which model, when nobody says: of the downloaded ones, or the one to get first.
#ifndef LOAM_HUB_PICK_H
#define LOAM_HUB_PICK_H
#include "hub/registry.h"

// The largest chat model that leaves two fifths of the memory to others, else the largest that fits at all;
// NULL if none does. Drafters and embedding models are never picked.
const struct hub_model *hub_pick_model(const struct hub_models *models, uint64_t memory_bytes);

// A model to begin with.
struct hub_starter {
    uint64_t memory_bytes; // of the smallest machine that it suits
    const char *repo;
    double download_gb; // about, 1e9 bytes
};
// The largest that suits a machine with this much memory.
const struct hub_starter *hub_starter(uint64_t memory_bytes);
#endif
