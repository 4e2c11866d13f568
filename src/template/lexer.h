// template/lexer.h - template text to tokens, with Jinja's whitespace control
// (trim_blocks and lstrip_blocks on, keep_trailing_newline off).
#ifndef LOAM_TEMPLATE_LEXER_H
#define LOAM_TEMPLATE_LEXER_H
#include "base/arena.h"
#include "base/err.h"

enum token_kind {
    T_EOF,
    T_DATA, // text: what is printed as it stands
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING, // text: decoded
    T_INTEGER, // text: as written
    T_FLOAT,
    T_OP, // text: the operator
};

struct token {
    uint8_t kind; // enum token_kind
    char op[2];   // T_OP: its characters, 0 for none
    uint32_t pos, line; // in the source
    struct str text;
};

struct tokens {
    struct token *items;
    uint32_t n;
};

// Copy `source` with its line ends as "\n" and without one last newline.
bool lexer_normalise(struct arena *arena, struct str source, struct str *out);
// All tokens of a normalised source, the last one T_EOF. Texts are in the source or the arena.
bool lexer_run(struct arena *arena, struct str source, struct tokens *out, struct err *err);
// Set a syntax error at an offset of the source: "line L column C: ...".
bool syntax_error(struct err *err, struct str source, size_t pos, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
uint32_t source_line(struct str source, size_t pos);
#endif
