// server/call_grammar.h - the structural tag that an answer with tool calls must follow, made of the family's row
// of output_format.c: the same row says how its calls are read.
#ifndef LOAM_SERVER_CALL_GRAMMAR_H
#define LOAM_SERVER_CALL_GRAMMAR_H
#include "base/json.h"
#include "server/output_format.h"

// What comes before the answer.
enum call_reasoning {
    CALL_REASONING_NONE,
    CALL_REASONING_OPEN,  // the prompt ends inside a reasoning part: its rest
    CALL_REASONING_MAYBE, // a reasoning part, or nothing
};

struct call_grammar_options {
    const struct output_format *format;
    enum call_reasoning reasoning;
    // OpenAI function tools that may be called, or NULL. Tools marked `strict` get arguments by their schema;
    // with all_strict every tool does.
    const json_t *tools;
    bool all_strict;
    bool required; // the answer is calls
    bool one_call; // at most one
    json_t *content; // what an answer that is no call must look like: a format, borrowed. NULL: any text
};
// The whole structural tag as JSON (docs/structured-output.md). A new reference, or NULL with ERR_INVALID (a tool
// that the family's syntax cannot express) or ERR_NOMEM.
json_t *call_grammar(const struct call_grammar_options *options, struct err *err);
// Can calls of the family be constrained? Where arguments are not JSON they cannot.
bool call_grammar_can(const struct output_format *format);
// The parameters of a tool as the schema of an object. A new reference.
json_t *call_parameters(const json_t *tool);
#endif
