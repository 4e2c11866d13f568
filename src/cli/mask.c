// loam mask: does a grammar accept what it should, with the tokens of a real vocabulary, and how long
// does a mask take?
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "base/json.h"
#include "cli/commands.h"
#include "grammar/grammar.h"

struct times {
    double *us;
    size_t n, capacity;
};

struct mask_job {
    struct tokenizer *tokenizer;
    struct grammar_vocab *vocab;
    struct grammar_spec spec; // text empty: each line's own schema
    bool own_schema;
    uint32_t *mask;
    struct times times; // of one line
};

// ---- an instance as Python's json.dumps writes it (ensure_ascii off) ----------------------------

static void append_real(struct strbuf *out, double v) {
    char text[40];
    int precision = 1;
    for (; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, v);
        if (strtod(text, NULL) == v)
            break;
    }
    snprintf(text, sizeof text, "%.*e", precision - 1, v);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int behind = precision - 1 - exponent;
        snprintf(text, sizeof text, "%.*f", behind > 1 ? behind : 1, v);
    }
    strbuf_append_c(out, text);
}

static void append_string(struct strbuf *out, struct str s) {
    strbuf_char(out, '"');
    for (size_t i = 0; i < s.n; i++) {
        static const char CODES[] = "\"\\\n\r\t\b\f", LETTERS[] = "\"\\nrtbf";
        char c = s.data[i];
        const char *at = c ? strchr(CODES, c) : NULL;
        if (at)
            strbuf_printf(out, "\\%c", LETTERS[at - CODES]);
        else if ((unsigned char)c < 0x20)
            strbuf_printf(out, "\\u%04x", c);
        else
            strbuf_char(out, c);
    }
    strbuf_char(out, '"');
}

static void append_value(struct strbuf *out, const json_t *value) {
    const char *separator = "", *name;
    size_t i, name_n;
    json_t *member;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        strbuf_char(out, '{');
        json_object_keylen_foreach((json_t *)value, name, name_n, member) {
            strbuf_append_c(out, separator);
            append_string(out, (struct str){name, name_n});
            strbuf_append_c(out, ": ");
            append_value(out, member);
            separator = ", ";
        }
        strbuf_char(out, '}');
        break;
    case JSON_ARRAY:
        strbuf_char(out, '[');
        json_array_foreach(value, i, member) {
            strbuf_append_c(out, separator);
            append_value(out, member);
            separator = ", ";
        }
        strbuf_char(out, ']');
        break;
    case JSON_STRING:
        append_string(out, json_str(value));
        break;
    case JSON_INTEGER:
        strbuf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        append_real(out, json_real_value(value));
        break;
    default:
        strbuf_append_c(out, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
    }
}

// ---- one test ------------------------------------------------------------------------------------

// Microseconds that the thread worked: what others did on a busy machine meanwhile does not count. The clock
// of the thread costs more than many a mask, so it is read outside of what is timed.
struct stopwatch {
    struct timespec cpu;
    uint64_t wall_ns;
};

static struct stopwatch stopwatch_start(void) {
    struct stopwatch s;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &s.cpu);
    s.wall_ns = clock_ns();
    return s;
}

static double stopwatch_us(const struct stopwatch *s) {
    double wall_us = (double)(clock_ns() - s->wall_ns) / 1e3;
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double cpu_us = (double)(now.tv_sec - s->cpu.tv_sec) * 1e6 + (double)(now.tv_nsec - s->cpu.tv_nsec) / 1e3;
    return cpu_us < wall_us ? cpu_us : wall_us;
}

static bool timed_mask(struct mask_job *job, struct grammar_state *state, struct err *err) {
    struct stopwatch start = stopwatch_start();
    bool ok = grammar_state_mask(state, job->mask, err);
    double us = stopwatch_us(&start);
    struct times *t = &job->times;
    if (t->n == t->capacity) {
        size_t capacity = t->capacity ? t->capacity * 2 : 1024;
        double *bigger = realloc(t->us, capacity * sizeof *bigger);
        if (!bigger)
            return err_set(err, ERR_NOMEM, "mask: out of memory");
        t->us = bigger;
        t->capacity = capacity;
    }
    t->us[t->n++] = us;
    return ok;
}

// Walk the text token by token; *accepted: every token was in its mask, and it may end there.
static bool walk(struct mask_job *job, struct grammar *grammar, struct str text, bool *accepted,
                 struct err *err) {
    struct token_list ids = {0};
    *accepted = false;
    struct grammar_state *state = grammar_state_create(grammar, err);
    bool ok = state && tokenizer_encode(job->tokenizer, text, TOKENIZER_NO_SPECIAL_SPELLINGS, &ids,
                                        err);
    bool alive = ok;
    for (size_t i = 0; i < ids.n && ok && alive; i++) {
        token_id id = ids.ids[i];
        ok = timed_mask(job, state, err);
        alive = ok && (uint32_t)id < grammar_vocab_n(job->vocab) &&
                job->mask[id >> 5] >> (id & 31) & 1;
        if (alive && !grammar_state_advance(state, id)) {
            ok = err_set(err, ERR_INTERNAL, "mask: token %d is in the mask but cannot be taken", id);
        }
    }
    if (ok && alive) {
        ok = timed_mask(job, state, err);
        *accepted = ok && grammar_state_eos_allowed(state);
    }
    grammar_state_destroy(state);
    token_list_deinit(&ids);
    return ok;
}

// As it is given, else with its members in the schema's order: order is no property of JSON data.
static bool accepts(struct mask_job *job, struct grammar *grammar, json_t *data, bool *accepted,
                    struct err *err) {
    struct strbuf text = {0}, ordered_text = {0};
    append_value(&text, data);
    bool ok = text.failed ? err_set(err, ERR_NOMEM, "mask: out of memory")
                          : walk(job, grammar, strbuf_str(&text), accepted, err);
    if (ok && !*accepted) {
        json_t *ordered = grammar_order(grammar, data);
        if (ordered)
            append_value(&ordered_text, ordered);
        json_decref(ordered);
        if (ordered_text.n && !str_eq(strbuf_str(&text), strbuf_str(&ordered_text)))
            ok = walk(job, grammar, strbuf_str(&ordered_text), accepted, err);
    }
    strbuf_deinit(&text);
    strbuf_deinit(&ordered_text);
    return ok;
}

static int by_value(const void *a, const void *b) {
    double i = *(const double *)a, j = *(const double *)b;
    return (i > j) - (i < j);
}

static json_t *summary(struct times *t) {
    if (t->n == 0)
        return json_null();
    qsort(t->us, t->n, sizeof *t->us, by_value);
    return json_pack("{sf sf sf}", "p50", t->us[t->n / 2], "p99", t->us[t->n * 99 / 100], "max",
                     t->us[t->n - 1]);
}

// Compile to the first mask, then every test. The result line is complete whatever happens.
static json_t *run_line(struct mask_job *job, const json_t *line) {
    json_t *results = json_array(), *ignored = json_array(), *error = json_null();
    struct err err = {0};
    struct strbuf own = {0};
    struct grammar_spec spec = job->spec;
    const json_t *tests = json_object_get(line, "tests"), *test;
    if (job->own_schema) {
        const json_t *schema = json_object_get(line, "schema");
        if (schema)
            strbuf_json(&own, schema);
        spec.text = strbuf_str(&own);
    }
    struct stopwatch start = stopwatch_start();
    struct grammar *grammar = grammar_compile(&spec, job->vocab, &err);
    struct grammar_state *state = grammar ? grammar_state_create(grammar, &err) : NULL;
    bool ok = state && grammar_state_mask(state, job->mask, &err);
    double compile_us = stopwatch_us(&start);
    grammar_state_destroy(state);
    job->times.n = 0;
    size_t i;
    json_array_foreach(tests, i, test) {
        bool accepted = false;
        json_t *data = json_object_get(test, "data");
        ok = ok && data && accepts(job, grammar, data, &accepted, &err);
        if (!ok)
            break;
        json_array_append_new(results, json_boolean(accepted));
    }
    if (err.code != ERR_OK)
        error = json_string(err.message);
    for (size_t k = 0; grammar && k < grammar_n_ignored(grammar); k++)
        json_array_append_new(ignored, json_string(grammar_ignored(grammar, k)));
    json_t *name = json_object_get(line, "name");
    json_int_t bytes = grammar ? (json_int_t)grammar_bytes(grammar) : 0;
    json_t *out = json_pack("{sO sf so so so so sI}", "name", name ? name : json_null(),
                            "compile_us", compile_us, "results", results, "mask_us",
                            summary(&job->times), "error", error ? error : json_null(), "ignored",
                            ignored, "grammar_bytes", bytes);
    grammar_release(grammar);
    strbuf_deinit(&own);
    return out;
}

static bool run_file(struct mask_job *job, const char *path, struct err *err) {
    struct file_map map = {0};
    if (!file_map_open(&map, path, err))
        return false;
    bool ok = true;
    struct str text = str_of(map.bytes);
    for (size_t pos = 0, n_line = 1; ok && pos < text.n; n_line++) {
        size_t end = str_find(text, STR("\n"), pos);
        if (end == SIZE_MAX)
            end = text.n;
        struct str one = str_slice(text, pos, end);
        pos = end + 1;
        if (one.n == 0)
            continue;
        json_error_t where;
        json_t *line = json_loadb(one.data, one.n, JSON_ALLOW_NUL, &where);
        if (!line) // integers beyond 64 bits
            line = json_loadb(one.data, one.n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &where);
        if (!line) {
            ok = err_set(err, ERR_FORMAT, "%s: line %zu: %s", path, n_line, where.text);
            break;
        }
        json_t *out = run_line(job, line);
        json_decref(line);
        struct strbuf result = {0};
        if (out)
            strbuf_json(&result, out);
        json_decref(out);
        ok = out && !result.failed ? true : err_set(err, ERR_NOMEM, "mask: out of memory");
        if (ok) {
            fwrite(result.data, 1, result.n, stdout);
            putchar('\n');
        }
        strbuf_deinit(&result);
    }
    file_map_close(&map);
    return ok;
}

int cmd_mask(int argc, char **argv) {
    const char *schema = NULL, *grammar = NULL, *regex = NULL, *model = NULL, *jsonl = NULL;
    bool compact = false;
    const struct cli_option options[] = {
        {.name = "--schema", .kind = CLI_TEXT, .out = &schema, .value = "F",
         .help = "a JSON Schema (default: each line's own)"},
        {.name = "--grammar", .kind = CLI_TEXT, .out = &grammar, .value = "F",
         .help = "a grammar in GBNF's or XGrammar's spelling"},
        {.name = "--regex", .kind = CLI_TEXT, .out = &regex, .value = "R",
         .help = "a regular expression for the whole text"},
        {.name = "--tokenizer", .kind = CLI_TEXT, .out = &model, .value = "MODEL",
         .help = "the model folder whose vocabulary to use"},
        {.name = "--jsonl", .kind = CLI_TEXT, .out = &jsonl, .value = "TESTS",
         .help = "tests, a line each: {\"name\",\"schema\",\"tests\":[{\"valid\",\"data\"}]}"},
        {.name = "--compact", .kind = CLI_SWITCH, .out = &compact,
         .help = "no white space in the JSON that schemas describe"},
    };
    const struct cli_spec spec = {
        .usage = "mask --tokenizer MODEL --jsonl TESTS [--schema F | --grammar F | --regex R]",
        .summary = "Try instances against a grammar, token by token, and time the masks. Prints a line\n"
                   "of JSON for each line of tests.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    uint32_t n_positional = 0;
    switch (cli_parse(&spec, argc, argv, NULL, &n_positional)) {
    case CLI_HELPED:
        return EXIT_DONE;
    case CLI_WRONG:
        return EXIT_USAGE;
    case CLI_RUN:
        break;
    }
    if (!model || !jsonl)
        return cli_wrong("mask", "--tokenizer and --jsonl are needed");
    if (!!schema + !!grammar + !!regex > 1)
        return cli_wrong("mask", "--schema, --grammar and --regex exclude each other");
    struct err err = {0};
    struct strbuf text = {0};
    struct mask_job job = {.own_schema = !schema && !grammar && !regex};
    job.spec = (struct grammar_spec){.kind = grammar ? GRAMMAR_EBNF
                                             : regex ? GRAMMAR_REGEX
                                                     : GRAMMAR_JSON_SCHEMA,
                                     .compact = compact};
    bool ok = true;
    if (schema || grammar)
        ok = file_read(schema ? schema : grammar, GRAMMAR_TEXT_BYTES_MAX, &text, &err);
    job.spec.text = regex ? str_from(regex) : strbuf_str(&text);
    job.tokenizer = ok ? tokenizer_open(model, &err) : NULL;
    job.vocab = job.tokenizer ? grammar_vocab_of_tokenizer(job.tokenizer, 0, NULL, 0, &err) : NULL;
    job.mask = job.vocab ? malloc((grammar_vocab_mask_words(job.vocab) + 1) * sizeof *job.mask)
                         : NULL;
    if (job.vocab && !job.mask)
        err_set(&err, ERR_NOMEM, "mask: out of memory");
    ok = job.mask && run_file(&job, jsonl, &err);
    free(job.mask);
    free(job.times.us);
    grammar_vocab_destroy(job.vocab);
    tokenizer_destroy(job.tokenizer);
    strbuf_deinit(&text);
    return ok ? cli_finish_stdout(EXIT_DONE) : cli_fail("mask", &err);
}
