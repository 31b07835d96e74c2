"""Processes with shared memory that train groups of clients in parallel.

Python's global interpreter lock makes threads slow in the small steps of federated training, so that two threads are
often slower than one thread. Therefore FedReach forks processes once. The processes read the data without copying them,
and exchange vectors in shared memory. On Linux, FedReach can fork a process with threads safely, because the child
processes use only single-threaded kernels. On other systems, one process performs all of the work.
"""

import contextlib
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import TrainingError
from fedreach._util.processes import can_fork, fork

T = TypeVar("T")
SMALL = 2**17  # bytes; a single process allocates smaller arrays from the heap, which reuses their memory
WIDTH = 4  # bytes per number in the queue


def max_processes() -> int | None:
    """Return the largest number of processes: 1 if this system cannot fork processes, or None for no limit."""
    return None if can_fork() else 1


class _Place(NamedTuple):
    """Position of an array in shared memory."""

    segment: int
    shape: tuple[int, ...]
    dtype: str


_Owners = dict[int, tuple[int, weakref.ref[AnyArray]]]
"""Id of an array in use -> its segment, and a weak reference whose callback releases the segment."""


class _Child(NamedTuple):
    """A child process and the connection to it."""

    connection: Connection
    pid: int
    parent: int  # the process that ends the child; if the user forks this process later, both have this list


class Workers:
    """This process and its child processes, which call functions with the same object `owner`.

    Args:
        owner: First argument of every function. Each child process has a copy from the time of the first call.
        count: Number of processes, including this one.

    Example:
        >>> import operator
        >>> workers = Workers({"a": 1.0, "b": 2.0}, 2)
        >>> workers.map(operator.getitem, ["b", "a", "b"])
        [2.0, 1.0, 2.0]
        >>> numbers = workers.copy(np.arange(4.0))
        >>> workers.shares(numbers), workers.shares(numbers[1:])
        (True, False)
    """

    def __init__(self, owner: object, count: int) -> None:
        self.owner, self.count = owner, count
        self._segments: list[mmap.mmap] = []
        self._free: list[int] = []
        self._owners: _Owners = {}
        self._children: list[_Child] = []
        self._queue: int | None = None  # a file in memory, in which the processes share the position
        self._known_segments = 0  # number of segments that the children have
        weakref.finalize(self, _end, self._children)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> AnyArray:
        """Return an array that all processes share; its memory is reused once no reference to the array remains."""
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        if self.count == 1 and size <= SMALL:
            return np.empty(shape, dtype)
        fitting = [number for number in self._free if size <= len(self._segments[number]) <= 2 * size + mmap.PAGESIZE]
        if fitting:
            # The segment that was released last, because parts of it may still be in the cache.
            segment = min(reversed(fitting), key=lambda segment: len(self._segments[segment]))
            self._free.remove(segment)
        else:
            # Two segments: the array of the last round is in use while this round's is filled. Unused pages are free.
            self._segments += [mmap.mmap(-1, size), mmap.mmap(-1, size)]
            segment = len(self._segments) - 2
            self._free.append(segment + 1)
        owner = np.frombuffer(self._segments[segment], dtype, math.prod(shape))
        gone = weakref.ref(owner, partial(_release, self._owners, self._free, id(owner)))
        self._owners[id(owner)] = segment, gone
        return owner.reshape(shape)

    def copy(self, values: AnyArray) -> AnyArray:
        """Return a copy of an array that all processes share."""
        shared = self.array(values.shape, values.dtype)
        shared[...] = values
        return shared

    def map(self, function: Callable[..., T], parts: Sequence[Any], *arguments: Any) -> list[T]:
        """Return ``function(owner, part, *arguments)`` for each part; idle processes process the next part.

        If the function raises exceptions, this method raises the exception of the first part that failed.

        Args:
            function: Function that is defined in a module, because child processes receive only its name.
            parts: Second arguments of the function, one per call.
            arguments: Further arguments. Arrays from `array` or `copy`, also inside dictionaries, are shared with the
                child processes. All other arguments are copied to them.

        Raises:
            TrainingError: If a process died.
        """
        if self.count == 1 or len(parts) <= 1:
            return [function(self.owner, part, *arguments) for part in parts]
        if self._known_segments < len(self._segments) or any(map(_has_ended, self._children)):
            self.end()
        if not self._children:
            self._fork()
        assert self._queue is not None  # `_fork` made them
        os.ftruncate(self._queue, 0)
        os.pwrite(self._queue, b"".join(number.to_bytes(WIDTH, "little") for number in range(len(parts))), 0)
        os.lseek(self._queue, 0, os.SEEK_SET)
        try:
            message = pickle.dumps((function, list(parts), [self._to_message(value) for value in arguments]))
            for child in self._children:
                child.connection.send_bytes(message)
            answers = _run_parts(self.owner, self._queue, function, parts, arguments)
            for child in self._children:
                try:
                    answers += child.connection.recv()
                except (EOFError, ConnectionError):
                    code = -signal.SIGKILL
                    with contextlib.suppress(ChildProcessError):
                        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
                    cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                    raise TrainingError(
                        f"A process that trained clients died ({cause}). Rerun the command to resume from the last "
                        "checkpoint. If memory ran out, lower engine.threads or method.cohort_size."
                    ) from None
        except BaseException:
            self.end()  # otherwise the next call would receive the results of this call
            raise
        results: list[Any] = [None] * len(parts)
        for number, result, error in sorted(answers, key=lambda item: item[0]):
            if error is not None:
                raise error
            results[number] = result
        return results

    def _fork(self) -> None:
        self._queue = os.memfd_create("parts")
        self._known_segments = len(self._segments)
        for _ in range(self.count - 1):
            ours, theirs = multiprocessing.Pipe()
            pid = fork()
            if pid == 0:
                try:
                    _serve(self.owner, theirs, self._queue, self._segments)
                finally:
                    os._exit(1)  # skip cleanup, which would affect the parent's resources
            theirs.close()
            self._children.append(_Child(ours, pid, os.getpid()))

    def end(self) -> None:
        """End the child processes; the next call starts new child processes."""
        _end(self._children)
        if self._queue is not None:
            os.close(self._queue)
            self._queue = None

    def shares(self, value: AnyArray) -> bool:
        """Return whether all processes share an array."""
        return isinstance(self._to_message(value), _Place)

    def _to_message(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._to_message(inner) for key, inner in value.items()}
        if isinstance(value, np.ndarray):
            owner: Any = value.base
            # True for the complete array in its original order only, not for a part or a reversed view.
            if id(owner) in self._owners and value.nbytes == owner.nbytes and value.flags.c_contiguous:
                return _Place(self._owners[id(owner)][0], value.shape, value.dtype.str)
        return value


def _release(owners: _Owners, free: list[int], key: int, _: weakref.ref[AnyArray]) -> None:
    free.append(owners.pop(key)[0])


def _has_ended(child: _Child) -> bool:
    try:
        return bool(os.waitpid(child.pid, os.WNOHANG)[0])
    except ChildProcessError:  # other code has already waited for it
        return True


def _end(children: list[_Child]) -> None:
    for child in children:
        with contextlib.suppress(OSError):  # a child has closed inherited connections (see `_serve`)
            child.connection.close()
        if child.parent != os.getpid():
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ChildProcessError):  # other code has already waited for it
            os.waitpid(child.pid, 0)
    children.clear()


def _run_parts(
    owner: object, queue: int, function: Callable[..., Any], parts: Sequence[Any], arguments: Sequence[Any]
) -> list[tuple[int, Any, Exception | None]]:
    """Run parts from the queue until it is empty; return the number, result and error of each."""
    answers: list[tuple[int, Any, Exception | None]] = []
    while item := os.read(queue, WIDTH):
        number = int.from_bytes(item, "little")
        try:
            answers.append((number, function(owner, parts[number], *arguments), None))
        except Exception as error:
            answers.append((number, None, error))
    return answers


def _serve(owner: object, connection: Connection, queue: int, segments: Sequence[mmap.mmap]) -> None:
    """Run parts in a child process until the connection or the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Children must not keep the parent's files open, because that would keep their locks.
    kept_descriptors = {0, 1, 2, connection.fileno(), queue}
    for descriptor in (int(entry.name) for entry in list(Path("/proc/self/fd").iterdir())):
        if descriptor not in kept_descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    torch.set_num_threads(1)

    def resolve(value: Any) -> Any:
        if isinstance(value, _Place):
            numbers = np.frombuffer(segments[value.segment], value.dtype, math.prod(value.shape))
            return numbers.reshape(value.shape)
        return {key: resolve(inner) for key, inner in value.items()} if isinstance(value, dict) else value

    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, parts, arguments = pickle.loads(connection.recv_bytes())
            answers = _run_parts(owner, queue, function, parts, [resolve(value) for value in arguments])
            connection.send([(number, result, _sendable(error)) for number, result, error in answers])
    os._exit(0)


def _sendable(error: Exception | None) -> Exception | None:
    """Return the error, or a RuntimeError with its message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
