/* The weighted sum of all updates of a round: `fedreach.federation.aggregation.weighted_sum`, bit by bit. */

#include <stdint.h>

/* total (d,) <- sum of weights[i] * rows[i, :d] in double precision, one row after the other. */
void add_up(int64_t count, int64_t d, const double *weights, const float *rows, int64_t stride, double *total)
{
    enum { BLOCK = 8192, TOGETHER = 4 }; /* sums stay in the cache; rows come from far, several at a time */
    static const float nothing[BLOCK];
    for (int64_t begin = 0; begin < d; begin += BLOCK) {
        int64_t size = begin + BLOCK < d ? BLOCK : d - begin;
        double *sum = total + begin;
        for (int64_t j = 0; j < size; j++) sum[j] = 0;
        for (int64_t i = 0; i < count; i += TOGETHER) {
            const float *row[TOGETHER];
            double weight[TOGETHER];
            for (int64_t r = 0; r < TOGETHER; r++) {
                int there = i + r < count;
                row[r] = there ? rows + (i + r) * stride + begin : nothing;
                weight[r] = there ? weights[i + r] : 0;
            }
            for (int64_t j = 0; j < size; j++) {
                double all = sum[j];
                for (int64_t r = 0; r < TOGETHER; r++) {
                    double product = weight[r] * row[r][j];
                    all += product;
                }
                sum[j] = all;
            }
        }
    }
}
