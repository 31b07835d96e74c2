/* Trains clients on a processor that Python does not run on: reads what `trainer.py` would hand over, writes updates.

   stdin: whole numbers (layers, fields of a layer, samples, inputs, batch, most, clients, d, words), then the
   arrays in the order of `main`. stdout: the updates. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const void *x;
    int64_t wide;
    const float *factor, *offset;
    const int64_t *labels;
} Samples;

typedef struct {
    double rate, momentum, decay, clip;
    const float *pull, *shift;
    const float *added;
} UpdateRule;

typedef struct {
    int64_t batch;
    const int64_t *steps;
    int64_t drop_last;
    const int64_t *order, *offsets;
    int64_t count;
    uint32_t *words;
    int64_t dropout;
} Batches;

int64_t memory_numbers(int64_t, const void *, const UpdateRule *, int64_t, int64_t);
void train(
    int64_t, const void *, const Samples *, const UpdateRule *, const Batches *, int64_t, int64_t, const int64_t *,
    const float *, float *, int64_t *, int64_t, const int64_t *, float *, int8_t *, double *, int64_t *,
    void *, int64_t, double);

static void *numbers(int64_t count, size_t size)
{
    void *made = aligned_alloc(64, (count * size + 127) / 64 * 64);
    if (fread(made, size, count, stdin) != (size_t)count) exit(2);
    return made;
}

int main(void)
{
    enum { LAYERS, FIELDS, SAMPLES, INPUTS, BATCH, MOST, CLIENTS, D, WORDS, HEADS };
    int64_t *n = numbers(HEADS, 8);
    void *layers = numbers(n[LAYERS] * n[FIELDS], 8);
    Samples samples = {.wide = 1};
    samples.x = numbers(n[SAMPLES] * n[INPUTS], 4);
    samples.labels = numbers(n[SAMPLES], 8);
    double *rates = numbers(4, 8);
    float *pull = numbers(n[CLIENTS], 4);
    UpdateRule rule = {rates[0], rates[1], rates[2], rates[3], pull[0] != 0 ? pull : 0, 0};
    Batches batches = {.batch = n[BATCH], .count = n[WORDS], .dropout = 7};
    batches.steps = numbers(n[CLIENTS], 8);
    batches.order = numbers(n[SAMPLES], 8);
    batches.offsets = numbers(n[CLIENTS] + 1, 8);
    batches.words = numbers(n[WORDS], 4);
    float *start = numbers(n[D], 4);
    int64_t k = n[CLIENTS], ids[64], taken[64];
    int8_t finite[64];
    double loss[64];
    int64_t progress[32] = {0}; /* what it keeps between two calls; here one goes through to the end */
    for (int64_t i = 0; i < k; i++) ids[i] = i;
    int64_t used = memory_numbers(n[LAYERS], layers, &rule, n[BATCH], n[MOST]);
    float *memory = aligned_alloc(64, used * 4 + 128), *update = malloc(k * n[D] * 4);
    int64_t *room = malloc(8 * (n[MOST] + n[SAMPLES]));
    train(n[LAYERS], layers, &samples, &rule, &batches, n[MOST], k, ids, start, memory, room, n[D], ids,
        update, finite, loss, taken, progress, 1 << 30, 1e9);
    fwrite(update, 4, k * n[D], stdout);
    return 0;
}
