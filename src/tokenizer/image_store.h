// tokenizer/image_store.h - compiled tokenizers in loam's cache folder, below tokenizer/:
//   <fingerprint>.image    an image, named by the hash of the files that it was made from
//   <hash>.seen            that fingerprint, named by a hash of the files' paths, sizes and times, so
//                          that opening need not read them
// All of it may be deleted at any time. Any process may use it: files are replaced atomically.
#ifndef LOAM_TOKENIZER_IMAGE_STORE_H
#define LOAM_TOKENIZER_IMAGE_STORE_H
#include "base/file_map.h"

// Map the image of a fingerprint if it is there and whole.
bool image_store_load(const char *fingerprint, struct file_map *map);
// Keep an image; a failure is logged and nothing more: it is only a cache.
void image_store_save(const char *fingerprint, struct bytes block);

// A text that changes whenever one of the two files does (the second may be absent). False if the first
// cannot be examined, or if one changed so recently that a later change might look the same.
bool image_store_identity(const char *first, const char *second, struct strbuf *identity);
// The fingerprint that the identity had when it was last computed.
bool image_store_recall(struct str identity, char fingerprint[65]);
void image_store_remember(struct str identity, const char *fingerprint);
#endif
