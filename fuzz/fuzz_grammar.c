// Every front end (JSON Schema, EBNF, regex, choice, structural tag) and a walk through its masks: what
// a mask allows can be taken, what it does not cannot.
#include <stdlib.h>

#include "base/log.h"
#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { TOKENS = 300 };

static struct grammar_vocab *make_vocab(void) {
    static const char *const PIECES[] = {"\": ", "\", \"", "{\"", "\"}", "[[", "  ", "\n  ", "true",
                                         "12", "0.5", "ab", "foo", "\\u00", "\xC3", "\xF0\x9F\x98\x80",
                                         "<call", "}, {", "a\"", "[1", "\\"};
    static struct bytes bytes[TOKENS];
    static uint8_t singles[256];
    token_id eos = 299;
    for (int b = 0; b < 256; b++) {
        singles[b] = (uint8_t)b;
        bytes[b] = (struct bytes){&singles[b], 1};
    }
    for (size_t i = 0; i < sizeof PIECES / sizeof *PIECES; i++)
        bytes[256 + i] = bytes_of(str_from(PIECES[i]));
    return grammar_vocab_create(
        &(struct grammar_vocab_desc){
            .n_tokens = TOKENS, .token_bytes = bytes, .eos = &eos, .n_eos = 1},
        NULL);
}

// First byte: the kind; second: the seed of the walk; the rest: the text.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct grammar_vocab *vocab;
    log_set_level(LOG_ERROR);
    if (!vocab)
        vocab = make_vocab();
    if (n < 2 || !vocab)
        return 0;
    struct err err = {0};
    struct grammar_spec spec = {.kind = (enum grammar_kind)(data[0] % 6),
                                .text = {(const char *)data + 2, n - 2},
                                .compact = data[0] & 64};
    struct grammar *grammar = grammar_compile(&spec, vocab, &err);
    if (!grammar)
        return 0;
    struct grammar_state *state = grammar_state_create(grammar, &err);
    uint32_t mask[TOKENS / 32 + 1], random = data[1] * 2654435761u + 1;
    for (int step = 0; state && step < 12 && grammar_state_mask(state, mask, &err); step++) {
        token_id allowed[TOKENS];
        uint32_t n_allowed = 0;
        for (token_id t = 0; t < TOKENS; t++) {
            bool bit = mask[t >> 5] >> (t & 31) & 1;
            bool may = grammar_state_allows(state, t);
            // A limit may be hit between the two: then everything is refused.
            if (bit != may && grammar_state_mask(state, mask, &err))
                abort();
            if (bit)
                allowed[n_allowed++] = t;
        }
        if (n_allowed == 0)
            break;
        random = random * 1664525 + 1013904223;
        if (!grammar_state_advance(state, allowed[(random >> 8) % n_allowed]) &&
            grammar_state_mask(state, mask, &err))
            abort();
        if (step == 6)
            grammar_state_rollback(state, 2);
    }
    grammar_state_destroy(state);
    grammar_release(grammar);
    return 0;
}
