// base/arena.h - memory for what dies together: allocated piece by piece, freed at once.
// An arena belongs to one thread at a time. Zero-initialise it; deinit of a zeroed one does nothing.
#ifndef LOAM_BASE_ARENA_H
#define LOAM_BASE_ARENA_H
#include "base/bytes.h"

struct arena_block;
struct arena {
    struct arena_block *last;
    size_t used_bytes; // handed out, without padding
};

void arena_deinit(struct arena *arena);
// Zeroed memory, aligned for any type; NULL when out of memory. n = 0 gives a valid pointer.
void *arena_alloc(struct arena *arena, size_t n);
// The same for n elements, with the multiplication checked.
void *arena_alloc_array(struct arena *arena, size_t n, size_t element_bytes);
#define arena_array(arena, type, n) ((type *)arena_alloc_array((arena), (n), sizeof(type)))
#define arena_new(arena, type) ((type *)arena_alloc((arena), sizeof(type)))
// Copy text into the arena, NUL-terminated behind its end; false when out of memory.
bool arena_copy(struct arena *arena, struct str s, struct str *out);
// The same as a C string, NULL when out of memory.
char *arena_c_string(struct arena *arena, struct str s);
char *arena_printf(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#endif
