"""What the runs of a nested design say: where the spread comes from, and what would lower it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from papers.variance.components import Nested, Variance, mean_of, round_noise
from papers.variance.read import Study

LEVELS = ("partition", "participants", "initial model", "batches")


@dataclass(frozen=True)
class Part:
    """A part of the variance of one seed: of either method's score, and of their difference."""

    name: str
    of: tuple[Variance, Variance, Variance]
    within: tuple[str, ...] = ()  # the components that this one is in already; none for those that add up
    short: str = ""  # its name in a figure

    @property
    def difference(self) -> Variance:
        """Of the difference."""
        return self.of[2]


@dataclass(frozen=True)
class Way:
    """A way to run a comparison: the variance of its difference with n seeds is `fixed` + `one` / n."""

    name: str
    one: Variance
    fixed: float = 0.0  # what no number of seeds lowers
    pinned: bool = False  # whether it asks about the federations that it was run on, and no others

    def variance(self, seeds: int) -> float:
        """Return the variance of the mean difference of so many seeds."""
        return self.fixed + self.one.cut / seeds


@dataclass(frozen=True, eq=False)
class Decomposition:
    """All that is told of a study."""

    study: Study
    difference: Nested
    parts: tuple[Part, ...]  # the four components, in the order of `LEVELS`
    total: Part  # of one seed
    included: tuple[Part, ...]  # parts that are in components: which clients are unseen, noise from round to round
    ways: tuple[Way, ...]  # the first: as it is

    def way(self, start: str) -> Way | None:
        """Return the way whose name begins so."""
        return next((way for way in self.ways if way.name.startswith(start)), None)


NOW, TWICE, MEANS = "every seed draws everything anew", "with twice the unseen clients", "with means over the last"
PARTITION, FEDERATION = "partition pinned", "partition and participants pinned"


def decompose(study: Study) -> Decomposition:
    """Return what a study says."""
    nested = [Nested.of(values) for values in study.final]
    parts = tuple(Part(name, _three([n.component(level) for n in nested])) for level, name in enumerate(LEVELS))
    return Decomposition(
        study=study,
        difference=nested[2],
        parts=parts,
        total=Part("one seed", _three([n.of_one() for n in nested])),
        included=(*_unseen(study), *_rounds(study)),
        ways=tuple(_ways(study, nested[2])),
    )


def _three(found: Sequence[Variance]) -> tuple[Variance, Variance, Variance]:
    one, other, difference = found
    return one, other, difference


def _unseen(study: Study) -> list[Part]:
    if study.sampling is None:
        return []
    of = _three([mean_of(estimates) for estimates in study.sampling])
    return [Part("which clients are unseen", of, LEVELS[:2], "unseen clients")]


def _rounds(study: Study) -> list[Part]:
    if study.scores.shape[-1] < 2:
        return []
    of = _three([round_noise(series) for series in study.with_difference(study.scores)])
    return [Part("from round to round", of, LEVELS[3:], "round to round")]


def _ways(study: Study, now: Nested) -> list[Way]:
    """Return the ways to run a comparison that the runs can speak of."""
    total = now.of_one()
    ways = [Way(NOW, total)]
    for part in _unseen(study):
        clients = part.difference
        # The clients' part lies in the first two components; an estimate above these says more than there is.
        most = max(total.value - now.of_one(pinned=2).value, 0.0)
        less, low, high = (min(value, most) / 2 for value in (clients.cut, clients.low, clients.high))
        limits = max(total.low - high, 0.0), total.high - low
        ways.append(Way(TWICE, Variance(total.value - less, *limits, min(total.freedom, clients.freedom))))
    if (rounds := study.scores.shape[-1]) > 1:
        means = study.with_difference(study.scores.mean(axis=-1))[2]
        ways.append(Way(f"{MEANS} {rounds} evaluated rounds", Nested.of(means).of_one()))
    for pinned, name in ((1, PARTITION), (2, FEDERATION)):
        left = min(now.of_one(pinned), total, key=lambda variance: variance.value)  # where a component is below 0
        ways.append(Way(f"{name}: about itself", left, pinned=True))
        ways.append(Way(f"{name}: about others", left, total.value - left.value))
    return ways
