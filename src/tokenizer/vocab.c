#include "tokenizer/vocab.h"

#include <stdlib.h>

uint32_t vocab_n_slots(uint32_t n) {
    uint64_t want = (uint64_t)n + n / 2 + 2, slots = 4;
    while (slots < want)
        slots *= 2;
    return (uint32_t)slots; // n is below 2^28
}

bool vocab_build_slots(struct image_builder *builder, const struct str *texts, uint32_t n,
                       const uint8_t *flags, uint8_t mask, enum image_section section,
                       struct err *err) {
    uint32_t n_wanted = 0;
    for (uint32_t id = 0; id < n; id++)
        n_wanted += (flags[id] & mask) != 0;
    uint32_t n_slots = vocab_n_slots(n_wanted), slot_mask = n_slots - 1;
    struct vocab_slot *slots = calloc(n_slots, sizeof *slots);
    if (!slots)
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory for %u tokens", n);
    for (uint32_t id = 0; id < n; id++) {
        if (texts[id].n == 0 || !(flags[id] & mask))
            continue;
        uint64_t hash = token_hash(texts[id]);
        uint32_t at = (uint32_t)hash & slot_mask;
        while (slots[at].id_next && !(slots[at].tag == (uint32_t)(hash >> 32) &&
                                      str_eq(texts[slots[at].id_next - 1], texts[id])))
            at = (at + 1) & slot_mask;
        slots[at] = (struct vocab_slot){(uint32_t)(hash >> 32), id + 1};
    }
    image_append(builder, section, slots, n_slots * sizeof *slots);
    free(slots);
    return true;
}

bool vocab_build(struct image_builder *builder, const struct str *texts, uint32_t n,
                 enum image_section off, enum image_section text, struct err *err) {
    uint64_t end = 0;
    for (uint32_t id = 0; id <= n; id++) {
        uint32_t at = (uint32_t)end;
        image_append(builder, off, &at, sizeof at);
        if (id == n)
            break;
        strbuf_append(&builder->section[text], texts[id]);
        end += texts[id].n;
        if (end > UINT32_MAX)
            return err_set(err, ERR_FORMAT, "tokenizer: more than 4 GiB of token texts");
    }
    return true;
}

bool vocab_read(struct vocab *vocab, const struct image *image, enum image_section off,
                enum image_section text, enum image_section slots, struct err *err) {
    struct bytes o = image->section[off], t = image->section[text];
    bool fits = o.n >= 4 && o.n % 4 == 0;
    *vocab = (struct vocab){.off = (const uint32_t *)(const void *)o.data,
                            .text = (const char *)t.data,
                            .n_ids = fits ? (uint32_t)(o.n / 4 - 1) : 0};
    for (uint32_t i = 0; fits && i < vocab->n_ids; i++)
        fits = vocab->off[i] <= vocab->off[i + 1];
    fits = fits && vocab->off[vocab->n_ids] == t.n;
    if (fits && slots != IMAGE_N_SECTIONS && image->section[slots].n) {
        struct bytes s = image->section[slots];
        size_t n = s.n / sizeof(struct vocab_slot), n_free = 0;
        vocab->slots = (const struct vocab_slot *)(const void *)s.data;
        vocab->slot_mask = (uint32_t)n - 1;
        fits = n && (n & (n - 1)) == 0 && s.n == n * sizeof(struct vocab_slot);
        for (size_t i = 0; fits && i < n; i++) {
            fits = vocab->slots[i].id_next <= vocab->n_ids;
            n_free += !vocab->slots[i].id_next;
        }
        fits = fits && n_free; // a search ends at a free slot
    }
    return fits || err_set(err, ERR_FORMAT, "compiled tokenizer: vocabulary tables do not fit");
}
