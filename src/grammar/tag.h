// grammar/tag.h - structural tags: free text in which certain openings start a constrained part, and
// combinations of such parts. docs/structured-output.md describes the JSON.
// A tag belongs to the thread that owns its pool.
#ifndef LOAM_GRAMMAR_TAG_H
#define LOAM_GRAMMAR_TAG_H
#include "grammar/schema.h"
#include "grammar/vocab.h"

struct tag;
// NULL with ERR_INVALID naming the path and what is wrong there; ERR_NOMEM. The text is not kept.
struct tag *tag_create(struct exprs *x, struct str text, const struct grammar_vocab *vocab,
                       const struct schema_options *options, struct err *err);
void tag_destroy(struct tag *tag); // NULL is allowed; only after its pool was last used
expr_id tag_root(const struct tag *tag);
size_t tag_n_ignored(const struct tag *tag); // as of its schemas
const char *tag_ignored(const struct tag *tag, size_t i);
const char *tag_ignored_path(const struct tag *tag, size_t i);
#endif
