#include "backend/cuda/product.cuh"

void product_q4(cudaStream_t stream, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group) {
    if (group == 32)
        product_rows<format_q4<32>>(stream, args, tiles, n);
    else if (group == 64)
        product_rows<format_q4<64>>(stream, args, tiles, n);
    else
        product_rows<format_q4<128>>(stream, args, tiles, n);
}
