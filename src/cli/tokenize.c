// loam tokenize: text to token ids and back.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "cli/render.h"

enum { TEXT_BYTES_MAX = 1 << 30 };

struct tokenize_job {
    const char *text, *file, *jsonl, *decode, *template;
    bool special; // add what the post-processor adds
    bool skip_special, json;
};

static void append_ids(struct strbuf *out, const struct token_list *ids) {
    strbuf_append_c(out, "{\"ids\": [");
    for (size_t i = 0; i < ids->n; i++)
        strbuf_printf(out, i ? ", %d" : "%d", ids->ids[i]);
    strbuf_append_c(out, "]}\n");
}

static bool put(struct strbuf *line, struct err *err) {
    if (line->failed)
        return err_set(err, ERR_NOMEM, "out of memory");
    fwrite(line->data ? line->data : "", 1, line->n, stdout);
    return true;
}

// ---- For people -------------------------------------------------------------------------------

// A token's text with what would move the cursor spelled out.
static void append_shown(struct strbuf *out, struct str piece) {
    struct strbuf text = {0};
    utf8_append_lossy(&text, piece);
    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = (uint8_t)text.data[i];
        if (c == '\n')
            strbuf_append_c(out, "\\n");
        else if (c == '\t')
            strbuf_append_c(out, "\\t");
        else if (c < 0x20 || c == 0x7F)
            strbuf_printf(out, "\\x%02X", c);
        else
            strbuf_char(out, (char)c);
    }
    out->failed |= text.failed;
    strbuf_deinit(&text);
}

// The text in alternating colours, special tokens reversed; then a table of ids and tokens.
static bool show(const struct tokenizer *t, const struct token_list *ids, struct err *err) {
    static const char *const COLOURS[] = {"\033[44;97m", "\033[42;30m", "\033[43;30m", "\033[45;97m",
                                          "\033[46;30m"};
    struct strbuf out = {0};
    for (size_t i = 0; i < ids->n; i++) {
        bool special = tokenizer_is_special(t, ids->ids[i]);
        struct bytes bytes = tokenizer_token_bytes(t, ids->ids[i]);
        struct str piece = special ? tokenizer_token(t, ids->ids[i]) : str_of(bytes);
        strbuf_append_c(&out, special ? "\033[7m" : COLOURS[i % 5]);
        append_shown(&out, piece);
        strbuf_append_c(&out, "\033[0m");
        if (bytes.n && memchr(bytes.data, '\n', bytes.n))
            strbuf_char(&out, '\n');
    }
    strbuf_printf(&out, "\n\n%zu tokens\n", ids->n);
    for (size_t i = 0; i < ids->n; i++) {
        strbuf_printf(&out, "%8d  ", ids->ids[i]);
        append_shown(&out, tokenizer_token(t, ids->ids[i]));
        strbuf_char(&out, '\n');
    }
    bool ok = put(&out, err);
    strbuf_deinit(&out);
    return ok;
}

// ---- Work -------------------------------------------------------------------------------------

static bool tokenize(const struct tokenize_job *job, const struct tokenizer *t, struct str text,
                     bool special, struct err *err) {
    struct token_list ids = {0};
    struct strbuf line = {0};
    bool ok = tokenizer_encode(t, text, special ? TOKENIZER_ADD_SPECIAL : 0, &ids, err);
    if (ok && !job->json && !job->jsonl && isatty(STDOUT_FILENO)) {
        ok = show(t, &ids, err);
    } else if (ok) {
        append_ids(&line, &ids);
        ok = put(&line, err);
    }
    strbuf_deinit(&line);
    token_list_deinit(&ids);
    return ok;
}

static bool tokenize_line(const struct tokenize_job *job, const struct tokenizer *t,
                          const json_t *value, struct err *err) {
    if (!json_is_string(value))
        return err_set(err, ERR_FORMAT, "must be a JSON string");
    return tokenize(job, t, json_str(value), job->special, err);
}

static bool decode_line(const struct tokenize_job *job, const struct tokenizer *t,
                        const json_t *value, struct err *err) {
    struct token_list ids = {0};
    struct strbuf text = {0}, line = {0};
    bool ok = json_is_array(value);
    for (size_t i = 0; ok && i < json_array_size(value); i++) {
        const json_t *id = json_array_get(value, i);
        ok = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) <= INT32_MAX;
        if (ok)
            token_list_append(&ids, (token_id)json_integer_value(id));
    }
    if (!ok)
        err_set(err, ERR_FORMAT, "must be a JSON array of token ids");
    ok = ok && (!ids.failed || err_set(err, ERR_NOMEM, "out of memory")) &&
         tokenizer_decode(t, ids.ids, ids.n, job->skip_special, &text, err);
    if (ok) {
        strbuf_json_string(&line, strbuf_str(&text));
        strbuf_char(&line, '\n');
        ok = put(&line, err);
    }
    token_list_deinit(&ids);
    strbuf_deinit(&text);
    strbuf_deinit(&line);
    return ok;
}

typedef bool line_fn(const struct tokenize_job *job, const struct tokenizer *t, const json_t *value,
                     struct err *err);

static bool each_line(const char *path, line_fn *fn, const struct tokenize_job *job,
                      const struct tokenizer *t, struct err *err) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!file)
        return err_errno(err, errno, "cannot open %s", path);
    char *line = NULL;
    size_t capacity = 0, nth = 1;
    bool ok = true;
    for (ssize_t n; ok && (n = getline(&line, &capacity, file)) >= 0; nth++) {
        struct str s = {line, (size_t)n};
        json_t *value = json_parse(s, "not a JSON text", err);
        ok = value && fn(job, t, value, err);
        if (!ok)
            err_wrap(err, "%s line %zu", path, nth);
        json_decref(value);
    }
    if (ok && ferror(file))
        ok = err_errno(err, errno, "cannot read %s", path);
    free(line);
    if (file != stdin)
        fclose(file);
    return ok;
}

// A rendered conversation spells its special tokens itself: none is added.
static bool tokenize_conversation(const struct tokenize_job *job, const struct tokenizer *t,
                                  const char *folder, struct err *err) {
    json_t *c = render_read_case(job->template, err);
    struct chat_template *chat = c ? bundle_open_chat(folder, err) : NULL;
    struct strbuf text = {0};
    bool ok = chat && render_conversation(chat, c, &text, err) &&
              tokenize(job, t, strbuf_str(&text), false, err);
    strbuf_deinit(&text);
    chat_template_destroy(chat);
    json_decref(c);
    return ok;
}

static bool run(const struct tokenize_job *job, const struct tokenizer *t, const char *folder,
                struct err *err) {
    if (job->decode)
        return each_line(job->decode, decode_line, job, t, err);
    if (job->jsonl)
        return each_line(job->jsonl, tokenize_line, job, t, err);
    if (job->template)
        return tokenize_conversation(job, t, folder, err);
    if (job->text)
        return tokenize(job, t, str_from(job->text), job->special, err);
    struct strbuf text = {0};
    bool ok = cli_read(job->file ? job->file : "-", TEXT_BYTES_MAX, &text, err) &&
              tokenize(job, t, strbuf_str(&text), job->special, err);
    strbuf_deinit(&text);
    return ok;
}

int cmd_tokenize(int argc, char **argv) {
    struct model_args model = model_args_default();
    struct tokenize_job job = {.special = true};
    const struct cli_option options[] = {
        {.name = "--text", .kind = CLI_TEXT, .out = &job.text, .value = "T", .help = "the text"},
        {.name = "--file", .alias = "-f", .kind = CLI_TEXT, .out = &job.file, .value = "F",
         .help = "a file with the text (- = standard input, the default)"},
        {.name = "--jsonl", .kind = CLI_TEXT, .out = &job.jsonl, .value = "F",
         .help = "a JSON string a line in, {\"ids\": [...]} a line out"},
        {.name = "--template", .kind = CLI_TEXT, .out = &job.template, .value = "F",
         .help = "a conversation, rendered first; the file is as for loam render"},
        {.name = "--decode", .kind = CLI_TEXT, .out = &job.decode, .value = "F",
         .help = "a JSON array of ids a line in, a JSON string a line out"},
        {.name = "--special", .kind = CLI_SWITCH, .out = &job.special,
         .help = "add BOS, EOS and the like (--no-special: do not)"},
        {.name = "--skip-special", .kind = CLI_SWITCH, .out = &job.skip_special,
         .help = "with --decode: leave special tokens out"},
        {.name = "--json", .kind = CLI_SWITCH, .out = &job.json,
         .help = "{\"ids\": [...]} on a terminal too"},
        {.name = "--model", .alias = "-m", .kind = CLI_TEXT, .out = &model.model, .value = "MODEL",
         .help = "the model, where it is not the first argument"},
        {.name = "--builtin", .kind = CLI_SWITCH, .out = &model.builtin,
         .help = "use the demo model inside the program"},
    };
    const struct cli_spec spec = {
        .usage = "tokenize MODEL [--text T | --file F | --jsonl F | --template F | --decode F]",
        .summary = "Turn text into a model's token ids, or ids into text.",
        CLI_OPTIONS(options),
        .n_positional_max = 1,
    };
    const char *positional = NULL;
    enum cli_outcome outcome = cli_parse(&spec, argc, argv, &positional, NULL);
    if (outcome != CLI_RUN)
        return outcome == CLI_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (!!job.text + !!job.file + !!job.jsonl + !!job.template + !!job.decode > 1)
        return cli_wrong("tokenize", "--text, --file, --jsonl, --template and --decode exclude each "
                                     "other");
    if (job.skip_special && !job.decode)
        return cli_wrong("tokenize", "--skip-special goes with --decode");
    struct err err = {0};
    char folder[PATH_MAX];
    struct bundle_options bundle;
    struct tokenizer *t = NULL;
    if (model_args_resolve(&model, positional, folder, &bundle, &err))
        t = bundle_open_tokenizer(bundle.folder, &err);
    bool ok = t && run(&job, t, bundle.folder, &err);
    tokenizer_destroy(t);
    return ok ? cli_finish_stdout(EXIT_DONE) : cli_fail("tokenize", &err);
}
