// A whole safetensors file, and its header alone: whatever opens must be consistent.
#include <stdlib.h>

#include "artifact/weights.h"
#include "base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint8_t sink; // so that reading the data is not optimised away

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    log_set_level(LOG_ERROR);
    struct err err;
    struct bytes file = {data, n};
    struct weights *weights = weights_create(file, "fuzz", &err);
    if (weights) {
        uint64_t n_bytes = 0;
        for (size_t i = 0; i < weights_n_tensors(weights); i++) {
            const struct tensor *tensor = weights_tensor(weights, i);
            n_bytes += tensor->data.n;
            for (size_t k = 0; k < tensor->data.n; k++)
                sink = tensor->data.data[k];
            if (weights_find(weights, tensor->name.data) != tensor)
                abort();
        }
        if (n_bytes != weights_bytes(weights) || n_bytes > n)
            abort();
        weights_take(weights, "model.embed_tokens.weight", &err);
        weights_audit(weights, "fuzz", &err);
        weights_close(weights);
    }
    struct safetensors *head = safetensors_create_header(file, (uint64_t)n * 3, "fuzz", &err);
    if (head && safetensors_n_tensors(head) && safetensors_tensor(head, 0)->data.data)
        abort();
    safetensors_destroy(head);
    return 0;
}
