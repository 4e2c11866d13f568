#include "tokenizer/byte_letters.h"

#include "base/utf8.h"

// The bytes without a letter of their own, in order: 0x00-0x20, 0x7F-0xA0, 0xAD.
enum { N_LOW = 0x21, N_HIGH = 0xA1 - 0x7F, N_OTHERS = N_LOW + N_HIGH + 1 };

uint32_t byte_letter(uint8_t b) {
    if (byte_is_printable(b))
        return b;
    if (b < N_LOW)
        return 0x100u + b;
    return b == 0xAD ? 0x100 + N_OTHERS - 1 : 0x100u + N_LOW + (b - 0x7Fu);
}

int byte_of_letter(uint32_t letter) {
    if (letter < 0x100)
        return byte_is_printable(letter) ? (int)letter : -1;
    uint32_t nth = letter - 0x100;
    if (nth < N_LOW)
        return (int)nth;
    if (nth < N_LOW + N_HIGH)
        return (int)(0x7F + nth - N_LOW);
    return nth < N_OTHERS ? 0xAD : -1;
}

void byte_letters_append(struct strbuf *out, struct str s) {
    for (size_t i = 0; i < s.n; i++)
        strbuf_code_point(out, byte_letter((uint8_t)s.data[i]));
}

bool byte_letters_read(struct strbuf *out, struct str spelled) {
    size_t n = out->n;
    for (size_t i = 0; i < spelled.n;) {
        int b = byte_of_letter(utf8_next(spelled, &i));
        if (b < 0) {
            out->n = n;
            return false;
        }
        strbuf_char(out, (char)b);
    }
    return true;
}
