// str % values and str.format(): Python's two ways of laying out values.
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "template/number.h"
#include "template/text.h"
#include "template/unicode.h"

enum { PRECISION_MAX = 4000, FLOAT_TEXT_BYTES = PRECISION_MAX + 400 };

// How one value is laid out, in both ways.
struct layout {
    uint32_t fill;      // a character; 0 if none was given
    char align;         // '<' '>' '^' '=', or 0
    char sign;          // '+' ' ' '-', or 0
    bool alternate;     // '#'
    bool zero;          // '0' in front of the width
    char grouping;      // ',' '_' or 0
    int64_t width;      // 0 if none
    int64_t precision;  // -1 if none
    char type;          // 0 if none
};

// A number's parts are put together: sign and prefix, filling, digits in groups, the rest.
static struct value append_number(struct render *r, const struct layout *l, const char *sign,
                                  const char *prefix, struct str digits, struct str rest, int group) {
    char align = l->align ? l->align : l->zero ? '=' : '>';
    uint32_t fill = l->fill ? l->fill : l->zero ? '0' : ' ';
    if ((uint64_t)l->width > r->output_bytes_max)
        return fail(r, "a width of %lld is more than the output may have", (long long)l->width);
    int64_t fixed = (int64_t)(strlen(sign) + strlen(prefix) + rest.n), n = (int64_t)digits.n, zeros = 0;
    int64_t n_grouped = l->grouping && n ? n + (n - 1) / group : n;
    if (l->grouping && align == '=' && fill == '0')
        while (fixed + n_grouped < l->width) { // groups go on through the filling zeros
            zeros++;
            n_grouped = n + zeros + (n + zeros - 1) / group;
        }
    int64_t more = l->width - fixed - n_grouped, left = 0, inside = 0;
    more = more < 0 ? 0 : more;
    if (align == '>')
        left = more;
    else if (align == '^')
        left = more / 2;
    else if (align == '=')
        inside = more;
    for (int64_t i = 0; i < left; i++)
        strbuf_code_point(r->out, fill);
    strbuf_append_c(r->out, sign);
    strbuf_append_c(r->out, prefix);
    for (int64_t i = 0; i < inside; i++)
        strbuf_code_point(r->out, fill);
    for (int64_t i = 0; i < n + zeros; i++) {
        if (l->grouping && i && (n + zeros - i) % group == 0)
            strbuf_char(r->out, l->grouping);
        strbuf_char(r->out, i < zeros ? '0' : digits.data[i - zeros]);
    }
    strbuf_append(r->out, rest);
    for (int64_t i = left + inside; i < more; i++)
        strbuf_code_point(r->out, fill);
    return value_none();
}

static const char *sign_of(const struct layout *l, bool negative) {
    return negative ? "-" : l->sign == '+' ? "+" : l->sign == ' ' ? " " : "";
}

static void to_upper(char *text) {
    for (; *text; text++)
        *text = (char)toupper((unsigned char)*text);
}

// The digits of |f| without sign, in the manner of l->type.
static bool float_digits(const struct layout *l, double f, char *out, size_t n) {
    char type = l->type ? l->type : 0;
    int precision = (int)l->precision;
    f = fabs(f);
    if (isnan(f) || isinf(f)) {
        snprintf(out, n, "%s", isnan(f) ? "nan" : "inf");
    } else if (!type && precision < 0) {
        struct strbuf text = {0};
        number_append_float(&text, f);
        snprintf(out, n, "%.*s", (int)text.n, text.data ? text.data : "");
        bool ok = !text.failed;
        strbuf_deinit(&text);
        return ok;
    } else if (!type) { // as 'g', but it always shows that it is a float
        precision = precision ? precision : 1;
        char probe[FLOAT_TEXT_BYTES];
        snprintf(probe, sizeof probe, "%.*e", precision - 1, f);
        int exponent = atoi(strchr(probe, 'e') + 1);
        if (exponent < -4 || exponent >= precision - 1) {
            char *e = strchr(probe, 'e');
            char tail[16];
            snprintf(tail, sizeof tail, "%s", e);
            *e = '\0';
            if (strchr(probe, '.')) {
                while (e[-1] == '0')
                    *--e = '\0';
                if (e[-1] == '.')
                    *--e = '\0';
            }
            snprintf(out, n, "%s%s", probe, tail);
        } else {
            snprintf(out, n, "%.*g", precision, f);
            if (!strchr(out, '.'))
                snprintf(out + strlen(out), n - strlen(out), ".0");
        }
    } else {
        char format[8] = {'%', '.', '*', 0}, conversion = (char)tolower((unsigned char)type);
        size_t at = 3;
        if (l->alternate) {
            format[1] = '#';
            format[2] = '.';
            format[3] = '*';
            at = 4;
        }
        conversion = conversion == 'n' ? 'g' : conversion == '%' ? 'f' : conversion;
        format[at++] = conversion;
        format[at] = '\0';
        // The format is made of the constants above: '%', '#', '.', '*' and one of e, f, g.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(out, n, format, precision < 0 ? 6 : precision, type == '%' ? f * 100 : f);
#pragma GCC diagnostic pop
        if (type == '%')
            snprintf(out + strlen(out), n - strlen(out), "%%");
    }
    if (isupper((unsigned char)type))
        to_upper(out);
    return true;
}

static struct value layout_float(struct render *r, const struct layout *l, double f) {
    char text[FLOAT_TEXT_BYTES];
    if (l->precision > PRECISION_MAX)
        return fail(r, "a precision of more than %d digits", PRECISION_MAX);
    if (!float_digits(l, f, text, sizeof text))
        return fail_nomem(r);
    bool negative = signbit(f) && !isnan(f);
    size_t n = strspn(text, "0123456789");
    return append_number(r, l, sign_of(l, negative), "", (struct str){text, n}, str_from(text + n), 3);
}

static struct value layout_int(struct render *r, const struct layout *l, struct value v) {
    char type = l->type ? l->type : 'd';
    int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    size_t mark = r->out->n;
    number_append_digits(r->out, v, base);
    struct value digits = text_take(r, mark);
    if (is_error(digits))
        return digits;
    const char *prefix = !l->alternate || base == 10 ? "" : base == 16 ? "0x" : base == 8 ? "0o" : "0b";
    if (type == 'X') {
        prefix = l->alternate ? "0X" : "";
        for (uint32_t i = 0; i < digits.n; i++) // the text was made just now: it is ours to change
            ((char *)digits.s)[i] = (char)toupper((unsigned char)digits.s[i]);
    }
    struct str text = str_of_value(digits);
    return append_number(r, l, sign_of(l, number_is_negative(v)), prefix, text, STR(""),
                         base == 10 ? 3 : 4);
}

static struct value layout_text(struct render *r, const struct layout *l, struct str s, char align) {
    if (l->precision >= 0)
        s.n = unicode_offset(s, (size_t)l->precision);
    int64_t n = (int64_t)unicode_count(s), more = l->width > n ? l->width - n : 0, left = 0;
    if ((uint64_t)more > r->output_bytes_max)
        return fail(r, "a width of %lld is more than the output may have", (long long)l->width);
    align = l->align ? l->align : align;
    if (align == '>')
        left = more;
    else if (align == '^')
        left = more / 2;
    uint32_t fill = l->fill ? l->fill : l->zero ? '0' : ' ';
    for (int64_t i = 0; i < left; i++)
        strbuf_code_point(r->out, fill);
    strbuf_append(r->out, s);
    for (int64_t i = left; i < more; i++)
        strbuf_code_point(r->out, fill);
    return value_none();
}

// repr(v) or ascii(v).
static struct value repr_of(struct render *r, struct value v, bool ascii) {
    size_t mark = r->out->n;
    struct value text = append_repr(r, v) ? text_take(r, mark) : value_error();
    if (is_error(text) || !ascii)
        return text;
    for (size_t i = 0; i < text.n;) {
        uint32_t c = unicode_next(str_of_value(text), &i);
        if (c < 0x80)
            strbuf_char(r->out, (char)c);
        else
            strbuf_printf(r->out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    return text_take(r, mark);
}

// ---- str % values -----------------------------------------------------------------------------

struct percent {
    struct render *r;
    struct value all;         // the right operand
    const struct value *args; // what is consumed one by one
    uint32_t n, at;
    bool mapping; // %(name)s may be used, and nothing need be consumed
    bool markup;  // texts are escaped
};

static bool next_arg(struct percent *p, struct value *out) {
    if (p->at >= p->n) {
        fail(p->r, "not enough arguments for format string");
        return false;
    }
    *out = p->args[p->at++];
    return true;
}

static bool percent_number(struct percent *p, struct str s, size_t *i, int64_t *out) {
    if (*i < s.n && s.data[*i] == '*') {
        struct value v;
        ++*i;
        if (!next_arg(p, &v))
            return false;
        if (!is_integer(v)) {
            fail(p->r, "* wants int");
            return false;
        }
        *out = number_clamp(v);
        return true;
    }
    int64_t n = 0;
    for (; *i < s.n && s.data[*i] >= '0' && s.data[*i] <= '9'; ++*i)
        if (n < INT32_MAX)
            n = n * 10 + (s.data[*i] - '0');
    *out = n;
    return true;
}

static struct value percent_value(struct percent *p, struct layout *l, struct value v) {
    struct render *r = p->r;
    switch (l->type) {
    case 's':
    case 'r':
    case 'a': {
        struct value text;
        if (l->type == 's') {
            text = p->markup ? escape(r, v) : to_str(r, v);
        } else {
            text = repr_of(r, v, l->type == 'a');
        }
        if (is_error(text))
            return text;
        l->zero = false;
        return layout_text(r, l, str_of_value(text), '>');
    }
    case 'c': {
        struct strbuf *out = r->out;
        size_t mark = out->n;
        if (v.type == V_STR && unicode_count(str_of_value(v)) == 1)
            strbuf_append(out, str_of_value(v));
        else if (is_integer(v) && number_clamp(v) >= 0 && number_clamp(v) <= 0x10FFFF)
            strbuf_code_point(out, (uint32_t)number_clamp(v));
        else
            return fail(r, "%%c requires int or char");
        struct value text = text_take(r, mark);
        l->zero = false;
        l->precision = -1;
        return is_error(text) ? text : layout_text(r, l, str_of_value(text), '>');
    }
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X': {
        bool decimal = l->type == 'd' || l->type == 'i' || l->type == 'u';
        if (v.type == V_FLOAT && decimal) {
            if (!isfinite(v.f))
                return fail(r, "cannot convert float %s to integer", isnan(v.f) ? "NaN" : "infinity");
            v = number_int_from_float(&r->arena, v.f);
            if (is_error(v))
                return fail_nomem(r);
        }
        if (!is_integer(v))
            return fail(r, "%%%c format: %s is required, not %s", l->type,
                        decimal ? "a real number" : "an integer", type_name(v));
        l->type = decimal ? 'd' : l->type;
        if (l->precision >= 0) { // at least so many digits
            struct layout digits = {.type = l->type, .width = l->precision, .fill = '0', .precision = -1};
            struct value magnitude = number_is_negative(v) ? number_negate(&r->arena, v) : v;
            size_t mark = r->out->n;
            struct value text = is_error(magnitude) ? fail_nomem(r) : layout_int(r, &digits, magnitude);
            if (is_error(text) || is_error(text = text_take(r, mark)))
                return text;
            const char *prefix = !l->alternate || decimal ? "" : l->type == 'o' ? "0o"
                                                             : l->type == 'x'   ? "0x"
                                                                                : "0X";
            return append_number(r, l, sign_of(l, number_is_negative(v)), prefix, str_of_value(text),
                                 STR(""), 3);
        }
        return layout_int(r, l, v);
    }
    default: // e E f F g G
        if (v.type == V_UNDEFINED)
            return fail_undefined(r, v);
        if (!is_number(v))
            return fail(r, "must be real number, not %s", type_name(v));
        return layout_float(r, l, number_to_double(v));
    }
}

// One directive; s.data[*i] is behind the '%'.
static struct value percent_directive(struct percent *p, struct str s, size_t *i) {
    struct render *r = p->r;
    struct layout l = {.precision = -1};
    struct value named = value_missing();
    if (*i < s.n && s.data[*i] == '(') {
        size_t start = ++*i;
        int open = 1;
        for (; *i < s.n; ++*i) {
            open += s.data[*i] == '(' ? 1 : s.data[*i] == ')' ? -1 : 0;
            if (!open)
                break;
        }
        if (*i >= s.n)
            return fail(r, "incomplete format key");
        if (p->all.type != V_DICT)
            return fail(r, "format requires a mapping");
        struct str key = str_slice(s, start, (*i)++);
        const struct value *there = dict_find_str(p->all.dict, key);
        if (!there)
            return fail(r, "'%.*s' is not a key of the mapping", (int)key.n, key.data);
        named = *there;
    }
    for (; *i < s.n && strchr("-+ #0", s.data[*i]) && s.data[*i]; ++*i) {
        char c = s.data[*i];
        if (c == '-')
            l.align = '<';
        else if (c == '0')
            l.zero = true;
        else if (c == '#')
            l.alternate = true;
        else if (l.sign != '+')
            l.sign = c;
    }
    if (!percent_number(p, s, i, &l.width))
        return value_error();
    if (l.width < 0) {
        l.align = '<';
        l.width = l.width == INT64_MIN ? INT64_MAX : -l.width;
    }
    if (*i < s.n && s.data[*i] == '.') {
        ++*i;
        if (!percent_number(p, s, i, &l.precision))
            return value_error();
        l.precision = l.precision < 0 ? 0 : l.precision;
        if (l.precision > PRECISION_MAX * 1000)
            return fail(r, "precision too big");
    }
    if (*i < s.n && strchr("hlL", s.data[*i]) && s.data[*i])
        ++*i;
    if (*i >= s.n)
        return fail(r, "incomplete format");
    l.type = s.data[(*i)++];
    if (l.type == '%') {
        strbuf_char(r->out, '%');
        return value_none();
    }
    if (!l.type || !strchr("diuoxXeEfFgGcrsa", l.type))
        return fail(r, "unsupported format character '%c' (0x%x)", l.type, (unsigned)(uint8_t)l.type);
    if (l.align == '<')
        l.zero = false;
    if (is_missing(named) && !next_arg(p, &named))
        return value_error();
    return percent_value(p, &l, named);
}

struct value format_percent(struct render *r, struct value format, struct value args) {
    struct percent p = {.r = r, .all = args, .args = &args, .n = 1, .markup = format.flags != 0};
    p.mapping = args.type == V_DICT || args.type == V_LIST || args.type == V_RANGE ||
                args.type == V_UNDEFINED;
    if (args.type == V_TUPLE) {
        p.args = args.list->items;
        p.n = args.list->n;
    }
    struct str s = str_of_value(format);
    size_t mark = r->out->n;
    for (size_t i = 0; i < s.n;) {
        const char *percent = memchr(s.data + i, '%', s.n - i);
        size_t end = percent ? (size_t)(percent - s.data) : s.n;
        strbuf_append(r->out, str_slice(s, i, end));
        i = end;
        if (!percent)
            break;
        i++;
        if (is_error(percent_directive(&p, s, &i)) || !output_check(r))
            return value_error();
    }
    if (p.at < p.n && !p.mapping)
        return fail(r, "not all arguments converted during string formatting");
    struct value v = text_take(r, mark);
    v.flags = is_error(v) ? 0 : format.flags;
    return v;
}

// ---- str.format -------------------------------------------------------------------------------

struct braces {
    struct render *r;
    const struct args *args;
    uint32_t automatic; // the next automatic number
    bool manual;
    bool markup;
};

static struct value format_value(struct render *r, struct value v, struct str spec, bool markup);

// "name.attr[key]" to its value.
static struct value field_value(struct braces *b, struct str name) {
    struct render *r = b->r;
    size_t i = 0;
    while (i < name.n && name.data[i] != '.' && name.data[i] != '[')
        i++;
    struct str first = str_slice(name, 0, i);
    bool digits = true;
    uint64_t index = 0;
    for (size_t k = 0; k < first.n; k++) {
        digits &= first.data[k] >= '0' && first.data[k] <= '9';
        index = index < UINT32_MAX ? index * 10 + (uint64_t)(first.data[k] - '0') : index;
    }
    struct value v = value_missing();
    if (digits) {
        if (first.n ? b->automatic > 0 : b->manual)
            return fail(r, "cannot switch between manual and automatic field numbering");
        if (first.n)
            b->manual = true;
        else
            index = b->automatic++;
        if (index >= b->args->n)
            return fail(r, "Replacement index %llu out of range for positional args tuple",
                        (unsigned long long)index);
        v = b->args->items[index];
    } else {
        for (uint32_t k = 0; k < b->args->n_keywords; k++)
            if (str_eq(b->args->keywords[k].name, first))
                v = b->args->keywords[k].value;
        if (is_missing(v))
            return fail(r, "'%.*s' is not among the arguments of format()", (int)first.n, first.data);
    }
    while (i < name.n && !is_error(v)) {
        size_t start = i + 1, end = start;
        if (name.data[i] == '.') {
            while (end < name.n && name.data[end] != '.' && name.data[end] != '[')
                end++;
            if (end == start)
                return fail(r, "Empty attribute in format string");
            v = get_attribute_named(r, v, str_slice(name, start, end));
            i = end;
            continue;
        }
        if (name.data[i] != '[')
            return fail(r, "Only '.' or '[' may follow ']' in format field specifier");
        while (end < name.n && name.data[end] != ']')
            end++;
        if (end >= name.n || end == start)
            return fail(r, "Missing ']' in format string");
        struct str key = str_slice(name, start, end);
        struct value number = value_str(key);
        bool is_index = key.n < 18;
        int64_t k = 0;
        for (size_t d = 0; d < key.n && is_index; d++) {
            is_index = key.data[d] >= '0' && key.data[d] <= '9';
            k = k * 10 + (key.data[d] - '0');
        }
        v = get_item(r, v, is_index ? value_int(k) : number);
        i = end + 1;
    }
    return v;
}

static bool append_format(struct braces *b, struct str s, int depth);

// One "{...}": s.data[*i] is behind the brace.
static bool append_field(struct braces *b, struct str s, size_t *i, int depth) {
    struct render *r = b->r;
    size_t start = *i, end = start;
    int open = 1;
    size_t name_end = SIZE_MAX;
    bool in_key = false;
    for (; end < s.n; end++) {
        char c = s.data[end];
        if (name_end == SIZE_MAX && c == '[')
            in_key = true;
        else if (c == ']')
            in_key = false;
        if (in_key)
            continue;
        if (name_end == SIZE_MAX && (c == ':' || c == '!') && open == 1)
            name_end = end;
        open += c == '{' ? 1 : c == '}' ? -1 : 0;
        if (!open)
            break;
    }
    if (open) {
        fail(r, "expected '}' before end of string");
        return false;
    }
    *i = end + 1;
    if (name_end == SIZE_MAX)
        name_end = end;
    struct value v = field_value(b, str_slice(s, start, name_end));
    if (is_error(v))
        return false;
    size_t spec_start = name_end;
    if (name_end < end && s.data[name_end] == '!') {
        char conversion = name_end + 1 < end ? s.data[name_end + 1] : 0;
        spec_start = name_end + 2;
        if (spec_start > end || (spec_start < end && s.data[spec_start] != ':')) {
            fail(r, "expected ':' after conversion specifier");
            return false;
        }
        if (conversion == 's')
            v = to_str(r, v);
        else if (conversion == 'r' || conversion == 'a')
            v = repr_of(r, v, conversion == 'a');
        else
            v = fail(r, "unknown conversion specifier");
        if (is_error(v))
            return false;
    }
    struct str spec = STR("");
    if (spec_start < end) {
        spec = str_slice(s, spec_start + 1, end);
        if (memchr(spec.data, '{', spec.n)) { // fields inside the layout
            if (depth >= 2) {
                fail(r, "Max string recursion exceeded");
                return false;
            }
            size_t mark = r->out->n;
            if (!append_format(b, spec, depth + 1))
                return false;
            struct value text = text_take(r, mark);
            if (is_error(text))
                return false;
            spec = str_of_value(text);
        }
    }
    return !is_error(format_value(r, v, spec, b->markup)) && output_check(r);
}

static bool append_format(struct braces *b, struct str s, int depth) {
    for (size_t i = 0; i < s.n;) {
        char c = s.data[i++];
        if (c != '{' && c != '}') {
            strbuf_char(b->r->out, c);
        } else if (i < s.n && s.data[i] == c) {
            strbuf_char(b->r->out, c);
            i++;
        } else if (c == '}') {
            fail(b->r, "Single '}' encountered in format string");
            return false;
        } else if (i >= s.n) {
            fail(b->r, "Single '{' encountered in format string");
            return false;
        } else if (!append_field(b, s, &i, depth)) {
            return false;
        }
    }
    return true;
}

struct value format_braces(struct render *r, struct value format, const struct args *args) {
    struct braces b = {.r = r, .args = args, .markup = format.flags != 0};
    size_t mark = r->out->n;
    if (!append_format(&b, str_of_value(format), 1))
        return value_error();
    struct value v = text_take(r, mark);
    v.flags = is_error(v) ? 0 : format.flags;
    return v;
}

// "[[fill]align][sign][#][0][width][grouping][.precision][type]"
static bool parse_layout(struct render *r, struct str spec, struct layout *l) {
    *l = (struct layout){.precision = -1};
    size_t i = 0, behind = 0;
    if (spec.n) {
        uint32_t first = unicode_next(spec, &behind);
        if (behind < spec.n && strchr("<>=^", spec.data[behind]) && spec.data[behind]) {
            l->fill = first;
            l->align = spec.data[behind];
            i = behind + 1;
        } else if (first < 0x80 && first && strchr("<>=^", (int)first)) {
            l->align = (char)first;
            i = 1;
        }
    }
    if (i < spec.n && (spec.data[i] == '+' || spec.data[i] == '-' || spec.data[i] == ' '))
        l->sign = spec.data[i++];
    if (i < spec.n && spec.data[i] == '#') {
        l->alternate = true;
        i++;
    }
    if (i < spec.n && spec.data[i] == '0') {
        l->zero = true;
        i++;
    }
    for (; i < spec.n && spec.data[i] >= '0' && spec.data[i] <= '9'; i++)
        if (l->width < INT32_MAX)
            l->width = l->width * 10 + (spec.data[i] - '0');
    if (i < spec.n && (spec.data[i] == ',' || spec.data[i] == '_'))
        l->grouping = spec.data[i++];
    if (i < spec.n && spec.data[i] == '.') {
        size_t start = ++i;
        l->precision = 0;
        for (; i < spec.n && spec.data[i] >= '0' && spec.data[i] <= '9'; i++)
            if (l->precision < INT32_MAX)
                l->precision = l->precision * 10 + (spec.data[i] - '0');
        if (i == start) {
            fail(r, "Format specifier missing precision");
            return false;
        }
    }
    if (i < spec.n)
        l->type = spec.data[i++];
    if (i < spec.n) {
        fail(r, "Invalid format specifier '%.*s'", (int)spec.n, spec.data);
        return false;
    }
    return true;
}

static struct value unknown_code(struct render *r, const struct layout *l, struct value v) {
    return fail(r, "Unknown format code '%c' for object of type '%s'", l->type, type_name(v));
}

// format(v, spec) at the end of r->out.
static struct value format_value(struct render *r, struct value v, struct str spec, bool markup) {
    if (!spec.n || v.type == V_UNDEFINED) {
        if (spec.n)
            return fail(r, "unsupported format string passed to Undefined.__format__");
        if (markup)
            v = escape(r, v);
        return !is_error(v) && append_str(r, v) ? value_none() : value_error();
    }
    struct layout l;
    if (!is_str(v) && !is_number(v))
        return fail(r, "unsupported format string passed to %s.__format__", type_name(v));
    if (!parse_layout(r, spec, &l))
        return value_error();
    if (is_str(v)) {
        if (l.type && l.type != 's')
            return unknown_code(r, &l, v);
        if (l.sign || l.alternate || l.align == '=' || l.grouping)
            return fail(r, "Sign, '#', '=' and grouping are not allowed in string format specifier");
        if (markup)
            v = escape(r, v);
        return is_error(v) ? v : layout_text(r, &l, str_of_value(v), '<');
    }
    if (is_integer(v) && (!l.type || strchr("bcdoxXn", l.type))) {
        if (l.precision >= 0)
            return fail(r, "Precision not allowed in integer format specifier");
        if (l.type == 'c') {
            if (number_clamp(v) < 0 || number_clamp(v) > 0x10FFFF)
                return fail(r, "%%c arg not in range(0x110000)");
            size_t mark = r->out->n;
            strbuf_code_point(r->out, (uint32_t)number_clamp(v));
            struct value text = text_take(r, mark);
            return is_error(text) ? text : layout_text(r, &l, str_of_value(text), '<');
        }
        if (l.grouping == ',' && l.type && l.type != 'd')
            return fail(r, "Cannot specify ',' with '%c'.", l.type);
        l.type = l.type == 'n' ? 'd' : l.type;
        return layout_int(r, &l, v);
    }
    if (l.type && !strchr("eEfFgGn%", l.type))
        return unknown_code(r, &l, v);
    return layout_float(r, &l, number_to_double(v));
}
