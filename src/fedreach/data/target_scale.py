"""The scale of targets that are numbers: what participants' training rows say of it, as sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from fedreach.arrays import AnyArray, Float32s, Floats
from fedreach.errors import DataError
from fedreach.tables import visible

CONSTANT = 1e-12  # of the mean: a smaller deviation is rounding


class TargetSums(NamedTuple):
    """What participants add up, in two exchanges: the second sum needs the mean that follows from the first."""

    rows: int
    total: Floats  # (t,) sum of the targets
    squares: Floats  # (t,) sum of (target - total / rows)^2


@dataclass(frozen=True)
class TargetScale:
    """The mean and the standard deviation of each of t targets, in the units of their columns.

    With t_i the targets of participant i's training rows, mean = sum_i sum(t_i) / sum_i |t_i| and
    sd^2 = sum_i sum((t_i - mean)^2) / sum_i |t_i|. A model is trained on (target - mean) / sd.

    Example:
        >>> scale = TargetScale.of(TargetSums(4, np.array([20.0]), np.array([36.0])))
        >>> scale
        TargetScale(mean=(5.0,), sd=(3.0,))
        >>> scale.scaled(np.array([[8.0]])), scale.in_units(np.array([[1.0]]))
        (array([[1.]], dtype=float32), array([[8.]]))
    """

    mean: tuple[float, ...]
    sd: tuple[float, ...]

    @classmethod
    def of(cls, sums: TargetSums, names: Sequence[str] = ()) -> Self:
        """Return the scale that follows from the participants' sums.

        Args:
            sums: Over all participants.
            names: Of the targets, for messages.

        Raises:
            DataError: If a target is the same in all rows.
        """
        mean, sd = sums.total / sums.rows, np.sqrt(sums.squares / sums.rows)
        for place in np.flatnonzero(sd <= CONSTANT * abs(mean)).tolist():
            name = repr(names[place]) if names else f"number {place}"
            raise DataError(
                f"target {name} is {mean[place]:g} in all {sums.rows} rows that participants train on: it varies in "
                "none of them. Let more clients take part, or predict another column."
            )
        return cls(tuple(mean.tolist()), tuple(sd.tolist()))

    @classmethod
    def of_clients(cls, targets: Sequence[AnyArray], names: Sequence[str] = ()) -> Self:
        """Return the scale of participants' (m, t) targets, whatever the order of clients and rows; as `of`."""
        count = sum(map(len, targets))
        total = added([added(own) for own in targets])
        squares = added([squared_differences(own, total / count) for own in targets])
        return cls.of(TargetSums(count, total, squares), names)

    def scaled(self, targets: AnyArray) -> Float32s:
        """Return (..., t) targets as they are trained on."""
        found: Float32s = ((targets.astype(np.float64) - self.mean) / self.sd).astype(np.float32)
        return found

    def in_units(self, outputs: AnyArray) -> Floats:
        """Return (..., t) outputs of a model in the units of the columns."""
        found: Floats = outputs.astype(np.float64) * self.sd + self.mean
        return found

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"mean": list(self.mean), "sd": list(self.sd)}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` returned."""
        return cls(tuple(stored["mean"]), tuple(stored["sd"]))

    def lines(self, names: Sequence[str] = ()) -> list[str]:
        """Return a line for each target, for people.

        Example:
            >>> TargetScale((180921.2,), (79442.5,)).lines(["price"])
            ['price: mean 180,921 ± 79,442; mse and huber train in these units']
        """
        called = names if len(names) == len(self.mean) else [f"target {place}" for place in range(len(self.mean))]
        return [
            f"{visible(name)}: mean {_shown(mean)} ± {_shown(sd)}; mse and huber train in these units"
            for name, mean, sd in zip(called, self.mean, self.sd, strict=True)
        ]


def added(arrays: AnyArray | Sequence[AnyArray]) -> Floats:
    """Return the (...) sum of (m, ...) arrays, rounded once, so that their order does not matter.

    Example:
        >>> added(np.array([[1e16], [1.0], [-1e16]]))
        array([1.])
    """
    return np.asarray(np.apply_along_axis(math.fsum, 0, np.asarray(arrays, np.float64)))


def squared_differences(targets: AnyArray, mean: Floats) -> Floats:
    """Return the (t,) sum over m of (target - mean)^2, of (m, t) targets.

    Example:
        >>> squared_differences(np.array([[1.0], [5.0]]), np.array([2.0]))
        array([10.])
    """
    return added((targets.astype(np.float64) - mean) ** 2)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
