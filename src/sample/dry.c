#include "sample/dry.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/checked.h"

struct sequence {
    token_id head;
    const token_id *tail; // [n_tail]
    uint32_t n_tail;
};

struct dry_breakers {
    _Atomic int references; // the last to go frees
    struct arena arena;     // owns the texts and the tails
    struct str *texts;
    uint32_t n_texts;
    struct sequence *sequences; // [n] in order of head
    size_t n, n_max;
};

const struct str DRY_BREAKERS_DEFAULT[4] = {{"\n", 1}, {":", 1}, {"\"", 1}, {"*", 1}};

static bool add(struct dry_breakers *b, token_id head, const struct token_list *tail) {
    if (b->n == b->n_max) {
        size_t n = b->n_max ? b->n_max * 2 : 256;
        struct sequence *grown = realloc(b->sequences, n * sizeof *grown);
        if (!grown)
            return false;
        b->sequences = grown;
        b->n_max = n;
    }
    uint32_t n_tail = tail ? (uint32_t)min_size(tail->n, DRY_TAIL_TOKENS_MAX) : 0;
    token_id *copy = arena_array(&b->arena, token_id, n_tail);
    if (!copy)
        return false;
    if (n_tail)
        memcpy(copy, tail->ids, n_tail * sizeof *copy);
    b->sequences[b->n++] = (struct sequence){head, copy, n_tail};
    return true;
}

// Every token in which `text` lies, or at whose end it begins.
static bool add_text(struct dry_breakers *b, const struct tokenizer *tokenizer, struct str text, struct err *err) {
    struct token_list tail = {0};
    bool ok = true;
    uint32_t n_vocab = tokenizer_n_vocab(tokenizer);
    for (uint32_t id = 0; ok && id < n_vocab; id++) {
        struct str word = str_of(tokenizer_token_bytes(tokenizer, (token_id)id));
        if (!word.n || !memchr(word.data, text.data[0], word.n))
            continue;
        if (str_find(word, text, 0) != SIZE_MAX) {
            ok = add(b, (token_id)id, NULL);
            continue;
        }
        size_t from = word.n < text.n ? 0 : word.n - text.n + 1;
        for (size_t at = from; ok && at < word.n; at++) {
            size_t n = word.n - at;
            if (memcmp(word.data + at, text.data, n) != 0)
                continue;
            token_list_clear(&tail);
            ok = tokenizer_encode(tokenizer, str_slice(text, n, text.n), TOKENIZER_NO_SPECIAL_SPELLINGS, &tail,
                                  err) && !tail.failed && add(b, (token_id)id, &tail);
        }
    }
    token_list_deinit(&tail);
    return ok;
}

static int by_head(const void *a, const void *b) {
    const struct sequence *x = a, *y = b;
    return x->head != y->head ? (x->head < y->head ? -1 : 1) : (x->n_tail > y->n_tail) - (x->n_tail < y->n_tail);
}

struct dry_breakers *dry_breakers_create(const struct tokenizer *tokenizer, const struct str *texts, uint32_t n_texts,
                                         struct err *err) {
    if (n_texts > DRY_BREAKERS_MAX) {
        err_set(err, ERR_INVALID, "there are at most %d DRY sequence breakers, not %u", DRY_BREAKERS_MAX, n_texts);
        return NULL;
    }
    for (uint32_t i = 0; i < n_texts; i++) {
        if (texts[i].n == 0 || texts[i].n > DRY_BREAKER_BYTES_MAX) {
            err_set(err, ERR_INVALID, "a DRY sequence breaker has 1 to %d bytes, not %zu", DRY_BREAKER_BYTES_MAX,
                    texts[i].n);
            return NULL;
        }
    }
    struct dry_breakers *b = calloc(1, sizeof *b);
    bool ok = b != NULL;
    if (ok) {
        atomic_init(&b->references, 1);
        b->texts = arena_array(&b->arena, struct str, n_texts);
        ok = b->texts != NULL;
    }
    for (uint32_t i = 0; ok && i < n_texts; i++)
        ok = arena_copy(&b->arena, texts[i], &b->texts[b->n_texts++]) && add_text(b, tokenizer, texts[i], err);
    if (ok) {
        if (b->n)
            qsort(b->sequences, b->n, sizeof *b->sequences, by_head);
        return b;
    }
    dry_breakers_release(b);
    err_set(err, ERR_NOMEM, "out of memory for DRY sequence breakers");
    return NULL;
}

struct dry_breakers *dry_breakers_acquire(struct dry_breakers *b) {
    if (b)
        atomic_fetch_add_explicit(&b->references, 1, memory_order_relaxed);
    return b;
}

void dry_breakers_release(struct dry_breakers *b) {
    if (!b || atomic_fetch_sub_explicit(&b->references, 1, memory_order_acq_rel) != 1)
        return;
    arena_deinit(&b->arena);
    free(b->sequences);
    free(b);
}

bool dry_breakers_are(const struct dry_breakers *b, const struct str *texts, uint32_t n_texts) {
    if (b->n_texts != n_texts)
        return false;
    for (uint32_t i = 0; i < n_texts; i++)
        if (!str_eq(b->texts[i], texts[i]))
            return false;
    return true;
}

// The sequences that begin with this token.
static const struct sequence *sequences_of(const struct dry_breakers *b, token_id head, size_t *n) {
    size_t low = 0, high = b ? b->n : 0;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (b->sequences[mid].head < head)
            low = mid + 1;
        else
            high = mid;
    }
    *n = 0;
    while (b && low + *n < b->n && b->sequences[low + *n].head == head)
        ++*n;
    return *n ? b->sequences + low : NULL;
}

// How many of the last n tokens lie behind the latest breaker: no repetition counts for more.
static uint32_t behind_breaker(const struct dry_breakers *b, const int32_t *last, uint32_t n) {
    for (uint32_t i = 0; b && i < n; i++) { // last[-i] is the token i before the end
        size_t n_found;
        const struct sequence *s = sequences_of(b, last[-(ptrdiff_t)i], &n_found);
        int64_t longest = -1;
        for (size_t k = 0; k < n_found; k++) {
            if ((int64_t)s[k].n_tail <= longest || s[k].n_tail > i)
                continue;
            if (memcmp(s[k].tail, last - (ptrdiff_t)i + 1, s[k].n_tail * sizeof *s[k].tail) == 0)
                longest = s[k].n_tail;
        }
        if (longest >= 0)
            return i - (uint32_t)longest;
    }
    return n;
}

// lengths[k], 1 <= k < n: of the longest common suffix of the whole context and of the context without its last k
// tokens, by the Z algorithm (Gusfield 1997, 1.4) on the reversed tokens.
static void common_suffixes(const int32_t *last, uint32_t n, uint32_t *lengths) {
    uint32_t left = 0, right = 0; // reversed [left, right) equals a prefix
    lengths[0] = n;
    for (uint32_t k = 1; k < n; k++) {
        uint32_t length = k < right ? min_u32(right - k, lengths[k - left]) : 0;
        while (k + length < n && last[-(ptrdiff_t)length] == last[-(ptrdiff_t)(k + length)])
            length++;
        lengths[k] = length;
        if (k + length > right) {
            left = k;
            right = k + length;
        }
    }
}

static bool breaks_alone(const struct dry_breakers *b, token_id id) {
    size_t n;
    const struct sequence *s = sequences_of(b, id, &n);
    return n && s[0].n_tail == 0; // shortest first
}

void dry_apply(const struct dry_params *p, const struct dry_breakers *breakers, const int32_t *tokens,
               uint32_t n_tokens, uint32_t *spare, uint32_t *by_token, float *logits, uint32_t n_vocab) {
    uint32_t n = p->last_n < 0 ? n_tokens : min_u32(n_tokens, (uint32_t)p->last_n);
    if (p->multiplier == 0 || n <= p->allowed_length)
        return;
    const int32_t *last = tokens + n_tokens - 1;
    uint32_t limit = behind_breaker(breakers, last, n);
    if (limit < p->allowed_length)
        return;
    common_suffixes(last, n, spare);
    // The token that followed an earlier occurrence would prolong it; its longest occurrence counts.
    for (uint32_t k = 1; k < n; k++) {
        token_id next = last[-(ptrdiff_t)(k - 1)];
        if (spare[k] >= p->allowed_length && (uint32_t)next < n_vocab)
            by_token[next] = max_u32(by_token[next], min_u32(spare[k], limit));
    }
    float exponent_max = p->base > 1.000001f ? floorf(88.7228391f / logf(p->base)) : 0; // of a finite float
    for (uint32_t k = 1; k < n; k++) {
        token_id next = last[-(ptrdiff_t)(k - 1)];
        if ((uint32_t)next >= n_vocab || by_token[next] == 0)
            continue;
        uint32_t longest = by_token[next];
        by_token[next] = 0; // each logit changes once
        if (breaks_alone(breakers, next))
            continue;
        float exponent = (float)(longest - p->allowed_length);
        if (exponent_max > 0 && exponent > exponent_max)
            exponent = exponent_max;
        logits[next] -= p->multiplier * powf(p->base, exponent);
    }
}
