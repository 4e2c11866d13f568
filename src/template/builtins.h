// template/builtins.h - Jinja's filters, tests and global functions by name.
#ifndef LOAM_TEMPLATE_BUILTINS_H
#define LOAM_TEMPLATE_BUILTINS_H
#include "template/render.h"

// NULL if there is none of that name.
const struct builtin *filter_find(struct str name);
const struct builtin *test_find(struct str name);
const struct builtin *global_find(struct str name);
#endif
