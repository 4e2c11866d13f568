#include "check.h"

#include <math.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/file_map.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/queue.h"
#include "base/reader.h"
#include "base/utf8.h"

static void err_wrap_puts_context_in_front(void **state) {
    (void)state;
    struct err err = {0};
    assert_false(err_set(&err, ERR_FORMAT, "tensor %d", 7));
    assert_false(err_wrap(&err, "loading %s", "x"));
    assert_string_equal(err.message, "loading x: tensor 7");
    assert_int_equal(err.code, ERR_FORMAT);
    assert_false(err_set(NULL, ERR_IO, "nobody listens"));
    assert_int_equal(err_exit_code(ERR_INVALID), 2);
    assert_int_equal(err_exit_code(ERR_FORMAT), 1);
    assert_int_equal(err_http_status(ERR_BUSY), 429);
}

static void sizes_do_not_wrap(void **state) {
    (void)state;
    size_t out;
    assert_false(mul_size(SIZE_MAX / 2, 3, &out));
    assert_false(add_size(SIZE_MAX, 1, &out));
    assert_false(round_up_size(SIZE_MAX - 1, 64, &out));
    assert_true(round_up_size(65, 64, &out));
    assert_int_equal(out, 128);
}

static void utf8_accepts_exactly_the_standard(void **state) {
    (void)state;
    static const struct {
        const char *in;
        bool valid;
        const char *lossy;
    } cases[] = {
        {"plain", true, "plain"},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", true, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
        {"\xC0\x80", false, "\xEF\xBF\xBD\xEF\xBF\xBD"},                 // overlong
        {"\xED\xA0\x80", false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, // surrogate
        {"\xF4\x90\x80\x80", false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"a\xE2\x82z", false, "a\xEF\xBF\xBDz"}, // one maximal part, one replacement
        {"\xF0\x9F\x98", false, "\xEF\xBF\xBD"},
        {"\x80", false, "\xEF\xBF\xBD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str in = str_from(cases[i].in);
        assert_int_equal(utf8_valid(in), cases[i].valid);
        struct strbuf out = {0};
        utf8_append_lossy(&out, in);
        check_str(strbuf_str(&out), str_from(cases[i].lossy));
        strbuf_deinit(&out);
    }
    assert_int_equal(utf8_incomplete_tail(STR("a\xE2\x82")), 2);
    assert_int_equal(utf8_incomplete_tail(STR("a\xE2\x82\xAC")), 0);
    assert_int_equal(utf8_incomplete_tail(STR("\xF0\x9F\x98")), 3);
    assert_int_equal(utf8_incomplete_tail(STR("\xC0")), 0); // can never be completed
}

static void utf8_round_trips_every_scalar(void **state) {
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF)
            continue;
        char text[4];
        size_t n = utf8_encode(c, text), pos = 0;
        assert_int_equal(utf8_next((struct str){text, n}, &pos), c);
        assert_int_equal(pos, n);
    }
}

static void halves_round_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) { // every f16 value survives the round trip
        float f = f16_to_f32((uint16_t)h);
        if (f == f)
            assert_int_equal(f16_from_f32(f), h);
        f = bf16_to_f32((uint16_t)h);
        if (f == f)
            assert_int_equal(bf16_from_f32(f), h);
    }
    assert_int_equal(f16_from_f32(65519.0f), 0x7BFF);
    assert_int_equal(f16_from_f32(65520.0f), 0x7C00);
    assert_int_equal(f16_from_f32(1.0f + 0x1p-11f), 0x3C00); // tie to even
    assert_int_equal(f16_from_f32(1.0f + 3 * 0x1p-11f), 0x3C02);
    assert_int_equal(f16_from_f32(0x1p-25f), 0);
    assert_int_equal(f16_from_f32(0x1.8p-25f), 1);
    assert_int_equal(bf16_from_f32(1.0f + 0x1p-8f), 0x3F80);
    assert_int_equal(bf16_from_f32(1.0f + 3 * 0x1p-8f), 0x3F82);
    assert_true(isnan(bf16_to_f32(bf16_from_f32(NAN))));
    assert_float_equal(f8e4m3_to_f32(0x7E), 448.0f, 0);
    assert_float_equal(f8e4m3_to_f32(0x01), 0x1p-9f, 0);
    assert_float_equal(f8e8m0_to_f32(0), 0x1p-127f, 0);
    assert_float_equal(f8e8m0_to_f32(254), 0x1p127f, 0);
}

static void reader_error_sticks(void **state) {
    (void)state;
    const uint8_t data[] = {1, 2, 3, 4, 5};
    struct reader r = reader_init((struct bytes){data, sizeof data});
    assert_int_equal(reader_u32(&r), 0x04030201);
    assert_int_equal(reader_u32(&r), 0); // past the end
    assert_int_equal(reader_u8(&r), 0);  // and nothing after it
    struct err err = {0};
    assert_false(reader_finish(&r, &err, "thing"));
    assert_int_equal(err.code, ERR_FORMAT);
    r = reader_init((struct bytes){data, sizeof data});
    reader_skip(&r, 4);
    assert_false(reader_finish(&r, &err, "thing"));
    check_message(&err, "1 bytes left over");
    const uint8_t varint[] = {0xAC, 0x02};
    r = reader_init((struct bytes){varint, 2});
    assert_int_equal(reader_varint(&r), 300);
}

static void arena_hands_out_zeroed_aligned_memory(void **state) {
    (void)state;
    struct arena arena = {0};
    for (size_t n = 0; n < 3000; n += 37) {
        unsigned char *p = arena_alloc(&arena, n);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(p[i], 0);
            p[i] = 0xFF;
        }
    }
    assert_null(arena_alloc_array(&arena, SIZE_MAX / 2, 4));
    assert_string_equal(arena_printf(&arena, "%d-%s", 5, "x"), "5-x");
    arena_deinit(&arena);
    arena_deinit(&arena);
}

static void json_errors_name_the_place(void **state) {
    (void)state;
    struct err err = {0};
    assert_null(json_parse(STR("{\"a\":\n tru}"), "config.json", &err));
    check_message(&err, "config.json");
    check_message(&err, "line 2");
    json_t *o = json_parse(STR("{\"n\": 3, \"f\": 1e6, \"s\": \"x\", \"neg\": -1, \"z\": null}"), "c",
                           &err);
    uint32_t v = 9;
    assert_true(json_get_u32(o, "n", &v, "c", &err) && v == 3);
    assert_true(json_get_u32(o, "f", &v, "c", &err) && v == 1000000);
    assert_true(json_get_u32(o, "z", &v, "c", &err) && v == 1000000); // null keeps the default
    assert_false(json_get_u32(o, "neg", &v, "c", &err));
    check_message(&err, "\"neg\"");
    assert_false(json_get_u32(o, "s", &v, "c", &err));
    json_decref(o);
    struct strbuf out = {0};
    strbuf_json_string(&out, STR("a\"\n\x01\xFF\xE2\x82\xAC"));
    check_str(strbuf_str(&out), STR("\"a\\\"\\n\\u0001\xEF\xBF\xBD\xE2\x82\xAC\""));
    strbuf_deinit(&out);
}

static void json_bears_integers_beyond_64_bits(void **state) {
    (void)state;
    struct err err = {0};
    json_t *o = json_parse(STR("{\"a\": 1000000000000000019884624838656, \"b\": -123456789012345678901,"
                               " \"c\": 9223372036854775807, \"s\": \"99999999999999999999\\\" 1\"}"),
                           "c", &err);
    check_ok(o, &err);
    assert_int_equal(err.code, ERR_OK); // nothing of the first attempt is left
    assert_true(json_real_value(json_object_get(o, "a")) == 1e30);
    assert_true(json_real_value(json_object_get(o, "b")) == -123456789012345678901.0);
    assert_true(json_number_value(json_object_get(o, "c")) == 9223372036854775807.0);
    assert_string_equal(json_string_value(json_object_get(o, "s")), "99999999999999999999\" 1");
    json_decref(o);
    assert_null(json_parse(STR("[1e999]"), "c", &err));
    check_message(&err, "too large");
    assert_null(json_parse(STR("[1000000000000000000000, 1e999]"), "c", &err));
    assert_int_equal(err.code, ERR_FORMAT);
}

static void atomic_write_replaces_whole_files(void **state) {
    (void)state;
    char path[] = "/tmp/loam-test-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    struct err err = {0};
    check_ok(file_write_atomic(path, bytes_of(STR("one")), &err), &err);
    check_ok(file_write_atomic(path, bytes_of(STR("second")), &err), &err);
    struct strbuf text = {0};
    check_ok(file_read(path, 100, &text, &err), &err);
    check_str(strbuf_str(&text), STR("second"));
    strbuf_clear(&text);
    assert_false(file_read(path, 3, &text, &err));
    check_message(&err, "limit");
    strbuf_deinit(&text);
    struct file_map map;
    check_ok(file_map_open(&map, path, &err), &err);
    check_str(str_of(map.bytes), STR("second"));
    file_map_close(&map);
    unlink(path);
    assert_false(file_map_open(&map, path, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_false(file_map_open(&map, "/tmp", &err));
}

static void hashes_equal_the_published_values(void **state) {
    (void)state;
    char hex[65];
    hash_sha256_hex(bytes_of(STR("abc")), hex); // FIPS 180-4 examples
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_sha1_hex(bytes_of(STR("abc")), hex);
    assert_string_equal(hex, "a9993e364706816aba3e25717850c26c9cd0d89d");
}

static void queue_is_bounded_and_first_in_first_out(void **state) {
    (void)state;
    struct err err = {0};
    struct queue *q = queue_create(2, &err);
    int a, b, c;
    assert_true(queue_push(q, &a));
    assert_true(queue_push(q, &b));
    assert_false(queue_push(q, &c)); // full is BUSY, never a longer list
    assert_ptr_equal(queue_pop(q, 0), &a);
    assert_true(queue_push(q, &c));
    assert_ptr_equal(queue_try_pop(q), &b);
    assert_ptr_equal(queue_try_pop(q), &c);
    assert_null(queue_pop(q, 5));
    queue_close(q);
    assert_false(queue_push(q, &a));
    assert_null(queue_pop(q, UINT32_MAX));
    queue_destroy(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(err_wrap_puts_context_in_front),
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(utf8_accepts_exactly_the_standard),
        cmocka_unit_test(utf8_round_trips_every_scalar),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(reader_error_sticks),
        cmocka_unit_test(arena_hands_out_zeroed_aligned_memory),
        cmocka_unit_test(json_errors_name_the_place),
        cmocka_unit_test(json_bears_integers_beyond_64_bits),
        cmocka_unit_test(atomic_write_replaces_whole_files),
        cmocka_unit_test(hashes_equal_the_published_values),
        cmocka_unit_test(queue_is_bounded_and_first_in_first_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
