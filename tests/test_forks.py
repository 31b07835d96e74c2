"""Work shared by processes comes out as one process does it, whatever happens to the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedreach._util import processes as forks
from fedreach._util.processes import map_forked

pytestmark = pytest.mark.skipif(not forks.can_fork(), reason="processes are forked on Linux only")
ONE = os.getpid()


def together(places: tuple[Path, Path]) -> int:
    """Say that one has begun, wait until the other has, and return the process."""
    mine, other = places
    mine.touch()
    end = time.monotonic() + 60
    while not other.exists() and time.monotonic() < end:
        time.sleep(0.001)
    return os.getpid()


def test_two_processes_work_at_the_same_time(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    first, second = map_forked(together, [(a, b), (b, a)], processes=2)
    assert first != second
    assert os.getpid() in (first, second)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("processes", [1, 2, 3, 50])
@pytest.mark.parametrize("count", [0, 1, 2, 40, 20_000])  # so many do not fit into a pipe
def test_results_come_in_the_order_of_the_items(processes: int, count: int) -> None:
    assert map_forked(lambda number: number**2, range(count), processes) == [number**2 for number in range(count)]


def test_the_first_item_that_raises_is_the_one_that_is_told() -> None:
    def odd(number: int) -> int:
        if number % 2 == 0 and number > 10:
            raise ValueError(f"{number} is even")
        return number

    with pytest.raises(ValueError, match=r"^12 is even$"):
        map_forked(odd, [1, 3, 12, 5, 14, 16, 7], processes=3)


def die(number: int) -> int:
    if os.getpid() != ONE:
        os.kill(os.getpid(), signal.SIGKILL)
    return -number


def end(number: int) -> int:
    if os.getpid() != ONE:
        raise SystemExit
    return -number


@pytest.mark.parametrize("function", [die, end])
def test_what_a_child_that_ends_left_undone_is_done_here(
    function: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ONE", os.getpid())
    assert map_forked(function, range(9), processes=3) == [-number for number in range(9)]


def test_what_cannot_be_sent_is_made_here() -> None:
    assert [made() for made in map_forked(lambda number: lambda: number, range(5), processes=2)] == [0, 1, 2, 3, 4]


def test_an_interrupt_leaves_no_child_behind(tmp_path: Path) -> None:
    here, child = os.getpid(), tmp_path / "child"

    def wait(number: int) -> None:
        if os.getpid() != here:
            child.with_suffix(".new").write_text(str(os.getpid()))
            child.with_suffix(".new").rename(child)
            time.sleep(60)
        while not child.exists():
            time.sleep(0.001)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_forked(wait, range(2), processes=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.read_text()), 0)


def test_a_process_with_threads_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "cores", lambda: 64)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # as the tests may run beside threads
    assert forks.free_processes() == forks.MAX_PROCESSES
    monkeypatch.setattr(forks, "cores", lambda: 2)
    assert forks.free_processes() == 2
    monkeypatch.undo()
    going = threading.Event()
    other = threading.Thread(target=going.wait)
    other.start()
    try:
        assert forks.free_processes() == 1
    finally:
        going.set()
        other.join()
