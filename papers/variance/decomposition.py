"""Decompose the variance of a nested design, and predict the variance of other ways to run a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from papers.variance.components import Nested, Variance, mean_of, round_noise
from papers.variance.read import DesignResults

LEVELS = ("partition", "participants", "initial model", "batches")


@dataclass(frozen=True)
class Part:
    """A part of the variance of one seed: of either method's score, and of their difference."""

    name: str
    of: tuple[Variance, Variance, Variance]
    within: tuple[str, ...] = ()  # the components that include it; empty for the components themselves
    short: str = ""  # its name in a figure

    @property
    def difference(self) -> Variance:
        """Of the difference."""
        return self.of[2]


@dataclass(frozen=True)
class Way:
    """A way to run a comparison: the variance of its difference with n seeds is `fixed` + `one_seed` / n."""

    name: str
    one_seed: Variance
    fixed: float = 0.0  # what no number of seeds lowers
    pinned: bool = False  # whether it asks about the federations that it was run on, and no others

    def variance(self, seeds: int) -> float:
        """Return the variance of the mean difference over this many seeds."""
        return self.fixed + self.one_seed.cut / seeds


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The decomposition of the results of a design."""

    results: DesignResults
    difference: Nested
    parts: tuple[Part, ...]  # the four components, in the order of `LEVELS`
    total: Part  # of one seed
    included: tuple[Part, ...]  # parts that are in components: which clients are unseen, noise from round to round
    ways: tuple[Way, ...]  # the first: as it is

    def way(self, start: str) -> Way | None:
        """Return the way whose name begins with `start`."""
        return next((way for way in self.ways if way.name.startswith(start)), None)


NOW, TWICE, MEANS = "every seed draws everything anew", "with twice the unseen clients", "with means over the last"
PARTITION, FEDERATION = "partition pinned", "partition and participants pinned"


def decompose(results: DesignResults) -> Decomposition:
    """Decompose the variance of the results of a design."""
    nested = [Nested.of(values) for values in results.final]
    parts = tuple(Part(name, _as_triple([n.component(level) for n in nested])) for level, name in enumerate(LEVELS))
    return Decomposition(
        results=results,
        difference=nested[2],
        parts=parts,
        total=Part("one seed", _as_triple([n.of_one() for n in nested])),
        included=(*_sampling_parts(results), *_round_parts(results)),
        ways=tuple(_ways(results, nested[2])),
    )


def _as_triple(variances: Sequence[Variance]) -> tuple[Variance, Variance, Variance]:
    first, second, difference = variances
    return first, second, difference


def _sampling_parts(results: DesignResults) -> list[Part]:
    if results.sampling is None:
        return []
    of = _as_triple([mean_of(estimates) for estimates in results.sampling])
    return [Part("which clients are unseen", of, LEVELS[:2], "unseen clients")]


def _round_parts(results: DesignResults) -> list[Part]:
    if results.scores.shape[-1] < 2:
        return []
    of = _as_triple([round_noise(series) for series in results.with_difference(results.scores)])
    return [Part("from round to round", of, LEVELS[3:], "round to round")]


def _ways(results: DesignResults, now: Nested) -> list[Way]:
    """Return the ways to run a comparison whose variance the runs can predict."""
    total = now.of_one()
    ways = [Way(NOW, total)]
    for part in _sampling_parts(results):
        clients = part.difference
        # The clients' part lies in the first two components; an estimate above these says more than there is.
        limit = max(total.value - now.of_one(pinned=2).value, 0.0)
        saved, low, high = (min(value, limit) / 2 for value in (clients.cut, clients.low, clients.high))
        limits = max(total.low - high, 0.0), total.high - low
        ways.append(Way(TWICE, Variance(total.value - saved, *limits, min(total.freedom, clients.freedom))))
    if (rounds := results.scores.shape[-1]) > 1:
        means = results.with_difference(results.scores.mean(axis=-1))[2]
        ways.append(Way(f"{MEANS} {rounds} evaluated rounds", Nested.of(means).of_one()))
    for pinned, name in ((1, PARTITION), (2, FEDERATION)):
        remaining = min(now.of_one(pinned), total, key=lambda variance: variance.value)  # where a component is below 0
        ways.append(Way(f"{name}: about itself", remaining, pinned=True))
        ways.append(Way(f"{name}: about others", remaining, total.value - remaining.value))
    return ways
