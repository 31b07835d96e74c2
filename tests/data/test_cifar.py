"""The readers of CIFAR pickles, archives and packed files; CIFAR-10, CIFAR-100 and its subset."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import DataError
from fedreach.data.sets import load
from fedreach.data.sets.download import sources
from fedreach.data.sets.readers import parse_cifar_pickle, parse_packed, read_tar

REAL = Path(os.environ.get("FEDREACH_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real(path: str) -> Path:
    if not (REAL / path).exists():
        pytest.skip(f"{path} is not in the data folder; set FEDREACH_DATA")
    return REAL / path


@pytest.fixture
def rng():
    return np.random.Generator(np.random.Philox(7))


def python2_pickle(x: np.ndarray, labels: np.ndarray, key: bytes = b"labels", names=(), label: bytes = b"") -> bytes:
    """The pickle that python 2 wrote for a CIFAR batch, opcode by opcode (PEP 307), memo numbers included."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def put(number: int) -> bytes:
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def chunks(items: list[bytes]) -> bytes:
        return b"".join(b"(" + b"".join(items[i : i + 1000]) + b"e" for i in range(0, len(items), 1000))

    size = struct.pack("<H", len(x))
    return b"".join(
        [
            b"\x80\x02}q\x01("
            + text(b"batch_label")
            + put(2)
            + text(label)
            + put(3)
            + text(key)
            + put(4)
            + b"]"
            + put(5),
            chunks([b"K" + bytes([value]) for value in labels.tolist()]),
            text(b"data") + put(6) + b"cnumpy.core.multiarray\n_reconstruct\n" + put(7),
            b"cnumpy\nndarray\n" + put(8) + b"K\x00\x85U\x01b\x87R" + put(9) + b"(K\x01M" + size + b"M\x00\x0c\x86",
            b"cnumpy\ndtype\n" + put(10) + b"U\x02u1K\x00K\x01\x87R" + put(11),
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", x.size),
            x.tobytes() + b"tb" + text(b"filenames") + put(12) + b"]" + put(13),
            chunks([text(bytes(name)) + put(14 + i) for i, name in enumerate(names)]) + b"u.",
        ]
    )


def packed(x: np.ndarray, **arrays: np.ndarray) -> bytes:
    """The packed form, from its definition: G, R - G, B - G, each row less the row above, modulo 256."""
    red, green, blue = x.transpose(1, 0, 2, 3).astype(int)
    planes = np.stack([green, red - green, blue - green])
    file = io.BytesIO()
    np.savez(file, delta=(np.diff(planes, axis=2, prepend=0) % 256).astype(np.uint8), **arrays)
    return file.getvalue()


@pytest.fixture
def batch(rng):
    return rng.integers(0, 256, (5, 3, 32, 32), np.uint8), np.array([3, 0, 9, 9, 1], np.uint8)


def test_both_forms_of_cifar_give_the_images_back(batch):
    x, y = batch
    for images, labels in (
        parse_cifar_pickle(Path("f"), python2_pickle(x, y), "labels", 10),
        parse_packed(Path("f"), packed(x, labels=y), "labels", 10),
    ):
        np.testing.assert_array_equal(images, x)
        np.testing.assert_array_equal(labels, y)


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path):
    class Harm:
        def __reduce__(self):
            return Path.touch, (tmp_path / "harm",)

    harmful = pickle.dumps({"data": Harm()}, protocol=2)
    pickle.loads(harmful)
    assert (tmp_path / "harm").exists()  # it works on who trusts it
    (tmp_path / "harm").unlink()
    with pytest.raises(DataError, match=r"f: is not a CIFAR pickle \(UnpicklingError: it contains __builtin__.getattr"):
        parse_cifar_pickle(Path("f"), harmful, "labels", 10)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("parse", [parse_cifar_pickle, parse_packed])
def test_cifar_files_cut_off_or_with_wrong_contents_are_refused(batch, parse):
    x, y = batch
    write = python2_pickle if parse is parse_cifar_pickle else lambda x, y: packed(x, labels=y)
    for cut in range(0, 15000, 1000):
        with pytest.raises(DataError, match=r"^f: is not a"):
            parse(Path("f"), write(x, y)[:cut], "labels", 10)
    with pytest.raises(DataError, match=r"f: .*must be uint8 of shape"):
        parse(Path("f"), write(x, y[:4]), "labels", 10)
    with pytest.raises(DataError, match=r"^f: is not a"):
        parse(Path("f"), write(x, y), "coarse_labels", 10)
    with pytest.raises(DataError, match="f: labels must be 0 to 8; got 9"):
        parse(Path("f"), write(x, y), "labels", 9)


def test_a_tar_is_read_in_memory_and_must_hold_every_batch(tmp_path):
    path = tmp_path / "a.tar.gz"
    content = np.random.Generator(np.random.Philox(0)).bytes(50_000)  # does not compress
    with tarfile.open(path, "w:gz") as archive:
        for name in ("one", "../two"):
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert read_tar(path, ["one", "two"]) == {"one": content, "two": content}
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.gz"]
    with pytest.raises(DataError, match=r"a.tar.gz: does not contain three"):
        read_tar(path, ["one", "three"])
    path.write_bytes(path.read_bytes()[:70_000])
    with pytest.raises(DataError, match=r"a.tar.gz: is not a complete .tar.gz"):
        read_tar(path, ["one", "two"])


def test_a_well_formed_batch_that_is_not_the_published_one_is_refused(batch, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(python2_pickle(*batch))
    with pytest.raises(DataError, match=r"data_batch_1: must be the published file with md5 c99c"):
        load("cifar10", tmp_path, download=False)


def test_a_missing_batch_is_named(tmp_path):
    (tmp_path / "cifar-10").mkdir()
    with pytest.raises(DataError, match=r"data_batch_1.npz: cannot be read"):
        load("cifar10", tmp_path, download=False)


@pytest.mark.slow
def test_the_cifar100_subset_says_so_and_never_passes_for_cifar100():
    real("cifar-100-subset")
    data = load("cifar100_subset", REAL, download=False)
    assert (data.name, data.num_classes) == ("cifar100_subset", 100)
    assert "not CIFAR-100 results" in data.notes
    np.testing.assert_array_equal(np.bincount(data.train_y), [100] * 100)
    np.testing.assert_array_equal(np.bincount(data.test_y), [20] * 100)
    if not any((REAL / path).exists() for path in sources()["cifar100"].folders):
        with pytest.raises(DataError, match=r"cifar-100-python, cifar-100-python.tar.gz not found"):
            load("cifar100", REAL, download=False)


def test_the_twenty_coarse_labels_are_unions_of_five_fine_ones():
    path = real("cifar-100-subset/test.npz")
    fine = parse_packed(path, path.read_bytes(), "labels", 100)[1]
    coarse = parse_packed(path, path.read_bytes(), "coarse_labels", 20)[1]
    pairs = np.unique(np.stack([coarse, fine]), axis=1)
    np.testing.assert_array_equal(np.bincount(pairs[0]), [5] * 20)


@pytest.mark.slow
def test_packed_cifar10_is_the_published_set_in_every_form(tmp_path):
    """The pickles written here pass the published md5 only if every byte is right."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batches = {f"data_batch_{k}": b"training batch %d of 5" % k for k in range(1, 6)}
    for name, label in (batches | {"test_batch": b"testing batch 1 of 1"}).items():
        path = real(f"cifar-10/{name}.npz")
        x, y = parse_packed(path, path.read_bytes(), "labels", 10)
        with np.load(path) as file:
            (folder / name).write_bytes(python2_pickle(x, y, names=file["filenames"], label=label))
    data = load("cifar10", tmp_path, download=False)
    assert data.sha256 == load("cifar10", REAL, download=False).sha256
    np.testing.assert_array_equal(np.bincount(data.train_y), [5000] * 10)
    np.testing.assert_allclose(data.train_x.mean(axis=(0, 2, 3)) / 255, data.mean, atol=1e-3)
    other = tmp_path / "archive"
    other.mkdir()
    with tarfile.open(other / "cifar-10-python.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(folder, "cifar-10-batches-py")
    assert load("cifar10", other, download=False).sha256 == data.sha256
