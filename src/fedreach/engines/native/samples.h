/* Examples, brought to where the first layer looks for them. */

#pragma once
#include "model.h"

typedef struct {
    const void *x; /* rows of bytes, or where `wide` of float32, and tokens of int64 */
    int64_t wide;
    const float *factor, *offset; /* (inputs,) of x factor + offset, or 0 */
    const int64_t *labels;
} Samples;

/* Let m examples stand in rows of numbers. */
static void gather(const Samples *samples, int64_t m, const int64_t *sample, int64_t inputs, float *to)
{
    const float *factor = samples->factor, *offset = samples->offset;
    int64_t wide = padded(inputs);
    for (int64_t i = 0; i < m; i++, to += wide) {
        for (int64_t j = inputs; j < wide; j++) to[j] = 0;
        const float *numbers = (const float *)samples->x + sample[i] * inputs;
        const uint8_t *bytes = (const uint8_t *)samples->x + sample[i] * inputs;
        if (!samples->wide)
            for (int64_t j = 0; j < inputs; j++) to[j] = fused(bytes[j], factor[j], offset[j]);
        else if (factor)
            for (int64_t j = 0; j < inputs; j++) to[j] = fused(numbers[j], factor[j], offset[j]);
        else
            memcpy(to, numbers, sizeof *to * inputs);
    }
}

/* Number the different tokens of m examples, in the order of their first times. */
static void gather_tokens(const Model *model, const Samples *samples, int64_t m, const int64_t *sample)
{
    const Recurrence *r = &model->recurrence;
    int64_t times = model->layers->inputs;
    int32_t count = 0;
    for (int64_t t = 0; t < times; t++)
        for (int64_t i = 0; i < m; i++) {
            int64_t at = sample[i] * times + t;
            int32_t token = samples->wide ? (int32_t)((const int64_t *)samples->x)[at] : ((const uint8_t *)samples->x)[at];
            if (r->place[token] < 0) {
                r->place[token] = count;
                r->different[count++] = token;
            }
            r->tokens[t * m + i] = r->place[token];
        }
    for (int32_t k = 0; k < count; k++) r->place[r->different[k]] = -1;
    *r->count = count;
}

/* Let m examples stand where the first layer looks for them. */
static void gather_inputs(const Model *model, const Samples *samples, int64_t m, const int64_t *sample)
{
    const Layer *l = model->layers;
    if (l->kind == EMBEDDING) {
        gather_tokens(model, samples, m, sample);
        return;
    }
    if (!model->images) {
        gather(samples, m, sample, l->inputs, model->x[0]);
        return;
    }
    const float *factor = samples->factor, *offset = samples->offset;
    int64_t c = l->channels;
    for (int64_t i = 0; i < m; i++) {
        Image to = image_of(model, 0, model->x, i);
        const float *numbers = (const float *)samples->x + sample[i] * l->inputs;
        const uint8_t *bytes = (const uint8_t *)samples->x + sample[i] * l->inputs;
        for (int64_t k = 0, n = 0; k < c; k++) /* channels come first there */
            for (int64_t a = 0; a < l->height; a++, n += l->width) {
                float *row = to.at + a * to.row + k;
                if (!samples->wide)
                    for (int64_t b = 0; b < l->width; b++) row[b * c] = fused(bytes[n + b], factor[n + b], offset[n + b]);
                else if (factor)
                    for (int64_t b = 0; b < l->width; b++) row[b * c] = fused(numbers[n + b], factor[n + b], offset[n + b]);
                else
                    for (int64_t b = 0; b < l->width; b++) row[b * c] = numbers[n + b];
            }
    }
}
