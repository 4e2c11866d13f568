#include "base/utf8.h"

// Length of the valid sequence at p (n bytes there), or minus the length of the maximal ill-formed
// part: the longest prefix of some valid sequence, at least 1. Table 3-7 of the Unicode standard.
static int sequence_at(const uint8_t *p, size_t n, bool *cut_short) {
    *cut_short = false;
    uint8_t a = p[0];
    if (a < 0x80)
        return 1;
    int len;
    uint8_t low = 0x80, high = 0xBF; // the second byte's range
    if (a >= 0xC2 && a <= 0xDF) {
        len = 2;
    } else if (a >= 0xE0 && a <= 0xEF) {
        len = 3;
        if (a == 0xE0)
            low = 0xA0;
        if (a == 0xED)
            high = 0x9F;
    } else if (a >= 0xF0 && a <= 0xF4) {
        len = 4;
        if (a == 0xF0)
            low = 0x90;
        if (a == 0xF4)
            high = 0x8F;
    } else {
        return -1;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) {
            *cut_short = true;
            return -i;
        }
        if (p[i] < low || p[i] > high)
            return -i;
        low = 0x80;
        high = 0xBF;
    }
    return len;
}

uint32_t utf8_next(struct str s, size_t *pos) {
    const uint8_t *p = (const uint8_t *)s.data + *pos;
    bool cut;
    int len = sequence_at(p, s.n - *pos, &cut);
    if (len < 0) {
        *pos += 1;
        return UTF8_INVALID;
    }
    *pos += (size_t)len;
    switch (len) {
    case 1:
        return p[0];
    case 2:
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3Fu);
    case 3:
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3Fu);
    default:
        return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
               (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3Fu);
    }
}

size_t utf8_encode(uint32_t c, char out[4]) {
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        c = 0xFFFD;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

bool utf8_valid(struct str s) {
    bool cut;
    for (size_t i = 0; i < s.n;) {
        int len = sequence_at((const uint8_t *)s.data + i, s.n - i, &cut);
        if (len < 0)
            return false;
        i += (size_t)len;
    }
    return true;
}

size_t utf8_incomplete_tail(struct str s) {
    size_t longest = s.n < 3 ? s.n : 3;
    for (size_t back = 1; back <= longest; back++) {
        uint8_t lead = (uint8_t)s.data[s.n - back];
        if ((lead & 0xC0) == 0x80)
            continue; // a continuation byte: look further back for its lead
        bool cut;
        sequence_at((const uint8_t *)s.data + (s.n - back), back, &cut);
        return cut ? back : 0;
    }
    return 0;
}

void utf8_append_lossy(struct strbuf *out, struct str s) {
    size_t good_from = 0;
    bool cut;
    for (size_t i = 0; i < s.n;) {
        int len = sequence_at((const uint8_t *)s.data + i, s.n - i, &cut);
        if (len > 0) {
            i += (size_t)len;
            continue;
        }
        strbuf_append(out, str_slice(s, good_from, i));
        strbuf_append(out, STR("\xEF\xBF\xBD"));
        i += (size_t)-len;
        good_from = i;
    }
    strbuf_append(out, str_slice(s, good_from, s.n));
}
