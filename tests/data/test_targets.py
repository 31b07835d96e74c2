"""Targets that are numbers, wherever data come from; and what is refused because it speaks of classes."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays, from_npz
from fedreach.data.federated import FederatedData, federate
from fedreach.data.own import of_file, of_frame
from fedreach.data.partition import PARTITIONS
from fedreach.data.sets import load
from fedreach.data.shifts import Brightness, shift_unseen
from fedreach.data.stored import digest, from_folder, index_folder, open_stored, store

X = np.eye(6, dtype=np.float32)
Y = [1.5, 2.0, -3.0, 0.25, 7.0, 1e6]
TABLE = {
    "hospital": ["a", "b", "c"] * 4,
    "age": [*range(40, 52)],
    "days": [*range(12)],
    "cost": [c / 4 for c in range(12)],
}


def test_floats_are_numbers_to_predict_and_stay_as_they_are():
    data = from_arrays(X, Y, X[:2], Y[:2])
    assert (data.num_classes, data.outputs, data.train_y.dtype) == (0, 1, np.float32)
    assert data.train_y.tolist() == [[y] for y in Y]
    assert data.test_y.shape == (2, 1)
    assert "1 number to predict" in repr(data)


def test_several_numbers_for_each_sample():
    data = from_arrays(X, np.arange(12.0).reshape(6, 2))
    assert (data.outputs, data.test_y.shape) == (2, (0, 2))


def test_whole_numbers_are_classes_unless_it_is_said_that_there_are_none():
    assert from_arrays(X, [0, 1, 0, 1, 2, 2]).num_classes == 3
    assert from_arrays(X, [0, 1, 0, 1, 2, 2], num_classes=0).train_y.dtype == np.float32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_finite_is_refused_with_its_row(bad):
    with pytest.raises(
        DataError, match=r"train_y must be finite as float32; got 1 targets that are not, the first in row 3"
    ):
        from_arrays(X, [*Y[:3], bad, *Y[4:]])
    with pytest.raises(DataError, match=r"test_y must be finite as float32; .* in row 0"):
        from_arrays(X, Y, X[:1], [bad])


@pytest.mark.parametrize("y", [np.zeros((6, 0)), np.zeros((6, 1, 1)), np.zeros(5), np.zeros((5, 2))])
def test_targets_of_another_shape_are_refused(y):
    with pytest.raises(DataError, match=r"train_y must be (numbers of shape \(6,\) or \(6, t\)|one class or one)"):
        from_arrays(X, y)


def test_training_and_test_set_have_as_many_targets():
    with pytest.raises(DataError, match="test_x and test_y must have the form of"):
        from_arrays(X, Y, X, np.zeros((6, 2)))


def test_a_column_of_a_table_is_the_target():
    data = FederatedData.from_frame(TABLE, client="hospital", target="cost", participants=["a"])
    assert [column.name for column in data.dataset.preparation.used] == ["age", "days"]
    assert sorted(data.dataset.train_y[:, 0].tolist()) == TABLE["cost"]
    assert data.label_counts().shape == (3, 0)
    both = FederatedData.from_frame(TABLE, client="hospital", target=["days", "cost"], participants=["a"])
    assert np.array_equal(both.dataset.train_y, both.dataset.train_y[:, :1] * [1, 0.25])


def test_the_order_of_the_rows_does_not_matter():
    order = np.random.default_rng(0).permutation(12)
    turned = {name: [values[row] for row in order] for name, values in TABLE.items()}
    one, other = (FederatedData.from_frame(t, client="hospital", target="cost") for t in (TABLE, turned))
    assert one.digest() == other.digest()


def test_another_target_is_another_federation():
    one, other = (federate(from_arrays(X, y), _iid()) for y in (Y, [*Y[:5], 1e6 + 1]))
    assert one.digest() != other.digest()


def _iid():
    return Partition.from_owner([0, 1, 0, 1, 0, 1], 2, "natural")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "set either label"),
        ({"label": "age", "target": "cost"}, "set either label"),
        ({"target": []}, "must contain different columns, at least one"),
        ({"target": ["cost", "cost"]}, "must contain different columns"),
        ({"target": "csot"}, "Did you mean 'cost'"),
    ],
)
def test_which_column_is_meant_must_be_said(said, message):
    with pytest.raises(ConfigError, match=message):
        FederatedData.from_frame(TABLE, client="hospital", **said)


@pytest.mark.parametrize(("cost", "rows"), [(None, 1), (np.nan, 1)])
def test_a_row_without_its_target_is_left_out_and_told(cost, rows):
    found = of_frame({**TABLE, "cost": [*TABLE["cost"][:5], cost, *TABLE["cost"][6:]]}, "hospital", None, "t", "cost")
    assert len(found.train_y) == len(TABLE["cost"]) - rows
    assert found.left_out == {"cost": "1 row without a value is left out (first: row 5)"}


def test_an_infinite_target_is_refused_with_its_row():
    table = {**TABLE, "cost": [*TABLE["cost"][:5], np.inf, *TABLE["cost"][6:]]}
    with pytest.raises(DataError, match="infinite numbers, the first in row 5"):
        of_frame(table, "hospital", None, "t", "cost")


def test_words_are_no_target():
    with pytest.raises(DataError, match="must contain numbers as a target"):
        FederatedData.from_frame({**TABLE, "cost": ["low"] * 12}, client="hospital", target="cost")


def test_a_label_that_looks_like_a_number_says_how_to_predict_it():
    table = {"hospital": ["a", "b"] * 20, "cost": [c / 4 for c in range(40)]}
    with pytest.raises(DataError, match="--target cost instead of --label"):
        FederatedData.from_frame(table, client="hospital", label="cost")


def test_pairs_and_arrays_by_client():
    pairs = [([1.0, 2.0], 0.5), ([3.0, 4.0], 1.5), ([5.0, 6.0], 2.5), ([7.0, 8.0], 3.5)]
    torch_like = FederatedData.from_torch(pairs, clients=["ann", "bob", "bob", "ann"], participants=["ann", "bob"])
    assert torch_like.dataset.train_y.tolist() == [[0.5], [1.5], [2.5], [3.5]]
    several = FederatedData.from_clients(
        {"n": (X, np.ones((6, 2))), "s": (X, np.zeros((6, 2)))}, participants=["n", "s"]
    )
    assert several.dataset.outputs == 2
    with pytest.raises(DataError, match="all labels must have"):
        FederatedData.from_torch([([1.0], [1.0]), ([2.0], [1.0, 2.0])], clients=[0, 1])


def test_files(tmp_path):
    np.savez(tmp_path / "mine.npz", x=X, y=Y, client=[0, 0, 1, 1, 2, 2])
    assert from_npz(tmp_path / "mine.npz").train_y[2] == -3
    folder = tmp_path / "mine"
    folder.mkdir()
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", np.array(Y))
    made = index_folder(folder)
    assert from_folder(folder).sha256 == made.sha256
    assert made.outputs == 1
    (tmp_path / "mine.csv").write_text("hospital,age,cost\na,40,1.5\nb,41,2.5\na,42,3\nb,43,\n")
    assert of_file(tmp_path / "mine.csv", client="hospital", target="cost").train_y.tolist() == [[1.5], [3.0], [2.5]]
    (tmp_path / "mine.csv").write_text("hospital,age,cost\na,40,1.5\nb,41,2.5\na,42,3\n")
    assert of_file(tmp_path / "mine.csv", client="hospital", target="cost").train_y.tolist() == [[1.5], [3.0], [2.5]]
    with pytest.raises(ConfigError, match="requires the option 'label'"):
        of_file(tmp_path / "mine.csv", client="hospital")


def test_stored_data_are_the_same(tmp_path):
    for data in (from_arrays(X, Y), of_frame(TABLE, "hospital", None, "t", target=["days", "cost"])):
        again = open_stored(store(data, tmp_path))
        assert digest(again) == digest(data)
        assert np.array_equal(again.train_y, data.train_y)


def test_partitions_by_class_refuse_numbers_and_the_others_do_not():
    data = load("diabetes")
    for name, options in {"iid": {}, "natural": {"owners": np.arange(354) % 5}}.items():
        assert PARTITIONS[name](data.train_y, 5, generator(0, "partition"), **options).num_clients == 5
    for name, options in {
        "dirichlet_by_class": {"alpha": 1.0},
        "dirichlet_by_client": {"alpha": 1.0},
        "shards": {"classes_per_client": 2},
        "hybrid": {},
        "class_counts": {"counts": []},
    }.items():
        with pytest.raises(DataError, match=r"got numbers.*'iid'"):
            PARTITIONS[name](data.train_y, 5, generator(0, "partition"), **options)


def test_noise_shifts_and_excluded_labels_are_about_classes():
    data = from_arrays(X, Y)
    with pytest.raises(ConfigError, match=r"noise: .* has numbers"):
        federate(data, _iid(), noise={"kind": "symmetric", "rate": 0.2})
    with pytest.raises(ConfigError, match="exclude_labels: requires one class per example"):
        federate(data, _iid(), exclude_labels=[0])
    with pytest.raises(ConfigError, match=r"shift: .* has numbers"):
        shift_unseen(federate(data, _iid(), participants=1), Brightness(0.1))


def test_the_server_has_numbers_too():
    data = federate(from_arrays(X, Y), _iid(), server_examples=2)
    assert data.server.y.shape == (2, 1)
    given = federate(from_arrays(X, Y), _iid(), server_data=(X[:3], [1.0, 2.0, 3.0]))
    assert given.server.y.dtype == np.float32
    with pytest.raises(DataError, match=r"with labels \(1,\); got"):
        federate(from_arrays(X, Y), _iid(), server_data=(X[:3], np.zeros((3, 2))))


def test_diabetes_is_that_of_scikit_learn():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    data = load("diabetes", download=False)
    train = np.delete(np.arange(442), np.s_[4::5])
    assert data.train_y[:, 0].tolist() == y[train].tolist()
    assert data.test_y[:, 0].tolist() == y[4::5].tolist()
    np.testing.assert_allclose(data.train_x, (x[train] - x[train].mean(0)) / x[train].std(0), atol=1e-5)
