/* Cross-entropy of logits, and its gradient. */

#pragma once
#include "model.h"

/* e^x of numbers that are not above 0, to a few units in the last place. */
static inline vector exponential(vector x)
{
    const vector none = {0};
    integers in_range = x > -87.0f; /* below that, as good as 0 */
    x = (vector)(((integers)x & in_range) | ((integers)(none - 87.0f) & ~in_range));
    vector whole = fused_all(1.44269504088896341f, x, none + 12582912.0f); /* 1.5 x 2^23: its last bits hold the rounded number */
    integers exponent = (integers)whole << 23;
    whole -= 12582912.0f;
    x = fused_all(2.12194440e-4f, whole, fused_all(-0.693359375f, whole, x)); /* less a multiple of ln 2, in two parts */
    vector p = fused_all(1.9875691500e-4f, x, none + 1.3981999507e-3f);
    p = fused_each(p, x, none + 8.3334519073e-3f);
    p = fused_each(p, x, none + 4.1665795894e-2f);
    p = fused_each(p, x, none + 1.6666665459e-1f);
    p = fused_each(p, x, none + 5.0000001201e-1f);
    return (vector)((integers)(fused_each(p * x, x, x) + 1.0f) + exponent);
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

/* Write the gradient of the mean cross-entropy of the logits, and of what is `added` to them; return the sum of the
   losses. */
static double errors(const Model *model, int64_t m, const int64_t *sample, const int64_t *labels, const float *added)
{
    int64_t classes = model->classes, wide = padded(classes);
    double loss = 0;
    for (int64_t i = 0; i < m; i++) {
        float *z = model->x[model->count] + i * wide, *g = model->dx[model->count] + i * wide;
        int64_t label = labels[sample[i]];
        float sum;
        if (added)
            for (int64_t j = 0; j < classes; j++) z[j] += added[j];
        loss += loss_of(classes, z, label, g, &sum);
        float share = 1 / (sum * m);
        for (int64_t j = 0; j < classes; j++) g[j] *= share;
        g[label] -= 1.0f / m;
    }
    return loss;
}
