/* Which examples a client sees in which step: `fedreach.engines.batches.batch_plans`, number by number.

   Each client has a generator of its own, as `fedreach._util.streams.generator` makes it: NumPy's SeedSequence seeds a
   Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */

#include "batches.h"
#include <string.h>

static uint32_t hashed(uint32_t value, uint32_t *constant, uint32_t factor)
{
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mixed(uint32_t x, uint32_t y)
{
    uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ result >> 16;
}

void key_of(int64_t count, const uint32_t *words, uint64_t *key)
{
    const uint32_t factor = 0x931e8875u;
    uint32_t pool[4], constant = 0x43b0d7e5u, half[4];
    for (int i = 0; i < 4; i++) pool[i] = hashed(words[i], &constant, factor);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (i != j) pool[j] = mixed(pool[j], hashed(pool[i], &constant, factor));
    for (int64_t i = 4; i < count; i++)
        for (int j = 0; j < 4; j++) pool[j] = mixed(pool[j], hashed(words[i], &constant, factor));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 4; i++) half[i] = hashed(pool[i], &constant, 0x58f38dedu);
    for (int i = 0; i < 2; i++) key[i] = half[2 * i] | (uint64_t)half[2 * i + 1] << 32;
}

void philox(const uint64_t *counter, const uint64_t *key, uint64_t *x)
{
    uint64_t k[2] = {key[0], key[1]};
    memcpy(x, counter, 4 * sizeof *x);
    for (int round = 0; round < 10; round++) {
        __uint128_t a = (__uint128_t)0xd2e7470ee14c6c93u * x[0], b = (__uint128_t)0xca5a826395121157u * x[2];
        uint64_t y[4] = {(uint64_t)(b >> 64) ^ x[1] ^ k[0], (uint64_t)b, (uint64_t)(a >> 64) ^ x[3] ^ k[1], (uint64_t)a};
        memcpy(x, y, sizeof y);
        k[0] += 0x9e3779b97f4a7c15u;
        k[1] += 0xbb67ae8584caa73bu;
    }
}

static uint64_t next_64(Generator *generator)
{
    if (generator->next < 4) return generator->drawn[generator->next++];
    for (int i = 0; i < 4 && ++generator->counter[i] == 0; i++) {}
    philox(generator->counter, generator->key, generator->drawn);
    generator->next = 1;
    return generator->drawn[0];
}

static uint32_t next_32(Generator *generator)
{
    if (generator->has_half) {
        generator->has_half = 0;
        return generator->half;
    }
    uint64_t both = next_64(generator);
    generator->has_half = 1;
    generator->half = (uint32_t)(both >> 32);
    return (uint32_t)both;
}

/* A number from 0 to `most`, all equally likely: of as many bits as it has, until one is not above it. */
static uint32_t up_to(Generator *generator, uint32_t most)
{
    uint32_t bits = UINT32_MAX >> __builtin_clz(most), drawn;
    do drawn = next_32(generator) & bits;
    while (drawn > most);
    return drawn;
}

Generator seeded(int64_t count, const uint32_t *words)
{
    Generator generator = {.next = 4};
    key_of(count, words, generator.key);
    return generator;
}

void draw_epochs(
    Generator *generator, int64_t size, const int64_t *own, int64_t batch, int64_t per_epoch, int64_t steps,
    int64_t *spare, int64_t *plan)
{
    int64_t kept = size < per_epoch * batch ? size : per_epoch * batch;
    memset(plan, -1, sizeof *plan * steps * batch);
    for (int64_t begin = 0; begin < steps; begin += per_epoch) {
        memcpy(spare, own, sizeof *own * size);
        for (int64_t i = size - 1; i > 0; i--) {
            uint32_t j = up_to(generator, (uint32_t)i);
            int64_t sample = spare[i];
            spare[i] = spare[j];
            spare[j] = sample;
        }
        int64_t room = (steps - begin) * batch;
        memcpy(plan + begin * batch, spare, sizeof *spare * (kept < room ? kept : room));
    }
}

/* Draw all batches of a client whose generator is seeded with words. */
void draw_plan(
    int64_t count, const uint32_t *words, int64_t size, const int64_t *own, int64_t batch, int64_t per_epoch,
    int64_t steps, int64_t *spare, int64_t *plan)
{
    Generator generator = seeded(count, words);
    draw_epochs(&generator, size, own, batch, per_epoch, steps, spare, plan);
}
