#include "engine/plan.h"

#include "base/checked.h"
#include "base/host_memory.h"
#include "cache/kv_cache.h"

enum { CTX_LEN_MIN = 512, ROWS_DEFAULT = 8, STEP_TOKENS_DEFAULT = 512 };

// Pages of a group that one sequence of ctx_len holds at most: all of them, or its window, the chunk being
// prefilled and a page at either end.
static uint32_t pages_of_row(uint32_t window, uint32_t ctx_len, uint32_t step_tokens) {
    uint32_t all = kv_blocks_of(ctx_len);
    return window ? min_u32(all, kv_blocks_of((uint64_t)window + step_tokens) + 1) : all;
}

// Bytes of the pools for n sequences' worth of pages.
static uint64_t kv_bytes(const struct model_memory *memory, const struct model_limits *limits) {
    uint64_t total = 0;
    for (uint32_t g = 0; g < memory->n_groups; g++)
        total += memory->group_page_bytes[g] * limits->n_pages[g];
    return total;
}

static void set_pages(const struct model_memory *memory, struct model_limits *limits, uint64_t n_rows_x64) {
    for (uint32_t g = 0; g < memory->n_groups; g++) {
        uint64_t row = pages_of_row(memory->group_window[g], limits->ctx_len, limits->n_tokens);
        uint64_t pages = (row * n_rows_x64 + 63) / 64;
        limits->n_pages[g] = (uint32_t)(pages > UINT32_MAX / 2 ? UINT32_MAX / 2 : pages);
    }
}

// Host memory for the prompt cache's snapshots, of models that need any: what was asked for, but at most what the
// rest of the plan leaves, and without a limit half of that.
static uint64_t snapshot_bytes_max(const struct model_memory *memory, const struct engine_options *options,
                                   bool is_host, bool enforced, uint64_t left) {
    bool needed = memory->state_slot_bytes > 0;
    for (uint32_t g = 0; g < memory->n_groups; g++)
        needed |= memory->group_window[g] > 0;
    if (!needed)
        return 0;
    if (!is_host) {
        struct host_memory host;
        host_memory_read(&host);
        left = host.available_bytes;
        enforced = false;
    }
    left = enforced ? left : left / 2;
    return options->prompt_cache_bytes < left ? options->prompt_cache_bytes : left;
}

bool engine_plan_make(const struct model *model, const struct engine_options *options,
                      struct engine_plan *plan, struct err *err) {
    struct model_memory memory;
    model_memory(model, &memory);
    struct backend *be = model_backend(model);
    struct backend_memory device;
    be->ops->memory(be, &device);
    uint32_t n_rows = options->n_rows ? options->n_rows : ROWS_DEFAULT;
    uint32_t step_tokens = options->step_tokens ? options->step_tokens : STEP_TOKENS_DEFAULT;
    uint32_t model_ctx = model_config_of(model)->ctx_len_max;
    *plan = (struct engine_plan){.weight_bytes = memory.weight_bytes};
    struct model_limits *limits = &plan->limits;
    limits->n_rows = limits->n_logits = n_rows;
    limits->n_tokens = max_u32(step_tokens, n_rows);
    limits->ctx_len = options->ctx_len ? options->ctx_len : model_ctx;
    limits->n_state_slots = memory.state_slot_bytes ? n_rows + 1 : 0;
    plan->state_bytes = memory.state_slot_bytes * limits->n_state_slots;
    for (uint32_t g = 0; g < memory.n_groups; g++)
        plan->kv_bytes_per_token += memory.group_window[g] ? 0 : memory.group_page_bytes[g] / KV_PAGE_TOKENS;

    // Mapped weights stay in the page cache and may be dropped, so they count against what the machine
    // has in all, the rest against what is free now.
    uint64_t total = device.total_bytes, available = device.free_bytes;
    if (device.is_host) {
        struct host_memory host;
        host_memory_read(&host);
        total = host.limit_bytes;
        available = host.available_bytes;
    }
    plan->enforced = options->memory_budget_bytes > 0;
    uint64_t ceiling = plan->enforced ? options->memory_budget_bytes : total - total / 10;
    plan->usable_bytes = ceiling;
    uint64_t left = ceiling > plan->weight_bytes ? ceiling - plan->weight_bytes : 0;
    if (!plan->enforced && device.is_host && available - available / 10 < left)
        left = available - available / 10;
    for (;;) {
        if (model_is_encoder(model)) // a text is read in one step
            limits->n_tokens = max_u32(max_u32(step_tokens, n_rows), limits->ctx_len);
        plan->workspace_bytes = model_workspace_bytes(model, limits);
        uint64_t fixed = plan->workspace_bytes + plan->state_bytes;
        uint64_t for_kv = left > fixed ? left - fixed : 0;
        if (!plan->enforced && device.is_host)
            for_kv /= 2; // be a good neighbour on a shared machine
        if (options->kv_budget_bytes && options->kv_budget_bytes < for_kv)
            for_kv = options->kv_budget_bytes;
        set_pages(&memory, limits, 64);
        uint64_t one_row = kv_bytes(&memory, limits);
        if (one_row <= for_kv) {
            // As many rows as fit, in 64ths of a row, up to all of them.
            uint64_t x64 = (uint64_t)n_rows * 64;
            if (one_row && for_kv / one_row < n_rows)
                x64 = for_kv * 64 / one_row;
            set_pages(&memory, limits, x64 < 64 ? 64 : x64);
            plan->kv_bytes = kv_bytes(&memory, limits);
            fixed += plan->kv_bytes;
            plan->snapshot_bytes_max = snapshot_bytes_max(&memory, options, device.is_host, plan->enforced,
                                                          left > fixed ? left - fixed : 0);
            return true;
        }
        if (options->ctx_len || limits->ctx_len / 2 < CTX_LEN_MIN)
            return err_set(err, ERR_NOMEM,
                           "a context of %u tokens needs %.1f GiB of KV cache beside %.1f GiB of weights; "
                           "%.1f GiB are left for it: ask for a shorter --context-length, a smaller "
                           "--kv-quant or a smaller model",
                           limits->ctx_len, (double)one_row / 0x1p30, (double)plan->weight_bytes / 0x1p30,
                           (double)for_kv / 0x1p30);
        limits->ctx_len /= 2;
    }
}
