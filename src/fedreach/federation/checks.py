"""Checks of the values that clients and components return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ComponentError
from fedreach.federation.base import name_of
from fedreach.wireless.problem import Allocation, AllocationProblem

if TYPE_CHECKING:
    from fedreach.federation.base import Selection
    from fedreach.federation.local_sgd import LocalSGD
    from fedreach.federation.types import Cohort, ServerView, State


# -------------------- Checks of what clients return

MAX_MAGNITUDE = 1e30  # largest number in an update; larger ones soon make the model infinite
ERASING = 2**24  # float32 has 24 significant bits: a number loses all of them in a sum with one that is so much larger


def invalid_update(update: AnyArray, limit: float = MAX_MAGNITUDE) -> str:
    """Return why the numbers of an update are invalid, or "". They must be finite and at most `limit`.

    Example:
        >>> invalid_update(np.array([0.5, -2e30])), invalid_update(np.array([0.5]))
        ('contains numbers up to 2e+30, which are too large', '')
    """
    if not np.isfinite(update).all():
        return "is not finite"
    largest = float(np.abs(update).max(initial=0))
    return f"contains numbers up to {largest:.3g}, which are too large" if largest > limit else ""


def erasing_updates(largest: Floats, models: Floats) -> dict[int, str]:
    """Return the positions of the updates that would erase the model in float32, with the reasons.

    Such an update contains a number that exceeds `ERASING` times the largest number of the model plus the largest
    number of the median of the other updates. Without other updates and with a model of zeros, there is no limit. If
    half of the clients of a round send such updates, the limit rises with them.

    Args:
        largest: (r,) largest absolute number of each update.
        models: (r,) largest absolute number of the model that each client received.

    Example:
        >>> list(erasing_updates(np.array([0.1, 1e20, 0.2]), np.zeros(3)))
        [1]
    """
    in_order, middle = np.sort(largest), (len(largest) - 2) // 2
    if len(largest) > 1:  # without its own number, the median of a small update is the next number
        models = models + np.where(largest <= in_order[middle], in_order[middle + 1], in_order[middle])
    limits = ERASING * models
    return {
        int(row): f"its update contains numbers up to {largest[row]:.3g}, which would erase the model in float32; the "
        f"limit is {limits[row]:.3g}, 2^24 times the numbers of the model and of other updates"
        for row in np.flatnonzero((largest > limits) & (limits > 0))
    }


def too_long(local: LocalSGD, update: AnyArray, start: AnyArray, steps: int, lr: float) -> str:
    """Return why clipped steps from the (p,) model `start` cannot lead to the (p,) update, or ""."""
    size, norm = (float(np.linalg.norm(vector.astype(np.float64))) for vector in (start, update))
    furthest = local.furthest(steps, lr, size)
    if norm <= furthest:
        return ""
    return (
        f"the norm of its update must be at most {furthest:.6g} after {steps} steps with gradients clipped to "
        f"{local.clip_norm:g}; got {norm:.6g}"
    )


# -------------------- Checks of what components return


def check_ids(policy: Selection, method: str, ids: Ints, view: ServerView) -> Ints:
    """Return the sorted ids, or raise an error that names the violated rule."""
    ids = np.asarray(ids)
    where = f"{name_of(policy)}.{method}"
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ComponentError(f"{where} must return a list of client ids; got shape {ids.shape} of {ids.dtype}.")
    ids = np.sort(ids.astype(np.int64))
    if ids.size == 0 and not policy.may_be_empty:
        raise ComponentError(f"{where} must return at least one of the {int(view.available.sum())} available clients.")
    rows = view.rows(ids)  # an id above all others would be placed after the last
    repeated, is_known = ids[1:] == ids[:-1], view.ids.take(rows, mode="clip") == ids
    available = view.available.take(rows, mode="clip")
    if np.count_nonzero(is_known & available) == len(ids) and not np.count_nonzero(repeated):
        return ids
    if repeated.any():
        raise ComponentError(
            f"{where} must not return a client twice; client {ids[1:][repeated][0]} is returned twice."
        )
    if not is_known.all():
        raise ComponentError(
            f"{where} must return participants only; client {ids[~is_known][0]} is not one of the {len(view.ids)} "
            "participants. Return values of `view.ids`, not positions."
        )
    raise ComponentError(f"{where} must return available clients only; client {ids[~available][0]} is not available.")


def check_draws(policy: object, method: str, selection: Cohort) -> Ints | None:
    """Return the number of draws of each client, sorted by id, or raise an error that names the violated rule."""
    if selection.draws is None:
        return None
    draws = np.asarray(selection.draws)
    if draws.shape != np.shape(selection.ids) or draws.dtype.kind not in "iu" or not (draws >= 1).all():
        raise ComponentError(
            f"{name_of(policy)}.{method} must return at least one draw for each of its {np.size(selection.ids)} "
            f"clients; got {draws}. Return `Cohort.drawn(ids)` with one id per draw."
        )
    return draws[np.argsort(selection.ids)].astype(np.int64)


def check_type(part: object, method: str, answer: object, expected: type) -> None:
    """Reject a returned value of the wrong type."""
    if not isinstance(answer, expected):
        name = expected.__name__
        raise ComponentError(
            f"{name_of(part)}.{method} must return a {name}; got {type(answer).__name__}. Return `{name}(ids)`."
        )


def check_allocation(part: object, method: str, answer: Allocation, problem: AllocationProblem) -> Allocation:
    """Return the checked allocation, or raise an error that names the violated rule."""
    where = f"{name_of(part)}.{method}"
    check_type(part, method, answer, Allocation)
    if not np.array_equal(answer.ids, problem.ids):
        raise ComponentError(f"{where} must allocate to the clients {problem.ids.tolist()}; got {list(answer.ids)}.")
    share, hertz = np.asarray(answer.share, np.float64), np.asarray(answer.hertz, np.float64)
    if not (share.shape == hertz.shape == problem.ids.shape):
        raise ComponentError(f"{where} must return one share and one frequency for each of the {len(problem)} clients.")
    is_frequency = ((hertz > 0) | (problem.cycles == 0)) & (hertz <= problem.max_hertz * (1 + 1e-9))
    for what, values, good in (
        ("positive shares", share, (share > 0) & (share <= 1)),
        ("CPU frequencies in (0, max_hertz]", hertz, is_frequency),
    ):
        for row in np.flatnonzero(~good):
            raise ComponentError(f"{where} must return {what}; client {problem.ids[row]} gets {values[row]}.")
    if not share.sum() <= 1 + 1e-9:
        raise ComponentError(
            f"{where} must return bandwidth shares that sum to at most 1; got a sum of {share.sum():.9g}."
        )
    allocation = Allocation.of(problem, np.arange(len(problem)), share, hertz, answer.band_price)
    joules = allocation.upload_joules + allocation.compute_joules
    for row in np.flatnonzero(joules > problem.max_joules * (1 + 1e-9)):
        raise ComponentError(
            f"{where} must keep each client within its max_joules; client {problem.ids[row]} needs {joules[row]:.4g} "
            f"of {problem.max_joules[row]:.4g} J. Use allocation = 'exact', or raise max_joules."
        )
    return allocation


def check_weights(weighting: object, answer: tuple[Floats, State], r: int) -> tuple[Floats, State]:
    """Return (r,) weights with sum 1 and the new state, or raise an error that names the violated rule."""
    where = f"{name_of(weighting)}.weights"
    weights, state = _check_pair(where, "weights", answer)
    if weights.shape != (r,):
        raise ComponentError(f"{where} must return one weight for each of the {r} reports; got shape {weights.shape}.")
    if not (weights >= 0).all() or (total := weights.sum()) == np.inf:
        raise ComponentError(f"{where} must return finite weights that are not negative; got {weights}.")
    if abs(total - 1.0) > 1e-6:
        raise ComponentError(f"{where} must return weights that sum to 1; got a sum of {total:.9g}.")
    return weights, state


def _check_pair(where: str, what: str, answer: object) -> tuple[Floats, State]:
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise ComponentError(f"{where} must return a pair, the {what} and the new state; got {type(answer).__name__}.")
    return np.asarray(answer[0], dtype=np.float64), answer[1]


def check_scale(weighting: object, scale: float) -> float:
    """Return the factor of a mean update, or raise an error that names the violated rule."""
    if not 0 <= scale < np.inf:
        raise ComponentError(
            f"{name_of(weighting)}.mean_scale must return a number that is finite and not negative; got {scale}."
        )
    return float(scale)


def check_update(aggregator: object, answer: tuple[Floats, State], d: int) -> tuple[Floats, State]:
    """Return the (d,) update and the new state, or raise an error that names the violated rule."""
    where = f"{name_of(aggregator)}.combine"
    update, state = _check_pair(where, "update", answer)
    if update.shape != (d,):
        raise ComponentError(f"{where} must return the {d} numbers of one update; got shape {update.shape}.")
    return update, state


def check_clusters(policy: Selection, clusters: Ints, n: int, models: int) -> Ints:
    """Return (n,) the model number of each participant, or raise an error that names the violated rule."""
    where = f"{name_of(policy)}.clusters"
    clusters = np.asarray(clusters)
    if clusters.shape != (n,) or clusters.dtype.kind not in "iu":
        raise ComponentError(
            f"{where} must return a whole number for each of the {n} participants; got shape {clusters.shape} of "
            f"{clusters.dtype}."
        )
    first = policy.first_models
    if first > 1 and not (clusters.min() >= 0 and clusters.max() < models == first):
        raise ComponentError(
            f"{where} must return numbers from 0 to {first - 1}, and the federation must have `first_models` = {first} "
            f"models; got the numbers {np.unique(clusters).tolist()} and {models} models."
        )
    count = max(models, int(clusters.max()) + 1)
    if first == 1 and (clusters.min() < 0 or len(np.unique(clusters)) != count):
        raise ComponentError(
            f"{where} must number the clusters 0, 1, ..., each with at least one member, and keep the {models} "
            f"existing clusters; got the numbers {np.unique(clusters).tolist()}."
        )
    return clusters.astype(np.int64)
