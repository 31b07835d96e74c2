"""The terms of the papers' bounds as one row of numbers per method."""

from __future__ import annotations

import numpy as np

from fedreach.report.statistics import Spread, spread
from fedreach.report.tables import Table, percent
from fedreach.report.theory_words import TERMS, Term, describe, shown
from fedreach.report.values import Comparison, Run

CAPTION = "What the bounds look at"


def value_of(run: Run, name: str) -> float:
    """Return a run's number: the mean over the rounds that have one, or of what is summed up so far the last."""
    values = run.theory.get(name, np.zeros(0))
    known = values[np.isfinite(values)]
    if not len(known):
        return np.nan
    return float(known[-1] if name == "label_gap_so_far" else known.mean())


def spread_of(comparison: Comparison, method: str, name: str) -> Spread:
    """Return the spread over seeds of a term of a method."""
    return spread([value_of(run, name) for run in comparison.counted(method)])


def tabulate_theory(comparison: Comparison) -> Table | None:
    """Return the table of the terms, one row a method; None if no run has any."""
    terms = shown(comparison)
    if not terms:
        return None
    names = {term.name for term in terms}
    several = any(len(comparison.counted(method)) > 1 for method in comparison.methods)
    spread_unit = " ± sd" if several else ""
    note = "Mean over the rounds" + (
        ", under “all rounds” of all rounds together" if "label_gap_so_far" in names else ""
    )
    note += ", ± sd over seeds." if several else "."
    return Table(
        caption=CAPTION,
        header=("method", *(term.header for term in terms)),
        units=("", *(term.unit + spread_unit for term in terms)),
        rows=tuple(
            (method, *(_cell(spread_of(comparison, method, term.name), term) for term in terms))
            for method in comparison.methods
        ),
        from_width=(0,) * (len(terms) + 1),
        note=f"{note} {describe(comparison)} Terms of bounds whose unknown constants are set to 1: they "
        "tell methods apart, and a better term promises no higher accuracy.",
    )


def theory_records(comparison: Comparison, method: str) -> dict[str, float | None]:
    """Return the terms of a method as plain numbers; None for those it has no data for."""
    record: dict[str, float | None] = {}
    for name in (*(term.name for term in TERMS), "label_divergence"):
        found = spread_of(comparison, method, name)
        record |= {f"theory_{name}_mean": found.mean, f"theory_{name}_sd_over_seeds": found.sd}
    return record


def _cell(found: Spread, term: Term) -> str:
    if term.percent or found.mean is None:
        return percent(found)
    return f"{found.mean:.{term.places}f}" + (f" ± {found.sd:.{term.places}f}" if found.sd is not None else "")
