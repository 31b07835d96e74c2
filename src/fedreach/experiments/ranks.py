"""One run in many processes: what they agree on before the first round.

Rank 0 says what it runs; all read their data at the same time; rank 0 says which engine it chose and which federation
it found; the others answer that theirs are the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedreach.config.sections import Experiment
from fedreach.config.user_code import locate_user_errors
from fedreach.data.all_rows import on_all_rows
from fedreach.data.federated import FederatedData
from fedreach.engines.engine import TorchEngine
from fedreach.engines.parallel.distributed import FURTHER, DistributedEngine, serve
from fedreach.engines.parallel.ranks import Ranks
from fedreach.errors import ConfigError, DataError
from fedreach.experiments.build import Builder
from fedreach.runs.describe import environment
from fedreach.simulation.simulation import Simulation


def placed(experiment: Experiment, ranks: Ranks | None, engine: str | None = None) -> Experiment:
    """Return the experiment as this process builds it: on its device, with this engine in place of ``auto``."""
    if ranks is None:
        return experiment
    section = experiment.engine
    update = {"device": ranks.device(section.device), "name": engine or section.name}
    return experiment.model_copy(update={"engine": section.model_copy(update=update)})


def announce(identity: Mapping[str, Any], ranks: Ranks) -> None:
    """Tell the other ranks what is run, so that they read their data meanwhile."""
    for rank in range(1, ranks.size):
        ranks.send(_common(identity), rank)


def distributed(simulation: Simulation, ranks: Ranks) -> Simulation:
    """Return rank 0's simulation with its work handed out over all ranks, once these are ready.

    Raises:
        FedReachError: What another rank failed with.
    """
    for rank in range(1, ranks.size):
        ranks.send((simulation.engine.name, simulation.data.digest()), rank)
    for rank in range(1, ranks.size):
        ranks.receive(rank)
    assert isinstance(simulation.engine, TorchEngine)  # the builder made it
    return replace(simulation, engine=DistributedEngine(simulation.engine, ranks))


def distributed_again(simulation: Simulation, ranks: Ranks) -> Simulation:
    """Return rank 0's simulation of other data likewise, once the others are done with the one before."""
    for rank in range(1, ranks.size):
        ranks.send(FURTHER, rank)
    return distributed(simulation, ranks)


def serve_run(experiment: Experiment, identity: Mapping[str, Any], base: Path, threads: int, ranks: Ranks) -> None:
    """Serve rank 0 until its run is over; nothing is printed or written.

    Raises:
        ConfigError: If rank 0 runs something else.
        DataError: If rank 0 has other data.
        LostRankError: If rank 0 ends before its run is over.
    """
    theirs = ranks.receive(0)
    if theirs is None:  # the run was finished before
        return
    ours = _common(identity)
    if different := [name for name in ours if ours[name] != theirs[name]]:
        raise ConfigError(
            f"This rank was started for something else than rank 0: its {' and '.join(different)} differ. Start all "
            "ranks with the same files, the same options and the same versions of the packages."
        )
    with locate_user_errors(experiment, base):
        builder = Builder(experiment, base)
        data = builder.federated(builder.dataset(), identity["seed"])
        first = partial(Builder.simulation, examined=True)  # by rank 0
        if _serve(experiment, data, first, identity["seed"], base, threads, ranks):
            _serve(experiment, on_all_rows(data), Builder.refitted, identity["seed"], base, threads, ranks)


def _serve(
    experiment: Experiment,
    data: FederatedData,
    make: Callable[[Builder, FederatedData, int, int], Simulation],
    seed: int,
    base: Path,
    threads: int,
    ranks: Ranks,
) -> bool:
    """Serve rank 0 with the simulation that a builder makes of these data; return whether the run goes on after it."""
    engine, digest = ranks.receive(0)
    if data.digest() != digest:
        raise DataError(
            f"This rank reads other data than rank 0 (federation {data.digest()[:12]}, there {digest[:12]}). Copy "
            "the files of rank 0's machine to this one."
        )
    simulation = make(Builder(placed(experiment, ranks, engine), base), data, seed, threads)
    ranks.send("ready", 0)
    assert isinstance(simulation.engine, TorchEngine)  # the builder made it
    return serve(simulation.engine, ranks)


def _common(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has to be the same on all ranks: the run, and the packages whose arithmetic it uses."""
    here = environment()
    return {**identity, "packages": {"fedreach": here["fedreach"], **here["packages"]}}
