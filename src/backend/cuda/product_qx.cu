#include "backend/cuda/product.cuh"

void product_qx(cudaStream_t stream, const product_args &args, uint32_t tiles, uint32_t n, uint32_t bits) {
    if (bits == 2)
        product_rows<format_qx<2>>(stream, args, tiles, n);
    else if (bits == 3)
        product_rows<format_qx<3>>(stream, args, tiles, n);
    else if (bits == 5)
        product_rows<format_qx<5>>(stream, args, tiles, n);
    else
        product_rows<format_qx<6>>(stream, args, tiles, n);
}
