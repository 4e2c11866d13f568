// hub/http.h - HTTP GET with libcurl as the hub needs it: ranges, redirects followed by us, a token that
// never leaves its origin, and failures sorted into "try again" and "give up".
// A session belongs to one thread at a time and keeps its connections open between requests.
#ifndef LOAM_HUB_HTTP_H
#define LOAM_HUB_HTTP_H
#include "base/bytes.h"
#include "base/err.h"
#include "hub/layout.h"

enum { HTTP_REDIRECTS_MAX = 5, HTTP_TEXT_BYTES = 400 };

struct http_session;
struct http_session *http_session_create(struct err *err); // ERR_NOMEM
void http_session_destroy(struct http_session *session);   // NULL is allowed

// What the final response (after redirects) says, before its body arrives.
struct http_head {
    long status;
    int64_t content_bytes; // Content-Length, -1 if not given
    bool has_range;        // a well-formed Content-Range
    uint64_t range_from, range_to, range_total; // [from, to) of total
};

struct http_request {
    const char *url;
    const char *token;  // sent to `origin` only; NULL or "" = none
    const char *origin; // URL whose scheme, host and port may see the token
    bool has_range;
    uint64_t range_from, range_to; // [from, to); to = UINT64_MAX: to the end
    uint32_t stall_ms;  // give up when fewer than 1 KiB/s arrived for this long
    // The final 2xx response began. False ends the request (HTTP_STOPPED). May be NULL.
    bool (*on_head)(void *user, const struct http_head *head);
    // Body bytes of a 2xx response. False ends the request (HTTP_STOPPED).
    bool (*on_body)(void *user, struct bytes data);
    // Asked at least once a second: true ends the request (HTTP_STOPPED). May be NULL.
    bool (*should_stop)(void *user);
    void *user;
};

enum http_outcome {
    HTTP_DONE,    // the whole 2xx body was delivered
    HTTP_STOPPED, // a callback asked to stop
    HTTP_AGAIN,   // reset, stall, short body, 408, 425, 429, 5xx: another try may help
    HTTP_FAILED,  // another try would not help
};

struct http_result {
    long status;             // of the last response, 0 if none came
    uint32_t retry_after_ms; // Retry-After, 0 if not given
    uint32_t n_redirects;
    char error_code[64];     // X-Error-Code of the hub
    char error_text[HTTP_TEXT_BYTES]; // X-Error-Message, or the start of an error's body
    char url[HUB_URL_BYTES]; // that finally answered
};

// Make one request. On HTTP_AGAIN and HTTP_FAILED *err says what happened, naming the host.
enum http_outcome http_get(struct http_session *session, const struct http_request *request,
                           struct http_result *result, struct err *err);

// Parsers of header values, apart so that they can be tested. Content-Range "bytes 0-9/100".
bool http_parse_content_range(struct str value, struct http_head *head);
// Retry-After: seconds or an HTTP date; milliseconds from now, at most 10 minutes; 0 if unreadable.
uint32_t http_parse_retry_after(struct str value);
// Scheme, host and port are the same.
bool http_same_origin(const char *url_a, const char *url_b);
#endif
