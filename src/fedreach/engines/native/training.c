/* Local SGD of chains of dense layers, one client after the other; `engine.py` calls it.

   Written for whatever vectors the processor has: it is compiled where it runs. Matrices are row by row, and rows of
   weights, outputs and errors are filled up with zeros to whole vectors. Weights stand transposed, (inputs x outputs),
   with the bias as one more row: so all products but one read and write them as they lie. */

#include "batches.h"
#include <math.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 12 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 6 };
#elif defined(__aarch64__)
enum { LANES = 4, ROWS = 12 };
#else
enum { LANES = 4, ROWS = 6 };
#endif
enum {
    VECTORS = 2,  /* next to each other in a tile: ROWS x VECTORS sums stay in registers */
    DEPTH = 256,  /* rows of the right factor at a time: as many as stay in the nearest cache */
    MOST_LAYERS = 32,
};

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* ------------------------------------------------------------------------------------------------ products */

/* A tile of C <- (C +) scale A B, with A[i, k] = a[i * down + k * along]. */
static inline __attribute__((always_inline)) void tile(
    int rows, int vectors, int64_t depth, const float *a, int64_t down, int64_t along, const float *b, int64_t ldb,
    float *c, int64_t ldc, float scale, int add)
{
    vector sum[ROWS][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) sum[i][j] = (vector){0};
    for (int64_t k = 0; k < depth; k++) {
        vector right[VECTORS];
        for (int j = 0; j < vectors; j++) right[j] = *(const vector *)(b + k * ldb + j * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) sum[i][j] += a[i * down + k * along] * right[j];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            vector *out = (vector *)(c + i * ldc + j * LANES);
            *out = add ? *out + scale * sum[i][j] : scale * sum[i][j];
        }
}

/* C (m x n) <- (C +) scale A B; n is a whole number of vectors. */
static void product(
    int64_t m, int64_t n, int64_t depth, const float *a, int64_t down, int64_t along, const float *b, int64_t ldb,
    float *c, int64_t ldc, float scale, int add)
{
    int64_t blocks = (m + ROWS - 1) / ROWS;
    for (int64_t k = 0; k < depth; k += DEPTH) {
        int64_t deep = depth - k < DEPTH ? depth - k : DEPTH;
        for (int64_t j = 0; j < n; j += VECTORS * LANES)
            for (int64_t block = 0; block < blocks; block++) {
                int64_t i = m * block / blocks, rows = m * (block + 1) / blocks - i;
                const float *left = a + i * down + k * along, *right = b + k * ldb + j;
                float *out = c + i * ldc + j;
#define TILE(R)                                                                                          \
    case R:                                                                                              \
        if (n - j > LANES) tile(R, 2, deep, left, down, along, right, ldb, out, ldc, scale, add || k);   \
        else tile(R, 1, deep, left, down, along, right, ldb, out, ldc, scale, add || k);                 \
        break;
                switch (rows) { /* sums stay in registers where their number is known */
                    TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if defined(__AVX512F__) || defined(__aarch64__)
                    TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
                }
            }
    }
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t places __attribute__((vector_size(16)));
#define PICK(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

/* to (n x m) <- the transpose of from (m x n), less that of `less` where there is one; a line of the cache abreast. */
static inline __attribute__((always_inline)) void transposed(
    int64_t m, int64_t n, const float *from, const float *less, int64_t ldf, float *to, int64_t ldt)
{
    enum { LINE = 16 };
    for (int64_t begin = 0; begin < n; begin += LINE) {
        int64_t end = begin + LINE < n ? begin + LINE : n, i = 0;
        for (; i + 4 <= m; i += 4) {
            const float *own = from + i * ldf, *base = less ? less + i * ldf : 0;
            int64_t j = begin;
            for (; j + 4 <= end; j += 4) {
                four row[4];
                for (int r = 0; r < 4; r++) {
                    row[r] = *(const four *)(own + r * ldf + j);
                    if (less) row[r] -= *(const four *)(base + r * ldf + j);
                }
                four a = PICK(row[0], row[1], 0, 4, 2, 6), b = PICK(row[0], row[1], 1, 5, 3, 7);
                four c = PICK(row[2], row[3], 0, 4, 2, 6), d = PICK(row[2], row[3], 1, 5, 3, 7);
                *(four *)(to + j * ldt + i) = PICK(a, c, 0, 1, 4, 5);
                *(four *)(to + (j + 1) * ldt + i) = PICK(b, d, 0, 1, 4, 5);
                *(four *)(to + (j + 2) * ldt + i) = PICK(a, c, 2, 3, 6, 7);
                *(four *)(to + (j + 3) * ldt + i) = PICK(b, d, 2, 3, 6, 7);
            }
            for (; j < end; j++)
                for (int r = 0; r < 4; r++) to[j * ldt + i + r] = own[r * ldf + j] - (less ? base[r * ldf + j] : 0);
        }
        for (; i < m; i++)
            for (int64_t j = begin; j < end; j++) to[j * ldt + i] = from[i * ldf + j] - (less ? less[i * ldf + j] : 0);
    }
}

static int all_finite(int64_t n, const float *numbers)
{
    const uint32_t exponent = 0x7f800000; /* all its bits stand for infinity, or no number */
    uint32_t found = 0, bits;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&bits, numbers + i, sizeof bits);
        found |= (bits & exponent) == exponent;
    }
    return !found;
}

/* Copy numbers to where they are not needed soon: past the cache, where there is a way. */
static void copy_away(int64_t n, const float *from, float *to)
{
    int64_t i = 0;
#if defined(__SSE2__)
    for (; i < n && (uintptr_t)(to + i) % 16; i++) to[i] = from[i];
    for (; i + 4 <= n; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#endif
    memcpy(to + i, from + i, sizeof *to * (n - i));
}

/* ------------------------------------------------------------------------------------------------- a model */

typedef struct {
    int64_t inputs, outputs, weight, bias, relu; /* where W (outputs x inputs) and b stand in the flat vector, or -1 */
} Layer;

typedef struct {
    int64_t count, classes, numbers; /* of all layers, as they stand here */
    const Layer *layers;
    int64_t begin[MOST_LAYERS + 1];
    float *x[MOST_LAYERS + 1], *dx[MOST_LAYERS + 1]; /* x[0] the inputs, x[count] the logits; and their gradients */
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

/* --------------------------------------------------------------------------------------------- the examples */

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

/* --------------------------------------------------------------------------------------------- local training */

typedef struct {
    double rate, momentum, decay, clip; /* clip: of the norm of a gradient, not positive where it is not clipped */
    const float *pull;                  /* (clients,) or 0 */
    const float *shift;                 /* (clients x numbers of the flat vector) or 0 */
} Rule;

typedef struct {
    int64_t batch, epochs, steps;   /* steps: of each client, 0 where epochs count */
    const int64_t *order, *offsets; /* client i owns order[offsets[i]] to order[offsets[i + 1]] */
    int64_t count;
    uint32_t *words;      /* (count,) of the generators, of which the last is replaced by the client */
    const int64_t *given; /* the plan of the only client, where C is not to draw it, or 0 */
} Batches;

/* W <- W - rate v, v <- momentum v + clipped(g + pull (W - start) + shift) + decay W. */
static void follow(
    const Rule *rule, float pull, int64_t n, float *weights, const float *start, const float *shift, float *g,
    float *velocity)
{
    float rate = (float)rule->rate, momentum = (float)rule->momentum, decay = (float)rule->decay, factor = 1;
    double square = 0;
    for (int64_t i = 0; i < n; i++) g[i] += pull * (weights[i] - start[i]) + (shift ? shift[i] : 0);
    if (rule->clip > 0) {
        for (int64_t i = 0; i < n; i++) square += (double)g[i] * g[i];
        double norm = sqrt(square);
        if (!(norm <= rule->clip)) factor = (float)(rule->clip / norm);
    }
    for (int64_t i = 0; i < n; i++) {
        float move = g[i] * factor + decay * weights[i];
        if (velocity) velocity[i] = move = momentum * velocity[i] + move;
        weights[i] -= rate * move;
    }
}

enum { ABREAST = 4 * ROWS }; /* rows of a move that are made at a time */

/* A first layer whose weights are not formed until training is over, see `fedreach.engines.span`. */
typedef struct {
    int64_t room;                                     /* examples that a client may see; 0: the layer is as any other */
    float *x, *across, *first, *products, *dy, *move; /* X, its transpose, X W, X_t X', the errors, how far W moves */
} Span;

static Span span_for(const Model *model, int64_t batch, int plain, Memory *memory)
{
    enum { LARGE = 16384 }; /* weights that are worth being done without */
    const Layer *layer = model->layers;
    if (!plain || model->count < 2 || layer->inputs * layer->outputs < LARGE) return (Span){0};
    Span span = {.room = layer->outputs};
    int64_t wide = padded(layer->outputs);
    span.x = take(memory, span.room * padded(layer->inputs));
    span.across = take(memory, layer->inputs * padded(span.room));
    span.first = take(memory, span.room * wide);
    span.products = take(memory, batch * padded(span.room));
    span.dy = take(memory, span.room * wide);
    span.move = take(memory, ABREAST * padded(layer->inputs));
    return span;
}

/* Let all examples of a client meet the weights that were broadcast. */
static void begin_span(const Model *model, const Span *span, const Samples *samples, const float *weights,
                       int64_t steps, int64_t batch, const int64_t *plan)
{
    const Layer *layer = model->layers;
    int64_t wide = padded(layer->outputs), before = padded(layer->inputs), seen = 0;
    for (int64_t step = 0; step < steps; step++, plan += batch) {
        int64_t m = 0;
        while (m < batch && plan[m] >= 0) m++;
        gather(samples, m, plan, layer->inputs, span->x + seen * before);
        seen += m;
    }
    transposed(seen, layer->inputs, span->x, 0, before, span->across, padded(span->room));
    for (int64_t i = 0; i < seen; i++)
        memcpy(span->first + i * wide, weights + layer->inputs * wide, sizeof *weights * wide);
    product(seen, wide, layer->inputs, span->x, before, 1, weights, wide, span->first, wide, 1.0f, 1);
}

/* Write what the first layer makes of m examples after the `seen` ones: X W' = X W - rate (X X_seen') D_seen. */
static void forward_span(const Model *model, const Span *span, int64_t seen, int64_t m, float rate)
{
    const Layer *layer = model->layers;
    int64_t wide = padded(layer->outputs), before = padded(layer->inputs), across = padded(span->room);
    float *y = model->x[1];
    memcpy(y, span->first + seen * wide, sizeof *y * m * wide);
    if (seen) {
        product(m, padded(seen), layer->inputs, span->x + seen * before, before, 1, span->across, across, span->products,
                across, 1.0f, 0);
        if (layer->bias >= 0) /* the weight of an input that is always 1 */
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < seen; j++) span->products[i * across + j] += 1;
        product(m, wide, seen, span->products, across, 1, span->dy, wide, y, wide, -rate, 1);
    }
    if (layer->relu) keep_positive(m * wide, y);
}

/* Take in the gradient of what `forward_span` wrote. */
static void backward_span(const Model *model, const Span *span, int64_t seen, int64_t m)
{
    int64_t wide = padded(model->layers->outputs);
    if (model->layers->relu) keep_where_positive(m * wide, model->x[1], model->dx[1]);
    memcpy(span->dy + seen * wide, model->dx[1], sizeof *span->dy * m * wide);
}

/* Write how far the first layer has moved into a flat vector, -rate D' X; return whether all of it is finite. */
static int write_span(const Model *model, const Span *span, int64_t seen, float rate, float *flat)
{
    const Layer *layer = model->layers;
    int64_t inputs = layer->inputs, outputs = layer->outputs, wide = padded(outputs), before = padded(inputs);
    float *bias = flat + layer->bias;
    int finite = 1;
    /* Through the cache: a product that writes to memory far away waits for each line of it. */
    for (int64_t begin = 0; begin < outputs; begin += ABREAST) {
        int64_t rows = outputs - begin < ABREAST ? outputs - begin : ABREAST;
        product(rows, before, seen, span->dy + begin, 1, wide, span->x, before, span->move, before, -rate, 0);
        for (int64_t j = 0; j < rows; j++)
            copy_away(inputs, span->move + j * before, flat + layer->weight + (begin + j) * inputs);
        finite &= all_finite(rows * before, span->move);
    }
    if (layer->bias < 0) return finite;
    memset(bias, 0, sizeof *flat * outputs);
    for (int64_t i = 0; i < seen; i++)
        for (int64_t j = 0; j < outputs; j++) bias[j] -= rate * span->dy[i * wide + j];
    return finite & all_finite(outputs, bias);
}

typedef struct {
    Model model;
    Span span;
    float *start, *weights, *gradient, *shift, *velocity;
} Work;

static Work laid(int64_t count, const Layer *layers, const Rule *rule, int64_t batch, Memory *memory)
{
    Work work = {.model = laid_out(count, layers, batch, memory)};
    int64_t n = work.model.numbers;
    int plain = !rule->pull && !rule->shift && rule->momentum == 0 && rule->decay == 0 && rule->clip <= 0;
    work.span = span_for(&work.model, batch, plain, memory);
    work.start = take(memory, n);
    work.weights = take(memory, n);
    if (!plain) work.gradient = take(memory, n);
    if (rule->shift) work.shift = take(memory, n);
    if (rule->momentum != 0) work.velocity = take(memory, n);
    return work;
}

/* Numbers of working memory that `train` needs for batches that are not larger. */
int64_t memory_numbers(int64_t count, const Layer *layers, const Rule *rule, int64_t batch)
{
    Memory memory = {0};
    laid(count, layers, rule, batch, &memory);
    return memory.used;
}

/* Train one client, from `work.start`; return its summed loss. */
static double train_one(
    const Work *work, const Samples *samples, const Rule *rule, float pull, int64_t steps, int64_t batch,
    const int64_t *plan, float *flat, int8_t *finite)
{
    const Model *model = &work->model;
    int spans = steps * batch <= work->span.room, first = spans ? 1 : 0;
    int64_t from = model->begin[first], seen = 0;
    float rate = (float)rule->rate, *weights = work->weights;
    double loss = 0;
    memcpy(weights + from, work->start + from, sizeof *weights * (model->numbers - from));
    if (work->velocity) memset(work->velocity, 0, sizeof *weights * model->numbers);
    if (spans) begin_span(model, &work->span, samples, work->start, steps, batch, plan);
    for (int64_t step = 0; step < steps; step++, plan += batch) {
        int64_t m = batch;
        while (plan[m - 1] < 0) m--;
        if (spans) forward_span(model, &work->span, seen, m, rate);
        else gather(samples, m, plan, model->layers[0].inputs, model->x[0]);
        forward(model, first, weights, m);
        loss += errors(model, m, plan, samples->labels);
        if (work->gradient) {
            backward(model, 0, weights, work->gradient, m, 1.0f, 0);
            follow(rule, pull, model->numbers, weights, work->start, work->shift, work->gradient, work->velocity);
        } else /* the gradient is never stored */
            backward(model, first, weights, weights, m, -rate, 1);
        if (spans) backward_span(model, &work->span, seen, m);
        seen += m;
    }
    *finite = write_move(model, first, weights, work->start, flat);
    if (spans) *finite &= write_span(model, &work->span, seen, rate, flat);
    return loss;
}

/* Train clients from `start`; write how far each moved into its row of `update` and whether that is finite, its mean
   loss, and how many steps it took. Room for plans is needed for the largest of them, and its examples once more. */
void train(
    int64_t count, const Layer *layers, const Samples *samples, const Rule *rule, const Batches *batches,
    int64_t clients, const int64_t *ids, const float *start, float *memory, int64_t *room, int64_t d,
    const int64_t *row, float *update, int8_t *finite, double *loss, int64_t *taken)
{
    Memory taken_from = {.begin = memory};
    Work work = laid(count, layers, rule, batches->batch, &taken_from);
    bring(&work.model, start, work.start);
    for (int64_t client = 0; client < clients; client++) {
        int64_t begin = batches->offsets[ids[client]], size = batches->offsets[ids[client] + 1] - begin;
        int64_t batch = size < batches->batch ? size : batches->batch, per_epoch = (size + batch - 1) / batch;
        int64_t steps = batches->steps ? batches->steps : batches->epochs * per_epoch;
        const int64_t *plan = batches->given;
        if (!plan) {
            batches->words[batches->count - 1] = (uint32_t)ids[client];
            draw_plan(batches->count, batches->words, size, batches->order + begin, batch, steps, room, room + size);
            plan = room + size;
        }
        if (work.shift) bring(&work.model, rule->shift + client * d, work.shift);
        float pull = rule->pull ? rule->pull[client] : 0;
        int64_t row_at = row[client], whole = steps / per_epoch;
        loss[client] = train_one(&work, samples, rule, pull, steps, batch, plan, update + row_at * d, finite + client);
        loss[client] /= (double)(whole * size + (steps - whole * per_epoch) * batch);
        taken[client] = steps;
    }
}

/* ------------------------------------------------------------------------------------------------- evaluation */

enum { ABOUT = 64 }; /* examples at a time */

/* Numbers of working memory that `predict` needs. */
int64_t memory_for_predicting(int64_t count, const Layer *layers)
{
    Memory memory = {0};
    Model model = laid_out(count, layers, ABOUT, &memory);
    take(&memory, model.numbers);
    return memory.used;
}

/* Write for each of m samples whether a model, a flat vector, is right, and its loss. */
void predict(
    int64_t count, const Layer *layers, const Samples *samples, int64_t m, const int64_t *sample, const float *flat,
    float *given, int8_t *right, float *loss)
{
    Memory memory = {.begin = given};
    Model model = laid_out(count, layers, ABOUT, &memory);
    float *weights = take(&memory, model.numbers), sum;
    int64_t classes = model.classes, wide = padded(classes);
    bring(&model, flat, weights);
    for (int64_t begin = 0; begin < m; begin += ABOUT) {
        int64_t some = m - begin < ABOUT ? m - begin : ABOUT;
        gather(samples, some, sample + begin, layers[0].inputs, model.x[0]);
        forward(&model, 0, weights, some);
        for (int64_t i = 0; i < some; i++) {
            const float *z = model.x[count] + i * wide;
            int64_t label = samples->labels[sample[begin + i]], best = 0;
            for (int64_t j = 1; j < classes; j++) /* as torch does, what is no number counts as the largest */
                if (z[j] > z[best] || (z[j] != z[j] && z[best] == z[best])) best = j;
            right[begin + i] = best == label;
            loss[begin + i] = loss_of(classes, z, label, model.dx[count], &sum);
        }
    }
}
