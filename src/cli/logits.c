// loam logits: the numbers behind an answer, for comparing with other implementations.
#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "base/checked.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "engine/direct.h"

struct logits_job {
    const char *tokens_file, *positions, *out;
    int64_t chunk;
};

static bool write_rows(FILE *file, const char *path, const float *rows, size_t n, struct err *err) {
    if (fwrite(rows, sizeof *rows, n, file) != n)
        return err_errno(err, errno, "cannot write %s", path);
    return true;
}

// Feed the ids chunk by chunk and write the wanted logits.
static bool run(const struct logits_job *job, struct model *model, const struct token_list *ids,
                FILE *file, struct err *err) {
    uint32_t n_ids = (uint32_t)ids->n, n_vocab = model_config_of(model)->n_vocab;
    uint32_t chunk = job->chunk ? (uint32_t)job->chunk : min_u32(n_ids, 512);
    bool all = strcmp(job->positions, "all") == 0;
    for (uint32_t i = 0; i < n_ids; i++)
        if ((uint32_t)ids->ids[i] >= n_vocab)
            return err_set(err, ERR_INVALID, "token id %d at position %u is outside the vocabulary of %u",
                           ids->ids[i], i, n_vocab);
    struct direct *direct = direct_create(model, 1, n_ids, chunk, all ? chunk : 1, err);
    if (!direct)
        return false;
    bool ok = true;
    for (uint32_t done = 0; ok && done < n_ids;) {
        uint32_t n = min_u32(chunk, n_ids - done);
        const float *logits;
        struct direct_feed feed = {.ids = ids->ids + done, .n_ids = n, .all_logits = all};
        done += n;
        bool wanted = all || done == n_ids;
        ok = direct_step(direct, &feed, 1, !wanted, &logits, err) &&
             (!wanted || write_rows(file, job->out, logits, (size_t)(all ? n : 1) * n_vocab, err));
    }
    direct_destroy(direct);
    return ok;
}

int cmd_logits(int argc, char **argv) {
    struct model_args model = model_args_default();
    struct logits_job job = {.positions = "all"};
    const struct cli_option options[] = {
        {.name = "--tokens-file", .kind = CLI_TEXT, .out = &job.tokens_file, .value = "F",
         .help = "a JSON array of token ids"},
        {.name = "--positions", .kind = CLI_CHOICE, .out = &job.positions, .value = "all|last",
         .help = "whose logits to write (all)"},
        {.name = "--chunk", .kind = CLI_INT, .out = &job.chunk, .value = "N", .min = 1, .max = 65536,
         .help = "tokens a step; changes no bit of the result"},
        {.name = "--out", .alias = "-o", .kind = CLI_TEXT, .out = &job.out, .value = "F",
         .help = "float32 little-endian rows [positions][vocab]"},
        MODEL_OPTIONS(&model),
    };
    const struct cli_spec spec = {"logits MODEL --tokens-file F --out F [options]",
                                  "Write a model's logits for given tokens.", CLI_OPTIONS(options), 1};
    const char *positional = NULL;
    uint32_t n;
    enum cli_outcome outcome = cli_parse(&spec, argc, argv, &positional, &n);
    if (outcome != CLI_RUN)
        return outcome == CLI_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (!job.tokens_file || !job.out)
        return cli_wrong("logits", "%s is missing; usage: loam %s",
                         job.tokens_file ? "--out" : "--tokens-file", spec.usage);
    struct err err = {0};
    struct bundle bundle = {0};
    struct token_list ids = {0};
    FILE *file = NULL;
    bool ok = read_token_file(job.tokens_file, &ids, &err) &&
              model_args_open(&model, positional, true, &bundle, &err);
    if (ok) {
        file = fopen(job.out, "wbe");
        ok = file || err_errno(&err, errno, "cannot create %s", job.out);
    }
    ok = ok && run(&job, bundle.model, &ids, file, &err);
    if (file && fclose(file) != 0 && ok)
        ok = err_errno(&err, errno, "cannot write %s", job.out);
    token_list_deinit(&ids);
    bundle_close(&bundle);
    return ok ? EXIT_DONE : cli_fail("logits", &err);
}
