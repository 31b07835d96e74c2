"""Laws of the shards and of the hybrid partition."""

from math import comb

import numpy as np
import pytest

from fedreach._util.errors import DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import classes_of
from fedreach.data.partition import hybrid, shards

BALANCED = np.arange(1000) % 10


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_balanced_classes_give_equal_clients_with_at_most_p_classes(per_client):
    p = shards(BALANCED, 20, generator(0, "partition"), classes_per_client=per_client)
    counts = p.label_counts(BALANCED, 10)
    assert (p.sizes == 50).all()
    assert (counts % (50 // per_client) == 0).all()
    assert (counts > 0).sum(axis=1).max() <= per_client


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_shards_are_dealt_at_random(per_client):
    # 10 classes, 10 clients, 4 never train. A class is unseen if its p shards all fell to the 4p of 10p shards of
    # those clients: 10 C(4p, p) / C(10p, p) classes on average: 4.00, 1.47, 0.07. A cyclic deal gives 0 for p = 2.
    rng, draws = generator(0, "partition"), 400
    unseen = [
        int((shards(BALANCED, 10, rng, classes_per_client=per_client).label_counts(BALANCED, 10)[:6].sum(0) == 0).sum())
        for _ in range(draws)
    ]
    expected = 10 * comb(4 * per_client, per_client) / comb(10 * per_client, per_client)
    assert abs(np.mean(unseen) - expected) <= 4.5 * np.std(unseen) / np.sqrt(draws)


def test_unequal_classes_are_cut_into_equally_many_shards():
    labels = np.repeat([0, 1, 2, 3], [100, 60, 40, 3])
    p = shards(labels, 20, generator(0, "partition"), classes_per_client=1)
    counts = p.label_counts(labels, 4)
    # 20 shards: the class of 3 gives 3, and of the 17 left the two largest classes give 6 each.
    assert (counts > 0).sum(axis=0).tolist() == [6, 6, 5, 3]
    assert [sorted({int(x) for x in counts[:, c] if x}) for c in range(4)] == [[16, 17], [10], [8], [1]]


def test_shards_that_cannot_hold_all_classes_or_samples_are_refused():
    with pytest.raises(DataError, match=r"at least 10 \(classes\) .*; got 4 \* 2 = 8"):
        shards(BALANCED, 4, generator(0, "partition"))
    with pytest.raises(DataError, match=r"at most 1000 \(examples\); got 600 \* 2 = 1200"):
        shards(BALANCED, 600, generator(0, "partition"))


@pytest.mark.parametrize(
    ("num_clients", "share", "balanced"), [(25, 0.28, 7), (30, 0.1, 3), (80, 0.1, 8), (11, 0.1, 2), (10, 0.0, 0)]
)
def test_the_first_clients_are_balanced_and_as_large_as_the_average(num_clients, share, balanced):
    labels = np.repeat(np.arange(10), np.arange(900, 1000, 10))
    p = hybrid(labels, num_clients, generator(0, "partition"), share=share)
    counts = p.label_counts(labels, 10)
    each = labels.size // (num_clients * 10)
    assert p.parameters["balanced_clients"] == balanced
    assert (counts[:balanced] == each).all()
    assert (counts[balanced:].max(axis=1) > counts[balanced:].min(axis=1)).all()


def test_topping_up_leaves_balanced_clients_balanced():
    p = hybrid(BALANCED, 50, generator(0, "partition"), share=0.2, alpha=1e-6, min_size=8)
    assert p.parameters["moved"] > 0
    assert (p.label_counts(BALANCED, 10)[:10] == 2).all()
    assert p.sizes.min() == 8


def test_balanced_clients_reach_the_least_size_or_are_refused():
    labels = np.arange(66) % 11  # on average 6 samples a client: not one of each class
    p = hybrid(labels, 11, generator(0, "partition"), share=0.1, min_size=2)
    assert (p.label_counts(labels, 11)[:2] == 1).all()
    with pytest.raises(DataError, match=r"4 balanced clients .* the rarest class has 3"):
        hybrid(np.repeat([0, 1], [40, 3]), 8, generator(0, "partition"), share=0.5)


def test_balancing_all_clients_needs_samples_that_divide():
    assert (hybrid(BALANCED, 10, generator(0, "partition"), share=1.0).sizes == 100).all()
    with pytest.raises(DataError, match="leaves 1 examples without a client"):
        hybrid(np.append(BALANCED, 0), 10, generator(0, "partition"), share=1.0)


def test_classes_are_numbered_without_gaps():
    classes, sizes = classes_of(np.array([7, 2, 7, 10**12]))
    assert classes.tolist() == [1, 0, 1, 2]
    assert sizes.tolist() == [1, 2, 1]
