"""What a paper claims about a figure, in a form that numbers can contradict.

A claim says that differences are above 0, seed by seed: for example one method minus another at each value of an axis.
It is *reproduced* if the paired 95% confidence interval of each difference is above 0. This is an intersection-union
test: all have to pass, so no correction is needed. It is *contradicted* if any difference is below 0 by its
Holm-adjusted interval. Otherwise it is *equivalent* if the 90% interval of each difference that is not shown to be
above 0 is within its margin (`equivalence_margin`), and *inconclusive* if not. `correct_outcomes` corrects the
conclusions about several claims together. Intervals are those of the typical difference over seeds (see
`fedreach.evaluation.statistics`), which suits seconds and joules, whose differences are skewed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedreach._util.errors import ConfigError, nearest
from fedreach.evaluation.statistics import LEVEL, PairedTest, holm, run_paired_tests, t_quantile
from fedreach.experiment.schema import Section
from papers.measured import SHARES, TITLES, Floats, Measured, format_difference, unit_of

Test = Literal[
    "least", "most", "ordered", "near", "rises", "falls", "level", "levels_off", "lead_shrinks", "lead_grows",
    "varies_least"
]  # fmt: skip
Outcome = Literal["reproduced", "equivalent", "inconclusive", "contradicted", "not testable"]
ALONE = ("rises", "falls", "level", "levels_off")  # tested for each method by itself
SAME = 1e-9  # relative; what rounding may change
MARGIN_POINTS, MARGIN_SHARE = 2.0, 0.05  # of equivalence: of accuracies, and of other quantities
DRAWS = 2_000  # bootstrap samples of the seeds


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
    p: float | None = None  # of the claim, for a correction across claims
    without: Outcome = "inconclusive"  # the outcome if the correction leaves neither reproduced nor contradicted
    again: float | None = None  # share of bootstrap samples of the seeds in which it is reproduced
    repeats: bool = False  # counted with another claim
    keys: tuple[bytes, ...] = ()  # of the differences, the deciding one first; equal for a difference and its negative


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


def equivalence_margin(claim: Claim, difference: ClaimedDifference) -> float | None:
    """Return the margin: 2 points of accuracy, or 5% of the largest value; None if the claim has one of its own."""
    if claim.test in ("near", "level"):
        return None
    in_points = claim.quantity in SHARES and claim.test not in UNITLESS
    return MARGIN_POINTS / 100 if in_points else MARGIN_SHARE * difference.scale


def _conclude(claim: Claim, instead: str, claimed: list[ClaimedDifference]) -> Conclusion:
    seeds = len(claimed[0].values)
    by_seed = [dict(enumerate(difference.values.tolist())) for difference in claimed]
    margins = [equivalence_margin(claim, difference) for difference in claimed]
    alone = [run_paired_tests([d], margin=margin or None)[0] for d, margin in zip(by_seed, margins, strict=True)]
    passed = [_is_shown(difference, test) for difference, test in zip(claimed, alone, strict=True)]
    together = run_paired_tests(by_seed)
    against = [j for j, test in enumerate(together) if _is_contradicted(claimed[j], test)]
    open_ = [j for j in range(len(claimed)) if not passed[j]] or list(range(len(claimed)))
    weakest = min(open_, key=lambda j: _lower_end(claimed[j], alone[j]))
    unsettled = open_ if not all(passed) else [weakest]
    equal = all(_is_equivalent(claimed[j], alone[j], margins[j]) for j in unsettled)
    without: Outcome = "equivalent" if equal else "inconclusive"
    place, test = weakest, alone[weakest]
    outcome: Outcome = "reproduced" if all(passed) else without
    if against:
        place = min(against, key=lambda j: _lower_end(claimed[j], together[j]))
        outcome, test = "contradicted", together[place]
    keys = [_key(claim, difference) for difference in claimed]
    return Conclusion(
        *(claim, instead, outcome, claimed[place].what, seeds, test.estimate, test.low, test.high, test.mde),
        p=_p_of_claim(claimed, alone),
        without=without,
        again=_chance_again(claimed),
        keys=(keys[place], *keys[:place], *keys[place + 1 :]),
    )


def _p_of_claim(claimed: list[ClaimedDifference], alone: list[PairedTest]) -> float:
    """Return the p-value of a wrong conclusion: the smaller one of *reproduced* and of *contradicted*.

    Of *reproduced* it is the largest p of all differences (intersection-union), of *contradicted* the smallest one
    after Holm's correction. A difference in the other direction counts as 1.
    """
    p = [_p_of(difference, test) for difference, test in zip(claimed, alone, strict=True)]
    signs = [
        np.sign(difference.values.mean()) * ((test.estimate or 0.0) * difference.values.mean() > 0)
        for difference, test in zip(claimed, alone, strict=True)
    ]
    passing = [
        0.0 if _is_rounding(d) and d.equal_counts else p[j] if signs[j] > 0 else 1.0 for j, d in enumerate(claimed)
    ]
    failing = [value if sign < 0 else 1.0 for value, sign in zip(holm(p), signs, strict=True)]
    return min(max(passing), *failing)


def _p_of(difference: ClaimedDifference, test: PairedTest) -> float:
    """Return the two-sided p-value; of the sign test where the difference is equal for all seeds."""
    if _is_rounding(difference):
        return 1.0
    return 2 * 0.5 ** len(difference.values) if test.p is None else test.p


def _chance_again(claimed: list[ClaimedDifference]) -> float:
    """Return the share of bootstrap samples of the seeds in which all differences are above 0 by t intervals."""
    values = np.stack([d.values for d in claimed if not (_is_rounding(d) and d.equal_counts)] or [np.ones(2)], axis=-1)
    n = len(values)
    rows = np.random.Generator(np.random.Philox(0)).integers(n, size=(DRAWS, n))
    shown = np.ones(DRAWS, np.bool_)
    for column in values.T:
        drawn = column[rows]
        shown &= drawn.mean(axis=1) > t_quantile(0.975, n - 1) * drawn.std(axis=1, ddof=1) / n**0.5
    return round(float(shown.mean()), 3)


def _key(claim: Claim, difference: ClaimedDifference) -> bytes:
    """Return the same key for the same difference of a quantity, whatever its direction."""
    rounded = difference.values.round(9) + 0.0
    leading = rounded[rounded != 0][:1]
    return claim.quantity.encode() + (-rounded if leading.size and leading[0] < 0 else rounded).tobytes()


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


def _is_equivalent(difference: ClaimedDifference, test: PairedTest, margin: float | None) -> bool:
    if margin is None:
        return False
    if test.p_equivalent is None:  # equal for all seeds
        return bool(abs(difference.values.mean()) <= margin)
    return test.p_equivalent < LEVEL


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
) -> list[Conclusion]:
    """Return the conclusion about each claim, and about it with a method replaced by the one `instead` names.

    A claim `repeats` another one if it is about a replaced method, if all its differences are among those of the other
    one, or if the same difference decides both. Of two such claims with the same differences, the first one counts.
    """
    judged = []
    for claim in claims:
        judged.append(judge_claim(claim, measured, reason=reason))
        for method, replacement in instead.items():
            if method in claim.methods and replacement not in claim.methods:
                named = [replacement if name == method else name for name in claim.methods]
                judged.append(
                    judge_claim(claim.model_copy(update={"methods": named}), measured, replacement, reason=reason)
                )
    return [replace(own, repeats=_repeats(own, i, judged)) for i, own in enumerate(judged)]


def _repeats(own: Conclusion, place: int, judged: Sequence[Conclusion]) -> bool:
    for j, other in enumerate(judged):
        if j == place or own.claim.control or other.claim.control or other.instead or not (own.keys and other.keys):
            continue
        mine, others = set(own.keys), set(other.keys)
        if mine < others or (j < place and not others < mine and (mine == others or own.keys[0] == other.keys[0])):
            return True
    return bool(own.instead)


def correct_outcomes(
    outcomes: Sequence[Outcome], p_values: Sequence[float], without: Sequence[Outcome]
) -> list[Outcome]:
    """Return the outcomes of claims after Holm's correction across these claims.

    Args:
        outcomes: Outcome of each claim by itself.
        p_values: p-value of each claim.
        without: Outcome of each claim that the correction leaves neither reproduced nor contradicted.

    Example:
        >>> correct_outcomes(["reproduced", "contradicted"], [0.04, 0.02], ["equivalent", "inconclusive"])
        ['reproduced', 'contradicted']
        >>> correct_outcomes(["reproduced", "contradicted"], [0.04, 0.03], ["equivalent", "inconclusive"])
        ['equivalent', 'inconclusive']
    """
    return [
        other if outcome in ("reproduced", "contradicted") and p >= LEVEL else outcome
        for outcome, p, other in zip(outcomes, holm(p_values), without, strict=True)
    ]
