#include "failing_alloc.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

// The linker's --wrap sends calls of f to __wrap_f and calls of __real_f to f.
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t element_bytes);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t element_bytes);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

enum { LIVE_MAX = 1 << 16 };

static struct {
    bool on, all, hit;
    size_t idx, n_seen, n_live;
    const void *live[LIVE_MAX]; // [n_live] blocks handed out since start
} state = {.idx = SIZE_MAX};

static bool fails(void) {
    if (!state.on)
        return false;
    size_t idx = state.n_seen++;
    bool failing = idx == state.idx || (state.all && idx > state.idx);
    state.hit = state.hit || failing;
    return failing;
}

static void *born(void *p) {
    if (state.on && p && state.n_live < LIVE_MAX)
        state.live[state.n_live++] = p;
    return p;
}

// Blocks from elsewhere (libc's own, or older than start) are not in the list.
static void died(const void *p) {
    for (size_t i = state.n_live; p && i-- > 0;) {
        if (state.live[i] == p) {
            state.live[i] = state.live[--state.n_live];
            return;
        }
    }
}

void *__wrap_malloc(size_t n) {
    return fails() ? NULL : born(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t element_bytes) {
    return fails() ? NULL : born(__real_calloc(n, element_bytes));
}

void *__wrap_realloc(void *p, size_t n) {
    if (fails())
        return NULL;
    died(p);
    return born(__real_realloc(p, n));
}

void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : born(__real_aligned_alloc(align, n));
}

void __wrap_free(void *p) {
    died(p);
    __real_free(p);
}

// Before the code under test first looks at jansson's allocator: it keeps what it finds there.
__attribute__((constructor)) static void take_jansson(void) {
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
}

void failing_alloc_start(size_t idx, bool all) {
    state.on = true;
    state.all = all;
    state.hit = false;
    state.idx = idx;
    state.n_seen = state.n_live = 0;
}

bool failing_alloc_hit(void) {
    return state.hit;
}

size_t failing_alloc_stop(void) {
    state.on = false;
    return state.n_live;
}
