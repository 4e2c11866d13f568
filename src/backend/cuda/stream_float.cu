#include "backend/cuda/stream.cuh"

bool stream_float(struct cuda_backend *cu, product_args &args) {
    switch (args.out[0].w.format) {
    case WEIGHT_BF16:
        return stream_launch<format_bf16, SCALES_ANY>(cu, args);
    case WEIGHT_MXFP4:
        return stream_launch<format_fp4<32>, SCALES_ANY>(cu, args);
    case WEIGHT_NVFP4:
        return stream_launch<format_fp4<16>, SCALES_ANY>(cu, args);
    case WEIGHT_MXFP8:
        return stream_launch<format_fp8, SCALES_ANY>(cu, args);
    default:
        return false;
    }
}
