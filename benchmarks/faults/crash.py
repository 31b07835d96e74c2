"""A process that ends, and power that is cut, before and after everything that a run does to its disk.

A small run is watched once: each write, sync, rename, cut and removal is noted, in order. Then, for each moment between
two of them, a folder is made as the disk would stand, and the same command goes on with it:

- *killed*: what was written stays, of the last write maybe the half.
- *power cut*: of what was not synced, data and names alike, any part is gone and any other there.

It must come to the bytes of the run that nothing disturbed, or be refused by the name of a file; and who reads the
folder before that must find rounds of that run or the same refusal.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from small import Counts, content, train

from fedreach._util import files
from fedreach._util.errors import FedReachError
from fedreach.report.read import read_run


class Operation(NamedTuple):
    """Something that was done to the disk."""

    what: str
    name: str = ""  # of the file, or the new one of one that is renamed
    inode: int = -1
    at: int = 0  # offset of a write, or the length that is left
    data: bytes = b""
    before: str = ""  # name of a file that is renamed


NAMES = ("create", "replace", "link", "unlink")


@dataclass
class State:
    """What of a folder has reached the disk, and what was done since."""

    names: dict[str, int] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    pending: list[Operation] = field(default_factory=list)

    def do(self, done: Operation) -> None:
        """Note one more operation."""
        if done.what == "sync":
            self._settle([each for each in self.pending if each.what not in NAMES and each.inode == done.inode])
        elif done.what == "sync_folder":
            self._settle([each for each in self.pending if each.what in NAMES])
        else:
            self.pending.append(done)

    def _settle(self, done: Sequence[Operation]) -> None:
        settled = self.with_(done)
        self.names, self.data = settled.names, settled.data
        self.pending = [each for each in self.pending if each not in done]

    def with_(self, done: Sequence[Operation]) -> State:
        """Return the state that these of the pending operations reached the disk."""
        names, data = dict(self.names), dict(self.data)
        for each in done:
            there = data.get(each.inode, b"")
            if each.what == "write":
                data[each.inode] = (
                    there[: each.at].ljust(each.at, b"\0") + each.data + there[each.at + len(each.data) :]
                )
            elif each.what == "truncate":
                data[each.inode] = there[: each.at].ljust(each.at, b"\0")
            elif each.what == "unlink":
                names.pop(each.name, None)
            else:
                names.pop(each.before, None)
                names[each.name] = each.inode
        return State(names, data)

    def written_to(self, folder: Path) -> None:
        """Make a folder that stands like this."""
        folder.mkdir()
        for name, inode in self.names.items():
            (folder / name).write_bytes(self.data.get(inode, b""))


class Watch:
    """Notes what is done to a folder, through the functions of `fedreach._util.files`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, list[Operation]()
        there = sorted(folder.iterdir()) if folder.exists() else []
        self.inodes = {path.name: number for number, path in enumerate(there)}
        self.start = State(dict(self.inodes), {self.inodes[path.name]: path.read_bytes() for path in there})
        self.used, self.open = len(there), dict[IO[bytes], int]()

    def _mine(self, path: Path) -> bool:
        return path.parent == self.folder

    def open_unbuffered(self, path: Path, mode: str) -> IO[bytes]:
        new = not path.exists()
        file = disk_opened(path, mode)
        if self._mine(path):
            if new:
                self.inodes[path.name] = self.used
                self.used += 1
                self.done.append(Operation("create", path.name, self.inodes[path.name]))
            elif mode[0] == "w":
                self.done.append(Operation("truncate", path.name, self.inodes[path.name]))
            self.open[file] = self.inodes[path.name]
        return file

    def write(self, file: IO[bytes], data: files.Content) -> None:
        if file in self.open:
            at = Path(str(file.name)).stat().st_size if "a" in file.mode else file.tell()
            self.done.append(Operation("write", Path(str(file.name)).name, self.open[file], at, bytes(data)))
        disk_write(file, data)

    def sync(self, file: IO[bytes]) -> None:
        if file in self.open:
            self.done.append(Operation("sync", Path(str(file.name)).name, self.open[file]))

    def sync_folder(self, path: Path) -> None:
        if path == self.folder:
            self.done.append(Operation("sync_folder"))

    def truncate(self, path: Path, length: int) -> None:
        if self._mine(path):
            self.done.append(Operation("truncate", path.name, self.inodes[path.name], length))
        disk_truncate(path, length)

    def replace(self, source: Path, target: Path) -> None:
        if self._mine(target):
            self.inodes[target.name] = self.inodes.pop(source.name)
            self.done.append(Operation("replace", target.name, self.inodes[target.name], before=source.name))
        disk_replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        disk_link(source, target)
        if self._mine(target):
            self.inodes[target.name] = self.inodes[source.name]
            self.done.append(Operation("link", target.name, self.inodes[target.name]))

    def unlink(self, path: Path) -> None:
        if self._mine(path) and self.inodes.pop(path.name, None) is not None:
            self.done.append(Operation("unlink", path.name))
        disk_unlink(path)


disk_opened, disk_write, disk_truncate = files.open_unbuffered, files.write, files.truncate
disk_replace, disk_link, disk_unlink = files.replace, files.link, files.unlink
WATCHED = ("open_unbuffered", "write", "sync", "sync_folder", "truncate", "replace", "link", "unlink")


@contextmanager
def watched(folder: Path) -> Iterator[Watch]:
    """Note all that is done to a folder; syncing, which would only take time, is left out."""
    watch, before = Watch(folder), {name: getattr(files, name) for name in WATCHED}
    try:
        for name in WATCHED:
            setattr(files, name, getattr(watch, name))
        yield watch
    finally:
        for name, function in before.items():
            setattr(files, name, function)


def killed(watch: Watch, moment: int, half: bool = False) -> State:
    """Return the folder of a process that was killed after so many operations; where the last is a write, its `half`.

    A write that other operations followed was whole, whether it was synced or not.
    """
    state = after(watch, moment)
    if half and moment and watch.done[moment - 1].what == "write":
        last = state.pending.pop()
        state.pending.append(last._replace(data=last.data[: len(last.data) // 2]))
    return state.with_(state.pending)


def power_cut(watch: Watch, moment: int, draw: random.Random, share: float) -> State:
    """Return the folder where the power was cut: of what was not synced, this share is there."""
    state = after(watch, moment)
    return state.with_([each for each in state.pending if draw.random() < share])


def after(watch: Watch, moment: int) -> State:
    """Return what has reached the disk and what not after so many operations."""
    state = State(dict(watch.start.names), dict(watch.start.data))
    for done in watch.done[:moment]:
        state.do(done)
    return state


def outcome_of(state: State, folder: Path, whole: dict[str, Any], losses: Sequence[float]) -> str:
    """Return what comes of a folder that stands like this when it is read, and then gone on with."""
    state.written_to(folder)
    try:
        if (folder / "run.json").exists():
            found = read_run(folder).column("train_loss").tolist()[1:]
            if found != list(losses)[: len(found)]:
                return "wrong"
    except FedReachError as error:
        if str(folder) not in str(error):
            return "lost"
    try:
        train(folder)
    except FedReachError as error:
        return "told" if str(folder) in str(error) else "lost"
    except Exception:
        return "lost"
    return "survived" if content(folder) == whole else "wrong"


def crash(
    every: int = 1, shares: Sequence[float] = (0.0, 0.3, 0.7), twice: int = 0, seed: int = 0
) -> dict[str, Counts]:
    """Return what came of each kind of crash.

    Args:
        every: Which moments are tried: 1 is all.
        shares: Of what was not synced and is there after a power cut; 0 is nothing.
        twice: Further crashes, at random, of runs that go on after a crash at random.
        seed: Of what is drawn.
    """
    counts = {"killed": Counts(), "power cut": Counts(), "crashed twice": Counts()}
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as home:
        numbers = iter(range(10**9))

        def new() -> Path:
            return Path(home) / f"{next(numbers)}"

        folder = new()
        with watched(folder) as watch:
            train(folder)
        whole, losses = content(folder), read_run(folder).column("train_loss").tolist()[1:]

        def tried(kind: str, state: State, fault: str) -> None:
            counts[kind].add(outcome_of(state, new(), whole, losses), f"{kind} {fault}")

        for moment in range(draw.randrange(every), len(watch.done) + 1, every):
            last = watch.done[moment - 1][:2] if moment else "nothing"
            tried("killed", killed(watch, moment, half=draw.random() < 0.5), f"after {moment}: {last}")
            for share in shares:
                tried("power cut", power_cut(watch, moment, draw, share), f"after {moment}: {last}, {share:.0%} left")
        for _ in range(twice):
            first = draw.randrange(len(watch.done))
            again = new()
            power_cut(watch, first, draw, draw.random()).written_to(again)
            with watched(again) as second:
                train(again)
            moment = draw.randrange(len(second.done) + 1)
            state = power_cut(second, moment, draw, draw.random())
            tried("crashed twice", state, f"after {first} and {moment}")
    return counts


if __name__ == "__main__":
    print("| fault | injected | survived | told | lost | wrong |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind, count in crash(twice=100).items():
        print(f"| {kind} | {' | '.join(map(str, count.row()))} |", *count.found, sep="\n")
