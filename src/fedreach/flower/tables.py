"""Tables on Flower: clients agree on how to prepare columns."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from pydantic import BaseModel

from fedreach._util.arrays import AnyArray, Floats
from fedreach._util.errors import ConfigError, FedReachError, TrainingError, nearest
from fedreach._util.streams import generator, torch_seed
from fedreach._util.tables import visible
from fedreach.data.federated import FederatedData
from fedreach.data.splits import Population, draw_population
from fedreach.data.table_agreement import LocalTable, TableAgreement, TableOptions, TableQuestion, agreement, sum_of
from fedreach.engines.models.networks import build as build_model
from fedreach.evaluation.metrics import reject_metrics
from fedreach.federation.base import LabelStatistics
from fedreach.federation.federation import check_federation_targets
from fedreach.federation.secure_aggregation import MIN_CLIENTS, limbs, sum_of_limbs
from fedreach.flower import messages
from fedreach.flower.agreement import MAX_CLIENTS, ClientStatistics
from fedreach.flower.app import client_app, client_of
from fedreach.flower.clients import ClientRegistry, Refusal
from fedreach.flower.experiment import FlowerSetup, strategy_options
from fedreach.flower.local import single_client_federation
from fedreach.flower.secure import SECURE, SecureClient
from fedreach.flower.secure_server import IncompleteError, SecureSum
from fedreach.flower.strategy import LOG, FedReachStrategy
from fedreach.runs.folder import RunFolder
from fedreach.runs.recorder import note_failure

# ---- The server's side of the agreement on tables
# Before the model exists, the server sends questions and clients reply with names and sums. Every later message carries
# the agreement, because a new process may handle it and a node may restart.

KIND = "query.table"
LARGEST_TARGET_SUM = 1e100  # sum of squares of float32 numbers, each below 1e39


class Agreement(NamedTuple):
    """The preparation on which clients agreed, and the clients."""

    agreed: TableAgreement
    population: Population
    names: Mapping[int, str]  # of clients that were online

    def to_json(self) -> dict[str, Any]:
        """Return the agreement as plain JSON values."""
        client_ids = {"participants": self.population.participants.tolist(), "unseen": self.population.unseen.tolist()}
        return {"table": self.agreed.to_json(), **client_ids, "names": {str(c): name for c, name in self.names.items()}}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "Agreement":
        """Return the agreement that `to_json` encoded."""
        client_ids = [np.array(stored[key], np.int64) for key in ("participants", "unseen")]
        names = {int(client): name for client, name in stored["names"].items()}
        return cls(TableAgreement.of_json(stored["table"]), Population(*client_ids), names)


class Description(BaseModel):
    """The names and texts that a client reports about its table, in addition to sums."""

    name: str = ""
    columns: list[str] = []
    classes: list[str] = []
    texts: list[list[str] | None] = []  # of each column; None: too many


@dataclass(eq=False)
class TableRegistry(ClientRegistry):
    """Registry of clients that agree on the preparation of their tables.

    With secure aggregation, the server receives only sums over clients.
    """

    options: TableOptions = field(kw_only=True)
    named: Any = None  # names of participants, or their number or share of the online clients; None: all
    names: dict[int, str] = field(default_factory=dict, init=False)
    described: dict[int, Mapping[str, Any]] = field(default_factory=dict, init=False)  # columns and classes by client
    number: int = field(default=0, init=False)  # of exchanges

    def agree(self, seed: int, min_clients: int, patience: float) -> Agreement:
        """Wait for clients, and return the agreement of the participants.

        Args:
            seed: Seed for the choice of participants.
            min_clients: Smallest number of participants.
            patience: Seconds to wait for the participants.

        Raises:
            TrainingError: If fewer than `min_clients` participants are online, or reply correctly.
        """
        self.gather(min_clients, patience)
        remaining = self._choose_participants(seed)
        while True:
            if len(remaining) < max(min_clients, MIN_CLIENTS if self._hides else 1):
                raise TrainingError(
                    f"The number of clients that agree on their tables must be at least {min_clients}; got "
                    f"{len(remaining)}.{self.why_refused()}"
                )
            outcome = self._attempt(remaining)
            if isinstance(outcome, TableAgreement):
                unseen = np.array(sorted(set(self.names) - set(remaining)), np.int64)
                return Agreement(outcome, Population(np.array(remaining, np.int64), unseen), dict(self.names))
            for client, reason in outcome.items():
                LOG.warning("Client %s (%s) left the agreement on tables: %s.", client, self.names[client], reason)
                self.refused[self.nodes[client]] = Refusal(reason, np.inf)
                del self.names[client], self.described[client]
            remaining = [client for client in remaining if client not in outcome]

    @property
    def _hides(self) -> bool:
        return self.federation.label_statistics.only_sum

    def _expected(self) -> set[Any] | None:
        return set(map(str, self.named)) if isinstance(self.named, list) else None

    def _present(self) -> set[Any]:
        return {*self.names.values(), *map(str, self.names)}

    def _may_train(self, client: int) -> bool:
        expected = self._expected()
        return expected is None or not expected.isdisjoint((self.names[client], str(client)))

    def _handshake(self) -> tuple[str, Mapping[str, Any]]:
        question = json.dumps(TableQuestion("columns")._asdict())
        return KIND, {messages.FEDREACH: ConfigRecord({messages.QUESTION: question})}

    def read_handshake(self, reply: Message) -> tuple[int, ClientStatistics]:
        client = messages.whole_number(messages.metrics_of(messages.content_of(reply)), messages.CLIENT)
        if client >= MAX_CLIENTS:
            raise messages.ReplyError(f"its partition-id must be below {MAX_CLIENTS}; got {client}")
        description = _read_description(reply)
        if not {"columns", "classes"} <= description.model_fields_set:
            raise messages.ReplyError("it does not report the names of its columns and classes")
        if self.nodes.get(client) not in self.online:
            self.described[client] = description.model_dump()
            self.names[client] = visible(description.name or str(client))
        return client, ClientStatistics(0, 0, trains_as_asked=True)

    def _choose_participants(self, seed: int) -> list[int]:
        """Return the participants among the online clients, by the ids that they report."""
        ids, participants = sorted(self.names), self.named
        if participants is None:
            return ids
        if isinstance(participants, list):
            requested = {
                self.names.get(int(participant), str(participant)) if str(participant).isdigit() else participant
                for participant in participants
            }
            for name in sorted(requested - {*self.names.values()}):
                close = nearest(name, list(self.names.values()))
                LOG.warning("Participant %r is unknown and does not train.%s", name, close)
            return [client for client in ids if self.names[client] in requested]
        nothing = np.zeros((len(ids), 0), np.int64)
        places = draw_population(nothing, generator(seed, "population"), participants=participants).participants
        return [ids[place] for place in places.tolist()]

    def _attempt(self, participants: Sequence[int]) -> TableAgreement | dict[int, str]:
        """Return the agreement of these clients; or the clients that left, and the reasons."""
        steps, session = agreement(self.options, participants), uuid4().hex
        next(steps)  # names of columns and classes are known
        descriptions: Mapping[int, Mapping[str, Any]] = self.described
        sums: Floats = np.zeros(0)
        while True:
            try:
                question = steps.send((descriptions, sums))
            except StopIteration as end:
                agreed: TableAgreement = end.value
                return agreed
            self.number += 1
            LOG.info("Agreeing on tables: %s of %s clients.", question.step, len(participants))
            descriptions, sums, lost = self._exchange(question, session, participants)
            if lost:
                return dict(lost)

    def _exchange(
        self, question: TableQuestion, session: str, participants: Sequence[int]
    ) -> tuple[Mapping[int, Mapping[str, Any]], Floats, Mapping[int, str]]:
        """Return the descriptions of participants and their sum; or the participants that left, and the reasons."""
        nothing, secure = np.zeros(0), SecureSum(self, participants) if self._hides else None
        if secure is not None and secure.lost:
            return {}, nothing, secure.lost
        request = ConfigRecord(
            {messages.QUESTION: json.dumps(question._asdict()), messages.RUN: session, messages.EXCHANGE: self.number}
        )
        contents = {
            client: {messages.FEDREACH: request, **({} if secure is None else secure.request(client))}
            for client in participants
        }
        kind, shape = (np.uint64, (4, *question.shape)) if self._hides else (np.float64, question.shape)

        def read(client: int, reply: Message) -> tuple[Mapping[str, Any], AnyArray]:
            sums = messages.array(messages.arrays(reply, messages.SUMS), messages.SUMS, shape, kind, LARGEST_TARGET_SUM)
            description = _read_description(reply)
            if question.step == "totals" and len(description.texts) != len(question.columns):
                raise messages.ReplyError("it does not report the texts of its columns")
            return description.model_dump(), sums

        answers, lost = self.ask(KIND, contents, read)
        if lost:
            return {}, nothing, lost
        descriptions = {client: description for client, (description, _) in answers.items()}
        parts = {client: answers[client][1] for client in participants}
        if secure is None:
            return descriptions, sum_of(question, [*parts.values()]), {}
        try:
            total = secure.total({client: {"": {messages.SUMS: words}} for client, words in parts.items()})
        except IncompleteError as error:
            return {}, nothing, error.lost
        return descriptions, sum_of_limbs(total[""][messages.SUMS], len(parts)), {}


def _read_description(reply: Message) -> Description:
    """Return the names and texts that a client reports."""
    try:
        text = str(reply.content.config_records[messages.FEDREACH][messages.DESCRIPTION])
        return Description.model_validate_json(text, strict=True)
    except (KeyError, ValueError) as error:
        raise messages.ReplyError(f"its description of its table cannot be read: {error}") from error


# ---- Both sides of a Flower app for clients with a table each
# Before the first round, clients agree on the preparation of columns by sums over participants, see
# `fedreach.data.table_agreement`. A table never leaves its client.

AGREEMENT = "agreement.json"
KEPT_IN_PROCESS = 8  # tables, where one process offers many nodes


class _Targets(NamedTuple):
    """The targets, as far as the server knows them before clients report their classes."""

    name: str
    num_classes: int  # 0 for regression, else 1
    positions: tuple[int, ...] = ()  # a row has one label


class FlowerTables(FlowerSetup):
    """An experiment in which each client has a private table.

    ``fedreach run`` accepts the same file for the joined table. On Flower, each node config names the table of its
    node: ``flower-supernode ... --node-config 'partition-id=0 data="/srv/alder.csv" name="alder"'``. All online clients
    participate, unless ``[population] participants`` names clients or sets their number.

    Args:
        file: Experiment file, with ``[data] label`` or ``target`` and, optionally, ``client`` and ``columns``.
        overrides: Options such as ``"a.b=c"``, as for ``fedreach run --set``.
        method: Name of one of the experiment's methods; None: the components in ``[method]``.
        seed: Seed of the run; None: the first seed of the experiment.

    Raises:
        ConfigError: If the experiment is wrong or uses an option that Flower does not support.
    """

    def __init__(
        self, file: Path | str, *, overrides: tuple[str, ...] = (), method: str | None = None, seed: int | None = None
    ) -> None:
        super().__init__(file, overrides=overrides, method=method, seed=seed)
        read = self.experiment
        for section in ("noise", "shift", "server_data", "attack"):
            if getattr(read, section, None) is not None:
                raise ConfigError(f"[{section}] has no effect if each client has its own table. Remove it.")
        self.given = read.population.participants if "participants" in read.population.model_fields_set else None
        self.options = _options(read, self.seed)
        self._tables: dict[tuple[str, str, int], LocalTable] = {}  # used last
        data = read.data.model_copy(update={"name": "clients' own tables"})
        self.experiment = read.model_copy(update={"data": data})
        targets = _Targets("clients' own tables", 0 if self.options.targets else 1)
        check_federation_targets(self.builder.federation(self.seed), targets)
        reject_metrics(self.builder.metrics(), targets)

    def client_app(self) -> ClientApp:
        """Return the app of all clients; the node config of each client names its table as ``data``."""
        federation = self.builder.federation(self.seed)

        def load_data(context: Context) -> FederatedData:
            stored = context.state.config_records.get(messages.TABLE)
            if stored is None:
                raise TrainingError("the server sent a request before the clients had agreed on their tables")
            dataset, train, _ = self.table(context).dataset(TableAgreement.of_json(json.loads(str(stored["agreed"]))))
            return single_client_federation(client_of(context), dataset, len(train))

        app = client_app(
            federation,
            self.builder.model(),
            load_data,
            model_options=self.builder.model_options(),
            model_seed=self.experiment.model.seed,
            device=self.experiment.engine.device,
            metrics=self.builder.metrics(),
            mods=[_store_agreement],
        )

        @app.query("table")
        def answer(message: Message, context: Context) -> Message:
            return self._answer(message, context, federation.label_statistics)

        return app

    def table(self, context: Context) -> LocalTable:
        """Return the table of a client; each process reads the table once.

        A SuperNode starts a process for each message, and this process reads the table. Flower's simulation reuses
        processes.
        """
        path = context.node_config.get("data")
        if not isinstance(path, str):
            hint = "--node-config 'partition-id=3 data=\"/srv/my.csv\"'"
            raise ConfigError(f"A node's config must name its table: {hint}; got {path!r}.")
        name, client = str(context.node_config.get("name", "")), client_of(context)
        key = path, name, client
        if key not in self._tables:
            self._tables[key] = LocalTable(path, self.options, name, unnamed=str(client))
        if len(self._tables) > KEPT_IN_PROCESS:
            del self._tables[next(iter(self._tables))]
        return self._tables[key]

    def _answer(self, message: Message, context: Context, statistics: LabelStatistics) -> Message:
        sent = message.content
        request, table = sent.config_records[messages.FEDREACH], self.table(context)
        question = TableQuestion(**json.loads(str(request[messages.QUESTION])))
        answer = table.answer(question)
        description = {**answer.told, "name": table.name}
        content = RecordDict({messages.METRICS: MetricRecord({messages.CLIENT: client_of(context)})})
        content[messages.FEDREACH] = ConfigRecord({messages.DESCRIPTION: json.dumps(description)})
        sums: Any = answer.sums
        if statistics.only_sum and question.step != "columns":
            subject = f"{request[messages.RUN]!s} table", int(messages.number(request, messages.EXCHANGE))
            masker = SecureClient(context, client_of(context), statistics)
            words = {"": {messages.SUMS: limbs(sums)}}
            sums = masker.mask(sent.config_records[SECURE], words, subject)[""][messages.SUMS]
        content[messages.SUMS] = messages.array_record({messages.SUMS: sums})
        return Message(content, reply_to=message)

    def run(
        self, grid: Grid, folder: Path | str, *, min_clients: int = 2, patience: float = 60.0, timeout: float = 600.0
    ) -> Result:
        """Let clients agree if they have not yet, then train. `FedReachStrategy` describes the arguments."""
        run_folder, federation = RunFolder(Path(folder)), self.builder.federation(self.seed)
        stored = run_folder.read_json(AGREEMENT)
        if stored is None:
            run_folder.path.mkdir(parents=True, exist_ok=True)
            registry = TableRegistry(federation, {}, timeout, options=self.options, named=self.given)
            registry.grid = grid
            seed = self.experiment.population.seed
            try:
                table_agreement = registry.agree(self.seed if seed is None else seed, min_clients, patience)
            except FedReachError as error:
                note_failure(run_folder, error)
                raise
            run_folder.write_json(AGREEMENT, table_agreement.to_json())
        else:
            table_agreement = Agreement.of_json(stored)
        for line in table_agreement.agreed.preparation.lines():
            LOG.info("%s", line)
        strategy = self._strategy(run_folder.path, table_agreement, min_clients, patience, timeout)
        strategy.registry.carried = {
            messages.TABLE: ConfigRecord({"agreed": json.dumps(table_agreement.agreed.to_json())})
        }
        return strategy.run(grid)

    def _strategy(
        self, folder: Path, table_agreement: Agreement, min_clients: int, patience: float, timeout: float
    ) -> FedReachStrategy:
        model, agreed, federation = self.experiment.model, table_agreement.agreed, self.builder.federation(self.seed)
        shape = (len(agreed.preparation.feature_names),)
        seed = torch_seed(self.seed if model.seed is None else model.seed, "model")
        module = build_model(
            self.builder.model(), shape, agreed.outputs, seed=seed, options=self.builder.model_options()
        )
        scale = (
            agreed.target_scale if federation.loss.declares("scales_targets") else None
        )  # else outputs have no scale
        last = max(table_agreement.names)
        about = {
            "target_scale": None if scale is None else scale.to_json(),
            "preparation": agreed.preparation.to_json(),
            "class_names": None if agreed.class_names is None else list(agreed.class_names),
            "client_names": [table_agreement.names.get(client, str(client)) for client in range(last + 1)],
        }
        return FedReachStrategy(
            federation,
            module,
            population=table_agreement.population,
            min_clients=min_clients,
            patience=patience,
            timeout=timeout,
            about=about,
            **strategy_options(self.builder, self.seed, self.method, folder),
        )


def _options(experiment: Any, seed: int) -> TableOptions:
    data_options = experiment.data.options
    label, target = data_options.get("label"), data_options.get("target")
    if (label is None) == (target is None):
        raise ConfigError("data: set either `label` (a column of classes) or `target` (columns of numbers to predict).")
    targets = () if target is None else (target,) if isinstance(target, str) else tuple(map(str, target))
    if target is not None and (not targets or len(set(targets)) < len(targets)):
        raise ConfigError(f"data.target must name different columns, at least one; got {list(targets)}.")
    population, held_out_seed = experiment.population, experiment.partition.seed
    held_out_seed = held_out_seed if held_out_seed is not None else seed if population.seed is None else population.seed
    columns = data_options.get("client"), dict(data_options.get("columns", {}))
    return TableOptions(
        label,
        targets,
        *columns,
        population.held_out,
        held_out_seed,
        data_options.get("group"),
        data_options.get("time"),
    )


def _store_agreement(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Store the agreement that each message carries."""
    if messages.TABLE in message.content.config_records:
        context.state.config_records[messages.TABLE] = message.content.config_records[messages.TABLE]
    return call_next(message, context)
