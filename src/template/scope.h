// template/scope.h - which variable a name means. Jinja decides that before rendering: a scope's
// variables are those its own statements set; each starts as the outer variable of the same name, else
// as undefined; names that nothing sets come from the context.
#ifndef LOAM_TEMPLATE_SCOPE_H
#define LOAM_TEMPLATE_SCOPE_H
#include "base/err.h"
#include "template/ast.h"

// Give every name in the template its slot and every scope its loads. ERR_NOMEM.
bool scope_resolve(struct template *template, struct err *err);
#endif
