"""The terms of the papers' bounds: one row of numbers per method, and what they mean in words."""

import numpy as np

from fedreach.evidence.spread import Spread
from fedreach.report.analysis.analysis import Analysis
from fedreach.report.analysis.terms import TERMS, Term
from fedreach.report.numbers import percent, plus_minus
from fedreach.report.render.tables import Table
from fedreach.runs.schema import FederationRecord
from fedreach.theory.incomplete_participation import worst_case_error

CAPTION = "What the bounds look at"


def tabulate_theory(analysis: Analysis) -> Table | None:
    """Return the table of the terms, one row a method; None if no run has any."""
    comparison, terms = analysis.comparison, shown(analysis)
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
            (method, *(_cell(analysis.terms[method][term.name], term) for term in terms))
            for method in comparison.methods
        ),
        from_width=(0,) * (len(terms) + 1),
        note=f"{note} {describe(analysis)} Terms of bounds whose unknown constants are set to 1: they "
        "tell methods apart, and a better term promises no higher accuracy.",
        name="theory",
    )


def _cell(found: Spread, term: Term) -> str:
    return percent(found) if term.percent else plus_minus(found, term.places)


def shown(analysis: Analysis) -> tuple[Term, ...]:
    """Return the terms that any counted run has, in the order in which they are shown."""
    return tuple(term for term in TERMS if any(of[term.name].count for of in analysis.terms.values()))


def explain(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """Return a heading and an explanation for what is shown; nothing if nothing is."""
    found = [(term.heading, term.words) for term in shown(analysis) if term.heading]
    if found and len((partition := analysis.comparison.all_counted[0].partition).unseen):
        found.append(("Those who never take part", _worst_case(partition)))
    return tuple(found)


def describe(analysis: Analysis) -> str:
    """Return what the terms are to be read beside, in a sentence."""
    found = analysis.references
    unseen = f", unseen clients' {found.unseen:.2f}" if np.isfinite(found.unseen) else ""
    return (
        f"The labels of the participants hold {found.participants:.2f} nats on average{unseen}; all participants' "
        f"examples together are {100 * found.pooled:.1f} % from all clients'."
    )


def _worst_case(partition: FederationRecord) -> str:
    clients, participants = len(partition.label_counts), len(partition.participants)
    error = worst_case_error(participants, clients)
    return (
        f"With {participants} of {clients} clients taking part, there are federations for which any learner's error "
        f"on all clients exceeds {100 * error:.1f} % with probability above 5 %, whatever the number of examples "
        "(“Understanding of Server-Assisted Federated Learning with Incomplete Client Participation”, Theorem 1)."
        " It is the worst case, not a forecast for this one."
    )
