"""A dropout for torch that drops what the engine in C drops."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import nn


class Dropped(nn.Module):
    """Drops what the engine in C drops in step 0 of round 2, drawn by NumPy."""

    def __init__(self, layer, probability, client):
        super().__init__()
        words = [3, 0, 0, 0, zlib.crc32(b"dropout"), 2, client]
        self.key = np.random.Philox(np.random.SeedSequence(words)).state["state"]["key"]
        self.layer, self.probability = layer, probability

    def _of(self, layer, example, numbers):
        kept = []
        for block in range(-(-numbers // 8)):
            counter = [block, example, 0, layer]
            generator = np.random.Philox(key=self.key, counter=_before(counter))
            words = generator.random_raw(4)
            kept += [int(word) >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)]
        return np.array(kept[:numbers]) >= int(self.probability * 2**32)

    def forward(self, x):
        flat = x if x.ndim == 2 else x.permute(0, 2, 3, 1)  # channels last there
        kept = np.zeros(flat.shape, bool)
        for example in range(len(x)):
            if x.ndim == 2:
                kept[example] = self._of(self.layer, example, x.shape[1])
            else:
                for row in range(flat.shape[1]):
                    numbers = self._of(self.layer + 64 * (row + 1), example, flat[0, 0].numel())
                    kept[example, row] = numbers.reshape(flat.shape[2:])
        mask = torch.from_numpy(kept).float() / (1 - self.probability)
        return x * (mask if x.ndim == 2 else mask.permute(0, 3, 1, 2))


def _before(counter):
    """NumPy adds one to the counter before it draws."""
    number = sum(word << 64 * place for place, word in enumerate(counter)) - 1
    return np.array([number % 2**256 >> 64 * place & 2**64 - 1 for place in range(4)], np.uint64)
