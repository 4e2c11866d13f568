// server/gen_job.h - one generation: from the engine thread to the event thread.
// Text and tokens collect under a lock until the event thread takes them, all at once, in one turn of its
// loop.
#ifndef LOAM_SERVER_GEN_JOB_H
#define LOAM_SERVER_GEN_JOB_H
#include "server/server.h"

struct gen_job;

// What has come since the last time, and how it ended if it did. `tokens` only when logprobs were wanted.
struct gen_delta {
    struct str text;
    const struct sampled *tokens;
    const size_t *text_ends; // [n_tokens] text up to there came with the token or before it
    size_t n_tokens;
    bool done; // the fields below are set, and the job is gone after the call
    enum finish_reason finish;
    struct str stop_text; // FINISH_STOP_TEXT: which
    struct gen_usage usage;
    const struct err *err; // FINISH_ERROR
    float *values;         // [n_values] FINISH_STOP of a request for values (gen_want), else NULL; may be changed
    uint32_t n_values;
};
// Runs on the event thread.
typedef void gen_delta_fn(void *user, const struct gen_delta *delta);

// Submit to that model; NULL as engine_submit().
struct gen_job *gen_job_start(struct server *server, struct served *served, struct gen_request *request, gen_delta_fn *fn,
                              void *user, struct err *err);
// Event thread, before `done`: the generation is wanted no more; nothing is called again.
void gen_job_abandon(struct gen_job *job);
// Event thread: a job that is held hands nothing over, its text collects; letting go hands over.
void gen_job_hold(struct gen_job *job, bool hold);
#endif
