"""Data that cannot be used end a run before its first round, with a message that names file and remedy."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from .conftest import Command, Refused


def save(path: Path, labels: list[int], **arrays: np.ndarray) -> None:
    x = np.linspace(-1, 1, 4 * len(labels), dtype=np.float32).reshape(-1, 4)
    np.savez(path, **{"x": x, "y": np.array(labels), **arrays})


def test_clients_without_data_are_listed_and_the_user_chooses(refused: Refused, fedreach: Command, home: Path) -> None:
    save(home / "few.npz", [0, 1] * 20)
    few = ["run", "tiny.toml", "--set", "data.name=few.npz", "--set", "partition.min_size=0"]
    few += ["--set", "partition.clients=30"]
    said = refused(3, *few, "--out", "a")
    assert "of 30 clients have no examples: " in said
    assert "Use 'drop'" in said
    assert "partition.empty is 'error'" in said
    assert fedreach(*few, "--set", "partition.empty=drop", "--out", "drop").exit_code == 0
    record = json.loads((home / "drop" / "federation.json").read_text())
    assert min(record["sizes"]) >= 1
    assert sum(record["sizes"]) == 40
    # The smallest size of a partition cannot be kept by any draw, and that is said instead of tried for ever.
    more = refused(3, "run", "tiny.toml", "--set", "data=few.npz", "--set", "partition.clients=30", "--out", "b")
    assert "30 clients with min_size = 2 require 60 examples; got 40." in more


def test_a_missing_class_is_told_before_round_1(fedreach: Command, home: Path) -> None:
    save(home / "gap.npz", [0, 2] * 60)
    result = fedreach("run", "tiny.toml", "--set", "data=gap.npz")
    assert result.exit_code == 0
    assert "example has class 1; labels should be from 0 to 2" in result.stderr.partition("round 2/4")[0]


def test_arrays_that_cannot_be_data_are_refused(refused: Refused, home: Path) -> None:
    save(home / "nan.npz", [0, 1] * 60, x=np.full((120, 4), np.nan, np.float32))
    assert "train_x must be finite" in refused(3, "run", "tiny.toml", "--set", "data=nan.npz")
    save(home / "short.npz", [0, 1] * 60, y=np.zeros(5, np.int64))
    assert "short" in refused(3, "run", "tiny.toml", "--set", "data=short.npz")
    assert "nothere.npz" in refused(3, "run", "tiny.toml", "--set", "data=nothere.npz")
    assert "partition.name is 'natural', but digits has no natural clients." in refused(
        2, "run", "tiny.toml", "--set", "partition={name='natural'}"
    )


def test_a_population_that_cannot_be_is_refused(refused: Refused) -> None:
    some = "population.exclude_labels"
    assert "the number of clients that are not excluded" in refused(
        2, "run", "tiny.toml", "--set", f"{some}=[0,1,2,3,4,5,6,7,8,9]"
    )
    assert f"{some} must contain classes from 0 to 9; got 12." in refused(
        2, "run", "tiny.toml", "--set", f"{some}=[12]"
    )
    assert "population.participants must contain clients from 0 to 11; got 99." in refused(
        2, "run", "tiny.toml", "--set", "population.participants=[0,1,99]"
    )


@pytest.fixture
def mnist(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with idx files in MNIST's format; small, so not the published ones."""
    raw = home / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", 300), ("t10k", 60)):
        pixels, labels = rng.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n, dtype=np.uint8) % 10
        header = b"\0\0\x08\x03" + np.array(pixels.shape, ">u4").tobytes()
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
        header = b"\0\0\x08\x01" + np.array(labels.shape, ">u4").tobytes()
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))
    monkeypatch.setenv("FEDREACH_DATA", str(home / "data"))
    return raw


def test_a_damaged_data_file_is_named(refused: Refused, mnist: Path) -> None:
    read = ("run", "tiny.toml", "--set", "data={name='mnist',download=false}")
    images = mnist / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[: len(whole) // 2])
    assert f"{images}: cannot be read" in refused(3, *read)
    images.write_bytes(whole[:5000] + bytes([whole[5000] ^ 0x10]) + whole[5001:])
    assert f"{images}: " in refused(3, *read)
    images.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    assert "sizes [300, 28, 28] and 235215 bytes" in refused(3, *read)
    images.write_bytes(whole)
    assert "must be the published file" in refused(3, *read)
    images.unlink()
    assert "train-images-idx3-ubyte" in refused(3, *read)


def test_an_altered_copy_of_the_real_file_is_refused(
    refused: Refused, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Path(__file__).parents[1].parent / "shared" / "data"
    source = Path(os.environ.get("FEDREACH_DATA", beside)) / "MNIST" / "raw"
    if not source.is_dir():
        pytest.skip(f"the real MNIST is not in {source}; set FEDREACH_DATA")
    raw = home / "data" / "MNIST" / "raw"
    shutil.copytree(source, raw, copy_function=shutil.copyfile)
    monkeypatch.setenv("FEDREACH_DATA", str(home / "data"))
    labels = raw / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(labels.read_bytes()))
    content[100] = (content[100] + 1) % 10  # one wrong label in an otherwise perfect file
    labels.chmod(0o644)
    labels.write_bytes(gzip.compress(bytes(content)))
    said = refused(3, "partition", "tiny.toml", "--set", "data={name='mnist',download=false}")
    assert f"{labels}: must be the published file" in said
