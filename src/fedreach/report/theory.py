"""Terms of the papers' bounds, computed from stored rows, and their table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.divergence import kl_divergence
from fedreach._util.errors import RunFolderError
from fedreach.data.assignment import label_entropy
from fedreach.federation.bounds import excess_risk
from fedreach.federation.convergence import divergence_loss, largest_server_lr, speedup_settings, worst_case_error
from fedreach.report.numbers import Columns, RoundsTable, RunSet, percent, plus_minus
from fedreach.report.tables import Column, Table, table_of
from fedreach.runs.schema import FederationRecord

if TYPE_CHECKING:
    from fedreach.report.overview import Analysis


# ---- Terms of the papers' bounds, each declared once and explained in templates/page.html


@dataclass(frozen=True)
class Term:
    """A term of a bound that `terms` computes."""

    name: str
    header: str  # header of its column
    title: str  # title above its curve
    unit: str
    places: int  # digits after the point; 1 for a distance between distributions in percent

    @property
    def percent(self) -> bool:
        """Whether the term is a fraction that is shown in percent."""
        return self.unit == "%"


TERMS = (
    Term("entropy", "label entropy", "Label entropy of the averaged clients, nats", "nats", 2),
    Term("left_out", "distance to cohort", "Label distance to the cohort, %", "%", 1),
    Term("label_gap", "label gap", "Label gap of each round, %", "%", 1),
    Term("label_gap_so_far", "label gap, all rounds", "Label gap of all rounds so far, %", "%", 1),
    Term("label_gap_alone", "label gap, single clients", "Mean label gap of single clients, %", "%", 1),
    Term("disagreement", "bound disagreement", "Disagreement of the bounds of local models", "", 3),
    Term("wlrc", "Rademacher score", "Rademacher score of local models", "", 4),
)
OF_THEOREMS = ("participation", "participation_equal", "shift", "pinsker", "sampling")  # see `theorem_terms`
RECORDED = (*(term.name for term in TERMS), "label_divergence", *OF_THEOREMS)  # terms in CSV and JSON


# ---- Terms of each round
# Unknown constants of the bounds are set to 1. The trend of a term and its order between methods are meaningful; its
# size alone is not.

MAX_SAMPLED_ROUNDS = 120  # evenly spaced rounds in which clients left out are compared with the cohort
BLOCK = 2**20  # differences of label distributions in memory at a time
WEIGHT_TOLERANCE = 1e-3  # tolerance within which the weights of one model sum to 1


def terms(partition: FederationRecord, replies: RoundsTable, rounds: Floats, path: Path) -> Columns:
    """Return the terms of one run, each (t,) for t rounds, with nan in rounds where a term is undefined.

    The k clients averaged in a round have weights w_i and label distributions p_i. All clients' examples have the label
    distribution p. With TV(p, q) = sum_c |p_c - q_c| / 2, the terms are:

    - ``entropy``: sum_i w_i H(p_i);
    - ``label_gap``: TV(sum_i w_i p_i, p), and ``label_divergence``: KL(sum_i w_i p_i || p);
    - ``label_gap_so_far``: TV(mean of sum_i w_i p_i over the rounds up to this one, p);
    - ``label_gap_alone``: sum_i w_i TV(p_i, p);
    - ``left_out``: mean of min_i TV(p_j, p_i) over the participants j that are not averaged; in at most
      `MAX_SAMPLED_ROUNDS` rounds, because it is the most expensive term;
    - ``disagreement``, ``wlrc``: weighted mean, and mean, of the clients' measurements, if available;
    - ``participation``: 3 sum_j H(p_j) - sum_i w_i H(p_i), and ``participation_equal``, the corresponding term for
      weights 1 / k (see `fedreach.federation.bounds.gap_of_weights` and `gap_of_cohort`);
    - ``shift``: sum_i w_i sum_c p_ic |ln(1 / p_ic) - 1|; ``pinsker``: sum_i w_i min(1, sqrt(KL(p || p_i) / 2));
    - ``sampling``: sqrt(sum_i w_i^2 / m_i), for m_i examples of client i, including held-out ones.

    Terms are undefined in rounds without an averaged client, and in rounds whose weights belong to several models.

    Raises:
        RunFolderError: If a reply is from a client that is not in the federation.
    """
    client, weight = replies.weight_client, replies.weight
    n = len(partition.label_counts)
    strange = client[(client < 0) | (client >= n)]
    if len(strange):
        raise RunFolderError(
            f"{path} has a reply of client {strange[0]}, but federation.json in the same folder has only {n} clients. "
            "Copy the complete run folder, or rerun the command."
        )
    row = np.searchsorted(rounds, replies.weight_round)
    shares = _shares(partition.label_counts)
    overall = _shares(partition.label_counts.sum(axis=0, keepdims=True))[0]

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(row, values, minlength=len(rounds)), np.float64)

    single = np.abs(total(weight) - 1) < WEIGHT_TOLERANCE

    def mean(values: Floats) -> Floats:
        return np.where(single, total(weight * values), np.nan)

    columns: dict[str, Floats] = {}
    if shares.shape[1]:  # no classes if clients did not report their labels
        mixture = np.stack([mean(share[client]) for share in shares.T], axis=1)  # (t, c)
        until = np.cumsum(np.where(single[:, None], mixture, 0), axis=0) / np.maximum(np.cumsum(single), 1)[:, None]
        columns |= {
            "entropy": mean(label_entropy(partition.label_counts)[client]),
            "left_out": _left_out(shares, partition.participants, client, row, single),
            "label_gap": _distance(mixture, overall),
            "label_divergence": np.where(
                single, kl_divergence(np.where(single[:, None], mixture, overall), overall), np.nan
            ),
            "label_gap_so_far": np.where(single, _distance(until, overall), np.nan),
            "label_gap_alone": mean(_distance(shares, overall)[client]),
        }
        entropy = np.nan_to_num(label_entropy(partition.label_counts))
        surprise = (shares * np.abs(np.log(np.where(shares > 0, shares, 1)) + 1)).sum(axis=1)
        everybody, taking_part = entropy.sum(), entropy[partition.participants].sum()
        sizes = partition.label_counts.sum(axis=1)
        k, r = np.maximum(total(np.ones(len(row))), 1), max(len(partition.participants), 1)
        left_out = (taking_part - total(entropy[client])) / k
        columns |= {
            "participation": np.where(single, 3 * everybody - columns["entropy"], np.nan),
            "participation_equal": np.where(
                single, (3 - 2 * r / n) * everybody + (2 - 2 * k / r - 1 / k) * taking_part + left_out, np.nan
            ),
            "shift": mean(surprise[client]),
            "pinsker": mean(divergence_loss(kl_divergence(overall, shares))[client]),
            "sampling": np.where(single, np.sqrt(total(weight**2 / np.maximum(sizes[client], 1))), np.nan),
        }
    if "disagreement" in replies.metrics:
        columns["disagreement"] = mean(replies.metrics["disagreement"])
    if "wlrc" in replies.metrics:
        count = np.maximum(total(np.ones(len(row))), 1)
        columns["wlrc"] = np.where(single, total(replies.metrics["wlrc"]) / count, np.nan)
    return columns


@dataclass(frozen=True)
class References:
    """Reference values of one partition for the terms of a method."""

    participants: float  # mean label entropy, nats
    unseen: float  # likewise; nan without unseen clients
    pooled: float  # TV between the labels of all participants and of all clients, which no selection can change


def reference_values(partition: FederationRecord) -> References:
    """Return the reference values, which do not depend on the choice of clients and weights."""
    entropy = label_entropy(partition.label_counts)
    participant_entropy, unseen = entropy[partition.participants], entropy[partition.unseen]
    counts = partition.label_counts
    pooled = _shares(np.stack([counts[partition.participants].sum(axis=0), counts.sum(axis=0)]))
    return References(
        participants=float(np.nanmean(participant_entropy)) if np.isfinite(participant_entropy).any() else np.nan,
        unseen=float(np.nanmean(unseen)) if np.isfinite(unseen).any() else np.nan,
        pooled=float(_distance(pooled[0], pooled[1])),
    )


def _shares(counts: Ints) -> Floats:
    return np.asarray(counts / np.maximum(counts.sum(axis=1), 1)[:, None])


def _distance(p: Floats, q: Floats) -> Floats:
    """Return the total variation distance between distributions in the last axis."""
    return np.asarray(np.abs(p - q).sum(axis=-1) / 2)


def _left_out(shares: Floats, participants: Ints, client: Ints, row: Ints, single: Bools) -> Floats:
    distances = np.full(len(single), np.nan)
    single_rounds = np.flatnonzero(single)
    if len(single_rounds) == 0:
        return distances
    sampled = single_rounds[np.unique(np.linspace(0, len(single_rounds) - 1, MAX_SAMPLED_ROUNDS).round().astype(int))]
    begins, ends = np.searchsorted(row, [sampled, sampled + 1])  # replies are in the order of the rounds
    participant_shares = shares[participants]
    step = max(1, BLOCK // max(participant_shares.size, 1))
    for t, begin, end in zip(sampled, begins, ends, strict=True):
        left_out = participant_shares[~np.isin(participants, client[begin:end], kind="table")]
        if len(left_out):
            blocks = [client[first : min(first + step, end)] for first in range(begin, end, step)]
            nearest = [_distance(left_out[:, None], shares[block]).min(axis=1) for block in blocks]
            distances[t] = np.min(nearest, axis=0).mean()
    return distances


# ---- Table and explanations


def tabulate_theory(analysis: Analysis) -> Table | None:
    """Return the table of terms, one row per method; None if no run contains terms."""
    comparison, terms = analysis.comparison, recorded_terms(analysis)
    if not terms:
        return None
    so_far = any(term.name == "label_gap_so_far" for term in terms)

    def column(term: Term, rank: int) -> Column[str]:
        def text(method: str) -> str:
            of = analysis.terms[method][term.name]
            return percent(of) if term.percent else plus_minus(of, term.places)

        return Column(term.header, term.unit, text, rank)

    spread = ", ± sd over seeds" if any(len(comparison.counted(method)) > 1 for method in comparison.methods) else ""
    return table_of(
        [Column("method", "", str), *(column(term, rank) for rank, term in enumerate(terms, 1))],
        comparison.methods,
        caption=f"Terms of the papers' bounds (mean over rounds{spread})",
        note="Unknown constants are set to 1, so only differences between methods are meaningful. A better term does "
        "not imply a higher accuracy.",
        name="theory",
        details=describe_references(analysis) + " “All rounds” is the label gap of all rounds together." * so_far,
    )


def recorded_terms(analysis: Analysis) -> tuple[Term, ...]:
    """Return the terms that any counted run contains, in the order of the table."""
    return tuple(term for term in TERMS if any(of[term.name].count for of in analysis.terms.values()))


def describe_references(analysis: Analysis) -> str:
    """Return a sentence on the reference values of the terms."""
    reference = analysis.references
    unseen = f", {reference.unseen:.2f} for unseen clients" if np.isfinite(reference.unseen) else ""
    return (
        f"Mean label entropy: {reference.participants:.2f} nats for participants{unseen}. The label gap of all "
        f"participants' examples together is {100 * reference.pooled:.1f}%."
    )


def worst_case(comparison: RunSet) -> tuple[int, int, float] | None:
    """Return the numbers of participants and clients, and a bound on any learner's error; None if all participate."""
    partition = comparison.all_counted[0].partition
    participants, clients = len(partition.participants), len(partition.label_counts)
    return (participants, clients, worst_case_error(participants, clients)) if len(partition.unseen) else None


# ---- Theorems with the numbers of these runs

DELTA = 0.05  # probability that a bound fails
UNKNOWN = "unknown"
TheoremTerm = tuple[str, str, str, str]  # theorem, formula, value in these runs, and what a run does not know


def theorem_terms(analysis: Analysis) -> list[TheoremTerm]:
    """Return the terms of the papers' theorems with the numbers of these runs.

    The largest loss is 1, and bounds fail with probability `DELTA`. Values are means over rounds and seeds; if they
    differ, those of the methods with the smallest and the largest. Client i has m_i training examples, its size times
    1 minus the share that is held out.
    """
    partitions = [run.partition for run in analysis.comparison.all_counted]
    shares = {(run.config.get("population") or {}).get("held_out") or np.nan for run in analysis.comparison.all_counted}
    trained = 1 - shares.pop() if len(shares) == 1 else np.nan
    examples = trained * float(np.mean([partition.sizes[partition.participants].sum() for partition in partitions]))
    entropy = float(
        np.mean([np.nansum(label_entropy(p.label_counts)) if p.num_classes else np.nan for p in partitions])
    )
    confidence = excess_risk(0.0, round(examples)).confidence if examples >= 1 else np.nan
    half_log = np.log(2 / DELTA) / 2

    def over(name: str, factor: float = 1.0) -> str:
        means = {m: factor * mean for m, of in analysis.terms.items() if (mean := of[name].mean) is not None}
        first, last = min(means, key=means.__getitem__, default=""), max(means, key=means.__getitem__, default="")
        low, high = (_number(means.get(end, np.nan)) for end in (first, last))
        return low if low == high else f"{low} ({first}) to {high} ({last})"

    return [
        ("entropy, Theorem 1", "participation: 3 Σ_j H(p_j) − Σ_i w_i H(p_i), nats", over("participation"), ""),
        ("", "shift: Σ_i w_i Σ_c p_ic |ln(1/p_ic) − 1|, nats", over("shift"), ""),
        ("", "overfitting: D Σ_j H(p_j)", _number(entropy, "D × {:.3g} nats"), "D, drift of local models"),
        ("", "√(Σ_i w_i²/m_i), times C + 2 √(ln(2/δ)/2)", over("sampling", trained**-0.5), "C = c √VC, complexity"),
        ("entropy, Theorem 2", "participation with weights 1/k, nats", over("participation_equal"), ""),
        ("disagreement, eq. 19", "Σ_i w_i η_i", over("disagreement"), "mean and variance of clients' squared losses"),
        ("CSRA, Theorem 1, corrected", "divergence: Σ_i w_i min(1, √(KL(p || p_i)/2))", over("pinsker"), ""),
        ("", "sampling: √(ln(2/δ)/2 Σ_i w_i²/m_i)", over("sampling", np.sqrt(half_log / trained)), ""),
        ("", "stability: β + (2 β + 1/m) √(m ln(2/δ))", UNKNOWN, "β, uniform stability"),
        ("Rademacher, Theorem 1", "1600 r* + 44 ln(1/δ)/n, G = 2", _number(confidence, "1600 r* + {:.3g}"), "r*"),
        *_safari_terms(analysis.comparison, examples),
    ]


def _number(value: float, text: str = "{:.3g}") -> str:
    return text.format(value) if np.isfinite(value) else UNKNOWN


def _safari_terms(comparison: RunSet, examples: float) -> Iterator[TheoremTerm]:
    bound = worst_case(comparison)
    value = "0%, because all clients participate" if bound is None else f"{100 * bound[2]:.3g}%"
    yield "SAFARI, Theorem 1", "(1 − ω)/8, error that no learner can rule out", value, ""
    if server_data := comparison.all_counted[0].partition.server_data:
        n_t, rate = f"n_T = {server_data['examples']}", "(d/(n_T + n_S))^(1/(2 − β_Q)) + (d/(n_T + n_S))^(β/(2 − β_Q))"
        yield "SAFARI, Theorem 2", rate, f"{n_t}, n_S = {_number(examples, '{:.0f}')}", "d, VC dimension; β, β_Q"
        yield "SAFARI, Theorem 3", "d/n_T ln(n_T/d) + ln(1/δ)/n_T", n_t, "d, VC dimension"
    for method in comparison.methods:
        config = next((run.config for run in comparison.counted(method)), {})
        server = (config.get("method") or {}).get("server") or {}
        if server.get("name") != "safari":
            continue
        lr, q = server.get("lr", np.nan), server.get("client_probability")
        start = _number(2 / (config["rounds"] * lr), "{:.3g} (F(x_0) − F*)")
        yield f"SAFARI, Theorem 4, {method}", "start: 2 (F(x_0) − F*)/(R η_s)", start, "F*, smallest loss"
        limit = _number(largest_server_lr(1.0) / lr, "L ≤ {:.3g}")
        yield "", "condition: η_s ≤ 1/(8 √30 L)", limit, "L, smoothness; σ², σ_G², G_1, G_2 of gradients"
        if isinstance(steps := (config.get("local") or {}).get("steps"), int):
            best = speedup_settings(config["rounds"], config["method"]["cohort_size"], steps)
            rates = f"{best[0]:.3g} and {best[1]:.3g}; here {_number(lr)} and {q or UNKNOWN}"
            yield f"SAFARI, Corollary 1, {method}", "η_s = √(mK/R) and q = 1 − 1/(mK)", rates, ""
