#include "server/response_store.h"

#include <stdlib.h>

#include "base/clock.h"

struct entry {
    struct entry *older, *newer;
    char *id;
    json_t *response, *input, *context;
    size_t bytes;
    uint64_t put_ns;
};

struct response_store {
    struct entry *oldest, *newest;
    size_t bytes, bytes_max;
    uint64_t ttl_ns;
    uint32_t n;
};

struct response_store *response_store_create(size_t bytes_max, uint32_t ttl_s, struct err *err) {
    struct response_store *store = calloc(1, sizeof *store);
    if (!store) {
        err_set(err, ERR_NOMEM, "out of memory for the response store");
        return NULL;
    }
    store->bytes_max = bytes_max;
    store->ttl_ns = (uint64_t)ttl_s * 1000000000u;
    return store;
}

static void unlink_entry(struct response_store *store, struct entry *e) {
    *(e->older ? &e->older->newer : &store->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &store->newest) = e->older;
}

static void link_newest(struct response_store *store, struct entry *e) {
    e->older = store->newest;
    e->newer = NULL;
    *(store->newest ? &store->newest->newer : &store->oldest) = e;
    store->newest = e;
}

static void drop(struct response_store *store, struct entry *e) {
    unlink_entry(store, e);
    store->bytes -= e->bytes;
    store->n--;
    json_decref(e->response);
    json_decref(e->input);
    json_decref(e->context);
    free(e->id);
    free(e);
}

void response_store_destroy(struct response_store *store) {
    while (store && store->oldest)
        drop(store, store->oldest);
    free(store);
}

static size_t text_bytes(const json_t *value) {
    return json_dumpb(value, NULL, 0, JSON_COMPACT);
}

bool response_store_put(struct response_store *store, const char *id, const struct stored_response *r) {
    // A conversation's items are shared between its answers, but each may be the last to hold them.
    size_t bytes = sizeof(struct entry) + text_bytes(r->response) + text_bytes(r->context);
    if (bytes > store->bytes_max)
        return true;
    struct entry *e = calloc(1, sizeof *e);
    if (!e || !(e->id = str_dup(str_from(id)))) {
        free(e);
        return false;
    }
    e->response = json_incref((json_t *)(uintptr_t)r->response);
    e->input = json_incref((json_t *)(uintptr_t)r->input);
    e->context = json_incref((json_t *)(uintptr_t)r->context);
    e->bytes = bytes;
    e->put_ns = clock_ns();
    link_newest(store, e);
    store->bytes += bytes;
    store->n++;
    while (store->bytes > store->bytes_max)
        drop(store, store->oldest);
    return true;
}

static struct entry *find(struct response_store *store, struct str id) {
    uint64_t now = clock_ns();
    for (struct entry *e = store->newest, *older; e; e = older) {
        older = e->older;
        if (now - e->put_ns > store->ttl_ns)
            drop(store, e);
        else if (str_eq_c(id, e->id))
            return e;
    }
    return NULL;
}

bool response_store_get(struct response_store *store, struct str id, struct stored_response *out) {
    struct entry *e = find(store, id);
    if (!e)
        return false;
    unlink_entry(store, e);
    link_newest(store, e);
    *out = (struct stored_response){e->response, e->input, e->context};
    return true;
}

const json_t *response_store_item(struct response_store *store, struct str id) {
    find(store, (struct str){0}); // drops what is too old
    for (const struct entry *e = store->newest; id.n && e; e = e->older)
        for (size_t i = 0; i < json_array_size(e->context); i++) {
            const json_t *item = json_array_get(e->context, i), *own = json_object_get(item, "id");
            if (json_is_string(own) && str_eq(json_str(own), id))
                return item;
        }
    return NULL;
}

bool response_store_delete(struct response_store *store, struct str id) {
    struct entry *e = find(store, id);
    if (e)
        drop(store, e);
    return e != NULL;
}

void response_store_stats(struct response_store *store, struct response_store_stats *out) {
    *out = (struct response_store_stats){store->n, store->bytes, store->bytes_max,
                                         (uint32_t)(store->ttl_ns / 1000000000u)};
}
