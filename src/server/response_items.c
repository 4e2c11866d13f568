#include "server/response_items.h"

#include "server/chat_request.h"

static bool wrong_item(struct request_error *error, size_t i, const char *what) {
    error->param = "input";
    return err_set(&error->err, ERR_INVALID, "'input[%zu]' %s", i, what);
}

static const char *kind_of(const json_t *item) {
    const json_t *type = json_object_get(item, "type");
    return json_is_string(type) ? json_string_value(type) : json_object_get(item, "role") ? "message" : "?";
}

static bool has_text(const json_t *item, const char *name) {
    return json_is_string(json_object_get(item, name));
}

// ---- Reading ------------------------------------------------------------------------------------------
// Parts of a message; a string is one part of the role's kind.
static json_t *content_parts(const json_t *content, bool assistant) {
    if (!json_is_string(content))
        return json_deep_copy(content);
    return assistant ? json_pack("[{s:s, s:O, s:[], s:[]}]", "type", "output_text", "text", content, "annotations",
                                 "logprobs")
                     : json_pack("[{s:s, s:O}]", "type", "input_text", "text", content);
}

static bool check_message(const json_t *item, size_t i, struct request_error *error) {
    const json_t *content = json_object_get(item, "content");
    if (!has_text(item, "role"))
        return wrong_item(error, i, "must have a role");
    if (!json_is_string(content) && !json_is_array(content))
        return wrong_item(error, i, "must have a content, a string or an array of parts");
    json_t *text = chat_plain_content(content, "input", i, error); // parts that are no text are refused here
    json_decref(text);
    return text != NULL;
}

static bool check_output(const json_t *item, size_t i, struct request_error *error) {
    json_t *text = chat_plain_content(json_object_get(item, "output"), "input", i, error);
    bool ok = json_is_string(text) && has_text(item, "call_id");
    json_decref(text);
    return ok || error->err.code || wrong_item(error, i, "must have an output and a call_id");
}

// The checked item as it is kept.
static json_t *kept_item(const json_t *item, size_t i, struct request_error *error) {
    const char *kind = kind_of(item), *prefix = "msg_";
    if (strcmp(kind, "message") == 0) {
        if (!check_message(item, i, error))
            return NULL;
    } else if (strcmp(kind, "function_call") == 0) {
        prefix = "fc_";
        if (!has_text(item, "name") || !has_text(item, "arguments") || !has_text(item, "call_id")) {
            wrong_item(error, i, "must have a name, arguments and a call_id");
            return NULL;
        }
    } else if (strcmp(kind, "function_call_output") == 0) {
        prefix = "fco_";
        if (!check_output(item, i, error) || error->err.code)
            return NULL;
    } else if (strcmp(kind, "reasoning") == 0) {
        prefix = "rs_";
    } else {
        wrong_item(error, i, "is of a type that is not understood here; message, function_call, "
                             "function_call_output, reasoning and item_reference are");
        return NULL;
    }
    char id[64];
    request_new_id(prefix, id, sizeof id);
    json_t *kept = json_copy((json_t *)(uintptr_t)item);
    bool ok = kept && json_object_set_new(kept, "type", json_string(kind)) == 0;
    if (ok && !has_text(kept, "id"))
        ok = json_object_set_new(kept, "id", json_string(id)) == 0;
    if (ok && strcmp(kind, "reasoning") != 0 && !has_text(kept, "status"))
        ok = json_object_set_new(kept, "status", json_string("completed")) == 0;
    if (ok && strcmp(kind, "message") == 0) {
        bool assistant = str_eq_c(json_str(json_object_get(item, "role")), "assistant");
        ok = json_object_set_new(kept, "content", content_parts(json_object_get(item, "content"), assistant)) == 0;
    }
    if (ok)
        return kept;
    json_decref(kept);
    err_set(&error->err, ERR_NOMEM, "out of memory for the input");
    return NULL;
}

json_t *response_items_read(struct response_store *store, const json_t *input, struct request_error *error) {
    if (json_is_string(input)) {
        json_t *message = json_pack("{s:s, s:O}", "role", "user", "content", input);
        json_t *item = message ? kept_item(message, 0, error) : NULL;
        json_decref(message);
        json_t *items = item ? json_pack("[o]", item) : NULL;
        if (!items && !error->err.code)
            err_set(&error->err, ERR_NOMEM, "out of memory for the input");
        return items;
    }
    json_t *items = json_array();
    for (size_t i = 0; i < json_array_size(input); i++) {
        const json_t *item = json_array_get(input, i);
        bool refers = strcmp(kind_of(item), "item_reference") == 0;
        const json_t *found = refers ? response_store_item(store, json_str(json_object_get(item, "id"))) : NULL;
        json_t *kept = found ? json_incref((json_t *)(uintptr_t)found) : NULL;
        if (refers && !found)
            wrong_item(error, i, "refers to an item that is not here (any more)");
        else if (!refers)
            kept = kept_item(item, i, error);
        if (!kept || json_array_append_new(items, kept) != 0) {
            if (!error->err.code)
                err_set(&error->err, ERR_NOMEM, "out of memory for the input");
            json_decref(items);
            return NULL;
        }
    }
    return items;
}

// ---- As messages --------------------------------------------------------------------------------------
// The last message, if it is the assistant's: calls belong to it.
static json_t *assistant_message(json_t *messages) {
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (last && strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0)
        return last;
    last = json_pack("{s:s, s:n}", "role", "assistant", "content");
    json_array_append_new(messages, last);
    return last;
}

static bool add_call(json_t *messages, const json_t *item) {
    json_t *message = assistant_message(messages), *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    return json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(item, "call_id"),
                                                  "type", "function", "function", "name",
                                                  json_object_get(item, "name"), "arguments",
                                                  json_object_get(item, "arguments"))) == 0;
}

bool response_items_messages(const json_t *items, json_t *messages, struct request_error *error) {
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        const char *kind = kind_of(item);
        if (strcmp(kind, "function_call") == 0) {
            ok = add_call(messages, item);
            continue;
        }
        if (strcmp(kind, "reasoning") == 0) // is not read again
            continue;
        bool is_message = strcmp(kind, "message") == 0;
        json_t *text = chat_plain_content(json_object_get(item, is_message ? "content" : "output"), "input", i, error);
        if (!text)
            return false;
        ok = json_array_append_new(messages, is_message
                                                 ? json_pack("{s:O, s:o}", "role", json_object_get(item, "role"),
                                                             "content", text)
                                                 : json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id",
                                                             json_object_get(item, "call_id"), "content", text)) == 0;
    }
    return ok || err_set(&error->err, ERR_NOMEM, "out of memory for the input");
}

// ---- Listing ------------------------------------------------------------------------------------------
void response_items_list(struct strbuf *out, const json_t *items, bool backwards, const char *after, size_t limit) {
    size_t n = json_array_size(items), i = 0, n_listed = 0;
    struct str first = {0}, last = {0};
    while (after && i < n && !str_eq_c(json_str(json_object_get(json_array_get(items, backwards ? n - 1 - i : i), "id")), after))
        i++;
    i += after && i < n;
    strbuf_append_c(out, "{\"object\":\"list\",\"data\":[");
    for (; i < n && n_listed < limit; i++, n_listed++) {
        const json_t *item = json_array_get(items, backwards ? n - 1 - i : i);
        last = json_str(json_object_get(item, "id"));
        first = n_listed ? first : last;
        strbuf_append_c(out, n_listed ? "," : "");
        strbuf_json(out, item);
    }
    strbuf_append_c(out, "],\"first_id\":");
    first.n ? strbuf_json_string(out, first) : strbuf_append_c(out, "null");
    strbuf_append_c(out, ",\"last_id\":");
    last.n ? strbuf_json_string(out, last) : strbuf_append_c(out, "null");
    strbuf_printf(out, ",\"has_more\":%s}", i < n ? "true" : "false");
}
