"""The C of this folder as a library, compiled for this very processor when it is first needed.

A library that fits all processors could not use the vectors of the better ones. Compiling takes a second or two, once;
the result stands in the cache folder of the user, under a name that changes with the code, the compiler and the
processor. Where there is no compiler, or what it makes cannot be loaded, everything else of FedReach works as ever.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = tuple(Path(__file__).with_name(name) for name in ("batches.c", "sums.c", "training.c"))
COMPILERS = ("cc", "gcc", "clang")
OPTIONS = ("-O3", "-std=gnu11", "-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC")
FOR_THIS_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())
"""Options to try, one after the other: compilers call it differently."""
SECONDS = 120


class NoLibraryError(Exception):
    """Says why there is no library."""


@cache
def library() -> ctypes.CDLL:
    """Return the compiled library.

    Raises:
        NoLibraryError: If there is no compiler, or it does not do its work.
    """
    compiler = _compiler()
    code = [source.read_text(encoding="utf-8") for source in SOURCES]
    kind = "\n".join((*code, *compiler, *OPTIONS, platform.platform(), _processor()))
    name = f"native-{hashlib.sha256(kind.encode()).hexdigest()[:16]}.so"
    for folder in (_cache_folder(), Path(tempfile.gettempdir()) / f"fedreach-{os.getuid()}"):
        target = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _ours(folder):
                continue
            if not target.exists():
                _compile(compiler, target)
            return _declared(ctypes.CDLL(str(target)))
        except OSError as error:  # a folder that may not be written to, or from which nothing may be loaded
            cause = error
    raise NoLibraryError(f"what was compiled cannot be stored or loaded ({cause})")


def _declared(made: ctypes.CDLL) -> ctypes.CDLL:
    """Say what the functions take: places in memory and whole numbers."""
    place, number = ctypes.c_void_p, ctypes.c_int64
    made.memory_numbers.argtypes, made.memory_numbers.restype = (number, place, place, number, number), number
    made.train.argtypes = (number, *[place] * 3, *[number] * 3, *[place] * 3, number, *[place] * 6)
    made.draw_plans.argtypes = (number, place, number, *[place] * 3, *[number] * 4, place, place)
    made.add_up.argtypes = (number, number, place, place, number, place)
    for function in (made.train, made.draw_plans, made.add_up):
        function.restype = None
    return made


def _compiler() -> tuple[str, ...]:
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found:
            return (found, *command[1:])
    what = f"CC names {named[0]!r}, which is not there" if named else "there is no C compiler (cc, gcc or clang)"
    raise NoLibraryError(what)


def _compile(compiler: tuple[str, ...], target: Path) -> None:
    """Compile into a file of another name, and only then give it its own: others may be doing the same."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        for options in FOR_THIS_PROCESSOR:
            command = [*compiler, *OPTIONS, *options, "-o", str(made), *map(str, SOURCES), "-lm"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise NoLibraryError(f"{compiler[0]} took more than {SECONDS} s") from None
            if done.returncode == 0:
                made.replace(target)
                return
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
    raise NoLibraryError(f"{compiler[0]} failed: {first}")


def _cache_folder() -> Path:
    import pooch

    return Path(pooch.os_cache("fedreach")) / "native"


def _ours(folder: Path) -> bool:
    """Return whether nobody else may put a library there."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def _processor() -> str:
    """Return what tells processors apart that do not run the same instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
