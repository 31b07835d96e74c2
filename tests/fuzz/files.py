"""Data files of every reader, partitions and tables of clients: damaged, lying, or of another kind."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedreach._util.errors import FedReachError
from fedreach.data import stored
from fedreach.data.assignment import Partition
from fedreach.data.datasets import check_server_data, from_arrays, from_npz
from fedreach.data.federated import FederatedData, federate
from fedreach.data.sets import load
from fedreach.data.stored import from_folder, index_folder

from .campaign import Target, WrongError
from .damage import DEEP, TEXTS, damaged

RNG = np.random.default_rng(0)
PLAIN = from_arrays(RNG.random((24, 3), np.float32), np.arange(24) % 3, name="plain")


# -------------------------------------------------------------------------------------------------- arrays in files


class Opened(dict):  # what a pickle may hold
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("pickle-was-run"),))


def npy(header: str, content: bytes) -> bytes:
    """Return an .npy file with this header, true or not."""
    text = header.encode()[:60_000]  # more the format cannot say
    padded = text.ljust(-(-(len(text) + 11) // 64) * 64 + 53) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + content


DTYPES = st.sampled_from(
    ["<f4", "<f8", ">f8", "<i8", ">i4", "|u1", "|b1", "<U3", "|S2", "|O", "<M8[s]", "<c16", "<f2", "|V4", "<i2", "<u8"]
)
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 24, 28, 10**4, 2**31, 2**40, 10**18, 2**63, -1])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)


@st.composite
def lying_arrays(draw: st.DrawFn) -> bytes:
    """Draw an .npy file whose header need not be true."""
    order, shape, dtype = draw(st.booleans()), draw(SHAPES), draw(DTYPES)
    header = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape!r}, }}"
    return npy(draw(st.just(header) | TEXTS | st.just("[" * DEEP)), draw(st.binary(max_size=200)))


@st.composite
def true_arrays(draw: st.DrawFn) -> bytes:
    """Draw an .npy file that is whole, with whatever in it."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4).map(tuple)) if draw(st.booleans()) else (24,)
    dtype = np.dtype(draw(DTYPES))
    raw = np.frombuffer(draw(st.binary(min_size=400, max_size=400)) * 100, np.uint8)[
        : int(np.prod(shape)) * dtype.itemsize
    ]
    try:
        array: Any = np.array([Opened(), None]) if dtype.kind == "O" else raw.view(dtype).reshape(shape)
    except ValueError:
        array = np.zeros(shape, "<U3")
    out = io.BytesIO()
    np.save(out, np.asfortranarray(array) if draw(st.booleans()) else array, allow_pickle=True)
    return out.getvalue()


def saved(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


X, Y = saved(PLAIN.train_x), saved(PLAIN.train_y)
CLIENT = saved(np.array(["ann", "bob", "eve"] * 8))
ARRAYS = st.one_of(lying_arrays(), true_arrays(), damaged(X), damaged(Y))
PARTS = st.dictionaries(
    st.sampled_from(["x.npy", "y.npy", "client.npy", "x_test.npy", "y_test.npy", "z.npy", "x", "../x.npy"]),
    ARRAYS,
    max_size=3,
)
RIGHT_NPZ = zipped({"x.npy": X, "y.npy": Y, "client.npy": CLIENT})
BOMB = zipped(
    {"x.npy": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4000000000, 2), }", bytes(10**7)), "y.npy": Y}
)
LABELS = st.sampled_from([[0, 10**9], [0, 2**62], [0, 2**31], [-1, 2], [0.5, 1.0], [2**64 - 1, 0]])
NUMBERS = st.lists(st.floats(width=64) | st.sampled_from([1e39, -1e39, 5e-324]), min_size=24, max_size=24).map(
    lambda y: zipped({"x.npy": X, "y.npy": saved(np.array(y).reshape(24, -1))})
)
LARGE = LABELS.map(lambda y: zipped({"x.npy": saved(np.ones((2, 3))), "y.npy": saved(np.array(y))}))
NPZ = st.one_of(
    PARTS.map(lambda parts: zipped({"x.npy": X, "y.npy": Y, **parts})),
    damaged(RIGHT_NPZ),
    damaged(zipped({"x.npy": X, "y.npy": Y}, zipfile.ZIP_STORED)),
    st.sampled_from([b"", b"PK", X, RIGHT_NPZ, BOMB, pickle.dumps(Opened()), zipped({})]),
    LARGE,
    NUMBERS,
    st.binary(max_size=64),
)


def unopened(folder: Path) -> None:
    if list(folder.rglob("pickle-was-run")):
        raise WrongError("a pickle was run")


def of_npz(folder: Path, content: bytes) -> None:
    path = folder / "x.npz"
    path.write_bytes(content)
    try:
        made = from_npz(path)
        with np.load(path) as whole:
            if len(made.train_y) != len(whole["y"]) or (made.num_classes <= made.train_y.max() and made.num_classes):
                raise WrongError("labels are others than in the file")
            numbers = whole["y"].astype(np.float32).reshape(len(made.train_y), -1)
            if not made.num_classes and not (np.isfinite(numbers).all() and np.array_equal(made.train_y, numbers)):
                raise WrongError("numbers are others than in the file, or not finite")
        federate(made, Partition.from_owner(np.arange(len(made.train_y)) % 2, 2, "iid"), seed=0).label_counts()
    finally:
        unopened(folder)


def of_server(folder: Path, content: bytes) -> None:
    (folder / "x.npz").write_bytes(content)
    check_server_data(PLAIN, folder / "x.npz")


def of_folder(folder: Path, parts: dict[str, bytes]) -> None:
    own = folder / "mine"
    own.mkdir()
    for name, content in {"x.npy": X, "y.npy": Y, **parts}.items():
        (own / Path(name).name).write_bytes(content)
    try:
        made = from_folder(own)
        index_folder(own)
        if from_folder(own).sha256 != made.sha256:
            raise WrongError("an index changed what is read")
    finally:
        unopened(folder)


NOTES = st.one_of(
    damaged(json.dumps({"kind": "features", "num_classes": 3}).encode()), st.binary(max_size=20), st.just(b"[" * 10**5)
)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[str, bytes]:
    return draw(st.sampled_from(["dataset.json", "x.npy", "y.npy"])), draw(NOTES | ARRAYS)


def of_indexed(folder: Path, change: tuple[str, bytes]) -> None:
    own = folder / "mine"
    own.mkdir()
    (own / "x.npy").write_bytes(X)
    (own / "y.npy").write_bytes(Y)
    index_folder(own)
    (own / change[0]).write_bytes(change[1])
    from_folder(own)


@st.composite
def stored_changes(draw: st.DrawFn) -> tuple[str, str, Callable[[bytes], bytes]]:
    content = draw(st.sampled_from(["dataset", "samples", "table", "numbers"]))
    name = draw(
        st.sampled_from(
            ["own.json", "train_x.npy", "train_y.npy", "owners.npy", "labels.npy", "column-0.npy", "clients.npy"]
        )
    )
    other = draw(st.none() | ARRAYS | st.sampled_from([b"{}", b"[]", b"[" * 10**5, b'{"what": "dataset"}']))
    if other is not None:
        return content, name, lambda whole: other
    flips = draw(st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 255)), min_size=1, max_size=3))

    def flipped(whole: bytes) -> bytes:
        found = bytearray(whole)
        for at, bits in flips:
            found[at % len(found)] ^= bits
        return bytes(found)

    return content, name, flipped


TABLE = {
    "who": ["n", "s", "e", "n"] * 6,
    "age": list(range(24)),
    "ward": ["a", "b", "c"] * 8,
    "ill": ["no", "yes"] * 12,
}


def of_stored(folder: Path, change: tuple[str, str, Callable[[bytes], bytes]]) -> None:
    content, name, damage = change
    table = FederatedData.from_frame(TABLE, client="who", label="ill").origin
    clients = FederatedData.from_clients(
        {"a": (np.ones((4, 2)), [0, 1, 0, 1]), "b": (np.ones((4, 2)), [0, 1, 0, 1])}
    ).origin
    days = FederatedData.from_frame(TABLE, client="who", target=["age"]).origin
    data = {
        "numbers": days and days.data,
        "dataset": PLAIN,
        "samples": clients and clients.data,
        "table": table and table.data,
    }[content]
    path = stored.store(data, folder) if data is not None else folder
    changed = path.parent / name
    if changed.exists():
        changed.write_bytes(damage(changed.read_bytes()))
    stored.open_stored(path)


# -------------------------------------------------------------------------------------------------------- partitions

PARTITION = Partition.from_owner(np.arange(24) % 4, 4, "iid", {"a": 1})


def partition_bytes() -> bytes:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        PARTITION.save(Path(folder) / "p.npz")
        return (Path(folder) / "p.npz").read_bytes()


RIGHT_PARTITION = partition_bytes()
HEADER = {"format": "fedreach-partition/1", "kind": "iid", "parameters": {}, "digest": PARTITION.digest()}


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    header = dict(HEADER)
    for _ in range(draw(st.integers(0, 2))):
        header[draw(st.sampled_from([*HEADER, "x"]))] = draw(
            TEXTS | st.none() | st.integers() | st.lists(st.integers())
        )
    text = json.dumps(header).encode()
    return saved(np.frombuffer(draw(st.just(text) | st.just(b"[" * 10**5) | st.binary(max_size=20)), np.uint8))


PARTITION_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "header.npy": headers(),
        "order.npy": ARRAYS | st.permutations(range(24)).map(saved),
        "offsets.npy": ARRAYS | st.lists(st.integers(-1, 25), max_size=6).map(lambda v: saved(np.array(v, np.int64))),
    },
)
WHOLE_PARTS = {
    "header.npy": saved(np.frombuffer(json.dumps(HEADER).encode(), np.uint8)),
    "order.npy": saved(PARTITION.order),
    "offsets.npy": saved(PARTITION.offsets),
}
PARTITIONS = st.one_of(damaged(RIGHT_PARTITION), PARTITION_PARTS.map(lambda p: zipped({**WHOLE_PARTS, **p})), NPZ)


def of_partition(folder: Path, content: bytes) -> None:
    path = folder / "p.npz"
    path.write_bytes(content)
    found = Partition.load(path)
    if json.loads(np.load(path)["header"].tobytes())["digest"] != found.digest():
        raise WrongError("another partition than was saved")
    federate(PLAIN, found, seed=0, participants=1)


# ---------------------------------------------------------------------------------------------------- known data sets


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


IDX_X, IDX_Y = idx((3, 28, 28), bytes(3 * 784)), idx((3,), bytes(3))
GZ = st.booleans()
IDX = st.one_of(
    damaged(IDX_X),
    damaged(IDX_Y),
    st.tuples(SIZES, SIZES).map(lambda s: idx(tuple(abs(v) % 2**32 for v in s), bytes(9))),
    st.binary(max_size=30),
    st.just(gzip.compress(bytes(10**6))),
)


@st.composite
def idx_files(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"]))
    content = draw(IDX)
    packed = draw(st.booleans())
    if packed and draw(st.booleans()):
        return f"{name}.gz", draw(damaged(gzip.compress(content)))
    return f"{name}.gz" if packed else name, gzip.compress(content) if packed else content


def of_idx(folder: Path, given: tuple[str, bytes]) -> None:
    own = folder / "MNIST" / "raw"
    own.mkdir(parents=True)
    for part in ("train", "t10k"):
        (own / f"{part}-images-idx3-ubyte").write_bytes(IDX_X)
        (own / f"{part}-labels-idx1-ubyte").write_bytes(IDX_Y)
    (own / given[0]).write_bytes(given[1])
    load("mnist", folder, download=False)
    raise WrongError("only the published files are MNIST")


def cifar_batch(**change: Any) -> bytes:
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2], **{k.encode(): v for k, v in change.items()}}
    return pickle.dumps(content, protocol=2)


PICKLES = st.one_of(
    damaged(cifar_batch()),
    st.sampled_from([Opened(), 3, [1], {}, None, "x", {b"data": Opened()}]).map(pickle.dumps),
    st.sampled_from([[1], [1, "a"], [1.5, 2], [10**30, 1], [[1], [2]], None, Opened(), [-1, 3]]).map(
        lambda v: cifar_batch(labels=v)
    ),
    st.sampled_from([np.zeros((2, 3)), np.zeros((2, 3072)), np.array([None, None]), [1], b"x"]).map(
        lambda v: cifar_batch(data=v)
    ),
    st.binary(max_size=40),
    st.just(b"\x80\x02" + b"(" * 10**5),
    st.just(b"\x80\x02X\xff\xff\xff\x7f"),
    st.just(b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x00"),
    st.just(b"\x80\x02]" + b"]a" * 3000),
)


@st.composite
def cifar_files(draw: st.DrawFn) -> tuple[str, bytes]:
    kind = draw(st.sampled_from(["folder", "tar", "packed"]))
    content = draw(PICKLES)
    if kind == "tar":
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        return kind, draw(st.just(out.getvalue()) | damaged(out.getvalue()))
    if kind == "packed":
        whole = zipped(
            {"delta.npy": saved(np.zeros((3, 2, 32, 32), np.uint8)), "labels.npy": saved(np.array([1, 2]))},
            zipfile.ZIP_LZMA,
        )
        return kind, draw(damaged(whole) | NPZ)
    return kind, content


def of_cifar(folder: Path, given: tuple[str, bytes]) -> None:
    kind, content = given
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    try:
        if kind == "tar":
            (folder / "cifar-10-python.tar.gz").write_bytes(content)
        else:
            own = folder / ("cifar-10" if kind == "packed" else "cifar-10-batches-py")
            own.mkdir()
            for name in names:
                (own / (f"{name}.npz" if kind == "packed" else name)).write_bytes(content)
        load("cifar10", folder, download=False)
    finally:
        unopened(folder)
    raise WrongError("only the published files are CIFAR-10")


ROLES = {"user_data": {"A": {"raw": "to be or not " * 20}, "B": {"speeches": ["hello " * 40, "you"]}}}
SHAKESPEARE = st.one_of(
    damaged(json.dumps(ROLES).encode()),
    st.sampled_from(
        [
            b"[" * 10**5,
            b"{}",
            b'{"user_data": {"a": {"raw": 3}}}',
            b'{"user_data": {"a": {"speeches": "abc"}}}',
            b'{"user_data": {"a": {"x": [], "y": []}}}',
            b'{"user_data": {"a": {"x": 3, "y": [4]}}}',
            b"9" * 5000,
            b'{"user_data": {"a\\ud800": {"raw": "\\ud800' + b"x" * 300 + b'"}}}',
            b"\xff",
        ]
    ),
)


def of_shakespeare(folder: Path, content: bytes) -> None:
    own = folder / "shakespeare"
    own.mkdir()
    (own / "roles.json.gz").write_bytes(gzip.compress(content))
    from fedreach.data.sets.readers import read_roles

    try:
        read_roles(own / "roles.json.gz")
    except FedReachError:
        (own / "all.json").write_bytes(content)
    made = load("shakespeare", folder, download=False, min_samples=1)
    if made.owners is None or len(made.owner_names) > 2:
        raise WrongError("roles are missing")


TARGETS = [
    Target("npz data", NPZ, of_npz, 4),
    Target("npz data of the server", NPZ, of_server),
    Target("folders of arrays", PARTS, of_folder, 2),
    Target("indexed folders", indexed(), of_indexed),
    Target("stored data", stored_changes(), of_stored),
    Target("partitions", PARTITIONS, of_partition, 4),
    Target("idx files", idx_files(), of_idx, 2),
    Target("CIFAR files", cifar_files(), of_cifar, 2),
    Target("roles and their text", SHAKESPEARE, of_shakespeare),
]
