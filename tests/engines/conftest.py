"""Federations with clients of given sizes, for every kind of data."""

import numpy as np
import pytest
import torch

from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.splits import Population, draws, split_held_out


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small only lose time to threads, most of all on a machine that does other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def federated():
    """Return ``make(sizes, shape, kind, ...)``, a federation in which client i holds ``sizes[i]`` samples."""

    def make(sizes, shape=(4,), kind="features", num_classes=3, held_out=None, seed=0, participants=None):
        rng, n = generator(seed, "samples"), int(sum(sizes))
        if kind == "features":
            x = rng.standard_normal((n + 5, *shape)).astype(np.float32)
        else:
            high = 256 if kind == "image" else num_classes
            x = rng.integers(high, size=(n + 5, *shape)).astype(np.uint8)
        y = rng.integers(num_classes, size=n + 5)
        dataset = from_arrays(x[:n], y[:n], x[n:], y[n:], kind=kind, num_classes=num_classes)
        owner = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        partition = Partition.from_owner(owner, len(sizes), kind="natural")
        # A share this small holds out one sample of each client that has two.
        train, held = split_held_out(partition, held_out or 1e-9, draws(partition, seed, "held-out"))
        ids = np.arange(len(sizes))
        chosen = ids if participants is None else np.asarray(participants)
        population = Population(chosen, np.setdiff1d(ids, chosen))
        return FederatedData(dataset, dataset.train_y, partition, population, train, held, None)

    return make
