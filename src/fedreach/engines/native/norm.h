/* Group normalisation (Wu and He, 2018): each group of channels of an example gets mean 0 and variance 1. */

#pragma once
#include "layers.h"

typedef struct {
    float mean, scale; /* scale: 1 / sqrt(variance + l->amount) */
} Moments;

/* sums: room for as many numbers as there are channels. own: factors, and padded(channels) later what is added; or 0. */
static void forward_norm(const Layer *l, const float *own, Image x, Image y, Moments *moments, float *sums)
{
    int64_t c = l->channels, per = c / l->groups;
    float all = (float)(l->height * l->width * per);
    for (int pass = 0; pass < 2; pass++) { /* means, then variances */
        memset(sums, 0, sizeof *sums * c);
        for (int64_t i = 0; i < l->height; i++)
            for (int64_t j = 0; j < l->width; j++) {
                const float *in = x.at + i * x.row + j * c;
                if (!pass)
                    for (int64_t k = 0; k < c; k++) sums[k] += in[k];
                else
                    for (int64_t k = 0; k < c; k++) {
                        float apart = in[k] - moments[k / per].mean;
                        sums[k] = fused(apart, apart, sums[k]);
                    }
            }
        for (int64_t g = 0, k = 0; g < l->groups; g++) {
            float sum = 0;
            for (int64_t end = k + per; k < end; k++) sum += sums[k];
            if (pass) moments[g].scale = 1 / sqrtf(sum / all + (float)l->amount);
            else moments[g].mean = sum / all;
        }
    }
    for (int64_t i = 0; i < l->height; i++)
        for (int64_t j = 0; j < l->width; j++) {
            const float *in = x.at + i * x.row + j * c;
            float *out = y.at + i * y.row + j * c;
            for (int64_t k = 0; k < c; k++) {
                const Moments *of = moments + k / per;
                float z = (in[k] - of->mean) * of->scale;
                if (own) z = fused(z, own[k], own[padded(c) + k]);
                out[k] = l->relu && z < 0 ? 0 : z;
            }
        }
}

/* gradient: that of `own`, which is added to. sums: room for four times as many numbers as there are channels. */
static void backward_norm(
    const Layer *l, const float *own, Image x, Image y, Image dy, Image dx, const Moments *moments, float *gradient,
    float *sums)
{
    int64_t c = l->channels, per = c / l->groups;
    float all = (float)(l->height * l->width * per), *passed = sums, *along = sums + c; /* sums of dy, and of dy times z */
    memset(sums, 0, sizeof *sums * 2 * c);
    for (int64_t i = 0; i < l->height; i++) {
        float *g = dy.at + i * dy.row;
        if (l->relu) keep_where_positive(l->width * c, y.at + i * y.row, g);
        for (int64_t j = 0; j < l->width; j++, g += c) {
            const float *in = x.at + i * x.row + j * c;
            for (int64_t k = 0; k < c; k++) {
                const Moments *of = moments + k / per;
                passed[k] += g[k];
                along[k] = fused(g[k], (in[k] - of->mean) * of->scale, along[k]);
            }
        }
    }
    if (own)
        for (int64_t k = 0; k < c; k++) {
            gradient[k] += along[k];
            gradient[padded(c) + k] += passed[k];
        }
    if (!dx.at) return;
    float *mean_passed = sums + 2 * c, *mean_along = sums + 3 * c; /* over the group, times the factors */
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
    for (int64_t i = 0; i < l->height; i++)
        for (int64_t j = 0; j < l->width; j++) {
            const float *in = x.at + i * x.row + j * c, *g = dy.at + i * dy.row + j * c;
            float *to = dx.at + i * dx.row + j * c;
            for (int64_t k = 0; k < c; k++) {
                const Moments *of = moments + k / per;
                float z = (in[k] - of->mean) * of->scale;
                to[k] = of->scale * fused(-z, mean_along[k], fused(own ? own[k] : 1, g[k], -mean_passed[k]));
            }
        }
}
