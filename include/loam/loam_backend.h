// loam/loam_backend.h - what a backend plugin (libloam-cuda.so) exports to the program that loads it.
#ifndef LOAM_BACKEND_H
#define LOAM_BACKEND_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The table of src/backend/backend.h. Its first two members are the ABI version and the table's bytes,
// in every version, so that a loader can refuse a stranger by naming both versions.
struct backend_ops;

// The table for BACKEND_ABI_VERSION `abi_version`; a plugin that does not speak that version returns
// the table it has, which the loader then refuses. Never NULL; valid while the plugin stays loaded.
// Does not touch the device: opening does.
const struct backend_ops *loam_backend_entry(uint32_t abi_version);

#define LOAM_BACKEND_ENTRY "loam_backend_entry"
typedef const struct backend_ops *loam_backend_entry_fn(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
#endif
