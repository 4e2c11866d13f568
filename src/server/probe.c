#include "server/probe.h"

#include <curl/curl.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"

enum { ANSWER_BYTES_MAX = 1 << 20, TIMEOUT_MS = 2000 };

// A server bound to every address is asked on this machine's own.
static const char *reachable(const char *host) {
    if (strcmp(host, "0.0.0.0") == 0)
        return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

static bool listens(const char *host, uint16_t port) {
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(host, service, &hints, &list) != 0)
        return false;
    bool found = false;
    for (struct addrinfo *a = list; a && !found; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        struct timeval timeout = {TIMEOUT_MS / 1000, 0};
        if (fd >= 0) {
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
            found = connect(fd, a->ai_addr, a->ai_addrlen) == 0;
            close(fd);
        }
    }
    freeaddrinfo(list);
    return found;
}

static size_t collect(char *data, size_t size, size_t n, void *user) {
    struct strbuf *out = user;
    strbuf_append(out, (struct str){data, size * n});
    return out->n > ANSWER_BYTES_MAX ? 0 : size * n;
}

// True if the text is OpenAI's list of models; their ids go to *models.
static bool read_models(struct str text, struct strbuf *models) {
    struct err ignored;
    json_t *answer = json_parse(text, "answer", &ignored);
    const json_t *data = json_object_get(answer, "data");
    bool is_list = json_is_array(data);
    for (size_t i = 0; is_list && i < json_array_size(data); i++) {
        const json_t *id = json_object_get(json_array_get(data, i), "id");
        if (json_is_string(id)) {
            if (models->n)
                strbuf_append_c(models, ", ");
            strbuf_append(models, json_str(id));
        }
    }
    json_decref(answer);
    return is_list;
}

enum probe_answer server_probe(const char *host, uint16_t port, struct strbuf *models) {
    host = reachable(host);
    if (port == 0 || !listens(host, port))
        return PROBE_FREE;
    char url[512];
    snprintf(url, sizeof url, strchr(host, ':') ? "http://[%s]:%u/v1/models" : "http://%s:%u/v1/models",
             host, port);
    struct strbuf answer = {0};
    CURL *curl = curl_easy_init();
    bool serving = false;
    if (curl) {
        curl_easy_setopt(curl, CURLOPT_URL, url);
        curl_easy_setopt(curl, CURLOPT_PROXY, "");
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
        serving = curl_easy_perform(curl) == CURLE_OK && read_models(strbuf_str(&answer), models);
        curl_easy_cleanup(curl);
    }
    strbuf_deinit(&answer);
    return serving ? PROBE_SERVING : PROBE_OTHER;
}
