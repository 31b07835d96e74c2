"""FedReach on the benchmark's cases: whole rounds, with selection, shuffled batches, weighing and the server step.

python fedreach_run.py --case mlp --engine stacked            # prints one line of JSON
python fedreach_run.py --case mlp --engine stacked --check    # tests the result instead
"""

from __future__ import annotations

import argparse
import json
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from cases import Case
from measure import Clock, cannot, case_of, family_peak_rss_mb, largest_difference, make_row, parse_arguments, require
from plain_torch import run_round

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.data.assignment import Partition
from fedreach.data.checks import ExampleKind
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.splits import ClientIndex, Population
from fedreach.engines.choice import ENGINES, build_engine
from fedreach.engines.models.flat import Layout
from fedreach.engines.protocols import Task
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.types import Cohort, ServerView, State
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import Simulation


@dataclass(frozen=True)
class InTurns(fr.Selection):
    """All clients take turns, as in the other peers."""

    case: Case

    def init(self, view: ServerView) -> State:
        return {"round": np.zeros(1, np.int64)}

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(np.array(self.case.cohort_of(int(state["round"][0]))))

    def observe(self, state: State, reports: object) -> State:
        return {"round": state["round"] + 1}


def make_simulation(case: Case, engine: str, seed: int, threads: int, device: str = "cpu") -> Simulation:
    """Return the case as a simulation; everybody takes part, nothing is held out."""
    x, y = case.make_data(seed)
    n, m = y.shape
    kind: ExampleKind = "tokens" if case.tokens else "features"
    dataset = from_arrays(x.reshape(n * m, *x.shape[2:]), y.ravel(), kind=kind, num_classes=case.num_classes)
    order, offsets = np.arange(n * m), np.arange(0, n * m + 1, m)
    data = FederatedData(
        dataset,
        dataset.train_y,
        Partition(order, offsets, kind="iid", parameters={}),
        Population(np.arange(n), np.empty(0, np.int64)),
        train=ClientIndex(order, offsets),
        held_out=ClientIndex(np.empty(0, np.int64), np.zeros(n + 1, np.int64)),
        noise=None,
    )
    local = LocalSGD(lr=case.learning_rate, batch_size=case.batch_size)
    federation = Federation(InTurns(case), ByExamples(), FedAvg(), local, Average(), case.cohort_size, seed)
    try:
        built = build_engine(engine, Task(case.make_model(), data, federation.solver, local, seed), device, threads)
    except ConfigError as error:
        raise cannot(error) from error
    return Simulation(federation, data, built, rounds=1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="auto", choices=[*ENGINES, "auto"])
    arguments = parse_arguments(parser)
    case = case_of(arguments)
    if arguments.check:
        check(case, arguments.engine, arguments.seed, arguments.threads, arguments.device)
        return
    simulation = make_simulation(case, arguments.engine, arguments.seed, arguments.threads, arguments.device)
    state, clock = simulation.start(), Clock()
    for _ in range(arguments.warmup + arguments.rounds * arguments.repeats):
        state = simulation.step(state).state
        clock.lap()
    print(json.dumps(make_row(f"fedreach {arguments.engine}", case, arguments, clock, peak_mb=family_peak_rss_mb())))


def check(case: Case, engine: str, seed: int, threads: int, device: str) -> None:
    """Require that full-batch FedAvg is the plain loop's, and that a round of batches ends where `sequential` does."""
    whole = replace(case, batch_size=case.samples)
    simulation = make_simulation(whole, engine, seed, threads, device)
    net = deepcopy(simulation.engine.task.module).cpu()
    start = {name: value.detach().clone() for name, value in net.state_dict().items()}
    x, y = (torch.from_numpy(array) for array in case.make_data(seed))
    expected = run_round(start, net, x, y, case.cohort_of(0), batch_size=case.samples, learning_rate=case.learning_rate)
    found = Layout.of(net).views(torch.from_numpy(simulation.step(simulation.start()).state.params))
    error, moved = largest_difference(dict(found), expected), largest_difference(start, expected)
    require(error < 1e-6 < moved / 1000, f"{engine} is full-batch FedAvg: off by {error:.1e}, moved {moved:.1e}")

    ends = []
    for name in (engine, "sequential"):
        torch.manual_seed(seed)  # of the initial model
        simulation = make_simulation(case, name, seed, threads, device)
        state = simulation.start()
        begin = state.params
        ends.append(simulation.step(state).state.params)
    error, moved = (float(np.linalg.norm(ends[1] - other)) for other in (ends[0], begin))
    require(error < moved / 100, f"{engine} is sequential in a round of batches: off by {error:.1e}, moved {moved:.1e}")


if __name__ == "__main__":
    main()
