#include "cache/prefix_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"

enum {
    STOP_TOKENS = 512,     // positions with a snapshot are at least so far apart
    STOP_END_TOKENS = 128, // a snapshot near a prompt's end spares at least so many
    ANSWER_TOKENS = 64,    // and one at an answer's end, whose copy takes a part of what so many took
    LOAD_TOKENS_MIN = 128, // what is not worth a load
    LOAD_AHEAD_BYTES = 64 << 20, // blobs of a load that are on their way
    LOAD_STUCK_MS = 10000,       // a disk that answers nothing for so long is not waited for
    SPILL_RETRY_MS = 1000,       // when there was no room to write
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
    uint64_t used_ns;
    bool is_stored; // on disk, or on its way
    void *data;     // [n_bytes]
};

// A child is never used later than its parent, so the node used longest ago is a leaf.
struct node {
    struct link used; // first: a link is its node
    uint64_t tick;
    struct node *parent;
    // In the order of their spaces and tokens, so that those which begin like a given text are neighbours. None begins
    // with all of another's tokens: that one would have grown.
    struct node **children; // [n_children]
    uint32_t n_children, n_children_max;
    uint32_t n_inner_snapshots; // of children, before the end of a page
    uint64_t space;
    uint32_t depth;    // the block of a table that its pages go to
    uint32_t n_tokens; // below KV_PAGE_TOKENS only for leaves
    int32_t tokens[KV_PAGE_TOKENS];
    uint32_t pages[KV_GROUPS_MAX]; // KV_PAGE_NONE for windowed groups
    struct snapshot *snapshot;     // NULL = none
    uint64_t used_ns;
    struct disk_key key; // of a whole page, with a disk cache
    bool is_stored;      // on disk, or on its way
};

struct prefix_cache {
    struct prefix_cache_options options;
    struct node root;
    struct link nodes, snapshots; // rings: .older is the first, .newer the last
    uint64_t tick;
    uint32_t n_groups, stop_tokens;
    uint64_t node_bytes;
    size_t page_bytes; // of a node's pages together
    bool needs_snapshots;
    void *spare; // memory of the last snapshot that was let go of, [spare_bytes]: it need not be touched for the first time
    size_t spare_bytes;
    bool is_closing; // nothing is written any more
    struct prefix_load *loads; // list
    uint64_t n_loads;          // ever: tags
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
    snapshot->used_ns = clock_ns();
}

// A path, leaf first, so that parents end up in front of their children.
static void touch(struct prefix_cache *cache, struct node *node) {
    uint64_t now = clock_ns();
    cache->tick++;
    for (; node != &cache->root; node = node->parent) {
        unlink_used(&node->used);
        link_first(&cache->nodes, &node->used);
        node->tick = cache->tick;
        node->used_ns = now;
    }
}

static bool is_full(const struct prefix_cache *cache, uint32_t group) {
    return kv_cache_window(cache->options.device.kv, group) == 0;
}

// ---- Children -----------------------------------------------------------------------------------
static uint32_t n_common(const struct node *node, uint64_t space, const int32_t *tokens, uint32_t n) {
    uint32_t i = 0, most = node->space == space ? min_u32(node->n_tokens, n) : 0;
    while (i < most && node->tokens[i] == tokens[i])
        i++;
    return i;
}

// Does a child come before these n tokens?
static bool is_before(const struct node *child, uint64_t space, const int32_t *tokens, uint32_t n) {
    if (child->space != space)
        return child->space < space;
    uint32_t i = n_common(child, space, tokens, n);
    return i < n && (i == child->n_tokens || child->tokens[i] < tokens[i]);
}

// The first child that does not: those that begin most like the tokens are next to it.
static uint32_t place_for(const struct node *node, uint64_t space, const int32_t *tokens, uint32_t n) {
    uint32_t low = 0, high = node->n_children;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (is_before(node->children[middle], space, tokens, n))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert_child(struct node *parent, struct node *child) {
    if (parent->n_children == parent->n_children_max) {
        uint32_t n = max_u32(parent->n_children_max * 2, 1);
        struct node **more = realloc(parent->children, n * sizeof *more);
        if (!more)
            return false;
        parent->children = more;
        parent->n_children_max = n;
    }
    struct node **place = parent->children + place_for(parent, child->space, child->tokens, child->n_tokens);
    memmove(place + 1, place, (size_t)(parent->children + parent->n_children - place) * sizeof *place);
    *place = child;
    parent->n_children++;
    return true;
}

static void remove_child(struct node *child) {
    struct node *parent = child->parent;
    struct node **place = parent->children + place_for(parent, child->space, child->tokens, child->n_tokens);
    assert(*place == child);
    parent->n_children--;
    memmove(place, place + 1, (size_t)(parent->children + parent->n_children - place) * sizeof *place);
}

// The child that holds a whole page's tokens.
static struct node *whole_child(const struct node *node, uint64_t space, const int32_t *tokens) {
    uint32_t at = place_for(node, space, tokens, KV_PAGE_TOKENS);
    struct node *child = at < node->n_children ? node->children[at] : NULL;
    return child && n_common(child, space, tokens, KV_PAGE_TOKENS) == KV_PAGE_TOKENS ? child : NULL;
}

// ---- To disk ------------------------------------------------------------------------------------
static bool is_whole(const struct node *node) {
    return node->n_tokens == KV_PAGE_TOKENS;
}

// Is there something of the node's own that only memory holds?
static bool page_is_dirty(const struct prefix_cache *cache, const struct node *node) {
    return cache->options.disk && cache->page_bytes && is_whole(node) && !node->is_stored;
}

static bool snapshot_is_dirty(const struct prefix_cache *cache, const struct node *node) {
    return cache->options.disk && node->snapshot && node->snapshot->n_tokens == KV_PAGE_TOKENS &&
           !node->snapshot->is_stored;
}

static void set_page_stored(struct prefix_cache *cache, struct node *node) {
    cache->stats.n_dirty -= page_is_dirty(cache, node);
    node->is_stored = true;
}

static void set_snapshot_stored(struct prefix_cache *cache, struct node *node) {
    cache->stats.n_dirty -= snapshot_is_dirty(cache, node);
    node->snapshot->is_stored = true;
}

// A node became whole: its key follows from its parent's.
static void set_key(struct prefix_cache *cache, struct node *node) {
    if (!cache->options.disk || !is_whole(node))
        return;
    struct disk_key root = disk_key_root(node->space);
    node->key = disk_key_next(node->parent == &cache->root ? &root : &node->parent->key, node->tokens,
                              KV_PAGE_TOKENS);
    cache->stats.n_dirty += page_is_dirty(cache, node);
}

// Write a node's pages behind. False: there is no room to.
static bool spill_page(struct prefix_cache *cache, struct node *node) {
    struct disk_cache *disk = cache->options.disk;
    const struct snapshot_device *device = &cache->options.device;
    if (!disk_cache_will_have(disk, DISK_PAGE, &node->key)) {
        char *blob = disk_cache_has_room(disk, cache->page_bytes) ? disk_blob_create(cache->page_bytes) : NULL;
        if (!blob)
            return false;
        char *to = blob;
        for (uint32_t g = 0; g < cache->n_groups; g++) {
            if (node->pages[g] == KV_PAGE_NONE)
                continue;
            device->be->ops->kv_read_page(device->be, device->pool, g, node->pages[g], to);
            to += device->page_bytes[g];
        }
        disk_cache_write(disk, DISK_PAGE, &node->key, node->depth, blob, cache->page_bytes);
    }
    set_page_stored(cache, node);
    return true;
}

static bool spill_snapshot(struct prefix_cache *cache, struct node *node) {
    struct disk_cache *disk = cache->options.disk;
    const struct snapshot *snapshot = node->snapshot;
    if (!disk_cache_will_have(disk, DISK_STATE, &node->key)) {
        char *blob = disk_cache_has_room(disk, snapshot->n_bytes) ? disk_blob_create(snapshot->n_bytes) : NULL;
        if (!blob)
            return false;
        memcpy(blob, snapshot->data, snapshot->n_bytes);
        disk_cache_write(disk, DISK_STATE, &node->key, node->depth, blob, snapshot->n_bytes);
    }
    set_snapshot_stored(cache, node);
    return true;
}

// Before a page or a snapshot is let go of. What was written may have been evicted there since: it is looked for again.
static void spill_before_drop(struct prefix_cache *cache, struct node *node, enum disk_kind kind) {
    if (!cache->options.disk || cache->is_closing || !is_whole(node))
        return;
    if (kind == DISK_PAGE && cache->page_bytes && !spill_page(cache, node))
        disk_cache_count_dropped(cache->options.disk);
    if (kind == DISK_STATE && node->snapshot->n_tokens == KV_PAGE_TOKENS && !spill_snapshot(cache, node))
        disk_cache_count_dropped(cache->options.disk);
}

// ---- Snapshots' memory --------------------------------------------------------------------------
static struct snapshot *snapshot_create(struct prefix_cache *cache, size_t n_bytes) {
    struct snapshot *snapshot = malloc(sizeof *snapshot);
    if (!snapshot)
        return NULL;
    snapshot->n_bytes = n_bytes;
    if (cache->spare && cache->spare_bytes == n_bytes) {
        snapshot->data = cache->spare;
        cache->spare = NULL;
    } else {
        snapshot->data = snapshot_alloc(n_bytes);
    }
    if (snapshot->data)
        return snapshot;
    free(snapshot);
    return NULL;
}

static void snapshot_free(struct prefix_cache *cache, struct snapshot *snapshot) {
    free(cache->spare);
    cache->spare = snapshot->data;
    cache->spare_bytes = snapshot->n_bytes;
    free(snapshot);
}

// ---- Letting go ---------------------------------------------------------------------------------
static void drop_snapshot(struct prefix_cache *cache, struct node *node) {
    struct snapshot *snapshot = node->snapshot;
    if (!snapshot)
        return;
    spill_before_drop(cache, node, DISK_STATE);
    cache->stats.n_dirty -= snapshot_is_dirty(cache, node);
    node->parent->n_inner_snapshots -= snapshot->n_tokens < KV_PAGE_TOKENS;
    unlink_used(&snapshot->used);
    cache->stats.bytes -= snapshot->n_bytes;
    cache->stats.snapshot_bytes -= snapshot->n_bytes;
    cache->stats.n_snapshots--;
    node->snapshot = NULL;
    snapshot_free(cache, snapshot);
}

static void drop_leaf(struct prefix_cache *cache, struct node *node) {
    assert(node->n_children == 0);
    drop_snapshot(cache, node);
    spill_before_drop(cache, node, DISK_PAGE);
    cache->stats.n_dirty -= page_is_dirty(cache, node);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        if (node->pages[g] != KV_PAGE_NONE)
            kv_cache_release(cache->options.device.kv, g, node->pages[g]);
    remove_child(node);
    unlink_used(&node->used);
    cache->stats.bytes -= cache->node_bytes;
    cache->stats.n_nodes--;
    cache->stats.n_evicted++;
    free(node->children);
    free(node);
}

// A leaf without a snapshot is of no use to a model that needs one: it goes, and so may its parents.
static void prune(struct prefix_cache *cache, struct node *node) {
    while (cache->needs_snapshots && node != &cache->root && node->n_children == 0 && !node->snapshot) {
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
        if (node->n_children || node->pages[group] == KV_PAGE_NONE ||
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
            cache->page_bytes += (size_t)options->device.page_bytes[g];
    cache->node_bytes += cache->page_bytes;
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
    assert(!cache->loads);
    cache->is_closing = true;
    prefix_cache_clear(cache);
    free(cache->root.children);
    free(cache->spare);
    free(cache);
}

void prefix_cache_stats(const struct prefix_cache *cache, struct prefix_cache_stats *out) {
    *out = cache->stats;
    out->bytes_max = cache->options.bytes_max;
}

// ---- Looking up ---------------------------------------------------------------------------------
// How many of the first n_same tokens of a child a sequence can go on from.
static uint32_t n_usable(const struct prefix_cache *cache, const struct node *child, uint32_t n_same) {
    if (!cache->needs_snapshots)
        return n_same;
    return child->snapshot && child->snapshot->n_tokens <= n_same ? child->snapshot->n_tokens : 0;
}

// The child from which most of n tokens can be gone on from, and how many; NULL = none.
static struct node *best_child(const struct prefix_cache *cache, const struct node *node, uint64_t space,
                               const int32_t *tokens, uint32_t n, uint32_t *n_best) {
    struct node *best = NULL;
    uint32_t at = place_for(node, space, tokens, n);
    *n_best = 0;
    // Away from the place, children begin less and less like the tokens.
    for (uint32_t i = at; i < node->n_children; i++) {
        uint32_t same = n_common(node->children[i], space, tokens, n);
        uint32_t usable = same > *n_best ? n_usable(cache, node->children[i], same) : 0;
        if (usable > *n_best) {
            best = node->children[i];
            *n_best = usable;
        }
        if (same <= *n_best || (cache->needs_snapshots && node->n_inner_snapshots == 0))
            break;
    }
    for (uint32_t i = at; i-- > 0 && !(cache->needs_snapshots && node->n_inner_snapshots == 0);) {
        uint32_t same = n_common(node->children[i], space, tokens, n);
        uint32_t usable = same > *n_best ? n_usable(cache, node->children[i], same) : 0;
        if (usable > *n_best) {
            best = node->children[i];
            *n_best = usable;
        }
        if (same <= *n_best)
            break;
    }
    return best;
}

struct prefix_hit prefix_cache_find(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_max,
                                    struct kv_seq *seq) {
    assert(seq->n_blocks == 0);
    struct prefix_hit hit = {0};
    struct node *best = NULL, *node = &cache->root;
    for (uint32_t off = 0; node && off < n_max; off += KV_PAGE_TOKENS) {
        uint32_t n = min_u32(n_max - off, KV_PAGE_TOKENS), n_best;
        struct node *child = best_child(cache, node, space, tokens + off, n, &n_best);
        if (child) {
            best = child;
            hit.n_tokens = off + n_best;
        }
        node = n == KV_PAGE_TOKENS ? whole_child(node, space, tokens + off) : NULL;
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
    set_key(cache, node);
}

// Without pages: take_pages() follows, or the pages of a load.
static struct node *add_child(struct prefix_cache *cache, struct node *parent, uint64_t space, uint32_t depth,
                              const int32_t *tokens, uint32_t n) {
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->parent = parent;
    node->space = space;
    node->depth = depth;
    node->n_tokens = n;
    memcpy(node->tokens, tokens, n * sizeof *tokens);
    if (!insert_child(parent, node)) {
        free(node);
        return NULL;
    }
    link_first(&cache->nodes, &node->used);
    cache->stats.n_nodes++;
    cache->stats.bytes += cache->node_bytes;
    return node;
}

// The child that holds these n tokens (and maybe more after them); one that holds fewer of them grows.
static struct node *child_for(struct prefix_cache *cache, struct node *parent, uint64_t space, uint32_t depth,
                              const int32_t *tokens, uint32_t n, const struct kv_seq *seq) {
    uint32_t at = place_for(parent, space, tokens, n);
    if (at < parent->n_children && n_common(parent->children[at], space, tokens, n) == n)
        return parent->children[at];
    // What these tokens begin with would be right before them; it keeps its place when it grows.
    struct node *shorter = at ? parent->children[at - 1] : NULL;
    if (!shorter || n_common(shorter, space, tokens, n) < shorter->n_tokens) {
        struct node *child = add_child(cache, parent, space, depth, tokens, n);
        if (child)
            take_pages(cache, child, seq);
        return child;
    }
    uint32_t before[KV_GROUPS_MAX];
    memcpy(before, shorter->pages, sizeof before);
    memcpy(shorter->tokens, tokens, n * sizeof *tokens);
    shorter->n_tokens = n;
    take_pages(cache, shorter, seq);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        if (before[g] != KV_PAGE_NONE)
            kv_cache_release(cache->options.device.kv, g, before[g]);
    return shorter;
}

// Given its bytes.
static void set_snapshot(struct prefix_cache *cache, struct node *node, struct snapshot *snapshot,
                         uint32_t n_of_node) {
    drop_snapshot(cache, node);
    snapshot->node = node;
    snapshot->n_tokens = n_of_node;
    snapshot->tick = cache->tick;
    snapshot->used_ns = clock_ns();
    snapshot->is_stored = false;
    link_first(&cache->snapshots, &snapshot->used);
    node->snapshot = snapshot;
    node->parent->n_inner_snapshots += n_of_node < KV_PAGE_TOKENS;
    cache->stats.n_dirty += snapshot_is_dirty(cache, node);
    cache->stats.n_snapshots++;
    cache->stats.bytes += snapshot->n_bytes;
    cache->stats.snapshot_bytes += snapshot->n_bytes;
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
    struct snapshot *snapshot = snapshot_create(cache, n_bytes);
    if (snapshot && snapshot_take(&cache->options.device, seq, state_slot, n_tokens, snapshot->data))
        set_snapshot(cache, node, snapshot, n_of_node);
    else if (snapshot)
        snapshot_free(cache, snapshot);
}

static void insert(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_tokens,
                   uint32_t n_apart, const struct kv_seq *seq, uint32_t state_slot) {
    struct node *node = &cache->root;
    uint32_t n = 0, n_snapped = 0; // tokens up to the last snapshot before the end
    for (uint32_t off = 0; off < n_tokens; off += KV_PAGE_TOKENS) {
        n = min_u32(n_tokens - off, KV_PAGE_TOKENS);
        struct node *child = child_for(cache, node, space, off / KV_PAGE_TOKENS, tokens + off, n, seq);
        if (!child)
            break;
        node = child;
        if (node->snapshot && node->snapshot->n_tokens <= n)
            n_snapped = off + node->snapshot->n_tokens;
    }
    if (node == &cache->root)
        return;
    touch(cache, node);
    if (cache->needs_snapshots) {
        if (node->depth == (n_tokens - 1) / KV_PAGE_TOKENS && (n_tokens - n_snapped >= n_apart || n_snapped == n_tokens))
            add_snapshot(cache, node, n, seq, state_slot);
        prune(cache, node);
    }
    trim(cache);
}

void prefix_cache_insert(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_tokens,
                         const struct kv_seq *seq, uint32_t state_slot) {
    insert(cache, space, tokens, n_tokens, ANSWER_TOKENS, seq, state_slot);
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
            insert(cache, space, tokens, whole, 0, seq, state_slot);
        return;
    }
    for (uint32_t stop = n_before;
         (stop = next_stop(cache, stop, n_cached, n_prompt)) <= n_done;)
        if (stop == n_done || !cache->options.device.states)
            insert(cache, space, tokens, stop, 0, seq, state_slot);
}

uint32_t prefix_cache_chunk_end(const struct prefix_cache *cache, uint32_t n_done, uint32_t n_cached,
                                uint32_t n_prompt) {
    return cache->options.device.states ? next_stop(cache, n_done, n_cached, n_prompt) : UINT32_MAX;
}

// ---- From disk ----------------------------------------------------------------------------------
// Pages [n_known, n_blocks) and then, of models that need one, the snapshot at n_blocks, in this order.
struct prefix_load {
    struct prefix_load *next;
    struct prefix_cache *cache;
    uint64_t space, tag;
    const int32_t *tokens;
    struct disk_key *keys; // [n_blocks] of the blocks' ends
    uint32_t n_blocks, n_first; // n_first: the first block to come
    uint32_t n_parts, n_asked, n_come;
    bool failed;
    uint64_t start_ns, moved_ns;
};

static struct node *node_at(struct prefix_cache *cache, uint64_t space, const int32_t *tokens, uint32_t n_blocks) {
    struct node *node = &cache->root;
    for (uint32_t b = 0; node && b < n_blocks; b++)
        node = whole_child(node, space, tokens + b * KV_PAGE_TOKENS);
    return node;
}

static bool page_is_known(struct prefix_cache *cache, const struct disk_key *key) {
    return cache->page_bytes == 0 || disk_cache_has(cache->options.disk, DISK_PAGE, key);
}

// How far the disk's pages and snapshots reach: load->n_blocks, n_first.
static bool plan_load(struct prefix_load *load, uint32_t n_max) {
    struct prefix_cache *cache = load->cache;
    struct node *node = &cache->root;
    uint32_t n = 0, n_in_memory = 0, n_usable = 0; // blocks, blocks, tokens
    for (struct node *child; n < n_max; n++, node = child) {
        child = whole_child(node, load->space, load->tokens + n * KV_PAGE_TOKENS);
        if (!child)
            break;
        load->keys[n] = child->key;
        if (!cache->needs_snapshots || child->snapshot)
            n_usable = n * KV_PAGE_TOKENS + (cache->needs_snapshots ? child->snapshot->n_tokens : KV_PAGE_TOKENS);
    }
    n_in_memory = n;
    struct disk_key key = n ? load->keys[n - 1] : disk_key_root(load->space);
    for (; n < n_max; n++) {
        load->keys[n] = key = disk_key_next(&key, load->tokens + n * KV_PAGE_TOKENS, KV_PAGE_TOKENS);
        if (!page_is_known(cache, &key))
            break;
    }
    while (cache->needs_snapshots && n && !disk_cache_has(cache->options.disk, DISK_STATE, &load->keys[n - 1]))
        n--;
    load->n_blocks = n;
    load->n_first = cache->page_bytes ? min_u32(n, n_in_memory) : n; // blocks without pages come with the snapshot
    load->n_parts = n - load->n_first + cache->needs_snapshots;
    return n * KV_PAGE_TOKENS >= n_usable + LOAD_TOKENS_MIN;
}

static uint32_t parts_ahead(const struct prefix_cache *cache) {
    size_t n = LOAD_AHEAD_BYTES / max_size(cache->page_bytes, 1);
    return n < 2 ? 2 : n > 16 ? 16 : (uint32_t)n;
}

static void ask(struct prefix_load *load) {
    struct prefix_cache *cache = load->cache;
    while (!load->failed && load->n_asked < load->n_parts && load->n_asked - load->n_come < parts_ahead(cache)) {
        uint32_t b = load->n_first + load->n_asked;
        bool page = b < load->n_blocks;
        size_t n_bytes = page ? cache->page_bytes
                              : snapshot_bytes(&cache->options.device, load->n_blocks * KV_PAGE_TOKENS);
        load->failed = !disk_cache_read(cache->options.disk, page ? DISK_PAGE : DISK_STATE,
                                        &load->keys[page ? b : load->n_blocks - 1], n_bytes, load->tag);
        load->n_asked++;
    }
}

struct prefix_load *prefix_cache_load(struct prefix_cache *cache, uint64_t space, const int32_t *tokens,
                                      uint32_t n_max) {
    uint32_t n_blocks = n_max / KV_PAGE_TOKENS;
    if (!cache->options.disk || n_blocks * KV_PAGE_TOKENS < LOAD_TOKENS_MIN)
        return NULL;
    struct prefix_load *load = calloc(1, sizeof *load);
    struct disk_key *keys = malloc(n_blocks * sizeof *keys);
    if (load && keys) {
        *load = (struct prefix_load){.cache = cache, .space = space, .tokens = tokens, .keys = keys,
                                     .tag = ++cache->n_loads, .start_ns = clock_ns(), .moved_ns = clock_ns()};
        if (plan_load(load, n_blocks)) {
            load->next = cache->loads;
            cache->loads = load;
            ask(load);
            return load;
        }
    }
    free(keys);
    free(load);
    return NULL;
}

void prefix_load_destroy(struct prefix_load *load) {
    if (!load)
        return;
    struct prefix_load **link = &load->cache->loads;
    while (*link != load)
        link = &(*link)->next;
    *link = load->next; // what still comes for its tag is thrown away
    free(load->keys);
    free(load);
}

bool prefix_load_is_over(const struct prefix_load *load) {
    return load->failed || load->n_come == load->n_parts ||
           clock_ns() > load->moved_ns + (uint64_t)LOAD_STUCK_MS * 1000000;
}

// A page from disk becomes a node. False: there is no room, or its parent went meanwhile.
static bool install_page(struct prefix_load *load, uint32_t block, const char *blob) {
    struct prefix_cache *cache = load->cache;
    struct kv_cache *kv = cache->options.device.kv;
    const struct snapshot_device *device = &cache->options.device;
    const int32_t *tokens = load->tokens + block * KV_PAGE_TOKENS;
    struct node *parent = node_at(cache, load->space, load->tokens, block);
    if (!parent)
        return false;
    if (whole_child(parent, load->space, tokens))
        return true; // it was computed meanwhile
    touch(cache, parent); // so that it goes last
    for (uint32_t g = 0; g < cache->n_groups; g++)
        if (is_full(cache, g) && kv_cache_n_free(kv, g) == 0 && !prefix_cache_give_way(cache, g, 1))
            return false;
    if (node_at(cache, load->space, load->tokens, block) != parent)
        return false;
    struct node *node = add_child(cache, parent, load->space, block, tokens, KV_PAGE_TOKENS);
    if (!node)
        return false;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        node->pages[g] = is_full(cache, g) ? kv_cache_take(kv, g) : KV_PAGE_NONE;
        if (node->pages[g] == KV_PAGE_NONE)
            continue;
        device->be->ops->kv_write_page(device->be, device->pool, g, node->pages[g], blob);
        blob += device->page_bytes[g];
    }
    set_key(cache, node);
    set_page_stored(cache, node);
    cache->stats.n_restored++;
    touch(cache, node);
    trim(cache);
    return true;
}

static bool install_snapshot(struct prefix_load *load, const char *blob) {
    struct prefix_cache *cache = load->cache;
    for (uint32_t b = 0; cache->page_bytes == 0 && b < load->n_blocks; b++)
        if (!install_page(load, b, NULL))
            return false;
    struct node *node = node_at(cache, load->space, load->tokens, load->n_blocks);
    size_t n_bytes = snapshot_bytes(&cache->options.device, load->n_blocks * KV_PAGE_TOKENS);
    if (!node || n_bytes > cache->options.snapshot_bytes_max)
        return false;
    if (node->snapshot && node->snapshot->n_tokens == KV_PAGE_TOKENS)
        return true;
    struct snapshot *snapshot = snapshot_create(cache, n_bytes);
    if (!snapshot)
        return false;
    memcpy(snapshot->data, blob, n_bytes);
    touch(cache, node);
    set_snapshot(cache, node, snapshot, KV_PAGE_TOKENS);
    set_snapshot_stored(cache, node);
    trim(cache);
    return true;
}

static void end_load(struct prefix_load *load) {
    struct prefix_cache *cache = load->cache;
    cache->stats.restore_ms = clock_ms_since(load->start_ns);
    if (cache->needs_snapshots)
        disk_cache_touch(cache->options.disk, DISK_STATE, &load->keys[load->n_blocks - 1]);
    for (uint32_t b = load->n_blocks; b-- > 0;) // parents last: they are needed longest
        disk_cache_touch(cache->options.disk, DISK_PAGE, &load->keys[b]);
}

void prefix_cache_take_loaded(struct prefix_cache *cache, uint32_t n_max) {
    struct disk_answer answer;
    for (uint32_t i = 0; cache->options.disk && i < n_max && disk_cache_next(cache->options.disk, &answer); i++) {
        struct prefix_load *load = cache->loads;
        while (load && load->tag != answer.tag)
            load = load->next;
        if (load && !load->failed) {
            uint32_t block = load->n_first + load->n_come++;
            load->moved_ns = clock_ns();
            load->failed = !answer.blob || !(block < load->n_blocks ? install_page(load, block, answer.blob)
                                                                    : install_snapshot(load, answer.blob));
            if (load->n_come == load->n_parts)
                end_load(load);
            ask(load);
        }
        disk_blob_free(answer.blob);
    }
}

// ---- To disk, behind ----------------------------------------------------------------------------
// When it is due, in ms; 0 = now.
static uint32_t due_ms(uint64_t used_ns, uint64_t idle_ms, uint64_t now_ns) {
    uint64_t due = used_ns + idle_ms * 1000000;
    return due <= now_ns ? 0 : due - now_ns > (uint64_t)3600 * 1000000000 ? 3600000
                                                                         : (uint32_t)((due - now_ns) / 1000000 + 1);
}

uint32_t prefix_cache_spill(struct prefix_cache *cache, uint64_t idle_ms, uint32_t n_max) {
    uint64_t now = clock_ns();
    uint32_t next = UINT32_MAX, n = 0;
    // Used longest ago first: what comes behind one that is not due is not due either.
    for (struct link *link = cache->nodes.newer; cache->stats.n_dirty && link != &cache->nodes; link = link->newer) {
        struct node *node = (struct node *)link;
        if (!page_is_dirty(cache, node))
            continue;
        uint32_t due = due_ms(node->used_ns, idle_ms, now);
        if (due == 0 && n == n_max)
            return 0;
        if (due == 0 && !spill_page(cache, node))
            return SPILL_RETRY_MS;
        if (due) {
            next = due;
            break;
        }
        n++;
        cache->stats.n_demoted++;
    }
    for (struct link *link = cache->snapshots.newer; cache->stats.n_dirty && link != &cache->snapshots;
         link = link->newer) {
        struct snapshot *snapshot = (struct snapshot *)link;
        if (!snapshot_is_dirty(cache, snapshot->node))
            continue;
        uint32_t due = due_ms(snapshot->used_ns, idle_ms, now);
        if (due == 0 && n == n_max)
            return 0;
        if (due == 0 && !spill_snapshot(cache, snapshot->node))
            return SPILL_RETRY_MS;
        if (due)
            return min_u32(next, due);
        n++;
    }
    return next;
}

bool prefix_cache_flush(struct prefix_cache *cache, uint64_t deadline_ns) {
    struct disk_cache *disk = cache->options.disk;
    // Parents come before their children on the way from the last used, so that what is written in time is of use.
    for (struct link *link = cache->nodes.older; disk && link != &cache->nodes; link = link->older) {
        struct node *node = (struct node *)link;
        if (page_is_dirty(cache, node) &&
            !(disk_cache_wait_room(disk, cache->page_bytes, deadline_ns) && spill_page(cache, node)))
            break;
        if (snapshot_is_dirty(cache, node) &&
            !(disk_cache_wait_room(disk, node->snapshot->n_bytes, deadline_ns) && spill_snapshot(cache, node)))
            break;
    }
    // The disk's order of use follows memory's, children first.
    for (struct link *link = cache->nodes.newer; disk && link != &cache->nodes; link = link->newer) {
        struct node *node = (struct node *)link;
        if (node->snapshot && is_whole(node))
            disk_cache_touch(disk, DISK_STATE, &node->key);
        if (is_whole(node))
            disk_cache_touch(disk, DISK_PAGE, &node->key);
    }
    return !disk || (disk_cache_wait(disk, deadline_ns) && cache->stats.n_dirty == 0);
}
