#include "backend/cuda/batch.cuh"

bool batch_affine(struct cuda_backend *cu, const batch_args &a, dim3 grid) {
    const wview &w = a.p.out[0].w;
    switch (w.bits) {
    case 2:
        return batch_launch<format_qx<2>>(cu, a, grid);
    case 3:
        return batch_launch<format_qx<3>>(cu, a, grid);
    case 4:
        return w.group == 32   ? batch_launch<format_q4<32>>(cu, a, grid)
               : w.group == 64 ? batch_launch<format_q4<64>>(cu, a, grid)
                               : batch_launch<format_q4<128>>(cu, a, grid);
    case 5:
        return batch_launch<format_qx<5>>(cu, a, grid);
    case 6:
        return batch_launch<format_qx<6>>(cu, a, grid);
    default:
        return w.group == 32 ? batch_launch<format_q8<32>>(cu, a, grid)
                             : batch_launch<format_q8<64>>(cu, a, grid);
    }
}
