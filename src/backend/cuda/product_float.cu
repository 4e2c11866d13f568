#include "backend/cuda/product.cuh"

void product_float(struct cuda_backend *cu, const product_args &args, uint32_t tiles, uint32_t n,
                   uint32_t format, bool wide) {
    if (!wide || format == WEIGHT_F32 || format == WEIGHT_F16)
        product_rows<format_any, SCALES_ANY>(cu, args, tiles, n);
    else if (format == WEIGHT_BF16)
        product_rows<format_bf16, SCALES_ANY>(cu, args, tiles, n);
    else if (format == WEIGHT_MXFP4)
        product_rows<format_fp4<32>, SCALES_ANY>(cu, args, tiles, n);
    else if (format == WEIGHT_NVFP4)
        product_rows<format_fp4<16>, SCALES_ANY>(cu, args, tiles, n);
    else
        product_rows<format_fp8, SCALES_ANY>(cu, args, tiles, n);
}
