"""The idx reader; MNIST, Fashion-MNIST and EMNIST."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import DataError
from fedreach.data.sets import load
from fedreach.data.sets.readers import parse_idx, read_bytes

REAL = Path(os.environ.get("FEDREACH_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real(path: str) -> Path:
    if not (REAL / path).exists():
        pytest.skip(f"{path} is not in the data folder; set FEDREACH_DATA")
    return REAL / path


@pytest.fixture
def rng():
    return np.random.Generator(np.random.Philox(7))


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_an_idx_file_cut_off_anywhere_or_too_long_is_refused(rng):
    x = rng.integers(0, 256, (3, 2, 2), np.uint8)
    whole = idx(x)
    np.testing.assert_array_equal(parse_idx(Path("f"), whole, 3), x)
    for wrong in [*(whole[:size] for size in range(len(whole))), whole + b"\0"]:
        with pytest.raises(DataError, match=r"^f: "):
            parse_idx(Path("f"), wrong, 3)
    with pytest.raises(DataError, match="an idx file of bytes with 1 axes; got first bytes '00000803'"):
        parse_idx(Path("f"), whole, 1)


def test_a_gz_file_with_any_byte_changed_is_refused_or_reads_the_same(tmp_path, rng):
    content = idx(rng.integers(0, 256, (3, 2, 2), np.uint8))
    packed, path = gzip.compress(content), tmp_path / "f.gz"
    refused = 0
    for place in range(len(packed)):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :])
        try:
            same = read_bytes(path) == content
        except DataError:
            refused += 1
        else:
            assert same  # such as the time stamp
    assert refused >= len(packed) - 10  # a gzip header has 10 bytes, RFC 1952


@pytest.fixture
def emnist(tmp_path, rng):
    """A folder with EMNIST letters as published: labels from 1, images transposed."""
    folder = tmp_path / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    upright = {part: rng.integers(0, 256, (52, 28, 28), np.uint8) for part in ("train", "test")}
    labels = (np.arange(52) % 26 + 1).astype(np.uint8)
    for part, x in upright.items():
        (folder / f"emnist-letters-{part}-images-idx3-ubyte").write_bytes(idx(x.transpose(0, 2, 1)))
        (folder / f"emnist-letters-{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path, upright


def test_emnist_letters_stand_upright_and_count_from_zero(emnist):
    folder, upright = emnist
    data = load("emnist", folder, download=False)
    np.testing.assert_array_equal(data.train_x[:, 0], upright["train"])
    np.testing.assert_array_equal(data.test_x[:, 0], upright["test"])
    np.testing.assert_array_equal(data.test_y, np.arange(52) % 26)
    assert data.num_classes == 26


def test_emnist_with_ten_classes_is_a_to_j_with_their_own_mean(emnist):
    folder, upright = emnist
    data = load("emnist", folder, download=False, classes=10)
    kept = upright["train"][np.arange(52) % 26 < 10]
    np.testing.assert_array_equal(data.train_x[:, 0], kept)
    assert (len(data.train_y), data.train_y.max(), data.num_classes) == (20, 9, 10)
    assert data.mean[0] == pytest.approx(kept.mean() / 255)
    assert data.std[0] == pytest.approx(kept.std() / 255)


def test_emnist_is_read_from_the_published_archive_without_unpacking_it(emnist, tmp_path_factory):
    folder, _ = emnist
    other = tmp_path_factory.mktemp("archive")
    (other / "EMNIST" / "raw").mkdir(parents=True)
    with zipfile.ZipFile(other / "EMNIST" / "raw" / "gzip.zip", "w") as archive:
        for path in (folder / "EMNIST" / "raw").iterdir():
            archive.writestr(f"gzip/{path.name.removesuffix('.gz')}.gz", gzip.compress(read_bytes(path)))
    assert load("emnist", other, download=False).sha256 == load("emnist", folder, download=False).sha256
    with pytest.raises(DataError, match=r"gzip.zip: does not contain a readable gzip/emnist-digits-train"):
        load("emnist", other, download=False, split="digits")


def test_idx_labels_out_of_range_or_too_few_are_refused(emnist):
    folder, _ = emnist
    path = folder / "EMNIST" / "raw" / "emnist-letters-test-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(np.full(52, 27, np.uint8))))
    with pytest.raises(DataError, match=r"test-labels-idx1-ubyte.gz: labels must be 0 to 25; got 26"):
        load("emnist", folder, download=False)
    path.write_bytes(gzip.compress(idx(np.ones(51, np.uint8))))
    with pytest.raises(DataError, match=r"ubyte.gz: must have one label for each of the 52 images; got 51"):
        load("emnist", folder, download=False)


# Counts per class of the training sets: the data folder's README, which agrees with the publications.
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "counts"), [("mnist", "MNIST", MNIST_COUNTS), ("fashion_mnist", "FashionMNIST", [6000] * 10)]
)
def test_the_real_idx_sets_have_their_published_counts_and_normalisation(name, folder, counts):
    real(folder)
    data = load(name, REAL, download=False)
    assert data.train_x.shape == (60000, 1, 28, 28)
    assert data.test_x.shape == (10000, 1, 28, 28)
    np.testing.assert_array_equal(np.bincount(data.train_y), counts)
    np.testing.assert_allclose(data.train_x.mean() / 255, data.mean[0], atol=5e-5)
    np.testing.assert_allclose(data.train_x.std() / 255, data.std[0], atol=1e-4)


def test_an_unpacked_real_set_is_the_same_and_one_changed_pixel_or_another_set_is_noticed(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    shutil.copytree(real("MNIST/raw"), folder)
    packed_hash = load("mnist", tmp_path, download=False).sha256
    image = folder / "t10k-images-idx3-ubyte"
    content = bytearray(gzip.decompress((folder / f"{image.name}.gz").read_bytes()))
    (folder / f"{image.name}.gz").unlink()
    image.write_bytes(content)
    assert load("mnist", tmp_path, download=False).sha256 == packed_hash
    content[5000] ^= 1
    image.write_bytes(content)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte: must be the published file"):
        load("mnist", tmp_path, download=False)
    image.unlink()
    shutil.copy(real("FashionMNIST/raw") / f"{image.name}.gz", folder)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.gz: must be the published file"):
        load("mnist", tmp_path, download=False)
