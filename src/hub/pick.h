// hub/pick.h - which model, when nobody says: of the downloaded ones, or the one to get first.
#ifndef LOAM_HUB_PICK_H
#define LOAM_HUB_PICK_H
#include "hub/registry.h"

// The largest chat model that leaves two fifths of the memory to others, else the largest that fits at all;
// NULL if none does. Drafters and embedding models are never picked.
const struct hub_model *hub_pick_model(const struct hub_models *models, uint64_t memory_bytes);

// The repository that suits a machine with this much memory for a start.
const char *hub_starter_repo(uint64_t memory_bytes);
#endif
