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

# ---- One thread for matrix products, in every process that decides rounds
# The order of additions in a product depends on the number of threads: the last bits of a Gram matrix, and
# occasionally a selection, would depend on the machine. Runs share the cores already; two runs that each use all cores
# for a product wait for each other longer than the product takes.

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Environment in which numeric libraries start with one thread."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit numeric libraries to one thread: those that are loaded, and those that are loaded meanwhile.

    torch keeps its own number of threads, which the engines set.

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


# ---- Independent work shared by several processes

T = TypeVar("T")
R = TypeVar("R")

MAX_PROCESSES = 4  # processes: each holds one item of work in memory
WIDTH = 4  # bytes per number in the queue


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Return whether this process can fork children that share its memory."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def fork() -> int:
    """Fork without Python's warning about threads: the child must not need any lock that another thread holds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        return os.fork()  # multiprocessing would close an input in the child that a thread may wait for


def free_processes() -> int:
    """Return how many processes may share the work: one per core, at most `MAX_PROCESSES`.

    It is 1 if other threads run: one of them may hold a lock that a child would wait for.
    """
    return min(cores(), MAX_PROCESSES) if can_fork() and threading.active_count() == 1 else 1


def map_forked(function: Callable[[T], R], items: Sequence[T], processes: int | None = None) -> list[R]:
    """Return `function(item)` for each item, in order; a free process takes the next item.

    Children share this process's memory; their results come back pickled. This process redoes an item that raised in
    a child or whose child was killed, so that the same exception is raised as with one process.

    Args:
        function: Function of one item, without side effects.
        items: The arguments.
        processes: Number of processes, including this one; it changes no result. Default: `free_processes`.

    Example:
        >>> map_forked(len, ["a", "bcd", ""], processes=2)
        [1, 3, 0]
    """
    processes = min(processes or free_processes(), len(items))
    if processes <= 1:
        return [function(item) for item in items]
    with contextlib.ExitStack() as stack:
        # Forked processes share the position in a file, so that each number is read once.
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
    """Run the items that no process has taken yet, until one raises."""
    while number := queue.read(WIDTH):
        place = int.from_bytes(number, "little")
        try:
            result = function(items[place])
        except Exception:  # the first process runs this item again and raises
            return
        yield place, result


def _work(function: Callable[[T], R], items: Sequence[T], queue: IO[bytes], file: IO[bytes]) -> None:
    """Run as a child process, and exit without the cleanup of the first process."""
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
    except ChildProcessError:  # another signal handler has collected it
        return False
