"""What a report costs: seconds and peak memory of `write_report`, all formats, for made-up runs.

    python benchmarks/report.py --rounds 10000 --runs 20
    python benchmarks/report.py --radio              # with simulated time and energy

The runs are those of the tests: 50 clients, 10 of them a round, two seeds a method, evaluated every 50 rounds.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write(folder: Path, rounds: int, runs: int, radio: bool) -> None:
    """Write the run folders."""
    sys.path.insert(0, str(ROOT))
    from tests.report.made_up import write_comparison

    methods = [f"method_{j}" for j in range((runs + 1) // 2)]
    radios = ("best", "equal") if radio else (None,)
    write_comparison(folder, methods, range(min(runs, 2)), rounds=rounds, every=50, measured=True, radios=radios)


def report(folder: Path) -> None:
    """Write the report and print what it took."""
    began = time.perf_counter()
    from fedreach.report import read, write_report

    read([folder])
    read_after = time.perf_counter() - began
    began = time.perf_counter()
    write_report([folder], folder)
    whole = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    print(f"reading {read_after:.1f} s, report {whole:.1f} s (reading included), peak memory {peak:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=20, help="even; default: %(default)s")
    parser.add_argument("--radio", action="store_true", help="rounds cost simulated seconds and joules")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        report(arguments.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.rounds, arguments.runs, arguments.radio)
        # In a process of its own, so that the memory is that of the report alone.
        subprocess.run([sys.executable, __file__, "--folder", folder], check=True)


if __name__ == "__main__":
    main()
