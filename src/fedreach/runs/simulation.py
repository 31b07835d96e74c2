"""Simulation of federations in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedreach._util.arrays import Float32s, Floats, Ints, finite_rows
from fedreach._util.errors import STEADIER, ComponentError, ConfigError, DataError, TrainingError
from fedreach._util.streams import generator, torch_seed
from fedreach.data.datasets import ServerData
from fedreach.data.federated import FederatedData
from fedreach.data.several import position_counts
from fedreach.engines.choice import build_engine
from fedreach.engines.models.networks import build as build_model
from fedreach.engines.models.state import constant_bytes
from fedreach.engines.protocols import LOSS_MEMORY, Engine, Precision, Task
from fedreach.evaluation.evaluator import mean_of
from fedreach.federation.accounting import check_run
from fedreach.federation.attacks import Attackers
from fedreach.federation.base import name_of
from fedreach.federation.costs import FittingCost, fitting_cost, with_radio
from fedreach.federation.federation import Federation
from fedreach.federation.labels import released_entropy
from fedreach.federation.participation import Always, Participation
from fedreach.federation.secure_aggregation import too_few
from fedreach.federation.state import FederationState, initial_state
from fedreach.federation.steps import (
    AskLosses,
    AskServer,
    AskUpdates,
    RoundOutcome,
    finish_round,
    lost_replies,
    measure_outputs,
    memory_width,
    new_memory,
    next_view,
    probe_batch,
    run_round,
    server_batches,
    server_split,
)
from fedreach.federation.types import ClientResults, LocalUpdates, ServerView
from fedreach.wireless.radio import Devices

# ---- Training on the server's own data, for the simulator and for Flower


def train_server(
    federation: Federation, engine: Engine, server_data: ServerData | None, request: AskServer
) -> FederationState:
    """Return the state in the request after the server has trained on the server's data."""
    server, state = federation.learning_server, request.state
    assert server is not None  # the request exists only with such a server
    assert server_data is not None  # the caller checked it
    answers = [
        server.learn(params, server_state, EngineData(federation, engine, server_data, request, model))
        for model, (params, server_state) in enumerate(zip(state.models, state.server, strict=True))
    ]
    return replace(
        state,
        models=np.stack([params for params, _ in answers]),
        server=tuple(server_state for _, server_state in answers),
    )


@dataclass(eq=False)
class EngineData:
    """The `ServerOperations` of one model in one round."""

    federation: Federation
    engine: Engine
    own: ServerData
    request: AskServer
    model: int
    rng: np.random.Generator = field(init=False)
    steps: int = 0  # steps so far: each draws its own dropout

    def __post_init__(self) -> None:
        self.rng = server_batches(self.federation.seed, self.request.view.round)

    @property
    def examples(self) -> int:
        return len(self.own.y)

    def split(self, held_out: float) -> tuple[Ints, Ints]:
        return server_split(self.own.y, held_out, self.federation.seed)

    def step(self, params: Float32s, index: Ints, lr: float) -> Float32s:
        self.steps += 1
        return params + self.engine.server_step(params, index, self.request.view.round, lr, self.steps - 1)

    def distill(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        return params + self.engine.distill_step(params, index, teacher, lr)

    def logits(self, params: Float32s, index: Ints) -> Float32s:
        return self.engine.logits(params, "server", index)

    def loss(self, params: Float32s, index: Ints) -> float:
        at_positions = self.own.y.ndim > 1 and self.own.y.dtype.kind == "i"
        counts = position_counts(self.own.y[index]) if at_positions else None
        return mean_of(self.engine.predict(params, "server", index)[1], counts)

    def local_models(self) -> Iterator[Float32s]:
        if not self.federation.server.reads_updates:
            raise ComponentError(
                f"{name_of(self.federation.server)}.learn reads local models of clients. Set `reads_updates = True` "
                "in its class."
            )
        sent, reports, view = self.request.sent, self.request.reports, self.request.view
        if sent is None or reports is None:  # a round without clients
            return
        rows = view.rows(reports.ids)
        for row, update in zip(rows, reports.update, strict=True):
            if self.request.state.clusters[row] == self.model:
                yield sent.models[sent.clusters[row]] + update


# ---- A simulated federation


@dataclass(frozen=True, eq=False)
class Simulation:
    """A federation with its data and the engine that trains its clients.

    Example:
        >>> from fedreach.testing.problems import tiny_simulation
        >>> simulation = tiny_simulation()
        >>> state = simulation.start()
        >>> for _ in range(3):
        ...     state, result, _ = simulation.step(state)
        >>> state.round, len(result.cohort)
        (3, 2)
    """

    federation: Federation
    data: FederatedData
    engine: Engine
    rounds: int  # length of the run, which schedules of the local learning rate refer to
    participation: Participation = field(default_factory=Always)  # availability of clients in a round
    drop_failing: bool = False  # drop clients with an update that is not finite; the row names them
    memory_file: Path | None = None  # file of clients' memory; None: main memory
    attackers: Attackers = field(default_factory=Attackers.nobody)

    def __post_init__(self) -> None:
        self.attackers.check(self.federation)
        for part in ("solver", "local", "loss", "augmentation"):
            expected, actual = getattr(self.federation, part), getattr(self.engine.task, part)
            if expected != actual:
                raise ConfigError(f"The engine must have the same {part} as the federation, {expected}; got {actual}.")
        if self.federation.learning_server is not None and self.data.server is None:
            raise ConfigError(
                f"{type(self.federation.server).__name__} trains on server data; got none. Add `[server_data] "
                "examples = 100` to the experiment, or server_examples=100 to `federate`."
            )
        if self.federation.is_private:
            check_run(
                self.federation,
                self.participation,
                participants=len(self.data.population.participants),
                rounds=self.rounds,
                buffers=self.engine.layout.size - self.engine.num_trainable,
            )

    @cached_property
    def first_view(self) -> ServerView:
        """View of the server before the first round."""
        ids, needs = self.data.population.participants, self.federation.needs()
        empty = ids[self.data.train.sizes[ids] == 0]
        if empty.size:
            raise DataError(
                f"A participant must have at least one training example; client {self.data.name_of(empty[0])} has "
                "none. Exclude it from the population, or drop empty clients (partition.empty = 'drop')."
            )
        constants = constant_bytes(self.engine.constants)
        sizes = self.attackers.examples(ids, self.data.train.sizes[ids])
        view = replace(ServerView.of(ids, sizes), rounds=self.rounds, constant_bytes=constants)
        if not needs:
            return view
        counts = self.attackers.label_counts(ids, self.data.label_counts()[ids])
        statistics, rng = self.federation.label_statistics, generator(self.federation.seed, "label-statistics")
        # With secure aggregation the server sees none of this; a client's entropy affects only its own weight.
        released = counts.astype(np.float64)
        if not statistics.only_sum:
            released = statistics.release(counts, rng)
        return replace(
            view,
            label_counts=released if "label_counts" in needs else None,
            label_entropy=released_entropy(released) if "label_entropy" in needs else None,
        )

    def start(self) -> FederationState:
        """Return the state before the first round."""
        return self._start(self.memory_file)

    def _start(self, memory_file: Path | None) -> FederationState:
        width = memory_width(self.federation, self.engine.num_trainable, len(self.engine.initial))
        memory = new_memory(self.federation, len(self.first_view.ids), width, memory_file)
        return initial_state(self.federation, self.engine.initial, self.first_view, memory)

    def step(self, state: FederationState) -> RoundOutcome:
        """Simulate one round."""
        summed = self.engine.weighted_sum
        return finish_round(
            run_round(self.federation, state, self.view(state), rounds=self.rounds, summed=summed), self
        )

    def view(self, state: FederationState) -> ServerView:
        """Return the server's view at the start of the next round: available clients and their channels."""
        view = next_view(self.federation, self.first_view, state, self.participation)
        if self.federation.radio is None:
            return view
        d, p = len(self.engine.initial), self.engine.num_trainable
        return with_radio(self.federation, view, self.devices, d=d, p=p, bits_per_example=self._bits_per_example)

    def fitting_cost(self, held_out: Mapping[int, int], sent: Sequence[int], round_: int) -> FittingCost | None:
        """Return the cost of fitting an adaptation rule, or None without a radio.

        Args:
            held_out: Number of examples of each participant that the fit uses.
            sent: Bytes that one participant sends in each exchange.
            round_: Round of the model.
        """
        if self.federation.radio is None:
            return None
        ids = self.first_view.ids
        return fitting_cost(
            self.federation,
            self.devices,
            ids=ids,
            held_out=np.array([held_out.get(int(client), 0) for client in ids], np.int64),
            sent=sent,
            round_=round_,
            bits_per_example=self._bits_per_example,
        )

    @property
    def _bits_per_example(self) -> float:
        return 8.0 * self.data.dataset.train_x[:1].nbytes

    @cached_property
    def devices(self) -> Devices:
        """The devices of the participants, in a federation with a radio."""
        assert self.federation.radio is not None
        return self.federation.radio.devices(len(self.first_view.ids), self.federation.seed)

    # ---- Answers to the requests of a round: probes, training, measurements, lost replies

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        state, view, probe = request.state, request.view, request.probe
        clients, seed = probe.ids.tolist(), self.federation.seed
        parts = None
        if probe.asks == "batch_loss":
            size = probe.batch_size
            parts = [probe_batch(self.data.train[client], size, seed, view.round, client) for client in clients]
        loss = np.empty(len(clients))
        for model, members in state.by_model(view.rows(probe.ids)):
            batches = None if parts is None else [parts[i] for i in members]
            loss[members] = self.engine.training_loss(state.models[model], probe.ids[members], batches)
        return dict(zip(clients, self.attackers.losses(probe.ids, loss).tolist(), strict=True))

    def updates(self, request: AskUpdates) -> ClientResults:
        """Train clients, each from its model and with its state, and return the results that count."""
        state, view, seed = request.state, request.view, self.federation.seed
        reports = self._train_and_report(state, view, request.selection.ids, probe=request.probe)
        values, failing = self._measure(state, view, reports), dict[int, str]()
        for name, column in values.items():
            failing |= dict.fromkeys(reports.ids[~np.isfinite(column)].tolist(), f"its {name!r} is not finite")
        if values:
            self._refuse_failing(failing, view.round)
            reports = replace(reports, metrics={**reports.metrics, **values}).without(failing)
        attackers = self.attackers
        if len(attackers.clients):
            reports = attackers.only_valid(attackers.with_attack(reports), self.federation, state, view, self.rounds)
        ids = lost_replies(self.participation, reports.ids, seed, view.round, probe=request.probe)
        reports = reports.without(dict.fromkeys(ids.tolist(), "its reply did not arrive"))
        if attackers.attack.colludes:
            reports = attackers.only_valid(attackers.with_collusion(reports), self.federation, state, view, self.rounds)
        return self._without_small_sum(reports)

    def _without_small_sum(self, reports: ClientResults) -> ClientResults:
        """Return the results; none if secure aggregation does not unmask the sum over so few clients."""
        statistics = self.federation.label_statistics
        asked = len(reports.ids) + len(reports.lost)
        reason = too_few(statistics, len(reports.ids), asked) if statistics.only_sum and asked else None
        return reports if reason is None else reports.without(dict.fromkeys(reports.ids.tolist(), reason))

    def learnt(self, request: AskServer) -> FederationState:
        return train_server(self.federation, self.engine, self.data.server, request)

    def _train_and_report(self, state: FederationState, view: ServerView, ids: Ints, *, probe: bool) -> ClientResults:
        """Train clients and return the results with finite updates, without measurements."""
        rows = view.rows(ids)
        trained = self._train(state, view, ids, rows)
        if self.attackers.attack.replays:
            self._replay(view, ids, rows, trained)
        finite = finite_rows(trained.update) if trained.finite is None else trained.finite
        finite = finite & np.isfinite(trained.loss)
        lost = {} if finite.all() else self._describe_failures(ids[~finite], trained.loss[~finite], view.round)
        steps = trained.steps
        if self.attackers.attack.claims_examples:
            planned = self.federation.local.steps_of(view.num_examples[rows], ids, self.federation.seed, view.round)
            steps = np.where(self.attackers.among(ids), planned, steps)
        metrics = {"num_examples": view.num_examples[rows].astype(np.float64), "loss": trained.loss}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        reports = ClientResults(
            ids,
            trained.update,
            metrics,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            lost=lost,
            trainable=trained.trainable,
            output_bias=self.engine.layout.output_bias,
            steps=steps,
            round=view.round,
            probe=probe,
        )
        return reports.only(finite) if lost else reports

    def _replay(self, view: ServerView, ids: Ints, rows: Ints, trained: LocalUpdates) -> None:
        """Replace the updates and losses of malicious clients by those of round 1."""
        malicious = self.attackers.among(ids)
        first = self._train(self._start(None), replace(view, round=1), ids[malicious], rows[malicious])
        trained.update[malicious], trained.loss[malicious] = first.update, first.loss

    def _train(self, state: FederationState, view: ServerView, ids: Ints, rows: Ints) -> LocalUpdates:
        solver = self.federation.memory_solver
        if len(ids) == 0:
            return LocalUpdates(np.empty((0, state.models.shape[1]), np.float32), np.empty(0), np.empty(0, np.int64))
        lr = self.federation.local.lr_at(view.round, self.rounds)
        done, order = [], []
        for model, members in state.by_model(rows):
            terms: Mapping[str, Float32s] = {}
            if solver is not None:
                assert state.memory is not None  # see `Simulation.start`
                memory = state.memory.read(rows[members])
                terms = solver.prepare(memory, state.solver[model], view.share[rows[members]])
            elif state.memory is not None:  # of the loss
                terms = {LOSS_MEMORY: state.memory.read(rows[members])}
            done.append(self.engine.train(state.models[model], ids[members], view.round, lr, terms))
            order.append(members)
        if len(done) == 1:
            return done[0]
        back = np.argsort(np.concatenate(order))
        update, loss, steps = (np.concatenate(column)[back] for column in zip(*(t[:3] for t in done), strict=True))
        return LocalUpdates(update, loss, steps, done[0].trainable)

    def _measure(self, state: FederationState, view: ServerView, reports: ClientResults) -> dict[str, Floats]:
        """Return the measurements of clients with their local models, by name."""
        measurements, ids = self.federation.measurements(), reports.ids
        if not measurements:
            return {}
        values = {measurement.name: np.empty(len(ids)) for measurement in measurements}
        before = any(measurement.wants_before for measurement in measurements)
        for model, members in state.by_model(view.rows(ids)):
            outputs = self.engine.outputs(state.models[model], reports.update[members], ids[members], before=before)
            for row, output in zip(members, outputs, strict=True):
                client_values = measure_outputs(measurements, output, self.federation.seed, view.round, int(ids[row]))
                for name, value in client_values.items():
                    values[name][row] = value
        return values

    def _describe_failures(self, ids: Ints, loss: Floats, number: int) -> dict[int, str]:
        reasons = {
            client: f"its update is not finite (mean training loss {value:.4g})"
            for client, value in zip(ids.tolist(), loss.tolist(), strict=True)
        }
        self._refuse_failing(reasons, number)
        return reasons

    def _refuse_failing(self, lost: Mapping[int, str], number: int) -> None:
        if lost and not self.drop_failing:
            client, cause = next(iter(lost.items()))
            more = f" {len(lost) - 1} other client{'s' * (len(lost) > 2)} failed, too." if len(lost) > 1 else ""
            if malicious := len(self.attackers.clients):
                more += f" {malicious} participants are malicious and can be the reason."
            raise TrainingError(
                f"Client {client} failed in round {number}: {cause}.{more} {STEADIER}; or continue without failing "
                "clients: run.on_failure = 'drop'."
            )


def simulate(
    data: FederatedData,
    model: str | Callable[..., nn.Module],
    federation: Federation,
    *,
    rounds: int,
    model_options: Mapping[str, Any] | None = None,
    model_seed: int | None = None,
    engine: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    precision: Precision = "highest",
    participation: Participation | None = None,
    drop_failing: bool = False,
    examined: bool = False,
    attackers: Attackers | None = None,
) -> Simulation:
    """Return the simulation of a federation, with a model and an engine for its data.

    Args:
        data: Partitioned data of the federation.
        model: Name in `MODELS`, or function that returns a module (see `build`).
        federation: Federation with its components.
        rounds: Number of rounds.
        model_options: Additional arguments of the model.
        model_seed: Seed of the initial weights. None: the seed of the federation.
        engine: Name of the engine; ``"auto"`` chooses the fastest in a short trial.
        device: Device of the engine.
        threads: Number of threads or processes of the engine.
        precision: Precision of matrix products (see `fedreach.engines.engine.TorchEngine`).
        participation: Availability of clients in a round. Default: all are available.
        drop_failing: Drop clients with an update that is not finite (see `Simulation`).
        examined: Skip the check that the engine supports the model (see `fedreach.engines.choice.build_engine`).
        attackers: Malicious participants. None: all clients are honest.
    """
    attackers = Attackers.nobody() if attackers is None else attackers
    if attackers.attack.changes_labels:
        index, classes = data.train.of(attackers.clients)[0], data.dataset.example_classes
        data = replace(data, labels=attackers.training_labels(data.labels, index, classes))
    module = build_model(
        model,
        data.dataset.sample_shape,
        data.dataset.outputs,
        seed=torch_seed(federation.seed if model_seed is None else model_seed, "model"),
        options=model_options,
    )
    task = Task.of(module, data, federation)
    built_engine = build_engine(
        engine, task, device, threads, precision, cohort_size=federation.cohort_size, examined=examined
    )
    return Simulation(
        federation, task.data, built_engine, rounds, participation or Always(), drop_failing, attackers=attackers
    )
