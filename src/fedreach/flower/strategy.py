"""The server side: a Flower strategy with the same decisions and run folder as FedReach's simulator.

The strategy overrides the methods of Flower's `Strategy` that send messages (`configure_...`) and read replies
(`aggregate_...`).
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedreach._util.arrays import AnyArray, Float32s
from fedreach._util.errors import ConfigError, RunFolderError, TrainingError
from fedreach._util.processes import one_thread
from fedreach.data.splits import Population
from fedreach.engines.models.flat import Layout, flatten
from fedreach.engines.models.state import constant_arrays, copy_module, set_constants
from fedreach.engines.protocols import Engine
from fedreach.evaluation.metrics import Metric, additional_metrics
from fedreach.experiment.naming import PickleStore
from fedreach.federation.accounting import check_run, sum_noise
from fedreach.federation.attacks import Attackers
from fedreach.federation.costs import with_radio
from fedreach.federation.disclosure import what_the_server_learns
from fedreach.federation.federation import Federation
from fedreach.federation.labels import Exact
from fedreach.federation.participation import Always, Participation
from fedreach.federation.state import FederationState, initial_models, initial_state
from fedreach.federation.steps import memory_width, new_memory, next_view, run_round
from fedreach.federation.types import ServerView
from fedreach.flower import messages
from fedreach.flower.adaptation import RemoteAdaptation, adapt_clients
from fedreach.flower.agreement import (
    STATISTICS_FILE,
    identity_of,
    load_client_statistics,
    record_of,
    save_client_statistics,
    training_terms,
)
from fedreach.flower.clients import ClientModel, ClientRegistry
from fedreach.flower.evaluation import evaluation, evaluation_tasks, read_evaluations
from fedreach.flower.messages import FAILED, ModelWriter, ReplyError, refuse_without_secure_aggregation_support
from fedreach.flower.rounds import OpenRound, model_contents
from fedreach.runs.callbacks import Callback, callback_lifecycle
from fedreach.runs.checkpoint import MEMORY_FILE, Snapshot
from fedreach.runs.describe import environment
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import finished_result
from fedreach.runs.recorder import Recorder, check_federation, note_failure
from fedreach.runs.schema import FederationRecord, RoundRow, RunRecord, Timing

LOG = getLogger("flwr")


class FedReachStrategy(Strategy):
    """Flower strategy for any `Federation`.

    Before round 1, clients report their ids and the label statistics that components need. In each round, the
    federation selects clients from the online participants, sorted by id, with the random streams of the simulator. It
    sends one message to each selected client. The server checks the sender, shape, type, finiteness and size of each
    reply before the reply counts. The row of the round lists clients whose reply was late or wrong. If the federation
    has an adaptation rule, it is fitted and scored after the last round (see `fedreach.flower.adaptation`).

    Args:
        federation: Federation with its components.
        model: Model. The server trains or evaluates it only if `engine` is given.
        rounds: Number of rounds.
        folder: Run folder with the same files as in the simulator: rows, a checkpoint after every round, and the best
            and the last model. An interrupted run resumes from this folder, and ``fedreach report`` reads it.
        population: Participants and unseen clients by ``partition-id``; None: all clients that are online at the start
            participate. Clients that connect later are only evaluated.
        min_clients: Smallest number of participants. The run starts when the whole population is online. Without a
            population, it starts when `min_clients` clients are online and no other client has connected for two
            seconds.
        patience: Seconds to wait for the population. After this time, the run starts if `min_clients` participants are
            online.
        timeout: Time limit for each reply of a client, in seconds. A round with probes or restored client states sends
            several requests.
        max_examples: Largest number of training examples that a client may report, which limits its weight; clients
            that report more do not participate. None: no limit.
        evaluate_every: Number of rounds between evaluations by the clients. The last round is always evaluated.
        evaluate_training: Also score participants' training examples, as `train_accuracy`.
        engine: Engine for the server's test set and, if the server trains, for the server's data (see
            `fedreach.flower.local.server_engine`).
        participation: Availability of clients that are online. Default: all are available.
        name: Name of the run in reports.
        inputs: Numbers of inputs for additional adaptations, if the federation has an adaptation rule.
        identity: Identity of the run (see `fedreach.runs.identity`). Default: computed from these arguments.
        record: Federation record, if the server knows it (see `fedreach.runs.describe.federation_record`).
        callbacks: Callbacks of `run`. The run fails if a callback raises an error.
        metrics: Metrics in addition to loss and accuracy or mean absolute error. Clients must have the same metrics.
            Because clients report values, the report shows the mean and the worst 10% of clients, but no value over
            pooled examples.
        about: Fields of the federation record, by name, that the server knows in addition to the clients' reports.
        attackers: Malicious clients, for attacks that need the updates of honest clients (see
            `fedreach.federation.attacks.Attack`). Other attacks take place in the client app.

    Raises:
        ConfigError: If the federation cannot run on Flower, or if a required argument is missing.

    Example:
        >>> from fedreach.testing.problems import tiny_federation
        >>> strategy = FedReachStrategy(tiny_federation(), nn.Linear(2, 2), rounds=3, folder="runs/flower")
        >>> # in the ServerApp's main function: strategy.run(grid)
    """

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        rounds: int,
        folder: Path | str,
        population: Population | None = None,
        min_clients: int = 2,
        patience: float = 60.0,
        timeout: float = 600.0,
        max_examples: int | None = None,
        evaluate_every: int = 1,
        evaluate_training: bool = False,
        engine: Engine | None = None,
        participation: Participation | None = None,
        name: str = "flower",
        inputs: Sequence[int] = (5, 20),
        identity: Mapping[str, Any] | None = None,
        record: FederationRecord | None = None,
        callbacks: Sequence[Callback] = (),
        metrics: Sequence[Metric] = (),
        about: Mapping[str, Any] | None = None,
        attackers: Attackers | None = None,
    ) -> None:
        limits = {"rounds": rounds, "min_clients": min_clients, "evaluate_every": evaluate_every, "timeout": timeout}
        limits |= {} if max_examples is None else {"max_examples": max_examples}
        for option, value in {**limits, "patience": patience}.items():
            rule = "positive and finite" if option in limits else "finite and not negative"
            if not 0 <= value < math.inf or (value == 0 and option in limits):
                raise ConfigError(f"FedReachStrategy.{option} must be {rule}; got {value}.")
        if population is not None and len(population.participants) < min_clients:
            raise ConfigError(
                f"FedReachStrategy.min_clients must be at most the {len(population.participants)} participants of the "
                f"population; got {min_clients}."
            )
        if federation.label_statistics.only_sum:
            refuse_without_secure_aggregation_support(federation)
        if federation.learning_server is not None and (engine is None or engine.task.data.server is None):
            raise ConfigError(
                f"{type(federation.server).__name__} trains on server data. Pass engine=server_engine(..., own=(x, y))."
            )
        self.attackers = Attackers.nobody() if attackers is None else attackers
        self.attackers.check(federation, on_flower=True)
        if federation.is_private:
            layout = Layout.of(model)
            buffers = layout.size - layout.num_trainable
            count = min_clients if population is None else len(population.participants)
            check_run(federation, None, participants=count, rounds=rounds, buffers=buffers)
        model = copy_module(model)  # leaves the caller's model unchanged
        self.federation, self.layout, self.rounds, self.timeout = federation, Layout.of(model), rounds, timeout
        if engine is not None and engine.layout != self.layout:
            raise ConfigError(
                f"FedReachStrategy.engine must have the strategy's model with {self.layout.size} numbers; got a model "
                f"with {engine.layout.size}. Create the engine with server_engine(federation, model, ...)."
            )
        self.initial: Float32s = flatten(model).cpu().numpy()
        self.min_clients, self.patience, self.evaluate_every = min_clients, patience, evaluate_every
        self.engine, self.participation, self.record = engine, participation or Always(), record
        self.inputs, self.adapts, self.callbacks = inputs, federation.adapts, callbacks
        self.evaluate_training = evaluate_training
        self.metrics, self.about = additional_metrics(metrics), about or {}
        self.folder = RunFolder(Path(folder))
        self.shelf = PickleStore(self.folder.path / "parts", base=self.folder.path)
        self.identity = identity or identity_of(federation, model, name, rounds, inputs, self.shelf)
        self.recorder = Recorder(self.folder, federation, self.layout, stop_if_diverged=False)
        # Malicious clients may claim examples that they do not have, even if this server knows better.
        sizes = None if record is None or self.attackers.attack.claims_examples else record.sizes
        terms = training_terms(federation, self.layout)
        self.registry = ClientRegistry(federation, terms, timeout, population, sizes, max_examples)
        self.writer = ModelWriter(model, self.layout)
        # State of the run.
        self._open = ExitStack()  # the folder's lock
        self._is_unfinished = False  # whether the run in the folder is unfinished
        self._snapshot: Snapshot | None = None
        self._counted: dict[int, int] = {}  # client -> last round whose reply counted
        self._round: OpenRound | None = None  # the current one
        self._row: RoundRow | None = None
        self._timing = Timing(round=0)
        self._lost: Mapping[int, str] = {}  # client of that round -> why its reply does not count
        self._tasks: list[ClientModel] = []  # evaluations that clients were asked for
        self._last_arrays: ArrayRecord | None = None  # the model as last passed to Flower

    def run(self, grid: Grid, train_config: ConfigRecord | None = None) -> Result:
        """Run the remaining rounds with the timeout of this strategy, and store the result of the run."""
        with self._open:
            try:
                self._begin(grid)
                rounds_left, arrays = self.rounds - self._now.state.round, self._arrays()
                result = self.start(
                    grid, arrays, num_rounds=rounds_left, timeout=self.timeout, train_config=train_config
                )
                result.arrays = self._arrays()  # also if no round remained
                return result
            except Exception as error:
                if self._is_unfinished:
                    note_failure(self.folder, error)
                raise

    def summary(self) -> None:
        LOG.info("\t├──> %s", self.federation)
        LOG.info("\t└──> %s rounds into %s", self.rounds, self.folder.path)

    @property
    def _now(self) -> Snapshot:
        assert self._snapshot is not None  # `_begin` comes first
        return self._snapshot

    @property
    def _participants(self) -> list[int]:
        assert self.registry.population is not None  # `_begin` comes first
        return [*map(int, self.registry.population.participants)]

    def _begin(self, grid: Grid, arrays: ArrayRecord | None = None) -> None:
        """Open the folder, meet the clients, and resume the run or begin it, from `arrays` if they are given."""
        if self._snapshot is not None:
            return
        self._open.enter_context(self.folder.locked())
        self.registry.grid = grid
        done = finished_result(self.folder, self.identity)
        if self.record is not None:
            check_federation(self.folder, self.record)
        self._is_unfinished = done is None
        participants, self.registry.known, run = load_client_statistics(self.folder)
        self.registry.run = run or uuid4().hex
        self._start_from(self.recorder.constants(self._constants(arrays)))
        snapshot = self.recorder.load()
        if snapshot is None:
            self.registry.gather(self.min_clients, self.patience)
            try:
                self.registry.settle(self.min_clients)
            finally:  # clients may have added noise that must not be drawn twice
                save_client_statistics(self.folder, self._participants, self.registry.known, self.registry.run)
            self._begin_new(self.initial if arrays is None else self._params_of(arrays))
            return
        if participants is None:
            raise RunFolderError(
                f"{self.folder.path} has a checkpoint, but {STATISTICS_FILE} is missing. Restore it, or move the run "
                "folder away to start again."
            )
        self.registry.return_to(participants)
        self._snapshot = snapshot
        if self._is_unfinished:
            self._start_callbacks(self.folder.required(RunRecord))
        if snapshot.state.round < self.rounds or (done is None and self.adapts):
            self.registry.gather(self.min_clients, self.patience)
        if snapshot.state.round == self.rounds and done is None:
            self._finish()
        for row in self.folder.records(RoundRow):
            self._counted |= dict.fromkeys(row.cohort, row.round)
        LOG.info("%s: %s of %s rounds are done.", self.folder.path, snapshot.state.round, self.rounds)

    def _params_of(self, arrays: ArrayRecord) -> Float32s:
        """Return the (d,) vector of a model that the user passed."""
        try:
            return messages.params_of(arrays, self.layout)
        except ReplyError as error:
            raise ConfigError(
                f"initial_arrays must be the strategy's model, ArrayRecord(model.state_dict()): {error}."
            ) from error

    def _constants(self, arrays: ArrayRecord | None) -> Mapping[str, AnyArray]:
        """Return the constants of the model, as created or from the arrays that the user passed."""
        constants = constant_arrays(self.writer.module)
        user_constants = {} if arrays is None else {name: arrays[name].numpy() for name in constants if name in arrays}
        return constants | {
            name: value for name, value in user_constants.items() if value.dtype == constants[name].dtype
        }

    def _start_from(self, constants: Mapping[str, AnyArray]) -> None:
        """Set these constants in the model, the server's engine and the clients."""
        if not constants:
            return
        set_constants(self.writer.module, constants)
        if self.engine is not None:
            self.engine.start_from(constants)
        self.registry.constants = constants

    def _begin_new(self, params: Float32s) -> None:
        """Begin a run: write its files, create its state, and evaluate the first model."""
        self.shelf.write()
        tables = "preparation" in self.about  # agreed by clients with their own tables
        names = [metric.name for metric in self.metrics]
        learned = what_the_server_learns(self.federation, metrics=names, tables=tables)
        stored = [data.to_json() for data in learned]
        run = RunRecord(**self.identity, environment=environment(), git=None, learned=stored)
        exact = isinstance(self.federation.label_statistics, Exact)
        client_record = record_of(self._participants, self.registry.unseen(), self.registry.known, exact=exact)
        client_record = replace(client_record, **self.about)
        self._start_callbacks(self.recorder.describe(run, self.record or client_record))
        width = memory_width(self.federation, self.layout.num_trainable, self.layout.size)
        memory = new_memory(self.federation, len(self._participants), width, self.folder.path / MEMORY_FILE)
        view = replace(self.registry.view(self._participants), rounds=self.rounds)
        models = initial_models(self.federation, params, self.layout.parameter_sizes)
        state = initial_state(self.federation, models, view, memory, secret=True)
        self._snapshot, row = self.recorder.begin(state)
        self._close(row, Timing(round=0), self.registry.send(self._evaluation_messages(ConfigRecord())))

    @one_thread()  # as in the simulator
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select the clients of the round, after a probe if the selection needs one, and return their messages."""
        if server_round > 1:
            self._refuse_if_changed(arrays)
        self._begin(grid, arrays)
        self._round, state = None, self._now.state
        if state.round >= self.rounds:
            return []
        self.registry.meet()
        steps = run_round(self.federation, state, self._view(state), rounds=self.rounds)
        channels = self.registry, self.writer, self.rounds, self.participation, self.engine
        self._round = OpenRound(self.federation, *channels, self._counted, config, self.attackers)
        return self._round.begin(steps)

    def _start_callbacks(self, run: RunRecord) -> None:
        """Start the callbacks; they are closed when the folder is released."""
        self._open.enter_context(callback_lifecycle(self.callbacks, run, None, "Flower's clients", self.folder.path))

    def _view(self, state: FederationState) -> ServerView:
        federation = self.federation
        view = next_view(federation, self.registry.view(self._participants), state, self.participation)
        if federation.radio is None:
            return view
        devices, bits = federation.radio.devices(len(view.ids), federation.seed), self.registry.bits_per_example()
        d, p = self.layout.size, self.layout.num_trainable
        return with_radio(federation, view, devices, d=d, p=p, bits_per_example=bits)

    @one_thread()
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, aggregate the valid replies, and apply the server's step."""
        if self._round is None:
            return self._arrays(), None
        new, result, _ = self._round.end(replies)
        if not np.isfinite(new.models).all():
            raise TrainingError(
                f"The model is not finite after round {new.round}. Lower local.lr or set local.clip_norm, and choose "
                "another folder."
            )
        self._refuse_if_all_fail(new.round, result.cohort, result.lost)
        self._snapshot, self._row = self.recorder.after(self._now, new, result)
        self._counted |= dict.fromkeys(result.cohort, new.round)
        self._timing = Timing(round=new.round, train_seconds=round(time.perf_counter() - self._round.began, 6))
        self._lost = result.lost
        for client, reason in result.lost.items():
            LOG.warning("Client %s does not count in round %s: %s.", client, new.round, reason)
        numbers: dict[str, Any] = {"clients": len(result.cohort), "lost": len(result.lost)}
        if result.train_loss is not None:
            numbers["train_loss"] = result.train_loss
        return self._arrays(), MetricRecord(numbers)

    def _refuse_if_all_fail(self, number: int, cohort: Sequence[int], lost: Mapping[int, str]) -> None:
        """Stop the run if all clients fail before any of them ever counted."""
        if self._counted or cohort or not lost or not all(reason.startswith(FAILED) for reason in lost.values()):
            return
        first = min(lost)
        raise TrainingError(
            f"All {len(lost)} clients of round {number} failed. The error of client {first} is: "
            f"{lost[first][len(FAILED) :]}. Fix the error, then rerun the command with the same folder."
        )

    def _arrays(self) -> ArrayRecord:
        """Return the model for Flower; several models, one per cluster, are named ``0/...``, ``1/...``."""
        records = [self.writer.whole(model) for model in self._now.state.adapted(self.federation)]
        several = {f"{i}/{name}": array for i, record in enumerate(records) for name, array in record.items()}
        self._last_arrays = records[0] if len(records) == 1 else ArrayRecord(several)
        return self._last_arrays

    def _refuse_if_changed(self, arrays: ArrayRecord) -> None:
        if self._last_arrays is not None and dict(arrays) != dict(self._last_arrays):
            raise ConfigError(
                "The model was changed between rounds, for example by a Flower strategy that wraps FedReachStrategy. "
                "FedReach would ignore this change. The noise of a wrapper for differential privacy would also be too "
                "small for unequal weights. Use FedReachStrategy alone."
            )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Request an evaluation of the model from all online clients, including unseen clients."""
        self._refuse_if_changed(arrays)
        number = self._now.state.round
        self._tasks = []
        if self._round is None or (number % self.evaluate_every != 0 and number != self.rounds):
            return []
        self.registry.meet()
        return self._evaluation_messages(config)

    def _evaluation_messages(self, config: ConfigRecord) -> list[Message]:
        state, participants = self._now.state, self._participants
        nodes = self.registry.nodes_of([*participants, *self.registry.unseen()])
        clusters, models = dict(zip(participants, state.clusters.tolist(), strict=True)), state.adapted(self.federation)
        self._tasks = evaluation_tasks(nodes, clusters, len(models))
        content_of = model_contents(self.writer, self.registry, list(models), config, state.round)
        contents = {task: content_of(task.model, task.client) for task in self._tasks}
        return self.registry.compose(MessageType.EVALUATE, contents)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Write the row of the round and a checkpoint; after the last round, also the result."""
        if self._round is None or self._row is None:
            return None
        columns = self._close(self._row, self._timing, replies)
        if self._now.state.round == self.rounds:
            self._finish()
        return MetricRecord(dict(columns)) if columns else None

    @one_thread()
    def _finish(self) -> None:
        result = self.recorder.finish(self._now, self._serve)
        for callback in self.callbacks:
            callback.end(result)
        self._open.close()

    def _serve(self) -> None:
        if self.adapts:
            channels = self.registry, self.writer, self.engine, self.inputs
            noise = sum_noise(self.federation, self._now.state.aggregation[0])
            adapt_clients(RemoteAdaptation(self.federation, *channels, self.folder, noise))

    def _close(self, row: RoundRow, timing: Timing, replies: Iterable[Message]) -> Mapping[str, float]:
        """Write the row of a round, with the evaluation if clients were asked for one, and a checkpoint."""
        evaluated = None
        if self._tasks:
            scores = read_evaluations(replies, self._tasks, self.registry, row.round, self.metrics)
            evaluation_options = scores, self.engine, self.metrics, self.evaluate_training
            evaluated = evaluation(self.federation, self._now.state, self._participants, *evaluation_options)
        row = replace(row, refused=self.registry.blamed_since() or None)
        self._snapshot, row = self.recorder.close(self._now, row, timing, evaluated)
        self._snapshot = self.recorder.save(self._now)
        for callback in self.callbacks if row.round else ():
            callback.round(row, timing, self._lost)
        return {} if evaluated is None else evaluated[0]
