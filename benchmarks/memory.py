"""Memory and disk of federations, up to a million clients, and 100,000 clients with a million numbers each.

    python benchmarks/memory.py --quick            # a smoke test, half a minute
    python benchmarks/memory.py --parts minimax    # some rows, printed only
    python benchmarks/memory.py --write            # all of them; puts the table into docs/records/memory.md

Each row is measured in its own process: peak main memory with Python and torch (Linux: VmHWM), the size of the run
folder, and the seconds until the first round begins, of a round and of a checkpoint. Rows that train measure whole
rounds; rows of a table measure the server's part of a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from page import processor, put

COHORT = 100
FEW = 10  # a cohort of clients with many examples
SKETCH = 256  # numbers kept of an update where not all are
ROUNDS = 4
IMAGE = (1, 28, 28)
LARGE_IMAGE = (3, 224, 224)
LIMIT = 8 * 2**30  # bytes of main memory that a row may ask for


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    clients: int
    numbers: int  # of a model, or of a row of a table
    measure: Callable[[Row, Path], dict[str, float]]
    options: dict[str, Any]
    bytes_of_data: int = 0


# -------------------------------------------------------------------------------------------------- what is measured


def run_rounds(simulation: Any, state: Any, folder: Path, began: float) -> dict[str, float]:
    """Return seconds to begin, and medians of a round and of the checkpoint after it."""
    from fedreach.runs.folder import RunFolder

    store, rounds, checkpoints = RunFolder(folder), [], []
    seconds_to_begin = time.perf_counter() - began
    for _ in range(ROUNDS):
        began = time.perf_counter()
        state = simulation.step(state).state
        rounds.append(time.perf_counter() - began)
        checkpoints.append(checkpoint(store, state))
    return {
        "begin": seconds_to_begin,
        "round": statistics.median(rounds),
        "checkpoint": statistics.median(checkpoints[1:]),
    }


def checkpoint(store: Any, state: Any) -> float:
    """Write a checkpoint and return its seconds."""
    import numpy as np

    from fedreach.runs.checkpoint import Snapshot, save

    began = time.perf_counter()
    save(store, Snapshot(state, 0, 0, np.inf, 0, {}))
    return time.perf_counter() - began


def images(clients: int, shape: tuple[int, ...]) -> Any:
    """Return a federation of two images a client."""
    import numpy as np

    from fedreach._util.streams import generator
    from fedreach.data.assignment import Partition
    from fedreach.data.datasets import from_arrays
    from fedreach.data.federated import federate

    x = generator(0, "images").integers(0, 256, (2 * clients, *shape), dtype=np.uint8)
    owner = np.arange(2 * clients) // 2
    dataset = from_arrays(x, np.arange(2 * clients) % 10, mean=[0.5] * shape[0], std=[0.25] * shape[0])
    return federate(dataset, Partition.from_owner(owner, num_clients=clients, kind="natural"))


def simulation_of(
    data: Any, model: str, cohort_size: int, solver: str = "fedavg", selection: Any = None, **options: Any
) -> Any:
    """Return a simulation of one step of SGD a client."""
    from fedreach.federation.federation import Federation
    from fedreach.federation.local_sgd import LocalSGD
    from fedreach.federation.selection import SELECTIONS
    from fedreach.federation.server import Average
    from fedreach.federation.solvers import SOLVERS
    from fedreach.federation.weighting import WEIGHTINGS
    from fedreach.runs.simulation import simulate

    federation = Federation(
        selection=selection or SELECTIONS["uniform"](),
        weighting=WEIGHTINGS["by_examples"](),
        solver=SOLVERS[solver](),
        local=LocalSGD(lr=0.01, steps=1, batch_size=2),
        server=Average(),
        cohort_size=cohort_size,
        seed=0,
    )
    return simulate(data, model, federation, rounds=ROUNDS, engine="vmap", **options)


def population(row: Row, folder: Path) -> dict[str, float]:
    """Rounds of logistic regression among very many clients."""
    began = time.perf_counter()
    simulation = simulation_of(images(row.clients, (1, 3, 3)), "linear", min(COHORT, row.clients))
    return run_rounds(simulation, simulation.start(), folder, began)


def training(row: Row, folder: Path) -> dict[str, float]:
    """Rounds in which clients may keep a vector as long as the model."""
    from fedreach._util.row_store import RowTable

    began = time.perf_counter()
    hidden = {"hidden": [max(1, row.numbers // 795)]}  # 784 inputs, 10 outputs, and a constant
    data = images(row.clients, IMAGE)
    simulation = simulation_of(data, "mlp", COHORT, row.options["solver"], model_options=hidden)
    file = folder / "memory.rows"
    state = replace(simulation, memory_file=file).start()
    if "dtype" in row.options:
        state = replace(state, memory=RowTable.zeros(*state.memory.shape, file, dtype=row.options["dtype"]))
    return run_rounds(simulation, state, folder, began)


def minimax(row: Row, folder: Path) -> dict[str, float]:
    """Rounds of training and of minimax on sketches, after every client was heard once, with made-up sketches."""
    import numpy as np

    from fedreach._util.streams import generator
    from fedreach.federation.selection.losses import Minimax
    from fedreach.federation.types import ClientResults

    began, policy = time.perf_counter(), Minimax(sketch=SKETCH)
    hidden = {"hidden": [max(1, row.numbers // 795)]}
    simulation = simulation_of(images(row.clients, IMAGE), "mlp", COHORT, selection=policy, model_options=hidden)
    state, rng = simulation.start(), generator(0, "sketches")
    sketches = rng.standard_normal((row.clients, SKETCH), dtype=np.float32)
    told = policy.observe(state.selection, ClientResults(simulation.first_view.ids, sketches, {}, probe=True))
    del sketches
    return run_rounds(simulation, replace(state, selection=told, round=1), folder, began)


def table(row: Row, folder: Path) -> dict[str, float]:
    """The server's table of updates: hearing all clients once, and then a cohort a round."""
    import numpy as np

    from fedreach._util.streams import generator
    from fedreach.federation.selection import geometry
    from fedreach.federation.selection.geometry import GradientTable
    from fedreach.federation.state import FederationState
    from fedreach.federation.types import ClientResults, ServerView
    from fedreach.runs.folder import RunFolder

    began, rng, store = time.perf_counter(), generator(0, "updates"), RunFolder(folder)
    options = dict(row.options)
    if options.pop("whole", False):
        geometry.LARGE = 2**62  # as small tables are kept
    policy, ids = GradientTable(**options), np.arange(row.clients)
    block = rng.standard_normal((max(1, 2**24 // row.numbers), row.numbers), dtype=np.float32)
    state = policy.init(ServerView.of(ids, np.full(row.clients, 10)))
    for some in np.array_split(ids, -(-row.clients // len(block))):
        state = policy.observe(state, ClientResults(some, block[: len(some)], {}, probe=True))
    seconds = {"begin": time.perf_counter() - began}
    rounds, checkpoints = [], []
    for number in range(2, ROUNDS + 3):
        cohort = np.sort(rng.choice(ids, size=min(COHORT, len(block), row.clients), replace=False))
        began = time.perf_counter()
        state = policy.observe(state, ClientResults(cohort, block[: len(cohort)], {}, round=number))
        rounds.append(time.perf_counter() - began)
        nothing = np.zeros(row.clients)
        whole = FederationState(number, block[:1, :1], ids * 0, nothing, state, {}, ({},), ({},))
        checkpoints.append(checkpoint(store, whole))
    return seconds | {"round": statistics.median(rounds), "checkpoint": statistics.median(checkpoints[1:])}


def mapped(row: Row, folder: Path) -> dict[str, float]:
    """Rounds of logistic regression on images that stay on disk; the file has holes, so that it takes no room here."""
    import numpy as np

    from fedreach._util.streams import generator
    from fedreach.data import stored as mapped
    from fedreach.data.federated import federate
    from fedreach.data.partition import iid

    samples = row.bytes_of_data // int(np.prod(LARGE_IMAGE))
    data_folder = folder.with_name("data")
    data_folder.mkdir()
    np.lib.format.open_memmap(data_folder / "x.npy", "w+", np.uint8, (samples, *LARGE_IMAGE))
    np.save(data_folder / "y.npy", np.arange(samples) % 10)
    # What `index_folder` would note, but for the hash: reading the holes would take a minute and tell nothing.
    note = {"kind": "image", "num_classes": 10, "sha256": "0" * 64, "mean": [0.5] * 3, "std": [0.25] * 3}
    note["arrays"] = {name: mapped._describe_array(array) for name, array in mapped._arrays(data_folder).items()}
    (data_folder / mapped.NOTE).write_text(json.dumps(note), encoding="utf-8")
    began = time.perf_counter()
    dataset = mapped.from_folder(data_folder)
    data = federate(dataset, iid(dataset.train_y, row.clients, generator(0, "partition")))
    simulation = simulation_of(data, "linear", FEW)
    return run_rounds(simulation, simulation.start(), folder, began)


def rounding(clients: int, numbers: int) -> dict[str, float]:
    """Return what float16 does to the cosines of updates and to whom minimax chooses among them."""
    import numpy as np

    from decisions import cohort, updates
    from fedreach._util.arrays import pack_rows, unpack_rows
    from fedreach.federation.selection.geometry import first_by_similarity, gram, inverse, lengths

    def cosines(rows: Any) -> Any:
        return gram(rows, inverse(lengths(rows)))[np.triu_indices(len(rows), 1)]

    rows, k = updates(clients, numbers)(np.arange(clients)), cohort(clients)
    rounded = unpack_rows(pack_rows(rows))
    off = np.abs(cosines(rounded) - cosines(rows))
    same = len(np.intersect1d(first_by_similarity(rows, k), first_by_similarity(rounded, k))) / k
    return {"largest": float(off.max()), "root_mean_square": float(np.sqrt((off**2).mean())), "overlap": same}


def rows_of(*, quick: bool) -> dict[str, Row]:
    """Return the lines of the table by name."""
    people, many, some = (10**3, 500, 300) if quick else (10**6, 10**5, 10**4)
    million, long = (5_000, 20_000) if quick else (10**6, 10**5)
    data = 2 * 10**8 if quick else 50 * 10**9
    rows = {
        "population": Row("uniform, logistic regression", people, 100, population, {}),
        "fedavg": Row("FedAvg, clients keep nothing", many, million, training, {"solver": "fedavg"}),
        "scaffold": Row("SCAFFOLD, memory on disk", many, million, training, {"solver": "scaffold"}),
        "scaffold16": Row(
            "SCAFFOLD, memory on disk, float16", many, million, training, {"solver": "scaffold", "dtype": "float16"}
        ),
        "feddyn": Row("FedDyn, memory on disk", many, million, training, {"solver": "feddyn"}),
        "minimax": Row(f"minimax, sketch of {SKETCH}", many, million, minimax, {}),
        "copied": Row("table, copied and stored whole", many, SKETCH, table, {"whole": True}),
        "table": Row("table", many, SKETCH, table, {}),
        "table16": Row("table, float16", many, SKETCH, table, {"dtype": "float16"}),
        "long": Row("table", some, long, table, {}),
        "long16": Row("table, float16", some, long, table, {"dtype": "float16"}),
        "disk": Row("table on disk", some, long, table, {"storage": "disk"}),
        "disk16": Row("table on disk, float16", some, long, table, {"dtype": "float16", "storage": "disk"}),
        "mapped": Row("images on disk", 1000, 1_505_290, mapped, {}, bytes_of_data=data),
    }
    if quick:
        rows["mapped"] = replace(rows["mapped"], clients=200)
    return rows


# -------------------------------------------------------------------------------------------------- all measurements


def peak_bytes() -> int:
    """Return the most main memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # `ru_maxrss` would begin with that of the process that started this one
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a process of its own finds."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        quick = ["--quick"] if arguments.quick else []
        command = [sys.executable, __file__, "--cell", name, "--folder", folder, *quick]
        environment = {**os.environ, "TMPDIR": folder}  # nameless files lie there, too
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"{name} failed: {done.stderr.strip()[-2000:]}")
        return {"name": name, **json.loads(done.stdout.splitlines()[-1])}


def cell(name: str, folder: Path, *, quick: bool) -> None:
    """Measure one line and print it."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT,) * 2)  # mapped files do not count
    if name == "rounding":
        print(json.dumps(rounding(*((60, 500) if quick else (1_000, 100_000)))))
        return
    row, store = rows_of(quick=quick)[name], folder / "run"
    store.mkdir()
    found = row.measure(row, store)
    stored = sum(file.stat().st_size for file in store.glob("*"))
    print(json.dumps({**found, "peak_mb": peak_bytes() / 1e6, "disk_mb": stored / 1e6}))


def lines(rows: list[dict[str, Any]], known: dict[str, Row]) -> str:
    """Return the table in Markdown."""
    head = "what | clients x numbers | main memory, MB | run folder, MB | to begin | a round | its checkpoint"
    found = [f"| {head} |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        about = known[row["name"]]
        what = about.what + (f", {about.bytes_of_data / 1e9:g} GB" if about.bytes_of_data else "")
        times = [row[key] for key in ("begin", "round", "checkpoint")]
        seconds = " | ".join(f"{time:.2g} s" if time < 99.5 else f"{time:.0f} s" for time in times)
        sizes = f"{row['peak_mb']:,.0f} | {row['disk_mb']:,.0f}"
        found.append(f"| {what} | {about.clients:,} x {about.numbers:,} | {sizes} | {seconds} |")
    return "\n".join(found)


def section(rows: list[dict[str, Any]], known: dict[str, Row], loss: dict[str, Any] | None) -> str:
    """Return the section of the page."""
    import numpy as np
    import torch

    about = (
        f"Made by `python benchmarks/memory.py --write` on {len(os.sched_getaffinity(0))} cores of {processor()}: "
        f"numpy {np.__version__}, torch {torch.__version__}, python {platform.python_version()}. Each row is a "
        f"process; main memory is the most that it held, Python and torch included. Cohorts of {COHORT}, "
        f"clients of two examples; where images are on disk, cohorts of {FEW} of clients that share them all. To begin "
        "means from importing torch to the first round. "
        "Rows of training are whole rounds of one step, of which a cohort's updates of a million numbers are 400 MB; "
        "rows of a table are the server's share: hearing all clients once, then a cohort a round."
    )
    cannot = (
        "What is not possible: the full table of 100,000 clients x 1,000,000 numbers is 400 GB, in main memory or on "
        "disk, and choosing by it reads all of it every round; that needs a sketch. Nor can all clients be asked in "
        "one round there, as their updates would be 400 GB at once: the row of minimax begins with synthetic sketches "
        "of all clients. What clients keep lies in a file that holds only the rows of those that have trained."
    )
    parts = [textwrap.fill(about, 120), lines(rows, known), textwrap.fill(cannot, 120)]
    if loss:
        rounds_off = (
            "Rows in float16 (with a power of two of their own) take half the bytes. Of 1,000 clients whose updates of "
            f"100,000 numbers mix ten directions, and noise, cosines are then off by at most {loss['largest']:.1g}, in "
            f"the root mean square {loss['root_mean_square']:.1g}, and {loss['overlap']:.0%} of minimax's choice is "
            "the same; the bound is 2^-10, and a sketch of 4,096 numbers is off by 0.07 (above)."
        )
        parts.append(textwrap.fill(rounds_off, 120))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", nargs="+", choices=list(rows_of(quick=True)), help="rows of the table (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="few clients, few numbers")
    parser.add_argument("--folder", type=Path, help="where 10 GB may lie for a while (default: that for such files)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/memory.md")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        cell(arguments.cell, arguments.folder, quick=arguments.quick)
        return
    known, rows = rows_of(quick=arguments.quick), []
    for name in arguments.parts or known:
        began = time.perf_counter()
        rows.append(measured(name, arguments))
        print(f"{name}: {rows[-1]} in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    loss = None if arguments.parts else measured("rounding", arguments)
    page = section(rows, known, loss)
    print(page)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "rounding": loss}, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        put("memory", page)


if __name__ == "__main__":
    main()
