"""What a paper claims about a figure, in a form that numbers can contradict.

A claim says that differences are above 0, seed by seed: for example one method minus another at each value of an axis.
It is *reproduced* if the paired 95% confidence interval of each difference is above 0. This is an intersection-union
test: all have to pass, so no correction is needed. It is *contradicted* if any difference is below 0 by its
Holm-adjusted interval, and *not reproduced* otherwise. Intervals are those of the typical difference over seeds (see
`fedreach.evaluation.statistics`), which suits seconds and joules, whose differences are skewed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedreach._util.errors import ConfigError, nearest
from fedreach.evaluation.statistics import PairedTest, run_paired_test, run_paired_tests
from fedreach.experiment.schema import Section
from papers.measured import TITLES, Floats, Measured, format_difference, unit_of

Test = Literal[
    "least", "most", "ordered", "near", "rises", "falls", "level", "levels_off", "lead_shrinks", "lead_grows",
    "varies_least"
]  # fmt: skip
Outcome = Literal["reproduced", "not reproduced", "contradicted", "not testable"]
ALONE = ("rises", "falls", "level", "levels_off")  # tested for each method by itself
SAME = 1e-9  # relative; what rounding may change


class Claim(Section):
    """A claim of the paper about one quantity.

    - ``least``, ``most``: the first of `methods` has the least of all, or of those named after it; equals count.
    - ``ordered``: `methods` are in increasing order; equals count.
    - ``near``: the first two of `methods` differ by less than `by`.
    - ``rises``, ``falls``: from the first value of the axis to the last, for each of `methods`, by default all.
    - ``level``: the last value of the axis and the first one differ by less than `by`, for each of `methods`.
    - ``levels_off``: the slope of the last step is smaller than that of the first, for each of `methods`.
    - ``lead_shrinks``, ``lead_grows``: what the others have more than the first of `methods` is smaller, or larger, at
      the last value than at the first.
    - ``varies_least``: largest over smallest value of the first of `methods` is nearer to 1 than that of the others.

    The first four are tested at every value of the axis, or only at the ``"first"`` or ``"last"`` by `at`.
    """

    says: str  # in the paper's words, or near to them
    quantity: str
    test: Test
    methods: list[str] = Field(default_factory=list)
    at: Literal["every", "first", "last"] = "every"
    by: Annotated[float, Field(ge=0)] = 0.0
    control: bool = False  # whether it is a question of a control experiment, which the paper does not ask
    see: list[str] = Field(
        default_factory=list
    )  # recipes with control experiments about when it holds; may name its own

    @model_validator(mode="after")
    def _names_enough(self) -> Self:
        min_methods = {"ordered": 2, "near": 2, "least": 1, "most": 1}.get(self.test, 0 if self.test in ALONE else 1)
        if len(self.methods) < min_methods:
            raise ValueError(f"a claim of the test {self.test!r} that names {min_methods} methods or more")
        if self.test in ("near", "level") and not self.by:
            raise ValueError(f"a claim of the test {self.test!r} that says by how much `by` two numbers may differ")
        return self


@dataclass(frozen=True)
class Conclusion:
    """The conclusion about a claim; its numbers are those of the deciding difference, in the unit of the quantity."""

    claim: Claim
    instead: str  # the method that replaces one of the claim's; empty: none
    outcome: Outcome
    what: str  # the deciding difference, claimed to be above 0
    seeds: int
    mean: float | None = None  # typical difference with at least 10 seeds
    low: float | None = None  # 95% confidence interval; Holm-adjusted for a contradiction
    high: float | None = None
    mde: float | None = None  # smallest true difference detected with 80% power
    reason: str = ""  # why it is not testable


class ClaimedDifference(NamedTuple):
    """A difference that a claim says is above 0."""

    what: str
    values: Floats  # (seeds,)
    scale: float  # differences below `SAME` times this are rounding
    equal_counts: bool = False


class _ClaimData(NamedTuple):
    """A claim and the numbers that it is judged by."""

    claim: Claim
    rows: Mapping[str, Floats]  # method -> (seeds, v)
    x: Floats  # (v,)

    @property
    def claimed_methods(self) -> list[str]:
        return self.claim.methods or list(self.rows)

    @property
    def first(self) -> str:
        return self.claimed_methods[0]

    @property
    def rivals(self) -> list[str]:
        return self.claim.methods[1:] or [method for method in self.rows if method != self.first]

    @property
    def margin(self) -> str:
        by = format_difference(self.claim.quantity, self.claim.by).removeprefix("+")
        return f"margin of {by} {unit_of(self.claim.quantity)}".rstrip()

    def where(self, place: int) -> str:
        return f" at {self.x[place]:.4g}" if len(self.x) > 1 else ""

    def pairs(self, above: str, below: str) -> Iterator[ClaimedDifference]:
        """Yield the difference of two methods at each value of the axis."""
        for place in range(len(self.x)):
            high, low = self.rows[above][:, place], self.rows[below][:, place]
            scale = float(max(abs(high).max(), abs(low).max()))
            yield ClaimedDifference(f"{above} minus {below}{self.where(place)}", high - low, scale, equal_counts=True)


def judge_claim(claim: Claim, measured: Measured, instead: str = "", *, reason: str = "") -> Conclusion:
    """Return the conclusion about a claim.

    Args:
        reason: Why the claim is not testable whatever the numbers; empty: they decide.

    Raises:
        ConfigError: If its quantity was not measured.

    Example:
        >>> numbers = np.array([[[0.71], [0.72], [0.74]], [[0.61], [0.64], [0.63]]])  # (methods, seeds, values)
        >>> measured = Measured(("ours", "theirs"), (0, 1, 2), "", (0.0,), {"accuracy": numbers})
        >>> conclusion = judge_claim(Claim(says="", quantity="accuracy", test="most", methods=["ours"]), measured)
        >>> conclusion.outcome, conclusion.what, round(conclusion.mean, 3)
        ('reproduced', 'ours minus theirs', 0.097)
    """
    if claim.quantity not in measured.numbers:
        if reason and claim.quantity in TITLES:  # a run of two rounds has no first quarter
            return Conclusion(claim, instead, "not testable", "", len(measured.seeds), reason=reason)
        hint = nearest(claim.quantity, measured.numbers)
        raise ConfigError(f"A claim is about {claim.quantity!r}, which this recipe does not measure.{hint}")
    numbers = measured.numbers[claim.quantity]  # (methods, seeds, v)
    x = np.asarray(measured.x, dtype=np.float64)
    if claim.at != "every":
        place = slice(-1, None) if claim.at == "last" else slice(1)
        numbers, x = numbers[..., place], x[place]
    case = _ClaimData(claim, dict(zip(measured.methods, numbers, strict=True)), x)
    every = not claim.methods or (len(claim.methods) == 1 and claim.test not in ALONE)
    rows = [case.rows[method] for method in (measured.methods if every else claim.methods)]
    seeds = numbers.shape[1]
    if not np.isfinite(rows).all():
        reason = reason or "a number is missing"
    if claim.test in (*ALONE, "lead_shrinks", "lead_grows", "varies_least") and len(x) < 2:
        reason = reason or "the axis has one value"
    if reason or seeds < 2:
        return Conclusion(claim, instead, "not testable", "", seeds, reason=reason or "one seed has no spread")
    return _conclude(claim, instead, list(TESTS[claim.test](case)))


def _conclude(claim: Claim, instead: str, claimed: list[ClaimedDifference]) -> Conclusion:
    seeds = len(claimed[0].values)
    alone = [run_paired_test(difference.values) for difference in claimed]
    passed = [_is_shown(difference, test) for difference, test in zip(claimed, alone, strict=True)]
    together = run_paired_tests([dict(enumerate(difference.values.tolist())) for difference in claimed])
    against = [j for j, test in enumerate(together) if _is_contradicted(claimed[j], test)]

    def conclusion(outcome: Outcome, place: int, test: PairedTest) -> Conclusion:
        what = claimed[place].what
        return Conclusion(claim, instead, outcome, what, seeds, test.estimate, test.low, test.high, test.mde)

    if against:
        worst = min(against, key=lambda j: _lower_end(claimed[j], together[j]))
        return conclusion("contradicted", worst, together[worst])
    open_ = [j for j in range(len(claimed)) if not passed[j]] or list(range(len(claimed)))
    weakest = min(open_, key=lambda j: _lower_end(claimed[j], alone[j]))
    return conclusion("reproduced" if all(passed) else "not reproduced", weakest, alone[weakest])


def _is_rounding(difference: ClaimedDifference) -> bool:
    return bool((abs(difference.values) <= SAME * max(difference.scale, 1e-300)).all())


def _is_shown(difference: ClaimedDifference, test: PairedTest) -> bool:
    """Whether a difference is above 0 by its interval; one that is equal for all seeds has none."""
    if _is_rounding(difference):
        return difference.equal_counts
    return bool((difference.values > 0).all()) if test.low is None else test.low > 0 and (test.mean or 0.0) > 0


def _is_contradicted(difference: ClaimedDifference, test: PairedTest) -> bool:
    if _is_rounding(difference):
        return False
    return bool((difference.values < 0).all()) if test.high is None else test.high < 0 and (test.mean or 0.0) < 0


def _lower_end(difference: ClaimedDifference, test: PairedTest) -> float:
    """Return the lower end of the interval of a difference, relative to its scale."""
    assert test.estimate is not None
    return (test.estimate if test.low is None else test.low) / max(difference.scale, 1e-300)


# ---------------------------------------------------------------------------------------- the differences of each test


def _most(case: _ClaimData) -> Iterator[ClaimedDifference]:
    for rival in case.rivals:
        yield from case.pairs(case.first, rival)


def _least(case: _ClaimData) -> Iterator[ClaimedDifference]:
    for rival in case.rivals:
        yield from case.pairs(rival, case.first)


def _in_order(case: _ClaimData) -> Iterator[ClaimedDifference]:
    for below, above in pairwise(case.claimed_methods):
        yield from case.pairs(above, below)


def _near(case: _ClaimData) -> Iterator[ClaimedDifference]:
    """Two one-sided tests: the difference is below `by`, and above its negative."""
    a, b = case.claimed_methods[:2]
    for above, below in ((a, b), (b, a)):
        for what, values, scale, _ in case.pairs(above, below):
            yield ClaimedDifference(f"{case.margin} minus ({what})", case.claim.by - values, scale)


def _rises(case: _ClaimData, sign: float = 1.0) -> Iterator[ClaimedDifference]:
    ends = f"{case.x[-1]:.4g} minus {case.x[0]:.4g}" if sign > 0 else f"{case.x[0]:.4g} minus {case.x[-1]:.4g}"
    for method in case.claimed_methods:
        row = case.rows[method]
        yield ClaimedDifference(f"{method}, {ends}", sign * (row[:, -1] - row[:, 0]), float(abs(row).max()))


def _level(case: _ClaimData) -> Iterator[ClaimedDifference]:
    for sign in (1.0, -1.0):
        for what, values, scale, _ in _rises(case, sign):
            yield ClaimedDifference(f"{case.margin} minus ({what})", case.claim.by - values, scale)


def _levels_off(case: _ClaimData) -> Iterator[ClaimedDifference]:
    for method in case.claimed_methods:
        slopes = abs(np.diff(case.rows[method], axis=1) / np.diff(case.x))
        yield ClaimedDifference(f"{method}, first slope minus last", slopes[:, 0] - slopes[:, -1], float(slopes.max()))


def _lead_changes(case: _ClaimData, sign: float = 1.0) -> Iterator[ClaimedDifference]:
    end = "first" if sign > 0 else "last"
    for rival in case.rivals:
        lead = case.rows[rival] - case.rows[case.first]
        change = sign * (lead[:, 0] - lead[:, -1])
        yield ClaimedDifference(
            f"lead of {rival}, how much larger at the {end} value", change, float(abs(case.rows[rival]).max())
        )


def _varies_least(case: _ClaimData) -> Iterator[ClaimedDifference]:
    times = {m: case.rows[m].max(axis=1) / case.rows[m].min(axis=1) for m in [case.first, *case.rivals]}
    for rival in case.rivals:
        yield ClaimedDifference(
            f"largest over smallest, {rival} minus {case.first}", times[rival] - times[case.first], 1.0
        )


TESTS: Mapping[str, Callable[[_ClaimData], Iterator[ClaimedDifference]]] = {
    "least": _least,
    "most": _most,
    "ordered": _in_order,
    "near": _near,
    "rises": _rises,
    "falls": partial(_rises, sign=-1.0),
    "level": _level,
    "levels_off": _levels_off,
    "lead_shrinks": _lead_changes,
    "lead_grows": partial(_lead_changes, sign=-1.0),
    "varies_least": _varies_least,
}
UNITLESS = ("levels_off", "varies_least")  # whose numbers are not in the unit of the quantity


def judge_claims(
    claims: list[Claim], measured: Measured, instead: Mapping[str, str], *, reason: str = ""
) -> Iterator[Conclusion]:
    """Yield the conclusion about each claim, and about it with a method replaced by the one `instead` names."""
    for claim in claims:
        yield judge_claim(claim, measured, reason=reason)
        for method, replacement in instead.items():
            if method in claim.methods and replacement not in claim.methods:
                named = [replacement if name == method else name for name in claim.methods]
                yield judge_claim(claim.model_copy(update={"methods": named}), measured, replacement, reason=reason)
