#include "template/unicode.h"

#include <utf8proc.h>

#include "base/utf8.h"

// Characters whose class does not follow from their general category, and those that become
// several in another case. From the Unicode Character Database 15.0: UnicodeData.txt (numeric type
// digit; numeric value of letters), PropList.txt (Other_Uppercase, Other_Lowercase), SpecialCasing.txt.
static const uint32_t DIGITS[][2] = {
    {0xB2, 0xB3}, {0xB9, 0xB9}, {0x1369, 0x1371}, {0x19DA, 0x19DA}, {0x2070, 0x2070},
    {0x2074, 0x2079}, {0x2080, 0x2089}, {0x2460, 0x2468}, {0x2474, 0x247C}, {0x2488, 0x2490},
    {0x24EA, 0x24EA}, {0x24F5, 0x24FD}, {0x24FF, 0x24FF}, {0x2776, 0x277E}, {0x2780, 0x2788},
    {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A},
    {0x1F100, 0x1F10A},
};
static const uint32_t NUMERIC_LETTERS[][2] = {
    {0x3405, 0x3405}, {0x3483, 0x3483}, {0x382A, 0x382A}, {0x3B4D, 0x3B4D}, {0x4E00, 0x4E00},
    {0x4E03, 0x4E03}, {0x4E07, 0x4E07}, {0x4E09, 0x4E09}, {0x4E5D, 0x4E5D}, {0x4E8C, 0x4E8C},
    {0x4E94, 0x4E94}, {0x4E96, 0x4E96}, {0x4EBF, 0x4EC0}, {0x4EDF, 0x4EDF}, {0x4EE8, 0x4EE8},
    {0x4F0D, 0x4F0D}, {0x4F70, 0x4F70}, {0x5104, 0x5104}, {0x5146, 0x5146}, {0x5169, 0x5169},
    {0x516B, 0x516B}, {0x516D, 0x516D}, {0x5341, 0x5341}, {0x5343, 0x5345}, {0x534C, 0x534C},
    {0x53C1, 0x53C4}, {0x56DB, 0x56DB}, {0x58F1, 0x58F1}, {0x58F9, 0x58F9}, {0x5E7A, 0x5E7A},
    {0x5EFE, 0x5EFF}, {0x5F0C, 0x5F0E}, {0x5F10, 0x5F10}, {0x62FE, 0x62FE}, {0x634C, 0x634C},
    {0x67D2, 0x67D2}, {0x6F06, 0x6F06}, {0x7396, 0x7396}, {0x767E, 0x767E}, {0x8086, 0x8086},
    {0x842C, 0x842C}, {0x8CAE, 0x8CAE}, {0x8CB3, 0x8CB3}, {0x8D30, 0x8D30}, {0x9621, 0x9621},
    {0x9646, 0x9646}, {0x964C, 0x964C}, {0x9678, 0x9678}, {0x96F6, 0x96F6}, {0xF96B, 0xF96B},
    {0xF973, 0xF973}, {0xF978, 0xF978}, {0xF9B2, 0xF9B2}, {0xF9D1, 0xF9D1}, {0xF9D3, 0xF9D3},
    {0xF9FD, 0xF9FD}, {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200E2, 0x200E2},
    {0x20121, 0x20121}, {0x2092A, 0x2092A}, {0x20983, 0x20983}, {0x2098C, 0x2098C},
    {0x2099C, 0x2099C}, {0x20AEA, 0x20AEA}, {0x20AFD, 0x20AFD}, {0x20B19, 0x20B19},
    {0x22390, 0x22390}, {0x22998, 0x22998}, {0x23B1B, 0x23B1B}, {0x2626D, 0x2626D},
    {0x2F890, 0x2F890},
};
static const uint32_t OTHER_UPPER[][2] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
};
static const uint32_t OTHER_LOWER[][2] = {
    {0xAA, 0xAA}, {0xBA, 0xBA}, {0x2B0, 0x2B8}, {0x2C0, 0x2C1}, {0x2E0, 0x2E4}, {0x345, 0x345},
    {0x37A, 0x37A}, {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78}, {0x1D9B, 0x1DBF}, {0x2071, 0x2071},
    {0x207F, 0x207F}, {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9}, {0x2C7C, 0x2C7D},
    {0xA69C, 0xA69D}, {0xA770, 0xA770}, {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}, {0x10780, 0x10780},
    {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
};
static const struct {
    uint32_t from, upper[3], title[3];
} SPECIAL_CASES[] = {
    {0xDF, {0x53, 0x53}, {0x53, 0x73}},
    {0x149, {0x2BC, 0x4E}, {0x2BC, 0x4E}},
    {0x1F0, {0x4A, 0x30C}, {0x4A, 0x30C}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1E96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1E97, {0x54, 0x308}, {0x54, 0x308}},
    {0x1E98, {0x57, 0x30A}, {0x57, 0x30A}},
    {0x1E99, {0x59, 0x30A}, {0x59, 0x30A}},
    {0x1E9A, {0x41, 0x2BE}, {0x41, 0x2BE}},
    {0x1F50, {0x3A5, 0x313}, {0x3A5, 0x313}},
    {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
    {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
    {0x1F80, {0x1F08, 0x399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x399}, {0x1F89}},
    {0x1F82, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F84, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F85, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F86, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F88, {0x1F08, 0x399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x399}, {0x1F89}},
    {0x1F8A, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F8B, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F8C, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F8E, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F90, {0x1F28, 0x399}, {0x1F98}},
    {0x1F91, {0x1F29, 0x399}, {0x1F99}},
    {0x1F92, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F94, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F96, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F97, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1F98, {0x1F28, 0x399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x399}, {0x1F99}},
    {0x1F9A, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F9C, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F9D, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F9E, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1FA0, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FA2, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FA3, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FA4, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FA6, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FA8, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA9, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FAA, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FAC, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FAE, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FAF, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x399}, {0x1FBA, 0x345}},
    {0x1FB3, {0x391, 0x399}, {0x1FBC}},
    {0x1FB4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1FB6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1FBC, {0x391, 0x399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x399}, {0x1FCA, 0x345}},
    {0x1FC3, {0x397, 0x399}, {0x1FCC}},
    {0x1FC4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1FC6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1FCC, {0x397, 0x399}, {0x1FCC}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
    {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313}, {0x3A1, 0x313}},
    {0x1FE6, {0x3A5, 0x342}, {0x3A5, 0x342}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
    {0x1FF2, {0x1FFA, 0x399}, {0x1FFA, 0x345}},
    {0x1FF3, {0x3A9, 0x399}, {0x1FFC}},
    {0x1FF4, {0x38F, 0x399}, {0x38F, 0x345}},
    {0x1FF6, {0x3A9, 0x342}, {0x3A9, 0x342}},
    {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
    {0x1FFC, {0x3A9, 0x399}, {0x1FFC}},
    {0xFB00, {0x46, 0x46}, {0x46, 0x66}},
    {0xFB01, {0x46, 0x49}, {0x46, 0x69}},
    {0xFB02, {0x46, 0x4C}, {0x46, 0x6C}},
    {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}},
    {0xFB05, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB06, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB13, {0x544, 0x546}, {0x544, 0x576}},
    {0xFB14, {0x544, 0x535}, {0x544, 0x565}},
    {0xFB15, {0x544, 0x53B}, {0x544, 0x56B}},
    {0xFB16, {0x54E, 0x546}, {0x54E, 0x576}},
    {0xFB17, {0x544, 0x53D}, {0x544, 0x56D}},
};

static bool in_ranges(const uint32_t (*ranges)[2], size_t n, uint32_t c) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > ranges[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && c >= ranges[low][0];
}
#define IN_RANGES(ranges, c) in_ranges((ranges), sizeof(ranges) / sizeof *(ranges), (c))

static utf8proc_category_t category(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c); }

uint32_t unicode_next(struct str s, size_t *pos) {
    uint8_t byte = (uint8_t)s.data[*pos];
    if (byte < 0x80) {
        ++*pos;
        return byte;
    }
    uint32_t c = utf8_next(s, pos);
    return c == UTF8_INVALID ? 0xFFFD : c;
}

// Ill-formed bytes count one each in both directions: a character starts where decoding from the
// byte that could begin it ends exactly at *pos.
uint32_t unicode_before(struct str s, size_t *pos) {
    size_t end = *pos;
    for (size_t n = 1; n <= 4 && n <= end; n++) {
        uint8_t byte = (uint8_t)s.data[end - n];
        if ((byte & 0xC0) == 0x80)
            continue;
        size_t next = end - n;
        uint32_t c = unicode_next(s, &next);
        if (next == end) {
            *pos = end - n;
            return c;
        }
        break;
    }
    *pos = end - 1;
    return 0xFFFD;
}

size_t unicode_count(struct str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; n++)
        unicode_next(s, &i);
    return n;
}

size_t unicode_offset(struct str s, size_t index) {
    size_t i = 0;
    while (index-- > 0 && i < s.n)
        unicode_next(s, &i);
    return i;
}

bool unicode_is_space(uint32_t c) {
    if (c < 0x80)
        return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool unicode_is_alpha(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool unicode_is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

// Unicode keeps each script's ten digits together, in order, and some of those tens side by side.
int unicode_decimal_value(uint32_t c) {
    if (c >= '0' && c <= '9')
        return (int)(c - '0');
    if (c < 0x80 || !unicode_is_decimal(c))
        return -1;
    uint32_t first = c;
    while (unicode_is_decimal(first - 1))
        first--;
    return (int)((c - first) % 10);
}

bool unicode_is_digit(uint32_t c) { return unicode_is_decimal(c) || IN_RANGES(DIGITS, c); }

bool unicode_is_numeric(uint32_t c) {
    utf8proc_category_t k = category(c);
    return (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) || IN_RANGES(NUMERIC_LETTERS, c);
}

bool unicode_is_upper(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LU || IN_RANGES(OTHER_UPPER, c);
}

bool unicode_is_lower(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LL || IN_RANGES(OTHER_LOWER, c);
}

bool unicode_is_title(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool unicode_is_cased(uint32_t c) {
    return unicode_is_upper(c) || unicode_is_lower(c) || unicode_is_title(c);
}

bool unicode_is_printable(uint32_t c) {
    if (c < 0x80)
        return c >= 32 && c < 127;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

bool unicode_is_word(uint32_t c) {
    if (c < 0x80)
        return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';
    return unicode_is_alpha(c) || unicode_is_numeric(c);
}

bool unicode_is_identifier(struct str s) {
    for (size_t i = 0; i < s.n;) {
        bool first = i == 0;
        uint32_t c = unicode_next(s, &i);
        utf8proc_category_t k = category(c);
        bool starts = c == '_' || unicode_is_alpha(c) || k == UTF8PROC_CATEGORY_NL;
        bool goes_on = k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_MN ||
                       k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC;
        if (!starts && (first || !goes_on))
            return false;
    }
    return s.n > 0;
}

void unicode_append_case(struct strbuf *out, uint32_t c, enum unicode_case to) {
    if (c < 0x80) {
        bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
        if (to == CASE_UPPER || to == CASE_TITLE)
            c -= lower ? 32 : 0;
        else
            c += upper ? 32 : 0;
        strbuf_char(out, (char)c);
        return;
    }
    if (to == CASE_UPPER || to == CASE_TITLE) {
        size_t low = 0, high = sizeof SPECIAL_CASES / sizeof *SPECIAL_CASES;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (SPECIAL_CASES[middle].from < c)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < sizeof SPECIAL_CASES / sizeof *SPECIAL_CASES && SPECIAL_CASES[low].from == c) {
            const uint32_t *to_chars =
                to == CASE_UPPER ? SPECIAL_CASES[low].upper : SPECIAL_CASES[low].title;
            for (int k = 0; k < 3 && to_chars[k]; k++)
                strbuf_code_point(out, to_chars[k]);
            return;
        }
        utf8proc_int32_t mapped = to == CASE_UPPER ? utf8proc_toupper((utf8proc_int32_t)c)
                                                   : utf8proc_totitle((utf8proc_int32_t)c);
        strbuf_code_point(out, (uint32_t)mapped);
        return;
    }
    if (to == CASE_FOLD) {
        utf8proc_int32_t folded[8];
        int boundclass = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, folded, 8,
                                                     UTF8PROC_CASEFOLD, &boundclass);
        for (utf8proc_ssize_t k = 0; k < n && k < 8; k++)
            strbuf_code_point(out, (uint32_t)folded[k]);
        return;
    }
    if (c == 0x130) { // I with dot above: i and a combining dot
        strbuf_append(out, STR("i\xCC\x87"));
        return;
    }
    strbuf_code_point(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static bool is_case_ignorable(uint32_t c) {
    switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019 ||
               c == 0x2024 || c == 0x2027 || c == 0x387 || c == 0x55F || c == 0x5F4 || c == 0xFE13 ||
               c == 0xFE52 || c == 0xFE55 || c == 0xFF07 || c == 0xFF0E || c == 0xFF1A;
    }
}

// Whether the sigma in s before `end` ends a word: a cased letter before it and none behind it.
static bool is_final_sigma(struct str s, size_t start, size_t end) {
    uint32_t c = 0;
    bool before = false;
    for (size_t i = start; i > 0;) {
        c = unicode_before(s, &i);
        if (is_case_ignorable(c))
            continue;
        before = unicode_is_cased(c);
        break;
    }
    if (!before)
        return false;
    for (size_t i = end; i < s.n;) {
        c = unicode_next(s, &i);
        if (!is_case_ignorable(c))
            return !unicode_is_cased(c);
    }
    return true;
}

void unicode_append_case_at(struct strbuf *out, struct str s, size_t at, enum unicode_case to) {
    size_t end = at;
    uint32_t c = unicode_next(s, &end);
    if (c == 0x3A3 && to == CASE_LOWER)
        strbuf_code_point(out, is_final_sigma(s, at, end) ? 0x3C2 : 0x3C3);
    else
        unicode_append_case(out, c, to);
}

void unicode_append_case_from(struct strbuf *out, struct str s, size_t from, enum unicode_case to) {
    strbuf_reserve(out, s.n - from);
    for (size_t i = from; i < s.n;) {
        size_t start = i;
        unicode_next(s, &i);
        unicode_append_case_at(out, s, start, to);
    }
}

void unicode_append_str_case(struct strbuf *out, struct str s, enum unicode_case to) {
    unicode_append_case_from(out, s, 0, to);
}

struct str unicode_strip_space(struct str s, bool left, bool right) {
    size_t from = 0, to = s.n;
    while (left && from < to) {
        size_t next = from;
        if (!unicode_is_space(unicode_next(s, &next)))
            break;
        from = next;
    }
    while (right && to > from) {
        size_t before = to;
        if (!unicode_is_space(unicode_before(s, &before)))
            break;
        to = before;
    }
    return str_slice(s, from, to);
}
