#include "tokenizer/unigram.h"

#include <stdlib.h>

#include "base/checked.h"
#include "tokenizer/characters.h"

// The best way to reach a position.
struct unigram_end {
    double score;
    size_t from; // where its last token begins; SIZE_MAX: not reached
    size_t next; // where the token of the best path that begins here ends
    token_id id; // its last token; TOKEN_NONE: unknown
};

void unigram_scratch_deinit(struct unigram_scratch *scratch) {
    free(scratch->ends);
    *scratch = (struct unigram_scratch){0};
}

// ---- Trie -------------------------------------------------------------------------------------

struct entry {
    struct str text;
    uint32_t id;
};

static int compare_entries(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    int order = memcmp(x->text.data, y->text.data, min_size(x->text.n, y->text.n));
    if (order)
        return order;
    if (x->text.n != y->text.n)
        return x->text.n < y->text.n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

// A node whose children are still to be laid out: entries from .. to share its first `depth` bytes.
struct pending {
    uint32_t from, to, depth;
};

static bool lay_out(struct image_builder *builder, const struct entry *entries, uint32_t n,
                    size_t n_nodes_max, struct err *err) {
    struct pending *queue = calloc(n_nodes_max, sizeof *queue);
    struct trie_node *nodes = calloc(n_nodes_max, sizeof *nodes);
    bool ok = (queue && nodes) || err_set(err, ERR_NOMEM, "tokenizer: out of memory for a trie");
    size_t n_nodes = 1;
    if (ok)
        queue[0] = (struct pending){0, n, 0};
    for (size_t i = 0; ok && i < n_nodes; i++) { // breadth first: the queue is the node array
        struct pending p = queue[i];
        while (p.from < p.to && entries[p.from].text.n == p.depth) // equal texts: the last stays
            nodes[i].id_next = entries[p.from++].id + 1;
        nodes[i].child = (uint32_t)n_nodes;
        while (p.from < p.to) {
            uint8_t label = (uint8_t)entries[p.from].text.data[p.depth];
            uint32_t end = p.from;
            while (end < p.to && (uint8_t)entries[end].text.data[p.depth] == label)
                end++;
            queue[n_nodes] = (struct pending){p.from, end, p.depth + 1};
            nodes[n_nodes++].label = label;
            nodes[i].n_children++;
            p.from = end;
        }
    }
    if (ok)
        image_append(builder, IMAGE_TRIE, nodes, n_nodes * sizeof *nodes);
    free(queue);
    free(nodes);
    return ok;
}

bool unigram_build_trie(struct image_builder *builder, const struct str *texts,
                        const uint8_t *flags, uint32_t n, struct err *err) {
    struct entry *entries = calloc((size_t)n + 1, sizeof *entries);
    uint32_t n_entries = 0;
    size_t n_nodes_max = 1;
    if (!entries)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory for a trie");
    for (uint32_t id = 0; id < n; id++)
        if (texts[id].n && flags[id] & TOKEN_IN_MODEL)
            entries[n_entries++] = (struct entry){texts[id], id};
    qsort(entries, n_entries, sizeof *entries, compare_entries);
    for (uint32_t i = 0; i < n_entries; i++) { // what each adds to the one before
        size_t shared = 0;
        while (i && shared < min_size(entries[i].text.n, entries[i - 1].text.n) &&
               entries[i].text.data[shared] == entries[i - 1].text.data[shared])
            shared++;
        n_nodes_max += entries[i].text.n - shared;
    }
    bool ok = n_nodes_max < UINT32_MAX || err_set(err, ERR_FORMAT, "tokenizer: trie too large");
    ok = ok && lay_out(builder, entries, n_entries, n_nodes_max, err);
    free(entries);
    return ok;
}

bool unigram_read(struct unigram *unigram, const struct image *image, struct err *err) {
    struct bytes scores = image->section[IMAGE_SCORES], trie = image->section[IMAGE_TRIE];
    unigram->scores = (const double *)(const void *)scores.data;
    unigram->nodes = (const struct trie_node *)(const void *)trie.data;
    unigram->n_nodes = (uint32_t)(trie.n / sizeof *unigram->nodes);
    uint32_t n_ids = unigram->vocab->n_ids;
    bool fits = scores.n == n_ids * sizeof(double) && unigram->n_nodes;
    for (uint32_t i = 0; fits && i < unigram->n_nodes; i++) {
        const struct trie_node *node = &unigram->nodes[i];
        // Children come later: walks end.
        fits = node->id_next <= n_ids &&
               (node->n_children == 0 || (node->child > i && node->child <= unigram->n_nodes &&
                                          node->n_children <= unigram->n_nodes - node->child));
    }
    if (!fits)
        return err_set(err, ERR_FORMAT, "compiled tokenizer: scores or trie do not fit");
    return true;
}

static const struct trie_node *child_of(const struct unigram *unigram, const struct trie_node *node,
                                        uint8_t label) {
    const struct trie_node *low = unigram->nodes + node->child, *end = low + node->n_children;
    for (uint32_t n = node->n_children; n > 0;) {
        const struct trie_node *mid = low + n / 2;
        if (mid->label < label) {
            low = mid + 1;
            n -= n / 2 + 1;
        } else {
            n /= 2;
        }
    }
    return low < end && low->label == label ? low : NULL;
}

// ---- Encoding ---------------------------------------------------------------------------------

static void offer(struct unigram_end *end, double score, size_t from, token_id id) {
    if (end->from == SIZE_MAX || score > end->score)
        *end = (struct unigram_end){.score = score, .from = from, .id = id};
}

static void search(const struct unigram *unigram, struct str word, struct unigram_end *ends) {
    for (size_t i = 0; i <= word.n; i++)
        ends[i] = (struct unigram_end){.from = SIZE_MAX, .id = TOKEN_NONE};
    for (size_t at = 0, n_char; at < word.n; at += n_char) {
        char_at(word.data + at, &n_char);
        double so_far = ends[at].score;
        bool covers_char = false;
        const struct trie_node *node = unigram->nodes;
        for (size_t to = at; to < word.n && (node = child_of(unigram, node, (uint8_t)word.data[to]));) {
            to++;
            if (!node->id_next)
                continue;
            token_id id = (token_id)(node->id_next - 1);
            offer(&ends[to], so_far + unigram->scores[id], at, id);
            covers_char |= to - at == n_char;
        }
        if (!covers_char)
            offer(&ends[at + n_char], so_far + unigram->unk_score, at, TOKEN_NONE);
    }
}

static bool append_unknown(const struct unigram *unigram, struct str text, struct token_list *out,
                           struct err *err) {
    // Neighbouring unknown characters are one text, which may even be a token.
    token_id id = vocab_find(unigram->vocab, text);
    if (id == TOKEN_NONE && unigram->byte_fallback) {
        bool all = true;
        for (size_t i = 0; all && i < text.n; i++)
            all = unigram->fallback[(uint8_t)text.data[i]] != TOKEN_NONE;
        for (size_t i = 0; all && i < text.n; i++)
            token_list_append(out, unigram->fallback[(uint8_t)text.data[i]]);
        if (all)
            return true;
    }
    if (id == TOKEN_NONE)
        id = unigram->unk;
    if (id == TOKEN_NONE)
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer: the text has a character that the vocabulary lacks, and the model "
                       "has no unk token");
    token_list_append(out, id);
    return true;
}

bool unigram_encode(const struct unigram *unigram, struct str word, struct unigram_scratch *scratch,
                    struct token_list *out, struct err *err) {
    if (word.n + 1 > scratch->n_ends_max) {
        size_t want = max_size(word.n + 1, 2 * scratch->n_ends_max), n_bytes;
        struct unigram_end *grown;
        if (!mul_size(want, sizeof *grown, &n_bytes) || !(grown = realloc(scratch->ends, n_bytes)))
            return err_set(err, ERR_NOMEM, "tokenizer: out of memory for %zu bytes", word.n);
        scratch->ends = grown;
        scratch->n_ends_max = want;
    }
    struct unigram_end *ends = scratch->ends;
    search(unigram, word, ends);
    for (size_t at = word.n; at > 0; at = ends[at].from)
        ends[ends[at].from].next = at;
    size_t unknown_from = SIZE_MAX;
    for (size_t at = 0; at < word.n;) {
        size_t to = ends[at].next;
        token_id id = ends[to].id;
        // The unk token itself, spelled out, counts as unknown too.
        bool unknown = id == TOKEN_NONE || id == unigram->unk;
        if (unknown && unknown_from == SIZE_MAX)
            unknown_from = at;
        if (!unknown) {
            if (unknown_from != SIZE_MAX &&
                !append_unknown(unigram, str_slice(word, unknown_from, at), out, err))
                return false;
            unknown_from = SIZE_MAX;
            token_list_append(out, id);
        }
        at = to;
    }
    return unknown_from == SIZE_MAX ||
           append_unknown(unigram, str_slice(word, unknown_from, word.n), out, err);
}
