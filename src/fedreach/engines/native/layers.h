/* The layers of a chain as Python describes them, and where their numbers stand. */

#pragma once
#include "products.h"
#include <math.h>

enum { MAX_LAYERS = 64 };
enum { DENSE, CONVOLUTION, MAXIMUM, MEAN, NORM, DROPOUT, ADDITION, EMBEDDING, RECURRENT };

/* Images lie as height x width x channels. Filters and windows see `rows` x `columns` places, `down` and `right` apart,
   with `above` and `left` zeros around the image. An embedding sees `inputs` tokens below `channels`, of which each becomes
   `outputs` numbers; a recurrent layer sees so many in turn, and its `outputs` are those after the last. */
typedef struct {
    int64_t kind, inputs, outputs; /* numbers of an example, borders not counted */
    int64_t weight, bias;          /* where W and b stand in the flat vector, or -1 */
    int64_t relu, pooled;          /* max(0, y) at the end; maxima of 2 x 2 places before it */
    int64_t channels, height, width, filters, rows, columns, down, right, above, left, groups;
    int64_t source, source_down, source_right, before; /* layer whose inputs are added: places that are apart, and zeros
                                                          before their channels */
    double amount; /* that a variance is raised by; probability that a number is dropped, also of dense outputs */
} Layer;

/* Where one example of a layer's inputs or outputs stands: its first place, and from a row to the next. */
typedef struct {
    float *at;
    int64_t row;
} Image;

static int64_t padded(int64_t numbers) { return (numbers + LANES - 1) / LANES * LANES; }

static int64_t made_high(const Layer *l) { return (l->height + 2 * l->above - l->rows) / l->down + 1; }
static int64_t made_wide(const Layer *l) { return (l->width + 2 * l->left - l->columns) / l->right + 1; }
static int64_t out_high(const Layer *l) { return made_high(l) / (l->pooled ? 2 : 1); }
static int64_t out_wide(const Layer *l) { return made_wide(l) / (l->pooled ? 2 : 1); }
static int64_t reach(const Layer *l) { return l->columns * l->channels; } /* inputs of a row of a filter */
static int64_t filter_numbers(const Layer *l) { return l->rows * padded(reach(l)); }

/* Numbers of a layer as they stand here: a dense one as (inputs + 1) x outputs, the bias last; filters as filters x rows
   x reach, and the biases. All rows are filled up with zeros to whole vectors. */
static int64_t numbers_of(const Layer *l)
{
    if (l->kind == DENSE) return (l->inputs + 1) * padded(l->outputs);
    if (l->kind == NORM && l->weight >= 0) return 2 * padded(l->channels);
    if (l->kind == EMBEDDING) return l->channels * padded(l->outputs);
    if (l->kind == RECURRENT) return (l->inputs + l->outputs + 2) * padded(4 * l->outputs);
    return l->kind == CONVOLUTION ? l->filters * filter_numbers(l) + padded(l->filters) : 0;
}

static void keep_where_positive(int64_t n, const float *y, float *dy)
{
    for (int64_t i = 0; i < n; i++) dy[i] = y[i] <= 0 ? 0 : dy[i];
}

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
