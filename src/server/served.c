#include "server/served.h"

#include <stdlib.h>

#include "base/log.h"

static bool is_special(void *user, struct str text) {
    const struct tokenizer *tokenizer = user;
    token_id id = tokenizer_id(tokenizer, text);
    return id != TOKEN_NONE && tokenizer_is_special(tokenizer, id);
}

struct served *served_create(struct bundle *bundle, struct engine *engine, struct err *err) {
    struct served *served = calloc(1, sizeof *served);
    if (!served) {
        engine_destroy(engine);
        bundle_close(bundle);
        err_set(err, ERR_NOMEM, "out of memory for a model");
        return NULL;
    }
    *served = (struct served){.bundle = *bundle, .engine = engine, .n_references = 1};
    *bundle = (struct bundle){0};
    served->format = output_format_of(chat_template_source(served->bundle.chat));
    if (strcmp(served->format->name, "generic") == 0)
        served->format = output_format_of_tokens(is_special, served->bundle.tokenizer);
    return served;
}

bool served_template_has(const struct served *served, const char *word) {
    return str_find(chat_template_source(served->bundle.chat), str_from(word), 0) != SIZE_MAX;
}

bool served_reasons(const struct served *served) {
    const struct output_format *f = served->format;
    return f->harmony || (f->think_close && served_template_has(served, f->think_close));
}

struct served *served_acquire(struct served *served) {
    served->n_references++;
    return served;
}

void served_release(struct served *served) {
    if (served && --served->n_references == 0)
        served_destroy(served);
}

void served_destroy(struct served *served) {
    if (served->link) {
        *served->link = served->next;
        if (served->next)
            served->next->link = served->link;
    }
    log_info("server: gone model=%s", served->bundle.name);
    engine_destroy(served->engine);
    grammar_cache_destroy(served->grammars);
    grammar_vocab_destroy(served->grammar_vocab);
    bundle_close(&served->bundle);
    free(served);
}
