"""The C of this folder as a library, compiled for this very processor when it is first needed.

A library that fits all processors could not use the vectors of the better ones. Compiling takes a second or two, once;
the result stands in the cache folder of the user, under a name that changes with the code, the compiler and the
processor. Where there is no compiler, or what it makes cannot be loaded, everything else of FedReach works as ever.
"""

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
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fedreach.cache import cache_folder

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.c"))
COMPILERS = ("cc", "gcc", "clang")
ROUNDING = ("-fno-fast-math", "-ffp-contract=off")  # what is rounded once is said in the code: see `products.h`
OPTIONS = ("-O3", "-std=gnu11", *ROUNDING, "-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC")
FOR_THIS_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())
"""Options to try, one after the other: compilers call it differently."""
SECONDS = 120


class NoLibraryError(Exception):
    """Says why there is no library."""


def library() -> ctypes.CDLL:
    """Return the compiled library.

    Raises:
        NoLibraryError: If there is no compiler, or it does not do its work.
    """
    found = _found()
    if isinstance(found, NoLibraryError):
        raise found
    return found


@cache
def _found() -> ctypes.CDLL | NoLibraryError:
    """Return the library, or why there is none: a compiler that takes too long is not asked again."""
    try:
        return _made()
    except NoLibraryError as error:
        return error


def _made() -> ctypes.CDLL:
    if os.name != "posix":
        raise NoLibraryError(f"it is for Linux and macOS, and this is {platform.system()}")
    compiler = _compiler()
    cause: object = "other users may write to its folders"
    try:
        code = [source.read_text(encoding="utf-8") for source in (*SOURCES, *sorted(FOLDER.glob("*.h")))]
        made_by = f"{Path(compiler[0]).stat().st_mtime_ns} {platform.machine()} {platform.libc_ver()}"
        kind = "\n".join((*code, *compiler, *OPTIONS, made_by, _processor()))
        name = f"native-{_short_hash(kind.encode())}"
        for folder in _folders():
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                if _ours(folder):
                    return _declared(ctypes.CDLL(str(_kept(folder, name) or _compiled(compiler, folder, name))))
            except OSError as error:  # a folder that may not be written to, or from which nothing may be loaded
                cause = error
    except OSError as error:
        cause = error
    raise NoLibraryError(f"what was compiled cannot be stored or loaded ({cause})")


def _folders() -> Iterator[Path]:
    """Yield where the library may stand: in the user's cache, else among temporary files."""
    with contextlib.suppress(RuntimeError):  # some users have no home, as in containers
        yield cache_folder() / "native"
    yield Path(tempfile.gettempdir()) / f"fedreach-{os.getuid()}"


def _ours(folder: Path) -> bool:
    """Return whether nobody else may put a library there."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _kept(folder: Path, name: str) -> Path | None:
    """Return the library that was compiled before, if it is whole: loading a part of one would end the process."""
    for path in folder.glob(f"{name}-*.so"):
        if path.stem == f"{name}-{_short_hash(path.read_bytes())}":
            return path
    return None


def _compiled(compiler: tuple[str, ...], folder: Path, name: str) -> Path:
    """Compile into a file of another name, and only then give it its own: others may be doing the same."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        made = Path(own) / "made.so"
        for options in FOR_THIS_PROCESSOR:
            command = [*compiler, *OPTIONS, *options, "-o", str(made), *map(str, SOURCES), "-lm"]
            try:
                done = subprocess.run(
                    command, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                raise NoLibraryError(f"{compiler[0]} took more than {SECONDS} s") from None
            if done.returncode == 0 and made.exists():
                return made.replace(folder / f"{name}-{_short_hash(made.read_bytes())}.so")
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
    raise NoLibraryError(f"{compiler[0]} failed: {first}")


def _compiler() -> tuple[str, ...]:
    """Return the command of a C compiler: what CC says, or one of the usual names."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NoLibraryError(f"CC is no command ({error})") from error
    for command in [named] if named else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found:
            return (found, *command[1:])
    what = f"CC names {named[0]!r}, which is not there" if named else "there is no C compiler (cc, gcc or clang)"
    raise NoLibraryError(what)


def _processor() -> str:
    """Return what tells processors apart that do not run the same instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _declared(made: ctypes.CDLL) -> ctypes.CDLL:
    """Say what the functions take: places in memory and whole numbers."""
    place, number = ctypes.c_void_p, ctypes.c_int64
    made.memory_numbers.argtypes, made.memory_numbers.restype = (number, place, place, number, number), number
    seconds = ctypes.c_double
    made.train.argtypes = [number, *[place] * 4, number, number, *[place] * 4, number, *[place] * 6, number, seconds]
    made.memory_for_predicting.argtypes, made.memory_for_predicting.restype = (number, place), number
    made.predict.argtypes = [number, place, place, number, *[place] * 6, seconds]
    made.draw_plan.argtypes = (number, place, number, place, number, number, number, place, place)
    made.add_up.argtypes = (number, number, place, place, number, place)
    for function in (made.train, made.predict):
        function.restype = number
    for function in (made.draw_plan, made.add_up):
        function.restype = None
    return made
