#include "hub/pick.h"

const struct hub_model *hub_pick_model(const struct hub_models *models, uint64_t memory_bytes) {
    const struct hub_model *polite = NULL, *any = NULL;
    for (size_t i = 0; i < models->n; i++) { // smallest first: the last that qualifies is the largest
        const struct hub_model *m = &models->models[i];
        if (m->problem[0] || !m->is_canonical || m->is_drafter || m->is_embedding)
            continue;
        uint64_t bytes = hub_model_serve_bytes(m);
        if (bytes <= memory_bytes / 5 * 3)
            polite = m;
        if (bytes <= memory_bytes - memory_bytes / 10)
            any = m;
    }
    return polite ? polite : any;
}

const char *hub_starter_repo(uint64_t memory_bytes) {
    // 4-bit MLX conversions; a model's weights should take at most about half of the memory.
    static const struct {
        uint64_t memory_gib;
        const char *repo;
    } STARTERS[] = {
        {48, "mlx-community/Qwen3-30B-A3B-4bit"},
        {24, "mlx-community/Qwen3-14B-4bit"},
        {12, "mlx-community/Qwen3-8B-4bit"},
        {6, "mlx-community/Qwen3-4B-4bit"},
        {3, "mlx-community/Qwen3-1.7B-4bit"},
    };
    for (size_t i = 0; i < sizeof STARTERS / sizeof *STARTERS; i++)
        if (memory_bytes >= STARTERS[i].memory_gib << 30)
            return STARTERS[i].repo;
    return "mlx-community/Qwen3-0.6B-4bit";
}
