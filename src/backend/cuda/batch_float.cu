#include "backend/cuda/batch.cuh"

bool batch_float(struct cuda_backend *cu, const batch_args &a, dim3 grid) {
    switch (a.p.out[0].w.format) {
    case WEIGHT_MXFP4:
        return batch_launch<format_fp4<32>>(cu, a, grid);
    case WEIGHT_NVFP4:
        return batch_launch<format_fp4<16>>(cu, a, grid);
    case WEIGHT_MXFP8:
        return batch_launch<format_fp8>(cu, a, grid);
    default:
        return false;
    }
}
