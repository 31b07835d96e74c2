"""Speed of the working copy against another checkout: both in turns, and the ratio of their times.

    python benchmarks/old_against_new.py ../old                     # new / old, of all cases
    python benchmarks/old_against_new.py ../old --only run_digits   # the command, with its rows and checkpoints
    python benchmarks/old_against_new.py ../old --only mlp --pairs 20

A pair is one process of each checkout, in alternating order. Each reports the processor time and the wall-clock time of
its rounds, on one thread. The table has the median of the pairs' ratios, with an interval from order statistics that
covers the true median with at least 95%. Processor time hardly depends on other work of the machine; wall-clock time is
meaningful on a quiet machine only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
ROUNDS = {"logistic": 5, "mlp": 2, "lenet": 1, "digits": 2000}
RUNS = {
    "run_digits": ["rounds=5000", "evaluation.every=100"],
    "run_lenet": ["data.name='fashion_mnist'", "model={name='lenet'}", "rounds=20", "evaluation.every=10"],
}
"""What `fedreach run` is told; rounds are such that some checkpoints, two seconds apart, are written."""
NAMES = {
    "logistic": "LR",
    "mlp": "MLP",
    "lenet": "LeNet",
    "digits": "small rounds",
    "run_digits": "`run`, digits",
    "run_lenet": "`run`, LeNet",
}
ENGINES = {"logistic": "native", "mlp": "native", "lenet": "manual", "digits": "native"}
LEVEL = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout with src/ and benchmarks/")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1], help="default: that of this file")
    parser.add_argument("--pairs", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=list(NAMES), metavar="CASE")
    parser.add_argument("--measure", metavar="CASE", help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args()
    if arguments.measure:
        measure = measured_run if arguments.measure in RUNS else measured
        print(json.dumps(measure(arguments.measure)))
        return
    print(f"| new / old, median of {arguments.pairs} pairs | processor | clock |\n| --- | ---: | ---: |")
    for case in arguments.only:
        ratios: list[tuple[float, float]] = []
        for pair in range(arguments.pairs):
            sides = [arguments.old.resolve(), arguments.new.resolve()]
            order = sides if pair % 2 else sides[::-1]
            seconds = {side: asked(side, case) for side in order}
            old, new = (seconds[side] for side in sides)
            ratios.append((new[0] / old[0], new[1] / old[1]))
        cells = " | ".join(
            f"{mid:.3f} ({low:.3f} to {high:.3f})" for low, mid, high in map(interval, zip(*ratios, strict=True))
        )
        print(f"| {NAMES[case]} | {cells} |", flush=True)


def asked(checkout: Path, case: str) -> tuple[float, float]:
    """Return the seconds of a checkout's rounds, of the processor and by the clock, measured by its own benchmark."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    paths = os.pathsep.join(str(checkout / part) for part in ("src", "benchmarks/peers", "benchmarks"))
    command = [sys.executable, __file__, ".", "--measure", case]
    done = subprocess.run(
        command, env={**os.environ, **one, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True
    )
    processor, clock = json.loads(done.stdout.splitlines()[-1])
    return processor, clock


def measured(case: str) -> tuple[float, float]:
    """Return how long some rounds take, of the quickest of three repeats; of the checkout that stands in the path."""
    from cases import CASES
    from fedreach_run import make_simulation

    try:
        simulation = make_simulation(CASES[case], ENGINES[case], seed=0, threads=1)
    except (KeyError, ValueError, SystemExit):
        if ENGINES[case] != "manual":
            raise
        simulation = make_simulation(CASES[case], "chain", seed=0, threads=1)  # its name in older checkouts
    state: Any = simulation.start()
    best = (math.inf, math.inf)
    for repeat in range(4):
        began = time.perf_counter(), time.process_time()
        for _ in range(ROUNDS[case] if repeat else 2):
            state = simulation.step(state).state
        clock, processor = time.perf_counter() - began[0], time.process_time() - began[1]
        if repeat:  # the first makes ready
            best = min(best[0], processor), min(best[1], clock)
    return best


def measured_run(case: str) -> tuple[float, float]:
    """Return how long the command runs, of the quicker of two, once a short run has loaded and compiled all."""
    from fedreach.cli import main as fedreach

    words = [word for option in ("seeds=[0]", "engine.threads=1", *RUNS[case]) for word in ("--set", option)]
    best = (math.inf, math.inf)
    for few in ([*words, "--set", "rounds=2", "--set", "evaluation.every=1"], words, words):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter(), time.process_time()
            fedreach(["run", *few, "--out", f"{folder}/run", "--quiet"], standalone_mode=False)
            clock, processor = time.perf_counter() - began[0], time.process_time() - began[1]
        if few is words:
            best = min(best[0], processor), min(best[1], clock)
    return best


def interval(values: tuple[float, ...]) -> tuple[float, float, float]:
    """Return the median, between two of the values that hold the true one between them with `LEVEL`.

    Of n independent values r or fewer lie below the true median with the probability of r or fewer heads in n throws.
    """
    n, ordered = len(values), sorted(values)
    below, rank = 0.0, 0
    while (below := below + math.comb(n, rank) / 2**n) <= (1 - LEVEL) / 2:
        rank += 1
    if not rank:
        raise SystemExit(f"--pairs must be at least 6 for an interval; got {n}.")
    return ordered[rank - 1], statistics.median(ordered), ordered[n - rank]


if __name__ == "__main__":
    main()
