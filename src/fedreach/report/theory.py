"""Bounds of the papers beside the measured: the report's analysis and tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.divergence import kl_divergence
from fedreach._util.errors import RunFolderError
from fedreach.data.assignment import label_entropy
from fedreach.evaluation.statistics import Spread
from fedreach.federation.convergence import worst_case_error
from fedreach.report.numbers import TERMS, Columns, RoundsTable, Term, percent, plus_minus
from fedreach.report.tables import Table
from fedreach.runs.schema import FederationRecord

if TYPE_CHECKING:
    from fedreach.report.overview import Analysis


# --- What the papers' bounds look at, round by round, from stored rows: who was averaged, and what their labels are
# Unknown constants of the bounds are 1, so that the course of a term over the rounds and its order between methods mean
# something, and its size alone does not.

SAMPLED = 120  # rounds in which those left out are compared with the cohort, evenly spread
BLOCK = 2**20  # differences of label shares that are held at a time
WHOLE = 1e-3  # weights of one model sum to 1 up to this


def terms(partition: FederationRecord, replies: RoundsTable, rounds: Floats, path: Path) -> Columns:
    """Return the terms of one run; (t,) each for t rounds, nan in rounds of which it cannot be said.

    With weights w_i of the k clients averaged in a round, their label distributions p_i, that of all clients' examples
    p, and TV(p, q) = sum_c |p_c - q_c| / 2:

    - ``entropy``: sum_i w_i H(p_i);
    - ``label_gap``: TV(sum_i w_i p_i, p), and ``label_divergence``: KL(sum_i w_i p_i || p);
    - ``label_gap_so_far``: TV(mean of sum_i w_i p_i over the rounds up to this one, p);
    - ``label_gap_alone``: sum_i w_i TV(p_i, p);
    - ``left_out``: mean over the participants j not averaged of the least TV(p_j, p_i); in at most `SAMPLED`
      rounds, as it takes longest;
    - ``disagreement``, ``wlrc``: weighted mean, and mean, of what the clients measured, where they did.

    A round in which nobody was averaged has none, nor has one in which the weights belong to several models.

    Raises:
        RunFolderError: If a reply is from a client that the federation does not have.
    """
    client, weight = replies.weight_client, replies.weight
    n = len(partition.label_counts)
    strange = client[(client < 0) | (client >= n)]
    if len(strange):
        raise RunFolderError(
            f"{path} has a reply of client {strange[0]}, but federation.json beside it counts {n} clients. "
            "Copy the run folder whole, or run the same command again."
        )
    row = np.searchsorted(rounds, replies.weight_round)
    shares = _shares(partition.label_counts)
    whole = _shares(partition.label_counts.sum(axis=0, keepdims=True))[0]

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(row, values, minlength=len(rounds)), np.float64)

    single = np.abs(total(weight) - 1) < WHOLE

    def mean(values: Floats) -> Floats:
        return np.where(single, total(weight * values), np.nan)

    found: dict[str, Floats] = {}
    if shares.shape[1]:  # where clients did not tell their labels, nothing can be said of them
        mixture = np.stack([mean(share[client]) for share in shares.T], axis=1)  # (t, c)
        until = np.cumsum(np.where(single[:, None], mixture, 0), axis=0) / np.maximum(np.cumsum(single), 1)[:, None]
        found |= {
            "entropy": mean(label_entropy(partition.label_counts)[client]),
            "left_out": _left_out(shares, partition.participants, client, row, single),
            "label_gap": _distance(mixture, whole),
            "label_divergence": np.where(
                single, kl_divergence(np.where(single[:, None], mixture, whole), whole), np.nan
            ),
            "label_gap_so_far": np.where(single, _distance(until, whole), np.nan),
            "label_gap_alone": mean(_distance(shares, whole)[client]),
        }
    if "disagreement" in replies.metrics:
        found["disagreement"] = mean(replies.metrics["disagreement"])
    if "wlrc" in replies.metrics:
        count = np.maximum(total(np.ones(len(row))), 1)
        found["wlrc"] = np.where(single, total(replies.metrics["wlrc"]) / count, np.nan)
    return found


@dataclass(frozen=True)
class References:
    """What the terms of a method are to be read beside; of one partition."""

    participants: float  # mean label entropy, nats
    unseen: float  # nan if nobody is unseen
    pooled: float  # TV between all participants' examples together and all clients': what no selection can mend


def references(partition: FederationRecord) -> References:
    """Return the terms that the choice of clients and weights does not change."""
    entropy = label_entropy(partition.label_counts)
    own, unseen = entropy[partition.participants], entropy[partition.unseen]
    counts = partition.label_counts
    pooled = _shares(np.stack([counts[partition.participants].sum(axis=0), counts.sum(axis=0)]))
    return References(
        participants=float(np.nanmean(own)) if np.isfinite(own).any() else np.nan,
        unseen=float(np.nanmean(unseen)) if np.isfinite(unseen).any() else np.nan,
        pooled=float(_distance(pooled[0], pooled[1])),
    )


def _shares(counts: Ints) -> Floats:
    return np.asarray(counts / np.maximum(counts.sum(axis=1), 1)[:, None])


def _distance(p: Floats, q: Floats) -> Floats:
    """Return the total variation between distributions in the last axis."""
    return np.asarray(np.abs(p - q).sum(axis=-1) / 2)


def _left_out(shares: Floats, participants: Ints, client: Ints, row: Ints, single: Bools) -> Floats:
    found = np.full(len(single), np.nan)
    known = np.flatnonzero(single)
    if len(known) == 0:
        return found
    sampled = known[np.unique(np.linspace(0, len(known) - 1, SAMPLED).round().astype(int))]
    begins, ends = np.searchsorted(row, [sampled, sampled + 1])  # replies lie in the order of the rounds
    own = shares[participants]
    step = max(1, BLOCK // max(own.size, 1))
    for t, begin, end in zip(sampled, begins, ends, strict=True):
        rest = own[~np.isin(participants, client[begin:end], kind="table")]
        if len(rest):
            blocks = [client[first : min(first + step, end)] for first in range(begin, end, step)]
            nearest = [_distance(rest[:, None], shares[block]).min(axis=1) for block in blocks]
            found[t] = np.min(nearest, axis=0).mean()
    return found


# -------------------- The terms of the papers' bounds: one row of numbers per method, and what they mean in words

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
