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

// 4-bit MLX conversions. The weights take at most about half of the memory: a nominal 16 GB machine counts as
// 15 GiB or less. From 32 GB on a mixture of experts is both the better and the faster one.
// Source: the repositories' pages; sizes are their parameters at 4.5 bits.
static const struct hub_starter STARTERS[] = {
    {30ull << 30, "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit", 17.2},
    {20ull << 30, "mlx-community/Qwen3-14B-4bit", 8.3},
    {10ull << 30, "mlx-community/Qwen3-8B-4bit", 4.6},
    {6ull << 30, "mlx-community/Qwen3-4B-Instruct-2507-4bit", 2.3},
    {3ull << 30, "mlx-community/Qwen3-1.7B-4bit", 1.0},
    {0, "mlx-community/Qwen3-0.6B-4bit", 0.3},
};

const struct hub_starter *hub_starter(uint64_t memory_bytes) {
    const struct hub_starter *s = STARTERS;
    while (memory_bytes < s->memory_bytes)
        s++;
    return s;
}
