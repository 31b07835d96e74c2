/* Cross-entropy of logits, and its gradient. */

#pragma once
#include "exponential.h"
#include "model.h"

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
