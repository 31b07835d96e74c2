/* A chain of layers: where its numbers stand, its outputs, its loss and its gradients.

   Layers of images come first, one example after the other, or recurrent ones; then dense layers, all examples of a
   batch at once. Rows of
   weights, outputs and errors are filled up with zeros to whole vectors. Weights of dense layers stand transposed,
   (inputs x outputs), with the bias as one more row: so all products but one read and write them as they lie. */

#pragma once
#include "dropout.h"
#include "norm.h"
#include "pooling.h"
#include "recurrent.h"

typedef struct {
    int64_t count, images, classes, numbers; /* layers, those of images; numbers of all, as they stand here */
    const Layer *layers;
    int64_t begin[MAX_LAYERS + 1];
    float *x[MAX_LAYERS + 1], *dx[MAX_LAYERS + 1]; /* x[0] the inputs, x[count] the logits; and their gradients */
    int64_t example[MAX_LAYERS], row[MAX_LAYERS], inside[MAX_LAYERS]; /* of images in x: numbers of an example, of a
                                                     row with its borders, and before the first place that is none */
    uint8_t *where[MAX_LAYERS];                      /* which of its places each maximum is */
    Moments *moments[MAX_LAYERS];                    /* of groups */
    float *sums;
    Space space;
    Recurrence recurrence; /* where the first layer sees tokens: in place of images */
    float *across[2];                                /* transposes of gradients of dense layers */
} Model;

/* Lay out the layers of images; the dense layers' inputs are the rows of x[images]. */
static void lay_out_images(Model *model, int64_t batch, Memory *memory)
{
    int64_t sums = 0, list = 0, filters = 0, made = 0, products = 0;
    for (int64_t i = 0; i < model->images; i++) {
        const Layer *l = model->layers + i;
        int64_t border = l->kind == CONVOLUTION; /* pools look at what lies within */
        int64_t wide = l->width + 2 * border * l->left, high = l->height + 2 * border * l->above;
        model->row[i] = wide * l->channels;
        model->example[i] = high * model->row[i];
        model->inside[i] = border * (l->above * model->row[i] + l->left * l->channels);
        int64_t room = batch * model->example[i] + LANES; /* vectors may reach too far */
        model->x[i] = take(memory, room);
        if (model->x[i]) memset(model->x[i], 0, sizeof(float) * room);
        if (i) model->dx[i] = take(memory, model->example[i] + LANES);
        model->begin[i + 1] = model->begin[i] + numbers_of(l);
        int64_t places = out_high(l) * out_wide(l);
        if (l->pooled || l->kind == MAXIMUM) model->where[i] = (uint8_t *)take(memory, (batch * l->outputs + LANES + 3) / 4);
        if (l->kind == NORM) {
            model->moments[i] = (Moments *)take(memory, 2 * batch * l->groups);
            if (4 * l->channels > sums) sums = 4 * l->channels;
        }
        if (l->kind != CONVOLUTION) continue;
        int64_t room_across = l->rows * reach(l) * across_wide(l);
        model->space.across[i] = take(memory, room_across);
        if (model->space.across[i]) memset(model->space.across[i], 0, sizeof(float) * room_across);
        if (l->filters > filters) filters = l->filters;
        if (l->pooled && l->filters * places > list) list = l->filters * places;
        if (!l->pooled && out_wide(l) * padded(l->filters) > made) made = out_wide(l) * padded(l->filters);
        if (!l->pooled && out_wide(l) * padded(reach(l)) > products) products = out_wide(l) * padded(reach(l));
    }
    model->sums = take(memory, sums);
    model->space.gradient = take(memory, model->begin[model->images]);
    model->space.at = (int32_t *)take(memory, list + 1);
    model->space.g = take(memory, list + 1);
    model->space.count = (int64_t *)take(memory, 2 * filters);
    model->space.made = take(memory, made);
    model->space.products = take(memory, products);
}

static Model laid_out(int64_t count, const Layer *layers, int64_t batch, Memory *memory)
{
    Model model = {.count = count, .classes = layers[count - 1].outputs, .layers = layers};
    while (layers[model.images].kind != DENSE) model.images++;
    int64_t widest = model.images ? padded(layers[model.images].inputs) : 0;
    if (layers->kind == EMBEDDING) {
        lay_out_recurrence(&model.recurrence, model.images, layers, batch, memory);
        for (int64_t l = 0; l < model.images; l++) model.begin[l + 1] = model.begin[l] + numbers_of(layers + l);
    } else
        lay_out_images(&model, batch, memory);
    model.x[model.images] = take(memory, batch * padded(layers[model.images].inputs) + LANES);
    if (model.images) model.dx[model.images] = take(memory, batch * padded(layers[model.images].inputs));
    for (int64_t l = model.images; l < count; l++) {
        int64_t wide = padded(layers[l].outputs);
        model.begin[l + 1] = model.begin[l] + numbers_of(layers + l);
        model.x[l + 1] = take(memory, batch * wide);
        model.dx[l + 1] = take(memory, batch * wide);
        if (wide > widest) widest = wide;
        if (model.dx[l + 1]) memset(model.dx[l + 1], 0, sizeof(float) * batch * wide); /* what fills up stays 0 */
    }
    model.numbers = model.begin[count];
    for (int i = 0; i < 2; i++) model.across[i] = take(memory, widest * padded(batch));
    return model;
}

/* Return where the inputs of layer l stand that belong to an example. */
static Image image_of(const Model *model, int64_t l, float *const *x, int64_t example)
{
    if (l < model->images) return (Image){x[l] + example * model->example[l] + model->inside[l], model->row[l]};
    const Layer *last = model->layers + l - 1;
    return (Image){x[l] + example * padded(last->outputs), out_wide(last) * last->filters};
}

/* How the numbers of a layer of images lie in the flat vector: rows that are filled up here, then as many biases. */
typedef struct {
    int64_t rows, numbers, biases;
} Rows;

static Rows rows_of(const Layer *l)
{
    if (l->kind == CONVOLUTION) return (Rows){l->filters * l->rows, reach(l), l->filters};
    return l->kind == NORM && l->weight >= 0 ? (Rows){1, l->channels, l->channels} : (Rows){0, 0, 0};
}

/* Bring the numbers of a layer of images into the order of this file. */
static void bring_filters(const Layer *l, const float *flat, float *to)
{
    Rows r = rows_of(l);
    int64_t piece = padded(r.numbers);
    memset(to, 0, sizeof *to * numbers_of(l));
    for (int64_t i = 0; i < r.rows; i++) memcpy(to + i * piece, flat + l->weight + i * r.numbers, sizeof *to * r.numbers);
    if (l->bias >= 0) memcpy(to + r.rows * piece, flat + l->bias, sizeof *to * r.biases);
}

/* Bring a flat vector into the order of this file. In it filters have their channels last, as here, but what a
   dense layer sees of an image has them first. */
static void bring(const Model *model, const float *flat, float *to)
{
    for (int64_t l = 0; l < model->images; l++)
        if (model->layers->kind == EMBEDDING) bring_recurrent(model->layers + l, flat, to + model->begin[l]);
        else bring_filters(model->layers + l, flat, to + model->begin[l]);
    for (int64_t l = model->images; l < model->count; l++) {
        const Layer *layer = model->layers + l;
        int64_t inputs = layer->inputs, outputs = layer->outputs, wide = padded(outputs), c = layer->channels;
        float *weights = to + model->begin[l], *bias = weights + inputs * wide;
        for (int64_t k = 0; k < c; k++)
            transposed(outputs, inputs / c, flat + layer->weight + k * (inputs / c), 0, inputs, weights + k * wide, c * wide);
        if (layer->bias >= 0) memcpy(bias, flat + layer->bias, sizeof *bias * outputs);
        else memset(bias, 0, sizeof *bias * outputs);
        for (int64_t i = 0; i <= inputs; i++)
            for (int64_t j = outputs; j < wide; j++) weights[i * wide + j] = 0;
    }
}

static int write_filters(const Layer *l, const float *own, const float *before, float *flat)
{
    Rows r = rows_of(l);
    int64_t piece = padded(r.numbers), bias = r.rows * piece;
    for (int64_t i = 0; i < r.rows; i++)
        for (int64_t j = 0; j < r.numbers; j++)
            flat[l->weight + i * r.numbers + j] = own[i * piece + j] - before[i * piece + j];
    int finite = r.rows ? all_finite(r.rows * r.numbers, flat + l->weight) : 1;
    if (l->bias < 0) return finite;
    for (int64_t j = 0; j < r.biases; j++) flat[l->bias + j] = own[bias + j] - before[bias + j];
    return finite & all_finite(r.biases, flat + l->bias);
}

/* Write how far the layers from `first` on have moved into a flat vector; return whether all of it is finite. */
static int write_move(const Model *model, int64_t first, const float *weights, const float *start, float *flat)
{
    int finite = 1;
    for (int64_t l = first; l < model->images; l++)
        finite &= (model->layers->kind == EMBEDDING ? write_recurrent : write_filters)(
            model->layers + l, weights + model->begin[l], start + model->begin[l], flat);
    for (int64_t l = first > model->images ? first : model->images; l < model->count; l++) {
        const Layer *layer = model->layers + l;
        int64_t inputs = layer->inputs, outputs = layer->outputs, wide = padded(outputs), begin = model->begin[l];
        int64_t c = layer->channels, places = inputs / c;
        const float *own = weights + begin, *before = start + begin;
        for (int64_t k = 0; k < c; k++)
            transposed(places, outputs, own + k * wide, before + k * wide, c * wide, flat + layer->weight + k * places, inputs);
        finite &= all_finite(inputs * outputs, flat + layer->weight);
        if (layer->bias < 0) continue;
        for (int64_t j = 0; j < outputs; j++)
            flat[layer->bias + j] = own[inputs * wide + j] - before[inputs * wide + j];
        finite &= all_finite(outputs, flat + layer->bias);
    }
    return finite;
}

static void copy_image(const Layer *l, Image from, Image to)
{
    int64_t row = l->width * l->channels;
    for (int64_t i = 0; i < l->height; i++) memcpy(to.at + i * to.row, from.at + i * from.row, sizeof *to.at * row);
}

static void drop_of_image(const Layer *l, const Draws *draws, int64_t layer, int64_t example, Image image)
{
    int64_t row = l->width * l->channels;
    for (int64_t i = 0; i < l->height; i++)
        drop(l, draws, layer + MAX_LAYERS * (i + 1), example, row, image.at + i * image.row);
}

/* Compute the outputs of the layers of images, for m examples that stand in x[0]. */
static void forward_images(const Model *model, const float *weights, int64_t m, const Draws *draws)
{
    for (int64_t l = 0; l < model->images; l++)
        if (model->layers[l].kind == CONVOLUTION)
            spread(model->layers + l, weights + model->begin[l], model->space.across[l]);
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < model->images; l++) {
            const Layer *layer = model->layers + l;
            const float *own = weights + model->begin[l];
            Image x = image_of(model, l, model->x, i), y = image_of(model, l + 1, model->x, i);
            Image whole = {x.at - model->inside[l], x.row}; /* filters see the border, too */
            uint8_t *where = model->where[l] ? model->where[l] + i * layer->outputs : 0;
            switch (layer->kind) {
            case CONVOLUTION:
                if (layer->pooled) forward_pooled(layer, own, model->space.across[l], whole, y, where);
                else forward_plain(layer, own, model->space.across[l], whole, y, &model->space);
                break;
            case NORM:
                forward_norm(layer, layer->weight < 0 ? 0 : own, x, y, model->moments[l] + i * layer->groups, model->sums);
                break;
            case DROPOUT:
                copy_image(layer, x, y);
                if (draws) drop_of_image(layer, draws, l, i, y);
                break;
            default: forward_windows(layer, x, y, where);
            }
        }
}

/* Go back through the layers of images: W <- W + scale dW where `add`, else the gradients are written to `to`. */
static void backward_images(
    const Model *model, const float *weights, float *to, int64_t m, float scale, int add, const Draws *draws)
{
    /* Where weights move at once, their gradients are kept apart until the last example has met the old ones. */
    float *gradients = add ? model->space.gradient : to;
    memset(gradients, 0, sizeof *to * model->begin[model->images]);
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = model->images - 1; l >= 0; l--) {
            const Layer *layer = model->layers + l;
            const float *own = weights + model->begin[l];
            Image x = image_of(model, l, model->x, i), y = image_of(model, l + 1, model->x, i);
            Image dy = image_of(model, l + 1, model->dx, l + 1 < model->images ? 0 : i), dx = {0}, inside = {0};
            Image whole = {x.at - model->inside[l], x.row};
            if (l) {
                dx = (Image){model->dx[l], model->row[l]};
                inside = (Image){dx.at + model->inside[l], dx.row};
                memset(dx.at, 0, sizeof *dx.at * model->example[l]);
            }
            const uint8_t *where = model->where[l] ? model->where[l] + i * layer->outputs : 0;
            float *gradient = gradients + model->begin[l];
            switch (layer->kind) {
            case CONVOLUTION:
                if (layer->pooled) backward_pooled(layer, own, whole, y, where, dy, dx, gradient, &model->space);
                else backward_plain(layer, own, whole, y, dy, dx, gradient, &model->space);
                break;
            case NORM:
                backward_norm(layer, layer->weight < 0 ? 0 : own, x, y, dy, inside, model->moments[l] + i * layer->groups,
                    gradient, model->sums);
                break;
            case DROPOUT:
                if (!l) break;
                copy_image(layer, dy, inside);
                if (draws) drop_of_image(layer, draws, l, i, inside);
                break;
            default:
                if (l) backward_windows(layer, y, where, dy, inside);
            }
        }
    for (int64_t l = 0; l < model->images; l++) {
        const Layer *layer = model->layers + l;
        if (layer->kind != CONVOLUTION) continue;
        int64_t piece = padded(reach(layer)), rows = layer->filters * layer->rows;
        float *gradient = gradients + model->begin[l], *bias = gradient + rows * piece;
        for (int64_t row = 0; row < rows; row++) /* vectors have reached too far */
            for (int64_t t = reach(layer); t < piece; t++) gradient[row * piece + t] = 0;
        if (layer->bias < 0) memset(bias, 0, sizeof *bias * layer->filters);
    }
    if (!add) return;
    for (int64_t n = 0; n < model->begin[model->images]; n++) to[n] = fused(scale, gradients[n], to[n]);
}

static void keep_positive(int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

static void drop_rows(const Layer *l, const Draws *draws, int64_t layer, int64_t m, float *rows)
{
    for (int64_t i = 0; i < m; i++) drop(l, draws, layer, i, l->outputs, rows + i * padded(l->outputs));
}

/* Compute the outputs of the layers from `first` on, for m examples that stand in x[first]; where `draws` is given,
   some are dropped. */
static void forward(const Model *model, int64_t first, const float *weights, int64_t m, const Draws *draws)
{
    if (first < model->images) {
        first = model->images;
        const Layer *last = model->layers + first - 1;
        if (model->layers->kind == EMBEDDING) {
            forward_recurrence(&model->recurrence, first, model->layers, weights, m, model->x[first]);
            if (draws && last->amount > 0) drop_rows(last, draws, first - 1, m, model->x[first]);
        } else
            forward_images(model, weights, m, draws);
    }
    int64_t before = padded(model->layers[first].inputs);
    for (int64_t l = first; l < model->count; l++) {
        const Layer *layer = model->layers + l;
        int64_t wide = padded(layer->outputs);
        const float *own = weights + model->begin[l], *bias = own + layer->inputs * wide;
        float *y = model->x[l + 1];
        for (int64_t i = 0; i < m; i++) memcpy(y + i * wide, bias, sizeof *y * wide);
        product(m, wide, layer->inputs, model->x[l], before, 1, own, wide, y, wide, 1.0f, 1);
        if (layer->relu) keep_positive(m * wide, y);
        if (draws && layer->amount > 0) drop_rows(layer, draws, l, m, y);
        before = wide;
    }
}

/* e^x of numbers that are not above 0, to a few units in the last place. */
static inline vector exponential(vector x)
{
    const vector none = {0};
    integers in_range = x > -87.0f; /* below that, as good as 0 */
    x = (vector)(((integers)x & in_range) | ((integers)(none - 87.0f) & ~in_range));
    vector whole = fused_all(1.44269504088896341f, x, none + 12582912.0f); /* 1.5 x 2^23: its last bits hold the rounded number */
    integers exponent = (integers)whole << 23;
    whole -= 12582912.0f;
    x = fused_all(2.12194440e-4f, whole, fused_all(-0.693359375f, whole, x)); /* less a multiple of ln 2, in two parts */
    vector p = fused_all(1.9875691500e-4f, x, none + 1.3981999507e-3f);
    p = fused_each(p, x, none + 8.3334519073e-3f);
    p = fused_each(p, x, none + 4.1665795894e-2f);
    p = fused_each(p, x, none + 1.6666665459e-1f);
    p = fused_each(p, x, none + 5.0000001201e-1f);
    return (vector)((integers)(fused_each(p * x, x, x) + 1.0f) + exponent);
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
    const Model *model, int64_t first, const float *weights, float *to, int64_t m, float scale, int add,
    const Draws *draws)
{
    for (int64_t l = model->count - 1; l >= first && l >= model->images; l--) {
        const Layer *layer = model->layers + l;
        int64_t inputs = layer->inputs, wide = padded(layer->outputs), before = padded(inputs);
        float *dy = model->dx[l + 1], *own = to + model->begin[l], *bias = own + inputs * wide;
        const float *y = model->x[l + 1];
        if (draws && layer->amount > 0) drop_rows(layer, draws, l, m, dy);
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
            for (int64_t j = 0; j < wide; j++) bias[j] = fused(scale, dy[i * wide + j], bias[j]);
    }
    if (first >= model->images) return;
    if (model->layers->kind != EMBEDDING) {
        backward_images(model, weights, to, m, scale, add, draws);
        return;
    }
    const Layer *last = model->layers + model->images - 1;
    float *dlast = model->dx[model->images];
    if (draws && last->amount > 0) drop_rows(last, draws, model->images - 1, m, dlast);
    backward_recurrence(&model->recurrence, model->images, model->layers, weights, dlast, to, m, scale, add);
}

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
