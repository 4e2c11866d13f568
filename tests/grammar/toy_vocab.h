// tests/grammar/toy_vocab.h - a vocabulary small enough to try every token at every step: all single
// bytes, and pieces that join what grammars keep apart.
#ifndef LOAM_TESTS_GRAMMAR_TOY_VOCAB_H
#define LOAM_TESTS_GRAMMAR_TOY_VOCAB_H
#include "check.h"
#include "grammar/vocab.h"

#define TOY_A16 "aaaaaaaaaaaaaaaa"
enum { TOY_SPECIAL = 0, TOY_EOS = 1, TOY_FIRST_BYTE = 2, TOY_TOKENS_MAX = 512 };

// With `pieces`: token 0 is the special "<call>", token 1 ends, then the 256 bytes, then the pieces.
static inline struct grammar_vocab *toy_vocab(bool pieces) {
    static const char *const PIECES[] = {
        "\": ", "\",", "\", \"", "{\"", "\"}", "[[", "]]", "}, {", " ", "  ", "   ", "\n", "\n  ",
        "\n    ", "\r\n", "\t\t", ", ", ",\n", ": ", ":", "true", "false", "null", "tr", "ue", "12",
        "123", "0.", "0.5", "-1", "1e", "e+1", "ab", "abc", "b", "foo", "fo", "o", "bar", "name",
        "\"name", "\"name\":", "na", "me\"", "\\\"", "\\n", "\\", "\\u", "\\u00", "00e9", "d83d\\u",
        "\xC3", "\xA9", "\xC3\xA9", "\xF0\x9F", "\x98\x80", "\xF0\x9F\x98\x80", "a\xC3", "\xA9z",
        "a b", "ab cd", "hello", " hello", "Hello, world", "x\"", "x\",", "a\"}", "  \"", " {", "\n}",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "2026-", "-12", "01", "http://",
        "://", "@", ".com", "<call", ">", "<call>", "</call>", "<", "(", ")", "((", "))", "+", "*", "a*",
        "b)", "[", "]", "{", "}", "[]", "{}", "[1", "1,", "1]", "0", "00", ".0", "E5", "\"a\"", "\"\"",
        "zzz", TOY_A16 TOY_A16 "a", TOY_A16 TOY_A16 TOY_A16 TOY_A16 "b", TOY_A16 TOY_A16 TOY_A16 TOY_A16 TOY_A16 TOY_A16,
        TOY_A16 TOY_A16 " " TOY_A16 TOY_A16 " b\"}", "A", "AB", "Zz", "_", "-", "--", "\x7F", "\x80", "\xFF", "\xED\xA0\x80", "\xC0\xAF"};
    static struct bytes bytes[TOY_TOKENS_MAX];
    static uint8_t special[TOY_TOKENS_MAX], singles[256];
    uint32_t n = 0;
    memset(special, 0, sizeof special);
    bytes[n] = bytes_of(STR("<call>"));
    special[n++] = 1;
    bytes[n] = bytes_of(STR("<end>"));
    special[n++] = 1;
    for (int b = 0; b < 256; b++) {
        singles[b] = (uint8_t)b;
        bytes[n++] = (struct bytes){&singles[b], 1};
    }
    for (size_t i = 0; pieces && i < sizeof PIECES / sizeof *PIECES; i++)
        bytes[n++] = bytes_of(str_from(PIECES[i]));
    token_id eos = TOY_EOS;
    struct err err = {0};
    struct grammar_vocab *vocab = grammar_vocab_create(
        &(struct grammar_vocab_desc){
            .n_tokens = n, .token_bytes = bytes, .special = special, .eos = &eos, .n_eos = 1},
        &err);
    if (!vocab)
        fail_msg("%s", err.message);
    return vocab;
}
#endif
