"""Data of one's own by client: who holds what, on whose scale, and by which names."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.data.hospitals import HOSPITALS, reordered, table
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data import stored
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData, federate
from fedreach.data.preparation import Preparation
from fedreach.data.shifts import InputNoise, shift_unseen
from fedreach.data.table_source import read_table

NORTH = {"client": "hospital", "label": "readmitted", "participants": ["north", "south", "east"]}


def made(columns=None, **options):
    return FederatedData.from_frame(table() if columns is None else columns, **{**NORTH, **options})


# -------------------------------------------------------------------------------------------------------- tables


def test_hospitals_take_part_by_name():
    data = made()
    assert data.client_names == tuple(sorted(HOSPITALS))
    assert data.class_names == ("no", "yes")
    assert [data.name_of(c) for c in data.population.participants] == ["east", "north", "south"]
    assert repr(data) == "FederatedData(table: 6 clients; 3 take part (east, north, south), 3 never train)"
    held = np.array(table()["hospital"])
    assert [len(data.partition[c]) for c in range(6)] == [int((held == name).sum()) for name in sorted(HOSPITALS)]


def test_what_was_found_is_told():
    lines = str(made().schema).splitlines()
    names = ["hospital", "readmitted", "patient", "age", "pressure", "ward", "smoker", "country"]
    assert [line.split()[0] for line in lines] == names
    assert lines[:2] == ["hospital    client", "readmitted  label     no, yes"]
    assert "different texts" in lines[2]
    assert lines[3].startswith("age         number    ")
    assert lines[4].endswith(" missing")
    assert lines[5].startswith("ward        category  heart, surgery, ")
    assert lines[7] == "country     left out  all participants have the same value"


def test_no_name_moves_the_cursor_of_a_terminal():
    rows = table()
    rows["hospital"] = ["\x1b[2Jnorth" if name == "north" else name for name in rows["hospital"]]
    rows["readmitted"] = [f"{label}\x07" for label in rows["readmitted"]]
    rows["ward"] = [f"\x1b]0;{ward}" for ward in rows["ward"]]
    data = made(rows, participants=["\x1b[2Jnorth", "south"])
    told = f"{data} {data.dataset.preparation}"
    assert told.replace("\n", "").isprintable()
    assert r"\x1b[2Jnorth" in told
    assert data.client_names[0] == "\x1b[2Jnorth"  # what it is selected by, and what a prediction says
    assert data.class_names == ("no\x07", "yes\x07")


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown client 'nroth'. Did you mean 'north'"):
        made(participants=["nroth"])
    with pytest.raises(ConfigError, match=r"unknown column 'hospitl'. Did you mean 'hospital'"):
        made(client="hospitl")
    with pytest.raises(ConfigError, match="at least one client"):
        made(participants=[])
    with pytest.raises(DataError, match="must contain classes; got 240 different values in 240 rows"):
        made(label="patient")


def test_the_order_of_the_rows_does_not_matter():
    rng, base = generator(0, "order"), made()
    for _ in range(5):
        other = made(reordered(table(), rng.permutation(240)))
        assert other.digest() == base.digest()
        assert other.dataset.preparation == base.dataset.preparation
    drawn = made(participants=2, seed=3)
    assert made(reordered(table(), rng.permutation(240)), participants=2, seed=3).digest() == drawn.digest()


def changed(columns, unseen):
    """Return the table with other numbers, words and gaps for hospitals that take no part, as many rows each."""
    rows = [row for row, name in enumerate(columns["hospital"]) if name in unseen]
    other = {name: list(values) for name, values in columns.items()}
    for row in rows:
        other["age"][row] = 1e6 + row
        other["pressure"][row] = None
        other["ward"][row] = "another"
        other["country"][row] = f"there {row}"
    return other


def inputs_of_participants(data):
    """Return by example, as the table has it in `patient`, what participants train and are tested on."""
    rows = np.concatenate([data.partition[c] for c in data.population.participants])
    return data.dataset.train_x[rows].tobytes()


def unseen_clients_leak_nothing():
    """The law: whatever unseen clients hold, participants' inputs stay, to the bit."""
    before, after = made(), made(changed(table(), {"west", "harbour", "hill"}))
    assert before.dataset.preparation == after.dataset.preparation
    assert inputs_of_participants(before) == inputs_of_participants(after)
    assert before.digest() != after.digest()


def test_an_unseen_clients_numbers_change_no_participants_inputs():
    unseen_clients_leak_nothing()


def everybodys(columns, clients, places=None, kinds=None):
    return Preparation.of(columns, [np.arange(240)])


def test_the_law_finds_inputs_that_are_on_everybodys_scale(monkeypatch):
    class Leaking(Preparation):
        of = staticmethod(everybodys)

    monkeypatch.setattr(stored, "Preparation", Leaking)
    with pytest.raises(AssertionError):
        unseen_clients_leak_nothing()


def test_what_participants_hold_out_is_not_measured_either():
    data = made()
    index = np.concatenate([data.train[c] for c in data.population.participants])
    age = data.dataset.train_x[index, 0].astype(np.float64)
    assert abs(age.mean()) < 1e-6
    assert age.std() == pytest.approx(1, abs=1e-6)


def test_without_a_wish_two_in_five_take_part_by_the_seed_and_that_is_said():
    data = made(participants=None)
    assert len(data.population.participants) == 2  # 40 % of 6 is 2.4
    assert repr(data).endswith("4 never train; drawn by seed 0, 40% of them)")
    others = {tuple(made(participants=None, seed=seed).population.participants.tolist()) for seed in range(20)}
    assert len(others) > 5


def test_another_seed_redraws_who_takes_part_and_nothing_else():
    data = made(participants=3)
    again = data.redrawn(7)
    assert again.population.participants.tolist() != data.population.participants.tolist()
    assert again.train.order.tolist() == data.train.order.tolist()
    assert again.dataset.preparation != data.dataset.preparation  # the scale is theirs
    assert data.redrawn(0).digest() == data.digest()
    assert again.redrawn(0).digest() == data.digest()
    named = made()
    assert named.redrawn(7) is named


def test_who_is_shifted_is_redrawn_too():
    data = shift_unseen(made(participants=3), InputNoise(0.5), share=0.5)
    again = data.redrawn(7)
    assert again.digest() == shift_unseen(made(participants=3).redrawn(7), InputNoise(0.5), share=0.5, seed=7).digest()
    assert again.shift is not None
    assert again.client_names == data.client_names


def test_numbers_are_names_unless_they_are_ids():
    columns = {"site": [10, 9, 10, 9, 30, 30], "x": range(6), "y": [0, 1, 0, 1, 0, 1]}
    data = FederatedData.from_frame(columns, client="site", label="y", participants=[30, 9])
    assert data.client_names == ("9", "10", "30")
    assert data.population.participants.tolist() == [0, 2]
    columns["site"] = [1, 0, 1, 0, 2, 2]
    data = FederatedData.from_frame(columns, client="site", label="y", participants=[2, 1])
    assert data.client_names is None
    assert data.class_names is None
    assert data.name_of(2) == "2"


def test_a_file_gives_what_its_table_gives_and_lends_its_name(tmp_path):
    pd.DataFrame(table()).to_csv(tmp_path / "wards.csv", index=False)
    data = made(str(tmp_path / "wards.csv"))
    assert data.dataset.name == "wards"
    assert made(tmp_path / "wards.csv", name="mine").dataset.name == "mine"
    assert data.digest() == made(read_table(tmp_path / "wards.csv"), name="wards").digest()
    with pytest.raises(DataError, match=r"absent\.csv: file not found"):
        made(tmp_path / "absent.csv")


def test_pandas_gives_what_a_dictionary_gives():
    assert made(pd.DataFrame(table())).digest() == made().digest()


def test_names_do_not_enter_the_digest():
    data = made()
    assert replace(data, client_names=None).digest() == data.digest()


def test_it_can_be_handed_to_another_process():
    data = pickle.loads(pickle.dumps(made(participants=3)))
    assert data.redrawn(5).digest() == made(participants=3).redrawn(5).digest()


# ------------------------------------------------------------------------------------------------------ Datasets

X = generator(0, "own").standard_normal((12, 3)).astype(np.float32)
Y = np.arange(12) % 3
OWNERS = ["b", "a", "c"] * 4


class Counted(Dataset):
    """A Dataset that counts how often it is asked, and never ends a walk by an IndexError."""

    classes = ("cat", "dog", "owl")

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.asked.append(index)
        return torch.from_numpy(X[index % 12]), int(Y[index % 12])


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(3), 0


class EndlessWithALength(Endless):
    def __len__(self):
        return 12


def plain():
    """Return what all ways of handing in X and Y must give."""
    dataset = from_arrays(X, Y, owners=OWNERS)
    return federate(dataset, Partition.from_owner(dataset.owners, 3, "natural"), participants=[0, 2])


def same(data):
    whole = plain()
    assert data.dataset.train_x.tobytes() == whole.dataset.train_x.tobytes()
    assert data.train.order.tolist() == whole.train.order.tolist()
    assert data.held_out.order.tolist() == whole.held_out.order.tolist()
    assert data.population.participants.tolist() == [0, 2]
    assert data.client_names == whole.client_names == ("a", "b", "c")


def test_a_torch_dataset_is_read_once():
    dataset = Counted()
    data = FederatedData.from_torch(dataset, clients=OWNERS, participants=["a", "c"])
    assert dataset.asked == list(range(12))
    assert data.class_names == ("cat", "dog", "owl")
    same(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        lambda: [(x, y) for x, y in zip(X, Y, strict=True)],
    ],
)
def test_tensors_and_pairs_do_as_well(make):
    same(FederatedData.from_torch(make(), clients=np.array(OWNERS), participants=["a", "c"]))


class Wrapped(Dataset):
    """Has all methods, of which those of what it wraps may be missing."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


@pytest.mark.parametrize(
    "dataset", [Endless(), EndlessWithALength(), Wrapped(Endless()), iter([(X[0], 0)]), {1: 2}.items()]
)
def test_what_may_be_endless_is_refused(dataset):
    with pytest.raises(ConfigError, match=r"must be a Dataset with `__len__` and `__getitem__`.*islice"):
        FederatedData.from_torch(dataset, clients=OWNERS)


@pytest.mark.parametrize("dataset", [Counted(), TensorDataset(torch.zeros(4, 2)), Endless()])
def test_arrays_are_not_made_of_a_dataset(dataset):
    # numpy asks `Counted` for one sample after the other, for ever.
    with pytest.raises(DataError, match=r"train_x must (be an array; got \w+\. Read|hold numbers)"):
        from_arrays(dataset, Y)


def test_images_are_on_the_scale_of_those_who_take_part():
    x = generator(0, "images").integers(0, 256, (12, 3, 4, 4), dtype=np.uint8)
    base = FederatedData.from_torch(list(zip(x, Y, strict=True)), clients=OWNERS, participants=["a", "c"])
    index = np.concatenate([base.train[0], base.train[2]])
    np.testing.assert_allclose(base.dataset.mean, (x[index] / 255).mean(axis=(0, 2, 3)), rtol=1e-12)
    x[np.array(OWNERS) == "b"] = 255
    other = FederatedData.from_torch(list(zip(x, Y, strict=True)), clients=OWNERS, participants=["a", "c"])
    assert (other.dataset.mean, other.dataset.std) == (base.dataset.mean, base.dataset.std)


def test_pictures_of_pillow_get_their_channels_first():
    image = pytest.importorskip("PIL.Image")
    pixels = generator(0, "images").integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    pictures = [(image.fromarray(p), label) for p, label in zip(pixels, ["cat", "dog"], strict=True)]
    data = FederatedData.from_torch(pictures, clients=[0, 1])
    np.testing.assert_array_equal(data.dataset.train_x, pixels.transpose(0, 3, 1, 2))
    assert data.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(X[0], 0), (X[0, :2], 1)], r"the first has \(3,\) float32, and example 1 has \(2,\)"),
        ([(X[0], 0), (X[0].astype(float), 1)], "example 1 has .* float64"),
        ([(X[0], 0), X[1]], "each example must be a pair of input and label; example 1 is a ndarray"),
        ([], "must have at least one example|one client"),
    ],
)
def test_samples_that_differ_are_refused(pairs, message):
    with pytest.raises(DataError, match=message):
        FederatedData.from_torch(pairs, clients=[0, 1][: len(pairs)])


def test_there_must_be_one_client_for_each_example():
    with pytest.raises(DataError, match="one entry for each of the 12 examples; got 11"):
        FederatedData.from_torch(Counted(), clients=OWNERS[:11])


def test_clients_by_name():
    parts = {name: [i for i, owner in enumerate(OWNERS) if owner == name] for name in "cab"}
    data = {
        "c": (X[parts["c"]], Y[parts["c"]]),
        "a": TensorDataset(torch.from_numpy(X[parts["a"]]), torch.from_numpy(Y[parts["a"]])),
        "b": [(X[i], Y[i]) for i in parts["b"]],
    }
    base = FederatedData.from_clients(data, participants=["a", "c"])
    assert base.client_names == ("a", "b", "c")
    np.testing.assert_array_equal(base.dataset.train_x[base.partition[1]], X[parts["b"]])
    turned = FederatedData.from_clients(dict(reversed(data.items())), participants=["c", "a"])
    assert turned.digest() == base.digest()  # a dictionary has no order here


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": (X, Y), "b": (X[:, :2], Y)}, r"same shape and type; got a: \(3,\) float32 and \(\); b: \(2,\) float32"),
        ({"a": (X, Y), "b": (X.astype(np.uint8), Y)}, "the same shape and type"),
        ({"a": (X, Y[:5])}, "data of a.*x and y must have the same length; got 12 and 5"),
        ({1: (X, Y), "1": (X, Y)}, "clients must have different names"),
        ({}, "must be a dictionary"),
        ({"a": Endless()}, "data of a must be a Dataset with `__len__`"),
    ],
)
def test_clients_that_do_not_fit_together_are_refused(data, message):
    with pytest.raises((ConfigError, DataError), match=message):
        FederatedData.from_clients(data)


# -------------------------------------------------------------------------------------------------- Hugging Face


class ClassLabel:
    def __init__(self, names):
        self.names = names


class Table:
    """What a Dataset of Hugging Face offers: columns by name, rows by number."""

    def __init__(self, columns, features=None):
        self.held, self.column_names, self.features = columns, list(columns), features or {}

    def __len__(self):
        return len(self.held[self.column_names[0]])

    def __getitem__(self, key):
        return self.held[key] if isinstance(key, str) else {name: values[key] for name, values in self.held.items()}


class Federated:
    """What a FederatedDataset of flwr-datasets offers; it knows its partitions once one was loaded."""

    def __init__(self, parts, names=None):
        self.parts, self.partitioners = parts, {}
        self.names = names

    def load_partition(self, number, split):
        partitioner = type("Partitioner", (), {"num_partitions": len(self.parts)})()
        if self.names:
            partitioner.partition_id_to_natural_id = dict(enumerate(self.names))
        self.partitioners[split] = partitioner
        return self.parts[number]


def test_a_table_of_hugging_face_is_a_table():
    columns = table()
    words = {"readmitted": ClassLabel(["no", "yes"])}
    coded = {**columns, "readmitted": [["no", "yes"].index(word) for word in columns["readmitted"]]}
    for ds in (Table(columns), Table(coded, words)):
        data = FederatedData.from_huggingface(ds, **NORTH)
        assert data.digest() == made().digest()
        assert (data.client_names, data.class_names) == (made().client_names, made().class_names)
        assert data.schema == made().schema  # with the names of client and label
        said = {"drop": ["ward"], "category": "age"}
        wanted = FederatedData.from_frame(table(), **NORTH, columns=said)
        assert FederatedData.from_huggingface(ds, **NORTH, columns=said).digest() == wanted.digest()


def test_a_partition_of_flower_is_called_as_its_column():
    north, south = ({"site": [name] * 6, "age": list(range(6)), "label": [0, 1] * 3} for name in ("north", "south"))
    for names, wanted in ((["north", "south"], "site"), (None, "client")):
        parts = Federated([Table(north), Table(south)], names)
        data = FederatedData.from_huggingface(parts, participants=1)
        assert data.schema.client.name == wanted


def test_columns_of_arrays_are_refused():
    ds = Table({"image": list(np.zeros((12, 4, 4), np.uint8)), "writer": OWNERS, "label": Y.tolist()}, {})
    with pytest.raises(ConfigError, match="columns requires a table, but the inputs are arrays"):
        FederatedData.from_huggingface(ds, client="writer", columns={"drop": ["image"]})


def test_images_of_hugging_face_by_writer():
    x = generator(0, "images").integers(0, 256, (12, 4, 4), dtype=np.uint8)
    features = {"label": ClassLabel(["cat", "dog", "owl"])}
    ds = Table({"image": list(x), "writer": OWNERS, "label": Y.tolist()}, features)
    data = FederatedData.from_huggingface(ds, client="writer", participants=["a"])
    np.testing.assert_array_equal(data.dataset.train_x[:, 0], x)
    assert data.class_names == ("cat", "dog", "owl")
    assert data.client_names == ("a", "b", "c")
    more = Table({**ds.held, "session": [0] * 12}, features)
    with pytest.raises(ConfigError, match=r"inputs must be one of the columns .*Use inputs='image'"):
        FederatedData.from_huggingface(more, client="writer")
    again = FederatedData.from_huggingface(more, client="writer", inputs="image", participants=["a"])
    assert again.digest() == data.digest()


def test_images_of_hugging_face_are_held_out_by_a_column():
    columns = {"image": list(np.zeros((8, 4, 4), np.uint8)), "writer": ["a", "b"] * 4, "page": [*"ppqqrrss"]}
    ds = Table({**columns, "day": list(range(8)), "label": [0, 1] * 4})
    data = FederatedData.from_huggingface(ds, client="writer", group="page", time="day", participants=["a"])
    assert str(data.together) == "the latest by 'day', all rows of one 'page' together"
    assert data.dataset.train_x.shape == (8, 1, 4, 4)
    with pytest.raises(ConfigError, match="group: column 'label' is already the label"):
        FederatedData.from_huggingface(ds, client="writer", group="label")
    with pytest.raises(ConfigError, match=r"unknown column 'pge'\. Did you mean 'page'"):
        FederatedData.from_huggingface(ds, client="writer", group="pge", inputs="image")


def test_partitions_of_flower_are_clients():
    parts = [Table({"x": list(X[i::3]), "label": Y[i::3].tolist()}) for i in range(3)]
    data = FederatedData.from_huggingface(Federated(parts), participants=[0, 2])
    assert data.client_names is None
    assert data.population.participants.tolist() == [0, 2]
    np.testing.assert_array_equal(data.dataset.train_x[data.partition[1]], X[1::3])
    named = FederatedData.from_huggingface(Federated(parts, ["zoe", "ann", "bob"]), participants=["zoe"])
    np.testing.assert_array_equal(named.dataset.train_x[named.partition[2]], X[0::3])
    written = [Table({**p.held, "writer": [name] * 4}) for p, name in zip(parts, ["zoe", "ann", "bob"], strict=True)]
    again = FederatedData.from_huggingface(Federated(written, ["zoe", "ann", "bob"]), participants=["zoe"])
    assert again.digest() == named.digest()  # the writer is no input
    with pytest.raises(ConfigError, match="Remove the argument client"):
        FederatedData.from_huggingface(Federated(parts), client="x")
    with pytest.raises(ConfigError, match="client must be the column of the client"):
        FederatedData.from_huggingface(parts[0])


# ------------------------------------------------------------------------------------------------ names that stay


def test_words_are_classes_of_arrays():
    data = from_arrays(X, ["no", "yes", "no"] * 4, X[:2], ["yes", "no"])
    assert (data.class_names, data.num_classes) == (("no", "yes"), 2)
    assert (data.train_y[:3].tolist(), data.test_y.tolist()) == ([0, 1, 0], [1, 0])
    other = from_arrays(X, ["no", "yes", "no"] * 4, class_names=["yes", "no", "unknown"])
    assert (other.train_y[:3].tolist(), other.num_classes) == ([1, 0, 1], 3)
    with pytest.raises(DataError, match=r"train_y must be one of the class names \['a', 'b'\]; got 'no'"):
        from_arrays(X, ["no"] * 12, class_names=["a", "b"])


def test_a_natural_partition_has_the_names_of_its_clients():
    dataset = from_arrays(X, Y, owners=OWNERS)
    own_clients = Partition.from_owner(dataset.owners, 3, "natural")
    assert federate(dataset, own_clients).client_names == ("a", "b", "c")
    merged = Partition.from_owner(np.minimum(dataset.owners, 1), 2, "natural")
    assert federate(dataset, merged).client_names == ("a", "b + c")
    drawn = Partition.from_owner(dataset.owners, 3, "iid")
    assert federate(dataset, drawn).client_names is None
    numbers = from_arrays(X, Y, owners=np.array([1, 0, 2] * 4))
    assert federate(numbers, own_clients).client_names is None


def test_tensors_with_gradients_and_bfloat16_are_taken_at_every_door():
    x, y = torch.rand(12, 3, requires_grad=True), torch.arange(12) % 2
    for own in (x, x.bfloat16()):
        exact = own.detach().float().numpy()
        by_arrays = from_arrays(own, y)
        by_clients = FederatedData.from_clients({"a": (own, y), "b": (own, y)})
        by_torch = FederatedData.from_torch(torch.utils.data.TensorDataset(own, y), clients=[0, 1] * 6)
        np.testing.assert_array_equal(by_arrays.train_x, exact)
        np.testing.assert_array_equal(by_clients.dataset.train_x[:12], exact)
        np.testing.assert_array_equal(by_torch.dataset.train_x, exact)


def test_a_client_without_examples_is_refused_at_once():
    with pytest.raises(DataError, match=r"each client must have an example; b have none\. Remove these clients"):
        FederatedData.from_clients({"a": (X, Y), "b": (X[:0], Y[:0])})


def test_rows_without_client_or_label_are_left_out_and_told():
    rows = table() | {"note": list(range(240))}
    rows["hospital"] = [None if i in (3, 9) else name for i, name in enumerate(rows["hospital"])]
    rows["readmitted"] = ["" if i == 9 else each for i, each in enumerate(rows["readmitted"])]
    found = made(rows)
    assert len(found.dataset.train_y) == 238
    told = {column.name: column.odd for column in found.schema.columns}
    assert told["hospital"] == "2 rows without a value are left out (first: row 3)"
    assert told["readmitted"] == "1 row without a value is left out (first: row 9)"
    whole = {name: [each for i, each in enumerate(values) if i not in (3, 9)] for name, values in rows.items()}
    assert made(whole).dataset.sha256 == found.dataset.sha256
    assert made(whole).digest() == found.digest()


@pytest.mark.parametrize(
    ("column", "cells", "options", "message"),
    [
        ("age", ["1", "2", "3", "1e99"], {"label": "ill"}, "the first in row 3"),
        ("cost", ["1", "2", "3", "?"], {"target": "cost"}, "first in row 3"),
        ("visit", ["1", "2", "3", ""], {"label": "ill", "group": "visit"}, "the first in row 3"),
        ("day", ["1", "2", "3", "soon"], {"label": "ill", "time": "day"}, "row 3: 'soon'"),
    ],
)
def test_after_rows_were_left_out_a_row_is_told_by_where_it_stood(column, cells, options, message):
    table = {"site": [None, "n", "s", "n"], "ill": ["no", "yes", "no", "yes"], "x": [1, 2, 3, 4], column: cells}
    with pytest.raises(DataError, match=message):
        FederatedData.from_frame(table, client="site", **options)


def test_huge_numbers_end_in_words_and_not_in_a_warning():
    table = {"site": ["n", "s"] * 4, "ill": ["no", "yes", "yes", "no"] * 2, "age": [1e38, -1e38, 3e38, 1] * 2}
    assert np.isfinite(FederatedData.from_frame(table, client="site", label="ill").dataset.train_x).all()
    table["age"] = [1e-3, 1e36, 2e-3, 1e36, 1e-3, 1e36, 2e-3, 1e36]
    with pytest.raises(DataError, match=r"column 'age' contains 1e\+36, too far from the participants' values \(0.00"):
        FederatedData.from_frame(table, client="site", label="ill", participants=["n"])


def test_a_table_without_any_label_is_refused():
    rows = table()
    rows["readmitted"] = [None] * 240
    with pytest.raises(DataError, match="at least one row must have values in 'hospital' and 'readmitted'; all 240"):
        made(rows)
