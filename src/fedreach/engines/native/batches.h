#pragma once
#include <stdint.h>

/* The key of a generator that is seeded with words: those of the seed, at least four, then purpose, round and client. */
void key_of(int64_t count, const uint32_t *words, uint64_t *key);

/* Four random numbers for a counter of four. */
void philox(const uint64_t *counter, const uint64_t *key, uint64_t *x);

void draw_plan(
    int64_t count, const uint32_t *words, int64_t size, const int64_t *own, int64_t batch, int64_t per_epoch,
    int64_t steps, int64_t *spare, int64_t *plan);
