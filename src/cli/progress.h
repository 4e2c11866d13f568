// cli/progress.h - progress of long work on stderr: a bar that is redrawn on a terminal, a plain line every
// few seconds elsewhere. One thread at a time.
#ifndef LOAM_CLI_PROGRESS_H
#define LOAM_CLI_PROGRESS_H
#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool is_terminal, is_shown; // shown: a bar stands on the current line
    uint64_t last_ns, start_ns;
};

void progress_begin(struct progress *p);
// Draw, at most ten times a second. seconds_left < 0 and total = 0 mean unknown. `detail` ("3/7 files") may be
// NULL.
void progress_bytes(struct progress *p, uint64_t done, uint64_t total, double bytes_per_s,
                    double seconds_left, const char *detail);
// A line of its own above the bar.
void progress_note(struct progress *p, const char *text);
// Draw the last state (all of it done or not) and end the line.
void progress_end(struct progress *p);

// "847 B", "12.3 MB", "4.56 GB": decimal units. Returns out.
enum { FORMAT_BYTES = 16 };
char *format_bytes(char out[FORMAT_BYTES], uint64_t n);
#endif
