#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

enum { REDRAW_MS = 100, LINE_MS = 5000, BAR_CELLS = 30 };

char *format_bytes(char out[FORMAT_BYTES], uint64_t n) {
    static const char *const UNITS[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double v = (double)n;
    size_t unit = 0;
    while (v >= 999.5 && unit < 5) {
        v /= 1000;
        unit++;
    }
    snprintf(out, FORMAT_BYTES, "%.*f %s", unit == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2, v, UNITS[unit]);
    return out;
}

void progress_begin(struct progress *p) {
    *p = (struct progress){.is_terminal = isatty(STDERR_FILENO) == 1, .start_ns = clock_ns()};
    p->last_ns = p->start_ns;
}

static void format_seconds(char out[16], double seconds) {
    if (seconds < 0 || seconds > 99 * 3600)
        snprintf(out, 16, "--:--");
    else if (seconds >= 3600)
        snprintf(out, 16, "%d:%02d:%02d", (int)seconds / 3600, (int)seconds / 60 % 60, (int)seconds % 60);
    else
        snprintf(out, 16, "%02d:%02d", (int)seconds / 60, (int)seconds % 60);
}

static unsigned terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

void progress_bytes(struct progress *p, uint64_t done, uint64_t total, double bytes_per_s,
                    double seconds_left, const char *detail) {
    if (clock_ms_since(p->last_ns) < (p->is_terminal ? REDRAW_MS : LINE_MS))
        return;
    p->last_ns = clock_ns();
    char have[FORMAT_BYTES], of[FORMAT_BYTES], rate[FORMAT_BYTES], left[16], line[256], bar[BAR_CELLS + 1];
    double share = total ? (double)done / (double)total : 0;
    format_seconds(left, seconds_left);
    snprintf(line, sizeof line, "%3d%% %s of %s  %s/s  %s left%s%s", (int)(100 * share), // 100 % is all of it
             format_bytes(have, done),
             format_bytes(of, total), format_bytes(rate, (uint64_t)bytes_per_s), left, detail ? "  " : "",
             detail ? detail : "");
    if (!p->is_terminal) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < (int)(share * BAR_CELLS + 0.5) ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    unsigned columns = terminal_columns();
    bool room = strlen(line) + BAR_CELLS + 3 < columns;
    fprintf(stderr, "\r\x1b[K%s%s%.*s", room ? bar : "", room ? " " : "", (int)columns - 1, line);
    fflush(stderr);
    p->is_shown = true;
}

void progress_note(struct progress *p, const char *text) {
    fprintf(stderr, "%s%s\n", p->is_shown ? "\r\x1b[K" : "", text);
    p->is_shown = false;
}

void progress_end(struct progress *p) {
    if (p->is_shown)
        fputc('\n', stderr);
    p->is_shown = false;
}
