#include "grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/json.h"
#include "grammar/ebnf.h"
#include "grammar/machine.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "grammar/tag.h"

enum { GRAMMAR_NODES_MAX = 600000 };

struct grammar {
    _Atomic uint32_t n_refs;
    const struct grammar_vocab *vocab;
    pthread_mutex_t lock; // guards what follows
    struct machine *machine;
    struct schema *schema;
    struct tag *tag;
    struct ebnf *ebnf;
};

struct grammar_state {
    struct grammar *grammar;
    struct machine_root root; // ids: the last configurations, the current one last
    config_id history[GRAMMAR_ROLLBACK_MAX + 2];
    uint64_t n_advanced;
    bool ended;
};

static expr_id choice_expr(struct exprs *x, struct str text, struct err *err) {
    json_t *list = json_parse(text, "choice", err);
    if (!list)
        return EXPR_NONE;
    size_t n = json_array_size(list), i;
    struct str *texts = malloc((n + 1) * sizeof *texts);
    bool ok = texts && n > 0;
    json_t *item;
    json_array_foreach(list, i, item) {
        ok = ok && json_is_string(item);
        if (ok)
            texts[i] = json_str(item);
    }
    expr_id e = EXPR_NONE;
    if (ok)
        e = expr_lits(x, texts, n);
    else
        err_set(err, ERR_INVALID, "choice: must be a non-empty array of strings");
    free(texts);
    json_decref(list);
    return e;
}

static expr_id front_end(struct grammar *g, struct exprs *x, const struct grammar_spec *spec,
                         struct err *err) {
    struct schema_options options = {.spaces_max = spec->compact ? 0 : GRAMMAR_SPACES_DEFAULT};
    expr_id root = EXPR_NONE;
    switch (spec->kind) {
    case GRAMMAR_JSON_SCHEMA: {
        json_t *json = json_parse(spec->text, "schema", err);
        if (!json) {
            if (err->code == ERR_FORMAT)
                err->code = ERR_INVALID;
            return EXPR_NONE;
        }
        g->schema = schema_create(x, json, &options, err);
        json_decref(json);
        return g->schema ? schema_root(g->schema) : EXPR_NONE;
    }
    case GRAMMAR_JSON_OBJECT:
        options.any_object = true;
        g->schema = schema_create(x, NULL, &options, err);
        return g->schema ? schema_root(g->schema) : EXPR_NONE;
    case GRAMMAR_EBNF:
        g->ebnf = ebnf_create(x, spec->text, err);
        return g->ebnf ? ebnf_root(g->ebnf) : EXPR_NONE;
    case GRAMMAR_REGEX:
        root = regex_expr(x, spec->text, SPELL_PLAIN, REGEX_WHOLE, err);
        if (err->code == ERR_OK && !exprs_failed(x) &&
            (root == EXPR_NONE || !expr_alive(x, root)))
            err_set(err, ERR_INVALID, "regex: nothing matches it");
        return root;
    case GRAMMAR_CHOICE:
        return choice_expr(x, spec->text, err);
    case GRAMMAR_TAG:
        g->tag = tag_create(x, spec->text, g->vocab, &options, err);
        return g->tag ? tag_root(g->tag) : EXPR_NONE;
    }
    err_set(err, ERR_INVALID, "grammar: unknown kind");
    return EXPR_NONE;
}

struct grammar *grammar_compile(const struct grammar_spec *spec,
                                const struct grammar_vocab *vocab, struct err *err) {
    struct err ignored;
    err = err ? err : &ignored;
    err_clear(err);
    if (spec->text.n > GRAMMAR_TEXT_BYTES_MAX) {
        err_set(err, ERR_INVALID, "grammar: %zu bytes are more than the limit of %d",
                spec->text.n, GRAMMAR_TEXT_BYTES_MAX);
        return NULL;
    }
    struct grammar *g = calloc(1, sizeof *g);
    struct exprs *x = exprs_create(GRAMMAR_NODES_MAX);
    if (!g || !x) {
        free(g);
        exprs_destroy(x);
        err_set(err, ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    atomic_init(&g->n_refs, 1);
    g->vocab = vocab;
    pthread_mutex_init(&g->lock, NULL);
    expr_id root = front_end(g, x, spec, err);
    if (err->code == ERR_OK)
        exprs_check(x, err);
    if (err->code == ERR_OK) {
        g->machine = machine_create(x, root, vocab);
        if (!g->machine)
            err_set(err, ERR_NOMEM, "grammar: out of memory");
    } else {
        exprs_destroy(x);
    }
    if (err->code == ERR_OK) {
        machine_start(g->machine);
        exprs_check(machine_exprs(g->machine), err);
    }
    if (err->code == ERR_OK)
        return g;
    grammar_release(g);
    return NULL;
}

struct grammar *grammar_acquire(struct grammar *g) {
    atomic_fetch_add_explicit(&g->n_refs, 1, memory_order_relaxed);
    return g;
}

void grammar_release(struct grammar *g) {
    // The last one out sees what all others did to the grammar.
    if (!g || atomic_fetch_sub_explicit(&g->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    machine_destroy(g->machine);
    schema_destroy(g->schema);
    ebnf_destroy(g->ebnf);
    tag_destroy(g->tag);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

size_t grammar_n_ignored(const struct grammar *g) {
    return g->schema ? schema_n_ignored(g->schema) : g->tag ? tag_n_ignored(g->tag) : 0;
}
const char *grammar_ignored(const struct grammar *g, size_t i) {
    return g->schema ? schema_ignored(g->schema, i) : tag_ignored(g->tag, i);
}
const char *grammar_ignored_path(const struct grammar *g, size_t i) {
    return g->schema ? schema_ignored_path(g->schema, i) : tag_ignored_path(g->tag, i);
}

size_t grammar_bytes(struct grammar *g) {
    pthread_mutex_lock(&g->lock);
    size_t n = sizeof *g + machine_bytes(g->machine) + (g->schema ? schema_bytes(g->schema) : 0);
    pthread_mutex_unlock(&g->lock);
    return n;
}

json_t *grammar_order(struct grammar *g, json_t *instance) {
    if (!g->schema)
        return json_incref(instance);
    pthread_mutex_lock(&g->lock);
    json_t *ordered = schema_order(g->schema, instance);
    pthread_mutex_unlock(&g->lock);
    return ordered;
}

// ---- states ------------------------------------------------------------------------------------

static void state_lock(struct grammar_state *state) {
    pthread_mutex_lock(&state->grammar->lock);
    machine_tidy(state->grammar->machine);
    exprs_refill(machine_exprs(state->grammar->machine));
}
static void state_unlock(struct grammar_state *state) {
    pthread_mutex_unlock(&state->grammar->lock);
}
static config_id *current(struct grammar_state *state) {
    return &state->history[state->root.n - 1];
}

struct grammar_state *grammar_state_create(struct grammar *g, struct err *err) {
    struct grammar_state *state = calloc(1, sizeof *state);
    if (!state) {
        err_set(err, ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    state->grammar = grammar_acquire(g);
    state->root.ids = state->history;
    state->root.n = 1;
    state_lock(state);
    state->history[0] = machine_start(g->machine);
    machine_root_add(g->machine, &state->root);
    bool ok = exprs_check(machine_exprs(g->machine), err);
    state_unlock(state);
    if (ok)
        return state;
    grammar_state_destroy(state);
    return NULL;
}

struct grammar_state *grammar_state_clone(const struct grammar_state *state, struct err *err) {
    struct grammar_state *copy = malloc(sizeof *copy);
    if (!copy) {
        err_set(err, ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    pthread_mutex_lock(&state->grammar->lock);
    *copy = *state;
    copy->root = (struct machine_root){.ids = copy->history, .n = state->root.n};
    machine_root_add(state->grammar->machine, &copy->root);
    grammar_acquire(state->grammar);
    pthread_mutex_unlock(&state->grammar->lock);
    return copy;
}

void grammar_state_destroy(struct grammar_state *state) {
    if (!state)
        return;
    pthread_mutex_lock(&state->grammar->lock);
    machine_root_remove(&state->root);
    pthread_mutex_unlock(&state->grammar->lock);
    grammar_release(state->grammar);
    free(state);
}

bool grammar_state_mask(struct grammar_state *state, uint32_t *mask, struct err *err) {
    struct machine *m = state->grammar->machine;
    if (state->ended) {
        memset(mask, 0, state->grammar->vocab->n_words * sizeof *mask);
        return true;
    }
    state_lock(state);
    machine_mask(m, current(state), mask);
    bool ok = exprs_check(machine_exprs(m), err);
    state_unlock(state);
    return ok;
}

static bool is_eos(const struct grammar_vocab *vocab, token_id token) {
    for (uint32_t i = 0; i < vocab->n_eos; i++)
        if (vocab->eos[i] == token)
            return true;
    return false;
}

// Where the token leads from the current configuration; CONFIG_DEAD if it may not come.
static config_id follow(struct grammar_state *state, token_id token) {
    struct grammar *g = state->grammar;
    if (token < 0 || (uint32_t)token >= g->vocab->n_tokens)
        return CONFIG_DEAD;
    struct bytes b = g->vocab->token_bytes[token];
    config_id at = b.n ? *current(state) : CONFIG_DEAD;
    for (size_t i = 0; i < b.n && at != CONFIG_DEAD; i++) {
        if (i % 256 == 255) { // long tokens: tables may fill up under way
            state->history[state->root.n++] = at;
            machine_tidy(g->machine);
            at = state->history[--state->root.n];
        }
        at = machine_step(g->machine, at, b.data[i]);
    }
    return at;
}

bool grammar_state_allows(struct grammar_state *state, token_id token) {
    if (state->ended)
        return false;
    if (is_eos(state->grammar->vocab, token))
        return grammar_state_eos_allowed(state);
    state_lock(state);
    bool allowed = follow(state, token) != CONFIG_DEAD;
    state_unlock(state);
    return allowed;
}

bool grammar_state_advance(struct grammar_state *state, token_id token) {
    if (state->ended)
        return false;
    state_lock(state);
    config_id at = *current(state);
    bool eos = is_eos(state->grammar->vocab, token);
    bool ok = eos ? machine_accepts(state->grammar->machine, at)
                  : (at = follow(state, token)) != CONFIG_DEAD;
    if (ok) {
        if (state->root.n == GRAMMAR_ROLLBACK_MAX + 1) {
            memmove(state->history, state->history + 1,
                    GRAMMAR_ROLLBACK_MAX * sizeof *state->history);
            state->root.n--;
        }
        state->history[state->root.n++] = at;
        state->n_advanced++;
        state->ended = eos;
    }
    state_unlock(state);
    return ok;
}

bool grammar_state_rollback(struct grammar_state *state, uint32_t n) {
    if (n >= state->root.n)
        return false;
    pthread_mutex_lock(&state->grammar->lock);
    state->root.n -= n;
    state->n_advanced -= n;
    pthread_mutex_unlock(&state->grammar->lock);
    if (n > 0)
        state->ended = false;
    return true;
}

bool grammar_state_eos_allowed(struct grammar_state *state) {
    if (state->ended)
        return false;
    state_lock(state);
    bool accepts = machine_accepts(state->grammar->machine, *current(state));
    state_unlock(state);
    return accepts;
}

bool grammar_state_is_complete(struct grammar_state *state) {
    if (state->ended)
        return true;
    state_lock(state);
    config_id at = *current(state);
    bool complete = machine_accepts(state->grammar->machine, at) &&
                    !machine_open(state->grammar->machine, at);
    state_unlock(state);
    return complete;
}

size_t grammar_state_forced(struct grammar_state *state, size_t n_max, struct strbuf *out) {
    if (state->ended)
        return 0;
    state_lock(state);
    struct machine *m = state->grammar->machine;
    size_t n = 0;
    // The way ahead is kept as one more configuration of the state, so that sweeps see it.
    state->history[state->root.n] = *current(state);
    state->root.n++;
    for (; n < n_max; n++) {
        machine_tidy(m);
        int b = machine_forced(m, *current(state));
        if (b < 0)
            break;
        strbuf_char(out, (char)b);
        *current(state) = machine_step(m, *current(state), (uint8_t)b);
    }
    state->root.n--;
    state_unlock(state);
    return n;
}

// ---- the cache ---------------------------------------------------------------------------------

struct cached {
    struct grammar *grammar;
    uint64_t hash, used;
    enum grammar_kind kind;
    bool compact;
    char *text;
    size_t text_n, bytes;
};

struct grammar_cache {
    const struct grammar_vocab *vocab;
    uint32_t n_max;
    size_t bytes_max;
    pthread_mutex_t lock; // guards what follows
    struct cached *entries;
    uint32_t n;
    uint64_t clock;
};

struct grammar_cache *grammar_cache_create(const struct grammar_vocab *vocab, uint32_t n_max,
                                           size_t bytes_max, struct err *err) {
    struct grammar_cache *cache = calloc(1, sizeof *cache);
    struct cached *entries = calloc(n_max ? n_max : 1, sizeof *entries);
    if (!cache || !entries) {
        free(cache);
        free(entries);
        err_set(err, ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    *cache = (struct grammar_cache){
        .vocab = vocab, .n_max = n_max ? n_max : 1, .bytes_max = bytes_max, .entries = entries};
    pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

static void drop_locked(struct grammar_cache *cache, uint32_t i) {
    grammar_release(cache->entries[i].grammar);
    free(cache->entries[i].text);
    cache->entries[i] = cache->entries[--cache->n];
}

void grammar_cache_destroy(struct grammar_cache *cache) {
    if (!cache)
        return;
    while (cache->n)
        drop_locked(cache, 0);
    pthread_mutex_destroy(&cache->lock);
    free(cache->entries);
    free(cache);
}

static struct grammar *find_locked(struct grammar_cache *cache, const struct grammar_spec *spec,
                                   uint64_t hash) {
    for (uint32_t i = 0; i < cache->n; i++) {
        struct cached *c = &cache->entries[i];
        if (c->hash == hash && c->kind == spec->kind && c->compact == spec->compact &&
            str_eq((struct str){c->text, c->text_n}, spec->text)) {
            c->used = ++cache->clock;
            return grammar_acquire(c->grammar);
        }
    }
    return NULL;
}

static uint32_t oldest_locked(const struct grammar_cache *cache) {
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < cache->n; i++)
        if (cache->entries[i].used < cache->entries[oldest].used)
            oldest = i;
    return oldest;
}

struct grammar *grammar_cache_get(struct grammar_cache *cache, const struct grammar_spec *spec,
                                  struct err *err) {
    uint64_t hash = hash_str(spec->text);
    pthread_mutex_lock(&cache->lock);
    struct grammar *g = find_locked(cache, spec, hash);
    pthread_mutex_unlock(&cache->lock);
    if (g)
        return g;
    g = grammar_compile(spec, cache->vocab, err);
    char *text = g ? malloc(spec->text.n + 1) : NULL;
    if (!text)
        return g; // not kept, that is all
    if (spec->text.n)
        memcpy(text, spec->text.data, spec->text.n);
    pthread_mutex_lock(&cache->lock);
    struct grammar *other = find_locked(cache, spec, hash); // compiled by someone else meanwhile
    if (other) {
        free(text);
    } else {
        // Grammars grow while they are used: measure anew.
        size_t total = grammar_bytes(g);
        for (uint32_t i = 0; i < cache->n; i++)
            total += cache->entries[i].bytes = grammar_bytes(cache->entries[i].grammar);
        while (cache->n && (cache->n == cache->n_max || total > cache->bytes_max)) {
            uint32_t oldest = oldest_locked(cache);
            total -= cache->entries[oldest].bytes;
            drop_locked(cache, oldest);
        }
        cache->entries[cache->n++] = (struct cached){.grammar = grammar_acquire(g),
                                                     .hash = hash,
                                                     .used = ++cache->clock,
                                                     .kind = spec->kind,
                                                     .compact = spec->compact,
                                                     .text = text,
                                                     .text_n = spec->text.n};
    }
    pthread_mutex_unlock(&cache->lock);
    if (!other)
        return g;
    grammar_release(g);
    return other;
}
