// tokenizer/characters.h - the classes of characters that tokenizers ask for, from one table
// (character_table.c, which scripts/generate-characters.mjs writes and explains).
#ifndef LOAM_TOKENIZER_CHARACTERS_H
#define LOAM_TOKENIZER_CHARACTERS_H
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

// What regular expressions tell apart: \p{Lu} ..., and white space, of which line ends are apart.
enum char_class {
    CHAR_OTHER,
    CHAR_LU,
    CHAR_LT,
    CHAR_LL,
    CHAR_LM,
    CHAR_LO,
    CHAR_M,
    CHAR_N,
    CHAR_P,
    CHAR_S,
    CHAR_SPACE,
    CHAR_LINE_END, // \r and \n
};
enum char_flags {
    CHAR_WORD = 1 << 4,        // \w of UTS #18: Alphabetic, M, Nd, Pc, Join_Control
    CHAR_PUNCTUATION = 1 << 5, // P or ASCII punctuation
    CHAR_MARK = 1 << 6,        // M
    CHAR_ACCENT = 1 << 7,      // Mn
    CHAR_CLEANED = 1 << 8,     // controls that BertNormalizer drops
    CHAR_NUMERIC = 1 << 9,     // N, as Rust's char::is_numeric
    CHAR_NEEDS_NFC = 1 << 10,  // may change under NFC, or combine with what is before it
    CHAR_INERT = 1 << 11,      // unknown to HF's normalization forms
    CHAR_EXTENDS = 1 << 12,    // M of Unicode 17: part of the grapheme before it
};

extern const uint16_t CHARACTER_BLOCKS[], CHARACTER_VALUES[];
struct char_pair {
    uint32_t from, to;
};
extern const struct char_pair CHARACTER_LOWER[];
extern const uint32_t CHARACTER_N_LOWER;
struct char_script {
    uint32_t from, to; // inclusive
    uint32_t script;
};
extern const struct char_script CHARACTER_SCRIPTS[];
extern const uint32_t CHARACTER_N_SCRIPTS;

// The class in the low four bits, and flags. Requires c <= 0x10FFFF.
static inline uint32_t char_properties(uint32_t c) {
    return CHARACTER_VALUES[(uint32_t)CHARACTER_BLOCKS[c >> 7] << 7 | (c & 127)];
}
static inline enum char_class char_class(uint32_t c) {
    return (enum char_class)(char_properties(c) & 15);
}
static inline bool char_is_space(uint32_t c) { // White_Space, as Rust's char::is_whitespace
    return char_class(c) >= CHAR_SPACE;
}
static inline bool char_has(uint32_t c, enum char_flags flag) {
    return char_properties(c) & flag;
}
// Lower case, of one character (all but U+0130 have one).
uint32_t char_lower(uint32_t c);
// A number for the script as UnicodeScripts tells them apart, 0 for none.
uint32_t char_script(uint32_t c);

// The character at p, of text that is known to be valid, and its length.
static inline uint32_t char_at(const char *text, size_t *n_bytes) {
    const uint8_t *p = (const uint8_t *)text;
    if (p[0] < 0x80) {
        *n_bytes = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *n_bytes = 2;
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *n_bytes = 3;
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *n_bytes = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}
#endif
