"""The terms of the papers' bounds: one row of numbers per method, and what they mean in words."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from fedreach.report.analysis.statistics import Spread, spread
from fedreach.report.analysis.theory import References, references
from fedreach.report.render.tables import Table, percent
from fedreach.report.values import Comparison, Run
from fedreach.runs.schema import FederationRecord
from fedreach.theory.incomplete_participation import worst_case_error

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


@dataclass(frozen=True)
class Term:
    """One of the terms that `theory.terms` computes."""

    name: str
    header: str  # of its column
    title: str  # above its curve
    unit: str
    places: int  # after the point; a distance between distributions, in per cent, has one
    heading: str
    words: str

    @property
    def percent(self) -> bool:
        """Whether it is a fraction, shown in per cent."""
        return self.unit == "%"


TERMS = (
    Term(
        "entropy",
        "label entropy",
        "Label entropy of those averaged, nats",
        "nats",
        2,
        "Label entropy",
        "Sum of w_i H(p_i) over the clients i averaged in a round: w_i is the weight, p_i the mix of labels. The "
        "larger it is, the lower is the bound on the gap between all clients and those that train (“Advocating "
        "for the Silent”, Theorem 1, eq. 5 and 8). H is estimated by the client's counts of true labels, which is "
        "all of it only where clients differ in labels alone. The bound of the loss is set to 1, and summands that "
        "no choice of clients or weights changes are left out.",
    ),
    Term(
        "left_out",
        "left out",
        "Left out: distance to the nearest chosen, %",
        "%",
        1,
        "Left out",
        "Mean, over the participants not averaged in a round, of the total variation between their labels and "
        "those of the averaged client most like them: the smaller, the better the cohort stands for them. It takes "
        "the place of the cross-entropies H(P_i, P_j) in “Advocating for the Silent”, Theorem 2, eq. 7, which are "
        "infinite where j lacks a class of i.",
    ),
    Term(
        "label_gap",
        "label gap",
        "Label gap of one round's average, %",
        "%",
        1,
        "Label gap",
        "Total variation between the labels of one round's average, the sum of w_i p_i, and those of all clients "
        "together, unseen ones included. Times the bound of the loss (here 1) it bounds what unlike clients add "
        "to the generalisation error: A3 in the proof of Theorem 1, eq. 24, of “Data Heterogeneity-Aware Client "
        "Selection”, again where clients differ in labels alone. Of all rounds together, it is that of the mean of "
        "the rounds so far: what stays is the bias of selection and weights, which no number of rounds evens out.",
    ),
    Term("label_gap_so_far", "all rounds", "Label gap of all rounds so far, %", "%", 1, "", ""),
    Term(
        "label_gap_alone",
        "one by one",
        "Label gap of the clients one by one, %",
        "%",
        1,
        "One by one",
        "Sum of w_i times the total variation between p_i and the labels of all clients: the label gap before "
        "averaging evens it out. It stands for the sum of KL(p_g || p_k) in Theorem 1, eq. 22, of the same paper, "
        "which is infinite as soon as a client lacks a class, and in whose place the mean root of ½ KL "
        "must stand for the theorem to hold; that is never below this.",
    ),
    Term(
        "disagreement",
        "disagreement",
        "Bound disagreement of the local models",
        "",
        3,
        "Bound disagreement",
        "Sum of w_i η_i, η_i the gap between upper and lower bound of client i's squared loss when its "
        "distribution shifts, added up over distances (“Aggregation Weighting of Federated Learning via "
        "Generalization Bound Estimation”, eq. 18 to 20), as the clients measured it after training.",
    ),
    Term(
        "wlrc",
        "Rademacher score",
        "Rademacher score of the local models",
        "",
        4,
        "Rademacher score",
        "Mean score of the clients averaged (“Client Selection with Rademacher Complexity”, Algorithms 1 and 2), "
        "as they measured it: how well random signs fit their model's outputs. It is no bound and takes no "
        "supremum over models; it is comparable between equal batch sizes only.",
    ),
)


def shown(comparison: Comparison) -> tuple[Term, ...]:
    """Return the terms that any counted run has, in the order in which they are shown."""
    runs = comparison.all_counted
    return tuple(
        term
        for term in TERMS
        if any(np.isfinite(run.theory[term.name]).any() for run in runs if term.name in run.theory)
    )


def explain(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return a heading and an explanation for what is shown; nothing if nothing is."""
    told = [(term.heading, term.words) for term in shown(comparison) if term.heading]
    if told and len(comparison.all_counted[0].partition.unseen):
        told.append(("Those who never take part", _worst_case(comparison.all_counted[0].partition)))
    return tuple(told)


def describe(comparison: Comparison) -> str:
    """Return what the terms are to be read beside, in a sentence."""
    found = references_of(comparison)
    unseen = f", unseen clients' {found.unseen:.2f}" if np.isfinite(found.unseen) else ""
    return (
        f"The labels of the participants hold {found.participants:.2f} nats on average{unseen}; all participants' "
        f"examples together are {100 * found.pooled:.1f} % from all clients'."
    )


def references_of(comparison: Comparison) -> References:
    """Return what the terms are to be read beside, as means over the federations of the comparison."""
    partitions = {run.partition.hash: run.partition for run in comparison.all_counted}.values()
    means = np.mean([astuple(references(partition)) for partition in partitions], axis=0)
    return References(*map(float, means))


def _worst_case(partition: FederationRecord) -> str:
    clients, participants = len(partition.label_counts), len(partition.participants)
    error = worst_case_error(participants, clients)
    return (
        f"With {participants} of {clients} clients taking part, there are federations for which any learner's error "
        f"on all clients exceeds {100 * error:.1f} % with probability above 5 %, whatever the number of examples "
        "(“Understanding of Server-Assisted Federated Learning with Incomplete Client Participation”, Theorem 1)."
        " It is the worst case, not a forecast for this one."
    )
