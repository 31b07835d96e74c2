#pragma once
#include <stdint.h>

void draw_plan(
    int64_t count, const uint32_t *words, int64_t size, const int64_t *own, int64_t batch, int64_t steps, int64_t *spare,
    int64_t *plan);
