// Linear layers: which kernel a product goes to.
#include "backend/cuda/batch.cuh"
#include "backend/cuda/stream.cuh"

// Up to PRODUCT_ROWS_MAX rows a product waits for the weight alone; up to BATCH_ROWS_MAX a quantized
// weight is still best read in its own format; beyond, it is expanded to bf16 for a tiled product, where
// dense bf16 goes from DENSE_ROWS_MAX on.
enum { PRODUCT_ROWS_MAX = 16, DENSE_ROWS_MAX = 8, BATCH_ROWS_MAX = 192 };

static bool is_16_byte(const void *p) {
    return (uintptr_t)p % 16 == 0;
}

// Whether kernels with wide loads can read it; k-blocks then never straddle a row's end within a lane.
static bool is_wide(const struct wview *w, const bf16 *x, uint32_t ldx) {
    return w->n_in % 8 == 0 && ldx % 8 == 0 && is_16_byte(x);
}

// Up to 8 rows, if stream.cuh has a kernel for it.
static bool stream(struct cuda_backend *cu, const struct product_args *args) {
    const struct wview *w = &args->out[0].w;
    const bool glu = args->flags & PRODUCT_GLU;
    // Its sums depend on nothing but the weight's shape, but those of more rows are others.
    if (args->experts || args->n > STREAM_COLS || cu->deterministic || !is_wide(w, args->x, args->ldx))
        return false;
    struct product_args a = *args;
    uint32_t tiles = 0;
    if (glu)
        a.n_outs = 1;
    for (uint32_t i = 0; i < a.n_outs; i++)
        a.tile_end[i] = tiles += div_up(a.out[i].w.n_out, glu ? 8 : STREAM_ROWS);
    a.magic = 0x43004300;
    return w->format == WEIGHT_AFFINE ? stream_affine(cu, a) : stream_float(cu, a);
}

void product(struct cuda_backend *cu, struct product_args *args) {
    if (stream(cu, args))
        return;
    const bool glu = args->flags & PRODUCT_GLU;
    const uint32_t tile_rows = PRODUCT_MT * 16 / (glu ? 2 : 1);
    uint32_t tiles = 0;
    if (glu) {
        tiles = div_up(args->out[0].w.n_out, tile_rows);
        args->n_outs = 1; // out[1] is read for `up` only
        args->tile_end[0] = tiles;
    } else {
        for (uint32_t i = 0; i < args->n_outs; i++)
            args->tile_end[i] = tiles += div_up(args->out[i].w.n_out, tile_rows);
    }
    const struct wview *w = &args->out[0].w;
    const bool wide = is_wide(w, args->x, args->ldx);
    // Few tiles: more warps a tile, so that each multiprocessor has enough loads under way.
    args->n_warps = tiles >= 2 * (uint32_t)cu->sm_count ? PRODUCT_WARPS / 2 : PRODUCT_WARPS;
    args->magic = 0x43004300;
    if (w->format == WEIGHT_AFFINE && wide) {
        if (w->bits == 4)
            product_q4(cu, *args, tiles, args->n, w->group);
        else if (w->bits == 8)
            product_q8(cu, *args, tiles, args->n, w->group);
        else
            product_qx(cu, *args, tiles, args->n, w->bits);
    } else {
        product_float(cu, *args, tiles, args->n, w->format, wide);
    }
}

// The same for more rows of a quantized weight; false if it is not for these.
static bool batch(struct cuda_backend *cu, struct product_args *args) {
    const struct wview *w = &args->out[0].w;
    const bool glu = args->flags & PRODUCT_GLU, affine = w->format == WEIGHT_AFFINE;
    if (args->n <= PRODUCT_ROWS_MAX || cu->deterministic || !is_wide(w, args->x, args->ldx) ||
        (affine ? w->scale_dtype == DTYPE_F32
                : w->format != WEIGHT_MXFP4 && w->format != WEIGHT_NVFP4 && w->format != WEIGHT_MXFP8))
        return false;
    const uint32_t tile_rows = glu ? BATCH_ROWS / 2 : BATCH_ROWS;
    uint32_t tiles = 0;
    struct batch_args a = {};
    a.p = *args;
    a.p.magic = 0x43004300;
    if (glu)
        a.p.n_outs = 1;
    for (uint32_t i = 0; i < a.p.n_outs; i++)
        a.p.tile_end[i] = tiles += div_up(args->out[i].w.n_out, tile_rows);
    // Two blocks for each multiprocessor, each with two stages or more.
    const uint32_t col_tiles = div_up(args->n, BATCH_COLS), all = tiles * col_tiles;
    const uint32_t wanted = 2u * (uint32_t)cu->sm_count / all, useful = div_up(w->n_in, 2 * BATCH_K);
    a.n_splits = wanted < 1 ? 1 : wanted < useful ? wanted : useful;
    const size_t part_floats = (size_t)BATCH_ROWS * BATCH_COLS;
    if (a.n_splits > 1 && (all > cu->attn_counts || all * a.n_splits * part_floats > cu->attn_part_floats))
        a.n_splits = 1;
    a.part = cu->attn_part;
    a.count = cu->attn_count;
    const dim3 grid(tiles, col_tiles, a.n_splits);
    return affine ? batch_affine(cu, a, grid) : batch_float(cu, a, grid);
}

// Memory for a whole weight as bf16; NULL while recording a step that needs it for the first time.
static bf16 *dequant_memory(struct cuda_backend *cu, size_t n_elements) {
    size_t n_bytes = n_elements * sizeof(bf16);
    if (n_bytes <= cu->dequant_bytes)
        return (bf16 *)cu->dequant;
    if (cu->recording)
        return NULL;
    cudaFree(cu->dequant);
    cu->dequant = NULL;
    cu->dequant_bytes = 0;
    if (cudaMalloc(&cu->dequant, n_bytes) != cudaSuccess) {
        cudaGetLastError(); // the other kernel will do
        return NULL;
    }
    cu->dequant_bytes = n_bytes;
    return (bf16 *)cu->dequant;
}

// The tiled product, if it can: many rows, rows of whole 16 bytes.
static bool large_product(struct cuda_backend *cu, const struct linear_args *args,
                          const struct linear_output *out) {
    const struct wview *w = &out->weight->view;
    const bf16 *x = (const bf16 *)args->x.data;
    const uint32_t few = w->format == WEIGHT_BF16 ? DENSE_ROWS_MAX : BATCH_ROWS_MAX;
    if (args->x.n_rows <= few || cu->deterministic || !is_wide(w, x, args->x.stride) ||
        out->y.stride % 8 != 0 || !is_16_byte(out->y.data) || w->n_out % 8 != 0)
        return false;
    const bf16 *dense = (const bf16 *)w->data;
    if (w->format != WEIGHT_BF16) {
        if (w->format == WEIGHT_F32)
            return false; // keeps its precision
        bf16 *memory = dequant_memory(cu, (size_t)w->n_out * w->n_in);
        if (!memory)
            return false;
        dequantize(cu, w, 0, w->n_out, memory);
        dense = memory;
    }
    gemm_bf16(cu, x, args->x.stride, args->x.n_rows, dense, w->n_out, w->n_in, out->bias, args->scale,
              args->store == LINEAR_ADD, (bf16 *)out->y.data, out->y.stride);
    return true;
}

void cuda_linear(struct backend *be, const struct linear_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    bool done[LINEAR_OUTPUTS_MAX] = {false};
    for (uint32_t i = 0; i < args->n_outputs; i++)
        done[i] = large_product(cu, args, &args->outputs[i]);
    // The others, together where one kernel reads them.
    for (uint32_t i = 0; i < args->n_outputs; i++) {
        if (done[i])
            continue;
        struct product_args p = {};
        p.x = (const bf16 *)args->x.data;
        p.ldx = args->x.stride;
        p.n = args->x.n_rows;
        p.scale = args->scale;
        p.flags = args->store == LINEAR_ADD ? PRODUCT_ADD : 0;
        for (uint32_t j = i; j < args->n_outputs; j++) {
            const struct linear_output *out = &args->outputs[j];
            if (done[j] || !same_kernel(&args->outputs[i].weight->view, &out->weight->view))
                continue;
            done[j] = true;
            p.out[p.n_outs++] = {out->weight->view, (bf16 *)out->y.data, NULL, out->y.stride, out->bias};
        }
        if (!batch(cu, &p))
            product(cu, &p);
    }
}

void cuda_linear_glu(struct backend *be, struct mat x, const struct weight *gate, const struct weight *up,
                     enum glu_kind kind, struct mat y) {
    struct cuda_backend *cu = cuda_of(be);
    const uint32_t few = gate->view.format == WEIGHT_BF16 ? DENSE_ROWS_MAX : BATCH_ROWS_MAX;
    if ((x.n_rows <= few || cu->deterministic) && same_kernel(&gate->view, &up->view)) {
        struct product_args p = {};
        p.x = (const bf16 *)x.data;
        p.ldx = x.stride;
        p.n = x.n_rows;
        p.scale = 1;
        p.flags = PRODUCT_GLU;
        p.glu = kind;
        p.n_outs = 2;
        p.out[0] = {gate->view, (bf16 *)y.data, NULL, y.stride, NULL};
        p.out[1] = {up->view, NULL, NULL, 0, NULL};
        if (!batch(cu, &p))
            product(cu, &p);
        return;
    }
    struct linear_args args = {};
    struct mat up_y = {cu->scratch, y.n_rows, y.n_cols, (y.n_cols + 7) / 8 * 8};
    args.x = x;
    args.n_outputs = 2;
    args.scale = 1;
    args.outputs[0] = {gate, NULL, y};
    args.outputs[1] = {up, NULL, up_y};
    cuda_linear(be, &args);
    struct glu_args glu = {kind, y, up_y, y, 0, 0};
    cuda_glu(be, &glu);
}

float *cuda_logits(struct backend *be, struct mat x, const struct weight *head, const float *bias,
                   float scale, float softcap) {
    struct cuda_backend *cu = cuda_of(be);
    const size_t n = (size_t)x.n_rows * head->view.n_out;
    if (n > cu->logits_floats - cu->logits_used) {
        cuda_check(cu, cudaErrorInvalidValue, "logits beyond the reservation");
        return cu->logits_host;
    }
    float *device = cu->logits_device + cu->logits_used, *host = cu->logits_host + cu->logits_used;
    cu->logits_used += n;
    if (x.n_rows == 0)
        return host;
    struct product_args p = {};
    p.x = (const bf16 *)x.data;
    p.ldx = x.stride;
    p.n = x.n_rows;
    p.scale = scale;
    p.softcap = softcap;
    p.n_outs = 1;
    p.out[0] = {head->view, NULL, device, head->view.n_out, bias};
    if (!batch(cu, &p))
        product(cu, &p);
    cuda_check(cu, cudaMemcpyAsync(host, device, n * sizeof(float), cudaMemcpyDeviceToHost, cu->stream),
               "logits");
    return host;
}
