"""FedNova as a user would write it: a part file, here in the three shapes that the protocols allow.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020: with
tau_i local steps and weights p_i = m_i / sum_j m_j the server moves by

    (sum_i p_i tau_i) sum_i p_i update_i / tau_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedreach as fr


@dataclass(frozen=True)
class FedNova(fr.LocalSolver):
    """Clients count their local steps in the memory, so that its change, the note, says tau_i to the server."""

    affine: ClassVar[bool] = True
    sends_note: ClassVar[bool] = True
    sends_state: ClassVar[bool] = False

    def correct(self, gradient, params, broadcast):
        return gradient

    def prepare(self, memory, state, share):
        return {}

    def remember(self, memory, state, update, steps, rate):
        return (memory + steps[:, None]).astype(np.float32)

    def conclude(self, state, reports, mean_update, n):
        p = shares(reports)
        tau = reports.note[:, 0].astype(np.float64)
        return (p @ tau) * ((p / tau) @ reports.trained.astype(np.float64)), state

    def adapted(self, params, state):
        return params


@dataclass(frozen=True)
class FedNovaByNormalisedUpdates(FedNova):
    """Clients keep the sum of their updates per step, update_i / tau_i, and send what it grew by."""

    def remember(self, memory, state, update, steps, rate):
        return (memory + update / steps[:, None]).astype(np.float32)

    def conclude(self, state, reports, mean_update, n):
        p = shares(reports)
        normalised, update = reports.note.astype(np.float64), reports.trained.astype(np.float64)
        length = np.linalg.norm(normalised, axis=1)
        tau = np.linalg.norm(update, axis=1) / np.where(length > 0, length, 1.0)
        return (p @ tau) * (p @ normalised), state


@dataclass(frozen=True)
class PerStep(fr.Weighting):
    """Weigh each update by p_i / tau_i, with tau_i from the number of examples; `Undone` makes up for the sum."""

    epochs: int = 1
    batch_size: int = 10

    def raw(self, metrics):
        return metrics["num_examples"] / steps_of(metrics["num_examples"], self.epochs, self.batch_size)

    def weights(self, state, reports):
        raw = self.raw(reports.metrics)
        return raw / raw.sum(), state


@dataclass(frozen=True)
class Undone(FedNova):
    """Multiply the mean under `PerStep`, whose weights sum to 1, by sum_i p_i tau_i and by sum_i p_i / tau_i."""

    sends_note: ClassVar[bool] = False
    epochs: int = 1
    batch_size: int = 10

    def conclude(self, state, reports, mean_update, n):
        p, tau = shares(reports), steps_of(reports.metrics["num_examples"], self.epochs, self.batch_size)
        return (p @ tau) * (p / tau).sum() * mean_update, state


def shares(reports):
    """Return (r,) p_i."""
    return reports.metrics["num_examples"] / reports.metrics["num_examples"].sum()


def steps_of(num_examples, epochs, batch_size):
    """Return (r,) tau_i."""
    return epochs * np.ceil(num_examples / batch_size)
