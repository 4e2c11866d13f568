// base/json.h - jansson with our errors: parse bytes, read members with the path in the message.
// Values are jansson's (json_t), reference-counted; getters borrow.
#ifndef LOAM_BASE_JSON_H
#define LOAM_BASE_JSON_H
#include <jansson.h>

#include "base/bytes.h"
#include "base/err.h"

// Parse one JSON text (any value at the top) of untrusted bytes. Nesting is bounded by jansson.
// Of equal keys in an object the last counts. NULL with ERR_FORMAT: "<what>: not valid JSON: line L
// column C: ...", ERR_NOMEM.
json_t *json_parse(struct str text, const char *what, struct err *err);
// The same, but equal keys are ERR_FORMAT.
json_t *json_parse_unique(struct str text, const char *what, struct err *err);

// Members of `object`; absent or null leaves *out alone and returns true, so callers put the default
// there first. A wrong type or range is ERR_FORMAT naming "<what>: \"key\" ...".
bool json_get_u32(const json_t *object, const char *key, uint32_t *out, const char *what,
                  struct err *err);
bool json_get_i64(const json_t *object, const char *key, int64_t *out, const char *what,
                  struct err *err);
bool json_get_f32(const json_t *object, const char *key, float *out, const char *what,
                  struct err *err);
bool json_get_f64(const json_t *object, const char *key, double *out, const char *what,
                  struct err *err);
bool json_get_bool(const json_t *object, const char *key, bool *out, const char *what,
                   struct err *err);
bool json_get_str(const json_t *object, const char *key, struct str *out, const char *what,
                  struct err *err);

// The text of a JSON string value.
static inline struct str json_str(const json_t *value) {
    return (struct str){json_string_value(value), json_string_length(value)};
}
// Append `s` as a quoted JSON string. Ill-formed UTF-8 becomes U+FFFD.
void strbuf_json_string(struct strbuf *out, struct str s);
// Append a compact JSON text of `value`, keys in their order.
void strbuf_json(struct strbuf *out, const json_t *value);
#endif
