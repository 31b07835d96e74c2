"""The value `Partition`: exact cover, digest, file; and the table of kinds."""

import json

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.partition import PARTITIONS, partition


@pytest.fixture
def six() -> Partition:
    return Partition.from_owner([2, 0, 2, 2, 0, 3], 4, "natural", {"alpha": 0.5})


def test_a_client_holds_its_samples_in_increasing_order(six):
    assert [six[k].tolist() for k in range(4)] == [[1, 4], [], [0, 2, 3], [5]]
    assert six.sizes.tolist() == [2, 0, 3, 1]
    assert (six.num_clients, six.num_samples) == (4, 6)


def test_owner_undoes_from_owner(six):
    assert six.owner().tolist() == [2, 0, 2, 2, 0, 3]


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_is_not_there_is_an_index_error(six, client):
    with pytest.raises(IndexError, match="from 0 to 3"):
        six[client]


def test_label_counts_agree_with_counting_by_hand(six):
    labels = np.array([1, 0, 1, 2, 0, 2])
    by_hand = [[int((labels[six[k]] == c).sum()) for c in range(4)] for k in range(4)]
    assert six.label_counts(labels, 4).tolist() == by_hand


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 1, 2, 3, 4, 5], [-1, 0, 0, 0, 0, 0], [0.5] * 6])
def test_label_counts_refuse_labels_of_something_else(six, labels):
    with pytest.raises(DataError, match="labels must"):
        six.label_counts(labels, 5)


@pytest.mark.parametrize(
    ("order", "offsets", "message"),
    [
        ([0, 1, 1], [0, 1, 3], "got 1 instead of 2"),
        ([0, 2, 3], [0, 1, 3], "got 2 instead of 1"),
        ([0, 1, -1], [0, 1, 3], "got -1 instead of 0"),
        ([0, 1, 2], [0, 1, 2], "offsets"),
        ([0, 1, 2], [1, 3], "offsets"),
        ([0, 1, 2], [0, 2, 1, 3], "offsets"),
        ([0, 1, 2], [3], "offsets"),
        ([0.0, 1.0], [0, 2], "whole numbers"),
        ([], [0, 0], "non-empty"),
    ],
)
def test_anything_but_an_exact_cover_is_refused(order, offsets, message):
    with pytest.raises(DataError, match=message):
        Partition(order, offsets, "mine")


@pytest.mark.parametrize("owner", [[0, 3], [-1, 0]])
def test_owners_that_are_not_clients_are_refused(owner):
    with pytest.raises(DataError, match="from 0 to 2"):
        Partition.from_owner(owner, 3, "mine")


@pytest.mark.parametrize("value", [{1, 2}, np.float32(1), float("nan")])
def test_parameters_that_json_cannot_hold_are_refused(value):
    with pytest.raises(DataError, match="JSON"):
        Partition.from_owner([0], 1, "mine", {"alpha": value})


def test_a_partition_cannot_be_changed_from_outside(six):
    order = np.array([0, 1, 2])
    p = Partition(order, [0, 3], "mine")
    order[0] = 2
    assert p[0].tolist() == [0, 1, 2]
    for array in (six.order, six.offsets, six[2]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_equal_digests_mean_equal_clients(six):
    same = Partition([4, 1, 3, 0, 2, 5], [0, 2, 2, 5, 6], "other kind")
    assert same.digest() == six.digest()
    swapped = Partition.from_owner([2, 0, 2, 2, 3, 0], 4, "natural")
    one_more_empty_client = Partition.from_owner(six.owner(), 5, "natural")
    assert len({six.digest(), swapped.digest(), one_more_empty_client.digest()}) == 3


def test_what_is_saved_is_loaded_and_equal_partitions_give_equal_bytes(six, tmp_path):
    six.save(tmp_path / "a.npz")
    loaded = Partition.load(tmp_path / "a.npz")
    assert (loaded.kind, loaded.parameters, loaded.digest()) == ("natural", {"alpha": 0.5}, six.digest())
    loaded.save(str(tmp_path / "b.npz"))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_a_folder_that_is_not_there_is_named(six, tmp_path):
    with pytest.raises(DataError, match="absent"):
        six.save(tmp_path / "absent" / "a.npz")
    for folder in (".", "..", tmp_path):
        with pytest.raises(DataError, match=r"is a folder; a partition is a file\. Choose another path"):
            six.save(folder)
    with pytest.raises(DataError, match=r"absent\.npz"):
        Partition.load(tmp_path / "absent.npz")


def test_no_damage_to_the_file_goes_unnoticed(six, tmp_path):
    path = tmp_path / "a.npz"
    six.save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            Partition.load(path)
    refused = 0
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:  # a zip also holds bytes without a meaning, such as dates: then the content must be what it was
            assert Partition.load(path).digest() == six.digest()
        except DataError:
            refused += 1
    assert refused > len(whole) / 2


def _store(path, header, order, offsets=(0, 2, 3)):
    np.savez(path, header=np.frombuffer(json.dumps(header).encode(), np.uint8), order=order, offsets=offsets)


def test_another_version_another_content_and_pickles_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    now = {"format": "fedreach-partition/1", "kind": "mine", "parameters": {}, "digest": ""}
    _store(path, {**now, "format": "fedreach-partition/7"}, [0, 1, 2])
    with pytest.raises(DataError, match="format must be 'fedreach-partition/1'; got 'fedreach-partition/7'"):
        Partition.load(path)
    digest = Partition.from_owner([0, 0, 1], 2, "mine").digest()
    _store(path, {**now, "digest": digest}, [0, 1, 2])
    assert Partition.load(path).digest() == digest
    _store(path, {**now, "digest": digest}, [0, 2, 1])
    with pytest.raises(DataError, match="modified"):
        Partition.load(path)
    _store(path, {**now, "digest": digest}, [0, 1, 1])
    with pytest.raises(DataError, match="got 1 instead of 2"):
        Partition.load(path)
    _store(path, now, np.array([0, 1, None], dtype=object))
    with pytest.raises(DataError, match="pickle"):
        Partition.load(path)
    np.save(tmp_path / "bare.npy", np.arange(3))
    with pytest.raises(DataError, match=r"is not an \.npz file"):
        Partition.load(tmp_path / "bare.npy")


def test_a_misspelt_kind_or_option_is_answered_with_the_right_name():
    labels, rng = [0, 1, 0, 1], generator(0, "partition")
    with pytest.raises(ConfigError, match="Did you mean 'dirichlet_by_client'"):
        partition("dirichlet_by_clients", labels, 2, rng)
    with pytest.raises(ConfigError, match=r"Unknown option 'alhpa' of .*Did you mean 'alpha'"):
        partition("dirichlet_by_class", labels, 2, rng, alhpa=0.5)
    with pytest.raises(ConfigError, match="requires the option 'alpha'"):
        partition("dirichlet_by_class", labels, 2, rng)
    with pytest.raises(ConfigError, match="has no options"):
        partition("iid", labels, 2, rng, alpha=0.5)


def test_by_name_and_by_function_give_the_same_clients():
    labels = np.arange(40) % 4
    by_name = partition("shards", labels, 8, generator(3, "partition"), classes_per_client=2)
    by_function = PARTITIONS["shards"](labels, 8, generator(3, "partition"), classes_per_client=2)
    assert by_name.digest() == by_function.digest()
    assert by_name.kind == "shards"
