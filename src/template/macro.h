// template/macro.h - macros and the loop variable: values with code behind them.
#ifndef LOAM_TEMPLATE_MACRO_H
#define LOAM_TEMPLATE_MACRO_H
#include "template/render.h"

struct macro {
    const struct function *function;
    struct activation *closure; // of the function around it
    bool anonymous;             // the body of a call block
};

struct bound_method {
    struct value self;
    const struct builtin *builtin;
};

struct loop {
    const struct for_loop *node;
    struct activation *activation; // where the loop's test runs
    const struct value *items;     // those not looked at yet start at `at`
    uint32_t n, at;
    bool tests;                    // items must pass node->test
    bool peeked;                   // `next` is the next element
    struct value next;
    struct value current, previous; // previous is V_MISSING in the first round
    uint32_t index0, depth0;
    struct value changed; // the last arguments of loop.changed(), a tuple, or V_MISSING
};

void macro_append_repr(struct strbuf *out, const struct macro *macro);
struct value macro_attribute(struct render *r, const struct macro *macro, struct str name);
struct value macro_call(struct render *r, const struct macro *macro, const struct args *args);

struct value loop_length(struct render *r, struct loop *loop);
bool loop_append_repr(struct render *r, struct loop *loop);
struct value loop_attribute(struct render *r, struct value loop, struct str name);
struct value loop_call(struct render *r, struct loop *loop, const struct args *args);

// Render the whole template to r->out.
bool render_root(struct render *r);
#endif
