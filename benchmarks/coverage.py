"""Error rates of the statistics: studies with a known truth, repeated often.

    python benchmarks/coverage.py                    # the table, 4000 studies a line; a few minutes on one core
    python benchmarks/coverage.py --studies 20000 --write    # into docs/statistics.md

A study draws the accuracies of several methods over seeds (a part that all methods of a seed share, and noise), takes
paired differences as a comparison does, and tests them. The share of studies with an event is compared with its nominal
rate; the error is the Monte Carlo standard error of that share. `tests/test_coverage.py` runs the same lines.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import page
from fedreach._util.arrays import Floats
from fedreach.evaluation.statistics import (
    LEVEL,
    POWER,
    PairedTest,
    detectable_shift,
    plan_seeds,
    run_paired_tests,
    seeds_to_equate,
    t_quantile,
)
from tables import table

PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
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
    enough = seeds_to_equate(0.0, MARGIN, SD, LEVEL) or 0
    same = studies.judged(enough, [0, 0], to_first(2), margin=MARGIN)
    yield share(shown(same), f"equivalence shown where none differs, {enough} seeds", ">=", POWER)


def stein(studies: Studies) -> Iterable[Line]:
    """Yield the promises of two stages, for a small and a large spread that the plan does not know."""
    pilot, aim, pairs, rng = 12, 0.03, to_first(4), studies.rng
    critical, found = t_quantile(1 - LEVEL / 2 / len(pairs), pilot - 1), t_quantile(POWER, pilot - 1)
    widest = 2 * aim * critical / (critical + found) * (1 + 1e-9)
    for sd in (0.02, 0.06):
        for truth, words in (([0.0] * 4, "none differs"), ([0, aim, aim, aim], "all differ by the aim")):
            judged = []
            for _ in range(studies.number):
                first = drawn(rng, pilot, truth, sd)
                seeds = plan_seeds([dict(enumerate(first[:, a] - first[:, b])) for a, b in pairs], aim)
                more = max(number or pilot for number in seeds) - pilot
                both = np.vstack([first, drawn(rng, more, truth, sd)])
                judged.append(studies.compare(both, pairs, pilot=range(pilot)))
            where = f"sd {100 * sd:g} points, {words}"
            inside = (covered(j, truth, pairs) for j in judged)
            yield share(inside, f"Stein: each interval covers, {where}", ">=", 1 - LEVEL)
            narrow = (all((each.high or 0) - (each.low or 0) <= widest for each in j) for j in judged)
            yield share(narrow, f"Stein: no interval wider than promised, {where}", "=", 1.0)
            if any(truth):
                yield share(
                    (j[0].conclusion == "better" for j in judged), f"Stein: the aim is found, {where}", ">=", POWER
                )
            else:
                yield share((false(j, truth, pairs) for j in judged), f"Stein: any false finding, {where}", "<=", LEVEL)


FAMILIES = (one, many_by_holm, many_by_max_t, equivalence, stein)


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
        for line in family(Studies(studies))
    ]
    looked = (
        "Who looks after each of 3 to 20 seeds and stops at the first p < 0.05 finds a difference that is none in "
        f"{100 * peeking(studies):.1f} % of studies."
    )
    return f"{table(head, rows, 1)}\n\n{studies} studies a line. {looked}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[each.__name__ for each in FAMILIES], help="these promises alone")
    parser.add_argument("--studies", type=int, default=4000, help="a line")
    parser.add_argument("--write", action="store_true", help="put the table into docs/statistics.md")
    arguments = parser.parse_args()
    found = text(arguments.studies, [each for each in FAMILIES if arguments.only in (None, each.__name__)])
    print(found)
    if arguments.write:
        command = f"python benchmarks/coverage.py --studies {arguments.studies} --write        # minutes of one core"
        page.put("coverage", f"```text\n{command}\n```\n\n{found}", PAGE)
