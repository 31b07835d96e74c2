/* A chain of dense layers: where its numbers stand, its outputs, its loss and its gradients.

   Rows of weights, outputs and errors are filled up with zeros to whole vectors. Weights stand transposed, (inputs x
   outputs), with the bias as one more row: so all products but one read and write them as they lie. */

#pragma once
#include "products.h"
#include <math.h>

enum { MAX_LAYERS = 32 };

typedef struct {
    int64_t inputs, outputs, weight, bias, relu; /* where W (outputs x inputs) and b stand in the flat vector, or -1 */
} Layer;

typedef struct {
    int64_t count, classes, numbers; /* of all layers, as they stand here */
    const Layer *layers;
    int64_t begin[MAX_LAYERS + 1];
    float *x[MAX_LAYERS + 1], *dx[MAX_LAYERS + 1]; /* x[0] the inputs, x[count] the logits; and their gradients */
    float *across[2];                                /* transposes of the latter */
} Model;

static int64_t padded(int64_t numbers) { return (numbers + LANES - 1) / LANES * LANES; }

typedef struct {
    float *begin; /* 0 where one only counts */
    int64_t used;
} Memory;

static float *take(Memory *memory, int64_t numbers)
{
    float *taken = memory->begin ? memory->begin + memory->used : 0;
    memory->used += (numbers + 15) / 16 * 16; /* whole lines of the cache */
    return taken;
}

static Model laid_out(int64_t count, const Layer *layers, int64_t batch, Memory *memory)
{
    Model model = {.count = count, .classes = layers[count - 1].outputs, .layers = layers};
    int64_t widest = 0;
    model.x[0] = take(memory, batch * padded(layers[0].inputs));
    for (int64_t l = 0; l < count; l++) {
        int64_t wide = padded(layers[l].outputs);
        model.begin[l + 1] = model.begin[l] + (layers[l].inputs + 1) * wide;
        model.x[l + 1] = take(memory, batch * wide);
        model.dx[l + 1] = take(memory, batch * wide);
        if (wide > widest) widest = wide;
        if (model.dx[l + 1]) memset(model.dx[l + 1], 0, sizeof(float) * batch * wide); /* what fills up stays 0 */
    }
    model.numbers = model.begin[count];
    for (int i = 0; i < 2; i++) model.across[i] = take(memory, widest * padded(batch));
    return model;
}

/* Bring a flat vector into the order of this file. */
static void bring(const Model *model, const float *flat, float *to)
{
    for (int64_t l = 0; l < model->count; l++) {
        const Layer *layer = model->layers + l;
        int64_t inputs = layer->inputs, outputs = layer->outputs, wide = padded(outputs);
        float *weights = to + model->begin[l], *bias = weights + inputs * wide;
        transposed(outputs, inputs, flat + layer->weight, 0, inputs, weights, wide);
        if (layer->bias >= 0) memcpy(bias, flat + layer->bias, sizeof *bias * outputs);
        else memset(bias, 0, sizeof *bias * outputs);
        for (int64_t i = 0; i <= inputs; i++)
            for (int64_t j = outputs; j < wide; j++) weights[i * wide + j] = 0;
    }
}

/* Write how far the layers from `first` on have moved into a flat vector; return whether all of it is finite. */
static int write_move(const Model *model, int64_t first, const float *weights, const float *start, float *flat)
{
    int finite = 1;
    for (int64_t l = first; l < model->count; l++) {
        const Layer *layer = model->layers + l;
        int64_t inputs = layer->inputs, outputs = layer->outputs, wide = padded(outputs), begin = model->begin[l];
        const float *own = weights + begin, *before = start + begin;
        transposed(inputs, outputs, own, before, wide, flat + layer->weight, inputs);
        finite &= all_finite(inputs * outputs, flat + layer->weight);
        if (layer->bias < 0) continue;
        for (int64_t j = 0; j < outputs; j++)
            flat[layer->bias + j] = own[inputs * wide + j] - before[inputs * wide + j];
        finite &= all_finite(outputs, flat + layer->bias);
    }
    return finite;
}

static void keep_positive(int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

static void keep_where_positive(int64_t n, const float *y, float *dy)
{
    for (int64_t i = 0; i < n; i++) dy[i] = y[i] <= 0 ? 0 : dy[i];
}

/* Compute the outputs of the layers from `first` on, for m examples that stand in x[first]. */
static void forward(const Model *model, int64_t first, const float *weights, int64_t m)
{
    int64_t before = padded(model->layers[first].inputs);
    for (int64_t l = first; l < model->count; l++) {
        const Layer *layer = model->layers + l;
        int64_t wide = padded(layer->outputs);
        const float *own = weights + model->begin[l], *bias = own + layer->inputs * wide;
        float *y = model->x[l + 1];
        for (int64_t i = 0; i < m; i++) memcpy(y + i * wide, bias, sizeof *y * wide);
        product(m, wide, layer->inputs, model->x[l], before, 1, own, wide, y, wide, 1.0f, 1);
        if (layer->relu) keep_positive(m * wide, y);
        before = wide;
    }
}

/* e^x of numbers that are not above 0, to a few units in the last place. */
static inline vector exponential(vector x)
{
    integers in_range = x > -87.0f; /* below that, as good as 0 */
    x = (vector)(((integers)x & in_range) | ((integers)((vector){0} - 87.0f) & ~in_range));
    vector whole = x * 1.44269504088896341f + 12582912.0f; /* 1.5 x 2^23: its last bits hold the rounded number */
    integers exponent = (integers)whole << 23;
    whole -= 12582912.0f;
    x = x - whole * 0.693359375f + whole * 2.12194440e-4f; /* less a multiple of ln 2, in two parts */
    vector p = 1.9875691500e-4f * x + 1.3981999507e-3f;
    p = p * x + 8.3334519073e-3f;
    p = p * x + 4.1665795894e-2f;
    p = p * x + 1.6666665459e-1f;
    p = p * x + 5.0000001201e-1f;
    return (vector)((integers)(p * x * x + x + 1.0f) + exponent);
}

/* Write e^(z - top) for one row of logits, zeros behind it; return log(sum of e^z) - z[label], the loss. */
static float loss_of(int64_t classes, const float *z, int64_t label, float *powers, float *sum)
{
    int64_t wide = padded(classes);
    float top = z[0], sound = 0;
    for (int64_t j = 0; j < classes; j++) {
        top = z[j] > top ? z[j] : top;
        sound += z[j] * 0; /* not a number if one logit is none, or infinite */
    }
    for (int64_t j = 0; j < wide; j += LANES) *(vector *)(powers + j) = exponential(*(const vector *)(z + j) - top);
    for (int64_t j = classes; j < wide; j++) powers[j] = 0;
    *sum = sound;
    for (int64_t j = 0; j < classes; j++) *sum += powers[j];
    return logf(*sum) - (z[label] - top);
}

/* Write the gradient of the mean cross-entropy by the logits; return the sum of the losses. */
static double errors(const Model *model, int64_t m, const int64_t *sample, const int64_t *labels)
{
    int64_t classes = model->classes, wide = padded(classes);
    double loss = 0;
    for (int64_t i = 0; i < m; i++) {
        float *z = model->x[model->count] + i * wide, *g = model->dx[model->count] + i * wide;
        int64_t label = labels[sample[i]];
        float sum;
        loss += loss_of(classes, z, label, g, &sum);
        float share = 1 / (sum * m);
        for (int64_t j = 0; j < classes; j++) g[j] *= share;
        g[label] -= 1.0f / m;
    }
    return loss;
}

/* Go back to layer `first`: W <- W + scale dW where `add`, else the gradients are written to `to`. */
static void backward(
    const Model *model, int64_t first, const float *weights, float *to, int64_t m, float scale, int add)
{
    for (int64_t l = model->count - 1; l >= first; l--) {
        const Layer *layer = model->layers + l;
        int64_t inputs = layer->inputs, wide = padded(layer->outputs), before = padded(inputs);
        float *dy = model->dx[l + 1], *own = to + model->begin[l], *bias = own + inputs * wide;
        const float *y = model->x[l + 1];
        if (layer->relu) keep_where_positive(m * wide, y, dy);
        if (l) { /* before W moves: dX' = W' dY', as it is W' that stands here */
            int64_t examples = padded(m);
            float *dy_across = model->across[0], *dx_across = model->across[1];
            if (examples > m) memset(dy_across, 0, sizeof *dy * layer->outputs * examples);
            transposed(m, layer->outputs, dy, 0, wide, dy_across, examples);
            product(inputs, examples, layer->outputs, weights + model->begin[l], wide, 1, dy_across, examples, dx_across,
                    examples, 1.0f, 0);
            transposed(inputs, m, dx_across, 0, examples, model->dx[l], before);
        }
        product(inputs, wide, m, model->x[l], 1, before, dy, wide, own, wide, scale, add);
        if (!add) memset(bias, 0, sizeof *bias * wide);
        if (layer->bias < 0) continue; /* its row stays 0 */
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < wide; j++) bias[j] += scale * dy[i * wide + j];
    }
}

typedef struct {
    const void *x; /* rows of bytes, or of float32 where `wide` */
    int64_t wide;
    const float *factor, *offset; /* (inputs,) of x factor + offset, or 0 */
    const int64_t *labels;
} Samples;

static void gather(const Samples *samples, int64_t m, const int64_t *sample, int64_t inputs, float *to)
{
    const float *factor = samples->factor, *offset = samples->offset;
    int64_t wide = padded(inputs);
    for (int64_t i = 0; i < m; i++, to += wide) {
        for (int64_t j = inputs; j < wide; j++) to[j] = 0;
        const float *numbers = (const float *)samples->x + sample[i] * inputs;
        const uint8_t *bytes = (const uint8_t *)samples->x + sample[i] * inputs;
        if (!samples->wide)
            for (int64_t j = 0; j < inputs; j++) to[j] = bytes[j] * factor[j] + offset[j];
        else if (factor)
            for (int64_t j = 0; j < inputs; j++) to[j] = numbers[j] * factor[j] + offset[j];
        else
            memcpy(to, numbers, sizeof *to * inputs);
    }
}
