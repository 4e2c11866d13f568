// Masks against a slow recogniser that knows no tables: every token, at every step of random walks.
// Regular expressions against PCRE2 besides.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

#include "grammar/ebnf.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "toy_vocab.h"

static const struct {
    enum grammar_kind kind;
    const char *text;
} GRAMMARS[] = {
    {GRAMMAR_JSON_OBJECT, ""},
    {GRAMMAR_JSON_SCHEMA, "{}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\"}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":5}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":40}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"foo|(bar){2,3}\"}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(?=.*[0-9])[a-z0-9]{2,6}$\"}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"not\":{\"enum\":[\"ab\",\"abc\",\"foo\"]}}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date-time\"}"},
    {GRAMMAR_JSON_SCHEMA, "{\"enum\":[\"foo\",\"fo\",\"bar\",\"\\u00e9\\ud83d\\ude00\",1,null,[1,\"a\"]]}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":123}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.5}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"not\":{\"multipleOf\":3}}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":[\"number\",\"boolean\"]}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"foo\":{\"type\":\"integer\"}},"
     "\"required\":[\"name\"],\"additionalProperties\":false}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"boolean\"}}}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"b\":{\"minimum\":5}},"
     "\"additionalProperties\":{\"type\":\"null\"},\"minProperties\":1,\"maxProperties\":3}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"const\":12}],"
     "\"contains\":{\"const\":\"ab\"},\"maxContains\":2}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"foo\":{\"$ref\":\"#/$defs/n\"}},"
     "\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"name\":{\"$ref\":\"#\"},\"bar\":{}},"
     "\"required\":[\"bar\"]},{\"type\":\"object\",\"properties\":{\"name\":{\"$ref\":\"#\"}},"
     "\"additionalProperties\":false},{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}]}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}},"
     "{\"type\":\"object\",\"required\":[\"b\"]}]}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"if\":{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},"
     "\"then\":{\"required\":[\"b\"]},\"else\":{\"maxProperties\":1}}"},
    {GRAMMAR_EBNF, "root ::= \"a\" root \"b\" | \"ab\""},
    {GRAMMAR_EBNF, "root ::= expr\nexpr ::= expr \"+\" term | term\nterm ::= [0-9]+ | \"(\" expr \")\""},
    {GRAMMAR_EBNF, "root ::= (a | b)*\na ::= \"a\" b? \n b ::= \"b\" | \"(\" root \")\" # nested"},
    {GRAMMAR_EBNF, "root ::= s s\ns ::= \"\" | \"a\" s \"b\" | s2\ns2 ::= \"(\" s \")\""},
    {GRAMMAR_EBNF, "root ::= [^\"\\\\\\x7F]{0,4} (\"\\n\" line){1,2}\nline ::= [a-zA-Z_] [^\\n]*"},
    {GRAMMAR_EBNF, "root ::= x{2,3} .\nx ::= y | \"[\" x \"]\"\ny ::= [\\u00e0-\\u00ff] | 'a'"},
    // Large counts, whose masks are made without them.
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z ]+$\",\"maxLength\":150}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(a+ )*[^ ]$\",\"maxLength\":110}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(\\\\S+\\\\s+){0,9}\\\\S+$\",\"maxLength\":500}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":30,\"maxLength\":260}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a\",\"maxLength\":100},"
     "{\"type\":\"string\",\"pattern\":\"b$\",\"maxLength\":400}]}"},
    {GRAMMAR_REGEX, "(a|bc){0,140}x?"},
    {GRAMMAR_REGEX, "(?=.*z)[a-z]{0,100}"},
    {GRAMMAR_REGEX, "(a{1,100}b){40,99}|[^z]{70,170}z"},
    {GRAMMAR_REGEX, "[a-z]{2,}\\d*"},
    {GRAMMAR_REGEX, "(foo|fo|bar)+x?"},
    {GRAMMAR_REGEX, "(?!ab)[ab]{2}c*"},
    {GRAMMAR_REGEX, "\\p{L}+( \\p{Lu}\\p{L}*)*"},
    {GRAMMAR_REGEX, "[^\\x00-\\x7f]{2}"},
    {GRAMMAR_REGEX, "(a|ab)(c|bcd)*"},
    {GRAMMAR_CHOICE, "[\"foo\",\"foobar\",\"\\u00e9\",\"hello\"]"},
};

// ---- the slow recogniser: a list of threads, each a list of expressions still to match ----------

enum { THREADS_MAX = 3000, REST_MAX = 512 };
struct thread {
    expr_id rest[REST_MAX]; // the next one last; regular once expanded
    uint32_t n;
};
struct threads {
    struct thread *list;
    uint32_t n;
    bool accepts;
};

static void add_thread(struct exprs *x, struct threads *out, struct thread t) {
    while (t.n > 0) {
        expr_id e = t.rest[--t.n];
        if (t.n + 3 > REST_MAX)
            fail_msg("a thread is too long");
        if (expr_regular(x, e)) {
            if (expr_nullable(x, e))
                add_thread(x, out, t);
            t.rest[t.n++] = e;
            for (uint32_t i = 0; i < out->n; i++)
                if (out->list[i].n == t.n && !memcmp(out->list[i].rest, t.rest, t.n * sizeof e))
                    return;
            if (out->n == THREADS_MAX)
                fail_msg("too many threads");
            out->list[out->n++] = t;
            return;
        }
        size_t n;
        uint32_t min, max;
        switch (expr_kind_of(x, e)) {
        case EXPR_KIND_CAT:
            t.rest[t.n++] = expr_b(x, e);
            t.rest[t.n++] = expr_a(x, e);
            break;
        case EXPR_KIND_CALL:
        case EXPR_KIND_LAZY:
            t.rest[t.n++] = expr_rule_body(x, expr_a(x, e));
            break;
        case EXPR_KIND_OR:
            expr_list(x, e, &n);
            for (size_t i = 0; i < n; i++) {
                struct thread copy = t;
                copy.rest[copy.n++] = expr_list(x, e, &n)[i];
                add_thread(x, out, copy);
            }
            return;
        case EXPR_KIND_REP:
            expr_bounds(x, e, &min, &max);
            if (min == 0)
                add_thread(x, out, t);
            // Stop at parts that match nothing: they would repeat for ever.
            t.rest[t.n++] = expr_rep(x, expr_a(x, e), min ? min - 1 : 0,
                                     max == EXPR_INF ? max : max - 1);
            t.rest[t.n++] = expr_a(x, e);
            break;
        default:
            fail_msg("an unexpected expression");
        }
    }
    out->accepts = true;
}

static void step_threads(struct exprs *x, const struct threads *from, uint8_t b,
                         struct threads *out) {
    out->n = 0;
    out->accepts = false;
    for (uint32_t i = 0; i < from->n; i++) {
        struct thread t = from->list[i];
        expr_id d = expr_step(x, t.rest[t.n - 1], b);
        if (d == EXPR_NONE)
            continue;
        t.rest[t.n - 1] = d;
        add_thread(x, out, t);
    }
    // A thread whose expression can match nothing more but is no dead end counts as none.
    uint32_t n = 0;
    for (uint32_t i = 0; i < out->n; i++)
        if (out->list[i].rest[out->list[i].n - 1] != EXPR_EPS &&
            expr_alive(x, out->list[i].rest[out->list[i].n - 1]))
            out->list[n++] = out->list[i];
    out->n = n;
}

static uint64_t next_random(uint64_t *state) { // xorshift (Marsaglia 2003)
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void walk(struct grammar *grammar, struct exprs *x, expr_id root,
                 const struct grammar_vocab *vocab, uint64_t *seed, const char *text) {
    static struct thread buffers[3][THREADS_MAX];
    struct threads now = {buffers[0], 0, false}, a, b;
    struct thread first = {.rest = {root}, .n = 1};
    add_thread(x, &now, first);
    struct err err = {0};
    struct grammar_state *state = grammar_state_create(grammar, &err);
    assert_non_null(state);
    uint32_t mask[TOY_TOKENS_MAX / 32 + 1];
    for (int steps = 0; steps < 24; steps++) {
        check_ok(grammar_state_mask(state, mask, &err), &err);
        token_id allowed[TOY_TOKENS_MAX];
        uint32_t n_allowed = 0;
        for (token_id t = 0; (uint32_t)t < grammar_vocab_n(vocab); t++) {
            bool want = t == TOY_EOS && now.accepts;
            if (t != TOY_EOS && t != TOY_SPECIAL) {
                struct bytes bytes = vocab->token_bytes[t];
                a = (struct threads){buffers[1], now.n, now.accepts};
                memcpy(a.list, now.list, now.n * sizeof *now.list);
                b = (struct threads){buffers[2], 0, false};
                for (size_t i = 0; i < bytes.n && (a.n || i == 0); i++) {
                    step_threads(x, &a, bytes.data[i], &b);
                    struct threads swap = a;
                    a = b;
                    b = swap;
                    if (a.n == 0 && i + 1 < bytes.n)
                        a.accepts = false;
                }
                want = a.n > 0 || a.accepts;
            }
            bool got = mask[t >> 5] >> (t & 31) & 1;
            if (got != want)
                fail_msg("%s: after %d tokens token %d \"%.*s\" is %s", text, steps, t,
                         (int)vocab->token_bytes[t].n, (const char *)vocab->token_bytes[t].data,
                         got ? "allowed, but nothing continues it" : "refused, but may come");
            if (got && t != TOY_EOS)
                allowed[n_allowed++] = t;
        }
        if (n_allowed == 0)
            break;
        token_id t = allowed[next_random(seed) % n_allowed];
        if (next_random(seed) % 4 == 0) // reach the ends of large counts
            for (uint32_t i = 0; i < n_allowed; i++)
                if (vocab->token_bytes[allowed[i]].n > vocab->token_bytes[t].n)
                    t = allowed[i];
        assert_true(grammar_state_advance(state, t));
        for (size_t i = 0; i < vocab->token_bytes[t].n; i++) {
            a = (struct threads){buffers[1], 0, false};
            step_threads(x, &now, vocab->token_bytes[t].data[i], &a);
            memcpy(now.list, a.list, a.n * sizeof *a.list);
            now.n = a.n;
            now.accepts = a.accepts;
        }
        if (now.n > 200 || (now.n && now.list[0].n > 100))
            break; // the slow one is slow
    }
    grammar_state_destroy(state);
}

static void masks_agree_with_a_slow_recogniser(void **unused) {
    (void)unused;
    struct grammar_vocab *vocab = toy_vocab(true);
    uint64_t seed = 20260112;
    const char *walks = getenv("LOAM_WALKS"); // a longer run by hand
    int n_walks = walks ? atoi(walks) : 12;
    for (size_t i = 0; i < sizeof GRAMMARS / sizeof *GRAMMARS; i++) {
        struct grammar_spec spec = {.kind = GRAMMARS[i].kind, .text = str_from(GRAMMARS[i].text)};
        struct err err = {0};
        struct grammar *grammar = grammar_compile(&spec, vocab, &err);
        if (!grammar)
            fail_msg("%s: %s", GRAMMARS[i].text, err.message);
        // The same front end once more, in a pool of its own.
        struct exprs *x = exprs_create(1 << 20);
        struct schema *schema = NULL;
        struct ebnf *ebnf = NULL;
        expr_id root = EXPR_NONE;
        struct schema_options options = {.spaces_max = GRAMMAR_SPACES_DEFAULT,
                                         .any_object = spec.kind == GRAMMAR_JSON_OBJECT};
        json_t *json = json_loads(GRAMMARS[i].text, JSON_DECODE_ANY, NULL);
        if (spec.kind == GRAMMAR_REGEX) {
            root = regex_expr(x, spec.text, SPELL_PLAIN, REGEX_WHOLE, &err);
        } else if (spec.kind == GRAMMAR_EBNF) {
            ebnf = ebnf_create(x, spec.text, &err);
            root = ebnf_root(ebnf);
        } else if (spec.kind == GRAMMAR_CHOICE) {
            for (size_t k = 0; k < json_array_size(json); k++) {
                const json_t *item = json_array_get(json, k);
                root = expr_or2(x, root, expr_c(x, json_string_value(item)));
            }
        } else {
            schema = schema_create(x, json, &options, &err);
            root = schema_root(schema);
        }
        for (int w = 0; w < n_walks; w++)
            walk(grammar, x, root, vocab, &seed, GRAMMARS[i].text);
        json_decref(json);
        exprs_destroy(x);
        schema_destroy(schema);
        ebnf_destroy(ebnf);
        grammar_release(grammar);
    }
    grammar_vocab_destroy(vocab);
}

// What PCRE2 finds with a partial hard match is what may still become a match.
static void regexes_agree_with_pcre2(void **unused) {
    (void)unused;
    static const char *const PATTERNS[] = {
        "abc", "a*b+c?", "(ab|a)(c|bcd)(d*)", "[a-c]{2,3}d", "(a|b)*abb", "a{0,2}b{2,}", "(?:ab)+c|d",
        "[^ab]c*", "x(y|z)*x", "(a?b?c?){2}d", "a(?=b)[bc]", "(?!ab)[abc]{2}", "(?=a|bc)[abc]{3}",
        "\\d+(\\.\\d+)?", "[\\w-]+@\\w+", "\\x41|\\u0042", "(a*)*b", "((a|b)|(c|d)){3}", "^ab$", "^a|b$",
        "a.c", "[]a]b", "\\.\\*\\+", "(a|(b|(c|d)))+x", "a{3}", "(ab){2,}?c", "[a\\]]+", "(|a)b", "é+|ü",
    };
    static const char LETTERS[] = "abcdxyz.@-*+]AB12 ";
    uint64_t seed = 77;
    for (size_t p = 0; p < sizeof PATTERNS / sizeof *PATTERNS; p++) {
        if (!strcmp(PATTERNS[p], "[]a]b"))
            continue; // ECMA-262 and PCRE2 read [] differently
        struct exprs *x = exprs_create(1 << 18);
        struct err err = {0};
        expr_id e = regex_expr(x, str_from(PATTERNS[p]), SPELL_PLAIN, REGEX_WHOLE, &err);
        assert_int_equal(err.code, ERR_OK);
        char anchored[256];
        snprintf(anchored, sizeof anchored, "\\A(?:%s)\\z", PATTERNS[p]);
        int code;
        size_t at;
        pcre2_code *re = pcre2_compile((const uint8_t *)anchored, PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY, &code,
                                       &at, NULL);
        if (!re)
            fail_msg("PCRE2 does not know %s", PATTERNS[p]);
        pcre2_match_data *match = pcre2_match_data_create_from_pattern(re, NULL);
        for (int k = 0; k < 400; k++) {
            char text[8];
            size_t n = next_random(&seed) % 7;
            for (size_t i = 0; i < n; i++)
                text[i] = LETTERS[next_random(&seed) % (k % 2 ? 5 : sizeof LETTERS - 1)];
            int whole = pcre2_match(re, (const uint8_t *)text, n, 0, 0, match, NULL);
            if (expr_match(x, e, (struct str){text, n}) != (whole >= 0))
                fail_msg("%s on \"%.*s\": PCRE2 says %d", PATTERNS[p], (int)n, text, whole);
        }
        pcre2_match_data_free(match);
        pcre2_code_free(re);
        exprs_destroy(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_agree_with_a_slow_recogniser),
        cmocka_unit_test(regexes_agree_with_pcre2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
