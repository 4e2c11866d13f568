#include "cache/prefix_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum {
    STOP_TOKENS = 512,     // positions with a snapshot are at least so far apart
    STOP_END_TOKENS = 128, // a snapshot near a prompt's end spares at least so many
};

// Doubly linked, used last first.
struct link {
    struct link *newer, *older;
};

struct snapshot {
    struct link used; // first: a link is its snapshot
    uint64_t tick;
    struct node *node;
    uint32_t n_tokens; // of its node
    size_t n_bytes;
    char data[];
};

// A child is never used later than its parent, so the node used longest ago is a leaf.
struct node {
    struct link used; // first: a link is its node
    uint64_t tick;
    struct node *parent, *first_child, *prev, *next; // siblings
    uint64_t space;    // of children of the root
    uint32_t depth;    // the block of a table that its pages go to
    uint32_t n_tokens; // below KV_PAGE_TOKENS only for leaves
    int32_t tokens[KV_PAGE_TOKENS];
    uint32_t pages[KV_GROUPS_MAX]; // KV_PAGE_NONE for windowed groups
    struct snapshot *snapshot;     // NULL = none
};

struct prefix_cache {
    struct prefix_cache_options options;
    struct node root;
    struct link nodes, snapshots; // rings: .older is the first, .newer the last
    uint64_t tick;
    uint32_t n_groups, stop_tokens;
    uint64_t node_bytes;
    bool needs_snapshots;
    struct prefix_cache_stats stats;
};

// ---- Order of use -------------------------------------------------------------------------------
static void unlink_used(struct link *link) {
    link->newer->older = link->older;
    link->older->newer = link->newer;
}

static void link_first(struct link *ring, struct link *link) {
    link->newer = ring;
    link->older = ring->older;
    ring->older->newer = link;
    ring->older = link;
}

static void touch_snapshot(struct prefix_cache *cache, struct snapshot *snapshot) {
    unlink_used(&snapshot->used);
    link_first(&cache->snapshots, &snapshot->used);
    snapshot->tick = cache->tick;
}

// A path, leaf first, so that parents end up in front of their children.
static void touch(struct prefix_cache *cache, struct node *node) {
    cache->tick++;
    for (; node != &cache->root; node = node->parent) {
        unlink_used(&node->used);
        link_first(&cache->nodes, &node->used);
        node->tick = cache->tick;
    }
}

static bool is_full(const struct prefix_cache *cache, uint32_t group) {
    return kv_cache_window(cache->options.device.kv, group) == 0;
}

// ---- Letting go ---------------------------------------------------------------------------------
static void drop_snapshot(struct prefix_cache *cache, struct node *node) {
    struct snapshot *snapshot = node->snapshot;
    if (!snapshot)
        return;
    unlink_used(&snapshot->used);
    cache->stats.bytes -= snapshot->n_bytes;
    cache->stats.snapshot_bytes -= snapshot->n_bytes;
    cache->stats.n_snapshots--;
    node->snapshot = NULL;
    free(snapshot);
}

static void drop_leaf(struct prefix_cache *cache, struct node *node) {
    assert(!node->first_child);
    drop_snapshot(cache, node);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        if (node->pages[g] != KV_PAGE_NONE)
            kv_cache_release(cache->options.device.kv, g, node->pages[g]);
    if (node->prev)
        node->prev->next = node->next;
    else
        node->parent->first_child = node->next;
    if (node->next)
        node->next->prev = node->prev;
    unlink_used(&node->used);
    cache->stats.bytes -= cache->node_bytes;
    cache->stats.n_nodes--;
    cache->stats.n_evicted++;
    free(node);
}

// A leaf without a snapshot is of no use to a model that needs one: it goes, and so may its parents.
static void prune(struct prefix_cache *cache, struct node *node) {
    while (cache->needs_snapshots && node != &cache->root && !node->first_child && !node->snapshot) {
        struct node *parent = node->parent;
        drop_leaf(cache, node);
        node = parent;
    }
}

static void drop_oldest_snapshot(struct prefix_cache *cache) {
    struct node *node = ((struct snapshot *)cache->snapshots.newer)->node;
    drop_snapshot(cache, node);
    prune(cache, node);
}

static void drop_oldest_leaf(struct prefix_cache *cache) {
    struct node *node = (struct node *)cache->nodes.newer, *parent = node->parent;
    drop_leaf(cache, node);
    prune(cache, parent);
}

static void trim(struct prefix_cache *cache) {
    while (cache->stats.snapshot_bytes > cache->options.snapshot_bytes_max)
        drop_oldest_snapshot(cache);
    while (cache->stats.bytes > cache->options.bytes_max && cache->stats.n_nodes) {
        const struct node *node = (struct node *)cache->nodes.newer;
        const struct snapshot *snapshot = (struct snapshot *)cache->snapshots.newer;
        if (cache->stats.n_snapshots && snapshot->tick <= node->tick)
            drop_oldest_snapshot(cache);
        else
            drop_oldest_leaf(cache);
    }
}

void prefix_cache_clear(struct prefix_cache *cache) {
    while (cache->stats.n_nodes)
        drop_oldest_leaf(cache);
}

bool prefix_cache_give_way(struct prefix_cache *cache, uint32_t group, uint32_t n) {
    const struct kv_cache *kv = cache->options.device.kv;
    // Parents come after their children on the way from the last used, so one pass sees all that become leaves.
    for (struct link *link = cache->nodes.newer; link != &cache->nodes && kv_cache_n_free(kv, group) < n;) {
        struct node *node = (struct node *)link;
        link = link->newer;
        if (node->first_child || node->pages[group] == KV_PAGE_NONE ||
            kv_cache_references(kv, group, node->pages[group]) > 1)
            continue;
        drop_leaf(cache, node); // what this leaves without a snapshot is next to go
    }
    return kv_cache_n_free(kv, group) >= n;
}

// ---- Life ---------------------------------------------------------------------------------------
struct prefix_cache *prefix_cache_create(const struct prefix_cache_options *options, struct err *err) {
    struct prefix_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        err_set(err, ERR_NOMEM, "out of memory for the prompt cache");
        return NULL;
    }
    cache->options = *options;
    cache->nodes = (struct link){&cache->nodes, &cache->nodes};
    cache->snapshots = (struct link){&cache->snapshots, &cache->snapshots};
    cache->n_groups = kv_cache_n_groups(options->device.kv);
    cache->needs_snapshots = snapshot_is_needed(&options->device);
    cache->node_bytes = sizeof(struct node);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        if (is_full(cache, g))
            cache->node_bytes += options->device.page_bytes[g];
    // A snapshot for every so many tokens as take its bytes: snapshots at most double what is kept.
    uint64_t stop = STOP_TOKENS;
    if (cache->needs_snapshots) {
        uint64_t blocks = snapshot_bytes(&options->device, UINT32_MAX / 2) / cache->node_bytes;
        stop = (blocks * KV_PAGE_TOKENS + STOP_TOKENS - 1) / STOP_TOKENS * STOP_TOKENS;
    }
    cache->stop_tokens = stop > UINT32_MAX / 4 ? UINT32_MAX / 4 / STOP_TOKENS * STOP_TOKENS
                                               : max_u32((uint32_t)stop, STOP_TOKENS);
    return cache;
}

void prefix_cache_destroy(struct prefix_cache *cache) {
    if (!cache)
        return;
    prefix_cache_clear(cache);
    free(cache);
}

void prefix_cache_stats(const struct prefix_cache *cache, struct prefix_cache_stats *out) {
    *out = cache->stats;
    out->bytes_max = cache->options.bytes_max;
}

// ---- Looking up ---------------------------------------------------------------------------------
static uint32_t n_common(const struct node *node, const int32_t *tokens, uint32_t n) {
    uint32_t i = 0, most = min_u32(node->n_tokens, n);
    while (i < most && node->tokens[i] == tokens[i])
        i++;
    return i;
}

static bool is_child(const struct prefix_cache *cache, const struct node *node, const struct node *child,
                     uint64_t space) {
    return node != &cache->root || child->space == space;
}

struct prefix_hit prefix_cache_find(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_max,
                                    struct kv_seq *seq) {
    assert(seq->n_blocks == 0);
    struct prefix_hit hit = {0};
    struct node *best = NULL, *node = &cache->root;
    for (uint32_t off = 0; node && off < n_max; off += KV_PAGE_TOKENS) {
        struct node *whole = NULL;
        for (struct node *child = node->first_child; child; child = child->next) {
            if (!is_child(cache, node, child, space))
                continue;
            uint32_t n = n_common(child, tokens + off, n_max - off);
            if (n == KV_PAGE_TOKENS)
                whole = child;
            if (cache->needs_snapshots)
                n = child->snapshot && child->snapshot->n_tokens <= n ? child->snapshot->n_tokens : 0;
            if (n == 0 || off + n <= hit.n_tokens)
                continue;
            best = child;
            hit.n_tokens = off + n;
        }
        node = whole;
    }
    if (!best)
        return hit;
    touch(cache, best);
    if (best->snapshot && cache->needs_snapshots) {
        touch_snapshot(cache, best->snapshot);
        hit.snapshot = best->snapshot->data;
    }
    seq->n_blocks = best->depth + 1;
    for (; best != &cache->root; best = best->parent) {
        for (uint32_t g = 0; g < cache->n_groups; g++) {
            if (best->pages[g] == KV_PAGE_NONE)
                continue;
            kv_cache_acquire(cache->options.device.kv, g, best->pages[g]);
            seq->table[g][best->depth] = best->pages[g];
        }
    }
    return hit;
}

bool prefix_cache_restore(struct prefix_cache *cache, const struct prefix_hit *hit, struct kv_seq *seq,
                          uint32_t state_slot) {
    return !hit->snapshot ||
           snapshot_restore(&cache->options.device, seq, state_slot, hit->n_tokens, hit->snapshot);
}

// ---- Keeping ------------------------------------------------------------------------------------
static void take_pages(struct prefix_cache *cache, struct node *node, const struct kv_seq *seq) {
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        node->pages[g] = is_full(cache, g) ? seq->table[g][node->depth] : KV_PAGE_NONE;
        if (node->pages[g] != KV_PAGE_NONE)
            kv_cache_acquire(cache->options.device.kv, g, node->pages[g]);
    }
}

static struct node *add_child(struct prefix_cache *cache, struct node *parent, uint64_t space, uint32_t depth,
                              const int32_t *tokens, uint32_t n, const struct kv_seq *seq) {
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->parent = parent;
    node->space = space;
    node->depth = depth;
    node->n_tokens = n;
    memcpy(node->tokens, tokens, n * sizeof *tokens);
    take_pages(cache, node, seq);
    node->next = parent->first_child;
    if (node->next)
        node->next->prev = node;
    parent->first_child = node;
    link_first(&cache->nodes, &node->used);
    cache->stats.n_nodes++;
    cache->stats.bytes += cache->node_bytes;
    return node;
}

// The child that holds these n tokens (and maybe more after them); one that holds fewer of them grows.
static struct node *child_for(struct prefix_cache *cache, struct node *parent, uint64_t space, uint32_t depth,
                              const int32_t *tokens, uint32_t n, const struct kv_seq *seq) {
    struct node *shorter = NULL;
    for (struct node *child = parent->first_child; child; child = child->next) {
        uint32_t common = is_child(cache, parent, child, space) ? n_common(child, tokens, n) : 0;
        if (common == n)
            return child;
        if (common && common == child->n_tokens)
            shorter = child;
    }
    if (!shorter)
        return add_child(cache, parent, space, depth, tokens, n, seq);
    uint32_t before[KV_GROUPS_MAX];
    memcpy(before, shorter->pages, sizeof before);
    take_pages(cache, shorter, seq);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        if (before[g] != KV_PAGE_NONE)
            kv_cache_release(cache->options.device.kv, g, before[g]);
    memcpy(shorter->tokens, tokens, n * sizeof *tokens);
    shorter->n_tokens = n;
    return shorter;
}

static void add_snapshot(struct prefix_cache *cache, struct node *node, uint32_t n_of_node,
                         const struct kv_seq *seq, uint32_t state_slot) {
    uint32_t n_tokens = node->depth * KV_PAGE_TOKENS + n_of_node;
    if (node->snapshot && node->snapshot->n_tokens == n_of_node) {
        touch_snapshot(cache, node->snapshot);
        return;
    }
    size_t n_bytes = snapshot_bytes(&cache->options.device, n_tokens);
    if (n_bytes > cache->options.snapshot_bytes_max)
        return;
    struct snapshot *snapshot = malloc(sizeof *snapshot + n_bytes);
    if (!snapshot || !snapshot_take(&cache->options.device, seq, state_slot, n_tokens, snapshot->data)) {
        free(snapshot);
        return;
    }
    drop_snapshot(cache, node);
    snapshot->node = node;
    snapshot->n_tokens = n_of_node;
    snapshot->n_bytes = n_bytes;
    snapshot->tick = cache->tick;
    link_first(&cache->snapshots, &snapshot->used);
    node->snapshot = snapshot;
    cache->stats.n_snapshots++;
    cache->stats.bytes += n_bytes;
    cache->stats.snapshot_bytes += n_bytes;
}

void prefix_cache_insert(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_tokens,
                         const struct kv_seq *seq, uint32_t state_slot) {
    struct node *node = &cache->root;
    uint32_t n = 0;
    for (uint32_t off = 0; off < n_tokens; off += KV_PAGE_TOKENS) {
        n = min_u32(n_tokens - off, KV_PAGE_TOKENS);
        struct node *child = child_for(cache, node, space, off / KV_PAGE_TOKENS, tokens + off, n, seq);
        if (!child)
            break;
        node = child;
    }
    if (node == &cache->root)
        return;
    touch(cache, node);
    if (cache->needs_snapshots) {
        if (node->depth == (n_tokens - 1) / KV_PAGE_TOKENS)
            add_snapshot(cache, node, n, seq, state_slot);
        prune(cache, node);
    }
    trim(cache);
}

// The next position after n_done where a snapshot pays, UINT32_MAX if there is none in the prompt: every stop_tokens,
// and the last page border before the prompt's end, which the next turn of a conversation shares.
static uint32_t next_stop(const struct prefix_cache *cache, uint32_t n_done, uint32_t n_cached, uint32_t n_prompt) {
    uint32_t next = n_done / cache->stop_tokens * cache->stop_tokens + cache->stop_tokens;
    uint32_t end = n_prompt ? (n_prompt - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS : 0;
    if (end >= n_cached + STOP_END_TOKENS && end > n_done && end < next)
        return end;
    return next < n_prompt ? next : UINT32_MAX;
}

void prefix_cache_keep(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_before,
                       uint32_t n_done, uint32_t n_cached, uint32_t n_prompt, const struct kv_seq *seq,
                       uint32_t state_slot) {
    if (!cache->needs_snapshots) {
        uint32_t whole = min_u32(n_done, n_prompt) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
        if (whole > n_before)
            prefix_cache_insert(cache, space, tokens, whole, seq, state_slot);
        return;
    }
    for (uint32_t stop = n_before;
         (stop = next_stop(cache, stop, n_cached, n_prompt)) <= n_done;)
        if (stop == n_done || !cache->options.device.states)
            prefix_cache_insert(cache, space, tokens, stop, seq, state_slot);
}

uint32_t prefix_cache_chunk_end(const struct prefix_cache *cache, uint32_t n_done, uint32_t n_cached,
                                uint32_t n_prompt) {
    return cache->options.device.states ? next_stop(cache, n_done, n_cached, n_prompt) : UINT32_MAX;
}
