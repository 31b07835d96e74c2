"""Threads and forked processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TypeVar

# ---- One thread for matrix products, in every process that runs the server
# The number of threads changes the order of additions in a product. The last bits of a Gram matrix, and sometimes a
# selection, would then depend on the machine. Parallel runs use all cores already, so more threads would slow them.

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Environment variables that limit numeric libraries to one thread."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit numeric libraries to one thread, including libraries that are loaded inside the block.

    The number of torch's threads does not change; the engines set it.

    Example:
        >>> import numpy
        >>> from threadpoolctl import threadpool_info
        >>> with one_thread():
        ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        {1}
    """
    from threadpoolctl import threadpool_limits

    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ---- Independent work on several processes

T = TypeVar("T")
R = TypeVar("R")

MAX_PROCESSES = 4  # limits memory: each process holds one item of work
WIDTH = 4  # bytes per number in the queue


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Return whether this process can fork children that share its memory."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def fork() -> int:
    """Fork without Python's warning about threads; the child must not need a lock that another thread holds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        return os.fork()  # multiprocessing would close stdin in the child, where a thread may still read it


def free_processes() -> int:
    """Return the number of processes for independent work: one per core, at most `MAX_PROCESSES`.

    The number is 1 if other threads run, because a child could wait forever for a lock that another thread holds.
    """
    return min(cores(), MAX_PROCESSES) if can_fork() and threading.active_count() == 1 else 1


def map_forked(function: Callable[[T], R], items: Sequence[T], processes: int | None = None) -> list[R]:
    """Return `function(item)` for each item, in order, computed by forked processes.

    Children share this process's memory and return pickled results. If an item fails in a child, this process runs the
    item again, so that the exception is the same as without children.

    Args:
        function: Function of one item, without side effects.
        items: Arguments of the calls.
        processes: Number of processes, including this one, which does not affect results. Default: `free_processes()`.

    Example:
        >>> map_forked(len, ["a", "bcd", ""], processes=2)
        [1, 3, 0]
    """
    processes = min(processes or free_processes(), len(items))
    if processes <= 1:
        return [function(item) for item in items]
    with contextlib.ExitStack() as stack:
        # Forked processes share the position in an open file, so each number is read once.
        queue = stack.enter_context(tempfile.TemporaryFile(buffering=0))
        queue.write(b"".join(number.to_bytes(WIDTH, "little") for number in range(len(items))))
        queue.seek(0)
        children: dict[int, IO[bytes]] = {}
        try:
            for _ in range(processes - 1):
                file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
                pid = fork()
                if pid == 0:
                    _work(function, items, queue, file)
                children[pid] = file
            done = dict(_run_queued(function, items, queue))
            for pid, file in list(children.items()):
                well = _ended_well(pid)
                del children[pid]
                if well:
                    file.seek(0)
                    done.update(pickle.load(file))
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                _ended_well(pid)
    return [done[number] if number in done else function(item) for number, item in enumerate(items)]


def _run_queued(function: Callable[[T], R], items: Sequence[T], queue: IO[bytes]) -> Iterator[tuple[int, R]]:
    """Run items from the queue until it is empty or an item fails."""
    while number := queue.read(WIDTH):
        place = int.from_bytes(number, "little")
        try:
            result = function(items[place])
        except Exception:  # `map_forked` runs this item again and raises
            return
        yield place, result


def _work(function: Callable[[T], R], items: Sequence[T], queue: IO[bytes], file: IO[bytes]) -> None:
    """Run items in a child process, then exit without the parent's cleanup."""
    code = 1
    try:
        pickle.dump(dict(_run_queued(function, items, queue)), file, protocol=pickle.HIGHEST_PROTOCOL)
        file.flush()
        code = 0
    finally:
        os._exit(code)


def _ended_well(pid: int) -> bool:
    try:
        return os.waitpid(pid, 0)[1] == 0
    except ChildProcessError:  # other code has already waited for it
        return False
