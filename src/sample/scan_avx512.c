#define LEVEL SCAN_AVX512
#define BYTES 64
#include "sample/scan_body.inc"
