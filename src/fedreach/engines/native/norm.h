/* Group normalisation (Wu and He, 2018): each group of channels of an example gets mean 0 and variance 1. */

#pragma once
#include "layers.h"

typedef struct {
    float mean, scale; /* scale: 1 / sqrt(variance + l->amount) */
} Moments;

enum { ROWS_OF_SUMS = 6 }; /* of as many numbers as there are channels, filled up, that `backward_norm` needs */

/* Write each channel's mean and scale, those of its group. */
static void spread_moments(const Layer *l, const Moments *moments, float *mean, float *scale)
{
    int64_t per = l->channels / l->groups;
    for (int64_t k = 0; k < l->channels; k++) {
        mean[k] = moments[k / per].mean;
        scale[k] = moments[k / per].scale;
    }
}

/* Write the first numbers of a vector, and nothing behind them. */
static inline void store(int64_t count, float *to, vector numbers)
{
    if (count >= LANES) *(vector *)to = numbers;
    else memcpy(to, &numbers, sizeof *to * count);
}

static inline vector at(const float *from) { return *(const vector *)from; }

/* sums: room for `ROWS_OF_SUMS`. own: factors, and padded(channels) later what is added; or 0. Vectors are of channels:
   what they read too far is never used. */
static void forward_norm(const Layer *l, const float *own, Image x, Image y, Moments *moments, float *sums)
{
    int64_t c = l->channels, wide = padded(c), per = c / l->groups, high = l->height, width = l->width, relu = l->relu;
    float all = (float)(high * width * per), *mean = sums + wide, *scale = sums + 2 * wide;
    for (int pass = 0; pass < 2; pass++) { /* means, then variances */
        for (int64_t k = 0; k < c; k += LANES) {
            vector sum = {0}, middle = at(mean + k);
            for (int64_t i = 0; i < high; i++) {
                const float *in = x.at + i * x.row + k;
                for (int64_t j = 0; j < width; j++, in += c)
                    if (!pass) sum += at(in);
                    else {
                        vector apart = at(in) - middle;
                        sum = fused_each(apart, apart, sum);
                    }
            }
            *(vector *)(sums + k) = sum;
        }
        for (int64_t g = 0, k = 0; g < l->groups; g++) {
            float sum = 0;
            for (int64_t end = k + per; k < end; k++) sum += sums[k];
            if (pass) moments[g].scale = 1 / sqrtf(sum / all + (float)l->amount);
            else moments[g].mean = sum / all;
        }
        spread_moments(l, moments, mean, scale);
    }
    for (int64_t k = 0; k < c; k += LANES) {
        vector middle = at(mean + k), factor = at(scale + k), own_factor = {0}, added = {0};
        if (own) own_factor = at(own + k), added = at(own + wide + k);
        for (int64_t i = 0; i < high; i++) {
            const float *in = x.at + i * x.row + k;
            float *out = y.at + i * y.row + k;
            for (int64_t j = 0; j < width; j++, in += c, out += c) {
                vector z = (at(in) - middle) * factor;
                if (own) z = fused_each(z, own_factor, added);
                if (relu) z = (vector)((integers)z & ~(z < 0));
                store(c - k, out, z);
            }
        }
    }
}

/* gradient: that of `own`, which is added to. `dy` is written over. */
static void backward_norm(
    const Layer *l, const float *own, Image x, Image y, Image dy, Image dx, const Moments *moments, float *gradient,
    float *sums)
{
    int64_t c = l->channels, wide = padded(c), per = c / l->groups, high = l->height, width = l->width, relu = l->relu;
    float all = (float)(high * width * per), *passed = sums, *along = sums + wide; /* sums of dy, and of dy times z */
    float *mean_passed = sums + 2 * wide, *mean_along = sums + 3 * wide; /* over the group, times the factors */
    float *mean = sums + 4 * wide, *scale = sums + 5 * wide;
    spread_moments(l, moments, mean, scale);
    if (relu)
        for (int64_t i = 0; i < high; i++) keep_where_positive(width * c, y.at + i * y.row, dy.at + i * dy.row);
    for (int64_t k = 0; k < c; k += LANES) {
        vector middle = at(mean + k), factor = at(scale + k), sum = {0}, product = {0};
        for (int64_t i = 0; i < high; i++) {
            const float *in = x.at + i * x.row + k, *g = dy.at + i * dy.row + k;
            for (int64_t j = 0; j < width; j++, in += c, g += c) {
                sum += at(g);
                product = fused_each(at(g), (at(in) - middle) * factor, product);
            }
        }
        *(vector *)(passed + k) = sum;
        *(vector *)(along + k) = product;
    }
    if (own)
        for (int64_t k = 0; k < c; k++) {
            gradient[k] += along[k];
            gradient[wide + k] += passed[k];
        }
    if (!dx.at) return;
    for (int64_t g = 0, k = 0; g < l->groups; g++) {
        float a = 0, b = 0;
        for (int64_t n = k; n < k + per; n++) {
            a = fused(own ? own[n] : 1, passed[n], a);
            b = fused(own ? own[n] : 1, along[n], b);
        }
        for (int64_t end = k + per; k < end; k++) {
            mean_passed[k] = a / all;
            mean_along[k] = b / all;
        }
    }
    for (int64_t k = 0; k < c; k += LANES) {
        vector middle = at(mean + k), factor = at(scale + k), less = -at(mean_passed + k), slope = at(mean_along + k);
        vector own_factor = (vector){0} + 1.0f;
        if (own) own_factor = at(own + k);
        for (int64_t i = 0; i < high; i++) {
            const float *in = x.at + i * x.row + k, *g = dy.at + i * dy.row + k;
            float *to = dx.at + i * dx.row + k;
            for (int64_t j = 0; j < width; j++, in += c, g += c, to += c) {
                vector z = (at(in) - middle) * factor;
                store(c - k, to, factor * fused_each(-z, slope, fused_each(own_factor, at(g), less)));
            }
        }
    }
}
