#include "grammar/expr.h"

#include <assert.h>
#include <stdlib.h>

#include "base/hash.h"

enum {
    FLAG_NULLABLE = 1,
    FLAG_REGULAR = 2,
    FLAG_IMPURE = 4, // holds AND or NOT or REM: may match nothing without being EXPR_NONE
    FLAG_ALIVE = 8,
    FLAG_DEAD = 16,
    FLAG_FINITE = 32,
    FLAG_COUNTED = 64, // holds a count that expr_relax() would free of its upper bound
};
#define UNKNOWN UINT32_MAX

struct row {
    expr_id to[256];
};

struct node {
    uint8_t kind, flags;
    uint32_t a, b, c, d; // as the kind needs: see the constructors
    uint32_t gen;        // the derivation that computed `memo`
    expr_id memo;
    uint32_t reach; // expr_reach() + 1, 0 = unknown
    struct row *row;
};

struct litset {
    uint32_t n;
    struct str *texts; // owned with their characters, one allocation
};

struct rule {
    rule_fn *fn;
    void *user;
    uint32_t arg;
    expr_id body;
    bool expanded;
};

struct exprs {
    struct node *nodes;
    uint32_t n, capacity, nodes_max;
    uint32_t *table; // open addressing, 0 = free (EXPR_NONE is never looked up)
    uint32_t table_n;
    struct byte_set *sets;
    uint32_t n_sets, sets_capacity;
    uint32_t *set_table, set_slots; // index + 1
    uint32_t *lists; // operands of OR and AND, back to back
    size_t n_lists, lists_capacity;
    struct litset *litsets;
    uint32_t n_litsets, litsets_capacity;
    struct rule *rules;
    uint32_t n_rules, rules_capacity;
    uint32_t gen;
    size_t row_bytes, lit_bytes;
    uint64_t work;     // since exprs_refill()
    const char *limit; // the limit that was hit
    bool out_of_memory;
};

// ---- the pool ----------------------------------------------------------------------------------

static void *grow(struct exprs *x, void *array, uint32_t n, uint32_t *capacity, size_t bytes) {
    if (n < *capacity)
        return array;
    uint32_t to = *capacity ? *capacity * 2 : 64;
    void *bigger = realloc(array, to * bytes);
    if (!bigger) {
        x->out_of_memory = true;
        return NULL;
    }
    *capacity = to;
    return bigger;
}

bool exprs_failed(const struct exprs *x) {
    return x->out_of_memory || x->limit;
}

void exprs_fail(struct exprs *x, const char *limit) {
    if (!x->limit)
        x->limit = limit;
}

void exprs_refill(struct exprs *x) {
    x->work = 0;
}

// Steps of work that one operation may take; some ten millions take a second.
enum { WORK_MAX = 10000000 };

bool exprs_spend(struct exprs *x, size_t n) {
    x->work += n;
    if (x->work > WORK_MAX)
        exprs_fail(x, "work at one place");
    return !exprs_failed(x);
}

bool exprs_check(const struct exprs *x, struct err *err) {
    if (x->limit)
        return err_set(err, ERR_INVALID, "grammar: too complex: the limit of %s was reached",
                       x->limit);
    if (x->out_of_memory)
        return err_set(err, ERR_NOMEM, "grammar: out of memory");
    return true;
}

static uint64_t node_hash(const struct exprs *x, const struct node *node) {
    uint64_t h = hash_u64(node->kind * 0x9E3779B97F4A7C15u + node->a);
    if (node->kind == EXPR_KIND_OR || node->kind == EXPR_KIND_AND) {
        struct bytes list = {(const uint8_t *)(x->lists + node->a), node->b * sizeof(uint32_t)};
        return hash_bytes(list, node->kind);
    }
    h = hash_u64(h + node->b);
    return hash_u64(h ^ ((uint64_t)node->c << 32 | node->d));
}

static bool node_same(const struct exprs *x, const struct node *a, const struct node *b) {
    if (a->kind != b->kind || a->b != b->b)
        return false;
    if (a->kind == EXPR_KIND_OR || a->kind == EXPR_KIND_AND)
        return !memcmp(x->lists + a->a, x->lists + b->a, a->b * sizeof(uint32_t));
    return a->a == b->a && a->c == b->c && a->d == b->d;
}

static bool table_grow(struct exprs *x) {
    uint32_t n = x->table_n ? x->table_n * 2 : 1024;
    uint32_t *table = calloc(n, sizeof *table);
    if (!table) {
        x->out_of_memory = true;
        return false;
    }
    for (uint32_t i = 2; i < x->n; i++) {
        uint64_t h = node_hash(x, &x->nodes[i]);
        while (table[h & (n - 1)])
            h++;
        table[h & (n - 1)] = i;
    }
    free(x->table);
    x->table = table;
    x->table_n = n;
    return true;
}

static expr_id intern(struct exprs *x, struct node node) {
    if (exprs_failed(x))
        return EXPR_NONE;
    if ((x->n + 1) * 2 > x->table_n && !table_grow(x))
        return EXPR_NONE;
    uint64_t h = node_hash(x, &node);
    for (; x->table[h & (x->table_n - 1)]; h++) {
        uint32_t found = x->table[h & (x->table_n - 1)];
        if (node_same(x, &x->nodes[found], &node))
            return found;
    }
    if (x->n >= x->nodes_max) {
        exprs_fail(x, "expression nodes");
        return EXPR_NONE;
    }
    void *nodes = grow(x, x->nodes, x->n, &x->capacity, sizeof *x->nodes);
    if (!nodes)
        return EXPR_NONE;
    x->nodes = nodes;
    x->nodes[x->n] = node;
    x->table[h & (x->table_n - 1)] = x->n;
    return x->n++;
}

struct exprs *exprs_create(uint32_t nodes_max) {
    struct exprs *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->nodes_max = nodes_max;
    x->capacity = 256;
    x->nodes = malloc(x->capacity * sizeof *x->nodes);
    if (!x->nodes || !table_grow(x)) {
        exprs_destroy(x);
        return NULL;
    }
    x->nodes[EXPR_NONE] = (struct node){.kind = EXPR_KIND_NONE,
                                        .flags = FLAG_REGULAR | FLAG_DEAD | FLAG_FINITE};
    x->nodes[EXPR_EPS] = (struct node){
        .kind = EXPR_KIND_EPS, .flags = FLAG_REGULAR | FLAG_NULLABLE | FLAG_ALIVE | FLAG_FINITE};
    x->n = 2;
    return x;
}

void exprs_destroy(struct exprs *x) {
    if (!x)
        return;
    for (uint32_t i = 0; i < x->n; i++)
        free(x->nodes[i].row);
    for (uint32_t i = 0; i < x->n_litsets; i++)
        free(x->litsets[i].texts);
    free(x->nodes);
    free(x->table);
    free(x->sets);
    free(x->set_table);
    free(x->lists);
    free(x->litsets);
    free(x->rules);
    free(x);
}

size_t exprs_bytes(const struct exprs *x) {
    return sizeof *x + x->capacity * sizeof *x->nodes + x->table_n * sizeof *x->table +
           x->sets_capacity * sizeof *x->sets + x->set_slots * sizeof *x->set_table + x->lists_capacity * sizeof *x->lists +
           x->rules_capacity * sizeof *x->rules + x->row_bytes + x->lit_bytes;
}

uint32_t exprs_n(const struct exprs *x) {
    return x->n;
}

void exprs_trim(struct exprs *x, size_t bytes_max) {
    if (x->row_bytes <= bytes_max)
        return;
    for (uint32_t i = 0; i < x->n; i++) {
        free(x->nodes[i].row);
        x->nodes[i].row = NULL;
    }
    x->row_bytes = 0;
}

// ---- constructors ------------------------------------------------------------------------------

static uint8_t flags_of(const struct exprs *x, expr_id e) {
    return x->nodes[e].flags;
}

static uint64_t set_hash(const struct byte_set *set) {
    return hash_u64(set->w[0] ^ hash_u64(set->w[1] ^ hash_u64(set->w[2] ^ hash_u64(set->w[3] + 1))));
}

static bool sets_grow(struct exprs *x) {
    uint32_t n = x->set_slots ? x->set_slots * 2 : 128;
    uint32_t *table = calloc(n, sizeof *table);
    if (!table) {
        x->out_of_memory = true;
        return false;
    }
    for (uint32_t i = 0; i < x->n_sets; i++) {
        uint64_t h = set_hash(&x->sets[i]);
        while (table[h & (n - 1)])
            h++;
        table[h & (n - 1)] = i + 1;
    }
    free(x->set_table);
    x->set_table = table;
    x->set_slots = n;
    return true;
}

expr_id expr_bytes(struct exprs *x, const struct byte_set *set) {
    if (!(set->w[0] | set->w[1] | set->w[2] | set->w[3]))
        return EXPR_NONE;
    if (exprs_failed(x) || ((x->n_sets + 1) * 2 > x->set_slots && !sets_grow(x)))
        return EXPR_NONE;
    uint64_t h = set_hash(set);
    for (; x->set_table[h & (x->set_slots - 1)]; h++)
        if (!memcmp(&x->sets[x->set_table[h & (x->set_slots - 1)] - 1], set, sizeof *set))
            break;
    uint32_t idx = x->set_table[h & (x->set_slots - 1)];
    if (idx == 0) {
        void *sets = grow(x, x->sets, x->n_sets, &x->sets_capacity, sizeof *x->sets);
        if (!sets)
            return EXPR_NONE;
        x->sets = sets;
        x->sets[x->n_sets] = *set;
        idx = x->set_table[h & (x->set_slots - 1)] = ++x->n_sets;
    }
    return intern(x, (struct node){.kind = EXPR_KIND_BYTES,
                                   .flags = FLAG_REGULAR | FLAG_ALIVE | FLAG_FINITE,
                                   .a = idx - 1});
}

expr_id expr_byte(struct exprs *x, uint8_t b) {
    struct byte_set set = {0};
    byte_set_add(&set, b);
    return expr_bytes(x, &set);
}

expr_id expr_range(struct exprs *x, uint8_t from, uint8_t to) {
    struct byte_set set = {0};
    byte_set_add_range(&set, from, to);
    return expr_bytes(x, &set);
}

expr_id expr_cat(struct exprs *x, expr_id a, expr_id b) {
    if (a == EXPR_NONE || b == EXPR_NONE)
        return EXPR_NONE;
    if (a == EXPR_EPS)
        return b;
    if (b == EXPR_EPS)
        return a;
    if (x->nodes[a].kind == EXPR_KIND_CAT) { // keep chains leaning to the right
        expr_id head = x->nodes[a].a, tail = x->nodes[a].b;
        return expr_cat(x, head, expr_cat(x, tail, b));
    }
    uint8_t fa = flags_of(x, a), fb = flags_of(x, b);
    uint8_t flags = (fa & fb & (FLAG_REGULAR | FLAG_NULLABLE | FLAG_FINITE)) |
                    ((fa | fb) & (FLAG_IMPURE | FLAG_COUNTED));
    return intern(x, (struct node){.kind = EXPR_KIND_CAT, .flags = flags, .a = a, .b = b});
}

expr_id expr_cat_n(struct exprs *x, const expr_id *parts, size_t n) {
    expr_id all = EXPR_EPS;
    for (size_t i = n; i > 0; i--)
        all = expr_cat(x, parts[i - 1], all);
    return all;
}

expr_id expr_text(struct exprs *x, struct str text) {
    expr_id all = EXPR_EPS;
    for (size_t i = text.n; i > 0; i--)
        all = expr_cat(x, expr_byte(x, (uint8_t)text.data[i - 1]), all);
    return all;
}

expr_id expr_c(struct exprs *x, const char *text) {
    return expr_text(x, str_from(text));
}

static int by_id(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    return (i > j) - (i < j);
}

static void sort_ids(uint32_t *ids, size_t n) {
    if (n > 24) {
        qsort(ids, n, sizeof *ids, by_id);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        uint32_t id = ids[i];
        size_t j = i;
        for (; j > 0 && ids[j - 1] > id; j--)
            ids[j] = ids[j - 1];
        ids[j] = id;
    }
}

static expr_id intern_list(struct exprs *x, enum expr_kind kind, const expr_id *ids, size_t n,
                           uint8_t flags) {
    if (exprs_failed(x))
        return EXPR_NONE;
    if (x->n_lists + n > x->lists_capacity) {
        size_t capacity = (x->n_lists + n) * 2;
        uint32_t *lists = realloc(x->lists, capacity * sizeof *lists);
        if (!lists) {
            x->out_of_memory = true;
            return EXPR_NONE;
        }
        x->lists = lists;
        x->lists_capacity = capacity;
    }
    if (x->n_lists + n > (size_t)x->nodes_max * 8) {
        exprs_fail(x, "alternatives");
        return EXPR_NONE;
    }
    memcpy(x->lists + x->n_lists, ids, n * sizeof *ids);
    uint32_t n_before = x->n;
    expr_id e = intern(x, (struct node){.kind = (uint8_t)kind,
                                        .flags = flags,
                                        .a = (uint32_t)x->n_lists,
                                        .b = (uint32_t)n});
    if (x->n > n_before)
        x->n_lists += n;
    return e;
}

// OR and AND share their normal form: flat, sorted, no repeats, neutral operands left out.
static expr_id combine(struct exprs *x, enum expr_kind kind, const expr_id *parts, size_t n) {
    if (exprs_failed(x))
        return EXPR_NONE;
    expr_id small[64], *ids = small;
    size_t n_ids = 0, total = 0;
    for (size_t i = 0; i < n; i++)
        total += x->nodes[parts[i]].kind == kind ? x->nodes[parts[i]].b : 1;
    if (!exprs_spend(x, total))
        return EXPR_NONE;
    if (total > 64 && !(ids = malloc(total * sizeof *ids))) {
        x->out_of_memory = true;
        return EXPR_NONE;
    }
    for (size_t i = 0; i < n; i++) {
        const struct node *node = &x->nodes[parts[i]];
        if (node->kind == kind) {
            memcpy(ids + n_ids, x->lists + node->a, node->b * sizeof *ids);
            n_ids += node->b;
        } else {
            ids[n_ids++] = parts[i];
        }
    }
    sort_ids(ids, n_ids);
    expr_id result = EXPR_NONE;
    bool done = false;
    size_t kept = 0;
    struct byte_set bytes = {0};
    bool any_bytes = false;
    uint8_t all = FLAG_REGULAR | FLAG_NULLABLE | FLAG_FINITE, some = 0;
    for (size_t i = 0; i < n_ids && !done; i++) {
        expr_id e = ids[i];
        const struct node *node = &x->nodes[e];
        if (i > 0 && e == ids[i - 1])
            continue;
        bool universal = node->kind == EXPR_KIND_NOT && node->a == EXPR_NONE;
        if (kind == EXPR_KIND_OR) {
            if (e == EXPR_NONE)
                continue;
            if (universal) {
                result = e;
                done = true;
                break;
            }
            if (node->kind == EXPR_KIND_BYTES) {
                for (int w = 0; w < 4; w++)
                    bytes.w[w] |= x->sets[node->a].w[w];
                if (any_bytes)
                    continue; // joined below
                any_bytes = true;
            }
        } else {
            if (e == EXPR_NONE) {
                done = true;
                break;
            }
            if (universal)
                continue;
        }
        ids[kept++] = e;
        all &= node->flags;
        some |= node->flags;
    }
    if (!done && any_bytes && kept > 0) {
        // Replace the one BYTES left in the list by the union.
        for (size_t i = 0; i < kept; i++)
            if (x->nodes[ids[i]].kind == EXPR_KIND_BYTES)
                ids[i] = expr_bytes(x, &bytes);
        sort_ids(ids, kept);
    }
    if (!done) {
        if (kept == 0) {
            result = kind == EXPR_KIND_OR ? EXPR_NONE : expr_not(x, EXPR_NONE);
        } else if (kept == 1) {
            result = ids[0];
        } else {
            uint8_t flags = (all & FLAG_REGULAR) | (some & FLAG_COUNTED);
            if (kind == EXPR_KIND_OR)
                flags |= (all & FLAG_FINITE) | (some & (FLAG_NULLABLE | FLAG_IMPURE));
            else
                flags |= (some & FLAG_FINITE) | (all & FLAG_NULLABLE) | FLAG_IMPURE;
            result = intern_list(x, kind, ids, kept, flags);
        }
    }
    if (ids != small)
        free(ids);
    return result;
}

expr_id expr_or(struct exprs *x, const expr_id *parts, size_t n) {
    return combine(x, EXPR_KIND_OR, parts, n);
}
expr_id expr_or2(struct exprs *x, expr_id a, expr_id b) {
    return combine(x, EXPR_KIND_OR, (expr_id[]){a, b}, 2);
}
expr_id expr_and(struct exprs *x, const expr_id *parts, size_t n) {
    return combine(x, EXPR_KIND_AND, parts, n);
}
expr_id expr_and2(struct exprs *x, expr_id a, expr_id b) {
    return combine(x, EXPR_KIND_AND, (expr_id[]){a, b}, 2);
}

expr_id expr_not(struct exprs *x, expr_id a) {
    if (x->nodes[a].kind == EXPR_KIND_NOT)
        return x->nodes[a].a;
    uint8_t flags = FLAG_IMPURE | (flags_of(x, a) & FLAG_REGULAR);
    if (!(flags_of(x, a) & FLAG_NULLABLE))
        flags |= FLAG_NULLABLE;
    return intern(x, (struct node){.kind = EXPR_KIND_NOT, .flags = flags, .a = a});
}

expr_id expr_rep(struct exprs *x, expr_id a, uint32_t min, uint32_t max) {
    if (max == 0 || a == EXPR_EPS)
        return EXPR_EPS;
    if (a == EXPR_NONE)
        return min == 0 ? EXPR_EPS : EXPR_NONE;
    if (min == 1 && max == 1)
        return a;
    uint8_t fa = flags_of(x, a);
    if ((fa & FLAG_NULLABLE) && (fa & FLAG_REGULAR))
        min = 0;
    const struct node *node = &x->nodes[a];
    if (node->kind == EXPR_KIND_REP && node->b == 0 && node->c == EXPR_INF)
        return a;
    uint8_t flags = fa & (FLAG_REGULAR | FLAG_IMPURE);
    if (min == 0)
        flags |= FLAG_NULLABLE;
    if (max != EXPR_INF)
        flags |= fa & FLAG_FINITE;
    if (max != EXPR_INF && max >= EXPR_RELAX_COUNT_MIN)
        flags |= FLAG_COUNTED;
    return intern(x, (struct node){.kind = EXPR_KIND_REP, .flags = flags, .a = a, .b = min,
                                   .c = max});
}

expr_id expr_opt(struct exprs *x, expr_id a) {
    return expr_or2(x, a, EXPR_EPS);
}

static int by_text(const void *a, const void *b) {
    const struct str *s = a, *t = b;
    size_t n = s->n < t->n ? s->n : t->n;
    int order = n ? memcmp(s->data, t->data, n) : 0;
    return order ? order : (s->n > t->n) - (s->n < t->n);
}

// The part [lo, hi) of a list of texts, `depth` bytes of which are behind us.
static expr_id lits_at(struct exprs *x, uint32_t set, uint32_t lo, uint32_t hi, uint32_t depth) {
    const struct str *texts = x->litsets[set].texts;
    if (lo >= hi)
        return EXPR_NONE;
    bool nullable = texts[lo].n == depth;
    if (nullable && hi == lo + 1)
        return EXPR_EPS;
    return intern(x, (struct node){.kind = EXPR_KIND_LITS,
                                   .flags = FLAG_REGULAR | FLAG_ALIVE | FLAG_FINITE |
                                            (nullable ? FLAG_NULLABLE : 0),
                                   .a = set, .b = lo, .c = hi, .d = depth});
}

expr_id expr_lits(struct exprs *x, const struct str *texts, size_t n) {
    if (exprs_failed(x))
        return EXPR_NONE;
    if (n == 0)
        return EXPR_NONE;
    if (n == 1)
        return expr_text(x, texts[0]);
    size_t bytes = n * sizeof *texts;
    for (size_t i = 0; i < n; i++)
        bytes += texts[i].n;
    void *sets = n > UINT32_MAX / 2 ? NULL
                                    : grow(x, x->litsets, x->n_litsets, &x->litsets_capacity,
                                           sizeof *x->litsets);
    struct str *copy = sets ? malloc(bytes) : NULL;
    if (sets)
        x->litsets = sets;
    if (!copy) {
        x->out_of_memory = true;
        return EXPR_NONE;
    }
    char *at = (char *)(copy + n);
    for (size_t i = 0; i < n; i++) {
        if (texts[i].n)
            memcpy(at, texts[i].data, texts[i].n);
        copy[i] = (struct str){at, texts[i].n};
        at += texts[i].n;
    }
    qsort(copy, n, sizeof *copy, by_text);
    uint32_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !str_eq(copy[i], copy[kept - 1]))
            copy[kept++] = copy[i];
    x->lit_bytes += bytes;
    x->litsets[x->n_litsets] = (struct litset){kept, copy};
    return lits_at(x, x->n_litsets++, 0, kept, 0);
}

// REM: a: divisor; c: remainder so far; d: phase << 8 | scale, where phase is 0 before the point and
// 1 + digits behind it.
enum { REM_SCALE_MAX = 100 };

expr_id expr_rem(struct exprs *x, uint64_t a, uint32_t scale) {
    if (a == 0 || a > INT32_MAX || scale > REM_SCALE_MAX) {
        exprs_fail(x, "multipleOf's digits");
        return EXPR_NONE;
    }
    return intern(x, (struct node){.kind = EXPR_KIND_REM,
                                   .flags = FLAG_REGULAR | FLAG_IMPURE | FLAG_NULLABLE,
                                   .a = (uint32_t)a, .c = 0, .d = scale});
}

static bool rem_divides(uint64_t rem, uint64_t a, uint32_t zeros) {
    for (uint32_t i = 0; i < zeros && rem; i++)
        rem = rem * 10 % a;
    return rem == 0;
}

static expr_id rem_step(struct exprs *x, struct node node, uint8_t b) {
    uint32_t scale = node.d & 0xFF, phase = node.d >> 8;
    if (b == '.' && phase == 0) {
        phase = 1;
    } else if (b >= '0' && b <= '9') {
        if (phase > scale) {
            if (b != '0')
                return EXPR_NONE;
        } else {
            node.c = (uint32_t)(((uint64_t)node.c * 10 + (b - '0')) % node.a);
            phase += phase > 0;
        }
    } else {
        return EXPR_NONE;
    }
    uint32_t behind = phase > 0 ? phase - 1 : 0;
    node.flags = FLAG_REGULAR | FLAG_IMPURE;
    if (rem_divides(node.c, node.a, scale - behind))
        node.flags |= FLAG_NULLABLE;
    node.d = phase << 8 | scale;
    node.row = NULL;
    node.gen = 0;
    return intern(x, node);
}

expr_id expr_term(struct exprs *x, expr_id a) {
    if (a == EXPR_NONE || a == EXPR_EPS || x->nodes[a].kind == EXPR_KIND_TERM)
        return a;
    assert(flags_of(x, a) & FLAG_REGULAR);
    return intern(x, (struct node){
                         .kind = EXPR_KIND_TERM,
                         .flags = flags_of(x, a) & ~(FLAG_ALIVE | FLAG_DEAD),
                         .a = a});
}

uint32_t expr_rule(struct exprs *x, rule_fn *fn, void *user, uint32_t arg) {
    void *rules = grow(x, x->rules, x->n_rules, &x->rules_capacity, sizeof *x->rules);
    if (!rules)
        return 0;
    x->rules = rules;
    x->rules[x->n_rules] = (struct rule){fn, user, arg, EXPR_NONE, false};
    return x->n_rules++;
}

expr_id expr_call(struct exprs *x, uint32_t rule) {
    return intern(x, (struct node){.kind = EXPR_KIND_CALL, .a = rule});
}

expr_id expr_lazy(struct exprs *x, uint32_t rule) {
    return intern(x, (struct node){.kind = EXPR_KIND_LAZY, .a = rule});
}

expr_id expr_rule_body(struct exprs *x, uint32_t rule) {
    if (rule >= x->n_rules)
        return EXPR_NONE;
    if (!x->rules[rule].expanded) {
        struct rule r = x->rules[rule];
        expr_id body = r.fn(r.user, r.arg); // may add rules, so the array may move
        x->rules[rule].body = body;
        x->rules[rule].expanded = true;
    }
    return x->rules[rule].body;
}

// ---- reading -----------------------------------------------------------------------------------

enum expr_kind expr_kind_of(const struct exprs *x, expr_id e) {
    return (enum expr_kind)x->nodes[e].kind;
}
bool expr_nullable(const struct exprs *x, expr_id e) {
    return x->nodes[e].flags & FLAG_NULLABLE;
}
bool expr_regular(const struct exprs *x, expr_id e) {
    return x->nodes[e].flags & FLAG_REGULAR;
}
bool expr_finite(const struct exprs *x, expr_id e) {
    return x->nodes[e].flags & FLAG_FINITE;
}
expr_id expr_a(const struct exprs *x, expr_id e) {
    return x->nodes[e].a;
}
expr_id expr_b(const struct exprs *x, expr_id e) {
    return x->nodes[e].b;
}
const expr_id *expr_list(const struct exprs *x, expr_id e, size_t *n) {
    *n = x->nodes[e].b;
    return x->lists + x->nodes[e].a;
}
void expr_bounds(const struct exprs *x, expr_id e, uint32_t *min, uint32_t *max) {
    *min = x->nodes[e].b;
    *max = x->nodes[e].c;
}

// ---- derivatives -------------------------------------------------------------------------------

// `same` shrinks to the bytes that have the same derivative as b.
static expr_id derive(struct exprs *x, expr_id e, uint8_t b, struct byte_set *same);

static expr_id derive_lits(struct exprs *x, struct node node, uint8_t b, struct byte_set *same) {
    const struct str *texts = x->litsets[node.a].texts;
    uint32_t lo = node.b, hi = node.c;
    if (texts[lo].n == node.d)
        lo++;
    // First text whose next byte is at least v, by bisection.
    uint32_t ends[2] = {lo, hi};
    for (int side = 0; side < 2; side++) {
        uint32_t from = lo, to = hi;
        while (from < to) {
            uint32_t mid = from + (to - from) / 2;
            if ((unsigned)(uint8_t)texts[mid].data[node.d] < (unsigned)b + (unsigned)side)
                from = mid + 1;
            else
                to = mid;
        }
        ends[side] = from;
    }
    if (ends[0] < ends[1]) {
        struct byte_set only = {0};
        byte_set_add(&only, b);
        *same = only;
        return lits_at(x, node.a, ends[0], ends[1], node.d + 1);
    }
    for (uint32_t i = lo; i < hi;) {
        uint8_t first = (uint8_t)texts[i].data[node.d];
        same->w[first >> 6] &= ~((uint64_t)1 << (first & 63));
        // Skip the texts that share it.
        uint32_t from = i + 1, to = hi;
        while (from < to) {
            uint32_t mid = from + (to - from) / 2;
            if ((uint8_t)texts[mid].data[node.d] <= first)
                from = mid + 1;
            else
                to = mid;
        }
        i = from;
    }
    return EXPR_NONE;
}

static expr_id derive_list(struct exprs *x, struct node node, uint8_t b, struct byte_set *same) {
    expr_id small[64], *ids = small;
    if (node.b > 64 && !(ids = malloc(node.b * sizeof *ids))) {
        x->out_of_memory = true;
        return EXPR_NONE;
    }
    size_t n = 0;
    bool dead = false;
    for (uint32_t i = 0; i < node.b; i++) {
        expr_id d = derive(x, x->lists[node.a + i], b, same);
        if (d == EXPR_NONE) {
            if (node.kind == EXPR_KIND_OR)
                continue;
            dead = true; // go on: `same` needs every operand
        }
        ids[n++] = d;
    }
    expr_id result = dead ? EXPR_NONE : combine(x, (enum expr_kind)node.kind, ids, n);
    if (ids != small)
        free(ids);
    return result;
}

static expr_id derive(struct exprs *x, expr_id e, uint8_t b, struct byte_set *same) {
    if (!exprs_spend(x, 1))
        return EXPR_NONE;
    if (x->nodes[e].gen == x->gen)
        return x->nodes[e].memo; // its part of `same` is accounted for
    struct node node = x->nodes[e];
    expr_id result = EXPR_NONE;
    switch ((enum expr_kind)node.kind) {
    case EXPR_KIND_NONE:
    case EXPR_KIND_EPS:
    case EXPR_KIND_CALL:
    case EXPR_KIND_LAZY:
        return EXPR_NONE;
    case EXPR_KIND_BYTES: {
        bool has = byte_set_has(&x->sets[node.a], b);
        for (int w = 0; w < 4; w++)
            same->w[w] &= has ? x->sets[node.a].w[w] : ~x->sets[node.a].w[w];
        return has ? EXPR_EPS : EXPR_NONE;
    }
    case EXPR_KIND_LITS:
        result = derive_lits(x, node, b, same);
        break;
    case EXPR_KIND_CAT:
        result = expr_cat(x, derive(x, node.a, b, same), node.b);
        if (expr_nullable(x, node.a))
            result = expr_or2(x, result, derive(x, node.b, b, same));
        break;
    case EXPR_KIND_OR:
    case EXPR_KIND_AND:
        result = derive_list(x, node, b, same);
        break;
    case EXPR_KIND_NOT:
        result = expr_not(x, derive(x, node.a, b, same));
        break;
    case EXPR_KIND_REP:
        result = expr_cat(x, derive(x, node.a, b, same),
                          expr_rep(x, node.a, node.b ? node.b - 1 : 0,
                                   node.c == EXPR_INF ? EXPR_INF : node.c - 1));
        break;
    case EXPR_KIND_REM: {
        struct byte_set only = {0};
        byte_set_add(&only, b);
        if ((b >= '0' && b <= '9') || b == '.')
            *same = only;
        else
            for (unsigned c = '.'; c <= '9'; c++)
                same->w[0] &= ~((uint64_t)1 << c);
        result = rem_step(x, node, b);
        break;
    }
    case EXPR_KIND_TERM:
        result = derive(x, node.a, b, same);
        break;
    }
    x->nodes[e].gen = x->gen;
    x->nodes[e].memo = result;
    return result;
}

// The step without the test that something can follow.
static expr_id step_raw(struct exprs *x, expr_id e, uint8_t b) {
    if (e <= EXPR_EPS)
        return EXPR_NONE;
    struct row *row = x->nodes[e].row;
    if (row && row->to[b] != UNKNOWN)
        return row->to[b];
    struct byte_set same = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    x->gen++;
    expr_id to = derive(x, e, b, &same);
    if (exprs_failed(x))
        return EXPR_NONE;
    if (!row) {
        row = malloc(sizeof *row);
        if (!row) {
            x->out_of_memory = true;
            return EXPR_NONE;
        }
        memset(row, 0xFF, sizeof *row);
        x->nodes[e].row = row;
        x->row_bytes += sizeof *row;
    }
    for (unsigned w = 0; w < 4; w++)
        for (uint64_t bits = same.w[w]; bits; bits &= bits - 1)
            row->to[w * 64 + (unsigned)__builtin_ctzll(bits)] = to;
    row->to[b] = to;
    return to;
}

enum { ALIVE_STATES_MAX = 4096, ALIVE_STATES_FEW = 64 };

struct visit {
    expr_id e;
    uint32_t from;
};

static uint32_t add_reach(uint32_t a, uint32_t b) {
    uint64_t sum = (uint64_t)a + b;
    return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}
static uint32_t known_reach(const struct exprs *x, expr_id e) {
    uint32_t stored = x->nodes[e].reach;
    return stored == 0 || stored == UINT32_MAX ? UINT32_MAX : stored - 1;
}

// Is it plain that e matches something?
static bool known_alive(const struct exprs *x, expr_id e) {
    uint8_t flags = flags_of(x, e);
    return flags & (FLAG_ALIVE | FLAG_NULLABLE) || !(flags & FLAG_IMPURE);
}

// The search of expr_alive() within n_max states. `seen` has 4 * n_max zeroed slots. False if that was
// not enough and `last_try` is not set.
static bool search(struct exprs *x, expr_id e, struct visit *queue, expr_id *seen, uint32_t n_max,
                   bool last_try) {
    uint32_t n_seen = 4 * n_max, n = 0, found = UINT32_MAX;
    expr_id end = EXPR_NONE;
    bool overflow = false;
    queue[n++] = (struct visit){e, UINT32_MAX};
    seen[hash_u64(e) & (n_seen - 1)] = e;
    for (uint32_t i = 0; i < n && found == UINT32_MAX && !overflow && !exprs_failed(x); i++) {
        expr_id at = queue[i].e, last = EXPR_NONE;
        for (unsigned k = 0; k < 256 && found == UINT32_MAX; k++) {
            // '"' and digits first, then the others in order.
            uint8_t b = (uint8_t)((k + '"') & 0xFF);
            expr_id to = step_raw(x, at, b);
            if (to == EXPR_NONE || to == last)
                continue;
            last = to;
            if (flags_of(x, to) & FLAG_DEAD)
                continue;
            if (known_alive(x, to)) {
                found = i;
                end = to;
                break;
            }
            uint64_t h = hash_u64(to);
            while (seen[h & (n_seen - 1)] && seen[h & (n_seen - 1)] != to)
                h++;
            if (seen[h & (n_seen - 1)] == to)
                continue;
            if (n == n_max) {
                overflow = true;
                break;
            }
            seen[h & (n_seen - 1)] = to;
            queue[n++] = (struct visit){to, i};
        }
    }
    if (found != UINT32_MAX) {
        uint32_t reach = expr_reach(x, end);
        for (uint32_t i = found; i != UINT32_MAX; i = queue[i].from) {
            reach = add_reach(reach, 1);
            x->nodes[queue[i].e].flags |= FLAG_ALIVE;
            x->nodes[queue[i].e].reach = add_reach(reach, 1);
        }
    } else if (overflow || exprs_failed(x)) { // all of them, or each would be searched in its turn
        if (overflow && !last_try)
            return false;
        for (uint32_t i = 0; i < n; i++)
            x->nodes[queue[i].e].flags |= FLAG_ALIVE;
    } else {
        for (uint32_t i = 0; i < n; i++)
            x->nodes[queue[i].e].flags |= FLAG_DEAD;
    }
    return true;
}

// Search for a text, breadth first but the likely enders of a text first. What the search cannot
// settle within ALIVE_STATES_MAX states counts as alive.
bool expr_alive(struct exprs *x, expr_id e) {
    if (flags_of(x, e) & FLAG_DEAD)
        return false;
    if (known_alive(x, e))
        return true;
    struct visit few[ALIVE_STATES_FEW];
    expr_id few_seen[4 * ALIVE_STATES_FEW] = {0};
    if (!search(x, e, few, few_seen, ALIVE_STATES_FEW, false)) {
        struct visit *queue = malloc(ALIVE_STATES_MAX * sizeof *queue);
        expr_id *seen = calloc(4 * ALIVE_STATES_MAX, sizeof *seen);
        if (queue && seen)
            search(x, e, queue, seen, ALIVE_STATES_MAX, true);
        else
            x->out_of_memory = true;
        free(queue);
        free(seen);
    }
    return !(flags_of(x, e) & FLAG_DEAD);
}

enum { REACH_TEXTS_MAX = 64, NESTING_MAX = 100 };

static uint32_t reach_of(struct exprs *x, expr_id e, uint32_t depth) {
    uint32_t total = 0; // of the parts of a chain that lie before e
    struct node node;
    for (;; e = node.b) {
        node = x->nodes[e];
        if (node.flags & FLAG_NULLABLE)
            return total;
        if (node.reach || depth > NESTING_MAX)
            return add_reach(total, known_reach(x, e));
        if (node.kind != EXPR_KIND_CAT)
            break;
        total = add_reach(total, reach_of(x, node.a, depth + 1));
    }
    uint32_t reach = UINT32_MAX;
    switch ((enum expr_kind)node.kind) {
    case EXPR_KIND_BYTES:
        reach = 1;
        break;
    case EXPR_KIND_LITS:
        for (uint32_t i = node.b; i < node.c && i < node.b + REACH_TEXTS_MAX; i++) {
            size_t n = x->litsets[node.a].texts[i].n - node.d;
            reach = n < reach ? (uint32_t)n : reach;
        }
        break;
    case EXPR_KIND_OR:
        for (uint32_t i = 0; i < node.b && i < REACH_TEXTS_MAX; i++) {
            uint32_t one = reach_of(x, x->lists[node.a + i], depth + 1);
            reach = one < reach ? one : reach;
        }
        break;
    case EXPR_KIND_REP: {
        uint64_t all = (uint64_t)reach_of(x, node.a, depth + 1) * node.b;
        reach = all < UINT32_MAX / 2 ? (uint32_t)all : UINT32_MAX;
        break;
    }
    case EXPR_KIND_TERM:
        reach = reach_of(x, node.a, depth + 1);
        break;
    case EXPR_KIND_AND:
    case EXPR_KIND_NOT:
    case EXPR_KIND_REM:
        expr_alive(x, e); // finds it on the way
        reach = known_reach(x, e);
        break;
    default:
        break;
    }
    x->nodes[e].reach = add_reach(reach, 1);
    return add_reach(total, reach);
}

uint32_t expr_reach(struct exprs *x, expr_id e) {
    return reach_of(x, e, 0);
}

static expr_id relax(struct exprs *x, expr_id e, uint32_t count_min, uint32_t *bytes,
                     uint32_t depth) {
    struct node node = x->nodes[e];
    if (!(node.flags & FLAG_COUNTED) || depth > NESTING_MAX)
        return e;
    switch ((enum expr_kind)node.kind) {
    case EXPR_KIND_REP:
        if (node.c < count_min)
            return e;
        *bytes = node.c < *bytes ? node.c : *bytes; // a round that takes no byte can be left out
        return expr_rep(x, node.a, node.b, EXPR_INF);
    case EXPR_KIND_CAT: {
        expr_id a = relax(x, node.a, count_min, bytes, depth + 1);
        return expr_cat(x, a, relax(x, node.b, count_min, bytes, depth + 1));
    }
    case EXPR_KIND_OR:
    case EXPR_KIND_AND: {
        expr_id parts[8];
        if (node.b > 8)
            return e;
        for (uint32_t i = 0; i < node.b; i++)
            parts[i] = relax(x, x->lists[node.a + i], count_min, bytes, depth + 1);
        return combine(x, (enum expr_kind)node.kind, parts, node.b);
    }
    case EXPR_KIND_TERM:
        return expr_term(x, relax(x, node.a, count_min, bytes, depth + 1));
    default:
        return e; // under a complement more would become less
    }
}

expr_id expr_relax(struct exprs *x, expr_id e, uint32_t count_min, uint32_t *bytes) {
    return relax(x, e, count_min, bytes, 0);
}

expr_id expr_step(struct exprs *x, expr_id e, uint8_t b) {
    expr_id to = step_raw(x, e, b);
    if (to > EXPR_EPS && (flags_of(x, to) & FLAG_IMPURE) && !expr_alive(x, to))
        return EXPR_NONE;
    return to;
}

const expr_id *expr_row(const struct exprs *x, expr_id e) {
    return x->nodes[e].row ? x->nodes[e].row->to : NULL;
}

bool expr_match(struct exprs *x, expr_id e, struct str text) {
    for (size_t i = 0; i < text.n && e != EXPR_NONE; i++)
        e = step_raw(x, e, (uint8_t)text.data[i]);
    return expr_nullable(x, e);
}
