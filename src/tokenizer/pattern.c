#include "tokenizer/pattern.h"

bool pattern_read(struct pattern *pattern, const json_t *value, struct arena *arena,
                  const char *what, struct err *err) {
    const json_t *literal = json_object_get(value, "String");
    const json_t *regex = json_object_get(value, "Regex");
    if (json_is_string(value))
        literal = value;
    if (json_is_string(literal)) {
        if (!arena_copy(arena, json_str(literal), &pattern->literal))
            return err_set(err, ERR_NOMEM, "%s: out of memory", what);
        return true;
    }
    if (!json_is_string(regex))
        return err_set(err, ERR_FORMAT, "%s: \"pattern\" must be {\"String\": ...} or "
                                        "{\"Regex\": ...}", what);
    pattern->regex = regex_compile(json_str(regex), err);
    return pattern->regex || err_wrap(err, "%s", what);
}

void pattern_deinit(struct pattern *pattern) {
    regex_destroy(pattern->regex);
    *pattern = (struct pattern){0};
}

enum regex_result pattern_next(const struct pattern *pattern, struct regex_scratch *scratch,
                               struct regex_matches *matches, struct span *out) {
    if (pattern->regex)
        return regex_next(pattern->regex, scratch, matches, out);
    size_t at = pattern->literal.n ? str_find(matches->text, pattern->literal, matches->at)
                                   : SIZE_MAX;
    if (at == SIZE_MAX)
        return REGEX_END;
    *out = (struct span){at, at + pattern->literal.n};
    matches->at = out->to;
    return REGEX_MATCH;
}
