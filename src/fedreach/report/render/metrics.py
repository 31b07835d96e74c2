"""Metrics beside accuracy and loss, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedreach.report.analysis.analysis import Analysis
from fedreach.report.analysis.metrics import MetricSummary
from fedreach.report.analysis.quantities import FURTHER, Quantity
from fedreach.report.analysis.rows import When
from fedreach.report.numbers import ABSENT, number, plus_minus
from fedreach.report.render.tables import Table, caption


def tabulate_metrics(analysis: Analysis, when: When = "last") -> Table | None:
    """Return a row for each metric and method; None where no experiment asked for any beside accuracy and loss."""
    rows = analysis.metrics[when]
    if not rows:
        return None
    when_said = caption(analysis.comparison, when)
    places = {row.metric: _places([other for other in rows if other.metric == row.metric]) for row in rows}
    kept = [each for each in FURTHER.values() if any(_says(row, each) for row in rows)]
    several = any(row.at[name].sd is not None for row in rows for name in FURTHER)
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, spread in row.at.items():
            if "have no number" in spread.note:
                reasons.setdefault((row.metric, f"{FURTHER[name].head}: {spread.note}"), []).append(row.method)
    return Table(
        caption=f"Further metrics, {when_said[0].lower()}{when_said[1:]}",
        header=("method", "metric", *(each.head for each in kept)),
        units=("", "", *(each.unit or ("mean ± sd" if several else "") for each in kept)),
        rows=tuple((row.method, row.metric, *(_cell(row, each, places[row.metric]) for each in kept)) for row in rows),
        from_width=(0, 0, *(each.from_width for each in kept)),
        note=f"Mean over the clients for which the metric is defined{', ± sd over seeds' if several else ''}; left "
        "out: how many it is not defined for, as AUROC for a client with one class. Worst decile: the tenth of the "
        "clients that does worst. Pooled: of all samples together, so that large clients count more."
        + "".join(f" {metric} of {', '.join(methods)}, {said}." for (metric, said), methods in reasons.items()),
        name="metrics",
    )


def _places(rows: Sequence[MetricSummary]) -> int:
    """Return how many digits stand behind the point of a metric: three, more of small numbers and fewer of large."""
    means = [row.at[name].mean for row in rows for name, each in FURTHER.items() if each.unit != "clients"]
    largest = max((abs(mean) for mean in means if mean), default=1.0)
    power = math.floor(math.log10(largest))
    return 3 if -2 <= power <= 0 else min(max(2 - power, 0), 9)


def _says(row: MetricSummary, quantity: Quantity) -> bool:
    """Return whether there is something to be told: that nobody was left out is not."""
    mean = row.at[quantity.name].mean
    return mean is not None and (quantity.unit != "clients" or mean > 0)


def _cell(row: MetricSummary, quantity: Quantity, places: int) -> str:
    spread = row.at[quantity.name]
    if quantity.unit == "clients":
        return ABSENT if spread.mean is None else number(spread.mean)
    return plus_minus(spread, places)
