// grammar/machine.h - the parser: sets of configurations, each interned to a number, and the token
// masks computed from them.
//
//   configuration = { (d, e, k), ... }     d: automaton state of the grammar token being read
//                                          e: what follows it within the current rule
//   k = { (e', k'), ... }                  k: where the rule returns to: a node of the stack graph
//
// Configurations are canonical (same d and e: their k are united), so equal situations have equal
// numbers: transitions and masks are computed once for each. A stack node refers to older ones only.
// Rules must not be left-recursive. One thread at a time.
#ifndef LOAM_GRAMMAR_MACHINE_H
#define LOAM_GRAMMAR_MACHINE_H
#include "grammar/expr.h"
#include "grammar/vocab.h"

struct machine;
typedef uint32_t config_id;
enum { CONFIG_DEAD = 1 };

// Configurations that someone keeps: rewritten when the machine sweeps its tables.
struct machine_root {
    config_id *ids;
    size_t n;
    struct machine_root *next, **link;
};

// Takes over the pool (also on failure). `vocab` is borrowed.
struct machine *machine_create(struct exprs *x, expr_id root, const struct grammar_vocab *vocab);
void machine_destroy(struct machine *m); // NULL is allowed
struct exprs *machine_exprs(struct machine *m);
size_t machine_bytes(const struct machine *m);

void machine_root_add(struct machine *m, struct machine_root *root);
void machine_root_remove(struct machine_root *root);

// Sweep if the tables are full. Ids outside roots are lost. Call between operations.
void machine_tidy(struct machine *m);

config_id machine_start(struct machine *m);
// May be called some dozen times between calls of machine_tidy().
config_id machine_step(struct machine *m, config_id config, uint8_t b);
bool machine_accepts(const struct machine *m, config_id config);
// May anything follow?
bool machine_open(const struct machine *m, config_id config);
// The one byte that must come next, or -1. An accepting configuration forces nothing.
int machine_forced(struct machine *m, config_id config);
// Set the bits of the tokens that may follow, all others are cleared; `config` must be in a root.
// End-of-sequence tokens are set where the grammar may end.
void machine_mask(struct machine *m, const config_id *config, uint32_t *mask);
#endif
