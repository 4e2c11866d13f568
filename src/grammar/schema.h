// grammar/schema.h - JSON Schema to expressions.
//
// A schema is a boolean combination of conditions on a value. Each place of the text where a value may
// stand has a goal: a set of literals (schema, negated or not) that must all hold there. For null,
// booleans, numbers and strings a goal is one regular language, closed under all combinations. For
// arrays and objects it is brought into disjunctive form: a list of shapes, each a conjunction of
// plain facts (required keys, bounds, the goals of members and items); `not`, `oneOf` and `if` become
// other facts ("no key x", "some item that is not ..."), so they are exact. Shapes are read by small
// state machines whose states are expanded when the parser first reaches them.
// Parsers read properties in the order of the schema; what it does not name comes behind.
// A schema belongs to the thread that owns its pool.
#ifndef LOAM_GRAMMAR_SCHEMA_H
#define LOAM_GRAMMAR_SCHEMA_H
#include <jansson.h>

#include "base/err.h"
#include "grammar/expr.h"

struct schema_options {
    uint32_t spaces_max; // white space between two tokens of JSON: at most so many characters
    bool any_object;     // the schema is {"type": "object"} whatever it says (json_object)
};

struct schema;
// Read a schema and everything that the instance can reach, so that errors are known now. `json` is
// kept (a reference). NULL with ERR_INVALID naming the path and what is wrong there, or that nothing
// can satisfy the schema, or which limit of size it breaks; ERR_NOMEM.
struct schema *schema_create(struct exprs *x, json_t *json, const struct schema_options *options,
                             struct err *err);
void schema_destroy(struct schema *s); // NULL is allowed; only after its pool was last used
size_t schema_bytes(const struct schema *s);
// What instances look like.
expr_id schema_root(const struct schema *s);
// Keywords that are valid but not (or not wholly) enforced, each once.
size_t schema_n_ignored(const struct schema *s);
const char *schema_ignored(const struct schema *s, size_t i);
const char *schema_ignored_path(const struct schema *s, size_t i); // where first: "#/properties/a"
// A copy of an instance with its members in the order in which the grammar reads them. NULL when out
// of memory.
json_t *schema_order(struct schema *s, const json_t *instance);
#endif
