/* Sigmoids and hyperbolic tangents, to three units in the last place, with the same bits everywhere. */

#pragma once
#include "exponential.h"

enum { SIGN = -0x7fffffff - 1 }; /* the bit of it */

/* 1 / (1 + e^-x), by e^-|x|: small numbers keep their digits, too. */
static inline vector sigmoid(vector x)
{
    const vector none = {0};
    integers below = x < 0.0f;
    vector e = exponential((vector)((integers)x | SIGN));
    vector above = (vector)(((integers)e & below) | ((integers)(none + 1.0f) & ~below));
    return above / (e + 1.0f);
}

/* (1 - e) / (1 + e) of e = e^-2|x|, with the sign of x; e - 1 is formed without loss. */
static inline vector hyperbolic(vector x)
{
    vector scale, rest;
    power(2.0f * (vector)((integers)x | SIGN), &scale, &rest);
    vector e = fused_each(scale, rest, scale - 1.0f);
    vector size = e / (e + 2.0f);
    return (vector)(((integers)size & ~SIGN) | ((integers)x & SIGN));
}
