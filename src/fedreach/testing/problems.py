"""Small synthetic federations for checks, tests and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.streams import generator
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.partition import iid
from fedreach.data.splits import Population, draws, split_held_out
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.base import Measurement
from fedreach.federation.federation import Federation
from fedreach.federation.labels import released_entropy
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Always
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.state import FederationState, initial_state
from fedreach.federation.steps import (
    AskLosses,
    AskServer,
    AskUpdates,
    RoundOutcome,
    Steps,
    measure_outputs,
    next_request,
    next_view,
    run_round,
    run_until_cohort,
)
from fedreach.federation.types import ClientResults, LocalOutputs, ServerView, State
from fedreach.federation.weighting import ByExamples, Equal
from fedreach.runs.simulation import Simulation
from fedreach.wireless.radio import Radio, RadioState

# -------------------- Small federations for checks

Lists = Mapping[int, Sequence[int]]
REPORT_BITS = 1_000_000


@dataclass(frozen=True, eq=False)
class ToyFederation:
    """A synthetic federation with the replies of each client in each round.

    Args:
        words: Description.
        ids: (n,) client ids.
        num_examples: (n,) numbers of examples.
        label_counts: (n, c) label counts.
        loss: (n,) losses before round 1; they decrease by 10% per round.
        direction: (n, d) mean updates of the clients.
        cohort_size: Number of clients per round.
        rounds: Number of rounds.
        away: Round -> ids of clients that are not available.
        lost: Round -> ids of clients whose replies, including those to a probe, are lost.
        noise: Standard deviation of a client's updates between rounds.
        losses_known: Whether the server knows the losses before round 1.
        who: (n,) keys of the clients' random streams.
    """

    words: str
    ids: Ints
    num_examples: Ints
    label_counts: Floats
    loss: Floats
    direction: Floats
    cohort_size: int
    rounds: int = 4
    away: Lists = field(default_factory=dict)
    lost: Lists = field(default_factory=dict)
    noise: float = 0.1
    losses_known: bool = False
    who: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def __str__(self) -> str:
        return f"{self.words}; cohort {self.cohort_size}"

    def view(self, needs: Iterable[str] = ()) -> ServerView:
        """Return the server's view before round 1, with the client statistics that a component needs."""
        facts: Mapping[str, Any] = {
            "label_counts": self.label_counts,
            "label_entropy": released_entropy(self.label_counts),
        }
        view = ServerView.of(self.ids, self.num_examples, loss=self.loss.copy() if self.losses_known else None)
        return replace(view, **{name: facts[name].copy() for name in needs})

    def available(self, number: int) -> AnyArray:
        """Return the (n,) flags of available clients in a round."""
        return ~np.isin(self.ids, self.away.get(number, ()))

    def with_radio(self, view: ServerView) -> ServerView:
        """Return the view with a constant channel for each client."""
        rates = generator(0, "testing rates").uniform(1e7, 4e7, int(self.who.max(initial=0)) + 1)
        return with_rates(view, rates[self.who])

    def reports(
        self, ids: Ints, number: int, needs: Iterable[str], measures: Iterable[Measurement], *, probe: bool = False
    ) -> ClientResults:
        """Return the replies of these clients that are not lost."""
        gone = self.lost.get(number, ())
        ids = np.sort(ids[~np.isin(ids, gone)])
        rows = np.searchsorted(self.ids, ids)
        view = self.view(needs)
        metrics = {"num_examples": self.num_examples[rows].astype(np.float64), "loss": self.losses(number)[rows]}
        metrics["steps"] = (1 + 3 * self.who[rows] % 5).astype(np.float64)
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        for measure in measures:
            measured_rows = [
                measure_outputs([measure], self.outputs(row, number), 0, number, int(self.who[row])) for row in rows
            ]
            metrics |= {measure.name: np.array([values[measure.name] for values in measured_rows], np.float64)}
        return ClientResults(
            ids,
            self.updates(rows, number),
            metrics,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            output_bias=self.label_counts.shape[1],
            lost={int(client): "its reply was lost" for client in gone},
            round=number,
            probe=probe,
        )

    def losses(self, number: int) -> Floats:
        """Return the (n,) training losses of a round."""
        return self.loss * 0.9**number

    def updates(self, rows: Ints, number: int) -> AnyArray:
        """Return the (r, d) updates of a round."""
        d = self.direction.shape[1]
        noise = [generator(0, "updates", number, int(self.who[row])).standard_normal(d) for row in rows]
        moved = self.direction[rows] + self.noise * np.array(noise).reshape(-1, d)
        return moved.astype(np.float32)

    def outputs(self, row: int, number: int) -> LocalOutputs:
        """Return the outputs of a client's local model on its examples."""
        rng, c = generator(0, "outputs", number, int(self.who[row])), self.label_counts.shape[1]
        labels = rng.integers(c, size=3 + int(self.num_examples[row]) % 5)
        local, before = (rng.standard_normal((len(labels), c)).astype(np.float32) for _ in range(2))
        return LocalOutputs(local, labels, before)

    def renamed(self, order: Ints) -> ToyFederation:
        """Return the federation in which the i-th id belongs to the former client order[i]."""
        return replace(
            self,
            num_examples=self.num_examples[order],
            label_counts=self.label_counts[order],
            loss=self.loss[order],
            direction=self.direction[order],
            who=self.who[order],
        )


def toy_federation(
    words: str, n: int, cohort_size: int, *, d: int = 8, c: int = 4, ids: Sequence[int] | None = None
) -> ToyFederation:
    """Return a federation of n different clients.

    Args:
        words: Description.
        n: Number of clients.
        cohort_size: Number of clients per round.
        d: Number of model parameters.
        c: Number of classes.
        ids: Client ids. Default: 0 to n - 1.
    """
    rng = generator(n, "testing world")
    return ToyFederation(
        words=words,
        ids=np.arange(n) if ids is None else np.array(ids),
        num_examples=rng.permutation(np.arange(1, n + 1)) * 7,
        label_counts=rng.integers(1, 20, (n, c)).astype(np.float64),
        loss=rng.uniform(0.2, 2.0, n),
        direction=rng.standard_normal((n, d)),
        cohort_size=cohort_size,
        who=np.arange(n),
    )


def with_rates(view: ServerView, bits_per_second: Floats) -> ServerView:
    """Return the view with channels of these rates, reports of 10^6 bits and equal devices."""
    n = len(view.ids)
    state = RadioState(
        ids=view.ids,
        bits_per_second=bits_per_second,
        power_watts=np.full(n, 0.5),
        max_hertz=np.full(n, 2e9),
        cycles_per_pass=view.num_examples.astype(np.float64) * 1e6,
        num_examples=view.num_examples,
        passes=np.ones(n),
        report_bits=REPORT_BITS,
        time_weight=1.0,
        energy_weight=1.0,
        capacitance=1e-27,
    )
    return replace(view, radio=state)


def toy_federations() -> Iterator[ToyFederation]:
    """Yield ordinary federations and edge cases."""
    six = toy_federation("6 different clients, 0 to 5", 6, 2)
    alike = np.zeros(6, np.int64)
    pairs = np.array([0, 0, 1, 1, 2, 2])
    yield six
    yield toy_federation("5 clients with the ids 3, 7, 20, 21 and 50", 5, 2, ids=[3, 7, 20, 21, 50])
    yield toy_federation("1 client, with the id 4", 1, 1, ids=[4])
    yield replace(six, words="6 clients, all selected", cohort_size=6)
    yield replace(six, words="6 clients, one selected", cohort_size=1)
    yield replace(
        six,
        words="6 clients; in round 2 only client 4 is available, in round 3 no client",
        cohort_size=3,
        away={2: [0, 1, 2, 3, 5], 3: range(6)},
    )
    yield replace(
        six,
        words="6 clients; the replies of 0, 1 and 2 are lost in round 1, and all replies in round 2",
        lost={1: [0, 1, 2], 2: range(6)},
    )
    yield replace(six.renamed(alike), words="6 equal clients", noise=0.0)
    yield replace(
        six.renamed(pairs),
        words="3 pairs of equal clients, each with one class",
        label_counts=np.eye(4)[pairs] * 10,
        noise=0.0,
        cohort_size=3,
    )
    yield replace(six, words="6 clients whose updates are zero", direction=np.zeros((6, 8)), noise=0.0)
    noised = six.label_counts + np.linspace(-0.4, 0.6, 24).reshape(6, 4)
    noised[2] = 0
    yield replace(six, words="6 clients with noisy label counts, those of client 2 all 0", label_counts=noised)
    yield toy_federation("12 clients, 10 classes, a model of 40 parameters", 12, 5, d=40, c=10)


def distinct_federations() -> Iterator[ToyFederation]:
    """Yield federations without ties, in which the server knows the losses from the start."""
    seven, ten = toy_federation("7 different clients", 7, 3), toy_federation("10 different clients", 10, 4)
    for toy in (seven, replace(ten, words=f"{ten.words}, ids 5 to 14", ids=ten.ids + 5)):
        yield replace(toy, losses_known=True, rounds=3)


@dataclass(frozen=True, eq=False)
class ReportSeries:
    """A federation without lost replies, and the clients that reply in each round."""

    world: ToyFederation
    rounds: Sequence[Ints]

    def __str__(self) -> str:
        return f"reports of {self.world.words}"

    def reports(self, component: Any) -> list[ClientResults]:
        """Return the replies of each round, with the statistics and measurements that the component declares."""
        parts = [*component.with_inner()]
        needs = {name for part in parts for name in part.needs}
        measures = [measure for part in parts for measure in part.measures]
        return [self.world.reports(ids, t, needs, measures) for t, ids in enumerate(self.rounds, start=1)]


def report_series() -> Iterator[ReportSeries]:
    """Yield replies for checks of weightings: of all clients of a federation, of half, and of all again."""
    for toy in toy_federations():
        half = toy.ids[: max(1, len(toy.ids) // 2)]
        yield ReportSeries(replace(toy, lost={}), [toy.ids, half, toy.ids])
    huge = toy_federation("4 clients with 1 to 10^9 examples and losses from 0 to 10^30", 4, 1)
    huge = replace(huge, num_examples=np.array([1, 10, 10**6, 10**9]), loss=np.array([0.0, 1e-30, 1.0, 1e30]))
    yield ReportSeries(huge, [huge.ids])


# -------------------- Small federations for training


def tiny_data(seed: int = 0) -> FederatedData:
    """Return two Gaussian classes in the plane, with 60 examples of 6 clients, of which the first 4 participate."""
    rng = generator(seed, "tiny")
    y = rng.integers(2, size=80)
    x = (rng.standard_normal((80, 2)) + 2.0 * y[:, None]).astype(np.float32)
    dataset = from_arrays(x[:60], y[:60], x[60:], y[60:], num_classes=2, name="tiny")
    partition = iid(dataset.train_y, 6, generator(seed, "partition"))
    train, held_out = split_held_out(partition, 0.2, draws(partition, seed, "held-out"))
    population = Population(np.arange(4), np.arange(4, 6))
    return FederatedData(dataset, dataset.train_y, partition, population, train, held_out, None)


def tiny_federation(seed: int = 0) -> Federation:
    """Return a federation with FedAvg and two clients per round."""
    return Federation(Uniform(), ByExamples(), FedAvg(), LocalSGD(lr=0.5), Average(), cohort_size=2, seed=seed)


def tiny_simulation(seed: int = 0) -> Simulation:
    """Return a simulation of FedAvg with a linear model on `tiny_data`, with two clients per round."""
    data, federation = tiny_data(seed), tiny_federation(seed)
    task = Task.of(build("linear", (2,), 2, seed=seed), data, federation)
    return Simulation(federation, data, TorchEngine(Sequential, task), rounds=10)


# -------------------- Rounds of a synthetic federation


@dataclass(frozen=True)
class PlayedRound:
    """Clients that a policy probed and selected in a round."""

    round: int
    probed: tuple[int, ...]
    chosen: tuple[int, ...]
    places: int
    remark: str
    reachable: int
    clusters: tuple[int, ...]

    def __str__(self) -> str:
        probed = f", after a probe of {list(self.probed)}" if self.probed else ""
        return f"in round {self.round} it selected {list(self.chosen)}{probed}"


@dataclass(frozen=True, eq=False)
class ToyRun:
    """A run of a selection policy in a synthetic federation with default components; also its `ClientBackend`."""

    policy: Any
    world: ToyFederation
    seed: int = 0

    @cached_property
    def federation(self) -> Federation:
        radio = Radio(fading="none") if self.policy.declares("needs_radio") else None
        plain = Equal(), FedAvg(), LocalSGD(), Average()
        return Federation(self.policy, *plain, cohort_size=self.world.cohort_size, seed=self.seed, radio=radio)

    def start(self) -> FederationState:
        """Return the state before round 1."""
        params = np.zeros((self.policy.first_models, self.world.direction.shape[1]), np.float32)
        return initial_state(self.federation, params, self.world.view(self.federation.needs()))

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        ids = request.probe.ids
        losses = self.world.losses(request.view.round)[request.view.rows(ids)]
        return dict(zip(ids.tolist(), losses.tolist(), strict=True))

    def updates(self, request: AskUpdates) -> ClientResults:
        needs, measures = self.federation.needs(), self.federation.measurements()
        return self.world.reports(request.selection.ids, request.view.round, needs, measures, probe=request.probe)

    def learnt(self, request: AskServer) -> FederationState:
        raise AssertionError("the server of a toy federation has no data")

    def plan(self, state: FederationState) -> tuple[Steps, AskUpdates]:
        """Run the next round until the server requests the cohort's updates."""
        clients = replace(self.world.view(self.federation.needs()), available=self.world.available(state.round + 1))
        view = next_view(self.federation, clients, state, Always())
        if self.federation.radio is not None:
            view = self.world.with_radio(view)
        steps = run_round(self.federation, state, view, rounds=self.world.rounds)
        request = run_until_cohort(steps, self)
        assert isinstance(request, AskUpdates)
        return steps, request


def play_rounds(
    policy: Any, world: ToyFederation, keep: Callable[[State], State] = lambda state: state, seed: int = 0
) -> list[PlayedRound]:
    """Return the selections of a policy in each round of a federation.

    Args:
        policy: Selection policy.
        world: Federation.
        keep: Function that is applied to the policy's state after each round.
        seed: Seed of the run.
    """
    run, rounds = ToyRun(policy, world, seed), []
    state = run.start()
    for number in range(1, world.rounds + 1):
        steps, request = run.plan(state)
        done = next_request(steps, run.updates(request))
        assert isinstance(done, RoundOutcome)
        state = replace(done.state, selection=keep(done.state.selection))
        view, selection = request.view, request.selection
        rounds.append(
            PlayedRound(
                number,
                () if view.probe is None else tuple(view.probe.ids.tolist()),
                tuple(selection.ids.tolist()),
                selection.places,
                selection.remark,
                int(view.available.sum()),
                tuple(state.clusters.tolist()),
            )
        )
    return rounds


def frequencies(policy: Any, world: ToyFederation, draws: int) -> Floats:
    """Return the (n,) frequencies with which clients are selected in round 1, over `draws` seeds."""
    count, start = np.zeros(len(world.ids)), ToyRun(policy, world).start()
    for seed in range(draws):
        _, request = ToyRun(policy, world, seed).plan(start)
        count[request.view.rows(request.selection.ids)] += 1
    return count / draws
