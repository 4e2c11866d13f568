// server/response_items.h - the items of which conversations in /v1/responses consist: as clients give them, as they are
// kept and listed, and as messages of a chat. Event thread.
#ifndef LOAM_SERVER_RESPONSE_ITEMS_H
#define LOAM_SERVER_RESPONSE_ITEMS_H
#include "server/request.h"
#include "server/response_store.h"

// A request's input, a string or an array of items, in the form that is kept: every item with its type, its id and its
// content as parts; an item_reference replaced by the kept item. A new array; NULL with *error set, which names the item.
json_t *response_items_read(struct response_store *store, const json_t *input, struct request_error *error);
// Append the messages that items of that form, and of answers, come to. ERR_NOMEM.
bool response_items_messages(const json_t *items, json_t *messages, struct request_error *error);
// The list object: `limit` items behind the one with the id `after` (NULL: from the first), in that order or backwards.
void response_items_list(struct strbuf *out, const json_t *items, bool backwards, const char *after, size_t limit);
#endif
