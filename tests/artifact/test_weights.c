#include "check.h"

#include <sys/stat.h>
#include <unistd.h>

#include "artifact/weights.h"
#include "base/log.h"
#include "each_model.h"

// ---- Building files -----------------------------------------------------------------------------

// A safetensors file: the header's length, the header, n_data bytes counting up.
static struct bytes make_file(const char *header, size_t n_data) {
    size_t n = strlen(header);
    uint8_t *file = malloc(8 + n + n_data);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(n >> 8 * i);
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        file[8 + n + i] = (uint8_t)i;
    return (struct bytes){file, 8 + n + n_data};
}

static void free_file(struct bytes file) {
    free((void *)(uintptr_t)file.data);
}

static char folder[] = "/tmp/loam-weights-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void put(const char *name, struct bytes content) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(content.data, 1, content.n, f), content.n);
    fclose(f);
}

static void put_text(const char *name, const char *text) {
    put(name, bytes_of(str_from(text)));
}

static void put_tensors(const char *name, const char *header, size_t n_data) {
    struct bytes file = make_file(header, n_data);
    put(name, file);
    free_file(file);
}

#define U8(name, from, to)                                                                         \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #to "],\"data_offsets\":[" #from "," #to "]}"
#define INDEX "model.safetensors.index.json"

// ---- One file -----------------------------------------------------------------------------------

static void tensors_are_read_in_file_order(void **state) {
    (void)state;
    struct bytes file = make_file("{\"__metadata__\":{\"format\":\"pt\"},"
                                  "\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[6,14]},"
                                  "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                                  "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[6,6]},"
                                  "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]}}   ",
                                  15);
    struct err err = {0};
    struct safetensors *st = safetensors_create(file, "x.safetensors", &err);
    check_ok(st, &err);
    assert_int_equal(safetensors_n_tensors(st), 4);
    static const char *const names[] = {"a", "empty", "b", "scalar"};
    for (size_t i = 0; i < 4; i++)
        check_str(safetensors_tensor(st, i)->name, str_from(names[i]));
    const struct tensor *b = safetensors_find(st, STR("b"));
    assert_ptr_equal(b, safetensors_tensor(st, 2));
    assert_int_equal(b->dtype, DTYPE_F32);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->dims[1], 1);
    assert_int_equal(b->data.n, 8);
    assert_int_equal(b->data.data[0], 6);
    assert_int_equal(safetensors_find(st, STR("scalar"))->n_dims, 0);
    assert_null(safetensors_find(st, STR("c")));
    assert_null(safetensors_find(st, STR("__metadata__")));
    safetensors_destroy(st);

    // The same from the header alone.
    struct bytes head = {file.data, file.n - 15};
    st = safetensors_create_header(head, file.n, "x.safetensors", &err);
    check_ok(st, &err);
    b = safetensors_find(st, STR("b"));
    assert_null(b->data.data);
    assert_int_equal(b->data.n, 8);
    safetensors_destroy(st);
    assert_null(safetensors_create_header((struct bytes){head.data, head.n - 1}, file.n, "x", &err));
    assert_null(safetensors_create_header(head, file.n - 1, "x", &err));
    free_file(file);
}

static void every_dtype_has_its_width(void **state) {
    (void)state;
    for (int i = 0; i < DTYPE_N; i++) {
        char header[256];
        size_t n = dtype_bytes((enum dtype)i) * 3;
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}",
                 dtype_name((enum dtype)i), n);
        struct bytes file = make_file(header, n);
        struct err err = {0};
        struct safetensors *st = safetensors_create(file, "x", &err);
        check_ok(st, &err);
        assert_int_equal(safetensors_tensor(st, 0)->dtype, i);
        safetensors_destroy(st);
        free_file(file);
    }
}

static void damaged_headers_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        enum err_code code;
        const char *message;
    } cases[] = {
        {"", 0, ERR_FORMAT, "not valid JSON"},
        {"[]", 0, ERR_FORMAT, "JSON object"},
        {"{\"t\":{", 4, ERR_FORMAT, "not valid JSON"},
        {"{} x", 0, ERR_FORMAT, "not valid JSON"},
        {"{\"__metadata__\":3}", 0, ERR_FORMAT, "__metadata__"},
        {"{\"t\":3}", 0, ERR_FORMAT, "tensor t has no \"dtype\""},
        {"{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, ERR_FORMAT, "\"shape\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, ERR_FORMAT, "\"data_offsets\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}", 4, ERR_FORMAT,
         "\"data_offsets\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,\"4\"]}}", 4, ERR_FORMAT,
         "\"data_offsets\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", 4, ERR_FORMAT,
         "\"data_offsets\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", 4, ERR_FORMAT,
         "\"data_offsets\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4.0]}}", 4, ERR_FORMAT,
         "\"data_offsets\""},
        {"{\"t\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2, ERR_UNSUPPORTED,
         "tensor t has dtype F4"},
        {"{\"t\":{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT, "\"dtype\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, ERR_FORMAT, "\"shape\""},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT,
         "dimension 0"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[2,2.5],\"data_offsets\":[0,5]}}", 5, ERR_FORMAT,
         "dimension 1"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         ERR_FORMAT, "9 dimensions"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT,
         "tensor t has 4 bytes, but its shape and dtype F32 need 12"},
        // 2^62 * 4 bytes wrap round to 0.
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         ERR_FORMAT, "larger than any file"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,1],\"data_offsets\":[0,0]}}", 0,
         ERR_FORMAT, "larger than any file"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0,
         ERR_FORMAT, "dimension 0 is not an integer"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 7, ERR_FORMAT,
         "tensor t ends at data byte 8, but the file has only 7"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[9223372036854775803,"
         "9223372036854775807]}}",
         4, ERR_FORMAT, "tensor t ends"},
        {"{" U8("a", 0, 4) ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}", 6,
         ERR_FORMAT, "a and b overlap"},
        {"{" U8("a", 0, 4) "," U8("b", 0, 4) "}", 4, ERR_FORMAT, "a and b overlap"},
        {"{" U8("a", 0, 4) ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}", 8,
         ERR_FORMAT, "2 bytes before tensor b"},
        {"{" U8("a", 0, 4) "}", 6, ERR_FORMAT, "2 bytes at the end"},
        {"{}", 1, ERR_FORMAT, "1 bytes at the end"},
        {"{" U8("a", 0, 4) "," U8("a", 0, 4) "}", 4, ERR_FORMAT, "duplicate"},
        {"{" U8("", 0, 4) "}", 4, ERR_FORMAT, "name is empty"},
        {"{" U8("\\u001b[2J", 0, 4) "}", 4, ERR_FORMAT, "control characters"},
        {"{" U8("a\\u0000b", 0, 4) "}", 4, ERR_FORMAT, "not valid JSON"},
        {"{\"\xFF\":{}}", 0, ERR_FORMAT, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes file = make_file(cases[i].header, cases[i].n_data);
        struct err err = {0};
        struct safetensors *st = safetensors_create(file, "x.safetensors", &err);
        if (st)
            fail_msg("accepted: %s", cases[i].header);
        if (err.code != cases[i].code || !strstr(err.message, cases[i].message))
            fail_msg("%s: %s \"%s\"", cases[i].header, err_code_name(err.code), err.message);
        check_message(&err, "x.safetensors");
        assert_null(safetensors_create(file, "x", NULL));
        free_file(file);
    }
}

static void truncation_anywhere_is_refused(void **state) {
    (void)state;
    struct bytes file = make_file("{" U8("a", 0, 4) "}", 4);
    for (size_t n = 0; n < file.n; n++) {
        struct err err = {0};
        // An allocation of exactly n bytes, so that a sanitizer sees any read beyond.
        uint8_t *part = malloc(n ? n : 1);
        memcpy(part, file.data, n);
        assert_null(safetensors_create((struct bytes){part, n}, "x", &err));
        assert_int_equal(err.code, ERR_FORMAT);
        free(part);
    }
    free_file(file);
}

static void absurd_header_lengths_are_refused(void **state) {
    (void)state;
    static const uint64_t lengths[] = {3, 100, 100000001, UINT32_MAX, INT64_MAX, UINT64_MAX - 7,
                                       UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t file[8 + 2] = "        {}";
        memcpy(file, &lengths[i], 8);
        struct err err = {0};
        assert_null(safetensors_create((struct bytes){file, sizeof file}, "x", &err));
        check_message(&err, "header");
    }
    // A hostile claim about a file that is said to be huge, with only a few bytes at hand.
    uint8_t head[16] = {0xFF, 0xFF};
    struct err err = {0};
    assert_null(safetensors_create_header((struct bytes){head, 16}, 1 << 30, "x", &err));
    assert_int_equal(err.code, ERR_FORMAT);
}

static void deep_headers_are_refused(void **state) {
    (void)state;
    enum { DEPTH = 200000 };
    char *header = malloc(DEPTH + 16);
    strcpy(header, "{\"t\":");
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = '\0';
    struct bytes file = make_file(header, 0);
    struct err err = {0};
    assert_null(safetensors_create(file, "x", &err));
    assert_int_equal(err.code, ERR_FORMAT);
    free_file(file);
    free(header);
}

static void thousands_of_tensors_are_found(void **state) {
    (void)state;
    enum { N = 20000 };
    struct strbuf header = {0};
    for (int i = 0; i < N; i++)
        strbuf_printf(&header, "%s\"model.layers.%d.w\":{\"dtype\":\"U8\",\"shape\":[1],"
                               "\"data_offsets\":[%d,%d]}",
                      i ? "," : "{", i, N - 1 - i, N - i);
    strbuf_char(&header, '}');
    struct bytes file = make_file(header.data, N);
    struct err err = {0};
    struct weights *weights = weights_create(file, "x", &err);
    check_ok(weights, &err);
    assert_int_equal(weights_n_tensors(weights), N);
    for (int i = 0; i < N; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.w", i);
        const struct tensor *tensor = weights_find(weights, name);
        assert_non_null(tensor);
        assert_ptr_equal(tensor, weights_tensor(weights, (size_t)(N - 1 - i)));
    }
    weights_close(weights);
    strbuf_deinit(&header);
    free_file(file);
}

// ---- Taking and the audit -----------------------------------------------------------------------

static struct weights *sample(struct bytes *file) {
    *file = make_file("{\"model.layers.0.self_attn.q_proj.weight\":{\"dtype\":\"U8\",\"shape\":[2,3],"
                      "\"data_offsets\":[0,6]},"
                      "\"language_model.model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],"
                      "\"data_offsets\":[6,10]},"
                      "\"model.layers.0.self_attn.rotary_emb.inv_freq\":{\"dtype\":\"U8\",\"shape\":[1],"
                      "\"data_offsets\":[10,11]},"
                      "\"x.attn.masked_bias\":{\"dtype\":\"U8\",\"shape\":[1],"
                      "\"data_offsets\":[11,12]}}",
                      12);
    struct err err = {0};
    struct weights *weights = weights_create(*file, "built-in", &err);
    check_ok(weights, &err);
    return weights;
}

static void missing_tensors_suggest_the_nearest_name(void **state) {
    (void)state;
    struct bytes file;
    struct weights *weights = sample(&file);
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"model.layers.0.self_attn.q.weight",
         "missing tensor model.layers.0.self_attn.q.weight (there is "
         "model.layers.0.self_attn.q_proj.weight)"},
        {"model.norm.weight", "(there is language_model.model.norm.weight)"},
        {"zzzzzzzz", "missing tensor zzzzzzzz"},
        {"", "missing tensor "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        assert_null(weights_take(weights, cases[i].name, &err));
        assert_int_equal(err.code, ERR_FORMAT);
        check_message(&err, cases[i].message);
    }
    struct err err = {0};
    weights_take(weights, "zzzzzzzz", &err);
    assert_null(strstr(err.message, "there is"));
    assert_null(weights_take(weights, "zzzzzzzz", NULL));
    char *long_name = malloc(5001);
    memset(long_name, 'm', 5000);
    long_name[5000] = '\0';
    assert_null(weights_take(weights, long_name, &err));
    free(long_name);
    weights_close(weights);
    free_file(file);
}

static void wrong_shapes_name_both(void **state) {
    (void)state;
    struct bytes file;
    struct weights *weights = sample(&file);
    const char *name = "model.layers.0.self_attn.q_proj.weight";
    struct err err = {0};
    uint64_t right[] = {2, 3}, wrong[] = {3, 2};
    check_ok(weights_take_shaped(weights, name, 2, right, &err), &err);
    assert_null(weights_take_shaped(weights, name, 2, wrong, &err));
    check_message(&err, name);
    check_message(&err, "has shape [2, 3], expected [3, 2]");
    assert_null(weights_take_shaped(weights, name, 1, right, &err));
    check_message(&err, "expected [2]");
    assert_null(weights_take_shaped(weights, name, 0, NULL, &err));
    check_message(&err, "expected []");
    weights_close(weights);
    free_file(file);
}

static void audit_names_what_nothing_read(void **state) {
    (void)state;
    struct bytes file;
    struct weights *weights = sample(&file);
    struct err err = {0};
    assert_false(weights_audit(weights, "llama", &err));
    assert_int_equal(err.code, ERR_FORMAT);
    check_message(&err, "tensors model.layers.0.self_attn.q_proj.weight, "
                        "language_model.model.norm.weight are not used by model type llama");
    weights_ignore(weights, weights_find(weights, "language_model.model.norm.weight"));
    assert_false(weights_audit(weights, "llama", &err));
    check_message(&err, "tensor model.layers.0.self_attn.q_proj.weight is not used");
    check_ok(weights_take(weights, "model.layers.0.self_attn.q_proj.weight", &err), &err);
    check_ok(weights_audit(weights, "llama", &err), &err); // the rest is known to be ignorable
    weights_close(weights);
    free_file(file);

    struct strbuf header = {0};
    for (int i = 0; i < 9; i++)
        strbuf_printf(&header, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i ? "," : "{", i, i, i + 1);
    strbuf_char(&header, '}');
    file = make_file(header.data, 9);
    weights = weights_create(file, "x", &err);
    check_ok(weights, &err);
    assert_false(weights_audit(weights, "llama", &err));
    check_message(&err, "tensors t0, t1, t2 and 6 more are not used");
    weights_close(weights);
    free_file(file);
    strbuf_deinit(&header);
}

static void unaligned_tensors_are_moved(void **state) {
    (void)state;
    // The header's length decides where the data begins: try every alignment.
    for (int pad = 0; pad < 8; pad++) {
        char header[256];
        snprintf(header, sizeof header,
                 "{\"one\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                 "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]},"
                 "\"d\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[9,17]}}%*s",
                 pad, "");
        struct bytes file = make_file(header, 17);
        struct err err = {0};
        struct weights *weights = weights_create(file, "x", &err);
        check_ok(weights, &err);
        for (size_t i = 0; i < 3; i++) {
            const struct tensor *tensor = weights_tensor(weights, i);
            assert_int_equal((uintptr_t)tensor->data.data % dtype_bytes(tensor->dtype), 0);
        }
        assert_int_equal(weights_find(weights, "f")->data.data[7], 8);
        assert_int_equal(weights_find(weights, "d")->data.data[0], 9);
        weights_close(weights);
        free_file(file);
    }
}

// ---- Folders ------------------------------------------------------------------------------------

static struct weights *open_folder(struct err *err) {
    return weights_open(folder, err);
}

static void check_folder_refused(enum err_code code, const char *message) {
    struct err err = {0};
    struct weights *weights = open_folder(&err);
    if (weights)
        fail_msg("accepted, expected \"%s\"", message);
    if (err.code != code || !strstr(err.message, message))
        fail_msg("%s \"%s\", expected \"%s\"", err_code_name(err.code), err.message, message);
    assert_null(weights_open(folder, NULL));
}

static void check_folder_opens(size_t n_tensors, uint64_t n_bytes) {
    struct err err = {0};
    struct weights *weights = open_folder(&err);
    check_ok(weights, &err);
    assert_int_equal(weights_n_tensors(weights), n_tensors);
    assert_int_equal(weights_bytes(weights), n_bytes);
    weights_prefetch(weights);
    weights_close(weights);
}

static void folder_without_weights_is_named(void **state) {
    (void)state;
    check_folder_refused(ERR_NOT_FOUND, folder);
    put_tensors("adapters.safetensors", "{" U8("a", 0, 4) "}", 4);
    put_tensors("adapter_model.safetensors", "{" U8("a", 0, 4) "}", 4);
    put_tensors("golden.safetensors", "{" U8("a", 0, 4) "}", 4);
    put_tensors("consolidated.00.safetensors", "{" U8("a", 0, 4) "}", 4);
    put_tensors("vision_sidecar.safetensors", "{" U8("a", 0, 4) "}", 4);
    put_tensors(".hidden.safetensors", "{" U8("a", 0, 4) "}", 4);
    check_folder_refused(ERR_NOT_FOUND, "has no weights");
    struct err err = {0};
    assert_null(weights_open("/nonexistent/folder", &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    check_message(&err, "/nonexistent/folder");
}

static void folder_is_opened_index_first(void **state) {
    (void)state;
    put_tensors("part-b.safetensors", "{" U8("b", 0, 4) "}", 4);
    put_tensors("part-a.safetensors", "{" U8("a", 0, 3) "}", 3);
    put_tensors("golden.safetensors", "{" U8("g", 0, 4) "}", 4);
    check_folder_opens(2, 7); // all files but the foreign one
    put_tensors("model.safetensors", "{" U8("m", 0, 1) "}", 1);
    check_folder_opens(1, 1); // model.safetensors alone
    put_text(INDEX, "{\"metadata\":{\"total_size\":999},\"weight_map\":{\"b\":\"part-b.safetensors\","
                    "\"m\":\"model.safetensors\"}}");
    check_folder_opens(2, 5); // the index's files; a wrong total_size is no error
}

static void bad_indexes_are_refused_by_name(void **state) {
    (void)state;
    put_tensors("1.safetensors", "{" U8("a", 0, 4) "}", 4);
    put_tensors("2.safetensors", "{" U8("b", 0, 4) "}", 4);
    put_tensors("3.safetensors", "{" U8("a", 0, 4) "}", 4);
    put_text("bad.safetensors", "tiny");
    static const struct {
        const char *index;
        enum err_code code;
        const char *message;
    } cases[] = {
        {"", ERR_FORMAT, INDEX},
        {"{", ERR_FORMAT, "not valid JSON"},
        {"[]", ERR_FORMAT, "\"weight_map\" must be an object"},
        {"{\"weight_map\":[]}", ERR_FORMAT, "\"weight_map\" must be an object"},
        {"{\"weight_map\":{}}", ERR_FORMAT, "names 0 files"},
        {"{\"weight_map\":{\"a\":7}}", ERR_FORMAT, "tensor a"},
        {"{\"weight_map\":{\"a\":\"\"}}", ERR_FORMAT, "tensor a"},
        {"{\"weight_map\":{\"a\":\"../1.safetensors\"}}", ERR_FORMAT,
         "\"../1.safetensors\" is not the name of a file in this folder"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", ERR_FORMAT, "\"/etc/passwd\" is not the name"},
        {"{\"weight_map\":{\"a\":\"sub/1.safetensors\"}}", ERR_FORMAT, "is not the name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", ERR_FORMAT, "is not the name"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\\u0000x\"}}", ERR_FORMAT, "is not the name"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"gone-00002-of-00002.safetensors\"}}",
         ERR_NOT_FOUND, "names gone-00002-of-00002.safetensors, which is missing"},
        {"{\"weight_map\":{\"b\":\"1.safetensors\"}}", ERR_FORMAT, "tensor b is not in 1.safetensors"},
        {"{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}}", ERR_FORMAT,
         "tensor a is not in 2.safetensors"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}", ERR_FORMAT,
         "tensor a is in two files, 1.safetensors and 3.safetensors"},
        {"{\"weight_map\":{\"a\":\"bad.safetensors\"}}", ERR_FORMAT, "bad.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(INDEX, cases[i].index);
        check_folder_refused(cases[i].code, cases[i].message);
    }
}

static void unreadable_files_are_named(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    check_folder_refused(ERR_INVALID, "model.safetensors is not a regular file");
    rmdir(path);
    put_tensors("model.safetensors", "{" U8("a", 0, 4) "}", 4);
    if (geteuid() != 0) { // root reads everything
        chmod(path, 0);
        check_folder_refused(ERR_IO, "model.safetensors");
    }
    unlink(path);
    assert_int_equal(symlink("nowhere", path), 0); // a download's blob that was deleted
    check_folder_refused(ERR_NOT_FOUND, "model.safetensors");
}

static void check_weights(const char *path, const char *name) {
    struct err err = {0};
    struct weights *weights = weights_open(path, &err);
    if (!weights)
        fail_msg("%s: %s", name, err.message);
    assert_true(weights_n_tensors(weights) > 10);
    assert_false(weights_audit(weights, "test", &err));
    for (size_t k = 0; k < weights_n_tensors(weights); k++) {
        const struct tensor *tensor = weights_tensor(weights, k);
        assert_ptr_equal(weights_take(weights, tensor->name.data, &err), tensor);
    }
    check_ok(weights_audit(weights, "test", &err), &err);
    weights_close(weights);
}

static void every_model_at_hand_opens(void **state) {
    (void)state;
    each_model(check_weights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_read_in_file_order),
        cmocka_unit_test(every_dtype_has_its_width),
        cmocka_unit_test(damaged_headers_are_refused_by_name),
        cmocka_unit_test(truncation_anywhere_is_refused),
        cmocka_unit_test(absurd_header_lengths_are_refused),
        cmocka_unit_test(deep_headers_are_refused),
        cmocka_unit_test(thousands_of_tensors_are_found),
        cmocka_unit_test(missing_tensors_suggest_the_nearest_name),
        cmocka_unit_test(wrong_shapes_name_both),
        cmocka_unit_test(audit_names_what_nothing_read),
        cmocka_unit_test(unaligned_tensors_are_moved),
        cmocka_unit_test_setup_teardown(folder_without_weights_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(folder_is_opened_index_first, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(bad_indexes_are_refused_by_name, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(unreadable_files_are_named, make_folder, remove_folder),
        cmocka_unit_test(every_model_at_hand_opens),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
