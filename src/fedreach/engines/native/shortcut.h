/* Shortcuts (He et al., 2016): what an earlier layer was given is added, every so many places, in some of the channels. */

#pragma once
#include "layers.h"

/* y = x, and the `channels` of the source where they meet it. */
static void forward_addition(const Layer *l, Image x, Image source, int64_t channels, Image y)
{
    int64_t c = l->channels, width = l->width, right = l->source_right * channels, before = l->before, relu = l->relu;
    for (int64_t i = 0; i < l->height; i++) {
        const float *in = x.at + i * x.row, *from = source.at + i * l->source_down * source.row;
        float *out = y.at + i * y.row;
        memcpy(out, in, sizeof *out * width * c);
        for (int64_t j = 0; j < width; j++)
            for (int64_t k = 0; k < channels; k++) out[j * c + before + k] += from[j * right + k];
        if (relu)
            for (int64_t j = 0; j < width * c; j++) out[j] = out[j] < 0 ? 0 : out[j];
    }
}

/* dX = dY, of which nothing passes where a ReLU did not. `dy` is written over. */
static void backward_addition(const Layer *l, Image y, Image dy, Image dx)
{
    int64_t row = l->width * l->channels;
    for (int64_t i = 0; i < l->height; i++) {
        if (l->relu) keep_where_positive(row, y.at + i * y.row, dy.at + i * dy.row);
        memcpy(dx.at + i * dx.row, dy.at + i * dy.row, sizeof *dx.at * row);
    }
}

/* dX of the source += what passed there. */
static void add_to_source(const Layer *l, Image dy, Image source, int64_t channels)
{
    int64_t c = l->channels, right = l->source_right * channels;
    for (int64_t i = 0; i < l->height; i++) {
        const float *g = dy.at + i * dy.row + l->before;
        float *to = source.at + i * l->source_down * source.row;
        for (int64_t j = 0; j < l->width; j++)
            for (int64_t k = 0; k < channels; k++) to[j * right + k] += g[j * c + k];
    }
}
