"""The benchmark's cases as data: what is trained, by how many clients, in which batches.

Every engine and every peer reads its work from here, so that all of them are timed on the same thing.
This file needs only numpy and torch: a peer runs in an environment without FedReach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

NUM_CLASSES = 10
VOCABULARY = 80


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


def make_dropout_cnn(channels: int, flat: int, num_classes: int, dropout: bool = True) -> nn.Sequential:
    """Two unpadded 3x3 convolutions of 32 and 64 filters, max-pooling and a layer of 128, with or without dropout."""
    layers = [
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, num_classes),
    ]  # fmt: skip
    return nn.Sequential(*(layer for layer in layers if dropout or not isinstance(layer, nn.Dropout)))


def make_cifar_cnn() -> nn.Sequential:
    """The CNN of pfl-research's CIFAR-10 benchmark: 1,626,442 parameters."""
    return make_dropout_cnn(3, 12544, NUM_CLASSES)


make_plain_cifar_cnn = partial(make_dropout_cnn, 3, 12544, NUM_CLASSES, dropout=False)


def make_flute_cnn() -> nn.Sequential:
    """The CNN of FLUTE's and FedML's benchmark of FEMNIST (Reddi et al. 2021): 1,206,590 parameters."""
    return make_dropout_cnn(1, 9216, 62)


def make_femnist_cnn() -> nn.Sequential:
    """The CNN of FedAvg's paper (McMahan et al. 2017) for 62 classes: padded 5x5 convolutions; 1,690,046 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 62),
    )  # fmt: skip


def make_feddyn_cnn() -> nn.Sequential:
    """The CNN of FedDyn's experiments (Acar et al. 2021) on CIFAR-10: 797,962 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, NUM_CLASSES),
    )  # fmt: skip


class NextToken(nn.Module):
    """Embedding, two layers of LSTM, and a linear layer on the last output: 133,520 parameters, as FedDyn has them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 100, 2, batch_first=True)
        self.output = nn.Linear(100, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embed(tokens))
        logits: Tensor = self.output(outputs[:, -1])
        return logits


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
        num_classes: Outputs of the model.
        tokens: Whether examples are tokens, 0 to 79, rather than numbers.
    """

    name: str
    make_model: Callable[[], nn.Module]
    example_shape: tuple[int, ...]
    num_clients: int
    samples: int
    cohort_size: int
    batch_size: int
    learning_rate: float = 0.1
    num_classes: int = NUM_CLASSES
    tokens: bool = False

    @property
    def samples_per_round(self) -> int:
        """Examples that one round trains on, k * m."""
        return self.cohort_size * self.samples

    @property
    def convolutional(self) -> bool:
        """Whether examples are images."""
        return len(self.example_shape) == 3

    def with_fewer_clients(self) -> Case:
        """Return the same work for a fifth of the clients and of the cohort: enough to check results."""
        return replace(self, num_clients=self.num_clients // 5, cohort_size=self.cohort_size // 5)

    def without_dropout(self) -> Case:
        """Return the case with a model that draws no random numbers in training."""
        return replace(self, make_model=make_plain_cifar_cnn) if self.make_model is make_cifar_cnn else self

    def make_data(self, seed: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return standard normal examples x and the labels y of a random linear teacher.

        With A a standard normal (size of x, c) matrix, y = argmax(x A): labels that can be learnt, so that a peer
        which does not train is noticed. Tokens are uniform, but for the last, which is small; the label is the next.

        Returns:
            x of shape (N, m, *example_shape) in float32, of tokens in int64, and y of shape (N, m) in int64.

        Example:
            >>> x, y = CASES["mlp_device"].make_data(seed=0)
            >>> x.shape, x.dtype, y.shape, y.dtype
            ((1000, 50, 784), dtype('float32'), (1000, 50), dtype('int64'))
        """
        rng = np.random.default_rng(seed)
        size = int(np.prod(self.example_shape))
        if self.tokens:
            tokens = rng.integers(VOCABULARY, size=(self.num_clients, self.samples, size))
            tokens[..., -1] %= 4
            return tokens, tokens[..., -1] + 1
        x = rng.standard_normal((self.num_clients, self.samples, size), dtype=np.float32)
        y = np.argmax(x @ rng.standard_normal((size, self.num_classes), dtype=np.float32), axis=-1)
        return x.reshape(self.num_clients, self.samples, *self.example_shape), y.astype(np.int64)

    def cohort_of(self, round_: int) -> list[int]:
        """Return the clients of a round, counted from 0: all take turns, which is how pfl samples them.

        Example:
            >>> CASES["mlp_device"].cohort_of(19)[-1], CASES["mlp_device"].cohort_of(20)[0]
            (999, 0)
        """
        first = round_ * self.cohort_size
        return [i % self.num_clients for i in range(first, first + self.cohort_size)]


_SILO = {"num_clients": 40, "samples": 600, "cohort_size": 40, "batch_size": 50}
_DEVICE = {"num_clients": 1000, "samples": 50, "cohort_size": 50, "batch_size": 10}
_DIGITS = {"num_clients": 50, "samples": 28, "cohort_size": 10, "batch_size": 16}
_FEMNIST = {"num_clients": 1000, "samples": 60, "cohort_size": 10, "batch_size": 20}
_FEDDYN = {"num_clients": 100, "samples": 100, "cohort_size": 10, "batch_size": 50}
_SHAKESPEARE = {"num_clients": 100, "samples": 100, "cohort_size": 10, "batch_size": 20}

CASES = {
    case.name: case
    for case in (
        Case("logistic", make_logistic, (784,), **_SILO),
        Case("mlp", make_mlp, (784,), **_SILO),
        Case("lenet", make_lenet, (1, 28, 28), **_SILO),
        Case("logistic_device", make_logistic, (784,), **_DEVICE),
        Case("mlp_device", make_mlp, (784,), **_DEVICE),
        Case("lenet_device", make_lenet, (1, 28, 28), **_DEVICE),
        Case("digits", make_small_mlp, (64,), **_DIGITS),
        Case("femnist", make_femnist_cnn, (1, 28, 28), **_FEMNIST, num_classes=62),
        Case("feddyn_cnn", make_feddyn_cnn, (3, 32, 32), **_FEDDYN),
        Case("cifar", make_cifar_cnn, (3, 32, 32), **_DEVICE),
        Case("cifar_plain", make_plain_cifar_cnn, (3, 32, 32), **_DEVICE),
        Case("lstm", NextToken, (80,), **_SHAKESPEARE, num_classes=VOCABULARY, tokens=True),
        # Of the long workloads, whose data are others: a peer of which a few rounds are timed makes these.
        Case("flute_lr", make_logistic, (784,), 1000, 60, cohort_size=10, batch_size=10, learning_rate=0.03),
        Case("flute_cnn", make_flute_cnn, (1, 28, 28), 1000, 198, cohort_size=10, batch_size=20, num_classes=62),
        Case("many_clients", make_logistic, (784,), 100_000, 10, cohort_size=100, batch_size=10, learning_rate=0.03),
    )
}
ON_A_CPU = tuple(name for name in CASES if name not in ("cifar_plain", "flute_lr", "flute_cnn", "many_clients"))
