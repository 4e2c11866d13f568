#include "backend/cuda/product.cuh"

void product_q8(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n, uint32_t group) {
    if (group == 32)
        product_scales<format_q8<32>>(cu, args, tiles, n);
    else
        product_scales<format_q8<64>>(cu, args, tiles, n);
}
