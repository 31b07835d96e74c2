"""Long workloads as others publish them: FedReach's command, other frameworks, and the published times.

    make bench-long                                     # all, in full; writes their sections of docs/records/long.md
    python benchmarks/long.py --only flute_lr           # one of them, printed only
    python benchmarks/long.py --only cifar --rounds 30  # a part; the whole is extrapolated
    python benchmarks/long.py --part cifar=900          # all, this one in part
    python benchmarks/long.py --only flute_lr --seed 1  # other weights and cohorts; the data are the same

FedReach runs by `fedreach run` and writes rows, checkpoints and evaluations as in any run. Its time includes the start
of the program, reading the data and the choice of an engine. pfl runs with one process per core, its fastest setting on
the cases of `engine.py`, and writes nothing; long workloads run in part. Flower's simulation runs a few rounds, on
clients of equal sizes. A tilde marks every number that is extrapolated from a part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "peers"))

import numpy as np
from cases import CASES
from measure import CORES, family_peak_rss_mb, versions

from contenders import FLOWER, PEERS, PFL, end_cleanly, present, started
from long_workloads import WORKLOADS, Workload
from page import RECORDS, processor, put
from tables import table

LOOK = 0.5  # seconds between two looks at the memory
FLOWER_ROUNDS = 3
EXPERIMENT = """\
name = "{name}"
rounds = {rounds}
data = "x.npy"
partition = "natural"
model = "{model}"

[population]
participants = "all"
held_out = 1e-6  # the least there is: one example of each client

[local]
lr = {case.learning_rate}
batch_size = {case.batch_size}

[method]
cohort_size = {case.cohort_size}

[evaluation]
every = {every}
local = false
examples_per_client = 1  # of its held-out and training examples; the test set is whole
"""


class Run(NamedTuple):
    """What a run took, by one of the contenders."""

    who: str
    seconds: float  # of all rounds, the start included
    rounds: int  # that were run; what the others take is worked out
    round_seconds: float  # a steady round without evaluation
    accuracy: float | None  # on the test set, after the last round that was run
    peak_mb: float


def whole(seconds: float, rounds: Sequence[float], evaluations: Sequence[float], work: Workload) -> float:
    """Return what all rounds take: rounds and evaluations that were not run are as the steady ones.

    Args:
        seconds: From start to end of the program that ran these.
        rounds: Of each round; the first two warm up.
        evaluations: Of each evaluation.
        work: How many there would be.

    Example:
        >>> from dataclasses import replace
        >>> work = replace(WORKLOADS["flute_lr"], rounds=10, every=5)
        >>> whole(20.0, [3.0, 2.0, 1.0, 1.0], [2.0], work)  # six more rounds and two more evaluations
        30.0
    """
    missing = work.rounds - len(rounds)
    if missing <= 0:
        return seconds
    due = max(0, work.rounds // work.every + 1 - len(evaluations))
    steady = statistics.mean(rounds[2:] or rounds)
    return seconds + missing * steady + due * (statistics.median(evaluations) if evaluations else 0.0)


def timed(command: Sequence[str], threads: int = 1) -> tuple[float, float, str]:
    """Return the seconds that a command takes, the most megabytes that its processes held, and what it prints."""
    began, peak = time.perf_counter(), 0.0
    with started(command, threads) as process:
        while True:
            peak = max(peak, family_peak_rss_mb(process.pid))
            try:
                out, err = process.communicate(timeout=LOOK)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {err[-500:]}")
    return seconds, peak, out


def run_fedreach(name: str, folder: Path, rounds: int, seed: int) -> Run:
    """Run `fedreach run` on the workload."""
    work, case = WORKLOADS[name], CASES[name]
    model = work.model if work.model == "linear" else f"{PEERS / 'cases.py'}:{work.model}"
    text = EXPERIMENT.format(name=name, rounds=rounds, every=work.every, model=model, case=case)
    (folder / "experiment.toml").write_text(text, encoding="utf-8")
    out = folder / "run"
    command = [sys.executable, "-m", "fedreach", "run", str(folder / "experiment.toml"), "--quiet", "--out", str(out)]
    command += ["--seed", str(seed)]
    seconds, peak, _ = timed(command, CORES)
    rows = read_lines(out / "rounds.jsonl")
    times = read_lines(out / "timing.jsonl")
    trained = [row["train_seconds"] for row in times if row["round"]]
    total = whole(seconds, trained, [row["evaluate_seconds"] for row in times if "evaluate_seconds" in row], work)
    engine = json.loads((out / "engine.json").read_text())["name"]
    accuracy = [row["test_accuracy"] for row in rows if row.get("test_accuracy") is not None][-1]
    return Run(f"FedReach, `{engine}`", total, len(trained), statistics.mean(trained[2:] or trained), accuracy, peak)


def run_pfl(name: str, folder: Path, rounds: int, seed: int) -> Run:
    """Run pfl with one process a core."""
    work = WORKLOADS[name]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc_per_node={CORES}"]
    command = [sys.executable, *(launcher if CORES > 1 else []), str(PEERS / "pfl_long.py"), "--folder", str(folder)]
    command += ["--case", name, "--rounds", str(rounds), "--every", str(work.every), "--seed", str(seed)]
    seconds, peak, out = timed(command)
    row = last_row(out)
    taken: list[float] = row["rounds"]
    total, steady = whole(seconds, taken, row["evaluations"], work), statistics.mean(taken[2:] or taken)
    return Run(f"pfl {row['versions']['pfl']}", total, len(taken), steady, row["accuracy"], peak)


def run_flower(name: str) -> Run:
    """Run a few rounds of Flower's simulation; nothing is evaluated."""
    work = WORKLOADS[name]
    command = [sys.executable, str(PEERS / FLOWER.script), "--case", name, "--warmup", "1", "--rounds", "1"]
    seconds, peak, out = timed([*command, "--repeats", str(FLOWER_ROUNDS), "--threads", "1"])
    row = last_row(out)
    steady = statistics.mean(row["seconds_per_round"])
    total = seconds + (work.rounds - 1 - FLOWER_ROUNDS) * steady
    return Run(
        f"Flower {row['versions']['flwr']}", total, 1 + FLOWER_ROUNDS, steady, None, max(peak, row["peak_rss_mb"])
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file with one JSON value a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def last_row(out: str) -> dict[str, Any]:
    """Return the row that a peer printed."""
    row: dict[str, Any] = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    return row


def part(text: str) -> tuple[str, int]:
    """Return a workload and the rounds that FedReach runs of it.

    Example:
        >>> part("cifar=900")
        ('cifar', 900)
    """
    name, _, rounds = text.partition("=")
    if name not in WORKLOADS or not rounds.isdecimal() or not int(rounds):
        raise argparse.ArgumentTypeError(f"must be NAME=ROUNDS with one of {', '.join(WORKLOADS)}; got {text!r}")
    return name, int(rounds)


def run_workload(
    name: str, rounds: int | None, own_rounds: int | None, peers: Sequence[str], seed: int
) -> tuple[str, list[Run]]:
    """Return what the data of a workload are, and what everybody takes."""
    work = WORKLOADS[name]
    ours = min(own_rounds or rounds or work.rounds, work.rounds)
    theirs = min(rounds or work.peer_rounds, work.peer_rounds)
    with tempfile.TemporaryDirectory(prefix="long") as path:
        folder = Path(path)
        arrays = work.data(np.random.default_rng(0))
        for key in ("x", "y", "client", "x_test", "y_test"):
            np.save(folder / f"{key}.npy", getattr(arrays, key))
        words = arrays.words
        del arrays
        turns: list[tuple[str, Callable[[], Run]]] = [("fedreach", lambda: run_fedreach(name, folder, ours, seed))]
        if "pfl" in peers:
            turns.append(("pfl", lambda: run_pfl(name, folder, theirs, seed)))
        if "flower" in peers and work.flower:
            turns.append(("flower", lambda: run_flower(name)))
        found = []
        for who, turn in turns:
            try:
                found.append(turn())
            except RuntimeError as error:
                print(f"{name}, {who}: {error}", file=sys.stderr)
                continue
            print(f"{name}: {found[-1]}", file=sys.stderr)
    return words, found


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds.

    Example:
        >>> clock(3725.2), clock(4.26)
        ('01:02:05', '00:00:04.3')
    """
    if seconds < 60:
        return f"00:00:{seconds:04.1f}"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def results(name: str, runs: Sequence[Run]) -> str:
    """Return the table of all runs of a workload, with what others published."""
    work, lines = WORKLOADS[name], []
    ours = next((run.seconds for run in runs if run.who.startswith("FedReach")), None)
    for run in runs:
        exact = run.rounds >= work.rounds
        ratio = f"{run.seconds / ours:.1f}" if ours else "-"
        accuracy = f"{100 * run.accuracy:.1f}" if exact and run.accuracy is not None else "-"  # of all rounds only
        took = ("" if exact else "~") + clock(run.seconds)
        each = f"{1e3 * run.round_seconds:.3g}"
        lines.append([run.who, f"{run.rounds:,}", took, ratio, each, accuracy, f"{run.peak_mb:,.0f}"])
    for other in work.published:
        h, m, s = map(int, other.clock.split(":"))
        ratio = f"{(3600 * h + 60 * m + s) / ours:.1f}" if ours else "-"
        lines.append([f"{other.who} (published)", "-", other.clock, ratio, "-", other.accuracy, "-"])
    head = "framework, rounds run, h:m:s, time relative to FedReach, ms a round, test accuracy %, peak MB"
    return table(head.split(", "), lines, left=1)


def section(name: str, words: str, runs: Sequence[Run]) -> str:
    """Return the section of the page about a workload."""
    work = WORKLOADS[name]
    about = ", ".join(f"{package} {version}" for package, version in sorted(versions().items()))
    said = (
        f"{work.words} {work.rounds:,} rounds, evaluated every {work.every}. Data: {words}. "
        f"`python benchmarks/long.py --only {name} --write` on {CORES} cores of {processor()}: {about}."
    )
    return "\n\n".join([f"## {name}", textwrap.fill(said[0].upper() + said[1:], 120), results(name, runs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--rounds", type=int, help="of each, at most, peers' too; default: all of FedReach's")
    parser.add_argument(
        "--part", nargs="+", default=[], type=part, metavar="NAME=ROUNDS", help="FedReach's rounds of one, at most"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and cohorts, not of Flower's; default: 0")
    parser.add_argument("--peers", nargs="*", default=["pfl", "flower"], choices=["pfl", "flower"])
    parser.add_argument("--write", action="store_true", help="put each into its section of docs/records/long.md")
    arguments = parser.parse_args()
    end_cleanly()
    wanted = [peer for peer in (PFL, FLOWER) if peer.name in arguments.peers]
    peers = [peer.name for peer in present(wanted)]
    parts = dict(arguments.part)
    for name in arguments.only:
        words, runs = run_workload(name, arguments.rounds, parts.get(name), peers, arguments.seed)
        print(section(name, words, runs), flush=True)
        if arguments.write:  # after each, as they take long
            put(f"long {name}", section(name, words, runs), RECORDS / "long.md")
            print("\nWrote docs/records/long.md")


if __name__ == "__main__":
    main()
