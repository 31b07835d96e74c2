#pragma once
#include <stdint.h>

/* The key of a generator that is seeded with words: those of the seed, at least four, then purpose, round and client. */
void key_of(int64_t count, const uint32_t *words, uint64_t *key);

/* Four random numbers for a counter of four. */
void philox(const uint64_t *counter, const uint64_t *key, uint64_t *x);

typedef struct {
    uint64_t key[2], counter[4], drawn[4];
    int next;      /* of the drawn numbers */
    uint32_t half; /* the upper half of a number whose lower half was used */
    int has_half;
} Generator;

/* Return the generator that is seeded with words. */
Generator seeded(int64_t count, const uint32_t *words);

/* Draw the next `steps` batches of a client, which are whole epochs but for its last: a plan (steps x batch) of its
   samples; -1 where a batch is not full.

   own: its `size` samples; each epoch is a fresh permutation, cut into `per_epoch` batches of `batch`, which may leave
   some out; spare: room for `size` numbers. */
void draw_epochs(
    Generator *generator, int64_t size, const int64_t *own, int64_t batch, int64_t per_epoch, int64_t steps,
    int64_t *spare, int64_t *plan);
