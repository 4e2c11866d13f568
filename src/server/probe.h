// server/probe.h - is somebody already serving on a port? Asked before a model is loaded.
#ifndef LOAM_SERVER_PROBE_H
#define LOAM_SERVER_PROBE_H
#include "base/bytes.h"

enum probe_answer {
    PROBE_FREE,    // nobody listens
    PROBE_SERVING, // a model server: `models` holds its models, comma-separated
    PROBE_OTHER,   // something listens that is no model server
};
// Ask GET /v1/models (every OpenAI-like server has it). Takes no time when nobody listens, and at most 2 s.
enum probe_answer server_probe(const char *host, uint16_t port, struct strbuf *models);
#endif
