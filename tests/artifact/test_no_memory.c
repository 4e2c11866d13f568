// Every load with every one of its allocations failing: an error each time, nothing lost.
#include "check.h"

#include <unistd.h>

#include "artifact/model_config.h"
#include "artifact/weights.h"
#include "base/log.h"
#include "failing_alloc.h"

static char folder[] = "/tmp/loam-nomem-XXXXXX";
static struct bytes unaligned;

#define TENSOR(name, from, to)                                                                     \
    "\"" name "\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[" #from "," #to "]}"

static void put(const char *name, const char *text, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static struct strbuf make_file(const char *header, size_t n_data) {
    struct strbuf file = {0};
    uint64_t n = strlen(header);
    strbuf_append(&file, (struct str){(const char *)&n, 8});
    strbuf_append_c(&file, header);
    for (size_t i = 0; i < n_data; i++)
        strbuf_char(&file, 'x');
    return file;
}

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    struct strbuf one = make_file("{" TENSOR("a", 0, 2) "," TENSOR("b", 2, 4) "}", 4);
    struct strbuf two = make_file("{" TENSOR("c", 0, 2) "}", 2);
    put("1.safetensors", one.data, one.n);
    put("2.safetensors", two.data, two.n);
    strbuf_deinit(&one);
    strbuf_deinit(&two);
    static const char index[] = "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\","
                                "\"c\":\"2.safetensors\"}}";
    put("model.safetensors.index.json", index, sizeof index - 1);
    static const char config[] =
        "{\"model_type\":\"phi3\",\"num_hidden_layers\":2,\"hidden_size\":64,\"vocab_size\":9,"
        "\"num_attention_heads\":4,\"eos_token_id\":[1,2],\"rope_scaling\":{\"type\":\"longrope\","
        "\"short_factor\":[1,1],\"long_factor\":[2,2]},\"quantization\":{\"bits\":4,"
        "\"model.layers.0.q\":{\"bits\":8}}}";
    put("config.json", config, sizeof config - 1);
    put("generation_config.json", "{\"top_k\":3}", 11);
    // Data at an odd address, which is copied.
    struct strbuf odd = make_file("{" TENSOR("a", 0, 2) "}", 2);
    if (((uintptr_t)odd.data + odd.n) % 2 == 0) {
        strbuf_deinit(&odd);
        odd = make_file("{" TENSOR("a", 0, 2) "} ", 2);
    }
    unaligned = bytes_of(strbuf_str(&odd));
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    free((void *)(uintptr_t)unaligned.data);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

// Load, and on success drop again; false with *err set if it failed.
typedef bool load_fn(struct err *err);

static bool load_sharded(struct err *err) {
    struct weights *weights = weights_open(folder, err);
    weights_close(weights);
    return weights != NULL;
}

static bool load_unaligned(struct err *err) {
    struct weights *weights = weights_create(unaligned, "built-in", err);
    weights_close(weights);
    return weights != NULL;
}

static bool load_config(struct err *err) {
    struct model_config *config = model_config_open(folder, err);
    model_config_destroy(config);
    return config != NULL;
}

static bool load_implied_rope(struct err *err) {
    struct model_config *config = model_config_create(
        STR("{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":2,\"hidden_size\":64,\"vocab_size\":9,"
            "\"num_attention_heads\":8}"),
        (struct str){0}, err);
    model_config_destroy(config);
    return config != NULL;
}

static void sweep(load_fn *load) {
    for (int all = 0; all < 2; all++) {
        size_t idx = 0;
        bool hit = true;
        for (; hit; idx++) {
            struct err err = {0};
            failing_alloc_start(idx, all != 0);
            bool loaded = load(&err);
            hit = failing_alloc_hit();
            size_t n_lost = failing_alloc_stop();
            if (n_lost)
                fail_msg("allocation %zu failed and %zu blocks were lost", idx, n_lost);
            if (loaded == hit)
                fail_msg("allocation %zu failed: %d, loaded: %d %s", idx, hit, loaded, err.message);
            if (hit && err.code != ERR_NOMEM)
                fail_msg("allocation %zu failed and the error is %s: %s", idx,
                         err_code_name(err.code), err.message);
        }
        assert_true(idx > 5);
    }
}

static void sharded_weights_survive(void **state) {
    (void)state;
    sweep(load_sharded);
}
static void copied_tensors_survive(void **state) {
    (void)state;
    sweep(load_unaligned);
}
static void config_survives(void **state) {
    (void)state;
    sweep(load_config);
}
static void implied_rope_survives(void **state) {
    (void)state;
    sweep(load_implied_rope);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded_weights_survive),
        cmocka_unit_test(copied_tensors_survive),
        cmocka_unit_test(config_survives),
        cmocka_unit_test(implied_rope_survives),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
