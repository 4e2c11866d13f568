// GET /downloads: what this server is fetching and has fetched lately.
#include "base/json.h"
#include "server/server.h"

static void append_download(struct strbuf *out, const struct hub_download *d) {
    strbuf_printf(out, "{\"id\":%llu,\"repo\":", (unsigned long long)d->id);
    strbuf_json_string(out, str_from(d->repo));
    strbuf_printf(out,
                  ",\"state\":\"%s\",\"bytes_done\":%llu,\"bytes_total\":%llu,\"bytes_received\":%llu,"
                  "\"files_done\":%u,\"files\":%u,\"retries\":%u,\"bytes_per_second\":%.0f,\"started\":%llu",
                  hub_download_state_name(d->state), (unsigned long long)d->bytes_done,
                  (unsigned long long)d->bytes_total, (unsigned long long)d->bytes_received, d->n_files_done,
                  d->n_files, d->n_retries, d->bytes_per_s, (unsigned long long)d->started_unix);
    if (d->seconds_left >= 0)
        strbuf_printf(out, ",\"seconds_left\":%.1f", d->seconds_left);
    else
        strbuf_append_c(out, ",\"seconds_left\":null");
    if (d->ended_unix)
        strbuf_printf(out, ",\"ended\":%llu", (unsigned long long)d->ended_unix);
    else
        strbuf_append_c(out, ",\"ended\":null");
    strbuf_append_c(out, ",\"error\":");
    d->message[0] ? strbuf_json_string(out, str_from(d->message)) : strbuf_append_c(out, "null");
    strbuf_char(out, '}');
}

void server_downloads(struct http_exchange *exchange, void *user) {
    const struct server *server = user;
    struct hub_download list[HUB_DOWNLOADS_MAX];
    size_t n = server->options.downloads ? hub_downloads_list(server->options.downloads, list) : 0;
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"downloads\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            strbuf_char(&out, ',');
        append_download(&out, &list[i]);
    }
    strbuf_append_c(&out, "]}");
    http_reply_built(exchange, &out);
}
