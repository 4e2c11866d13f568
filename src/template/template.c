#include "template/template.h"

#include <stdlib.h>

#include "base/utf8.h"
#include "template/macro.h"
#include "template/parser.h"
#include "template/run.h"
#include "template/scope.h"

enum { SOURCE_BYTES_MAX = 16 * 1024 * 1024 };

// A level of nesting costs up to so many frames of eval() and exec().
enum { FRAMES_PER_LEVEL = 16 };

struct template *template_parse(struct str source, struct err *err) {
    if (source.n > SOURCE_BYTES_MAX) {
        err_set(err, ERR_FORMAT, "a template of %zu bytes: the limit is %d", source.n, SOURCE_BYTES_MAX);
        return NULL;
    }
    struct template *template = calloc(1, sizeof *template);
    if (!template || !lexer_normalise(&template->arena, source, &template->source))
        err_set(err, ERR_NOMEM, "template: out of memory");
    else if (!utf8_valid(template->source))
        err_set(err, ERR_FORMAT, "line 1 column 1: the template is not valid UTF-8");
    else if (parser_run(template, err) && scope_resolve(template, err))
        return template;
    template_destroy(template);
    return NULL;
}

void template_destroy(struct template *template) {
    if (template)
        arena_deinit(&template->arena);
    free(template);
}

bool template_run(const struct template *template, const struct binding *bindings, uint32_t n_bindings,
                  const struct template_limits *limits, struct strbuf *out, struct err *err) {
    static const struct template_limits DEFAULTS = {.steps_max = 20000000,
                                                    .depth_max = 200,
                                                    .output_bytes_max = (size_t)64 << 20,
                                                    .memory_bytes_max = (size_t)1 << 30};
    struct template_limits l = limits ? *limits : DEFAULTS;
    l.steps_max = l.steps_max ? l.steps_max : DEFAULTS.steps_max;
    l.depth_max = l.depth_max ? l.depth_max : DEFAULTS.depth_max;
    l.output_bytes_max = l.output_bytes_max ? l.output_bytes_max : DEFAULTS.output_bytes_max;
    l.memory_bytes_max = l.memory_bytes_max ? l.memory_bytes_max : DEFAULTS.memory_bytes_max;

    struct err unused;
    struct render r = {.template = template,
                       .err = err ? err : &unused,
                       .out = out,
                       .out_start = out->n,
                       .output_bytes_max = l.output_bytes_max,
                       .memory_bytes_max = l.memory_bytes_max,
                       .steps_left = l.steps_max,
                       .frames_left = l.depth_max * FRAMES_PER_LEVEL,
                       .calls_left = l.depth_max,
                       .line = 1,
                       .bindings = bindings,
                       .n_bindings = n_bindings};
    r.text_at = r.text_end = r.no_room;
    if (!strbuf_reserve(out, 1)) // so that there is always a text to take parts of
        return err_set(err, ERR_NOMEM, "template: out of memory");
    r.converted = render_array(&r, struct value, n_bindings);
    r.free_activations = render_array(&r, struct activation *, template->n_functions);
    bool ok = r.converted && r.free_activations;
    for (uint32_t i = 0; ok && i < n_bindings; i++)
        r.converted[i] = value_missing();
    ok = ok && render_root(&r);
    if (!ok)
        out->n = r.out_start; // nothing half done stays behind
    out->data[out->n] = '\0';
    arena_deinit(&r.arena);
    return ok;
}

bool template_render(const struct template *template, const json_t *context,
                     const struct template_limits *limits, struct strbuf *out, struct err *err) {
    size_t n = json_object_size(context);
    if (n > UINT32_MAX)
        return err_set(err, ERR_INVALID, "too many variables");
    struct binding *bindings = calloc(n + 1, sizeof *bindings);
    if (!bindings)
        return err_set(err, ERR_NOMEM, "template: out of memory");
    json_t *object = (json_t *)context; // jansson iterates only over what is not const
    uint32_t i = 0;
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at))
        bindings[i++] = (struct binding){
            .name = {json_object_iter_key(at), json_object_iter_key_len(at)},
            .json = json_object_iter_value(at)};
    bool ok = template_run(template, bindings, i, limits, out, err);
    free(bindings);
    return ok;
}
