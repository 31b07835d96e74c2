"""A federation whose clients have a table each: both sides of a Flower app from one experiment file.

Before the first round clients agree on what columns become, by sums over participants, see
`fedreach.data.table_agreement`; a table never leaves its client.
"""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from fedreach.config import load, paths
from fedreach.data.federated import FederatedData
from fedreach.data.table_agreement import Agreed, LocalTable, TableOptions, TableQuestion
from fedreach.errors import ConfigError, FedReachError, TrainingError
from fedreach.evaluation.metrics import refuse_metrics
from fedreach.experiments.build import Builder
from fedreach.federation.aggregation.secure_sum import limbs
from fedreach.federation.targets import refuse_targets_of
from fedreach.federation.traits import Traits
from fedreach.flower import masks, messages
from fedreach.flower.app import client_app, client_of, private_key
from fedreach.flower.experiment import refuse_what_flower_cannot, run_config_number, strategy_options
from fedreach.flower.local import alone
from fedreach.flower.messages import (
    CLIENT,
    EXCHANGE,
    KEY,
    KEYS,
    METRICS,
    NAME,
    OURS,
    QUESTION,
    RUN,
    SUMS,
    TABLE,
    TOLD,
)
from fedreach.flower.strategy import LOG, FedReachStrategy
from fedreach.flower.table_messages import Agreement, RemoteTables, TableGrid
from fedreach.models import build as build_model
from fedreach.runs.folder import RunFolder
from fedreach.runs.recorder import note_failure
from fedreach.streams import torch_seed

AGREEMENT = "agreement.json"
KEPT_IN_PROCESS = 8  # tables, where one process serves many nodes


class _Targets(NamedTuple):
    """What is predicted, as far as it is known before clients tell their classes."""

    name: str
    num_classes: int  # 0: numbers are predicted; else 1
    positions: tuple[int, ...] = ()  # a row has one label


class FlowerTables:
    """An experiment whose clients have a table each, which nobody else reads.

    The file is the one that ``fedreach run`` takes, for the joined table; here each node's config names its own:
    ``flower-supernode ... --node-config 'partition-id=0 data="/srv/alder.csv" name="alder"'``. Whoever is there takes
    part, unless ``[population] participants`` names clients, or says how many.

    Args:
        file: The experiment, with ``[data] label`` or ``target`` and, if one likes, ``client`` and ``columns``.
        overrides: ``"a.b=c"``, as for ``fedreach run --set``.
        method: Of the experiment's methods; None: the parts in ``[method]``.
        seed: Of the run; None: the first of the experiment.

    Raises:
        ConfigError: If the experiment is wrong or asks for what a federation on Flower cannot do.
    """

    def __init__(
        self, file: Path | str, *, overrides: tuple[str, ...] = (), method: str | None = None, seed: int | None = None
    ) -> None:
        path = Path(file)
        self.base, self.method = paths.folder_of(path), method
        read = load.load(path, overrides).resolved(method)
        refuse_what_flower_cannot(read)
        for section in ("noise", "shift", "server_data"):
            if getattr(read, section, None) is not None:
                raise ConfigError(f"[{section}] has no effect where each client has its own table. Remove it.")
        self.seed = read.seeds[0] if seed is None else seed
        self.given = read.population.participants if "participants" in read.population.model_fields_set else None
        self.options = _options(read, self.seed)
        self._tables: dict[tuple[str, str, int], LocalTable] = {}  # that were used last
        data = read.data.model_copy(update={"name": "clients' own tables"})
        self.experiment = read.model_copy(update={"data": data})
        self._refuse_other_targets()

    def _refuse_other_targets(self) -> None:
        """Refuse parts and metrics that need classes where numbers are predicted, or the other way round."""
        targets = _Targets("clients' own tables", 0 if self.options.targets else 1)
        refuse_targets_of(self.builder.federation(self.seed), targets)
        refuse_metrics(self.builder.metrics(), targets)

    @cached_property
    def builder(self) -> Builder:
        """Makes the parts."""
        return Builder(self.experiment, self.base)

    def client_app(self) -> ClientApp:
        """Return the app of any of the clients; its node's config names its table as ``data``."""
        federation = self.builder.federation(self.seed)

        def owned(context: Context) -> FederatedData:
            kept = context.state.config_records.get(TABLE)
            if kept is None:
                raise TrainingError("the server asked before clients had agreed on what their tables become")
            dataset, train, _ = self.table(context).dataset(Agreed.of_json(json.loads(str(kept["agreed"]))))
            return alone(client_of(context), dataset, len(train))

        app = client_app(
            federation,
            self.builder.model(),
            owned,
            model_options=self.builder.model_options(),
            model_seed=self.experiment.model.seed,
            device=self.experiment.engine.device,
            metrics=self.builder.metrics(),
            mods=[_keep_agreed],
        )

        @app.query("table")
        def answer(message: Message, context: Context) -> Message:
            return self._answer(message, context, hides=federation.label_statistics.only_sum)

        return app

    def table(self, context: Context) -> LocalTable:
        """Return the table of a client; a process reads it once.

        A SuperNode starts a process for each message, which reads its table; Flower's simulation keeps processes.
        """
        path = context.node_config.get("data")
        if not isinstance(path, str):
            how = "--node-config 'partition-id=3 data=\"/srv/my.csv\"'"
            raise ConfigError(f"A node's config must name its table: {how}; got {path!r}.")
        name, client = str(context.node_config.get(NAME, "")), client_of(context)
        key = path, name, client
        if key not in self._tables:
            self._tables[key] = LocalTable(path, self.options, name, unnamed=str(client))
        if len(self._tables) > KEPT_IN_PROCESS:
            del self._tables[next(iter(self._tables))]
        return self._tables[key]

    def _answer(self, message: Message, context: Context, *, hides: bool) -> Message:
        sent = message.content
        asked, table = sent.config_records[OURS], self.table(context)
        found = table.answer(TableQuestion(**json.loads(str(asked[QUESTION]))))
        told = {**found.told, NAME: table.name}
        content = RecordDict({METRICS: MetricRecord({CLIENT: client_of(context)})})
        words: dict[str, Any] = {TOLD: json.dumps(told)}
        private = private_key(context) if hides else b""
        if hides:
            words[KEY] = masks.public_key(private)
        content[OURS] = ConfigRecord(words)
        sums: Any = found.sums
        if hides and KEYS in sent.config_records:
            public, limbed = masks.keys_of(sent.config_records[KEYS]), limbs(sums)
            run, number = f"{asked[RUN]!s} table", int(messages.number(asked, EXCHANGE))
            named = client_of(context), public, private, run, number, context.state.config_records[KEYS]
            sums = masks.masked(limbed.ravel(), *named).reshape(limbed.shape)
        content[SUMS] = messages.array_record({SUMS: sums})
        return Message(content, reply_to=message)

    def server_app(self, folder: Path | str = "runs/flower", *, patience: float = 60.0) -> ServerApp:
        """Return an app that runs the experiment; its run config is that of `FlowerExperiment.server_app`."""
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            config = context.run_config
            self.run(
                grid,
                str(config.get("out") or folder),
                min_clients=int(run_config_number(config, "min-clients", 2)),
                patience=run_config_number(config, "patience", patience),
                timeout=run_config_number(config, "timeout", 600.0),
            )

        return app

    def run(
        self, grid: Grid, folder: Path | str, *, min_clients: int = 2, patience: float = 60.0, timeout: float = 600.0
    ) -> Result:
        """Have clients agree, unless they did before, and train; arguments as those of `FedReachStrategy`."""
        held, federation = RunFolder(Path(folder)), self.builder.federation(self.seed)
        stored = held.read_json(AGREEMENT)
        if stored is None:
            held.path.mkdir(parents=True, exist_ok=True)
            remote = RemoteTables(grid, self.options, federation.label_statistics.only_sum, timeout)
            try:
                found = remote.agree(self.given, self._population_seed, min_clients, patience)
            except FedReachError as error:
                note_failure(held, error)
                raise
            held.write_json(AGREEMENT, found.to_json())
        else:
            found = Agreement.of_json(stored)
        for line in found.agreed.preparation.lines():
            LOG.info("%s", line)
        strategy = self._strategy(held.path, found, min_clients, patience, timeout)
        return strategy.run(TableGrid(grid, found.agreed))

    def _strategy(
        self, folder: Path, found: Agreement, min_clients: int, patience: float, timeout: float
    ) -> FedReachStrategy:
        model, agreed, federation = self.experiment.model, found.agreed, self.builder.federation(self.seed)
        shape = (len(agreed.preparation.feature_names),)
        seed = torch_seed(self.seed if model.seed is None else model.seed, "model")
        module = build_model(
            self.builder.model(), shape, agreed.outputs, seed=seed, options=self.builder.model_options()
        )
        scale = agreed.target_scale if Traits.of(federation.loss).scales_targets else None  # else outputs are on none
        last = max(found.names)
        about = {
            "target_scale": None if scale is None else scale.to_json(),
            "preparation": agreed.preparation.to_json(),
            "class_names": None if agreed.class_names is None else list(agreed.class_names),
            "client_names": [found.names.get(client, str(client)) for client in range(last + 1)],
        }
        return FedReachStrategy(
            federation,
            module,
            population=found.population,
            min_clients=min_clients,
            patience=patience,
            timeout=timeout,
            about=about,
            **strategy_options(self.builder, self.seed, self.method, folder),
        )

    @property
    def _population_seed(self) -> int:
        seed = self.experiment.population.seed
        return self.seed if seed is None else seed


def _options(experiment: Any, seed: int) -> TableOptions:
    said = experiment.data.options
    label, target = said.get("label"), said.get("target")
    if (label is None) == (target is None):
        raise ConfigError("data: say label, a column of classes, or target, columns of numbers to predict.")
    targets = () if target is None else (target,) if isinstance(target, str) else tuple(map(str, target))
    if target is not None and (not targets or len(set(targets)) < len(targets)):
        raise ConfigError(f"data.target must name one column or more, each once; got {list(targets)}.")
    population, held = experiment.population, experiment.partition.seed
    held = held if held is not None else seed if population.seed is None else population.seed
    columns = said.get("client"), dict(said.get("columns", {}))
    return TableOptions(label, targets, *columns, population.held_out, held, said.get("group"), said.get("time"))


def _keep_agreed(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Keep what clients agreed on, which each message carries."""
    if TABLE in message.content.config_records:
        context.state.config_records[TABLE] = message.content.config_records[TABLE]
    return call_next(message, context)
