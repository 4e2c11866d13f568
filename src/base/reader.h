// base/reader.h - bounds-checked reading of little-endian binary data. The error sticks: past the
// end every read yields zero or an empty view, and reader_finish() tells.
#ifndef LOAM_BASE_READER_H
#define LOAM_BASE_READER_H
#include "base/bytes.h"
#include "base/err.h"

struct reader {
    struct bytes in;
    size_t pos;
    bool failed;
};

static inline struct reader reader_init(struct bytes in) {
    return (struct reader){.in = in};
}
static inline size_t reader_remaining(const struct reader *r) {
    return r->in.n - r->pos;
}
uint8_t reader_u8(struct reader *r);
uint16_t reader_u16(struct reader *r);
uint32_t reader_u32(struct reader *r);
uint64_t reader_u64(struct reader *r);
struct bytes reader_bytes(struct reader *r, size_t n); // borrows from the input
struct str reader_str(struct reader *r, size_t n);     // likewise
void reader_skip(struct reader *r, size_t n);
// Protocol Buffers' base-128 varint.
uint64_t reader_varint(struct reader *r);
// True if all was read and nothing is left over; else ERR_FORMAT naming `what`.
bool reader_finish(const struct reader *r, struct err *err, const char *what);
#endif
