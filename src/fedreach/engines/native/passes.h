/* The ways through a model: its outputs, and back its gradients. */

#pragma once
#include "model.h"

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
            case ADDITION:
                forward_addition(layer, x, image_of(model, layer->source, model->x, i),
                    model->layers[layer->source].channels, y);
                break;
            default: forward_windows(layer, x, y, where);
            }
        }
}

/* Whether a layer adds to the gradient of its inputs; others write all of it. */
static int adds_up(const Model *model, int64_t l)
{
    int64_t kind = model->layers[l].kind;
    return kind == MAXIMUM || kind == MEAN || (kind == CONVOLUTION && !model->space.turned[l]);
}

/* Go back through the layers of images: W <- W + scale dW where `add`, else the gradients are written to `to`. */
static void backward_images(
    const Model *model, const float *weights, float *to, int64_t m, float scale, int add, const Draws *draws)
{
    /* Where weights move at once, their gradients are kept apart until the last example has met the old ones. */
    float *gradients = add ? model->space.gradient : to;
    memset(gradients, 0, sizeof *to * model->begin[model->images]);
    for (int64_t l = 0; l < model->images; l++)
        if (model->space.turned[l]) turn(model->layers + l, weights + model->begin[l], model->space.turned[l]);
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = model->images - 1; l >= 0; l--) {
            const Layer *layer = model->layers + l;
            const float *own = weights + model->begin[l];
            Image x = image_of(model, l, model->x, i), y = image_of(model, l + 1, model->x, i);
            Image dy = gradient_of(model, l + 1, i), dx = {0}, inside = {0};
            Image whole = {x.at - model->inside[l], x.row};
            if (l) {
                dx = (Image){model->dx[l], model->row[l]};
                inside = (Image){dx.at + model->inside[l], dx.row};
                if (adds_up(model, l)) memset(dx.at, 0, sizeof *dx.at * model->example[l]);
            }
            const uint8_t *where = model->where[l] ? model->where[l] + i * layer->outputs : 0;
            float *gradient = gradients + model->begin[l];
            switch (layer->kind) {
            case CONVOLUTION:
                if (layer->pooled) backward_pooled(layer, own, whole, y, where, dy, dx, gradient, &model->space);
                else backward_plain(layer, own, model->space.turned[l], whole, y, dy, dx, inside, gradient, &model->space);
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
            case ADDITION:
                if (l) backward_addition(layer, y, dy, inside);
                break;
            default:
                if (l) backward_windows(layer, y, where, dy, inside);
            }
            for (int64_t k = l + 1; k < model->images && l; k++)
                if (model->layers[k].kind == ADDITION && model->layers[k].source == l)
                    add_to_source(model->layers + k, gradient_of(model, k + 1, i), inside, layer->channels);
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
