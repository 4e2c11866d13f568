#include "backend/cuda/product.cuh"

void product_q4(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group) {
    if (group == 32)
        product_scales<format_q4<32>>(cu, args, tiles, n);
    else if (group == 64)
        product_scales<format_q4<64>>(cu, args, tiles, n);
    else
        product_scales<format_q4<128>>(cu, args, tiles, n);
}
