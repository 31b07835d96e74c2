"""What a paper says about a figure, in a form that numbers can contradict."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedreach.arrays import Floats
from fedreach.config.section import Section
from fedreach.errors import ConfigError, nearest
from fedreach.reproduce.measured import Measured, written

Test = Literal[
    "least", "most", "ordered", "near", "rises", "falls", "levels_off", "lead_shrinks", "varies_least"
]  # fmt: skip
ALONE = ("rises", "falls", "levels_off")  # asked of each method by itself, and not against the others
SAME = 1e-9  # relative; less than rounding makes


class Claim(Section):
    """A statement of the paper about one quantity.

    - ``least``, ``most``: the first of `methods` has the least of all, or of those named after it.
    - ``ordered``: `methods` stand in increasing order.
    - ``near``: the first two of `methods` differ by at most `by`.
    - ``rises``, ``falls``: from the first value of the sweep to the last, for each of `methods`, by default all; `by`
      is how much a single step may go the other way, as a share of the value.
    - ``levels_off``: the slope of the last step is smaller than that of the first, for each of `methods`.
    - ``lead_shrinks``: what the others have more than the first of `methods` is smaller at the last value than at the
      first.
    - ``varies_least``: largest over smallest value of the first of `methods` is nearer to 1 than that of the others.

    The first four are asked at every value of the sweep, or with ``at = "last"`` at the last one.
    """

    says: str  # in the paper's words, or near to them
    quantity: str
    test: Test
    methods: list[str] = Field(default_factory=list)
    at: Literal["every", "last"] = "every"
    by: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _names_enough(self) -> Self:
        least = {"ordered": 2, "near": 2, "least": 1, "most": 1, "lead_shrinks": 1, "varies_least": 1}.get(self.test, 0)
        if len(self.methods) < least:
            raise ValueError(f"a claim of the test {self.test!r} that names {least} methods or more")
        return self


@dataclass(frozen=True)
class ClaimVerdict:
    """Whether a statement holds here: for the means over seeds, and in how many seeds on their own."""

    claim: Claim
    instead: str  # the method that it was judged for in place of the claim's own; empty: for its own
    holds: bool | None  # None: a number is missing
    here: str
    seeds_holding: int
    seeds: int


class _Case(NamedTuple):
    """One statement before one table of numbers."""

    claim: Claim
    rows: Mapping[str, Floats]  # method -> (v,)
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

    def written(self, value: float) -> str:
        return written(self.claim.quantity, value)

    def ends(self) -> str:
        return "; ".join(f"{m} {self.written(self.rows[m][0])} to {self.written(self.rows[m][-1])}" for m in self.named)


def judge(claim: Claim, measured: Measured, instead: str = "") -> ClaimVerdict:
    """Return whether a statement holds for what was measured.

    Raises:
        ConfigError: If its quantity was not measured.
    """
    if claim.quantity not in measured.numbers:
        hint = nearest(claim.quantity, measured.numbers)
        raise ConfigError(f"A claim is about {claim.quantity!r}, which this recipe does not measure.{hint}")
    numbers = measured.numbers[claim.quantity]  # (methods, seeds, v)
    x = np.asarray(measured.x, dtype=np.float64)
    if claim.at == "last":
        numbers, x = numbers[..., -1:], x[-1:]

    def case(values: Floats) -> _Case:
        return _Case(claim, dict(zip(measured.methods, values, strict=True)), x)

    single = [TESTS[claim.test](case(numbers[:, s]))[0] for s in range(numbers.shape[1])]
    every = not claim.methods or (len(claim.methods) == 1 and claim.test not in ALONE)
    asked = [measured.methods.index(m) for m in (measured.methods if every else claim.methods)]
    if not np.isfinite(numbers[asked]).all():
        return ClaimVerdict(claim, instead, None, "a number is missing", 0, len(single))
    holds, here = TESTS[claim.test](case(numbers.mean(axis=1)))
    return ClaimVerdict(claim, instead, holds, here, sum(single), len(single))


def _least(case: _Case, sign: float = 1.0) -> tuple[bool, str]:
    own, others = sign * case.rows[case.first], sign * np.array([case.rows[m] for m in case.rivals])
    behind = (own - others.min(axis=0)) / np.maximum(abs(own), 1e-300)
    worst = int(behind.argmax())
    rival = case.rivals[int(others[:, worst].argmin())]
    where = f" at {case.x[worst]:.4g}" if len(case.x) > 1 else ""
    shown = ", ".join(f"{m} {case.written(case.rows[m][worst])}" for m in (case.first, rival))
    return bool((behind <= SAME).all()), shown + where


def _ordered(case: _Case) -> tuple[bool, str]:
    table = np.array([case.rows[m] for m in case.named])
    steps = np.diff(table, axis=0)
    worst = int(np.argmin(steps.min(0)))
    where = f" at {case.x[worst]:.4g}" if len(case.x) > 1 else ""
    shown = ", ".join(f"{m} {case.written(v)}" for m, v in zip(case.named, table[:, worst], strict=True))
    return bool((steps >= 0).all()), shown + where


def _near(case: _Case) -> tuple[bool, str]:
    a, b = (case.rows[m] for m in case.named[:2])
    worst = int(np.argmax(abs(a - b)))
    shown = f"{case.named[0]} {case.written(a[worst])}, {case.named[1]} {case.written(b[worst])}"
    return bool((abs(a - b) <= case.claim.by).all()), shown


def _rises(case: _Case, sign: float = 1.0) -> tuple[bool, str]:
    def goes(y: Floats) -> bool:
        steps = sign * np.diff(y)
        return bool(sign * (y[-1] - y[0]) > 0 and (steps >= -(case.claim.by + SAME) * abs(y[:-1])).all())

    return all(goes(case.rows[m]) for m in case.named), case.ends()


def _levels_off(case: _Case) -> tuple[bool, str]:
    slopes = {m: abs(np.diff(case.rows[m]) / np.diff(case.x)) for m in case.named}
    shown = "; ".join(f"{m} {s[0]:.3g} a unit at first, {s[-1]:.3g} at last" for m, s in slopes.items())
    return all(s[-1] < s[0] for s in slopes.values()), shown


def _lead_shrinks(case: _Case) -> tuple[bool, str]:
    leads = {m: case.rows[m] - case.rows[case.first] for m in case.rivals}
    shown = "; ".join(
        f"{m} {case.written(lead[0])} more at first, {case.written(lead[-1])} at last" for m, lead in leads.items()
    )
    return all(lead[0] > lead[-1] for lead in leads.values()), shown


def _varies_least(case: _Case) -> tuple[bool, str]:
    ratio = {m: case.rows[m].max() / case.rows[m].min() for m in [case.first, *case.rivals]}
    shown = ", ".join(f"{m} {r:.3g} times" for m, r in ratio.items())
    return all(ratio[case.first] <= ratio[m] for m in case.rivals), shown


TESTS: Mapping[str, Callable[[_Case], tuple[bool, str]]] = {
    "least": _least,
    "most": partial(_least, sign=-1.0),
    "ordered": _ordered,
    "near": _near,
    "rises": _rises,
    "falls": partial(_rises, sign=-1.0),
    "levels_off": _levels_off,
    "lead_shrinks": _lead_shrinks,
    "varies_least": _varies_least,
}


def verdicts(claims: list[Claim], measured: Measured, instead: Mapping[str, str]) -> Iterator[ClaimVerdict]:
    """Yield the verdict on each statement, and on the same with other methods in place of those it names."""
    for claim in claims:
        yield judge(claim, measured)
        for method, other in instead.items():
            if method in claim.methods and other not in claim.methods:
                named = [other if name == method else name for name in claim.methods]
                yield judge(claim.model_copy(update={"methods": named}), measured, other)
