"""Own arrays and own files."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, DataError
from fedreach.data.datasets import content_hash, from_arrays, from_npz
from fedreach.data.sets import load


@pytest.fixture
def rng():
    return np.random.Generator(np.random.Philox(7))


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (12, 3, 4, 5), np.uint8), np.arange(12) % 4


def test_the_content_hash_is_a_sha256_of_type_shape_and_bytes():
    array = np.array([[1, 2]], np.uint8)
    assert content_hash(array) == hashlib.sha256(b"uint8 (1, 2);\x01\x02").hexdigest()


def test_the_hash_sees_values_types_shapes_and_owners_but_not_memory_layout(images):
    x, y = images
    plain = from_arrays(x, y)
    assert from_arrays(np.asfortranarray(x), y.astype(np.int32)).sha256 == plain.sha256
    other = x.copy()
    other[3, 1, 2, 0] ^= 1
    hashes = {
        plain.sha256,
        from_arrays(other, y).sha256,
        from_arrays(x, y[::-1]).sha256,
        from_arrays(x.reshape(12, 3, 5, 4), y).sha256,
        from_arrays(x, y, owners=y).sha256,
        from_arrays(x, y, x[:1], y[:1]).sha256,
        from_arrays(x, y, kind="features").sha256,
    }
    assert len(hashes) == 7


def test_moving_a_sample_from_training_to_test_changes_the_hash(images):
    x, y = images
    assert from_arrays(x[:5], y[:5], x[5:], y[5:]).sha256 != from_arrays(x[:6], y[:6], x[6:], y[6:]).sha256


def test_arrays_are_kept_compact_contiguous_and_writable_and_the_callers_are_left_alone(images):
    x, y = images
    x.flags.writeable = y.flags.writeable = False
    before = x.copy()
    data = from_arrays(x[:, ::-1], y)
    assert data.train_x.flags.writeable
    assert data.train_x.flags.c_contiguous
    assert (data.train_x.dtype, data.train_y.dtype) == (np.uint8, np.int64)
    data.train_x[:] = 0
    np.testing.assert_array_equal(x, before)


def test_mean_and_std_are_those_of_the_training_images_in_zero_to_one(images):
    x, y = images
    data = from_arrays(x, y, 255 - x, y)
    np.testing.assert_allclose(data.mean, (x / 255).mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(data.std, (x / 255).std(axis=(0, 2, 3)), rtol=1e-12)


def test_a_constant_channel_is_shifted_and_not_divided_by_zero(images):
    x, y = images
    x[:, 1] = 51
    data = from_arrays(x, y)
    assert data.mean[1] == pytest.approx(0.2)
    assert data.std[1] == 1.0


def test_grey_images_get_a_channel(images):
    x, y = images
    assert from_arrays(x[:, 0], y).train_x.shape == (12, 1, 4, 5)


def test_owners_may_be_names_or_numbers(images):
    x, y = images
    data = from_arrays(x, y, owners=["b", "a", "c"] * 4)
    assert data.owner_names == ("a", "b", "c")
    np.testing.assert_array_equal(data.owners, [1, 0, 2] * 4)
    numbers = from_arrays(x, y, owners=np.array([10, 9, 30] * 4))
    assert numbers.owner_names == ("9", "10", "30")
    np.testing.assert_array_equal(numbers.owners, data.owners)


def test_float_features_become_float32(rng):
    data = from_arrays(rng.normal(size=(5, 3)), [0, 1, 2, 0, 1], rng.normal(size=(2, 3)), [3, 0])
    assert (data.kind, data.train_x.dtype, data.mean, data.num_classes) == ("features", np.float32, (), 4)


X, Y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
IMAGES = np.zeros((4, 3, 8, 8), np.uint8)
WRONG = [
    ({"train_y": Y[:3]}, r"train_y must be one label per example, shape \(4,\); got shape \(3,\)"),
    ({"train_y": Y - 1}, "train_y must be at least 0; got -1"),
    ({"train_y": Y / 2, "num_classes": 2}, "train_y must be integers; got dtype float64. Convert classes"),
    (
        {"train_y": [np.inf, 0, 1, 0]},
        "train_y must be finite as float32; got 1 targets that are not, the first in row 0",
    ),
    ({"num_classes": 1}, "train_y must be 0 to 0; got 1"),
    ({"train_x": [["a", None]] * 4}, "train_x must contain numbers, not Python objects"),
    ({"train_x": [[1.0], [1.0, 2.0], [0.0], [0.0]]}, "train_x must be one rectangular array"),
    (
        {"train_x": X + np.float32(np.nan)},
        "train_x must be finite as float32; got 4 examples that are not, the first at index 0",
    ),
    ({"train_x": np.full((4, 3), 1e300)}, "train_x must be finite as float32"),
    ({"train_y": np.array(1.0)}, r"train_y must be numbers of shape \(4,\) or \(4, t\); got shape \(\)"),
    ({"train_x": X[:, 0]}, r"train_x must be numbers of shape \(n, ...\); got shape \(4,\)"),
    ({"train_x": X[:0], "train_y": Y[:0]}, "at least one example"),
    ({"test_x": X}, "test_x and test_y must be given together"),
    (
        {"test_x": X[:, :2], "test_y": Y},
        r"must have the form of the training set, \(3,\) float32 .*; got \(2,\)",
    ),
    ({"test_x": X, "test_y": Y + 5, "num_classes": 2}, "test_y must be 0 to 1; got 6"),
    ({"train_x": X.astype(np.uint8)}, "could be tokens or features. Pass kind='tokens' or kind='features'"),
    ({"train_x": X.astype(int) - 1, "kind": "tokens"}, "integers >= 0 for tokens.*smallest -1"),
    ({"train_x": IMAGES.astype(int)}, "could be tokens or features"),
    ({"train_x": IMAGES.transpose(0, 2, 3, 1)}, r"channels first; got.*Use x.transpose\(0, 3, 1, 2\)"),
    ({"train_x": IMAGES, "mean": (0.5,), "std": (0.5,)}, "mean and std must be 3 finite numbers each"),
    ({"train_x": IMAGES, "mean": (0.5,) * 3, "std": (0.0,) * 3}, "std > 0"),
    ({"mean": (0.5,)}, "mean and std require images"),
    ({"owners": [0, 1]}, r"owners must be one integer or string per training example, \(4,\)"),
    ({"owners": [0.5] * 4}, "owners must be one integer or string"),
    ({"owners": [0, 1, 2, 0], "owner_names": ["a", "b"]}, "indices from 0 to 1"),
    ({"kind": "image"}, "must be uint8"),
    ({"kind": "picture"}, "kind must be 'image', 'features' or 'tokens'; got 'picture'"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_arrays_that_break_a_rule_are_refused_with_the_rule(change, message):
    with pytest.raises(DataError, match=f"data set 'mine': .*{message}"):
        from_arrays(**({"train_x": X, "train_y": Y, "name": "mine"} | change))


def test_an_npz_file_gives_the_data_set_of_its_arrays(tmp_path, images):
    x, y = images
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, x=x, y=y, client=np.array(["ann", "bob"] * 6), x_test=x[:2], y_test=y[:2])
    data = from_npz(path)
    expected = from_arrays(x, y, x[:2], y[:2], owners=["ann", "bob"] * 6)
    assert (data.name, data.owner_names, data.sha256) == ("mine", ("ann", "bob"), expected.sha256)
    assert load(str(path)).sha256 == data.sha256
    assert load(str(path), num_classes=9).num_classes == 9


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "y": Y, "clients": Y}, "unknown array 'clients'. Did you mean 'client'"),
        ({"x": X}, "array 'y' is missing. Known: 'x', 'y', 'client'"),
        ({"x": X, "y": Y.astype(object)}, "without Python objects"),
        ({"x": X, "y": Y, "y_test": Y}, "test_x and test_y must be given together"),
    ],
)
def test_an_npz_file_with_other_contents_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=f"mine.*{message}"):
        from_npz(tmp_path / "mine.npz")


def test_an_npz_file_cut_off_anywhere_or_of_another_format_is_refused(tmp_path):
    whole = io.BytesIO()
    np.savez_compressed(whole, x=X, y=Y)
    path = tmp_path / "mine.npz"
    for size in range(0, len(whole.getvalue()), 7):
        path.write_bytes(whole.getvalue()[:size])
        with pytest.raises(DataError, match=r"mine.npz: must be a readable .npz"):
            from_npz(path)
    single = io.BytesIO()
    np.save(single, X)
    path.write_bytes(single.getvalue())
    with pytest.raises(DataError, match=r"mine.npz: must be a readable .npz"):
        from_npz(path)
    with pytest.raises(DataError, match=r"min.npz: file not found. Did you mean 'mine.npz'"):
        from_npz(tmp_path / "min.npz")


def test_a_recipe_may_say_that_all_take_part_as_a_file_may(images):
    spec = from_arrays(*images).partition("iid", clients=3, participants="all")
    assert spec.participants is None
    assert spec.tables()["population"]["participants"] == "all"
    with pytest.raises(
        ConfigError, match="participants must be a number, a share, a list of ids or 'all'; got 'north'"
    ):
        from_arrays(*images).partition("iid", clients=3, participants="north")
