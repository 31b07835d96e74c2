"""Time and memory of every selection and weighting, up to 100,000 clients.

    python benchmarks/decisions.py --quick                    # a smoke test, under a minute
    python benchmarks/decisions.py --parts minimax entropy    # some parts, printed only
    python benchmarks/decisions.py --write                    # all, into docs/records/decisions.md

Each measurement runs in its own process. A selection runs ``probe`` and ``select``, and ``observe`` for a cohort that
replies to a probe and then sends results. A weighting runs ``weights`` for the results of all clients. Memory is the
peak minus what was in use before. The components are those in the tables `SELECTIONS` and `WEIGHTINGS`. Where all
updates do not fit into memory, components that can keep a sketch do.
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
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from page import put

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
KINDS = ("selection", "weighting")

CLIENTS = (100, 1_000, 10_000, 100_000)
NUMBERS = 100_000  # of an update
SKETCH = 256  # numbers kept where not all are
SKETCHED_FROM = 100_000  # clients
SKETCHES = (64, 256, 1_024, 4_096)
CLASSES = 10
HELD = 2**29  # numbers of updates made at once
MOST_MEMORY = 0.8  # of the machine's, that a measurement may take


def memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cohort(clients: int) -> int:
    """Return k: a tenth, at most 100."""
    return max(2, min(100, clients // 10))


# -------------------------------------------------------------------------------------- a measurement, in its process


def updates(clients: int, numbers: int) -> Callable[[Any], Any]:
    """Return a function from ids to updates: mixtures of ten directions, as label skew makes them, and noise."""
    import numpy as np

    from fedreach._util.streams import generator

    rng = generator(0, "updates")
    directions = rng.standard_normal((CLASSES, numbers), dtype=np.float32)
    noise = 0.5 * rng.standard_normal(2 * numbers, dtype=np.float32)
    mixtures = rng.dirichlet(np.full(CLASSES, 0.3), clients).astype(np.float32)
    begins = rng.integers(numbers, size=clients)

    def of(ids: Any) -> Any:
        rows = mixtures[ids] @ directions
        for row, begin in zip(rows, begins[ids], strict=True):
            row += noise[begin : begin + numbers]
        return rows

    return of


def make(kind: str, name: str, sketch: int | None) -> Any:
    """Return a part with its default options; one that wraps others wraps entropy, or entropy and examples."""
    from fedreach.federation.selection import SELECTIONS
    from fedreach.federation.weighting import WEIGHTINGS

    part = {"selection": SELECTIONS, "weighting": WEIGHTINGS}[kind][name]
    entropy, by_examples = WEIGHTINGS["entropy"](), WEIGHTINGS["by_examples"]()
    given = {"inner": entropy, "parts": (entropy, by_examples), "shares": (0.5, 0.5), "max": 0.5, "sketch": sketch}
    return part(**{field.name: given[field.name] for field in fields(part) if field.name in given})


def reports_of(ids: Any, update: Any, part: Any, **more: Any) -> Any:
    """Return reports with everything that a part may look at."""
    import numpy as np

    from fedreach._util.streams import generator
    from fedreach.federation.types import ClientResults

    rng = generator(1, "reports")
    metrics = {"num_examples": rng.integers(10, 500, len(ids)) * 1.0, "loss": rng.random(len(ids))}
    metrics["label_entropy"] = rng.random(len(ids)) * np.log(CLASSES)
    metrics |= {measurement.name: rng.random(len(ids)) + 0.1 for measurement in getattr(part, "measures", ())}
    return ClientResults(
        ids, update, metrics, rng.integers(0, 50, (len(ids), CLASSES)) * 1.0, output_bias=CLASSES, **more
    )


def selection_work(policy: Any, clients: int, numbers: int) -> dict[str, Callable[[], object]]:
    """Return what is timed: a choice among clients that were all heard in round 1, and hearing a cohort."""
    import numpy as np

    from fedreach._util.streams import generator
    from fedreach.federation.types import ServerView
    from fedreach.testing.problems import with_rates

    rng, k, ids = generator(0, "view"), cohort(clients), np.arange(clients)
    counts = rng.integers(0, 50, (clients, CLASSES)) * 1.0
    view = ServerView.of(ids, counts.sum(axis=1).astype(np.int64) + 1, loss=rng.random(clients))
    view = replace(view, label_counts=counts, label_entropy=rng.random(clients), round=2)
    view = with_rates(view, rng.uniform(5e6, 3e7, clients))
    state = policy.init(view)
    update = updates(clients, numbers)
    if policy.reads_updates:
        for some in np.array_split(ids, -(-clients * numbers // HELD)):
            state = policy.observe(state, reports_of(some, update(some), policy, round=1, probe=True))
    heard = reports_of(ids[:k], update(ids[:k]), policy, round=2)

    def choose() -> object:
        probe = policy.probe(state, view, k, generator(0, "probe"))
        asked = view if probe is None else replace(view, probed=np.isin(ids, probe.ids))
        return policy.select(state, asked, k, generator(0, "select"))

    def hear() -> object:
        return policy.observe(policy.observe(state, replace(heard, probe=True)), heard)

    return {"hear": hear, "choose": choose}


def weighting_work(weighting: Any, clients: int, numbers: int) -> dict[str, Callable[[], object]]:
    """Return what is timed: weights of reports whose updates, which no weighting reads, take no memory."""
    import numpy as np

    from fedreach.federation.types import NO_STATE

    reports = reports_of(np.arange(clients), np.broadcast_to(np.float32(0), (clients, numbers)), weighting)
    return {"weigh": lambda: weighting.weights(NO_STATE, reports)}


def peak() -> int:
    """Return the most memory that this process has used, in bytes; on Linux, since this was last called.

    There `ru_maxrss` would begin with that of the process that started this one.
    """
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    (most,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    refs.write_text("5")
    return int(most) * 1024


def timed(work: Callable[[], object], repeats: int, limit: int) -> dict[str, float]:
    """Return median seconds and megabytes; the process is ended by SIGALRM where a call takes longer than `limit`."""
    seconds: list[float] = []
    peak()
    before = peak()
    while len(seconds) < repeats and sum(seconds) < limit / 2:
        signal.alarm(limit)
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
        signal.alarm(0)
    return {"seconds": statistics.median(seconds), "megabytes": max(0.0, (peak() - before) / 1e6)}


def cell(kind: str, name: str, clients: int, numbers: int, sketch: int | None, repeats: int, limit: int) -> None:
    """Measure one part and print a line of JSON for each kind of work."""
    resource.setrlimit(resource.RLIMIT_AS, (int(MOST_MEMORY * memory()),) * 2)  # so that nothing else is ended for it
    signal.alarm(10 * limit)  # for telling the part about all clients
    part = make(kind, name, sketch)
    prepare = selection_work if kind == "selection" else weighting_work
    for function in prepare(part, 20, 50).values():
        function()  # imports
    for work, function in prepare(part, clients, numbers).items():
        print(json.dumps({"work": work, **timed(function, repeats, limit)}), flush=True)


def sketch_error(clients: int, numbers: int, sizes: list[int]) -> None:
    """Print for each size how far cosines are off and how many of minimax's choice are the same."""
    import numpy as np

    from fedreach.federation.selection.geometry import count_sketch, first_by_similarity, gram, inverse, lengths

    def cosines(rows: Any) -> Any:
        return gram(rows, inverse(lengths(rows)))[np.triu_indices(len(rows), 1)]

    rows, k = updates(clients, numbers)(np.arange(clients)), cohort(clients)
    exact, chosen = cosines(rows), first_by_similarity(rows, k)
    for size in sizes:
        small = count_sketch(rows, size, seed=0)
        off = np.abs(cosines(small) - exact)
        same = len(np.intersect1d(chosen, first_by_similarity(small, k))) / k
        row = {"largest": off.max(), "root_mean_square": np.sqrt((off**2).mean()), "overlap": same}
        print(json.dumps({"size": size, **row}), flush=True)


# -------------------------------------------------------------------------------------------------- all measurements


def lines_of(arguments: list[str]) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """Return what this script prints when it is called with these arguments."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done


def needed_bytes(kind: str, name: str, clients: int, numbers: int, sketch: int | None) -> int:
    """Return about what a part needs to keep the updates of all clients and one report of each."""

    part = make(kind, name, sketch)
    if not part.reads_updates:
        return 0
    kept = sketch if sketch is not None and hasattr(part, "sketch") else numbers
    return 4 * (2 * clients * min(kept, numbers) + min(clients * numbers, 2 * HELD))


def measure(kind: str, name: str, clients: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of work of one part."""
    numbers = arguments.numbers
    sketch = SKETCH if clients >= SKETCHED_FROM else None
    row: dict[str, Any] = {"kind": kind, "name": name, "clients": clients, "numbers": numbers, "sketch": sketch}
    works = ["hear", "choose"] if kind == "selection" else ["weigh"]
    needed = needed_bytes(kind, name, clients, numbers, sketch)
    if needed > MOST_MEMORY * memory():
        yield from ({**row, "work": work, "note": f"needs {needed / 1e9:.0f} GB"} for work in works)
        return
    command = ["--cell", kind, name, str(clients), str(numbers), str(sketch or 0)]
    found, done = lines_of([*command, str(arguments.repeats), str(arguments.limit)])
    for line in found:
        yield {**row, **line}
    if len(found) == len(works):
        return
    if done.returncode == -signal.SIGALRM:
        note = f"over {arguments.limit} s"
    elif "MemoryError" in done.stderr:
        note = "too little memory"
    else:
        note = "failed"
        print(f"  {name}, {clients} clients: {done.stderr.strip()[-300:]}", file=sys.stderr)
    yield {**row, "work": works[len(found)], "note": note}


TITLES = {
    "choose": "Choosing a cohort",
    "hear": "Hearing a cohort, once as answers to a probe and once as reports",
    "weigh": "Weighing the reports of all clients",
}


def table(rows: list[dict[str, Any]], work: str) -> list[str]:
    """Return the Markdown lines of one kind of work: a part a line, a number of clients a column."""
    rows = [row for row in rows if row["work"] == work]
    sizes = sorted({row["clients"] for row in rows})
    lines = [f"| {TITLES[work]} | " + " | ".join(f"{n:,} clients" for n in sizes) + " |"]
    lines.append("| --- |" + " ---: |" * len(sizes))
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = {row["clients"]: text(row) for row in rows if row["name"] == name}
        lines.append(f"| {name} | " + " | ".join(cells.get(n, "-") for n in sizes) + " |")
    return lines


def text(row: dict[str, Any]) -> str:
    """Return a cell: seconds and megabytes, or why there are none."""
    return row.get("note") or f"{row['seconds']:.2g} s, {row['megabytes']:,.0f} MB"


def sketch_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the Markdown lines about sketches."""
    lines = ["| numbers kept | largest error of a cosine | root mean square | same choice by minimax |"]
    lines.append("| ---: | ---: | ---: | ---: |")
    for row in rows:
        error = f"{row['largest']:.3f} | {row['root_mean_square']:.4f}"
        lines.append(f"| {row['size']:,} | {error} | {row['overlap']:.0%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=None, help="names of selections and weightings (default: all)")
    parser.add_argument("--clients", nargs="+", type=int, default=list(CLIENTS), help="default: %(default)s")
    parser.add_argument("--numbers", type=int, default=NUMBERS, help="of an update (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="calls timed, fewer if slow (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=120, help="seconds of one call (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="100 and 1000 clients, updates of 1000 numbers, one call")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/records/decisions.md")
    parser.add_argument("--cell", nargs=7, help=argparse.SUPPRESS)
    parser.add_argument("--sketches", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        kind, name, *rest = arguments.cell
        clients, numbers, sketch, repeats, limit = map(int, rest)
        cell(kind, name, clients, numbers, sketch or None, repeats, limit)
        return
    if arguments.sketches:
        clients, numbers, *sizes = map(int, arguments.sketches)
        sketch_error(clients, numbers, sizes)
        return
    if arguments.quick:
        arguments.clients, arguments.numbers, arguments.repeats, arguments.limit = [100, 1_000], 1_000, 1, 20

    from fedreach.federation.selection import SELECTIONS
    from fedreach.federation.weighting import WEIGHTINGS

    rows: list[dict[str, Any]] = []
    for kind, known in zip(KINDS, (SELECTIONS, WEIGHTINGS), strict=True):
        for name in known:
            if arguments.parts is None or name in arguments.parts:
                for clients in arguments.clients:
                    for row in measure(kind, name, clients, arguments):
                        print(f"{name}, {clients:,} clients, {row['work']}: {text(row)}", file=sys.stderr)
                        rows.append(row)
    sketched_clients = min(1_000, max(arguments.clients))
    sizes = [size for size in SKETCHES if size < arguments.numbers]
    sketches, _ = lines_of(["--sketches", *map(str, [sketched_clients, arguments.numbers, *sizes])])
    page = _page(rows, sketches, sketched_clients, arguments)
    print(page)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "sketches": sketches}, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        put("decisions", page)
        print("\nWrote docs/records/decisions.md")


def _page(
    rows: list[dict[str, Any]], sketches: list[dict[str, Any]], clients: int, arguments: argparse.Namespace
) -> str:
    import numpy as np

    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    tables = ["\n".join(table(rows, work)) for work in TITLES if any(row["work"] == work for row in rows)]
    about = (
        f"Made by `python benchmarks/decisions.py --write` on {CORES} cores of {cpu}: numpy {np.__version__}, python "
        f"{platform.python_version()}. Updates of {arguments.numbers:,} numbers; a tenth of the clients chosen, but at "
        f"most 100; parts with their default options. Medians of {arguments.repeats} calls, fewer where they are slow, "
        f"and the memory that a call takes in addition to what the server keeps. With {SKETCHED_FROM:,} clients, parts "
        f"that read updates keep a sketch of {SKETCH} numbers each."
    )
    loss = f"What a sketch loses, with {clients:,} clients whose updates mix ten directions, and noise:"
    parts = [textwrap.fill(about, 120), *tables, loss, "\n".join(sketch_table(sketches))]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
