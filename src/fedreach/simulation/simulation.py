"""One simulated round: the decisions of `federation.round` carried out by an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedreach.arrays import Float32s
from fedreach.data.federated import FederatedData
from fedreach.engines.choice import build_engine
from fedreach.engines.engine import Engine
from fedreach.engines.protocols import Precision
from fedreach.errors import ConfigError, DataError
from fedreach.federation.federation import Federation
from fedreach.federation.labels import released_entropy
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
from fedreach.federation.time_energy import with_radio
from fedreach.federation.values import ClientView, Probe, RoundReport
from fedreach.models import build as build_model
from fedreach.simulation.clients import Clients, server_steps
from fedreach.storage.rows import Dtype
from fedreach.storage.table import RowTable
from fedreach.streams import generator, torch_seed
from fedreach.wireless.radio import Devices


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
        memory_file: Where what clients keep between rounds is stored, if their solver has them keep anything; None
            keeps it in main memory.

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
    memory_file: Path | None = None

    def __post_init__(self) -> None:
        for part in ("solver", "local"):
            ours, theirs = getattr(self.federation, part), getattr(self.engine, part)
            if ours != theirs:
                raise ConfigError(f"federation.{part} {ours} and that of the engine, {theirs}, must be the same.")
        if self.federation.training_server is not None and self.data.server is None:
            raise ConfigError(
                f"{type(self.federation.server).__name__} trains on data of the server's own, and there is none. "
                "Add `[server_data] examples = 100` to the experiment, or server_examples=100 to `federate`."
            )

    @cached_property
    def first_view(self) -> ClientView:
        """What the server knows before the first round."""
        ids, needs = self.data.population.participants, self.federation.needs()
        empty = ids[self.data.train.sizes[ids] == 0]
        if empty.size:
            raise DataError(
                f"A participant must have at least one training example; client {empty[0]} has none. "
                "Leave it out of the population, or drop or merge empty clients (`handle_empty`)."
            )
        view = ClientView.of(ids, self.data.train.sizes[ids])
        if not needs:
            return view
        counts = self.data.label_counts()[ids]
        statistics, rng = self.federation.label_statistics, generator(self.federation.seed, "label-statistics")
        # Under a secure sum the server sees none of this; each client's own entropy goes into its own weight only.
        told = counts.astype(np.float64) if statistics.only_sum else statistics.release(counts, rng)
        return replace(
            view,
            label_counts=told if "label_counts" in needs else None,
            label_entropy=released_entropy(told) if "label_entropy" in needs else None,
        )

    def start(self) -> FederationState:
        """Return the state before the first round."""
        state = initial_state(self.federation, self.engine.initial, self.first_view)
        if not self.federation.has_memory:
            return state
        n, p = len(self.first_view.ids), self.engine.num_trainable
        dtype: Dtype = getattr(self.federation.memory_solver, "memory_dtype", "float32")
        return replace(state, memory=RowTable.zeros(n, p, self.memory_file, dtype=dtype))

    def step(self, state: FederationState) -> Round:
        """Simulate one round."""
        federation, view = self.federation, self.view(state)
        if server_trains(federation, state):
            server, own = federation.training_server, self.data.server
            assert server is not None  # that is why we are here,
            assert own is not None  # and `__post_init__` saw to it
            steps = server_steps(self.engine, server, len(own.y), state.models, view.round, federation.seed)
            new, report = conclude_server_round(federation, state, view, steps)
            return Round(new, report, np.empty((0, state.models.shape[1]), np.float32))

        probe = plan_probe(federation, state, view)
        if probe is not None:
            state, view = self._probed(state, view, probe)
        selection = plan_round(federation, state, view)
        replies = self.clients.work(state, view, selection.ids)
        if replies.memory is not state.memory:
            state = replace(state, memory=replies.memory)
        summed = getattr(self.engine, "weighted_sum", None)
        new, report = conclude_round(federation, state, view, selection, replies.reports, summed)
        return Round(new, report, replies.reports.update)

    def view(self, state: FederationState) -> ClientView:
        """Return what the server knows as the next round begins: who can be reached, and over which channels."""
        view = replace(self.first_view, loss=state.loss, round=state.round + 1)  # in which everybody is available
        if getattr(self.participation.available, "__func__", None) is not Always.available:  # that draws nothing
            rng = generator(self.federation.seed, "participation", view.round)
            view = replace(view, available=self.participation.available(len(view.ids), rng))
        if self.federation.radio is None:
            return view
        d, p = len(self.engine.initial), self.engine.num_trainable
        bits = 8.0 * self.data.dataset.train_x[:1].nbytes
        return with_radio(self.federation, view, self.devices, d=d, p=p, bits_per_example=bits)

    @cached_property
    def clients(self) -> Clients:
        """Who does the work of a round."""
        return Clients(
            self.federation, self.data, self.engine, self.rounds, self.participation, drop_failing=self.drop_failing
        )

    def _probed(self, state: FederationState, view: ClientView, probe: Probe) -> tuple[FederationState, ClientView]:
        """Ask the clients; return the state and the view after their answers."""
        rows = view.rows(probe.ids)
        probed, sent, loss = view.probed.copy(), None, view.loss.copy()
        probed[rows] = True
        if probe.asks == "update":
            answers = self.clients.work(state, view, probe.ids, probe=True).reports
            sent = np.zeros_like(probed)
            sent[view.rows(answers.ids)] = True
            loss[sent] = answers.metrics["loss"]
            state = observe_probe(self.federation, state, answers)
        else:
            loss[rows] = self.clients.losses(state, view, probe)
        return state, replace(view, loss=loss, probed=probed, sent_update=sent, probe=probe)

    @cached_property
    def devices(self) -> Devices:
        """What the participants send and compute with, of a federation with a radio."""
        assert self.federation.radio is not None
        return self.federation.radio.devices(len(self.first_view.ids), self.federation.seed)


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
    precision: Precision = "highest",
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
        engine: Its name; ``"auto"`` takes the one that a short trial finds to be the fastest, and
        device: where it runs,
        threads: in how many processes, and
        precision: how precise its products are, see `fedreach.engines.engine.Engine`.
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
    made = build_engine(engine, *parts, device, threads, precision, cohort=federation.cohort)
    return Simulation(federation, data, made, rounds, participation or Always(), drop_failing)
