// tests/failing_alloc.h - make one allocation of the code under test fail, to sweep over all of them.
// A test program that uses it adds failing_alloc_src and failing_alloc_link_args (tests/meson.build): its
// malloc, calloc, realloc, aligned_alloc and free, and jansson's, then go through here. One thread.
#ifndef LOAM_TESTS_FAILING_ALLOC_H
#define LOAM_TESTS_FAILING_ALLOC_H
#include <stdbool.h>
#include <stddef.h>

// Let allocation number `idx` from now (0 = the next) fail, and with `all` every later one too.
// SIZE_MAX: none. Forgets what was counted.
void failing_alloc_start(size_t idx, bool all);
bool failing_alloc_hit(void); // has one failed since start?
// Stop failing. Returns how many blocks that were allocated since start were not freed.
size_t failing_alloc_stop(void);
#endif
