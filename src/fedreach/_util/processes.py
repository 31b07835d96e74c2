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

# -------------------- One thread for products of matrices, in every process that decides rounds
# A library divides a product among threads and so adds in another order for each number of them: the last bits of a
# Gram
# matrix, and with them now and then a choice, would depend on the machine. Runs share the cores already, and two that
# each divide a product among all cores wait for each other longer than the product takes.

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Environment in which numeric libraries, as they are loaded, take one thread each."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let numeric libraries use one thread for a while: those that are loaded, and those that will be meanwhile.

    torch's own number, which engines set as they train, is left alone.

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


# -------------------- Pieces of work that know nothing of each other, done by several processes at once

T = TypeVar("T")
R = TypeVar("R")

MOST = 4  # processes: each holds a piece of work in memory
WIDTH = 4  # bytes of a number in the queue


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Return whether this process may have children that go on with what it has in memory."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def fork() -> int:
    """Fork without Python's warning of other threads: what the child then does must need nothing that they hold."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        return os.fork()  # not multiprocessing's: in the child that closes an input that a thread may wait for


def free_processes() -> int:
    """Return how many processes may share a piece of work: one a core, at most `MOST`.

    Only this one where other threads run: one may hold a lock that a child would wait for.
    """
    return min(cores(), MOST) if can_fork() and threading.active_count() == 1 else 1


def map_forked(function: Callable[[T], R], items: Sequence[T], processes: int | None = None) -> list[R]:
    """Return `function` of each item, in their order; whichever process is free takes the next one.

    Children see all that this process has; their results come back pickled. What a child leaves undone, as an item
    raises or the child is killed, is done here: so what is raised is what one process would raise.

    Args:
        function: Leaves nothing in memory that anybody needs.
        items: What it is called with, one by one.
        processes: At work, this one included; changes no result. None: `free_processes`.

    Example:
        >>> map_forked(len, ["a", "bcd", ""], processes=2)
        [1, 3, 0]
    """
    processes = min(processes or free_processes(), len(items))
    if processes <= 1:
        return [function(item) for item in items]
    with contextlib.ExitStack() as stack:
        # Forked processes share a file's position, so that each number is read by one of them.
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
    """Do what nobody has taken yet, up to an item that raises."""
    while number := queue.read(WIDTH):
        place = int.from_bytes(number, "little")
        try:
            result = function(items[place])
        except Exception:  # it is raised again when it is this item's turn
            return
        yield place, result


def _work(function: Callable[[T], R], items: Sequence[T], queue: IO[bytes], file: IO[bytes]) -> None:
    """Be a child: nothing of the first process is cleaned up here."""
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
    except ChildProcessError:  # somebody else's handler was told
        return False
