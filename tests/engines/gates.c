/* The gates of `gates.h` for many numbers, a whole number of vectors. */

#include "gates.h"

void gates(int64_t n, const float *x, float *sigmoids, float *tangents)
{
    for (int64_t i = 0; i < n; i += LANES) {
        *(vector *)(sigmoids + i) = sigmoid(*(const vector *)(x + i));
        *(vector *)(tangents + i) = hyperbolic(*(const vector *)(x + i));
    }
}
