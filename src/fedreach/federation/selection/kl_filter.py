"""Leave out clients whose labels are far from those of all together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import ConfigError, PartError, nearest
from fedreach.federation.round import ClientView, Selection, State
from fedreach.federation.selection.base import Policy
from fedreach.theory.divergence import Direction, label_divergences

Infeasible = Literal["admit", "error"]


@dataclass(frozen=True)
class KLFilter(Policy):
    """Choose k at random among clients whose label distribution is close to that of all participants together.

    An available client i is admitted if KL(p || p_i) <= `threshold`, where p_i is its label distribution, smoothed, and
    p the pooled one of all participants, available or not (see `fedreach.theory.divergence.label_divergences`). k of
    those admitted are drawn, each set of k equally likely; all of them if they are fewer than k, so that the cohort
    shrinks, as the row of the round says. If nobody is admitted, or all of them together hold fewer than
    `min_examples`, the filter cannot be kept, see `infeasible`.

    With few examples a client, hardly any passes the paper's 0.2 nats: of clients with 750 examples from
    Dirichlet(0.5) fewer than 1 %, so that the filter keeps the clients that are nearly balanced.

    Args:
        threshold: e1, in nats, not negative.
        direction: ``"global_to_local"`` compares KL(p || p_i), as in the paper; ``"local_to_global"`` KL(p_i || p).
        smoothing: kappa, pseudo-examples added to each class of a client, not negative. With 0, KL(p || p_i) is inf
            for a client that lacks a class: it is admitted last.
        min_examples: e2, training examples that those admitted must hold together.
        infeasible: ``"admit"`` lets in more clients, in increasing divergence, until it is feasible (ties by lower id)
            and says so in the row of the round; ``"error"`` ends the run.

    Raises:
        ConfigError: If an option is out of its range.
        PartError: From `select`, if the filter cannot be kept and `infeasible` is ``"error"``.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", constraints 37e
    and 37f without the radio. 37f is asked of those admitted, not of the k that are drawn.

    Example:
        >>> from dataclasses import replace
        >>> counts = np.array([[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]])
        >>> view = replace(ClientView.of(np.arange(4), counts.sum(axis=1)), label_counts=counts)
        >>> KLFilter(0.21).select({}, view, 3, np.random.Generator(np.random.Philox(0))).ids
        array([0, 3])
    """

    threshold: float = 0.2
    direction: Direction = "global_to_local"
    smoothing: float = 1.0
    min_examples: int = 0
    infeasible: Infeasible = "admit"
    needs: ClassVar[tuple[str, ...]] = ("label_counts",)

    def __post_init__(self) -> None:
        for key in ("threshold", "smoothing", "min_examples"):
            if not getattr(self, key) >= 0:
                raise ConfigError(f"KLFilter.{key} must not be negative; got {getattr(self, key)}.")
        for key, known in {"direction": get_args(Direction), "infeasible": get_args(Infeasible)}.items():
            if getattr(self, key) not in known:
                choices = " or ".join(map(repr, known))
                raise ConfigError(
                    f"KLFilter.{key} must be {choices}; got {getattr(self, key)!r}."
                    + nearest(str(getattr(self, key)), known)
                )

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        """Return the cohort; the remark says where clients beyond the threshold were let in, or too few were not."""
        assert view.label_counts is not None  # because of `needs`
        # Rounded, so that the order of summation decides neither a tie nor who stands exactly at the threshold.
        divergence = label_divergences(view.label_counts, self.direction, self.smoothing).round(12)[view.available]
        ids, examples = view.ids[view.available], view.num_examples[view.available]
        order = np.lexsort((ids, divergence))
        far, held = divergence[order], np.cumsum(examples[order])  # nearest first
        within = int(np.searchsorted(far, self.threshold, side="right"))
        enough = int(np.searchsorted(held, self.min_examples)) + 1  # so many of the nearest hold `min_examples`
        if within < enough and self.infeasible == "error":
            raise PartError(self._refusal(far, held, within, enough, view.round))
        admitted = min(max(within, enough), len(ids))
        remark = self._remark(far, held, within, admitted) if within < enough or admitted < k else ""
        chosen = np.sort(ids[order[:admitted]])
        return Selection(chosen if admitted <= k else rng.choice(chosen, size=k, replace=False), remark)

    def _remark(self, far: Floats, held: Ints, within: int, admitted: int) -> str:
        said = f"{within} of {len(far)} clients within {self.threshold:g} nats"
        if admitted == within:
            return said
        said += f"; admitted {admitted}, up to {far[admitted - 1]:.4g}"
        short = held[admitted - 1] < self.min_examples
        return f"{said}, with {held[admitted - 1]} of {self.min_examples} examples" if short else said

    def _refusal(self, far: Floats, held: Ints, within: int, enough: int, round_: int) -> str:
        said = (
            f"KLFilter: in round {round_}, {within} of {len(far)} available clients are within "
            f"threshold={self.threshold:g} and hold {held[within - 1] if within else 0} examples; at least one client "
            f"and min_examples={self.min_examples} are needed."
        )
        if enough > len(far):
            return f"{said} All those available hold {held[-1]}: lower `min_examples`."
        if np.isinf(far[enough - 1]):
            return f"{said} No threshold is enough, since clients lack classes: set `smoothing` above 0."
        nearest_above = np.ceil(far[enough - 1] * 1e4) / 1e4  # so that what is printed is enough, too
        return f"{said} The nearest threshold that is enough is {nearest_above:.4f}."
