#include "model/rope.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"

static const double TWO_PI = 6.283185307179586476925286766559;

double rope_yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

// Frequency of pair j: theta^(-2j/n), rounded to float32 the way PyTorch gets there.
static float plain_frequency(double theta, uint32_t j, uint32_t n_dims) {
    float exponent = (float)(2 * j) / (float)n_dims;
    return 1.0f / powf((float)theta, exponent);
}

static void llama3(const struct rope_config *c, float *freq, uint32_t n_pairs) {
    double low_wavelength = c->ctx_original / c->low_freq_factor;
    double high_wavelength = c->ctx_original / c->high_freq_factor;
    for (uint32_t j = 0; j < n_pairs; j++) {
        double wavelength = TWO_PI / (double)freq[j];
        if (wavelength > low_wavelength) {
            freq[j] = (float)((double)freq[j] / c->factor);
        } else if (wavelength >= high_wavelength) {
            double smooth = (c->ctx_original / wavelength - c->low_freq_factor) /
                            (c->high_freq_factor - c->low_freq_factor);
            freq[j] = (float)((1 - smooth) * (double)freq[j] / c->factor + smooth * (double)freq[j]);
        }
    }
}

static void yarn(const struct rope_config *c, float *freq, uint32_t n_dims, uint32_t ctx_len_max,
                 float *scale) {
    double ctx = c->ctx_original ? c->ctx_original : ctx_len_max;
    double edge[2];
    for (int i = 0; i < 2; i++) {
        double rotations = i == 0 ? c->beta_fast : c->beta_slow;
        edge[i] = n_dims * log(ctx / (rotations * TWO_PI)) / (2 * log(c->theta));
    }
    double low = edge[0], high = edge[1];
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, n_dims - 1);
    if (low == high)
        high += 0.001; // as the reference avoids a division by zero
    for (uint32_t j = 0; j < n_dims / 2; j++) {
        double ramp = fmin(fmax((j - low) / (high - low), 0), 1);
        double extrapolated = (double)freq[j], interpolated = extrapolated / c->factor;
        freq[j] = (float)(interpolated * ramp + extrapolated * (1 - ramp));
    }
    if (c->attention_factor > 0)
        *scale = (float)c->attention_factor;
    else if (c->mscale > 0 && c->mscale_all_dim > 0)
        *scale = (float)(rope_yarn_mscale(c->factor, c->mscale) /
                         rope_yarn_mscale(c->factor, c->mscale_all_dim));
    else
        *scale = (float)rope_yarn_mscale(c->factor, 1);
}

static bool longrope(const struct rope_config *c, float *short_freq, float *long_freq, uint32_t n_pairs,
                     uint32_t ctx_len_max, float *scale, struct err *err) {
    if (!c->short_factor || !c->long_factor || c->n_factors != n_pairs)
        return err_set(err, ERR_FORMAT, "longrope has %u factors; the rotated half of a head needs %u",
                       c->n_factors, n_pairs);
    for (uint32_t j = 0; j < n_pairs; j++) {
        float plain = 1.0f / short_freq[j];
        short_freq[j] = 1.0f / ((float)c->short_factor[j] * plain);
        long_freq[j] = 1.0f / ((float)c->long_factor[j] * plain);
    }
    double ctx = c->ctx_original ? c->ctx_original : ctx_len_max;
    double factor = c->ctx_original ? (double)ctx_len_max / ctx : c->factor;
    if (c->attention_factor > 0)
        *scale = (float)c->attention_factor;
    else
        *scale = factor <= 1 ? 1.0f : (float)sqrt(1 + log(factor) / log(ctx));
    return true;
}

bool rope_table_init(struct rope_table *table, const struct rope_config *c, uint32_t head_dim,
                     uint32_t ctx_len_max, bool interleaved, struct model_store *store,
                     struct err *err) {
    uint32_t n_dims = c->kind == ROPE_PROPORTIONAL ? head_dim : (uint32_t)(head_dim * c->partial);
    uint32_t n_pairs = n_dims / 2;
    n_dims = n_pairs * 2;
    float *freq[2];
    for (int i = 0; i < 2; i++) {
        freq[i] = model_store_host(store, max_size(n_pairs, 1) * sizeof(float), err);
        if (!freq[i])
            return false;
    }
    for (uint32_t j = 0; j < n_pairs; j++)
        freq[0][j] = plain_frequency(c->theta, j, n_dims);
    float scale = 1;
    switch (c->kind) {
    case ROPE_DEFAULT:
        break;
    case ROPE_DYNAMIC:
        // NTK scaling starts beyond the trained context only (whatever original_max_position_embeddings says); up to it
        // the frequencies are the plain ones. model_prepare() refuses to go further.
        break;
    case ROPE_LINEAR:
        for (uint32_t j = 0; j < n_pairs; j++)
            freq[0][j] = (float)((double)freq[0][j] / c->factor);
        break;
    case ROPE_LLAMA3:
        llama3(c, freq[0], n_pairs);
        break;
    case ROPE_YARN:
        yarn(c, freq[0], n_dims, ctx_len_max, &scale);
        break;
    case ROPE_LONGROPE:
        if (!longrope(c, freq[0], freq[1], n_pairs, ctx_len_max, &scale, err))
            return false;
        break;
    case ROPE_PROPORTIONAL: {
        // The first share of the pairs turns, with exponents over the whole head; the rest stands still.
        uint32_t n_turning = (uint32_t)(c->partial * head_dim / 2);
        for (uint32_t j = 0; j < n_pairs; j++)
            freq[0][j] = j < n_turning ? (float)((double)freq[0][j] / c->factor) : 0.0f;
        break;
    }
    }
    if (c->kind != ROPE_LONGROPE)
        memcpy(freq[1], freq[0], n_pairs * sizeof(float));
    *table = (struct rope_table){{freq[0], freq[1]}, {scale, scale}, n_dims, interleaved};
    return true;
}
