"""What a comparison is asked, said before it runs and kept with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

from fedreach.errors import require

Correction = Literal["holm", "max_t"]
LEAST_PILOT = 10  # seeds; with fewer the quantiles of t ask for many times the seeds that the spread would


@dataclass(frozen=True)
class AnalysisPlan:
    """Which differences are judged, and how; a field each of the section `[statistics]`.

    Args:
        contrasts: ``"baseline"``: each method minus the baseline; ``"all"`` pairs; or pairs (first, second).
        correction: For their number, see `fedreach.evidence.corrections`.
        margin_points: Percentage points within which two methods are as good as equal.
        last_rounds: What is compared is the mean over so many last evaluated rounds.
        detect_points: Difference that is to be found, by Stein's number of seeds; None: the number is declared.
        most_seeds: At most so many, where Stein's rule asks for more.
    """

    contrasts: str | Sequence[Sequence[str]] = "baseline"
    correction: Correction = "holm"
    margin_points: float = 2.0
    last_rounds: int = 1
    detect_points: float | None = None
    most_seeds: int = 200

    def __post_init__(self) -> None:
        require(self, correction=get_args(Correction), margin_points="(0, 100]", last_rounds="[1, inf)")
        require(self, detect_points="(0, 100]", most_seeds="[1, inf)")

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> AnalysisPlan:
        """Return the plan that `vars` of one was written of."""
        return cls(**stored)

    @property
    def margin(self) -> float:
        """The margin as a fraction."""
        return self.margin_points / 100

    def pairs(self, methods: Sequence[str], baseline: str) -> list[tuple[str, str]]:
        """Return the contrasts, first minus second.

        Example:
            >>> AnalysisPlan(contrasts="all").pairs(["a", "b", "c"], "a")
            [('b', 'a'), ('c', 'a'), ('c', 'b')]
        """
        if self.contrasts == "baseline":
            return [(method, baseline) for method in methods if method != baseline]
        if self.contrasts == "all":
            return [(second, first) for first, second in combinations(methods, 2)]
        return [(str(first), str(second)) for first, second in self.contrasts]
