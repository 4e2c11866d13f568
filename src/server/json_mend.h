// server/json_mend.h - JSON as models write it, turned into JSON while it streams.
// Valid JSON comes out as it is, without white space between its tokens. Mended are: single quotes and a
// family's own quotes, bare words (True, None, keys without quotes, free text), trailing and missing commas,
// raw line breaks and wrong escapes in strings, quotes inside strings, brackets that are not closed or closed
// twice. Whatever comes in, what comes out is a beginning of one JSON value. One owner thread.
#ifndef LOAM_SERVER_JSON_MEND_H
#define LOAM_SERVER_JSON_MEND_H
#include "base/bytes.h"

enum { JSON_MEND_DEPTH_MAX = 64 };

struct json_mend {
    const char *string_mark; // quotes strings besides " and ', or NULL
    bool python;             // key=value counts as key: value
    // What follows is its own.
    uint8_t state, quote, depth, after_quote_newline;
    bool is_key, comma_due, complete;
    uint8_t mark_seen; // bytes of string_mark that the input ended with
    uint8_t hex_n;
    uint16_t hex, high_surrogate;
    char stack[JSON_MEND_DEPTH_MAX];
    struct strbuf held; // a bare word, or white space behind a quote that may end its string
};

// A value is expected. json_mend_open_object(): an object was opened already (its brace comes out).
void json_mend_init(struct json_mend *mend, const char *string_mark, bool python);
void json_mend_open_object(struct json_mend *mend, char closer, struct strbuf *out);
void json_mend_deinit(struct json_mend *mend);
// One more byte. Once mend->complete, no more bytes may come.
void json_mend_push(struct json_mend *mend, char byte, struct strbuf *out);
// Nothing more comes: close what is open. Nothing comes out if nothing came in.
void json_mend_finish(struct json_mend *mend, struct strbuf *out);
bool json_mend_in_string(const struct json_mend *mend); // inside a quoted string
#endif
