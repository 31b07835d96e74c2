"""Checks of the answers of clients and components."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ComponentError
from fedreach.federation.base import LabelStatistics, Loss, Measurement, name_of
from fedreach.wireless.problem import Allocation, AllocationProblem

if TYPE_CHECKING:
    from fedreach.federation.types import Cohort, ServerView, State


# -------------------- Ranges of reported numbers

ROUNDING = 1e-6
"""Of numbers that clients compute in single precision, relative to the end of a range and at least absolute."""


class ValidRange(NamedTuple):
    """A range of finite numbers, both ends included; None: no end on this side.

    Example:
        >>> loss = ValidRange(0.0)
        >>> print(loss, loss.holds(np.array([-1.0, 0.0, -1e-9, np.inf])))
        at least 0 [False  True  True False]
    """

    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def of(cls, part: Loss | Measurement) -> ValidRange:
        """Return the range that a measurement or a loss declares."""
        return cls(part.minimum, part.maximum)

    def holds(self, values: Floats | float) -> Bools:
        """Return of each value whether it lies in the range, but for rounding."""
        inside: Bools = np.isfinite(values)
        if self.minimum is not None:
            inside &= values >= self.minimum - ROUNDING * max(1.0, abs(self.minimum))
        if self.maximum is not None:
            inside &= values <= self.maximum + ROUNDING * max(1.0, abs(self.maximum))
        return inside

    def __str__(self) -> str:
        low, high = (None if end is None else f"{end:.6g}" for end in self)
        if low is not None and high is not None:
            return f"from {low} to {high}"
        return f"at least {low}" if low is not None else "finite" if high is None else f"at most {high}"


ANY, NOT_NEGATIVE, SHARE = ValidRange(), ValidRange(0.0), ValidRange(0.0, 1.0)


def is_part_of(share: float, count: int) -> bool:
    """Return whether a share is one of 0/count, 1/count ... 1, but for rounding in double precision.

    Example:
        >>> is_part_of(2 / 3, 3), is_part_of(0.7, 3), is_part_of(2 / 3, 0)
        (True, False, False)
    """
    return count > 0 and 0 <= share <= 1 and abs(share * count - round(share * count)) <= 1e-8 * count


# -------------------- Checks of what components return


def check_ids(policy: object, method: str, ids: Ints, view: ServerView) -> Ints:
    """Return the ids increasing, or raise an error that names the broken rule."""
    ids = np.asarray(ids)
    where = f"{name_of(policy)}.{method}"
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ComponentError(f"{where} must return a list of client ids; got shape {ids.shape} of {ids.dtype}.")
    ids = np.sort(ids.astype(np.int64))
    if ids.size == 0:
        raise ComponentError(f"{where} must return at least one of the {int(view.available.sum())} available clients.")
    twice = ids[1:][ids[1:] == ids[:-1]]
    if twice.size:
        raise ComponentError(f"{where} must not return a client twice; got {int(twice[0])} twice.")
    rows = view.rows(ids)
    stranger = ids[view.ids.take(rows, mode="clip") != ids]  # an id above all others would be placed after the last
    if stranger.size:
        raise ComponentError(
            f"{where} must return participants only; client {int(stranger[0])} is not one of the "
            f"{len(view.ids)} participants. Return values of `view.ids`, not positions."
        )
    absent = ids[~view.available[rows]]
    if absent.size:
        raise ComponentError(f"{where} must return available clients only; client {int(absent[0])} is not available.")
    return ids


def check_draws(policy: object, method: str, selection: Cohort) -> Ints | None:
    """Return how often each client was drawn, ids increasing, or raise an error that names the broken rule."""
    if selection.draws is None:
        return None
    draws = np.asarray(selection.draws)
    if draws.shape != np.shape(selection.ids) or draws.dtype.kind not in "iu" or not (draws >= 1).all():
        raise ComponentError(
            f"{name_of(policy)}.{method} must say of each of its {np.size(selection.ids)} clients how often it was "
            f"drawn, a whole number from 1 on; got {draws}. Return `Cohort.drawn(ids)`, each id as often as it came "
            "up."
        )
    return draws[np.argsort(selection.ids)].astype(np.int64)


def check_type(part: object, method: str, answer: object, expected: type) -> None:
    """Reject an answer of another type."""
    if not isinstance(answer, expected):
        name = expected.__name__
        raise ComponentError(
            f"{name_of(part)}.{method} must return a {name}; got {type(answer).__name__}. Return `{name}(ids)`."
        )


def check_measured(measurement: Measurement, values: Floats, ids: Ints) -> Floats:
    """Return what clients measured, (r,) of these ids, or raise an error if the measurement left its own range."""
    valid_range = ValidRange.of(measurement)
    outside = np.flatnonzero(
        np.isfinite(values) & ~valid_range.holds(values)
    )  # a client that diverged is another matter
    if outside.size:
        first = outside[0]
        raise ComponentError(
            f"{name_of(measurement)}.measure must return numbers {valid_range}, as its `minimum` and `maximum` say; "
            f"client {ids[first]} measured {values[first]:.6g}."
        )
    return values


def check_labels(statistics: LabelStatistics, released: Floats, sizes: Ints, ids: Ints) -> Floats:
    """Return the (n, c) counts that were released, or raise an error if the statistics call them impossible."""
    if statistics.knows_possible:
        wrong = np.flatnonzero(~statistics.possible(released, sizes))
        if wrong.size:
            first = wrong[0]
            raise ComponentError(
                f"{name_of(statistics)}.possible must allow what `release` returns; of client {ids[first]}, with "
                f"{sizes[first]} examples, {released[first].tolist()} was released."
            )
    return released


def check_allocation(part: object, method: str, answer: Allocation, problem: AllocationProblem) -> Allocation:
    """Return the allocation of the shares and frequencies, or raise an error that names the broken rule."""
    where = f"{name_of(part)}.{method}"
    check_type(part, method, answer, Allocation)
    if not np.array_equal(answer.ids, problem.ids):
        raise ComponentError(f"{where} must allocate to the clients {problem.ids.tolist()}; got {list(answer.ids)}.")
    share, hertz = np.asarray(answer.share, np.float64), np.asarray(answer.hertz, np.float64)
    if not (share.shape == hertz.shape == problem.ids.shape):
        raise ComponentError(f"{where} must give each of the {len(problem)} clients one share and one frequency.")
    for what, values, bad in (
        ("shares that are positive", share, ~((share > 0) & (share <= 1))),
        (
            "CPU frequencies in (0, max_hertz]",
            hertz,
            ~((hertz > 0) | (problem.cycles == 0)) | ~(hertz <= problem.max_hertz * (1 + 1e-9)),
        ),
    ):
        if bad.any():
            first = np.flatnonzero(bad)[0]
            raise ComponentError(f"{where} must return {what}; client {problem.ids[first]} gets {values[first]}.")
    if not share.sum() <= 1 + 1e-9:
        raise ComponentError(
            f"{where} must return shares of the band that sum to at most 1; they sum to {share.sum():.9g}."
        )
    return Allocation.of(problem, np.arange(len(problem)), share, hertz, answer.band_price)


def check_weights(weighting: object, answer: tuple[Floats, State], r: int) -> tuple[Floats, State]:
    """Return (r,) weights on the simplex and the new state, or raise an error that names the broken rule."""
    where = f"{name_of(weighting)}.weights"
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise ComponentError(f"{where} must return a pair, the weights and the new state; got {type(answer).__name__}.")
    weights, state = np.asarray(answer[0], dtype=np.float64), answer[1]
    if weights.shape != (r,):
        raise ComponentError(f"{where} must return one weight for each of the {r} reports; got shape {weights.shape}.")
    if not (weights >= 0).all() or (total := weights.sum()) == np.inf:
        raise ComponentError(f"{where} must return finite weights that are not negative; got {weights}.")
    if abs(total - 1.0) > 1e-6:
        raise ComponentError(f"{where} must return weights that sum to 1; they sum to {total:.9g}.")
    return weights, state


def check_scale(weighting: object, scale: float) -> float:
    """Return the factor of a mean update, or raise an error that names the broken rule."""
    if not 0 <= scale < np.inf:
        raise ComponentError(
            f"{name_of(weighting)}.mean_scale must return a number that is finite and not negative; got {scale}."
        )
    return float(scale)


def check_update(aggregator: object, answer: tuple[Floats, State], d: int) -> tuple[Floats, State]:
    """Return the (d,) update and the new state, or raise an error that names the broken rule."""
    where = f"{name_of(aggregator)}.combine"
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise ComponentError(f"{where} must return a pair, the update and the new state; got {type(answer).__name__}.")
    update, state = np.asarray(answer[0], dtype=np.float64), answer[1]
    if update.shape != (d,):
        raise ComponentError(f"{where} must return the {d} numbers of one update; got shape {update.shape}.")
    return update, state


def check_clusters(policy: object, clusters: Ints, n: int, models: int) -> Ints:
    """Return each of the n participants' model, or raise an error that names the broken rule."""
    where = f"{name_of(policy)}.clusters"
    clusters = np.asarray(clusters)
    if clusters.shape != (n,) or clusters.dtype.kind not in "iu":
        raise ComponentError(
            f"{where} must return a whole number for each of the {n} participants; got shape {clusters.shape} of "
            f"{clusters.dtype}."
        )
    count = int(clusters.max()) + 1
    if clusters.min() < 0 or count < models or len(np.unique(clusters)) != count:
        raise ComponentError(
            f"{where} must number the clusters 0, 1, ... with a member each, and keep the {models} there are; "
            f"got the numbers {np.unique(clusters).tolist()}."
        )
    return clusters.astype(np.int64)
