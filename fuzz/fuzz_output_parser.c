// A model's text, in any pieces, read as any family's: arguments are always an object, whole and split alike.
#include <stdlib.h>

#include "base/utf8.h"
#include "server/output_parser.h"

static void on_piece(void *user, const struct output_piece *piece) {
    struct strbuf *all = user;
    if (piece->kind == OUTPUT_CALL_BEGIN)
        strbuf_append_c(all, "\n<call>");
    if (piece->kind == OUTPUT_CALL_END) { // what stands behind the last mark is one object
        struct str text = strbuf_str(all);
        size_t at = SIZE_MAX, from = 0;
        while ((from = str_find(text, STR("\x01"), from)) != SIZE_MAX)
            at = from++;
        struct err err;
        json_t *arguments = json_parse(str_slice(text, at + 1, text.n), "arguments", &err);
        // jansson refuses some valid JSON: NUL in keys, numbers beyond its range.
        bool refused = !arguments && (strstr(err.message, "NUL") || strstr(err.message, "too big") ||
                                      strstr(err.message, "overflow"));
        if (!json_is_object(arguments) && !refused)
            abort();
        json_decref(arguments);
    }
    strbuf_append(all, piece->text);
    if (piece->kind == OUTPUT_CALL_BEGIN)
        strbuf_char(all, 1);
}

static void parse(const struct output_format *format, const json_t *tools, bool open, struct str text,
                  size_t piece_bytes, struct strbuf *out) {
    struct err err;
    struct output_parser_options options = {format, tools, open, on_piece, out};
    struct output_parser *p = output_parser_create(&options, &err);
    for (size_t i = 0; i < text.n; i += piece_bytes)
        output_parser_push(p, str_slice(text, i, i + piece_bytes < text.n ? i + piece_bytes : text.n));
    output_parser_finish(p);
    output_parser_destroy(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static json_t *tools;
    struct err err;
    if (!tools)
        tools = json_parse(STR("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                               "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"}"
                               "}}}}]"), "tools", &err);
    if (n < 2 || memchr(data + 1, 1, n - 1))
        return 0;
    size_t n_formats = 0;
    while (output_format_name(n_formats))
        n_formats++;
    const struct output_format *format =
        output_format_by_name(str_from(output_format_name((data[0] >> 1) % n_formats)));
    struct strbuf text = {0}, whole = {0}, bytes = {0};
    // The detokenizer never gives ill-formed text.
    utf8_append_lossy(&text, (struct str){(const char *)data + 1, n - 1});
    parse(format, tools, data[0] & 1, strbuf_str(&text), text.n, &whole);
    parse(format, tools, data[0] & 1, strbuf_str(&text), 1, &bytes);
    if (!str_eq(strbuf_str(&whole), strbuf_str(&bytes)))
        abort();
    strbuf_deinit(&text);
    strbuf_deinit(&whole);
    strbuf_deinit(&bytes);
    return 0;
}
