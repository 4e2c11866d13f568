#include "tokenizer/scanner.h"

#include "tokenizer/characters.h"

#define IN(class, mask) ((mask) >> (class)&1u)
#define LETTERS                                                                                    \
    (1u << CHAR_LU | 1u << CHAR_LT | 1u << CHAR_LL | 1u << CHAR_LM | 1u << CHAR_LO)
#define MARKS (1u << CHAR_M)
#define NUMBERS (1u << CHAR_N)
#define SYMBOLS (1u << CHAR_P | 1u << CHAR_S)
#define LINE_ENDS (1u << CHAR_LINE_END)
#define SPACES (1u << CHAR_SPACE | LINE_ENDS)
#define UPPER (1u << CHAR_LU | 1u << CHAR_LT | 1u << CHAR_LM | 1u << CHAR_LO | MARKS)
#define LOWER (1u << CHAR_LL | 1u << CHAR_LM | 1u << CHAR_LO | MARKS)
enum { ALL = 0xFFFF };

// The class of the character at `at`; *n is its length.
static inline uint32_t class_at(struct str text, size_t at, size_t *n) {
    return char_class(char_at(text.data + at, n));
}

// The end of the run of characters of `mask` at `at`.
static inline size_t run_end(struct str text, size_t at, uint32_t mask) {
    for (size_t n; at < text.n && IN(class_at(text, at, &n), mask);)
        at += n;
    return at;
}

static inline size_t run_of_bytes(struct str text, size_t at, bool slash) {
    while (at < text.n && (text.data[at] == '\r' || text.data[at] == '\n' ||
                           (slash && text.data[at] == '/')))
        at++;
    return at;
}

// '(s|t|re|ve|m|ll|d) at `at`; with `fold`, of either case, where U+017F is an s. Or `at`.
static inline size_t contraction(struct str text, size_t at, bool fold) {
    size_t left = text.n - at;
    if (left < 2 || text.data[at] != '\'')
        return at;
    uint8_t a = (uint8_t)text.data[at + 1], b = left > 2 ? (uint8_t)text.data[at + 2] : 0;
    if (fold) {
        if (a == 0xC5 && b == 0xBF)
            return at + 3;
        a |= a >= 'A' && a <= 'Z' ? 0x20 : 0;
        b |= b >= 'A' && b <= 'Z' ? 0x20 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    return at;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at a white space: up to the last line end of the run, else all of the run
// but the last character, which goes with what follows.
static inline size_t spaces_end(struct str text, size_t at, bool line_ends) {
    size_t end = at, last = at, past_line_end = at;
    for (size_t n; end < text.n; end += n) {
        uint32_t class = class_at(text, end, &n);
        if (!IN(class, SPACES))
            break;
        last = end;
        if (class == CHAR_LINE_END)
            past_line_end = end + 1;
    }
    if (line_ends && past_line_end > at)
        return past_line_end;
    return end == text.n || last == at ? end : last;
}

// What cl100k and those after it have in common.
struct family {
    bool contractions;    // (?i:'s|'t|'re|'ve|'m|'ll|'d) first
    uint32_t word;        // letters, perhaps with marks
    uint32_t not_before;  // what may not be the one character before a word
    uint32_t n_digits;    // a number's digits go by so many; 0: all together
    bool slash;           // punctuation takes / as well as line ends behind it
};

static inline size_t scan_family(struct str text, size_t at, const struct family family) {
    size_t n, n_next = 0;
    uint32_t class = class_at(text, at, &n);
    if (IN(class, family.word))
        return run_end(text, at + n, family.word);
    if (family.contractions && text.data[at] == '\'') {
        size_t end = contraction(text, at, true);
        if (end > at)
            return end;
    }
    bool more = at + n < text.n;
    uint32_t next = more ? class_at(text, at + n, &n_next) : CHAR_OTHER;
    if (more && IN(next, family.word) && !IN(class, family.not_before))
        return run_end(text, at + n + n_next, family.word);
    if (class == CHAR_N) {
        if (!family.n_digits)
            return run_end(text, at + n, NUMBERS);
        size_t end = at + n;
        for (uint32_t k = 1; k < family.n_digits && end < text.n; k++, end += n)
            if (class_at(text, end, &n) != CHAR_N)
                break;
        return end;
    }
    uint32_t other = ALL & ~(SPACES | NUMBERS | family.word);
    if (IN(class, other))
        return run_of_bytes(text, run_end(text, at + n, other), family.slash);
    if (text.data[at] == ' ' && more && IN(next, other))
        return run_of_bytes(text, run_end(text, at + n + n_next, other), family.slash);
    return spaces_end(text, at, true);
}

static size_t scan_gpt2(struct str text, size_t at) {
    size_t n, n_next, from = at;
    uint32_t class = class_at(text, at, &n);
    size_t end = contraction(text, at, false);
    if (end > at)
        return end;
    if (text.data[at] == ' ' && at + 1 < text.n) {
        uint32_t next = class_at(text, at + 1, &n_next);
        if (!IN(next, SPACES)) {
            class = next;
            from = at + 1;
        }
    }
    if (IN(class, LETTERS))
        return run_end(text, from, LETTERS);
    if (class == CHAR_N)
        return run_end(text, from, NUMBERS);
    if (!IN(class, SPACES))
        return run_end(text, from, ALL & ~(SPACES | NUMBERS | LETTERS));
    return spaces_end(text, at, false);
}

static size_t scan_cl100k(struct str text, size_t at) {
    return scan_family(text, at, (struct family){true, LETTERS, LETTERS | NUMBERS | LINE_ENDS, 3,
                                                 false});
}

static size_t scan_qwen2(struct str text, size_t at) {
    return scan_family(text, at, (struct family){true, LETTERS, LETTERS | NUMBERS | LINE_ENDS, 1,
                                                 false});
}

static size_t scan_qwen3_5(struct str text, size_t at) {
    return scan_family(text, at, (struct family){true, LETTERS | MARKS,
                                                 LETTERS | NUMBERS | LINE_ENDS, 1, false});
}

// [UPPER]*[LOWER]+ at `at`, or `at`: greedy, so where no Ll follows the UPPER run, the last character
// in it that is also LOWER must serve.
static size_t lower_word(struct str text, size_t at) {
    size_t shared_end = at, i = at;
    for (size_t n; i < text.n; i += n) {
        uint32_t class = class_at(text, i, &n);
        if (!IN(class, UPPER))
            break;
        if (IN(class, LOWER))
            shared_end = i + n;
    }
    size_t end = run_end(text, i, LOWER);
    return end > i ? end : shared_end;
}

// [UPPER]+[LOWER]* at `at`, or `at`.
static size_t upper_word(struct str text, size_t at) {
    size_t end = run_end(text, at, UPPER);
    return end > at ? run_end(text, end, LOWER) : at;
}

static inline size_t scan_o200k_family(struct str text, size_t at, bool contractions,
                                       uint32_t n_digits) {
    size_t n, end;
    uint32_t class = class_at(text, at, &n);
    bool may_precede = !IN(class, LETTERS | NUMBERS | LINE_ENDS);
    size_t behind = at + n, word = at;
    if (may_precede && (end = lower_word(text, behind)) > behind)
        word = end;
    else if ((end = lower_word(text, at)) > at)
        word = end;
    else if (may_precede && (end = upper_word(text, behind)) > behind)
        word = end;
    else
        word = upper_word(text, at);
    if (word > at)
        return contractions ? contraction(text, word, true) : word;
    // Not a word: numbers, punctuation and spaces as in cl100k.
    return scan_family(text, at, (struct family){false, LETTERS, ALL, n_digits, true});
}

static size_t scan_o200k(struct str text, size_t at) {
    return scan_o200k_family(text, at, true, 3);
}

static size_t scan_tekken(struct str text, size_t at) {
    return scan_o200k_family(text, at, false, 1);
}

static size_t scan_digits(struct str text, size_t at, uint32_t n_max) {
    for (size_t k = 0, n; k < n_max && at < text.n && class_at(text, at, &n) == CHAR_N; k++)
        at += n;
    return at;
}
static size_t scan_digit(struct str text, size_t at) {
    return scan_digits(text, at, 1);
}
static size_t scan_three_digits(struct str text, size_t at) {
    return scan_digits(text, at, 3);
}

static size_t scan_kana_or_han(struct str text, size_t at) {
    for (size_t n; at < text.n; at += n) {
        uint32_t c = char_at(text.data + at, &n);
        if (!(c >= 0x3040 && c <= 0x30FF) && !(c >= 0x4E00 && c <= 0x9FA5))
            break;
    }
    return at;
}

static bool is_ascii_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
static bool is_ascii_punctuation(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

static size_t scan_deepseek(struct str text, size_t at) {
    size_t n, n_next = 0, end = at + 1;
    if (is_ascii_punctuation(text.data[at])) {
        while (end < text.n && is_ascii_letter(text.data[end]))
            end++;
        if (end > at + 1)
            return end;
    }
    uint32_t class = class_at(text, at, &n);
    bool more = at + n < text.n;
    uint32_t next = more ? class_at(text, at + n, &n_next) : CHAR_OTHER;
    if (IN(class, LETTERS | MARKS))
        return run_end(text, at + n, LETTERS | MARKS);
    if (more && IN(next, LETTERS | MARKS) && !IN(class, LETTERS | SYMBOLS | LINE_ENDS))
        return run_end(text, at + n + n_next, LETTERS | MARKS);
    if (IN(class, SYMBOLS))
        return run_of_bytes(text, run_end(text, at + n, SYMBOLS), false);
    if (text.data[at] == ' ' && more && IN(next, SYMBOLS))
        return run_of_bytes(text, run_end(text, at + n + n_next, SYMBOLS), false);
    return IN(class, SPACES) ? spaces_end(text, at, true) : at;
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACE_TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K_LOWER                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
#define O200K_UPPER                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"

const struct scanner SCANNERS[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", scan_gpt2,
     true},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACE_TAIL,
     scan_cl100k, true},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACE_TAIL,
     scan_qwen2, true},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                  "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACE_TAIL,
     scan_qwen3_5, true},
    {O200K_LOWER CONTRACTIONS "?|" O200K_UPPER CONTRACTIONS
                              "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE_TAIL,
     scan_o200k, true},
    {O200K_LOWER "|" O200K_UPPER "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE_TAIL, scan_tekken,
     true},
    {"\\p{N}{1,3}", scan_three_digits, false},
    {"\\p{N}", scan_digit, false},
    {"[一-龥\u3040-ゟ゠-ヿ]+", scan_kana_or_han, false},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     scan_deepseek, false},
};
const size_t N_SCANNERS = sizeof SCANNERS / sizeof *SCANNERS;

const struct scanner *scanner_find(struct str pattern) {
    for (size_t i = 0; i < N_SCANNERS; i++)
        if (str_eq_c(pattern, SCANNERS[i].pattern))
            return &SCANNERS[i];
    return NULL;
}
