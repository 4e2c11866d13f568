#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "loam/loam.h"

static loam_model *open_builtin(void) {
    struct loam_options options = LOAM_OPTIONS_DEFAULT;
    struct loam_error error = {0};
    options.device = "cpu";
    loam_model *model = loam_open(&options, &error);
    if (!model)
        fail_msg("%s", error.message);
    return model;
}

struct text {
    char data[4096];
    size_t n, n_max;
};

static bool collect(void *user, const char *data, size_t n) {
    struct text *text = user;
    if (text->n + n < sizeof text->data)
        memcpy(text->data + text->n, data, n);
    text->n += n;
    return text->n_max == 0 || text->n < text->n_max;
}

static struct loam_request greedy(struct text *text) {
    struct loam_request request = LOAM_REQUEST_DEFAULT;
    request.prompt = "ROMEO:";
    request.temperature = 0;
    request.max_tokens = 24;
    request.on_text = collect;
    request.user = text;
    return request;
}

static void an_answer_arrives_piece_by_piece(void **state) {
    (void)state;
    loam_model *model = open_builtin();
    assert_string_equal(loam_model_name(model), "loam-shakespeare");
    assert_int_equal(loam_vocabulary_size(model), 1024);
    struct text text = {0};
    struct loam_request request = greedy(&text);
    struct loam_result result;
    struct loam_error error = {0};
    assert_true(loam_generate(model, &request, &result, &error));
    assert_int_equal(result.n_prompt, 2);
    assert_int_equal(result.n_generated, 24);
    assert_int_equal(result.finish, LOAM_FINISH_LENGTH);
    assert_true(text.n > 24);
    // Its tokens, joined again, are the same text.
    int32_t *ids;
    size_t n_ids;
    assert_true(loam_tokenize(model, text.data, text.n, false, &ids, &n_ids, &error));
    char *again = loam_detokenize(model, ids, n_ids, &error);
    text.data[text.n] = '\0';
    assert_string_equal(again, text.data);
    loam_free(again);
    // By ids the same answer.
    loam_free(ids);
    assert_true(loam_tokenize(model, "ROMEO:", 6, true, &ids, &n_ids, &error));
    struct text by_ids = {0};
    request = greedy(&by_ids);
    request.prompt = NULL;
    request.tokens = ids;
    request.n_tokens = n_ids;
    assert_true(loam_generate(model, &request, NULL, &error));
    assert_int_equal(by_ids.n, text.n);
    assert_memory_equal(by_ids.data, text.data, text.n);
    loam_free(ids);
    loam_close(model);
}

static void requests_run_together_and_stop_when_told(void **state) {
    (void)state;
    loam_model *model = open_builtin();
    struct text alone = {0}, texts[3] = {{.n_max = 20}, {.n = 0}, {.n = 0}};
    struct loam_request request = greedy(&alone);
    struct loam_error error = {0};
    struct loam_result result;
    assert_true(loam_generate(model, &request, NULL, &error));
    loam_generation *running[3];
    for (int i = 0; i < 3; i++) {
        request = greedy(&texts[i]);
        if (i != 2)
            request.max_tokens = 1500, request.ignore_eos = true;
        running[i] = loam_start(model, &request, &error);
        assert_non_null(running[i]);
    }
    assert_true(loam_wait(running[2], &result, &error));
    assert_int_equal(texts[2].n, alone.n);
    assert_memory_equal(texts[2].data, alone.data, alone.n);
    assert_true(loam_wait(running[0], &result, &error)); // its callback said stop
    assert_int_equal(result.finish, LOAM_FINISH_CANCELLED);
    assert_true(result.n_generated < 200);
    loam_cancel(running[1]);
    assert_true(loam_wait(running[1], &result, &error));
    assert_int_equal(result.finish, LOAM_FINISH_CANCELLED);
    loam_close(model);
}

static void sampling_options_go_by_name(void **state) {
    (void)state;
    loam_model *model = open_builtin();
    struct loam_error error = {0};
    struct text plain = {0}, penalized = {0}, biased = {0};
    struct loam_request request = greedy(&plain);
    request.max_tokens = 60;
    assert_true(loam_generate(model, &request, NULL, &error));
    const struct loam_sampling options[] = {{"repetition_penalty", 3}, {"repetition_context_size", 0},
                                            {"temperature", 5}, {"temperature", 0}};
    request.user = &penalized;
    request.sampling = options;
    request.n_sampling = 4;
    assert_true(loam_generate(model, &request, NULL, &error));
    assert_true(plain.n != penalized.n || memcmp(plain.data, penalized.data, plain.n) != 0);
    // A token with the greatest bias is all there is, the end token too once it may come.
    int32_t *ids;
    size_t n_ids;
    assert_true(loam_tokenize(model, " the", 4, false, &ids, &n_ids, &error));
    struct loam_logit_bias bias[] = {{ids[0], 100}, {1002, 1000}};
    const struct loam_sampling least = {"min_tokens", 3};
    loam_free(ids);
    request = greedy(&biased);
    request.sampling = &least;
    request.n_sampling = 1;
    request.bias = bias;
    request.n_bias = 2;
    struct loam_result result;
    assert_true(loam_generate(model, &request, &result, &error));
    assert_int_equal(biased.n, 12);
    assert_memory_equal(biased.data, " the the the", 12);
    assert_int_equal(result.finish, LOAM_FINISH_STOP);
    const struct loam_sampling wrong[] = {{"top_q", 1}, {"top_p", 2}, {"top_k", 1.5}};
    for (size_t i = 0; i < 3; i++) {
        request.sampling = &wrong[i];
        assert_false(loam_generate(model, &request, NULL, &error));
        assert_int_equal(error.code, LOAM_INVALID);
        assert_non_null(strstr(error.message, wrong[i].name));
    }
    loam_close(model);
}

static void mistakes_are_named(void **state) {
    (void)state;
    struct loam_options options = LOAM_OPTIONS_DEFAULT;
    struct loam_error error = {0};
    options.folder = "/nowhere/at/all";
    assert_null(loam_open(&options, &error));
    assert_int_equal(error.code, LOAM_NOT_FOUND);
    assert_non_null(strstr(error.message, "/nowhere/at/all"));
    options.folder = NULL;
    options.kv_dtype = "q3";
    assert_null(loam_open(&options, &error));
    assert_int_equal(error.code, LOAM_INVALID);
    loam_model *model = open_builtin();
    struct text text = {0};
    struct loam_request request = greedy(&text);
    request.messages = "[]";
    assert_false(loam_generate(model, &request, NULL, &error)); // two prompts
    assert_int_equal(error.code, LOAM_INVALID);
    request = greedy(&text);
    request.temperature = 9;
    assert_false(loam_generate(model, &request, NULL, &error));
    assert_non_null(strstr(error.message, "temperature"));
    request = greedy(&text);
    request.prompt = NULL;
    request.messages = "[{\"role\":";
    assert_false(loam_generate(model, &request, NULL, &error));
    assert_int_equal(text.n, 0);
    char *prompt = loam_apply_template(model, "[{\"role\":\"user\",\"content\":\"Hi\"}]", NULL, &error);
    assert_non_null(strstr(prompt, "Hi"));
    loam_free(prompt);
    loam_close(model);
    loam_close(NULL);
}

static void a_text_has_an_embedding(void **state) {
    (void)state;
    loam_model *model = open_builtin();
    struct loam_error error = {0};
    float *vector, *short_vector;
    uint32_t n, n_short;
    assert_true(loam_embed(model, "ROMEO:", 6, 0, &vector, &n, &error));
    assert_true(loam_embed(model, "ROMEO:", 6, 8, &short_vector, &n_short, &error));
    assert_true(n > 8);
    assert_int_equal(n_short, 8);
    float sum = 0, sum_short = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += vector[i] * vector[i];
    for (uint32_t i = 0; i < n_short; i++)
        sum_short += short_vector[i] * short_vector[i];
    assert_true(sum > 0.9999f && sum < 1.0001f && sum_short > 0.9999f && sum_short < 1.0001f);
    float cross = short_vector[0] * vector[1] - short_vector[1] * vector[0];
    assert_true(cross < 1e-6f && cross > -1e-6f); // one direction
    loam_free(short_vector);
    loam_free(vector);
    assert_false(loam_embed(model, "ROMEO:", 6, n + 1, &vector, &n, &error));
    assert_int_equal(error.code, LOAM_INVALID);
    double score;
    assert_false(loam_rerank(model, NULL, "who", "ROMEO", &score, &error));
    assert_int_equal(error.code, LOAM_UNSUPPORTED);
    loam_close(model);
}

static struct loam_result ask_long(loam_model *model, struct text *text) {
    static char prompt[2000];
    for (size_t i = 0; i + 8 < sizeof prompt; i += 8)
        memcpy(prompt + i, i % 3 ? "the king" : " of men ", 9);
    struct loam_request request = greedy(text);
    struct loam_result result;
    struct loam_error error = {0};
    request.prompt = prompt;
    if (!loam_generate(model, &request, &result, &error))
        fail_msg("%s", error.message);
    return result;
}

static void the_prompt_cache_is_counted_and_survives(void **state) {
    (void)state;
    char folder[] = "/tmp/loam-library-XXXXXX", line[64];
    assert_non_null(mkdtemp(folder));
    struct loam_options options = LOAM_OPTIONS_DEFAULT;
    struct loam_error error = {0};
    struct loam_cache_stats stats;
    static struct text first, again;
    options.device = "cpu";
    options.disk_cache = folder;
    for (int run = 0; run < 2; run++) {
        loam_model *model = loam_open(&options, &error);
        if (!model)
            fail_msg("%s", error.message);
        first = (struct text){0};
        struct loam_result result = ask_long(model, &first);
        uint32_t n_whole = result.n_prompt / 64 * 64; // whole pages go to disk
        assert_true(n_whole >= 192);
        assert_int_equal(result.n_cached, run ? n_whole : 0);
        loam_cache_statistics(model, &stats);
        assert_int_equal(stats.n_hits, run);
        assert_int_equal(stats.n_misses, 1 - run);
        assert_int_equal(stats.n_cached_tokens, run ? n_whole : 0);
        assert_int_equal(stats.n_disk_read, run ? n_whole / 64 : 0);
        assert_true(stats.n_entries >= n_whole / 64 && stats.n_bytes > 0);
        assert_int_equal(stats.n_bytes_max, (uint64_t)8 << 30);
        again = (struct text){0};
        result = ask_long(model, &again);
        assert_int_equal(result.n_cached, result.n_prompt - 1);
        assert_string_equal(first.data, again.data);
        loam_cache_statistics(model, &stats);
        assert_int_equal(stats.n_hits, run + 1);
        assert_int_equal(stats.n_cached_tokens, result.n_prompt - 1 + (run ? n_whole : 0));
        assert_int_equal(stats.n_disk_failed + stats.n_evicted, 0);
        loam_close(model);
    }
    options.no_prompt_cache = true;
    assert_null(loam_open(&options, &error));
    assert_int_equal(error.code, LOAM_INVALID);
    options.disk_cache = NULL;
    loam_model *model = loam_open(&options, &error);
    first = again = (struct text){0};
    assert_int_equal(ask_long(model, &first).n_cached, 0);
    assert_int_equal(ask_long(model, &again).n_cached, 0);
    assert_string_equal(first.data, again.data);
    loam_cache_statistics(model, &stats);
    assert_int_equal(stats.n_hits + stats.n_misses + stats.n_bytes + stats.n_entries, 0);
    loam_close(model);
    snprintf(line, sizeof line, "rm -rf %s", folder);
    assert_int_equal(system(line), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_arrives_piece_by_piece),
        cmocka_unit_test(requests_run_together_and_stop_when_told),
        cmocka_unit_test(sampling_options_go_by_name),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_text_has_an_embedding),
        cmocka_unit_test(the_prompt_cache_is_counted_and_survives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
