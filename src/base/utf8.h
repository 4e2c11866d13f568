// base/utf8.h - UTF-8, RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF.
#ifndef LOAM_BASE_UTF8_H
#define LOAM_BASE_UTF8_H
#include "base/bytes.h"

// Decode the character at s[*pos] (requires *pos < s.n) and move *pos past it. A byte that begins
// no valid character yields UTF8_INVALID and moves by one.
#define UTF8_INVALID UINT32_MAX
uint32_t utf8_next(struct str s, size_t *pos);

// Write 1 to 4 bytes, return how many. A value that is no Unicode scalar is written as U+FFFD.
size_t utf8_encode(uint32_t code_point, char out[4]);

bool utf8_valid(struct str s);

// How many bytes at the end of s begin a character that more bytes could complete (0 to 3).
size_t utf8_incomplete_tail(struct str s);

// Append s with each maximal ill-formed part replaced by one U+FFFD, as the Unicode standard
// recommends (3.9, "U+FFFD Substitution of Maximal Subparts") and as Python and Rust do.
void utf8_append_lossy(struct strbuf *out, struct str s);
#endif
