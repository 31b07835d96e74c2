"""Builder of the objects that an experiment names."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedreach._util import registry
from fedreach._util.errors import ConfigError
from fedreach.data.assignment import Partition, without_empty
from fedreach.data.datasets import Dataset
from fedreach.data.federated import FederatedData, draw_partition, federate, noisy_before_split
from fedreach.data.own import FILES, of_file
from fedreach.data.sets import load
from fedreach.data.shifts import shift_unseen
from fedreach.data.stored import OwnData
from fedreach.data.validation import for_validation
from fedreach.engines.choice import EngineChoice, choose, examine_named
from fedreach.engines.models.networks import build as build_model
from fedreach.engines.models.outputs import with_functions
from fedreach.engines.protocols import Task
from fedreach.evaluation.metrics import AUROC, Metric, reject_metrics
from fedreach.experiment import components
from fedreach.experiment.schema import EvaluationSection, Experiment
from fedreach.federation.adaptation.fitting import UNFITTED, next_query, no_held_out_error
from fedreach.federation.attacks import Attackers
from fedreach.federation.base import name_of
from fedreach.federation.disclosure import Disclosed, what_the_server_learns
from fedreach.federation.federation import Federation, check_federation_targets
from fedreach.runs.simulation import Simulation, simulate


@dataclass(frozen=True)
class Builder:
    """Builder of the objects of an experiment; paths in the experiment are relative to `base`."""

    experiment: Experiment
    base: Path

    def dataset(self, *, progress: bool = False) -> Dataset | OwnData:
        """Read the data set, and download missing files if the experiment allows it."""
        data = self.experiment.data
        folder = None if data.folder is None else self.base / data.folder
        if ":" in data.name:
            dataset = registry.find("data", data.name, self.base)(**data.options)
            if not isinstance(dataset, Dataset):
                raise ConfigError(f"data.name: {data.name!r} must return a Dataset; got {type(dataset).__name__}.")
            return dataset
        if data.name.endswith(FILES):
            return of_file(self.base / data.name, **data.options)
        name = str(self.base / data.name) if data.name.endswith((".npz", ".npy")) else data.name
        return load(name, folder, download=data.download, progress=progress, **data.options)

    def federated(self, dataset: Dataset | OwnData, seed: int) -> FederatedData:
        """Partition the data set, choose participants, draw held-out and server data, and add noise and shift.

        The result depends only on ``population.seed``, or on `seed` if ``population.seed`` is not set. All methods of a
        comparison share the data. If ``partition.seed`` is set, FedReach uses it for everything except the choice of
        participants, the shift and the validation data.
        """
        e = self.experiment
        p, server_data = e.population, e.server_data
        seed = seed if p.seed is None else p.seed
        partition_seed = seed if e.partition.seed is None else e.partition.seed
        participants = p.participants
        data = federate(
            dataset,
            self._partition(dataset, partition_seed),
            seed=partition_seed,
            population_seed=seed,
            participants=None if isinstance(participants, str) else participants,
            exclude_clients=p.exclude_clients,
            exclude_labels=p.exclude_labels,
            held_out=p.held_out,
            noise=self._noise,
            server_examples=None if server_data is None else server_data.examples,
            server_data=None if server_data is None or server_data.file is None else self.base / server_data.file,
        )
        if not data.dataset.num_classes:
            for option, value in {
                "target_accuracy": e.target_accuracy,
                "statistics.detect_points": e.plan.detect_points,
            }.items():
                if value is not None:
                    raise ConfigError(
                        f"{option} needs classes as targets; the targets of {data.dataset.name} are numbers. Remove "
                        f"{option}."
                    )
        if e.shift is not None:
            data = shift_unseen(data, components.make("shift", e.shift, self.base), share=e.shift.share, seed=seed)
        return data if p.validation is None else for_validation(data, p.validation, seed)

    @property
    def _noise(self) -> dict[str, Any] | None:
        noise = self.experiment.noise
        return None if noise is None else {"kind": noise.name, **noise.options}

    def _partition(self, dataset: Dataset | OwnData, seed: int) -> Partition:
        section, noise = self.experiment.partition, self._noise
        if section.file is not None:
            return without_empty(Partition.load(self.base / section.file), section.empty)
        make = registry.find("partition", section.name, self.base)
        drawn = section.clients, seed, section.options, section.empty
        labels = None
        if noise is not None and noise.get("scope") == "before_split" and dataset.num_classes:
            labels = noisy_before_split(dataset, noise, seed).labels
        return draw_partition(dataset, section.name, make, *drawn, labels)

    def federation(self, seed: int) -> Federation:
        """Return the federation that `[method]` describes."""
        return components.federation(self.experiment, seed, self.base)

    def compared(self, dataset: Dataset | OwnData) -> FederatedData:
        """Return the data of a comparison's first seed, after checking that all methods and metrics accept the data.

        If settings are swept or tuned, they define the methods, so each run checks its own method.

        Raises:
            ConfigError: If a method or metric needs classes and the targets are numbers, or vice versa.
        """
        e = self.experiment
        data = self.federated(dataset, e.seeds[0])
        reject_metrics(self.metrics(), data.dataset)
        if not e.methods:
            self._check_held_out(data, self.federation(e.seeds[0]))
        for name in e.methods if e.sweep is None and e.tune is None else ():
            try:
                federation = components.federation(e.resolved(name), e.seeds[0], self.base)
                check_federation_targets(federation, data.dataset)
                self._check_held_out(data, federation)
            except ConfigError as error:
                raise ConfigError(f"methods.{name}: {error}") from None
        return data

    def _check_held_out(self, data: FederatedData, federation: Federation) -> None:
        """Reject options that rely on held-out data where participants hold none out, or where the model trains on it.

        An adaptation rule is fitted on held-out rows. A refitted model has trained on these rows.
        """
        if self.experiment.population.refit and next_query(federation.adaptation, UNFITTED) is not None:
            raise ConfigError(
                f"population.refit trains on held-out examples, to which adaptation {name_of(federation.adaptation)} "
                "is fitted; the fit would be biased. Remove population.refit, or use adaptation = 'none'."
            )
        if data.held_out.sizes[data.population.participants].any():
            return
        if next_query(federation.adaptation, UNFITTED) is not None:
            raise no_held_out_error(federation.adaptation)
        if self.experiment.evaluation.patience is not None:
            raise ConfigError(
                "evaluation.patience needs held-out examples of participants; got none. Remove evaluation.patience."
            )
        if self.experiment.population.refit:
            raise ConfigError(
                "population.refit needs held-out examples of participants; got none, so the model already trains on "
                "all rows. Remove population.refit."
            )

    def choice(self, data: FederatedData, seed: int, threads: int = 1) -> EngineChoice:
        """Return the fastest engine according to a short trial."""
        e, task = self.experiment, self._task(data, seed)
        return choose(task, e.engine.device, threads, e.engine.precision, cohort_size=self.federation(seed).cohort_size)

    def examine_named_engine(self, data: FederatedData, seed: int) -> str | None:
        """Return a warning if another engine replaces the named engine (see `engines.choice.examine_named`)."""
        engine = self.experiment.engine
        return examine_named(engine.name, self._task(data, seed), engine.device)

    def _task(self, data: FederatedData, seed: int) -> Task:
        shape, outputs = data.dataset.sample_shape, data.dataset.outputs
        module = build_model(self.model(), shape, outputs, seed=0, options=self.model_options())
        return Task.of(module, data, self.federation(seed))

    def attackers(self, data: FederatedData, seed: int) -> Attackers:
        """Return the malicious participants of a run with this seed."""
        section = self.experiment.attack
        if section is None:
            return Attackers.nobody()
        attack = components.make("attack", section, self.base)
        return Attackers.draw(attack, data.population.participants, section.share, seed)

    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics that score models."""
        return tuple(components.make("metric", choice, self.base) for choice in self.experiment.evaluation.metrics)

    def metrics_of(self, dataset: Dataset | OwnData) -> tuple[Metric, ...]:
        """Return the metrics for a data set; for two classes, they include `AUROC` unless metrics are named."""
        named = self.experiment.evaluation.metrics != EvaluationSection().metrics
        return self.metrics() if named or dataset.num_classes != 2 else (*self.metrics(), AUROC())

    def what_the_server_learns(self, federation: Federation) -> list[Disclosed]:
        """Return what the server of one method's federation learns about clients on Flower."""
        names = [metric.name for metric in self.metrics() if metric.name not in ("accuracy", "loss", "mae")]
        own_tables = bool({"label", "target"} & self.experiment.data.options.keys())
        return what_the_server_learns(federation, metrics=names, tables=own_tables)

    def model(self) -> str | Callable[..., nn.Module]:
        """Return the model's name, or the user's function that creates the model."""
        name = self.experiment.model.name
        return name if ":" not in name else registry.find("model", name, self.base)

    def model_options(self) -> dict[str, Any]:
        """Return the model's options; if `output` names a function, the options contain the function itself."""
        return with_functions(self.experiment.model.options, self.base)

    def simulation(self, data: FederatedData, seed: int, threads: int = 1, *, examined: bool = False) -> Simulation:
        """Return the simulation of the federation, with data, model and engine; `simulate` describes `examined`."""
        federation = self.federation(seed)
        self._check_held_out(data, federation)
        n = len(data.population.participants)
        if federation.cohort_size > n and not federation.selection.ignores_cohort:
            raise ConfigError(
                f"method.cohort_size must be at most the {n} participants; got {federation.cohort_size}. Lower it, or "
                "let more clients participate."
            )
        return self._build_simulation(data, federation, threads, examined=examined)

    def refit_simulation(self, data: FederatedData, seed: int, threads: int = 1) -> Simulation:
        """Return the simulation of a refit, which also trains on held-out examples (see `on_all_rows`)."""
        return self._build_simulation(data, self.federation(seed), threads, examined=True)  # by the run before

    def _build_simulation(
        self, data: FederatedData, federation: Federation, threads: int, *, examined: bool
    ) -> Simulation:
        e = self.experiment
        return simulate(
            data,
            self.model(),
            federation,
            rounds=e.rounds,
            model_options=self.model_options(),
            model_seed=e.model.seed,
            engine=e.engine.name,
            device=e.engine.device,
            threads=threads,
            precision=e.engine.precision,
            participation=components.make("participation", e.population.participation, self.base),
            drop_failing=e.run.on_failure == "drop",
            examined=examined,
            attackers=self.attackers(data, federation.seed),
        )
