#include "backend/cuda/stream.cuh"

bool stream_affine(struct cuda_backend *cu, product_args &args) {
    const wview &w = args.out[0].w;
    switch (w.bits) {
    case 2:
        return stream_launch<format_qx<2>, SCALES_ANY>(cu, args);
    case 3:
        return stream_launch<format_qx<3>, SCALES_ANY>(cu, args);
    case 4:
        return w.group == 32   ? stream_scales<format_q4<32>>(cu, args)
               : w.group == 64 ? stream_scales<format_q4<64>>(cu, args)
                               : stream_scales<format_q4<128>>(cu, args);
    case 5:
        return stream_launch<format_qx<5>, SCALES_ANY>(cu, args);
    case 6:
        return stream_launch<format_qx<6>, SCALES_ANY>(cu, args);
    default:
        return w.group == 32   ? stream_scales<format_q8<32>>(cu, args)
               : w.group == 64 ? stream_scales<format_q8<64>>(cu, args)
                               : stream_launch<format_q8<64>, SCALES_ANY>(cu, args);
    }
}
