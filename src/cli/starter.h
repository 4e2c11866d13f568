// cli/starter.h - a model that is fetched while another one serves, and takes over when it is ready. A thread of
// its own downloads and opens it; the server's event thread switches. Whatever fails leaves the server as it is.
#ifndef LOAM_CLI_STARTER_H
#define LOAM_CLI_STARTER_H
#include "cli/model_args.h"
#include "hub/downloads.h"
#include "server/server.h"

struct starter;
struct starter_options {
    const char *repo;     // org/name, copied
    const char *revision; // copied; NULL = main
    struct model_args model; // how to open it
    struct engine_options engine;
    struct server *server;           // outlives the starter
    struct hub_downloads *downloads; // likewise
    void (*on_switch)(const struct served *served); // event thread, when it has taken over
};
// ERR_NOMEM.
struct starter *starter_start(const struct starter_options *options, struct err *err);
// Stop the download (what is there is kept) and wait for the thread; before server_destroy(). NULL is allowed.
void starter_stop(struct starter *starter);
void starter_destroy(struct starter *starter); // after server_destroy(); NULL is allowed
#endif
