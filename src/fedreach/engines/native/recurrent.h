/* Tokens, their vectors, and LSTM layers, of which the last output goes on (Hochreiter and Schmidhuber, 1997):

   i, f, o = sigmoid(z), g = tanh(z) of z = W x_t + b + V h_{t-1} + d;  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t).

   All examples of a batch go through time together, one layer after the other; row t m + n belongs to example n at
   time t. A layer's numbers stand as (inputs + outputs + 2) rows of W', V', b and d, 4 x outputs wide; in each step
   they are copied into panels, as wide as a tile, that products read from end to end. The first layer meets each
   different token of a batch only once: their W x + b are a table. */

#pragma once
#include "gates.h"
#include "layers.h"
#include "panels.h"

enum { TOGETHER = 80 }; /* rows of gates, of whole times, that stay in the cache until all products have met them */

static int64_t gates_wide(const Layer *l) { return padded(4 * l->outputs); }
/* From a row of gates to the next: a vector that begins within the last gate may reach too far. */
static int64_t gates_apart(const Layer *l) { return apart(3 * l->outputs + padded(l->outputs)); }

static int64_t times_abreast(int64_t m) { return (TOGETHER + m - 1) / m; }

typedef struct {
    float *gates[MAX_LAYERS];                       /* i, f, g, o as they act, vector beside vector */
    float *outputs[MAX_LAYERS], *cells[MAX_LAYERS]; /* h and c, with m rows of zeros before the first time */
    float *z, *dh, *dc;    /* z or its gradients, of some times; gradients of h and c of one */
    float *passed;         /* gradients of the outputs of the layer below */
    float *below, *before; /* panels */
    float *gradient;       /* of a layer's numbers */
    float *bias;           /* b + d, or the sum of their gradients */
    float *table, *vectors, *moves; /* of the different tokens: z, vectors and the gradients of these */
    int32_t *tokens, *place;    /* (times x m) tokens, as places among the different ones; of all tokens, that place or -1 */
    int32_t *different, *count;
} Recurrence;

static void lay_out_recurrence(Recurrence *r, int64_t count, const Layer *layers, int64_t batch, Memory *memory)
{
    int64_t rows = layers->inputs * batch, vocabulary = layers->channels, below = 0, before = 0, gates = 0, units = 0, numbers = 0;
    int64_t some = vocabulary < rows ? vocabulary : rows;
    for (int64_t l = 1; l < count; l++) {
        const Layer *layer = layers + l;
        int64_t states = apart(layer->outputs), wide = gates_wide(layer) + PANEL, deep = 4 * layer->outputs;
        r->gates[l] = take(memory, rows * 4 * padded(layer->outputs));
        r->outputs[l] = take(memory, (rows + batch) * states);
        r->cells[l] = take(memory, (rows + batch) * states);
        int64_t there = wide * layer->inputs, back = deep * (padded(layer->inputs) + PANEL);
        if (there > below) below = there;
        if (back > below) below = back;
        there = wide * layer->outputs, back = deep * (padded(layer->outputs) + PANEL);
        if (there > before) before = there;
        if (back > before) before = back;
        if (gates_apart(layer) > gates) gates = gates_apart(layer);
        if (states > units) units = states;
        if (numbers_of(layer) > numbers) numbers = numbers_of(layer);
    }
    r->z = take(memory, (TOGETHER + 2 * batch) * gates);
    r->dh = take(memory, batch * units);
    r->dc = take(memory, batch * units);
    r->passed = take(memory, count > 2 ? rows * units : 0);
    r->below = take(memory, below);
    r->before = take(memory, before);
    r->gradient = take(memory, numbers);
    r->bias = take(memory, gates);
    r->table = take(memory, some * gates_apart(layers + 1));
    r->vectors = take(memory, some * apart(layers->outputs));
    r->moves = take(memory, some * apart(layers->outputs));
    r->tokens = (int32_t *)take(memory, rows);
    r->place = (int32_t *)take(memory, vocabulary);
    r->different = (int32_t *)take(memory, some);
    r->count = (int32_t *)take(memory, 1);
    if (r->place) memset(r->place, -1, sizeof *r->place * vocabulary);
}

/* ---------------------------------------------------------------------------------------------- one time step */

enum { LINE = 16 }; /* of the cache */

/* Let a line come while other things are done; `write`: to be written to. */
#define COMING(place, write) __builtin_prefetch(place, write)

/* Let gates act: from z, and the cells of the time before. What stands at the next time is asked for. */
static void forward_gates(
    const Layer *l, int64_t m, const float *z, const float *before, float *gates, float *cells, float *outputs)
{
    int64_t units = l->outputs, row = gates_apart(l), states = apart(units), next = m * 4 * padded(units);
    for (int64_t i = 0; i < m; i++, z += row)
        for (int64_t n = 0; n < padded(units); n += LANES, gates += 4 * LANES) {
            const float *in = z + n;
            int64_t at = i * states + n, ahead = at + m * states;
            for (int k = 0; k < 4 * LANES; k += LINE) COMING(gates + next + k, 1);
            COMING(cells + ahead, 1);
            COMING(outputs + ahead, 1);
            vector input = sigmoid(*(const vector *)in), forget = sigmoid(*(const vector *)(in + units));
            vector made = hyperbolic(*(const vector *)(in + 2 * units)), output = sigmoid(*(const vector *)(in + 3 * units));
            vector cell = fused_each(forget, *(const vector *)(before + at), input * made), *to = (vector *)gates;
            to[0] = input, to[1] = forget, to[2] = made, to[3] = output;
            *(vector *)(cells + at) = cell;
            *(vector *)(outputs + at) = output * hyperbolic(cell);
        }
}

/* Write the gradients of z; those of the cells become those of the time before. What a vector writes beyond its gate is
   written again, by the gates after it, as the last numbers of all gates come first. */
static void backward_gates(
    const Layer *l, int64_t m, const float *gates, const float *before, const float *cells, const float *dh, float *dc,
    float *dz)
{
    int64_t units = l->outputs, row = gates_apart(l), states = apart(units), size = 4 * padded(units);
    for (int64_t i = 0; i < m; i++, dz += row) {
        for (int64_t n = padded(units) - LANES; n >= 0; n -= LANES) {
            const vector *in = (const vector *)(gates + i * size + 4 * n);
            float *to = dz + n;
            int64_t at = i * states + n;
            for (int k = 0; k < 4 * LANES; k += LINE) COMING(gates + (i - m) * size + 4 * n + k, 0);
            COMING(before + at - m * states, 0);
            vector input = in[0], forget = in[1], made = in[2], output = in[3], one = (vector){0} + 1.0f;
            vector bound = hyperbolic(*(const vector *)(cells + at)), down = *(const vector *)(dh + at);
            vector along = fused_each(down * output, fused_each(-bound, bound, one), *(const vector *)(dc + at));
            *(vector *)to = along * made * (input * (1.0f - input));
            *(vector *)(to + units) = along * *(const vector *)(before + at) * (forget * (1.0f - forget));
            *(vector *)(to + 2 * units) = along * input * fused_each(-made, made, one);
            *(vector *)(to + 3 * units) = down * bound * (output * (1.0f - output));
            *(vector *)(dc + at) = along * forget;
        }
        for (int64_t n = 4 * units; n < gates_wide(l); n++) dz[n] = 0; /* vectors have reached too far */
    }
}

/* ------------------------------------------------------------------------------------------------- all of time */

/* Compute the last outputs for m examples whose tokens are there; weights: those of the first layer, and so on. */
static void forward_recurrence(
    const Recurrence *r, int64_t count, const Layer *layers, const float *weights, int64_t m, float *last)
{
    int64_t times = layers->inputs, size = layers->outputs, some = *r->count, abreast = times_abreast(m);
    for (int64_t k = 0; k < some; k++)
        memcpy(r->vectors + k * apart(size), weights + r->different[k] * padded(size), sizeof *weights * size);
    for (int64_t l = 1; l < count; l++) {
        const Layer *layer = layers + l;
        weights += numbers_of(layer - 1);
        int64_t inputs = layer->inputs, units = layer->outputs, wide = gates_wide(layer);
        int64_t gates = gates_apart(layer), states = apart(units), below = apart(inputs);
        const float *bias = weights + (inputs + units) * wide, *x = r->outputs[l - 1];
        float *cells = r->cells[l], *outputs = r->outputs[l], *own = r->gates[l];
        for (int64_t j = 0; j < wide; j++) r->bias[j] = bias[j] + bias[wide + j];
        into_panels(inputs, wide, weights, wide, r->below);
        into_panels(units, wide, weights + inputs * wide, wide, r->before);
        if (l == 1) panel_product(some, wide, inputs, r->vectors, below, r->below, r->bias, 0, r->table, gates);
        memset(outputs, 0, sizeof *last * m * states);
        memset(cells, 0, sizeof *last * m * states);
        for (int64_t t = 0; t < times; t++, cells += m * states, outputs += m * states, own += m * 4 * padded(units)) {
            float *z = r->z + t % abreast * m * gates;
            int64_t ahead = times - t < abreast ? times - t : abreast;
            if (l == 1)
                for (int64_t i = 0; i < m; i++)
                    memcpy(z + i * gates, r->table + r->tokens[t * m + i] * gates, sizeof *last * wide);
            else if (z == r->z)
                panel_product(ahead * m, wide, inputs, x + (t + 1) * m * below, below, r->below, r->bias, 0, z, gates);
            if (t) panel_product(m, wide, units, outputs, states, r->before, z, gates, z, gates);
            forward_gates(layer, m, z, cells, own, cells + m * states, outputs + m * states);
        }
    }
    int64_t units = layers[count - 1].outputs;
    for (int64_t i = 0; i < m; i++)
        memcpy(last + i * padded(units), r->outputs[count - 1] + (times * m + i) * apart(units), sizeof *last * units);
}

/* Go back through a layer of recurrent ones, of which `last` is the gradient of the last outputs, or 0 where those of
   all outputs were passed on; write the gradients of its numbers to `to`. */
static void backward_recurrent(
    const Recurrence *r, const Layer *layers, int64_t l, const float *own, const float *last, int64_t m, float *to)
{
    const Layer *layer = layers + l;
    int64_t times = layers->inputs, inputs = layer->inputs, units = layer->outputs, wide = gates_wide(layer);
    int64_t gates = gates_apart(layer), states = apart(units), below = apart(inputs), deep = 4 * units;
    int64_t some = *r->count, abreast = times_abreast(m);
    float *bias = to + (inputs + units) * wide, *later = r->z + abreast * m * gates;
    across_into_panels(deep, inputs, own, wide, r->below);
    across_into_panels(deep, units, own + inputs * wide, wide, r->before);
    memset(r->dc, 0, sizeof *to * m * states);
    memset(r->bias, 0, sizeof *to * wide);
    if (l == 1) memset(r->table, 0, sizeof *to * some * gates);
    for (int64_t end = times, begin; end > 0; end = begin) {
        begin = (end - 1) / abreast * abreast;
        for (int64_t t = end - 1; t >= begin; t--) {
            int64_t then = t * m * states, next = t + 1 < times;
            float *dz = r->z + (t - begin) * m * gates;
            const float *above = !last ? r->passed + then : next ? 0 : last;
            panel_product(m, padded(units), next ? deep : 0, t + 1 < end ? dz + m * gates : later, gates, r->before, above,
                last ? padded(units) : states, r->dh, states);
            backward_gates(layer, m, r->gates[l] + t * m * 4 * padded(units), r->cells[l] + then, r->cells[l] + then + m * states,
                r->dh, r->dc, dz);
        }
        memcpy(later, r->z, sizeof *to * m * gates);
        int64_t rows = (end - begin) * m, at = begin * m, more = end < times;
        product(units, wide, rows, r->outputs[l] + at * states, 1, states, r->z, gates, to + inputs * wide, wide, 1.0f, more);
        if (l > 1) {
            const float *x = r->outputs[l - 1] + (at + m) * below;
            product(inputs, wide, rows, x, 1, below, r->z, gates, to, wide, 1.0f, more);
            panel_product(rows, padded(inputs), deep, r->z, gates, r->below, 0, 0, r->passed + at * below, below);
        }
        for (int64_t i = 0; i < rows; i++) {
            float *sum = l == 1 ? r->table + r->tokens[at + i] * gates : r->bias;
            for (int64_t j = 0; j < wide; j++) sum[j] += r->z[i * gates + j];
        }
    }
    if (l == 1) {
        product(inputs, wide, some, r->vectors, 1, below, r->table, gates, to, wide, 1.0f, 0);
        panel_product(some, padded(inputs), deep, r->table, gates, r->below, 0, 0, r->moves, below);
        for (int64_t k = 0; k < some; k++)
            for (int64_t j = 0; j < wide; j++) r->bias[j] += r->table[k * gates + j];
    }
    for (int64_t j = 0; j < 2 * wide; j++) bias[j] = layer->bias < 0 ? 0 : r->bias[j % wide];
}

/* Go back from the gradients of the last outputs: W <- W + scale dW where `add`, else the gradients are written. */
static void backward_recurrence(
    const Recurrence *r, int64_t count, const Layer *layers, const float *weights, const float *last, float *to,
    int64_t m, float scale, int add)
{
    int64_t size = layers->outputs, begin = 0;
    for (int64_t l = 0; l < count; l++) begin += numbers_of(layers + l);
    for (int64_t l = count - 1; l > 0; l--) {
        int64_t numbers = numbers_of(layers + l);
        begin -= numbers;
        float *gradient = add ? r->gradient : to + begin;
        backward_recurrent(r, layers, l, weights + begin, l == count - 1 ? last : 0, m, gradient);
        for (int64_t n = 0; add && n < numbers; n++) to[begin + n] = fused(scale, gradient[n], to[begin + n]);
    }
    if (!add) memset(to, 0, sizeof *to * numbers_of(layers));
    for (int64_t k = 0; k < *r->count; k++)
        for (int64_t j = 0; j < padded(size); j++) {
            float *number = to + r->different[k] * padded(size) + j;
            *number = fused(scale, r->moves[k * apart(size) + j], *number);
        }
}

/* ------------------------------------------------------------------------------------ to the flat vector and back */

static void bring_recurrent(const Layer *l, const float *flat, float *to)
{
    int64_t inputs = l->inputs, deep = 4 * l->outputs, wide = gates_wide(l), rows = inputs + l->outputs;
    memset(to, 0, sizeof *to * numbers_of(l));
    if (l->kind == EMBEDDING) {
        for (int64_t i = 0; i < l->channels; i++)
            memcpy(to + i * padded(l->outputs), flat + l->weight + i * l->outputs, sizeof *to * l->outputs);
        return;
    }
    transposed(deep, inputs, flat + l->weight, 0, inputs, to, wide);
    transposed(deep, l->outputs, flat + l->weight + deep * inputs, 0, l->outputs, to + inputs * wide, wide);
    for (int64_t part = 0; l->bias >= 0 && part < 2; part++)
        memcpy(to + (rows + part) * wide, flat + l->bias + part * deep, sizeof *to * deep);
}

static int write_recurrent(const Layer *l, const float *own, const float *before, float *flat)
{
    int64_t inputs = l->inputs, units = l->outputs, deep = 4 * units, wide = gates_wide(l), rows = inputs + units;
    float *to = flat + l->weight;
    if (l->kind == EMBEDDING) {
        for (int64_t i = 0; i < l->channels; i++)
            for (int64_t j = 0, at = i * padded(units); j < units; j++) to[i * units + j] = own[at + j] - before[at + j];
        return all_finite(l->channels * units, to);
    }
    transposed(inputs, deep, own, before, wide, to, inputs);
    transposed(units, deep, own + inputs * wide, before + inputs * wide, wide, to + deep * inputs, units);
    int finite = all_finite(deep * rows, to);
    if (l->bias < 0) return finite;
    for (int64_t part = 0; part < 2; part++)
        for (int64_t j = 0, at = (rows + part) * wide; j < deep; j++)
            flat[l->bias + part * deep + j] = own[at + j] - before[at + j];
    return finite & all_finite(2 * deep, flat + l->bias);
}
