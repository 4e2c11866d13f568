// tokenizer/characters.h - the classes of characters that tokenizers ask for.
#ifndef LOAM_TOKENIZER_CHARACTERS_H
#define LOAM_TOKENIZER_CHARACTERS_H
#include <stdbool.h>
#include <stdint.h>

bool char_is_space(uint32_t c);       // White_Space, as Rust's char::is_whitespace
bool char_is_numeric(uint32_t c);     // general category N
bool char_is_mark(uint32_t c);        // general category M
bool char_is_punctuation(uint32_t c); // general category P, or ASCII punctuation
bool char_is_word(uint32_t c);        // Alphabetic, M, Nd, Pc, Join_Control: \w of UTS #18
#endif
