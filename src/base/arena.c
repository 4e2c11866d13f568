#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"

enum { BLOCK_BYTES_MIN = 16 * 1024, BLOCK_BYTES_MAX = 4 * 1024 * 1024, ALIGN = 16 };

struct arena_block {
    struct arena_block *before;
    size_t used, capacity;
    _Alignas(ALIGN) unsigned char data[];
};

void arena_deinit(struct arena *arena) {
    for (struct arena_block *block = arena->last; block;) {
        struct arena_block *before = block->before;
        free(block);
        block = before;
    }
    *arena = (struct arena){0};
}

void *arena_alloc(struct arena *arena, size_t n) {
    size_t rounded;
    if (!round_up_size(n ? n : 1, ALIGN, &rounded))
        return NULL;
    struct arena_block *block = arena->last;
    if (!block || block->capacity - block->used < rounded) {
        // Blocks double, so that a large arena is a few allocations, not thousands.
        size_t capacity = block ? min_size(block->capacity * 2, BLOCK_BYTES_MAX) : BLOCK_BYTES_MIN;
        capacity = max_size(capacity, rounded);
        size_t total;
        if (!add_size(capacity, sizeof *block, &total))
            return NULL;
        block = calloc(1, total);
        if (!block)
            return NULL;
        block->capacity = capacity;
        block->before = arena->last;
        arena->last = block;
    }
    void *p = block->data + block->used;
    block->used += rounded;
    arena->used_bytes += n;
    return p;
}

void *arena_alloc_array(struct arena *arena, size_t n, size_t element_bytes) {
    size_t total;
    return mul_size(n, element_bytes, &total) ? arena_alloc(arena, total) : NULL;
}

bool arena_copy(struct arena *arena, struct str s, struct str *out) {
    size_t total;
    char *copy = add_size(s.n, 1, &total) ? arena_alloc(arena, total) : NULL;
    if (!copy)
        return false;
    if (s.n)
        memcpy(copy, s.data, s.n);
    *out = (struct str){copy, s.n};
    return true;
}

char *arena_c_string(struct arena *arena, struct str s) {
    struct str copy;
    return arena_copy(arena, s, &copy) ? (char *)copy.data : NULL;
}

char *arena_printf(struct arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = n < 0 ? NULL : arena_alloc(arena, (size_t)n + 1);
    if (!text)
        return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}
