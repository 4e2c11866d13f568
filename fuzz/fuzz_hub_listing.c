// What the hub's API answers, and the headers that servers send.
#include "hub/http.h"
#include "hub/kv_config.h"
#include "hub/listing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct str text = {(const char *)data, n};
    struct hub_listing listing;
    struct err err;
    if (hub_listing_parse(&listing, text, "listing", &err)) {
        struct hub_filter filter = {0};
        for (size_t i = 0; i < listing.n_files; i++)
            hub_filter_wants(&filter, listing.files[i].path);
        hub_listing_deinit(&listing);
    }
    struct http_head head = {0};
    http_parse_content_range(text, &head);
    http_parse_retry_after(text);
    int8_t by_layer[32];
    kv_config_parse(text, 32, by_layer, "kv_config.json", &err);
    return 0;
}
