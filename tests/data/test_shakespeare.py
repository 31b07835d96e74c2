"""Shakespeare by role: the vocabulary, the windows, the split, and the two forms of file."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, DataError
from fedreach.data.sets import load
from fedreach.data.sets.readers import LENGTH, VOCABULARY, encode

REAL = Path(os.environ.get("FEDREACH_DATA") or Path(__file__).parents[3] / "shared" / "data")

# Sizes such that only some roles survive: 700 characters give 620 windows, 496 of them for training at 0.8.
TEXTS = {"a": 500, "b": 700, "c": 700, "short": 79, "one": 81}


def text(size: int, shift: int = 0) -> str:
    """Every place is recognisable: letters with period 51, coprime to the window of 80."""
    letters = [character for character in VOCABULARY if character.isalpha()][:51]
    return "".join(letters[(i * i + shift + i) % 51] for i in range(size))


def write_roles(folder: Path, texts: dict[str, list[str]]) -> Path:
    path = folder / "shakespeare" / "roles.json.gz"
    path.parent.mkdir(exist_ok=True)
    data = {"users": list(texts), "user_data": {role: {"speeches": speeches} for role, speeches in texts.items()}}
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


@pytest.fixture
def folder(tmp_path):
    write_roles(tmp_path, {role: [text(size, ord(role[0]))] for role, size in TEXTS.items()})
    return tmp_path


def test_the_vocabulary_is_that_of_leaf_with_80_different_characters():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert encode(VOCABULARY[1:]).tolist() == list(range(1, 80))


def test_every_character_has_a_valid_index_and_unknown_ones_share_a_free_one():
    unknown = encode("$~\x7fé€😀\ud800\t")
    assert unknown.tolist() == [0] * 8
    assert 0 not in encode("all the world's\na stage")


def test_newlines_and_long_runs_of_spaces_become_one_space():
    assert encode("a\nb").tolist() == encode("a b").tolist()
    assert encode("a \n b    c  d").tolist() == encode("a b c  d").tolist()


def test_each_sample_is_80_characters_and_the_one_that_follows(folder):
    data = load("shakespeare", folder, roles=1)
    code = encode(text(TEXTS["b"], ord("b")))
    assert data.owner_names == ("b",)
    assert data.train_x.shape == (496, 80)
    for i in (0, 1, 200, 495):
        np.testing.assert_array_equal(data.train_x[i], code[i : i + 80])
        assert data.train_y[i] == code[i + 80]
    # The test starts 79 after the cut at 496, and the last window leaves one character to predict.
    assert len(data.test_y) == 620 - 575
    np.testing.assert_array_equal(data.test_x[0], code[575:655])
    assert data.test_y[-1] == code[-1]


@pytest.mark.parametrize("stride", [1, 2, 7, 80])
def test_inputs_of_training_and_test_never_overlap(tmp_path, stride):
    """Number the characters by a text without repetition in any pair, and look for pairs on both sides."""
    size = 79 * 39  # a walk over all edges of the complete graph on 79 characters uses each pair once
    steps = np.repeat(np.arange(1, 40), 79)
    walk = np.cumsum(steps) % 79 + 1
    write_roles(tmp_path, {"r": ["".join(VOCABULARY[i] for i in walk)]})
    # Runs of 3 spaces cannot occur: a step is never 0.
    data = load("shakespeare", tmp_path, stride=stride, min_samples=1)
    assert data.train_x.shape[1] == LENGTH < size

    def pairs(x: np.ndarray) -> set[int]:
        return set((x[:, :-1].astype(int) * 80 + x[:, 1:]).ravel().tolist())

    assert len(pairs(data.test_x)) > 100
    assert not pairs(data.train_x) & pairs(data.test_x)


def test_a_stride_takes_every_so_many_th_window_of_the_same_parts(folder):
    every, third = load("shakespeare", folder, roles=1), load("shakespeare", folder, roles=1, stride=3)
    np.testing.assert_array_equal(third.train_x, every.train_x[::3])
    np.testing.assert_array_equal(third.test_y, every.test_y[::3])


def test_roles_come_by_most_samples_then_name_and_short_ones_are_left_out(folder):
    data = load("shakespeare", folder)
    assert data.owner_names == ("b", "c", "a")
    np.testing.assert_array_equal(np.bincount(data.owners), [496, 496, 336])
    assert load("shakespeare", folder, roles=2).owner_names == ("b", "c")
    assert load("shakespeare", folder, min_samples=1).owner_names == ("b", "c", "a", "one")
    assert load("shakespeare", folder, min_samples=400).owner_names == ("b", "c")
    assert load("shakespeare", folder, min_samples=400, max_samples=9).owner_names == ("b", "c")
    assert load("shakespeare", folder, max_samples=9, roles=1).owner_names == ("b",)


def test_a_limit_keeps_the_first_training_samples_and_the_same_share_of_test(folder):
    full = load("shakespeare", folder, roles=1)
    data = load("shakespeare", folder, roles=1, max_samples=100)
    np.testing.assert_array_equal(data.train_x, full.train_x[:100])
    np.testing.assert_array_equal(data.test_x, full.test_x[:25])  # 100 * 0.2 / 0.8


def test_the_whole_text_may_train(folder):
    data = load("shakespeare", folder, roles=1, train_fraction=1.0)
    assert (len(data.train_y), len(data.test_y)) == (620, 0)


def test_leaf_folders_with_windows_or_raw_text_give_the_same_data_set(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("leaf")
    (other / "shakespeare" / "all_data").mkdir(parents=True)

    def windows(role: str) -> dict[str, list[str]]:
        t = text(TEXTS[role], ord(role))
        return {"x": [t[i : i + 80] for i in range(len(t) - 80)], "y": list(t[80:])}

    first = {"user_data": {"a": windows("a"), "b": {"raw": text(700, ord("b"))}}}
    second = {"user_data": {"c": windows("c")}}
    for name, content in (("1.json", first), ("2.json", second)):
        (other / "shakespeare" / "all_data" / name).write_text(json.dumps(content))
    assert load("shakespeare", other).sha256 == load("shakespeare", folder).sha256

    second["user_data"]["c"]["x"].pop(5)
    (other / "shakespeare" / "all_data" / "2.json").write_text(json.dumps(second))
    with pytest.raises(DataError, match=r"2.json: .*examples of 'c' are not consecutive"):
        load("shakespeare", other)
    (other / "shakespeare" / "all_data" / "2.json").write_text(json.dumps(first))
    with pytest.raises(DataError, match=r"2.json: .*role 'a' occurs twice"):
        load("shakespeare", other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "stride must be a whole number, at least 1; got 0"),
        ({"roles": 2.5}, "roles must be a whole number"),
        ({"min_samples": None}, "min_samples must be a whole number"),
        ({"max_samples": True}, "max_samples must be a whole number"),
        ({"train_fraction": 0}, r"train_fraction must be in \(0, 1\]; got 0"),
        ({"min_sample": 3}, "Unknown option 'min_sample' of .*Did you mean 'min_samples'"),
    ],
)
def test_options_out_of_range_are_refused(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        load("shakespeare", folder, **options)


def test_no_role_with_enough_samples_is_an_error(folder):
    with pytest.raises(DataError, match=r"must have min_samples = 1000 training examples; got none\. Lower"):
        load("shakespeare", folder, min_samples=1000)


def test_damaged_files_of_roles_are_named(folder):
    path = folder / "shakespeare" / "roles.json.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"roles.json.gz: cannot be read"):
        load("shakespeare", folder)
    for content in (b"[]", b"{", b'{"user_data": {"a": {}}}', b'{"user_data": {"a": {"speeches": [1]}}}', b"\xff"):
        path.write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=r"roles.json.gz: is not a file of roles and texts"):
            load("shakespeare", folder)


def test_it_cannot_be_downloaded_and_the_message_says_what_to_place_where(tmp_path):
    with pytest.raises(DataError, match=r"cannot be downloaded. Place .* at .*shakespeare/roles.json.gz"):
        load("shakespeare", tmp_path)


def test_the_real_plays_give_hundreds_of_roles_within_the_vocabulary():
    if not (REAL / "shakespeare" / "roles.json.gz").exists():
        pytest.skip("shakespeare/roles.json.gz is not in the data folder; set FEDREACH_DATA")
    data = load("shakespeare", REAL, train_fraction=5 / 6, min_samples=2000, max_samples=2000, roles=100)
    assert len(data.owner_names) == 100
    np.testing.assert_array_equal(np.bincount(data.owners), [2000] * 100)
    assert (data.kind, data.train_x.dtype, data.num_classes) == ("tokens", np.uint8, 80)
    assert data.train_x.max() < 80
    # A space follows more often than any letter; "e" is the most frequent letter of English.
    counts = np.bincount(data.train_y, minlength=80)
    assert [VOCABULARY[i] for i in np.argsort(counts)[:-3:-1]] == [" ", "e"]
