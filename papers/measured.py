"""The quantities of runs: by method and seed, along one axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LATE, EARLY = 0.25, 0.25
"""Shares of the rounds, the last and the first ones, over whose evaluations an accuracy is averaged."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The numbers of a recipe, at v values of an axis."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    label: str  # of the axis
    x: tuple[float, ...]  # (v,) in the unit of the label
    numbers: Mapping[str, Floats]  # quantity -> (methods, seeds, v), nan where there is none
    curves: Mapping[str, Any] = field(default_factory=dict)  # see `papers.curves.mean_curves`


TITLES = {
    "accuracy": "Accuracy on the test set, %",
    "accuracy_early": "Accuracy on the test set, first quarter of the rounds, %",
    "accuracy_last": "Accuracy on the test set, last evaluation, %",
    "participants": "Accuracy of participants, %",
    "unseen": "Accuracy of unseen clients, %",
    "adapted": "Accuracy of unseen clients after adaptation, %",
    "swing": "Change between evaluations, points",
    "deviation": "Standard deviation over evaluations, points",
    "bounds_jsd": "Total bound disagreement on the test set, JSD",
    "bounds_zero_one": "Total bound disagreement on the test set, 0-1 loss",
    "clients": "Clients that ever trained",
    "seconds": "Time of a round, s",
    "joules": "Energy of a round, J",
    "cost": "Cost of a round, weighted time and energy",
    "seconds_total": "Total time, s",
    "joules_total": "Total energy, J",
    "cost_total": "Total cost, weighted time and energy",
}
"""Quantities and their titles."""
POINTS = ("swing", "deviation")
SHARES = tuple(quantity for quantity, words in TITLES.items() if words.endswith("%"))
"""Fractions that are formatted as percentages."""
HUNDREDTHS = (*SHARES, *POINTS)
"""Fractions that are drawn as percentages or points."""


def measure_run(rows: Sequence[Mapping[str, Any]], adapted: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the quantities of a run from its rows, that of round 0 first.

    Accuracies and bounds are means over the evaluations of the last quarter of the rounds, which vary less than the
    last one.
    ``swing`` is the mean change from one evaluation of the test set to the next in the last half of the evaluations,
    ``deviation`` the standard deviation over them.

    Args:
        adapted: Columns of the last model's adaptation, where the run has a rule.
    """
    quantities: dict[str, float] = {}
    length = rows[-1]["round"]
    columns = {"accuracy": "test_accuracy", "participants": "participant_accuracy", "unseen": "unseen_accuracy"}
    columns |= {f"bounds_{loss}": f"test_bound_disagreement_{loss}" for loss in ("jsd", "zero_one")}
    for quantity, column in columns.items():
        evaluated = [(row["round"], row[column]) for row in rows if row.get(column) is not None]
        late = [value for number, value in evaluated if number > (1 - LATE) * length]
        if late:
            quantities[quantity] = float(np.mean(late))
    tested = [(row["round"], row["test_accuracy"]) for row in rows if row.get("test_accuracy") is not None]
    early = [value for number, value in tested if 0 < number <= EARLY * length]
    if early:
        quantities["accuracy_early"] = float(np.mean(early))
    if tested:
        values = np.array([value for _, value in tested])
        half = values[len(values) // 2 :]  # after the steep start
        quantities["accuracy_last"] = float(values[-1])
        if len(half) > 1:
            quantities |= {"swing": float(abs(np.diff(half)).mean()), "deviation": float(half.std(ddof=1))}
    quantities["clients"] = float(len({client for row in rows for client in row.get("cohort") or ()}))
    quantities |= {
        key: float(rows[-1][key]) for key in ("seconds_total", "joules_total") if rows[-1].get(key) is not None
    }
    if adapted is not None and "unseen_adapted_accuracy" in adapted:  # not where all clients take part
        quantities["adapted"] = adapted["unseen_adapted_accuracy"]
    return quantities


def format_value(quantity: str, value: float) -> str:
    """Return a number of a quantity as text with its unit.

    Example:
        >>> format_value("accuracy", 0.7312), format_value("seconds", 0.97134), format_value("joules_total", 1234.5)
        ('73.1%', '0.971 s', '1,234 J')
    """
    if quantity in SHARES:
        return f"{100 * value:.1f}%"
    if quantity in POINTS:
        return f"{100 * value:.2f} points"
    number = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    unit = {"seconds": " s", "joules": " J"}.get(quantity.removesuffix("_total"), "")
    return number + unit


def format_difference(quantity: str, value: float) -> str:
    """Return a difference of two numbers of a quantity as text, with its sign and without its unit.

    Example:
        >>> format_difference("accuracy", -0.012), format_difference("joules", 0.5)
        ('-1.2', '+0.5')
    """
    if quantity in SHARES or quantity in POINTS:
        return f"{100 * value:+.{1 if quantity in SHARES else 2}f}"
    return f"{value:+.3g}" if abs(value) < 999.5 else f"{value:+,.0f}"


def unit_of(quantity: str) -> str:
    """Return the unit of a difference of a quantity.

    Example:
        >>> unit_of("accuracy"), unit_of("joules_total"), unit_of("cost")
        ('points', 'J', '')
    """
    if quantity in SHARES or quantity in POINTS:
        return "points"
    return {"seconds": "s", "joules": "J"}.get(quantity.removesuffix("_total"), "")
