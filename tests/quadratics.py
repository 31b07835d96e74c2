"""Two clients whose answers are known: each minimizes a quadratic function, in numpy and float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from torch import nn

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints, weighted_sum
from fedreach._util.errors import ConfigError
from fedreach.data.assignment import Partition
from fedreach.data.datasets import ServerData, from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.splits import ClientIndex, Population
from fedreach.engines.models.flat import Layout
from fedreach.engines.protocols import Engine, Task
from fedreach.federation.base import LocalSolver, ServerOptimizer, Weighting
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import Adam, LocalSGD
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.types import LocalUpdates
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import Simulation


@dataclass(frozen=True, eq=False)
class QuadraticEngine:
    """Trains client k on f_k(w) = 1/2 (w - b_k)' A_k (w - b_k), in numpy and float64: every answer is known.

    It has one batch: each step sees all of f_k, and an epoch is one step. Only updates are rounded to float32.

    Example:
        >>> engine = QuadraticEngine(np.eye(1)[None], np.ones((1, 1)), np.zeros(1, np.float32), FedAvg(), LocalSGD())
        >>> engine.train(engine.initial, np.array([0]), round_=1, lr=0.1).update
        array([[0.1]], dtype=float32)
    """

    curvature: Floats  # (n, d, d) A_k, symmetric
    optimum: Floats  # (n, d) b_k
    initial: Float32s  # (d,)
    solver: LocalSolver
    local: LocalSGD

    @property
    def task(self) -> Task:
        """The task without its model and data, which the formula replaces."""
        return Task(nn.Identity(), cast(FederatedData, None), self.solver, self.local, seed=0)

    @property
    def layout(self) -> Layout:
        """One vector w of d numbers, all of them trained."""
        d = len(self.initial)
        return Layout(("w",), (), (torch.Size([d]),), d, d)

    @property
    def num_trainable(self) -> int:
        return len(self.initial)

    @property
    def note(self) -> str:
        """Nothing."""
        return ""

    @property
    def constants(self) -> Mapping[str, AnyArray]:
        """None: all numbers are trained."""
        return {}

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        """Take no constants, as there are none."""

    def train(
        self,
        broadcast: Float32s,
        ids: Ints,
        round_: int,
        lr: float,
        terms: Mapping[str, Float32s] = MappingProxyType({}),
    ) -> LocalUpdates:
        local, start = self.local, broadcast.astype(np.float64)
        steps = local.steps_of(np.ones_like(ids), ids, self.task.seed, round_)  # an epoch of one example is one step
        w = np.tile(start, (len(ids), 1))
        velocity, moments, total = np.zeros_like(w), (np.zeros_like(w), np.zeros_like(w)), np.zeros(len(ids))
        for step in range(steps.max(initial=0)):
            active = (step < steps)[:, None]
            loss, gradient = self._loss_and_gradient(w, ids)
            g = self.solver.correct(gradient, w, start, **terms)
            if local.clip_norm is not None:
                norm = np.linalg.norm(g, axis=1, keepdims=True)
                g = g * (local.clip_norm / np.maximum(norm, local.clip_norm))
            if local.optimizer is None:
                velocity = local.momentum * velocity + g + local.weight_decay * w
            elif isinstance(local.optimizer, Adam):
                velocity, moments = local.optimizer.direction(g, w, moments, step + 1, local.weight_decay)
            else:
                raise ConfigError(f"Quadratics do not step by torch.optim; got {local.optimizer}. Take Adam().")
            w = np.where(active, w - lr * velocity, w)
            total += np.where(active[:, 0], loss, 0.0)
        return LocalUpdates((w - start).astype(np.float32), total / steps, steps)

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        return weighted_sum(weights, update)

    def server_step(self, params: Float32s, index: Ints, round_: int, lr: float, step: int = 0) -> Float32s:
        """Return the step on the server's own objective, 1/2 |w - b|^2 with b = (0, ..., 0, 1)."""
        away = params.astype(np.float64)
        away[-1] -= 1
        return (-lr * away).astype(np.float32)

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        return self._loss_and_gradient(np.tile(params.astype(np.float64), (len(ids), 1)), ids)[0]

    def _loss_and_gradient(self, w: Floats, ids: Ints) -> tuple[Floats, Floats]:
        away = w - self.optimum[ids]
        gradient = np.einsum("kij,kj->ki", self.curvature[ids], away)
        return 0.5 * (away * gradient).sum(axis=1), gradient


def two_quadratics(
    solver: LocalSolver | None = None,
    weighting: Weighting | None = None,
    server: ServerOptimizer | None = None,
    local: LocalSGD | None = None,
) -> Simulation:
    """Return two clients that disagree: A_0 = diag(1, 2), b_0 = (1, -1), A_1 = diag(3, 1/2), b_1 = (-2, 4).

    They hold 1 and 3 examples, both take part in every round, the model starts at (1/2, 1/2), and unless said
    otherwise each takes three steps of rate 0.1. FedAvg then stops near (-1.64, 1.34), not at the minimum (-1.7, 8/7)
    of the weighted objective: local steps bias it.

    Example:
        >>> two_quadratics().step(two_quadratics().start()).state.params.round(4)
        array([-0.698 ,  0.6914], dtype=float32)
    """
    dataset = from_arrays(np.zeros((4, 1), np.float32), [0, 1, 0, 1], name="two quadratics")
    partition = Partition.from_owner([0, 1, 1, 1], num_clients=2, kind="natural")
    train, nobody = ClientIndex(partition.order, partition.offsets), np.empty(0, np.int64)
    data = FederatedData(
        dataset,
        dataset.train_y,
        partition,
        Population(np.arange(2), nobody),
        train,
        ClientIndex(nobody, np.zeros(3, int)),
        None,
        ServerData(dataset.train_x[:1], dataset.train_y[:1]),  # it says that there is one: `server_step` needs no data
    )
    federation = Federation(
        selection=Full(),
        weighting=weighting or ByExamples(),
        solver=solver or FedAvg(),
        local=local or LocalSGD(lr=0.1, steps=3),
        server=server or Average(),
        cohort_size=2,
        seed=0,
    )
    engine = QuadraticEngine(
        curvature=np.array([np.diag([1.0, 2.0]), np.diag([3.0, 0.5])]),
        optimum=np.array([[1.0, -1.0], [-2.0, 4.0]]),
        initial=np.full(2, 0.5, np.float32),
        solver=federation.solver,
        local=federation.local,
    )
    # A simulation asks no more of an engine than `task`, `initial`, `train`, `training_loss` and `weighted_sum`.
    return Simulation(federation, data, cast(Engine, engine), rounds=600)
