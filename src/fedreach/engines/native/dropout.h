/* Dropout: in training each number is 0 with probability `amount`, else divided by 1 - amount.

   Which ones is drawn from the client's key, the step, the example and the layer alone (Philox, counters as names): the
   way back asks again instead of remembering, and nothing depends on who else is trained. */

#pragma once
#include "batches.h"
#include "layers.h"

typedef struct {
    uint64_t key[2];
    int64_t step;
} Draws;

/* Drop some of n numbers of an example. */
static void drop(const Layer *l, const Draws *draws, int64_t layer, int64_t example, int64_t n, float *numbers)
{
    enum { AT_ONCE = 8 };
    uint64_t words[4];
    uint32_t limit = (uint32_t)(l->amount * 4294967296.0);
    float factor = (float)(1 / (1 - l->amount));
    for (int64_t i = 0; i < n; i += AT_ONCE) {
        uint64_t counter[4] = {(uint64_t)(i / AT_ONCE), (uint64_t)example, (uint64_t)draws->step, (uint64_t)layer};
        philox(counter, draws->key, words);
        for (int64_t j = i; j < n && j < i + AT_ONCE; j++) {
            uint32_t drawn = (uint32_t)(words[(j - i) / 2] >> 32 * ((j - i) % 2));
            numbers[j] = drawn < limit ? 0 : numbers[j] * factor;
        }
    }
}
