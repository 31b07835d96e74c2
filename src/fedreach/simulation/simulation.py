"""A simulated federation: the steps of its rounds, answered by an engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedreach.data.federated import FederatedData
from fedreach.engines.choice import build_engine
from fedreach.engines.protocols import Engine, Precision, Task
from fedreach.errors import ConfigError, DataError
from fedreach.federation.answers import checked_labels
from fedreach.federation.federation import Federation
from fedreach.federation.labels import released_entropy
from fedreach.federation.participation import Always, Participation
from fedreach.federation.state import FederationState, initial_state
from fedreach.federation.steps import Done, drive, memory_width, new_memory, next_view, play
from fedreach.federation.time_energy import FittingCost, fitting_cost, with_radio
from fedreach.federation.values import ClientView
from fedreach.limits import check_memory
from fedreach.models import build as build_model
from fedreach.models.state import constant_bytes
from fedreach.simulation.clients import Clients
from fedreach.streams import generator, torch_seed
from fedreach.wireless.radio import Devices


@dataclass(frozen=True, eq=False)
class Simulation:
    """A federation, its data and the engine that trains its clients.

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
    rounds: int  # length of the run, which schedules of the local rate refer to
    participation: Participation = field(default_factory=Always)  # who can be reached in a round
    drop_failing: bool = False  # leave out whose update is not finite (the row names them) instead of ending the run
    memory_file: Path | None = None  # where what clients keep between rounds is stored; None: main memory

    def __post_init__(self) -> None:
        for part in ("solver", "local", "loss", "augmentation"):
            ours, theirs = getattr(self.federation, part), getattr(self.engine.task, part)
            if ours != theirs:
                raise ConfigError(f"federation.{part} {ours} and that of the engine, {theirs}, must be the same.")
        self._check_cohort_fits()
        if self.federation.learning_server is not None and self.data.server is None:
            raise ConfigError(
                f"{type(self.federation.server).__name__} trains on data of the server's own, and there is none. "
                "Add `[server_data] examples = 100` to the experiment, or server_examples=100 to `federate`."
            )

    def _check_cohort_fits(self) -> None:
        """Refuse a cohort of k whose updates do not fit beside three models of d numbers: 4 (k + 3) d bytes.

        Where the server remembers updates, those of the cohort are there three times: new, weighed and old.
        """
        k = 1 if self.federation.traits["selection"].ignores_cohort else self.federation.cohort
        d = len(self.engine.initial)
        what = f"A cohort of {k} that sends {d} numbers each"
        times = 3 if self.federation.traits["aggregation"].remembers_updates else 1
        check_memory(what, 4 * (times * k + 3) * d, "Lower method.cohort, or use a smaller model.")

    @cached_property
    def first_view(self) -> ClientView:
        """What the server knows before the first round."""
        ids, needs = self.data.population.participants, self.federation.needs()
        empty = ids[self.data.train.sizes[ids] == 0]
        if empty.size:
            raise DataError(
                f"A participant must have at least one training example; client {self.data.name_of(empty[0])} has "
                "none. Leave it out of the population, or drop or merge empty clients (`handle_empty`)."
            )
        constants = constant_bytes(self.engine.constants)
        view = replace(ClientView.of(ids, self.data.train.sizes[ids]), rounds=self.rounds, constant_bytes=constants)
        if not needs:
            return view
        counts = self.data.label_counts()[ids]
        statistics, rng = self.federation.label_statistics, generator(self.federation.seed, "label-statistics")
        # Under a secure sum the server sees none of this; each client's own entropy goes into its own weight only.
        released = counts.astype(np.float64)
        if not statistics.only_sum:
            released = checked_labels(statistics, statistics.release(counts, rng), view.num_examples, ids)
        return replace(
            view,
            label_counts=released if "label_counts" in needs else None,
            label_entropy=released_entropy(released) if "label_entropy" in needs else None,
        )

    def start(self) -> FederationState:
        """Return the state before the first round."""
        width = memory_width(self.federation, self.engine.num_trainable, len(self.engine.initial))
        memory = new_memory(self.federation, len(self.first_view.ids), width, self.memory_file)
        return initial_state(self.federation, self.engine.initial, self.first_view, memory)

    def step(self, state: FederationState) -> Done:
        """Simulate one round."""
        summed = self.engine.weighted_sum
        return drive(play(self.federation, state, self.view(state), rounds=self.rounds, summed=summed), self.clients)

    def view(self, state: FederationState) -> ClientView:
        """Return what the server knows as the next round begins: who can be reached, and over which channels."""
        view = next_view(self.federation, self.first_view, state, self.participation)
        if self.federation.radio is None:
            return view
        d, p = len(self.engine.initial), self.engine.num_trainable
        return with_radio(self.federation, view, self.devices, d=d, p=p, bits_per_example=self._bits_per_example)

    def fitting_cost(self, held_out: Mapping[int, int], sent: Sequence[int], round_: int) -> FittingCost | None:
        """Return what fitting a serving rule costs, or None without a radio.

        Args:
            held_out: Participant -> examples that it fits by.
            sent: Bytes that one participant sends, exchange by exchange.
            round_: Of the model.
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
    def clients(self) -> Clients:
        """Who does the work of a round."""
        return Clients(
            self.federation, self.data, self.engine, self.rounds, self.participation, drop_failing=self.drop_failing
        )

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
    model_seed: int | None = None,
    engine: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    precision: Precision = "highest",
    participation: Participation | None = None,
    drop_failing: bool = False,
    examined: bool = False,
) -> Simulation:
    """Return the simulation of a federation, with model and engine made for its data.

    Args:
        data: Who holds what.
        model: A name of `fedreach.models.MODELS`, or a function that returns a module, see `fedreach.models.build`.
        federation: The parts that decide.
        rounds: Length of the run.
        model_options: Further arguments of the model.
        model_seed: Of its initial weights; None: that of the federation.
        engine: Its name; ``"auto"`` takes the one that a short trial finds to be the fastest, and
        device: where it runs,
        threads: in how many processes, and
        precision: how precise its products are, see `fedreach.engines.engine.TorchEngine`.
        participation: Who can be reached in a round; everybody where left out.
        drop_failing: See `Simulation`.
        examined: Whether the engine is known to compute the model, see `fedreach.engines.choice.build_engine`.
    """
    module = build_model(
        model,
        data.dataset.sample_shape,
        data.dataset.outputs,
        seed=torch_seed(federation.seed if model_seed is None else model_seed, "model"),
        options=model_options,
    )
    task = Task.of(module, data, federation)
    made = build_engine(engine, task, device, threads, precision, cohort=federation.cohort, examined=examined)
    return Simulation(federation, task.data, made, rounds, participation or Always(), drop_failing)
