"""The benchmark's cases as data: what is trained, by how many clients, in which batches.

Every engine and every peer reads its work from here, so that all of them are timed on the same thing.
This file needs only numpy and torch: a peer runs in an environment without FedReach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import nn

NUM_CLASSES = 10


def make_logistic() -> nn.Sequential:
    """Softmax regression 784-10: 7,850 parameters."""
    return nn.Sequential(nn.Linear(784, NUM_CLASSES))


def make_mlp() -> nn.Sequential:
    """784-200-100-10 with ReLU: 178,110 parameters."""
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, NUM_CLASSES))


def make_lenet() -> nn.Sequential:
    """Two unpadded 5x5 convolutions with max-pooling, then 256-120-84-10: 44,426 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, NUM_CLASSES),
    )  # fmt: skip


def make_small_mlp() -> nn.Sequential:
    """64-32-10 with ReLU: 2,410 parameters."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, NUM_CLASSES))


def make_cifar_cnn(dropout: bool = True) -> nn.Sequential:
    """The CNN of pfl-research's CIFAR-10 benchmark: 1,626,442 parameters, with or without its dropout."""
    layers = [
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, NUM_CLASSES),
    ]  # fmt: skip
    return nn.Sequential(*(layer for layer in layers if dropout or not isinstance(layer, nn.Dropout)))


make_plain_cifar_cnn = partial(make_cifar_cnn, dropout=False)


@dataclass(frozen=True)
class Case:
    """One federation to train with FedAvg: one local epoch of plain SGD per client and round.

    Args:
        name: What the case is called on the command line and in the results.
        make_model: Builds the model; its initial values come from torch's generator, so seed that first.
        example_shape: Shape of one example, such as (784,) or (1, 28, 28).
        num_clients: N, the clients there are.
        samples: m, the examples each client holds.
        cohort: k, the clients of one round.
        batch_size: Examples in one local step; a client's last batch may be smaller.
        learning_rate: Step size of local SGD.
    """

    name: str
    make_model: Callable[[], nn.Sequential]
    example_shape: tuple[int, ...]
    num_clients: int
    samples: int
    cohort: int
    batch_size: int
    learning_rate: float = 0.1

    @property
    def samples_per_round(self) -> int:
        """Examples that one round trains on, k * m."""
        return self.cohort * self.samples

    def with_fewer_clients(self) -> Case:
        """Return the same work for a fifth of the clients and of the cohort: enough to check results."""
        return replace(self, num_clients=self.num_clients // 5, cohort=self.cohort // 5)

    def without_dropout(self) -> Case:
        """Return the case with a model that draws no random numbers in training."""
        return replace(self, make_model=make_plain_cifar_cnn) if self.make_model is make_cifar_cnn else self

    def make_data(self, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return standard normal examples x and the labels y of a random linear teacher.

        With A a standard normal (size of x, 10) matrix, y = argmax(x A): labels that can be learnt, so that a peer
        which does not train is noticed.

        Returns:
            x of shape (N, m, *example_shape) in float32 and y of shape (N, m) in int64.

        Example:
            >>> x, y = CASES["mlp_device"].make_data(seed=0)
            >>> x.shape, x.dtype, y.shape, y.dtype
            ((1000, 50, 784), dtype('float32'), (1000, 50), dtype('int64'))
        """
        rng = np.random.default_rng(seed)
        size = int(np.prod(self.example_shape))
        x = rng.standard_normal((self.num_clients, self.samples, size), dtype=np.float32)
        y = np.argmax(x @ rng.standard_normal((size, NUM_CLASSES), dtype=np.float32), axis=-1)
        return x.reshape(self.num_clients, self.samples, *self.example_shape), y.astype(np.int64)

    def cohort_of(self, round_: int) -> list[int]:
        """Return the clients of a round, counted from 0: all take turns, which is how pfl samples them.

        Example:
            >>> CASES["mlp_device"].cohort_of(19)[-1], CASES["mlp_device"].cohort_of(20)[0]
            (999, 0)
        """
        first = round_ * self.cohort
        return [i % self.num_clients for i in range(first, first + self.cohort)]


_SILO = {"num_clients": 40, "samples": 600, "cohort": 40, "batch_size": 50}
_DEVICE = {"num_clients": 1000, "samples": 50, "cohort": 50, "batch_size": 10}
_DIGITS = {"num_clients": 50, "samples": 28, "cohort": 10, "batch_size": 16}

CASES = {
    case.name: case
    for case in (
        Case("logistic", make_logistic, (784,), **_SILO),
        Case("mlp", make_mlp, (784,), **_SILO),
        Case("lenet", make_lenet, (1, 28, 28), **_SILO),
        Case("logistic_device", make_logistic, (784,), **_DEVICE),
        Case("mlp_device", make_mlp, (784,), **_DEVICE),
        Case("digits", make_small_mlp, (64,), **_DIGITS),
        Case("cifar", make_cifar_cnn, (3, 32, 32), **_DEVICE),
        Case("cifar_plain", make_plain_cifar_cnn, (3, 32, 32), **_DEVICE),
    )
}
ON_A_CPU = tuple(name for name in CASES if not name.startswith("cifar"))
