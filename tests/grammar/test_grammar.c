// Front ends, states, cache and limits, with a vocabulary of single bytes and some pieces.
#include <pthread.h>

#include "base/clock.h"
#include "grammar/grammar.h"
#include "toy_vocab.h"

static struct grammar_vocab *vocab;

static int open_vocab(void **unused) {
    (void)unused;
    vocab = toy_vocab(true);
    return 0;
}
static int close_vocab(void **unused) {
    (void)unused;
    grammar_vocab_destroy(vocab);
    return 0;
}

static struct grammar *compile(enum grammar_kind kind, const char *text) {
    struct err err = {0};
    struct grammar *g =
        grammar_compile(&(struct grammar_spec){.kind = kind, .text = str_from(text)}, vocab, &err);
    if (!g)
        fail_msg("%s: %s", text, err.message);
    return g;
}

static bool feed(struct grammar_state *state, const char *text) {
    for (const char *c = text; *c; c++)
        if (!grammar_state_advance(state, TOY_FIRST_BYTE + (uint8_t)*c))
            return false;
    return true;
}

static bool accepts(struct grammar *g, const char *text) {
    struct err err = {0};
    struct grammar_state *state = grammar_state_create(g, &err);
    assert_non_null(state);
    bool yes = feed(state, text) && grammar_state_eos_allowed(state);
    grammar_state_destroy(state);
    return yes;
}

struct text_case {
    const char *grammar, *text;
    bool want;
};

static void check_cases(enum grammar_kind kind, const struct text_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct grammar *g = compile(kind, cases[i].grammar);
        if (accepts(g, cases[i].text) != cases[i].want)
            fail_msg("%s: \"%s\" should be %s", cases[i].grammar, cases[i].text,
                     cases[i].want ? "accepted" : "refused");
        grammar_release(g);
    }
}
#define CHECK_CASES(kind, cases) check_cases(kind, cases, sizeof cases / sizeof *cases)

static void schema_says_what_is_valid(void **unused) {
    (void)unused;
#define NUMBER(x) "{\"type\":\"number\"," x "}"
#define ABC "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{},\"c\":{}},"
    static const struct text_case CASES[] = {
        {"true", "[{\"x\": [1, -0.5e+3, null]}, \"\\u0061\\n\"]", true},
        {"true", "[1,]", false},
        {"true", "01", false},
        {"true", "\"\\ud800\"", false}, // a lone surrogate
        {"{\"type\":\"integer\"}", "12", true},
        {"{\"type\":\"integer\"}", "12.0", true},
        {"{\"type\":\"integer\"}", "12.5", false},
        {"{\"type\":\"integer\"}", "1e+20", true},
        {"{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"type\":\"integer\"}", "1.0", false},
        {NUMBER("\"minimum\":0.25"), "0.25", true},
        {NUMBER("\"minimum\":0.25"), "0.2499", false},
        {NUMBER("\"minimum\":0.25"), "0.250", true},
        {NUMBER("\"exclusiveMinimum\":0.25"), "0.250", false},
        {NUMBER("\"exclusiveMinimum\":0.25"), "0.2501", true},
        {NUMBER("\"maximum\":-3"), "-3.0", true},
        {NUMBER("\"maximum\":-3"), "-2.999", false},
        {NUMBER("\"maximum\":-3"), "-1e+16", true},
        {NUMBER("\"maximum\":1e300"), "1.5e+300", false},
        {NUMBER("\"maximum\":1e300"), "9.5e+299", true},
        {NUMBER("\"minimum\":0,\"maximum\":1"), "1e-07", true},
        {NUMBER("\"minimum\":0,\"maximum\":1"), "-1e-07", false},
        {NUMBER("\"minimum\":0"), "-0", true},
        {NUMBER("\"exclusiveMinimum\":0"), "-0.0", false},
        {NUMBER("\"minimum\":100"), "99", false},
        {NUMBER("\"minimum\":100"), "1000", true},
        {NUMBER("\"multipleOf\":0.01"), "4.02", true},
        {NUMBER("\"multipleOf\":0.01"), "4.021", false},
        {NUMBER("\"multipleOf\":7"), "49", true},
        {NUMBER("\"multipleOf\":7"), "50", false},
        {NUMBER("\"not\":{\"multipleOf\":7}"), "49", false},
        {NUMBER("\"not\":{\"multipleOf\":7}"), "48.5", true},
        {NUMBER("\"maximum\":18446744073709551615"), "18446744073709552000", true},
        {NUMBER("\"maximum\":18446744073709551615"), "18446744073709553000", false},
        {"{\"const\":1}", "1.0", true},
        {"{\"const\":1}", "true", false},
        {"{\"not\":{\"const\":1}}", "1.00", false},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":2}", "\"\xC3\xA9\\ud83d\\ude00\"", true},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":2}", "\"\xC3\xA9\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^a+$\",\"maxLength\":3}", "\"aaa\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^a+$\",\"maxLength\":3}", "\"aaaa\"", false},
        {"{\"type\":\"string\",\"pattern\":\"b$\"}", "\"ab\"", true},
        {"{\"type\":\"string\",\"pattern\":\"b$\"}", "\"ba\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^(?!foo)\"}", "\"food\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^(?!foo)\"}", "\"fod\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-02-29\"", false},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}", "\"::ffff:1.2.3.4\"", true},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}", "\"1::2::3\"", false},
        {"{\"type\":\"string\",\"format\":\"no such format\"}", "\"x\"", true},
        {"{\"enum\":[\"a/b\",\"\\n\"]}", "\"a/b\"", true},
        {"{\"enum\":[\"a/b\",\"\\n\"]}", "\"a\\/b\"", true},
        {"{\"enum\":[\"a/b\",\"\\n\"]}", "\"\\u000A\"", true},
        {ABC "\"required\":[\"b\"]}", "{\"a\": 1, \"b\": 2}", true},
        {ABC "\"required\":[\"b\"]}", "{\"a\": 1, \"c\": 2}", false},
        {ABC "\"required\":[\"b\"]}", "{\"b\": 1, \"a\": 2}", false}, // the schema's order
        {ABC "\"required\":[\"b\"]}", "{\"b\": 1, \"x\": {}, \"y\": 2}", true},
        {ABC "\"required\":[\"b\"]}", "{\"b\":1,\"a\":1.5}", false},
        {ABC "\"additionalProperties\":false}", "{\"x\": 1}", false},
        {ABC "\"additionalProperties\":false}", "{}", true},
        {ABC "\"additionalProperties\":false}", "{ \n\t}", true},
        {ABC "\"minProperties\":2,\"additionalProperties\":false}", "{\"b\": 1}", false},
        {ABC "\"minProperties\":2,\"additionalProperties\":false}", "{\"b\": 1, \"c\": 1}", true},
        {ABC "\"maxProperties\":1}", "{\"b\": 1, \"c\": 1}", false},
        {ABC "\"propertyNames\":{\"maxLength\":1}}", "{\"bb\": 1}", false},
        {ABC "\"patternProperties\":{\"^b\":{\"type\":\"null\"}}}", "{\"b\": 1}", false},
        {ABC "\"patternProperties\":{\"^b\":{\"type\":\"null\"}}}", "{\"bx\": null}", true},
        {ABC "\"dependentRequired\":{\"a\":[\"c\"]}}", "{\"a\": 1, \"b\": 2}", false},
        {ABC "\"dependentRequired\":{\"a\":[\"c\"]}}", "{\"a\": 1, \"c\": 2}", true},
        {"{\"required\":[\"q\"],\"type\":\"object\"}", "{\"p\": 1, \"q\": 1}", true},
        {"{\"required\":[\"q\"],\"type\":\"object\"}", "{\"p\": 1}", false},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2}", "[null]", false},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2}", "[null, null, null]", true},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":false}", "[1]", true},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":false}", "[1, 1]", false},
        {"{\"type\":\"array\",\"contains\":{\"const\":5},\"maxContains\":1}", "[1, 5]", true},
        {"{\"type\":\"array\",\"contains\":{\"const\":5},\"maxContains\":1}", "[5, 5]", false},
        {"{\"type\":\"array\",\"contains\":{\"const\":5}}", "[1, 2]", false},
        {"{\"not\":{\"type\":\"array\",\"items\":{\"const\":5}}}", "[5, 5]", false},
        {"{\"not\":{\"type\":\"array\",\"items\":{\"const\":5}}}", "[5, 6]", true},
        {"{\"not\":{\"properties\":{\"a\":{\"type\":\"string\"}}}}", "{\"a\": 1}", true},
        {"{\"not\":{\"properties\":{\"a\":{\"type\":\"string\"}}}}", "{\"b\": 1}", false},
        {"{\"not\":{\"required\":[\"a\"]},\"type\":\"object\"}", "{\"a\": 1}", false},
        {"{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\"}",
         "{\"a\": 1, \"b\": 1}", false},
        {"{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\"}", "{\"b\": 1}",
         true},
        {"{\"oneOf\":[{\"multipleOf\":2},{\"multipleOf\":3}],\"type\":\"integer\"}", "6", false},
        {"{\"oneOf\":[{\"multipleOf\":2},{\"multipleOf\":3}],\"type\":\"integer\"}", "9", true},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}}},{\"properties\":{\"a\":{\"maximum\":4}}}],"
         "\"type\":\"object\"}", "{\"a\": 5}", false},
        {"{\"if\":{\"type\":\"string\"},\"then\":{\"const\":\"x\"},\"else\":{\"const\":1}}", "\"y\"", false},
        {"{\"if\":{\"type\":\"string\"},\"then\":{\"const\":\"x\"},\"else\":{\"const\":1}}", "1", true},
        {"{\"const\":{\"a\":[1,{\"b\":null}]}}", "{\"a\": [1, {\"b\": null}]}", true},
        {"{\"const\":{\"a\":[1,{\"b\":null}]}}", "{\"a\": [1, {}]}", false},
        {"{\"not\":{\"const\":[1]}}", "[1, 2]", true},
        {"{\"not\":{\"const\":[1]}}", "[1]", false},
        {"{\"type\":\"string\",\"nullable\":true}", "null", true},
        {"{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"const\":7}}}", "7", true},
        {"{\"$ref\":\"#x\",\"$defs\":{\"a\":{\"$anchor\":\"x\",\"const\":7}}}", "7", true},
        {"{\"$id\":\"http://h/a.json\",\"$ref\":\"b.json\",\"$defs\":{\"b\":{\"$id\":\"b.json\",\"const\":7}}}",
         "7", true},
        {"{\"properties\":{\"n\":{\"$ref\":\"#\"}},\"additionalProperties\":false,\"type\":\"object\"}",
         "{\"n\": {\"n\": {}}}", true},
    };
    CHECK_CASES(GRAMMAR_JSON_SCHEMA, CASES);
}

static void schema_mistakes_are_named(void **unused) {
    (void)unused;
    static const struct {
        const char *schema, *part, *part2;
    } CASES[] = {
        {"{\"type\":5}", "at #", "\"type\" must be"},
        {"{\"properties\":{\"a\":{\"type\":\"strin\"}}}", "#/properties/a", "\"strin\" is not a type"},
        {"{\"items\":{\"minLength\":-1}}", "#/items", "\"minLength\""},
        {"{\"$ref\":\"#/$defs/none\"}", "#/$defs/none", "names no schema"},
        {"{\"pattern\":\"(a\"}", "\"pattern\"", "( without )"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"number\"}]}", "nothing can satisfy", ""},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"],\"type\":\"object\"}",
         "nothing can satisfy", ""},
        {"{\"anyOf\":[]}", "\"anyOf\"", "non-empty"},
        {"[1]", "must be an object", ""},
        {"{\"a\":", "not valid JSON", ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct err err = {0};
        struct grammar_spec spec = {.kind = GRAMMAR_JSON_SCHEMA, .text = str_from(CASES[i].schema)};
        assert_null(grammar_compile(&spec, vocab, &err));
        assert_int_equal(err.code, ERR_INVALID);
        check_message(&err, CASES[i].part);
        check_message(&err, CASES[i].part2);
    }
}

static void keywords_that_are_not_enforced_are_named(void **unused) {
    (void)unused;
    static const struct {
        const char *schema, *ignored; // NULL: none
    } CASES[] = {
        {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1}", NULL},
        {"{\"type\":\"array\",\"uniqueItems\":false}", NULL},
        {"{\"type\":\"string\",\"format\":\"regex\"}", "format"},
        {"{\"type\":\"string\",\"format\":\"color\",\"title\":\"x\",\"examples\":[1]}", NULL},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "pattern"},
        {"{\"$ref\":\"http://elsewhere/x\"}", "$ref"},
        {"{\"properties\":{\"a\":{\"items\":{\"format\":\"regex\"}}}}", "format"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, CASES[i].schema);
        assert_int_equal(grammar_n_ignored(g), CASES[i].ignored != NULL);
        if (CASES[i].ignored)
            assert_string_equal(grammar_ignored(g, 0), CASES[i].ignored);
        grammar_release(g);
    }
}

static void ebnf_in_both_spellings(void **unused) {
    (void)unused;
    static const struct text_case CASES[] = {
        {"root ::= \"a\" | \"b\"", "b", true},
        {"root ::= \"a\"\n  | \"b\" # or\n\nx ::= [0-9]", "b", true},
        {"root ::= (\"x\" [0-9]{2,3})+", "x12x345", true},
        {"root ::= (\"x\" [0-9]{2,3})+", "x1", false},
        {"root ::= [^\\n]* \"\\n\"", "abc\n", true},
        {"root ::= [\\x41-\\x43\\]-]+", "A]-B", true},
        {"root ::= \"\\u00e9\" .", "\xC3\xA9z", true},
        {"root ::= e\ne ::= e \"+\" t | t\nt ::= \"1\" | \"(\" e \")\"", "1+(1+1)", true},
        {"root ::= e\ne ::= e \"+\" t | t\nt ::= \"1\" | \"(\" e \")\"", "+1", false},
        {"root ::= /[a-z]+\\/[0-9]+/", "ab/12", true},
        {"root ::= \"\" | \"a\" root", "aaa", true},
        {"root ::= 'it' \"'\" 's'?", "it's", true},
    };
    CHECK_CASES(GRAMMAR_EBNF, CASES);
    static const struct {
        const char *grammar, *part;
    } WRONG[] = {
        {"root ::= \"a", "closing quote"},
        {"root ::= a", "\"a\" is not defined"},
        {"rot ::= \"a\"", "\"root\""},
        {"root ::= a \"x\"\na ::= b\nb ::= root", "left recursion"},
        {"root ::= \"a\" )", ") without ("},
        {"root ::= \"a\"{3,2}", "repeat"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2"},
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        struct err err = {0};
        struct grammar_spec spec = {.kind = GRAMMAR_EBNF, .text = str_from(WRONG[i].grammar)};
        assert_null(grammar_compile(&spec, vocab, &err));
        assert_int_equal(err.code, ERR_INVALID);
        check_message(&err, WRONG[i].part);
    }
}

static void regexes_match_the_whole_text(void **unused) {
    (void)unused;
    static const struct text_case CASES[] = {
        {"a|bc", "bc", true},          {"a|bc", "abc", false},       {"^ab$", "ab", true},
        {"(?:a|b){2,3}?", "aba", true}, {"\\p{Lu}+", "A\xC3\x89", true}, {"\\p{Lu}+", "Aa", false},
        {"(?<x>a)b", "ab", true},      {"[\\w.-]+", "a-b.c", true},  {"[^\\d\\s]", "x", true},
        {"a{,3}", "a{,3}", true},      {"\\u{1F600}", "\xF0\x9F\x98\x80", true},
        {"(?=.*\\d)[a-z\\d]{3}", "ab1", true}, {"(?=.*\\d)[a-z\\d]{3}", "abc", false},
    };
    CHECK_CASES(GRAMMAR_REGEX, CASES);
    static const struct {
        const char *regex, *part;
        enum err_code code;
    } WRONG[] = {
        {"a)", ") without (", ERR_INVALID},       {"[b-a]", "out of order", ERR_INVALID},
        {"*a", "nothing before", ERR_INVALID},    {"(a)\\1", "backreference", ERR_UNSUPPORTED},
        {"\\bx", "word boundary", ERR_UNSUPPORTED}, {"(?<=a)b", "lookbehind", ERR_UNSUPPORTED},
        {"a$b", "nothing matches", ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        struct err err = {0};
        struct grammar_spec spec = {.kind = GRAMMAR_REGEX, .text = str_from(WRONG[i].regex)};
        assert_null(grammar_compile(&spec, vocab, &err));
        assert_int_equal(err.code, WRONG[i].code);
        check_message(&err, WRONG[i].part);
    }
}

static void choices_are_taken_literally(void **unused) {
    (void)unused;
    static const struct text_case CASES[] = {
        {"[\"yes\",\"no\",\"a.b\"]", "a.b", true},
        {"[\"yes\",\"no\",\"a.b\"]", "axb", false},
        {"[\"a\",\"ab\"]", "ab", true},
    };
    CHECK_CASES(GRAMMAR_CHOICE, CASES);
    struct err err = {0};
    struct grammar_spec spec = {.kind = GRAMMAR_CHOICE, .text = STR("[]")};
    assert_null(grammar_compile(&spec, vocab, &err));
}

static void structural_tags_constrain_what_follows_a_trigger(void **unused) {
    (void)unused;
#define OLD                                                                                        \
    "{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f=a>\",\"schema\":"                \
    "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],"     \
    "\"additionalProperties\":false},\"end\":\"</f>\"}],\"triggers\":[\"<f=\"]}"
#define NEW                                                                                        \
    "{\"type\":\"structural_tag\",\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"tag\","   \
    "\"begin\":\"<think>\",\"content\":{\"type\":\"any_text\"},\"end\":\"</think>\"},"             \
    "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"boolean\"}}]}}"
    static const struct text_case CASES[] = {
        {OLD, "just text < no tag", true},
        {OLD, "see <f=a>{\"x\": 1}</f> and <f=a>{\"x\":2}</f>.", true},
        {OLD, "see <f=a>{\"x\": \"1\"}</f>", false},
        {OLD, "see <f=b>", false},
        {OLD, "see <f=a>{\"x\": 1}", false},
        {NEW, "<think>a </thin k</think>true", true},
        {NEW, "<think>a</think>1", false},
        {NEW, "true", false},
    };
    CHECK_CASES(GRAMMAR_TAG, CASES);
}

static void special_tokens_come_only_where_a_tag_spells_them(void **unused) {
    (void)unused;
    struct err err = {0};
    uint32_t mask[TOY_TOKENS_MAX / 32 + 1];
    struct grammar *g = compile(GRAMMAR_TAG,
                                "{\"type\":\"tag\",\"begin\":\"<call>\",\"content\":{\"type\":"
                                "\"json_schema\",\"json_schema\":true},\"end\":\"</call>\"}");
    struct grammar_state *state = grammar_state_create(g, &err);
    check_ok(grammar_state_mask(state, mask, &err), &err);
    assert_true(mask[0] & 1u << TOY_SPECIAL);
    assert_false(mask[0] & 1u << TOY_EOS);
    assert_true(grammar_state_advance(state, TOY_SPECIAL));
    assert_true(feed(state, "\"x"));
    check_ok(grammar_state_mask(state, mask, &err), &err);
    assert_false(mask[0] & 1u << TOY_SPECIAL); // inside a string it is no text
    assert_false(grammar_state_allows(state, TOY_SPECIAL));
    assert_true(feed(state, "<call>\"</call>"));
    assert_true(grammar_state_is_complete(state));
    grammar_state_destroy(state);
    grammar_release(g);
}

static void states_roll_back_clone_and_end(void **unused) {
    (void)unused;
    struct err err = {0};
    struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, "{\"enum\":[\"abc\",\"abd\"]}");
    struct grammar_state *state = grammar_state_create(g, &err);
    assert_true(feed(state, "\"ab"));
    struct grammar_state *copy = grammar_state_clone(state, &err);
    assert_true(feed(state, "c\""));
    assert_true(grammar_state_is_complete(state));
    assert_true(grammar_state_eos_allowed(state));
    assert_true(grammar_state_advance(state, TOY_EOS));
    assert_false(grammar_state_advance(state, TOY_EOS));
    assert_true(grammar_state_is_complete(state));
    assert_true(grammar_state_rollback(state, 3));
    assert_true(feed(state, "d\""));
    assert_false(grammar_state_rollback(state, 6));
    assert_false(feed(copy, "x"));
    assert_true(feed(copy, "d\""));
    assert_true(grammar_state_is_complete(copy));
    grammar_state_destroy(copy);
    grammar_state_destroy(state);
    grammar_release(g);
}

static void forced_bytes_are_those_without_choice(void **unused) {
    (void)unused;
    struct err err = {0};
    struct strbuf out = {0};
    struct grammar_spec spec = {
        .kind = GRAMMAR_JSON_SCHEMA,
        .text = STR("{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"foo\",\"fox\"]}},"
                    "\"required\":[\"name\"],\"additionalProperties\":false}"),
        .compact = true};
    struct grammar *g = grammar_compile(&spec, vocab, &err);
    assert_non_null(g);
    struct grammar_state *state = grammar_state_create(g, &err);
    assert_int_equal(grammar_state_forced(state, 100, &out), 11);
    check_str(strbuf_str(&out), STR("{\"name\":\"fo"));
    assert_true(feed(state, "{\"name\":\"fox"));
    strbuf_clear(&out);
    assert_int_equal(grammar_state_forced(state, 100, &out), 2);
    check_str(strbuf_str(&out), STR("\"}"));
    strbuf_deinit(&out);
    grammar_state_destroy(state);
    grammar_release(g);
}

static void white_space_is_bounded(void **unused) {
    (void)unused;
    struct err err = {0};
    struct grammar *g = compile(GRAMMAR_JSON_OBJECT, "");
    struct grammar_state *state = grammar_state_create(g, &err);
    assert_true(feed(state, "{"));
    int n = 0;
    while (feed(state, "\n"))
        n++;
    assert_int_equal(n, GRAMMAR_SPACES_DEFAULT);
    assert_true(feed(state, "}"));
    grammar_state_destroy(state);
    grammar_release(g);
}

static void instances_are_put_in_the_order_of_the_schema(void **unused) {
    (void)unused;
    struct grammar *g = compile(
        GRAMMAR_JSON_SCHEMA,
        "{\"properties\":{\"b\":{\"properties\":{\"y\":{},\"x\":{}}},\"a\":{\"items\":{\"$ref\":"
        "\"#/properties/b\"}}}}");
    json_t *data = json_loads("{\"z\":0,\"a\":[{\"x\":1,\"y\":2}],\"b\":{\"w\":1,\"x\":1,\"y\":2}}", 0, NULL);
    json_t *ordered = grammar_order(g, data);
    char *text = json_dumps(ordered, JSON_COMPACT);
    assert_string_equal(text,
                        "{\"b\":{\"y\":2,\"x\":1,\"w\":1},\"a\":[{\"y\":2,\"x\":1}],\"z\":0}");
    free(text);
    json_decref(data);
    json_decref(ordered);
    grammar_release(g);
}

static void cache_shares_and_forgets_the_oldest(void **unused) {
    (void)unused;
    struct err err = {0};
    struct grammar_cache *cache = grammar_cache_create(vocab, 2, SIZE_MAX, &err);
    struct grammar_spec a = {.kind = GRAMMAR_REGEX, .text = STR("a")},
                        b = {.kind = GRAMMAR_REGEX, .text = STR("b")},
                        c = {.kind = GRAMMAR_CHOICE, .text = STR("[\"a\"]")};
    struct grammar *a1 = grammar_cache_get(cache, &a, &err), *b1 = grammar_cache_get(cache, &b, &err);
    struct grammar *a2 = grammar_cache_get(cache, &a, &err);
    assert_ptr_equal(a1, a2);
    struct grammar *c1 = grammar_cache_get(cache, &c, &err); // b goes
    struct grammar *a3 = grammar_cache_get(cache, &a, &err), *b2 = grammar_cache_get(cache, &b, &err);
    assert_ptr_equal(a1, a3);
    assert_ptr_not_equal(b1, b2);
    assert_true(accepts(b1, "b"));
    struct grammar *all[] = {a1, a2, a3, b1, b2, c1};
    for (int i = 0; i < 6; i++)
        grammar_release(all[i]);
    struct grammar_spec bad = {.kind = GRAMMAR_REGEX, .text = STR("(")};
    assert_null(grammar_cache_get(cache, &bad, &err));
    grammar_cache_destroy(cache);
}

static void *walk_in_a_thread(void *user) {
    struct err err = {0};
    for (int i = 0; i < 20; i++) {
        struct grammar_state *state = grammar_state_create(user, &err);
        uint32_t mask[TOY_TOKENS_MAX / 32 + 1];
        if (!state || !feed(state, "{\"a\": [1, {\"b") || !grammar_state_mask(state, mask, &err) ||
            !feed(state, "\": null}]}"))
            return NULL;
        grammar_state_destroy(state);
    }
    return user;
}

static void threads_share_a_grammar(void **unused) {
    (void)unused;
    struct grammar *g = compile(GRAMMAR_JSON_OBJECT, "");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, walk_in_a_thread, g), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, g);
    }
    grammar_release(g);
}

// Long and deep texts fill the tables several times over.
static void tables_are_swept_without_losing_a_state(void **unused) {
    (void)unused;
    struct err err = {0};
    struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, "true");
    struct grammar_state *state = grammar_state_create(g, &err);
    uint32_t mask[TOY_TOKENS_MAX / 32 + 1];
    for (int depth = 0; depth < 6000; depth++)
        assert_true(feed(state, depth % 2 ? "{\"k\":" : "["));
    check_ok(grammar_state_mask(state, mask, &err), &err);
    assert_true(feed(state, "1"));
    for (int depth = 5999; depth >= 0; depth--)
        assert_true(feed(state, depth % 2 ? "}" : "]"));
    assert_true(grammar_state_is_complete(state));
    grammar_state_destroy(state);
    grammar_release(g);
}

// Each step ends within a second: done, or refused by a limit's name.
static void hostile_grammars_meet_limits(void **unused) {
    (void)unused;
    struct strbuf nested = {0}, names = {0}, one_of = {0}, deep = {0}, product = {0};
    for (int i = 0; i < 1500; i++)
        strbuf_append_c(&nested, "{\"items\":");
    strbuf_append_c(&nested, "{}");
    for (int i = 0; i < 1500; i++)
        strbuf_char(&nested, '}');
    strbuf_append_c(&names, "{\"enum\":[");
    for (int i = 0; i < 20000; i++)
        strbuf_printf(&names, "%s\"value number %d\"", i ? "," : "", i * 7919);
    strbuf_append_c(&names, "]}");
    strbuf_append_c(&one_of, "{\"type\":\"object\",\"oneOf\":[");
    for (int i = 0; i < 40; i++)
        strbuf_printf(&one_of, "%s{\"properties\":{\"a%d\":{\"type\":\"string\"},\"b%d\":{}}}",
                      i ? "," : "", i, i % 7);
    strbuf_append_c(&one_of, "]}");
    for (int i = 0; i < 190; i++)
        strbuf_append_c(&deep, "(a|");
    for (int i = 0; i < 190; i++)
        strbuf_append_c(&deep, "b)*");
    strbuf_append_c(&product, "{\"type\":\"object\",\"allOf\":[");
    for (int i = 0; i < 20; i++)
        strbuf_printf(&product, "%s{\"anyOf\":[{\"required\":[\"a%d\"]},{\"required\":[\"b%d\"]}]}",
                      i ? "," : "", i, i);
    strbuf_append_c(&product, "]}");
    const struct grammar_spec specs[] = {
        {.kind = GRAMMAR_JSON_SCHEMA, .text = strbuf_str(&nested)},
        {.kind = GRAMMAR_JSON_SCHEMA, .text = strbuf_str(&names)},
        {.kind = GRAMMAR_JSON_SCHEMA, .text = strbuf_str(&one_of)},
        {.kind = GRAMMAR_JSON_SCHEMA, .text = strbuf_str(&product)},
        {.kind = GRAMMAR_REGEX, .text = strbuf_str(&deep)},
        {.kind = GRAMMAR_REGEX, .text = STR("((((a{1,99999}){1,99999}){1,99999})b){1,99999}")},
        {.kind = GRAMMAR_REGEX, .text = STR("(a|b)*a(a|b){30}")},
        {.kind = GRAMMAR_REGEX, .text = STR("(?=(a*b){50})(?=(b*a){50})(?!(ab){40})[ab]*")},
        {.kind = GRAMMAR_JSON_SCHEMA,
         .text = STR("{\"type\":\"array\",\"minItems\":1000000000,\"items\":{\"type\":\"array\"}}")},
        {.kind = GRAMMAR_JSON_SCHEMA,
         .text = STR("{\"type\":\"string\",\"minLength\":3000000000,\"pattern\":\"^(a|b|ab)*$\"}")},
        {.kind = GRAMMAR_JSON_SCHEMA, .text = STR("{\"multipleOf\":0.000000123457,\"minimum\":1}")},
        {.kind = GRAMMAR_EBNF, .text = STR("root ::= (\"a\" root?){1,90000}")},
        {.kind = GRAMMAR_EBNF, .text = STR("root ::= s\ns ::= \"a\" s s | \"a\" s | \"a\"")},
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct err err = {0};
        uint64_t start = clock_ns();
        struct grammar *g = grammar_compile(&specs[i], vocab, &err);
        double worst_ms = clock_ms_since(start);
        if (g) {
            struct grammar_state *state = grammar_state_create(g, &err);
            uint32_t mask[TOY_TOKENS_MAX / 32 + 1];
            bool ok = state != NULL;
            for (int step = 0; ok && step < 40; step++) {
                start = clock_ns();
                ok = grammar_state_mask(state, mask, &err) && feed(state, "a");
                double ms = clock_ms_since(start);
                worst_ms = ms > worst_ms ? ms : worst_ms;
            }
            assert_true(grammar_bytes(g) < (size_t)200 << 20);
            grammar_state_destroy(state);
            grammar_release(g);
        }
        if (err.code != ERR_OK) {
            assert_int_equal(err.code, ERR_INVALID);
            check_message(&err, "limit");
        }
        // A second, with room for sanitizers and a busy machine.
        if (worst_ms > 5000)
            fail_msg("case %zu took %.0f ms", i, worst_ms);
    }
    strbuf_deinit(&nested);
    strbuf_deinit(&names);
    strbuf_deinit(&one_of);
    strbuf_deinit(&deep);
    strbuf_deinit(&product);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_says_what_is_valid),
        cmocka_unit_test(schema_mistakes_are_named),
        cmocka_unit_test(keywords_that_are_not_enforced_are_named),
        cmocka_unit_test(ebnf_in_both_spellings),
        cmocka_unit_test(regexes_match_the_whole_text),
        cmocka_unit_test(choices_are_taken_literally),
        cmocka_unit_test(structural_tags_constrain_what_follows_a_trigger),
        cmocka_unit_test(special_tokens_come_only_where_a_tag_spells_them),
        cmocka_unit_test(states_roll_back_clone_and_end),
        cmocka_unit_test(forced_bytes_are_those_without_choice),
        cmocka_unit_test(white_space_is_bounded),
        cmocka_unit_test(instances_are_put_in_the_order_of_the_schema),
        cmocka_unit_test(cache_shares_and_forgets_the_oldest),
        cmocka_unit_test(threads_share_a_grammar),
        cmocka_unit_test(tables_are_swept_without_losing_a_state),
        cmocka_unit_test(hostile_grammars_meet_limits),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
