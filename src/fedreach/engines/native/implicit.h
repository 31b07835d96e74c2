/* A first layer whose weights are not formed until training is over, see `fedreach.engines.manual`. */

#pragma once
#include "passes.h"
#include "samples.h"

enum { ABREAST = 4 * ROWS }; /* rows of a move that are made at a time */

typedef struct {
    int64_t room;                                     /* examples that a client may see; 0: the layer is as any other */
    float *x, *across, *first, *products, *dy, *move; /* X, its transpose, X W, X_t X', the errors, how far W moves */
} Implicit;

static Implicit implicit_for(const Model *model, int64_t batch, int64_t most, int plain, Memory *memory)
{
    enum { LARGE = 16384 }; /* weights that are worth being done without */
    const Layer *layer = model->layers;
    if (!plain || model->images || model->count < 2 || layer->amount > 0 || layer->inputs * layer->outputs < LARGE) return (Implicit){0};
    Implicit layer0 = {.room = most < layer->outputs ? most : layer->outputs};
    int64_t wide = padded(layer->outputs);
    layer0.x = take(memory, layer0.room * padded(layer->inputs));
    layer0.across = take(memory, layer->inputs * padded(layer0.room));
    layer0.first = take(memory, layer0.room * wide);
    layer0.products = take(memory, batch * padded(layer0.room));
    layer0.dy = take(memory, layer0.room * wide);
    layer0.move = take(memory, ABREAST * padded(layer->inputs));
    return layer0;
}

/* Let all examples of a client meet the weights that were broadcast. */
static void begin_implicit(const Model *model, const Implicit *layer0, const Samples *samples, const float *weights,
                       int64_t steps, int64_t batch, const int64_t *plan)
{
    const Layer *layer = model->layers;
    int64_t wide = padded(layer->outputs), before = padded(layer->inputs), seen = 0;
    for (int64_t step = 0; step < steps; step++, plan += batch) {
        int64_t m = 0;
        while (m < batch && plan[m] >= 0) m++;
        gather(samples, m, plan, layer->inputs, layer0->x + seen * before);
        seen += m;
    }
    transposed(seen, layer->inputs, layer0->x, 0, before, layer0->across, padded(layer0->room));
    for (int64_t i = 0; i < seen; i++)
        memcpy(layer0->first + i * wide, weights + layer->inputs * wide, sizeof *weights * wide);
    product(seen, wide, layer->inputs, layer0->x, before, 1, weights, wide, layer0->first, wide, 1.0f, 1);
}

/* Write what the first layer makes of m examples after the `seen` ones: X W' = X W - rate (X X_seen') D_seen. */
static void forward_implicit(const Model *model, const Implicit *layer0, int64_t seen, int64_t m, float rate)
{
    const Layer *layer = model->layers;
    int64_t wide = padded(layer->outputs), before = padded(layer->inputs), across = padded(layer0->room);
    float *y = model->x[1];
    memcpy(y, layer0->first + seen * wide, sizeof *y * m * wide);
    if (seen) {
        product(m, padded(seen), layer->inputs, layer0->x + seen * before, before, 1, layer0->across, across,
            layer0->products, across, 1.0f, 0);
        if (layer->bias >= 0) /* the weight of an input that is always 1 */
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < seen; j++) layer0->products[i * across + j] += 1;
        product(m, wide, seen, layer0->products, across, 1, layer0->dy, wide, y, wide, -rate, 1);
    }
    if (layer->relu) keep_positive(m * wide, y);
}

/* Take in the gradient of what `forward_implicit` wrote. */
static void backward_implicit(const Model *model, const Implicit *layer0, int64_t seen, int64_t m)
{
    int64_t wide = padded(model->layers->outputs);
    if (model->layers->relu) keep_where_positive(m * wide, model->x[1], model->dx[1]);
    memcpy(layer0->dy + seen * wide, model->dx[1], sizeof *layer0->dy * m * wide);
}

/* Write how far the first layer has moved into a flat vector, -rate D' X; return whether all of it is finite. */
static int write_implicit(const Model *model, const Implicit *layer0, int64_t seen, float rate, float *flat)
{
    const Layer *layer = model->layers;
    int64_t inputs = layer->inputs, outputs = layer->outputs, wide = padded(outputs), before = padded(inputs);
    float *bias = flat + layer->bias;
    int finite = 1;
    /* Through the cache: a product that writes to memory far away waits for each line of it. */
    for (int64_t begin = 0; begin < outputs; begin += ABREAST) {
        int64_t rows = outputs - begin < ABREAST ? outputs - begin : ABREAST;
        product(rows, before, seen, layer0->dy + begin, 1, wide, layer0->x, before, layer0->move, before, -rate, 0);
        for (int64_t j = 0; j < rows; j++)
            copy_away(inputs, layer0->move + j * before, flat + layer->weight + (begin + j) * inputs);
        finite &= all_finite(rows * before, layer0->move);
    }
    if (layer->bias < 0) return finite;
    memset(bias, 0, sizeof *flat * outputs);
    for (int64_t i = 0; i < seen; i++)
        for (int64_t j = 0; j < outputs; j++) bias[j] = fused(-rate, layer0->dy[i * wide + j], bias[j]);
    return finite & all_finite(outputs, bias);
}
