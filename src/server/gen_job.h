// server/gen_job.h - one generation on behalf of one exchange: from the engine thread to the event thread.
// Tokens collect under a lock until the event thread takes them, all at once, in one turn of its loop; a
// client that goes away cancels the generation, whose row leaves at the next step.
#ifndef LOAM_SERVER_GEN_JOB_H
#define LOAM_SERVER_GEN_JOB_H
#include "server/server.h"

struct gen_job;

// What a surface does with the text; both run on the event thread. After done() the job is gone, and so
// must be the surface's state.
struct gen_job_surface {
    void (*delta)(void *state, struct str text);
    void (*done)(void *state, enum finish_reason finish, struct str stop_text,
                 const struct gen_usage *usage, const struct err *err);
    // The client went away: free the state. Neither of the others is called after it.
    void (*gone)(void *state);
};

// Submit; on failure the caller still owns exchange and state. On success the surface answers the exchange in
// done(), and before that may stream.
bool gen_job_start(struct server *server, struct http_exchange *exchange, struct gen_request *request,
                   const struct gen_job_surface *surface, void *state, struct err *err);
#endif
