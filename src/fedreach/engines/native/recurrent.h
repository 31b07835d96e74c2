/* Tokens, their vectors, and LSTM layers, of which the last output goes on (Hochreiter and Schmidhuber, 1997):

   i, f, o = sigmoid(z), g = tanh(z) of z = W x_t + b + V h_{t-1} + d;  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t).

   All examples of a batch go through time together, one layer after the other; row t m + n belongs to example n at
   time t. A layer's numbers stand as (inputs + outputs + 2) rows of W', V', b and d, 4 x outputs wide; in each step
   they are copied into panels, as wide as a tile, that products read from end to end. The first layer meets each
   different token of a batch only once: their W x + b are a table. */

#pragma once
#include "gates.h"
#include "layers.h"

enum { PANEL = VECTORS * LANES };

/* From a row to the next in working memory: an odd number of lines, so that those of a column do not drive each other
   out of the cache. */
static int64_t apart(int64_t numbers) { return 16 * ((numbers + 15) / 16 | 1); }

static int64_t gates_wide(const Layer *l) { return padded(4 * l->outputs); }
/* From a row of gates to the next: a vector that begins within the last gate may reach too far. */
static int64_t gates_apart(const Layer *l) { return apart(3 * l->outputs + padded(l->outputs)); }

typedef struct {
    float *gates[MAX_LAYERS];   /* i, f, g, o as they act, and on the way back the gradients of z */
    float *outputs[MAX_LAYERS]; /* h, with m rows of zeros before the first time */
    float *cells[MAX_LAYERS], *bounded[MAX_LAYERS]; /* c in the same way, and tanh(c) */
    float *now, *row, *dh, *dc; /* z of one time, a row of gates, gradients of h and c */
    float *passed;              /* gradients of the outputs of the layer below */
    float *below, *before;      /* panels */
    float *bias;                /* b + d, or the sum of their gradients */
    float *table, *vectors, *moves; /* of the different tokens: z, vectors and the gradients of these */
    int32_t *tokens, *place;    /* (times x m) tokens, as places among the different ones; of all tokens, that place or -1 */
    int32_t *different, *count;
} Recurrence;

static void lay_out_recurrence(Recurrence *r, int64_t count, const Layer *layers, int64_t batch, Memory *memory)
{
    int64_t rows = layers->inputs * batch, vocabulary = layers->channels, below = 0, before = 0, gates = 0, units = 0;
    int64_t some = vocabulary < rows ? vocabulary : rows;
    for (int64_t l = 1; l < count; l++) {
        const Layer *layer = layers + l;
        int64_t states = apart(layer->outputs), wide = gates_wide(layer) + PANEL, deep = 4 * layer->outputs;
        r->gates[l] = take(memory, rows * gates_apart(layer));
        r->outputs[l] = take(memory, (rows + batch) * states);
        r->cells[l] = take(memory, (rows + batch) * states);
        r->bounded[l] = take(memory, rows * states);
        int64_t there = wide * layer->inputs, back = deep * (padded(layer->inputs) + PANEL);
        if (there > below) below = there;
        if (back > below) below = back;
        there = wide * layer->outputs, back = deep * (padded(layer->outputs) + PANEL);
        if (there > before) before = there;
        if (back > before) before = back;
        if (gates_apart(layer) > gates) gates = gates_apart(layer);
        if (states > units) units = states;
    }
    r->now = take(memory, batch * gates);
    r->row = take(memory, gates);
    r->dh = take(memory, batch * units);
    r->dc = take(memory, batch * units);
    r->passed = take(memory, count > 2 ? rows * units : 0);
    r->below = take(memory, below);
    r->before = take(memory, before);
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

/* -------------------------------------------------------------------------------------------------- products */

/* Let rows stand in panels, one after the other. */
static void into_panels(int64_t rows, int64_t n, const float *from, int64_t ldf, float *panels)
{
    for (int64_t j = 0; j < n; j += PANEL)
        for (int64_t k = 0; k < rows; k++, panels += PANEL)
            memcpy(panels, from + k * ldf + j, sizeof *panels * (n - j < PANEL ? n - j : PANEL));
}

/* The same for the transpose of a matrix of n rows. */
static void across_into_panels(int64_t rows, int64_t n, const float *from, int64_t ldf, float *panels)
{
    for (int64_t j = 0; j < n; j += PANEL, panels += rows * PANEL) {
        int64_t some = n - j < PANEL ? n - j : PANEL;
        if (some < PANEL) memset(panels, 0, sizeof *panels * rows * PANEL);
        transposed(some, rows, from + j * ldf, 0, ldf, panels, PANEL);
    }
}

/* A tile of C <- D + A B, or A B where D is 0, with B in a panel: one chain of sums, wherever it is cut. */
static inline __attribute__((always_inline)) void panel_tile(
    int rows, int vectors, int64_t depth, const float *a, int64_t lda, const float *b, const float *d, int64_t ldd,
    float *c, int64_t ldc)
{
    vector sum[ROWS][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) sum[i][j] = d ? *(const vector *)(d + i * ldd + j * LANES) : (vector){0};
    for (int64_t k = 0; k < depth; k++, b += PANEL) {
        vector right[VECTORS];
        for (int j = 0; j < vectors; j++) right[j] = *(const vector *)(b + j * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) sum[i][j] = fused_all(a[i * lda + k], right[j], sum[i][j]);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) *(vector *)(c + i * ldc + j * LANES) = sum[i][j];
}

/* C (m x n) <- D + A B, or A B where D is 0, with B (depth x n) in panels; n is a whole number of vectors. */
static void panel_product(
    int64_t m, int64_t n, int64_t depth, const float *a, int64_t lda, const float *panels, const float *d, int64_t ldd,
    float *c, int64_t ldc)
{
    int64_t blocks = (m + ROWS - 1) / ROWS;
    for (int64_t j = 0; j < n; j += PANEL, panels += depth * PANEL)
        for (int64_t block = 0; block < blocks; block++) {
            int64_t i = m * block / blocks, rows = m * (block + 1) / blocks - i;
            const float *left = a + i * lda, *from = d ? d + i * ldd + j : 0;
            float *to = c + i * ldc + j;
#define TILE(R)                                                                             \
    case R:                                                                                 \
        if (n - j > LANES) panel_tile(R, 2, depth, left, lda, panels, from, ldd, to, ldc);  \
        else panel_tile(R, 1, depth, left, lda, panels, from, ldd, to, ldc);                \
        break;
            switch (rows) { /* sums stay in registers where their number is known */
                TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if defined(__AVX512F__) || defined(__aarch64__)
                TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
            }
#undef TILE
        }
}

/* ---------------------------------------------------------------------------------------------- one time step */

/* Let gates act: from z, and the cells of the time before. What a vector writes beyond its gate is written again, by
   the gates after it, as the last numbers of all gates come first. */
static void forward_gates(
    const Layer *l, int64_t m, const float *z, const float *before, float *gates, float *cells, float *bounded, float *outputs)
{
    int64_t units = l->outputs, from_row = gates_apart(l), states = apart(units);
    for (int64_t i = 0; i < m; i++)
        for (int64_t n = padded(units) - LANES; n >= 0; n -= LANES) {
            const float *in = z + i * from_row + n;
            float *to = gates + i * from_row + n;
            int64_t at = i * states + n;
            vector input = sigmoid(*(const vector *)in), forget = sigmoid(*(const vector *)(in + units));
            vector made = hyperbolic(*(const vector *)(in + 2 * units)), output = sigmoid(*(const vector *)(in + 3 * units));
            vector cell = fused_each(forget, *(const vector *)(before + at), input * made), bound = hyperbolic(cell);
            *(vector *)to = input;
            *(vector *)(to + units) = forget;
            *(vector *)(to + 2 * units) = made;
            *(vector *)(to + 3 * units) = output;
            *(vector *)(cells + at) = cell;
            *(vector *)(bounded + at) = bound;
            *(vector *)(outputs + at) = output * bound;
        }
}

/* Replace gates by the gradients of z, and those of the cells by those of the time before. */
static void backward_gates(
    const Layer *l, int64_t m, const float *before, const float *bounded, const float *dh, float *dc, float *gates, float *row)
{
    int64_t units = l->outputs, to_row = gates_apart(l), states = apart(units);
    for (int64_t i = 0; i < m; i++, gates += to_row) {
        memcpy(row, gates, sizeof *row * to_row);
        for (int64_t n = padded(units) - LANES; n >= 0; n -= LANES) {
            const float *in = row + n;
            float *to = gates + n;
            int64_t at = i * states + n;
            vector input = *(const vector *)in, forget = *(const vector *)(in + units);
            vector made = *(const vector *)(in + 2 * units), output = *(const vector *)(in + 3 * units);
            vector bound = *(const vector *)(bounded + at), down = *(const vector *)(dh + at), *cell = (vector *)(dc + at);
            vector along = fused_each(down * output, fused_each(-bound, bound, (vector){0} + 1.0f), *cell);
            *(vector *)to = along * made * (input * (1.0f - input));
            *(vector *)(to + units) = along * *(const vector *)(before + at) * (forget * (1.0f - forget));
            *(vector *)(to + 2 * units) = along * input * fused_each(-made, made, (vector){0} + 1.0f);
            *(vector *)(to + 3 * units) = down * bound * (output * (1.0f - output));
            *cell = along * forget;
        }
        for (int64_t n = 4 * units; n < gates_wide(l); n++) gates[n] = 0; /* vectors have reached too far */
    }
}

/* ------------------------------------------------------------------------------------------------- all of time */

/* Compute the last outputs for m examples whose tokens are there; weights: those of the first layer, and so on. */
static void forward_recurrence(
    const Recurrence *r, int64_t count, const Layer *layers, const float *weights, int64_t m, float *last)
{
    int64_t times = layers->inputs, size = layers->outputs, some = *r->count;
    for (int64_t k = 0; k < some; k++)
        memcpy(r->vectors + k * apart(size), weights + r->different[k] * padded(size), sizeof *weights * size);
    for (int64_t l = 1; l < count; l++) {
        const Layer *layer = layers + l;
        weights += numbers_of(layer - 1);
        int64_t inputs = layer->inputs, units = layer->outputs, wide = gates_wide(layer);
        int64_t gates = gates_apart(layer), states = apart(units);
        const float *bias = weights + (inputs + units) * wide;
        for (int64_t j = 0; j < wide; j++) r->bias[j] = bias[j] + bias[wide + j];
        into_panels(inputs, wide, weights, wide, r->below);
        into_panels(units, wide, weights + inputs * wide, wide, r->before);
        if (l == 1) panel_product(some, wide, inputs, r->vectors, apart(size), r->below, r->bias, 0, r->table, gates);
        else panel_product(times * m, wide, inputs, r->outputs[l - 1] + m * apart(inputs), apart(inputs), r->below, r->bias, 0, r->gates[l], gates);
        memset(r->outputs[l], 0, sizeof *last * m * states);
        memset(r->cells[l], 0, sizeof *last * m * states);
        for (int64_t t = 0; t < times; t++) {
            int64_t then = t * m * states, at = then + m * states;
            float *own = r->gates[l] + t * m * gates;
            const float *z = own;
            if (l == 1) {
                for (int64_t i = 0; i < m; i++)
                    memcpy(r->now + i * gates, r->table + r->tokens[t * m + i] * gates, sizeof *last * wide);
                z = r->now;
            }
            panel_product(m, wide, t ? units : 0, r->outputs[l] + then, states, r->before, z, gates, r->now, gates);
            forward_gates(layer, m, r->now, r->cells[l] + then, own, r->cells[l] + at, r->bounded[l] + then, r->outputs[l] + at);
        }
    }
    int64_t units = layers[count - 1].outputs;
    for (int64_t i = 0; i < m; i++)
        memcpy(last + i * padded(units), r->outputs[count - 1] + (times * m + i) * apart(units), sizeof *last * units);
}

/* Write or, where `add`, add the gradients of a layer, n rows of inputs x and of gradients of z. */
static void move_recurrent(
    const Recurrence *r, const Layer *l, int64_t n, const float *x, const float *dz, int64_t earlier, const float *h,
    const float *dz_later, float *to, float scale, int add)
{
    int64_t inputs = l->inputs, units = l->outputs, wide = gates_wide(l), gates = gates_apart(l);
    float *bias = to + (inputs + units) * wide;
    if (!add) memset(to, 0, sizeof *to * numbers_of(l));
    product(inputs, wide, n, x, 1, apart(inputs), dz, gates, to, wide, scale, 1);
    product(units, wide, earlier, h, 1, apart(units), dz_later, gates, to + inputs * wide, wide, scale, 1);
    if (l->bias < 0) return; /* their rows stay 0 */
    memset(r->bias, 0, sizeof *to * wide);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < wide; j++) r->bias[j] += dz[i * gates + j];
    for (int64_t j = 0; j < 2 * wide; j++) bias[j] = fused(scale, r->bias[j % wide], bias[j]);
}

/* Go back from the gradients of the last outputs: W <- W + scale dW where `add`, else the gradients are written. */
static void backward_recurrence(
    const Recurrence *r, int64_t count, const Layer *layers, const float *weights, const float *last, float *to,
    int64_t m, float scale, int add)
{
    int64_t times = layers->inputs, size = layers->outputs, some = *r->count, begin = 0;
    for (int64_t l = 0; l < count; l++) begin += numbers_of(layers + l);
    for (int64_t l = count - 1; l > 0; l--) {
        const Layer *layer = layers + l;
        begin -= numbers_of(layer);
        int64_t inputs = layer->inputs, units = layer->outputs, wide = gates_wide(layer), deep = 4 * units;
        int64_t gates = gates_apart(layer), states = apart(units);
        const float *own = weights + begin;
        float *dz = r->gates[l];
        across_into_panels(deep, inputs, own, wide, r->below);
        across_into_panels(deep, units, own + inputs * wide, wide, r->before);
        memset(r->dc, 0, sizeof *to * m * states);
        for (int64_t t = times - 1; t >= 0; t--) {
            int64_t then = t * m * states, later = t + 1 < times;
            const float *above = r->passed + then;
            if (l == count - 1) above = later ? 0 : last;
            panel_product(m, padded(units), later ? deep : 0, dz + (t + 1) * m * gates, gates, r->before, above,
                l == count - 1 ? padded(units) : states, r->dh, states);
            backward_gates(layer, m, r->cells[l] + then, r->bounded[l] + then, r->dh, r->dc, dz + t * m * gates, r->row);
        }
        int64_t earlier = (times - 1) * m;
        const float *h = r->outputs[l] + m * states, *dz_later = dz + m * gates;
        if (l > 1) {
            panel_product(times * m, padded(inputs), deep, dz, gates, r->below, 0, 0, r->passed, apart(inputs));
            move_recurrent(r, layer, times * m, r->outputs[l - 1] + m * apart(inputs), dz, earlier, h, dz_later, to + begin, scale, add);
            continue;
        }
        memset(r->table, 0, sizeof *to * some * gates);
        for (int64_t i = 0; i < times * m; i++) {
            float *sum = r->table + r->tokens[i] * gates;
            for (int64_t j = 0; j < wide; j++) sum[j] += dz[i * gates + j];
        }
        panel_product(some, padded(size), deep, r->table, gates, r->below, 0, 0, r->moves, apart(size));
        move_recurrent(r, layer, some, r->vectors, r->table, earlier, h, dz_later, to + begin, scale, add);
    }
    if (!add) memset(to, 0, sizeof *to * numbers_of(layers));
    for (int64_t k = 0; k < some; k++)
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
