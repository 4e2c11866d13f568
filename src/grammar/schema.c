#include "grammar/schema.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/json.h"
#include "grammar/charset.h"
#include "grammar/format.h"
#include "grammar/number.h"
#include "grammar/regex.h"

enum {
    SCHEMA_GOALS_MAX = 20000,
    SCHEMA_CONJS_MAX = 600,    // alternatives of one value
    SCHEMA_ONE_OF_CONJS_MAX = 200, // above it oneOf is read as anyOf, and said to be
    SCHEMA_WORK_MAX = 4000000, // facts handled while combining alternatives
    SCHEMA_CLASSES_MAX = 200,  // kinds of unnamed keys in one object
    SCHEMA_FLOATING_MAX = 32,
    SCHEMA_PENDING_MAX = 16,
    SCHEMA_DEPTH_MAX = 600,
    SCHEMA_LIVE_STATES_MAX = 100000,
};

enum draft { DRAFT_4 = 4, DRAFT_6 = 6, DRAFT_7 = 7, DRAFT_2019 = 8, DRAFT_2020 = 9 };

typedef uint32_t literal; // 2 * node + negated

enum progress { NEVER, UNDER_WAY, DONE };

// Languages of the values that are neither array nor object.
struct scalars {
    bool null, yes, no;
    expr_id string; // content between the quotes
    expr_id number;
};

// A fact about an object or array.
enum atom_kind {
    // objects
    ATOM_PROPERTIES, // node: its properties, patternProperties and additionalProperties hold
    ATOM_HAS,        // key: is there
    ATOM_LACKS,      // key: is not there
    ATOM_VALUE,      // key, lit: is there and satisfies lit
    ATOM_SOME,       // lang, lit: some key of the language, whose value satisfies lit
    ATOM_NAMES,      // lit: every key satisfies it
    // arrays
    ATOM_ITEMS,    // node: its prefixItems and items hold
    ATOM_AT,       // n, lit: there is an item n, and it satisfies lit
    ATOM_CONTAINS, // n to m items from index `key` on satisfy lit
    // both
    ATOM_MIN, // at least n members or items
    ATOM_MAX, // at most n
};
struct atom {
    uint32_t kind, node, key, n, m;
    literal lit;
    expr_id lang;
};
struct conj { // sorted ids of atoms, all of which hold
    const uint32_t *atoms;
    uint32_t n;
};
struct dnf {
    struct conj *conjs;
    uint32_t n;
};

struct node {
    const json_t *json;
    uint32_t resource; // whose $id is its base
    uint32_t parent;   // for paths
    const char *token; // last part of its path
    enum progress scalars_done[2], dnf_done[2][2];
    uint32_t dnf_depth[2][2], listed;
    struct scalars scalars[2];
    struct dnf dnf[2][2]; // [negated][0 object, 1 array]
    bool checked;
    // Of the props block, made when first needed:
    bool blocks_done;
    struct property *properties;
    uint32_t n_properties;
    struct pattern *patterns;
    uint32_t n_patterns;
    uint32_t additional; // node or NO_NODE
    uint32_t *prefix;
    uint32_t n_prefix, items; // items: node or NO_NODE
};
struct property {
    uint32_t key, node;
};
struct pattern {
    expr_id lang; // keys in which it is found
    uint32_t node;
};
#define NO_NODE UINT32_MAX

struct resource {
    const json_t *json;
    char *uri; // without fragment
};
struct anchor {
    const json_t *json;
    uint32_t resource;
    const char *name;
    bool dynamic;
};

struct named { // a key that a shape knows
    uint32_t key;
    expr_id spelled; // key with closing quote
    const literal *lits;
    uint32_t n_lits;
    uint32_t goal;
    uint32_t rank; // UINT32_MAX: has no place in the order
    bool required, usable;
};
struct key_class { // keys that have no name
    expr_id lang;
    const literal *lits;
    uint32_t n_lits;
    uint32_t goal;
    bool usable;
};
struct some {
    expr_id lang;
    literal lit;
};
struct contains {
    literal lit;
    uint32_t from, min, max;
};
struct shape {
    bool array, constrained; // constrained: not every state can reach the end
    uint32_t min, max;
    // object
    struct named *named; // ordered ones by rank, then floating ones
    uint32_t n_ordered, n_named;
    struct key_class *classes;
    uint32_t n_classes;
    struct some *some;
    uint32_t n_some;
    // array
    uint32_t *item_goals; // [n_items + 1], the last one for all further items
    const literal **item_lits;
    uint32_t *n_item_lits;
    uint32_t n_items;
    struct contains *contains;
    uint32_t n_contains;
};
struct goal {
    const literal *lits;
    uint32_t n;
    enum progress expanded;
    bool never; // holds the literal false
    enum progress known_alive;
    bool alive;
    bool reached, has_rule;
    uint32_t rule;
    struct scalars scalars;
    uint32_t *shapes; // indices
    uint32_t n_shapes;
};
struct state {
    uint32_t shape, pos, count, pending, floating;
    uint32_t counts[4]; // of contains
    uint8_t live;       // enum progress, plus:
    bool can_end, has_rule, has_key_rule;
    uint32_t rule, key_rule;
};

struct ignored {
    const char *keyword, *path; // path: of the first place
};

struct schema {
    struct exprs *x;
    struct arena arena;
    struct err *err; // during create
    json_t *json;
    json_t *constants; // schemas {"const": ..} made here
    struct schema_options options;
    enum draft draft;
    struct node *nodes;
    uint32_t n_nodes, nodes_capacity;
    uint32_t *node_table, node_slots;
    struct resource *resources;
    uint32_t n_resources;
    struct anchor *anchors;
    uint32_t n_anchors;
    bool has_dynamic;
    struct str *keys;
    expr_id *keys_spelled;
    uint32_t n_keys, keys_capacity, *key_table, key_slots;
    struct atom *atoms;
    uint32_t n_atoms, atoms_capacity, *atom_table, atom_slots;
    struct goal *goals;
    uint32_t n_goals, goals_capacity, *goal_table, goal_slots;
    struct shape *shapes;
    uint32_t n_shapes, shapes_capacity;
    struct state *states;
    uint32_t n_states, states_capacity, *state_table, state_slots;
    struct ignored *ignored;
    uint32_t n_ignored;
    uint32_t depth;
    uint32_t assumed_depth; // shallowest unfinished node that something under way relied on
    bool alive_cut;         // goal_alive() ran into a goal that is under way
    uint32_t alive_depth;
    uint64_t work;
    uint32_t n_optional; // keywords under way that can be left out
    bool overflow;       // one of them has too many alternatives
    bool failed;
    uint32_t *slots, *stamps, slots_n, stamp; // per key: its place in the shape under way
    expr_id all_strings, all_numbers; // content; canonical
    expr_id gap, quote, colon, comma;
    expr_id root;
};

// ---- failing -----------------------------------------------------------------------------------

static void path_of(struct schema *s, uint32_t node, struct strbuf *out) {
    uint32_t chain[64], n = 0;
    for (; node != NO_NODE && n < 64; node = s->nodes[node].parent)
        chain[n++] = node;
    strbuf_char(out, '#');
    while (n-- > 0)
        if (s->nodes[chain[n]].token)
            strbuf_append_c(out, s->nodes[chain[n]].token);
}

static void __attribute__((format(printf, 3, 4))) bad(struct schema *s, uint32_t node,
                                                      const char *format, ...) {
    if (s->failed)
        return;
    s->failed = true;
    struct strbuf path = {0};
    path_of(s, node, &path);
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    err_set(s->err, ERR_INVALID, "schema: at %.300s: %s", path.data ? path.data : "#", what);
    strbuf_deinit(&path);
}

static void no_memory(struct schema *s) {
    exprs_fail(s->x, "memory");
    s->failed = true;
}

static bool stopped(struct schema *s) {
    return s->failed || exprs_failed(s->x);
}

static void ignore(struct schema *s, uint32_t node, const char *keyword) {
    for (uint32_t i = 0; i < s->n_ignored; i++)
        if (!strcmp(s->ignored[i].keyword, keyword))
            return;
    struct ignored *ignored = realloc(s->ignored, (s->n_ignored + 1) * sizeof *ignored);
    struct strbuf where = {0};
    path_of(s, node, &where);
    char *copy = arena_c_string(&s->arena, str_from(keyword));
    char *path = where.failed ? NULL : arena_c_string(&s->arena, strbuf_str(&where));
    strbuf_deinit(&where);
    if (ignored)
        s->ignored = ignored;
    if (!ignored || !copy || !path) {
        no_memory(s);
        return;
    }
    s->ignored[s->n_ignored++] = (struct ignored){copy, path};
}

static bool work(struct schema *s, uint64_t n) {
    s->work += n;
    if (s->work > SCHEMA_WORK_MAX)
        exprs_fail(s->x, "alternatives in a schema");
    return !stopped(s);
}

// Grow an array by one; false when out of memory.
static bool room(struct schema *s, void *array_pointer, uint32_t n, uint32_t *capacity,
                 size_t bytes) {
    void **array = array_pointer;
    if (n < *capacity)
        return true;
    uint32_t to = *capacity ? *capacity * 2 : 32;
    void *bigger = realloc(*array, to * bytes);
    if (!bigger) {
        no_memory(s);
        return false;
    }
    *array = bigger;
    *capacity = to;
    return true;
}

// Hash tables hold index + 1; `hash_of` gives the hash of an index when the table grows.
static bool table_room(struct schema *s, uint32_t **table, uint32_t *slots, uint32_t n,
                       uint64_t (*hash_of)(const struct schema *s, uint32_t i)) {
    if ((n + 1) * 2 <= *slots)
        return true;
    uint32_t to = *slots ? *slots * 2 : 64;
    uint32_t *bigger = calloc(to, sizeof *bigger);
    if (!bigger) {
        no_memory(s);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = hash_of(s, i);
        while (bigger[h & (to - 1)])
            h++;
        bigger[h & (to - 1)] = i + 1;
    }
    free(*table);
    *table = bigger;
    *slots = to;
    return true;
}

// ---- keys --------------------------------------------------------------------------------------

static uint64_t key_hash(const struct schema *s, uint32_t i) {
    return hash_str(s->keys[i]);
}

// The number of a key, kept by reference: `text` must live as long as the schema.
static uint32_t key_of(struct schema *s, struct str text) {
    if (!table_room(s, &s->key_table, &s->key_slots, s->n_keys, key_hash))
        return 0;
    uint64_t h = hash_str(text);
    for (; s->key_table[h & (s->key_slots - 1)]; h++) {
        uint32_t i = s->key_table[h & (s->key_slots - 1)] - 1;
        if (str_eq(s->keys[i], text))
            return i;
    }
    uint32_t capacity = s->keys_capacity;
    if (!room(s, &s->keys, s->n_keys, &s->keys_capacity, sizeof *s->keys) ||
        !room(s, &s->keys_spelled, s->n_keys, &capacity, sizeof *s->keys_spelled))
        return 0;
    s->keys[s->n_keys] = text;
    s->keys_spelled[s->n_keys] = EXPR_NONE;
    s->key_table[h & (s->key_slots - 1)] = s->n_keys + 1;
    return s->n_keys++;
}

static expr_id key_spelled(struct schema *s, uint32_t key) {
    if (s->keys_spelled[key] == EXPR_NONE)
        s->keys_spelled[key] = char_text(s->x, s->keys[key], SPELL_JSON);
    return s->keys_spelled[key];
}

// Does the key belong to a language of string content?
static bool key_in(struct schema *s, uint32_t key, expr_id lang) {
    if (lang == s->all_strings)
        return true;
    struct strbuf quoted = {0};
    strbuf_json_string(&quoted, s->keys[key]);
    bool in = !quoted.failed && expr_match(s->x, lang, str_slice(strbuf_str(&quoted), 1,
                                                                 quoted.n - 1));
    strbuf_deinit(&quoted);
    return in;
}

// ---- nodes -------------------------------------------------------------------------------------

static uint64_t node_hash(const struct schema *s, uint32_t i) {
    return hash_u64((uintptr_t)s->nodes[i].json ^ (uint64_t)s->nodes[i].resource << 48);
}

static void check_node(struct schema *s, uint32_t i);

static uint32_t node_of(struct schema *s, const json_t *json, uint32_t resource, uint32_t parent,
                        const char *token) {
    if (json_is_object(json))
        for (uint32_t r = 0; r < s->n_resources; r++)
            if (s->resources[r].json == json)
                resource = r;
    if (!table_room(s, &s->node_table, &s->node_slots, s->n_nodes, node_hash))
        return 0;
    uint64_t h = hash_u64((uintptr_t)json ^ (uint64_t)resource << 48);
    for (; s->node_table[h & (s->node_slots - 1)]; h++) {
        uint32_t i = s->node_table[h & (s->node_slots - 1)] - 1;
        if (s->nodes[i].json == json && s->nodes[i].resource == resource)
            return i;
    }
    if (!room(s, &s->nodes, s->n_nodes, &s->nodes_capacity, sizeof *s->nodes))
        return 0;
    uint32_t i = s->n_nodes++;
    s->nodes[i] = (struct node){.json = json, .resource = resource, .parent = parent,
                                .token = token, .additional = NO_NODE, .items = NO_NODE};
    s->node_table[h & (s->node_slots - 1)] = i + 1;
    check_node(s, i);
    return i;
}

// The node of a subschema at "<node>/<keyword>" or "<node>/<keyword>/<name or index>".
static uint32_t child_at(struct schema *s, uint32_t node, const json_t *json, const char *keyword,
                         const char *name, size_t index) {
    char number[24];
    if (!name && index != SIZE_MAX) {
        snprintf(number, sizeof number, "%zu", index);
        name = number;
    }
    char *token = name ? arena_printf(&s->arena, "/%s/%.80s", keyword, name)
                       : arena_printf(&s->arena, "/%s", keyword);
    uint32_t resource = s->nodes[node].resource;
    return node_of(s, json, resource, node, token);
}
static uint32_t child(struct schema *s, uint32_t node, const json_t *json, const char *keyword) {
    return child_at(s, node, json, keyword, NULL, SIZE_MAX);
}

static const json_t *get(const struct schema *s, uint32_t node, const char *keyword) {
    return json_object_get(s->nodes[node].json, keyword);
}

static bool is_schema(const json_t *json) {
    return json_is_object(json) || json_is_boolean(json);
}

static bool is_true(const struct schema *s, uint32_t node) {
    const json_t *json = s->nodes[node].json;
    return json_is_true(json) || (json_is_object(json) && json_object_size(json) == 0);
}

static bool count_of(struct schema *s, uint32_t node, const char *keyword, uint32_t *out) {
    const json_t *v = get(s, node, keyword);
    if (!v || !json_is_number(v))
        return false;
    double d = json_number_value(v);
    *out = d >= 4e9 ? UINT32_MAX - 1 : (uint32_t)d;
    return true;
}

// $ref hides its neighbours in drafts up to 7.
static bool ref_only(const struct schema *s, uint32_t node) {
    return s->draft <= DRAFT_7 && json_is_string(get(s, node, "$ref"));
}

enum { TYPE_NULL = 1, TYPE_BOOLEAN = 2, TYPE_NUMBER = 4, TYPE_INTEGER = 8, TYPE_STRING = 16,
       TYPE_ARRAY = 32, TYPE_OBJECT = 64, TYPE_ALL = 127 };

static uint32_t type_named(const char *name) {
    static const struct {
        const char *name;
        uint32_t types;
    } TYPES[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
                 {"number", TYPE_NUMBER},   {"integer", TYPE_INTEGER},
                 {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT},   {"any", TYPE_ALL}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (name && !strcmp(name, TYPES[i].name))
            return TYPES[i].types;
    return 0;
}

static uint32_t types_of(const struct schema *s, uint32_t node) {
    const json_t *type = get(s, node, "type");
    uint32_t types = 0;
    if (!type || ref_only(s, node))
        return TYPE_ALL;
    if (json_is_string(type))
        types = type_named(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_named(json_string_value(json_array_get(type, i)));
    if (json_is_true(get(s, node, "nullable"))) // OpenAPI 3.0
        types |= TYPE_NULL;
    return types;
}

static void check_schemas(struct schema *s, uint32_t i, const char *keyword) {
    const json_t *v = get(s, i, keyword);
    if (!json_is_array(v) || json_array_size(v) == 0)
        bad(s, i, "\"%s\" must be a non-empty array of schemas", keyword);
    for (size_t k = 0; k < json_array_size(v); k++)
        if (!is_schema(json_array_get(v, k)))
            bad(s, i, "\"%s\"[%zu] is not a schema", keyword, k);
}

// Is what stands here a schema? Says which keyword is not what JSON Schema defines.
static void check_node(struct schema *s, uint32_t i) {
    const json_t *json = s->nodes[i].json;
    if (json_is_boolean(json))
        return;
    if (!json_is_object(json)) {
        bad(s, i, "a schema must be an object, true or false");
        return;
    }
    if (ref_only(s, i))
        return;
    static const char *const COUNTS[] = {"minLength", "maxLength", "minItems", "maxItems",
                                         "minProperties", "maxProperties", "minContains",
                                         "maxContains"};
    static const char *const NUMBERS[] = {"minimum", "maximum", "multipleOf"};
    static const char *const SCHEMAS[] = {"allOf", "anyOf", "oneOf"};
    static const char *const MAPS[] = {"properties", "patternProperties", "dependentSchemas",
                                       "dependencies", "dependentRequired"};
    static const char *const ONES[] = {"additionalProperties", "additionalItems", "propertyNames",
                                       "not", "if", "then", "else", "contains",
                                       "unevaluatedProperties", "unevaluatedItems"};
    static const char *const TEXTS[] = {"pattern", "format", "$ref", "$dynamicRef"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)json, key, v) {
        for (size_t k = 0; k < sizeof COUNTS / sizeof *COUNTS; k++)
            if (!strcmp(key, COUNTS[k]) &&
                (!json_is_number(v) || json_number_value(v) < 0 ||
                 json_number_value(v) != floor(json_number_value(v))))
                bad(s, i, "\"%s\" must be a whole number, not negative", key);
        for (size_t k = 0; k < sizeof NUMBERS / sizeof *NUMBERS; k++)
            if (!strcmp(key, NUMBERS[k]) && !json_is_number(v))
                bad(s, i, "\"%s\" must be a number", key);
        if (!strcmp(key, "multipleOf") && json_is_number(v) && json_number_value(v) <= 0)
            bad(s, i, "\"multipleOf\" must be above zero");
        if ((!strcmp(key, "exclusiveMinimum") || !strcmp(key, "exclusiveMaximum")) &&
            !json_is_number(v) && !json_is_boolean(v))
            bad(s, i, "\"%s\" must be a number", key);
        for (size_t k = 0; k < sizeof SCHEMAS / sizeof *SCHEMAS; k++)
            if (!strcmp(key, SCHEMAS[k]))
                check_schemas(s, i, key);
        for (size_t k = 0; k < sizeof MAPS / sizeof *MAPS; k++)
            if (!strcmp(key, MAPS[k]) && !json_is_object(v))
                bad(s, i, "\"%s\" must be an object", key);
        for (size_t k = 0; k < sizeof ONES / sizeof *ONES; k++)
            if (!strcmp(key, ONES[k]) && !is_schema(v))
                bad(s, i, "\"%s\" must be a schema", key);
        for (size_t k = 0; k < sizeof TEXTS / sizeof *TEXTS; k++)
            if (!strcmp(key, TEXTS[k]) && !json_is_string(v))
                bad(s, i, "\"%s\" must be a string", key);
        if (!strcmp(key, "items") && !is_schema(v) && !json_is_array(v))
            bad(s, i, "\"items\" must be a schema or an array of schemas");
        if (!strcmp(key, "prefixItems"))
            check_schemas(s, i, key);
        if (!strcmp(key, "enum") && !json_is_array(v))
            bad(s, i, "\"enum\" must be an array");
        if (!strcmp(key, "required")) {
            if (!json_is_array(v) && !json_is_boolean(v)) // draft 3's boolean is an annotation
                bad(s, i, "\"required\" must be an array of strings");
            for (size_t k = 0; k < json_array_size(v); k++)
                if (!json_is_string(json_array_get(v, k)))
                    bad(s, i, "\"required\" must be an array of strings");
        }
        if (!strcmp(key, "type")) {
            if (json_is_string(v) && !type_named(json_string_value(v)))
                bad(s, i, "\"%.60s\" is not a type", json_string_value(v));
            if (!json_is_string(v) && !json_is_array(v))
                bad(s, i, "\"type\" must be a string or an array of strings");
            for (size_t k = 0; k < json_array_size(v); k++)
                if (!type_named(json_string_value(json_array_get(v, k))))
                    bad(s, i, "\"type\"[%zu] is not the name of a type", k);
        }
    }
}

// ---- references --------------------------------------------------------------------------------

// Resolve a URI reference without its fragment against a base (RFC 3986, 5.2, with dot segments).
static char *resolve_uri(struct arena *arena, const char *base, struct str ref) {
    size_t end = str_find(ref, STR("#"), 0);
    if (end != SIZE_MAX)
        ref.n = end;
    if (ref.n == 0)
        return arena_c_string(arena, str_from(base));
    size_t colon = str_find(ref, STR(":"), 0), slash = str_find(ref, STR("/"), 0);
    if (colon != SIZE_MAX && (slash == SIZE_MAX || colon < slash))
        return arena_c_string(arena, ref);
    struct str b = str_from(base);
    size_t scheme = str_find(b, STR("://"), 0);
    size_t root = scheme == SIZE_MAX ? 0 : str_find(b, STR("/"), scheme + 3);
    if (root == SIZE_MAX)
        root = b.n;
    size_t keep;
    if (str_starts(ref, STR("//"))) {
        keep = scheme == SIZE_MAX ? 0 : scheme + 1;
    } else if (ref.data[0] == '/') {
        keep = root;
    } else {
        keep = b.n;
        while (keep > root && b.data[keep - 1] != '/')
            keep--;
    }
    while (str_starts(ref, STR("./")))
        ref = str_slice(ref, 2, ref.n);
    while (str_starts(ref, STR("../"))) {
        ref = str_slice(ref, 3, ref.n);
        if (keep > root + 1) {
            keep--;
            while (keep > root && b.data[keep - 1] != '/')
                keep--;
        }
    }
    return arena_printf(arena, "%.*s%s%.*s", (int)keep, base,
                        keep == root && root == b.n && ref.data[0] != '/' && root ? "/" : "",
                        (int)ref.n, ref.data);
}

static void register_ids(struct schema *s, const json_t *json, uint32_t resource, uint32_t depth) {
    if (depth > SCHEMA_DEPTH_MAX || s->failed)
        return;
    if (json_is_array(json)) {
        for (size_t i = 0; i < json_array_size(json); i++)
            register_ids(s, json_array_get(json, i), resource, depth + 1);
        return;
    }
    if (!json_is_object(json))
        return;
    const json_t *id = json_object_get(json, s->draft == DRAFT_4 ? "id" : "$id");
    bool hidden = s->draft <= DRAFT_7 && json_is_string(json_object_get(json, "$ref"));
    if (json_is_string(id) && !hidden && depth > 0 && json_string_value(id)[0] == '#') {
        // Drafts up to 7 name a place by "$id": "#name".
        struct anchor *anchors = realloc(s->anchors, (s->n_anchors + 1) * sizeof *anchors);
        if (!anchors) {
            no_memory(s);
            return;
        }
        s->anchors = anchors;
        s->anchors[s->n_anchors++] =
            (struct anchor){json, resource, json_string_value(id) + 1, false};
    } else if (json_is_string(id) && !hidden) {
        char *uri = resolve_uri(&s->arena, s->resources[resource].uri, json_str(id));
        if (depth == 0) {
            s->resources[0].uri = uri ? uri : s->resources[0].uri;
        } else {
            struct resource *resources =
                realloc(s->resources, (s->n_resources + 1) * sizeof *resources);
            if (!resources || !uri) {
                if (resources)
                    s->resources = resources;
                no_memory(s);
                return;
            }
            s->resources = resources;
            resource = s->n_resources++;
            s->resources[resource] = (struct resource){json, uri};
        }
    }
    static const char *const ANCHORS[] = {"$anchor", "$dynamicAnchor"};
    for (int k = 0; k < 2; k++) {
        const json_t *name = json_object_get(json, ANCHORS[k]);
        if (!json_is_string(name))
            continue;
        struct anchor *anchors = realloc(s->anchors, (s->n_anchors + 1) * sizeof *anchors);
        if (!anchors) {
            no_memory(s);
            return;
        }
        s->anchors = anchors;
        s->anchors[s->n_anchors++] =
            (struct anchor){json, resource, json_string_value(name), k == 1};
    }
    const char *key;
    json_t *v;
    static const char *const MAPS[] = {"properties", "patternProperties", "definitions", "$defs",
                                       "dependentSchemas", "dependencies"};
    static const char *const PLAIN[] = {"additionalProperties", "additionalItems", "propertyNames",
                                        "not", "if", "then", "else", "contains", "items",
                                        "prefixItems", "allOf", "anyOf", "oneOf",
                                        "unevaluatedProperties", "unevaluatedItems"};
    json_object_foreach((json_t *)json, key, v) {
        for (size_t k = 0; k < sizeof PLAIN / sizeof *PLAIN; k++)
            if (!strcmp(key, PLAIN[k]))
                register_ids(s, v, resource, depth + 1);
        for (size_t k = 0; k < sizeof MAPS / sizeof *MAPS; k++) {
            const char *name;
            json_t *sub;
            if (!strcmp(key, MAPS[k]))
                json_object_foreach(v, name, sub) register_ids(s, sub, resource, depth + 1);
        }
    }
}

static int hex_value(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
}

// Follow a JSON pointer (percent-encoded) from *json; false if there is nothing.
static bool follow_pointer(struct schema *s, struct str pointer, const json_t **json,
                           uint32_t *resource) {
    for (size_t pos = 0; pos < pointer.n;) {
        size_t end = str_find(pointer, STR("/"), pos + 1);
        if (end == SIZE_MAX)
            end = pointer.n;
        char part[512];
        size_t n = 0;
        for (size_t i = pos + 1; i < end && n + 1 < sizeof part; i++) {
            char c = pointer.data[i];
            if (c == '%' && i + 2 < end + 0 && hex_value(pointer.data[i + 1]) >= 0 &&
                hex_value(pointer.data[i + 2]) >= 0) {
                c = (char)(hex_value(pointer.data[i + 1]) << 4 | hex_value(pointer.data[i + 2]));
                i += 2;
            }
            if (c == '~' && i + 1 < end && (pointer.data[i + 1] == '0' || pointer.data[i + 1] == '1'))
                c = pointer.data[++i] == '0' ? '~' : '/';
            part[n++] = c;
        }
        part[n] = 0;
        if (json_is_array(*json)) {
            char *stop;
            unsigned long index = strtoul(part, &stop, 10);
            *json = n && !*stop ? json_array_get(*json, index) : NULL;
        } else {
            *json = json_object_getn(*json, part, n);
        }
        if (!*json)
            return false;
        for (uint32_t r = 0; r < s->n_resources; r++)
            if (s->resources[r].json == *json)
                *resource = r;
        pos = end;
    }
    return true;
}

// The node that a reference names, or NO_NODE: remote, and reported.
static uint32_t follow_ref(struct schema *s, uint32_t node, const char *keyword) {
    struct str ref = json_str(get(s, node, keyword));
    size_t hash = str_find(ref, STR("#"), 0);
    struct str fragment = hash == SIZE_MAX ? (struct str){0} : str_slice(ref, hash + 1, ref.n);
    uint32_t resource = s->nodes[node].resource, found = NO_NODE;
    char *uri = resolve_uri(&s->arena, s->resources[resource].uri, ref);
    if (!uri) {
        no_memory(s);
        return NO_NODE;
    }
    if (hash == 0) {
        found = resource;
    } else {
        for (uint32_t r = 0; r < s->n_resources; r++)
            if (!strcmp(s->resources[r].uri, uri))
                found = r;
    }
    if (found == NO_NODE) {
        ignore(s, node, keyword);
        return NO_NODE;
    }
    const json_t *json = s->resources[found].json;
    if (fragment.n > 0 && fragment.data[0] != '/') {
        json = NULL;
        for (uint32_t i = 0; i < s->n_anchors; i++)
            if (s->anchors[i].resource == found && str_eq_c(fragment, s->anchors[i].name))
                json = s->anchors[i].json;
        if (!json && hash == 0) // draft 4's and 6's plain names live in the whole document
            for (uint32_t i = 0; i < s->n_anchors; i++)
                if (str_eq_c(fragment, s->anchors[i].name)) {
                    json = s->anchors[i].json;
                    found = s->anchors[i].resource;
                }
    } else if (!follow_pointer(s, fragment, &json, &found)) {
        json = NULL;
    }
    if (!json || !is_schema(json)) {
        bad(s, node, "\"%s\": \"%.200s\" names no schema", keyword, ref.data);
        return NO_NODE;
    }
    char *token = arena_printf(&s->arena, "%.200s", fragment.n ? fragment.data : "");
    return node_of(s, json, found, NO_NODE, token);
}

// The targets of all references of a node; NO_NODE ones left out.
static uint32_t refs_of(struct schema *s, uint32_t node, uint32_t out[3]) {
    uint32_t n = 0;
    static const char *const KEYWORDS[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    for (int k = 0; k < 3; k++) {
        if (!json_is_string(get(s, node, KEYWORDS[k])))
            continue;
        if (k == 1 && s->draft < DRAFT_2020)
            continue;
        if (k == 2 && s->draft != DRAFT_2019)
            continue;
        if (k > 0) {
            // Static resolution is right unless the place is overridden elsewhere.
            uint32_t n_dynamic = 0;
            for (uint32_t i = 0; i < s->n_anchors; i++)
                n_dynamic += s->anchors[i].dynamic;
            if (k == 2 ? s->n_resources > 1 : n_dynamic > 1)
                ignore(s, node, KEYWORDS[k]);
        }
        uint32_t target = follow_ref(s, node, KEYWORDS[k]);
        if (target != NO_NODE)
            out[n++] = target;
    }
    return n;
}

// ---- languages of scalars ----------------------------------------------------------------------

static expr_id both(struct schema *s, expr_id all, expr_id a, expr_id b) {
    if (a == all)
        return b;
    if (b == all || a == b)
        return a;
    return expr_and2(s->x, a, b);
}
static expr_id either(struct schema *s, expr_id all, expr_id a, expr_id b) {
    return a == all || b == all ? all : expr_or2(s->x, a, b);
}
static expr_id without(struct schema *s, expr_id all, expr_id a) {
    if (a == all)
        return EXPR_NONE;
    if (a == EXPR_NONE)
        return all;
    return expr_and2(s->x, all, expr_not(s->x, a));
}

static struct scalars scalars_all(struct schema *s) {
    return (struct scalars){true, true, true, s->all_strings, s->all_numbers};
}
static struct scalars scalars_and(struct schema *s, struct scalars a, struct scalars b) {
    return (struct scalars){a.null && b.null, a.yes && b.yes, a.no && b.no,
                            both(s, s->all_strings, a.string, b.string),
                            both(s, s->all_numbers, a.number, b.number)};
}
static struct scalars scalars_or(struct schema *s, struct scalars a, struct scalars b) {
    return (struct scalars){a.null || b.null, a.yes || b.yes, a.no || b.no,
                            either(s, s->all_strings, a.string, b.string),
                            either(s, s->all_numbers, a.number, b.number)};
}

static struct scalars scalars_of(struct schema *s, uint32_t node, bool negated);

static struct scalars scalars_of_values(struct schema *s, const json_t *const *values, size_t n) {
    struct scalars r = {0};
    struct str *plain = arena_array(&s->arena, struct str, n);
    expr_id *parts = arena_array(&s->arena, expr_id, 2 * n + 2);
    if (!plain || !parts) {
        no_memory(s);
        return r;
    }
    size_t n_plain = 0, n_strings = 0, n_numbers = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = values[i];
        r.null |= json_is_null(v);
        r.yes |= json_is_true(v);
        r.no |= json_is_false(v);
        if (json_is_string(v)) {
            struct str text = json_str(v);
            bool simple = true;
            for (size_t k = 0; k < text.n; k++) {
                unsigned char c = (unsigned char)text.data[k];
                simple &= c >= 0x20 && c < 0x80 && c != '"' && c != '\\' && c != '/';
            }
            if (simple)
                plain[n_plain++] = text;
            else
                parts[n_strings++] = char_text(s->x, text, SPELL_JSON);
        } else if (json_is_number(v)) {
            struct decimal d = decimal_of(v);
            parts[n + 1 + n_numbers++] = number_equal(s->x, &d);
        }
    }
    parts[n_strings++] = expr_lits(s->x, plain, n_plain);
    r.string = expr_or(s->x, parts, n_strings);
    r.number = expr_or(s->x, parts + n + 1, n_numbers);
    return r;
}

// `enum` or `const` as a list of values; NULL if the node has neither.
static const json_t *const *values_of(struct schema *s, uint32_t node, size_t *n) {
    const json_t *list = get(s, node, "enum"), *one = get(s, node, "const");
    *n = 0;
    if (!list && !one)
        return NULL;
    const json_t **values = arena_array(&s->arena, const json_t *, json_array_size(list) + 1);
    if (!values) {
        no_memory(s);
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        values[(*n)++] = json_array_get(list, i);
    if (!list)
        values[(*n)++] = one;
    return values;
}

// The keywords about the text of a string, as one language.
static expr_id string_keywords(struct schema *s, uint32_t node) {
    struct exprs *x = s->x;
    expr_id all = s->all_strings, lang = all;
    uint32_t min = 0, max = EXPR_INF, v;
    if (count_of(s, node, "minLength", &v))
        min = v;
    if (count_of(s, node, "maxLength", &v))
        max = v;
    if (min > max)
        return EXPR_NONE;
    if (min > 0 || max != EXPR_INF)
        lang = expr_rep(x, char_any(x, SPELL_JSON), min, max);
    const json_t *pattern = get(s, node, "pattern");
    if (pattern) {
        struct err err = {0};
        expr_id p = regex_expr(x, json_str(pattern), SPELL_JSON, REGEX_SEARCH, &err);
        if (err.code == ERR_INVALID)
            bad(s, node, "\"pattern\": %.300s", err.message);
        else if (err.code == ERR_UNSUPPORTED)
            ignore(s, node, "pattern");
        else
            lang = both(s, all, lang, p);
    }
    const json_t *format = get(s, node, "format");
    if (format) {
        expr_id f = EXPR_NONE;
        switch (format_expr(x, json_str(format), &f)) {
        case FORMAT_ENFORCED:
            lang = both(s, all, lang, f);
            break;
        case FORMAT_UNENFORCED:
            ignore(s, node, "format");
            break;
        case FORMAT_UNKNOWN:
            break;
        }
    }
    return lang;
}

// The keywords about numbers: parts that must all hold, each with its exact complement.
struct number_part {
    expr_id lang, complement;
};
static size_t number_keywords(struct schema *s, uint32_t node, struct number_part out[6]) {
    struct exprs *x = s->x;
    size_t n = 0;
    for (int side = 0; side < 2; side++) {
        const json_t *bound = get(s, node, side ? "maximum" : "minimum");
        const json_t *exclusive = get(s, node, side ? "exclusiveMaximum" : "exclusiveMinimum");
        for (int k = 0; k < 2; k++) {
            const json_t *v = k ? exclusive : bound;
            if (!json_is_number(v))
                continue;
            bool strictly = k == 1 || json_is_true(exclusive); // draft 4: true beside the bound
            struct decimal d = decimal_of(v);
            expr_id holds = side ? number_at_most(x, &d, strictly)
                                 : number_at_least(x, &d, strictly);
            expr_id not_so = side ? number_at_least(x, &d, !strictly)
                                  : number_at_most(x, &d, !strictly);
            out[n++] = (struct number_part){holds, not_so};
        }
    }
    const json_t *multiple = get(s, node, "multipleOf");
    if (multiple) {
        struct decimal d = decimal_of(multiple);
        expr_id holds = number_multiple(x, &d, false);
        if (holds == EXPR_NONE && !exprs_failed(x))
            ignore(s, node, "multipleOf");
        else
            out[n++] = (struct number_part){
                holds, expr_and2(x, number_plain(x), expr_not(x, number_multiple(x, &d, true)))};
    }
    return n;
}

// Conjunction of subschemas (or disjunction of their negations).
static struct scalars scalars_list(struct schema *s, uint32_t node, const char *keyword,
                                   bool negated, bool all_of) {
    const json_t *list = get(s, node, keyword);
    struct scalars r = all_of ? scalars_all(s) : (struct scalars){0};
    for (size_t i = 0; i < json_array_size(list) && !stopped(s); i++) {
        uint32_t sub = child_at(s, node, json_array_get(list, i), keyword, NULL, i);
        struct scalars v = scalars_of(s, sub, negated);
        r = all_of ? scalars_and(s, r, v) : scalars_or(s, r, v);
    }
    return r;
}

// Exactly one of oneOf (or its opposite).
static struct scalars scalars_one_of(struct schema *s, uint32_t node, bool negated) {
    const json_t *list = get(s, node, "oneOf");
    struct scalars none = scalars_all(s), one = {0}, more = {0};
    for (size_t i = 0; i < json_array_size(list) && !stopped(s); i++) {
        uint32_t sub = child_at(s, node, json_array_get(list, i), "oneOf", NULL, i);
        struct scalars yes = scalars_of(s, sub, false), no = scalars_of(s, sub, true);
        if (negated)
            more = scalars_or(s, more, scalars_and(s, one, yes));
        one = scalars_or(s, scalars_and(s, one, no), scalars_and(s, none, yes));
        none = scalars_and(s, none, no);
    }
    return negated ? scalars_or(s, none, more) : one;
}

static struct scalars scalars_compute(struct schema *s, uint32_t node, bool negated) {
    struct exprs *x = s->x;
    const json_t *json = s->nodes[node].json;
    if (json_is_boolean(json))
        return json_is_true(json) != negated ? scalars_all(s) : (struct scalars){0};
    expr_id strings = s->all_strings, numbers = s->all_numbers;
    // `r` collects with AND when the keywords hold, with OR when some keyword fails.
    struct scalars r = negated ? (struct scalars){0} : scalars_all(s);
#define COLLECT(v) r = negated ? scalars_or(s, r, (v)) : scalars_and(s, r, (v))
    uint32_t refs[3], n_refs = refs_of(s, node, refs);
    for (uint32_t i = 0; i < n_refs; i++)
        COLLECT(scalars_of(s, refs[i], negated));
    if (ref_only(s, node) || stopped(s))
        return r;
    uint32_t types = types_of(s, node);
    if (types != TYPE_ALL) {
        struct scalars t = {types & TYPE_NULL, types & TYPE_BOOLEAN, types & TYPE_BOOLEAN,
                            types & TYPE_STRING ? strings : EXPR_NONE, EXPR_NONE};
        if (types & TYPE_NUMBER)
            t.number = numbers;
        else if (types & TYPE_INTEGER)
            t.number = number_integer(x, s->draft != DRAFT_4);
        if (negated)
            t = (struct scalars){!t.null, !t.yes, !t.no, without(s, strings, t.string),
                                 without(s, numbers, t.number)};
        COLLECT(t);
    }
    size_t n_values;
    const json_t *const *values = values_of(s, node, &n_values);
    if (values) {
        struct scalars v = scalars_of_values(s, values, n_values);
        if (negated)
            v = (struct scalars){!v.null, !v.yes, !v.no, without(s, strings, v.string),
                                 without(s, numbers, v.number)};
        COLLECT(v);
    }
    if (types & TYPE_STRING) { // annotations since 2019-09, but better told than silently left out
        if (get(s, node, "contentEncoding"))
            ignore(s, node, "contentEncoding");
        if (get(s, node, "contentMediaType"))
            ignore(s, node, "contentMediaType");
    }
    expr_id text = types & TYPE_STRING ? string_keywords(s, node) : strings;
    if (text != strings) {
        struct scalars v = negated ? (struct scalars){.string = without(s, strings, text)}
                                   : scalars_all(s);
        if (!negated)
            v.string = text;
        COLLECT(v);
    }
    struct number_part parts[6];
    size_t n_parts =
        types & (TYPE_NUMBER | TYPE_INTEGER) ? number_keywords(s, node, parts) : 0;
    for (size_t i = 0; i < n_parts; i++) {
        struct scalars v = negated ? (struct scalars){.number = parts[i].complement}
                                   : scalars_all(s);
        if (!negated)
            v.number = parts[i].lang;
        COLLECT(v);
    }
    if (get(s, node, "allOf"))
        COLLECT(scalars_list(s, node, "allOf", negated, !negated));
    if (get(s, node, "anyOf"))
        COLLECT(scalars_list(s, node, "anyOf", negated, negated));
    if (get(s, node, "oneOf"))
        COLLECT(scalars_one_of(s, node, negated));
    const json_t *sub = get(s, node, "not");
    if (sub)
        COLLECT(scalars_of(s, child(s, node, sub, "not"), !negated));
    const json_t *condition = get(s, node, "if");
    if (condition && (get(s, node, "then") || get(s, node, "else"))) {
        uint32_t c = child(s, node, condition, "if");
        struct scalars branches[2];
        for (int k = 0; k < 2; k++) {
            const char *keyword = k ? "else" : "then";
            const json_t *branch = get(s, node, keyword);
            struct scalars holds = branch ? scalars_of(s, child(s, node, branch, keyword), negated)
                                   : negated ? (struct scalars){0}
                                             : scalars_all(s);
            branches[k] = scalars_and(s, scalars_of(s, c, k == 1), holds);
        }
        COLLECT(scalars_or(s, branches[0], branches[1]));
    }
#undef COLLECT
    return r;
}

static struct scalars scalars_of(struct schema *s, uint32_t node, bool negated) {
    if (s->nodes[node].scalars_done[negated] == DONE)
        return s->nodes[node].scalars[negated];
    if (s->nodes[node].scalars_done[negated] == UNDER_WAY || s->depth > SCHEMA_DEPTH_MAX)
        return scalars_all(s); // a schema that refers to itself says nothing
    s->nodes[node].scalars_done[negated] = UNDER_WAY;
    s->depth++;
    struct scalars r = scalars_compute(s, node, negated);
    s->depth--;
    s->nodes[node].scalars[negated] = r;
    s->nodes[node].scalars_done[negated] = DONE;
    return r;
}

// ---- facts about objects and arrays ------------------------------------------------------------

static uint64_t atom_hash_of(const struct atom *a) {
    return hash_bytes((struct bytes){(const uint8_t *)a, sizeof *a}, 1);
}
static uint64_t atom_hash(const struct schema *s, uint32_t i) {
    return atom_hash_of(&s->atoms[i]);
}

static uint32_t atom_of(struct schema *s, struct atom atom) {
    if (!table_room(s, &s->atom_table, &s->atom_slots, s->n_atoms, atom_hash))
        return 0;
    uint64_t h = atom_hash_of(&atom);
    for (; s->atom_table[h & (s->atom_slots - 1)]; h++) {
        uint32_t i = s->atom_table[h & (s->atom_slots - 1)] - 1;
        if (!memcmp(&s->atoms[i], &atom, sizeof atom))
            return i;
    }
    if (!room(s, &s->atoms, s->n_atoms, &s->atoms_capacity, sizeof *s->atoms))
        return 0;
    s->atoms[s->n_atoms] = atom;
    s->atom_table[h & (s->atom_slots - 1)] = s->n_atoms + 1;
    return s->n_atoms++;
}

static struct dnf dnf_false(void) {
    return (struct dnf){0};
}
static struct dnf dnf_true(struct schema *s) {
    struct conj *conj = arena_new(&s->arena, struct conj);
    if (!conj)
        no_memory(s);
    return (struct dnf){conj, conj ? 1 : 0};
}
static struct dnf dnf_atom(struct schema *s, struct atom atom) {
    struct dnf d = dnf_true(s);
    uint32_t *id = arena_new(&s->arena, uint32_t);
    if (!id || !d.conjs) {
        no_memory(s);
        return dnf_false();
    }
    *id = atom_of(s, atom);
    d.conjs[0] = (struct conj){id, 1};
    return d;
}

static bool conj_within(struct conj a, struct conj b) { // every fact of a is one of b
    uint32_t j = 0;
    for (uint32_t i = 0; i < a.n; i++) {
        while (j < b.n && b.atoms[j] < a.atoms[i])
            j++;
        if (j == b.n || b.atoms[j] != a.atoms[i])
            return false;
    }
    return true;
}

// Contradictions that show at once.
static bool conj_absurd(struct schema *s, struct conj c) {
    uint32_t min = 0, max = UINT32_MAX;
    for (uint32_t i = 0; i < c.n; i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind == ATOM_MIN && a.n > min)
            min = a.n;
        if (a.kind == ATOM_MAX && a.n < max)
            max = a.n;
        if (a.kind != ATOM_LACKS)
            continue;
        for (uint32_t j = 0; j < c.n; j++) {
            struct atom b = s->atoms[c.atoms[j]];
            if ((b.kind == ATOM_HAS || b.kind == ATOM_VALUE) && b.key == a.key)
                return true;
        }
    }
    return min > max;
}

// Keep what no other alternative covers.
static struct dnf dnf_reduce(struct schema *s, struct dnf d) {
    if (d.n > 128 || !work(s, (uint64_t)d.n * d.n))
        return d;
    uint32_t n = 0;
    for (uint32_t i = 0; i < d.n; i++) {
        bool covered = false;
        for (uint32_t j = 0; j < d.n && !covered; j++)
            covered = j != i && conj_within(d.conjs[j], d.conjs[i]) &&
                      (d.conjs[j].n < d.conjs[i].n || j < i);
        if (!covered)
            d.conjs[n++] = d.conjs[i];
        else
            d.conjs[i] = (struct conj){0}; // placeholder, overwritten or dropped
        if (covered) {
            // Close the gap so that later comparisons see only kept ones.
            memmove(d.conjs + i, d.conjs + i + 1, (d.n - i - 1) * sizeof *d.conjs);
            d.n--;
            i--;
        }
    }
    d.n = n;
    return d;
}

// Beyond the limit a keyword that can be left out is (the caller looks at `overflow`), else the schema
// fails.
static bool too_many(struct schema *s, size_t n) {
    if (n > SCHEMA_CONJS_MAX && s->n_optional == 0)
        exprs_fail(s->x, "alternatives of one value");
    s->overflow |= n > SCHEMA_CONJS_MAX;
    return stopped(s) || s->overflow;
}

static struct dnf dnf_or(struct schema *s, struct dnf a, struct dnf b) {
    if (a.n == 0)
        return b;
    if (b.n == 0)
        return a;
    if (too_many(s, a.n + b.n))
        return dnf_false();
    struct conj *conjs = arena_array(&s->arena, struct conj, a.n + b.n);
    if (!conjs) {
        no_memory(s);
        return dnf_false();
    }
    memcpy(conjs, a.conjs, a.n * sizeof *conjs);
    memcpy(conjs + a.n, b.conjs, b.n * sizeof *conjs);
    return dnf_reduce(s, (struct dnf){conjs, a.n + b.n});
}

static struct conj conj_join(struct schema *s, struct conj a, struct conj b) {
    if (a.n == 0)
        return b;
    if (b.n == 0)
        return a;
    uint32_t *atoms = arena_array(&s->arena, uint32_t, a.n + b.n), n = 0, i = 0, j = 0;
    if (!atoms || !work(s, a.n + b.n)) {
        no_memory(s);
        return a;
    }
    while (i < a.n || j < b.n) {
        if (j == b.n || (i < a.n && a.atoms[i] < b.atoms[j])) {
            atoms[n++] = a.atoms[i++];
        } else {
            if (i < a.n && a.atoms[i] == b.atoms[j])
                i++;
            atoms[n++] = b.atoms[j++];
        }
    }
    return (struct conj){atoms, n};
}

static struct dnf dnf_and(struct schema *s, struct dnf a, struct dnf b) {
    if (a.n == 0 || b.n == 0)
        return dnf_false();
    if (a.n == 1 && a.conjs[0].n == 0)
        return b;
    if (b.n == 1 && b.conjs[0].n == 0)
        return a;
    struct conj *conjs = NULL;
    uint32_t n = 0, capacity = 0;
    for (uint32_t i = 0; i < a.n; i++)
        for (uint32_t j = 0; j < b.n && !stopped(s); j++) {
            struct conj c = conj_join(s, a.conjs[i], b.conjs[j]);
            if (conj_absurd(s, c))
                continue;
            if (too_many(s, n + 1) || !room(s, &conjs, n, &capacity, sizeof *conjs))
                break;
            conjs[n++] = c;
        }
    struct conj *kept = arena_array(&s->arena, struct conj, n + 1);
    if (kept && n)
        memcpy(kept, conjs, n * sizeof *kept);
    free(conjs);
    if (!kept) {
        no_memory(s);
        return dnf_false();
    }
    return dnf_reduce(s, (struct dnf){kept, n});
}

static literal lit(uint32_t node, bool negated) {
    return node * 2 + negated;
}

// Read properties, items and their relatives once.
static void read_blocks(struct schema *s, uint32_t node) {
    if (s->nodes[node].blocks_done || stopped(s))
        return;
    const json_t *properties = get(s, node, "properties");
    const json_t *patterns = get(s, node, "patternProperties");
    const json_t *additional = get(s, node, "additionalProperties");
    struct property *ps = arena_array(&s->arena, struct property, json_object_size(properties));
    struct pattern *rs = arena_array(&s->arena, struct pattern, json_object_size(patterns));
    uint32_t n_ps = 0, n_rs = 0, n_prefix = 0, items = NO_NODE;
    if (!ps || !rs) {
        no_memory(s);
        return;
    }
    const char *name;
    size_t name_n;
    json_t *v;
    json_object_keylen_foreach((json_t *)properties, name, name_n, v) {
        if (!is_schema(v)) {
            bad(s, node, "property \"%.80s\" is not a schema", name);
            return;
        }
        ps[n_ps].key = key_of(s, (struct str){name, name_n});
        ps[n_ps++].node = child_at(s, node, v, "properties", name, SIZE_MAX);
    }
    json_object_keylen_foreach((json_t *)patterns, name, name_n, v) {
        if (!is_schema(v)) {
            bad(s, node, "pattern \"%.80s\" has no schema", name);
            return;
        }
        struct err err = {0};
        expr_id p = regex_expr(s->x, (struct str){name, name_n}, SPELL_JSON, REGEX_SEARCH, &err);
        if (err.code == ERR_INVALID) {
            bad(s, node, "patternProperties: %.300s", err.message);
            return;
        }
        if (err.code == ERR_UNSUPPORTED) {
            ignore(s, node, "patternProperties");
            continue;
        }
        rs[n_rs].lang = p;
        rs[n_rs++].node = child_at(s, node, v, "patternProperties", name, SIZE_MAX);
    }
    uint32_t rest = NO_NODE;
    if (additional)
        rest = child(s, node, additional, "additionalProperties");
    // Arrays: 2020-12 has prefixItems and items, earlier drafts items and additionalItems.
    const json_t *prefix = get(s, node, "prefixItems"), *item = get(s, node, "items");
    const char *prefix_keyword = "prefixItems", *item_keyword = "items";
    if (!prefix && json_is_array(item)) {
        prefix = item;
        prefix_keyword = "items";
        item = get(s, node, "additionalItems");
        item_keyword = "additionalItems";
    }
    uint32_t *first = arena_array(&s->arena, uint32_t, json_array_size(prefix));
    if (!first) {
        no_memory(s);
        return;
    }
    for (size_t i = 0; i < json_array_size(prefix); i++) {
        if (!is_schema(json_array_get(prefix, i))) {
            bad(s, node, "\"%s\"[%zu] is not a schema", prefix_keyword, i);
            return;
        }
        first[n_prefix++] =
            child_at(s, node, json_array_get(prefix, i), prefix_keyword, NULL, i);
    }
    if (item && is_schema(item))
        items = child(s, node, item, item_keyword);
    struct node *n = &s->nodes[node];
    n->properties = ps;
    n->n_properties = n_ps;
    n->patterns = rs;
    n->n_patterns = n_rs;
    n->additional = rest;
    n->prefix = first;
    n->n_prefix = n_prefix;
    n->items = items;
    n->blocks_done = true;
}

// Literals that say nothing are not kept; false if the literal can never hold.
static bool literal_trivial(const struct schema *s, literal l, bool *never) {
    uint32_t node = l / 2;
    bool negated = l & 1;
    *never = false;
    if (is_true(s, node)) {
        *never = negated;
        return !negated;
    }
    if (json_is_false(s->nodes[node].json)) {
        *never = !negated;
        return negated;
    }
    return false;
}

static struct dnf dnf_of(struct schema *s, uint32_t node, bool negated, bool array);

// "Not these properties": some member breaks them.
static struct dnf properties_broken(struct schema *s, uint32_t node) {
    struct dnf r = dnf_false();
    struct exprs *x = s->x;
    read_blocks(s, node);
    struct node n = s->nodes[node];
    bool never;
    for (uint32_t i = 0; i < n.n_properties && !stopped(s); i++) {
        literal l = lit(n.properties[i].node, true);
        literal_trivial(s, l, &never);
        if (!never)
            r = dnf_or(s, r, dnf_atom(s, (struct atom){.kind = ATOM_VALUE,
                                                       .key = n.properties[i].key, .lit = l}));
    }
    expr_id others = s->all_strings;
    for (uint32_t i = 0; i < n.n_patterns && !stopped(s); i++) {
        literal l = lit(n.patterns[i].node, true);
        literal_trivial(s, l, &never);
        if (!never)
            r = dnf_or(s, r, dnf_atom(s, (struct atom){.kind = ATOM_SOME,
                                                       .lang = n.patterns[i].lang, .lit = l}));
        others = both(s, s->all_strings, others, without(s, s->all_strings, n.patterns[i].lang));
    }
    if (n.additional != NO_NODE) {
        literal l = lit(n.additional, true);
        literal_trivial(s, l, &never);
        if (!never) {
            for (uint32_t i = 0; i < n.n_properties; i++)
                others = both(s, s->all_strings, others,
                              without(s, s->all_strings, key_spelled(s, n.properties[i].key)));
            if (others != EXPR_NONE && expr_alive(x, others))
                r = dnf_or(s, r, dnf_atom(s, (struct atom){.kind = ATOM_SOME, .lang = others,
                                                           .lit = l}));
        }
    }
    return r;
}

static struct dnf items_broken(struct schema *s, uint32_t node) {
    struct dnf r = dnf_false();
    read_blocks(s, node);
    struct node n = s->nodes[node];
    bool never;
    for (uint32_t i = 0; i < n.n_prefix && !stopped(s); i++) {
        literal l = lit(n.prefix[i], true);
        literal_trivial(s, l, &never);
        if (!never)
            r = dnf_or(s, r, dnf_atom(s, (struct atom){.kind = ATOM_AT, .n = i, .lit = l}));
    }
    if (n.items != NO_NODE) {
        literal l = lit(n.items, true);
        literal_trivial(s, l, &never);
        if (!never)
            r = dnf_or(s, r, dnf_atom(s, (struct atom){.kind = ATOM_CONTAINS, .key = n.n_prefix,
                                                       .n = 1, .m = UINT32_MAX, .lit = l}));
    }
    return r;
}

// The one array or object `value`, or (negated) every other one.
static struct dnf dnf_value(struct schema *s, uint32_t node, const json_t *value, size_t index,
                            bool negated, bool array) {
    if (array ? !json_is_array(value) : !json_is_object(value))
        return negated ? dnf_true(s) : dnf_false();
    // Members become constants of their own: a schema {"const": member}, kept alive by the list.
    size_t n = array ? json_array_size(value) : json_object_size(value);
    struct dnf r = negated ? dnf_false() : dnf_true(s);
    struct atom size = {.kind = negated ? ATOM_MIN : ATOM_MAX, .n = (uint32_t)n + negated};
#define COLLECT(v) r = negated ? dnf_or(s, r, (v)) : dnf_and(s, r, (v))
    COLLECT(dnf_atom(s, size));
    const char *name = "";
    void *at = array ? NULL : json_object_iter((json_t *)value);
    for (size_t i = 0; i < n && !stopped(s); i++) {
        json_t *member = array ? json_array_get(value, i) : json_object_iter_value(at);
        json_t *constant = json_pack("{sO}", "const", member);
        if (!constant || json_array_append_new(s->constants, constant) != 0) {
            no_memory(s);
            break;
        }
        uint32_t sub = child_at(s, node, constant, "const", NULL, index);
        if (array) {
            COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_AT, .n = (uint32_t)i,
                                              .lit = lit(sub, negated)}));
        } else {
            name = json_object_iter_key(at);
            uint32_t key = key_of(s, (struct str){name, json_object_iter_key_len(at)});
            COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_VALUE, .key = key,
                                              .lit = lit(sub, negated)}));
            if (negated)
                COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_LACKS, .key = key}));
            at = json_object_iter_next((json_t *)value, at);
        }
    }
    if (array && negated && n > 0)
        COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_MAX, .n = (uint32_t)n - 1}));
    if (array && !negated && n > 0)
        COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_MIN, .n = (uint32_t)n}));
#undef COLLECT
    return r;
}

static bool conj_possible(struct schema *s, struct conj c, bool array);

// oneOf for arrays or objects. Branches that exclude each other need no negation of the other.
static struct dnf dnf_one_of_exact(struct schema *s, uint32_t node, bool negated, bool array) {
    const json_t *list = get(s, node, "oneOf");
    size_t n = json_array_size(list);
    struct dnf *yes = arena_array(&s->arena, struct dnf, n), r = dnf_false();
    uint32_t *subs = arena_array(&s->arena, uint32_t, n);
    bool *overlap = arena_array(&s->arena, bool, n * n);
    if (!yes || !subs || !overlap || n > 500) {
        s->overflow = true;
        return r;
    }
    for (size_t i = 0; i < n && !s->overflow; i++) {
        subs[i] = child_at(s, node, json_array_get(list, i), "oneOf", NULL, i);
        yes[i] = dnf_of(s, subs[i], false, array);
    }
    struct dnf none = dnf_true(s);
    for (size_t i = 0; i < n && !stopped(s) && !s->overflow; i++)
        for (size_t j = 0; j < i && !stopped(s) && !s->overflow; j++) {
            // Every pair of alternatives, until one may hold for both branches.
            bool shared = false;
            struct dnf together = dnf_false();
            for (uint32_t a = 0; a < yes[i].n && !shared; a++)
                for (uint32_t b = 0; b < yes[j].n && !shared && !stopped(s); b++) {
                    struct conj c = conj_join(s, yes[i].conjs[a], yes[j].conjs[b]);
                    shared = !conj_absurd(s, c) && conj_possible(s, c, array);
                }
            overlap[i * n + j] = overlap[j * n + i] = shared;
            if (shared && negated) {
                together = dnf_and(s, yes[i], yes[j]);
                r = dnf_or(s, r, together);
            }
        }
    if (negated) {
        for (size_t i = 0; i < n && !stopped(s); i++)
            none = dnf_and(s, none, dnf_of(s, subs[i], true, array));
        return dnf_or(s, r, none);
    }
    size_t total = 0;
    for (size_t i = 0; i < n && !stopped(s) && !s->overflow; i++) {
        struct dnf only = yes[i];
        for (size_t j = 0; j < n && !s->overflow; j++) {
            if (j == i || !overlap[i * n + j])
                continue;
            struct dnf no = dnf_of(s, subs[j], true, array), next = dnf_false();
            s->overflow |= (size_t)only.n * no.n > 20000;
            // Alternatives that cannot hold are dropped at once: they would multiply.
            for (uint32_t a = 0; a < only.n && !s->overflow; a++)
                for (uint32_t b = 0; b < no.n && !s->overflow && !stopped(s); b++) {
                    struct conj c = conj_join(s, only.conjs[a], no.conjs[b]);
                    if (conj_absurd(s, c) || !conj_possible(s, c, array))
                        continue;
                    struct conj *one = arena_new(&s->arena, struct conj);
                    if (!one) {
                        no_memory(s);
                        return r;
                    }
                    *one = c;
                    s->overflow |= next.n + total >= SCHEMA_ONE_OF_CONJS_MAX;
                    next = dnf_or(s, next, (struct dnf){one, 1});
                }
            only = next;
        }
        total += only.n;
        r = dnf_or(s, r, only);
    }
    return r;
}

// What is too large to be exact becomes anyOf (or, negated, is left out), and is said to be.
static struct dnf dnf_one_of(struct schema *s, uint32_t node, bool negated, bool array) {
    bool outer = s->overflow;
    s->overflow = false;
    s->n_optional++;
    struct dnf r = dnf_one_of_exact(s, node, negated, array);
    s->n_optional--;
    bool overflow = s->overflow;
    s->overflow = outer;
    if (!overflow)
        return r;
    ignore(s, node, "oneOf");
    if (negated)
        return dnf_true(s);
    r = dnf_false();
    const json_t *list = get(s, node, "oneOf");
    for (size_t i = 0; i < json_array_size(list) && !stopped(s); i++)
        r = dnf_or(s, r, dnf_of(s, child_at(s, node, json_array_get(list, i), "oneOf", NULL, i),
                                false, array));
    return r;
}

static struct dnf dnf_list(struct schema *s, uint32_t node, const char *keyword, bool negated,
                           bool array, bool all_of) {
    const json_t *list = get(s, node, keyword);
    struct dnf r = all_of ? dnf_true(s) : dnf_false();
    for (size_t i = 0; i < json_array_size(list) && !stopped(s); i++) {
        uint32_t sub = child_at(s, node, json_array_get(list, i), keyword, NULL, i);
        struct dnf d = dnf_of(s, sub, negated, array);
        r = all_of ? dnf_and(s, r, d) : dnf_or(s, r, d);
    }
    return r;
}

// dependencies, dependentRequired, dependentSchemas: key -> other keys or a schema.
static struct dnf dnf_dependency(struct schema *s, uint32_t node, const char *keyword,
                                 const char *name, size_t name_n, const json_t *v, bool negated) {
    uint32_t key = key_of(s, (struct str){name, name_n});
    struct dnf has = dnf_atom(s, (struct atom){.kind = ATOM_HAS, .key = key});
    struct dnf lacks = dnf_atom(s, (struct atom){.kind = ATOM_LACKS, .key = key});
    struct dnf then = negated ? dnf_false() : dnf_true(s);
    if (is_schema(v)) {
        then = dnf_of(s, child_at(s, node, v, keyword, name, SIZE_MAX), negated, false);
    } else {
        const json_t *single[] = {v};
        size_t n = json_is_array(v) ? json_array_size(v) : 1;
        for (size_t i = 0; i < n; i++) {
            const json_t *other = json_is_array(v) ? json_array_get(v, i) : single[0];
            if (!json_is_string(other)) {
                bad(s, node, "\"%s\" must name keys", keyword);
                break;
            }
            struct atom a = {.kind = negated ? ATOM_LACKS : ATOM_HAS,
                             .key = key_of(s, json_str(other))};
            then = negated ? dnf_or(s, then, dnf_atom(s, a)) : dnf_and(s, then, dnf_atom(s, a));
        }
    }
    return negated ? dnf_and(s, has, then) : dnf_or(s, lacks, dnf_and(s, has, then));
}

static struct dnf dnf_bound(struct schema *s, bool at_least, uint32_t n, bool negated) {
    if (!negated)
        return dnf_atom(s, (struct atom){.kind = at_least ? ATOM_MIN : ATOM_MAX, .n = n});
    if (at_least)
        return n == 0 ? dnf_false()
                      : dnf_atom(s, (struct atom){.kind = ATOM_MAX, .n = n - 1});
    return dnf_atom(s, (struct atom){.kind = ATOM_MIN, .n = n + 1});
}

// unevaluatedProperties or unevaluatedItems beside nothing that evaluates elsewhere is the same as
// additionalProperties or items; beside anything else it is not enforced.
static void note_unevaluated(struct schema *s, uint32_t node, const char *keyword) {
    const json_t *v = get(s, node, keyword);
    if (v && !json_is_true(v))
        ignore(s, node, keyword);
}

static struct dnf dnf_object_keywords(struct schema *s, uint32_t node, bool negated,
                                      struct dnf r) {
#define COLLECT(v) r = negated ? dnf_or(s, r, (v)) : dnf_and(s, r, (v))
    uint32_t n;
    if (get(s, node, "properties") || get(s, node, "patternProperties") ||
        get(s, node, "additionalProperties"))
        COLLECT(negated ? properties_broken(s, node)
                        : dnf_atom(s, (struct atom){.kind = ATOM_PROPERTIES, .node = node}));
    const json_t *required = get(s, node, "required");
    for (size_t i = 0; i < json_array_size(required) && !stopped(s); i++)
        COLLECT(dnf_atom(s, (struct atom){.kind = negated ? ATOM_LACKS : ATOM_HAS,
                                          .key = key_of(s, json_str(json_array_get(required, i)))}));
    if (count_of(s, node, "minProperties", &n))
        COLLECT(dnf_bound(s, true, n, negated));
    if (count_of(s, node, "maxProperties", &n))
        COLLECT(dnf_bound(s, false, n, negated));
    const json_t *names = get(s, node, "propertyNames");
    if (names) {
        uint32_t sub = child(s, node, names, "propertyNames");
        if (negated) {
            expr_id not_so = scalars_of(s, sub, true).string;
            // The value of such a key is free: the literal of a schema that is always true.
            if (not_so != EXPR_NONE && expr_alive(s->x, not_so))
                COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_SOME, .lang = not_so,
                                                  .lit = UINT32_MAX}));
        } else {
            COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_NAMES, .lit = lit(sub, false)}));
        }
    }
    static const char *const DEPENDENT[] = {"dependencies", "dependentRequired",
                                            "dependentSchemas"};
    for (int k = 0; k < 3; k++) {
        const char *name;
        size_t name_n;
        json_t *v;
        json_object_keylen_foreach((json_t *)get(s, node, DEPENDENT[k]), name, name_n, v) {
            if (!stopped(s))
                COLLECT(dnf_dependency(s, node, DEPENDENT[k], name, name_n, v, negated));
        }
    }
    note_unevaluated(s, node, "unevaluatedProperties");
    return r;
}

static struct dnf dnf_array_keywords(struct schema *s, uint32_t node, bool negated, struct dnf r) {
    uint32_t n;
    if (get(s, node, "items") || get(s, node, "prefixItems"))
        COLLECT(negated ? items_broken(s, node)
                        : dnf_atom(s, (struct atom){.kind = ATOM_ITEMS, .node = node}));
    if (count_of(s, node, "minItems", &n))
        COLLECT(dnf_bound(s, true, n, negated));
    if (count_of(s, node, "maxItems", &n))
        COLLECT(dnf_bound(s, false, n, negated));
    const json_t *contains = get(s, node, "contains");
    if (contains && s->draft >= DRAFT_6) {
        uint32_t sub = child(s, node, contains, "contains"), min = 1, max = UINT32_MAX;
        if (s->draft >= DRAFT_2019) {
            count_of(s, node, "minContains", &min);
            count_of(s, node, "maxContains", &max);
        }
        if (!negated) {
            COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_CONTAINS, .n = min, .m = max,
                                              .lit = lit(sub, false)}));
        } else {
            if (min > 0)
                COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_CONTAINS, .n = 0, .m = min - 1,
                                                  .lit = lit(sub, false)}));
            if (max != UINT32_MAX)
                COLLECT(dnf_atom(s, (struct atom){.kind = ATOM_CONTAINS, .n = max + 1,
                                                  .m = UINT32_MAX, .lit = lit(sub, false)}));
        }
    }
    if (json_is_true(get(s, node, "uniqueItems"))) {
        // Arrays of at most one item are unique in any case.
        if (!(count_of(s, node, "maxItems", &n) && n <= 1))
            ignore(s, node, "uniqueItems");
    }
    note_unevaluated(s, node, "unevaluatedItems");
    return r;
}

static struct dnf dnf_not(struct schema *s, uint32_t node, const json_t *sub, bool negated,
                          bool array) {
    bool outer = s->overflow;
    s->overflow = false;
    s->n_optional++;
    struct dnf r = dnf_of(s, child(s, node, sub, "not"), !negated, array);
    s->n_optional--;
    if (s->overflow) {
        ignore(s, node, "not");
        r = dnf_true(s);
    }
    s->overflow = outer;
    return r;
}

static struct dnf dnf_compute(struct schema *s, uint32_t node, bool negated, bool array) {
    const json_t *json = s->nodes[node].json;
    if (json_is_boolean(json))
        return json_is_true(json) != negated ? dnf_true(s) : dnf_false();
    struct dnf r = negated ? dnf_false() : dnf_true(s);
    if (!ref_only(s, node)) {
        if (!(types_of(s, node) & (array ? TYPE_ARRAY : TYPE_OBJECT)))
            return negated ? dnf_true(s) : dnf_false();
        size_t n_values;
        const json_t *const *values = values_of(s, node, &n_values);
        if (values) {
            struct dnf any = negated ? dnf_true(s) : dnf_false();
            for (size_t i = 0; i < n_values && !stopped(s); i++) {
                struct dnf d = dnf_value(s, node, values[i], i, negated, array);
                any = negated ? dnf_and(s, any, d) : dnf_or(s, any, d);
            }
            COLLECT(any);
        }
        r = array ? dnf_array_keywords(s, node, negated, r)
                  : dnf_object_keywords(s, node, negated, r);
    }
    uint32_t refs[3], n_refs = refs_of(s, node, refs);
    for (uint32_t i = 0; i < n_refs && !stopped(s); i++)
        COLLECT(dnf_of(s, refs[i], negated, array));
    if (ref_only(s, node) || stopped(s))
        return r;
    if (get(s, node, "allOf"))
        COLLECT(dnf_list(s, node, "allOf", negated, array, !negated));
    if (get(s, node, "anyOf"))
        COLLECT(dnf_list(s, node, "anyOf", negated, array, negated));
    if (get(s, node, "oneOf"))
        COLLECT(dnf_one_of(s, node, negated, array));
    const json_t *sub = get(s, node, "not");
    if (sub)
        COLLECT(dnf_not(s, node, sub, negated, array));
    const json_t *condition = get(s, node, "if");
    if (condition && (get(s, node, "then") || get(s, node, "else"))) {
        uint32_t c = child(s, node, condition, "if");
        struct dnf branches[2];
        for (int k = 0; k < 2; k++) {
            const char *keyword = k ? "else" : "then";
            const json_t *branch = get(s, node, keyword);
            struct dnf holds = branch ? dnf_of(s, child(s, node, branch, keyword), negated, array)
                               : negated ? dnf_false()
                                         : dnf_true(s);
            branches[k] = dnf_and(s, dnf_of(s, c, k == 1, array), holds);
        }
        COLLECT(dnf_or(s, branches[0], branches[1]));
    }
    return r;
#undef COLLECT
}

static struct dnf dnf_of(struct schema *s, uint32_t node, bool negated, bool array) {
    if (s->nodes[node].dnf_done[negated][array] == DONE)
        return s->nodes[node].dnf[negated][array];
    if (s->nodes[node].dnf_done[negated][array] == UNDER_WAY || s->depth > SCHEMA_DEPTH_MAX) {
        // It refers to itself without a member or item between (and so says nothing), or somebody
        // asks whether it is possible while it is made (and then it may well be).
        uint32_t depth = s->nodes[node].dnf_depth[negated][array];
        s->assumed_depth = depth < s->assumed_depth ? depth : s->assumed_depth;
        return dnf_true(s);
    }
    uint32_t outer = s->assumed_depth, depth = ++s->depth;
    s->assumed_depth = UINT32_MAX;
    s->nodes[node].dnf_done[negated][array] = UNDER_WAY;
    s->nodes[node].dnf_depth[negated][array] = depth;
    struct dnf d = dnf_compute(s, node, negated, array);
    s->depth--;
    // What relied on a node that is not finished is computed again when it is.
    bool final = s->assumed_depth >= depth && !s->overflow;
    s->nodes[node].dnf[negated][array] = d;
    s->nodes[node].dnf_done[negated][array] = final ? DONE : NEVER;
    if (final || outer < s->assumed_depth)
        s->assumed_depth = outer;
    return d;
}

// ---- goals -------------------------------------------------------------------------------------

static uint64_t goal_hash_of(const literal *lits, uint32_t n) {
    return hash_bytes((struct bytes){(const uint8_t *)lits, n * sizeof *lits}, n);
}
static uint64_t goal_hash(const struct schema *s, uint32_t i) {
    return goal_hash_of(s->goals[i].lits, s->goals[i].n);
}

static int by_literal(const void *a, const void *b) {
    literal i = *(const literal *)a, j = *(const literal *)b;
    return (i > j) - (i < j);
}

// The goal of all the literals. Their order does not matter.
static uint32_t goal_of(struct schema *s, const literal *lits, uint32_t n) {
    literal *kept = arena_array(&s->arena, literal, n + 1);
    if (!kept) {
        no_memory(s);
        return 0;
    }
    uint32_t n_kept = 0;
    bool never = false;
    for (uint32_t i = 0; i < n; i++) {
        bool false_one = false;
        if (lits[i] == UINT32_MAX || literal_trivial(s, lits[i], &false_one))
            continue;
        never |= false_one;
        kept[n_kept++] = lits[i];
    }
    qsort(kept, n_kept, sizeof *kept, by_literal);
    uint32_t m = 0;
    for (uint32_t i = 0; i < n_kept; i++) {
        if (m && kept[m - 1] == kept[i])
            continue;
        never |= m && kept[m - 1] == (kept[i] ^ 1); // a literal and its opposite are neighbours
        kept[m++] = kept[i];
    }
    if (!table_room(s, &s->goal_table, &s->goal_slots, s->n_goals, goal_hash))
        return 0;
    uint64_t h = goal_hash_of(kept, m);
    for (; s->goal_table[h & (s->goal_slots - 1)]; h++) {
        uint32_t i = s->goal_table[h & (s->goal_slots - 1)] - 1;
        if (s->goals[i].n == m && (m == 0 || !memcmp(s->goals[i].lits, kept, m * sizeof *kept)))
            return i;
    }
    if (s->n_goals >= SCHEMA_GOALS_MAX)
        exprs_fail(s->x, "sub-schemas");
    if (stopped(s) || !room(s, &s->goals, s->n_goals, &s->goals_capacity, sizeof *s->goals))
        return 0;
    s->goals[s->n_goals] = (struct goal){.lits = kept, .n = m, .never = never};
    s->goal_table[h & (s->goal_slots - 1)] = s->n_goals + 1;
    return s->n_goals++;
}

static bool goal_alive(struct schema *s, uint32_t goal);

static struct scalars goal_scalars(struct schema *s, uint32_t goal) {
    if (s->goals[goal].never)
        return (struct scalars){0};
    struct scalars r = scalars_all(s);
    for (uint32_t i = 0; i < s->goals[goal].n && !stopped(s); i++) {
        literal l = s->goals[goal].lits[i];
        r = scalars_and(s, r, scalars_of(s, l / 2, l & 1));
    }
    return r;
}

static struct dnf goal_dnf(struct schema *s, uint32_t goal, bool array) {
    if (s->goals[goal].never)
        return dnf_false();
    struct dnf r = dnf_true(s);
    for (uint32_t i = 0; i < s->goals[goal].n && r.n && !stopped(s); i++) {
        literal l = s->goals[goal].lits[i];
        r = dnf_and(s, r, dnf_of(s, l / 2, l & 1, array));
    }
    return r;
}

// ---- shapes ------------------------------------------------------------------------------------

struct literals {
    literal *lits;
    uint32_t n, capacity;
};

static void add_literal(struct schema *s, struct literals *list, literal l) {
    if (list->n == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 4;
        literal *lits = arena_array(&s->arena, literal, capacity);
        if (!lits) {
            no_memory(s);
            return;
        }
        if (list->n)
            memcpy(lits, list->lits, list->n * sizeof *lits);
        list->lits = lits;
        list->capacity = capacity;
    }
    list->lits[list->n++] = l;
}

struct keys_list {
    uint32_t *keys; // malloc'ed
    uint32_t n, capacity;
    uint32_t stamp;
    uint32_t *nodes; // every schema that was asked, malloc'ed
    uint32_t n_nodes, nodes_capacity;
};

static bool slots_room(struct schema *s) {
    if (s->slots_n >= s->n_keys)
        return true;
    uint32_t n = s->n_keys * 2;
    uint32_t *slots = realloc(s->slots, n * sizeof *slots);
    if (slots)
        s->slots = slots;
    uint32_t *stamps = realloc(s->stamps, n * sizeof *stamps);
    if (stamps)
        s->stamps = stamps;
    if (!slots || !stamps) {
        no_memory(s);
        return false;
    }
    memset(s->stamps + s->slots_n, 0, (n - s->slots_n) * sizeof *s->stamps);
    s->slots_n = n;
    return true;
}

// Append the names of properties in the order of the schema: first come, first listed.
static void list_keys(struct schema *s, uint32_t node, uint32_t mark, struct keys_list *out,
                      uint32_t depth) {
    if (depth > SCHEMA_DEPTH_MAX || s->nodes[node].listed == mark || stopped(s) ||
        !json_is_object(s->nodes[node].json))
        return;
    s->nodes[node].listed = mark;
    if (room(s, &out->nodes, out->n_nodes, &out->nodes_capacity, sizeof *out->nodes))
        out->nodes[out->n_nodes++] = node;
    if (!ref_only(s, node)) {
        read_blocks(s, node);
        for (uint32_t i = 0; i < s->nodes[node].n_properties; i++) {
            uint32_t key = s->nodes[node].properties[i].key;
            if (!slots_room(s) || s->stamps[key] == out->stamp)
                continue;
            s->stamps[key] = out->stamp;
            if (room(s, &out->keys, out->n, &out->capacity, sizeof *out->keys))
                out->keys[out->n++] = key;
        }
    }
    uint32_t refs[3], n_refs = refs_of(s, node, refs);
    for (uint32_t i = 0; i < n_refs; i++)
        list_keys(s, refs[i], mark, out, depth + 1);
    if (ref_only(s, node))
        return;
    static const char *const LISTS[] = {"allOf", "anyOf", "oneOf"};
    static const char *const ONES[] = {"if", "then", "else", "not"};
    static const char *const MAPS[] = {"dependentSchemas", "dependencies"};
    for (int k = 0; k < 3; k++) {
        const json_t *list = get(s, node, LISTS[k]);
        for (size_t i = 0; i < json_array_size(list) && !stopped(s); i++)
            list_keys(s, child_at(s, node, json_array_get(list, i), LISTS[k], NULL, i), mark, out,
                      depth + 1);
    }
    for (int k = 0; k < 4; k++) {
        const json_t *sub = get(s, node, ONES[k]);
        if (sub)
            list_keys(s, child(s, node, sub, ONES[k]), mark, out, depth + 1);
    }
    for (int k = 0; k < 2; k++) {
        const char *name;
        json_t *sub;
        json_object_foreach((json_t *)get(s, node, MAPS[k]), name, sub) {
            if (is_schema(sub))
                list_keys(s, child_at(s, node, sub, MAPS[k], name, SIZE_MAX), mark, out,
                          depth + 1);
        }
    }
}

static int by_rank(const void *a, const void *b) {
    const struct named *i = a, *j = b;
    if (i->rank != j->rank)
        return i->rank < j->rank ? -1 : 1;
    return (i->key > j->key) - (i->key < j->key);
}

// Split a class by a language of keys: those in it get one more literal.
static void split_classes(struct schema *s, struct key_class **classes, uint32_t *n,
                          uint32_t *capacity, bool *matched, expr_id lang, literal l) {
    uint32_t n_before = *n;
    for (uint32_t i = 0; i < n_before && !stopped(s); i++) {
        struct key_class c = (*classes)[i];
        expr_id in = both(s, s->all_strings, c.lang, lang);
        if (in == EXPR_NONE || !expr_alive(s->x, in))
            continue;
        expr_id out = both(s, s->all_strings, c.lang, without(s, s->all_strings, lang));
        if (out != EXPR_NONE && expr_alive(s->x, out)) {
            if (*n >= SCHEMA_CLASSES_MAX) {
                exprs_fail(s->x, "kinds of keys");
                return;
            }
            if (!room(s, classes, *n, capacity, sizeof **classes))
                return;
            matched[*n] = matched[i];
            (*classes)[*n] = (struct key_class){.lang = out, .lits = c.lits, .n_lits = c.n_lits};
            ++*n;
        }
        literal *lits = arena_array(&s->arena, literal, c.n_lits + 1);
        if (!lits) {
            no_memory(s);
            return;
        }
        if (c.n_lits)
            memcpy(lits, c.lits, c.n_lits * sizeof *lits);
        lits[c.n_lits] = l;
        (*classes)[i].lang = in;
        (*classes)[i].lits = lits;
        (*classes)[i].n_lits = c.n_lits + 1;
        matched[i] = true;
    }
}

// Keys without a name, by what their values must satisfy.
static void build_classes(struct schema *s, struct conj c, struct shape *shape) {
    expr_id *known = arena_array(&s->arena, expr_id, shape->n_named);
    struct str *plain = arena_array(&s->arena, struct str, shape->n_named);
    if (!known || !plain) {
        no_memory(s);
        return;
    }
    for (uint32_t i = 0; i < c.n; i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind == ATOM_PROPERTIES && s->nodes[a.node].n_patterns == 0 &&
            s->nodes[a.node].additional != NO_NODE &&
            json_is_false(s->nodes[s->nodes[a.node].additional].json))
            return; // no other keys at all
    }
    uint32_t n_known = 0, n_plain = 0;
    for (uint32_t i = 0; i < shape->n_named; i++) {
        struct str text = s->keys[shape->named[i].key];
        bool simple = true;
        for (size_t k = 0; k < text.n; k++) {
            unsigned char b = (unsigned char)text.data[k];
            simple &= b >= 0x20 && b < 0x80 && b != '"' && b != '\\' && b != '/';
        }
        if (simple)
            plain[n_plain++] = text;
        else
            known[n_known++] = key_spelled(s, shape->named[i].key);
    }
    expr_id names = expr_or2(s->x, expr_lits(s->x, plain, n_plain),
                             expr_or(s->x, known, n_known));
    struct key_class *classes = NULL;
    uint32_t n = 0, capacity = 0;
    bool matched[SCHEMA_CLASSES_MAX + 1];
    if (!room(s, &classes, n, &capacity, sizeof *classes))
        return;
    classes[n++] = (struct key_class){.lang = without(s, s->all_strings, names)};
    for (uint32_t i = 0; i < c.n && !stopped(s); i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind == ATOM_NAMES)
            classes[0].lang = both(s, s->all_strings, classes[0].lang,
                                   scalars_of(s, a.lit / 2, a.lit & 1).string);
    }
    if (classes[0].lang == EXPR_NONE || !expr_alive(s->x, classes[0].lang))
        n = 0;
    for (uint32_t i = 0; i < c.n && n && !stopped(s); i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind != ATOM_PROPERTIES)
            continue;
        struct node node = s->nodes[a.node];
        memset(matched, 0, sizeof matched);
        for (uint32_t k = 0; k < node.n_patterns && !stopped(s); k++)
            split_classes(s, &classes, &n, &capacity, matched, node.patterns[k].lang,
                          lit(node.patterns[k].node, false));
        for (uint32_t k = 0; k < n && node.additional != NO_NODE; k++) {
            if (matched[k])
                continue;
            literal *lits = arena_array(&s->arena, literal, classes[k].n_lits + 1);
            if (!lits) {
                no_memory(s);
                break;
            }
            if (classes[k].n_lits)
                memcpy(lits, classes[k].lits, classes[k].n_lits * sizeof *lits);
            lits[classes[k].n_lits] = lit(node.additional, false);
            classes[k].lits = lits;
            classes[k].n_lits++;
        }
    }
    shape->classes = arena_array(&s->arena, struct key_class, n + 1);
    if (!shape->classes) {
        no_memory(s);
    } else {
        for (uint32_t k = 0; k < n && !stopped(s); k++) {
            classes[k].goal = goal_of(s, classes[k].lits, classes[k].n_lits);
            if (!s->goals[classes[k].goal].never)
                shape->classes[shape->n_classes++] = classes[k];
        }
    }
    free(classes);
}

static void shape_bounds(struct schema *s, struct conj c, struct shape *shape) {
    shape->max = UINT32_MAX;
    for (uint32_t i = 0; i < c.n; i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind == ATOM_MIN && a.n > shape->min)
            shape->min = a.n;
        if (a.kind == ATOM_MAX && a.n < shape->max)
            shape->max = a.n;
    }
}

// `order`: keys in the order in which they are read, or NULL when it does not matter.
static bool build_object(struct schema *s, struct conj c, const struct keys_list *order,
                         struct shape *shape) {
    shape_bounds(s, c, shape);
    uint32_t n_max = 0;
    for (uint32_t i = 0; i < c.n; i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind == ATOM_PROPERTIES)
            read_blocks(s, a.node);
        n_max += a.kind == ATOM_PROPERTIES ? s->nodes[a.node].n_properties : 1;
    }
    if (stopped(s) || !slots_room(s) || !work(s, n_max + 1))
        return false;
    struct named *named = arena_array(&s->arena, struct named, n_max);
    struct literals *lits = arena_array(&s->arena, struct literals, n_max);
    uint32_t *seen = arena_array(&s->arena, uint32_t, n_max);
    bool *lacks = arena_array(&s->arena, bool, n_max);
    if (!named || !lits || !seen || !lacks) {
        no_memory(s);
        return false;
    }
    uint32_t n = 0, stamp = ++s->stamp;
#define SLOT(k)                                                                                    \
    ({                                                                                             \
        uint32_t key_ = (k);                                                                       \
        if (s->stamps[key_] != stamp) {                                                            \
            s->stamps[key_] = stamp;                                                               \
            s->slots[key_] = n;                                                                    \
            named[n++] = (struct named){.key = key_, .rank = UINT32_MAX};                          \
        }                                                                                          \
        s->slots[key_];                                                                            \
    })
    for (uint32_t i = 0; i < c.n; i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind == ATOM_PROPERTIES)
            for (uint32_t k = 0; k < s->nodes[a.node].n_properties; k++)
                SLOT(s->nodes[a.node].properties[k].key);
        if (a.kind == ATOM_HAS || a.kind == ATOM_VALUE)
            named[SLOT(a.key)].required = true;
        if (a.kind == ATOM_LACKS)
            lacks[SLOT(a.key)] = true;
        if (a.kind == ATOM_VALUE)
            add_literal(s, &lits[s->slots[a.key]], a.lit);
    }
    for (uint32_t i = 0; i < c.n && !stopped(s); i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind == ATOM_NAMES) {
            expr_id lang = scalars_of(s, a.lit / 2, a.lit & 1).string;
            for (uint32_t k = 0; k < n; k++)
                lacks[k] |= !key_in(s, named[k].key, lang);
        }
        if (a.kind == ATOM_SOME) {
            if (shape->n_some == SCHEMA_PENDING_MAX) {
                exprs_fail(s->x, "members that must break a rule");
                return false;
            }
            struct some *some = arena_array(&s->arena, struct some, shape->n_some + 1);
            if (!some) {
                no_memory(s);
                return false;
            }
            if (shape->n_some)
                memcpy(some, shape->some, shape->n_some * sizeof *some);
            some[shape->n_some++] = (struct some){a.lang, a.lit};
            shape->some = some;
        }
        if (a.kind != ATOM_PROPERTIES)
            continue;
        struct node node = s->nodes[a.node];
        for (uint32_t k = 0; k < node.n_properties; k++) {
            uint32_t slot = s->slots[node.properties[k].key];
            seen[slot] = i + 1;
            add_literal(s, &lits[slot], lit(node.properties[k].node, false));
        }
        for (uint32_t k = 0; k < n; k++) {
            for (uint32_t r = 0; r < node.n_patterns; r++)
                if (key_in(s, named[k].key, node.patterns[r].lang)) {
                    seen[k] = i + 1;
                    add_literal(s, &lits[k], lit(node.patterns[r].node, false));
                }
            if (seen[k] != i + 1 && node.additional != NO_NODE)
                add_literal(s, &lits[k], lit(node.additional, false));
        }
    }
    for (uint32_t k = 0; k < n && !stopped(s); k++) {
        named[k].lits = lits[k].lits;
        named[k].n_lits = lits[k].n;
        named[k].goal = goal_of(s, lits[k].lits, lits[k].n);
        named[k].usable = !lacks[k] && !s->goals[named[k].goal].never;
        if (named[k].required && !named[k].usable)
            return false;
    }
    if (order) {
        for (uint32_t i = 0; i < order->n; i++)
            if (s->stamps[order->keys[i]] == stamp)
                named[s->slots[order->keys[i]]].rank = i;
    }
#undef SLOT
    qsort(named, n, sizeof *named, by_rank);
    uint32_t n_required = 0, n_ordered = 0;
    for (uint32_t k = 0; k < n; k++) {
        n_required += named[k].required;
        // Beyond what a state can remember, keys without an order get the one they have here.
        if (!order || named[k].rank != UINT32_MAX || n - k > SCHEMA_FLOATING_MAX)
            n_ordered = k + 1;
    }
    shape->named = named;
    shape->n_named = n;
    shape->n_ordered = n_ordered;
    if (n_required > shape->max)
        return false;
    if (shape->max > n_required || shape->n_some)
        build_classes(s, c, shape);
    shape->constrained =
        shape->min > n_required || shape->max != UINT32_MAX || shape->n_some > 0;
    for (uint32_t k = 0; k < n && !stopped(s); k++)
        if (named[k].required && !goal_alive(s, named[k].goal))
            return false;
    return !stopped(s);
}

static bool build_array(struct schema *s, struct conj c, struct shape *shape) {
    shape->array = true;
    shape_bounds(s, c, shape);
    uint32_t n = 0, n_contains = 0;
    for (uint32_t i = 0; i < c.n; i++) {
        struct atom a = s->atoms[c.atoms[i]];
        uint32_t reach = 0;
        if (a.kind == ATOM_ITEMS) {
            read_blocks(s, a.node);
            reach = s->nodes[a.node].n_prefix;
        } else if (a.kind == ATOM_AT) {
            reach = a.n + 1;
            if (shape->min < reach)
                shape->min = reach;
        }
        n = reach > n ? reach : n;
        n_contains += a.kind == ATOM_CONTAINS;
    }
    if (n > 10000 || !work(s, n + 1)) {
        exprs_fail(s->x, "positions of an array");
        return false;
    }
    if (shape->min > shape->max)
        return false;
    shape->n_items = n;
    shape->item_goals = arena_array(&s->arena, uint32_t, n + 1);
    shape->item_lits = arena_array(&s->arena, const literal *, n + 1);
    shape->n_item_lits = arena_array(&s->arena, uint32_t, n + 1);
    shape->contains = arena_array(&s->arena, struct contains, n_contains + 1);
    if (!shape->item_goals || !shape->item_lits || !shape->n_item_lits || !shape->contains) {
        no_memory(s);
        return false;
    }
    for (uint32_t k = 0; k <= n && !stopped(s); k++) {
        struct literals lits = {0};
        for (uint32_t i = 0; i < c.n; i++) {
            struct atom a = s->atoms[c.atoms[i]];
            if (a.kind == ATOM_AT && a.n == k && k < n)
                add_literal(s, &lits, a.lit);
            if (a.kind != ATOM_ITEMS)
                continue;
            const struct node *node = &s->nodes[a.node];
            if (k < node->n_prefix)
                add_literal(s, &lits, lit(node->prefix[k], false));
            else if (node->items != NO_NODE)
                add_literal(s, &lits, lit(node->items, false));
        }
        shape->item_lits[k] = lits.lits;
        shape->n_item_lits[k] = lits.n;
        shape->item_goals[k] = goal_of(s, lits.lits, lits.n);
    }
    for (uint32_t i = 0; i < c.n && !stopped(s); i++) {
        struct atom a = s->atoms[c.atoms[i]];
        if (a.kind != ATOM_CONTAINS || (a.n == 0 && a.m == UINT32_MAX))
            continue;
        if (a.n > a.m)
            return false;
        if (shape->n_contains == 4) {
            ignore(s, a.lit / 2, "contains");
            break;
        }
        shape->contains[shape->n_contains++] = (struct contains){a.lit, a.key, a.n, a.m};
    }
    // The first item that cannot be bounds the length.
    for (uint32_t k = 0; k <= n && k < shape->max && !stopped(s); k++) {
        if (k >= shape->min && s->goals[shape->item_goals[k]].known_alive == UNDER_WAY)
            continue; // inside itself: not needed to be possible
        if (!goal_alive(s, shape->item_goals[k])) {
            if (s->alive_cut && k >= shape->min)
                continue;
            shape->max = k;
        }
    }
    shape->constrained = shape->n_contains > 0;
    return shape->min <= shape->max && !stopped(s);
}

// ---- states of shapes --------------------------------------------------------------------------

static uint64_t state_hash_of(const struct state *t) {
    return hash_bytes((struct bytes){(const uint8_t *)t, offsetof(struct state, live)}, 3);
}
static uint64_t state_hash(const struct schema *s, uint32_t i) {
    return state_hash_of(&s->states[i]);
}

static uint32_t state_of(struct schema *s, struct state t) {
    if (!table_room(s, &s->state_table, &s->state_slots, s->n_states, state_hash))
        return 0;
    uint64_t h = state_hash_of(&t);
    for (; s->state_table[h & (s->state_slots - 1)]; h++) {
        uint32_t i = s->state_table[h & (s->state_slots - 1)] - 1;
        if (!memcmp(&s->states[i], &t, offsetof(struct state, live)))
            return i;
    }
    if (!room(s, &s->states, s->n_states, &s->states_capacity, sizeof *s->states))
        return 0;
    t.live = NEVER;
    t.has_rule = t.has_key_rule = false;
    s->states[s->n_states] = t;
    s->state_table[h & (s->state_slots - 1)] = s->n_states + 1;
    return s->n_states++;
}

struct move {
    expr_id key; // content of the key (objects)
    uint32_t goal, next;
};
struct moves {
    struct move *moves;
    uint32_t n, capacity;
};

static void add_move(struct schema *s, struct moves *out, struct move move) {
    if (room(s, &out->moves, out->n, &out->capacity, sizeof *out->moves))
        out->moves[out->n++] = move;
}

static bool state_live(struct schema *s, uint32_t state);

static bool state_can_end(const struct schema *s, const struct state *t) {
    const struct shape *shape = &s->shapes[t->shape];
    if (shape->array) {
        if (t->pos < shape->min)
            return false;
        for (uint32_t i = 0; i < shape->n_contains; i++)
            if (t->counts[i] < shape->contains[i].min)
                return false;
        return true;
    }
    if (t->pending || t->count < shape->min)
        return false;
    for (uint32_t k = t->pos; k < shape->n_ordered; k++)
        if (shape->named[k].required)
            return false;
    for (uint32_t k = shape->n_ordered; k < shape->n_named; k++)
        if (shape->named[k].required && !(t->floating >> (k - shape->n_ordered) & 1))
            return false;
    return true;
}

// The moves with one key or class, with every set of pending conditions that it can meet.
static void key_moves(struct schema *s, uint32_t shape_idx, const struct named *named,
                      const struct key_class *class, struct state next, struct moves *out) {
    uint32_t pending = next.pending;
    bool all_sets = __builtin_popcount(pending) <= 4;
    for (uint32_t set = pending;; set = (set - 1) & pending) {
        if (all_sets || __builtin_popcount(set) <= 1) {
            struct literals lits = {0};
            expr_id lang = named ? named->spelled : class->lang;
            bool fits = true;
            for (uint32_t i = 0; set >> i && fits; i++) {
                if (!(set >> i & 1))
                    continue;
                struct some some = s->shapes[shape_idx].some[i];
                if (named)
                    fits = key_in(s, named->key, some.lang);
                else
                    lang = both(s, s->all_strings, lang, some.lang);
                add_literal(s, &lits, some.lit);
            }
            uint32_t goal = named ? named->goal : class->goal;
            if (set && fits) {
                const literal *more = named ? named->lits : class->lits;
                uint32_t n_more = named ? named->n_lits : class->n_lits;
                for (uint32_t i = 0; i < n_more; i++)
                    add_literal(s, &lits, more[i]);
                fits = lang != EXPR_NONE && expr_alive(s->x, lang);
                goal = goal_of(s, lits.lits, lits.n);
            }
            if (fits && !stopped(s) && goal_alive(s, goal)) {
                next.pending = pending & ~set;
                uint32_t target = state_of(s, next);
                if (!s->shapes[shape_idx].constrained || state_live(s, target))
                    add_move(s, out, (struct move){lang, goal, target});
            }
        }
        if (set == 0 || stopped(s))
            break;
    }
}

static void object_moves(struct schema *s, uint32_t state, struct moves *out) {
    struct state t = s->states[state];
    struct shape shape = s->shapes[t.shape];
    if (t.count >= shape.max || !work(s, shape.n_named + 1))
        return;
    struct state next = t;
    next.has_rule = next.has_key_rule = false;
    uint32_t count_max = shape.max != UINT32_MAX ? shape.max : shape.min > 1 ? shape.min : 1;
    next.count = t.count < count_max ? t.count + 1 : count_max;
    bool past = true; // could everything with a place be behind us?
    for (uint32_t k = t.pos; k < shape.n_ordered && !stopped(s); k++) {
        struct named *named = &shape.named[k];
        if (named->usable) {
            named->spelled = key_spelled(s, named->key);
            next.pos = k + 1;
            key_moves(s, t.shape, named, NULL, next, out);
        }
        if (named->required) {
            past = false;
            break;
        }
    }
    next.pos = t.pos;
    for (uint32_t k = shape.n_ordered; k < shape.n_named && !stopped(s); k++) {
        uint32_t bit = 1u << (k - shape.n_ordered);
        struct named *named = &shape.named[k];
        if (!named->usable || t.floating & bit || !named->required)
            continue;
        named->spelled = key_spelled(s, named->key);
        next.floating = t.floating | bit;
        key_moves(s, t.shape, named, NULL, next, out);
    }
    next.floating = t.floating;
    next.pos = shape.n_ordered;
    for (uint32_t k = 0; k < shape.n_classes && past && !stopped(s); k++)
        key_moves(s, t.shape, NULL, &shape.classes[k], next, out);
}

// The moves by one more item, with every choice of which `contains` it counts for.
static void array_moves(struct schema *s, uint32_t state, struct moves *out) {
    struct state t = s->states[state];
    struct shape shape = s->shapes[t.shape];
    if (t.pos >= shape.max)
        return;
    uint32_t item = t.pos < shape.n_items ? t.pos : shape.n_items;
    uint32_t pos_max = shape.n_items > 1 ? shape.n_items : 1; // the first item has no comma
    if (shape.min > pos_max)
        pos_max = shape.min;
    if (shape.max != UINT32_MAX && shape.max > pos_max)
        pos_max = shape.max;
    for (uint32_t i = 0; i < shape.n_contains; i++)
        if (shape.contains[i].from > pos_max)
            pos_max = shape.contains[i].from;
    struct state next = t;
    next.has_rule = next.has_key_rule = false;
    next.pos = t.pos < pos_max ? t.pos + 1 : pos_max;
    for (uint32_t set = 0; set < 1u << shape.n_contains && !stopped(s); set++) {
        struct literals lits = {0};
        bool fits = true;
        for (uint32_t i = 0; i < shape.n_contains && fits; i++) {
            struct contains c = shape.contains[i];
            bool counts = set >> i & 1;
            next.counts[i] = t.counts[i];
            if (t.pos < c.from || (c.max == UINT32_MAX && t.counts[i] >= c.min)) {
                fits = !counts; // nothing to choose
            } else if (counts) {
                fits = c.max == UINT32_MAX || t.counts[i] < c.max;
                next.counts[i]++;
                add_literal(s, &lits, c.lit);
            } else if (c.max != UINT32_MAX) {
                add_literal(s, &lits, c.lit ^ 1);
            }
        }
        if (!fits)
            continue;
        uint32_t goal = shape.item_goals[item];
        if (lits.n) {
            for (uint32_t i = 0; i < shape.n_item_lits[item]; i++)
                add_literal(s, &lits, shape.item_lits[item][i]);
            goal = goal_of(s, lits.lits, lits.n);
        }
        if (stopped(s) || !goal_alive(s, goal))
            continue;
        uint32_t target = state_of(s, next);
        if (!shape.constrained || state_live(s, target))
            add_move(s, out, (struct move){EXPR_NONE, goal, target});
    }
}

static void state_moves(struct schema *s, uint32_t state, struct moves *out) {
    if (s->shapes[s->states[state].shape].array)
        array_moves(s, state, out);
    else
        object_moves(s, state, out);
}

// Can the value be finished from here? States only ever return to themselves.
static bool state_live(struct schema *s, uint32_t state) {
    if (s->states[state].live == DONE)
        return s->states[state].can_end;
    if (s->states[state].live == UNDER_WAY)
        return false;
    if (s->n_states > SCHEMA_LIVE_STATES_MAX || s->depth > SCHEMA_DEPTH_MAX * 8)
        exprs_fail(s->x, "states of an array or object");
    if (stopped(s))
        return false;
    s->states[state].live = UNDER_WAY;
    s->depth++;
    bool live = state_can_end(s, &s->states[state]);
    if (!live) {
        struct moves moves = {0};
        state_moves(s, state, &moves);
        live = moves.n > 0;
        free(moves.moves);
    }
    s->depth--;
    s->states[state].live = DONE;
    s->states[state].can_end = live;
    return live;
}

static uint32_t first_state(struct schema *s, uint32_t shape) {
    struct state t;
    memset(&t, 0, sizeof t);
    t.shape = shape;
    t.pending = (1u << s->shapes[shape].n_some) - 1;
    return state_of(s, t);
}

// Build the shape of a conjunction; false if nothing has it.
static bool build_shape(struct schema *s, struct conj c, bool array, const struct keys_list *order,
                        uint32_t *out) {
    struct shape shape = {0};
    if (array ? !build_array(s, c, &shape) : !build_object(s, c, order, &shape))
        return false;
    if (!room(s, &s->shapes, s->n_shapes, &s->shapes_capacity, sizeof *s->shapes))
        return false;
    *out = s->n_shapes++;
    s->shapes[*out] = shape;
    return !shape.constrained || state_live(s, first_state(s, *out));
}

static bool conj_possible(struct schema *s, struct conj c, bool array) {
    bool trivial = true;
    for (uint32_t i = 0; i < c.n && trivial; i++) {
        struct atom a = s->atoms[c.atoms[i]];
        trivial = a.kind == ATOM_PROPERTIES || a.kind == ATOM_ITEMS || a.kind == ATOM_MAX ||
                  a.kind == ATOM_LACKS || a.kind == ATOM_NAMES ||
                  (a.kind == ATOM_MIN && a.n == 0);
    }
    uint32_t shape;
    return trivial || build_shape(s, c, array, NULL, &shape);
}

// Does any value reach the goal? While it is under way the answer is no (a value must be finite), and
// what that decided is not remembered.
static bool goal_alive(struct schema *s, uint32_t goal) {
    if (s->goals[goal].never || stopped(s))
        return false;
    if (s->goals[goal].n == 0)
        return true;
    if (s->goals[goal].known_alive == DONE)
        return s->goals[goal].alive;
    if (s->goals[goal].known_alive == UNDER_WAY) {
        s->alive_cut = true;
        return false;
    }
    if (s->alive_depth > SCHEMA_DEPTH_MAX) {
        s->alive_cut = true;
        return true;
    }
    bool outer_cut = s->alive_cut;
    s->alive_cut = false;
    s->goals[goal].known_alive = UNDER_WAY;
    s->alive_depth++;
    uint32_t outer_assumed = s->assumed_depth;
    s->assumed_depth = UINT32_MAX;
    work(s, 1);
    struct scalars v = goal_scalars(s, goal);
    bool alive = v.null || v.yes || v.no ||
                 (v.string != EXPR_NONE && expr_alive(s->x, v.string)) ||
                 (v.number != EXPR_NONE && expr_alive(s->x, v.number));
    for (int array = 1; array >= 0 && !alive && !stopped(s); array--) {
        struct dnf d = goal_dnf(s, goal, array);
        for (uint32_t i = 0; i < d.n && !alive; i++)
            alive = conj_possible(s, d.conjs[i], array);
    }
    s->alive_depth--;
    bool relied = s->assumed_depth != UINT32_MAX;
    bool sure = !relied && (alive || !s->alive_cut || s->alive_depth == 0);
    s->goals[goal].known_alive = sure ? DONE : NEVER;
    s->goals[goal].alive = alive;
    s->alive_cut = outer_cut || (s->alive_cut && !alive);
    if (outer_assumed < s->assumed_depth)
        s->assumed_depth = outer_assumed;
    return alive;
}

// ---- expressions -------------------------------------------------------------------------------

static void expand_goal(struct schema *s, uint32_t goal) {
    if (s->goals[goal].expanded != NEVER || stopped(s))
        return;
    s->goals[goal].expanded = UNDER_WAY;
    struct scalars scalars = goal_scalars(s, goal);
    uint32_t *shapes = NULL, n = 0, capacity = 0;
    for (int array = 0; array < 2 && !stopped(s); array++) {
        struct dnf d = goal_dnf(s, goal, array);
        struct keys_list order = {0};
        if (!array) {
            order.stamp = ++s->stamp;
            uint32_t mark = s->stamp;
            for (uint32_t i = 0; i < s->goals[goal].n; i++)
                list_keys(s, s->goals[goal].lits[i] / 2, mark, &order, 0);
        }
        for (uint32_t i = 0; i < d.n && !stopped(s); i++) {
            uint32_t shape;
            if (!build_shape(s, d.conjs[i], array, &order, &shape))
                continue;
            if (room(s, &shapes, n, &capacity, sizeof *shapes))
                shapes[n++] = shape;
        }
        free(order.keys);
        free(order.nodes);
    }
    struct goal *g = &s->goals[goal];
    g->shapes = arena_array(&s->arena, uint32_t, n + 1);
    if (g->shapes && n)
        memcpy(g->shapes, shapes, n * sizeof *shapes);
    free(shapes);
    if (!g->shapes) {
        no_memory(s);
        return;
    }
    g->n_shapes = n;
    g->scalars = scalars;
    g->expanded = DONE;
}

static expr_id string_expr(struct schema *s, expr_id content) {
    struct exprs *x = s->x;
    if (content == s->all_strings)
        content = expr_rep(x, char_any_json_loose(x), 0, EXPR_INF);
    return expr_cat(x, content, s->quote);
}

static expr_id lazy_state(struct schema *s, uint32_t state);

static expr_id goal_body(void *user, uint32_t goal) {
    struct schema *s = user;
    struct exprs *x = s->x;
    expand_goal(s, goal);
    if (stopped(s))
        return EXPR_NONE;
    struct scalars v = s->goals[goal].scalars;
    uint32_t n_shapes = s->goals[goal].n_shapes, n = 0;
    expr_id *parts = malloc((n_shapes + 3) * sizeof *parts);
    if (!parts) {
        no_memory(s);
        return EXPR_NONE;
    }
    struct str words[3];
    size_t n_words = 0;
    if (v.null)
        words[n_words++] = STR("null");
    if (v.yes)
        words[n_words++] = STR("true");
    if (v.no)
        words[n_words++] = STR("false");
    if (n_words)
        parts[n++] = expr_term(x, expr_lits(x, words, n_words));
    if (v.string != EXPR_NONE && expr_alive(x, v.string))
        parts[n++] = expr_term(x, expr_cat(x, s->quote, string_expr(s, v.string)));
    if (v.number != EXPR_NONE && expr_alive(x, v.number))
        parts[n++] = expr_term(x, v.number == s->all_numbers ? number_any(x) : v.number);
    for (uint32_t i = 0; i < n_shapes && !stopped(s); i++) {
        uint32_t shape = s->goals[goal].shapes[i];
        expr_id open = expr_term(x, expr_byte(x, s->shapes[shape].array ? '[' : '{'));
        expr_id rest = lazy_state(s, first_state(s, shape));
        parts[n++] = expr_cat(x, open, expr_cat(x, s->gap, rest));
    }
    expr_id body = expr_or(x, parts, n);
    free(parts);
    return body;
}

// The value of a goal: in place if it is a scalar, else by a call.
static expr_id goal_expr(struct schema *s, uint32_t goal) {
    expand_goal(s, goal);
    if (stopped(s))
        return EXPR_NONE;
    if (s->goals[goal].expanded == DONE && s->goals[goal].n_shapes == 0)
        return goal_body(s, goal);
    if (!s->goals[goal].has_rule) {
        s->goals[goal].rule = expr_rule(s->x, goal_body, s, goal);
        s->goals[goal].has_rule = true;
    }
    return expr_call(s->x, s->goals[goal].rule);
}

static expr_id join(struct schema *s, expr_id *parts, size_t n) {
    expr_id e = expr_or(s->x, parts, n);
    free(parts);
    return e;
}

// Behind the opening quote of a key.
static expr_id keys_body(void *user, uint32_t state) {
    struct schema *s = user;
    struct exprs *x = s->x;
    struct moves moves = {0};
    state_moves(s, state, &moves);
    expr_id *parts = malloc((moves.n + 1) * sizeof *parts);
    if (!parts) {
        no_memory(s);
        moves.n = 0;
    }
    for (uint32_t i = 0; i < moves.n && !stopped(s); i++) {
        struct move move = moves.moves[i];
        expr_id rest = expr_cat(x, s->gap, lazy_state(s, move.next));
        expr_id value = expr_cat(x, goal_expr(s, move.goal), rest);
        expr_id sequence[] = {expr_term(x, string_expr(s, move.key)), s->gap, s->colon, s->gap,
                              value};
        parts[i] = expr_cat_n(x, sequence, 5);
    }
    uint32_t n = moves.n;
    free(moves.moves);
    if (stopped(s)) {
        free(parts);
        return EXPR_NONE;
    }
    return join(s, parts, n);
}

// Where a member, item or the end may come.
static expr_id state_body(void *user, uint32_t state) {
    struct schema *s = user;
    struct exprs *x = s->x;
    struct state t = s->states[state];
    bool array = s->shapes[t.shape].array;
    struct moves moves = {0};
    state_moves(s, state, &moves);
    expr_id *parts = malloc((moves.n + 2) * sizeof *parts);
    if (!parts || stopped(s)) {
        if (!parts)
            no_memory(s);
        free(parts);
        free(moves.moves);
        return EXPR_NONE;
    }
    uint32_t n = 0;
    if (array) {
        for (uint32_t i = 0; i < moves.n && !stopped(s); i++) {
            expr_id rest = expr_cat(x, s->gap, lazy_state(s, moves.moves[i].next));
            parts[n++] = expr_cat(x, goal_expr(s, moves.moves[i].goal), rest);
        }
    } else if (moves.n) {
        if (!s->states[state].has_key_rule) {
            uint32_t rule = expr_rule(x, keys_body, s, state);
            s->states[state].key_rule = rule;
            s->states[state].has_key_rule = true;
        }
        parts[n++] = expr_cat(x, expr_term(x, s->quote),
                              expr_lazy(x, s->states[state].key_rule));
    }
    free(moves.moves);
    expr_id more = join(s, parts, n);
    if (array ? t.pos > 0 : t.count > 0)
        more = expr_cat(x, s->comma, expr_cat(x, s->gap, more));
    expr_id end = state_can_end(s, &t) ? expr_term(x, expr_byte(x, array ? ']' : '}')) : EXPR_NONE;
    return expr_or2(x, more, end);
}

static expr_id lazy_state(struct schema *s, uint32_t state) {
    if (!s->states[state].has_rule) {
        s->states[state].rule = expr_rule(s->x, state_body, s, state);
        s->states[state].has_rule = true;
    }
    return expr_lazy(s->x, s->states[state].rule);
}

// ---- the whole ---------------------------------------------------------------------------------

static void reach(struct schema *s, uint32_t goal, uint32_t **queue, uint32_t *n,
                  uint32_t *capacity) {
    if (s->goals[goal].reached || stopped(s))
        return;
    s->goals[goal].reached = true;
    if (room(s, queue, *n, capacity, sizeof **queue))
        (*queue)[(*n)++] = goal;
}

// Expand everything that an instance can reach, for its errors and what it leaves out.
static void explore(struct schema *s, uint32_t root) {
    uint32_t *queue = NULL, n = 0, capacity = 0;
    reach(s, root, &queue, &n, &capacity);
    for (uint32_t i = 0; i < n && !stopped(s); i++) {
        uint32_t goal = queue[i];
        expand_goal(s, goal);
        for (uint32_t k = 0; k < s->goals[goal].n_shapes && !stopped(s); k++) {
            struct shape shape = s->shapes[s->goals[goal].shapes[k]];
            for (uint32_t m = 0; m < shape.n_named; m++)
                if (shape.named[m].usable)
                    reach(s, shape.named[m].goal, &queue, &n, &capacity);
            for (uint32_t m = 0; m < shape.n_classes; m++)
                reach(s, shape.classes[m].goal, &queue, &n, &capacity);
            for (uint32_t m = 0; shape.array && m <= shape.n_items; m++)
                reach(s, shape.item_goals[m], &queue, &n, &capacity);
        }
    }
    free(queue);
}

static enum draft draft_of(const json_t *json) {
    const char *uri = json_string_value(json_object_get(json, "$schema"));
    if (!uri)
        return DRAFT_2020;
    if (strstr(uri, "draft-03") || strstr(uri, "draft-04"))
        return DRAFT_4;
    if (strstr(uri, "draft-06"))
        return DRAFT_6;
    if (strstr(uri, "draft-07"))
        return DRAFT_7;
    return strstr(uri, "2019-09") ? DRAFT_2019 : DRAFT_2020;
}

struct schema *schema_create(struct exprs *x, json_t *json, const struct schema_options *options,
                             struct err *err) {
    struct schema *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(err, ERR_NOMEM, "schema: out of memory");
        return NULL;
    }
    s->x = x;
    s->err = err;
    s->options = *options;
    s->json = options->any_object ? json_pack("{ss}", "type", "object") : json_incref(json);
    s->constants = json_array();
    s->draft = draft_of(s->json);
    s->assumed_depth = UINT32_MAX;
    s->resources = calloc(1, sizeof *s->resources);
    if (!s->json || !s->constants || !s->resources) {
        no_memory(s);
    } else {
        s->n_resources = 1;
        s->resources[0] = (struct resource){s->json, arena_c_string(&s->arena, STR(""))};
        register_ids(s, s->json, 0, 0);
    }
    s->all_strings = expr_rep(x, char_any(x, SPELL_JSON), 0, EXPR_INF);
    s->all_numbers = number_canonical(x);
    expr_id space = expr_bytes(x, &(struct byte_set){{1ull << ' ' | 1ull << '\t' | 1ull << '\n' |
                                                      1ull << '\r'}});
    s->gap = expr_term(x, expr_rep(x, space, 0, options->spaces_max));
    s->quote = expr_byte(x, '"');
    s->colon = expr_term(x, expr_byte(x, ':'));
    s->comma = expr_term(x, expr_byte(x, ','));
    if (!stopped(s)) {
        uint32_t node = node_of(s, s->json, 0, NO_NODE, NULL);
        literal l = lit(node, false);
        uint32_t goal = stopped(s) ? 0 : goal_of(s, &l, 1);
        if (!stopped(s) && !goal_alive(s, goal) && !stopped(s)) {
            s->failed = true;
            err_set(err, ERR_INVALID, "schema: at #: nothing can satisfy this schema");
        }
        if (!stopped(s))
            explore(s, goal);
        if (!stopped(s))
            s->root = goal_expr(s, goal);
    }
    if (!stopped(s))
        return s;
    if (exprs_failed(x))
        exprs_check(x, err);
    schema_destroy(s);
    return NULL;
}

void schema_destroy(struct schema *s) {
    if (!s)
        return;
    json_decref(s->json);
    json_decref(s->constants);
    free(s->nodes);
    free(s->node_table);
    free(s->resources);
    free(s->anchors);
    free(s->keys);
    free(s->keys_spelled);
    free(s->key_table);
    free(s->atoms);
    free(s->atom_table);
    free(s->goals);
    free(s->goal_table);
    free(s->shapes);
    free(s->states);
    free(s->state_table);
    free(s->ignored);
    free(s->slots);
    free(s->stamps);
    arena_deinit(&s->arena);
    free(s);
}

size_t schema_bytes(const struct schema *s) {
    return sizeof *s + s->arena.used_bytes + s->nodes_capacity * sizeof *s->nodes +
           s->keys_capacity * (sizeof *s->keys + sizeof *s->keys_spelled) +
           s->atoms_capacity * sizeof *s->atoms + s->goals_capacity * sizeof *s->goals +
           s->shapes_capacity * sizeof *s->shapes + s->states_capacity * sizeof *s->states +
           (s->node_slots + s->key_slots + s->atom_slots + s->goal_slots + s->state_slots +
            2 * (size_t)s->slots_n) *
               sizeof(uint32_t);
}

expr_id schema_root(const struct schema *s) {
    return s->root;
}
size_t schema_n_ignored(const struct schema *s) {
    return s->n_ignored;
}
const char *schema_ignored(const struct schema *s, size_t i) {
    return s->ignored[i].keyword;
}
const char *schema_ignored_path(const struct schema *s, size_t i) {
    return s->ignored[i].path;
}

// ---- ordering an instance ----------------------------------------------------------------------

static json_t *order_value(struct schema *s, const struct literals *lits, const json_t *value,
                           uint32_t depth) {
    if ((!json_is_object(value) && !json_is_array(value)) || depth > SCHEMA_DEPTH_MAX)
        return json_incref((json_t *)value);
    struct keys_list list = {.stamp = ++s->stamp};
    uint32_t mark = s->stamp;
    for (uint32_t i = 0; i < lits->n; i++)
        list_keys(s, lits->lits[i] / 2, mark, &list, 0);
    bool array = json_is_array(value);
    json_t *out = array ? json_array() : json_object();
    const char *name;
    size_t name_n, index;
    json_t *member;
    for (uint32_t i = 0; i < list.n && !array; i++) {
        struct str key = s->keys[list.keys[i]];
        if ((member = json_object_getn(value, key.data, key.n)))
            json_object_setn_nocheck(out, key.data, key.n, member);
    }
    if (!array)
        json_object_keylen_foreach((json_t *)value, name, name_n, member) {
            if (!json_object_getn(out, name, name_n))
                json_object_setn_nocheck(out, name, name_n, member);
        }
    if (array)
        json_array_foreach((json_t *)value, index, member) json_array_append(out, member);
    // Now the members, each under all that may be said about it.
    void *at = array ? NULL : json_object_iter(out);
    size_t n = array ? json_array_size(out) : json_object_size(out);
    for (size_t i = 0; i < n; i++) {
        struct literals below = {0};
        uint32_t key = 0;
        if (!array) {
            name = json_object_iter_key(at);
            struct str text = {name, json_object_iter_key_len(at)}, kept;
            // Keys are kept by reference: these must outlive the instance.
            if (arena_copy(&s->arena, text, &kept))
                key = key_of(s, kept);
        }
        for (uint32_t k = 0; k < list.n_nodes && !stopped(s); k++) {
            read_blocks(s, list.nodes[k]);
            struct node node = s->nodes[list.nodes[k]];
            bool matched = false;
            for (uint32_t p = 0; p < node.n_properties && !array; p++)
                if (node.properties[p].key == key) {
                    add_literal(s, &below, lit(node.properties[p].node, false));
                    matched = true;
                }
            for (uint32_t p = 0; p < node.n_patterns && !array; p++)
                if (key_in(s, key, node.patterns[p].lang)) {
                    add_literal(s, &below, lit(node.patterns[p].node, false));
                    matched = true;
                }
            if (!array && !matched && node.additional != NO_NODE)
                add_literal(s, &below, lit(node.additional, false));
            if (array && i < node.n_prefix)
                add_literal(s, &below, lit(node.prefix[i], false));
            else if (array && node.items != NO_NODE)
                add_literal(s, &below, lit(node.items, false));
        }
        member = order_value(s, &below, array ? json_array_get(out, i)
                                              : json_object_iter_value(at), depth + 1);
        if (array) {
            json_array_set_new(out, i, member);
        } else {
            json_object_iter_set_new(out, at, member);
            at = json_object_iter_next(out, at);
        }
    }
    free(list.keys);
    free(list.nodes);
    return out;
}

json_t *schema_order(struct schema *s, const json_t *instance) {
    struct literals lits = {0};
    add_literal(s, &lits, lit(0, false)); // the root is node 0
    return order_value(s, &lits, instance, 0);
}
