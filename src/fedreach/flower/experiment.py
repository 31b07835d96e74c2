"""Both sides of a Flower app from one experiment file, in the format of ``fedreach run``."""

from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from fedreach._util.errors import ConfigError
from fedreach.data.federated import FederatedData
from fedreach.evaluation.metrics import reject_metrics
from fedreach.experiment import components, load
from fedreach.experiment.build import Builder
from fedreach.experiment.components import identity
from fedreach.experiment.options import trackers_of
from fedreach.experiment.schema import Experiment
from fedreach.federation.attacks import Attack, Attackers
from fedreach.flower.app import client_app
from fedreach.flower.strategy import LOG, FedReachStrategy
from fedreach.runs.describe import federation_record
from fedreach.runs.folder import RunFolder
from fedreach.runs.simulation import Simulation
from fedreach.runs.trackers import NamedTracker, TrackerGroup

MAX_APPS = 8  # apps of experiments that a process keeps


class FlowerSetup:
    """An experiment for both sides of a Flower app."""

    def __init__(
        self,
        file: Path | str | None = None,
        *,
        overrides: tuple[str, ...] = (),
        method: str | None = None,
        seed: int | None = None,
    ) -> None:
        path = None if file is None else Path(file)
        self.base, self.method = components.folder_of(path), method
        self.experiment: Experiment = load.load(path, overrides).resolved(method)
        refuse_unsupported_options(self.experiment)
        self.seed = self.experiment.seeds[0] if seed is None else seed
        if self.seed < 0:
            raise ConfigError(f"The seed of a run must be at least 0; got {self.seed}.")

    @property
    def builder(self) -> Builder:
        """Builder of the components."""
        return Builder(self.experiment, self.base)

    def run(
        self, grid: Grid, folder: Path | str, *, min_clients: int = 1, patience: float = 60.0, timeout: float = 600.0
    ) -> Result:
        """Run the experiment. `FedReachStrategy` describes the arguments."""
        raise NotImplementedError

    def server_app(self, folder: Path | str = "runs/flower", *, patience: float = 60.0) -> ServerApp:
        """Return an app that runs the experiment.

        The app reads ``out`` (the run folder), ``min-clients``, ``patience`` and ``timeout`` from the run config. The
        arguments `folder` and `patience` are the default values.
        """
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            run_experiment(grid, context, self, folder, patience)

        return app


class FlowerExperiment(FlowerSetup):
    """An experiment whose clients are Flower's nodes.

    Server and clients read the same file and partition the same data set; each node uses only the part of its
    ``partition-id``. Use this class to compare a real federation with the simulator, or to test a deployment. For
    clients with their own data, use `fedreach.flower.app.client_app`.

    Args:
        file: Experiment file (see ``fedreach init``). None: the default experiment.
        overrides: Options such as ``"a.b=c"``, as for ``fedreach run --set``.
        method: Name of one of the experiment's methods; None: the components in ``[method]``.
        seed: Seed of the run; None: the first seed of the experiment.

    Raises:
        ConfigError: If the experiment is wrong or uses an option that Flower does not support.
    """

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without attributes that another process can recompute."""
        return {name: value for name, value in vars(self).items() if name not in ("data", "simulation", "attackers")}

    @cached_property
    def data(self) -> FederatedData:
        """The partitioned data set of the experiment."""
        return self.builder.federated(self.builder.dataset(), self.seed)

    @cached_property
    def simulation(self) -> Simulation:
        """The same federation in the simulator, from which the server uses model, engine and components."""
        engine = self.experiment.engine.model_copy(update={"name": "sequential"})
        return Builder(self.experiment.model_copy(update={"engine": engine}), self.base).simulation(
            self.data, self.seed
        )

    @cached_property
    def attackers(self) -> Attackers:
        """The malicious clients of the experiment."""
        return self.builder.attackers(self.data, self.seed)

    def client_app(self, *, kept_in_process: int = 8) -> ClientApp:
        """Return the app of all clients (see `fedreach.flower.app.client_app`).

        Flower's simulation copies the app to other processes, which load custom components from their files.
        """
        return _ExperimentApp(self, kept_in_process)

    def made_app(self, kept_in_process: int) -> ClientApp:
        """Return the app with components that are created in this process."""
        builder = self.builder
        attackers = self.attackers

        def attack_of(client: int) -> Attack | None:
            return attackers.attack if attackers.among(np.array([client]))[0] else None

        return client_app(
            builder.federation(self.seed),
            builder.model(),
            lambda context: self.data,
            model_options=builder.model_options(),
            model_seed=self.experiment.model.seed,
            device=self.experiment.engine.device,
            kept_in_process=kept_in_process,
            metrics=builder.metrics(),
            attack=attack_of,
        )

    def strategy(
        self, folder: Path | str, *, min_clients: int = 1, patience: float = 60.0, timeout: float = 600.0
    ) -> FedReachStrategy:
        """Return the strategy of the server. `FedReachStrategy` describes the arguments."""
        simulation, builder = self.simulation, self.builder
        name = self.experiment.engine.name
        if name not in ("auto", "sequential"):
            LOG.warning(
                f"engine sequential: engine.name = {name!r} has no effect on Flower, where each client trains "
                "separately"
            )
        reject_metrics(builder.metrics(), self.data.dataset)
        return FedReachStrategy(
            simulation.federation,
            simulation.engine.task.module,
            population=self.data.population,
            min_clients=min_clients,
            patience=patience,
            timeout=timeout,
            engine=simulation.engine,
            record=federation_record(simulation.data),
            attackers=simulation.attackers,
            **strategy_options(builder, self.seed, self.method, Path(folder)),
        )

    def run(
        self, grid: Grid, folder: Path | str, *, min_clients: int = 1, patience: float = 60.0, timeout: float = 600.0
    ) -> Result:
        return self.strategy(folder, min_clients=min_clients, patience=patience, timeout=timeout).run(grid)


class _ExperimentApp(ClientApp):
    """The app of an experiment; each process creates it from the experiment at the first message.

    Only the experiment is copied, because other processes lack the module of components from a ``FILE.py``.
    """

    in_process: ClassVar[dict[str, ClientApp]] = {}

    def __init__(self, setup: FlowerExperiment, kept_in_process: int) -> None:
        super().__init__()
        self.setup, self.kept_in_process, self.name = setup, kept_in_process, uuid4().hex

    def __call__(self, message: Message, context: Context) -> Message:
        if self.name not in self.in_process:
            if len(self.in_process) == MAX_APPS:
                self.in_process.clear()
            self.in_process[self.name] = self.setup.made_app(self.kept_in_process)
        return self.in_process[self.name](message, context)


def strategy_options(builder: Builder, seed: int, method: str | None, folder: Path) -> dict[str, Any]:
    """Return the arguments of `FedReachStrategy` that an experiment determines without its data."""
    e, base = builder.experiment, builder.base
    trackers = [NamedTracker(*tracker) for tracker in trackers_of(e, base)]
    return {
        "rounds": e.rounds,
        "folder": folder,
        "evaluate_every": e.evaluation.every,
        "evaluate_training": e.evaluation.training,
        "participation": components.make("participation", e.population.participation, base),
        "inputs": e.evaluation.inputs,
        "identity": identity(e, seed, method or "run", base),
        "metrics": builder.metrics(),
        "callbacks": [TrackerGroup(trackers, RunFolder(folder), lambda name, text: LOG.warning(text))],
    }


def refuse_unsupported_options(experiment: Experiment) -> None:
    """Raise ConfigError for options that have no effect on Flower."""
    e, fixed, schedule = experiment, "the number of rounds is fixed", experiment.method.schedule
    stays = "each client trains on the same data in all rounds"
    for option, is_used, reason in (
        ("evaluation.patience", e.evaluation.patience is not None, fixed),
        ("[budget]", e.limits, fixed),
        (
            "evaluation.examples_per_client",
            e.evaluation.examples_per_client is not None,
            "clients evaluate all of their examples",
        ),
        ("engine.precision", e.engine.precision != "highest", "each client uses its own settings of torch"),
        ("population.refit", e.population.refit, stays),
        ("method.cohort_size.as", e.method.method_to_follow is not None, "a run on Flower has no other methods"),
        (
            "method.cohort_size.equal",
            schedule and schedule.equal != "clients",
            "the server counts only clients",
        ),
    ):
        if is_used:
            raise ConfigError(f"{option} has no effect on Flower: {reason}. Remove it.")


def run_experiment(
    grid: Grid, context: Context, setup: FlowerSetup, folder: Path | str = "", patience: float = 60.0
) -> Result:
    """Run an experiment as the main function of a ServerApp; see `FlowerSetup.server_app` for the run config.

    Raises:
        ConfigError: If the run config contains text instead of a number, or no run folder.
    """
    config = context.run_config
    options: dict[str, Any] = {"patience": patience}
    for name in ("min-clients", "patience", "timeout"):
        value = config.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} in the run config must be a number; got {value!r}.")
        if name in config:
            options[name.replace("-", "_")] = int(value) if name == "min-clients" else value
    out = str(config.get("out") or folder)
    if not out:
        raise ConfigError("""out: must be the run folder; got none. Run: flwr run . -c 'out="/absolute/path"'.""")
    return setup.run(grid, out, **options)
