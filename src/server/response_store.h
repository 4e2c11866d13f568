// server/response_store.h - answers of /v1/responses kept in memory, for previous_response_id and GET.
// Bounded in bytes and time; the least recently used go first. Event thread.
#ifndef LOAM_SERVER_RESPONSE_STORE_H
#define LOAM_SERVER_RESPONSE_STORE_H
#include "base/json.h"

enum { RESPONSE_STORE_BYTES_MAX = 32 << 20, RESPONSE_STORE_TTL_S = 3600 };

struct stored_response {
    const json_t *response; // the object as it was answered
    const json_t *input;    // array: its own input items
    const json_t *context;  // array: every item of the conversation up to and with its output
};

struct response_store;
struct response_store *response_store_create(size_t bytes_max, uint32_t ttl_s, struct err *err);
void response_store_destroy(struct response_store *store); // NULL is allowed
// Keep references. One that is larger than the store is not kept. False when out of memory.
bool response_store_put(struct response_store *store, const char *id, const struct stored_response *response);
// Borrowed until the next call. False: unknown, or too old.
bool response_store_get(struct response_store *store, struct str id, struct stored_response *out);
// The item of that id in any kept conversation, borrowed until the next call, or NULL.
const json_t *response_store_item(struct response_store *store, struct str id);
bool response_store_delete(struct response_store *store, struct str id);

struct response_store_stats {
    uint32_t n_entries;
    size_t bytes, bytes_max;
    uint32_t ttl_s;
};
void response_store_stats(struct response_store *store, struct response_store_stats *out);
#endif
