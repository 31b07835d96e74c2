"""The clients of a simulated round: they answer probes, train, measure, and send what may get lost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.protocols import MEMORY, Engine
from fedreach.errors import STEADIER, TrainingError
from fedreach.federation.aggregation.mean import finite_rows
from fedreach.federation.answers import checked_measured
from fedreach.federation.federation import Federation
from fedreach.federation.participation import Participation
from fedreach.federation.state import FederationState
from fedreach.federation.steps import (
    AskLosses,
    AskServer,
    AskUpdates,
    lost_replies,
    measured,
    probe_batch,
)
from fedreach.federation.values import ClientView, LocalUpdates, Reports
from fedreach.simulation.own_data import learnt


@dataclass(frozen=True, eq=False)
class Clients:
    """The participants of a federation at work, a `Side` of `play`; arguments as those of `Simulation`."""

    federation: Federation
    data: FederatedData
    engine: Engine
    rounds: int
    participation: Participation
    drop_failing: bool = False

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        state, view, probe = request.state, request.view, request.probe
        clients, seed = probe.ids.tolist(), self.federation.seed
        parts = None
        if probe.asks == "batch_loss":
            size = probe.batch_size
            parts = [probe_batch(self.data.train[client], size, seed, view.round, client) for client in clients]
        loss = np.empty(len(clients))
        for model, mine in state.by_model(view.rows(probe.ids)):
            own = None if parts is None else [parts[i] for i in mine]
            loss[mine] = self.engine.training_loss(state.models[model], probe.ids[mine], own)
        return dict(zip(clients, loss.tolist(), strict=True))

    def updates(self, request: AskUpdates) -> Reports:
        """Let clients train, each from its model and with its memory, and return the reports that count."""
        state, view, seed = request.state, request.view, self.federation.seed
        reports = self._trained(state, view, request.selection.ids, probe=request.probe)
        values = self._measured(state, view, reports)
        ids = lost_replies(self.participation, reports.ids, seed, view.round, probe=request.probe)
        if not values and not len(ids):
            return reports
        lost = dict(reports.lost)
        for name, found in values.items():
            failing = dict.fromkeys(reports.ids[~np.isfinite(found)].tolist(), f"its {name!r} is not finite")
            self._refuse_failing(failing, view.round)
            lost = failing | lost
        lost = dict.fromkeys(ids.tolist(), "its reply did not arrive") | lost
        came = ~np.isin(reports.ids, list(lost))
        return replace(reports, metrics={**reports.metrics, **values}, lost=lost).only(came)

    def learnt(self, request: AskServer) -> FederationState:
        return learnt(self.federation, self.engine, self.data.server, request)

    def _trained(self, state: FederationState, view: ClientView, ids: Ints, *, probe: bool) -> Reports:
        """Return the reports of clients whose updates are finite, before anything is measured."""
        rows = view.rows(ids)
        trained = self._train(state, view, ids, rows)
        finite = finite_rows(trained.update) if trained.finite is None else trained.finite
        finite = finite & np.isfinite(trained.loss)
        lost = {} if finite.all() else self._failing(ids[~finite], trained.loss[~finite], view.round)
        metrics = {"num_examples": view.num_examples[rows].astype(np.float64), "loss": trained.loss}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        reports = Reports(
            ids,
            trained.update,
            metrics,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            lost=lost,
            trainable=trained.trainable,
            output_bias=self.engine.layout.output_bias,
            steps=trained.steps,
            round=view.round,
            probe=probe,
        )
        return reports.only(finite) if lost else reports

    def _train(self, state: FederationState, view: ClientView, ids: Ints, rows: Ints) -> LocalUpdates:
        solver = self.federation.memory_solver
        if len(ids) == 0:
            return LocalUpdates(np.empty((0, state.models.shape[1]), np.float32), np.empty(0), np.empty(0, np.int64))
        rate = self.federation.local.rate_at(view.round, self.rounds)
        done, order = [], []
        for model, mine in state.by_model(rows):
            terms: Mapping[str, Float32s] = {}
            if solver is not None:
                assert state.memory is not None  # see `Simulation.start`
                share = view.num_examples[rows[mine]] / view.num_examples.mean()
                terms = solver.prepare(state.memory.read(rows[mine]), state.solver[model], share)
            elif state.memory is not None:  # which is the loss's
                terms = {MEMORY: state.memory.read(rows[mine])}
            done.append(self.engine.train(state.models[model], ids[mine], view.round, rate, terms))
            order.append(mine)
        if len(done) == 1:
            return done[0]
        back = np.argsort(np.concatenate(order))
        update, loss, steps = (np.concatenate(column)[back] for column in zip(*(t[:3] for t in done), strict=True))
        return LocalUpdates(update, loss, steps, done[0].trainable)

    def _measured(self, state: FederationState, view: ClientView, reports: Reports) -> dict[str, Floats]:
        """Return what the parts have the clients measure with their local models."""
        wanted, ids = self.federation.measurements(), reports.ids
        if not wanted:
            return {}
        values = {measurement.name: np.empty(len(ids)) for measurement in wanted}
        before = any(measurement.wants_before for measurement in wanted)
        for model, mine in state.by_model(view.rows(ids)):
            outputs = self.engine.outputs(state.models[model], reports.update[mine], ids[mine], before=before)
            for row, output in zip(mine, outputs, strict=True):
                own = measured(wanted, output, self.federation.seed, view.round, int(ids[row]))
                for name, value in own.items():
                    values[name][row] = value
        return {one.name: checked_measured(one, values[one.name], ids) for one in wanted}

    def _failing(self, ids: Ints, loss: Floats, number: int) -> dict[int, str]:
        why = {
            client: f"its update is not finite (mean training loss {value:.4g})"
            for client, value in zip(ids.tolist(), loss.tolist(), strict=True)
        }
        self._refuse_failing(why, number)
        return why

    def _refuse_failing(self, lost: Mapping[int, str], number: int) -> None:
        if lost and not self.drop_failing:
            client, cause = next(iter(lost.items()))
            more = f" So did {len(lost) - 1} more." if len(lost) > 1 else ""
            raise TrainingError(
                f"Client {client} failed in round {number}: {cause}.{more} {STEADIER}; "
                "or go on without failing clients by run.on_failure = 'drop'."
            )
