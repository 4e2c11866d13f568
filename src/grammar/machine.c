#include "grammar/machine.h"

#include <assert.h>
#include <stdlib.h>

#include "base/hash.h"

enum {
    CONFIGS_MIN = 4096,
    CONFIGS_MAX = 65536,
    CONFIGS_SLACK = 1024, // steps allowed between two calls of machine_tidy()
    ITEMS_MAX = 4096,     // in one configuration
    CONFIGS_FIRST = 64,   // allocated at first
    CHUNK_ROWS = 16,
    VISITED_SLOTS = 16384,
    UNITED_SLOTS = 1024,
    CLOSURE_DEPTH_MAX = 20000,
    MEMO_BYTES_MAX = 16 << 20,
    ROW_BYTES_MAX = 32 << 20,
};

struct item {
    expr_id d, e;
    uint32_t k;
};
struct entry {
    expr_id e;
    uint32_t k;
};
struct span {
    uint32_t from, n;
};
// A token that a relaxed configuration allows: the text that it begins takes so many bytes.
struct far_token {
    token_id token;
    uint32_t need;
};
// What a mask is made of: a ready mask (or none) and tokens besides.
struct mask_memo {
    const uint32_t *base;
    uint32_t *dense; // instead of base and tokens, when there are many; owned
    token_id *tokens; // owned
    uint32_t n_tokens;
    // Of a relaxed configuration: what the tokens of `base` need at most (UINT32_MAX: not known), and
    // the tokens that need more than EXPR_RELAX_COUNT_MIN bytes, by falling need; owned.
    uint32_t base_need, n_far;
    struct far_token *far;
};
struct config {
    struct span items;
    bool accepts;
    uint32_t near; // near_of() + 1, 0 = unknown
    struct mask_memo *memo;
};
struct closure {
    expr_id e;
    uint32_t k;
    struct span items;
    bool accepts, used;
};
struct visit {
    expr_id e;
    uint32_t k, gen;
};
struct item_list {
    struct item *items;
    uint32_t n, capacity;
};
struct united {
    uint32_t a, b, k; // a < b; all zero: free
};
struct id_table {
    uint32_t *slots; // 0 = free
    uint32_t n_slots, n;
};

struct machine {
    struct exprs *x;
    expr_id root;
    const struct grammar_vocab *vocab;
    // Recognised by mask computing:
    expr_id tail_loose, tail_strict, space, content;
    uint8_t *slice_of; // [expr_id]: see slice_of(); 0xFF: not known yet
    uint32_t n_slice_of;

    struct config *configs; // [configs_capacity]; 0 unused, 1 dead
    // [CHUNK_ROWS][256] each: where a byte leads; 0 = unknown. Chunks, because rows that are moved to
    // grow cost a mask up to 20 ms.
    uint32_t **chunks;
    uint32_t n_configs, capacity, configs_capacity, n_chunks, chunks_capacity;
    struct id_table config_table;
    struct item_list items; // of configurations and closures

    struct span *konts; // stack nodes; 0 is the bottom
    uint32_t n_konts, konts_capacity;
    struct entry *entries;
    uint32_t n_entries, entries_capacity;
    struct id_table kont_table;
    struct united united[UNITED_SLOTS]; // unions made lately

    struct closure *closures; // open addressing
    uint32_t n_closures, closure_slots;

    struct visit *visited;
    uint32_t visit_gen, n_visited, visit_slots;
    struct item_list scratch, result; // closure under way; configuration under way
    bool result_accepts;

    config_id *walk;            // [depth_max + 2] configuration per depth
    const uint32_t **walk_rows; // their rows
    token_id *found;      // tokens found by the walks of one mask
    uint32_t *found_bits; // more of them
    uint32_t n_found, found_capacity;
    bool measuring; // the walk collects far tokens
    struct far_token *far;
    uint32_t n_far, far_capacity;
    size_t memo_bytes;
    struct machine_root *roots, walk_root, keep_root, relaxed_root; // the last: of the mask under way
    config_id keep, relaxed;
};

static void out_of_memory(struct machine *m) {
    exprs_fail(m->x, "memory");
}

static bool push_item(struct machine *m, struct item_list *list, struct item item) {
    if (list->n == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 256;
        struct item *items =
            capacity > list->capacity ? realloc(list->items, capacity * sizeof *items) : NULL;
        if (!items) {
            out_of_memory(m);
            return false;
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
    return true;
}

// ---- stack nodes -------------------------------------------------------------------------------

static uint64_t entries_hash(const struct entry *entries, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++)
        h = hash_u64(h ^ ((uint64_t)entries[i].e << 32 | entries[i].k)) + i;
    return h;
}

static bool id_table_grow(struct id_table *table) {
    uint32_t n = table->n_slots ? table->n_slots * 2 : 1024;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots)
        return false;
    free(table->slots);
    table->slots = slots;
    table->n_slots = n;
    return true;
}

static void id_table_put(struct id_table *table, uint64_t h, uint32_t id) {
    while (table->slots[h & (table->n_slots - 1)])
        h++;
    table->slots[h & (table->n_slots - 1)] = id;
    table->n++;
}

// `entries` are sorted and distinct.
static uint32_t intern_kont(struct machine *m, const struct entry *entries, uint32_t n) {
    struct id_table *table = &m->kont_table;
    if ((table->n + 1) * 2 > table->n_slots) {
        if (!id_table_grow(table)) {
            out_of_memory(m);
            return 0;
        }
        table->n = 0;
        for (uint32_t k = 1; k < m->n_konts; k++)
            id_table_put(table, entries_hash(m->entries + m->konts[k].from, m->konts[k].n), k);
    }
    uint64_t hash = entries_hash(entries, n);
    for (uint64_t h = hash; table->slots[h & (table->n_slots - 1)]; h++) {
        uint32_t k = table->slots[h & (table->n_slots - 1)];
        if (m->konts[k].n == n &&
            !memcmp(m->entries + m->konts[k].from, entries, n * sizeof *entries))
            return k;
    }
    if (m->n_konts == m->konts_capacity) {
        uint32_t capacity = m->konts_capacity * 2;
        struct span *konts = realloc(m->konts, capacity * sizeof *konts);
        if (!konts) {
            out_of_memory(m);
            return 0;
        }
        m->konts = konts;
        m->konts_capacity = capacity;
    }
    if (m->n_entries + n > m->entries_capacity) {
        uint32_t capacity = (m->n_entries + n) * 2;
        struct entry *bigger = realloc(m->entries, capacity * sizeof *bigger);
        if (!bigger) {
            out_of_memory(m);
            return 0;
        }
        m->entries = bigger;
        m->entries_capacity = capacity;
    }
    memcpy(m->entries + m->n_entries, entries, n * sizeof *entries);
    m->konts[m->n_konts] = (struct span){m->n_entries, n};
    m->n_entries += n;
    id_table_put(table, hash, m->n_konts);
    return m->n_konts++;
}

static int entry_order(struct entry a, struct entry b) {
    if (a.e != b.e)
        return a.e < b.e ? -1 : 1;
    return (a.k > b.k) - (a.k < b.k);
}

enum { UNITE_DEPTH_MAX = 200 };

// Both stacks at once. The bottom (0) returns nowhere but accepts: as a member of a union it is the
// entry (EPS, 0). Entries that go on alike have their own stacks united, which is what keeps nested
// ambiguity from multiplying.
static uint32_t unite_konts(struct machine *m, uint32_t a, uint32_t b, uint32_t depth) {
    if (a == b || !exprs_spend(m->x, 1))
        return a;
    if (a > b) {
        uint32_t swap = a;
        a = b;
        b = swap;
    }
    // Shared parts of the stacks come up again and again.
    struct united *memo = &m->united[hash_u64((uint64_t)a << 32 | b) & (UNITED_SLOTS - 1)];
    if (memo->a == a && memo->b == b)
        return memo->k;
    uint32_t na = a ? m->konts[a].n : 1, nb = b ? m->konts[b].n : 1;
    struct entry small[32], *all = na + nb <= 16 ? small : malloc(2 * (na + nb) * sizeof *all);
    if (!all) {
        out_of_memory(m);
        return a;
    }
    // The inputs lie behind the output: interning moves the pool.
    struct entry *ea = all + na + nb, *eb = ea + na;
    ea[0] = eb[0] = (struct entry){EXPR_EPS, 0};
    if (a)
        memcpy(ea, m->entries + m->konts[a].from, na * sizeof *ea);
    if (b)
        memcpy(eb, m->entries + m->konts[b].from, nb * sizeof *eb);
    uint32_t n = 0, i = 0, j = 0;
    while (i < na || j < nb) {
        if (i < na && j < nb && ea[i].e == eb[j].e && ea[i].k != eb[j].k &&
            depth < UNITE_DEPTH_MAX) {
            expr_id e = ea[i].e;
            all[n++] = (struct entry){e, unite_konts(m, ea[i++].k, eb[j++].k, depth + 1)};
            continue;
        }
        int order = i == na ? 1 : j == nb ? -1 : entry_order(ea[i], eb[j]);
        all[n++] = order <= 0 ? ea[i] : eb[j];
        i += order <= 0;
        j += order >= 0;
    }
    uint32_t k = intern_kont(m, all, n);
    if (all != small)
        free(all);
    *memo = (struct united){a, b, k};
    return k;
}

// ---- closures ----------------------------------------------------------------------------------

static bool visited_grow(struct machine *m) {
    uint32_t n = m->visit_slots ? m->visit_slots * 2 : 64;
    struct visit *visited = n <= VISITED_SLOTS ? calloc(n, sizeof *visited) : NULL;
    if (!visited) {
        exprs_fail(m->x, "parser states at one place");
        return false;
    }
    for (uint32_t i = 0; i < m->visit_slots; i++) {
        if (m->visited[i].gen != m->visit_gen)
            continue;
        uint64_t h = hash_u64((uint64_t)m->visited[i].e << 32 | m->visited[i].k);
        while (visited[h & (n - 1)].gen)
            h++;
        visited[h & (n - 1)] = m->visited[i];
    }
    free(m->visited);
    m->visited = visited;
    m->visit_slots = n;
    return true;
}

// False if (e, k) was visited in this closure before.
static bool visit(struct machine *m, expr_id e, uint32_t k) {
    if ((m->n_visited + 1) * 2 > m->visit_slots && !visited_grow(m))
        return false;
    uint64_t h = hash_u64((uint64_t)e << 32 | k);
    for (;; h++) {
        struct visit *slot = &m->visited[h & (m->visit_slots - 1)];
        if (slot->gen != m->visit_gen) {
            *slot = (struct visit){e, k, m->visit_gen};
            m->n_visited++;
            return true;
        }
        if (slot->e == e && slot->k == k)
            return false;
    }
}

// Collect in m->scratch what can be read next when `e` remains and then k.
static bool close_over(struct machine *m, expr_id e, uint32_t k, uint32_t depth) {
    struct exprs *x = m->x;
    bool accepts = false;
    if (depth > CLOSURE_DEPTH_MAX)
        exprs_fail(x, "grammar nesting");
    if (e == EXPR_NONE || !exprs_spend(x, 1) || !visit(m, e, k))
        return false;
    if (e == EXPR_EPS) {
        if (k == 0)
            return true;
        for (uint32_t i = 0; i < m->konts[k].n; i++) {
            struct entry entry = m->entries[m->konts[k].from + i];
            accepts |= close_over(m, entry.e, entry.k, depth + 1);
        }
        return accepts;
    }
    if (expr_regular(x, e)) {
        expr_id d = expr_kind_of(x, e) == EXPR_KIND_TERM ? expr_a(x, e) : e;
        if (expr_alive(x, d))
            push_item(m, &m->scratch, (struct item){d, EXPR_EPS, k});
        if (expr_nullable(x, d))
            accepts |= close_over(m, EXPR_EPS, k, depth + 1);
        return accepts;
    }
    expr_id head = e, tail = EXPR_EPS;
    if (expr_kind_of(x, e) == EXPR_KIND_CAT) {
        head = expr_a(x, e);
        tail = expr_b(x, e);
    }
    if (expr_regular(x, head)) {
        expr_id d = expr_kind_of(x, head) == EXPR_KIND_TERM ? expr_a(x, head) : head;
        if (expr_alive(x, d))
            push_item(m, &m->scratch, (struct item){d, tail, k});
        if (expr_nullable(x, d))
            accepts |= close_over(m, tail, k, depth + 1);
        return accepts;
    }
    switch (expr_kind_of(x, head)) {
    case EXPR_KIND_CALL: {
        uint32_t rule = expr_a(x, head);
        expr_id body = expr_rule_body(x, rule);
        if (tail != EXPR_EPS)
            k = intern_kont(m, &(struct entry){tail, k}, 1);
        return close_over(m, body, k, depth + 1);
    }
    case EXPR_KIND_LAZY: {
        expr_id body = expr_rule_body(x, expr_a(x, head));
        return close_over(m, expr_cat(x, body, tail), k, depth + 1);
    }
    case EXPR_KIND_OR: {
        size_t n;
        expr_list(x, head, &n);
        for (size_t i = 0; i < n; i++) {
            size_t n_now;
            expr_id part = expr_list(x, head, &n_now)[i]; // the list may have moved
            accepts |= close_over(m, expr_cat(x, part, tail), k, depth + 1);
        }
        return accepts;
    }
    case EXPR_KIND_REP: {
        uint32_t min, max;
        expr_bounds(x, head, &min, &max);
        expr_id body = expr_a(x, head);
        expr_id more = expr_rep(x, body, min ? min - 1 : 0, max == EXPR_INF ? max : max - 1);
        if (min == 0)
            accepts |= close_over(m, tail, k, depth + 1);
        return close_over(m, expr_cat(x, body, expr_cat(x, more, tail)), k, depth + 1) | accepts;
    }
    default:
        assert(false && "only rules, choices and repeats are not regular");
        return false;
    }
}

static bool closures_grow(struct machine *m) {
    uint32_t n = m->closure_slots ? m->closure_slots * 2 : 1024;
    struct closure *closures = calloc(n, sizeof *closures);
    if (!closures) {
        out_of_memory(m);
        return false;
    }
    for (uint32_t i = 0; i < m->closure_slots; i++) {
        if (!m->closures[i].used)
            continue;
        uint64_t h = hash_u64((uint64_t)m->closures[i].e << 32 | m->closures[i].k);
        while (closures[h & (n - 1)].used)
            h++;
        closures[h & (n - 1)] = m->closures[i];
    }
    free(m->closures);
    m->closures = closures;
    m->closure_slots = n;
    return true;
}

// Add the closure of (e, k) to the configuration under way.
static void add_closure(struct machine *m, expr_id e, uint32_t k) {
    if ((m->n_closures + 1) * 2 > m->closure_slots && !closures_grow(m))
        return;
    uint64_t h = hash_u64((uint64_t)e << 32 | k);
    struct closure *c;
    for (;; h++) {
        c = &m->closures[h & (m->closure_slots - 1)];
        if (!c->used || (c->e == e && c->k == k))
            break;
    }
    if (!c->used) {
        m->visit_gen++;
        m->n_visited = 0;
        m->scratch.n = 0;
        bool accepts = close_over(m, e, k, 0);
        if (exprs_failed(m->x))
            return;
        struct span span = {m->items.n, m->scratch.n};
        for (uint32_t i = 0; i < m->scratch.n; i++)
            if (!push_item(m, &m->items, m->scratch.items[i]))
                return;
        *c = (struct closure){e, k, span, accepts, true};
        m->n_closures++;
    }
    for (uint32_t i = 0; i < c->items.n; i++)
        push_item(m, &m->result, m->items.items[c->items.from + i]);
    m->result_accepts |= c->accepts;
}

// ---- configurations ----------------------------------------------------------------------------

static int item_order(const void *pa, const void *pb) {
    const struct item *a = pa, *b = pb;
    if (a->d != b->d)
        return a->d < b->d ? -1 : 1;
    if (a->e != b->e)
        return a->e < b->e ? -1 : 1;
    return (a->k > b->k) - (a->k < b->k);
}

static uint64_t items_hash(const struct item *items, size_t n, bool accepts) {
    uint64_t h = n * 2 + accepts;
    for (size_t i = 0; i < n; i++) {
        h = hash_u64(h ^ ((uint64_t)items[i].d << 32 | items[i].e));
        h = h * 0x9E3779B97F4A7C15u + items[i].k;
    }
    return hash_u64(h);
}

static uint32_t *row_of(const struct machine *m, config_id c) {
    return m->chunks[c / CHUNK_ROWS] + (size_t)(c % CHUNK_ROWS) * 256;
}

// Room for configuration number n_configs.
static bool configs_grow(struct machine *m) {
    if (m->n_configs == m->configs_capacity) {
        uint32_t n = m->configs_capacity ? m->configs_capacity * 2 : CONFIGS_FIRST;
        struct config *configs = realloc(m->configs, n * sizeof *configs);
        if (!configs) {
            out_of_memory(m);
            return false;
        }
        m->configs = configs;
        m->configs_capacity = n;
    }
    if (m->n_configs < m->n_chunks * CHUNK_ROWS)
        return true;
    if (m->n_chunks == m->chunks_capacity) {
        uint32_t n = m->chunks_capacity ? m->chunks_capacity * 2 : 64;
        uint32_t **chunks = realloc(m->chunks, n * sizeof *chunks);
        if (!chunks) {
            out_of_memory(m);
            return false;
        }
        m->chunks = chunks;
        m->chunks_capacity = n;
    }
    m->chunks[m->n_chunks] = calloc(CHUNK_ROWS * 256, sizeof(uint32_t));
    if (!m->chunks[m->n_chunks]) {
        out_of_memory(m);
        return false;
    }
    m->n_chunks++;
    return true;
}

static void chunks_free(struct machine *m, uint32_t n_kept) {
    for (; m->n_chunks > n_kept; m->n_chunks--)
        free(m->chunks[m->n_chunks - 1]);
}

// Number the configuration in m->result.
static config_id intern_config(struct machine *m) {
    struct item *items = m->result.items;
    uint32_t n = m->result.n;
    if (n == 0 && !m->result_accepts)
        return CONFIG_DEAD;
    if (n > 16) {
        qsort(items, n, sizeof *items, item_order);
    } else {
        for (uint32_t i = 1; i < n; i++) {
            struct item item = items[i];
            uint32_t j = i;
            for (; j > 0 && item_order(&items[j - 1], &item) > 0; j--)
                items[j] = items[j - 1];
            items[j] = item;
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (kept && items[kept - 1].d == items[i].d && items[kept - 1].e == items[i].e)
            items[kept - 1].k = unite_konts(m, items[kept - 1].k, items[i].k, 0);
        else
            items[kept++] = items[i];
    }
    n = kept;
    if (n > ITEMS_MAX)
        exprs_fail(m->x, "parser states at one place");
    struct id_table *table = &m->config_table;
    if ((table->n + 1) * 2 > table->n_slots) {
        if (!id_table_grow(table))
            out_of_memory(m);
        else {
            table->n = 0;
            for (uint32_t c = 2; c < m->n_configs; c++)
                id_table_put(table,
                             items_hash(m->items.items + m->configs[c].items.from,
                                        m->configs[c].items.n, m->configs[c].accepts),
                             c);
        }
    }
    if (exprs_failed(m->x))
        return CONFIG_DEAD;
    uint64_t hash = items_hash(items, n, m->result_accepts);
    for (uint64_t h = hash; table->slots[h & (table->n_slots - 1)]; h++) {
        config_id c = table->slots[h & (table->n_slots - 1)];
        const struct config *config = &m->configs[c];
        if (config->items.n == n && config->accepts == m->result_accepts &&
            (n == 0 || !memcmp(m->items.items + config->items.from, items, n * sizeof *items)))
            return c;
    }
    if (m->n_configs >= m->capacity + CONFIGS_SLACK) {
        exprs_fail(m->x, "parser states");
        return CONFIG_DEAD;
    }
    if (!configs_grow(m))
        return CONFIG_DEAD;
    struct span span = {m->items.n, n};
    for (uint32_t i = 0; i < n; i++)
        if (!push_item(m, &m->items, items[i]))
            return CONFIG_DEAD;
    m->configs[m->n_configs] = (struct config){.items = span, .accepts = m->result_accepts};
    id_table_put(table, hash, m->n_configs);
    return m->n_configs++;
}

// When a whole class of bytes does the same to every item, say so in one go.
static void fill_row(struct machine *m, config_id c, uint8_t b, config_id to) {
    uint32_t *row = row_of(m, c);
    row[b] = to;
    struct span span = m->configs[c].items;
    if (span.n == 0 || span.n > 8)
        return;
    uint8_t same[256];
    memset(same, 1, sizeof same);
    for (uint32_t i = 0; i < span.n; i++) {
        const expr_id *targets = expr_row(m->x, m->items.items[span.from + i].d);
        if (!targets)
            return;
        expr_id target = targets[b];
        if (i == 0 && targets[b ^ 1] != target && targets[b ^ 2] != target)
            return; // a lone byte: not worth the search
        for (int v = 0; v < 256; v++)
            same[v] &= targets[v] == target;
    }
    for (int v = 0; v < 256; v++)
        if (same[v])
            row[v] = to;
}

config_id machine_step(struct machine *m, config_id c, uint8_t b) {
    config_id to = row_of(m, c)[b];
    if (to)
        return to;
    m->result.n = 0;
    m->result_accepts = false;
    struct span span = m->configs[c].items;
    for (uint32_t i = 0; i < span.n; i++) {
        struct item item = m->items.items[span.from + i];
        expr_id d = expr_step(m->x, item.d, b);
        if (d == EXPR_NONE)
            continue;
        if (d != EXPR_EPS)
            push_item(m, &m->result, (struct item){d, item.e, item.k});
        if (expr_nullable(m->x, d))
            add_closure(m, item.e, item.k);
    }
    to = intern_config(m);
    if (exprs_failed(m->x))
        return CONFIG_DEAD;
    fill_row(m, c, b, to);
    return to;
}

config_id machine_start(struct machine *m) {
    m->result.n = 0;
    m->result_accepts = false;
    add_closure(m, m->root, 0);
    return intern_config(m);
}

bool machine_accepts(const struct machine *m, config_id c) {
    return m->configs[c].accepts;
}
bool machine_open(const struct machine *m, config_id c) {
    return m->configs[c].items.n > 0;
}

int machine_forced(struct machine *m, config_id c) {
    if (machine_accepts(m, c))
        return -1;
    int only = -1;
    for (int b = 0; b < 256; b++) {
        if (machine_step(m, c, (uint8_t)b) == CONFIG_DEAD)
            continue;
        if (only >= 0)
            return -1;
        only = b;
    }
    return exprs_failed(m->x) ? -1 : only;
}

// ---- life --------------------------------------------------------------------------------------

static void memo_free(struct machine *m, config_id c) {
    struct mask_memo *memo = m->configs[c].memo;
    if (!memo)
        return;
    free(memo->dense);
    free(memo->tokens);
    free(memo->far);
    free(memo);
    m->configs[c].memo = NULL;
}

static void memos_free(struct machine *m) {
    for (uint32_t c = 2; c < m->n_configs; c++)
        memo_free(m, c);
    m->memo_bytes = 0;
}

struct machine *machine_create(struct exprs *x, expr_id root, const struct grammar_vocab *vocab) {
    struct machine *m = calloc(1, sizeof *m);
    if (!m) {
        exprs_destroy(x);
        return NULL;
    }
    m->x = x;
    m->root = root;
    m->vocab = vocab;
    m->tail_loose = vocab_string_tail(x, true);
    m->tail_strict = vocab_string_tail(x, false);
    m->content = vocab_plain_content(x);
    m->space = expr_bytes(x, &(struct byte_set){{1ull << ' ' | 1ull << '\t' | 1ull << '\n' |
                                                 1ull << '\r'}});
    m->capacity = CONFIGS_MIN;
    m->konts_capacity = 256;
    m->konts = calloc(m->konts_capacity, sizeof *m->konts);
    m->walk = calloc(vocab->depth_max + 2, sizeof *m->walk);
    m->walk_rows = calloc(vocab->depth_max + 2, sizeof *m->walk_rows);
    m->n_konts = 1;
    m->walk_root.ids = m->walk;
    m->keep_root.ids = &m->keep;
    m->relaxed_root.ids = &m->relaxed;
    machine_root_add(m, &m->relaxed_root);
    machine_root_add(m, &m->walk_root);
    machine_root_add(m, &m->keep_root);
    if (!configs_grow(m) || !m->konts || !m->walk || !m->walk_rows) {
        machine_destroy(m);
        return NULL;
    }
    m->configs[0] = m->configs[CONFIG_DEAD] = (struct config){0};
    m->n_configs = 2;
    return m;
}

void machine_destroy(struct machine *m) {
    if (!m)
        return;
    memos_free(m);
    exprs_destroy(m->x);
    free(m->configs);
    chunks_free(m, 0);
    free(m->chunks);
    free(m->config_table.slots);
    free(m->items.items);
    free(m->konts);
    free(m->entries);
    free(m->kont_table.slots);
    free(m->closures);
    free(m->visited);
    free(m->scratch.items);
    free(m->result.items);
    free(m->walk);
    free(m->walk_rows);
    free(m->found);
    free(m->found_bits);
    free(m->far);
    free(m->slice_of);
    free(m);
}

struct exprs *machine_exprs(struct machine *m) {
    return m->x;
}

size_t machine_bytes(const struct machine *m) {
    return sizeof *m + exprs_bytes(m->x) + m->configs_capacity * sizeof *m->configs +
           (size_t)m->n_chunks * CHUNK_ROWS * 256 * sizeof(uint32_t) +
           (m->config_table.n_slots + m->kont_table.n_slots) * sizeof(uint32_t) +
           (m->items.capacity + m->scratch.capacity + m->result.capacity) * sizeof(struct item) +
           m->konts_capacity * sizeof *m->konts + m->entries_capacity * sizeof *m->entries +
           m->closure_slots * sizeof *m->closures + m->visit_slots * sizeof *m->visited +
           m->found_capacity * sizeof *m->found + m->n_slice_of + m->memo_bytes;
}

void machine_root_add(struct machine *m, struct machine_root *root) {
    root->next = m->roots;
    root->link = &m->roots;
    if (root->next)
        root->next->link = &root->next;
    m->roots = root;
}

void machine_root_remove(struct machine_root *root) {
    if (!root->link)
        return;
    *root->link = root->next;
    if (root->next)
        root->next->link = root->link;
    root->link = NULL;
}

// Keep only what the roots need, numbered anew.
static void sweep(struct machine *m) {
    memos_free(m);
    struct item_list old_items = m->items;
    struct config *old_configs = m->configs;
    struct span *old_konts = m->konts;
    struct entry *old_entries = m->entries;
    uint32_t n_old_configs = m->n_configs, n_old_konts = m->n_konts, n_live = 0;
    uint32_t *config_map = calloc(n_old_configs, sizeof *config_map);
    uint32_t *kont_map = calloc(n_old_konts, sizeof *kont_map);
    if (config_map)
        for (struct machine_root *r = m->roots; r; r = r->next)
            for (size_t i = 0; i < r->n; i++)
                if (r->ids[i] > CONFIG_DEAD && !config_map[r->ids[i]]) {
                    config_map[r->ids[i]] = 1;
                    n_live++;
                }
    uint32_t capacity = CONFIGS_MIN;
    while (capacity < n_live * 2 && capacity < CONFIGS_MAX)
        capacity *= 2;
    if (capacity < n_live)
        exprs_fail(m->x, "parser states");
    struct span *konts = calloc(256, sizeof *konts);
    struct config *configs = calloc(CONFIGS_FIRST, sizeof *configs);
    if (!config_map || !kont_map || !konts || !configs || exprs_failed(m->x)) {
        free(config_map);
        free(kont_map);
        free(konts);
        free(configs);
        out_of_memory(m);
        return;
    }
    chunks_free(m, 1);
    memset(m->chunks[0], 0, CHUNK_ROWS * 256 * sizeof(uint32_t));
    m->configs = configs;
    m->configs_capacity = CONFIGS_FIRST;
    m->capacity = capacity;
    m->n_configs = 2;
    m->konts = konts;
    m->konts_capacity = 256;
    m->n_konts = 1;
    m->entries = NULL;
    m->n_entries = m->entries_capacity = 0;
    m->items = (struct item_list){0};
    memset(m->united, 0, sizeof m->united);
    m->n_closures = 0;
    free(m->closures);
    m->closures = NULL;
    m->closure_slots = 0;
    struct id_table *tables[] = {&m->config_table, &m->kont_table};
    for (int i = 0; i < 2; i++) {
        memset(tables[i]->slots, 0, tables[i]->n_slots * sizeof(uint32_t));
        tables[i]->n = 0;
    }
    // Stack nodes refer to older ones: mark from the newest down, copy from the oldest up.
    for (uint32_t c = 2; c < n_old_configs; c++)
        for (uint32_t i = 0; config_map[c] && i < old_configs[c].items.n; i++)
            kont_map[old_items.items[old_configs[c].items.from + i].k] = 1;
    for (uint32_t k = n_old_konts; k-- > 1;)
        for (uint32_t i = 0; kont_map[k] && i < old_konts[k].n; i++)
            kont_map[old_entries[old_konts[k].from + i].k] = 1;
    kont_map[0] = 0;
    for (uint32_t k = 1; k < n_old_konts; k++) {
        if (!kont_map[k])
            continue;
        struct entry *entries = old_entries + old_konts[k].from;
        for (uint32_t i = 0; i < old_konts[k].n; i++)
            entries[i].k = kont_map[entries[i].k];
        kont_map[k] = intern_kont(m, entries, old_konts[k].n);
    }
    for (uint32_t c = 2; c < n_old_configs; c++) {
        if (!config_map[c])
            continue;
        m->result.n = 0;
        m->result_accepts = old_configs[c].accepts;
        for (uint32_t i = 0; i < old_configs[c].items.n; i++) {
            struct item item = old_items.items[old_configs[c].items.from + i];
            item.k = kont_map[item.k];
            push_item(m, &m->result, item);
        }
        config_map[c] = intern_config(m);
    }
    for (struct machine_root *r = m->roots; r; r = r->next)
        for (size_t i = 0; i < r->n; i++)
            if (r->ids[i] > CONFIG_DEAD)
                r->ids[i] = config_map[r->ids[i]];
    free(config_map);
    free(kont_map);
    free(old_configs);
    free(old_items.items);
    free(old_konts);
    free(old_entries);
}

void machine_tidy(struct machine *m) {
    exprs_trim(m->x, ROW_BYTES_MAX);
    if (m->n_configs >= m->capacity || m->n_entries > 1u << 24)
        sweep(m);
    if (m->memo_bytes > MEMO_BYTES_MAX)
        memos_free(m);
}

// ---- masks -------------------------------------------------------------------------------------

static void found_add(struct machine *m, token_id token) {
    if (m->n_found >= m->vocab->n_words) { // so many: bits take less than a list
        if (!m->found_bits && !(m->found_bits = calloc(m->vocab->n_words + 1, sizeof(uint32_t)))) {
            out_of_memory(m);
            return;
        }
        m->found_bits[token >> 5] |= 1u << (token & 31);
        return;
    }
    if (m->n_found == m->found_capacity) {
        uint32_t capacity = m->found_capacity ? m->found_capacity * 2 : 1024;
        token_id *found = realloc(m->found, capacity * sizeof *found);
        if (!found) {
            out_of_memory(m);
            return;
        }
        m->found = found;
        m->found_capacity = capacity;
    }
    m->found[m->n_found++] = token;
}

static void far_add(struct machine *m, token_id token, uint32_t need) {
    if (m->n_far == m->far_capacity) {
        uint32_t capacity = m->far_capacity ? m->far_capacity * 2 : 256;
        struct far_token *far = realloc(m->far, capacity * sizeof *far);
        if (!far) {
            out_of_memory(m);
            return;
        }
        m->far = far;
        m->far_capacity = capacity;
    }
    m->far[m->n_far++] = (struct far_token){token, need};
}

// Bytes until one of the items ends, by some way.
static uint32_t near_of(struct machine *m, config_id c) {
    struct config *config = &m->configs[c];
    if (!config->near) {
        uint32_t near = config->accepts ? 0 : UINT32_MAX - 1;
        for (uint32_t i = 0; i < config->items.n; i++) {
            uint32_t one = expr_reach(m->x, m->items.items[config->items.from + i].d);
            near = one < near ? one : near;
        }
        config->near = near + 1;
    }
    return config->near - 1;
}

// Find the tokens of the trie that may follow configuration m->walk[0], among those with
// lead_min to lead_max cut-off spaces.
static void walk_trie(struct machine *m, const struct trie *trie, uint32_t lead_min,
                      uint32_t lead_max) {
    if (m->walk[0] <= CONFIG_DEAD)
        return;
    const struct trie_node *nodes = trie->nodes;
    config_id *walk = m->walk;
    const uint32_t **rows = m->walk_rows;
    rows[0] = row_of(m, walk[0]);
    for (uint32_t i = 0; i < trie->n;) {
        const struct trie_node *node = &nodes[i];
        if (node->depth) {
            config_id to = rows[node->depth - 1][node->byte];
            if (!to) {
                if (m->n_configs >= m->capacity) {
                    m->walk_root.n = node->depth;
                    machine_tidy(m);
                    m->walk_root.n = 0;
                    for (uint32_t d = 0; d < node->depth; d++)
                        rows[d] = row_of(m, walk[d]);
                }
                to = machine_step(m, walk[node->depth - 1], node->byte);
                if (exprs_failed(m->x))
                    return;
            }
            if (to == CONFIG_DEAD) {
                i = node->skip;
                continue;
            }
            walk[node->depth] = to;
            rows[node->depth] = row_of(m, to);
        }
        uint64_t need = 0;
        if (m->measuring && node->entries < nodes[i + 1].entries)
            need = (uint64_t)node->depth + near_of(m, walk[node->depth]);
        for (uint32_t k = node->entries; k < nodes[i + 1].entries; k++) {
            if (trie->entries[k].lead < lead_min || trie->entries[k].lead > lead_max)
                continue;
            found_add(m, trie->entries[k].token);
            if (need > EXPR_RELAX_COUNT_MIN)
                far_add(m, trie->entries[k].token, need < UINT32_MAX ? (uint32_t)need : UINT32_MAX);
        }
        i++;
    }
}

// How many spaces an item still allows, if it is nothing but the gap between two tokens of JSON.
static bool is_gap(const struct machine *m, expr_id d, uint32_t *n) {
    if (d == m->space) {
        *n = 1;
        return true;
    }
    uint32_t min;
    if (expr_kind_of(m->x, d) != EXPR_KIND_REP || expr_a(m->x, d) != m->space)
        return false;
    expr_bounds(m->x, d, &min, n);
    return min == 0;
}

static bool steps_on_space(struct machine *m, expr_id d) {
    for (const char *s = " \t\n\r"; *s; s++)
        if (expr_step(m->x, d, (uint8_t)*s) != EXPR_NONE)
            return true;
    return false;
}

// The gap case: leading spaces do not matter beyond their number, so that one walk over the
// vocabulary without them serves. False if this is another case.
static bool mask_gap(struct machine *m, config_id c) {
    struct span span = m->configs[c].items;
    struct item gap = {0};
    uint32_t n_spaces = 0, at = UINT32_MAX;
    for (uint32_t i = 0; i < span.n; i++) {
        struct item item = m->items.items[span.from + i];
        uint32_t n;
        if (is_gap(m, item.d, &n)) {
            if (at != UINT32_MAX)
                return false;
            at = i;
            gap = item;
            n_spaces = n;
        } else if (steps_on_space(m, item.d)) {
            return false;
        }
    }
    if (at == UINT32_MAX)
        return false;
    m->result.n = 0;
    m->result_accepts = false;
    add_closure(m, gap.e, gap.k);
    config_id behind = intern_config(m);
    m->result.n = 0;
    m->result_accepts = m->configs[c].accepts;
    for (uint32_t i = 0; i < span.n; i++)
        if (i != at)
            push_item(m, &m->result, m->items.items[span.from + i]);
    config_id now = intern_config(m);
    m->keep = now;
    m->keep_root.n = 1;
    m->walk[0] = behind;
    if (now == behind) {
        walk_trie(m, &m->vocab->rest, 0, n_spaces);
    } else {
        walk_trie(m, &m->vocab->rest, 1, n_spaces);
        m->walk[0] = m->keep;
        walk_trie(m, &m->vocab->rest, 0, 0);
    }
    m->keep_root.n = 0;
    return true;
}

// If item d is the rest of a string in which any plain content may follow by its very form: of any
// length (*chars = 0) or exactly up to *chars characters.
static bool is_content(struct machine *m, expr_id d, uint32_t *chars) {
    struct exprs *x = m->x;
    if (expr_kind_of(x, d) != EXPR_KIND_CAT || expr_b(x, d) != expr_b(x, m->tail_strict))
        return false;
    expr_id content = expr_a(x, d), any = expr_a(x, expr_a(x, m->tail_strict));
    expr_id loose = expr_a(x, expr_a(x, m->tail_loose));
    uint32_t min, max;
    *chars = 0;
    if (content == any) {
        *chars = 1;
        return true;
    }
    if (expr_kind_of(x, content) == EXPR_KIND_REP) {
        if (expr_a(x, content) != any && expr_a(x, content) != loose)
            return false;
        expr_bounds(x, content, &min, &max);
        *chars = max == EXPR_INF ? 0 : max;
        return true;
    }
    if (expr_kind_of(x, content) != EXPR_KIND_AND)
        return false;
    // Any text but a finite list of them: no content is impossible.
    size_t n;
    const expr_id *parts = expr_list(x, content, &n);
    for (size_t i = 0; i < n; i++) {
        if (expr_kind_of(x, parts[i]) == EXPR_KIND_REP && expr_a(x, parts[i]) == any) {
            expr_bounds(x, parts[i], &min, &max);
            if (max != EXPR_INF)
                return false;
        } else if (expr_kind_of(x, parts[i]) != EXPR_KIND_NOT ||
                   !expr_finite(x, expr_a(x, parts[i]))) {
            return false;
        }
    }
    return true;
}

enum { SLICE_STATES_MAX = 64 };

// Can every token of the slice be read from state d, whatever follows? A search through the states
// that the slice's bytes reach; for slice 0 beside the automaton of plain content, without end; for the
// others as far as a token is long. *reach: the longest way from one of the states to an end.
static bool slice_fits(struct machine *m, expr_id d, uint32_t slice, uint32_t *reach) {
    struct exprs *x = m->x;
    *reach = 0;
    struct {
        expr_id d, content;
        uint32_t depth;
    } seen[SLICE_STATES_MAX];
    uint32_t n = 0;
    seen[n].d = d;
    seen[n].content = m->content;
    seen[n++].depth = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (slice && seen[i].depth == VOCAB_CHARS_MAX)
            break;
        expr_id last = EXPR_NONE, last_content = EXPR_NONE;
        for (int b = 0x20; b < 256; b++) {
            expr_id content = EXPR_NONE;
            if (slice ? !vocab_slice_has(slice, (uint8_t)b)
                      : (content = expr_step(x, seen[i].content, (uint8_t)b)) == EXPR_NONE)
                continue;
            expr_id to = expr_step(x, seen[i].d, (uint8_t)b);
            if (to == EXPR_NONE || to == EXPR_EPS)
                return false; // a dead end, or the end of this item: what follows is not known here
            if (to == last && content == last_content)
                continue;
            last = to;
            last_content = content;
            uint32_t k = 0;
            while (k < n && (seen[k].d != to || seen[k].content != content))
                k++;
            if (k < n)
                continue;
            if (n == SLICE_STATES_MAX)
                return false;
            uint32_t one = expr_reach(x, to);
            *reach = one > *reach ? one : *reach;
            seen[n].d = to;
            seen[n].content = content;
            seen[n++].depth = seen[i].depth + 1;
        }
    }
    return !exprs_failed(x);
}

// The first slice that fits d, remembered; VOCAB_SLICES if none does.
static uint32_t slice_of(struct machine *m, expr_id d) {
    if (d >= m->n_slice_of) {
        uint32_t n = exprs_n(m->x) * 2;
        uint8_t *slice_of = realloc(m->slice_of, n);
        if (!slice_of) {
            out_of_memory(m);
            return VOCAB_SLICES;
        }
        memset(slice_of + m->n_slice_of, 0xFF, n - m->n_slice_of);
        m->slice_of = slice_of;
        m->n_slice_of = n;
    }
    if (m->slice_of[d] == 0xFF) {
        uint32_t slice = VOCAB_SLICES, reach;
        // Each slice holds the next: if the smaller one does not fit, no larger one does.
        for (uint32_t k = VOCAB_SLICES - 1; k < VOCAB_SLICES && slice_fits(m, d, k, &reach); k--)
            slice = k;
        m->slice_of[d] = (uint8_t)slice;
    }
    return m->slice_of[d];
}

// What a text that begins with a token of the slice takes at most, if it goes on as item d does.
static uint32_t slice_need(struct machine *m, expr_id d, uint32_t slice) {
    uint32_t longest = slice ? VOCAB_CHARS_MAX : VOCAB_CHARS_MAX * 4, chars, reach;
    if (slice == 0 && is_content(m, d, &chars) &&
        expr_kind_of(m->x, expr_a(m->x, d)) == EXPR_KIND_REP)
        reach = expr_reach(m->x, d) + 3; // of any characters, the last of which may be unfinished
    else if (!slice_fits(m, d, slice, &reach))
        return UINT32_MAX;
    return reach < UINT32_MAX / 2 ? longest + reach : UINT32_MAX;
}

static int by_need(const void *a, const void *b) {
    const struct far_token *s = a, *t = b;
    return (s->need < t->need) - (s->need > t->need);
}

// `bytes`: of the texts that the relaxed configuration reads, those up to so many bytes are right.
// UINT32_MAX: it is none.
static struct mask_memo *compute_mask(struct machine *m, const config_id *at, uint32_t bytes) {
    const struct grammar_vocab *v = m->vocab;
    struct span span = m->configs[*at].items;
    const uint32_t *base = NULL;
    uint32_t base_need = bytes == UINT32_MAX ? UINT32_MAX : 0;
    m->measuring = bytes != UINT32_MAX;
    m->n_found = 0;
    m->n_far = 0;
    m->walk[0] = *at;
    expr_id only = span.n == 1 ? m->items.items[span.from].d : EXPR_NONE;
    if (span.n == 0) {
        // Nothing may follow.
    } else if (!m->measuring && (only == m->tail_loose || only == m->tail_strict)) {
        const struct vocab_string *s = only == m->tail_loose ? &v->loose : &v->strict;
        base = s->inside;
        m->walk[0] = machine_step(m, *at, '"');
        walk_trie(m, &s->suffix, 0, UINT32_MAX);
    } else if (!mask_gap(m, *at)) {
        uint32_t best = VOCAB_SLICES;
        for (uint32_t i = 0; i < span.n && best > 0; i++) {
            expr_id d = m->items.items[span.from + i].d;
            uint32_t chars, slice = VOCAB_SLICES;
            if (!is_content(m, d, &chars))
                slice = slice_of(m, d);
            else if (chars == 0 || only != EXPR_NONE)
                slice = 0;
            if (slice >= best)
                continue;
            if (m->measuring) {
                uint32_t need = slice_need(m, d, slice);
                if (need > bytes)
                    continue;
                base_need = need;
            }
            best = slice;
            base = v->slices[slice].mask;
            if (slice == 0 && is_content(m, d, &chars) && chars > 0 && chars < VOCAB_CHARS_MAX)
                base = v->content[chars];
        }
        m->walk[0] = *at;
        walk_trie(m, base ? &v->slices[best].others : &v->all, 0, UINT32_MAX);
    }
    if (machine_accepts(m, *at))
        for (uint32_t i = 0; i < v->n_eos; i++)
            found_add(m, v->eos[i]);
    m->measuring = false;
    memo_free(m, *at);
    struct mask_memo *memo = calloc(1, sizeof *memo);
    bool dense = m->found_bits != NULL;
    if (memo && !dense)
        memo->tokens = malloc((m->n_found + 1) * sizeof *memo->tokens);
    if (memo && m->n_far)
        memo->far = malloc(m->n_far * sizeof *memo->far);
    if (!memo || (!dense && !memo->tokens) || (m->n_far && !memo->far)) {
        if (memo) {
            free(memo->tokens);
            free(memo->far);
        }
        free(memo);
        out_of_memory(m);
        return NULL;
    }
    if (dense) {
        memo->dense = m->found_bits;
        m->found_bits = NULL;
        for (uint32_t w = 0; base && w < v->n_words; w++)
            memo->dense[w] |= base[w];
        for (uint32_t i = 0; i < m->n_found; i++)
            memo->dense[m->found[i] >> 5] |= 1u << (m->found[i] & 31);
        m->memo_bytes += v->n_words * sizeof *memo->dense;
    } else {
        memo->base = base;
        memo->n_tokens = m->n_found;
        if (m->n_found)
            memcpy(memo->tokens, m->found, m->n_found * sizeof *memo->tokens);
        m->memo_bytes += m->n_found * sizeof *memo->tokens;
    }
    memo->base_need = base_need;
    memo->n_far = m->n_far;
    if (m->n_far) {
        memcpy(memo->far, m->far, m->n_far * sizeof *memo->far);
        qsort(memo->far, m->n_far, sizeof *memo->far, by_need);
    }
    m->memo_bytes += sizeof *memo + m->n_far * sizeof *memo->far;
    m->configs[*at].memo = memo;
    return memo;
}

// A relaxed configuration pays where most tokens need far fewer bytes than there are.
enum { RELAX_BYTES_SPARE = 64, RELAX_COUNT_FIRST = VOCAB_CHARS_MAX * 4 + RELAX_BYTES_SPARE };

// The configuration without the upper bounds of its large counts, or itself: a long string's masks then
// are one, not one for each length that is left.
static config_id relax_config(struct machine *m, config_id c, uint32_t *bytes) {
    struct span span = m->configs[c].items;
    uint32_t n_spaces, chars, spare = RELAX_BYTES_SPARE;
    for (uint32_t i = 0; i < span.n; i++)
        if (is_gap(m, m->items.items[span.from + i].d, &n_spaces))
            span.n = 0;
    if (span.n == 1 && is_content(m, m->items.items[span.from].d, &chars))
        spare = VOCAB_CHARS_MAX * 4; // there is a ready mask for each length
    // The largest counts alone, if there are such: small ones among them would leave few bytes.
    static const uint32_t COUNTS[] = {RELAX_COUNT_FIRST, EXPR_RELAX_COUNT_MIN};
    for (int k = 0; k < 2; k++) {
        *bytes = UINT32_MAX;
        m->result.n = 0;
        m->result_accepts = m->configs[c].accepts;
        for (uint32_t i = 0; i < span.n; i++) {
            struct item item = m->items.items[span.from + i];
            item.d = expr_relax(m->x, item.d, COUNTS[k], bytes);
            push_item(m, &m->result, item);
        }
        if (*bytes == UINT32_MAX)
            continue;
        config_id relaxed = intern_config(m);
        if (relaxed > CONFIG_DEAD && near_of(m, relaxed) < *bytes &&
            *bytes - near_of(m, relaxed) > spare)
            return relaxed;
    }
    *bytes = UINT32_MAX;
    return c;
}

static bool can_follow(struct machine *m, const config_id *config, token_id token) {
    struct bytes b = m->vocab->token_bytes[token];
    m->walk[0] = *config;
    for (size_t i = 0; i < b.n && m->walk[0] != CONFIG_DEAD; i++) {
        if (m->n_configs >= m->capacity) {
            m->walk_root.n = 1;
            machine_tidy(m);
            m->walk_root.n = 0;
        }
        m->walk[0] = machine_step(m, m->walk[0], b.data[i]);
    }
    return m->walk[0] != CONFIG_DEAD;
}

void machine_mask(struct machine *m, const config_id *config, uint32_t *mask) {
    const struct mask_memo *memo = m->configs[*config].memo;
    uint32_t bytes = UINT32_MAX;
    m->n_far = 0;
    if (*config > CONFIG_DEAD && !memo) {
        m->relaxed = relax_config(m, *config, &bytes);
        memo = m->configs[m->relaxed].memo;
        if (!memo || (bytes != UINT32_MAX && memo->base_need > bytes)) {
            m->relaxed_root.n = 1;
            memo = compute_mask(m, &m->relaxed, bytes);
            m->relaxed_root.n = 0;
        }
        // The memo may be swept away under way.
        m->n_far = 0;
        for (uint32_t i = 0; memo && i < memo->n_far && memo->far[i].need > bytes; i++)
            far_add(m, memo->far[i].token, memo->far[i].need);
    }
    uint32_t n = m->vocab->n_words;
    const uint32_t *from = !memo ? NULL : memo->dense ? memo->dense : memo->base;
    if (from)
        memcpy(mask, from, n * sizeof *mask);
    else
        memset(mask, 0, n * sizeof *mask);
    if (memo && !memo->dense)
        for (uint32_t i = 0; i < memo->n_tokens; i++)
            mask[memo->tokens[i] >> 5] |= 1u << (memo->tokens[i] & 31);
    for (uint32_t i = 0; i < m->n_far; i++)
        if (!can_follow(m, config, m->far[i].token))
            mask[m->far[i].token >> 5] &= ~(1u << (m->far[i].token & 31));
}
