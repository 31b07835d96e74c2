"""Time of a round in FedReach's simulator, in FedReach on Flower, and in Flower alone.

    python benchmarks/flower.py                            # in Flower's simulation; prints a table
    python benchmarks/flower.py --deployment --write       # also between processes; into docs/records/flower.md

The digits over 20 clients, 5 per round, uniform selection, MLP 64-32-10, one epoch, batch 16. Only the first and the
last model are evaluated. FedReach writes rows and checkpoints as in any run. Flower's own FedAvg trains the same model
on the same examples and writes nothing. `flwr run` starts each run in its own process. Training has one thread and
Flower's simulation one Ray actor. The contenders take turns. Times are between the ends of rounds, without the first
round, in which actors start, and the last, in which FedReach evaluates. A deployment is a SuperLink and three
SuperNodes on this machine, without TLS; all three train in each round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(HERE / "peers"), str(ROOT / "tests" / "flower")]

from page import processor, put  # noqa: E402

PAGE = ROOT / "docs" / "records" / "flower.md"
PEERS = {"fedreach": "flower_fedreach", "flower": "flower_stock"}  # the module that holds both apps
TITLES = {"simulator": "FedReach's simulator", "fedreach": "FedReach on Flower", "flower": "Flower's FedAvg"}
Ways = dict[str, list[float]]  # way -> seconds a round, of each run
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
PYPROJECT = """\
[project]
name = "rounds"
version = "1.0.0"
[tool.flwr.app]
publisher = "fedreach"
[tool.flwr.app.components]
serverapp = "{module}:server_app"
clientapp = "{module}:client_app"
[tool.flwr.app.config]
out = ""
"""


def overrides(clients: int, cohort_size: int, rounds: int) -> list[str]:
    """Return the experiment, as options of ``fedreach run --set``."""
    options = {
        "rounds": rounds,
        "partition.clients": clients,
        "population.participants": clients,
        "method.cohort_size": cohort_size,
        "local.batch_size": 16,
        "local.epochs": 1,
        "model.hidden": [32],
        "engine.name": "sequential",
        "engine.threads": 1,
        "evaluation.every": rounds,
    }
    return [f"{key}={value}" for key, value in options.items()]


def surroundings(folder: Path, clients: int, cohort_size: int, rounds: int) -> dict[str, str]:
    """Write the examples of each client for the plain app, and return the variables that both apps read."""
    from fedreach.flower.experiment import FlowerExperiment

    asked = overrides(clients, cohort_size, rounds)
    data = FlowerExperiment(overrides=tuple(asked)).data
    arrays = {}
    for client in range(clients):
        own = data.train[client]
        arrays[f"x{client}"] = data.dataset.train_x[own].astype(np.float32) / 16
        arrays[f"y{client}"] = data.dataset.train_y[own].astype(np.int64)
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    return {
        "BENCH_DATA": str(folder / "data.npz"),
        "BENCH_OVERRIDES": json.dumps(asked),
        "BENCH_CLIENTS": str(clients),
        "BENCH_COHORT": str(cohort_size),
        "BENCH_ROUNDS": str(rounds),
    }


# ---------------------------------------------------------------------------------------------------------------- runs


def run_simulator(out: Path, asked: list[str]) -> None:
    """Run in FedReach's simulator, in this process, and write down when rounds ended."""
    from fedreach.experiment.load import load
    from fedreach.experiment.run import run
    from fedreach.runs.callbacks import Callback

    ends: list[float] = []

    class Ends(Callback):
        def round(self, *told: Any) -> None:
            ends.append(time.perf_counter())

    experiment = load(None, asked).resolved()
    run(experiment, seed=0, folder=out, base=out.parent, callbacks=[Ends()])
    (out / "ends.json").write_text(json.dumps(ends))


def in_turn(
    folder: Path, ways: Sequence[str], repeats: int, clients: int, cohort_size: int, rounds: int, nodes: int
) -> Ways:
    """Return way -> seconds of a round, one for each repeat.

    Args:
        folder: For everything that is written.
        ways: Of `TITLES`.
        repeats: Runs of each way.
        clients: Of the federation.
        cohort_size: Clients a round.
        rounds: Of a run.
        nodes: SuperNodes, each a process that runs one client; 0: Flower simulates them.
    """
    from deployment import Deployment  # the tests' own way to start Flower's processes

    folder.mkdir()
    variables = surroundings(folder, clients, cohort_size, rounds)
    federation = "" if nodes else f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus=1"
    for way, module in PEERS.items():
        (folder / way).mkdir()
        (folder / way / "pyproject.toml").write_text(PYPROJECT.format(module=module))
        (folder / way / f"{module}.py").write_text((HERE / "peers" / f"{module}.py").read_text())
    found: Ways = {way: [] for way in ways}
    with Deployment(folder / "flower", nodes=nodes, simulation=not nodes, environment=variables) as flower:
        for number in range(repeats):
            for way in ways:
                out = folder / f"{way}-{number}"
                if way == "simulator":
                    command = [sys.executable, __file__, "--run", str(out)]
                    subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True)
                else:
                    flower.run(folder / way, out, federation=federation, seconds=600)
                    flower.until((out / "ends.json").exists, 30, "the times of rounds")
                    time.sleep(1)
                found[way].append(seconds_a_round(out))
                print(f"{number + 1}/{repeats} {TITLES[way]}: {found[way][-1]:.4f} s", file=sys.stderr)
    return found


def seconds_a_round(out: Path) -> float:
    """Return the median time between ends of rounds, without the first round and the last."""
    ends = json.loads((out / "ends.json").read_text())
    return statistics.median(after - before for before, after in list(pairwise(ends))[:-1])


# -------------------------------------------------------------------------------------------------------------- tables


def cell(values: list[float]) -> str:
    """Return median and range.

    Example:
        >>> cell([0.2, 0.1, 0.3])
        '0.200 (0.100 to 0.300)'
    """
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def table(found: dict[str, Ways]) -> str:
    """Return the lines of where -> way -> seconds a round, one for each repeat, and how FedReach compares."""
    lines = ["| seconds a round | FedReach's simulator | FedReach on Flower | Flower's FedAvg | ratio |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for where, ways in found.items():
        cells = [cell(ways[way]) if way in ways else "" for way in TITLES]
        ratios = [ours / theirs for ours, theirs in zip(ways["fedreach"], ways["flower"], strict=True)]
        lines.append(f"| {where} | {' | '.join(cells)} | {statistics.median(ratios):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s; a deployment's: at most 2")
    parser.add_argument("--rounds", type=int, default=30, help="of a run; default: %(default)s")
    parser.add_argument("--clients", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--cohort", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--deployment", action="store_true", help="also start a SuperLink and three SuperNodes")
    parser.add_argument("--deployment-rounds", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_simulator(arguments.run, json.loads(os.environ["BENCH_OVERRIDES"]))
        return
    os.environ |= QUIET
    load, began = os.getloadavg()[0], time.monotonic()
    n, k = arguments.clients, arguments.cohort
    with tempfile.TemporaryDirectory() as name:
        simulation = in_turn(Path(name, "a"), list(TITLES), arguments.repeats, n, k, arguments.rounds, nodes=0)
        found = {f"simulated, {k} of {n} clients": simulation}
        if arguments.deployment:
            repeats, rounds = min(2, arguments.repeats), arguments.deployment_rounds
            found["deployed, 3 SuperNodes"] = in_turn(Path(name, "b"), list(PEERS), repeats, 3, 3, rounds, nodes=3)
    print(table(found))
    if arguments.write:
        versions = ", ".join(f"{package} {version(package)}" for package in ("flwr", "numpy", "ray", "torch"))
        about = textwrap.fill(
            f"Made by `python benchmarks/flower.py{' --deployment' if arguments.deployment else ''} --write` in "
            f"{(time.monotonic() - began) / 60:.0f} minutes on {os.cpu_count()} cores of {processor()} (load when it "
            f"began: {load:.1f}): python {platform.python_version()}, {versions}. Median and range of "
            f"{arguments.repeats} runs, in a deployment of {min(2, arguments.repeats)}; the ratio is FedReach on "
            "Flower to Flower's FedAvg, run by run. A ratio that differs from 1 by less than a step of waiting is no "
            "difference.",
            120,
        )
        put("overhead", f"{about}\n\n{table(found)}", PAGE)


if __name__ == "__main__":
    main()
