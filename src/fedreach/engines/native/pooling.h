/* Maxima and means of windows, of any size; what lies outside the image takes no part in a maximum and is 0 in a mean. */

#pragma once
#include "convolution.h"

enum { LARGEST_WINDOW = 256 }; /* places: one byte says which */

/* The part of a window that lies within the image, along one side. */
typedef struct {
    int64_t begin, end; /* places of the image */
    int64_t first;      /* place of the window that `begin` is */
} Part;

static Part part_of(int64_t window, int64_t apart, int64_t border, int64_t places, int64_t size)
{
    int64_t begin = window * apart - border, end = begin + places;
    return (Part){begin < 0 ? 0 : begin, end < size ? end : size, begin < 0 ? -begin : 0};
}

static void forward_windows(const Layer *l, Image x, Image y, uint8_t *where)
{
    int64_t c = l->channels;
    float share = 1.0f / (float)(l->rows * l->columns);
    for (int64_t i = 0; i < made_high(l); i++)
        for (int64_t j = 0; j < made_wide(l); j++, where += c) {
            Part down = part_of(i, l->down, l->above, l->rows, l->height);
            Part right = part_of(j, l->right, l->left, l->columns, l->width);
            float *out = y.at + i * y.row + j * c;
            for (int64_t a = down.begin; a < down.end; a++)
                for (int64_t b = right.begin; b < right.end; b++) {
                    const float *in = x.at + a * x.row + b * c;
                    int begins = a == down.begin && b == right.begin;
                    uint8_t place = (uint8_t)((down.first + a - down.begin) * l->columns + right.first + b - right.begin);
                    if (l->kind == MEAN)
                        for (int64_t k = 0; k < c; k++) out[k] = begins ? in[k] : out[k] + in[k];
                    else
                        for (int64_t k = 0; k < c; k++) {
                            int above = begins || in[k] > out[k] || in[k] != in[k];
                            out[k] = above ? in[k] : out[k];
                            where[k] = above ? place : where[k];
                        }
                }
            if (l->kind == MEAN)
                for (int64_t k = 0; k < c; k++) out[k] *= share;
            if (l->relu)
                for (int64_t k = 0; k < c; k++) out[k] = out[k] < 0 ? 0 : out[k];
        }
}

static void backward_windows(const Layer *l, Image y, const uint8_t *where, Image dy, Image dx)
{
    int64_t c = l->channels;
    float share = 1.0f / (float)(l->rows * l->columns);
    for (int64_t i = 0; i < made_high(l); i++)
        for (int64_t j = 0; j < made_wide(l); j++, where += c) {
            const float *out = y.at + i * y.row + j * c;
            float *g = dy.at + i * dy.row + j * c;
            if (l->relu)
                for (int64_t k = 0; k < c; k++) g[k] = out[k] <= 0 ? 0 : g[k];
            if (l->kind == MAXIMUM) {
                for (int64_t k = 0; k < c; k++) {
                    int64_t a = i * l->down - l->above + where[k] / l->columns;
                    int64_t b = j * l->right - l->left + where[k] % l->columns;
                    dx.at[a * dx.row + b * c + k] += g[k];
                }
                continue;
            }
            Part down = part_of(i, l->down, l->above, l->rows, l->height);
            Part right = part_of(j, l->right, l->left, l->columns, l->width);
            for (int64_t a = down.begin; a < down.end; a++)
                for (int64_t b = right.begin; b < right.end; b++)
                    for (int64_t k = 0; k < c; k++) dx.at[a * dx.row + b * c + k] = fused(share, g[k], dx.at[a * dx.row + b * c + k]);
        }
}
