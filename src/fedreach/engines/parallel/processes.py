"""Processes that share an engine's memory: each trains a group of clients while the others train theirs.

Threads would share memory too, but the small steps of federated training hold Python's lock most of the time: two
threads are often slower than one. So the processes are forked, once: they see the data as it lies in memory, with
nothing copied, and take in and hand back vectors through memory that all of them map. Forking with threads about is
sound on Linux, as the children only compute with single-threaded kernels; elsewhere one process does all the work.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike

from fedreach.arrays import AnyArray
from fedreach.errors import TrainingError

TICKETS = 8192
"""Parts that are handed out at a time; a pipe holds twice as many of 4 bytes."""


def most_workers() -> int | None:
    """Return how many processes may share an engine: as many as one likes (None), or only this one."""
    forks = sys.platform == "linux" and not multiprocessing.current_process().daemon
    return None if forks else 1


class _Place(NamedTuple):
    """Where an array stands in memory that all processes map."""

    slot: int
    shape: tuple[int, ...]
    dtype: str


class _Twin(NamedTuple):
    """Another process, and how to speak to it."""

    connection: Connection
    pid: int
    parent: int  # who ends it; a process that the user forks later has this list, too


class Workers:
    """This process and its twins, that call methods of the same engine.

    Args:
        engine: Whose methods are called; what it holds when the first call is made is what the twins know of it.
        count: Processes, this one included.

    Example:
        >>> class Engine:
        ...     def doubled(self, part, numbers, result):
        ...         result[part] = 2 * numbers[part]
        ...         return part
        >>> engine = Engine()
        >>> workers = Workers(engine, 2)
        >>> numbers, result = workers.copy(np.arange(4.0)), workers.array((4,), float)
        >>> workers.map("doubled", range(4), numbers, result), result.tolist()
        ([0, 1, 2, 3], [0.0, 2.0, 4.0, 6.0])
    """

    def __init__(self, engine: Any, count: int) -> None:
        self.engine, self.count = weakref.ref(engine), count
        self._slots: list[mmap.mmap] = []
        self._free: list[int] = []
        self._owners: dict[int, int] = {}  # id of an array -> its slot
        self._twins: list[_Twin] = []
        self._tickets: tuple[int, int] | None = None
        self._known_slots = 0  # to the twins
        weakref.finalize(engine, _end, self._twins)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> AnyArray:
        """Return an array that all processes see; its memory is used again when nobody refers to it any more."""
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        fitting = [slot for slot in self._free if size <= len(self._slots[slot]) <= 2 * size + mmap.PAGESIZE]
        if fitting:
            # The one that was freed last: what is left of it in a cache need not be fetched.
            slot = min(reversed(fitting), key=lambda slot: len(self._slots[slot]))
            self._free.remove(slot)
        else:
            # Two, as the last round's array is in use while this round's is made; untouched pages cost nothing.
            self._slots += [mmap.mmap(-1, size), mmap.mmap(-1, size)]
            slot = len(self._slots) - 2
            self._free.append(slot + 1)
        owner = np.frombuffer(self._slots[slot], dtype, math.prod(shape))
        self._owners[id(owner)] = slot
        weakref.finalize(owner, _release, self._owners, self._free, id(owner), slot).atexit = False
        return owner.reshape(shape)

    def copy(self, values: AnyArray) -> AnyArray:
        """Return a copy that all processes see."""
        made = self.array(values.shape, values.dtype)
        made[...] = values
        return made

    def map(self, method: str, parts: Sequence[Any], *arguments: Any) -> list[Any]:
        """Return ``engine.method(part, *arguments)`` for each part; whoever is free takes the next one.

        Arrays among the arguments, or in dictionaries there, that `array` or `copy` made are seen by all; everything
        else is sent.

        Raises:
            TrainingError: If a process died. What a method raises is raised here, that of the first part if many do.
        """
        engine = self.engine()
        if self.count == 1 or len(parts) == 1:
            return [getattr(engine, method)(part, *arguments) for part in parts]
        results: list[Any] = []
        for begin in range(0, len(parts), TICKETS):
            results += self._map(engine, method, parts[begin : begin + TICKETS], arguments)
        return results

    def _map(self, engine: Any, method: str, parts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        if self._known_slots < len(self._slots) or any(map(_ended, self._twins)):
            self.end()
        if not self._twins:
            self._fork(engine)
        assert self._tickets is not None  # `_fork` made them
        os.write(self._tickets[1], np.arange(len(parts), dtype=np.int32).tobytes())
        try:
            message = pickle.dumps((method, list(parts), [self._sent(value) for value in arguments]))
            for twin in self._twins:
                twin.connection.send_bytes(message)
            found = _served(engine, self._tickets[0], method, parts, arguments)
            for twin in self._twins:
                try:
                    found += twin.connection.recv()
                except (EOFError, ConnectionError):
                    code = -signal.SIGKILL
                    with contextlib.suppress(ChildProcessError):
                        code = os.waitstatus_to_exitcode(os.waitpid(twin.pid, 0)[1])
                    cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                    raise TrainingError(
                        f"A process that trained clients died ({cause}). Run the command again to go on where the "
                        "last checkpoint is; if memory ran out, lower engine.threads or method.cohort."
                    ) from None
        except BaseException:
            self.end()  # or the next call would get this one's answers
            raise
        results: list[Any] = [None] * len(parts)
        for number, result, error in sorted(found, key=lambda item: item[0]):
            if error is not None:
                raise error
            results[number] = result
        return results

    def _fork(self, engine: Any) -> None:
        self._tickets = os.pipe()
        os.set_blocking(self._tickets[0], False)
        self._known_slots = len(self._slots)
        for _ in range(self.count - 1):
            ours, theirs = multiprocessing.Pipe()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
                pid = os.fork()  # not multiprocessing's: in the child that closes an input that a thread may wait for
            if pid == 0:
                try:
                    _serve(engine, theirs, self._tickets[0], self._slots)
                finally:
                    os._exit(1)  # nothing of the first process is cleaned up here
            theirs.close()
            self._twins.append(_Twin(ours, pid, os.getpid()))

    def end(self) -> None:
        """End the other processes; the next call starts new ones."""
        _end(self._twins)
        if self._tickets is not None:
            for descriptor in self._tickets:
                os.close(descriptor)
            self._tickets = None

    def shares(self, value: AnyArray) -> bool:
        """Return whether all processes see this array."""
        return isinstance(self._sent(value), _Place)

    def _sent(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._sent(inner) for key, inner in value.items()}
        if isinstance(value, np.ndarray):
            owner = value.base
            slot = self._owners.get(id(owner))
            # All of it in its order, not a piece or a reversed view.
            if slot is not None and owner is not None and value.nbytes == owner.nbytes and value.flags.c_contiguous:
                return _Place(slot, value.shape, value.dtype.str)
        return value


def _release(owners: dict[int, int], free: list[int], key: int, slot: int) -> None:
    del owners[key]
    free.append(slot)


def _ended(twin: _Twin) -> bool:
    try:
        return bool(os.waitpid(twin.pid, os.WNOHANG)[0])
    except ChildProcessError:  # somebody else heard of its end
        return True


def _end(twins: list[_Twin]) -> None:
    for twin in twins:
        twin.connection.close()
        if twin.parent != os.getpid():
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(twin.pid, signal.SIGKILL)
    for twin in twins:
        with contextlib.suppress(ChildProcessError):  # its end was noticed before
            os.waitpid(twin.pid, 0)
    twins.clear()


def _served(
    engine: Any, tickets: int, method: str, parts: Sequence[Any], arguments: Sequence[Any]
) -> list[tuple[int, Any, Exception | None]]:
    """Do parts of the work as long as there are any; return (number, result, error) of each."""
    found: list[tuple[int, Any, Exception | None]] = []
    with contextlib.suppress(BlockingIOError):
        while ticket := os.read(tickets, 4):
            number = int.from_bytes(ticket, sys.byteorder)
            try:
                found.append((number, getattr(engine, method)(parts[number], *arguments), None))
            except Exception as error:
                found.append((number, None, error))
    return found


def _serve(engine: Any, connection: Connection, tickets: int, slots: Sequence[mmap.mmap]) -> None:
    """What a twin does until the connection ends, which it does when the first process ends, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Files of the first process, and what locks they hold, are no business of its twins.
    kept = {0, 1, 2, connection.fileno(), tickets}
    for descriptor in (int(entry.name) for entry in list(Path("/proc/self/fd").iterdir())):
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    torch.set_num_threads(1)

    def received(value: Any) -> Any:
        if isinstance(value, _Place):
            numbers = np.frombuffer(slots[value.slot], value.dtype, math.prod(value.shape))
            return numbers.reshape(value.shape)
        return {key: received(inner) for key, inner in value.items()} if isinstance(value, dict) else value

    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            method, parts, arguments = pickle.loads(connection.recv_bytes())
            found = _served(engine, tickets, method, parts, [received(value) for value in arguments])
            connection.send([(number, result, _sendable(error)) for number, result, error in found])
    os._exit(0)


def _sendable(error: Exception | None) -> Exception | None:
    """Return the error as it can be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
