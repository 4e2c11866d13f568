// The order of summation, the same whatever the tiling, the chunking and the threads (rule 2):
//
//   block  = the visible keys among KV_PAGE_TOKENS consecutive absolute positions:
//            m_b = max s_j, p_j = exp(s_j - m_b), l_b = sum p_j, o_b = sum p_j v_j, j ascending
//   split  = the blocks among ATTENTION_SPLIT consecutive positions, merged one after another
//   result = the splits, merged one after another; then the sink, if any; then o / l
//
// where merging (m, l, o) with (m', l', o') gives M = max(m, m'), a = exp(m - M), b = exp(m' - M),
// l a + l' b and o a + o' b. A block or split without a visible key takes no part.
//
// A tile is up to TILE_QUERIES query vectors of one row and one KV head, which share every load of a
// block. With many queries the block is unpacked to float32 once; with few the kernels read it where it
// is: the same elements in the same order. A level with tile kernels uses them in MATH_FAST whatever the
// number of queries. If there are too few tiles to keep the threads busy (decode),
// the splits of a tile become tiles of their own whose partial results a second pass merges.
#include "backend/cpu/attention.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/kv_pool.h"
#include "base/checked.h"

enum {
    TILE_QUERIES = 64,
    DIRECT_QUERIES = 8,   // up to here the kernels read the packed block
    TILES_A_THREAD = 4,   // fewer than this: cut the splits apart
    PARTIAL_TOKENS = 8,   // tokens at full context whose partial results the scratch holds
    BLOCKS_A_SPLIT = ATTENTION_SPLIT / KV_PAGE_TOKENS,
};

struct job {
    struct cpu_backend *cb;
    const struct attention_args *args;
    const struct kv_layer *layer;
    uint32_t n_shared;        // query heads to a KV head
    uint32_t heads_a_tile;    // of these n_shared
    uint32_t tokens_a_tile;
    uint32_t n_head_tiles;    // n_kv_heads * tiles of n_shared
    bool tiled;               // by the level's tile kernels
    bool split;               // splits are tiles of their own
    const uint32_t *first_tile; // [n_rows + 1]
    uint32_t n_tiles;
    float *partials; // with `split`: [n_tiles][tile queries][v_dim + 2] : o, m, l
};

// The positions that a token may see: [from, to).
struct span {
    uint32_t from, to;
};

static struct span visible(const struct attention_args *a, const struct step_row *row, uint32_t pos) {
    struct span s = {0, pos + 1};
    if (a->window && pos + 1 > a->window)
        s.from = pos + 1 - a->window;
    if (a->bidirectional) {
        s.to = row->pos0 + row->n_tokens;
        if (a->window && s.to - pos > a->window)
            s.to = pos + a->window;
    }
    return s;
}

// What tokens [t0, t1) of a row see together.
static struct span visible_all(const struct attention_args *a, const struct step_row *row, uint32_t t0, uint32_t t1) {
    return (struct span){visible(a, row, row->pos0 + t0).from, visible(a, row, row->pos0 + t1 - 1).to};
}

static uint32_t div_up(uint32_t n, uint32_t by) {
    return (n + by - 1) / by;
}

static uint32_t n_splits(struct span s) {
    return div_up(s.to, ATTENTION_SPLIT) - s.from / ATTENTION_SPLIT;
}

// ---- One tile -----------------------------------------------------------------------------------
struct tile {
    const struct step_row *row;
    uint32_t t0, n_tokens;  // of the row
    uint32_t kv_head, head0, n_heads;
    uint32_t split0, n_splits; // absolute
    uint32_t n_queries;        // n_tokens * n_heads, tokens outermost
};

// Per-thread memory, laid out by scratch_init().
struct scratch {
    float *k, *v;       // a block in float32
    float *q;           // [TILE_QUERIES] in panels, see attention_scores_fn
    float *s;           // [TILE_QUERIES][KV_PAGE_TOKENS]
    float *o, *o_split; // [TILE_QUERIES][v_dim]
    float *m, *l, *m_split, *l_split, *a, *b; // [TILE_QUERIES]
};

static size_t scratch_floats(uint32_t head_dim) {
    return (size_t)KV_PAGE_TOKENS * 2 * head_dim + (size_t)TILE_QUERIES * (3 * head_dim + KV_PAGE_TOKENS + 6);
}

static struct scratch scratch_init(float *p, uint32_t head_dim) {
    struct scratch s;
    s.k = p, p += (size_t)KV_PAGE_TOKENS * head_dim;
    s.v = p, p += (size_t)KV_PAGE_TOKENS * head_dim;
    s.q = p, p += (size_t)TILE_QUERIES * head_dim;
    s.s = p, p += (size_t)TILE_QUERIES * KV_PAGE_TOKENS;
    s.o = p, p += (size_t)TILE_QUERIES * head_dim;
    s.o_split = p, p += (size_t)TILE_QUERIES * head_dim;
    s.m = p, s.l = p + TILE_QUERIES, s.m_split = p + 2 * TILE_QUERIES, s.l_split = p + 3 * TILE_QUERIES;
    s.a = p + 4 * TILE_QUERIES, s.b = p + 5 * TILE_QUERIES;
    return s;
}

static struct tile tile_find(const struct job *job, uint32_t idx) {
    const struct step *step = job->cb->step;
    uint32_t low = 0, high = step->n_rows;
    while (high - low > 1) { // the last row whose first tile is not above idx
        uint32_t mid = low + (high - low) / 2;
        if (job->first_tile[mid] <= idx)
            low = mid;
        else
            high = mid;
    }
    const struct step_row *row = &step->rows[low];
    struct span row_span = visible_all(job->args, row, 0, row->n_tokens);
    uint32_t row_splits = n_splits(row_span), left = idx - job->first_tile[low], split_idx = 0;
    if (job->split) {
        split_idx = left % row_splits;
        left /= row_splits;
    }
    uint32_t head_tile = left % job->n_head_tiles, chunk = left / job->n_head_tiles;
    uint32_t head_tiles_a_kv_head = div_up(job->n_shared, job->heads_a_tile);
    struct tile t = {.row = row, .t0 = chunk * job->tokens_a_tile};
    t.n_tokens = min_u32(job->tokens_a_tile, row->n_tokens - t.t0);
    t.kv_head = head_tile / head_tiles_a_kv_head;
    uint32_t off = head_tile % head_tiles_a_kv_head * job->heads_a_tile;
    t.head0 = t.kv_head * job->n_shared + off;
    t.n_heads = min_u32(job->heads_a_tile, job->n_shared - off);
    t.n_queries = t.n_tokens * t.n_heads;
    if (job->split) {
        t.split0 = row_span.from / ATTENTION_SPLIT + split_idx;
        t.n_splits = 1;
    } else {
        struct span s = visible_all(job->args, row, t.t0, t.t0 + t.n_tokens);
        t.split0 = s.from / ATTENTION_SPLIT;
        t.n_splits = n_splits(s);
    }
    return t;
}

// Weights of merging (m_b, l_b) into (*m, *l), which they update.
static void merge_weights(const struct cpu_kernels *k, float *m, float *l, float m_b, float l_b, float *a, float *b) {
    float top = m_b > *m ? m_b : *m;
    *a = *m == top ? 1.0f : k->exp(*m - top);
    *b = m_b == top ? 1.0f : k->exp(m_b - top);
    *l = fmaf(*l, *a, l_b * *b);
    *m = top;
}

// The keys of a block that a span within it covers, one bit each.
static uint64_t span_bits(struct span s) {
    return (s.to == 64 ? UINT64_MAX : (UINT64_C(1) << s.to) - 1) & UINT64_MAX << s.from;
}

// Merge the keys that a token has selected in one block: they are packed together for the products, and
// stand at their own places for the softmax, so that the order of every sum is the dense one.
static void block_run_selected(const struct job *job, const struct tile *t, const struct scratch *s,
                               uint32_t block_idx, const uint8_t *tokens, uint32_t n) {
    const struct cpu_kernels *k = &job->cb->kernels;
    const struct kv_layout *layout = &job->layer->layout;
    uint32_t page = t->row->block_table[job->layer->group][block_idx];
    assert(page != KV_PAGE_NONE);
    k->kv_gather(layout, kv_block(job->layer, page, t->kv_head), tokens, n, s->k, s->v);
    k->attention_scores_f32(s->k, layout->k_dim, s->q, t->n_queries, n, s->s);
    uint64_t seen = 0;
    for (uint32_t j = 0; j < n; j++)
        seen |= UINT64_C(1) << tokens[j];
    for (uint32_t q = 0; q < t->n_queries; q++) {
        float placed[KV_PAGE_TOKENS] = {0}, *packed = s->s + (size_t)q * KV_PAGE_TOKENS, m_b, l_b;
        for (uint32_t j = 0; j < n; j++)
            placed[tokens[j]] = packed[j];
        k->attention_softmax(placed, seen, job->args->scale, job->args->softcap, &m_b, &l_b);
        for (uint32_t j = 0; j < n; j++)
            packed[j] = placed[tokens[j]];
        merge_weights(k, &s->m_split[q], &s->l_split[q], m_b, l_b, &s->a[q], &s->b[q]);
    }
    k->attention_values_f32(s->v, layout->v_dim, s->s, t->n_queries, 0, n, s->a, s->b, s->o_split, layout->v_dim);
}

// Blocks [from, to) of a token that sees selected positions only.
static void blocks_run_selected(const struct job *job, const struct tile *t, const struct scratch *s, uint32_t from,
                                uint32_t to) {
    uint32_t n = job->args->n_selected, low = 0, high = n;
    const uint32_t *selected = job->args->selected + (size_t)(t->row->token_off + t->t0) * n;
    struct span span = visible(job->args, t->row, t->row->pos0 + t->t0);
    uint32_t first = max_u32(from * KV_PAGE_TOKENS, span.from);
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (selected[mid] < first)
            low = mid + 1;
        else
            high = mid;
    }
    while (low < n && selected[low] < span.to && selected[low] / KV_PAGE_TOKENS < to) {
        uint8_t tokens[KV_PAGE_TOKENS];
        uint32_t block = selected[low] / KV_PAGE_TOKENS, n_tokens = 0;
        for (; low < n && selected[low] < span.to && selected[low] / KV_PAGE_TOKENS == block; low++)
            tokens[n_tokens++] = (uint8_t)(selected[low] % KV_PAGE_TOKENS);
        block_run_selected(job, t, s, block, tokens, n_tokens);
    }
}

// Merge one block into the split's running results. Meanwhile what comes next is fetched: the block's
// values while its keys are used, then the keys of the next block.
static void block_run(const struct job *job, const struct tile *t, const struct scratch *s, uint32_t block_idx,
                      uint32_t last_block_idx) {
    const struct attention_args *args = job->args;
    const struct cpu_kernels *k = &job->cb->kernels;
    const struct kv_layout *layout = &job->layer->layout;
    uint32_t first = block_idx * KV_PAGE_TOKENS, n_heads = t->n_heads, v_dim = layout->v_dim;
    struct span spans[TILE_QUERIES]; // of the tokens, within the block
    uint32_t t_from = t->n_tokens, t_to = 0;
    bool whole = true;
    uint32_t n_keys = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        struct span v = visible(args, t->row, t->row->pos0 + t->t0 + i);
        uint32_t from = max_u32(v.from, first) - first;
        uint32_t to = v.to > first ? min_u32(v.to - first, KV_PAGE_TOKENS) : 0;
        spans[i] = (struct span){from, to};
        whole = whole && from == 0 && to == KV_PAGE_TOKENS;
        if (from >= to)
            continue;
        t_from = min_u32(t_from, i);
        t_to = i + 1;
        n_keys = max_u32(n_keys, to);
    }
    if (t_from >= t_to)
        return;
    uint32_t page = t->row->block_table[job->layer->group][block_idx];
    assert(page != KV_PAGE_NONE);
    const char *block = kv_block(job->layer, page, t->kv_head), *next = block;
    if (block_idx != last_block_idx) {
        uint32_t next_page = t->row->block_table[job->layer->group][block_idx + 1];
        next = kv_block(job->layer, next_page, t->kv_head);
    }
    // From a whole panel on.
    uint32_t panel = job->tiled ? ATTENTION_TILE_ROWS : ATTENTION_PANEL;
    uint32_t q0 = t_from * n_heads / panel * panel, n_q = t_to * n_heads - q0;
    const float *q_panels = s->q + (size_t)q0 * layout->k_dim;
    const uint16_t *k_tiles = (const uint16_t *)block, *v_tiles = (const uint16_t *)(block + layout->v_codes);
    float *scores = s->s + (size_t)q0 * KV_PAGE_TOKENS;
    bool direct = t->n_queries <= DIRECT_QUERIES && !layout->v_in_k;
    if (job->tiled) {
        bool in_place = layout->kind == KV_BF16 && !layout->v_in_k;
        if (!in_place) { // both fit where the float32 values of a block would
            uint16_t *k_out = (uint16_t *)s->v, *v_out = k_out + (size_t)KV_PAGE_TOKENS * layout->k_dim;
            k->tiles.load(k, layout, block, s->k, k_out, v_out);
            k_tiles = k_out, v_tiles = v_out;
        }
        k->tiles.scores(k_tiles, layout->k_dim, (const uint16_t *)s->q + (size_t)q0 * layout->k_dim, n_q, n_keys,
                        in_place ? (ptrdiff_t)layout->v_codes : 0, scores);
    } else if (direct) {
        k->attention_scores(layout, block, q_panels, n_q, n_keys, (ptrdiff_t)layout->v_codes, scores);
    } else {
        k->kv_load_k(layout, block, s->k);
        k->kv_load_v(layout, block, s->v);
        k->attention_scores_f32(s->k, layout->k_dim, q_panels, n_q, n_keys, scores);
    }
    for (uint32_t i = t_from; i < t_to; i++) {
        if (spans[i].from >= spans[i].to)
            continue;
        for (uint32_t h = 0; h < n_heads; h++) {
            uint32_t q = i * n_heads + h;
            float m_b, l_b;
            k->attention_softmax(s->s + (size_t)q * KV_PAGE_TOKENS, span_bits(spans[i]), args->scale,
                                 args->softcap, &m_b, &l_b);
            merge_weights(k, &s->m_split[q], &s->l_split[q], m_b, l_b, &s->a[q], &s->b[q]);
        }
    }
    if (job->tiled) { // hidden keys have p = 0
        uint32_t q = t_from * n_heads;
        k->tiles.values(v_tiles, v_dim, s->s + (size_t)q * KV_PAGE_TOKENS, (t_to - t_from) * n_heads,
                        spans[t_from].from, spans[t_to - 1].to,
                        v_tiles == (const uint16_t *)(block + layout->v_codes) ? next - (block + layout->v_codes) : 0,
                        s->a + q, s->b + q, s->o_split + (size_t)q * v_dim, v_dim, (uint16_t *)s->k);
        return;
    }
    // Tokens that see the same keys go together, the others one by one.
    for (uint32_t i = t_from; i < t_to;) {
        uint32_t n = whole ? t_to - t_from : 1, q = i * n_heads;
        struct span span = spans[i];
        i += n;
        if (span.from >= span.to)
            continue;
        if (direct)
            k->attention_values(layout, block, s->s + (size_t)q * KV_PAGE_TOKENS, n * n_heads, span.from, span.to,
                                next - (block + layout->v_codes), s->a + q, s->b + q, s->o_split + (size_t)q * v_dim, v_dim);
        else
            k->attention_values_f32(s->v, v_dim, s->s + (size_t)q * KV_PAGE_TOKENS, n * n_heads, span.from,
                                    span.to, s->a + q, s->b + q, s->o_split + (size_t)q * v_dim, v_dim);
    }
}

static void reset(float *m, float *l, float *o, uint32_t n, uint32_t v_dim) {
    for (uint32_t i = 0; i < n; i++) {
        m[i] = -INFINITY;
        l[i] = 0;
    }
    memset(o, 0, (size_t)n * v_dim * sizeof *o);
}

// Merge a split into a result; an empty split (l = 0) takes no part.
static void split_merge(const struct cpu_kernels *k, float *m, float *l, float *o, float m_s, float l_s,
                        const float *o_s, uint32_t v_dim) {
    float a, b;
    if (l_s == 0)
        return;
    merge_weights(k, m, l, m_s, l_s, &a, &b);
    k->attention_merge(a, o, b, o_s, v_dim);
}

// The virtual key, then the division. l = 0 (nothing selected) gives zeros.
static void finish(const struct job *job, uint32_t head, float m, float l, float *o, float *out) {
    const struct cpu_kernels *k = &job->cb->kernels;
    uint32_t v_dim = job->layer->layout.v_dim;
    float a = 1;
    if (job->args->sinks) {
        float b;
        merge_weights(k, &m, &l, job->args->sinks[head], 1.0f, &a, &b);
    }
    float factor = l == 0 ? 0.0f : a / l;
    memcpy(out, o, v_dim * sizeof *o);
    k->scale(factor, out, v_dim);
}

static void tile_run(void *arg, uint32_t tile_idx, uint32_t thread_idx) {
    const struct job *job = arg;
    const struct attention_args *args = job->args;
    const struct cpu_kernels *k = &job->cb->kernels;
    // Late tokens see the most keys: the longest tiles first.
    uint32_t idx = job->n_tiles - 1 - tile_idx;
    struct tile t = tile_find(job, idx);
    struct scratch s = scratch_init(job->cb->thread_scratch[thread_idx], job->cb->limits.head_dim);
    uint32_t k_dim = job->layer->layout.k_dim, v_dim = job->layer->layout.v_dim;
    for (uint32_t q = 0; q < t.n_queries; q++) {
        const float *query = mat_row(args->q, t.row->token_off + t.t0 + q / t.n_heads) +
                             (size_t)(t.head0 + q % t.n_heads) * k_dim;
        if (job->tiled)
            k->tiles.pack_query(s.q, q, k_dim, query);
        else
            attention_pack_query(s.q, q, k_dim, query);
    }
    reset(s.m, s.l, s.o, t.n_queries, v_dim);
    struct span span = visible_all(args, t.row, t.t0, t.t0 + t.n_tokens);
    uint32_t last_block = div_up(span.to, KV_PAGE_TOKENS);
    for (uint32_t split = t.split0; split < t.split0 + t.n_splits; split++) {
        uint32_t from = max_u32(split * BLOCKS_A_SPLIT, span.from / KV_PAGE_TOKENS);
        uint32_t to = min_u32((split + 1) * BLOCKS_A_SPLIT, last_block);
        reset(s.m_split, s.l_split, s.o_split, t.n_queries, v_dim);
        if (args->selected)
            blocks_run_selected(job, &t, &s, from, to);
        else
            for (uint32_t block = from; block < to; block++)
                block_run(job, &t, &s, block, last_block - 1);
        if (job->split)
            break;
        for (uint32_t q = 0; q < t.n_queries; q++)
            split_merge(k, &s.m[q], &s.l[q], s.o + (size_t)q * v_dim, s.m_split[q], s.l_split[q],
                        s.o_split + (size_t)q * v_dim, v_dim);
    }
    if (job->split) {
        float *out = job->partials + (size_t)idx * job->tokens_a_tile * job->heads_a_tile * (v_dim + 2);
        for (uint32_t q = 0; q < t.n_queries; q++, out += v_dim + 2) {
            memcpy(out, s.o_split + (size_t)q * v_dim, v_dim * sizeof *out);
            out[v_dim] = s.m_split[q];
            out[v_dim + 1] = s.l_split[q];
        }
        return;
    }
    for (uint32_t q = 0; q < t.n_queries; q++) {
        uint32_t head = t.head0 + q % t.n_heads, token = t.row->token_off + t.t0 + q / t.n_heads;
        finish(job, head, s.m[q], s.l[q], s.o + (size_t)q * v_dim, mat_row(args->out, token) + (size_t)head * v_dim);
    }
}

// Merge the partial results of what was one tile: tile_idx counts tiles without their splits.
static void merge_run(void *arg, uint32_t tile_idx, uint32_t thread_idx) {
    const struct job *job = arg;
    const struct cpu_kernels *k = &job->cb->kernels;
    const struct step *step = job->cb->step;
    uint32_t v_dim = job->layer->layout.v_dim, row_idx = 0, row_splits;
    for (;; row_idx++) {
        const struct step_row *row = &step->rows[row_idx];
        row_splits = n_splits(visible_all(job->args, row, 0, row->n_tokens));
        uint32_t n = (job->first_tile[row_idx + 1] - job->first_tile[row_idx]) / row_splits;
        if (tile_idx < n)
            break;
        tile_idx -= n;
    }
    uint32_t first = job->first_tile[row_idx] + tile_idx * row_splits;
    struct tile t = tile_find(job, first);
    struct scratch s = scratch_init(job->cb->thread_scratch[thread_idx], job->cb->limits.head_dim);
    size_t query_floats = v_dim + 2, tile_floats = (size_t)job->tokens_a_tile * job->heads_a_tile * query_floats;
    for (uint32_t q = 0; q < t.n_queries; q++) {
        reset(s.m, s.l, s.o, 1, v_dim);
        for (uint32_t i = 0; i < row_splits; i++) {
            const float *p = job->partials + (first + i) * tile_floats + q * query_floats;
            split_merge(k, s.m, s.l, s.o, p[v_dim], p[v_dim + 1], p, v_dim);
        }
        uint32_t head = t.head0 + q % t.n_heads, token = t.row->token_off + t.t0 + q / t.n_heads;
        finish(job, head, *s.m, *s.l, s.o, mat_row(job->args->out, token) + (size_t)head * v_dim);
    }
}

// ---- The operation ------------------------------------------------------------------------------
static size_t partial_bytes(const struct backend_limits *limits) {
    size_t splits = limits->ctx_len / ATTENTION_SPLIT + 2;
    return splits * limits->n_heads * (limits->head_dim + 2) * PARTIAL_TOKENS * sizeof(float);
}

static size_t table_bytes(const struct backend_limits *limits) {
    return ((size_t)limits->n_rows + 1 + 15) / 16 * 16 * sizeof(uint32_t);
}

struct cpu_scratch_bytes cpu_attention_scratch(const struct cpu_backend *cb, const struct backend_limits *limits) {
    (void)cb;
    return (struct cpu_scratch_bytes){
        .thread = scratch_floats(limits->head_dim) * sizeof(float),
        .shared = table_bytes(limits) + partial_bytes(limits),
    };
}

// What a row needs at least: its keys and values once, and two products of each query with each key it may see.
static void count_row(struct cpu_backend *cb, const struct job *job, const struct step_row *row) {
    const struct kv_layout *layout = &job->layer->layout;
    struct span all = visible_all(job->args, row, 0, row->n_tokens);
    uint64_t n_pairs = 0;
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        struct span s = visible(job->args, row, row->pos0 + i);
        n_pairs += job->args->selected ? min_u32(s.to - s.from, job->args->n_selected) : s.to - s.from;
    }
    cb->work.kv_bytes += (uint64_t)(all.to - all.from) * job->layer->n_heads * layout->block_bytes / KV_PAGE_TOKENS;
    cb->work.float_ops += 2 * n_pairs * job->args->n_heads * (layout->k_dim + layout->v_dim);
}

void cpu_attention(struct backend *be, const struct attention_args *args) {
    struct cpu_backend *cb = cpu_backend(be);
    const struct step *step = cb->step;
    const struct kv_layer *layer = &args->pool->layers[args->layer];
    assert(args->n_heads % layer->n_heads == 0);
    struct job job = {.cb = cb, .args = args, .layer = layer, .n_shared = args->n_heads / layer->n_heads};
    enum kv_kind kind = layer->layout.kind;
    job.tiled = cb->math == MATH_FAST && cb->kernels.tiles.scores && !args->selected &&
                (kind == KV_BF16 || kind == KV_Q8 || kind == KV_Q4) && layer->layout.k_dim % 32 == 0 &&
                layer->layout.v_dim % 16 == 0;
    job.heads_a_tile = min_u32(job.n_shared, TILE_QUERIES);
    job.tokens_a_tile = args->selected ? 1 : TILE_QUERIES / job.heads_a_tile;
    uint32_t tokens_max = 1;
    for (uint32_t i = 0; i < step->n_rows; i++)
        tokens_max = max_u32(tokens_max, step->rows[i].n_tokens);
    job.tokens_a_tile = min_u32(job.tokens_a_tile, tokens_max);
    job.n_head_tiles = layer->n_heads * div_up(job.n_shared, job.heads_a_tile);

    uint32_t n_whole = 0, n_cut = 0;
    uint64_t n_pairs = 0; // of a query and a key
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct step_row *row = &step->rows[i];
        struct span s = visible_all(args, row, 0, row->n_tokens);
        uint32_t n = div_up(row->n_tokens, job.tokens_a_tile) * job.n_head_tiles;
        n_whole += n;
        n_cut += n * n_splits(s);
        n_pairs += (uint64_t)row->n_tokens * args->n_heads * (s.to - s.from);
        count_row(cb, &job, row);
    }
    size_t tile_bytes = (size_t)job.tokens_a_tile * job.heads_a_tile * (layer->layout.v_dim + 2) * sizeof(float);
    job.split = cb->n_threads > 1 && n_whole < TILES_A_THREAD * cb->n_threads && n_cut > n_whole &&
                n_cut * tile_bytes <= partial_bytes(&cb->limits);

    uint32_t *first_tile = cb->shared_scratch, n = 0;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct step_row *row = &step->rows[i];
        first_tile[i] = n;
        n += div_up(row->n_tokens, job.tokens_a_tile) * job.n_head_tiles *
             (job.split ? n_splits(visible_all(args, row, 0, row->n_tokens)) : 1);
    }
    first_tile[step->n_rows] = n;
    job.first_tile = first_tile;
    job.n_tiles = n;
    job.partials = (float *)((char *)cb->shared_scratch + table_bytes(&cb->limits));
    uint64_t work = n_pairs * (layer->layout.k_dim + layer->layout.v_dim);
    cpu_run(cb, tile_run, &job, n, work);
    if (job.split)
        cpu_run(cb, merge_run, &job, n_whole, (uint64_t)n_cut * job.heads_a_tile * layer->layout.v_dim * 2);
}
