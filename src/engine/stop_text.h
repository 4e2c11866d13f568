// engine/stop_text.h - stop strings in a stream of text: hold back what could become one.
#ifndef LOAM_ENGINE_STOP_TEXT_H
#define LOAM_ENGINE_STOP_TEXT_H
#include "base/bytes.h"

// Of the pending text, how many bytes at its front may go out now. If a stop string occurs, *found is the
// index of the one that begins first (the longest of those), and the result is where it begins; else
// *found is UINT32_MAX and everything but the longest tail that is a proper prefix of a stop may go.
size_t stop_text_scan(struct str pending, const struct str *stops, uint32_t n_stops, uint32_t *found);
#endif
