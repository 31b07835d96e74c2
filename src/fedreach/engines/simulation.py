"""One simulated round: the decisions of `federation.round` carried out by an engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.base import Engine, Trained
from fedreach.errors import TrainingError
from fedreach.federation.participation import Always, Participation
from fedreach.federation.round import (
    ClientView,
    Federation,
    FederationState,
    Reports,
    RoundReport,
    conclude_round,
    initial_state,
    plan_probe,
    plan_round,
)
from fedreach.streams import generator


class Round(NamedTuple):
    """What a simulated round leaves behind."""

    state: FederationState
    report: RoundReport
    local_models: Float32s  # (r, d) of the clients whose reports count, in the order of `report.cohort`


@dataclass(frozen=True, eq=False)
class Simulation:
    """A federation, its data and the engine that trains its clients.

    Args:
        federation: The parts that decide.
        data: Who holds what.
        engine: Trains and evaluates.
        rounds: Length of the run, which schedules of the local rate refer to.
        participation: Who can be reached in a round.
        drop_failing: Whether a client whose update is not finite is left out of its round (and named in the row)
            instead of ending the run.

    Example:
        >>> from fedreach.testing.problems import tiny_simulation
        >>> simulation = tiny_simulation()
        >>> state = simulation.start()
        >>> for _ in range(3):
        ...     state, report, _ = simulation.step(state)
        >>> state.round, len(report.cohort)
        (3, 2)
    """

    federation: Federation
    data: FederatedData
    engine: Engine
    rounds: int
    participation: Participation = field(default_factory=Always)
    drop_failing: bool = False

    @cached_property
    def first_view(self) -> ClientView:
        """What the server knows before the first round."""
        ids, needs = self.data.population.participants, self.federation.needs()
        counts = self.data.label_counts()[ids]
        view = ClientView.of(ids, self.data.train.sizes[ids])
        return replace(
            view,
            label_counts=counts if "label_counts" in needs else None,
            label_entropy=label_entropy(counts) if "label_entropy" in needs else None,
        )

    def start(self) -> FederationState:
        """Return the state before the first round."""
        return initial_state(self.federation, self.engine.initial, self.first_view)

    def step(self, state: FederationState) -> Round:
        """Simulate one round."""
        federation, number = self.federation, state.round + 1
        view = self.first_view
        rng = generator(federation.seed, "participation", number)
        view = replace(view, available=self.participation.available(len(view.ids), rng), loss=state.loss)

        probe = plan_probe(federation, state, view)
        if probe is not None:
            loss, probed = view.loss.copy(), view.probed.copy()
            loss[view.rows(probe.ids)] = self.engine.training_loss(state.params, probe.ids)
            probed[view.rows(probe.ids)] = True
            view = replace(view, loss=loss, probed=probed)

        selection = plan_round(federation, state, view)
        if len(selection.ids):
            rate = federation.local.rate_at(number, self.rounds)
            trained = self.engine.train(state.params, selection.ids, number, rate)
        else:
            trained = Trained(np.empty((0, len(state.params)), np.float32), np.empty(0))
        reports = self._reports(view, selection.ids, trained, number)
        new, report = conclude_round(federation, state, view, selection, reports)
        return Round(new, report, state.params + reports.update)

    def _reports(self, view: ClientView, ids: Ints, trained: Trained, number: int) -> Reports:
        finite = np.isfinite(trained.update).all(axis=1) & np.isfinite(trained.loss)
        lost = {
            int(client): f"its update is not finite (mean training loss {loss:.4g})"
            for client, loss in zip(ids[~finite], trained.loss[~finite], strict=True)
        }
        if lost and not self.drop_failing:
            client, cause = next(iter(lost.items()))
            more = f" So did {len(lost) - 1} more." if len(lost) > 1 else ""
            raise TrainingError(
                f"Client {client} failed in round {number}: {cause}.{more} Lower local.rate or set local.clip_norm; "
                "or go on without failing clients by run.on_failure = 'drop'."
            )
        ids, rows = ids[finite], view.rows(ids[finite])
        metrics = {"num_examples": view.num_examples[rows].astype(np.float64), "loss": trained.loss[finite]}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        counts = None if view.label_counts is None else view.label_counts[rows]
        return Reports(ids, trained.update[finite], metrics, counts, lost)


def label_entropy(counts: Ints) -> Floats:
    """Return H_i = -sum_c p_ic ln p_ic in nats for (n, c) label counts, with 0 ln 0 = 0.

    Example:
        >>> label_entropy(np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]])).round(4)
        array([0.    , 0.6931, 1.2799, 1.3863])
    """
    share = counts / counts.sum(axis=1, keepdims=True)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    entropy: Floats = np.maximum(-(share * logs).sum(axis=1), 0.0)
    return entropy
