// template/run.h - rendering with variables from several places; template_render() and the chat
// templates stand on it.
#ifndef LOAM_TEMPLATE_RUN_H
#define LOAM_TEMPLATE_RUN_H
#include "template/render.h"

// As template_render(). Later bindings hide earlier ones of the same name.
bool template_run(const struct template *template, const struct binding *bindings, uint32_t n_bindings,
                  const struct template_limits *limits, struct strbuf *out, struct err *err);
#endif
