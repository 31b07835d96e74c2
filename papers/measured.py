"""The numbers behind a figure: method by method, seed by seed, along one axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LATE, EARLY = 0.25, 0.25
"""Shares of the rounds, the last and the first ones, over whose evaluations an accuracy is averaged."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What a recipe measured; v values along the axis."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    label: str  # of the axis
    x: tuple[float, ...]  # (v,) in the unit of the label
    numbers: Mapping[str, Floats]  # quantity -> (methods, seeds, v), nan where there is none


WORDS = {
    "accuracy": "Accuracy on the test set, %",
    "accuracy_early": "Accuracy on the test set, first quarter of the rounds, %",
    "accuracy_last": "Accuracy on the test set, last evaluation, %",
    "participants": "Accuracy of participants, %",
    "unseen": "Accuracy of unseen clients, %",
    "served": "Accuracy of unseen clients, served with their own class shares, %",
    "swing": "Change between evaluations, points",
    "deviation": "Standard deviation over evaluations, points",
    "bounds_jsd": "Total bound disagreement on the test set, JSD",
    "bounds_zero_one": "Total bound disagreement on the test set, 0-1 loss",
    "clients": "Clients that ever trained",
    "seconds": "Time of a round, s",
    "joules": "Energy of a round, J",
    "cost": "Cost of a round, price of time and energy",
    "seconds_total": "Time so far, s",
    "joules_total": "Energy so far, J",
    "cost_total": "Cost so far, price of time and energy",
}
"""Quantities and how they are called."""
POINTS = ("swing", "deviation")
SHARES = tuple(quantity for quantity, words in WORDS.items() if words.endswith("%"))
"""Fractions, which are written in per cent."""
HUNDREDTHS = (*SHARES, *POINTS)
"""Fractions that are drawn a hundred times as large, in per cent or points."""


def of_run(rows: Sequence[Mapping[str, Any]], served: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the quantities of a run from its rows, that of round 0 first.

    Accuracies and bounds are means over the evaluations of the last quarter of the rounds, which vary less than the
    last one.
    ``swing`` is the mean change from one evaluation of the test set to the next in the last half of the evaluations,
    ``deviation`` the standard deviation over them.

    Args:
        served: Columns of the last model's serving, where the run has a rule.
    """
    found: dict[str, float] = {}
    length = rows[-1]["round"]
    kinds = {"accuracy": "test_accuracy", "participants": "id_accuracy", "unseen": "unseen_accuracy"}
    kinds |= {f"bounds_{loss}": f"test_bound_disagreement_{loss}" for loss in ("jsd", "zero_one")}
    for quantity, column in kinds.items():
        known = [(row["round"], row[column]) for row in rows if row.get(column) is not None]
        late = [value for number, value in known if number > (1 - LATE) * length]
        if late:
            found[quantity] = float(np.mean(late))
    tested = [(row["round"], row["test_accuracy"]) for row in rows if row.get("test_accuracy") is not None]
    early = [value for number, value in tested if 0 < number <= EARLY * length]
    if early:
        found["accuracy_early"] = float(np.mean(early))
    if tested:
        values = np.array([value for _, value in tested])
        half = values[len(values) // 2 :]  # where the steep start is over
        found["accuracy_last"] = float(values[-1])
        if len(half) > 1:
            found |= {"swing": float(abs(np.diff(half)).mean()), "deviation": float(half.std(ddof=1))}
    found["clients"] = float(len({client for row in rows for client in row.get("cohort") or ()}))
    found |= {key: float(rows[-1][key]) for key in ("seconds_total", "joules_total") if rows[-1].get(key) is not None}
    if served is not None and "unseen_served_accuracy" in served:  # not where everybody takes part
        found["served"] = served["unseen_served_accuracy"]
    return found


def written(quantity: str, value: float) -> str:
    """Return a number of a quantity for reading.

    Example:
        >>> written("accuracy", 0.7312), written("seconds", 0.97134), written("joules_total", 1234.5)
        ('73.1 %', '0.971 s', '1,234 J')
    """
    if quantity in SHARES:
        return f"{100 * value:.1f} %"
    if quantity in POINTS:
        return f"{100 * value:.2f} points"
    number = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    unit = {"seconds": " s", "joules": " J"}.get(quantity.removesuffix("_total"), "")
    return number + unit


def difference(quantity: str, value: float) -> str:
    """Return a difference of two numbers of a quantity for reading, with its sign and without its unit.

    Example:
        >>> difference("accuracy", -0.012), difference("joules", 0.5)
        ('-1.2', '+0.5')
    """
    if quantity in SHARES or quantity in POINTS:
        return f"{100 * value:+.{1 if quantity in SHARES else 2}f}"
    return f"{value:+.3g}" if abs(value) < 999.5 else f"{value:+,.0f}"


def unit(quantity: str) -> str:
    """Return the unit of a difference.

    Example:
        >>> unit("accuracy"), unit("joules_total"), unit("cost")
        ('points', 'J', '')
    """
    if quantity in SHARES or quantity in POINTS:
        return "points"
    return {"seconds": "s", "joules": "J"}.get(quantity.removesuffix("_total"), "")
