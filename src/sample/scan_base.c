#define LEVEL SCAN_BASE
#define BYTES 16
#include "sample/scan_body.inc"
