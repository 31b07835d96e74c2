"""One client a thread: `sequential` several times side by side, on a CPU.

A small step does not keep several cores busy by itself, and what its threads wait for each other is lost. Here each
thread trains a client of its own with single-threaded kernels, so that nothing is waited for. The arithmetic of a
client is that of `sequential`, hence its result too, bit for bit, for any number of threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import torch
from torch import nn

from fedreach.arrays import Bools, Float32s, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.base import EVALUATION_BATCH, Engine, Samples, Trained
from fedreach.engines.sequential import Sequential
from fedreach.errors import ConfigError
from fedreach.federation.solvers import LocalSGD, LocalSolver


class Parallel(Engine):
    """Trains `threads` clients at a time."""

    name = "parallel"

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        solver: LocalSolver,
        local: LocalSGD,
        seed: int,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        super().__init__(module, data, solver, local, seed, device)
        if self.draws or self.device.type != "cpu":
            what = f"runs on {device}" if self.device.type != "cpu" else "draws random numbers, such as dropout"
            raise ConfigError(
                "engine.name = 'parallel' is for CPUs and for models that draw no random numbers in training, as "
                f"torch's generator is shared by its threads; this one {what}. Use 'sequential' or 'stacked'."
            )
        self.threads = threads
        first = Sequential(module, data, solver, local, seed, device)
        self._idle: SimpleQueue[Sequential] = SimpleQueue()
        for _ in range(threads):
            self._idle.put(first.twin())
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def train(self, broadcast: Float32s, ids: Ints, round_: int, rate: float) -> Trained:
        """Train each client from the broadcast vector."""

        def train_one(client: int) -> Trained:
            engine = self._idle.get()
            try:
                return engine.train(broadcast, np.array([client]), round_, rate)
            finally:
                self._idle.put(engine)

        # Those with most to do first, so that no thread is left with a large client at the end.
        order = np.argsort(-self.data.train.sizes[ids], kind="stable")
        done = dict(zip(order, self._pool.map(train_one, ids[order]), strict=True))
        rows = [done[row] for row in range(len(ids))]
        update = np.concatenate([row.update for row in rows])
        return Trained(update, np.concatenate([row.loss for row in rows]), self.layout.num_trainable)

    def predict(self, params: Float32s, samples: Samples, index: Ints) -> tuple[Bools, Float32s]:
        """Return, for each sample of `index`, whether the model is right and its loss in nats."""

        def predict_part(part: Ints) -> tuple[Bools, Float32s]:
            engine = self._idle.get()
            try:
                return engine.predict(params, samples, part)
            finally:
                self._idle.put(engine)

        # Cut where `sequential` cuts, so that every batch is the same.
        whole = -(-len(index) // EVALUATION_BATCH)
        cuts = [EVALUATION_BATCH * (whole * i // self.threads) for i in range(1, self.threads)]
        right, loss = zip(*self._pool.map(predict_part, np.split(index, cuts)), strict=True)
        return np.concatenate(right), np.concatenate(loss)
