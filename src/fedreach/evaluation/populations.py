"""Whom a model is evaluated on, client by client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.population import Ranges
from fedreach.evidence.scores import ACCURACY, MainScore


@dataclass(frozen=True, eq=False)
class Scores:
    """The main score and the loss of one model for each of n clients that have samples to be tested on."""

    ids: Ints  # (n,)
    examples: Ints  # (n,)
    score: Floats  # (n,) share of the client's samples that are classified correctly, or mean absolute error
    loss: Floats  # (n,) mean cross-entropy in nats, or mean squared error
    by: MainScore = ACCURACY  # which of the two

    @property
    def pooled(self) -> float:
        """The score over all samples, so that large clients count more."""
        return float(self.score @ self.examples / self.examples.sum())

    def record(self, round_: int, population: str) -> dict[str, Any]:
        """Return the line of ``clients.jsonl``."""
        return {
            "round": round_,
            "population": population,
            "ids": self.ids.tolist(),
            "examples": self.examples.tolist(),
            self.by.name: self.score.round(6).tolist(),
            "loss": self.loss.round(6).tolist(),
        }


@dataclass(frozen=True, eq=False)
class Group:
    """Clients and the samples they are tested on, one after the other."""

    ids: Ints  # (n,)
    index: Ints  # (samples,) into the training set
    sizes: Ints  # (n,) samples of each client, at least 1
    counts: Ints | None = None  # (samples,) labeled positions, by which samples of a client count; None: all alike

    @classmethod
    def of(cls, ids: Ints, *ranges: Ranges, max_samples: int | None = None, counts: Ints | None = None) -> Group:
        """Return the clients of `ids` that have a sample in these ranges, with all such samples.

        With `max_samples`, at most so many of each client's samples are taken, the first ones; their order is random.
        `counts` are the labeled positions of all samples of the training set, where labels stand at positions.

        Example:
            >>> group = Group.of(np.array([0, 1]), Ranges(np.array([4, 7]), np.array([0, 2, 2])))
            >>> group.ids, group.index
            (array([0]), array([4, 7]))
        """
        parts = [np.concatenate([r[int(client)] for r in ranges])[:max_samples] for client in ids]
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        index = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return cls(ids[sizes > 0], index, sizes[sizes > 0], None if counts is None else counts[index])

    def scores(self, right: Bools | Float32s | Floats, loss: Float32s | Floats, by: MainScore = ACCURACY) -> Scores:
        """Return each client's scores from those of its samples: whether each is right, or how far off."""
        return Scores(self.ids, self.sizes, self._means(right), self._means(loss), by)

    def _means(self, values: Bools | Float32s | Floats) -> Floats:
        """Return each client's mean of (samples,) values."""
        starts = np.cumsum(self.sizes) - self.sizes
        if self.counts is None:
            return np.add.reduceat(values.astype(np.float64), starts) / self.sizes
        total: Floats = np.add.reduceat(values * self.counts, starts)
        return total / np.add.reduceat(self.counts, starts)
