#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "template/builtins.h"
#include "template/number.h"

enum { RANGE_MAX = 100000 }; // as Jinja's sandbox

static struct value global_range(struct render *r, struct value *a, const struct args *args) {
    (void)a;
    int64_t bounds[3] = {0, 0, 1};
    if (args->n < 1 || args->n > 3 || args->n_keywords)
        return fail(r, "range expected 1 to 3 arguments, got %u", args->n);
    if (args->n == 1) {
        if (!arg_int(r, args->items[0], "range: an argument", &bounds[1]))
            return value_error();
    } else {
        for (uint32_t i = 0; i < args->n; i++)
            if (!arg_int(r, args->items[i], "range: an argument", &bounds[i]))
                return value_error();
    }
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0)
        return fail(r, "range() arg 3 must not be zero");
    uint64_t n = 0;
    if (step > 0 && start < stop)
        n = ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1;
    else if (step < 0 && start > stop)
        n = ((uint64_t)start - (uint64_t)stop - 1) / -(uint64_t)step + 1;
    if (n > RANGE_MAX)
        return fail(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", RANGE_MAX);
    struct range *range = render_alloc(r, sizeof *range);
    if (!range)
        return value_error();
    *range = (struct range){start, stop, step, (uint32_t)n};
    return (struct value){.type = V_RANGE, .range = range};
}

// dict(pairs or mapping, **more).
static struct dict *make_dict(struct render *r, const struct args *args, const char *name) {
    if (args->n > 1) {
        fail(r, "%s expected at most 1 argument, got %u", name, args->n);
        return NULL;
    }
    struct dict *dict = dict_new(r, args->n_keywords);
    if (!dict)
        return NULL;
    if (args->n && args->items[0].type == V_UNDEFINED) {
        fail_undefined(r, args->items[0]);
        return NULL;
    }
    if (args->n && args->items[0].type == V_DICT) {
        const struct dict *from = args->items[0].dict;
        for (uint32_t i = 0; i < from->n; i++)
            if (!dict_set(r, dict, from->entries[i].key, from->entries[i].value))
                return NULL;
    } else if (args->n) {
        struct span pairs, pair;
        if (!span_of(r, args->items[0], &pairs))
            return NULL;
        for (uint32_t i = 0; i < pairs.n; i++) {
            if (!span_of(r, pairs.items[i], &pair))
                return NULL;
            if (pair.n != 2) {
                fail(r, "dictionary update sequence element #%u has length %u; 2 is required", i, pair.n);
                return NULL;
            }
            if (!dict_set(r, dict, pair.items[0], pair.items[1]))
                return NULL;
        }
    }
    for (uint32_t i = 0; i < args->n_keywords; i++)
        if (!dict_set(r, dict, value_str(args->keywords[i].name), args->keywords[i].value))
            return NULL;
    return dict;
}

static struct value global_dict(struct render *r, struct value *a, const struct args *args) {
    (void)a;
    struct dict *dict = make_dict(r, args, "dict");
    return dict ? value_dict(dict) : value_error();
}

static struct value global_namespace(struct render *r, struct value *a, const struct args *args) {
    (void)a;
    struct dict *dict = make_dict(r, args, "namespace");
    return dict ? (struct value){.type = V_NAMESPACE, .dict = dict} : value_error();
}

static struct value global_cycler(struct render *r, struct value *a, const struct args *args) {
    (void)a;
    if (!args->n || args->n_keywords)
        return fail(r, "at least one item has to be provided");
    struct cycler *cycler = render_alloc(r, sizeof *cycler);
    struct value items = cycler ? list_value(r, args->items, args->n) : value_error();
    if (is_error(items))
        return items;
    *cycler = (struct cycler){.n = args->n, .items = items.list->items};
    return (struct value){.type = V_CYCLER, .cycler = cycler};
}

static struct value global_joiner(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct joiner *joiner = render_alloc(r, sizeof *joiner);
    if (!joiner)
        return value_error();
    joiner->separator = is_missing(a[1]) ? value_str(STR(", ")) : a[1];
    return (struct value){.type = V_JOINER, .joiner = joiner};
}

static struct value global_raise(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value text = to_str(r, a[1]);
    if (is_error(text))
        return text;
    err_set(r->err, ERR_INVALID, "%.*s", (int)text.n, text.s);
    return value_error();
}

// The time that templates see: LOAM_NOW=2026-01-15T12:34:56, else the clock.
static bool now(struct render *r, struct tm *out, long *microseconds) {
    *out = (struct tm){0};
    *microseconds = 0;
    const char *fixed = getenv("LOAM_NOW");
    if (!fixed || !*fixed) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        *microseconds = t.tv_nsec / 1000;
        return localtime_r(&t.tv_sec, out) != NULL;
    }
    int end = -1;
    if (sscanf(fixed, "%4d-%2d-%2dT%2d:%2d:%2d%n", &out->tm_year, &out->tm_mon, &out->tm_mday,
               &out->tm_hour, &out->tm_min, &out->tm_sec, &end) != 6 || end < 0 || fixed[end]) {
        fail(r, "LOAM_NOW=\"%.40s\" is not a time: write it as 2026-01-15T12:34:56", fixed);
        return false;
    }
    out->tm_year -= 1900;
    out->tm_mon--;
    time_t t = timegm(out); // fills in the days of the week and year
    return gmtime_r(&t, out) != NULL;
}

static struct value global_strftime_now(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct str format = {0};
    struct tm time;
    long microseconds;
    if (!arg_str(r, a[1], "strftime_now: the format", &format) || !now(r, &time, &microseconds))
        return value_error();
    size_t mark = r->out->n;
    for (size_t i = 0; i < format.n; i++) {
        char c = format.data[i];
        if (c != '%' || i + 1 >= format.n) {
            strbuf_char(r->out, c);
            continue;
        }
        // One directive at a time, with the flags and modifiers that C allows in it.
        size_t start = i++;
        while (i + 1 < format.n && strchr("-_^#0EO", format.data[i]))
            i++;
        c = format.data[i];
        if (c == 'f') {
            strbuf_printf(r->out, "%06ld", microseconds);
        } else if (c != 'z' && c != 'Z') { // a time without a zone prints nothing there
            char directive[16], text[256];
            size_t n = i + 1 - start;
            if (n >= sizeof directive)
                return fail(r, "strftime_now: Invalid format string");
            memcpy(directive, format.data + start, n);
            directive[n] = '\0';
            size_t written = strftime(text, sizeof text, directive, &time);
            strbuf_append(r->out, (struct str){text, written});
        }
    }
    return text_take(r, mark);
}

static const struct builtin GLOBALS[] = {
    {"range", global_range, 0, true, false, {0}},
    {"dict", global_dict, 0, true, false, {0}},
    {"namespace", global_namespace, 0, true, false, {0}},
    {"cycler", global_cycler, 0, true, false, {0}},
    {"joiner", global_joiner, 0, false, false, {"sep"}},
    {"raise_exception", global_raise, 1, false, false, {"message"}},
    {"strftime_now", global_strftime_now, 1, false, false, {"format"}},
};

const struct builtin *global_find(struct str name) {
    for (size_t i = 0; i < sizeof GLOBALS / sizeof *GLOBALS; i++)
        if (builtin_is_named(&GLOBALS[i], name))
            return &GLOBALS[i];
    return NULL;
}
