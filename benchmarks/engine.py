"""Speed and peak memory of FedReach's engines, pfl-research, Flower, plain torch and the machine's limit.

    make bench                                       # all cases; writes its section of docs/records/engine.md
    python benchmarks/engine.py --cases mlp lenet    # some cases, printed only
    python benchmarks/engine.py --check              # whether all contenders compute the same, in place of timings
    python benchmarks/engine.py --profile mlp        # where the time of a round goes, in place of timings

Each measurement runs in its own process. All contenders of a case take turns, pass after pass, so that a drifting
machine slows them equally. Ratios are taken within a pass, and the table shows their median. FedReach uses all cores.
Plain torch and Flower use one process per core (torch also one in all). pfl uses one process per core, and one process
with all cores as threads. The table shows the setting with the highest median rate. All cases have one pass; as many as
`--minutes` allow have more.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "peers"))

from cases import ON_A_CPU

from contenders import CONTENDERS, CORES, ENGINE_NAMES, Row, end_cleanly, fedreach, measure, present
from page import processor, put
from tables import Rows, limit_table, main_table, phase_table
from turns import ROUNDS, check, run_cases

PROFILED = ("mlp", "lenet", "logistic_device")
LARGE = ("femnist", "feddyn_cnn", "cifar")
LEFT_OUT = {
    "vmap": ("lenet", "lenet_device", "lstm", *LARGE),
    "manual": LARGE,
    "flower": ("lenet_device", "feddyn_cnn", "cifar", "lstm"),
}
"""Who is not timed on which cases: engines that take several times as long as the fastest, and Flower, which starts for
a quarter of a minute, where other cases tell as much."""


def phases(cases: Sequence[str], engines: Sequence[str], quick: bool) -> list[Row]:
    """Return where the time goes: a row for each case and engine."""
    rows = []
    for case in cases:
        rounds = 1 if quick else ROUNDS[case]
        for engine in engines:
            if case in LEFT_OUT.get(engine, ()):
                continue
            script = fedreach(engine)._replace(script="phases.py")
            row = measure(script, case, (1, 1), ["--rounds", str(rounds), "--repeats", "3"])
            if row is not None:
                rows.append({"case": case, "engine": engine, "seconds": row})
    return rows


def arguments_of(line: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(ON_A_CPU), choices=list(ON_A_CPU))
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--contenders", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--passes", type=int, default=3, help="times all contenders take turns (default: %(default)s)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=18,
        help="no pass but the first begins that would end later (default: %(default)s)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="timings in one process (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one pass with a fifth of the clients: a smoke test")
    parser.add_argument("--json", type=Path, help="also write all rows to this file")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/records/engine.md")
    parser.add_argument("--check", action="store_true", help="test the results instead of timing them")
    parser.add_argument(
        "--profile", nargs="*", choices=list(ON_A_CPU), metavar="CASE", help="only show where time goes"
    )
    arguments = parser.parse_args(line)
    if arguments.quick:
        arguments.passes = arguments.repeats = 1
    return arguments


def main() -> None:
    arguments = arguments_of()
    end_cleanly()
    wanted = present(contender for contender in CONTENDERS if contender.name in arguments.contenders)
    if arguments.check:
        sys.exit(0 if check(arguments.cases, wanted) else 1)
    if arguments.profile is not None:
        print(phase_table(phases(arguments.profile or PROFILED, ENGINE_NAMES, arguments.quick)))
        return

    began = time.monotonic()
    cases = {case: [one for one in wanted if case not in LEFT_OUT.get(one.engine, ())] for case in arguments.cases}
    found = run_cases(cases, arguments.passes, arguments.repeats, arguments.quick, 60 * arguments.minutes)
    profiled = [case for case in arguments.cases if case in PROFILED]
    where = phases(profiled, ENGINE_NAMES, arguments.quick)
    page = page_of(found, where, arguments, time.monotonic() - began)
    print(page)
    if arguments.json:
        text = json.dumps({"rows": flat(found), "phases": where}, indent=1)
        arguments.json.write_text(f"{text}\n", encoding="utf-8")
    if arguments.write:
        put("engine", page)
        print("\nWrote docs/records/engine.md")


def flat(found: dict[str, Rows]) -> list[Row]:
    """Return all rows, each with its case, contender and pass."""
    return [
        {"case": case, "contender": name, "pass": number, **row}
        for case, rows in found.items()
        for name, settings in rows.items()
        for passes in settings.values()
        for number, row in passes.items()
    ]


def page_of(found: dict[str, Rows], where: list[Row], arguments: argparse.Namespace, seconds: float) -> str:
    """Return the section of the page."""
    versions: dict[str, str] = {}
    for row in flat(found):
        versions |= row["versions"]
    about = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    made = (
        f"Made by `python benchmarks/engine.py --write` in {seconds / 60:.0f} minutes on {CORES} cores of "
        f"{processor()}: {about}. Up to {arguments.passes} passes in which all contenders take turns, "
        f"{arguments.repeats} timings in each; medians, with the range over passes. Only ratios mean anything on "
        f"another machine, or on a busy one."
    )
    what = (
        "`logistic`, `mlp` (784-200-100-10) and `lenet`: 40 clients of 600 samples, all of them in a round, batch "
        "50. `..._device`: 1000 clients of 50 samples, 50 a round, batch 10. `digits`: 50 clients of 28 samples, 10"
        " a round, batch 16, 64-32-10. `femnist`: the CNN of FedAvg's paper, 62 classes, 1000 clients of 60, 10 a "
        "round, batch 20. `feddyn_cnn`: that of FedDyn's, 100 clients of 100, 10 a round, batch 50. `cifar`: pfl's "
        "own benchmark of CIFAR-10, sizes as `..._device`. `lstm`: two layers of 100 on windows of 80 characters, "
        "100 clients of 100, 10 a round, batch 20. One local epoch of SGD, random data; FedReach's figures are "
        "whole rounds with selection, shuffled batches, weighing and the server step. Each contender is shown at "
        "its best number of workers and threads; pfl in one process has all cores as threads. Torch by hand is"
        " plain torch, of images in the better of two layouts. The limit is what products and memory alone "
        "allow. Engines that take several times as long as the fastest are left out where layers are large, as is "
        "Flower on some cases. [How the peers are run, and how the limit is made](../../benchmarks/README.md)."
    )
    parts = [textwrap.fill(made, 120), textwrap.fill(what, 120), main_table(found), limit_table(found)]
    if where:
        parts += ["Where the time of a round goes, on one thread:", phase_table(where)]
    return "\n\n".join(part for part in parts if part)


if __name__ == "__main__":
    main()
