/* Products of small matrices, and what else is done to rows of numbers, with whatever vectors the processor has.

   Matrices are row by row; `n` of a product is a whole number of vectors: rows are filled up with zeros. */

#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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
    SOON = 64,    /* rows while whose products what they are added to may come from far */
    DEPTH = 256,  /* rows of the right factor at a time: as many as stay in the nearest cache */
};

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* a b + c in one rounding, where the processor has it. Nothing else is ever contracted (-ffp-contract=off): what a number
   comes to must not depend on the compiler's mood. */
static inline float fused(float a, float b, float c)
{
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

static inline vector fused_all(float a, vector b, vector c)
{
#if defined(__AVX512F__)
    return (vector)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)c);
#elif defined(__AVX__) && defined(__FMA__)
    return (vector)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vector)vfmaq_n_f32((float32x4_t)c, (float32x4_t)b, a);
#else
    return a * b + c;
#endif
}

static inline vector fused_each(vector a, vector b, vector c)
{
#if defined(__AVX512F__)
    return (vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX__) && defined(__FMA__)
    return (vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Factors of a sum of products A_r B_r: A_r[i, k] = a[r * next + i * down + k * along], B_r[k, j] = b[r * next + k * down
   + j]. Either `down` or `along` of the left one is 1. */
typedef struct {
    const float *at;
    int64_t down, along, next;
} Factor;

/* tile(rows, vectors, ...) of so many rows, `wide` numbers wide: sums stay in registers where both are known. */
#define TILE(R, wide, tile, ...)                     \
    case R:                                          \
        if ((wide) > LANES) tile(R, 2, __VA_ARGS__); \
        else tile(R, 1, __VA_ARGS__);                \
        break;
#define SIX_TILES(...) \
    TILE(1, __VA_ARGS__) TILE(2, __VA_ARGS__) TILE(3, __VA_ARGS__) TILE(4, __VA_ARGS__) TILE(5, __VA_ARGS__) TILE(6, __VA_ARGS__)
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILES(...)                                                                        \
    SIX_TILES(__VA_ARGS__) TILE(7, __VA_ARGS__) TILE(8, __VA_ARGS__) TILE(9, __VA_ARGS__) \
    TILE(10, __VA_ARGS__) TILE(11, __VA_ARGS__) TILE(12, __VA_ARGS__)
#else
#define TILES SIX_TILES
#endif
#define KNOWN_TILE(rows, ...) \
    switch (rows) {           \
        TILES(__VA_ARGS__)    \
    }

/* A tile of C <- (C +) scale sum of A_r B_r. */
static inline __attribute__((always_inline)) void tile(
    int rows, int vectors, int64_t count, int64_t depth, const float *a, int64_t down, int64_t along, int64_t next,
    const float *b, int64_t ldb, int64_t next_b, float *c, int64_t ldc, float scale, int add)
{
    vector sum[ROWS][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) sum[i][j] = (vector){0};
    for (int64_t r = 0; r < count; r++, a += next, b += next_b)
        for (int64_t k = 0; k < depth; k++) {
            vector right[VECTORS];
            for (int j = 0; j < vectors; j++) right[j] = *(const vector *)(b + k * ldb + j * LANES);
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < vectors; j++) sum[i][j] = fused_all(a[i * down + k * along], right[j], sum[i][j]);
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            vector *out = (vector *)(c + i * ldc + j * LANES);
            *out = add ? *out + scale * sum[i][j] : scale * sum[i][j];
        }
}

static inline __attribute__((always_inline)) void tiles(
    int64_t m, int64_t n, int64_t count, int64_t depth, const float *a, int64_t down, int64_t along, int64_t next,
    const float *b, int64_t ldb, int64_t next_b, float *c, int64_t ldc, float scale, int add)
{
    int64_t blocks = (m + ROWS - 1) / ROWS;
    for (int64_t j = 0; j < n; j += VECTORS * LANES)
        for (int64_t block = 0; block < blocks; block++) {
            int64_t i = m * block / blocks, rows = m * (block + 1) / blocks - i;
            const float *left = a + i * down, *right = b + j;
            float *out = c + i * ldc + j;
            for (int64_t r = rows; add && count * depth >= SOON && r < 2 * rows; r++) { /* the next tile's */
                __builtin_prefetch(out + r * ldc, 1);
                __builtin_prefetch(out + r * ldc + LANES, 1);
            }
            KNOWN_TILE(rows, n - j, tile, count, depth, left, down, along, next, right, ldb, next_b, out, ldc, scale, add)
        }
}

/* C (m x n) <- (C +) scale sum of `count` products A_r B_r of this depth; n is a whole number of vectors. */
static __attribute__((noinline)) void sum_of_products(
    int64_t m, int64_t n, int64_t count, int64_t depth, const Factor *a, const Factor *b, float *c, int64_t ldc, float scale,
    int add)
{
    if (a->along == 1)
        tiles(m, n, count, depth, a->at, a->down, 1, a->next, b->at, b->down, b->next, c, ldc, scale, add);
    else tiles(m, n, count, depth, a->at, 1, a->along, a->next, b->at, b->down, b->next, c, ldc, scale, add);
}

/* C (m x n) <- (C +) scale A B, with A[i, k] = a[i * down + k * along]; n is a whole number of vectors. */
static void product(
    int64_t m, int64_t n, int64_t depth, const float *a, int64_t down, int64_t along, const float *b, int64_t ldb,
    float *c, int64_t ldc, float scale, int add)
{
    for (int64_t k = 0; k < depth; k += DEPTH) {
        int64_t deep = depth - k < DEPTH ? depth - k : DEPTH;
        Factor left = {a + k * along, down, along, 0}, right = {b + k * ldb, ldb, 1, 0};
        sum_of_products(m, n, 1, deep, &left, &right, c, ldc, scale, add || k);
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

/* Return when what was copied away stands where all processors see it. */
static void wait_for_copies(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
