"""Label noise: exactly as much as asked, of the kind asked, and recorded."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.noise import corrupt

KINDS = ["to_one_class", "symmetric", "asymmetric"]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    rate=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.05, 0.25, 0.5, 0.75, 1.0])),
    scope=st.sampled_from(["pooled", "per_client", "before_split"]),
    seed=st.integers(0, 2**32),
)
def test_exactly_the_rounded_number_is_selected_and_the_rest_untouched(kind, labels, rate, scope, seed):
    clean = np.array(labels)
    clean.setflags(write=False)
    partition = Partition.from_owner(generator(seed, "owner").integers(0, 6, clean.size), 6, "natural")
    noise = corrupt(
        clean, generator(seed, "noise"), kind=kind, rate=rate, num_classes=5, partition=partition, scope=scope
    )
    groups = [np.arange(clean.size)] if scope != "per_client" else [partition[k] for k in range(6)]
    assert [int(np.isin(noise.selected, group).sum()) for group in groups] == [round(rate * g.size) for g in groups]
    assert np.unique(noise.selected).tolist() == noise.selected.tolist()
    assert noise.changed.tolist() == (noise.labels != clean).tolist()
    assert set(np.flatnonzero(noise.changed)) <= set(noise.selected)
    assert 0 <= noise.labels.min() <= noise.labels.max() < 5
    assert noise.labels.dtype == np.int64
    old, new = clean[noise.selected], noise.labels[noise.selected]
    if kind == "to_one_class":
        assert (new == 0).all()
    elif kind == "symmetric":
        assert (new != old).all()
    else:
        assert (new == (old + 1) % 5).all()
    record = json.loads(json.dumps(noise.record))
    assert (record["kind"], record["rate"], record["scope"]) == (kind, rate, scope)
    assert (record["num_selected"], record["num_changed"]) == (noise.selected.size, noise.changed.sum())


def test_symmetric_noise_is_uniform_over_the_other_classes():
    noise = corrupt([1] * 30_000, generator(0, "noise"), kind="symmetric", rate=1.0, num_classes=4)
    shares = np.bincount(noise.labels, minlength=4) / 30_000
    assert shares[1] == 0
    assert abs(shares[[0, 2, 3]] - 1 / 3).max() < 4.5 * np.sqrt(2 / 9 / 30_000)


def test_each_sample_is_equally_likely_to_be_selected():
    rng, draws = generator(0, "noise"), 3000
    times = np.zeros(5)
    for _ in range(draws):
        times[corrupt([0, 1, 0, 1, 0], rng, kind="symmetric", rate=0.4, num_classes=2).selected] += 1
    assert abs(times / draws - 0.4).max() < 4.5 * np.sqrt(0.24 / draws)


def test_a_tenth_of_balanced_labels_already_was_the_target():
    clean = np.arange(1000) % 10
    noise = corrupt(clean, generator(0, "noise"), kind="to_one_class", rate=1.0, num_classes=10, target=3)
    assert (noise.labels == 3).all()
    assert noise.record == {
        "kind": "to_one_class", "rate": 1.0, "scope": "pooled", "target": 3, "num_selected": 1000, "num_changed": 900,
    }  # fmt: skip


def test_classes_may_be_mapped_at_will_and_to_themselves():
    noise = corrupt([0, 1, 2, 2], generator(0, "noise"), kind="asymmetric", rate=1, num_classes=3, mapping=[0, 2, 1])
    assert noise.labels.tolist() == [0, 2, 1, 1]
    assert noise.record["num_changed"] == 3
    assert noise.record["mapping"] == [0, 2, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_more_noise_hits_the_same_samples_and_more(kind):
    clean = generator(0, "labels").integers(0, 10, 200)
    by_rate = [
        set(corrupt(clean, generator(1, "noise"), kind=kind, rate=rate, num_classes=10).selected.tolist())
        for rate in (0.0, 0.1, 0.4, 0.9)
    ]
    assert [len(selected) for selected in by_rate] == [0, 20, 80, 180]
    assert by_rate[0] <= by_rate[1] <= by_rate[2] <= by_rate[3]


def test_per_client_noise_spares_no_client_where_pooled_noise_may():
    partition = Partition.from_owner(np.arange(400) % 100, 100, "natural")
    clean, options = np.zeros(400, dtype=int), {"kind": "symmetric", "rate": 0.25, "num_classes": 2}
    pooled = corrupt(clean, generator(0, "noise"), partition=partition, **options)
    each = corrupt(clean, generator(0, "noise"), partition=partition, scope="per_client", **options)
    assert (partition.label_counts(each.labels, 2)[:, 1] == 1).all()
    assert partition.label_counts(pooled.labels, 2)[:, 1].min() == 0
    assert pooled.record["num_selected"] == each.record["num_selected"] == 100


def test_the_number_of_noisy_clients_is_rounded_and_not_cut_off():
    partition = Partition.from_owner(np.arange(400) % 10, 10, "natural")
    noise = corrupt(np.zeros(400, dtype=int), generator(0, "noise"), kind="symmetric", rate=1.0, num_classes=2,
                    partition=partition, clients=0.28)  # fmt: skip
    assert np.count_nonzero(partition.label_counts(noise.labels, 2)[:, 1]) == 3


@pytest.mark.parametrize("scope", ["pooled", "per_client"])
def test_a_share_of_the_clients_has_all_the_noise_and_the_others_none(scope):
    partition, clean = Partition.from_owner(np.arange(400) % 10, 10, "natural"), np.zeros(400, dtype=int)
    options = {"kind": "symmetric", "rate": 0.5, "num_classes": 2, "partition": partition, "scope": scope}
    drawn = set()
    for seed in range(5):
        noise = corrupt(clean, generator(seed, "noise"), clients=0.3, **options)
        wrong = partition.label_counts(noise.labels, 2)[:, 1]
        assert ((wrong > 0).sum(), wrong.sum()) == (3, 60)
        drawn.add(tuple(np.flatnonzero(wrong)))
    assert len(drawn) > 1
    assert noise.record["clients"] == 0.3
    assert corrupt(clean, generator(0, "noise"), clients=0.0, **options).record["num_selected"] == 0


def test_narrow_label_types_do_not_overflow():
    noise = corrupt(
        np.zeros(50, dtype=np.uint8), generator(0, "noise"), kind="asymmetric", rate=1, num_classes=300,
        mapping=[299] * 300,
    )  # fmt: skip
    assert (noise.labels == 299).all()


def test_the_results_are_read_only():
    noise = corrupt([0, 1], generator(0, "noise"), kind="symmetric", rate=0.5, num_classes=2)
    for array in (noise.labels, noise.selected, noise.changed):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": -0.1}, "rate of label noise must be a number from 0 to 1; got -0.1"),
        ({"rate": 1.5}, "rate of label noise"),
        ({"rate": float("nan")}, "rate of label noise"),
        ({"kind": "symetric"}, "Did you mean 'symmetric'"),
        ({"scope": "per_clients"}, "Did you mean 'per_client'"),
        ({"scope": "per_client"}, "requires a partition"),
        ({"clients": 0.5}, "clients = 0.5 of label noise requires a partition"),
        ({"clients": 0.5, "scope": "before_split"}, "clients = 0.5 of label noise requires a partition"),
        ({"clients": 1.5}, "clients of label noise must be a number from 0 to 1; got 1.5"),
        ({"kind": "to_one_class", "target": 3}, "target of label noise must be below num_classes = 3; got 3"),
        ({"mapping": [0, 1, 2]}, "mapping requires the label noise 'asymmetric'"),
        ({"kind": "asymmetric", "mapping": [0, 1]}, "from 0 to 2; got"),
        ({"kind": "asymmetric", "mapping": [0, 1, 3]}, "from 0 to 2; got"),
        ({"kind": "asymmetric", "mapping": [0, 1, 0.5]}, "from 0 to 2; got"),
        ({"num_classes": 0}, "num_classes of corrupt"),
    ],
)
def test_wrong_options_are_named(change, message):
    with pytest.raises(ConfigError, match=message):
        corrupt([0, 1, 2], generator(0, "noise"), **{"kind": "symmetric", "rate": 0.5, "num_classes": 3, **change})


def test_one_class_has_no_other_to_flip_to():
    with pytest.raises(ConfigError, match="at least 2 classes"):
        corrupt([0, 0], generator(0, "noise"), kind="symmetric", rate=0.5, num_classes=1)


def test_labels_and_partition_of_other_data_are_refused():
    with pytest.raises(DataError, match="below num_classes = 2; got 5"):
        corrupt([0, 5], generator(0, "noise"), kind="symmetric", rate=0.5, num_classes=2)
    other = Partition.from_owner([0, 1, 1], 2, "natural")
    with pytest.raises(DataError, match="partition must have 2 examples, one per label; got 3"):
        corrupt([0, 1], generator(0, "noise"), kind="symmetric", rate=0.5, num_classes=2, partition=other,
                scope="per_client")  # fmt: skip
