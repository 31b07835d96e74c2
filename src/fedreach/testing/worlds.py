"""Small federations that components are checked on, ordinary ones and those on which careless code fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.federation.labels import released_entropy
from fedreach.federation.protocols import Measurement
from fedreach.federation.steps import measured
from fedreach.federation.values import ClientView, LocalOutputs, Reports
from fedreach.streams import generator
from fedreach.wireless.radio import Devices, Radio, RadioState

Lists = Mapping[int, Sequence[int]]
REPORT_BITS = 1_000_000


@dataclass(frozen=True, eq=False)
class World:
    """A synthetic federation: what each client holds, and what it would answer in each round."""

    words: str
    ids: Ints  # (n,)
    num_examples: Ints  # (n,)
    label_counts: Floats  # (n, c)
    loss: Floats  # (n,) falls by a tenth a round
    direction: Floats  # (n, d) of each client's updates
    cohort: int
    rounds: int = 4
    away: Lists = field(default_factory=dict)  # round -> ids that cannot be reached
    lost: Lists = field(default_factory=dict)  # round -> ids whose replies, to a probe too, do not arrive
    noise: float = 0.1  # how much a client's updates differ between rounds
    losses_known: bool = False  # whether losses are known before round 1
    who: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # (n,) whose random numbers each client has

    def __str__(self) -> str:
        return f"{self.words}; cohort {self.cohort}"

    def view(self, needs: Iterable[str] = ()) -> ClientView:
        """Return what the server knows before round 1, with the facts that a component needs."""
        facts: Mapping[str, Any] = {
            "label_counts": self.label_counts,
            "label_entropy": released_entropy(self.label_counts),
        }
        view = ClientView.of(self.ids, self.num_examples, loss=self.loss.copy() if self.losses_known else None)
        return replace(view, **{name: facts[name].copy() for name in needs})

    def available(self, number: int) -> AnyArray:
        """Return the (n,) flags of a round."""
        return ~np.isin(self.ids, self.away.get(number, ()))

    def with_radio(self, view: ClientView) -> ClientView:
        """Return the view with channels that stay the same, each client's its own."""
        radio, k = Radio(fading="none"), int(self.who.max(initial=0)) + 1
        devices = Devices(*(drawn[self.who] for drawn in radio.devices(k, seed=0)))
        state = radio.state(
            devices,
            seed=0,
            round_=view.round,
            ids=view.ids,
            num_examples=view.num_examples,
            bits_per_example=6272.0,
            passes=np.ones(len(view.ids)),
            report_bits=REPORT_BITS,
        )
        return replace(view, radio=state)

    def reports(
        self, ids: Ints, number: int, needs: Iterable[str], measures: Iterable[Measurement], *, probe: bool = False
    ) -> Reports:
        """Return the replies of these clients, less those that get lost."""
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
                measured([measure], self.outputs(row, number), 0, number, int(self.who[row])) for row in rows
            ]
            metrics |= {measure.name: np.array([values[measure.name] for values in measured_rows], np.float64)}
        return Reports(
            ids,
            self.updates(rows, number),
            metrics,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            output_bias=self.label_counts.shape[1],
            lost={int(client): "its reply did not arrive" for client in gone},
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
        """Return what a client's local model says about its examples."""
        rng, c = generator(0, "outputs", number, int(self.who[row])), self.label_counts.shape[1]
        labels = rng.integers(c, size=3 + int(self.num_examples[row]) % 5)
        local, before = (rng.standard_normal((len(labels), c)).astype(np.float32) for _ in range(2))
        return LocalOutputs(local, labels, before)

    def renamed(self, order: Ints) -> World:
        """Return the federation in which the i-th id is that of the client who was the order[i]-th."""
        return replace(
            self,
            num_examples=self.num_examples[order],
            label_counts=self.label_counts[order],
            loss=self.loss[order],
            direction=self.direction[order],
            who=self.who[order],
        )


def world(words: str, n: int, cohort: int, *, d: int = 8, c: int = 4, ids: Sequence[int] | None = None) -> World:
    """Return n clients of which no two are alike."""
    rng = generator(n, "testing world")
    return World(
        words=words,
        ids=np.arange(n) if ids is None else np.array(ids),
        num_examples=rng.permutation(np.arange(1, n + 1)) * 7,
        label_counts=rng.integers(1, 20, (n, c)).astype(np.float64),
        loss=rng.uniform(0.2, 2.0, n),
        direction=rng.standard_normal((n, d)),
        cohort=cohort,
        who=np.arange(n),
    )


def with_rates(view: ClientView, bits_per_second: Floats) -> ClientView:
    """Return the view with channels of these rates, a report of 10^6 bits and devices that are all alike."""
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
        seconds_price=1.0,
        joules_price=1.0,
        capacitance=1e-27,
    )
    return replace(view, radio=state)


def worlds() -> Iterator[World]:
    """Yield federations of which most are inconvenient."""
    six = world("6 clients, 0 to 5, no two alike", 6, 2)
    alike = np.zeros(6, np.int64)
    pairs = np.array([0, 0, 1, 1, 2, 2])
    yield six
    yield world("5 clients with the ids 3, 7, 20, 21 and 50", 5, 2, ids=[3, 7, 20, 21, 50])
    yield world("a single client, with the id 4", 1, 1, ids=[4])
    yield replace(six, words="6 clients, all of them wanted", cohort=6)
    yield replace(six, words="6 clients, one wanted", cohort=1)
    yield replace(
        six,
        words="6 clients; in round 2 only client 4 can be reached, in round 3 nobody",
        cohort=3,
        away={2: [0, 1, 2, 3, 5], 3: range(6)},
    )
    yield replace(
        six,
        words="6 clients; the replies of 0, 1 and 2 get lost in round 1 and those of everybody in round 2",
        lost={1: [0, 1, 2], 2: range(6)},
    )
    yield replace(six.renamed(alike), words="6 clients that are all alike", noise=0.0)
    yield replace(
        six.renamed(pairs),
        words="3 pairs of alike clients, each with a single class",
        label_counts=np.eye(4)[pairs] * 10,
        noise=0.0,
        cohort=3,
    )
    yield replace(six, words="6 clients whose updates are zero", direction=np.zeros((6, 8)), noise=0.0)
    noised = six.label_counts + np.linspace(-0.4, 0.6, 24).reshape(6, 4)
    noised[2] = 0
    yield replace(six, words="6 clients with noised label counts, those of client 2 all 0", label_counts=noised)
    yield world("12 clients, 10 classes, a model of 40 numbers", 12, 5, d=40, c=10)


def distinct_worlds() -> Iterator[World]:
    """Yield federations without ties, in which losses are known from the start."""
    for toy in (world("7 clients, no two alike", 7, 3), world("10 clients, no two alike, ids 5 to 14", 10, 4)):
        ids = toy.ids + (5 if len(toy.ids) == 10 else 0)
        yield replace(toy, ids=ids, losses_known=True, rounds=3)


@dataclass(frozen=True, eq=False)
class ReportSeries:
    """Reports of a few rounds, each a function of what the component needs and measures."""

    words: str
    rounds: Sequence[Callable[[Iterable[str], Iterable[Measurement]], Reports]]

    def __str__(self) -> str:
        return self.words


def report_series() -> Iterator[ReportSeries]:
    """Yield reports that weightings are checked on: all clients of each world reply, and then half of them."""
    for toy in worlds():
        half = toy.ids[: max(1, len(toy.ids) // 2)]

        def reports_of(ids: Ints, number: int, toy: World = toy) -> Callable[..., Reports]:
            return lambda needs, measures: replace(toy, lost={}).reports(ids, number, needs, measures)

        yield ReportSeries(
            f"reports of {toy.words}", [reports_of(toy.ids, 1), reports_of(half, 2), reports_of(toy.ids, 3)]
        )
    huge = world("", 4, 1)
    huge = replace(huge, num_examples=np.array([1, 10, 10**6, 10**9]), loss=np.array([0.0, 1e-30, 1.0, 1e30]))
    yield ReportSeries(
        "reports of 4 clients with 1 to 10^9 examples and losses of 0 to 10^30",
        [lambda needs, measures: huge.reports(huge.ids, 1, needs, measures)],
    )
