// server/output_parser.h - a model's raw text split into what clients see: reasoning, content and tool calls.
// Each family marks these in its own way (output_format.h); the text may come in any pieces, down to single
// bytes, and gives the same result. Damaged markup is mended where that is unambiguous; what is no tool call
// is content: no text is lost. One owner thread.
#ifndef LOAM_SERVER_OUTPUT_PARSER_H
#define LOAM_SERVER_OUTPUT_PARSER_H
#include "base/json.h"
#include "server/output_format.h"

enum output_kind {
    OUTPUT_CONTENT,   // text
    OUTPUT_REASONING, // text
    OUTPUT_CALL_BEGIN, // text: the tool's name
    OUTPUT_CALL_ARGUMENTS, // text: more of one JSON object
    OUTPUT_CALL_END,
};
struct output_piece {
    enum output_kind kind;
    uint32_t call_idx; // of CALL pieces: counts from 0
    struct str text;   // borrowed during the call
    struct str id;     // CALL_BEGIN: the model's own id of the call, or empty
};
typedef void output_piece_fn(void *user, const struct output_piece *piece);

struct output_parser_options {
    const struct output_format *format;
    const json_t *tools;  // array of OpenAI function tools, or NULL: then no text is a call; borrowed
    bool reasoning_open;  // the prompt ends inside a reasoning part
    // The text follows a grammar of call_grammar.h: nothing is damaged, so a mark inside a string is part of it,
    // and reasoning comes first or not at all. whole: what is no call is of a given form, whatever it holds.
    bool exact, whole;
    output_piece_fn *fn;
    void *user;
};
struct output_parser;
struct output_parser *output_parser_create(const struct output_parser_options *options, struct err *err);
void output_parser_destroy(struct output_parser *parser); // NULL is allowed
// False only when out of memory.
bool output_parser_push(struct output_parser *parser, struct str text);
bool output_parser_finish(struct output_parser *parser);
uint32_t output_parser_n_calls(const struct output_parser *parser);
#endif
