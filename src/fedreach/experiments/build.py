"""The only place where names in an experiment become objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.data.catalogue import load
from fedreach.data.datasets import Dataset
from fedreach.data.federated import FederatedData, split_held_out
from fedreach.data.noise import LabelNoise
from fedreach.data.partition import Partition, handle_empty
from fedreach.data.population import draw_population
from fedreach.engines import build_engine
from fedreach.engines.simulation import Simulation
from fedreach.errors import ConfigError, DataError
from fedreach.experiments import names
from fedreach.experiments.config import Choice, Experiment
from fedreach.federation.participation import Participation
from fedreach.federation.round import Federation
from fedreach.federation.selection import FunctionSelection
from fedreach.federation.solvers import LocalSGD
from fedreach.federation.weighting import FunctionWeighting
from fedreach.models import build as build_model
from fedreach.streams import generator, torch_seed


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
        seed = seed if e.population.seed is None else e.population.seed
        partition = handle_empty(self._partition(dataset, seed), e.partition.empty).partition
        train, held_out = split_held_out(partition, e.population.held_out, generator(seed, "held-out"))
        population = draw_population(
            partition.label_counts(dataset.train_y, dataset.num_classes),
            generator(seed, "population"),
            participants=e.population.participants,
            exclude_clients=e.population.exclude_clients,
            exclude_labels=e.population.exclude_labels,
        )
        labels, noise = dataset.train_y, None
        if e.noise is not None:
            # Only training labels are corrupted: what is held out must measure the truth.
            rng = generator(seed, "noise")
            mine = Partition(np.arange(len(train.order)), train.offsets, kind=partition.kind, parameters={})
            make = names.find("noise", e.noise.name, self.base)
            about = {"kind": e.noise.name, "num_classes": dataset.num_classes, "partition": mine}
            made: LabelNoise = make(labels[train.order], rng, **about, **e.noise.options)
            labels = labels.copy()
            labels[train.order] = made.labels
            noise = made.record
        return FederatedData(dataset, labels, partition, population, train, held_out, noise)

    def _partition(self, dataset: Dataset, seed: int) -> Partition:
        section = self.experiment.partition
        if section.file is not None:
            partition = Partition.load(self.base / section.file)
            if len(partition.order) != len(dataset.train_y):
                raise DataError(
                    f"partition.file {section.file} divides {len(partition.order)} samples, but {dataset.name} has "
                    f"{len(dataset.train_y)} training samples. It belongs to another data set."
                )
            return partition
        make, options = names.find("partition", section.name, self.base), section.options
        num_clients = section.clients
        if section.name == "natural":
            if dataset.owners is None:
                raise ConfigError(f"partition.name is 'natural', but {dataset.name} has no natural clients.")
            options["owners"], num_clients = dataset.owners, int(dataset.owners.max()) + 1
        return make(dataset.train_y, num_clients, generator(seed, "partition"), **options)  # type: ignore[no-any-return]

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

    def simulation(self, data: FederatedData, seed: int) -> Simulation:
        """Return the federation on its data, with model and engine."""
        e = self.experiment
        federation = self.federation(seed)
        n = len(data.population.participants)
        if e.method.cohort > n and not getattr(federation.selection, "ignores_cohort", False):
            raise ConfigError(
                f"method.cohort must be at most the {n} participants; got {e.method.cohort}. "
                "Lower it or let more clients take part."
            )
        model = e.model.name if ":" not in e.model.name else names.find("model", e.model.name, self.base)
        module = build_model(
            model,
            data.dataset.train_x.shape[1:],
            data.dataset.num_classes,
            seed=torch_seed(seed, "model"),
            options=e.model.options,
        )
        engine = build_engine(e.engine.name, module, data, federation.solver, federation.local, seed, e.engine.device)
        participation: Participation = self.part("participation", e.population.participation)
        return Simulation(federation, data, engine, e.rounds, participation, e.run.on_failure == "drop")


def _with_options(function: Any, options: dict[str, Any]) -> Any:
    if not options:
        return function

    def configured(*args: Any) -> Any:
        return function(*args, **options)

    configured.__name__ = function.__name__
    configured.needs = getattr(function, "needs", ())  # type: ignore[attr-defined]
    return configured
