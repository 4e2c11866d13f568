#include "template/builtins.h"
#include "template/methods.h"
#include "template/number.h"

#define TEST(name, condition)                                                                      \
    static struct value name(struct render *r, struct value *a, const struct args *args) {         \
        (void)r;                                                                                   \
        (void)args;                                                                                \
        return value_bool(condition);                                                              \
    }

TEST(is_defined, a[0].type != V_UNDEFINED)
TEST(is_undefined, a[0].type == V_UNDEFINED)
TEST(is_none, a[0].type == V_NONE)
TEST(is_boolean, a[0].type == V_BOOL)
TEST(is_true, a[0].type == V_BOOL && a[0].b)
TEST(is_false, a[0].type == V_BOOL && !a[0].b)
TEST(is_int, a[0].type == V_INT || a[0].type == V_BIG)
TEST(is_float, a[0].type == V_FLOAT)
TEST(is_a_number, is_number(a[0]))
TEST(is_string, a[0].type == V_STR)
TEST(is_mapping, a[0].type == V_DICT)
TEST(is_iterable_test, is_iterable(a[0]))
TEST(is_escaped, a[0].type == V_STR && (a[0].flags & STR_MARKUP))

// What has a length and elements by position or key. An undefined value has both methods.
TEST(is_sequence, a[0].type == V_STR || is_sequence_object(a[0]) || a[0].type == V_DICT ||
                      a[0].type == V_RANGE || a[0].type == V_UNDEFINED)
TEST(is_callable, a[0].type == V_MACRO || a[0].type == V_FUNCTION || a[0].type == V_METHOD ||
                      a[0].type == V_LOOP || a[0].type == V_JOINER || a[0].type == V_UNDEFINED)

// Whether something of that name exists: the name is looked up as a key.
static struct value is_known(struct render *r, struct value v,
                             const struct builtin *(*find)(struct str name)) {
    if (!is_hashable(v))
        return fail(r, "unhashable type: '%s'", type_name(v));
    return value_bool(v.type == V_STR && find(str_of_value(v)));
}

static struct value is_filter(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return is_known(r, a[0], filter_find);
}

static struct value is_test(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return is_known(r, a[0], test_find);
}

static struct value has_rest(struct render *r, struct value v, struct value by, int64_t rest) {
    v = value_binary(r, OP_MOD, v, by);
    return is_error(v) ? v : value_compare(r, OP_EQ, v, value_int(rest));
}

static struct value is_odd(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return has_rest(r, a[0], value_int(2), 1);
}

static struct value is_even(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return has_rest(r, a[0], value_int(2), 0);
}

static struct value is_divisible(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    return has_rest(r, a[0], a[1], 0);
}

static struct value is_lower(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = to_str(r, a[0]);
    return is_error(v) ? v : value_bool(text_is_lower(str_of_value(v)));
}

static struct value is_upper(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    struct value v = to_str(r, a[0]);
    return is_error(v) ? v : value_bool(text_is_upper(str_of_value(v)));
}

// Python's "is". Small values have no identity of their own here: equal ones are the same.
static struct value is_same(struct render *r, struct value *a, const struct args *args) {
    (void)args;
    if (a[0].type != a[1].type)
        return value_bool(false);
    if (a[0].type == V_STR || is_number(a[0]) || a[0].type == V_NONE)
        return value_compare(r, OP_EQ, a[0], a[1]);
    return value_bool(a[0].type != V_UNDEFINED && a[0].object == a[1].object);
}

#define COMPARISON(name, op)                                                                       \
    static struct value name(struct render *r, struct value *a, const struct args *args) {         \
        (void)args;                                                                                \
        return value_compare(r, op, a[0], a[1]);                                                   \
    }
COMPARISON(is_equal, OP_EQ)
COMPARISON(is_not_equal, OP_NE)
COMPARISON(is_less, OP_LT)
COMPARISON(is_less_equal, OP_LE)
COMPARISON(is_greater, OP_GT)
COMPARISON(is_greater_equal, OP_GE)
COMPARISON(is_in, OP_IN)

#define ALONE(name, fn) {name, fn, 0, false, false, {0}}
#define WITH(name, fn, param) {name, fn, 1, false, false, {param}}

static const struct builtin TESTS[] = {
    ALONE("defined", is_defined),
    ALONE("undefined", is_undefined),
    ALONE("none", is_none),
    ALONE("boolean", is_boolean),
    ALONE("true", is_true),
    ALONE("false", is_false),
    ALONE("integer", is_int),
    ALONE("float", is_float),
    ALONE("number", is_a_number),
    ALONE("string", is_string),
    ALONE("mapping", is_mapping),
    ALONE("iterable", is_iterable_test),
    ALONE("sequence", is_sequence),
    ALONE("callable", is_callable),
    ALONE("escaped", is_escaped),
    ALONE("filter", is_filter),
    ALONE("test", is_test),
    ALONE("odd", is_odd),
    ALONE("even", is_even),
    WITH("divisibleby", is_divisible, "num"),
    ALONE("lower", is_lower),
    ALONE("upper", is_upper),
    WITH("sameas", is_same, "other"),
    WITH("in", is_in, "seq"),
    WITH("eq", is_equal, "b"),
    WITH("==", is_equal, "b"),
    WITH("equalto", is_equal, "b"),
    WITH("ne", is_not_equal, "b"),
    WITH("!=", is_not_equal, "b"),
    WITH("lt", is_less, "b"),
    WITH("<", is_less, "b"),
    WITH("lessthan", is_less, "b"),
    WITH("le", is_less_equal, "b"),
    WITH("<=", is_less_equal, "b"),
    WITH("gt", is_greater, "b"),
    WITH(">", is_greater, "b"),
    WITH("greaterthan", is_greater, "b"),
    WITH("ge", is_greater_equal, "b"),
    WITH(">=", is_greater_equal, "b"),
};

const struct builtin *test_find(struct str name) {
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++)
        if (builtin_is_named(&TESTS[i], name))
            return &TESTS[i];
    return NULL;
}
