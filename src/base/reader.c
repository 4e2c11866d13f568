#include "base/reader.h"

static const uint8_t *take(struct reader *r, size_t n) {
    if (r->failed || n > r->in.n - r->pos) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->in.data + r->pos;
    r->pos += n;
    return p;
}

static uint64_t little_endian(struct reader *r, size_t n) {
    const uint8_t *p = take(r, n);
    uint64_t v = 0;
    for (size_t i = n; p && i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

uint8_t reader_u8(struct reader *r) { return (uint8_t)little_endian(r, 1); }
uint16_t reader_u16(struct reader *r) { return (uint16_t)little_endian(r, 2); }
uint32_t reader_u32(struct reader *r) { return (uint32_t)little_endian(r, 4); }
uint64_t reader_u64(struct reader *r) { return little_endian(r, 8); }

struct bytes reader_bytes(struct reader *r, size_t n) {
    const uint8_t *p = take(r, n);
    return (struct bytes){p, p ? n : 0};
}

struct str reader_str(struct reader *r, size_t n) {
    return str_of(reader_bytes(r, n));
}

void reader_skip(struct reader *r, size_t n) {
    take(r, n);
}

uint64_t reader_varint(struct reader *r) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const uint8_t *p = take(r, 1);
        if (!p)
            return 0;
        v |= (uint64_t)(*p & 0x7F) << shift;
        if (!(*p & 0x80))
            return v;
    }
    r->failed = true;
    return 0;
}

bool reader_finish(const struct reader *r, struct err *err, const char *what) {
    if (r->failed)
        return err_set(err, ERR_FORMAT, "%s: truncated after %zu bytes", what, r->pos);
    if (r->pos != r->in.n)
        return err_set(err, ERR_FORMAT, "%s: %zu bytes left over", what, r->in.n - r->pos);
    return true;
}
