/* Layers of images: one example at a time, so that what one layer writes the next finds in the cache. */

#pragma once
#include "layers.h"

/* Tiles whose sums stay in registers: windows of maxima; rows of pieces and vectors across, of many rows or of few. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { WINDOWS = 6, PIECES = 5, ACROSS = 4, FEW_ROWS = 3, ACROSS_FEW = 7 };
#else
enum { WINDOWS = 3, PIECES = 5, ACROSS = 2, FEW_ROWS = 3, ACROSS_FEW = 3 };
#endif

typedef uint8_t octets __attribute__((vector_size(LANES), aligned(1), may_alias));
#define NAME(x) x
#define LANE vector
#define INTEGER integers
#define BYTE octets
#define WIDTH LANES
#if defined(__AVX512F__) || defined(__aarch64__)
#define FOR_ROWS(R) PIECE(R, 1) PIECE(R, 2) PIECE(R, 3) PIECE(R, 4)
#define FOR_FEW(R) FOR_ROWS(R) PIECE(R, 5) PIECE(R, 6) PIECE(R, 7)
#else
#define FOR_ROWS(R) PIECE(R, 1) PIECE(R, 2)
#define FOR_FEW(R) FOR_ROWS(R) PIECE(R, 3)
#endif
#define PIECES_KNOWN FOR_FEW(1) FOR_FEW(2) FOR_FEW(3) FOR_ROWS(4) FOR_ROWS(5)
#include "lanes.h"
#if defined(__AVX512F__) && defined(__FMA__) /* for few filters */
enum { HALF = 8 };
typedef float half_vector __attribute__((vector_size(4 * HALF), aligned(4), may_alias));
typedef int32_t half_integers __attribute__((vector_size(4 * HALF), aligned(4), may_alias));
typedef uint8_t half_octets __attribute__((vector_size(HALF), aligned(1), may_alias));
static inline half_vector half_fused_all(float a, half_vector b, half_vector c)
{
    return (half_vector)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
}

#define NAME(x) half_##x
#define LANE half_vector
#define INTEGER half_integers
#define BYTE half_octets
#define WIDTH HALF
#define PIECES_KNOWN PIECE(1, 1) PIECE(2, 1) PIECE(3, 1) PIECE(4, 1) PIECE(5, 1)
#include "lanes.h"
#else
enum { HALF = 0 };
#define half_row_of_windows row_of_windows
#define half_add_all_pieces add_all_pieces
#endif

/* Working memory of the layers of images. */
typedef struct {
    float *across[MAX_LAYERS];  /* filters as (rows x reach) x filters */
    float *gradient;            /* of a layer's numbers */
    int32_t *at;                /* filters x places: where a pooled gradient meets the inputs, */
    float *g;                   /* and the gradient */
    int64_t *count;             /* of these, for each filter */
    float *made, *products;     /* a row of places */
    float *turned[MAX_LAYERS];  /* filters turned round, as (rows x columns x filters) x channels, or 0 */
    float *bordered;            /* gradients of outputs, with zeros around them */
} Space;

/* Whether the gradient of the inputs is one of filters turned round, at all places of the outputs' gradient. */
static int turns(const Layer *l)
{
    return l->down == 1 && l->right == 1 && l->above < l->rows && l->left < l->columns;
}

/* Numbers of a row of outputs with its borders, and of all of them. */
static int64_t bordered_row(const Layer *l) { return (l->width + l->columns - 1) * l->filters; }
static int64_t bordered_numbers(const Layer *l) { return (l->height + l->rows - 1) * bordered_row(l); }
static int64_t turned_numbers(const Layer *l) { return l->rows * l->columns * l->filters * padded(l->channels); }

static int64_t across_wide(const Layer *l) { return l->pooled && l->filters <= HALF ? HALF : padded(l->filters); }

/* Let the filters stand as forward passes read them. */
static void spread(const Layer *l, const float *weights, float *across)
{
    int64_t wide = across_wide(l), size = filter_numbers(l), piece = padded(reach(l));
    for (int64_t k = 0; k < l->rows; k++)
        transposed(l->filters, reach(l), weights + k * piece, 0, size, across + k * reach(l) * wide, wide);
}

static void forward_pooled(const Layer *l, const float *weights, const float *across, Image x, Image y, uint8_t *where)
{
    int64_t high = out_high(l), width = out_wide(l), wide = across_wide(l), step = l->right * l->channels;
    const float *bias = weights + l->filters * filter_numbers(l);
    for (int64_t i = 0; i < high; i++) {
        const float *in = x.at + 2 * i * l->down * x.row;
        float *out = y.at + i * y.row;
        uint8_t *of = where + i * width * l->filters;
        if (wide == HALF) {
            half_row_of_windows(width, in, step, l->down * x.row, x.row, l->rows, reach(l), across, wide, bias, l->relu,
                l->filters, l->filters, out, of);
            continue;
        }
        for (int64_t j = 0; j < l->filters; j += LANES)
            row_of_windows(width, in, step, l->down * x.row, x.row, l->rows, reach(l), across + j, wide, bias + j,
                l->relu, l->filters, l->filters - j, out + j, of + j);
    }
}

static void forward_plain(
    const Layer *l, const float *weights, const float *across, Image x, Image y, const Space *space)
{
    int64_t high = made_high(l), width = made_wide(l), wide = across_wide(l), step = l->right * l->channels;
    const float *bias = weights + l->filters * filter_numbers(l);
    for (int64_t i = 0; i < high; i++) {
        float *made = wide == l->filters ? y.at + i * y.row : space->made, *out = y.at + i * y.row;
        for (int64_t j = 0; j < width * wide; j += wide)
            for (int64_t k = 0; k < wide; k += LANES) *(vector *)(made + j + k) = *(const vector *)(bias + k);
        Factor in = {x.at + i * l->down * x.row, step, 1, x.row}, filters = {across, wide, 1, reach(l) * wide};
        sum_of_products(width, wide, l->rows, reach(l), &in, &filters, made, wide, 1.0f, 1);
        if (l->relu)
            for (int64_t j = 0; j < width * wide; j++) made[j] = made[j] < 0 ? 0 : made[j];
        if (made != out)
            for (int64_t j = 0; j < width; j++)
                memcpy(out + j * l->filters, made + j * wide, sizeof *out * l->filters);
    }
}

static void add_where_passed(
    const Layer *l, int64_t n, const int32_t *at, const float *g, const float *in, int64_t row, float *out, int64_t down)
{
    if (HALF && reach(l) <= HALF) half_add_all_pieces(l->rows, reach(l), n, at, g, in, row, out, down);
    else add_all_pieces(l->rows, reach(l), n, at, g, in, row, out, down);
}

/* Back through the maxima: only where they lie is anything to be done. dW += and, where `dx.at`, dX +=.
   `dy` is written over. */
static void backward_pooled(
    const Layer *l, const float *weights, Image x, Image y, const uint8_t *where, Image dy, Image dx, float *gradient,
    const Space *space)
{
    int64_t high = out_high(l), width = out_wide(l), places = high * width, filters = l->filters;
    int64_t size = filter_numbers(l), piece = padded(reach(l));
    float *bias = gradient + filters * size;
    int32_t down = (int32_t)(2 * l->down * x.row), right = (int32_t)(2 * l->right * l->channels);
    const int32_t place[4] = {0, right / 2, down / 2, down / 2 + right / 2}; /* of a window */
    if (l->relu)
        for (int64_t i = 0; i < high; i++) keep_where_positive(width * filters, y.at + i * y.row, dy.at + i * dy.row);
    for (int64_t c = 0; c < filters; c++) {
        int32_t *at = space->at + c * places;
        float *passed = space->g + c * places, sum = bias[c];
        int64_t n = 0;
        for (int64_t i = 0; i < high; i++) { /* without a branch, as nobody foresees which pass */
            const float *g = dy.at + i * dy.row + c;
            const uint8_t *of = where + i * width * filters + c;
            for (int64_t j = 0; j < width; j++, g += filters, of += filters) {
                at[n] = (int32_t)i * down + (int32_t)j * right + place[*of];
                passed[n] = *g;
                n += *g != 0;
                sum += *g;
            }
        }
        bias[c] = sum;
        space->count[c] = n;
    }
    for (int64_t i = 0; i < high && dx.at; i++) {
        const float *g = dy.at + i * dy.row;
        for (int64_t j = 0; j < width; j++, g += filters, where += filters) {
            int32_t own[4][filters];
            float passed[4][filters];
            int64_t counted[4] = {0};
            for (int64_t c = 0; c < filters; c++) {
                int p = where[c];
                own[p][counted[p]] = (int32_t)(c * size);
                passed[p][counted[p]] = g[c];
                counted[p] += g[c] != 0;
            }
            for (int p = 0; p < 4; p++) /* the rows of filters end in zeros: what follows a piece of dX stays as it is */
                if (counted[p])
                    add_where_passed(l, counted[p], own[p], passed[p], weights, piece, dx.at + i * down + j * right + place[p],
                        dx.row);
        }
    }
    for (int64_t c = 0; c < filters; c++)
        add_where_passed(l, space->count[c], space->at + c * places, space->g + c * places, x.at, x.row,
            gradient + c * size, piece);
}

/* Let the filters stand as `backward_inputs` reads them. */
static void turn(const Layer *l, const float *weights, float *turned)
{
    int64_t c = l->channels, wide = padded(c), size = filter_numbers(l), piece = padded(reach(l));
    for (int64_t k = 0; k < l->rows; k++)
        for (int64_t t = 0; t < l->columns; t++)
            for (int64_t f = 0; f < l->filters; f++, turned += wide) {
                const float *own = weights + f * size + (l->rows - 1 - k) * piece + (l->columns - 1 - t) * c;
                memcpy(turned, own, sizeof *own * c);
                memset(turned + c, 0, sizeof *own * (wide - c));
            }
}

/* dX of filters that are one place apart: each place sums up what the places that saw it pass back. */
static void backward_inputs(const Layer *l, Image dy, Image dx, const float *turned, const Space *space)
{
    int64_t row = bordered_row(l), filters = l->filters, c = l->channels, wide = padded(c);
    int64_t above = l->rows - 1 - l->above, left = (l->columns - 1 - l->left) * filters, own = made_wide(l) * filters;
    memset(space->bordered, 0, sizeof *space->bordered * bordered_numbers(l));
    for (int64_t i = 0; i < made_high(l); i++)
        memcpy(space->bordered + (i + above) * row + left, dy.at + i * dy.row, sizeof *dy.at * own);
    for (int64_t i = 0; i < l->height; i++) {
        float *to = dx.at + i * dx.row, *made = wide == c ? to : space->products;
        Factor g = {space->bordered + i * row, filters, 1, row}, back = {turned, wide, 1, l->columns * filters * wide};
        sum_of_products(l->width, wide, l->rows, l->columns * filters, &g, &back, made, wide, 1.0f, 0);
        if (made != to)
            for (int64_t j = 0; j < l->width; j++) memcpy(to + j * c, made + j * wide, sizeof *to * c);
    }
}

/* dX of filters that are further apart: each place passes back to all that it saw; dX += . */
static void scatter_inputs(const Layer *l, const float *weights, Image dy, Image dx, const Space *space)
{
    int64_t width = made_wide(l), step = l->right * l->channels, piece = padded(reach(l)), size = filter_numbers(l);
    for (int64_t i = 0; i < made_high(l); i++)
        for (int64_t k = 0; k < l->rows; k++) {
            float *to = dx.at + (i * l->down + k) * dx.row;
            product(width, piece, l->filters, dy.at + i * dy.row, l->filters, 1, weights + k * piece, size, space->products,
                piece, 1.0f, 0);
            for (int64_t j = 0; j < width; j++)
                for (int64_t t = 0; t < reach(l); t++) to[j * step + t] += space->products[j * piece + t];
        }
}

/* Back through filters at all places: dW +=; where `dx.at`, dX, borders and all, of which `inside` leaves the borders
   out. `dy` is written over. */
static void backward_plain(
    const Layer *l, const float *weights, const float *turned, Image x, Image y, Image dy, Image dx, Image inside,
    float *gradient, const Space *space)
{
    int64_t high = made_high(l), width = made_wide(l), filters = l->filters, step = l->right * l->channels;
    int64_t size = filter_numbers(l), piece = padded(reach(l));
    float *bias = gradient + filters * size;
    for (int64_t i = 0; i < high; i++) {
        float *g = dy.at + i * dy.row;
        if (l->relu) keep_where_positive(width * filters, y.at + i * y.row, g);
        for (int64_t j = 0; j < width; j++)
            for (int64_t c = 0; c < filters; c++) bias[c] += g[j * filters + c];
    }
    for (int64_t k = 0; k < l->rows; k++) {
        Factor g = {dy.at, 1, filters, dy.row}, in = {x.at + k * x.row, step, 1, l->down * x.row};
        sum_of_products(filters, piece, high, width, &g, &in, gradient + k * piece, size, 1.0f, 1);
    }
    if (!dx.at) return;
    if (turned) backward_inputs(l, dy, inside, turned, space);
    else scatter_inputs(l, weights, dy, dx, space);
}
