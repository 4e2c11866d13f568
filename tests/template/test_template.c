#include "check.h"

#include <dirent.h>
#include <unistd.h>

#include "base/file_map.h"
#include "failing_alloc.h"
#include "template/template.h"

static json_t *load(const char *path) {
    struct strbuf text = {0};
    struct err err = {0};
    check_ok(file_read(path, 64 << 20, &text, &err), &err);
    json_t *json = json_parse(strbuf_str(&text), path, &err);
    if (!json)
        fail_msg("%s", err.message);
    strbuf_deinit(&text);
    return json;
}

static void check_unit(const char *path) {
    json_t *file = load(path), *c;
    const json_t *context = json_object_get(file, "context"); // of the cases without their own
    size_t i, wrong = 0;
    json_array_foreach(json_object_get(file, "cases"), i, c) {
        struct err err = {0};
        struct strbuf out = {0};
        const char *id = json_string_value(json_object_get(c, "id"));
        const json_t *expected = json_object_get(c, "expected"), *error = json_object_get(c, "error");
        struct template *template = template_parse(json_str(json_object_get(c, "template")), &err);
        const json_t *own = json_object_get(c, "context");
        bool ok = template && template_render(template, own ? own : context, NULL, &out, &err);
        if (ok != (expected != NULL)) {
            print_message("%s: %s: %s%s\n", id, json_string_value(json_object_get(c, "template")),
                          ok ? "renders what must fail: " : "", ok ? out.data : err.message);
            wrong++;
        } else if (ok && !str_eq(strbuf_str(&out), json_str(expected))) {
            print_message("%s: %s\n    got  \"%.*s\"\n    want \"%s\"\n", id,
                          json_string_value(json_object_get(c, "template")), (int)out.n, out.data,
                          json_string_value(expected));
            wrong++;
        } else if (!ok && strcmp(json_string_value(json_object_get(error, "kind")), "raise") == 0 &&
                   (err.code != ERR_INVALID ||
                    strcmp(err.message, json_string_value(json_object_get(error, "message"))) != 0)) {
            print_message("%s: raised \"%s\"\n", id, err.message);
            wrong++;
        }
        strbuf_deinit(&out);
        template_destroy(template);
    }
    print_message("%s: %zu cases, %zu wrong\n", path, i, wrong);
    json_decref(file);
    assert_int_equal(wrong, 0);
}

static void renders_every_unit_case_as_jinja_does(void **state) {
    (void)state;
    char path[4200];
    snprintf(path, sizeof path, "%s/tests/template/unit.json", getenv("LOAM_SOURCE_DIR"));
    check_unit(path);
}

static void agrees_with_jinja_on_generated_templates(void **state) {
    (void)state;
    char path[4200];
    snprintf(path, sizeof path, "%s/tests/template/goldens.json", getenv("LOAM_SOURCE_DIR"));
    check_unit(path);
}

// ---- Errors and limits ------------------------------------------------------------------------

static bool render_text(const char *source, const char *context, const struct template_limits *limits,
                        struct strbuf *out, struct err *err) {
    json_t *variables = json_loads(context, 0, NULL);
    assert_non_null(variables);
    struct template *template = template_parse(str_from(source), err);
    bool ok = template && template_render(template, variables, limits, out, err);
    template_destroy(template);
    json_decref(variables);
    return ok;
}

static void check_fails(const char *source, const struct template_limits *limits, const char *part) {
    struct strbuf out = {0};
    struct err err = {0};
    if (render_text(source, "{}", limits, &out, &err))
        fail_msg("%s renders \"%s\"", source, out.data);
    assert_int_equal(err.code, ERR_FORMAT);
    check_message(&err, part);
    assert_int_equal(out.n, 0);
    strbuf_deinit(&out);
}

static void names_line_and_column_of_a_syntax_error(void **state) {
    (void)state;
    static const struct {
        const char *source, *part;
    } CASES[] = {
        {"a\n{{ 1 + }}", "line 2 column 8: unexpected 'end of print statement'"},
        {"{% if x %}\n\n{% endfor %}", "line 3 column 4: encountered unknown tag 'endfor'"},
        {"\n{% for x in y %}", "'endfor' is missing"},
        {"{% frob %}", "line 1 column 4: encountered unknown tag 'frob'"},
        {"\u00e9 {{ 'open }}", "a string is not closed"},
        {"{{ x|nosuch }}", "line 1 column 6: no filter named 'nosuch'"},
        {"{{ x is nosuch }}", "no test named 'nosuch'"},
        {"{% break %}", "'break' outside loop"},
        {"{# never", "missing end of comment tag"},
        {"{{ f(a=1, a=2) }}", "keyword argument repeated: a"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "non-default argument follows default argument"},
        {"{{ [1, 2 }}", "unexpected '}', expected ']'"},
        {"{{ 1 is odd is even }}", NULL},
        {"\xff\xfe{{ 1 }}", "not valid UTF-8"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct err err = {0};
        struct template *template = template_parse(str_from(CASES[i].source), &err);
        if (!CASES[i].part) {
            template_destroy(template);
            continue;
        }
        if (template)
            fail_msg("%s parses", CASES[i].source);
        assert_int_equal(err.code, ERR_FORMAT);
        check_message(&err, CASES[i].part);
    }
}

static void names_the_line_of_a_failure(void **state) {
    (void)state;
    check_fails("a\nb\n{{ 'x' + 1 }}", NULL, "line 3: can only concatenate str (not \"int\") to str");
    check_fails("{% macro m(x) %}\n{{ x.y }}{% endmacro %}\n\n{{ m() }}", NULL, "line 2: 'x' is undefined");
    check_fails("\n{% include 'other' %}", NULL, "line 2: {% include %} is not supported");
    check_fails("\n\n{{ [].append(1) }}", NULL,
                "line 3: access to attribute 'append' of 'list' object is unsafe");
}

static void keeps_the_text_of_raise_exception(void **state) {
    (void)state;
    struct strbuf out = {0};
    struct err err = {0};
    strbuf_append_c(&out, "before");
    assert_false(render_text("x{{ raise_exception('no\n100% of it: ' ~ 7) }}", "{}", NULL, &out, &err));
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.message, "no\n100% of it: 7");
    assert_string_equal(out.data, "before"); // nothing half done is left behind
    strbuf_deinit(&out);
}

static void stops_templates_that_never_end(void **state) {
    (void)state;
    const struct template_limits small = {.steps_max = 100000, .output_bytes_max = 10000,
                                          .memory_bytes_max = 4 << 20};
    static const struct {
        const char *source, *part;
    } CASES[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}\n{% endfor %}", "line 1: the template does more work"},
        {"\n{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "line 2: macros call each other too deeply"},
        {"{% for a in range(9999) %}\n{{ 'xxxxxxxxxxxxxxxx' }}{% endfor %}", "line 2: the output is longer"},
        {"{% set ns = namespace(x='x') %}{% for a in range(99) %}\n{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "line 2: "},
        {"{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", "recursion"},
        {"{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}", "line 1: "},
        {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "recursion"},
        {"{{ 'x' * 999999999 }}", "line 1: "},
        {"{{ range(9999999) }}", "Range too big"},
        {"{{ '%999999999d' % 1 }}", "more than the output may have"},
        {"{{ '{:>999999999}'.format(1) }}", "more than the output may have"},
        {"{{ 'x'.center(999999999) }}", "more than the output may have"},
        {"{{ 9 ** 99999 }}", "digits"},
        {"{{ [1, 2, 3] | tojson(indent=99999999) }}", "line 1: "},
        {"{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}", "too deeply"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_fails(CASES[i].source, &small, CASES[i].part);
}

static void refuses_nesting_that_no_template_needs(void **state) {
    (void)state;
    static const struct {
        const char *start, *again, *close;
    } CASES[] = {{"{{ ", "(", ")"}, {"{{ ", "[", "]"}, {"{{ ", "not ", ""}, {"{{ ", "-", ""},
                 {"", "{% if 1 %}", ""}, {"{{ 1", "+1", ""}, {"{{ a", ".a", ""}, {"{{ a", "|d", ""},
                 {"{{ a", " if b else a", ""}, {"{{ a", "(a", ")"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct strbuf source = {0};
        strbuf_append_c(&source, CASES[i].start);
        for (int k = 0; k < 500000; k++)
            strbuf_append_c(&source, CASES[i].again);
        for (int k = 0; k < 500000; k++)
            strbuf_append_c(&source, CASES[i].close);
        strbuf_append_c(&source, " }}");
        struct err err = {0};
        struct template *template = template_parse(strbuf_str(&source), &err);
        if (template)
            fail_msg("500000 times %s parses", CASES[i].again);
        check_message(&err, "nested more than");
        strbuf_deinit(&source);
    }
}

static void leaves_nothing_behind_when_memory_runs_out(void **state) {
    (void)state;
    static const char SOURCE[] =
        "{% macro m(a, b=2) %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(x=[]) %}"
        "{% for i in l if i != 2 %}{% set ns.x = ns.x + [i] %}{{ loop.last }}{% endfor %}"
        "{{ ns.x | map('string') | join(',') }}{{ m('x') }}{{ d | tojson(indent=2) }}{{ '%s' % 'y' }}"
        "{{ 2 ** 100 }}{{ l | sort(reverse=true) }}{{ 'a,b'.split(',') }}";
    json_t *context = json_loads("{\"l\": [3, 1, 2], \"d\": {\"a\": [1, \"x\"]}}", 0, NULL);
    bool done = false;
    for (size_t idx = 0; !done; idx++) {
        struct err err = {0};
        struct strbuf out = {0};
        failing_alloc_start(idx, false);
        struct template *template = template_parse(str_from(SOURCE), &err);
        bool ok = template && template_render(template, context, NULL, &out, &err);
        template_destroy(template);
        strbuf_deinit(&out);
        done = !failing_alloc_hit();
        assert_int_equal(failing_alloc_stop(), 0);
        assert_int_equal(ok, done);
        if (!done)
            assert_int_equal(err.code, ERR_NOMEM);
    }
    json_decref(context);
}

// ---- Chat -------------------------------------------------------------------------------------

static void write_file(const char *folder, const char *name, const char *text) {
    char path[4200];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    check_ok(file_write_atomic(path, bytes_of(str_from(text)), &err), &err);
}

static void check_chat(const char *folder, const struct chat_render_options *options, const char *want) {
    struct err err = {0};
    struct strbuf out = {0};
    struct chat_template *chat = chat_template_open(folder, &err);
    if (!chat)
        fail_msg("%s", err.message);
    check_ok(chat_template_render(chat, options, &out, &err), &err);
    check_str(strbuf_str(&out), str_from(want));
    strbuf_deinit(&out);
    chat_template_destroy(chat);
}

static void finds_the_templates_of_a_model_folder(void **state) {
    (void)state;
    char folder[] = "/tmp/loam-template-XXXXXX", path[4200];
    assert_non_null(mkdtemp(folder));
    json_t *messages = json_loads("[{\"role\": \"user\", \"content\": \"Hi\"}]", 0, NULL);
    json_t *tools = json_loads("[{\"name\": \"f\"}]", 0, NULL);
    struct chat_render_options plain = {.messages = messages, .add_generation_prompt = true};
    struct chat_render_options with_tools = {.messages = messages, .tools = tools};
    struct chat_render_options named = {.messages = messages, .template_name = "rag"};
    struct err err = {0};

    // Nothing there: ChatML.
    check_chat(folder, &plain, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    struct chat_template *chat = chat_template_open(folder, &err);
    assert_true(chat_template_is_fallback(chat));
    chat_template_destroy(chat);

    write_file(folder, "tokenizer_config.json",
               "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"chat_template\": "
               "\"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ tools is none }}\"}");
    check_chat(folder, &plain, "<s>Hi</s>True");

    // A list of named templates: tools choose tool_use.
    write_file(folder, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T{{ tools[0].name }}\"},"
               " {\"name\": \"default\", \"template\": \"D\"}, {\"name\": \"rag\", \"template\": \"R\"}]}");
    check_chat(folder, &plain, "D");
    check_chat(folder, &with_tools, "Tf");
    check_chat(folder, &named, "R");
    chat = chat_template_open(folder, &err);
    check_str(chat_template_source(chat), STR("D"));
    struct strbuf out = {0};
    named.template_name = "nosuch";
    assert_false(chat_template_render(chat, &named, &out, &err));
    check_message(&err, "\"nosuch\" does not exist: the model has \"default\", ");
    strbuf_deinit(&out);
    chat_template_destroy(chat);

    // Files go before the configuration.
    write_file(folder, "chat_template.jinja", "file {{ messages[0]['content'] }}\n");
    check_chat(folder, &plain, "file Hi");
    snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    check_ok(path_make_folders(path, &err), &err);
    write_file(path, "rag.jinja", "more");
    named.template_name = "rag";
    check_chat(folder, &named, "more");
    check_chat(folder, &plain, "file Hi");

    write_file(folder, "chat_template.jinja", "a\n{{ broken");
    assert_null(chat_template_open(folder, &err));
    check_message(&err, "chat_template.jinja: chat template \"default\": line 2");

    static const char *const FILES[] = {"additional_chat_templates/rag.jinja", "additional_chat_templates",
                                        "chat_template.jinja", "tokenizer_config.json", ""};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
        remove(path);
    }
    json_decref(messages);
    json_decref(tools);
}

static void continues_the_final_message(void **state) {
    (void)state;
    static const struct {
        const char *source, *messages, *want, *error;
    } CASES[] = {
        {"{{ messages[-1].content }}<end>", "[{\"content\": \"One, \"}]", "One, ", NULL},
        {"{{ messages[-1].content | trim }}<end>", "[{\"content\": \" One, \"}]", "One,", NULL},
        {"{{ messages[-1].content[0].text }}!", "[{\"content\": [{\"text\": \"a\"}, {\"type\": \"image\"}]}]", "a", NULL},
        {"nothing of it", "[{\"content\": \"One\"}]", NULL, "does not appear in the rendered text"},
        {"x", "[{\"content\": null}]", NULL, "needs a last message with text"},
        {"x", "[]", NULL, "needs a last message with text"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct err err = {0};
        struct strbuf out = {0};
        json_t *messages = json_loads(CASES[i].messages, 0, NULL);
        struct chat_template *chat = chat_template_create(str_from(CASES[i].source), NULL, &err);
        assert_non_null(chat);
        struct chat_render_options options = {.messages = messages, .continue_final_message = true};
        bool ok = chat_template_render(chat, &options, &out, &err);
        assert_int_equal(ok, CASES[i].want != NULL);
        if (ok)
            check_str(strbuf_str(&out), str_from(CASES[i].want));
        else
            check_message(&err, CASES[i].error);
        strbuf_deinit(&out);
        chat_template_destroy(chat);
        json_decref(messages);
    }
}

static void further_variables_hide_special_tokens(void **state) {
    (void)state;
    struct err err = {0};
    struct strbuf out = {0};
    json_t *tokens = json_loads("{\"bos_token\": \"<s>\"}", 0, NULL);
    json_t *kwargs = json_loads("{\"bos_token\": \"B\", \"enable_thinking\": false}", 0, NULL);
    json_t *messages = json_array();
    struct chat_template *chat =
        chat_template_create(STR("{{ bos_token }}{{ enable_thinking }}{{ documents }}"), tokens, &err);
    struct chat_render_options options = {.messages = messages, .kwargs = kwargs};
    check_ok(chat_template_render(chat, &options, &out, &err), &err);
    check_str(strbuf_str(&out), STR("BFalseNone"));
    strbuf_deinit(&out);
    chat_template_destroy(chat);
    json_decref(tokens);
    json_decref(kwargs);
    json_decref(messages);
}

static size_t check_case(const struct chat_template *chat, const char *file, json_t *c) {
    struct err err = {0};
    struct strbuf out = {0};
    json_t *kwargs = json_object_get(c, "kwargs"), *tools = json_object_get(c, "tools");
    struct chat_render_options options = {
        .messages = json_object_get(c, "messages"),
        .tools = json_is_null(tools) ? NULL : tools,
        .kwargs = kwargs,
        .add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt")),
        .continue_final_message = json_is_true(json_object_get(c, "continue_final_message"))};
    bool ok = chat && chat_template_render(chat, &options, &out, &err);
    const json_t *expected = json_object_get(c, "expected"), *error = json_object_get(c, "error"),
                 *lenient = json_object_get(c, "lenient");
    size_t wrong = 0;
    if (ok) {
        const json_t *want = expected ? expected : lenient;
        wrong = !want || !str_eq(strbuf_str(&out), json_str(want));
        if (wrong)
            print_message("%s %s: got  \"%.*s\"\n  want \"%s\"\n", file,
                          json_string_value(json_object_get(c, "id")), (int)out.n, out.data,
                          want ? json_string_value(want) : "an error");
    } else {
        const char *kind = json_string_value(json_object_get(error, "kind"));
        const char *message = strstr(err.message, "chat template: ");
        message = message ? message + strlen("chat template: ") : err.message;
        wrong = !error || (strcmp(kind, "raise") == 0 &&
                           strcmp(message, json_string_value(json_object_get(error, "message"))) != 0);
        if (wrong)
            print_message("%s %s: error \"%s\"\n", file, json_string_value(json_object_get(c, "id")),
                          err.message);
    }
    strbuf_deinit(&out);
    return wrong;
}

static void renders_the_real_templates_of_the_corpus(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared) {
        print_message("no shared folder: skipped\n");
        skip();
    }
    char folder[4200], path[4600];
    snprintf(folder, sizeof folder, "%s/templates", shared);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    size_t n_templates = 0, n_cases = 0, wrong = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!str_ends(str_from(entry->d_name), STR(".json")))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        json_t *file = load(path), *c;
        const json_t *source = json_object_get(file, "template");
        if (source) {
            struct err err = {0};
            json_t *tokens = json_object();
            for (int i = 0; i < 2; i++) {
                const char *key = i ? "eos_token" : "bos_token";
                json_t *token = json_object_get(file, key);
                if (json_is_string(token))
                    json_object_set(tokens, key, token);
            }
            struct chat_template *chat = chat_template_create(json_str(source), tokens, &err);
            if (!chat)
                print_message("%s: %s\n", entry->d_name, err.message);
            size_t i;
            n_templates++;
            json_array_foreach(json_object_get(file, "cases"), i, c) {
                wrong += check_case(chat, entry->d_name, c);
                n_cases++;
            }
            chat_template_destroy(chat);
            json_decref(tokens);
        }
        json_decref(file);
    }
    closedir(dir);
    print_message("corpus: %zu templates, %zu cases, %zu wrong\n", n_templates, n_cases, wrong);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv) {
    if (argc == 2) { // a file of differential.py
        check_unit(argv[1]);
        return 0;
    }
    setenv("LOAM_NOW", "2026-01-15T12:34:56", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_every_unit_case_as_jinja_does),
        cmocka_unit_test(agrees_with_jinja_on_generated_templates),
        cmocka_unit_test(names_line_and_column_of_a_syntax_error),
        cmocka_unit_test(names_the_line_of_a_failure),
        cmocka_unit_test(keeps_the_text_of_raise_exception),
        cmocka_unit_test(stops_templates_that_never_end),
        cmocka_unit_test(refuses_nesting_that_no_template_needs),
        cmocka_unit_test(leaves_nothing_behind_when_memory_runs_out),
        cmocka_unit_test(finds_the_templates_of_a_model_folder),
        cmocka_unit_test(continues_the_final_message),
        cmocka_unit_test(further_variables_hide_special_tokens),
        cmocka_unit_test(renders_the_real_templates_of_the_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
