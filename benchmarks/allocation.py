"""Allocation of bandwidth and CPU frequency: cost against the proven optimum and other methods, up to 100,000 clients.

    python benchmarks/allocation.py --quick                            # a smoke test, about a minute
    python benchmarks/allocation.py --clients 80 --methods scip        # one size, one other method, printed only
    python benchmarks/allocation.py --write                            # all, into docs/records/allocation.md

Each measurement runs in its own process with one thread, after a warm-up on a tiny problem. Memory is the peak minus
what was in use before. Costs are relative to the highest lower bound proven for the same clients. A method that takes
more than a third of the limit runs for one draw of the clients. DC and SCIP are skipped for sizes that would exceed the
limit if their time grew in proportion to the number of clients.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from decisions import MOST_MEMORY, memory, timed
from page import put

Row = dict[str, Any]

DRAWS = {20: 5, 80: 5, 1_000: 3, 10_000: 2, 100_000: 2}
"""Clients, and how many times they are drawn."""
REGIMES = {
    "G": "2 to 5 GHz, CIFAR-10 and its LeNet: computing costs about as much as sending",
    "M": "2 to 5 MHz as the paper prints, Fashion-MNIST and its LeNet: the slowest computers set the deadline",
}
NEEDED = 0.25  # of all examples
GAP = 1e-6
TARGETS = {80: (1e-6, 0.5), 1_000: (1e-6, 1.0), 10_000: (1e-5, 3.0), 100_000: (1e-3, 10.0)}
"""Gap to be proven and seconds for it, with at most so many clients."""
SCIP_TOLERANCE = 1e-8  # what SCIP lets constraints be violated by lowers its cost by up to a hundred times as much
PENALTIES = {"dc_printed": (1.0,), "dc_best": (0.01, 0.1, 1.0, 10.0, 100.0)}  # rho, which the paper does not state
NEAR = 1.02  # cost over the lower bound that is called near
SLOW = 1 / 3  # of the limit: where one draw has to be enough


class Method(NamedTuple):
    """A way to choose clients; an allocation of its own, or those of some rules, or both."""

    title: str
    rules: tuple[str, ...] = ()
    clients: str = ""  # what the clients are called beside a rule
    own: bool = True
    needs: str = ""  # a module

    @property
    def allocations(self) -> list[str | None]:
        """The rules, and before them None for its own."""
        return [*([None] if self.own else []), *self.rules]


METHODS = {
    "proven": Method(f"ours, proven to {GAP:g}", ("greedy", "equal", "random"), "our clients"),
    "target": Method("ours, proven to the target gap"),
    "genetic": Method("genetic", ("exact", "greedy", "equal", "random"), "genetic clients", own=False),
    "sorted": Method("sorted", ("exact",), "sorted by sqrt(P tau) / d", own=False),
    "dc_printed": Method("DC as printed, rho = 1", needs="clarabel"),
    "dc_best": Method("DC as printed, best of five rho", needs="clarabel"),
    "dc_perspective": Method("DC, perspective", needs="clarabel"),
    "scip": Method("SCIP", needs="pyscipopt"),
}
OURS = ("proven", "target")


def target(clients: int) -> tuple[float, float]:
    """Return the gap to be proven, and the seconds for it."""
    return TARGETS[min((size for size in TARGETS if clients <= size), default=max(TARGETS))]


# -------------------------------------------------------------------------------------- a measurement, in its process


def instance(clients: int, regime: str, seed: int) -> tuple[Any, int]:
    """Return clients in a cell, of 50 to 200 examples each, and how many examples a round needs.

    The band has 2 MHz for 80 clients or fewer, and grows with their number above.
    """
    import numpy as np

    from fedreach._util.streams import generator
    from fedreach.wireless.radio import PaperRadio, Radio

    kind, example_bits, parameters = (Radio, 24_576, 62_006) if regime == "G" else (PaperRadio, 6_272, 44_426)
    radio = kind(bandwidth_hertz=2e6 * max(1.0, clients / 80))
    examples = generator(seed, "examples").integers(50, 200, clients, endpoint=True)
    state = radio.state(
        radio.devices(clients, seed),
        seed=seed,
        round_=1,
        ids=np.arange(clients),
        num_examples=examples,
        bits_per_example=example_bits,
        passes=np.full(clients, 10.0),
        report_bits=32 * parameters,
    )
    return state.problem(), max(1, round(NEEDED * int(examples.sum())))


class Found(NamedTuple):
    """Rows of the clients that were chosen, None if only their cost is known; and what else there is to tell."""

    rows: Any
    facts: Row


def find(method: str, problem: Any, min_examples: int, seed: int) -> Found:
    """Choose clients by one of the methods."""
    from allocation_oracles import scip
    from fedreach._util.streams import generator
    from fedreach.wireless.baselines import DC, genetic_selection, sqrt_sort
    from fedreach.wireless.solve import solve

    if method in OURS:
        tolerance = target(len(problem))[0] if method == "target" else GAP
        got = solve(problem, min_examples, tolerance=tolerance, time_limit_seconds=1e6)
        facts = {"cost": got.cost, "lower_bound": got.lower_bound, "gap": got.gap, "nodes": got.nodes}
        return Found(problem.rows(got.allocation.ids), facts)
    if method == "genetic":
        return Found(genetic_selection(problem, min_examples, generator(seed, "genetic")), {})
    if method == "sorted":
        return Found(sqrt_sort(problem, min_examples), {})
    if method == "scip":
        cost = scip(problem, min_examples, tolerance=SCIP_TOLERANCE, time_limit_seconds=1e6)
        return Found(None, {"cost": cost, "gap": SCIP_TOLERANCE})
    dcs = {"dc_perspective": DC("perspective")}
    for name, penalties in PENALTIES.items():
        dcs[name] = DC("rlt", penalties, shares="relaxed", allocation="paper")
    result = dcs[method].solve(problem, min_examples)
    facts = {name: getattr(result, name) for name in ("raw_share_sum", "not_binary", "coverage_failed")}
    return Found(problem.rows(result.allocation.ids), {"cost": result.allocation.cost, **facts})


def measured(work: Callable[[], Any], repeats: int, limit: int) -> tuple[Any, Row]:
    """Return what the work returns, and its median seconds, by the clock and of the processor, and megabytes."""
    answers: list[Any] = []
    busy: list[float] = []

    def call() -> None:
        answers.clear()
        began = time.process_time()
        answers.append(work())
        busy.append(time.process_time() - began)

    row = timed(call, repeats, limit)
    return answers[0], {**row, "busy_seconds": statistics.median(busy)}


def cell(method: str, clients: int, regime: str, seed: int, limit: int) -> None:
    """Run one method on one draw and print a line of JSON for it, and for each rule on the clients it chooses."""
    from fedreach._util.streams import generator
    from fedreach.wireless.rules import RULES

    resource.setrlimit(resource.RLIMIT_AS, (int(MOST_MEMORY * memory()),) * 2)  # so that nothing else is ended for it
    signal.alarm(limit)
    find(method, *instance(5, regime, seed), seed)  # imports
    problem, min_examples = instance(clients, regime, seed)
    repeats = 1 if clients > 1_000 or METHODS[method].needs else 3
    found, spent = measured(lambda: find(method, problem, min_examples, seed), repeats, limit)
    if METHODS[method].own:
        print(json.dumps({"rule": None, **found.facts, **spent}), flush=True)
    for name in METHODS[method].rules:
        mine = problem.only(found.rows)
        rule = RULES[name]()
        given, more = measured(lambda: rule.allocate(mine, generator(seed, "rule")), repeats, limit)  # noqa: B023
        both = {key: spent[key] + more[key] for key in ("seconds", "busy_seconds")}
        both["megabytes"] = max(spent["megabytes"], more["megabytes"])
        print(json.dumps({"rule": name, "cost": given.cost, **both}), flush=True)


PARTS = ("clients' costs", "fractional knapsacks", "whole knapsacks", "exact allocation", "the rest")


def profile(clients: int, regime: str, seed: int) -> dict[str, float]:
    """Return where the seconds of a proof go; what an exact allocation calls counts as that.

    The functions of a part are replaced, wherever they are imported, by ones that note the time and call them.
    """
    from fedreach.wireless import candidates, exact
    from fedreach.wireless import exact as kernel
    from fedreach.wireless.solve import solve

    functions = (
        (kernel.cost_of_needs, kernel.sending),
        (candidates.fractional_cover,),
        (
            candidates.coarsen_sizes,
            candidates.cover_table,
            candidates.cheapest_covers,
            candidates.covers_below,
            candidates.repair_cover,
        ),
        (exact.allocate_batch, exact.allocate),
    )
    solve(*instance(5, regime, seed))  # imports
    problem, min_examples = instance(clients, regime, seed)
    spent = dict.fromkeys(PARTS, 0.0)
    running, since = [PARTS[-1]], time.perf_counter()

    def note() -> None:
        nonlocal since
        now = time.perf_counter()
        spent[running[-1]] += now - since
        since = now

    def noting(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            note()
            running.append("exact allocation" if running[-1] == "exact allocation" else part)
            answer = function(*values, **named)
            note()
            running.pop()
            return answer

        return call

    modules = [module for name, module in sys.modules.items() if name.startswith("fedreach.wireless")]
    places = [(module, name, value) for module in modules for name, value in vars(module).items()]
    for part, some in zip(PARTS, functions, strict=False):
        for function in some:
            for module, name, value in places:
                if value is function:
                    setattr(module, name, noting(function, part))
    try:
        since = time.perf_counter()
        solve(problem, min_examples, tolerance=GAP, time_limit_seconds=1e6)
        note()
    finally:
        for place in places:
            setattr(*place)
    return spent


# -------------------------------------------------------------------------------------------------- all measurements


def lines_of(arguments: list[str]) -> tuple[list[Row], subprocess.CompletedProcess[str]]:
    """Return what this script prints when it is called with these arguments, on one thread."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **one})
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done


def measure(method: str, clients: int, regime: str, seed: int, limit: int) -> list[Row]:
    """Return a row for the method, if it has an allocation of its own, and for each of its rules."""
    kind = METHODS[method]
    row: Row = {"method": method, "clients": clients, "regime": regime, "seed": seed}
    found, done = lines_of(["--cell", method, str(clients), regime, str(seed), str(limit)])
    rows = [{**row, **line} for line in found]
    wanted = kind.allocations
    if len(found) < len(wanted):
        note = f"over {limit} s" if done.returncode == -signal.SIGALRM else "failed"
        note = "too little memory" if "MemoryError" in done.stderr else note
        if note == "failed":
            print(f"  {method}, {clients} clients: {done.stderr.strip()[-300:]}", file=sys.stderr)
        rows += [{**row, "rule": rule, "note": note} for rule in wanted[len(found) :]]
    return rows


def why_not(method: str, seconds: float, limit: int) -> str:
    """Return why a method is not tried, empty if it is; the seconds are a guess, good for the general solvers only."""
    needs = METHODS[method].needs
    if needs and find_spec(needs) is None:
        return f"needs {needs}"
    return "not run" if needs and seconds > limit else ""


def run(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield all rows; a method that is slow gets fewer draws, and no sizes that it could not do within the limit."""
    for regime in arguments.regimes:
        paces: dict[str, float] = {}  # seconds a client, at the largest size so far
        for clients in arguments.clients:
            draws = arguments.seeds or DRAWS.get(clients, 1)
            for method in [name for name in METHODS if name == "proven" or name in arguments.methods]:
                if method == "target" and target(clients)[0] <= GAP:
                    continue
                why = why_not(method, paces.get(method, 0.0) * clients, arguments.limit)
                if why:
                    row = {"method": method, "clients": clients, "regime": regime, "note": why}
                    yield from ({**row, "rule": rule} for rule in METHODS[method].allocations)
                    continue
                for seed in range(draws):
                    rows = measure(method, clients, regime, seed, arguments.limit)
                    yield from rows
                    slowest = max(row.get("seconds", arguments.limit) for row in rows)
                    paces[method] = slowest / clients
                    if slowest > arguments.limit * SLOW:
                        draws = seed + 1 if method == "proven" else draws  # no other has a bound to be compared with
                        break


# --------------------------------------------------------------------------------------------------------- the tables


def with_ratios(rows: list[Row]) -> list[Row]:
    """Return the rows with their costs over the highest lower bound on those of the same clients."""
    bounds: dict[Any, float] = defaultdict(float)

    def draw(row: Row) -> tuple[Any, ...]:
        return row["clients"], row["regime"], row.get("seed")

    for row in rows:
        bounds[draw(row)] = max(bounds[draw(row)], row.get("lower_bound", 0.0))
    return [
        {**row, "ratio": row["cost"] / bounds[draw(row)]} if "cost" in row and bounds[draw(row)] else row
        for row in rows
    ]


def title(row: Row) -> str:
    """Return what a row is called in the tables."""
    method = METHODS[row["method"]]
    return method.title if row["rule"] is None else f"{method.clients}, {row['rule']} allocation"


def number(ratio: float) -> str:
    """Return a ratio with as many digits as matter."""
    return f"{ratio:.4f}" if ratio < 1.095 else f"{ratio:.3g}"


def spread(values: list[float], form: Callable[[float], str]) -> str:
    """Return the median, and the range where there are several that differ."""
    middle, low, high = (form(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def text(rows: list[Row], what: str) -> str:
    """Return a cell: what the draws came to, or why there is nothing."""
    done = [row for row in rows if what in row]
    if not done:
        return rows[0].get("note", "-") if rows else "-"
    found = spread([row[what] for row in done], number if what == "ratio" else "{:.2g}".format)
    if what == "seconds":
        found = f"{found} s, {statistics.median(row['megabytes'] for row in done):,.0f} MB"
    failed = len(rows) - len(done)
    return f"{found}; {failed} {rows[-1]['note']}" if failed else found


def table(rows: list[Row], regime: str, what: str) -> str:
    """Return the Markdown of a regime: a method a line, a number of clients a column."""
    rows = [row for row in rows if row["regime"] == regime]
    if what == "seconds":  # the other rules take no time
        rows = [row for row in rows if row["rule"] in (None, "exact")]
    sizes = sorted({row["clients"] for row in rows})
    head = {"ratio": "cost / proven lower bound", "seconds": "seconds and memory"}[what]
    lines = [f"| {regime}: {head} | " + " | ".join(f"{n:,} clients" for n in sizes) + " |"]
    lines.append("| --- |" + " ---: |" * len(sizes))
    for name in dict.fromkeys(title(row) for row in sorted(rows, key=lambda row: list(METHODS).index(row["method"]))):
        mine = [[row for row in rows if title(row) == name and row["clients"] == n] for n in sizes]
        lines.append(f"| {name} | " + " | ".join(text(some, what) for some in mine) + " |")
    return "\n".join(lines)


def target_table(rows: list[Row]) -> str:
    """Return the Markdown of what was to be reached, and what was."""
    lines = ["| clients | regime | to reach | proven gap, largest | seconds | memory | steps of the proof |"]
    lines.append("| ---: | --- | --- | ---: | ---: | ---: | ---: |")
    groups = defaultdict(list)
    for row in rows:
        if row["method"] in ("target", "proven") and "gap" in row:
            groups[row["clients"], row["regime"], row["method"]].append(row)
    for (clients, regime, method), mine in sorted(groups.items(), key=lambda item: (item[0][:2], -len(item[0][2]))):
        gap, seconds = target(clients)
        aim = f"{gap:.0e} in {seconds:g} s" if method == "target" or gap == GAP else ""
        worst, nodes = max(row["gap"] for row in mine), spread([row["nodes"] for row in mine], "{:.0f}".format)
        cells = [f"{clients:,}", regime, aim, f"{worst:.1e}", *text(mine, "seconds").split(", "), nodes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def dc_table(rows: list[Row]) -> str:
    """Return the Markdown of the repairs after the DC algorithm; empty if it was not run."""
    lines = ["| DC | clients | regime | sum of shares before repair | parts neither 0 nor 1 | too few examples |"]
    lines.append("| --- | ---: | --- | ---: | ---: | ---: |")
    groups = defaultdict(list)
    for row in rows:
        if "raw_share_sum" in row:
            groups[METHODS[row["method"]].title, row["clients"], row["regime"]].append(row)
    for (name, clients, regime), mine in sorted(groups.items()):
        shares = spread([row["raw_share_sum"] for row in mine], "{:.2f}".format)
        parts = spread([row["not_binary"] for row in mine], "{:.0f}".format)
        failed = sum(row["coverage_failed"] for row in mine)
        lines.append(f"| {name} | {clients:,} | {regime} | {shares} | {parts} | {failed} of {len(mine)} |")
    return "\n".join(lines) if groups else ""


def profile_table(profiles: list[Row]) -> str:
    """Return the Markdown of where the time goes."""
    lines = [f"| clients | regime | seconds | {' | '.join(PARTS)} |", "| ---: | --- |" + " ---: |" * (len(PARTS) + 1)]
    for row in profiles:
        total = sum(row[part] for part in PARTS)
        shares = " | ".join(f"{row[part] / total:.0%}" for part in PARTS)
        lines.append(f"| {row['clients']:,} | {row['regime']} | {total:.2g} | {shares} |")
    return "\n".join(lines)


def near(rows: list[Row]) -> str:
    """Return which other methods come near the optimum, and where; sorted by size."""
    groups = defaultdict(list)
    for row in rows:
        if "ratio" in row and row["method"] not in (*OURS, "scip"):
            groups[title(row), row["clients"], row["regime"]].append(row["ratio"])
    middle = {key: statistics.median(ratios) for key, ratios in groups.items()}
    said = defaultdict(list)
    for (name, clients, regime), ratio in sorted(middle.items(), key=lambda item: item[0][1:]):
        if ratio <= NEAR:
            said[name].append(f"{clients:,} {regime} ({number(ratio)})")
    return "; ".join(f"{name}: {', '.join(places)}" for name, places in said.items()) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS), help="beside `proven`")
    parser.add_argument("--clients", nargs="+", type=int, default=list(DRAWS), help="default: %(default)s")
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES), choices=list(REGIMES))
    parser.add_argument("--seeds", type=int, help=f"draws of the clients (default: {DRAWS})")
    parser.add_argument("--limit", type=int, default=30, help="seconds of one call (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="20 and 80 clients, one draw, at most 20 s each")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/records/allocation.md")
    parser.add_argument("--cell", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--profile", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        method, clients, regime, seed, limit = arguments.cell
        cell(method, int(clients), regime, int(seed), int(limit))
        return
    if arguments.profile:
        clients, regime, seed = arguments.profile
        print(json.dumps(profile(int(clients), regime, int(seed))))
        return
    if arguments.quick:
        arguments.clients, arguments.seeds, arguments.limit = [20, 80], 1, 20
    arguments.clients.sort()

    rows = []
    for row in run(arguments):
        said = row.get("note") or f"{row['cost']:.6g} in {row['seconds']:.2g} s, {row['megabytes']:,.0f} MB"
        print(f"{row['clients']:,} clients, {row['regime']}, {title(row)}: {said}", file=sys.stderr)
        rows.append(row)
    profiles = []
    for clients in arguments.clients:
        for regime in arguments.regimes:
            found, _ = lines_of(["--profile", str(clients), regime, "0"])
            profiles += [{"clients": clients, "regime": regime, **line} for line in found]
    rows = with_ratios(rows)
    page = _page(rows, profiles, arguments)
    print(page)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "profiles": profiles}, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        put("allocation", page)
        print("\nWrote docs/records/allocation.md")


def _page(rows: list[Row], profiles: list[Row], arguments: argparse.Namespace) -> str:
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    packages = [name for name in ("numpy", "clarabel", "pyscipopt") if find_spec(name)]
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    timed_rows = [row for row in rows if "seconds" in row]
    had = sum(row["busy_seconds"] for row in timed_rows) / sum(row["seconds"] for row in timed_rows)
    about = (
        f"Made by `python benchmarks/allocation.py --write` on one core of {cpu}: {versions}, python "
        f"{platform.python_version()}. Which clients take part in a round, with which share of the band and CPU "
        f"frequency: a1 = a2 = 1, 50 to 200 examples a client, a quarter of all examples needed, 2 MHz for each 80 "
        f"clients (at least 2 MHz), channels and devices of `Radio`. Medians over draws of the clients, with the range;"
        f" memory in addition to the interpreter and the problem. The processes had {had:.0%} of a core."
    )
    regimes = "\n".join(f"- {name}: {REGIMES[name]}." for name in arguments.regimes)
    limits = (
        f"Each call may take {arguments.limit} s. One that takes over {arguments.limit * SLOW:.2g} s is made for one "
        f'draw. "not run": over the limit, if the time grows in proportion to the clients. SCIP works to '
        f"{SCIP_TOLERANCE:g}, with constraints that may be violated by as much. The genetic algorithm (40 sets, 60 "
        f"generations) sees equal shares. Greedy hands out thousandths of the band, so that among a thousand or "
        f"more clients it is equal. DC as printed is repaired: shares are scaled down to the band, and clients "
        f"join where examples lack. DC with the perspective relaxation takes the best of three rho, and is allocated "
        f"exactly in the end."
    )
    others = f"Other methods at most {NEAR - 1:.0%} above the bound: {near(rows)}."
    tables = [table(rows, regime, what) for what in ("ratio", "seconds") for regime in arguments.regimes]
    repairs = dc_table(rows)
    parts = [textwrap.fill(about, 120), regimes, target_table(rows), *tables]
    parts += [textwrap.fill(limits, 120), textwrap.fill(others, 120)]
    parts += ["Repairs that the solutions of the DC algorithm need:", repairs] if repairs else []
    parts += [f"Where the time of a proof to {GAP:g} goes:", profile_table(profiles)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
