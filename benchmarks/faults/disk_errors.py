"""A disk that is full, fails or may not be written to, at each thing that a run does to it.

A small run is made once for each operation of its folder, which then raises what an operating system would, of a write
maybe after the half of it. The run must end in a message that has the system's words, and, once the disk is well again,
go on to the bytes of the run that nothing disturbed.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rows import Row
from small import content, train

from fedreach._util import files
from fedreach._util.errors import FedReachError

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS)
TOUCHED = ("open_unbuffered", "write", "sync", "sync_folder", "truncate", "replace", "link", "unlink")


@contextmanager
def failing(at: int, code: int, half: bool) -> Iterator[list[str]]:
    """Let the operation of this number fail; yield the names of those that were done."""
    done, whole = list[str](), {name: getattr(files, name) for name in TOUCHED}

    def instead(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done.append(name)
            if len(done) - 1 == at:
                if name == "write" and half:
                    file, data = arguments
                    whole["write"](file, bytes(data)[: len(data) // 2])
                raise OSError(code, os.strerror(code))
            return whole[name](*arguments)

        return call

    try:
        for name in TOUCHED:
            setattr(files, name, instead(name))
        yield done
    finally:
        for name, function in whole.items():
            setattr(files, name, function)


def disk_errors(every: int = 1, seed: int = 0) -> Row:
    """Return what came of an error at each operation, or at one of `every` so many."""
    draw, endings = random.Random(seed), list[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as home:
        first = Path(home) / "whole"
        with failing(-1, 0, half=False) as done:
            train(first)
        whole = _results(first)
        for at in range(draw.randrange(every), len(done), every):
            code = draw.choice(CODES)
            how = _ending(Path(home) / str(at), at, code, draw.random() < 0.5, whole)
            endings.append((how, f"{errno.errorcode[code]} at operation {at}, {done[at]}"))
    return Row.of_endings("disk errors", endings)


def _ending(folder: Path, at: int, code: int, half: bool, whole: dict[str, Any]) -> str:
    try:
        with failing(at, code, half):
            train(folder)
    except FedReachError as error:
        if os.strerror(code) not in str(error):
            return "lost"
    except Exception:
        return "lost"
    else:
        return "survived" if _results(folder) == whole else "wrong"
    try:
        train(folder)
    except Exception:
        return "lost"
    return "told" if _results(folder) == whole else "wrong"


def _results(folder: Path) -> dict[str, Any]:
    """Return all but the checkpoint, in which an ended run says what it still had to remove, too."""
    return {name: value for name, value in content(folder).items() if name != "checkpoint.safetensors"}


if __name__ == "__main__":
    print(disk_errors())
