/* A chain of layers, and where its numbers stand: here, and in the flat vector.

   Layers of images come first, one example after the other, or recurrent ones; then dense layers, all examples of a
   batch at once. Rows of weights, outputs and errors are filled up with zeros to whole vectors. Weights of dense layers
   stand transposed, (inputs x outputs), with the bias as one more row: so all products but one read and write them as
   they lie. */

#pragma once
#include "dropout.h"
#include "norm.h"
#include "pooling.h"
#include "recurrent.h"
#include "shortcut.h"

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
    int64_t sums = 0, list = 0, filters = 0, made = 0, products = 0, bordered = 0;
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
            if (ROWS_OF_SUMS * padded(l->channels) > sums) sums = ROWS_OF_SUMS * padded(l->channels);
        }
        if (l->kind != CONVOLUTION) continue;
        int64_t room_across = l->rows * reach(l) * across_wide(l);
        model->space.across[i] = take(memory, room_across);
        if (model->space.across[i]) memset(model->space.across[i], 0, sizeof(float) * room_across);
        if (l->filters > filters) filters = l->filters;
        if (l->pooled && l->filters * places > list) list = l->filters * places;
        if (!l->pooled && out_wide(l) * padded(l->filters) > made) made = out_wide(l) * padded(l->filters);
        int64_t back = turns(l) ? l->width * padded(l->channels) : out_wide(l) * padded(reach(l));
        if (!l->pooled && back > products) products = back;
        if (l->pooled || !i || !turns(l)) continue;
        model->space.turned[i] = take(memory, turned_numbers(l));
        if (bordered_numbers(l) > bordered) bordered = bordered_numbers(l);
    }
    model->sums = take(memory, sums);
    model->space.gradient = take(memory, model->begin[model->images]);
    model->space.at = (int32_t *)take(memory, list + 1);
    model->space.g = take(memory, list + 1);
    model->space.count = (int64_t *)take(memory, 2 * filters);
    model->space.made = take(memory, made);
    model->space.products = take(memory, products);
    model->space.bordered = take(memory, bordered);
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

/* Return where the gradient of these inputs stands: of one example at a time, but for what dense layers see. */
static Image gradient_of(const Model *model, int64_t l, int64_t example)
{
    return image_of(model, l, model->dx, l < model->images ? 0 : example);
}

/* How the numbers of a layer of images lie here: rows that are filled up, then as many biases. */
typedef struct {
    int64_t rows, numbers, biases;
} Rows;

static Rows rows_of(const Layer *l)
{
    if (l->kind == CONVOLUTION) return (Rows){l->filters * l->rows, reach(l), l->filters};
    return l->kind == NORM && l->weight >= 0 ? (Rows){1, l->channels, l->channels} : (Rows){0, 0, 0};
}

/* Where the flat vector holds the first number of such a row: a row of a filter, of (filters x channels x rows x
   columns), or all channels' factors. */
static int64_t row_begins(const Layer *l, int64_t i)
{
    if (l->kind != CONVOLUTION) return l->weight;
    return l->weight + (i / l->rows * l->channels * l->rows + i % l->rows) * l->columns;
}

/* Bring the numbers of a layer of images into the order of this file, in which filters have their channels last. */
static void bring_filters(const Layer *l, const float *flat, float *to)
{
    Rows r = rows_of(l);
    int64_t piece = padded(r.numbers);
    memset(to, 0, sizeof *to * numbers_of(l));
    for (int64_t i = 0; i < r.rows; i++) {
        const float *row = flat + row_begins(l, i);
        if (l->kind == CONVOLUTION)
            transposed(l->channels, l->columns, row, 0, l->rows * l->columns, to + i * piece, l->channels);
        else memcpy(to + i * piece, row, sizeof *to * r.numbers);
    }
    if (l->bias >= 0) memcpy(to + r.rows * piece, flat + l->bias, sizeof *to * r.biases);
}

/* Bring a flat vector into the order of this file. In the vector all channels come first, as torch has them. */
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
    for (int64_t i = 0; i < r.rows; i++) {
        float *row = flat + row_begins(l, i);
        const float *moved = own + i * piece, *stood = before + i * piece;
        if (l->kind == CONVOLUTION)
            transposed(l->columns, l->channels, moved, stood, l->channels, row, l->rows * l->columns);
        else
            for (int64_t j = 0; j < r.numbers; j++) row[j] = moved[j] - stood[j];
    }
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
