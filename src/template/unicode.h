// template/unicode.h - what Python's str knows about characters, on utf8proc's tables.
#ifndef LOAM_TEMPLATE_UNICODE_H
#define LOAM_TEMPLATE_UNICODE_H
#include "base/bytes.h"

// The character at s[*pos], moving past it; an ill-formed byte counts as one character U+FFFD.
uint32_t unicode_next(struct str s, size_t *pos);
// The character before s[*pos], moving back over it. Requires *pos > 0.
uint32_t unicode_before(struct str s, size_t *pos);
size_t unicode_count(struct str s); // characters
// Byte offset of the character number `index`, at most s.n.
size_t unicode_offset(struct str s, size_t index);

bool unicode_is_space(uint32_t c);
bool unicode_is_alpha(uint32_t c);
bool unicode_is_decimal(uint32_t c);
int unicode_decimal_value(uint32_t c); // 0 to 9, -1 if it is no decimal digit
bool unicode_is_digit(uint32_t c);
bool unicode_is_numeric(uint32_t c);
bool unicode_is_upper(uint32_t c);
bool unicode_is_lower(uint32_t c);
bool unicode_is_title(uint32_t c);
bool unicode_is_printable(uint32_t c);
bool unicode_is_word(uint32_t c);             // a letter, digit or underscore: \w
bool unicode_is_identifier(struct str s);
bool unicode_is_cased(uint32_t c);

enum unicode_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_FOLD };
// Append the character in another case; may be several characters.
void unicode_append_case(struct strbuf *out, uint32_t c, enum unicode_case to);
// Append the character that begins at s[at], or all of s, or all from there: lower case of a sigma
// depends on what is around it.
void unicode_append_case_at(struct strbuf *out, struct str s, size_t at, enum unicode_case to);
void unicode_append_str_case(struct strbuf *out, struct str s, enum unicode_case to);
void unicode_append_case_from(struct strbuf *out, struct str s, size_t from, enum unicode_case to);
struct str unicode_strip_space(struct str s, bool left, bool right);
#endif
