#include "engine/stop_text.h"

#include "base/checked.h"

size_t stop_text_scan(struct str pending, const struct str *stops, uint32_t n_stops, uint32_t *found) {
    size_t at = SIZE_MAX, held = 0;
    *found = UINT32_MAX;
    for (uint32_t i = 0; i < n_stops; i++) {
        size_t here = str_find(pending, stops[i], 0);
        if (here == SIZE_MAX)
            continue;
        if (here < at || (here == at && stops[i].n > stops[*found].n)) {
            at = here;
            *found = i;
        }
    }
    if (*found != UINT32_MAX)
        return at;
    for (uint32_t i = 0; i < n_stops; i++) {
        for (size_t n = min_size(stops[i].n - 1, pending.n); n > held; n--) {
            if (str_ends(pending, str_slice(stops[i], 0, n))) {
                held = n;
                break;
            }
        }
    }
    return pending.n - held;
}
