#include "backend/cuda/product.cuh"

void product_q8(cudaStream_t stream, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group) {
    if (group == 32)
        product_rows<format_q8<32>>(stream, args, tiles, n);
    else
        product_rows<format_q8<64>>(stream, args, tiles, n);
}
