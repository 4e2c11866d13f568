// template/methods.h - the methods of Python's str, dict, list ... that the sandbox allows.
#ifndef LOAM_TEMPLATE_METHODS_H
#define LOAM_TEMPLATE_METHODS_H
#include "template/render.h"

// The index of a type's method, or -1.
int16_t method_find(enum value_type type, struct str name);
// A method by index; its fn is NULL if it changes its object: those are unsafe.
const struct builtin *method_get(enum value_type type, int16_t index);
// The method of an object as a value; undefined if there is none.
struct value method_bind(struct render *r, struct value self, struct str name);
// str.isupper() and str.islower().
bool text_is_upper(struct str s);
bool text_is_lower(struct str s);
#endif
