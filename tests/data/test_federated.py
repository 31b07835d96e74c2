"""Training and held-out parts, client by client, and the name of a federation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData, federate
from fedreach.data.splits import ClientIndex, Population, draws, split_held_out
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load as load_experiment


@settings(deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    share=st.floats(1e-6, 1 - 1e-6),
    seed=st.integers(0, 99),
)
def test_each_client_is_split_into_two_disjoint_parts_of_the_right_sizes(sizes, share, seed):
    owner = generator(seed, "owner").permutation(np.repeat(np.arange(len(sizes)), sizes))
    partition = Partition.from_owner(owner, len(sizes), kind="natural")
    train, held_out = split_held_out(partition, share, draws(partition, seed, "held-out"))
    for client, m in enumerate(sizes):
        both = np.concatenate([train[client], held_out[client]])
        assert sorted(both.tolist()) == partition[client].tolist()
        # round(share m), but at least one and not all where there are two samples or more.
        assert len(held_out[client]) == (min(max(round(share * m), 1), m - 1) if m >= 2 else 0)
    assert (train.sizes + held_out.sizes).tolist() == sizes


def test_every_sample_is_equally_likely_to_be_held_out():
    # A client's indices are kept in order, often of class: cutting them off without shuffling would hold out one class.
    partition, times = Partition(np.arange(10), np.array([0, 4, 10]), kind="iid", parameters={}), 3000
    hits = np.zeros((2, 10))
    for seed in range(times):
        for place, names in enumerate((None, "ab")):
            hits[place, split_held_out(partition, 0.5, draws(partition, seed, "held-out", names))[1].order] += 1
    assert (abs(hits - times / 2) < 4.5 * np.sqrt(times / 4)).all()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, np.nan])
def test_a_share_that_is_none_is_refused(share):
    partition = Partition(np.arange(4), np.array([0, 4]), kind="iid", parameters={})
    with pytest.raises(ConfigError, match=r"population\.held_out must be in \(0, 1\)"):
        split_held_out(partition, share, draws(partition, 0, "held-out"))


def make(seed=0, x_shift=0.0):
    x = generator(0, "x").standard_normal((12, 2)).astype(np.float32) + np.float32(x_shift)
    y = np.arange(12) % 3
    partition = Partition.from_owner(np.arange(12) // 4, 3, kind="natural")
    train, held_out = split_held_out(partition, 0.25, draws(partition, seed, "held-out"))
    population = Population(np.array([0, 2]), np.array([1]))
    dataset = from_arrays(x, y, num_classes=3)
    return FederatedData(dataset, dataset.train_y, partition, population, train, held_out, None)


def test_the_digest_is_the_same_for_the_same_federation_and_changes_with_every_ingredient():
    data = make()
    assert make().digest() == data.digest()
    flipped = data.labels.copy()
    flipped[3] = (flipped[3] + 1) % 3
    # One sample of client 0 goes from training to held out.
    one_of_client_0 = np.array([0, 1, 1, 1])
    fewer = ClientIndex(data.train.order[1:], data.train.offsets - one_of_client_0)
    more = ClientIndex(np.insert(data.held_out.order, 0, data.train.order[0]), data.held_out.offsets + one_of_client_0)
    others = {
        "data": make(x_shift=1e-3),
        "labels": replace(data, labels=flipped),
        "split": replace(data, train=fewer, held_out=more),
        "another draw of the split": make(seed=1),
        "participants": replace(data, population=Population(np.array([0, 1]), np.array([2]))),
        "fewer participants": replace(data, population=Population(np.array([0]), np.array([1, 2]))),
        "owners": replace(data, train=ClientIndex(data.train.order, data.train.offsets + np.array([0, 1, 0, 0]))),
    }
    digests = [data.digest(), *(other.digest() for other in others.values())]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 for digest in digests)


def federated(seed=0, **options):
    dataset = from_arrays(np.zeros((60, 1), np.float32), np.arange(60) % 3, num_classes=3)
    return federate(dataset, Partition.from_owner(np.arange(60) // 6, 10, kind="natural"), seed=seed, **options)


def test_noise_reaches_training_labels_only_and_as_many_as_asked():
    clean, noisy = federated(), federated(noise={"kind": "symmetric", "rate": 0.5})
    changed = np.flatnonzero(noisy.labels != clean.labels)
    assert clean.labels.tolist() == clean.dataset.train_y.tolist() == noisy.dataset.train_y.tolist()
    # Of each client's 6 samples round(0.2 * 6) = 1 is held out; symmetric noise changes every label it selects.
    assert len(changed) == round(0.5 * 50) == noisy.noise["num_selected"]
    assert set(changed) <= set(noisy.train.order)
    assert not set(changed) & set(noisy.held_out.order)


def test_noise_before_the_split_is_that_by_which_clients_were_drawn(tmp_path):
    shares = {}
    for scope in ("pooled", "before_split"):
        noise = f'noise={{name="to_one_class", rate=0.3, scope="{scope}"}}'
        experiment = load_experiment(
            None,
            [
                "partition.alpha=0.05",
                "partition.clients=10",
                "population.participants=4",
                "method.cohort_size=4",
                noise,
            ],
        )
        builder = Builder(experiment, tmp_path)
        data = builder.federated(builder.dataset(), 0)
        wrong = data.labels != data.dataset.train_y
        assert set(np.flatnonzero(wrong)) <= set(data.train.order)
        assert data.noise["num_changed"] == wrong.sum()
        assert abs(data.noise["num_selected"] / data.train.sizes.sum() - 0.3) < 0.03
        noisy = np.bincount(data.train.owner(), wrong[data.train.order], minlength=10) / data.train.sizes
        shares[scope] = noisy.std()
    assert shares["before_split"] > 2 * shares["pooled"]  # drawn by the true labels, each client has about 30 %


def test_each_choice_has_a_stream_of_its_own():
    base = federated(participants=4)
    more_held_out = federated(participants=4, held_out=0.5)
    noisy = federated(participants=4, noise={"kind": "symmetric", "rate": 0.5})
    for other in (more_held_out, noisy):
        assert other.population.participants.tolist() == base.population.participants.tolist()
    for other in (noisy, federated(participants=7), federated(exclude_clients=[0])):
        assert other.held_out.order.tolist() == base.held_out.order.tolist()
    assert federated(participants=4).digest() == base.digest()
    assert federated(seed=1, participants=4).digest() != base.digest()


def test_a_partition_of_other_data_is_refused():
    dataset = from_arrays(np.zeros((4, 1), np.float32), [0, 1, 0, 1])
    with pytest.raises(DataError, match="must divide the 4 examples of arrays; got a partition of 3"):
        federate(dataset, Partition.from_owner([0, 1, 1], 2, kind="natural"))


def test_label_counts_are_those_that_clients_train_on():
    data = make()
    noisy = data.labels.copy()
    noisy[data.train[1]] = 0
    data = replace(data, labels=noisy)
    counts = data.label_counts()
    assert counts.shape == (3, 3)
    for client in range(3):
        assert counts[client].tolist() == np.bincount(noisy[data.train[client]], minlength=3).tolist()
    assert counts[1].tolist() == [3, 0, 0]
    assert data.num_clients == 3


def test_ranges_know_owners_and_sizes():
    ranges = ClientIndex(np.array([5, 3, 9]), np.array([0, 2, 2, 3]))
    assert ranges.sizes.tolist() == [2, 0, 1]
    assert ranges.owner().tolist() == [0, 0, 2]
    assert ranges[1].tolist() == []
    assert ranges[2].tolist() == [9]


def test_samples_of_some_clients_are_their_ranges_one_after_the_other():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = rng.integers(0, 4, size=9)  # some are empty
        ranges = ClientIndex(rng.permutation(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
        clients = rng.permutation(9)[: rng.integers(0, 10)]
        index, counts = ranges.of(clients)
        plain = [ranges[int(client)] for client in clients]
        assert counts.tolist() == ranges.sizes_of(clients).tolist() == [len(part) for part in plain]
        assert index.tolist() == [sample for part in plain for sample in part]
