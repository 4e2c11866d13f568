// Weights: device memory in the file's own layout, filled by a few threads through pinned buffers, and the
// expansion to bf16 that large products use.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/device.cuh"

// ---- Uploading ------------------------------------------------------------------------------------
// Each worker copies pieces of the mapped file into one of its two pinned buffers while the other is on
// its way to the device: the copies out of the page cache, which one core cannot do at PCIe speed, and
// the transfers overlap. Pieces are taken from a list that only grows until weights_ready.
enum { UPLOAD_WORKERS_MAX = 8, UPLOAD_PIECE = 8 << 20, UPLOAD_JOBS_STEP = 1024 };

struct upload_job {
    uint8_t *to;
    const uint8_t *from;
    size_t n_bytes;
};

struct upload_worker {
    struct uploader *up;
    pthread_t thread;
    cudaStream_t stream;
    uint8_t *buffer[2];
    cudaEvent_t sent[2];
};

struct uploader {
    struct cuda_backend *cu;
    struct upload_worker workers[UPLOAD_WORKERS_MAX];
    uint32_t n_workers;
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t changed;
    struct upload_job *jobs;
    size_t n_jobs, n_jobs_max, next, n_done;
    bool stop;
    cudaError_t failed;
};

static void *upload_main(void *user) {
    struct upload_worker *worker = (struct upload_worker *)user;
    struct uploader *up = worker->up;
    cudaSetDevice(up->cu->device);
    unsigned turn = 0;
    pthread_mutex_lock(&up->lock);
    for (;;) {
        while (!up->stop && up->next == up->n_jobs)
            pthread_cond_wait(&up->changed, &up->lock);
        if (up->next == up->n_jobs)
            break;
        struct upload_job job = up->jobs[up->next++];
        pthread_mutex_unlock(&up->lock);
        unsigned b = turn++ % 2;
        cudaError_t status = cudaEventSynchronize(worker->sent[b]);
        if (status == cudaSuccess) {
            memcpy(worker->buffer[b], job.from, job.n_bytes);
            status = cudaMemcpyAsync(job.to, worker->buffer[b], job.n_bytes, cudaMemcpyHostToDevice,
                                     worker->stream);
        }
        if (status == cudaSuccess)
            status = cudaEventRecord(worker->sent[b], worker->stream);
        pthread_mutex_lock(&up->lock);
        if (status != cudaSuccess)
            up->failed = status;
        if (++up->n_done == up->n_jobs)
            pthread_cond_broadcast(&up->changed);
    }
    pthread_mutex_unlock(&up->lock);
    return NULL;
}

bool uploader_create(struct cuda_backend *cu, struct err *err) {
    struct uploader *up = (struct uploader *)calloc(1, sizeof *up);
    if (!up)
        return err_set(err, ERR_NOMEM, "cuda: out of memory for the weight uploader");
    cu->uploader = up;
    up->cu = cu;
    pthread_mutex_init(&up->lock, NULL);
    pthread_cond_init(&up->changed, NULL);
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n_workers = n_cpus < 1 ? 1 : (uint32_t)n_cpus;
    n_workers = n_workers > UPLOAD_WORKERS_MAX ? (uint32_t)UPLOAD_WORKERS_MAX : n_workers;
    for (uint32_t i = 0; i < n_workers; i++) {
        struct upload_worker *worker = &up->workers[i];
        worker->up = up;
        cudaError_t status = cudaStreamCreateWithFlags(&worker->stream, cudaStreamNonBlocking);
        for (int b = 0; b < 2 && status == cudaSuccess; b++) {
            status = cudaMallocHost((void **)&worker->buffer[b], UPLOAD_PIECE);
            if (status == cudaSuccess)
                status = cudaEventCreateWithFlags(&worker->sent[b], cudaEventDisableTiming);
        }
        int failed = status == cudaSuccess ? pthread_create(&worker->thread, NULL, upload_main, worker) : 1;
        up->n_workers = i + 1; // so that what was made is undone
        if (failed) {
            worker->thread = 0;
            return err_set(err, ERR_NOMEM, "cuda: cannot start uploading weights: %s",
                           status == cudaSuccess ? "no thread" : cudaGetErrorString(status));
        }
    }
    return true;
}

void uploader_destroy(struct cuda_backend *cu) {
    struct uploader *up = cu->uploader;
    if (!up)
        return;
    pthread_mutex_lock(&up->lock);
    up->stop = true;
    pthread_cond_broadcast(&up->changed);
    pthread_mutex_unlock(&up->lock);
    for (uint32_t i = 0; i < up->n_workers; i++) {
        struct upload_worker *worker = &up->workers[i];
        if (worker->thread)
            pthread_join(worker->thread, NULL);
        if (worker->stream)
            cudaStreamSynchronize(worker->stream);
        for (int b = 0; b < 2; b++) {
            if (worker->sent[b])
                cudaEventDestroy(worker->sent[b]);
            cudaFreeHost(worker->buffer[b]);
        }
        if (worker->stream)
            cudaStreamDestroy(worker->stream);
    }
    pthread_mutex_destroy(&up->lock);
    pthread_cond_destroy(&up->changed);
    free(up->jobs);
    free(up);
    cu->uploader = NULL;
}

static bool upload_add(struct uploader *up, void *to, const void *from, size_t n_bytes) {
    bool ok = true;
    pthread_mutex_lock(&up->lock);
    for (size_t off = 0; off < n_bytes; off += UPLOAD_PIECE) {
        if (up->n_jobs == up->n_jobs_max) {
            struct upload_job *more =
                (struct upload_job *)realloc(up->jobs, (up->n_jobs_max + UPLOAD_JOBS_STEP) * sizeof *more);
            if (!more) {
                ok = false;
                break;
            }
            up->jobs = more;
            up->n_jobs_max += UPLOAD_JOBS_STEP;
        }
        size_t n = n_bytes - off < UPLOAD_PIECE ? n_bytes - off : (size_t)UPLOAD_PIECE;
        up->jobs[up->n_jobs++] = {(uint8_t *)to + off, (const uint8_t *)from + off, n};
    }
    pthread_cond_broadcast(&up->changed);
    pthread_mutex_unlock(&up->lock);
    return ok;
}

// Wait until all that was added is on the device; the list starts anew.
static cudaError_t upload_wait(struct uploader *up) {
    pthread_mutex_lock(&up->lock);
    while (up->n_done < up->n_jobs)
        pthread_cond_wait(&up->changed, &up->lock);
    up->n_jobs = up->next = up->n_done = 0;
    cudaError_t status = up->failed;
    pthread_mutex_unlock(&up->lock);
    for (uint32_t i = 0; i < up->n_workers && status == cudaSuccess; i++)
        status = cudaStreamSynchronize(up->workers[i].stream);
    return status;
}

// ---- Weights --------------------------------------------------------------------------------------
static size_t padded(size_t n) {
    return (n + 255) / 256 * 256;
}

struct weight *cuda_weight_create(struct backend *be, const struct weight_desc *desc, struct err *err) {
    struct cuda_backend *cu = cuda_of(be);
    uint32_t bits = 0, group = 0;
    size_t scale_bytes = 0, data_bytes, scales_bytes;
    switch (desc->format) {
    case WEIGHT_F32:
        bits = 32;
        break;
    case WEIGHT_F16:
    case WEIGHT_BF16:
        bits = 16;
        break;
    case WEIGHT_AFFINE:
        bits = desc->bits, group = desc->group, scale_bytes = dtype_bytes(desc->scale_dtype);
        if (bits < 2 || bits > 8 || bits == 7 || (group != 32 && group != 64 && group != 128) ||
            (desc->scale_dtype != DTYPE_F32 && desc->scale_dtype != DTYPE_F16 &&
             desc->scale_dtype != DTYPE_BF16)) {
            err_set(err, ERR_UNSUPPORTED, "cuda: affine weights of %u bits in groups of %u with %s scales",
                    bits, group, dtype_name(desc->scale_dtype));
            return NULL;
        }
        break;
    case WEIGHT_MXFP4:
        bits = 4, group = 32, scale_bytes = 1;
        break;
    case WEIGHT_MXFP8:
        bits = 8, group = 32, scale_bytes = 1;
        break;
    case WEIGHT_NVFP4:
        bits = 4, group = 16, scale_bytes = 1;
        break;
    default:
        err_set(err, ERR_UNSUPPORTED, "cuda: unknown weight format %d", (int)desc->format);
        return NULL;
    }
    if (group && desc->n_in % group) {
        err_set(err, ERR_UNSUPPORTED, "cuda: %u inputs are no multiple of the group of %u", desc->n_in, group);
        return NULL;
    }
    const uint64_t row_bytes = (uint64_t)desc->n_in * bits / 8;
    const uint32_t n_groups = group ? desc->n_in / group : 0;
    data_bytes = row_bytes * desc->n_out;
    scales_bytes = (size_t)n_groups * desc->n_out * scale_bytes;
    const bool has_biases = desc->format == WEIGHT_AFFINE;
    // A wide load may run past the last row: 256 bytes more than the data.
    size_t at_scales = padded(data_bytes) + 256, at_biases = at_scales + padded(scales_bytes);
    size_t total = at_biases + (has_biases ? padded(scales_bytes) : 0) + 256;

    struct weight *weight = (struct weight *)calloc(1, sizeof *weight);
    uint8_t *memory = NULL;
    cudaError_t status = weight ? cudaMalloc((void **)&memory, total) : cudaErrorMemoryAllocation;
    if (status != cudaSuccess) {
        cudaGetLastError();
        err_set(err, ERR_NOMEM, "cuda: no room on %s for a weight of %zu MiB: %s", cu->name,
                (total + (1 << 20) - 1) >> 20, cudaGetErrorString(status));
        free(weight);
        return NULL;
    }
    weight->memory = memory;
    struct wview *view = &weight->view;
    view->data = memory;
    view->scales = memory + at_scales;
    view->biases = memory + at_biases;
    view->row_bytes = row_bytes;
    view->n_out = desc->n_out;
    view->n_in = desc->n_in;
    view->n_groups = n_groups;
    view->group = (uint16_t)group;
    view->bits = (uint8_t)bits;
    view->format = (uint8_t)desc->format;
    view->scale_dtype = (uint8_t)desc->scale_dtype;
    if (!upload_add(cu->uploader, memory, desc->data, data_bytes) ||
        (group && !upload_add(cu->uploader, memory + at_scales, desc->scales, scales_bytes)) ||
        (has_biases && !upload_add(cu->uploader, memory + at_biases, desc->biases, scales_bytes))) {
        upload_wait(cu->uploader);
        cuda_weight_destroy(be, weight);
        err_set(err, ERR_NOMEM, "cuda: out of memory for the list of uploads");
        return NULL;
    }
    size_t n_elements = (size_t)desc->n_out * desc->n_in;
    if (n_elements > cu->weight_elements_max)
        cu->weight_elements_max = n_elements;
    return weight;
}

void cuda_weight_destroy(struct backend *be, struct weight *weight) {
    struct cuda_backend *cu = cuda_of(be);
    if (!weight)
        return;
    upload_wait(cu->uploader);
    cudaFree(weight->memory);
    // What was derived from it, under an address that may come again.
    for (uint32_t i = 0; i < cu->n_experts_tables; i++)
        if (cu->experts[i].first == weight) {
            cudaFree(cu->experts[i].views);
            cu->experts[i] = cu->experts[--cu->n_experts_tables];
            i--;
        }
    free(weight);
}

bool cuda_weights_ready(struct backend *be, struct err *err) {
    struct cuda_backend *cu = cuda_of(be);
    cudaError_t status = upload_wait(cu->uploader);
    if (status != cudaSuccess)
        return err_set(err, ERR_IO, "cuda: uploading weights failed: %s", cudaGetErrorString(status));
    return true;
}

// ---- Expansion to bf16 ------------------------------------------------------------------------------
// A thread makes 8 neighbours of a row. n_in is a multiple of 8.
static __global__ void dequantize_kernel(const wview w, uint32_t row0, uint32_t n_rows, bf16 *out) {
    const uint32_t octets = w.n_in / 8;
    const uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= (uint64_t)n_rows * octets)
        return;
    const uint32_t r = (uint32_t)(i / octets), k = (uint32_t)(i % octets) * 8, row = row0 + r;
    float f[8];
    if (w.format == WEIGHT_AFFINE && (w.bits == 4 || w.bits == 8)) {
        const uint64_t g = (uint64_t)row * w.n_groups + k / w.group;
        const float s = scale_value(w.scales, g, w.scale_dtype), b = scale_value(w.biases, g, w.scale_dtype);
        const uint8_t *data = w.data + row * w.row_bytes;
        if (w.bits == 4) {
            uint32_t word = *(const uint32_t *)(data + k / 2);
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] = fmaf(s, (float)(word >> 4 * j & 15), b);
        } else {
            uint2 words = *(const uint2 *)(data + k);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                f[j] = fmaf(s, (float)(words.x >> 8 * j & 255), b);
                f[4 + j] = fmaf(s, (float)(words.y >> 8 * j & 255), b);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            f[j] = weight_value(w, row, k + j);
    }
    ((uint4 *)out)[i] = make_uint4(bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]), bf16_pair(f[4], f[5]),
                                   bf16_pair(f[6], f[7]));
}

void dequantize(struct cuda_backend *cu, const struct wview *w, uint32_t row0, uint32_t n_rows, bf16 *out) {
    uint64_t n = (uint64_t)n_rows * (w->n_in / 8);
    dequantize_kernel<<<(uint32_t)((n + 255) / 256), 256, 0, cu->stream>>>(*w, row0, n_rows, out);
    CUDA_LAUNCHED(cu, "dequantize");
}
