"""Processes that share an engine: who does what, what they share, and what happens when something goes wrong."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from fedreach._util.errors import TrainingError
from fedreach.engines.processes import Workers, max_processes

pytestmark = pytest.mark.skipif(max_processes() == 1, reason="one process does all the work on this system")


class Work:
    """What all processes know."""

    def __init__(self):
        self.numbers = np.arange(8.0)


def add(work, part, more, result):
    result[part] = work.numbers[part] + more[part]
    return part, os.getpid()


def named(work, part, arguments):
    return float(arguments["numbers"][part])


def wait(work, part):
    time.sleep(0.05)
    return os.getpid()


def fail(work, part):
    if part in (2, 3):
        raise ValueError(f"part {part} is bad")


def die(work, part, parent):
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)


def files(work, part):
    time.sleep(0.05)
    return os.getpid(), sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names are enough)


def pids(workers):
    return [child.pid for child in workers._children]


def test_parts_are_shared_out_and_results_stand_where_they_belong():
    work = Work()
    workers = Workers(work, 3)
    more, result = workers.copy(np.full(8, 10.0)), workers.array((8,), np.float64)
    done = workers.map(add, range(8), more, result)
    assert [part for part, _ in done] == list(range(8))
    assert result.tolist() == [10.0 + i for i in range(8)]
    assert len(set(workers.map(wait, range(12)))) == 3


def test_what_is_not_shared_is_sent_and_pieces_of_what_is_shared_too():
    work = Work()
    workers = Workers(work, 2)
    shared = workers.copy(np.arange(6.0))
    for given in (shared, shared[2:], shared[::-1], np.arange(6.0)[::-1], shared.reshape(2, 3)[1]):
        assert workers.map(named, range(3), {"numbers": given}) == [float(number) for number in given[:3]]


def test_memory_is_used_again_only_when_nobody_refers_to_it():
    work = Work()
    workers = Workers(work, 2)
    first = workers.copy(np.ones(4))
    view = first[1:].reshape(3, 1)
    del first
    second, third = workers.copy(np.zeros(4)), workers.copy(np.full(4, 3.0))
    assert view.tolist() == [[1.0]] * 3
    segments = len(workers._segments)
    del view, second
    fourth = workers.copy(np.full(4, 4.0))
    assert len(workers._segments) == segments
    assert third.tolist() == [3.0] * 4
    assert fourth.tolist() == [4.0] * 4


def test_new_arrays_after_the_first_call_are_seen_too():
    work = Work()
    workers = Workers(work, 2)
    for size in (8, 800, 80_000):
        more, result = workers.copy(np.ones(size)), workers.array((size,), np.float64)
        workers.map(add, range(8), more, result)
        assert result[:8].tolist() == [1.0 + i for i in range(8)]


def test_more_parts_than_a_pipe_holds():
    work = Work()
    workers = Workers(work, 2)
    for count in (20_000, 23):
        assert workers.map(named, range(count), {"numbers": np.arange(20_000.0)}) == list(map(float, range(count)))


def test_the_error_of_the_first_part_is_raised_and_the_next_call_works():
    work = Work()
    workers = Workers(work, 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="part 2 is bad"):
            workers.map(fail, range(8))
        assert len(workers.map(wait, range(4))) == 4


def test_a_process_that_is_killed_is_reported_and_replaced():
    work = Work()
    workers = Workers(work, 2)
    with pytest.raises(TrainingError, match="SIGKILL"):
        workers.map(die, range(4), os.getpid())
    assert len(set(workers.map(wait, range(4)))) == 2
    (pid,) = pids(workers)
    os.kill(pid, signal.SIGKILL)  # between two calls nothing is lost
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # on a busy machine it takes a while to end
    assert len(set(workers.map(wait, range(4)))) == 2


def test_a_process_that_the_user_forks_does_not_end_them():
    work = Work()
    workers = Workers(work, 2)
    workers.map(wait, range(2))
    before = pids(workers)
    pid = os.fork()
    if pid == 0:
        workers.end()
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(set(workers.map(wait, range(4)))) == 2
    assert pids(workers) == before


def test_processes_end_with_the_engine():
    work = Work()
    workers = Workers(work, 2)
    workers.map(wait, range(2))
    (pid,) = pids(workers)
    del work, workers
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_a_thread_that_waits_for_input_stops_nobody():
    code = """
    import sys, threading, time
    import numpy as np
    from fedreach.engines.processes import Workers

    def double(work, part):
        return 2 * part

    threading.Thread(target=sys.stdin.read, daemon=True).start()
    time.sleep(0.2)
    print(Workers(None, 2).map(double, range(4)))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "[0, 2, 4, 6]\n"
        process.stdin.close()


def test_processes_hold_no_files_of_the_first_one(tmp_path):
    with (tmp_path / "lock").open("w") as file:
        work = Work()
        workers = Workers(work, 2)
        found = dict(workers.map(files, range(4)))
        assert len(found) == 2
        child = next(files for pid, files in found.items() if pid != os.getpid())
        assert len(child) <= 6  # standard streams, queue, the connection, and the listing itself
        assert not file.closed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_when_the_first_one_is_killed_or_interrupted(number, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, signal, time
            from fedreach.engines.processes import Workers

            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background

            def wait(work, part):
                time.sleep(0.3)
                return os.getpid()

            workers = Workers(None, 2)
            print(*set(workers.map(wait, range(2))), flush=True)
            while True:
                workers.map(wait, range(2))
            """
        )
    )
    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        both = list(map(int, process.stdout.readline().split()))
        assert len(both) == 2
        process.send_signal(number)
        process.wait(timeout=30)
    for _ in range(100):
        if not any(_alive(pid) for pid in both):
            break
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in both)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
