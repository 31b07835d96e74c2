"""What a paper says about a figure, in a form that numbers can contradict.

Each statement is that some quantities are above 0, seed by seed: how much one method lies above another, say, at each
value of an axis. It is *reproduced* where each of them is above 0 beyond chance (an intersection-union test: no
correction is needed where all have to pass), *contradicted* where any is below 0 beyond chance among all of them
(Holm), and *not reproduced* where neither can be said.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedreach.config.section import Section
from fedreach.errors import ConfigError, nearest
from fedreach.evidence.judgement import Judgement, judge, paired
from papers.measured import WORDS, Floats, Measured, difference, unit

Test = Literal[
    "least", "most", "ordered", "near", "rises", "falls", "level", "levels_off", "lead_shrinks", "lead_grows",
    "varies_least"
]  # fmt: skip
Outcome = Literal["reproduced", "not reproduced", "contradicted", "not testable"]
ALONE = ("rises", "falls", "level", "levels_off")  # asked of each method by itself, and not against the others
SAME = 1e-9  # relative; less than rounding makes


class Claim(Section):
    """A statement of the paper about one quantity.

    - ``least``, ``most``: the first of `methods` has the least of all, or of those named after it; equals count.
    - ``ordered``: `methods` stand in increasing order; equals count.
    - ``near``: the first two of `methods` differ by less than `by`.
    - ``rises``, ``falls``: from the first value of the axis to the last, for each of `methods`, by default all.
    - ``level``: the last value of the axis and the first one differ by less than `by`, for each of `methods`.
    - ``levels_off``: the slope of the last step is smaller than that of the first, for each of `methods`.
    - ``lead_shrinks``, ``lead_grows``: what the others have more than the first of `methods` is smaller, or larger, at
      the last value than at the first.
    - ``varies_least``: largest over smallest value of the first of `methods` is nearer to 1 than that of the others.

    The first four are asked at every value of the axis, or with ``at = "last"`` or ``"first"`` at one of them.
    """

    says: str  # in the paper's words, or near to them
    quantity: str
    test: Test
    methods: list[str] = Field(default_factory=list)
    at: Literal["every", "first", "last"] = "every"
    by: Annotated[float, Field(ge=0)] = 0.0
    control: bool = False  # a question that the paper leaves out, asked in the same way
    see: list[str] = Field(default_factory=list)  # recipes whose controls ask where it holds; this one's name, too

    @model_validator(mode="after")
    def _names_enough(self) -> Self:
        least = {"ordered": 2, "near": 2, "least": 1, "most": 1}.get(self.test, 0 if self.test in ALONE else 1)
        if len(self.methods) < least:
            raise ValueError(f"a claim of the test {self.test!r} that names {least} methods or more")
        if self.test in ("near", "level") and not self.by:
            raise ValueError(f"a claim of the test {self.test!r} that says by how much `by` two numbers may differ")
        return self


@dataclass(frozen=True)
class ClaimVerdict:
    """What can be said of a statement here; numbers are those of what decides it, in the unit of the quantity."""

    claim: Claim
    instead: str  # the method that it was judged for in place of the claim's own; empty: for its own
    outcome: Outcome
    what: str  # is claimed to be above 0
    seeds: int
    mean: float | None = None
    low: float | None = None  # 95 % interval; of a contradiction corrected for all that is claimed
    high: float | None = None
    detectable: float | None = None  # the least true difference that is found with power 0.8
    reason: str = ""  # why it is not testable


class Above(NamedTuple):
    """Something that a statement claims to be above 0."""

    what: str
    values: Floats  # (seeds,)
    scale: float  # differences below `SAME` times this are rounding
    equal_counts: bool = False


class _Case(NamedTuple):
    """One statement before one table of numbers."""

    claim: Claim
    rows: Mapping[str, Floats]  # method -> (seeds, v)
    x: Floats  # (v,)

    @property
    def named(self) -> list[str]:
        return self.claim.methods or list(self.rows)

    @property
    def first(self) -> str:
        return self.named[0]

    @property
    def rivals(self) -> list[str]:
        return self.claim.methods[1:] or [method for method in self.rows if method != self.first]

    @property
    def margin(self) -> str:
        by = difference(self.claim.quantity, self.claim.by).removeprefix("+")
        return f"margin of {by} {unit(self.claim.quantity)}".rstrip()

    def where(self, place: int) -> str:
        return f" at {self.x[place]:.4g}" if len(self.x) > 1 else ""

    def pairs(self, above: str, below: str) -> Iterator[Above]:
        """Yield that one method has more than another, at each value of the axis."""
        for place in range(len(self.x)):
            more, less = self.rows[above][:, place], self.rows[below][:, place]
            scale = float(max(abs(more).max(), abs(less).max()))
            yield Above(f"{above} less {below}{self.where(place)}", more - less, scale, equal_counts=True)


def judged(claim: Claim, measured: Measured, instead: str = "", *, reason: str = "") -> ClaimVerdict:
    """Return what the seeds say of a statement.

    Args:
        reason: Why nothing can be said, whatever the numbers; empty: they are asked.

    Raises:
        ConfigError: If its quantity was not measured.

    Example:
        >>> numbers = np.array([[[0.71], [0.72], [0.74]], [[0.61], [0.64], [0.63]]])  # (methods, seeds, values)
        >>> measured = Measured(("ours", "theirs"), (0, 1, 2), "", (0.0,), {"accuracy": numbers})
        >>> found = judged(Claim(says="", quantity="accuracy", test="most", methods=["ours"]), measured)
        >>> found.outcome, found.what, round(found.mean, 3)
        ('reproduced', 'ours less theirs', 0.097)
    """
    if claim.quantity not in measured.numbers:
        if reason and claim.quantity in WORDS:  # a run of two rounds has no first quarter
            return ClaimVerdict(claim, instead, "not testable", "", len(measured.seeds), reason=reason)
        hint = nearest(claim.quantity, measured.numbers)
        raise ConfigError(f"A claim is about {claim.quantity!r}, which this recipe does not measure.{hint}")
    numbers = measured.numbers[claim.quantity]  # (methods, seeds, v)
    x = np.asarray(measured.x, dtype=np.float64)
    if claim.at != "every":
        place = slice(-1, None) if claim.at == "last" else slice(1)
        numbers, x = numbers[..., place], x[place]
    case = _Case(claim, dict(zip(measured.methods, numbers, strict=True)), x)
    every = not claim.methods or (len(claim.methods) == 1 and claim.test not in ALONE)
    rows = [case.rows[method] for method in (measured.methods if every else claim.methods)]
    seeds = numbers.shape[1]
    if not np.isfinite(rows).all():
        reason = reason or "a number is missing"
    if claim.test in (*ALONE, "lead_shrinks", "lead_grows", "varies_least") and len(x) < 2:
        reason = reason or "there is one value of the axis only"
    if reason or seeds < 2:
        return ClaimVerdict(claim, instead, "not testable", "", seeds, reason=reason or "one seed says no spread")
    return _verdict(claim, instead, list(TESTS[claim.test](case)))


def _verdict(claim: Claim, instead: str, claimed: list[Above]) -> ClaimVerdict:
    seeds = len(claimed[0].values)
    alone = [_alone(each) for each in claimed]
    passed = [_passes(each, found) for each, found in zip(claimed, alone, strict=True)]
    together = judge([dict(enumerate(each.values.tolist())) for each in claimed])
    against = [j for j, found in enumerate(together) if _opposite(claimed[j], found)]

    def verdict(outcome: Outcome, place: int, found: Judgement) -> ClaimVerdict:
        return ClaimVerdict(
            claim, instead, outcome, claimed[place].what, seeds, found.mean, found.low, found.high, found.detectable
        )

    if against:
        worst = min(against, key=lambda j: _standing(claimed[j], together[j]))
        return verdict("contradicted", worst, together[worst])
    open_ = [j for j in range(len(claimed)) if not passed[j]] or list(range(len(claimed)))
    weakest = min(open_, key=lambda j: _standing(claimed[j], alone[j]))
    return verdict("reproduced" if all(passed) else "not reproduced", weakest, alone[weakest])


def _alone(each: Above) -> Judgement:
    return paired(each.values)


def _ties(each: Above) -> bool:
    return bool((abs(each.values) <= SAME * max(each.scale, 1e-300)).all())


def _passes(each: Above, found: Judgement) -> bool:
    """Return whether it is above 0 beyond chance; one that is the same with every seed needs no chance."""
    if _ties(each):
        return each.equal_counts
    return bool((each.values > 0).all()) if found.low is None else found.low > 0


def _opposite(each: Above, found: Judgement) -> bool:
    if _ties(each):
        return False
    return bool((each.values < 0).all()) if found.high is None else found.high < 0


def _standing(each: Above, found: Judgement) -> float:
    """Return how well it stands: its lower end, in shares of its scale."""
    assert found.mean is not None
    return (found.mean if found.low is None else found.low) / max(each.scale, 1e-300)


# ---------------------------------------------------------------------------------------- what each kind of claim asks


def _most(case: _Case) -> Iterator[Above]:
    for rival in case.rivals:
        yield from case.pairs(case.first, rival)


def _least(case: _Case) -> Iterator[Above]:
    for rival in case.rivals:
        yield from case.pairs(rival, case.first)


def _ordered(case: _Case) -> Iterator[Above]:
    for below, above in pairwise(case.named):
        yield from case.pairs(above, below)


def _near(case: _Case) -> Iterator[Above]:
    """Two one-sided tests: the difference is below `by`, and above its negative."""
    a, b = case.named[:2]
    for one, other in ((a, b), (b, a)):
        for what, values, scale, _ in case.pairs(one, other):
            yield Above(f"{case.margin} less ({what})", case.claim.by - values, scale)


def _rises(case: _Case, sign: float = 1.0) -> Iterator[Above]:
    ends = f"{case.x[-1]:.4g} less {case.x[0]:.4g}" if sign > 0 else f"{case.x[0]:.4g} less {case.x[-1]:.4g}"
    for method in case.named:
        row = case.rows[method]
        yield Above(f"{method}, {ends}", sign * (row[:, -1] - row[:, 0]), float(abs(row).max()))


def _level(case: _Case) -> Iterator[Above]:
    for sign in (1.0, -1.0):
        for what, values, scale, _ in _rises(case, sign):
            yield Above(f"{case.margin} less ({what})", case.claim.by - values, scale)


def _levels_off(case: _Case) -> Iterator[Above]:
    for method in case.named:
        slopes = abs(np.diff(case.rows[method], axis=1) / np.diff(case.x))
        yield Above(f"{method}, first slope less last", slopes[:, 0] - slopes[:, -1], float(slopes.max()))


def _lead_changes(case: _Case, sign: float = 1.0) -> Iterator[Above]:
    said = "first" if sign > 0 else "last"
    for rival in case.rivals:
        lead = case.rows[rival] - case.rows[case.first]
        change = sign * (lead[:, 0] - lead[:, -1])
        yield Above(f"lead of {rival}, how much larger at the {said} value", change, float(abs(case.rows[rival]).max()))


def _varies_least(case: _Case) -> Iterator[Above]:
    times = {m: case.rows[m].max(axis=1) / case.rows[m].min(axis=1) for m in [case.first, *case.rivals]}
    for rival in case.rivals:
        yield Above(f"largest over smallest, {rival} less {case.first}", times[rival] - times[case.first], 1.0)


TESTS: Mapping[str, Callable[[_Case], Iterator[Above]]] = {
    "least": _least,
    "most": _most,
    "ordered": _ordered,
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


def verdicts(
    claims: list[Claim], measured: Measured, instead: Mapping[str, str], *, reason: str = ""
) -> Iterator[ClaimVerdict]:
    """Yield the verdict on each statement, and on the same with other methods in place of those it names."""
    for claim in claims:
        yield judged(claim, measured, reason=reason)
        for method, other in instead.items():
            if method in claim.methods and other not in claim.methods:
                named = [other if name == method else name for name in claim.methods]
                yield judged(claim.model_copy(update={"methods": named}), measured, other, reason=reason)
