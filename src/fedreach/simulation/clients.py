"""What clients do in a simulated round: answer probes, train, measure, remember, and send what may get lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.engine import Engine
from fedreach.errors import TrainingError
from fedreach.federation.aggregation.mean import finite_rows
from fedreach.federation.federation import Federation
from fedreach.federation.participation import Participation
from fedreach.federation.protocols import ServerTrains
from fedreach.federation.state import FederationState
from fedreach.federation.steps import by_model, remembered
from fedreach.federation.values import ClientView, Probe, Reports, Trained
from fedreach.storage.table import RowTable
from fedreach.streams import generator


class Replies(NamedTuple):
    """What the server hears, and what the clients keep for themselves."""

    reports: Reports
    memory: RowTable | None


@dataclass(frozen=True, eq=False)
class Clients:
    """The participants of a federation at work; arguments as those of `Simulation`."""

    federation: Federation
    data: FederatedData
    engine: Engine
    rounds: int
    participation: Participation
    drop_failing: bool = False

    def losses(self, state: FederationState, view: ClientView, probe: Probe) -> Floats:
        """Return the mean training losses that the clients of a probe answer with."""
        parts = [self.data.train[int(client)] for client in probe.ids]
        if probe.asks == "batch_loss":
            parts = [
                generator(self.federation.seed, "probe-batches", view.round, int(client)).choice(
                    samples, size=min(probe.batch_size, len(samples)), replace=False
                )
                for client, samples in zip(probe.ids, parts, strict=True)
            ]
        loss = np.empty(len(probe.ids))
        for model, mine in by_model(state, view.rows(probe.ids)):
            loss[mine] = self.engine.training_loss(state.models[model], probe.ids[mine], [parts[i] for i in mine])
        return loss

    def work(self, state: FederationState, view: ClientView, ids: Ints, *, probe: bool = False) -> Replies:
        """Let these clients train, each from its model and with its memory, and return the replies that count.

        The memory changes for those whose report counts, and for nobody who was only probed.
        """
        trained = self._train(state, view, ids)
        ids, trained, lost = self._finite(ids, trained, view.round)
        measured = self._measured(state, view.rows(ids), ids, trained)
        ids, trained, measured, lost = self._arrived(ids, trained, measured, lost, view.round, probe=probe)
        rows = view.rows(ids)
        memory, note = state.memory, None
        if memory is not None and len(ids) and not probe:
            rate = self.federation.local.rate_at(view.round, self.rounds)
            memory, note = remembered(self.federation, state, memory, rows, trained, rate)
        metrics = {"num_examples": view.num_examples[rows].astype(np.float64), "loss": trained.loss}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        reports = Reports(
            ids,
            trained.update,
            metrics | measured,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            lost=lost,
            trainable=trained.trainable,
            note=note,
            round=view.round,
            probe=probe,
        )
        return Replies(reports, memory)

    def _train(self, state: FederationState, view: ClientView, ids: Ints) -> Trained:
        solver = self.federation.memory_solver
        if len(ids) == 0:
            return Trained(np.empty((0, state.models.shape[1]), np.float32), np.empty(0), np.empty(0, np.int64))
        rate = self.federation.local.rate_at(view.round, self.rounds)
        rows = view.rows(ids)
        done, order = [], []
        for model, mine in by_model(state, rows):
            terms: Mapping[str, Float32s] = {}
            if solver is not None:
                assert state.memory is not None  # see `Simulation.start`
                share = view.num_examples[rows[mine]] / view.num_examples.mean()
                terms = solver.prepare(state.memory.read(rows[mine]), state.solver[model], share)
            done.append(self.engine.train(state.models[model], ids[mine], view.round, rate, terms))
            order.append(mine)
        if len(done) == 1:
            return done[0]
        back = np.argsort(np.concatenate(order))
        update, loss, steps = (np.concatenate(column)[back] for column in zip(*(t[:3] for t in done), strict=True))
        return Trained(update, loss, steps, done[0].trainable)

    def _finite(self, ids: Ints, trained: Trained, number: int) -> tuple[Ints, Trained, dict[int, str]]:
        """Return those whose update is finite, and why the others do not count."""
        finite = finite_rows(trained.update) if trained.finite is None else trained.finite
        finite = finite & np.isfinite(trained.loss)
        if finite.all():
            return ids, trained, {}
        lost = {
            int(client): f"its update is not finite (mean training loss {loss:.4g})"
            for client, loss in zip(ids[~finite], trained.loss[~finite], strict=True)
        }
        self._refuse_failing(lost, number)
        return ids[finite], _some(trained, finite), lost

    def _arrived(
        self,
        ids: Ints,
        trained: Trained,
        measured: dict[str, Floats],
        lost: dict[int, str],
        number: int,
        *,
        probe: bool,
    ) -> tuple[Ints, Trained, dict[str, Floats], dict[int, str]]:
        """Return those who measured numbers and whose replies were not lost on the way, and why the others' were."""
        replies = getattr(self.participation, "replies", None)
        if replies is None and not measured:
            return ids, trained, measured, lost
        counts = np.ones(len(ids), np.bool_)
        for name, values in measured.items():
            wrong = ~np.isfinite(values)
            failing = dict.fromkeys(map(int, ids[wrong]), f"its {name!r} is not finite")
            self._refuse_failing(failing, number)
            lost, counts = failing | lost, counts & ~wrong
        if replies is not None:
            purpose = "probe-replies" if probe else "replies"
            arrived = replies(len(ids), generator(self.federation.seed, purpose, number))
            lost = dict.fromkeys(map(int, ids[~arrived]), "its reply did not arrive") | lost
            counts &= arrived
        return ids[counts], _some(trained, counts), {name: v[counts] for name, v in measured.items()}, lost

    def _refuse_failing(self, lost: Mapping[int, str], number: int) -> None:
        if lost and not self.drop_failing:
            client, cause = next(iter(lost.items()))
            more = f" So did {len(lost) - 1} more." if len(lost) > 1 else ""
            raise TrainingError(
                f"Client {client} failed in round {number}: {cause}.{more} Lower local.rate or set local.clip_norm; "
                "or go on without failing clients by run.on_failure = 'drop'."
            )

    def _measured(self, state: FederationState, rows: Ints, ids: Ints, trained: Trained) -> dict[str, Floats]:
        """Return what the parts have the clients measure with their local models."""
        wanted = self.federation.measurements()
        values = {measurement.name: np.empty(len(ids)) for measurement in wanted}
        before = any(measurement.wants_before for measurement in wanted)
        for model, mine in by_model(state, rows) if wanted else ():
            outputs = self.engine.outputs(state.models[model], trained.update[mine], ids[mine], before=before)
            for row, output in zip(mine, outputs, strict=True):
                for measurement in wanted:
                    purpose = f"measure {measurement.name}"
                    rng = generator(self.federation.seed, purpose, state.round + 1, int(ids[row]))
                    values[measurement.name][row] = measurement.measure(output, rng)
        return values


def _some(trained: Trained, rows: Bools) -> Trained:
    """Return what these rows hold, without a copy where that is all."""
    if rows.all():
        return trained
    return Trained(trained.update[rows], trained.loss[rows], trained.steps[rows], trained.trainable)


def server_steps(
    engine: Engine, server: ServerTrains, examples: int, models: Float32s, number: int, seed: int
) -> Float32s:
    """Return the (m, d) steps of a server that trains on one batch of its own examples in this round."""
    rng = generator(seed, "server-batches", number)
    batch = np.sort(rng.choice(examples, size=min(server.batch_size, examples), replace=False))
    return np.stack([engine.server_step(model, batch, number, server.rate) for model in models])
