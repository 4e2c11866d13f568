// loam render: what a chat template makes of a conversation.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file_map.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "cli/render.h"

enum { CASE_BYTES_MAX = 256 << 20 };

static bool case_array(const json_t *c, const char *key, const json_t **out, struct err *err) {
    const json_t *value = json_object_get(c, key);
    *out = json_is_null(value) ? NULL : value;
    return !*out || json_is_array(*out) || err_set(err, ERR_FORMAT, "\"%s\" must be an array", key);
}

// Render with a chat template, which is the case's own unless `chat` is given. Its tokens go over the
// chat template's.
bool render_conversation(const struct chat_template *chat, const json_t *c, struct strbuf *out,
                         struct err *err) {
    struct chat_render_options options = {.kwargs = json_object_get(c, "kwargs")};
    const char *what = "the case";
    if (!case_array(c, "messages", &options.messages, err) || !case_array(c, "tools", &options.tools, err) ||
        !case_array(c, "documents", &options.documents, err) ||
        !json_get_bool(c, "add_generation_prompt", &options.add_generation_prompt, what, err) ||
        !json_get_bool(c, "continue_final_message", &options.continue_final_message, what, err))
        return false;
    if (!options.messages)
        return err_set(err, ERR_FORMAT, "the case has no \"messages\" (nor \"context\")");
    if (options.kwargs && !json_is_object(options.kwargs) && !json_is_null(options.kwargs))
        return err_set(err, ERR_FORMAT, "\"kwargs\" must be an object");
    return chat_template_render(chat, &options, out, err);
}

static json_t *case_tokens(const json_t *c, struct err *err) {
    json_t *tokens = json_object();
    bool ok = tokens != NULL;
    for (int i = 0; ok && i < 2; i++) {
        const char *key = i ? "eos_token" : "bos_token";
        json_t *token = json_object_get(c, key);
        ok = !json_is_string(token) || json_object_set(tokens, key, token) == 0;
    }
    if (ok)
        return tokens;
    json_decref(tokens);
    err_set(err, ERR_NOMEM, "out of memory");
    return NULL;
}

// Render a case with a template given as text.
static bool render_source(struct str source, const json_t *c, struct strbuf *out, struct err *err) {
    const json_t *context = json_object_get(c, "context");
    if (context) {
        if (!json_is_object(context))
            return err_set(err, ERR_FORMAT, "\"context\" must be an object");
        struct template *template = template_parse(source, err);
        bool ok = template && template_render(template, context, NULL, out, err);
        template_destroy(template);
        return ok;
    }
    json_t *tokens = case_tokens(c, err);
    struct chat_template *chat = tokens ? chat_template_create(source, tokens, err) : NULL;
    bool ok = chat && render_conversation(chat, c, out, err);
    chat_template_destroy(chat);
    json_decref(tokens);
    return ok;
}

// The template's own words, without what the library puts in front of them.
static const char *message_of(const struct err *err) {
    static const char PREFIX[] = "chat template: ";
    bool prefixed = strncmp(err->message, PREFIX, sizeof PREFIX - 1) == 0;
    return err->message + (prefixed ? sizeof PREFIX - 1 : 0);
}

static bool render_line(struct str line, struct strbuf *out, struct err *err) {
    json_t *c = json_parse(line, "the line", err);
    if (!c)
        return false;
    const json_t *source = json_object_get(c, "template");
    bool ok = json_is_string(source) ? render_source(json_str(source), c, out, err)
                                     : err_set(err, ERR_INVALID, "the line has no \"template\"");
    json_decref(c);
    return ok;
}

// A case a line in, its result a line out. A template that fails is a result.
static bool render_lines(const char *path, struct err *err) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!file)
        return err_errno(err, errno, "cannot open %s", path);
    char *line = NULL;
    size_t capacity = 0;
    struct strbuf text = {0}, answer = {0};
    bool ok = true;
    for (ssize_t n; ok && (n = getline(&line, &capacity, file)) >= 0;) {
        struct err own = {0};
        struct str s = {line, (size_t)n};
        if (s.n && s.data[s.n - 1] == '\n')
            s.n--;
        strbuf_clear(&text);
        strbuf_clear(&answer);
        bool rendered = render_line(s, &text, &own);
        strbuf_append_c(&answer, rendered ? "{\"text\": " : "{\"error\": ");
        strbuf_json_string(&answer, rendered ? strbuf_str(&text) : str_from(message_of(&own)));
        strbuf_append_c(&answer, "}\n");
        ok = !answer.failed || err_set(err, ERR_NOMEM, "out of memory");
        if (ok)
            fwrite(answer.data, 1, answer.n, stdout);
    }
    if (ok && ferror(file))
        ok = err_errno(err, errno, "cannot read %s", path);
    free(line);
    strbuf_deinit(&text);
    strbuf_deinit(&answer);
    if (file != stdin)
        fclose(file);
    return ok;
}

struct render_job {
    struct model_args model;
    const char *template_file, *input, *jsonl;
};

json_t *render_read_case(const char *path, struct err *err) {
    struct strbuf text = {0};
    bool ok = cli_read(path, CASE_BYTES_MAX, &text, err);
    json_t *c = ok ? json_parse(strbuf_str(&text), path, err) : NULL;
    strbuf_deinit(&text);
    if (c && !json_is_object(c)) {
        err_set(err, ERR_FORMAT, "%s: must be a JSON object with \"messages\"", path);
        json_decref(c);
        c = NULL;
    }
    return c;
}

static bool render_model(const struct model_args *args, const json_t *c, struct strbuf *out, struct err *err) {
    struct bundle_options options;
    char folder[PATH_MAX];
    if (!model_args_resolve(args, NULL, folder, &options, err))
        return false;
    struct chat_template *chat = bundle_open_chat(options.folder, err);
    bool ok = chat && render_conversation(chat, c, out, err);
    chat_template_destroy(chat);
    return ok;
}

static bool render_one(const struct render_job *job, struct strbuf *out, struct err *err) {
    json_t *c = render_read_case(job->input, err);
    if (!c)
        return false;
    bool ok;
    if (job->template_file) {
        struct strbuf source = {0};
        ok = file_read(job->template_file, CASE_BYTES_MAX, &source, err) &&
             render_source(strbuf_str(&source), c, out, err);
        strbuf_deinit(&source);
    } else {
        ok = render_model(&job->model, c, out, err);
    }
    json_decref(c);
    return ok;
}

int cmd_render(int argc, char **argv) {
    struct render_job job = {.model = model_args_default()};
    const struct cli_option options[] = {
        {.name = "--template-file", .kind = CLI_TEXT, .out = &job.template_file, .value = "F",
         .help = "a Jinja template instead of a model's"},
        {.name = "--input", .alias = "-i", .kind = CLI_TEXT, .out = &job.input, .value = "F",
         .help = "the conversation: a JSON object (- = standard input)"},
        {.name = "--jsonl", .kind = CLI_TEXT, .out = &job.jsonl, .value = "F",
         .help = "one such object with its \"template\" a line; one {\"text\"} or {\"error\"} a line out"},
        {.name = "--model", .alias = "-m", .kind = CLI_TEXT, .out = &job.model.model, .value = "MODEL",
         .help = "the model, where it is not the first argument"},
        {.name = "--builtin", .kind = CLI_SWITCH, .out = &job.model.builtin,
         .help = "use the demo model inside the program"},
    };
    const struct cli_spec spec = {
        .usage = "render (MODEL | --template-file F) --input CASE.json\n       loam render --jsonl F",
        .summary = "Print the prompt that a chat template makes of a conversation. The JSON object has\n"
                   "\"messages\", \"tools\", \"documents\", \"add_generation_prompt\",\n"
                   "\"continue_final_message\", \"kwargs\", \"bos_token\", \"eos_token\"; with \"context\"\n"
                   "instead its members are all the template sees.\n"
                   "LOAM_NOW=2026-01-15T12:34:56 fixes the clock that templates see.",
        CLI_OPTIONS(options),
        .n_positional_max = 1,
    };
    const char *positional = NULL;
    uint32_t n_positional = 0;
    switch (cli_parse(&spec, argc, argv, &positional, &n_positional)) {
    case CLI_HELPED:
        return EXIT_DONE;
    case CLI_WRONG:
        return EXIT_USAGE;
    case CLI_RUN:
        break;
    }
    if (n_positional && job.model.model)
        return cli_wrong("render", "give the model once, as the first argument or with --model");
    if (n_positional)
        job.model.model = positional;
    bool has_model = job.model.model || job.model.builtin;
    struct err err = {0};
    if (job.jsonl) {
        if (has_model || job.template_file || job.input)
            return cli_wrong("render", "--jsonl brings its templates and conversations along");
        if (!render_lines(job.jsonl, &err))
            return cli_fail("render", &err);
        return cli_finish_stdout(EXIT_DONE);
    }
    if (has_model == (job.template_file != NULL))
        return cli_wrong("render", "give either a model or --template-file");
    if (!job.input)
        return cli_wrong("render", "--input is missing: the conversation as a JSON file");
    struct strbuf out = {0};
    bool ok = render_one(&job, &out, &err);
    if (ok)
        fwrite(out.data ? out.data : "", 1, out.n, stdout);
    else
        fprintf(stderr, "loam render: %s\n", message_of(&err));
    strbuf_deinit(&out);
    return ok ? cli_finish_stdout(EXIT_DONE) : EXIT_FAILED;
}
