"""The server side: a Flower strategy that decides as FedReach's simulator does and keeps the same books.

Of Flower's `Strategy` it overrides what is sent (`configure_...`) and what becomes of the replies (`aggregate_...`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedreach.arrays import Float32s, Floats
from fedreach.data.population import Population
from fedreach.engines.base import Engine, Trained
from fedreach.engines.clients import remembered
from fedreach.errors import ConfigError
from fedreach.evaluation import Served, summarized
from fedreach.experiments.checkpoint import MEMORY as MEMORY_FILE
from fedreach.experiments.checkpoint import Snapshot
from fedreach.experiments.describe import environment
from fedreach.experiments.folder import RunFolder
from fedreach.experiments.identity import finished
from fedreach.experiments.ledger import Ledger
from fedreach.federation.memory import ClientMemory
from fedreach.federation.participation import Always, Participation
from fedreach.federation.round import (
    ClientView,
    Federation,
    FederationState,
    Probe,
    Reports,
    RoundReport,
    Selection,
    conclude_round,
    conclude_server_round,
    initial_state,
    observe_probe,
    plan_probe,
    plan_round,
    server_trains,
)
from fedreach.federation.spending import with_radio
from fedreach.federation.storage import Dtype
from fedreach.flower import messages
from fedreach.flower.agreement import terms_of
from fedreach.flower.messages import (
    CONFIG,
    EXAMPLES,
    LACKS,
    LOSS,
    MEMORY,
    MODEL,
    OURS,
    SOLVER,
    STEPS,
    UPDATE,
    ReplyError,
)
from fedreach.flower.record import load_facts, record_of, save_facts
from fedreach.flower.roster import Roster, ask, check_population
from fedreach.flower.scoring import exams, mixed, own_scores, scores_of
from fedreach.models.flat import Layout, flatten
from fedreach.streams import generator

LOG = getLogger("flwr")


class Answer(NamedTuple):
    """A report that counts."""

    update: Float32s  # (d,)
    metrics: Mapping[str, float]
    steps: int


@dataclass
class Turn:
    """A round between what is sent and what is heard."""

    state: FederationState
    view: ClientView
    selection: Selection
    began: float
    answers: dict[int, Answer] = field(default_factory=dict)  # of those who were probed for their update
    by_server: bool = False


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
        min_clients: The run begins when so many participants are online, or the whole population where it is given.
        patience: Seconds to wait for it; then it begins without the others, if `min_clients` are there.
        timeout: Seconds that a client has for each reply.
        evaluate_every: Rounds between evaluations by the clients; the last round is always evaluated.
        engine: Runs the model over what the server has: a test set and, where the server trains, data of its own; see
            `fedreach.flower.local.server_engine`.
        participation: Who of those online can be asked; everybody if left out.
        name: Under which the run is reported.
        described: What the run is, if that is more than is said here; see `fedreach.experiments.identity`.
        record: Who holds what, if the server knows; see `fedreach.experiments.describe.federation_record`.

    Raises:
        ConfigError: If the federation cannot run on Flower, or lacks what it needs.
    """

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        rounds: int,
        folder: Path | str,
        population: Population | None = None,
        min_clients: int = 1,
        patience: float = 60.0,
        timeout: float = 600.0,
        evaluate_every: int = 1,
        engine: Engine | None = None,
        participation: Participation | None = None,
        name: str = "flower",
        described: Mapping[str, Any] | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        check_population(population)
        limits = {"rounds": rounds, "min_clients": min_clients, "evaluate_every": evaluate_every, "timeout": timeout}
        for option, value in limits.items():
            if not value > 0:
                raise ConfigError(f"FedReachStrategy.{option} must be positive; got {value}.")
        if federation.label_statistics.only_sum:
            raise ConfigError(
                "SecureSum does not run on Flower: its secure aggregation is not open to apps on the Message API, and "
                "without it the server sees every update. Use label_statistics 'discrete_laplace' or 'exact'."
            )
        if federation.training_server is not None and (engine is None or engine.server_samples is None):
            raise ConfigError(
                f"{type(federation.server).__name__} trains on data of the server's own. Pass "
                "engine=server_engine(..., own=(x, y))."
            )
        self.federation, self.module, self.layout = federation, model, Layout.of(model)
        self.initial: Float32s = flatten(model).cpu().numpy()
        self.rounds, self.min_clients, self.patience, self.timeout = rounds, min_clients, patience, timeout
        self.evaluate_every, self.engine, self.participation = evaluate_every, engine, participation or Always()
        self.store = RunFolder(Path(folder))
        self.ledger = Ledger(self.store, federation, self.layout, stop_if_diverged=False)
        self.described = described or {
            "method": name,
            "seed": federation.seed,
            "config": {"federation": repr(federation), "model": str(model), "rounds": rounds},
            "code": {},
        }
        self.record = record
        self.roster = Roster(federation, terms_of(federation, self.layout), timeout, population)
        self._open = ExitStack()
        self._snapshot: Snapshot | None = None
        self._turn: Turn | None = None
        self._row: dict[str, Any] = {}
        self._timing: dict[str, Any] = {}
        self._exams: dict[int, list[int]] = {}
        self._began, self._config = 0.0, ConfigRecord()
        self._counted: dict[int, int] = {}  # client -> last round in which its report counted

    # -------------------------------------------------------------------------------------------------- the whole run

    def run(self, grid: Grid, train_config: ConfigRecord | None = None) -> Result:
        """Run all rounds that are left, with this strategy's timeout, and write down how the run ended."""
        try:
            self._begin(grid)
            left = self.rounds - self._now.state.round
            return self.start(grid, self._arrays(), num_rounds=left, timeout=self.timeout, train_config=train_config)
        except Exception as error:
            if self._snapshot is not None:
                self.store.write_json("result.json", {"status": "failed", "error": f"{error}" or type(error).__name__})
            raise
        finally:
            self._open.close()

    def summary(self) -> None:
        """Log the configuration."""
        LOG.info("\t├──> %s", self.federation)
        LOG.info("\t└──> %s rounds into %s", self.rounds, self.store.path)

    @property
    def _now(self) -> Snapshot:
        assert self._snapshot is not None  # `_begin` comes first
        return self._snapshot

    @property
    def _population(self) -> Population:
        assert self.roster.population is not None  # `_begin` comes first
        return self.roster.population

    def _begin(self, grid: Grid, arrays: ArrayRecord | None = None) -> None:
        """Open the folder, meet the clients, and go on with the run or begin it."""
        if self._snapshot is not None:
            return
        self._open.enter_context(self.store.locked())
        done = finished(self.store, self.described)
        participants, self.roster.known = load_facts(self.store)
        snapshot = self.ledger.load()
        if done is not None and snapshot is not None:
            LOG.info("The run in %s is finished.", self.store.path)
            self._snapshot = snapshot
            return
        before = self.roster.population
        if participants is not None:
            unseen = np.empty(0, np.int64) if before is None else before.unseen
            self.roster.population = Population(np.array(participants, np.int64), unseen)
        self.roster.gather(grid, self.min_clients, self.patience)
        if snapshot is not None:
            self._snapshot = snapshot
            for row in self.store.rows("rounds.jsonl"):
                self._counted |= dict.fromkeys(row["cohort"], row["round"])
            LOG.info("Going on after round %s.", snapshot.state.round)
            return
        self._settle(grid)
        self._first(grid, self.initial if arrays is None else messages.params_of(arrays, self.layout))

    def _settle(self, grid: Grid) -> None:
        """Decide who takes part: those named, or there, that tell what the parts need to know."""
        named = self._population
        participants, unseen = named.participants.tolist(), named.unseen.tolist()
        absent = dict.fromkeys((c for c in participants if c not in self.roster.nodes), "it is not there")
        lacking = self.roster.learn_labels(grid, participants)
        if self.federation.needs():
            lacking |= absent
            for client, reason in sorted(lacking.items()):
                LOG.warning(
                    "Client %s is evaluated only: the parts need to know of its labels, but %s.", client, reason
                )
            participants = [client for client in participants if client not in lacking]
            unseen = sorted({*unseen, *lacking})
        if len(participants) < self.min_clients:
            why = "; ".join(f"client {client}: {reason}" for client, reason in sorted(lacking.items()))
            raise ConfigError(f"{len(participants)} clients take part and {self.min_clients} are needed; {why}.")
        self.roster.population = Population(np.array(participants, np.int64), np.array(unseen, np.int64))

    def _first(self, grid: Grid, params: Float32s) -> None:
        """Begin a run: its files, its state, and what the first model is worth."""
        record = self.record or record_of(self._population, self.roster.known)
        self.store.write_json("run.json", {**self.described, "environment": environment(), "git": None})
        self.store.write_json("federation.json", record)
        state = initial_state(self.federation, params, self._first_view())
        if self.federation.has_memory:
            n, p = len(self._population.participants), self.layout.num_trainable
            dtype: Dtype = getattr(self.federation.memory_solver, "memory_dtype", "float32")
            path = self.store.path / MEMORY_FILE
            state = replace(state, memory=ClientMemory.zeros(n, p, path, dtype=dtype))
        self._snapshot, row = self.ledger.begin(state)
        save_facts(self.store, self._population, self.roster.known)
        answers = ask(grid, self._exam_messages(), self.timeout)
        self._close(row, {}, answers)

    def _first_view(self) -> ClientView:
        return self.roster.first_view(self._population.participants.tolist())

    # ------------------------------------------------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients of the round, after a probe if the selection policy wants one, and address them."""
        self._begin(grid, arrays)
        self._grid, self._config, self._began = grid, config, time.perf_counter()
        state, federation = self._now.state, self.federation
        if state.round >= self.rounds:
            self._turn = None
            return []
        self.roster.meet(grid)
        view = self._view(state)
        if server_trains(federation, state):
            self._turn = Turn(state, view, Selection(np.empty(0, np.int64)), self._began, by_server=True)
            return []
        probe = plan_probe(federation, state, view)
        answers: dict[int, Answer] = {}
        if probe is not None:
            state, view, answers = self._probed(state, view, probe)
        selection = plan_round(federation, state, view)
        self._turn = Turn(state, view, selection, self._began, answers)
        chosen = [client for client in map(int, selection.ids) if client not in answers]
        LOG.info("FedReach chose clients %s", selection.ids.tolist())
        return self._train_messages(chosen, self._turn.state, view)

    def _view(self, state: FederationState) -> ClientView:
        federation, number = self.federation, state.round + 1
        view = self._first_view()
        wanted = self.participation.available(len(view.ids), generator(federation.seed, "participation", number))
        view = replace(view, available=view.available & wanted, loss=state.loss, round=number)
        if federation.radio is None:
            return view
        d, p = self.layout.size, self.layout.num_trainable
        devices = federation.radio.devices(len(view.ids), federation.seed)
        bits = float(max(facts.bits_per_example for facts in self.roster.known.values()))
        return with_radio(federation, view, devices, d=d, p=p, bits_per_example=bits)

    def _train_messages(
        self, clients: Iterable[int], state: FederationState, view: ClientView, *, restore: bool = False
    ) -> list[Message]:
        """Return one message a client: its model, what its solver needs, and which memory it should have.

        Args:
            clients: Ids.
            state: Before the round.
            view: Of the round.
            restore: Whether to send what a client should have kept, because it lost it.
        """
        solver, made = self.federation.memory_solver, {}
        rate = self.federation.local.rate_at(view.round, self.rounds)
        known = view.num_examples[view.num_examples > 0]
        result = []
        for client in clients:
            row = int(view.rows(np.array([client]))[0])
            model = int(state.clusters[row])
            if model not in made:
                made[model] = messages.model_record(self.module, self.layout, state.models[model])
            kept = self._kept(state, client, row)
            share = float(view.num_examples[row] / known.mean())
            content = RecordDict({MODEL: made[model], CONFIG: self._told(view.round)})
            content[OURS] = ConfigRecord({"round": view.round, "rate": rate, "memory-round": kept, "share": share})
            if solver is not None and solver.sends_state and state.solver[model]:
                content[SOLVER] = messages.array_record(state.solver[model])
            if restore and state.memory is not None:
                content[MEMORY] = messages.array_record({MEMORY: state.memory.read(np.array([row]))[0]})
            node = self.roster.nodes[client]
            result.append(Message(content, node, MessageType.TRAIN, ttl=self.timeout))
        return result

    def _told(self, number: int) -> ConfigRecord:
        """Return the user's own config with the round, as Flower's strategies send it."""
        return ConfigRecord({**self._config, "server-round": number})

    def _kept(self, state: FederationState, client: int, row: int) -> int:
        """Return the round whose memory the client should have; 0 if none."""
        if state.memory is None or state.memory.parts[row] is None:
            return 0
        return self._counted[client]

    def _probed(
        self, state: FederationState, view: ClientView, probe: Probe
    ) -> tuple[FederationState, ClientView, dict[int, Answer]]:
        """Ask the clients; return the state and the view after their answers, and the updates that came."""
        probed, sent, loss = view.probed.copy(), None, view.loss.copy()
        probed[view.rows(probe.ids)] = True
        ids = [int(client) for client in probe.ids]
        if probe.asks == "update":
            replies = ask(self._grid, self._train_messages(ids, state, view), self.timeout)
            answers, lost = self._heard(ids, replies, state, view)
            reports = self._reports(answers, lost, view, probe=True)
            sent = np.zeros_like(probed)
            sent[view.rows(reports.ids)] = True
            loss[sent] = reports.metrics["loss"]
            state = observe_probe(self.federation, state, reports)
        else:
            answers = {}
            size = probe.batch_size if probe.asks == "batch_loss" else 0
            for client, value in self._losses(ids, size, state, view).items():
                loss[view.rows(np.array([client]))] = value
        return state, replace(view, loss=loss, probed=probed, sent_update=sent, probe=probe), answers

    def _losses(self, ids: list[int], size: int, state: FederationState, view: ClientView) -> dict[int, float]:
        """Return the losses that clients answer with; who does not answer stands as it stood."""
        asked = []
        for client in ids:
            model = int(state.clusters[view.rows(np.array([client]))[0]])
            record = messages.model_record(self.module, self.layout, state.models[model])
            content = RecordDict({MODEL: record, OURS: ConfigRecord({"round": view.round, "batch-size": size})})
            asked.append(Message(content, self.roster.nodes[client], "query.loss", ttl=self.timeout))
        found = {}
        for reply in ask(self._grid, asked, self.timeout):
            answered = self.roster.client_of(reply.metadata.src_node_id)
            try:
                if answered is not None:
                    metrics = messages.metrics_of(messages.content_of(reply))
                    found[answered] = float(messages.number(metrics, LOSS))
            except ReplyError as error:
                LOG.warning("Client %s did not tell its loss: %s.", answered, error)
        return found

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
        self._snapshot, self._row = self.ledger.after(self._now, new, report)
        for client in report.cohort:
            self._counted[client] = new.round
        self._timing = {"train_seconds": round(time.perf_counter() - self._began, 6)}
        for client, reason in report.lost.items():
            LOG.warning("Client %s does not count in round %s: %s.", client, new.round, reason)
        numbers: dict[str, Any] = {"clients": len(report.cohort), "lost": len(report.lost)}
        if report.train_loss is not None:
            numbers["train_loss"] = report.train_loss
        return self._arrays(), MetricRecord(numbers)

    def _concluded(self, turn: Turn, replies: Iterable[Message]) -> tuple[FederationState, RoundReport]:
        state, view, chosen = turn.state, turn.view, [int(client) for client in turn.selection.ids]
        asked = [client for client in chosen if client not in turn.answers]
        answers, lost = self._heard(asked, replies, state, view)
        answers |= {client: turn.answers[client] for client in chosen if client in turn.answers}
        reports = self._reports(answers, lost, view)
        if state.memory is not None and len(reports.ids):
            steps = np.array([answers[client].steps for client in map(int, reports.ids)], np.int64)
            trained = Trained(reports.update, reports.metrics["loss"], steps, self.layout.num_trainable)
            rate, rows = self.federation.local.rate_at(view.round, self.rounds), view.rows(reports.ids)
            memory, note = remembered(self.federation, state, state.memory, rows, trained, rate)
            state, reports = replace(state, memory=memory), replace(reports, note=note)
        return conclude_round(self.federation, state, view, turn.selection, reports)

    def _heard(
        self, asked: list[int], replies: Iterable[Message], state: FederationState, view: ClientView
    ) -> tuple[dict[int, Answer], dict[int, str]]:
        """Return the answers that count, and why the others do not; who lost its memory is sent it and asked again."""
        answers: dict[int, Answer] = {}
        lost = dict.fromkeys(asked, f"no reply within {self.timeout:g} s")
        again = self._read(asked, replies, answers, lost, state, view)
        if again:
            LOG.info("Clients %s lost what they kept between rounds, and are sent it.", again)
            second = ask(self._grid, self._train_messages(again, state, view, restore=True), self.timeout)
            for client in self._read(again, second, answers, lost, state, view):
                lost[client] = "it says that it lost its memory, which it was just sent"
        arrived = getattr(self.participation, "replies", None)
        if arrived is not None:  # a loss that the experiment simulates, as it does in the simulator
            there = sorted(answers)
            kept = arrived(len(there), generator(self.federation.seed, "replies", view.round))
            for client, kept_ in zip(there, kept, strict=True):
                if not kept_:
                    answers.pop(client)
                    lost[client] = "its reply did not arrive"
        return answers, lost

    def _read(
        self,
        asked: list[int],
        replies: Iterable[Message],
        answers: dict[int, Answer],
        lost: dict[int, str],
        state: FederationState,
        view: ClientView,
    ) -> list[int]:
        """Sort replies into answers and reasons of loss; return who lacks its memory."""
        again, senders = [], {self.roster.nodes[client]: client for client in asked}
        for reply in replies:
            client = senders.pop(reply.metadata.src_node_id, None)
            if client is None:  # an error in Flower itself comes from node 1, and says not whom it is about
                what = reply.error.reason if reply.has_error() else "a reply of nobody who was asked"
                LOG.warning("Node %s: %s", reply.metadata.src_node_id, what)
                continue
            try:
                metrics = messages.metrics_of(messages.content_of(reply))
                if LACKS in metrics:
                    again.append(client)
                    continue
                answers[client] = self._answer(client, reply, metrics, state, view)
                lost.pop(client)
            except ReplyError as error:
                lost[client] = str(error)
        return again

    def _answer(
        self, client: int, reply: Message, metrics: Mapping[str, Any], state: FederationState, view: ClientView
    ) -> Answer:
        """Return a report.

        Raises:
            ReplyError: If it cannot be believed.
        """
        if UPDATE in reply.content.array_records:
            update = messages.array(messages.arrays(reply, UPDATE), UPDATE, (self.layout.size,))
        else:
            row = view.rows(np.array([client]))[0]
            start = state.models[int(state.clusters[row])]
            update = messages.params_of(messages.arrays(reply, MODEL), self.layout) - start
        count = messages.number(metrics, EXAMPLES, least=1, whole=True)
        told = self.roster.known[client].num_examples
        if count != told:
            raise ReplyError(f"it says that it has {count} examples, but it said {told} before")
        numbers = {"num_examples": float(told), "loss": float(messages.number(metrics, LOSS))}
        for measurement in self.federation.measurements():
            numbers[measurement.name] = float(messages.number(metrics, measurement.name))
        has_steps = self.federation.has_memory
        steps = int(messages.number(metrics, STEPS, least=1, whole=True)) if has_steps else 1
        return Answer(update, numbers, steps)

    def _reports(
        self, answers: Mapping[int, Answer], lost: Mapping[int, str], view: ClientView, *, probe: bool = False
    ) -> Reports:
        ids = np.array(sorted(answers), np.int64)
        rows = view.rows(ids)
        update = np.empty((len(ids), self.layout.size), np.float32)
        for row, client in enumerate(ids.tolist()):
            update[row] = answers[client].update
        names = ["num_examples", "loss", *(measurement.name for measurement in self.federation.measurements())]
        metrics: dict[str, Floats] = {
            name: np.array([answers[client].metrics[name] for client in ids.tolist()]) for name in names
        }
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        return Reports(
            ids,
            update,
            metrics,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            lost=dict(lost),
            trainable=self.layout.num_trainable,
            round=view.round,
            probe=probe,
        )

    def _server_steps(self, state: FederationState) -> Float32s:
        """Return the (m, d) gradient steps on one batch of the server's data."""
        server, engine, number = self.federation.training_server, self.engine, state.round + 1
        assert server is not None  # that is why we are here,
        assert engine is not None  # and `__init__` saw to it
        assert engine.server_samples is not None
        size = len(engine.server_samples)
        rng = generator(self.federation.seed, "server-batches", number)
        batch = np.sort(rng.choice(size, size=min(server.batch_size, size), replace=False))
        return np.stack([engine.server_step(model, batch, number, server.rate) for model in state.models])

    def _arrays(self) -> ArrayRecord:
        """Return the model that is handed out; of several, one a cluster, under ``0/...``, ``1/...``."""
        models = self._now.state.served(self.federation)
        records = [messages.model_record(self.module, self.layout, model) for model in models]
        if len(records) == 1:
            return records[0]
        return ArrayRecord({f"{i}/{name}": array for i, record in enumerate(records) for name, array in record.items()})

    # ----------------------------------------------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all that are online, those that never train too, how good the model is."""
        number = self._now.state.round
        self._exams = {}
        if self._turn is None or (number % self.evaluate_every != 0 and number != self.rounds):
            return []
        self.roster.meet(grid)
        return self._exam_messages(config)

    def _exam_messages(self, config: ConfigRecord | None = None) -> list[Message]:
        state, roster = self._now.state, self.roster
        models = state.served(self.federation)
        made = [messages.model_record(self.module, self.layout, model) for model in models]
        participants = self._population.participants.tolist()
        clusters = dict(zip(participants, state.clusters.tolist(), strict=True))
        planned = exams(roster.reachable(participants), roster.reachable(roster.unseen()), clusters, len(models))
        self._exams, result = {}, []
        for exam in planned:
            self._exams.setdefault(roster.nodes[exam.client], []).append(exam.model)
            told = ConfigRecord({**(config or ConfigRecord()), "server-round": state.round})
            content = RecordDict({MODEL: made[exam.model], CONFIG: told})
            node, group = roster.nodes[exam.client], str(exam.model)
            result.append(Message(content, node, MessageType.EVALUATE, ttl=self.timeout, group_id=group))
        return result

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Write the row of the round and a checkpoint; after the last round, how the run ended."""
        if self._turn is None:
            return None
        columns = self._close(self._row, self._timing, list(replies))
        if self._now.state.round == self.rounds:
            self.store.write_json("result.json", self.ledger.finish(self._now))
            self._open.close()
        return MetricRecord(dict(columns)) if columns else None

    def _close(self, row: Mapping[str, Any], timing: Mapping[str, Any], replies: list[Message]) -> Mapping[str, float]:
        evaluated = self._evaluated(replies) if self._exams else None
        if evaluated is not None and not evaluated[0]:
            evaluated = None
        self._snapshot, _ = self.ledger.close(self._now, row, timing, evaluated)
        self.ledger.save(self._now)
        return evaluated[0] if evaluated is not None else {}

    def _evaluated(self, replies: list[Message]) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Return the columns of the round and the lines about single clients, from the clients' answers."""
        state, population = self._now.state, self._population
        answers: dict[int, dict[int, Any]] = {}
        for reply in replies:
            client = self.roster.client_of(reply.metadata.src_node_id)
            if client is None:
                continue
            try:
                content = messages.content_of(reply)
                model = int(reply.metadata.group_id)
                answers.setdefault(client, {})[model] = own_scores(messages.metrics_of(content))
            except ReplyError as error:
                LOG.warning("Client %s did not evaluate: %s.", client, error)
        models = state.served(self.federation)
        shares = np.bincount(state.clusters, minlength=len(models)) / len(state.clusters)
        participants = set(population.participants.tolist())
        own = {c: next(iter(found.values())) for c, found in answers.items() if c in participants}
        others = {
            c: mixed([found[m] for m in range(len(models))], shares)
            for c, found in answers.items()
            if c not in participants and len(found) == len(models)
        }
        test = None
        if self.engine is not None and len(self.engine.test_samples):
            served = Served.of(models, state.clusters, population.participants)
            index = np.arange(len(self.engine.test_samples))
            right, loss = served.predict(self.engine, self.engine.test_samples, index, None)
            test = float(right.mean()), float(loss.mean(dtype=np.float64))
        return summarized(
            self.federation.seed,
            state.round,
            scores_of(own, "held_out"),
            scores_of(others, "both"),
            scores_of(own, "train"),
            test,
        )
