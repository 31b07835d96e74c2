"""FedReach's engines beside pfl-research and plain torch: samples and rounds per second, and peak memory.

    make bench                                      # all cases; writes docs/benchmarks.md
    python benchmarks/engine.py --cases mlp lenet   # some cases, printed only

Each measurement is a process of its own. All contenders of a case run in turn, pass after pass, so that a machine whose
speed drifts slows them alike; ratios are taken within a pass, and the table shows their median. Every contender is
tried with one thread and with all cores (pfl also with one worker a core), and is represented by the setting with the
highest median rate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

PEERS = Path(__file__).parent / "peers"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
sys.path.insert(0, str(PEERS))


class Contender(NamedTuple):
    """One way to train the cohort."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    workers: tuple[int, ...] = (1,)


CONTENDERS = (
    Contender("fedreach sequential", "fedreach_run.py", ("--engine", "sequential")),
    Contender("fedreach stacked", "fedreach_run.py", ("--engine", "stacked")),
    Contender("plain torch", "plain_torch.py", ("--shuffle",)),
    Contender("pfl", "pfl_run.py", workers=tuple(sorted({1, CORES}))),
)
Setting = tuple[int, int]  # workers, threads of each


def settings(contender: Contender) -> list[Setting]:
    """Return the (workers, threads) to try: one process with one thread or all cores, or one worker a core."""
    return [(w, t) for w in contender.workers for t in sorted({1, max(1, CORES // w)})]


def measure(contender: Contender, case: str, setting: Setting, rounds: int, repeats: int) -> dict[str, Any] | None:
    """Run one contender in a process of its own and return its row; None where it does not run in this setting."""
    workers, threads = setting
    launcher = [sys.executable]
    if workers > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc_per_node={workers}"]
    command = [*launcher, str(PEERS / contender.script), "--case", case, *contender.arguments]
    command += ["--threads", str(threads), "--rounds", str(rounds), "--repeats", str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=PEERS, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"  {contender.name} {setting} on {case}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def run_case(case: str, passes: int, rounds: int, repeats: int) -> dict[str, dict[Setting, list[dict[str, Any]]]]:
    """Return contender -> setting -> one row a pass."""
    rows: dict[str, dict[Setting, list[dict[str, Any]]]] = {}
    for number in range(passes):
        for contender in CONTENDERS:
            if contender.name == "pfl" and find_spec("pfl") is None:
                continue
            for setting in settings(contender):
                row = measure(contender, case, setting, rounds, repeats)
                if row is not None:
                    rows.setdefault(contender.name, {}).setdefault(setting, []).append(row)
                    rate = row["samples_per_second"]
                    print(f"{case} pass {number + 1} {contender.name} {setting}: {rate:,.0f}/s", file=sys.stderr)
    return rows


def best(rows: dict[Setting, list[dict[str, Any]]]) -> tuple[Setting, list[dict[str, Any]]]:
    """Return the setting with the highest median rate, and its rows."""
    return max(rows.items(), key=lambda item: statistics.median(row["samples_per_second"] for row in item[1]))


def table_rows(case: str, rows: dict[str, dict[Setting, list[dict[str, Any]]]]) -> list[str]:
    """Return the Markdown lines of one case."""
    chosen = {name: best(per_setting) for name, per_setting in rows.items()}
    reference = chosen.get("pfl")
    lines = []
    for name, (setting, found) in chosen.items():
        rates = [row["samples_per_second"] for row in found]
        ratio = "-"
        if reference is not None:
            pairs = [
                a["samples_per_second"] / b["samples_per_second"] for a, b in zip(found, reference[1], strict=True)
            ]
            ratio = f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
        rounds = statistics.median(row["rounds_per_second"] for row in found)
        memory = statistics.median(row["peak_rss_mb"] for row in found)
        how = f"{setting[0]} x {setting[1]}"
        lines.append(
            f"| {case} | {name} | {statistics.median(rates):,.0f} | {rounds:.3g} | {ratio} | {memory:,.0f} | {how} |"
        )
    return lines


def main() -> None:
    from cases import CASES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--passes", type=int, default=3, help="times all contenders take turns (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds in one timing (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="timings in one process (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} beside the other documentation")
    arguments = parser.parse_args()

    header = [
        "| case | engine | samples/s | rounds/s | ratio to pfl, median (range) | peak MB | workers x threads |",
        "| --- | --- | ---: | ---: | --- | ---: | --- |",
    ]
    body: list[str] = []
    versions: dict[str, str] = {}
    for case in arguments.cases:
        rows = run_case(case, arguments.passes, arguments.rounds, arguments.repeats)
        body += table_rows(case, rows)
        for per_setting in rows.values():
            versions |= next(iter(per_setting.values()))[0]["versions"]
    text = "\n".join([*header, *body])
    print(text)
    if arguments.write:
        PAGE.write_text(_page(text, versions, arguments), encoding="utf-8")
        print(f"\nWrote {PAGE}")


def _page(table: str, versions: dict[str, str], arguments: argparse.Namespace) -> str:
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    about = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return f"""# Speed

Made by `python benchmarks/engine.py --write` on {CORES} cores of {cpu}: {about}.
{arguments.passes} passes in which all contenders take turns, {arguments.repeats} timings of {arguments.rounds} rounds
in each; medians. Only ratios mean anything on another machine, or on a busy one.

`logistic`, `mlp` (784-200-100-10) and `lenet`: 40 clients of 600 samples, all of them in each round, batch 50.
`..._device`: 1000 clients of 50 samples, 50 a round, batch 10. One local epoch of SGD, random data; FedReach's
figures are whole rounds with selection, shuffled batches, weighing and the server step. Each contender is shown at its
best number of workers and threads. [How the peers are run](../benchmarks/README.md).

{table}
"""


if __name__ == "__main__":
    main()
