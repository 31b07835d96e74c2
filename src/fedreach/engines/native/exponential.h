/* e^x, to a few units in the last place, with the same bits everywhere. */

#pragma once
#include "products.h"

/* e^x = scale (1 + rest) of numbers that are not above 0; what is no number stays none. */
static inline void power(vector x, vector *scale, vector *rest)
{
    const vector none = {0};
    integers low = x < -87.0f; /* below that, as good as 0 */
    x = (vector)(((integers)x & ~low) | ((integers)(none - 87.0f) & low));
    vector whole = fused_all(1.44269504088896341f, x, none + 12582912.0f); /* 1.5 x 2^23: its last bits hold the rounded number */
    *scale = (vector)(((integers)whole << 23) + 0x3f800000);
    whole -= 12582912.0f;
    x = fused_all(2.12194440e-4f, whole, fused_all(-0.693359375f, whole, x)); /* less a multiple of ln 2, in two parts */
    vector p = fused_all(1.9875691500e-4f, x, none + 1.3981999507e-3f);
    p = fused_each(p, x, none + 8.3334519073e-3f);
    p = fused_each(p, x, none + 4.1665795894e-2f);
    p = fused_each(p, x, none + 1.6666665459e-1f);
    p = fused_each(p, x, none + 5.0000001201e-1f);
    *rest = fused_each(p * x, x, x);
}

/* e^x of such numbers. */
static inline vector exponential(vector x)
{
    vector scale, rest;
    power(x, &scale, &rest);
    return fused_each(scale, rest, scale);
}
