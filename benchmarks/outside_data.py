"""Partitions of others; experiment files in this folder use ``name = "outside_data.py:label_quantity"``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import Ints
from fedreach.data.assignment import Partition
from fedreach.data.datasets import Dataset
from fedreach.data.sets import load


def fashion_mnist(*, mean: float = 0.0, std: float = 1.0) -> Dataset:
    """Return Fashion-MNIST with pixels (p / 255 - mean) / std, in the units that others train on."""
    return replace(load("fashion_mnist"), mean=(mean,), std=(std,))


def label_quantity(
    labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2, drawn_by: int = 42
) -> Partition:
    """Return who holds what in Flower's `niid_bench`: client i has class i mod C and others at random, shared equally.

    Args:
        drawn_by: The seed of the one partition that the baseline has, of `numpy.random.default_rng`. `rng` is not used,
            so that every run has those very clients.

    Reference: Li, Diao, Chen and He, "Federated Learning on Non-IID Data Silos", ICDE 2022; `niid_bench` in the folder
    of baselines of github.com/adap/flower, `dataset_preparation.py`.

    Example:
        >>> p = label_quantity(np.repeat(np.arange(10), 6), 10, np.random.default_rng(0))
        >>> p.label_counts(np.repeat(np.arange(10), 6), 10)[:2]
        array([[2, 0, 0, 0, 0, 0, 0, 2, 0, 0],
               [0, 6, 0, 0, 0, 0, 3, 0, 0, 0]])
    """
    y = np.asarray(labels)
    classes, draw = int(y.max()) + 1, np.random.default_rng(drawn_by)
    held = np.zeros((num_clients, classes), bool)
    for client in range(num_clients):
        held[client, client % classes] = True
        while held[client].sum() < classes_per_client:
            held[client, draw.choice(classes, 1)[0]] = True
    owner = np.empty(len(y), np.int64)
    for one in range(classes):
        mine = np.flatnonzero(y == one)
        draw.shuffle(mine)
        holders = np.flatnonzero(held[:, one])
        for holder, part in zip(holders, np.array_split(mine, len(holders)), strict=True):
            owner[part] = holder
    return Partition.from_owner(owner, num_clients, "label_quantity", {"classes_per_client": classes_per_client})


def alphas_in_turn(
    labels: ArrayLike,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alphas: Sequence[float] = (0.001, 0.002, 0.005, 0.01, 0.5),
) -> Partition:
    """Return who holds what in HiCS-FL: equal parts of clients and samples, each dealt out with an alpha of its own.

    A part has its share of each class, in the order of the data set, split over its clients by a Dirichlet draw a
    class; a client that has its share of samples gets no more. It is drawn again until all have a fifth of theirs. (The
    authors' code deals out the test set likewise, asks the same of it, and has one partition, of seed 42.)

    Reference: Chen and Vikalo, "Heterogeneity-Guided Client Sampling", NeurIPS 2024; github.com/CityChan/HiCS-FL,
    `sampling.py`.
    """
    y = np.asarray(labels)
    classes, clients = int(y.max()) + 1, num_clients // len(alphas)
    each, share = len(y) // len(alphas) // classes, len(y) / num_clients
    owner = np.empty(len(y), np.int64)
    for part, alpha in enumerate(alphas):
        of_class = [np.flatnonzero(y == one)[part * each : (part + 1) * each] for one in range(classes)]
        dealt = None
        while dealt is None:
            dealt = _dealt(of_class, clients, alpha, share, rng)
        for mine, holder in zip(of_class, dealt, strict=True):
            owner[mine] = part * clients + holder
    return Partition.from_owner(owner, num_clients, "alphas_in_turn", {"alphas": list(alphas)})


def _dealt(
    of_class: Sequence[Ints], clients: int, alpha: float, share: float, rng: np.random.Generator
) -> list[Ints] | None:
    """Return the client of each sample, class by class; None if somebody got less than a fifth of his share."""
    sizes, found = np.zeros(clients, np.int64), []
    for mine in of_class:
        chance = rng.dirichlet(np.full(clients, alpha)) * (sizes < share)
        if chance.sum() == 0:  # all of it fell to clients that have enough
            return None
        ends = (np.cumsum(chance / chance.sum()) * len(mine)).astype(np.int64)
        counts = np.diff(ends[:-1], prepend=0, append=len(mine))
        found.append(rng.permutation(np.repeat(np.arange(clients), counts)))
        sizes += counts
    return found if sizes.min() >= int(share / 5) else None
