/* The kernels of a convolution with maxima of 2 x 2, for one width of vectors. Included once for each width, with
   NAME(x), the type LANE of a vector, INTEGER of as many whole numbers, BYTE of as many bytes, their number WIDTH, and
   PIECES_KNOWN, the sizes of pieces; none of these is defined afterwards.

   Every number is one chain of fused multiplications and additions in a fixed order, whatever the width: the bits of a
   run depend neither on the compiler nor on the processor. */

/* Windows of 2 x 2 places next to each other: the maxima of x W + b, and which of the four each is.

   in: the inputs of the first place; `step` numbers from a place to the next, `low` to the place below; a place sees
   `rows` pieces of `reach` numbers, `row` numbers apart. w: (rows x reach) x `wide`. */
static inline __attribute__((always_inline)) void NAME(windows)(
    int count, const float *in, int64_t step, int64_t low, int64_t row, int64_t rows, int64_t reach, const float *w,
    int64_t wide, const float *bias, int relu, int64_t filters, int64_t channels, float *y, uint8_t *where)
{
    int whole = channels >= WIDTH, spill = filters < WIDTH; /* into the next place, which is written later */
    LANE sum[WINDOWS][4];
    for (int i = 0; i < count; i++)
        for (int p = 0; p < 4; p++) sum[i][p] = *(const LANE *)bias;
    for (int64_t k = 0; k < rows; k++) {
        const float *top = in + k * row, *under = top + low;
        for (int64_t t = 0; t < reach; t++, w += wide) {
            LANE right = *(const LANE *)w;
            for (int i = 0; i < count; i++) {
                sum[i][0] = NAME(fused_all)(top[2 * i * step + t], right, sum[i][0]);
                sum[i][1] = NAME(fused_all)(top[(2 * i + 1) * step + t], right, sum[i][1]);
                sum[i][2] = NAME(fused_all)(under[2 * i * step + t], right, sum[i][2]);
                sum[i][3] = NAME(fused_all)(under[(2 * i + 1) * step + t], right, sum[i][3]);
            }
        }
    }
    for (int i = 0; i < count; i++) {
        LANE best = sum[i][0];
        INTEGER of = {0};
        for (int p = 1; p < 4; p++) { /* as torch does: the first of equals, and what is no number is never lost */
            INTEGER above = (sum[i][p] > best) | (sum[i][p] != sum[i][p]);
            best = (LANE)(((INTEGER)sum[i][p] & above) | ((INTEGER)best & ~above));
            of = (((INTEGER){0} + p) & above) | (of & ~above);
        }
        if (relu) best = (LANE)((INTEGER)best & ~(best < 0.0f));
        BYTE bytes = __builtin_convertvector(of, BYTE);
        if (whole || (spill && i + 1 < count)) {
            *(LANE *)(y + i * filters) = best;
            *(BYTE *)(where + i * filters) = bytes;
        } else {
            memcpy(y + i * filters, &best, sizeof *y * channels);
            memcpy(where + i * filters, &bytes, channels);
        }
    }
}

/* out (rows x vectors) += sum over i of g[i] times the piece of `in` that begins at at[i]. */
static inline __attribute__((always_inline)) void NAME(add_pieces)(
    int rows, int vectors, int64_t n, const int32_t *at, const float *g, const float *in, int64_t row, float *out,
    int64_t down)
{
    LANE sum[PIECES][ACROSS_FEW];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = *(LANE *)(out + r * down + v * WIDTH);
    for (int64_t i = 0; i < n; i++) {
        const float *piece = in + at[i];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] = NAME(fused_all)(g[i], *(const LANE *)(piece + r * row + v * WIDTH), sum[r][v]);
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) *(LANE *)(out + r * down + v * WIDTH) = sum[r][v];
}

/* The same for any number of rows of `reach` numbers; what follows these in a row of `out` may change. */
static void NAME(add_all_pieces)(
    int64_t rows, int64_t reach, int64_t n, const int32_t *at, const float *g, const float *in, int64_t row, float *out,
    int64_t down)
{
    int64_t vectors = (reach + WIDTH - 1) / WIDTH, most = rows > FEW_ROWS ? ACROSS : ACROSS_FEW;
    int64_t blocks = (vectors + most - 1) / most, pieces = rows > FEW_ROWS ? PIECES : FEW_ROWS;
    for (int64_t block = 0; block < blocks; block++) {
        int64_t begin = vectors * block / blocks, wide = vectors * (block + 1) / blocks - begin;
        for (int64_t r = 0; r < rows; r += pieces) {
            int64_t some = rows - r < pieces ? rows - r : pieces;
            const float *from = in + begin * WIDTH + r * row;
            float *to = out + begin * WIDTH + r * down;
#define PIECE(R, V) \
    case 16 * R + V: NAME(add_pieces)(R, V, n, at, g, from, row, to, down); break;
            switch (16 * some + wide) { /* sums stay in registers where their number is known */
                PIECES_KNOWN
            }
#undef PIECE
        }
    }
}

/* One row of pooled places, and channels from one on. */
static void NAME(row_of_windows)(
    int64_t places, const float *in, int64_t step, int64_t low, int64_t row, int64_t rows, int64_t reach, const float *w,
    int64_t wide, const float *bias, int relu, int64_t filters, int64_t channels, float *y, uint8_t *where)
{
    int64_t blocks = (places + WINDOWS - 1) / WINDOWS;
    for (int64_t block = 0; block < blocks; block++) {
        int64_t i = places * block / blocks, count = places * (block + 1) / blocks - i;
        const float *from = in + 2 * i * step;
#define COUNT(N)                                                                                                 \
    case N:                                                                                                      \
        NAME(windows)(N, from, step, low, row, rows, reach, w, wide, bias, relu, filters, channels,    \
            y + i * filters, where + i * filters);                                                                                \
        break;
        switch (count) {
            COUNT(1) COUNT(2) COUNT(3)
#if defined(__AVX512F__) || defined(__aarch64__)
            COUNT(4) COUNT(5) COUNT(6)
#endif
        }
#undef COUNT
    }
}

#undef PIECES_KNOWN
#undef NAME
#undef LANE
#undef INTEGER
#undef BYTE
#undef WIDTH
