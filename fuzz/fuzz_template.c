// Chat templates from model folders: parse, and render with a small conversation.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "template/template.h"

static json_t *conversation(void) {
    static const char TEXT[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"caf\xC3\xA9 \xF0\x9F\x98\x80\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":{\"a\":[1,2.5,true,null,\"x\"]}}}]}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
        "\"add_generation_prompt\":true,\"n\":-3,\"s\":\"a,b <c>\"}";
    return json_loads(TEXT, 0, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static json_t *context;
    if (!context) {
        setenv("LOAM_NOW", "2026-01-15T12:34:56", 1);
        context = conversation();
    }
    struct err err = {0};
    struct template *template = template_parse((struct str){(const char *)data, n}, &err);
    if (template) {
        // Small limits: the fuzzer looks for wrong memory accesses, not for slow templates.
        struct template_limits limits = {
            .steps_max = 20000, .output_bytes_max = 1 << 20, .memory_bytes_max = 16 << 20};
        struct strbuf out = {0};
        template_render(template, context, &limits, &out, &err);
        strbuf_deinit(&out);
    }
    template_destroy(template);
    return 0;
}
