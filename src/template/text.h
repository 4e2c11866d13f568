// template/text.h - what str methods and filters share.
#ifndef LOAM_TEMPLATE_TEXT_H
#define LOAM_TEMPLATE_TEXT_H
#include "template/render.h"
#include "template/unicode.h"

// All of a text in another case; the first character in title case and the rest in lower case.
struct value change_case(struct render *r, struct value text, enum unicode_case to);
struct value capitalize(struct render *r, struct value text);
// text.strip(chars) at either end; chars is a str, none or V_MISSING for white space.
struct value strip(struct render *r, struct value text, struct value chars, bool left, bool right);
// At most `count` replacements, all if it is negative.
struct value replace(struct render *r, struct str s, struct str old, struct str new, int64_t count);
enum pad { PAD_LEFT, PAD_RIGHT, PAD_CENTER }; // where the text ends up
struct value pad(struct render *r, struct value text, int64_t width, uint32_t fill, enum pad where);
// The line of s that begins at `at` ends at *end, the next begins at *next (str.splitlines' ends).
void find_line_end(struct str s, size_t at, size_t *end, size_t *next);
// A copy of a value from JSON that does not refer to it.
struct value detach(struct render *r, struct value v);
#endif
