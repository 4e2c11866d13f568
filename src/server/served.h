// server/served.h - one model behind the server, kept as long as somebody needs it. Event thread.
// The server holds the one that new requests get (server->served). A request that outlives its handler holds
// its own, so that another model may take over while it is answered.
#ifndef LOAM_SERVER_SERVED_H
#define LOAM_SERVER_SERVED_H
#include "engine/bundle.h"
#include "engine/engine.h"
#include "grammar/grammar.h"
#include "grammar/vocab.h"
#include "server/output_format.h"

struct served {
    struct bundle bundle;
    struct engine *engine; // NULL once the server ends
    const struct output_format *format; // of the model's answers
    struct grammar_vocab *grammar_vocab; // with `grammars` made for the first request that asks
    struct grammar_cache *grammars;
    uint32_t n_references;
    struct served *next, **link; // in the server's list of all that live
};

// Take the bundle and its engine over, also on failure; one reference, the caller's. Any thread. ERR_NOMEM.
struct served *served_create(struct bundle *bundle, struct engine *engine, struct err *err);
// Does the chat template mention it?
bool served_template_has(const struct served *served, const char *word);
// May answers have a reasoning part?
bool served_reasons(const struct served *served);
struct served *served_acquire(struct served *served); // returns served
// The last one ends the engine and closes the bundle. NULL is allowed.
void served_release(struct served *served);
// The same whoever holds references.
void served_destroy(struct served *served);
#endif
