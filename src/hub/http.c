#include "hub/http.h"

#include <ctype.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

enum { STALL_BYTES_PER_S = 1024, RETRY_AFTER_MS_MAX = 600 * 1000 };

struct http_session {
    CURL *curl;
    char curl_error[CURL_ERROR_SIZE];
    // The request that runs:
    const struct http_request *request;
    struct http_result *result;
    struct http_head head;
    bool head_given, stopped, stalled;
    uint64_t window_start_ns; // stall detection: bytes received since then
    uint64_t window_bytes;
};

static pthread_once_t global_once = PTHREAD_ONCE_INIT;
static void global_init(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

struct http_session *http_session_create(struct err *err) {
    pthread_once(&global_once, global_init);
    struct http_session *session = calloc(1, sizeof *session);
    if (session && (session->curl = curl_easy_init()))
        return session;
    free(session);
    err_set(err, ERR_NOMEM, "out of memory for a connection");
    return NULL;
}

void http_session_destroy(struct http_session *session) {
    if (session)
        curl_easy_cleanup(session->curl);
    free(session);
}

// ---- Header values ------------------------------------------------------------------------------

static bool parse_u64(const char **p, uint64_t *out) {
    if (!isdigit((unsigned char)**p))
        return false;
    uint64_t v = 0;
    for (; isdigit((unsigned char)**p); ++*p)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(**p - '0'), &v))
            return false;
    *out = v;
    return true;
}

bool http_parse_content_range(struct str value, struct http_head *head) {
    char text[128];
    if (value.n >= sizeof text)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)value.n, value.data);
    const char *p = text;
    uint64_t from, last, total;
    if (strncasecmp(p, "bytes ", 6) != 0)
        return false;
    p += 6;
    if (!parse_u64(&p, &from) || *p++ != '-' || !parse_u64(&p, &last) || *p++ != '/' ||
        !parse_u64(&p, &total) || *p != '\0' || from > last || last >= total)
        return false;
    head->has_range = true;
    head->range_from = from;
    head->range_to = last + 1;
    head->range_total = total;
    return true;
}

uint32_t http_parse_retry_after(struct str value) {
    char text[64];
    if (value.n == 0 || value.n >= sizeof text)
        return 0;
    snprintf(text, sizeof text, "%.*s", (int)value.n, value.data);
    const char *p = text;
    uint64_t seconds;
    if (!parse_u64(&p, &seconds) || *p != '\0') {
        time_t at = curl_getdate(text, NULL), now = time(NULL);
        if (at < 0)
            return 0;
        seconds = at > now ? (uint64_t)(at - now) : 0;
    }
    return seconds > RETRY_AFTER_MS_MAX / 1000 ? RETRY_AFTER_MS_MAX : (uint32_t)seconds * 1000;
}

static bool url_part(const char *url, CURLUPart part, char *out, size_t n) {
    CURLU *handle = curl_url();
    char *text = NULL;
    bool ok = handle && curl_url_set(handle, CURLUPART_URL, url, 0) == CURLUE_OK &&
              curl_url_get(handle, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0) ==
                  CURLUE_OK &&
              strlen(text) < n;
    if (ok)
        snprintf(out, n, "%s", text);
    curl_free(text);
    curl_url_cleanup(handle);
    return ok;
}

bool http_same_origin(const char *url_a, const char *url_b) {
    static const CURLUPart PARTS[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        char a[300], b[300];
        if (!url_part(url_a, PARTS[i], a, sizeof a) || !url_part(url_b, PARTS[i], b, sizeof b) ||
            strcasecmp(a, b) != 0)
            return false;
    }
    return true;
}

// ---- Callbacks of libcurl -----------------------------------------------------------------------

static bool header_is(struct str line, struct str name, struct str *value) {
    if (line.n <= name.n || strncasecmp(line.data, name.data, name.n) != 0 || line.data[name.n] != ':')
        return false;
    size_t from = name.n + 1, to = line.n;
    while (from < to && isspace((unsigned char)line.data[from]))
        from++;
    while (to > from && isspace((unsigned char)line.data[to - 1]))
        to--;
    *value = str_slice(line, from, to);
    return true;
}

static void copy_text(char *out, size_t n, struct str value) {
    size_t len = value.n < n - 1 ? value.n : n - 1;
    for (size_t i = 0; i < len; i++) // a message for a terminal: nothing that moves its cursor
        out[i] = isprint((unsigned char)value.data[i]) ? value.data[i] : ' ';
    out[len] = '\0';
}

static size_t on_header(char *data, size_t one, size_t n, void *user) {
    struct http_session *s = user;
    struct str line = {data, one * n}, value;
    if (str_starts(line, STR("HTTP/"))) { // a new response (after 100 Continue, or the first)
        s->head = (struct http_head){.content_bytes = -1};
        s->result->retry_after_ms = 0;
        s->result->error_code[0] = s->result->error_text[0] = '\0';
    } else if (header_is(line, STR("Content-Range"), &value)) {
        http_parse_content_range(value, &s->head);
    } else if (header_is(line, STR("Retry-After"), &value)) {
        s->result->retry_after_ms = http_parse_retry_after(value);
    } else if (header_is(line, STR("X-Error-Code"), &value)) {
        copy_text(s->result->error_code, sizeof s->result->error_code, value);
    } else if (header_is(line, STR("X-Error-Message"), &value)) {
        copy_text(s->result->error_text, sizeof s->result->error_text, value);
    }
    return line.n;
}

// The first body byte, or the end of a response without one: its head is complete.
static bool give_head(struct http_session *s) {
    if (s->head_given)
        return true;
    s->head_given = true;
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &s->head.status);
    curl_off_t n = -1;
    if (curl_easy_getinfo(s->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &n) == CURLE_OK)
        s->head.content_bytes = n;
    if (s->head.status / 100 == 2 && s->request->on_head &&
        !s->request->on_head(s->request->user, &s->head))
        s->stopped = true;
    return !s->stopped;
}

static size_t on_data(char *data, size_t one, size_t n, void *user) {
    struct http_session *s = user;
    size_t n_bytes = one * n;
    if (!give_head(s))
        return 0;
    if (s->head.status / 100 != 2) { // an error's body: keep the start as its text
        if (s->head.status / 100 != 3 && s->result->error_text[0] == '\0')
            copy_text(s->result->error_text, sizeof s->result->error_text, (struct str){data, n_bytes});
        return n_bytes;
    }
    uint64_t before_ns = clock_ns();
    if (!s->request->on_body(s->request->user, (struct bytes){(uint8_t *)data, n_bytes})) {
        s->stopped = true;
        return 0;
    }
    uint64_t now_ns = clock_ns();
    s->window_start_ns += now_ns - before_ns; // waiting for the disk is not the network's stall
    s->window_bytes += n_bytes;
    if (s->window_bytes >= (uint64_t)STALL_BYTES_PER_S * s->request->stall_ms / 1000) {
        s->window_start_ns = now_ns;
        s->window_bytes = 0;
    }
    return n_bytes;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)a, (void)b, (void)c, (void)d;
    struct http_session *s = user;
    if (s->request->should_stop && s->request->should_stop(s->request->user)) {
        s->stopped = true;
        return 1;
    }
    if (clock_ms_since(s->window_start_ns) > s->request->stall_ms) {
        s->stalled = true;
        return 1;
    }
    return 0;
}

// ---- Requests -----------------------------------------------------------------------------------

static bool curl_may_help_again(CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_AGAIN:
        return true;
    default:
        return false;
    }
}

// One hop, no redirect followed. *next is set to the URL of a redirect (curl's memory).
static enum http_outcome one_hop(struct http_session *s, const char *url, bool send_token,
                                 const char **next, struct err *err) {
    const struct http_request *r = s->request;
    CURL *curl = s->curl;
    char host[300] = "";
    url_part(url, CURLUPART_HOST, host, sizeof host);
    *next = NULL;
    s->head = (struct http_head){.content_bytes = -1};
    s->head_given = s->stopped = s->stalled = false;
    s->curl_error[0] = '\0';
    s->result->status = 0;
    s->result->error_code[0] = s->result->error_text[0] = '\0';
    snprintf(s->result->url, sizeof s->result->url, "%s", url);

    curl_easy_reset(curl); // options only: connections stay
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "loam/" LOAM_VERSION);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 20L);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L * 1024);
    curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, s->curl_error);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, s);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, s);
    char range[64];
    if (r->has_range) {
        if (r->range_to == UINT64_MAX)
            snprintf(range, sizeof range, "%llu-", (unsigned long long)r->range_from);
        else
            snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)r->range_from,
                     (unsigned long long)(r->range_to - 1));
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    }
    struct curl_slist *headers = NULL;
    if (send_token) {
        char line[HUB_TOKEN_BYTES + 32];
        snprintf(line, sizeof line, "Authorization: Bearer %s", r->token);
        headers = curl_slist_append(NULL, line);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    }
    s->window_start_ns = clock_ns();
    s->window_bytes = 0;
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &s->result->status);
    long status = s->result->status;
    if (code == CURLE_OK)
        give_head(s); // of an empty body
    curl_slist_free_all(headers);

    if (s->stopped)
        return HTTP_STOPPED;
    if (s->stalled) {
        err_set(err, ERR_IO, "%s sent (almost) nothing for %u s", host, r->stall_ms / 1000);
        return HTTP_AGAIN;
    }
    if (code != CURLE_OK) {
        err_set(err, ERR_IO, "%s: %s", host[0] ? host : url,
                s->curl_error[0] ? s->curl_error : curl_easy_strerror(code));
        return curl_may_help_again(code) ? HTTP_AGAIN : HTTP_FAILED;
    }
    if (status / 100 == 2)
        return HTTP_DONE;
    char *location = NULL;
    if ((status == 301 || status == 302 || status == 303 || status == 307 || status == 308) &&
        curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &location) == CURLE_OK && location) {
        *next = location;
        return HTTP_DONE;
    }
    err_set(err, ERR_IO, "%s answered %ld%s%s", host, status, s->result->error_text[0] ? ": " : "",
            s->result->error_text);
    return status == 408 || status == 425 || status == 429 || status / 100 == 5 ? HTTP_AGAIN : HTTP_FAILED;
}

enum http_outcome http_get(struct http_session *session, const struct http_request *request,
                           struct http_result *result, struct err *err) {
    *result = (struct http_result){0};
    session->request = request;
    session->result = result;
    char url[HUB_URL_BYTES];
    if (snprintf(url, sizeof url, "%s", request->url) >= (int)sizeof url) {
        err_set(err, ERR_INVALID, "URL too long: %.100s...", request->url);
        return HTTP_FAILED;
    }
    bool has_token = request->token && request->token[0] && request->origin;
    for (;;) {
        const char *next;
        enum http_outcome outcome =
            one_hop(session, url, has_token && http_same_origin(url, request->origin), &next, err);
        if (outcome != HTTP_DONE || !next)
            return outcome;
        if (++result->n_redirects > HTTP_REDIRECTS_MAX) {
            err_set(err, ERR_IO, "%s redirects more than %d times", request->url, HTTP_REDIRECTS_MAX);
            return HTTP_FAILED;
        }
        bool is_https = strncasecmp(next, "https://", 8) == 0;
        if (!is_https && strncasecmp(next, "http://", 7) != 0) {
            err_set(err, ERR_IO, "refusing the redirect from %.200s to %.200s: not http(s)", url, next);
            return HTTP_FAILED;
        }
        if (!is_https && strncasecmp(url, "https://", 8) == 0) {
            err_set(err, ERR_IO, "refusing the redirect from %.200s to %.200s: it leaves https", url, next);
            return HTTP_FAILED;
        }
        if (snprintf(url, sizeof url, "%s", next) >= (int)sizeof url) {
            err_set(err, ERR_IO, "%s redirects to a URL that is too long", request->url);
            return HTTP_FAILED;
        }
    }
}
