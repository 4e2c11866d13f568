#include "grammar/format.h"

#include <assert.h>

#include "grammar/regex.h"

// RFC 3339, with the days that the month has and leap years; year 0000 is left out.
#define YEAR "(?:\\d{3}[1-9]|\\d{2}[1-9]0|\\d[1-9]00|[1-9]000)"
#define LEAP_YEAR                                                                                  \
    "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"                                   \
    "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP_YEAR "-02-29)"
#define OFFSET "(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define TIME                                                                                       \
    "(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?" OFFSET                                   \
    "|23:59:60(?:\\.\\d+)?(?:[Zz]|[+-]00:00))"
// RFC 3339, appendix A.
#define DURATION_TIME                                                                              \
    "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define DURATION                                                                                   \
    "P(?:\\d+W|" DURATION_TIME "|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)"              \
    "(?:" DURATION_TIME ")?)"
// RFC 1123; labels with hyphens third and fourth are punycode, which takes more than an automaton.
#define LABEL                                                                                      \
    "(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]?[A-Za-z0-9]"                                           \
    "|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}"          \
    "[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9]|-)[A-Za-z0-9])"
#define HOSTNAME LABEL "(?:\\." LABEL ")*"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
// RFC 3986, section 3.2.2.
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
    "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16             \
    ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16       \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16   \
    ")?::)"
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
// RFC 5321, section 4.1.2.
#define EMAIL_DOMAIN "(?:" HOSTNAME "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])"
#define EMAIL                                                                                      \
    "(?:" ATEXT "+(?:\\." ATEXT "+)*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@" EMAIL_DOMAIN
#define UTEXT "(?:" ATEXT "|[^\\x00-\\x7F])"
#define ULABEL "(?:[A-Za-z0-9]|[^\\x00-\\x7F])(?:(?:[A-Za-z0-9-]|[^\\x00-\\x7F])*(?:[A-Za-z0-9]|[^\\x00-\\x7F]))?"
#define IDN_EMAIL                                                                                  \
    "(?:" UTEXT "+(?:\\." UTEXT "+)*|\"(?:[ !#-\\[\\]-~]|[^\\x00-\\x7F]|\\\\[ -~])*\")@(?:" ULABEL \
    "(?:\\." ULABEL ")*|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])"
// RFC 3986, appendix A; X is what IRIs (RFC 3987) allow besides, P what they allow in queries.
#define UCS "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF\\u{10000}-\\u{EFFFD}"
#define PRIVATE "\\uE000-\\uF8FF\\u{F0000}-\\u{10FFFD}"
#define PCT "%[0-9A-Fa-f]{2}"
#define PCHAR(X) "(?:[A-Za-z0-9._~!$&'()*+,;=:@" X "-]|" PCT ")"
#define PCHAR_NC(X) "(?:[A-Za-z0-9._~!$&'()*+,;=@" X "-]|" PCT ")"
#define QCHAR(X) "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?" X "-]|" PCT ")"
#define REG_NAME(X) "(?:[A-Za-z0-9._~!$&'()*+,;=" X "-]|" PCT ")*"
#define HOST(X)                                                                                    \
    "(?:\\[(?:" IPV6 "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|" REG_NAME(X) ")"
#define AUTHORITY(X) "(?:" "(?:[A-Za-z0-9._~!$&'()*+,;=:" X "-]|" PCT ")*@)?" HOST(X) "(?::\\d*)?"
#define SEGMENTS(X) "(?:/" PCHAR(X) "*)*"
#define TAIL(X, P) "(?:\\?" QCHAR(X P) "*)?(?:#" QCHAR(X) "*)?"
#define ABSOLUTE(X) "/(?:" PCHAR(X) "+" SEGMENTS(X) ")?"
#define URI_(X, P)                                                                                   \
    "[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY(X) SEGMENTS(X) "|" ABSOLUTE(X) "|" PCHAR(X) "+"      \
    SEGMENTS(X) "|)" TAIL(X, P)
#define RELATIVE(X, P)                                                                               \
    "(?://" AUTHORITY(X) SEGMENTS(X) "|" ABSOLUTE(X) "|" PCHAR_NC(X) "+" SEGMENTS(X) "|)" TAIL(X, P)
#define POINTER "(?:/(?:[^~/]|~[01])*)*"
// RFC 6570, section 2.
#define VARCHAR "(?:[A-Za-z0-9_]|" PCT ")"
#define VARSPEC VARCHAR "(?:\\.?" VARCHAR ")*(?:\\*|:[1-9]\\d{0,3})?"
#define TEMPLATE                                                                                   \
    "(?:[!#$&-;=?-\\[\\]_a-z~" UCS "]|" PCT "|\\{[+#./;?&=,!@|]?" VARSPEC "(?:," VARSPEC ")*\\})*"

static const struct {
    const char *name, *regex;
    uint32_t chars_max; // 0: any
} FORMATS[] = {
    {"date", DATE, 0},
    {"time", TIME, 0},
    {"date-time", DATE "[Tt]" TIME, 0},
    {"duration", DURATION, 0},
    {"email", EMAIL, 0},
    {"idn-email", IDN_EMAIL, 0},
    {"hostname", HOSTNAME, 253},
    {"ipv4", IPV4, 0},
    {"ip-address", IPV4, 0},
    {"ipv6", IPV6, 0},
    {"uri", URI_("", ""), 0},
    {"uri-reference", "(?:" URI_("", "") "|" RELATIVE("", "") ")", 0},
    {"iri", URI_(UCS, PRIVATE), 0},
    {"iri-reference", "(?:" URI_(UCS, PRIVATE) "|" RELATIVE(UCS, PRIVATE) ")", 0},
    {"uri-template", TEMPLATE, 0},
    {"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}", 0},
    {"json-pointer", POINTER, 0},
    {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" POINTER ")", 0},
    {"regex", NULL, 0},
    {"idn-hostname", NULL, 0},
};

enum format_kind format_expr(struct exprs *x, struct str name, expr_id *out) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (!str_eq_c(name, FORMATS[i].name))
            continue;
        if (!FORMATS[i].regex)
            return FORMAT_UNENFORCED;
        struct err err = {0};
        *out = regex_expr(x, str_from(FORMATS[i].regex), SPELL_JSON, REGEX_WHOLE, &err);
        assert(err.code == ERR_OK || err.code == ERR_NOMEM);
        if (FORMATS[i].chars_max)
            *out = expr_and2(x, *out,
                             expr_rep(x, char_any(x, SPELL_JSON), 0, FORMATS[i].chars_max));
        return FORMAT_ENFORCED;
    }
    return FORMAT_UNKNOWN;
}
