"""C library of the engine `native`: structures, compilation and loading."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedreach._util.arrays import Ints
from fedreach._util.files import cache_folder
from fedreach.data.splits import ClientIndex
from fedreach.engines.batches import Samples, batch_plans
from fedreach.federation.local_sgd import LocalSGD

# -------------------- The structures of `layers.h`, `training.c` and `samples.h`; fields must have the same order


INTEGER, REAL, PLACE = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


def _structure(name: str, **fields: Any) -> Any:
    """Return the ctypes class of a C structure."""
    return type(name, (ctypes.Structure,), {"_fields_": [*fields.items()]})


_LAYER = "kind inputs outputs weight bias relu pooled channels height width filters rows columns down right above left"
_LAYER += " groups source source_down source_right before"
LayerRow = _structure("LayerRow", **dict.fromkeys(_LAYER.split(), INTEGER), amount=REAL)
"""A layer of a chain."""
SampleArrays = _structure("SampleArrays", x=PLACE, wide=INTEGER, factor=PLACE, offset=PLACE, labels=PLACE)
"""Examples for C."""
Batches = _structure(
    "Batches",
    **{"batch": INTEGER, "steps": PLACE, "drop_last": INTEGER, "order": PLACE, "offsets": PLACE},
    **{"count": INTEGER, "words": PLACE, "dropout": INTEGER},
)
"""Parameters with which C draws batches."""
Progress = _structure("Progress", client=INTEGER, step=INTEGER, seen=INTEGER, loss=REAL, generator=ctypes.c_uint64 * 12)
"""Progress of training between two calls."""
UpdateRule = _structure(
    "UpdateRule", lr=REAL, momentum=REAL, decay=REAL, clip=REAL, pull=PLACE, shift=PLACE, added=PLACE
)
"""Parameters of a gradient step."""


def sample_arrays(samples: Samples) -> Any:
    """Return the C structure for the given examples, which keeps references to the tensors that it points to."""
    factor, offset = (
        None if numbers is None else numbers.expand(1, *samples.x.shape[1:]).contiguous()
        for numbers in (samples.factor, samples.offset)
    )
    places = (None if tensor is None else tensor.data_ptr() for tensor in (factor, offset))
    structure = SampleArrays(samples.x.data_ptr(), samples.x.dtype != torch.uint8, *places, samples.y.data_ptr())
    structure.kept = samples.x, factor, offset, samples.y
    return structure


def place_of(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


# -------------------- The library, compiled for this processor at first use
# A library for all processors could not use the vector instructions of newer ones. Compiling takes one or two seconds.
# FedReach stores the library in the user's cache folder, under a name that depends on the code, the compiler and the
# processor. Without a compiler, or if the library cannot be loaded, all other engines work.

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.c"))
COMPILERS = ("cc", "gcc", "clang")
ROUNDING = ("-fno-fast-math", "-ffp-contract=off")  # rounding must not depend on the compiler (see `products.h`)
OPTIONS = ("-O3", "-std=gnu11", *ROUNDING, "-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC")
FOR_THIS_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())
"""Compiler options, tried in this order, because their names differ between compilers."""
SECONDS = 120


class NoLibraryError(Exception):
    """Error for a library that cannot be compiled or loaded; the message states the reason."""


def library() -> ctypes.CDLL:
    """Return the compiled library.

    Raises:
        NoLibraryError: If no compiler is available, or the library cannot be compiled or loaded.
    """
    loaded = _load_once()
    if isinstance(loaded, NoLibraryError):
        raise loaded
    return loaded


@cache
def _load_once() -> ctypes.CDLL | NoLibraryError:
    """Return the library or the error; the cache prevents running a slow or failing compiler again."""
    try:
        return _build_or_load()
    except NoLibraryError as error:
        return error


def _build_or_load() -> ctypes.CDLL:
    if os.name != "posix":
        raise NoLibraryError(f"it supports Linux and macOS only, not {platform.system()}")
    compiler = _compiler()
    cause: object = "other users can write to the folders for the compiled library"
    try:
        code = [source.read_text(encoding="utf-8") for source in (*SOURCES, *sorted(FOLDER.glob("*.h")))]
        made_by = f"{Path(compiler[0]).stat().st_mtime_ns} {platform.machine()} {platform.libc_ver()}"
        kind = "\n".join((*code, *compiler, *OPTIONS, made_by, _processor()))
        name = f"native-{_short_hash(kind.encode())}"
        for folder in _folders():
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                if _is_private(folder):
                    return _declare_types(
                        ctypes.CDLL(str(_find_built(folder, name) or _compile(compiler, folder, name)))
                    )
            except OSError as error:  # the folder may be read-only, or its mount options forbid loading libraries
                cause = error
    except OSError as error:
        cause = error
    raise NoLibraryError(f"the compiled library cannot be stored or loaded ({cause})")


def _folders() -> Iterator[Path]:
    """Yield the folders for the library: the user's cache, then the folder for temporary files."""
    with contextlib.suppress(RuntimeError):  # the user may have no home folder, as in containers
        yield cache_folder() / "native"
    yield Path(tempfile.gettempdir()) / f"fedreach-{os.getuid()}"


def _is_private(folder: Path) -> bool:
    """Return whether only this user can write to a folder."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _find_built(folder: Path, name: str) -> Path | None:
    """Return the path of the library if it is complete; loading a truncated library would crash the process."""
    for path in folder.glob(f"{name}-*.so"):
        if path.stem == f"{name}-{_short_hash(path.read_bytes())}":
            return path
    return None


def _compile(compiler: tuple[str, ...], folder: Path, name: str) -> Path:
    """Compile into a temporary file, then rename it, because other processes may compile at the same time."""
    with tempfile.TemporaryDirectory(dir=folder) as build_folder:
        built = Path(build_folder) / "made.so"
        for options in FOR_THIS_PROCESSOR:
            command = [*compiler, *OPTIONS, *options, "-o", str(built), *map(str, SOURCES), "-lm"]
            try:
                done = subprocess.run(
                    command, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                raise NoLibraryError(f"{compiler[0]} took more than {SECONDS} s") from None
            if done.returncode == 0 and built.exists():
                return built.replace(folder / f"{name}-{_short_hash(built.read_bytes())}.so")
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
    raise NoLibraryError(f"{compiler[0]} failed: {first}")


def _compiler() -> tuple[str, ...]:
    """Return the command of a C compiler: the environment variable CC, or one of the usual names."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NoLibraryError(f"the environment variable CC is not a valid command ({error})") from error
    for command in [named] if named else [[name] for name in COMPILERS]:
        path = shutil.which(command[0])
        if path:
            return (path, *command[1:])
    if named:
        raise NoLibraryError(f"the compiler {named[0]!r} from the environment variable CC was not found")
    raise NoLibraryError("no C compiler was found (cc, gcc or clang)")


def _processor() -> str:
    """Return a string that differs between processors with different instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _declare_types(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the argument types of the functions: addresses and integers."""
    place, number, seconds = PLACE, INTEGER, REAL
    loaded.memory_numbers.argtypes, loaded.memory_numbers.restype = (number, place, place, number, number), number
    loaded.train.argtypes = [number, *[place] * 4, number, number, *[place] * 4, number, *[place] * 6, number, seconds]
    loaded.memory_for_predicting.argtypes, loaded.memory_for_predicting.restype = (number, place), number
    loaded.predict.argtypes = [number, place, place, number, *[place] * 6, seconds]
    loaded.draw_plan.argtypes = (number, place, number, place, number, number, number, place, place)
    loaded.add_up.argtypes = (number, number, place, place, number, place)
    for function in (loaded.train, loaded.predict):
        function.restype = number
    for function in (loaded.draw_plan, loaded.add_up):
        function.restype = None
    return loaded


# -------------------- Batches drawn in C (`batches.c`), compared with NumPy


def batch_plan_in_c(seed: int, round_: int, client: int, train: ClientIndex, local: LocalSGD) -> Ints:
    """Return a client's (steps, batch) table of examples, drawn in C, which equals the table of `batch_plans`."""
    examples = np.ascontiguousarray(train[client], np.int64)
    size, words = len(examples), words_of(seed, round_)
    words[-1] = client
    batch = min(local.batch_size, size)
    (steps,) = local.steps_of(np.array([size]), np.array([client]), seed, round_).tolist()
    per_epoch = int(local.steps_per_epoch(np.array(size)))
    spare, plan = np.empty(size, np.int64), np.empty((steps, batch), np.int64)
    places = examples.ctypes.data, batch, per_epoch, steps, spare.ctypes.data, plan.ctypes.data
    library().draw_plan(len(words), words.ctypes.data, size, *places)
    return plan


def words_of(seed: int, round_: int) -> NDArray[np.uint32]:
    """Return the seed words of a batch generator (see `fedreach._util.streams`); the last word is the client's id."""
    seed = int(seed)
    seed_words = [seed >> place & 0xFFFFFFFF for place in range(0, max(1, seed.bit_length()), 32)]
    return np.array([*seed_words, *[0] * (4 - len(seed_words)), zlib.crc32(b"batches"), round_, 0], np.uint32)


@cache
def draws_as_numpy_does() -> bool:
    """Return whether C draws the same numbers as the installed release of NumPy, since releases can differ."""
    sizes = np.array([1, 2, 5, 64, 300, 1000])
    train = ClientIndex(np.arange(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
    local = LocalSGD(batch_size=7, epochs=2)
    return all(
        np.array_equal(
            batch_plan_in_c(seed, 3, client, train, local),
            batch_plans(seed, 3, np.array([client]), [train[client]], local)[0],
        )
        for seed in (0, 1, 2**40 + 5)
        for client in range(len(sizes))
    )
