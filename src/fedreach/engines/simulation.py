"""One simulated round: the decisions of `federation.round` carried out by an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedreach.arrays import Float32s, Ints
from fedreach.data.federated import FederatedData
from fedreach.data.partition.statistics import label_entropy
from fedreach.engines.base import Engine, Trained
from fedreach.engines.choice import build_engine
from fedreach.errors import ConfigError, DataError, TrainingError
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
from fedreach.models import build as build_model
from fedreach.streams import generator, torch_seed


class Round(NamedTuple):
    """What a simulated round leaves behind."""

    state: FederationState
    report: RoundReport
    update: Float32s  # (r, d) of the clients whose reports count, in the order of `report.cohort`


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

    def __post_init__(self) -> None:
        for part in ("solver", "local"):
            ours, theirs = getattr(self.federation, part), getattr(self.engine, part)
            if ours != theirs:
                raise ConfigError(f"federation.{part} {ours} and that of the engine, {theirs}, must be the same.")

    @cached_property
    def first_view(self) -> ClientView:
        """What the server knows before the first round."""
        ids, needs = self.data.population.participants, self.federation.needs()
        counts = self.data.label_counts()[ids]
        empty = ids[self.data.train.sizes[ids] == 0]
        if empty.size:
            raise DataError(
                f"A participant must have at least one training example; client {empty[0]} has none. "
                "Leave it out of the population, or drop or merge empty clients (`handle_empty`)."
            )
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
        return Round(new, report, reports.update)

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
        update = trained.update if finite.all() else trained.update[finite]
        ids, rows = ids[finite], view.rows(ids[finite])
        metrics = {"num_examples": view.num_examples[rows].astype(np.float64), "loss": trained.loss[finite]}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        counts = None if view.label_counts is None else view.label_counts[rows]
        return Reports(ids, update, metrics, counts, lost, trained.trainable)


def simulate(
    data: FederatedData,
    model: str | Callable[..., nn.Module],
    federation: Federation,
    *,
    rounds: int,
    model_options: Mapping[str, Any] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    participation: Participation | None = None,
    drop_failing: bool = False,
) -> Simulation:
    """Return the simulation of a federation, with model and engine made for its data.

    Args:
        data: Who holds what.
        model: A name of `fedreach.models.MODELS`, or a function that returns a module, see `fedreach.models.build`.
        federation: The parts that decide.
        rounds: Length of the run.
        model_options: Further arguments of the model.
        engine: Its name, and
        device: where it runs, and
        threads: on how many threads, see `fedreach.engines.base.Engine`.
        participation: Who can be reached in a round; everybody where left out.
        drop_failing: See `Simulation`.
    """
    module = build_model(
        model,
        data.dataset.train_x.shape[1:],
        data.dataset.num_classes,
        seed=torch_seed(federation.seed, "model"),
        options=model_options,
    )
    parts = (module, data, federation.solver, federation.local, federation.seed)
    made = build_engine(engine, *parts, device, threads)
    return Simulation(federation, data, made, rounds, participation or Always(), drop_failing)
