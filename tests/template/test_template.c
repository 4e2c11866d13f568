#include "check.h"

#include <dirent.h>

#include "base/file_map.h"
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
        cmocka_unit_test(renders_the_real_templates_of_the_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
