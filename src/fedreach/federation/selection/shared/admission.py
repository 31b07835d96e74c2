"""The filter and the budget of examples that selections by label divergence share."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import PartError, require
from fedreach.federation.selection.base import Policy
from fedreach.federation.values import ClientView
from fedreach.theory.divergence import Direction, label_divergences

Infeasible = Literal["admit", "error"]


class Admitted(NamedTuple):
    """Who may be chosen."""

    ids: Ints  # (a,) increasing
    min_examples: int  # that were asked for
    enough: bool  # whether they hold as many
    kept: bool  # whether all of them are within the threshold
    said: str  # how many are, and who else was let in


@dataclass(frozen=True)
class Admission(Policy):
    """What `KLFilter` and `CSRA` share: who may be chosen. The options stand there."""

    threshold: float = 0.2
    direction: Direction = "global_to_local"
    smoothing: float = 1.0
    min_examples: int | None = 0
    infeasible: Infeasible = "admit"
    needs: ClassVar[tuple[str, ...]] = ("label_counts",)

    def __post_init__(self) -> None:
        require(self, threshold="[0, inf]", smoothing="[0, inf]", min_examples="[0, inf]")
        require(self, direction=get_args(Direction), infeasible=get_args(Infeasible))

    def admitted(self, view: ClientView, k: int) -> Admitted:
        """Return the available clients within the threshold, or more where these are none or hold too few examples.

        If that is so and `infeasible` is ``"error"``, it ends with a PartError.
        """
        assert view.label_counts is not None  # because of `needs`
        needed = self.min_examples
        if needed is None:
            needed = int(np.ceil(k * view.num_examples.mean()))
        # Rounded, so that the order of summation decides neither a tie nor who stands exactly at the threshold.
        divergence = label_divergences(view.label_counts, self.direction, self.smoothing).round(12)[view.available]
        ids, examples = view.ids[view.available], view.num_examples[view.available]
        order = np.lexsort((ids, divergence))
        far, held = divergence[order], np.cumsum(examples[order])  # nearest first
        within = int(np.searchsorted(far, self.threshold, side="right"))
        enough = int(np.searchsorted(held, needed)) + 1  # so many of the nearest hold as many
        if within < enough and self.infeasible == "error":
            raise PartError(self._refusal(far, held, within, enough, needed, view.round))
        admitted = min(max(within, enough), len(ids))
        said = f"{within} of {len(far)} clients within {self.threshold:g} nats"
        if admitted > within:
            said += f"; admitted {admitted}, up to {far[admitted - 1]:.4g}"
        if held[admitted - 1] < needed:
            said += f", with {held[admitted - 1]} of {needed} examples"
        return Admitted(
            np.sort(ids[order[:admitted]]), needed, bool(held[admitted - 1] >= needed), admitted <= within, said
        )

    def _refusal(self, far: Floats, held: Ints, within: int, enough: int, needed: int, round_: int) -> str:
        said = (
            f"{type(self).__name__}: in round {round_}, {within} of {len(far)} available clients are within "
            f"threshold={self.threshold:g} and hold {held[within - 1] if within else 0} examples; at least one client "
            f"and min_examples={needed} are needed."
        )
        if enough > len(far):
            return f"{said} All those available hold {held[-1]}: lower `min_examples`."
        if np.isinf(far[enough - 1]):
            return f"{said} No threshold is enough, since clients lack classes: set `smoothing` above 0."
        nearest_above = np.ceil(far[enough - 1] * 1e4) / 1e4  # so that what is printed is enough, too
        return f"{said} The nearest threshold that is enough is {nearest_above:.4f}."
