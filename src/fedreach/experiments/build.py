"""The only place where names in an experiment become objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreach.data.catalogue import load
from fedreach.data.datasets import Dataset
from fedreach.data.federated import FederatedData, federate
from fedreach.data.partition import Partition, handle_empty
from fedreach.engines.simulation import Simulation, simulate
from fedreach.errors import ConfigError, DataError
from fedreach.experiments import names
from fedreach.experiments.config import Choice, Experiment
from fedreach.federation.round import Federation
from fedreach.federation.selection import FunctionSelection
from fedreach.federation.solvers import LocalSGD
from fedreach.federation.weighting import FunctionWeighting
from fedreach.streams import generator


@dataclass(frozen=True)
class Builder:
    """Builds the objects of an experiment; paths in it are relative to `base`."""

    experiment: Experiment
    base: Path

    def dataset(self, *, progress: bool = False) -> Dataset:
        """Read the data set, downloading it where the experiment allows."""
        data = self.experiment.data
        folder = None if data.folder is None else self.base / data.folder
        if ":" in data.name:
            made = names.find("data", data.name, self.base)(**data.options)
            if not isinstance(made, Dataset):
                raise ConfigError(f"data.name: {data.name!r} must return a Dataset; got {type(made).__name__}.")
            return made
        name = str(self.base / data.name) if data.name.endswith(".npz") else data.name
        return load(name, folder, download=data.download, progress=progress, **data.options)

    def federated(self, dataset: Dataset, seed: int) -> FederatedData:
        """Partition the data set, choose who takes part, hold data out and add label noise.

        All of it depends on ``population.seed``, or on `seed` where that is not set, and on nothing else, so that
        all methods of a comparison share it.
        """
        e = self.experiment
        p = e.population
        seed = seed if p.seed is None else p.seed
        return federate(
            dataset,
            self._without_empty(self._partition(dataset, seed)),
            seed=seed,
            participants=p.participants,
            exclude_clients=p.exclude_clients,
            exclude_labels=p.exclude_labels,
            held_out=p.held_out,
            noise=None if e.noise is None else {"kind": e.noise.name, **e.noise.options},
        )

    def _without_empty(self, partition: Partition) -> Partition:
        policy = self.experiment.partition.empty
        try:
            return handle_empty(partition, policy).partition
        except DataError as error:
            raise DataError(f"partition.empty = {policy!r}: {error}") from error

    def _partition(self, dataset: Dataset, seed: int) -> Partition:
        section = self.experiment.partition
        if section.file is not None:
            return Partition.load(self.base / section.file)
        make, options = names.find("partition", section.name, self.base), section.options
        num_clients = section.clients
        if section.name == "natural":
            if dataset.owners is None:
                raise ConfigError(f"partition.name is 'natural', but {dataset.name} has no natural clients.")
            options["owners"], num_clients = dataset.owners, int(dataset.owners.max()) + 1
        made: Partition = make(dataset.train_y, num_clients, generator(seed, "partition"), **options)
        return made

    def part(self, kind: str, choice: Choice) -> Any:
        """Return a part of a federation; a user's function is wrapped."""
        target = names.find(kind, choice.name, self.base)
        wrappers = {"selection": FunctionSelection, "weighting": FunctionWeighting}
        if kind in wrappers and not isinstance(target, type):
            return wrappers[kind](_with_options(target, choice.options))
        return target(**choice.options)

    def federation(self, seed: int) -> Federation:
        """Return the federation that `[method]` describes."""
        method = self.experiment.method
        return Federation(
            selection=self.part("selection", method.selection),
            weighting=self.part("weighting", method.weighting),
            solver=self.part("solver", method.solver),
            local=LocalSGD(**self.experiment.local.model_dump()),
            server=self.part("server", method.server),
            cohort=method.cohort,
            seed=seed,
        )

    def simulation(self, data: FederatedData, seed: int, threads: int = 1) -> Simulation:
        """Return the federation on its data, with model and engine."""
        e = self.experiment
        federation = self.federation(seed)
        n = len(data.population.participants)
        if e.method.cohort > n and not getattr(federation.selection, "ignores_cohort", False):
            raise ConfigError(
                f"method.cohort must be at most the {n} participants; got {e.method.cohort}. "
                "Lower it or let more clients take part."
            )
        return simulate(
            data,
            e.model.name if ":" not in e.model.name else names.find("model", e.model.name, self.base),
            federation,
            rounds=e.rounds,
            model_options=e.model.options,
            engine=e.engine.name,
            device=e.engine.device,
            threads=threads,
            participation=self.part("participation", e.population.participation),
            drop_failing=e.run.on_failure == "drop",
        )


def _with_options(function: Any, options: dict[str, Any]) -> Any:
    if not options:
        return function

    def configured(*args: Any) -> Any:
        return function(*args, **options)

    configured.__name__ = function.__name__
    configured.needs = getattr(function, "needs", ())  # type: ignore[attr-defined]
    return configured
