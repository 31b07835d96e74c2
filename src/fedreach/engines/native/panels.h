/* Products with a matrix that is used many times: it stands in panels, as wide as a tile, read from end to end. */

#pragma once
#include "products.h"

enum { PANEL = VECTORS * LANES };

/* From a row to the next in working memory: an odd number of lines, so that those of a column do not drive each other
   out of the cache. */
static int64_t apart(int64_t numbers) { return 16 * ((numbers + 15) / 16 | 1); }

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
            KNOWN_TILE(rows, n - j, panel_tile, depth, left, lda, panels, from, ldd, to, ldc)
        }
}
