"""Labels at every position, and several inputs an example: they are read alike at every door."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedreach as fr
from fedreach._util.errors import ConfigError, DataError
from fedreach.data.assignment import Partition
from fedreach.data.datasets import content_hash, from_npz
from fedreach.data.federated import FederatedData, federate
from fedreach.data.several import IGNORED, layout_of_json, layout_to_json, next_token_labels, records
from fedreach.data.shifts import Brightness, shift_unseen
from fedreach.data.stored import open_stored, store

TOKENS = np.random.default_rng(0).integers(0, 9, (12, 5))
LABELS = np.where(TOKENS > 5, IGNORED, TOKENS)
LABELS[:, 0] = TOKENS[:, 0]
IDS = ["a", "b", "c"] * 4
AGES = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
LARGE = 2**53 + 1 + np.arange(12)  # whole numbers that no float holds


class Samples(torch.utils.data.Dataset):
    """Makes each sample by a function."""

    def __init__(self, make, length=12):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        if number >= self.length:
            raise IndexError
        return self.make(number)


def npz(folder):
    np.savez(folder / "mine.npz", x=TOKENS.astype(np.float32), y=LABELS)
    return from_npz(folder / "mine.npz", num_classes=9)


def of_torch(make):
    return FederatedData.from_torch(Samples(make), clients=IDS, num_classes=9, participants=["a"])


def hugging(**named):
    datasets = pytest.importorskip("datasets")
    table = {"client": IDS, "tokens": TOKENS.tolist(), "mask": (TOKENS > 2).astype(int).tolist()}
    ds = datasets.Dataset.from_dict({**table, "labels": LABELS.tolist(), "label": [0, 1] * 6})
    return FederatedData.from_huggingface(ds, client="client", **named)


def flower(examples):
    pytest.importorskip("flwr")
    from fedreach.flower.local import ClientData

    return ClientData(examples, num_classes=9, kind="tokens").federated(0)


@pytest.mark.parametrize(
    "door",
    [
        lambda folder: fr.from_arrays(TOKENS, LABELS, kind="tokens", num_classes=9),
        npz,
        lambda folder: (
            FederatedData.from_torch(
                Samples(lambda i: (TOKENS[i], torch.from_numpy(LABELS[i]))), clients=["a"] * 12, kind="tokens"
            ).dataset
        ),
        lambda folder: FederatedData.from_clients({"a": (TOKENS, LABELS)}, kind="tokens").dataset,
        lambda folder: hugging(inputs="tokens", label="labels", kind="tokens").dataset,
        lambda folder: flower((TOKENS, LABELS)).dataset,
    ],
)
def test_labels_at_every_position_keep_their_shape_and_their_mask(tmp_path, door):
    dataset = door(tmp_path)
    assert (dataset.positions, dataset.example_classes) == ((5,), 0)
    np.testing.assert_array_equal(dataset.train_y, LABELS)
    assert dataset.targets.endswith("classes at 5 positions")


def test_a_mask_of_pixels_is_a_label_at_every_pixel():
    image = pytest.importorskip("PIL.Image")
    masks = [image.fromarray(((TOKENS[i][:, None] + np.arange(4)) % 3).astype(np.uint8)) for i in range(12)]
    data = of_torch(lambda i: (np.zeros((1, 5, 4), np.float32), masks[i]))
    assert data.dataset.positions == (5, 4)
    np.testing.assert_array_equal(data.dataset.train_y[7], np.asarray(masks[7]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.where(TOKENS > 5, 255, TOKENS), r"0 to 8 at each position, or -100 if masked; got 255"),
        (np.where(TOKENS > 5, -1, TOKENS), r"or -100 if masked; got -1"),
        (
            np.where(np.arange(12)[:, None] == 3, IGNORED, TOKENS),
            r"got 1 examples without a label, the first at index 3",
        ),
        (TOKENS[:, :1], "one label per example"),
        (TOKENS[:7], "one label per example"),
    ],
)
def test_labels_that_stand_nowhere_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        fr.from_arrays(TOKENS, labels, kind="tokens", num_classes=9)


def test_the_label_at_a_position_is_the_token_that_follows():
    mask = np.ones_like(TOKENS)
    mask[0, 3:] = 0
    labels = next_token_labels(TOKENS, mask)
    np.testing.assert_array_equal(labels[1, :-1], TOKENS[1, 1:])
    assert labels[0].tolist() == [*TOKENS[0, 1:3], IGNORED, IGNORED, IGNORED]
    assert (labels[:, -1] == IGNORED).all()
    with pytest.raises(DataError, match=r"tokens must be \(n, T\) integers"):
        next_token_labels(TOKENS, mask[:, :2])


NAMED = {"ids": LARGE, "age": AGES, "there": TOKENS > 2}


@pytest.mark.parametrize(
    "door",
    [
        lambda: FederatedData.from_clients({"a": (NAMED, TOKENS[:, 0])}),
        lambda: FederatedData.from_torch(
            Samples(lambda i: ({key: torch.from_numpy(NAMED[key])[i] for key in NAMED}, TOKENS[i, 0])),
            clients=["a"] * 12,
        ),
        lambda: FederatedData.from_torch(
            Samples(lambda i: {"labels": TOKENS[i, 0], **{key: NAMED[key][i] for key in reversed(NAMED)}}),
            clients=["a"] * 12,
        ),
        lambda: FederatedData.from_clients(
            {"a": Samples(lambda i: ({key: NAMED[key][i] for key in NAMED}, int(TOKENS[i, 0])))}
        ),
    ],
)
def test_inputs_with_names_keep_their_shapes_and_their_types(door):
    x = door().dataset.train_x
    assert layout_to_json(x.dtype) == [["age", "float32", [3]], ["ids", "int64", []], ["there", "bool", [5]]]
    for key, values in NAMED.items():
        np.testing.assert_array_equal(x[key], values)


@pytest.mark.parametrize(
    "door",
    [
        lambda: fr.from_arrays((TOKENS, AGES), TOKENS[:, 0]),
        lambda: (
            of_torch(lambda i: ((torch.from_numpy(TOKENS[i]), torch.from_numpy(AGES[i])), int(TOKENS[i, 0]))).dataset
        ),
        lambda: flower_of_two().dataset,
    ],
)
def test_inputs_in_order_are_told_by_their_place(door):
    x = door().train_x
    assert layout_to_json(x.dtype) == [["0", "int64", [5]], ["1", "float32", [3]]]
    np.testing.assert_array_equal(x["0"], TOKENS)
    np.testing.assert_array_equal(x["1"], AGES)


def flower_of_two():
    pytest.importorskip("flwr")
    from fedreach.flower.local import ClientData

    return ClientData(((TOKENS, AGES), TOKENS[:, 0]), num_classes=9).federated(0)


def test_columns_of_hugging_face_are_several_inputs():
    x = hugging(inputs=["tokens", "mask"], label="label", participants=["a"]).dataset.train_x
    assert x.dtype.names == ("mask", "tokens")
    np.testing.assert_array_equal(x["tokens"], TOKENS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda i: ({"a": AGES[i], "b": AGES[i][: 2 + i % 2]}, 0), "the same shape and type.*example 1 has.*Pad texts"),
        (lambda i: ({"a": AGES[i]} if i < 4 else AGES[i], 0), "example 4 must have several inputs, like the first"),
        (lambda i: ({"a b": AGES[i]}, 0), "must be keywords"),
        (lambda i: ({"a": "text"}, 0), "must be an array of numbers"),
        (lambda i: ({"a": AGES[i] * np.nan}, 0), "must be finite"),
        (lambda i: (AGES[i], AGES[i], 0), r"a tuple of 3\. For several inputs, use a dictionary"),
        (lambda i: {"a": AGES[i]}, "must have the key 'labels' or 'label'"),
    ],
)
def test_inputs_that_no_model_can_be_handed_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        of_torch(make)


def test_a_kind_of_several_inputs_is_refused():
    with pytest.raises(DataError, match="kind must be omitted for several inputs; got 'tokens'"):
        fr.from_arrays({"a": TOKENS}, TOKENS[:, 0], kind="tokens")


def test_clients_must_have_the_same_inputs_and_labels():
    with pytest.raises(DataError, match="all clients must have examples of the same shape and type"):
        FederatedData.from_clients({"a": ({"q": AGES}, TOKENS[:, 0]), "b": ({"q": TOKENS}, TOKENS[:, 0])})
    with pytest.raises(
        DataError, match=r"must have examples of the same shape and type; got a: .* and \(5,\); b: .* and \(4,\)"
    ):
        FederatedData.from_clients({"a": (TOKENS, TOKENS), "b": (TOKENS, TOKENS[:, :4])}, kind="tokens")


def test_records_are_stored_and_named_by_what_they_hold(tmp_path):
    one = fr.from_arrays(NAMED, LABELS, num_classes=9)
    again = open_stored(store(one, tmp_path))
    assert again.sha256 == one.sha256
    assert again.train_x.dtype == one.train_x.dtype
    np.testing.assert_array_equal(again.train_x, one.train_x)
    np.testing.assert_array_equal(again.train_y, LABELS)
    assert layout_of_json(layout_to_json(one.train_x.dtype)) == one.train_x.dtype
    two = records({"idz": LARGE, "age": AGES}, "toy"), records({"ids": LARGE, "age": AGES}, "toy")
    assert content_hash(two[0]) != content_hash(two[1])  # the same bytes by other names


AT_POSITIONS = fr.from_arrays(TOKENS, LABELS, kind="tokens", num_classes=9)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("dirichlet_by_class", {"alpha": 1.0}), ("dirichlet_by_client", {"alpha": 1.0}), ("shards", {})],
)
def test_a_partition_by_label_is_refused(kind, options):
    spec = AT_POSITIONS.partition(kind, clients=3, **options)
    with pytest.raises(DataError, match=r"got one label per position\. Use the partition 'iid'"):
        FederatedData.from_spec(spec)


def test_what_goes_by_the_class_of_an_example_is_refused():
    partition = Partition.from_owner(np.arange(12) % 3, 3, "iid")
    with pytest.raises(ConfigError, match="noise: requires one class per example; arrays has one label per position"):
        federate(AT_POSITIONS, partition, noise={"kind": "symmetric", "rate": 0.2})
    with pytest.raises(
        ConfigError, match="exclude_labels: requires one class per example; arrays has one label per position"
    ):
        federate(AT_POSITIONS, partition, exclude_labels=[1])
    with pytest.raises(ConfigError, match="shift: requires one class per example; arrays has one label per position"):
        shift_unseen(federate(AT_POSITIONS, partition, participants=2), Brightness(0.3), share=1.0)
    several = federate(fr.from_arrays(NAMED, TOKENS[:, 0]), partition, participants=2)
    with pytest.raises(DataError, match="needs numeric inputs; arrays contains several inputs"):
        shift_unseen(several, Brightness(0.3), share=1.0)
