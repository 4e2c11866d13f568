// loam ls: the downloaded models.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host_memory.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "hub/model_json.h"
#include "hub/registry.h"

struct filter {
    const char *query; // NULL = all
    bool vision, audio, tools, all_revisions;
    uint64_t bytes_max; // 0 = any
};

// "10GB", "500M", "7e9", "1.5GiB". False if it is none.
static bool parse_bytes(const char *text, uint64_t *out) {
    static const struct {
        const char *unit;
        double factor;
    } UNITS[] = {{"", 1},      {"b", 1},      {"k", 1e3},   {"kb", 1e3},   {"m", 1e6},   {"mb", 1e6},  {"g", 1e9},
                 {"gb", 1e9},  {"t", 1e12},   {"tb", 1e12}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30},
                 {"tib", 0x1p40}};
    char *end;
    double v = strtod(text, &end);
    while (*end == ' ')
        end++;
    if (end == text || !(v >= 0) || v > 1e18)
        return false;
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++) {
        if (strcasecmp(end, UNITS[i].unit) != 0)
            continue;
        v *= UNITS[i].factor;
        *out = (uint64_t)v;
        return v <= 0x1p62;
    }
    return false;
}

static uint64_t model_bytes(const struct hub_model *m) {
    return m->weight_bytes + m->sidecar_bytes;
}

static bool is_wanted(const struct hub_model *m, const struct filter *f) {
    return !m->problem[0] && (f->all_revisions || m->is_canonical) &&
           (!f->query || strcasestr(m->repo, f->query) || strcasestr(m->model_type, f->query)) &&
           (!f->vision || m->has_vision) && (!f->audio || m->has_audio) && (!f->tools || m->has_tools) &&
           (!f->bytes_max || model_bytes(m) <= f->bytes_max);
}

static const char *format_params(char out[16], uint64_t n) {
    if (n >= 999500000)
        snprintf(out, 16, "%.1fB", (double)n / 1e9);
    else if (n >= 999500)
        snprintf(out, 16, "%.0fM", (double)n / 1e6);
    else
        snprintf(out, 16, "%.0fK", (double)n / 1e3);
    return out;
}

static const char *format_quant(char out[32], const struct hub_model *m) {
    if (!m->quant_bits)
        return "-";
    if (strcmp(m->quant_mode, "affine") == 0)
        snprintf(out, 32, "%u-bit g%u%s", m->quant_bits, m->quant_group, m->is_quant_mixed ? " mixed" : "");
    else
        snprintf(out, 32, "%s%s", m->quant_mode, m->is_quant_mixed ? " mixed" : "");
    return out;
}

static const char *format_context(char out[16], uint32_t n) {
    if (n >= 1024 && n % 1024 == 0)
        snprintf(out, 16, "%uk", n / 1024);
    else
        snprintf(out, 16, "%u", n);
    return out;
}

static const char *format_capabilities(char out[64], const struct hub_model *m) {
    snprintf(out, 64, "%s%s%s%s%s", m->has_tools ? "tools " : "", m->has_vision ? "vision " : "",
             m->has_audio ? "audio " : "", m->is_embedding ? "embedding " : "", m->is_drafter ? "drafter " : "");
    size_t n = strlen(out);
    if (n == 0)
        return "-";
    out[n - 1] = '\0';
    return out;
}

static void print_json(const struct hub_models *list, const struct filter *f, uint64_t limit) {
    json_t *out = json_array();
    for (size_t i = 0; i < list->n; i++)
        if (is_wanted(&list->models[i], f))
            json_array_append_new(out, hub_model_json(&list->models[i], limit, true));
    json_dumpf(out, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(out);
}

static void print_table(const struct hub_models *list, const struct filter *f, uint64_t limit) {
    int width = 4;
    for (size_t i = 0; i < list->n; i++) {
        int n = (int)strlen(list->models[i].repo) + (f->all_revisions ? 9 : 0);
        if (is_wanted(&list->models[i], f) && n > width)
            width = n;
    }
    printf("%-*s %9s %7s  %-16s %8s  %-22s %s\n", width, "NAME", "SIZE", "PARAMS", "QUANT", "CONTEXT",
           "CAPABILITIES", "FITS HERE");
    for (size_t i = 0; i < list->n; i++) {
        const struct hub_model *m = &list->models[i];
        if (!is_wanted(m, f))
            continue;
        char name[HUB_REPO_BYTES + 16], bytes[FORMAT_BYTES], params[16], quant[32], context[16], capable[64];
        if (f->all_revisions)
            snprintf(name, sizeof name, "%s@%.7s%s", m->repo, m->commit, m->is_canonical ? "*" : "");
        else
            snprintf(name, sizeof name, "%s", m->repo);
        printf("%-*s %9s %7s  %-16s %8s  %-22s %s\n", width, name, format_bytes(bytes, model_bytes(m)),
               format_params(params, m->n_params), format_quant(quant, m), format_context(context, m->ctx_len_max),
               format_capabilities(capable, m), hub_model_fits(m, limit) ? "yes" : "no");
    }
}

int cmd_ls(int argc, char **argv) {
    struct filter f = {0};
    const char *bytes_max = NULL;
    bool json = false;
    const struct cli_option OPTIONS[] = {
        {"--vision", NULL, CLI_SWITCH, &f.vision, NULL, "only models that see images"},
        {"--audio", NULL, CLI_SWITCH, &f.audio, NULL, "only models that hear audio"},
        {"--tools", NULL, CLI_SWITCH, &f.tools, NULL, "only models whose chat template knows tools"},
        {"--max-size", NULL, CLI_TEXT, &bytes_max, "BYTES", "only models of at most this size, such as 10GB"},
        {"--all-revisions", NULL, CLI_SWITCH, &f.all_revisions, NULL, "every snapshot, the current one starred"},
        {"--json", NULL, CLI_SWITCH, &json, NULL, "print JSON"},
    };
    const struct cli_spec spec = {"ls [QUERY] [options]",
                                  "List the downloaded models, smallest first. QUERY is part of a name or model type.\n"
                                  "\"Fits here\" reckons with one conversation of 8k tokens; loam fit plans exactly.",
                                  CLI_OPTIONS(OPTIONS), 1};
    switch (cli_parse(&spec, argc, argv, &f.query, NULL)) {
    case CLI_HELPED: return EXIT_DONE;
    case CLI_WRONG: return EXIT_USAGE;
    case CLI_RUN: break;
    }
    if (bytes_max && !parse_bytes(bytes_max, &f.bytes_max))
        return cli_wrong(argv[0], "--max-size takes a size such as 10GB, not \"%s\"", bytes_max);
    struct hub_env env;
    struct hub_models list;
    struct err err = {0};
    if (!hub_env_read(&env, &err) || !hub_models_read(&env, &list, NULL, &err))
        return cli_fail(argv[0], &err);
    struct host_memory memory;
    host_memory_read(&memory);
    size_t n_shown = 0;
    for (size_t i = 0; i < list.n; i++)
        n_shown += is_wanted(&list.models[i], &f);
    if (json)
        print_json(&list, &f, memory.limit_bytes);
    else if (n_shown)
        print_table(&list, &f, memory.limit_bytes);
    else if (list.n)
        fprintf(stderr, "none of the %zu downloaded snapshots matches; \"loam scan\" says which were left out\n", list.n);
    else
        fprintf(stderr, "nothing is downloaded in %s; get a model with: loam get org/name\n", env.cache);
    hub_models_deinit(&list);
    return EXIT_DONE;
}
