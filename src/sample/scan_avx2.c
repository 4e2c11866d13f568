#define LEVEL SCAN_AVX2
#define BYTES 32
#include "sample/scan_body.inc"
