"""Check the promises of the statistics: comparisons with a known truth, repeated often.

    python benchmarks/coverage.py                    # 4000 comparisons per line; several minutes on one core
    python benchmarks/coverage.py --comparisons 20000 --write    # into docs/records/coverage.md

Each comparison draws accuracies of several methods over seeds: a term that all methods of a seed share, and noise of
their own. It takes differences seed by seed and tests them as a report does. Each line compares how often something
happens with the promise; the error is the Monte-Carlo standard error. `tests/test_coverage.py` runs the same lines.
`coverage_shapes.py` has the differences that are not normal.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import coverage_shapes
import page
from fedreach._util.arrays import Floats
from fedreach.evaluation.statistics import (
    LEVEL,
    MIN_RANKED,
    POWER,
    PairedTest,
    detectable_shift,
    plan_seeds,
    run_paired_tests,
    seeds_to_equate,
    seeds_to_find,
    t_quantile,
)
from tables import table

PAGE = Path(__file__).parents[1] / "docs" / "records" / "coverage.md"
SD = 0.04  # of a difference, as on the digits
MARGIN = 0.02
Pairs = Sequence[tuple[int, int]]
Compare = Callable[..., Sequence[PairedTest]]


class Line(NamedTuple):
    """A promise, and how often it was kept."""

    what: str
    promise: str  # "=", "<=" or ">="
    promised: float
    measured: float
    error: float  # Monte-Carlo standard error, at the promise

    @property
    def kept(self) -> bool:
        """Whether the share lies where it was promised, within four standard errors."""
        off = self.measured - self.promised
        slack = 4 * self.error
        return {"=": abs(off) <= slack, "<=": off <= slack, ">=": off >= -slack}[self.promise]


def compared(runs: Floats, pairs: Pairs, **how: Any) -> Sequence[PairedTest]:
    """Judge differences of methods, first minus second: `runs` (seeds, methods)."""
    return run_paired_tests([dict(enumerate(runs[:, a] - runs[:, b])) for a, b in pairs], **how)


def drawn(rng: np.random.Generator, seeds: int, truth: Sequence[float], sd: float = SD) -> Floats:
    """Return (seeds, methods) accuracies; what a seed shares varies more than what methods differ by, as it does."""
    shared = rng.normal(0.8, 2 * sd, (seeds, 1))
    return shared + np.array(truth) + rng.normal(0, sd / math.sqrt(2), (seeds, len(truth)))


def to_first(methods: int) -> Pairs:
    return [(j, 0) for j in range(1, methods)]


def all_pairs(methods: int) -> Pairs:
    return [(b, a) for a, b in combinations(range(methods), 2)]


def share(happened: Iterable[bool | list[bool]], what: str, promise: str, promised: float) -> Line:
    """Return how often something happened: once a study, or as the share of what happened in it."""
    held = [float(np.mean(each)) for each in happened]
    return Line(what, promise, promised, float(np.mean(held)), math.sqrt(promised * (1 - promised) / len(held)))


def false(judged: Sequence[PairedTest], truth: Sequence[float], pairs: Pairs) -> bool:
    """Whether a difference is called better or worse that is none, or has the other sign."""
    signs = {"better": 1, "worse": -1}
    return any(
        signs.get(each.conclusion, 0) not in (0, np.sign(truth[a] - truth[b]))
        for each, (a, b) in zip(judged, pairs, strict=True)
    )


def covered(judged: Sequence[PairedTest], truth: Sequence[float], pairs: Pairs) -> list[bool]:
    return [
        each.low is not None and each.high is not None and each.low <= truth[a] - truth[b] <= each.high
        for each, (a, b) in zip(judged, pairs, strict=True)
    ]


class Studies:
    """Studies of one kind, one after the other from one stream, judged by `compare`."""

    def __init__(self, number: int, compare: Compare = compared, seed: int = 0) -> None:
        self.number, self.compare, self.rng = number, compare, np.random.default_rng(seed)

    def judged(self, seeds: int, truth: Sequence[float], pairs: Pairs, **how: Any) -> list[Sequence[PairedTest]]:
        return [self.compare(drawn(self.rng, seeds, truth), pairs, **how) for _ in range(self.number)]

    def staged(
        self, draw: Callable[[int], Floats], pilot: int, pairs: Pairs, aim: float, **how: Any
    ) -> Sequence[PairedTest]:
        """Judge a pilot and the further seeds for which it asks, at most 200 together."""
        first = draw(pilot)
        seeds = plan_seeds([dict(enumerate(first[:, a] - first[:, b])) for a, b in pairs], aim, **how)
        more = min(max(number or pilot for number in seeds), 200) - pilot
        return self.compare(np.vstack([first, draw(more)]), pairs, pilot=range(pilot), **how)


def one(studies: Studies) -> Iterable[Line]:
    """Yield the promises about a single difference."""
    pair = to_first(2)
    for seeds in (3, 20):
        true = [0, 0.01]
        inside = (covered(j, true, pair)[0] for j in studies.judged(seeds, true, pair))
        yield share(inside, f"interval covers, {seeds} seeds", "=", 1 - LEVEL)
        said = (j[0].conclusion != "inconclusive" for j in studies.judged(seeds, [0, 0], pair))
        yield share(said, f"better or worse where neither, {seeds} seeds", "=", LEVEL)
        least = SD / math.sqrt(seeds) * detectable_shift(t_quantile(1 - LEVEL / 2, seeds - 1), seeds - 1)
        least *= math.sqrt(math.pi / 3) if seeds >= MIN_RANKED else 1.0
        found = (j[0].conclusion == "better" for j in studies.judged(seeds, [0, least], pair))
        yield share(found, f"the detectable difference is found, {seeds} seeds", "=", POWER)


def many_by_holm(studies: Studies) -> Iterable[Line]:
    """Yield the promises about five methods against a baseline."""
    pairs = to_first(6)
    for truth, words in (([0.0] * 6, "none differs"), ([0, 0, 0, 0.03, 0.03, -0.05], "three of five differ")):
        judged = studies.judged(20, truth, pairs)
        yield share((false(j, truth, pairs) for j in judged), f"Holm: any false finding, {words}", "<=", LEVEL)
        yield share((covered(j, truth, pairs) for j in judged), f"Holm: each interval covers, {words}", ">=", 1 - LEVEL)


def many_by_max_t(studies: Studies) -> Iterable[Line]:
    """Yield the promises about all pairs of four methods."""
    pairs = all_pairs(4)
    for seeds in (5, 20):
        for truth, words in (([0.0] * 4, "none differs"), ([0, 0, 0.03, -0.05], "some differ")):
            judged = studies.judged(seeds, truth, pairs, correction="max_t")
            where = f"all pairs of 4, {words}, {seeds} seeds"
            wrong = (false(j, truth, pairs) for j in judged)
            yield share(wrong, f"max-t: any false finding, {where}", "<=" if any(truth) else "=", LEVEL)
            inside = (all(covered(j, truth, pairs)) for j in judged)
            yield share(inside, f"max-t: all intervals cover, {where}", "=", 1 - LEVEL)


def equivalence(studies: Studies) -> Iterable[Line]:
    """Yield the promises of two one-sided tests."""

    def shown(judged: Iterable[Sequence[PairedTest]]) -> list[bool]:
        return [any(e.p_equivalent is not None and e.p_equivalent < LEVEL for e in j) for j in judged]

    at_margin = studies.judged(30, [0, MARGIN], to_first(2), margin=MARGIN)
    yield share(shown(at_margin), "equivalent at the very margin, 30 seeds", "=", LEVEL)
    at_margin = studies.judged(30, [0, MARGIN, -MARGIN, MARGIN], to_first(4), margin=MARGIN)
    yield share(shown(at_margin), "any of three equivalent, all at the margin, 30 seeds", "<=", LEVEL)
    enough = math.ceil(math.pi / 3 * (seeds_to_equate(0.0, MARGIN, SD, LEVEL) or 0))
    same = studies.judged(enough, [0, 0], to_first(2), margin=MARGIN)
    yield share(shown(same), f"equivalence shown where none differs, {enough} seeds", ">=", POWER)


def stein(studies: Studies) -> Iterable[Line]:
    """Yield the promises of two stages, for a small and a large spread that the plan does not know."""
    pilot, aim, pairs, rng = 12, 0.03, to_first(4), studies.rng
    for sd in (0.02, 0.06):
        for truth, words in (([0.0] * 4, "none differs"), ([0, aim, aim, aim], "all differ by the aim")):
            judged = [
                studies.staged(lambda n, truth=truth, sd=sd: drawn(rng, n, truth, sd), pilot, pairs, aim)  # type: ignore[misc]
                for _ in range(studies.number)
            ]
            where = f"sd {100 * sd:g} points, {words}"
            inside = (covered(j, truth, pairs) for j in judged)
            yield share(inside, f"Stein: each interval covers, {where}", ">=", 1 - LEVEL)
            if any(truth):
                yield share(
                    (j[0].conclusion == "better" for j in judged), f"Stein: the aim is found, {where}", ">=", POWER
                )
            else:
                yield share((false(j, truth, pairs) for j in judged), f"Stein: any false finding, {where}", "<=", LEVEL)


def stein_shapes(studies: Studies) -> Iterable[Line]:
    """Yield the promises of two stages for differences that are not normal."""
    pilot, aim, pair, rng = 12, 1.0, to_first(2), studies.rng

    def runs(name: str, shift: float) -> Callable[[int], Floats]:
        return lambda n: np.column_stack([np.zeros(n), coverage_shapes.SHAPES[name].draw(rng, n) - shift])

    for test in ("ranks", "t"):
        for name in [*coverage_shapes.SHAPES][: None if test == "ranks" else 3]:
            true = coverage_shapes.truth(name, pilot, test)
            judged = [studies.staged(runs(name, true), pilot, pair, aim, test=test)[0] for _ in range(studies.number)]
            where = f'{name}, test = "{test}"'
            wrong = (j.conclusion in ("better", "worse") for j in judged)
            yield share(wrong, f"Stein: false finding, {where}", "<=", coverage_shapes.MOST_FALSE)
            inside = ((j.low or 0) <= 0 <= (j.high or 0) for j in judged)
            yield share(inside, f"Stein: interval covers, {where}", ">=", coverage_shapes.LEAST_COVERED)


def shapes(studies: Studies) -> Iterable[Line]:
    """Yield the promises about differences that are not normal, and what they cost where differences are normal."""
    for seeds in coverage_shapes.SEEDS:
        for name, shape in coverage_shapes.SHAPES.items():
            true, zeros = coverage_shapes.truth(name, seeds), np.zeros(seeds)
            judged = [
                studies.compare(np.column_stack([zeros, shape.draw(studies.rng, seeds) - true]), to_first(2))
                for _ in range(studies.number)
            ]
            wrong = (false(j, [0, 0], to_first(2)) for j in judged)
            yield share(wrong, f"false finding, {name}, {seeds} seeds", "<=", coverage_shapes.MOST_FALSE)
            inside = (covered(j, [0, 0], to_first(2)) for j in judged)
            yield share(inside, f"interval covers, {name}, {seeds} seeds", ">=", coverage_shapes.LEAST_COVERED)
        by_t, by_default = coverage_shapes.power(seeds, studies.number, studies.compare, studies.rng)
        lost, error = by_t - by_default, math.sqrt(POWER * (1 - POWER) / studies.number)
        yield Line(f"power lost to t, normal, {seeds} seeds", "<=", coverage_shapes.MOST_POWER_LOST, lost, error)


def limit_of_seeds(studies: Studies) -> Iterable[Line]:
    """Yield how often the limit of the number of seeds is at least the number for the true difference and spread."""
    for seeds in (5, 20):
        for difference in (0.2, 0.7):
            finding, equating = seeds_to_find(difference, 1.0, LEVEL), seeds_to_equate(difference, 0.5, 1.0, LEVEL)
            wanted = min(number for number in (finding, equating) if number is not None)
            judged = [
                studies.compare(
                    np.column_stack([np.zeros(seeds), studies.rng.normal(difference, 1.0, seeds)]),
                    to_first(2),
                    margin=0.5,
                )[0]
                for _ in range(studies.number)
            ]
            inside = ((j.seeds_needed_high or 0) >= wanted for j in judged if j.conclusion == "inconclusive")
            yield share(inside, f"at most so many seeds are needed, true {wanted}, {seeds} seeds", ">=", 1 - LEVEL)


FAMILIES = (one, many_by_holm, many_by_max_t, equivalence, stein, stein_shapes, limit_of_seeds, shapes)
SLOW = (many_by_max_t,)  # with a quarter of the comparisons


def peeking(studies: int, seed: int = 0) -> float:
    """Return how often a difference that is none is found by who looks after each of 3 to 20 seeds, and stops then."""
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(studies):
        runs = drawn(rng, 20, [0, 0])
        found += any(compared(runs[:seeds], to_first(2))[0].significant for seeds in range(3, 21))
    return found / studies


def text(studies: int, families: Sequence[Callable[[Studies], Iterable[Line]]] = FAMILIES) -> str:
    """Return the table of promises, and what becomes of the level for who peeks."""
    head = ["what", "promised", "measured", "± error", "kept"]
    rows = [
        [
            line.what,
            f"{ {'=': '', '<=': '≤ ', '>=': '≥ '}[line.promise] }{line.promised:.3f}",
            f"{line.measured:.4f}",
            f"{line.error:.4f}",
            "yes" if line.kept else "NO",
        ]
        for family in families
        if family is not shapes
        for line in family(Studies(studies // 4 if family in SLOW else studies))
    ]
    looked = (
        "Testing after each seed from 3 to 20, and stopping at the first p < 0.05, finds a difference where there is "
        f"none in {100 * peeking(studies):.1f}% of comparisons."
    )
    tables = [table(head, rows, 1)] if rows else []
    tables += [coverage_shapes.text(studies, compared)] if shapes in families else []
    return "\n\n".join([*tables, f"{studies} comparisons per line, {studies // 4} for max-t. {looked}"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[each.__name__ for each in FAMILIES], help="only these promises")
    parser.add_argument("--comparisons", type=int, default=4000, help="per line")
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/coverage.md")
    arguments = parser.parse_args()
    found = text(arguments.comparisons, [each for each in FAMILIES if arguments.only in (None, each.__name__)])
    print(found)
    if arguments.write:
        command = f"python benchmarks/coverage.py --comparisons {arguments.comparisons} --write"
        page.put("coverage", f"```text\n{command}\n```\n\n{found}", PAGE)
