// tokenizer/byte_letters.h - how GPT-2's ByteLevel spells bytes as printable characters: printable
// Latin-1 as itself, the 68 others as U+0100 and up, in order.
#ifndef LOAM_TOKENIZER_BYTE_LETTERS_H
#define LOAM_TOKENIZER_BYTE_LETTERS_H
#include "base/bytes.h"

static inline bool byte_is_printable(uint32_t b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}
// The letter of byte b.
uint32_t byte_letter(uint8_t b);
// The byte that a letter spells, or -1.
int byte_of_letter(uint32_t letter);
// Append s as letters.
void byte_letters_append(struct strbuf *out, struct str s);
// Append the bytes that `spelled` stands for; false, with nothing appended, if a character is none.
bool byte_letters_read(struct strbuf *out, struct str spelled);
#endif
