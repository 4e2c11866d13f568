#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file_map.h"
#include "base/log.h"
#include "template/run.h"
#include "template/unicode.h"

enum { FILE_BYTES_MAX = 64 * 1024 * 1024 };

static const char CHATML[] =
    "{%- for message in messages -%}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' -}}\n"
    "    {%- if message['content'] is string -%}\n"
    "        {{- message['content'] -}}\n"
    "    {%- elif message['content'] is iterable -%}\n"
    "        {%- for part in message['content'] if part['text'] is defined -%}\n"
    "            {{- part['text'] -}}\n"
    "        {%- endfor -%}\n"
    "    {%- endif -%}\n"
    "    {{- '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "    {{- '<|im_start|>assistant\\n' -}}\n"
    "{%- endif -%}\n";

// What is put behind the message to continue, to find its end in the rendered text.
static const char CONTINUE_TAG[] = "CONTINUE_FINAL_MESSAGE_TAG ";

struct named_template {
    char *name;
    char *source;
    size_t source_bytes;
    struct template *template;
};

struct chat_template {
    struct named_template *templates; // the default one first, if there is one
    uint32_t n_templates;
    json_t *special_tokens; // an object of strings and lists of strings
    bool fallback;
};

static bool out_of_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "chat template: out of memory");
}

static struct named_template *find(const struct chat_template *chat, struct str name) {
    for (uint32_t i = 0; i < chat->n_templates; i++)
        if (str_eq_c(name, chat->templates[i].name))
            return &chat->templates[i];
    return NULL;
}

// Parse and keep a template. A name that is there already stays as it is.
static bool add(struct chat_template *chat, struct str name, struct str source, struct err *err) {
    if (find(chat, name))
        return true;
    struct named_template *grown =
        realloc(chat->templates, (chat->n_templates + 1) * sizeof *chat->templates);
    if (!grown)
        return out_of_memory(err);
    chat->templates = grown;
    struct named_template *added = &grown[chat->n_templates];
    *added = (struct named_template){
        .name = str_dup(name), .source = str_dup(source), .source_bytes = source.n};
    chat->n_templates++;
    if (!added->name || !added->source)
        return out_of_memory(err);
    added->template = template_parse(source, err);
    if (!added->template)
        return err_wrap(err, "chat template \"%.*s\"", (int)name.n, name.data);
    if (chat->n_templates > 1 && str_eq(name, STR("default"))) {
        struct named_template t = grown[0];
        grown[0] = *added;
        *added = t;
    }
    return true;
}

void chat_template_destroy(struct chat_template *chat) {
    if (!chat)
        return;
    for (uint32_t i = 0; i < chat->n_templates; i++) {
        free(chat->templates[i].name);
        free(chat->templates[i].source);
        template_destroy(chat->templates[i].template);
    }
    free(chat->templates);
    json_decref(chat->special_tokens);
    free(chat);
}

static struct chat_template *chat_new(struct err *err) {
    struct chat_template *chat = calloc(1, sizeof *chat);
    if (chat && (chat->special_tokens = json_object()))
        return chat;
    chat_template_destroy(chat);
    out_of_memory(err);
    return NULL;
}

// A token as tokenizer_config.json writes it: a string, or an object with its text as "content".
static json_t *token_text(json_t *token) {
    if (json_is_object(token))
        token = json_object_get(token, "content");
    return json_is_string(token) ? token : NULL;
}

static bool set_token(struct chat_template *chat, const char *key, json_t *token, struct err *err) {
    json_t *text = token_text(token);
    if (!text || json_object_get(chat->special_tokens, key))
        return true;
    return json_object_set(chat->special_tokens, key, text) == 0 || out_of_memory(err);
}

static bool ends_with(const char *s, const char *suffix) {
    return str_ends(str_from(s), str_from(suffix));
}

// The special tokens that a configuration names: its members "..._token" and "extra_special_tokens".
static bool add_tokens(struct chat_template *chat, json_t *config, struct err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(config, key, value)
        if (ends_with(key, "_token") && !set_token(chat, key, value, err))
            return false;
    json_object_foreach(json_object_get(config, "extra_special_tokens"), key, value)
        if (!set_token(chat, key, value, err))
            return false;
    json_t *more = json_object_get(config, "additional_special_tokens");
    if (!json_is_array(more) || json_object_get(chat->special_tokens, "additional_special_tokens"))
        return true;
    json_t *texts = json_array();
    size_t i;
    json_array_foreach(more, i, value) {
        json_t *text = token_text(value);
        if (text && json_array_append(texts, text) != 0) {
            json_decref(texts);
            return out_of_memory(err);
        }
    }
    return json_object_set_new(chat->special_tokens, "additional_special_tokens", texts) == 0 ||
           out_of_memory(err);
}

// A JSON file of the folder; *out stays NULL if there is none.
static bool read_json(const char *folder, const char *name, json_t **out, struct err *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!path_exists(path))
        return true;
    struct strbuf text = {0};
    bool ok = file_read(path, FILE_BYTES_MAX, &text, err);
    if (ok) {
        *out = json_parse(strbuf_str(&text), path, err);
        ok = *out != NULL;
    }
    strbuf_deinit(&text);
    return ok;
}

static bool add_file(struct chat_template *chat, const char *path, struct str name, struct err *err) {
    struct strbuf text = {0};
    bool ok = file_read(path, FILE_BYTES_MAX, &text, err) &&
              (add(chat, name, strbuf_str(&text), err) || err_wrap(err, "%s", path));
    strbuf_deinit(&text);
    return ok;
}

static bool add_folder(struct chat_template *chat, const char *folder, struct err *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT || err_errno(err, errno, "reading %s", path);
    bool ok = true;
    for (struct dirent *entry; ok && (entry = readdir(dir));) {
        struct str name = str_from(entry->d_name), suffix = STR(".jinja");
        if (!str_ends(name, suffix) || name.n == suffix.n)
            continue;
        char file[PATH_MAX + NAME_MAX + 2];
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        ok = add_file(chat, file, str_slice(name, 0, name.n - suffix.n), err);
    }
    closedir(dir);
    return ok;
}

// "chat_template" of a configuration: one template, or a list of named ones.
static bool add_config(struct chat_template *chat, const char *folder, const json_t *config,
                       const char *file, struct err *err) {
    const json_t *given = json_object_get(config, "chat_template");
    if (!given || json_is_null(given))
        return true;
    if (json_is_string(given))
        return add(chat, STR("default"), json_str(given), err) || err_wrap(err, "%s/%s", folder, file);
    if (!json_is_array(given))
        return err_set(err, ERR_FORMAT, "%s/%s: \"chat_template\" must be a string or a list of named "
                       "templates", folder, file);
    size_t i;
    json_t *entry;
    json_array_foreach(given, i, entry) {
        const json_t *name = json_object_get(entry, "name"), *source = json_object_get(entry, "template");
        if (!json_is_string(name) || !json_is_string(source))
            return err_set(err, ERR_FORMAT, "%s/%s: \"chat_template\" element %zu must have the strings "
                           "\"name\" and \"template\"", folder, file, i);
        if (!add(chat, json_str(name), json_str(source), err))
            return err_wrap(err, "%s/%s", folder, file);
    }
    return true;
}

static bool load(struct chat_template *chat, const char *folder, struct err *err) {
    json_t *config = NULL, *tokens = NULL, *processor = NULL;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    bool ok = read_json(folder, "tokenizer_config.json", &config, err) &&
              read_json(folder, "special_tokens_map.json", &tokens, err) &&
              read_json(folder, "chat_template.json", &processor, err) &&
              (!path_exists(path) || add_file(chat, path, STR("default"), err)) &&
              add_folder(chat, folder, err) &&
              (chat->n_templates || add_config(chat, folder, config, "tokenizer_config.json", err)) &&
              (chat->n_templates || add_config(chat, folder, processor, "chat_template.json", err)) &&
              add_tokens(chat, config, err) && add_tokens(chat, tokens, err);
    json_decref(config);
    json_decref(tokens);
    json_decref(processor);
    if (!ok || chat->n_templates)
        return ok;
    log_warn("template: no chat template, using ChatML folder=%s", folder);
    chat->fallback = true;
    return add(chat, STR("default"), str_from(CHATML), err);
}

struct chat_template *chat_template_open(const char *folder, struct err *err) {
    struct chat_template *chat = chat_new(err);
    if (chat && load(chat, folder, err))
        return chat;
    chat_template_destroy(chat);
    return NULL;
}

struct chat_template *chat_template_create(struct str source, const json_t *special_tokens,
                                           struct err *err) {
    struct chat_template *chat = chat_new(err);
    if (chat && add(chat, STR("default"), source, err) &&
        (!special_tokens ||
         json_object_update(chat->special_tokens, (json_t *)special_tokens) == 0 || out_of_memory(err)))
        return chat;
    chat_template_destroy(chat);
    return NULL;
}

struct str chat_template_source(const struct chat_template *chat) {
    return (struct str){chat->templates[0].source, chat->templates[0].source_bytes};
}

bool chat_template_is_fallback(const struct chat_template *chat) { return chat->fallback; }

static const struct named_template *pick(const struct chat_template *chat,
                                         const struct chat_render_options *options, struct err *err) {
    const char *wanted = options->template_name;
    const struct named_template *found = NULL;
    if (wanted)
        found = find(chat, str_from(wanted));
    else if (options->tools)
        found = find(chat, STR("tool_use"));
    if (!found && !wanted)
        found = find(chat, STR("default"));
    if (found)
        return found;
    struct strbuf names = {0};
    for (uint32_t i = 0; i < chat->n_templates; i++)
        strbuf_printf(&names, "%s\"%s\"", i ? ", " : "", chat->templates[i].name);
    if (wanted)
        err_set(err, ERR_INVALID, "chat template \"%s\" does not exist: the model has %s", wanted,
                names.data ? names.data : "none");
    else
        err_set(err, ERR_INVALID, "chat template: the model has no default one: choose from %s",
                names.data ? names.data : "none");
    strbuf_deinit(&names);
    return NULL;
}

// A copy of the messages with the tag behind the last one's text; *text is that text (borrowed from
// the original). NULL with the error set.
static json_t *tagged_messages(const json_t *messages, struct str *text, struct err *err) {
    size_t n = json_array_size(messages);
    json_t *last = n ? json_array_get(messages, n - 1) : NULL;
    json_t *content = json_object_get(last, "content"), *part = NULL;
    size_t i = json_array_size(content);
    while (i > 0 && !part) {
        json_t *block = json_array_get(content, --i);
        part = json_is_string(json_object_get(block, "text")) ? block : NULL;
    }
    const json_t *given = part ? json_object_get(part, "text") : content;
    if (!json_is_string(given)) {
        err_set(err, ERR_INVALID, "chat template: continue_final_message needs a last message with text");
        return NULL;
    }
    *text = json_str(given);
    struct strbuf longer = {0};
    strbuf_append(&longer, *text);
    strbuf_append_c(&longer, CONTINUE_TAG);
    json_t *tagged = longer.failed ? NULL : json_stringn(longer.data, longer.n);
    strbuf_deinit(&longer);
    json_t *copy = json_copy((json_t *)messages), *message = json_copy(last);
    bool ok = tagged && copy && message;
    if (ok && part) { // part within content within message
        json_t *parts = json_copy(content), *block = json_copy(part);
        ok = parts && block && json_object_set_new(block, "text", tagged) == 0 &&
             json_array_set(parts, i, block) == 0 && json_object_set(message, "content", parts) == 0;
        tagged = block ? NULL : tagged;
        json_decref(parts);
        json_decref(block);
    } else if (ok) {
        ok = json_object_set_new(message, "content", tagged) == 0;
        tagged = NULL;
    }
    ok = ok && json_array_set(copy, n - 1, message) == 0;
    json_decref(message);
    json_decref(tagged);
    if (!ok) {
        json_decref(copy);
        out_of_memory(err);
        return NULL;
    }
    return copy;
}

// Cut the rendered text where the tag stands.
static bool cut_at_tag(struct strbuf *out, size_t start, struct str message, struct err *err) {
    struct str text = str_slice(strbuf_str(out), start, out->n);
    struct str tag = {CONTINUE_TAG, sizeof CONTINUE_TAG - 2}; // without its space
    size_t at = SIZE_MAX;
    for (size_t i = 0; (i = str_find(text, tag, i)) != SIZE_MAX; i++)
        at = i;
    struct str trimmed = unicode_strip_space(message, true, true);
    if (at == SIZE_MAX || str_find(text, trimmed, 0) == SIZE_MAX) {
        out->n = start;
        return err_set(err, ERR_INVALID, "chat template: continue_final_message: the last message does "
                       "not appear in the rendered text");
    }
    bool whole = at + tag.n < text.n && text.data[at + tag.n] == ' ';
    struct str kept = str_slice(text, 0, at);
    if (!whole)
        kept = unicode_strip_space(kept, false, true);
    out->n = start + kept.n;
    out->data[out->n] = '\0';
    return true;
}

static bool render(const struct chat_template *chat, const struct template *template,
                   const struct chat_render_options *options, const json_t *messages,
                   struct strbuf *out, struct err *err) {
    size_t n_max = json_object_size(chat->special_tokens) + json_object_size(options->kwargs) + 4;
    struct binding *bindings = calloc(n_max, sizeof *bindings);
    if (!bindings)
        return out_of_memory(err);
    uint32_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach(chat->special_tokens, key, value)
        bindings[n++] = (struct binding){.name = str_from(key), .json = value};
    bindings[n++] = (struct binding){.name = STR("messages"), .json = messages};
    bindings[n++] = (struct binding){
        .name = STR("tools"), .json = options->tools ? options->tools : json_null()};
    bindings[n++] = (struct binding){
        .name = STR("documents"), .json = options->documents ? options->documents : json_null()};
    bindings[n++] = (struct binding){
        .name = STR("add_generation_prompt"), .is_true = options->add_generation_prompt};
    json_object_foreach((json_t *)options->kwargs, key, value)
        bindings[n++] = (struct binding){.name = str_from(key), .json = value};
    bool ok = template_run(template, bindings, n, NULL, out, err);
    free(bindings);
    return ok || err_wrap(err, "chat template");
}

bool chat_template_render(const struct chat_template *chat, const struct chat_render_options *options,
                          struct strbuf *out, struct err *err) {
    const struct named_template *picked = pick(chat, options, err);
    if (!picked)
        return false;
    if (!options->continue_final_message)
        return render(chat, picked->template, options, options->messages, out, err);
    if (options->add_generation_prompt)
        return err_set(err, ERR_INVALID, "chat template: continue_final_message and "
                       "add_generation_prompt exclude each other");
    struct str text;
    json_t *messages = tagged_messages(options->messages, &text, err);
    if (!messages)
        return false;
    size_t start = out->n;
    bool ok = render(chat, picked->template, options, messages, out, err) &&
              cut_at_tag(out, start, text, err);
    json_decref(messages);
    return ok;
}
