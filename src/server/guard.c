#include "server/guard.h"

#include <stdio.h>
#include <strings.h>

#include "base/hash.h"

// "name:port" or "[v6]:port" without the port.
static struct str without_port(struct str s) {
    if (s.n && s.data[0] == '[') {
        size_t end = str_find(s, STR("]"), 0);
        return end == SIZE_MAX ? s : str_slice(s, 1, end);
    }
    size_t colon = str_find(s, STR(":"), 0);
    return colon == SIZE_MAX ? s : str_slice(s, 0, colon);
}

static bool eq_no_case(struct str s, const char *text) {
    return s.n == strlen(text) && strncasecmp(s.data, text, s.n) == 0;
}

static bool is_loopback(struct str host) {
    static const char SUFFIX[] = ".localhost";
    size_t n = sizeof SUFFIX - 1;
    if (eq_no_case(host, "localhost") || str_eq_c(host, "::1"))
        return true;
    if (host.n > n && strncasecmp(host.data + host.n - n, SUFFIX, n) == 0)
        return true;
    unsigned a, b, c, d;
    char text[16] = "", rest;
    if (host.n >= sizeof text)
        return false;
    memcpy(text, host.data, host.n);
    return sscanf(text, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &rest) == 4 && a == 127;
}

// Does the comma-separated list hold it?
static bool is_listed(const char *list, struct str origin) {
    while (list && *list) {
        size_t n = strcspn(list, ",");
        struct str one = {list, n};
        while (one.n && one.data[0] == ' ')
            one = str_slice(one, 1, one.n);
        while (one.n && (one.data[one.n - 1] == ' ' || one.data[one.n - 1] == '/'))
            one.n--;
        if (str_eq_c(one, "*") || str_eq(one, origin))
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

static bool origin_is_local(struct str origin, struct str host) {
    size_t scheme = str_find(origin, STR("://"), 0);
    if (scheme == SIZE_MAX)
        return false; // "null": a sandboxed or local file's page, which may be anyone's
    struct str authority = str_slice(origin, scheme + 3, origin.n);
    return is_loopback(without_port(authority)) || (host.n && str_eq(authority, host));
}

// Takes the same time wherever the texts begin to differ.
static bool same_key(struct str given, const char *key) {
    char a[65], b[65];
    unsigned char difference = 0;
    hash_sha256_hex(bytes_of(given), a);
    hash_sha256_hex(bytes_of(str_from(key)), b);
    for (size_t i = 0; i < 64; i++)
        difference |= (unsigned char)(a[i] ^ b[i]);
    return difference == 0;
}

static bool has_key(const struct guard *guard, const struct http_exchange *x) {
    struct str path = http_path(x);
    if (!guard->api_key || str_eq_c(path, "/health") || str_eq_c(path, "/ready"))
        return true;
    const char *bearer = http_header(x, "Authorization"), *plain = http_header(x, "x-api-key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0 && same_key(str_from(bearer + 7), guard->api_key))
        return true;
    return plain && same_key(str_from(plain), guard->api_key);
}

static void allow_origin(const struct guard *guard, struct http_exchange *x, const char *origin) {
    bool any = is_listed(guard->cors_origins, STR("*"));
    http_add_header(x, "Access-Control-Allow-Origin", any ? "*" : origin);
    if (!any)
        http_add_header(x, "Vary", "Origin");
    http_add_header(x, "Access-Control-Expose-Headers", "X-Request-Id");
}

bool guard_admit(const struct guard *guard, struct http_exchange *x) {
    struct str host = str_from(http_header(x, "Host"));
    const char *origin = http_header(x, "Origin");
    bool on_loopback = guard->host && is_loopback(str_from(guard->host));
    if (on_loopback && host.n && !is_loopback(without_port(host)) &&
        !str_eq_c(without_port(host), guard->host)) {
        http_fail(x, 403, NULL, "host_not_allowed", NULL, "the Host header names \"%.*s\", but this server "
                  "answers local requests only; start loam with --host to serve others", (int)host.n,
                  host.data);
        return false;
    }
    bool allowed = !origin || is_listed(guard->cors_origins, str_from(origin)) ||
                   origin_is_local(str_from(origin), host);
    if (!allowed && on_loopback) {
        http_fail(x, 403, NULL, "origin_not_allowed", NULL, "web pages of %.200s may not use this server; "
                  "allow them with --cors", origin);
        return false;
    }
    if (origin && allowed)
        allow_origin(guard, x, origin);
    if (str_eq_c(http_method(x), "OPTIONS") && http_header(x, "Access-Control-Request-Method")) {
        if (origin && allowed) {
            const char *wanted = http_header(x, "Access-Control-Request-Headers");
            http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
            http_add_header(x, "Access-Control-Allow-Headers",
                            wanted ? wanted : "Authorization, Content-Type, x-api-key");
            http_add_header(x, "Access-Control-Max-Age", "600");
        }
        http_reply(x, 204, "text/plain", (struct str){0});
        return false;
    }
    if (!has_key(guard, x)) {
        http_add_header(x, "WWW-Authenticate", "Bearer");
        http_fail(x, 401, NULL, "invalid_api_key", NULL, "this server wants an API key: send it as "
                  "Authorization: Bearer KEY or x-api-key: KEY");
        return false;
    }
    return true;
}
