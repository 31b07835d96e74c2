"""Time and memory of `fedreach report`: wall-clock seconds, processor seconds and peak memory, for synthetic runs.

    python benchmarks/report.py                                  # one small run; 20 runs of 10 000 rounds
    python benchmarks/report.py --rounds 1000 --runs 4 --radio   # others, with simulated time and energy
    python benchmarks/report.py --formats svg,png,pdf            # with files of the figures

The runs are those of the tests: 50 clients, 10 per round, at most two seeds per method. The small one is evaluated
every second of its 60 rounds, the long ones every 50 rounds. The smallest of a few timings is printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of `ru_maxrss`


class Cost(NamedTuple):
    """What a command took."""

    seconds: float
    processor_seconds: float  # of all its processes
    megabytes: float  # of the largest of them, at its peak


def write(folder: Path, rounds: int, runs: int, every: int, radio: bool) -> None:
    """Write the run folders."""
    sys.path.insert(0, str(ROOT))
    from tests.report.made_up import write_comparison

    methods = [f"method_{j}" for j in range((runs + 1) // 2)]
    radios = ("best", "equal") if radio else (None,)
    write_comparison(folder, methods, range(min(runs, 2)), rounds=rounds, every=every, measured=True, radios=radios)


def cost(folder: Path, formats: str) -> Cost:
    """Report once, by a command of its own."""
    began = time.perf_counter()
    command: Any = [sys.executable, "-m", "fedreach", "report", str(folder), "--formats", formats]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * UNIT / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000, help="of the long runs; default: %(default)s")
    parser.add_argument("--runs", type=int, default=20, help="even; default: %(default)s")
    parser.add_argument("--radio", action="store_true", help="rounds cost simulated seconds and joules")
    parser.add_argument("--formats", default="page", help="as of fedreach report; default: %(default)s")
    parser.add_argument("--times", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()
    for rounds, runs, every in ((60, 1, 2), (arguments.rounds, arguments.runs, 50)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # In a process of its own: a command is said to need what was in memory here when it began.
            writing = multiprocessing.Process(target=write, args=(folder, rounds, runs, every, arguments.radio))
            writing.start()
            writing.join()
            if writing.exitcode:
                sys.exit("The run folders could not be written.")
            best = Cost(*map(min, zip(*(cost(folder, arguments.formats) for _ in range(arguments.times)), strict=True)))
        print(
            f"{runs} x {rounds} rounds: {best.seconds:.2f} s, {best.processor_seconds:.2f} s of processors, "
            f"{best.megabytes:.0f} MB"
        )


if __name__ == "__main__":
    main()
