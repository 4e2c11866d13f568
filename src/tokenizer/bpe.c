#include "tokenizer/bpe.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/utf8.h"

enum {
    SHORT_WORD = 48,             // up to here a scan for the lowest rank beats a heap
    WORD_BYTES_MAX = 1 << 30,    // positions are 32 bits
};
#define NO_RANK UINT32_MAX
#define NO_SYMBOL UINT32_MAX

void bpe_scratch_deinit(struct bpe_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    strbuf_deinit(&scratch->affixed);
    *scratch = (struct bpe_scratch){0};
}

static bool reserve_symbols(struct bpe_scratch *scratch, size_t n) {
    if (n <= scratch->n_symbols_max)
        return true;
    size_t want = max_size(n, 2 * scratch->n_symbols_max), bytes;
    struct bpe_symbol *grown;
    if (n > WORD_BYTES_MAX || !mul_size(want, sizeof *grown, &bytes) ||
        !(grown = realloc(scratch->symbols, bytes)))
        return false;
    scratch->symbols = grown;
    scratch->n_symbols_max = want;
    return true;
}

// ---- Merge table ------------------------------------------------------------------------------

static uint32_t merge_hash(uint32_t a, uint32_t b) {
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 13);
}

static inline const struct merge_slot *find_merge(const struct bpe *bpe, token_id a, token_id b) {
    for (uint32_t i = merge_hash((uint32_t)a, (uint32_t)b);; i++) {
        const struct merge_slot *slot = &bpe->merges[i & bpe->merge_mask];
        if (!slot->id_next)
            return NULL;
        if (slot->a == (uint32_t)a && slot->b == (uint32_t)b)
            return slot;
    }
}

bool bpe_build_merges(struct image_builder *builder, const struct merge *merges, uint32_t n,
                      struct err *err) {
    uint32_t n_slots = vocab_n_slots(n), mask = n_slots - 1;
    struct merge_slot *slots = calloc(n_slots, sizeof *slots);
    if (!slots)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory for %u merges", n);
    for (uint32_t rank = 0; rank < n; rank++) {
        uint32_t a = (uint32_t)merges[rank].a, b = (uint32_t)merges[rank].b;
        uint32_t at = merge_hash(a, b) & mask;
        while (slots[at].id_next && !(slots[at].a == a && slots[at].b == b))
            at = (at + 1) & mask;
        slots[at] = (struct merge_slot){a, b, rank, (uint32_t)merges[rank].joined + 1};
    }
    image_append(builder, IMAGE_MERGES, slots, n_slots * sizeof *slots);
    free(slots);
    return true;
}

bool bpe_read_merges(struct bpe *bpe, const struct image *image, struct err *err) {
    struct bytes s = image->section[IMAGE_MERGES];
    size_t n = s.n / sizeof *bpe->merges, n_free = 0;
    bool fits = n && (n & (n - 1)) == 0 && s.n == n * sizeof *bpe->merges;
    bpe->merges = (const struct merge_slot *)(const void *)s.data;
    bpe->merge_mask = (uint32_t)n - 1;
    for (size_t i = 0; fits && i < n; i++) {
        fits = bpe->merges[i].id_next <= bpe->vocab->n_ids;
        n_free += !bpe->merges[i].id_next;
    }
    if (!fits || !n_free)
        return err_set(err, ERR_FORMAT, "compiled tokenizer: merge table does not fit");
    return true;
}

// ---- Joining ----------------------------------------------------------------------------------

static inline void set_pair(const struct bpe *bpe, struct bpe_symbol *left, token_id right) {
    const struct merge_slot *merge = find_merge(bpe, left->id, right);
    left->rank = merge ? merge->rank : NO_RANK;
    left->joined = merge ? (token_id)(merge->id_next - 1) : TOKEN_NONE;
}

// The lowest rank, leftmost first, by looking at all: symbols stay dense.
static size_t join_short(const struct bpe *bpe, struct bpe_symbol *symbols, size_t n) {
    for (size_t i = 0; i + 1 < n; i++)
        set_pair(bpe, &symbols[i], symbols[i + 1].id);
    while (n > 1) {
        size_t best = 0;
        uint32_t rank = NO_RANK;
        for (size_t i = 0; i + 1 < n; i++)
            if (symbols[i].rank < rank) {
                rank = symbols[i].rank;
                best = i;
            }
        if (rank == NO_RANK)
            break;
        symbols[best].id = symbols[best].joined;
        memmove(&symbols[best + 1], &symbols[best + 2], (n - best - 2) * sizeof *symbols);
        n--;
        if (best + 1 < n)
            set_pair(bpe, &symbols[best], symbols[best + 1].id);
        if (best > 0)
            set_pair(bpe, &symbols[best - 1], symbols[best].id);
    }
    return n;
}

static bool heap_push(struct bpe_scratch *scratch, uint64_t key) {
    if (scratch->n_heap == scratch->n_heap_max) {
        size_t want = scratch->n_heap_max ? 2 * scratch->n_heap_max : 256;
        uint64_t *grown = realloc(scratch->heap, want * sizeof *grown);
        if (!grown)
            return false;
        scratch->heap = grown;
        scratch->n_heap_max = want;
    }
    uint64_t *heap = scratch->heap;
    size_t i = scratch->n_heap++;
    for (; i > 0 && heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = key;
    return true;
}

static uint64_t heap_pop(struct bpe_scratch *scratch) {
    uint64_t *heap = scratch->heap, top = heap[0], last = heap[--scratch->n_heap];
    size_t n = scratch->n_heap, i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
    }
    if (n)
        heap[i] = last;
    return top;
}

static bool push_pair(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t at) {
    struct bpe_symbol *left = &scratch->symbols[at];
    left->rank = NO_RANK;
    if (left->next == NO_SYMBOL)
        return true;
    set_pair(bpe, left, scratch->symbols[left->next].id);
    return left->rank == NO_RANK || heap_push(scratch, (uint64_t)left->rank << 32 | at);
}

// The same result in O(n log n): a heap of candidate pairs, stale ones skipped when they come up.
static bool join_long(const struct bpe *bpe, struct bpe_scratch *scratch, size_t *n_symbols) {
    struct bpe_symbol *symbols = scratch->symbols;
    size_t n = *n_symbols;
    scratch->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        symbols[i].prev = i ? i - 1 : NO_SYMBOL;
        symbols[i].next = i + 1 < n ? i + 1 : NO_SYMBOL;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!push_pair(bpe, scratch, i))
            return false;
    while (scratch->n_heap) {
        uint64_t top = heap_pop(scratch);
        uint32_t at = (uint32_t)top;
        struct bpe_symbol *left = &symbols[at];
        if (left->id == TOKEN_NONE || left->rank != (uint32_t)(top >> 32))
            continue;
        struct bpe_symbol *right = &symbols[left->next];
        left->id = left->joined;
        left->next = right->next;
        right->id = TOKEN_NONE;
        if (left->next != NO_SYMBOL)
            symbols[left->next].prev = at;
        if (!push_pair(bpe, scratch, at) ||
            (left->prev != NO_SYMBOL && !push_pair(bpe, scratch, left->prev)))
            return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (symbols[i].id != TOKEN_NONE)
            symbols[kept++].id = symbols[i].id;
    *n_symbols = kept;
    return true;
}

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
}

static bool join_and_append(const struct bpe *bpe, struct bpe_scratch *scratch, size_t n,
                            struct token_list *out, struct err *err) {
    if (n <= SHORT_WORD)
        n = join_short(bpe, scratch->symbols, n);
    else if (!join_long(bpe, scratch, &n))
        return no_memory(err);
    for (size_t i = 0; i < n; i++)
        token_list_append(out, scratch->symbols[i].id);
    return !out->failed || no_memory(err);
}

// ---- First symbols ----------------------------------------------------------------------------

// Symbols being collected; an unknown character waits, because the next one may fuse with it.
struct collector {
    const struct bpe *bpe;
    struct bpe_symbol *symbols;
    size_t n;
    bool unk_waits;
    bool lacks_unk; // the unk token was needed and is not there
};

static void collect(struct collector *c, token_id id) {
    if (c->unk_waits) {
        c->symbols[c->n++].id = c->bpe->unk;
        c->unk_waits = false;
    }
    c->symbols[c->n++].id = id;
}

static void collect_unknown(struct collector *c, struct str spelled) {
    const struct bpe *bpe = c->bpe;
    if (bpe->byte_fallback) {
        bool all = true;
        for (size_t i = 0; all && i < spelled.n; i++)
            all = bpe->fallback[(uint8_t)spelled.data[i]] != TOKEN_NONE;
        if (all) { // a waiting unk keeps waiting: HF's order
            for (size_t i = 0; i < spelled.n; i++)
                c->symbols[c->n++].id = bpe->fallback[(uint8_t)spelled.data[i]];
            return;
        }
    }
    if (!bpe->has_unk)
        return;
    c->lacks_unk |= bpe->unk == TOKEN_NONE;
    if (c->unk_waits && !bpe->fuse_unk)
        c->symbols[c->n++].id = bpe->unk;
    c->unk_waits = true;
}

static bool join_collected(struct collector *c, struct bpe_scratch *scratch, struct token_list *out,
                           struct err *err) {
    if (c->lacks_unk)
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer: the text has a character that the vocabulary lacks, and the model's "
                       "unk_token is not in it either");
    if (c->unk_waits)
        c->symbols[c->n++].id = c->bpe->unk;
    return join_and_append(c->bpe, scratch, c->n, out, err);
}

bool bpe_encode(const struct bpe *bpe, struct str word, struct bpe_scratch *scratch,
                struct token_list *out, struct err *err) {
    if (word.n == 0)
        return true;
    if (bpe->ignore_merges) {
        token_id id = vocab_find(bpe->vocab, word);
        if (id != TOKEN_NONE) {
            token_list_append(out, id);
            return !out->failed || no_memory(err);
        }
    }
    bool affixes = bpe->prefix.n || bpe->suffix.n;
    // An affix may fall back to bytes as well.
    if (!reserve_symbols(scratch, (word.n + 1) * (1 + bpe->prefix.n) + bpe->suffix.n))
        return no_memory(err);
    struct collector c = {.bpe = bpe, .symbols = scratch->symbols};
    for (size_t i = 0; i < word.n;) {
        size_t from = i;
        utf8_next(word, &i);
        struct str spelled = str_slice(word, from, i);
        if (affixes) {
            strbuf_clear(&scratch->affixed);
            if (from > 0)
                strbuf_append(&scratch->affixed, bpe->prefix);
            strbuf_append(&scratch->affixed, spelled);
            if (i == word.n)
                strbuf_append(&scratch->affixed, bpe->suffix);
            if (scratch->affixed.failed)
                return no_memory(err);
            spelled = strbuf_str(&scratch->affixed);
        }
        token_id id = vocab_find(bpe->vocab, spelled);
        if (id != TOKEN_NONE)
            collect(&c, id);
        else
            collect_unknown(&c, spelled);
    }
    return join_collected(&c, scratch, out, err);
}

static bool encode_letters(const struct bpe *bpe, struct str word, struct bpe_scratch *scratch,
                           struct token_list *out, struct err *err) {
    if (!reserve_symbols(scratch, word.n + 1))
        return no_memory(err);
    struct collector c = {.bpe = bpe, .symbols = scratch->symbols};
    for (size_t i = 0; i < word.n; i++) {
        token_id id = bpe->letters[(uint8_t)word.data[i]];
        if (id != TOKEN_NONE)
            collect(&c, id);
        else
            collect_unknown(&c, (struct str){NULL, 0});
    }
    return join_collected(&c, scratch, out, err);
}

bool bpe_encode_bytes(const struct bpe *bpe, struct str word, uint64_t hash,
                      struct bpe_scratch *scratch, struct token_list *out, struct err *err) {
    // A token that its own text merges to is the answer for that text; with ignore_merges any is.
    token_id whole = vocab_find_hashed(bpe->pieces, word, hash);
    if (whole != TOKEN_NONE && (bpe->ignore_merges || bpe->flags[whole] & TOKEN_WHOLE)) {
        token_list_append(out, whole);
        return !out->failed || no_memory(err);
    }
    return encode_letters(bpe, word, scratch, out, err);
}

bool bpe_mark_whole(const struct bpe *bpe, uint8_t *flags, struct err *err) {
    struct bpe_scratch scratch = {0};
    struct token_list ids = {0};
    bool ok = true;
    for (uint32_t id = 0; ok && !bpe->ignore_merges && id < bpe->pieces->n_ids; id++) {
        struct str piece = vocab_text(bpe->pieces, (token_id)id);
        if (!(flags[id] & TOKEN_LETTERS) || piece.n == 0)
            continue;
        token_list_clear(&ids);
        ok = encode_letters(bpe, piece, &scratch, &ids, err);
        if (ids.n == 1 && ids.ids[0] == (token_id)id)
            flags[id] |= TOKEN_WHOLE;
    }
    bpe_scratch_deinit(&scratch);
    token_list_deinit(&ids);
    return ok;
}
