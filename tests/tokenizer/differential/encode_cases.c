// encode_cases TOKENIZER.json: the loam side of compare.mjs. Reads cases from stdin and
// writes, for each, its ids without and with special tokens and the text that the latter decode to.
// All numbers are u32, little-endian:
//   in:  n_bytes bytes            out: n ids  n ids  n_bytes bytes  n_bytes bytes (special skipped)
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "tokenizer/tokenizer.h"

static void put(const void *data, size_t n) {
    if (n)
        fwrite(data, 1, n, stdout);
}
static void put_counted(const void *data, size_t n, size_t element_bytes) {
    uint32_t count = (uint32_t)n;
    put(&count, sizeof count);
    put(data, n * element_bytes);
}

static bool run_case(const struct tokenizer *t, struct str text, double *encode_ms,
                     double *decode_ms, struct err *err) {
    struct token_list plain = {0}, special = {0};
    struct strbuf shown = {0}, skipped = {0};
    uint64_t start = clock_ns();
    bool ok = tokenizer_encode(t, text, 0, &plain, err);
    *encode_ms += clock_ms_since(start);
    ok = ok && tokenizer_encode(t, text, TOKENIZER_ADD_SPECIAL, &special, err);
    start = clock_ns();
    ok = ok && tokenizer_decode(t, special.ids, special.n, false, &shown, err);
    *decode_ms += clock_ms_since(start);
    ok = ok && tokenizer_decode(t, special.ids, special.n, true, &skipped, err);
    // Pieces must join to the whole; a difference shows as one in the text.
    struct detokenizer *detok = ok ? detokenizer_create(t, true, err) : NULL;
    struct strbuf pieces = {0};
    for (size_t i = 0; detok && i < special.n; i++)
        detokenizer_push(detok, special.ids[i], &pieces);
    if (detok)
        detokenizer_finish(detok, &pieces);
    detokenizer_destroy(detok);
    if (ok) {
        put_counted(plain.ids, plain.n, sizeof *plain.ids);
        put_counted(special.ids, special.n, sizeof *special.ids);
        put_counted(shown.data, shown.n, 1);
        put_counted(pieces.data, pieces.n, 1);
        if (!str_eq(strbuf_str(&pieces), strbuf_str(&skipped))) {
            fprintf(stderr, "pieces do not join to the whole: \"%s\" and \"%s\"\n",
                    pieces.n ? pieces.data : "", skipped.n ? skipped.data : "");
            ok = err_set(err, ERR_INTERNAL, "pieces do not join to the whole");
        }
    }
    token_list_deinit(&plain);
    token_list_deinit(&special);
    strbuf_deinit(&shown);
    strbuf_deinit(&skipped);
    strbuf_deinit(&pieces);
    return ok;
}

int main(int argc, char **argv) {
    struct err err = {0};
    struct file_map json = {0};
    if (argc < 2 || !file_map_open(&json, argv[1], &err)) {
        fprintf(stderr, "encode_cases: %s\n", argc < 2 ? "no tokenizer.json named" : err.message);
        return 2;
    }
    uint64_t start = clock_ns();
    struct tokenizer *t = tokenizer_create(json.bytes, (struct bytes){NULL, 0}, &err);
    double load_ms = clock_ms_since(start), encode_ms = 0, decode_ms = 0;
    file_map_close(&json);
    bool ok = t != NULL;
    size_t n_bytes = 0;
    for (uint32_t n; ok && fread(&n, sizeof n, 1, stdin) == 1;) {
        char *text = malloc(n + (size_t)1);
        ok = text && (n == 0 || fread(text, n, 1, stdin) == 1) &&
             run_case(t, (struct str){text, n}, &encode_ms, &decode_ms, &err);
        n_bytes += n;
        free(text);
    }
    tokenizer_destroy(t);
    if (!ok) {
        fprintf(stderr, "encode_cases: %s\n", err.message);
        return 1;
    }
    fprintf(stderr, "{\"load_ms\":%.1f,\"encode_ms\":%.2f,\"decode_ms\":%.2f,\"bytes\":%zu}\n",
            load_ms, encode_ms, decode_ms, n_bytes);
    return 0;
}
