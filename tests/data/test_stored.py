"""Data that Python handed over are opened by other processes as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, DataError
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.own import of_file, of_frame
from fedreach.data.samples import of_clients
from fedreach.data.stored import digest, open_stored, store

from .hospitals import reordered, table


def federated(own, seed=0):
    from fedreach.data.federated import _federate_own

    return _federate_own(own, 3, 0.2, 0, seed)


def test_a_table_makes_the_same_federation(tmp_path):
    own = of_frame(table(), "hospital", "readmitted", "hospitals")
    again = open_stored(store(own, tmp_path))
    for seed in range(3):
        one, other = federated(own, seed), federated(again, seed)
        assert one.digest() == other.digest()
        assert str(one.dataset.preparation) == str(other.dataset.preparation)
        assert (one.client_names, one.class_names) == (other.client_names, other.class_names)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_samples_are_scaled_by_those_who_take_part_when_they_are_opened(tmp_path, dtype):
    rng = np.random.default_rng(0)
    shape = (20, 1, 5, 5) if dtype == np.uint8 else (20, 5)
    clients = {name: (rng.integers(0, 255, shape).astype(dtype), rng.integers(0, 3, 20)) for name in "abcde"}
    own = of_clients(clients, None, None, "five")
    again = open_stored(store(own, tmp_path))
    assert {federated(own, seed).dataset.mean for seed in range(4)} == {
        federated(again, s).dataset.mean for s in range(4)
    }
    assert [federated(own, seed).digest() for seed in range(4)] == [
        federated(again, seed).digest() for seed in range(4)
    ]
    assert isinstance(again.plain.train_x.base, np.memmap) or isinstance(again.plain.train_x, np.memmap)


def test_a_data_set_comes_back_with_all_that_is_said_of_it(tmp_path):
    made = from_arrays(
        np.eye(6),
        list("abcabc"),
        np.eye(6)[:2],
        list("ab"),
        owners=list("xxyyzz"),
        name="a set",
        source="here",
        notes="toy",
    )
    again = open_stored(store(made, tmp_path))
    for key, value in vars(made).items():
        np.testing.assert_array_equal(getattr(again, key), value) if isinstance(value, np.ndarray) else None
        assert isinstance(value, np.ndarray) or getattr(again, key) == value, key


def test_the_same_data_are_stored_once_and_others_elsewhere(tmp_path):
    one = store(of_frame(table(), "hospital", "readmitted", "t"), tmp_path)
    shuffled = reordered(table(), np.random.default_rng(0).permutation(240))
    assert store(of_frame(shuffled, "hospital", "readmitted", "t"), tmp_path) == one
    changed = table()
    changed["age"][0] += 1
    assert store(of_frame(changed, "hospital", "readmitted", "t"), tmp_path) != one
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_words_that_look_like_numbers_stay_words(tmp_path):
    rows = {"who": list("aabb"), "code": ["01", "1", "A2", "2"], "label": ["0", "1", "01", "0"]}
    own = of_frame(rows, "who", "label", "codes")
    again = open_stored(store(own, tmp_path))
    assert again.columns["code"].words.levels == ("01", "1", "2", "A2")
    assert again.classes == own.classes == ("0", "01", "1")


def test_what_is_missing_damaged_or_given_options_is_refused(tmp_path):
    path = store(of_frame(table(), "hospital", "readmitted", "t"), tmp_path)
    with pytest.raises(ConfigError, match=r"Unknown option 'label' of data 'own.json'. It has no options."):
        of_file(path, label="x")
    words = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**words, "columns": None}), encoding="utf-8")
    with pytest.raises(DataError, match=r"must be data that FedReach has stored; got: AttributeError|TypeError"):
        open_stored(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"must be data that FedReach has stored"):
        open_stored(path)
    path.unlink()
    with pytest.raises(DataError, match=r"own.json: file not found. Run the program"):
        open_stored(path)


def test_prepared_data_are_not_stored_as_they_are_one_draws():
    data = FederatedData.from_frame(table(), client="hospital", label="readmitted")
    with pytest.raises(DataError, match="Only data sets and user data can be stored"):
        store(data.dataset, None)  # type: ignore[arg-type]


def test_a_digest_is_of_what_was_read_whoever_takes_part_and_of_every_number():
    """The data set that a seed makes of a table is another one for each choice of participants."""

    def aged(age):
        rows = {"who": list("aabbcc"), "age": [1.0, 2.0, 3.0, 4.0, 5.0, age], "label": [0, 1] * 3}
        return of_frame(rows, "who", "label", "t")

    one = aged(6.0)
    before = digest(one)
    assert one.prepare([np.arange(3)]).sha256 != one.prepare([np.arange(5)]).sha256
    assert digest(one) == digest(aged(6.0)) == before
    assert digest(aged(6.5)) != before
    plain = from_arrays(np.eye(4, dtype=np.float32), [0, 1, 0, 1], owners=[0, 0, 1, 1], name="t")
    assert digest(plain) != digest(
        from_arrays(np.eye(4, dtype=np.float32), [0, 1, 0, 1], owners=[0, 1, 1, 1], name="t")
    )
