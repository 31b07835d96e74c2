"""The numbers behind a figure: method by method, seed by seed, along one axis."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedreach.arrays import Floats


@dataclass(frozen=True, eq=False)
class Measured:
    """What a recipe measured; v values along the axis."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    label: str  # of the axis
    x: tuple[float, ...]  # (v,) in the unit of the label
    numbers: Mapping[str, Floats]  # quantity -> (methods, seeds, v), nan where there is none


WORDS = {
    "accuracy": "Accuracy, %",
    "swing": "Change between evaluations, points",
    "seconds": "Time of a round, s",
    "joules": "Energy of a round, J",
    "cost": "Cost of a round, price of time and energy",
    "seconds_total": "Time so far, s",
    "joules_total": "Energy so far, J",
    "cost_total": "Cost so far, price of time and energy",
}
"""Quantities and how they are called."""


def written(quantity: str, value: float) -> str:
    """Return a number of a quantity for reading.

    Example:
        >>> written("accuracy", 0.7312), written("seconds", 0.97134), written("joules_total", 1234.5)
        ('73.1 %', '0.971 s', '1,234 J')
    """
    if quantity in ("accuracy", "swing"):
        return f"{100 * value:.1f} {'%' if quantity == 'accuracy' else 'points'}"
    number = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    unit = {"seconds": " s", "joules": " J"}.get(quantity.removesuffix("_total"), "")
    return number + unit
