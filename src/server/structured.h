// server/structured.h - what a request says its answer must look like, and the grammar made of it.
#ifndef LOAM_SERVER_STRUCTURED_H
#define LOAM_SERVER_STRUCTURED_H
#include "server/request.h"

// Zero-initialise.
struct structured {
    bool given, strict; // strict: a keyword that cannot be enforced is an error
    enum grammar_kind kind;
    struct strbuf text; // owned
    const char *param;  // the field that said it; static text
};
void structured_deinit(struct structured *structured);
// Read response_format (or `format`, if not NULL, in its place: the Responses interface's text.format),
// structured_outputs, grammar, guided_json, guided_regex, guided_grammar or guided_choice. More than one is an
// error.
bool structured_read(const json_t *body, const json_t *format, struct structured *out,
                     struct request_error *error);
// As a format of a structural tag (docs/structured-output.md). A new reference; NULL when out of memory.
json_t *structured_format(const struct structured *structured);

// A grammar from the cache of the server's model. JSON Schema keywords that cannot be enforced are named in a
// Warning header of the exchange (may be NULL) and in the log; under `strict` they are an error. A reference, or
// NULL with *error, whose param is `param`.
struct grammar *structured_compile(struct server *server, struct http_exchange *exchange,
                                   const struct grammar_spec *spec, bool strict, const char *param,
                                   struct request_error *error);
// The same for what was read; NULL without an error if nothing was given.
struct grammar *structured_grammar(struct server *server, struct http_exchange *exchange,
                                   const struct structured *structured, struct request_error *error);
#endif
