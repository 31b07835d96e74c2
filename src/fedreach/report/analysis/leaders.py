"""Which methods lead, where that is decided: what a table may print in bold.

Which method is best is read off the same numbers that are tested, so that the comparisons of this best one with the
others are no family of their own: some method always leads by chance. All pairs are the family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from fedreach.report.analysis.contrasts import Difference, judge_all
from fedreach.report.analysis.rows import When, mean_of
from fedreach.report.values import Comparison, Run


@dataclass(frozen=True)
class Leaders:
    """The methods each of which is better than all others but these, between whom nothing is decided; perhaps none.

    Often it is none: the second is not decided to be worse than the first, and not better than the third.
    """

    methods: tuple[str, ...]
    pairs: tuple[Difference, ...]  # all, the one with the better mean first

    @property
    def tested(self) -> int:
        """How many pairs could be tested, and were corrected for."""
        return sum(pair.judged.p is not None for pair in self.pairs)


NOBODY = Leaders((), ())


def leaders(comparison: Comparison, when: When) -> Leaders:
    """Return who leads on what methods are judged by."""
    name, last = comparison.primary, comparison.plan.last_rounds
    return leaders_by(
        comparison,
        comparison.methods,
        lambda run: mean_of(run, name, when, last),
        lower_is_better=comparison.score.lower_is_better,
    )


def leaders_by(
    comparison: Comparison, methods: Sequence[str], value: Callable[[Run], float], *, lower_is_better: bool
) -> Leaders:
    """Return who of some methods leads, by a number of each run.

    Pairs are formed seed by seed, on the same clients, and judged as the comparison's plan says, all together.
    """
    values = {
        method: {run.seed: (run.partition.hash, value(run)) for run in comparison.counted(method)} for method in methods
    }
    means = {m: float(np.mean([number for _, number in found.values()])) for m, found in values.items() if found}
    ranked = sorted(
        (m for m in means if np.isfinite(means[m])), key=lambda m: means[m] if lower_is_better else -means[m]
    )
    pairs = list(combinations(ranked, 2))
    found = [_differences(values[first], values[second]) for first, second in pairs]
    judged = judge_all(comparison, found, lower_is_better=lower_is_better)
    better = {pair for pair, each in zip(pairs, judged, strict=True) if each.verdict == "better"}
    leading: tuple[str, ...] = ()
    for many in range(1, len(ranked)):
        among, over = combinations(ranked[:many], 2), product(ranked[:many], ranked[many:])
        if better.issuperset(over) and better.isdisjoint(among):
            leading = tuple(ranked[:many])
    return Leaders(leading, tuple(Difference(*pair, each) for pair, each in zip(pairs, judged, strict=True)))


def _differences(first: dict[int, tuple[str, float]], second: dict[int, tuple[str, float]]) -> dict[int, float]:
    return {
        seed: number - second[seed][1]
        for seed, (clients, number) in first.items()
        if seed in second and second[seed][0] == clients
    }
