"""The server side: a Flower strategy that decides as FedReach's simulator does and keeps the same books.

Of Flower's `Strategy` it overrides what is sent (`configure_...`) and what becomes of the replies (`aggregate_...`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedreach.arrays import Float32s
from fedreach.data.federated import Population
from fedreach.engines.engine import Engine
from fedreach.errors import ConfigError, RunFolderError, TrainingError
from fedreach.evaluation import Served, summarized
from fedreach.federation.federation import Federation
from fedreach.federation.labels import Exact
from fedreach.federation.participation import Always, Participation
from fedreach.federation.round import (
    conclude_round,
    conclude_server_round,
    observe_probe,
    plan_probe,
    plan_round,
    server_trains,
)
from fedreach.federation.state import FederationState, initial_state
from fedreach.federation.steps import remembered
from fedreach.federation.time_energy import with_radio
from fedreach.federation.traits import name_of
from fedreach.federation.values import ClientView, Probe, RoundReport, Selection, Trained
from fedreach.flower import messages
from fedreach.flower.agreement import terms_of, words
from fedreach.flower.clients import Roster, ask
from fedreach.flower.evaluation import Exam, answered, exams, joined
from fedreach.flower.facts import FACTS, load_facts, record_of, save_facts
from fedreach.flower.incoming import Answer, Heard, Incoming
from fedreach.flower.masks import LEAST
from fedreach.flower.messages import LOSS, ReplyError
from fedreach.flower.outgoing import Outgoing
from fedreach.models.flat import Layout, flatten
from fedreach.runs.checkpoint import MEMORY, Snapshot
from fedreach.runs.describe import environment
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import finished
from fedreach.runs.recorder import Evaluated, Recorder, check_federation, note_failure
from fedreach.runs.schema import FederationRecord, RoundRow, RunRecord, Timing
from fedreach.simulation.clients import server_steps
from fedreach.storage.rows import Dtype
from fedreach.storage.table import RowTable
from fedreach.streams import generator

LOG = getLogger("flwr")


@dataclass
class Turn:
    """A round between what is sent and what is heard."""

    state: FederationState
    view: ClientView
    selection: Selection
    by_server: bool = False
    probed: dict[int, Answer] = field(default_factory=dict)  # of those who were asked for their update before
    began: float = field(default_factory=time.perf_counter)

    @property
    def asked(self) -> list[int]:
        """Those chosen who have not trained in the probe."""
        return [client for client in map(int, self.selection.ids) if client not in self.probed]

    @property
    def kept(self) -> dict[int, Answer]:
        """What those chosen have answered to the probe."""
        return {client: self.probed[client] for client in map(int, self.selection.ids) if client in self.probed}


class FedReachStrategy(Strategy):
    """Any `Federation` on Flower.

    Before round 1 clients say who they are and, where a part asks for it, tell of their labels. Each round the
    federation's parts choose among the participants that are online, in the order of their ids and with the random
    streams of the simulator, one message goes to each that is chosen, and every reply is checked before it counts:
    sender, shape, type, finiteness, size. Who did not reply in time, or wrongly, is named in the row of the round.

    Args:
        federation: The parts that decide.
        model: The model; the server computes with it only if it has an `engine`.
        rounds: Length of the run.
        folder: Run folder, like that of the simulator: rows, checkpoint after every round, best and last model. A run
            that was interrupted goes on from it; ``fedreach report`` reads it.
        population: Who takes part and who is only evaluated, by ``partition-id``; None: whoever is there as the run
            begins takes part. Who comes later and is not named is evaluated and never trains.
        min_clients: The run begins when the whole population is online or, where none is given, so many clients are and
            nobody new has come for two seconds.
        patience: Seconds to wait for that; then it begins without the others, if `min_clients` that train are there.
        timeout: Seconds that a client has for each reply; a round asks several times where it probes or restores.
        evaluate_every: Rounds between evaluations by the clients; the last round is always evaluated.
        engine: Runs the model over what the server has: a test set and, where the server trains, data of its own; see
            `fedreach.flower.local.server_engine`.
        participation: Who of those online can be asked; everybody if left out.
        name: Under which the run is reported.
        described: What the run is, if that is more than is said here; see `fedreach.runs.identity`.
        record: Who holds what, if the server knows; see `fedreach.runs.describe.federation_record`.

    Raises:
        ConfigError: If the federation cannot run on Flower, or lacks what it needs.

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
        evaluate_every: int = 1,
        engine: Engine | None = None,
        participation: Participation | None = None,
        name: str = "flower",
        described: Mapping[str, Any] | None = None,
        record: FederationRecord | None = None,
    ) -> None:
        limits = {"rounds": rounds, "min_clients": min_clients, "evaluate_every": evaluate_every, "timeout": timeout}
        for option, value in limits.items():
            if not 0 < value < math.inf:
                raise ConfigError(f"FedReachStrategy.{option} must be positive and finite; got {value}.")
        if not 0 <= patience < math.inf:
            raise ConfigError(f"FedReachStrategy.patience must be finite and not negative; got {patience}.")
        if population is not None and len(population.participants) < min_clients:
            raise ConfigError(
                f"FedReachStrategy.min_clients must be at most the {len(population.participants)} participants of the "
                f"population; got {min_clients}."
            )
        if federation.label_statistics.only_sum and federation.cohort < LEAST:
            raise ConfigError(
                f"SecureSum needs a cohort of at least {LEAST}, as a sum over one client is its report; got "
                f"{federation.cohort}."
            )
        if federation.label_statistics.only_sum and federation.has_memory:
            raise ConfigError(
                f"SecureSum hides single updates from the server, and on Flower {type(federation.solver).__name__} "
                "has it look at them. Use a solver without memory, such as FedProx."
            )
        if federation.training_server is not None and (engine is None or engine.server_samples is None):
            raise ConfigError(
                f"{type(federation.server).__name__} trains on data of the server's own. Pass "
                "engine=server_engine(..., own=(x, y))."
            )
        model = copy.deepcopy(model)  # that of the caller stays as it is
        self.federation, self.layout, self.rounds, self.timeout = federation, Layout.of(model), rounds, timeout
        if engine is not None and engine.layout != self.layout:
            raise ConfigError(
                f"FedReachStrategy.engine must run the strategy's model, of {self.layout.size} numbers; its model has "
                f"{engine.layout.size}. Make it by server_engine(federation, model, ...)."
            )
        self.initial: Float32s = flatten(model).cpu().numpy()
        self.min_clients, self.patience, self.evaluate_every = min_clients, patience, evaluate_every
        self.engine, self.participation, self.record = engine, participation or Always(), record
        self.described = described or {
            "method": name,
            "seed": federation.seed,
            "config": {"federation": words(federation), "model": str(model), "rounds": rounds},
            "code": {},
        }
        self.folder = RunFolder(Path(folder))
        self.recorder = Recorder(self.folder, federation, self.layout, stop_if_diverged=False)
        self.roster = Roster(federation, terms_of(federation, self.layout), timeout, population)
        self.outgoing = Outgoing(federation, model, self.layout, rounds, timeout)
        self.incoming = Incoming(federation, self.layout)
        # What changes during a run.
        self._open = ExitStack()  # holds the folder's lock
        self._ours = False  # whether the folder is this run's, which is not finished yet
        self._snapshot: Snapshot | None = None
        self._counted: dict[int, int] = {}  # client -> last round in which its report counted
        self._config = ConfigRecord()  # the user's own
        self._turn: Turn | None = None  # of the round at work
        self._row: RoundRow | None = None
        self._timing = Timing(round=0)
        self._exams: dict[tuple[int, str], Exam] = {}  # by node and message group, of those who evaluate
        self._handed: ArrayRecord | None = None  # the model as it was handed out last

    # -------------------------------------------------------------------------------------------------- the whole run

    def run(self, grid: Grid, train_config: ConfigRecord | None = None) -> Result:
        """Run all rounds that are left, with this strategy's timeout, and write down how the run ended."""
        try:
            self._begin(grid)
            left = self.rounds - self._now.state.round
            result = self.start(grid, self._arrays(), num_rounds=left, timeout=self.timeout, train_config=train_config)
            result.arrays = self._arrays()  # also if nothing was left to do
            return result
        except Exception as error:
            if self._ours:
                note_failure(self.folder, error)
            raise
        finally:
            self._open.close()

    def summary(self) -> None:
        """Log the configuration."""
        LOG.info("\t├──> %s", self.federation)
        LOG.info("\t└──> %s rounds into %s", self.rounds, self.folder.path)

    @property
    def _now(self) -> Snapshot:
        assert self._snapshot is not None  # `_begin` comes first
        return self._snapshot

    @property
    def _participants(self) -> list[int]:
        assert self.roster.population is not None  # `_begin` comes first
        ids: list[int] = self.roster.population.participants.tolist()
        return ids

    def _begin(self, grid: Grid, arrays: ArrayRecord | None = None) -> None:
        """Open the folder, meet the clients, and go on with the run or begin it, from `arrays` where they are given."""
        if self._snapshot is not None:
            return
        self._open.enter_context(self.folder.locked())
        done = finished(self.folder, self.described)
        if self.record is not None:
            check_federation(self.folder, self.record)
        self._ours = done is None
        participants, self.roster.known, run = load_facts(self.folder)
        self.outgoing.run = run or uuid4().hex
        snapshot = self.recorder.load()
        if snapshot is None:
            self.roster.gather(grid, self.min_clients, self.patience)
            try:
                self.roster.settle(grid, self.min_clients)
            finally:  # what was told, maybe under noise that must not be drawn twice
                save_facts(self.folder, self._participants, self.roster.known, self.outgoing.run)
            self._first(grid, self.initial if arrays is None else self._given(arrays))
            return
        if participants is None:
            raise RunFolderError(
                f"{self.folder.path} holds a checkpoint, but {FACTS} is missing. Put it back, or move the run folder "
                "away to start this run anew."
            )
        self.roster.return_to(participants)
        self._snapshot = snapshot
        if snapshot.state.round < self.rounds:
            self.roster.gather(grid, self.min_clients, self.patience)
        elif done is None:
            self._finish()
        for row in self.folder.records(RoundRow):
            self._counted |= dict.fromkeys(row.cohort, row.round)
        LOG.info("%s: %s of %s rounds are done.", self.folder.path, snapshot.state.round, self.rounds)

    def _given(self, arrays: ArrayRecord) -> Float32s:
        """Return the first model, as it was handed to `start`."""
        try:
            return messages.params_of(arrays, self.layout)
        except ReplyError as error:
            raise ConfigError(
                f"initial_arrays must be the strategy's model, ArrayRecord(model.state_dict()): {error}."
            ) from error

    def _first(self, grid: Grid, params: Float32s) -> None:
        """Begin a run: its files, its state, and what the first model is worth."""
        run = RunRecord(**self.described, environment=environment(), git=None)
        self.recorder.describe(run, self.record or self._record())
        state = initial_state(self.federation, params, self.roster.view(self._participants))
        if self.federation.has_memory:
            n, p = len(self._participants), self.layout.num_trainable
            dtype: Dtype = getattr(self.federation.memory_solver, "memory_dtype", "float32")
            state = replace(state, memory=RowTable.zeros(n, p, self.folder.path / MEMORY, dtype=dtype))
        self._snapshot, row = self.recorder.begin(state)
        self._close(row, Timing(round=0), ask(grid, self._exam_messages(ConfigRecord()), self.timeout))

    def _record(self) -> FederationRecord:
        exact = isinstance(self.federation.label_statistics, Exact)
        return record_of(self._participants, self.roster.unseen(), self.roster.known, exact=exact)

    # ------------------------------------------------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients of the round, after a probe if the selection policy wants one, and address them."""
        if server_round > 1:
            self._refuse_if_changed(arrays)
        self._begin(grid, arrays)
        self._grid, self._config, self._turn = grid, config, None
        state, federation = self._now.state, self.federation
        if state.round >= self.rounds:
            return []
        self.roster.meet(grid)
        view = self._view(state)
        if server_trains(federation, state):
            self._turn = Turn(state, view, Selection(np.empty(0, np.int64)), by_server=True)
            return []
        began = time.perf_counter()
        probe, answers = plan_probe(federation, state, view), dict[int, Answer]()
        if probe is not None:
            state, view, answers = self._probed(state, view, probe)
        self._turn = Turn(state, view, plan_round(federation, state, view), probed=answers, began=began)
        LOG.info("FedReach chose clients %s.", self._turn.selection.ids.tolist())
        nodes = self.roster.nodes_of(self._turn.asked)
        keys = self.roster.keys(nodes) if federation.label_statistics.only_sum else None
        return self.outgoing.train(nodes, state, view, self._counted, config, keys=keys)

    def _view(self, state: FederationState) -> ClientView:
        federation, number = self.federation, state.round + 1
        view = self.roster.view(self._participants)
        wanted = self.participation.available(len(view.ids), generator(federation.seed, "participation", number))
        view = replace(view, available=view.available & wanted, loss=state.loss, round=number)
        if federation.radio is None:
            return view
        devices = federation.radio.devices(len(view.ids), federation.seed)
        known = [self.roster.known[client] for client in self._participants if client in self.roster.known]
        bits = float(np.median([facts.bits_per_example for facts in known]))  # of which one client cannot make much
        if bits == 0:
            raise ConfigError(
                "The radio needs to know how large an example is, and no client told. Call tell_labels with "
                "bits_per_example."
            )
        d, p = self.layout.size, self.layout.num_trainable
        return with_radio(federation, view, devices, d=d, p=p, bits_per_example=bits)

    def _probed(
        self, state: FederationState, view: ClientView, probe: Probe
    ) -> tuple[FederationState, ClientView, dict[int, Answer]]:
        """Ask the clients; return the state and the view after their answers, and the updates that came."""
        ids, rows = list(map(int, probe.ids)), view.rows(probe.ids)
        probed, sent, loss = view.probed.copy(), None, view.loss.copy()
        probed[rows] = True
        answers: dict[int, Answer] = {}
        if probe.asks == "update":
            sending = self.outgoing.train(self.roster.nodes_of(ids), state, view, self._counted, self._config)
            heard = self._heard(ids, ask(self._grid, sending, self.timeout), state, view, probe=True)
            for client, reason in heard.lost.items():
                LOG.warning("Client %s did not answer the probe of round %s: %s.", client, view.round, reason)
            answers, reports = heard.answers, self.incoming.reports(heard, view, probe=True)
            sent = np.zeros_like(probed)
            sent[view.rows(reports.ids)] = True
            loss[sent] = reports.metrics["loss"]
            state = observe_probe(self.federation, state, reports)
        else:
            told = self._losses(ids, probe.batch_size if probe.asks == "batch_loss" else 0, state, view)
            loss[view.rows(np.array(list(told), np.int64))] = list(told.values())
        return state, replace(view, loss=loss, probed=probed, sent_update=sent, probe=probe), answers

    def _losses(self, ids: list[int], batch_size: int, state: FederationState, view: ClientView) -> dict[int, float]:
        """Return the losses that clients answer with; for who does not answer, the last one known stands."""
        nodes, told = self.roster.nodes_of(ids), dict[int, float]()
        silent = [client for client in ids if not self.roster.known[client].trains_as_asked]
        if silent:
            raise ConfigError(
                f"{name_of(self.federation.selection)} asks clients for losses, and that is not in the app of client "
                f"{silent[0]}. Use fedreach.flower.client_app, or another selection."
            )
        clients = {node: client for client, node in nodes.items()}
        for reply in ask(self._grid, self.outgoing.losses(nodes, state, view, batch_size), self.timeout):
            client = clients.get(reply.metadata.src_node_id)
            try:
                if client is not None:
                    told[client] = float(messages.number(messages.metrics_of(messages.content_of(reply)), LOSS))
            except ReplyError as error:
                LOG.warning("Client %s did not tell its loss: %s.", client, error)
        return told

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, weigh those that count, and take the server's step."""
        turn = self._turn
        if turn is None:
            return self._arrays(), None
        if turn.by_server:
            new, report = conclude_server_round(self.federation, turn.state, turn.view, self._server_steps(turn.state))
        else:
            new, report = self._concluded(turn, replies)
        if not np.isfinite(new.models).all():
            raise TrainingError(
                f"The model is not finite after round {new.round}. Lower local.rate or set local.clip_norm, and choose "
                "another folder."
            )
        self._snapshot, self._row = self.recorder.after(self._now, new, report)
        self._counted |= dict.fromkeys(report.cohort, new.round)
        self._timing = Timing(round=new.round, train_seconds=round(time.perf_counter() - turn.began, 6))
        for client, reason in report.lost.items():
            LOG.warning("Client %s does not count in round %s: %s.", client, new.round, reason)
        numbers: dict[str, Any] = {"clients": len(report.cohort), "lost": len(report.lost)}
        if report.train_loss is not None:
            numbers["train_loss"] = report.train_loss
        return self._arrays(), MetricRecord(numbers)

    def _concluded(self, turn: Turn, replies: Iterable[Message]) -> tuple[FederationState, RoundReport]:
        state, view = turn.state, turn.view
        heard = self._heard(turn.asked, replies, state, view, kept=turn.kept)
        reports = self.incoming.reports(heard, view)
        if state.memory is not None and len(reports.ids):
            steps = np.array([heard.answers[client].steps for client in map(int, reports.ids)], np.int64)
            trained = Trained(reports.update, reports.metrics["loss"], steps, self.layout.num_trainable)
            rate, rows = self.federation.local.rate_at(view.round, self.rounds), view.rows(reports.ids)
            memory, note = remembered(self.federation, state, state.memory, rows, trained, rate)
            state, reports = replace(state, memory=memory), replace(reports, note=note)
        return conclude_round(self.federation, state, view, turn.selection, reports)

    def _heard(
        self,
        asked: list[int],
        replies: Iterable[Message],
        state: FederationState,
        view: ClientView,
        *,
        kept: Mapping[int, Answer] | None = None,
        probe: bool = False,
    ) -> Heard:
        """Return what was heard, and what is `kept` from a probe; who lost its memory is sent it and asked again."""
        heard = Heard.nothing(asked, self.timeout)
        heard.answers |= kept or {}
        nodes = self.roster.nodes_of(asked)
        clients = {node: client for client, node in nodes.items()}
        self.incoming.read(replies, clients, heard, state, view)
        if heard.forgetful:
            LOG.info("Clients %s lost what they kept between rounds, and are sent it.", heard.forgetful)
            again = {client: nodes[client] for client in heard.forgetful}
            sending = self.outgoing.train(again, state, view, self._counted, self._config, restore=True)
            clients = {node: client for client, node in again.items()}
            self.incoming.read(ask(self._grid, sending, self.timeout), clients, heard, state, view)
        arrived = getattr(self.participation, "replies", None)
        if arrived is not None:  # replies that an experiment has get lost, as the simulator does
            purpose, there = "probe-replies" if probe else "replies", sorted(heard.answers)
            drawn = arrived(len(there), generator(self.federation.seed, purpose, view.round))
            for client, came in zip(there, drawn, strict=True):
                if not came:
                    del heard.answers[client]
                    heard.lost[client] = "its reply did not arrive"
        return heard

    def _server_steps(self, state: FederationState) -> Float32s:
        """Return the (m, d) gradient steps on one batch of the server's data."""
        server, engine, number = self.federation.training_server, self.engine, state.round + 1
        assert server is not None  # that is why we are here,
        assert engine is not None  # and `__init__` saw to it
        assert engine.server_samples is not None
        return server_steps(engine, server, len(engine.server_samples), state.models, number, self.federation.seed)

    def _arrays(self) -> ArrayRecord:
        """Return the model that is handed out; of several, one a cluster, under ``0/...``, ``1/...``."""
        records = [self.outgoing.record(model) for model in self._now.state.served(self.federation)]
        several = {f"{i}/{name}": array for i, record in enumerate(records) for name, array in record.items()}
        self._handed = records[0] if len(records) == 1 else ArrayRecord(several)
        return self._handed

    def _refuse_if_changed(self, arrays: ArrayRecord) -> None:
        if self._handed is not None and dict(arrays) != dict(self._handed):
            raise ConfigError(
                "The model was changed between rounds, as by a strategy of Flower's around FedReachStrategy, such as "
                "one for differential privacy: its noise would be lost, and is too little where weights are not equal. "
                "Use FedReachStrategy alone."
            )

    # ----------------------------------------------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all that are online, those that never train too, how good the model is."""
        self._refuse_if_changed(arrays)
        number = self._now.state.round
        self._exams = {}
        if self._turn is None or (number % self.evaluate_every != 0 and number != self.rounds):
            return []
        self.roster.meet(grid)
        return self._exam_messages(config)

    def _exam_messages(self, config: ConfigRecord) -> list[Message]:
        state, participants = self._now.state, self._participants
        there = self.roster.nodes_of([*participants, *self.roster.unseen()])
        clusters, models = dict(zip(participants, state.clusters.tolist(), strict=True)), state.served(self.federation)
        mine, others = [c for c in there if c in clusters], [c for c in there if c not in clusters]
        planned = exams(mine, others, clusters, len(models))
        self._exams = {(there[exam.client], str(exam.model)): exam for exam in planned}
        return self.outgoing.exams(self._exams, list(models), state.round, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Write the row of the round and a checkpoint; after the last round, how the run ended."""
        if self._turn is None or self._row is None:
            return None
        columns = self._close(self._row, self._timing, replies)
        if self._now.state.round == self.rounds:
            self._finish()
        return MetricRecord(dict(columns)) if columns else None

    def _finish(self) -> None:
        self.recorder.finish(self._now)
        self._open.close()

    def _close(self, row: RoundRow, timing: Timing, replies: Iterable[Message]) -> Mapping[str, float]:
        """Write the row of a round, with what clients say of the model if they were asked, and a checkpoint."""
        evaluated = self._evaluated(replies) if self._exams else None
        if evaluated is not None and not evaluated[0]:
            evaluated = None
        self._snapshot, _ = self.recorder.close(self._now, row, timing, evaluated)
        self.recorder.save(self._now)
        return {} if evaluated is None else evaluated[0]

    def _evaluated(self, replies: Iterable[Message]) -> Evaluated:
        """Return the columns of the round and the lines about single clients."""
        state, test = self._now.state, None
        models = state.served(self.federation)
        shares = np.bincount(state.clusters, minlength=len(models)) / len(state.clusters)
        scores = joined(answered(replies, self._exams), self._participants, shares)
        if self.engine is not None and len(self.engine.test_samples):
            index = np.arange(len(self.engine.test_samples))
            served = Served.of(models, state.clusters, np.array(self._participants, np.int64))
            right, loss = served.predict(self.engine, self.engine.test_samples, index, None)
            test = float(right.mean()), float(loss.mean(dtype=np.float64))
        return summarized(self.federation.seed, state.round, *scores, test)
