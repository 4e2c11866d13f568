// server/library.h - the downloaded models, for GET /library: read by a thread of its own, kept for a while.
// Event thread, but for the reading.
#ifndef LOAM_SERVER_LIBRARY_H
#define LOAM_SERVER_LIBRARY_H
#include "server/http.h"

enum { LIBRARY_KEPT_MS = 30000 };

struct library;
struct library *library_create(struct err *err); // ERR_NOMEM
// Wait for the thread. Before the event loop is destroyed; library_destroy() comes after it.
void library_stop(struct library *library); // NULL is allowed
void library_destroy(struct library *library); // NULL is allowed
#endif
