#include "tokenizer/image.h"

#include "base/checked.h"
#include "base/hash.h"

enum { SECTION_ALIGN = 64 };
static const char MAGIC[8] = "loamtok";

struct header {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t n_bytes;  // of the whole block
    uint64_t checksum; // of everything behind this field
    struct {
        uint64_t off, n;
    } section[IMAGE_N_SECTIONS];
};

// Four chains side by side: several times as fast as one, for a block of many megabytes.
static uint64_t block_checksum(struct bytes block) {
    uint64_t lane[4] = {1, 2, 3, 4};
    size_t from = offsetof(struct header, section), i = from;
    for (; block.n - i >= 32; i += 32) {
        uint64_t word[4];
        memcpy(word, block.data + i, 32);
        for (int k = 0; k < 4; k++)
            lane[k] = ((lane[k] ^ word[k]) * 0x9E3779B97F4A7C15u) ^ (lane[k] >> 29);
    }
    uint64_t sum = hash_bytes((struct bytes){block.data + i, block.n - i}, block.n);
    for (int k = 0; k < 4; k++)
        sum = hash_u64(sum ^ lane[k]);
    return sum;
}

void image_builder_deinit(struct image_builder *builder) {
    for (int i = 0; i < IMAGE_N_SECTIONS; i++)
        strbuf_deinit(&builder->section[i]);
}

static size_t aligned(size_t n) {
    return (n + SECTION_ALIGN - 1) & ~(size_t)(SECTION_ALIGN - 1);
}

bool image_finish(struct image_builder *builder, struct strbuf *out, struct err *err) {
    struct header header = {.version = IMAGE_VERSION, .n_sections = IMAGE_N_SECTIONS};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    size_t end = aligned(sizeof header);
    bool failed = false;
    for (int i = 0; i < IMAGE_N_SECTIONS; i++) {
        failed |= builder->section[i].failed;
        header.section[i].off = end;
        header.section[i].n = builder->section[i].n;
        end = aligned(end + builder->section[i].n);
    }
    header.n_bytes = end;
    if (failed || !strbuf_reserve(out, end))
        return err_set(err, ERR_NOMEM, "tokenizer: out of memory for %zu bytes of tables", end);
    memset(out->data, 0, end);
    out->n = end;
    memcpy(out->data, &header, sizeof header);
    for (int i = 0; i < IMAGE_N_SECTIONS; i++)
        if (builder->section[i].n)
            memcpy(out->data + header.section[i].off, builder->section[i].data,
                   builder->section[i].n);
    return true;
}

bool image_read(struct image *image, struct bytes block, struct err *err) {
    struct header header;
    if (block.n < sizeof header)
        return err_set(err, ERR_FORMAT, "compiled tokenizer: only %zu bytes", block.n);
    memcpy(&header, block.data, sizeof header);
    if (memcmp(header.magic, MAGIC, sizeof MAGIC) != 0 || header.version != IMAGE_VERSION ||
        header.n_sections != IMAGE_N_SECTIONS)
        return err_set(err, ERR_FORMAT, "compiled tokenizer: not of this version");
    if (header.n_bytes != block.n)
        return err_set(err, ERR_FORMAT, "compiled tokenizer: cut short");
    for (int i = 0; i < IMAGE_N_SECTIONS; i++) {
        uint64_t off = header.section[i].off, n = header.section[i].n;
        if (off > block.n || n > block.n - off || off % SECTION_ALIGN)
            return err_set(err, ERR_FORMAT, "compiled tokenizer: section %d is outside", i);
        image->section[i] = (struct bytes){block.data + off, (size_t)n};
    }
    return true;
}

void image_seal(void *block, size_t n) {
    uint64_t sum = block_checksum((struct bytes){block, n});
    memcpy((char *)block + offsetof(struct header, checksum), &sum, sizeof sum);
}

bool image_is_whole(struct bytes block) {
    struct header header;
    if (block.n < sizeof header)
        return false;
    memcpy(&header, block.data, sizeof header);
    return header.n_bytes == block.n && header.checksum == block_checksum(block);
}
