// The CUDA plugin: opening a device, memory, the step and its recording, and the table.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "loam/loam_backend.h"

enum { ATTN_PARTS = 2048, INDEX_TOKENS = 32 };

bool cuda_check(struct cuda_backend *cu, cudaError_t status, const char *what) {
    if (status != cudaSuccess && cu->failed == cudaSuccess) {
        cu->failed = status;
        cu->failed_at = what;
    }
    return status == cudaSuccess;
}

// ---- Opening ------------------------------------------------------------------------------------------
static __global__ void probe_kernel(void) {}

static void cuda_close(struct backend *be);

static bool open_device(struct cuda_backend *cu, const struct backend_options *options, struct err *err) {
    int n_devices = 0, driver = 0, runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaError_t status = cudaDriverGetVersion(&driver);
    if (status == cudaSuccess && driver == 0)
        return err_set(err, ERR_NOT_FOUND, "cuda: no NVIDIA driver is installed");
    status = cudaGetDeviceCount(&n_devices);
    if (status == cudaErrorInsufficientDriver)
        return err_set(err, ERR_UNSUPPORTED,
                       "cuda: the NVIDIA driver speaks CUDA %d.%d, this plugin needs %d.%d: update the driver",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && n_devices == 0))
        return err_set(err, ERR_NOT_FOUND, "cuda: the NVIDIA driver sees no GPU");
    if (status != cudaSuccess)
        return err_set(err, ERR_IO, "cuda: the NVIDIA driver does not answer: %s", cudaGetErrorString(status));
    cu->device = options->device < 0 ? 0 : options->device;
    if (cu->device >= n_devices)
        return err_set(err, ERR_NOT_FOUND, "cuda: there is no GPU %d, only %d (counted from 0)", cu->device,
                       n_devices);
    struct cudaDeviceProp prop;
    status = cudaGetDeviceProperties(&prop, cu->device);
    if (status == cudaSuccess)
        status = cudaSetDevice(cu->device);
    if (status != cudaSuccess)
        return err_set(err, ERR_IO, "cuda: GPU %d cannot be used: %s", cu->device, cudaGetErrorString(status));
    snprintf(cu->name, sizeof cu->name, "%s", prop.name);
    if (prop.major < 8)
        return err_set(err, ERR_UNSUPPORTED,
                       "cuda: %s has compute capability %d.%d, loam needs 8.0 (Ampere) or later", cu->name,
                       prop.major, prop.minor);
    cu->cc = prop.major * 10 + prop.minor;
    cu->sm_count = prop.multiProcessorCount;
    cu->total_bytes = prop.totalGlobalMem;
    cu->shared_max = prop.sharedMemPerBlockOptin;
    struct cudaFuncAttributes attributes;
    status = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (status != cudaSuccess)
        return err_set(err, ERR_UNSUPPORTED, "cuda: this plugin has no code for %s (compute capability %d.%d): %s",
                       cu->name, prop.major, prop.minor, cudaGetErrorString(status));
    status = cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking);
    if (status != cudaSuccess)
        return err_set(err, ERR_IO, "cuda: no stream on %s: %s", cu->name, cudaGetErrorString(status));
    return uploader_create(cu, err);
}

extern "C" {
extern const struct backend_ops cuda_backend_ops;
}

static struct backend *cuda_open(const struct backend_options *options, struct err *err) {
    struct cuda_backend *cu = (struct cuda_backend *)calloc(1, sizeof *cu);
    if (!cu) {
        err_set(err, ERR_NOMEM, "cuda: out of memory");
        return NULL;
    }
    cu->base.ops = &cuda_backend_ops;
    cu->base.act_bytes = sizeof(bf16);
    cu->deterministic = options->deterministic;
    cu->few_tokens = options->deterministic ? UINT32_MAX : 16;
    if (!open_device(cu, options, err)) {
        cuda_close(&cu->base);
        return NULL;
    }
    gemm_open(cu);
    return &cu->base;
}

static void forget_graphs(struct cuda_backend *cu) {
    for (int i = 0; i < GRAPHS_MAX; i++)
        if (cu->graphs[i].exec)
            cudaGraphExecDestroy(cu->graphs[i].exec);
    memset(cu->graphs, 0, sizeof cu->graphs);
}

// What reserve() made.
static void free_reserved(struct cuda_backend *cu) {
    forget_graphs(cu);
    cudaFreeHost(cu->step_host);
    cudaFreeHost(cu->logits_host);
    cudaFreeHost(cu->ids_host);
    void *device[] = {cu->step_device, cu->logits_device, cu->ids,          cu->attn_part,
                      cu->attn_count,  cu->moe_list,      cu->index_scores, cu->scratch};
    for (void *p : device)
        cudaFree(p);
    cu->step_host = NULL, cu->logits_host = NULL, cu->ids_host = NULL, cu->step_device = NULL;
    cu->logits_device = NULL, cu->ids = NULL, cu->attn_part = NULL, cu->attn_count = NULL;
    cu->moe_list = NULL, cu->index_scores = NULL, cu->scratch = NULL;
}

static void cuda_close(struct backend *be) {
    if (!be)
        return;
    struct cuda_backend *cu = cuda_of(be);
    if (cu->stream)
        cudaStreamSynchronize(cu->stream);
    uploader_destroy(cu);
    gemm_close(cu);
    free_reserved(cu);
    cudaFree(cu->dequant);
    cudaFree(cu->moe_hidden);
    cudaFree(cu->moe_out);
    for (uint32_t i = 0; i < cu->n_ropes; i++) {
        cudaFree(cu->ropes[i].inv_freq);
        free(cu->ropes[i].host_copy);
    }
    for (uint32_t i = 0; i < cu->n_experts_tables; i++)
        cudaFree(cu->experts[i].views);
    if (cu->stream)
        cudaStreamDestroy(cu->stream);
    free(cu);
}

static void cuda_describe(const struct backend *be, char *out, size_t n) {
    const struct cuda_backend *cu = (const struct cuda_backend *)be;
    snprintf(out, n, "%s, %.0f GiB%s", cu->name, (double)cu->total_bytes / (1 << 30),
             cu->gemm ? ", cuBLASLt" : "");
}

static void cuda_memory(const struct backend *be, struct backend_memory *out) {
    const struct cuda_backend *cu = (const struct cuda_backend *)be;
    size_t free_bytes = 0, total = 0;
    cudaSetDevice(cu->device);
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        total = cu->total_bytes;
    *out = {total, free_bytes, false};
}

// ---- Memory -------------------------------------------------------------------------------------------
static void *cuda_alloc(struct backend *be, size_t n_bytes, struct err *err) {
    struct cuda_backend *cu = cuda_of(be);
    void *p = NULL;
    cudaError_t status = cudaMalloc(&p, n_bytes ? n_bytes : 1);
    if (status == cudaSuccess)
        status = cudaMemsetAsync(p, 0, n_bytes, cu->stream);
    if (status != cudaSuccess) {
        cudaGetLastError();
        cudaFree(p);
        err_set(err, ERR_NOMEM, "cuda: no room for %zu MiB on %s: %s", (n_bytes + (1 << 20) - 1) >> 20, cu->name,
                cudaGetErrorString(status));
        return NULL;
    }
    return p;
}
static void cuda_free(struct backend *be, void *p) {
    cudaStreamSynchronize(cuda_of(be)->stream);
    cudaFree(p);
}
static void cuda_upload(struct backend *be, void *to, const void *from, size_t n_bytes) {
    struct cuda_backend *cu = cuda_of(be);
    cuda_check(cu, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, cu->stream), "upload");
}
static void cuda_download(struct backend *be, void *to, const void *from, size_t n_bytes) {
    struct cuda_backend *cu = cuda_of(be);
    cuda_check(cu, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToHost, cu->stream), "download");
    cuda_check(cu, cudaStreamSynchronize(cu->stream), "download");
}

// ---- The reservation ------------------------------------------------------------------------------------
static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

// What a reservation holds, in the order of struct dev_step where it is the step's.
struct reserve_sizes {
    size_t at_ids, at_positions, at_token_row, at_logits, tables_off, step_bytes;
    size_t logits_floats, ids, scratch_elements, attn_part_floats, attn_counts, index_floats, moe_words;
};
static struct reserve_sizes sizes_for(const struct cuda_backend *cu, const struct backend_limits *l) {
    struct reserve_sizes z = {};
    const size_t n_blocks = div_up(l->ctx_len, KV_PAGE_TOKENS) + 1;
    z.at_ids = l->n_rows * sizeof(struct dev_row);
    z.at_positions = z.at_ids + l->n_tokens * sizeof(int32_t);
    z.at_token_row = z.at_positions + l->n_tokens * sizeof(uint32_t);
    z.at_logits = z.at_token_row + l->n_tokens * sizeof(uint32_t);
    z.tables_off = z.at_logits + l->n_logits * sizeof(uint32_t);
    z.step_bytes = z.tables_off + (size_t)l->n_rows * KV_GROUPS_MAX * n_blocks * sizeof(uint32_t);
    z.logits_floats = (size_t)l->n_logits * l->n_vocab;
    z.ids = 4 * (size_t)larger(l->n_tokens, l->n_logits);
    z.scratch_elements = (size_t)l->n_tokens * ((l->n_cols_max + 7) / 8 * 8);
    const uint32_t dim = l->head_dim > 128 ? 256 : 128;
    z.attn_part_floats = (size_t)ATTN_PARTS * 16 * (dim + 2);
    if (cu->deterministic) { // one token of every row at the fixed splits must fit
        const size_t tiles = (size_t)l->n_rows * l->n_heads * div_up(l->ctx_len, ATTENTION_SPLIT);
        if (tiles * 16 * (dim + 2) > z.attn_part_floats)
            z.attn_part_floats = tiles * 16 * (dim + 2);
    }
    z.attn_counts = z.attn_part_floats / (16 * (64 + 2));
    z.index_floats = (size_t)INDEX_TOKENS * l->ctx_len;
    z.moe_words = moe_list_words(l);
    return z;
}

// Of the device; what products expand weights into comes with the first large one.
static uint64_t cuda_scratch_bytes(const struct backend *be, const struct backend_limits *limits) {
    const struct reserve_sizes z = sizes_for((const struct cuda_backend *)be, limits);
    return z.step_bytes + 4 * (z.logits_floats + z.ids + z.attn_part_floats + z.attn_counts + z.index_floats +
                               z.moe_words) + 2 * z.scratch_elements;
}

static bool cuda_reserve(struct backend *be, const struct backend_limits *limits, struct err *err) {
    struct cuda_backend *cu = cuda_of(be);
    cudaStreamSynchronize(cu->stream);
    // Several models may share the backend: what serves each is the largest of all.
    struct backend_limits *l = &cu->limits;
    l->n_tokens = larger(l->n_tokens, limits->n_tokens), l->n_rows = larger(l->n_rows, limits->n_rows);
    l->n_logits = larger(l->n_logits, limits->n_logits), l->ctx_len = larger(l->ctx_len, limits->ctx_len);
    l->n_cols_max = larger(l->n_cols_max, limits->n_cols_max), l->n_vocab = larger(l->n_vocab, limits->n_vocab);
    l->n_heads = larger(l->n_heads, limits->n_heads), l->head_dim = larger(l->head_dim, limits->head_dim);
    l->n_experts = larger(l->n_experts, limits->n_experts);
    l->n_experts_used = larger(l->n_experts_used, limits->n_experts_used);
    l->d_expert = larger(l->d_expert, limits->d_expert);
    free_reserved(cu);
    const struct reserve_sizes z = sizes_for(cu, l);
    cu->tables_off = z.tables_off;
    cu->step_bytes_max = z.step_bytes;
    cu->logits_floats = z.logits_floats;
    cu->ids_max = z.ids;
    cu->scratch_elements = z.scratch_elements;
    cu->attn_part_floats = z.attn_part_floats;
    cu->attn_counts = z.attn_counts;
    cu->index_floats = z.index_floats;

    struct {
        void **p;
        size_t n_bytes;
        bool host;
    } wanted[] = {
        {(void **)&cu->step_host, cu->step_bytes_max, true},
        {(void **)&cu->step_device, cu->step_bytes_max, false},
        {(void **)&cu->logits_host, cu->logits_floats * sizeof(float), true},
        {(void **)&cu->logits_device, cu->logits_floats * sizeof(float), false},
        {(void **)&cu->ids_host, cu->ids_max * sizeof(int32_t), true},
        {(void **)&cu->ids, cu->ids_max * sizeof(int32_t), false},
        {(void **)&cu->attn_part, cu->attn_part_floats * sizeof(float), false},
        {(void **)&cu->attn_count, cu->attn_counts * sizeof(uint32_t), false},
        {(void **)&cu->moe_list, z.moe_words * sizeof(uint32_t), false},
        {(void **)&cu->index_scores, cu->index_floats * sizeof(float), false},
        {(void **)&cu->scratch, cu->scratch_elements * sizeof(bf16), false},
    };
    size_t total = 0;
    for (auto &w : wanted) {
        cudaError_t status = w.host ? cudaMallocHost(w.p, w.n_bytes + 64) : cudaMalloc(w.p, w.n_bytes + 64);
        total += w.n_bytes;
        if (status == cudaSuccess && !w.host)
            status = cudaMemset(*w.p, 0, w.n_bytes + 64);
        if (status != cudaSuccess) {
            cudaGetLastError();
            free_reserved(cu);
            return err_set(err, ERR_NOMEM, "cuda: no room for %zu MiB of scratch on %s: %s", total >> 20, cu->name,
                           cudaGetErrorString(status));
        }
    }
    cu->step.rows = (const struct dev_row *)cu->step_device;
    cu->step.token_ids = (const int32_t *)(cu->step_device + z.at_ids);
    cu->step.positions = (const uint32_t *)(cu->step_device + z.at_positions);
    cu->step.token_row = (const uint32_t *)(cu->step_device + z.at_token_row);
    cu->step.logit_tokens = (const uint32_t *)(cu->step_device + z.at_logits);
    cu->step.tables = (const uint32_t *)(cu->step_device + cu->tables_off);
    return true;
}

// ---- The step -------------------------------------------------------------------------------------------
// The host twin of an array of cu->step.
template <class T> static T *host_of(struct cuda_backend *cu, const T *device) {
    return (T *)(cu->step_host + ((const uint8_t *)device - cu->step_device));
}

static bool cuda_step_begin(struct backend *be, const struct step *step, struct err *err) {
    struct cuda_backend *cu = cuda_of(be);
    const struct backend_limits *l = &cu->limits;
    if (step->n_tokens > l->n_tokens || step->n_rows > l->n_rows || step->n_logits > l->n_logits)
        return err_set(err, ERR_INTERNAL,
                       "cuda: a step of %u tokens, %u rows and %u logits is beyond the reservation of %u, %u, %u",
                       step->n_tokens, step->n_rows, step->n_logits, l->n_tokens, l->n_rows, l->n_logits);
    struct dev_row *rows = host_of(cu, cu->step.rows);
    uint32_t *tables = host_of(cu, cu->step.tables);
    const size_t words_max = (cu->step_bytes_max - cu->tables_off) / sizeof(uint32_t);
    size_t n_words = 0;
    cu->row_tokens_few = cu->row_tokens_max = cu->positions_max = 0;
    cu->row_tokens_min = UINT32_MAX;
    for (uint32_t r = 0; r < step->n_rows; r++) {
        const struct step_row *row = &step->rows[r];
        struct dev_row *to = &rows[r];
        *to = {row->token_off, row->n_tokens, row->pos0, row->state_slot, row->rope_variant, row->n_blocks, {}};
        for (uint32_t g = 0; g < KV_GROUPS_MAX; g++) {
            if (!row->block_table[g])
                continue;
            if (row->n_blocks > words_max - n_words)
                return err_set(err, ERR_INTERNAL, "cuda: block tables of row %u are beyond the reservation", r);
            to->table_off[g] = (uint32_t)n_words;
            memcpy(tables + n_words, row->block_table[g], row->n_blocks * sizeof *tables);
            n_words += row->n_blocks;
        }
        cu->row_tokens_max = larger(cu->row_tokens_max, row->n_tokens);
        cu->row_tokens_min = row->n_tokens < cu->row_tokens_min ? row->n_tokens : cu->row_tokens_min;
        if (row->n_tokens <= cu->few_tokens)
            cu->row_tokens_few = larger(cu->row_tokens_few, row->n_tokens);
        cu->positions_max = larger(cu->positions_max, row->pos0 + row->n_tokens - 1);
    }
    if (step->token_ids)
        memcpy(host_of(cu, cu->step.token_ids), step->token_ids, step->n_tokens * sizeof(int32_t));
    memcpy(host_of(cu, cu->step.positions), step->positions, step->n_tokens * sizeof(uint32_t));
    memcpy(host_of(cu, cu->step.token_row), step->token_row, step->n_tokens * sizeof(uint32_t));
    if (step->n_logits)
        memcpy(host_of(cu, cu->step.logit_tokens), step->logit_tokens, step->n_logits * sizeof(uint32_t));
    cu->n_tokens = step->n_tokens, cu->n_rows = step->n_rows, cu->n_logits = step->n_logits;
    cu->logits_used = cu->ids_used = 0;
    cu->once = false;
    cu->recording = NULL;
    cu->failed = cudaSuccess;
    cu->n_steps++;
    cudaError_t status = cudaMemcpyAsync(cu->step_device, cu->step_host, cu->tables_off + n_words * sizeof(uint32_t),
                                         cudaMemcpyHostToDevice, cu->stream);
    if (status != cudaSuccess)
        return err_set(err, ERR_INTERNAL, "cuda: uploading a step: %s", cudaGetErrorString(status));
    return true;
}

static struct graph_slot *graph_for(struct cuda_backend *cu, uint64_t key, bool *is_new) {
    struct graph_slot *oldest = &cu->graphs[0];
    for (int i = 0; i < GRAPHS_MAX; i++) {
        struct graph_slot *slot = &cu->graphs[i];
        if (slot->used && slot->key == key && slot->n_tokens == cu->n_tokens && slot->n_rows == cu->n_rows &&
            slot->n_logits == cu->n_logits) {
            *is_new = false;
            return slot;
        }
        if (slot->used < oldest->used)
            oldest = slot;
    }
    if (oldest->exec)
        cudaGraphExecDestroy(oldest->exec);
    *oldest = {key, NULL, false, cu->n_tokens, cu->n_rows, cu->n_logits, 0};
    *is_new = true;
    return oldest;
}

// The first step of a key runs as it is, so that kernels are loaded and scratch is grown; the second is
// recorded; the third and later are replayed. Only steps whose rows all have one length qualify: the
// shape of the launches then depends on the counts alone.
static bool cuda_step_replay(struct backend *be, uint64_t key) {
    struct cuda_backend *cu = cuda_of(be);
    if (key == 0 || cu->n_rows == 0 || cu->row_tokens_min != cu->row_tokens_max)
        return false;
    bool is_new;
    struct graph_slot *slot = graph_for(cu, key, &is_new);
    slot->used = cu->n_steps;
    if (is_new || slot->never)
        return false;
    if (slot->exec)
        return cuda_check(cu, cudaGraphLaunch(slot->exec, cu->stream), "replaying a step") || true;
    if (cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess)
        cu->recording = slot;
    return false;
}

// Close the recording and run it.
static void run_recorded(struct cuda_backend *cu) {
    struct graph_slot *slot = cu->recording;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cu->recording = NULL;
    if (cuda_check(cu, cudaStreamEndCapture(cu->stream, &graph), "recording a step") &&
        cuda_check(cu, cudaGraphInstantiate(&exec, graph, 0), "recording a step"))
        cuda_check(cu, cudaGraphLaunch(exec, cu->stream), "running a recorded step");
    if (graph)
        cudaGraphDestroy(graph);
    if (cu->failed == cudaSuccess && !cu->once) {
        slot->exec = exec;
        return;
    }
    slot->never = true;
    if (exec) {
        cudaStreamSynchronize(cu->stream);
        cudaGraphExecDestroy(exec);
    }
}

static bool cuda_step_end(struct backend *be, struct err *err) {
    struct cuda_backend *cu = cuda_of(be);
    if (cu->recording)
        run_recorded(cu);
    cuda_check(cu, cudaStreamSynchronize(cu->stream), "running a step");
    if (cu->failed == cudaSuccess)
        return true;
    const cudaError_t failed = cu->failed;
    cu->failed = cudaSuccess;
    return err_set(err, failed == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_INTERNAL, "cuda: %s on %s: %s",
                   cu->failed_at, cu->name, cudaGetErrorString(failed));
}

// ---- The table --------------------------------------------------------------------------------------------
extern "C" {
const struct backend_ops cuda_backend_ops = {
    .abi_version = BACKEND_ABI_VERSION,
    .ops_bytes = sizeof(struct backend_ops),
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .memory = cuda_memory,
    .reserve = cuda_reserve,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .weight_create = cuda_weight_create,
    .weight_destroy = cuda_weight_destroy,
    .weights_ready = cuda_weights_ready,
    .kv_create = cuda_kv_create,
    .kv_destroy = cuda_kv_destroy,
    .kv_copy_page = cuda_kv_copy_page,
    .kv_page_bytes = cuda_kv_page_bytes,
    .kv_read_page = cuda_kv_read_page,
    .kv_write_page = cuda_kv_write_page,
    .state_create = cuda_state_create,
    .state_destroy = cuda_state_destroy,
    .state_clear = cuda_state_clear,
    .state_copy = cuda_state_copy,
    .state_slot_bytes = cuda_state_slot_bytes,
    .state_read = cuda_state_read,
    .state_write = cuda_state_write,
    .step_begin = cuda_step_begin,
    .step_end = cuda_step_end,
    .step_replay = cuda_step_replay,
    .embed = cuda_embed,
    .linear = cuda_linear,
    .norm = cuda_norm,
    .qkv = cuda_qkv,
    .attention = cuda_attention,
    .glu = cuda_glu,
    .unary = cuda_unary,
    .axpby = cuda_axpby,
    .mul = cuda_mul,
    .gather = cuda_gather,
    .logits = cuda_logits,
    .linear_glu = cuda_linear_glu,
    .route = cuda_route,
    .experts = cuda_experts,
    .conv = cuda_conv,
    .delta = cuda_delta,
    .index = cuda_index,
    .scratch_bytes = cuda_scratch_bytes,
};

__attribute__((visibility("default"))) const struct backend_ops *loam_backend_entry(uint32_t abi_version) {
    (void)abi_version; // this plugin speaks one version; the caller compares
    return &cuda_backend_ops;
}
}
