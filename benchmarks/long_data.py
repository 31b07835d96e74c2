"""Data of the long workloads: the published set if available, else synthetic data of its shape.

Each function returns the arrays of a folder that ``data.name = "FOLDER/x.npy"`` reads, examples sorted by client, and a
description. Every client has one example more than it trains on, because FedReach holds at least one out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedreach._util.errors import FedReachError
from fedreach.data.sets import load


class Arrays(NamedTuple):
    """A federated data set, as arrays."""

    x: NDArray[np.uint8]  # (n, C, H, W)
    y: NDArray[np.int64]  # (n,)
    client: NDArray[np.int64]  # (n,) increasing
    x_test: NDArray[np.uint8]  # (s, C, H, W)
    y_test: NDArray[np.int64]  # (s,)
    words: str  # what it is


def known(name: str) -> Any:
    """Return the data set if its files are here; None if not: a benchmark downloads nothing."""
    try:
        return load(name, download=False)
    except FedReachError:
        return None


def synthetic(
    rng: np.random.Generator,
    sizes: NDArray[np.int64],
    num_classes: int,
    tests: int,
    shape: tuple[int, int, int],
    strength: float,
) -> Arrays:
    """Return grey levels 128 + strength pattern of the class + 20 style of the client + 40 noise, all standard normal.

    A pattern is of squares of 4 x 4 pixels, as filters find shapes and no single pixels. A client has few of the
    classes: shares are drawn from a symmetric Dirichlet distribution with parameter 0.5.
    """
    channels, height, width = shape
    squares = rng.standard_normal((num_classes, channels, height // 4, width // 4), dtype=np.float32)
    patterns = squares.repeat(4, axis=2).repeat(4, axis=3)

    def images(y: NDArray[np.int64], style: NDArray[np.float32] | float) -> NDArray[np.uint8]:
        noise = rng.standard_normal((len(y), *shape), dtype=np.float32)
        return np.clip(128 + strength * patterns[y] + 20 * style + 40 * noise, 0, 255).astype(np.uint8)

    x, y = np.empty((sizes.sum(), *shape), np.uint8), np.empty(sizes.sum(), np.int64)
    ends = np.cumsum(sizes)
    for begin, end in zip(ends - sizes, ends, strict=True):
        y[begin:end] = rng.choice(num_classes, end - begin, p=rng.dirichlet(np.full(num_classes, 0.5)))
        x[begin:end] = images(y[begin:end], rng.standard_normal(shape, dtype=np.float32))
    y_test = rng.integers(num_classes, size=tests)
    return Arrays(x, y, np.repeat(np.arange(len(sizes)), sizes), images(y_test, 0.0), y_test, "synthetic images")


def two_digits_a_client(rng: np.random.Generator, num_clients: int = 1000) -> Arrays:
    """MNIST as FedProx divides it, whose files FLUTE and FedML read: two digits a client, numbers by a power law.

    Client i holds digits i and i + 1 (mod 10): five of each, and a share of the others drawn from a log-normal
    distribution with sigma = 2. They are mixed: FedReach takes them in a random order, and pfl in that of the file.
    Theirs divides all 70,000 digits so and tests on a tenth; here the standard test set is left out and tested on.
    """
    mnist = known("mnist")
    if mnist is None:
        sizes = 11 + np.minimum(rng.lognormal(2, 1.5, num_clients), 1000).astype(np.int64)
        return synthetic(rng, sizes, 10, 10_000, (1, 28, 28), strength=3)
    places: list[NDArray[np.int64]] = []
    owners: list[NDArray[np.int64]] = []
    for digit in range(10):
        own = rng.permutation(np.flatnonzero(mnist.train_y == digit))
        holders = np.flatnonzero(np.isin(np.arange(num_clients) % 10, (digit, (digit - 1) % 10)))
        shares = rng.lognormal(0, 2, len(holders))
        counts = 5 + np.floor(shares / shares.sum() * (len(own) - 5 * len(holders))).astype(np.int64)
        places.append(own[: counts.sum()])
        owners.append(np.repeat(holders, counts))
    place, owner = np.concatenate(places), np.concatenate(owners)
    mixed = rng.permutation(len(place))
    order = mixed[np.argsort(owner[mixed], kind="stable")]
    place = place[order]
    words = f"MNIST, two digits a client, {len(place):,} examples"
    return Arrays(mnist.train_x[place], mnist.train_y[place], owner[order], mnist.test_x, mnist.test_y, words)


def writers(rng: np.random.Generator, num_clients: int = 3400) -> Arrays:
    """Images in the numbers of Federated EMNIST: 3400 writers of 198 in the mean, 62 classes, 77,483 to test."""
    sizes = 1 + np.clip(rng.normal(198, 80, num_clients), 20, 500).astype(np.int64)
    return synthetic(rng, sizes, 62, 77_483, (1, 28, 28), strength=40)


def fifty_each(rng: np.random.Generator, num_clients: int = 1000) -> Arrays:
    """CIFAR-10, whose 50,000 images are dealt out to clients of 50 at random: they train on 49 of them."""
    cifar = known("cifar10")
    if cifar is None:
        return synthetic(rng, np.full(num_clients, 50), 10, 10_000, (3, 32, 32), strength=30)
    order = rng.permutation(len(cifar.train_y))
    owner = np.repeat(np.arange(num_clients), len(order) // num_clients)
    order = order[: len(owner)]
    return Arrays(cifar.train_x[order], cifar.train_y[order], owner, cifar.test_x, cifar.test_y, "CIFAR-10, iid")


def many_clients(rng: np.random.Generator, num_clients: int = 100_000) -> Arrays:
    """Images of ten classes for very many clients, who train on ten each."""
    return synthetic(rng, np.full(num_clients, 11), 10, 10_000, (1, 28, 28), strength=3)
