"""Laws that every partitioner obeys, over adversarial small inputs and one large one."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.partition import PARTITIONS, natural, partition

thorough = settings(deadline=None, derandomize=True)
alphas = st.sampled_from([1e-100, 1e-6, 0.05, 0.5, 1.0, 1e6, 1e100])
min_sizes = st.integers(0, 4)
OPTIONS = {
    "iid": st.just({}),
    "dirichlet_by_class": st.fixed_dictionaries({"alpha": alphas, "min_size": min_sizes}),
    "dirichlet_by_client": st.fixed_dictionaries(
        {"alpha": alphas, "sigma": st.sampled_from([0.0, 0.9, 100.0]), "min_size": min_sizes}
    ),
    "shards": st.fixed_dictionaries({"classes_per_client": st.integers(1, 5)}),
    "hybrid": st.fixed_dictionaries(
        {"share": st.sampled_from([0.0, 0.1, 0.5, 1.0]), "alpha": alphas, "min_size": min_sizes}
    ),
    "class_counts": st.fixed_dictionaries({"counts": st.sampled_from([[], [[1]], [[0, 2, 0, 1]], [[9, 9]]])}),
    "natural": st.just({}),
}
# Few samples, classes that are missing, more classes than samples, more clients than samples.
all_labels = st.lists(st.sampled_from([0, 1, 2, 3, 7, 10**12]), min_size=1, max_size=40)


def assert_exact_cover(p: Partition, n: int) -> None:
    assert np.sort(np.concatenate([p[k] for k in range(p.num_clients)])).tolist() == list(range(n))


def test_the_options_above_are_those_of_all_kinds():
    assert OPTIONS.keys() == PARTITIONS.keys()


@pytest.mark.parametrize("kind", PARTITIONS)
@thorough
@given(labels=all_labels, num_clients=st.integers(1, 45), seed=st.integers(0, 2**32), data=st.data())
def test_every_sample_has_one_client_or_it_cannot_be_done(kind, labels, num_clients, seed, data):
    options = data.draw(OPTIONS[kind])
    if kind == "natural":
        options = {"owners": generator(seed, "owners").integers(0, num_clients, len(labels))}
    frozen = np.array(labels)
    frozen.setflags(write=False)
    n, least = len(labels), options.get("min_size", 0 if kind == "natural" else 1)
    try:
        p = partition(kind, frozen, num_clients, generator(seed, "partition"), **options)
    except DataError:
        # Only what cannot be done may be refused; some kinds have further conditions, tested in their place.
        assert n < num_clients * least or kind in ("shards", "hybrid", "class_counts")
        return
    assert_exact_cover(p, n)
    assert p.num_clients == num_clients
    assert p.sizes.min() >= least
    json.dumps(dict(p.parameters), allow_nan=False)
    again = partition(kind, frozen, num_clients, generator(seed, "partition"), **options)
    assert again.digest() == p.digest()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("iid", {}),
        ("dirichlet_by_class", {"alpha": 0.1}),
        ("dirichlet_by_class", {"alpha": 1e-6}),
        ("dirichlet_by_client", {"alpha": 0.1, "sigma": 0.9}),
        ("dirichlet_by_client", {"alpha": 1e-6}),
        ("shards", {"classes_per_client": 2}),
        ("hybrid", {}),
    ],
)
def test_ten_thousand_clients_are_adapted_without_a_loop_over_them(kind, options):
    # 2 * 10^5 samples: a Python loop over samples, or a redraw until all clients are large enough, would hang here.
    labels = generator(0, "labels").integers(0, 10, 200_000)
    p = partition(kind, labels, 10_000, generator(0, "partition"), **options)
    assert p.sizes.sum() == 200_000
    assert p.sizes.min() >= 2
    assert partition(kind, labels, 10_000, generator(1, "partition"), **options).digest() != p.digest()


@pytest.mark.parametrize("kind", [kind for kind in PARTITIONS if kind != "natural"])
def test_too_few_samples_are_named_with_clients_and_least_size(kind):
    options = {"alpha": 1.0} if "dirichlet" in kind else {"counts": []} if kind == "class_counts" else {}
    with pytest.raises(DataError, match=r"9 clients .* require \d+ examples; got 5"):
        partition(kind, [0, 1, 0, 1, 0], 9, generator(0, "partition"), **options)


@pytest.mark.parametrize(
    ("labels", "error"), [([], DataError), ([[0], [1]], DataError), ([0.5, 1.0], DataError), ([0, -1], DataError)]
)
@pytest.mark.parametrize("kind", PARTITIONS)
def test_labels_that_are_not_classes_are_refused(kind, labels, error):
    needed: dict[str, dict[str, object]] = {"natural": {"owners": [0, 0]}, "class_counts": {"counts": []}}
    options = {"alpha": 1.0} if "dirichlet" in kind else needed.get(kind, {})
    if labels == [0.5, 1.0] and kind in ("iid", "natural"):  # which do not look at them: they may be numbers
        assert partition(kind, labels, 1, generator(0, "partition"), **options).num_samples == 2
        return
    with pytest.raises(error, match="labels must"):
        partition(kind, labels, 1, generator(0, "partition"), **options)


@pytest.mark.parametrize("num_clients", [0, -3, 2.5, "2", True, None])
def test_a_number_of_clients_that_is_none_is_refused(num_clients):
    with pytest.raises(ConfigError, match="num_clients must be a whole number, at least 1"):
        partition("iid", [0, 1], num_clients, generator(0, "partition"))


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        *[("dirichlet_by_class", {"alpha": bad}, "alpha") for bad in (0, -1, float("nan"), float("inf"), "1", None)],
        ("dirichlet_by_client", {"alpha": 0}, "alpha"),
        ("dirichlet_by_client", {"alpha": 1, "sigma": -0.1}, "sigma"),
        ("dirichlet_by_client", {"alpha": 1, "min_size": -1}, "min_size"),
        ("dirichlet_by_class", {"alpha": 1, "min_size": 1.5}, "min_size"),
        ("shards", {"classes_per_client": 0}, "classes_per_client"),
        ("hybrid", {"share": 1.01}, "share"),
        ("hybrid", {"alpha": 0}, "alpha"),
        ("class_counts", {"counts": 3}, "counts"),
        ("class_counts", {"counts": [[1, -1]]}, "counts"),
    ],
)
def test_an_option_outside_its_range_is_named(kind, options, name):
    with pytest.raises(ConfigError, match=f"{name} of {kind} must be"):
        partition(kind, [0, 1, 0, 1], 2, generator(0, "partition"), **options)


def test_a_seed_in_place_of_a_generator_is_refused():
    with pytest.raises(ConfigError, match="rng must be a numpy Generator; got int"):
        partition("iid", [0, 1], 2, 0)


@thorough
@given(n=st.integers(1, 60), num_clients=st.integers(1, 60), seed=st.integers(0, 99))
def test_iid_sizes_differ_by_at_most_one_and_the_first_clients_hold_more(n, num_clients, seed):
    if num_clients > n:
        return
    sizes = partition("iid", [0] * n, num_clients, generator(seed, "partition")).sizes
    assert sizes.tolist() == [n // num_clients + (k < n % num_clients) for k in range(num_clients)]


def test_class_counts_are_met_to_the_sample_at_random_and_the_rest_is_shared():
    labels, firsts = np.repeat([0, 1, 2], 20), set()
    for seed in range(5):
        p = partition("class_counts", labels, 4, generator(seed, "partition"), counts=[[3, 0, 7], [0, 5]])
        counts = p.label_counts(labels, 3)
        assert counts[:2].tolist() == [[3, 0, 7], [0, 5, 0]]
        assert p.sizes.tolist() == [10, 5, 23, 22]
        assert (counts[2:].sum(axis=0) == [17, 15, 13]).all()
        assert (counts[2:] > 0).all()  # the rest is shuffled, and not cut into classes
        firsts.add(tuple(p[0]))
    assert len(firsts) == 5


@pytest.mark.parametrize(
    ("clients", "counts", "message"),
    [
        (2, [[2], [1]], "require 3 examples of class 0; the data have 2"),
        (2, [[1, 0, 1]], "require 1 examples of class 2; the data have 0"),
        (2, [[1], [1]], "2 examples remain without a client"),
        (2, [[1], [1], [1]], "for at most 2 clients; got 3 lists"),
    ],
)
def test_class_counts_that_are_not_there_are_refused(clients, counts, message):
    with pytest.raises(DataError, match=message):
        partition("class_counts", [0, 0, 1, 1], clients, generator(0, "partition"), counts=counts)


def test_natural_clients_are_those_of_the_data_and_may_be_empty():
    p = natural([0, 0, 1], 4, generator(0, "partition"), owners=[3, 0, 3])
    assert [p[k].tolist() for k in range(4)] == [[1], [], [], [0, 2]]
    with pytest.raises(DataError, match="one client for each of the 3 examples; got 2"):
        natural([0, 0, 1], 4, generator(0, "partition"), owners=[3, 0])
    with pytest.raises(DataError, match="owner must contain clients from 0 to 1; got 0 to 3"):
        natural([0, 0, 1], 2, generator(0, "partition"), owners=[3, 0, 3])
