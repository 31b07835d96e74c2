"""The list of known sets, their names and options; the digits and the tumours in the package."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from fedreach._util.errors import ConfigError
from fedreach.data.sets import LOADERS, load
from fedreach.data.sets.download import Place, sources


def test_digits_are_those_of_scikit_learn_and_need_no_folder(tmp_path):
    reference = load_digits()
    data = load("digits", tmp_path / "absent", download=False)
    np.testing.assert_array_equal(np.concatenate([data.train_x, data.test_x])[:, 0], reference.images)
    np.testing.assert_array_equal(np.concatenate([data.train_y, data.test_y]), reference.target)
    assert (len(data.train_y), len(data.test_y)) == (1437, 360)
    normalised = (data.train_x / 255 - data.mean[0]) / data.std[0]
    np.testing.assert_allclose(normalised, data.train_x / 16, rtol=1e-15)


def test_tumours_are_those_of_scikit_learn_with_every_fifth_for_testing(tmp_path):
    reference = load_breast_cancer()
    data = load("breast_cancer", tmp_path / "absent", download=False)
    train, test = np.delete(np.arange(569), np.s_[4::5]), np.arange(569)[4::5]
    np.testing.assert_array_equal(data.train_y, reference.target[train])
    np.testing.assert_array_equal(data.test_y, reference.target[test])
    assert list(reference.target_names) == ["malignant", "benign"]  # in the order that the title says
    mean, std = reference.data[train].mean(axis=0), reference.data[train].std(axis=0)
    np.testing.assert_allclose(data.train_x, (reference.data[train] - mean) / std, atol=1e-5)
    np.testing.assert_allclose(data.test_x, (reference.data[test] - mean) / std, atol=1e-5)


def test_columns_of_the_tumours_are_of_one_size_and_both_parts_have_the_same_share_of_malignant_ones():
    data = load("breast_cancer", download=False)
    assert (data.kind, data.num_classes, len(data.train_y), len(data.test_y)) == ("features", 2, 456, 113)
    np.testing.assert_allclose(data.train_x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(data.train_x.std(axis=0), 1, atol=1e-6)
    assert abs((data.train_y == 0).mean() - (data.test_y == 0).mean()) < 0.01


def test_every_known_set_has_a_reader_a_licence_and_a_reference():
    assert list(sources()) == list(LOADERS)
    assert all(source.reference and source.licence and source.home and source.title for source in sources().values())


def test_every_download_has_a_checksum_and_an_address():
    for source in sources().values():
        assert not source.files or all(base.startswith("http") and base.endswith("/") for base in source.mirrors)
        assert bool(source.files) == bool(source.mirrors)
        for checksum in [*source.files.values(), *source.parts.values()]:
            algorithm, _, digest = checksum.partition(":")
            assert len(bytes.fromhex(digest)) == {"md5": 16, "sha256": 32}[algorithm]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fashion-mnist", {}, "got 'fashion-mnist'. Did you mean 'fashion_mnist'"),
        ("emnist", {"splt": 1}, "Unknown option 'splt' of .*Did you mean 'split'"),
        ("mnist", {"split": 1}, "Unknown option 'split' of .*It has no options"),
        ("mine.npz", {"clases": 1}, "Unknown option 'clases' of .*Did you mean 'num_classes'"),
        ("emnist", {"split": "letter"}, "Did you mean 'letters'"),
        ("emnist", {"classes": 27}, "classes must be at most 26 for split 'letters'; got 27"),
        ("emnist", {"classes": 2.0}, "classes must be a whole number"),
        ("cifar100", {"labels": "rough"}, r"labels must be 'fine' \(100 classes\) or 'coarse' \(20\); got 'rough'"),
    ],
)
def test_a_wrong_name_or_option_is_answered_before_anything_is_read(tmp_path, name, options, message):
    with pytest.raises(ConfigError, match=message):
        load(name, tmp_path, download=False, **options)


def test_the_first_place_in_the_order_is_read(tmp_path):
    source = sources()["shakespeare"]
    (tmp_path / source.folders[1]).mkdir(parents=True)
    assert Place(tmp_path).locate(source, source.folders) == tmp_path / source.folders[1]
    (tmp_path / source.folders[0]).touch()
    assert Place(tmp_path).locate(source, source.folders) == tmp_path / source.folders[0]
