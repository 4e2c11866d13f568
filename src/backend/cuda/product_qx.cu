#include "backend/cuda/product.cuh"

void product_qx(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n, uint32_t bits) {
    if (bits == 2)
        product_rows<format_qx<2>, SCALES_ANY>(cu, args, tiles, n);
    else if (bits == 3)
        product_rows<format_qx<3>, SCALES_ANY>(cu, args, tiles, n);
    else if (bits == 5)
        product_rows<format_qx<5>, SCALES_ANY>(cu, args, tiles, n);
    else
        product_rows<format_qx<6>, SCALES_ANY>(cu, args, tiles, n);
}
