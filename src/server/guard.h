// server/guard.h - who may ask: API keys, and web pages of other origins. Event thread.
//
// A server on a loopback address is reachable for every web page that the machine's browser shows, so there a
// request must name a local host (a page that rebinds its DNS name names its own) and come from a page of a
// local or listed origin. Where the server is reachable from outside, the key is what protects it.
#ifndef LOAM_SERVER_GUARD_H
#define LOAM_SERVER_GUARD_H
#include "server/http.h"

struct guard {
    const char *api_key;      // NULL = everybody
    const char *cors_origins; // comma-separated, or "*"; NULL = local pages only
    const char *host;         // that the server is bound to; NULL = a socket file
};
// May the request go on? If not, it has been answered. Adds CORS headers to what goes on.
bool guard_admit(const struct guard *guard, struct http_exchange *exchange);
#endif
