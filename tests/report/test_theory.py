"""Terms of the papers' bounds from stored rows: known answers, checks, and nothing where there is nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.divergence import label_divergences
from fedreach._util.errors import RunFolderError
from fedreach.federation.bounds import gap_of_cohort, gap_of_weights
from fedreach.federation.convergence import divergence_loss, generalization_bound
from fedreach.report.figures import draw_figures, figure_specs
from fedreach.report.figures.curves import STRETCHES, mean_by_stretch, theory, theory_curves
from fedreach.report.formats import full_text
from fedreach.report.numbers import RoundsTable, RunSet
from fedreach.report.overview import analyse
from fedreach.report.page import render
from fedreach.report.read import read, read_run
from fedreach.report.records import as_records
from fedreach.report.theory import (
    MAX_SAMPLED_ROUNDS,
    OF_THEOREMS,
    TERMS,
    recorded_terms,
    reference_values,
    tabulate_theory,
    terms,
    theorem_terms,
    worst_case,
)
from fedreach.report.write import write_report
from fedreach.runs.schema import FederationRecord

from .made_up import edit_rows, federation, write_comparison, write_run

COUNTS = np.array([[4, 0, 0], [2, 2, 0], [0, 0, 8], [1, 1, 2], [0, 6, 0]])  # 0 to 3 take part, 4 never does
WHOLE = np.array([7, 9, 10]) / 26
LN2 = np.log(2)


def partition(counts: np.ndarray, unseen: Sequence[int] = (4,)) -> FederationRecord:
    apart = np.array(unseen, int)
    participants = np.setdiff1d(np.arange(len(counts)), apart)
    return replace(federation(), label_counts=counts, participants=participants, unseen=apart)


def replies(rounds: Mapping[int, tuple[Sequence[int], Sequence[float]]], **metrics: Sequence[float]) -> RoundsTable:
    """Return replies of {round: (clients, weights)}."""
    number = np.repeat(list(rounds), [len(ids) for ids, _ in rounds.values()]).astype(np.int64)
    ids = np.concatenate([np.array(ids, np.int64) for ids, _ in rounds.values()])
    weights = np.concatenate([np.array(w, float) for _, w in rounds.values()])
    return RoundsTable(number, ids, number, ids, weights, {name: np.array(values) for name, values in metrics.items()})


def of(told: RoundsTable, counts: np.ndarray = COUNTS, rounds: int = 3, unseen: Sequence[int] = (4,)) -> Any:
    return terms(partition(counts, unseen), told, np.arange(rounds, dtype=float), Path("rounds.jsonl"))


# ----------------------------------------------------------------------------------------------- known answers


def test_terms_of_a_small_federation_are_those_worked_out_by_hand() -> None:
    found = of(replies({1: ([0, 1], [0.25, 0.75]), 2: ([2, 3], [0.5, 0.5])}))
    # H = 0, ln 2, 0, 1.5 ln 2
    np.testing.assert_allclose(found["entropy"], [np.nan, 0.75 * LN2, 0.75 * LN2])
    first = np.array([0.25 + 0.375, 0.375, 0])
    second = (np.array([0, 0, 1]) + np.array([0.25, 0.25, 0.5])) / 2
    gaps = [np.abs(mix - WHOLE).sum() / 2 for mix in (first, second)]
    np.testing.assert_allclose(found["label_gap"][1:], gaps)
    so_far = np.abs((first + second) / 2 - WHOLE).sum() / 2
    np.testing.assert_allclose(found["label_gap_so_far"][1:], [gaps[0], so_far])
    kl = (second * np.log(second / WHOLE)).sum()
    np.testing.assert_allclose(found["label_divergence"][2], kl)
    # left out in round 1: client 2 at distance 1 from both; client 3 at 3/4 from client 0 and 1/2 from client 1
    np.testing.assert_allclose(found["left_out"][1], (1 + 0.5) / 2)
    # left out in round 2: client 0 at 3/4 and client 1 at 1/2 from client 3
    np.testing.assert_allclose(found["left_out"][2], (0.75 + 0.5) / 2)
    alone = 0.25 * np.abs([1, 0, 0] - WHOLE).sum() / 2 + 0.75 * np.abs([0.5, 0.5, 0] - WHOLE).sum() / 2
    np.testing.assert_allclose(found["label_gap_alone"][1], alone)
    assert "disagreement" not in found
    assert "wlrc" not in found


def test_what_clients_measured_is_averaged_as_its_paper_says() -> None:
    told = replies({1: ([0, 1], [0.25, 0.75])}, disagreement=[2.0, 4.0], wlrc=[0.1, 0.3])
    found = of(told, rounds=2)
    assert found["disagreement"][1] == pytest.approx(0.25 * 2 + 0.75 * 4)  # weighted
    assert found["wlrc"][1] == pytest.approx(0.2)  # Algorithm 2: mean


def test_terms_of_theorems_are_those_of_the_functions_of_the_theorems() -> None:
    sizes = COUNTS.sum(axis=1)
    shares = COUNTS / sizes[:, None]
    found = of(
        replies({1: ([0, 1, 2], [1 / 3] * 3), 2: ([1, 3], [0.5, 0.5]), 3: ([0, 4], sizes[[0, 4]] / 10)}), rounds=4
    )
    for number, ids in {1: [0, 1, 2], 2: [1, 3]}.items():
        rows, weights = np.array(ids), np.full(len(ids), 1 / len(ids))
        gap = gap_of_weights(shares, rows, weights, sizes[rows])
        cohort = gap_of_cohort(shares, np.arange(4), rows, sizes[rows])
        assert found["participation"][number] == pytest.approx(gap.participation)
        assert found["shift"][number] == pytest.approx(gap.shift) == pytest.approx(cohort.shift)
        assert found["participation_equal"][number] == pytest.approx(cohort.participation)
        sampling = (1 + 2 * np.sqrt(np.log(2 / 0.05) / 2)) * found["sampling"][number]
        assert sampling == pytest.approx(gap.sampling)
    bound = generalization_bound(shares[[0, 4]], WHOLE, sizes[[0, 4]])  # weights are shares of the examples
    assert found["pinsker"][3] == pytest.approx(bound.divergence)
    assert np.sqrt(np.log(2 / 0.05) / 2) * found["sampling"][3] == pytest.approx(bound.sampling)
    assert all(np.isnan(found[name][0]) for name in OF_THEOREMS)


def test_references_are_what_no_weighting_changes() -> None:
    beside = reference_values(partition(COUNTS))
    assert beside.participants == pytest.approx((0 + LN2 + 0 + 1.5 * LN2) / 4)
    assert beside.unseen == 0
    pooled = np.array([7, 3, 10]) / 20
    assert beside.pooled == pytest.approx(np.abs(pooled - WHOLE).sum() / 2)
    assert np.isnan(reference_values(partition(COUNTS, unseen=())).unseen)


# ----------------------------------------------------------------------------------------------- checks


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, RoundsTable, int]:
    rng = np.random.Generator(np.random.Philox(draw(st.integers(0, 2**32))))
    n, c, rounds = draw(st.integers(2, 8)), draw(st.integers(2, 5)), draw(st.integers(1, 6))
    counts = rng.integers(0, 9, (n, c)) * (rng.random((n, c)) < 0.6)
    counts[:, 0] += counts.sum(axis=1) == 0
    told = {}
    for number in range(1, rounds + 1):
        ids = np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False))
        told[number] = (ids, rng.dirichlet(np.ones(len(ids))))
    return counts, replies(told), rounds + 1


checks = settings(max_examples=50, deadline=None, derandomize=True)


@checks
@given(cases())
def test_terms_are_what_plain_loops_give(case: Any) -> None:
    counts, told, rounds = case
    found = of(told, counts, rounds, unseen=())
    shares, whole = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    mixtures = []
    for r in range(1, rounds):
        mine = told.weight_round == r
        ids, w = told.weight_client[mine], told.weight[mine]
        p = shares[ids]
        mixtures.append(w @ p)
        entropy = -sum(w[i] * sum(x * np.log(x) for x in p[i] if x > 0) for i in range(len(ids)))
        rest = [j for j in range(len(counts)) if j not in ids]
        near = [min(np.abs(shares[j] - q).sum() / 2 for q in p) for j in rest]
        assert found["entropy"][r] == pytest.approx(entropy, abs=1e-12)
        assert found["label_gap"][r] == pytest.approx(np.abs(w @ p - whole).sum() / 2, abs=1e-12)
        assert found["label_gap_so_far"][r] == pytest.approx(np.abs(np.mean(mixtures, 0) - whole).sum() / 2, abs=1e-12)
        assert found["left_out"][r] == pytest.approx(np.mean(near) if rest else np.nan, abs=1e-12, nan_ok=True)


@checks
@given(cases())
def test_the_chain_of_bounds_holds_in_every_round(case: Any) -> None:
    """TV of the mixture <= mean TV <= mean of Pinsker's root, which stands for csra's sum of KL(p_g || p_k)."""
    counts, told, rounds = case
    found = of(told, counts, rounds, unseen=())
    root = divergence_loss(label_divergences(counts))[told.weight_client]
    pinsker = np.bincount(told.weight_round, told.weight * root)
    for r in range(1, rounds):
        assert found["label_gap"][r] <= found["label_gap_alone"][r] + 1e-12
        assert found["label_gap_alone"][r] <= pinsker[r] + 1e-9
        assert 2 * found["label_gap"][r] ** 2 <= found["label_divergence"][r] + 1e-9


@checks
@given(cases(), st.integers(0, 99))
def test_names_of_clients_and_classes_change_nothing(case: Any, seed: int) -> None:
    counts, told, rounds = case
    rng = np.random.Generator(np.random.Philox(seed))
    order, classes = rng.permutation(len(counts)), rng.permutation(counts.shape[1])
    place = np.argsort(order)  # where each client has gone
    renamed = RoundsTable(
        told.chosen_round, place[told.chosen], told.weight_round, place[told.weight_client], told.weight, {}
    )
    before, after = of(told, counts, rounds, ()), of(renamed, counts[order][:, classes], rounds, ())
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, atol=1e-12, err_msg=name)


def test_everybody_weighed_by_examples_leaves_no_gap() -> None:
    sizes = COUNTS.sum(axis=1)
    found = of(replies({1: (range(5), sizes / sizes.sum())}), rounds=2, unseen=())
    assert found["label_gap"][1] == pytest.approx(0, abs=1e-12)
    assert found["label_divergence"][1] == pytest.approx(0, abs=1e-12)
    assert np.isnan(found["left_out"]).all()  # nobody is


def test_the_same_cohort_every_round_keeps_its_gap() -> None:
    same = of(replies({r: ([0, 1], [0.5, 0.5]) for r in (1, 2, 3)}), rounds=4)
    np.testing.assert_allclose(same["label_gap_so_far"][1:], same["label_gap"][1:])


def test_cohorts_that_take_turns_even_their_gaps_out() -> None:
    """Clients of one class each, the whole half and half: each alone is 1/2 off, the two rounds together 0."""
    found = of(replies({1: ([0], [1.0]), 2: ([1], [1.0])}), np.array([[4, 0], [0, 4]]), unseen=())
    np.testing.assert_allclose(found["label_gap"][1:], [0.5, 0.5])
    np.testing.assert_allclose(found["label_gap_so_far"][1:], [0.5, 0], atol=1e-12)


# ----------------------------------------------------------------------------------------------- rounds that have none


def test_a_round_without_replies_has_no_terms_and_is_skipped_in_what_is_summed_up() -> None:
    gone = of(replies({1: ([0, 1], [0.5, 0.5]), 3: ([2], [1.0])}), rounds=5)
    there = of(replies({1: ([0, 1], [0.5, 0.5]), 2: ([2], [1.0])}), rounds=3)
    for name in gone:
        assert np.isnan(gone[name][[0, 2, 4]]).all()
        np.testing.assert_allclose(gone[name][[1, 3]], there[name][[1, 2]])


def test_weights_that_belong_to_several_models_have_no_terms() -> None:
    found = of(replies({1: ([0, 1], [1.0, 1.0]), 2: ([0, 1], [0.5, 0.5])}))
    for values in found.values():
        assert np.isfinite(values).tolist() == [False, False, True]


def test_a_client_that_the_federation_does_not_have_is_named() -> None:
    with pytest.raises(
        RunFolderError, match=r"reply of client 7, but federation\.json in the same folder has only 5 clients"
    ):
        of(replies({1: ([0, 7], [0.5, 0.5])}))


def test_those_left_out_are_looked_at_in_a_sample_of_many_rounds() -> None:
    told = replies({r: ([r % 4], [1.0]) for r in range(1, 1001)})
    known = np.isfinite(of(told, rounds=1001)["left_out"])
    assert known.sum() == MAX_SAMPLED_ROUNDS
    assert known[[1, 1000]].all()


# ----------------------------------------------------------------------------------------------- from files


def test_what_replies_measured_is_read_with_the_round_it_is_from(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=3, measured=True)

    def change(rows: list[dict[str, Any]]) -> None:
        rows[2]["metrics"]["wlrc"][0] = None  # not finite
        del rows[3]["metrics"]["wlrc"]

    rows = edit_rows(folder, change)
    run = read_run(folder)
    assert set(run.replies.metrics) == {"loss", "disagreement", "wlrc"}
    assert run.replies.metrics["loss"].tolist() == [x for row in rows[1:] for x in row["metrics"]["loss"]]
    assert np.isfinite(run.replies.metrics["wlrc"]).tolist() == [True] * 10 + [False] + [True] * 9 + [False] * 10
    assert np.isfinite(run.theory["wlrc"]).tolist() == [False, True, False, False]
    assert np.isfinite(run.theory["disagreement"]).tolist() == [False, True, True, True]


def test_a_measurement_that_does_not_fit_its_reports_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2)
    edit_rows(folder, lambda rows: rows[2]["metrics"]["loss"].pop())
    with pytest.raises(RunFolderError, match="line 3: loss must have one number per reply; got 9 for 10 replies"):
        read_run(folder)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunSet:
    out = tmp_path_factory.mktemp("measured")
    return read([write_comparison(out, ("a", "b"), (0, 1), rounds=50, measured=True)])


def test_every_term_has_a_column_a_panel_and_an_explanation(measured: RunSet) -> None:
    table, figure = tabulate_theory(analyse(measured)), theory(analyse(measured))
    assert table is not None
    assert figure is not None
    assert table.header == ("method", *(term.header for term in TERMS))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [term.title for term in TERMS]
    page = unescape(render(analyse(measured), [], []))
    explained = page[page.index('id="theory"') : page.index('id="reading"')]
    terms = ("Label entropy", "Distance to cohort", "Label gap", "Label gap, single clients", "Bound disagreement")
    assert re.findall("<dt>([A-Z].*)</dt>", explained)[:7] == [*terms, "Rademacher score", "Clients that never train"]
    # 35 of 50 clients take part: (1 - 0.7) / 8 = 3.75 %
    assert "With 35 of 50 clients participating" in explained
    assert "an error above 3.8% on all clients. This holds with probability above 5%" in explained


def theorem_values(comparison: RunSet) -> dict[str, str]:
    """Return formula -> value."""
    return {formula: value for _, formula, value, _ in theorem_terms(analyse(comparison))}


def test_theorems_have_the_numbers_of_the_runs_and_say_what_no_run_knows(tmp_path: Path) -> None:
    server = {"name": "safari", "lr": 0.15, "client_probability": 0.5}
    config = {"rounds": 9, "population": {"held_out": 0.2}, "local": {"steps": 10}}
    config |= {"method": {"server": server, "cohort_size": 5}}
    held = replace(federation(), server_data={"examples": 50})
    out = write_comparison(tmp_path, ("a", "b"), (0,), rounds=9, config=config, held=held, measured=True)
    comparison = read([out])
    values = theorem_values(comparison)
    means = {m: float(np.nanmean(comparison.counted(m)[0].theory["sampling"])) for m in ("a", "b")}
    assert len(means) == len(set(means.values()))
    first, last = sorted(means, key=means.__getitem__)
    low, high = (means[m] * np.sqrt(np.log(40) / 2 / 0.8) for m in (first, last))
    assert values["sampling: √(ln(2/δ)/2 Σ_i w_i²/m_i)"] == f"{low:.3g} ({first}) to {high:.3g} ({last})"
    n = 0.8 * held.sizes[held.participants].sum()
    assert values["1600 r* + 44 ln(1/δ)/n, G = 2"] == f"1600 r* + {44 * np.log(20) / round(n):.3g}"
    assert values["(1 − ω)/8, error that no learner can rule out"] == "3.75%"  # 35 of 50 take part
    assert values["(d/(n_T + n_S))^(1/(2 − β_Q)) + (d/(n_T + n_S))^(β/(2 − β_Q))"] == f"n_T = 50, n_S = {n:.0f}"
    assert values["start: 2 (F(x_0) − F*)/(R η_s)"] == f"{2 / (9 * 0.15):.3g} (F(x_0) − F*)"
    assert values["condition: η_s ≤ 1/(8 √30 L)"] == f"L ≤ {1 / (8 * 30**0.5 * 0.15):.3g}"
    best = f"{(5 * 10 / 9) ** 0.5:.3g} and {1 - 1 / 50:.3g}; here 0.15 and 0.5"
    assert values["η_s = √(mK/R) and q = 1 − 1/(mK)"] == best
    assert values["stability: β + (2 β + 1/m) √(m ln(2/δ))"] == "unknown"
    terms = theorem_terms(analyse(comparison))
    assert [name for name, *_ in terms if "Theorem 4" in name] == [f"SAFARI, Theorem 4, {m}" for m in "ab"]
    page = unescape(render(analyse(comparison), [], []))
    for term in terms:
        assert "".join(f"<td>{cell}</td>" for cell in term) in page


def test_what_the_settings_do_not_contain_is_unknown_and_not_guessed(measured: RunSet) -> None:
    values = theorem_values(measured)  # its runs do not say which share is held out
    assert values["sampling: √(ln(2/δ)/2 Σ_i w_i²/m_i)"] == "unknown"
    assert values["1600 r* + 44 ln(1/δ)/n, G = 2"] == "unknown"
    assert values["Σ_i w_i η_i"] != "unknown"
    assert not [formula for formula in values if "η_s" in formula or "n_T" in formula]  # no SAFARI, no server data


def test_without_class_labels_the_terms_of_labels_are_unknown(tmp_path: Path) -> None:
    held = federation()
    hidden = replace(held, label_counts=np.zeros((held.num_clients, 0), np.int64), num_classes=0)
    values = theorem_values(read([write_run(tmp_path / "run", rounds=4, held=hidden, measured=True)]))
    assert values["overfitting: D Σ_j H(p_j)"] == "unknown"
    assert values["shift: Σ_i w_i Σ_c p_ic |ln(1/p_ic) − 1|, nats"] == "unknown"
    assert values["Σ_i w_i η_i"] != "unknown"


def test_a_cell_is_the_mean_over_rounds_and_then_over_seeds(measured: RunSet) -> None:
    record = as_records(analyse(measured))[1]
    runs = measured.counted("b")
    for name in ("entropy", "left_out", "label_gap", "label_divergence", "label_gap_alone", "disagreement", "wlrc"):
        values = [np.nanmean(run.theory[name]) for run in runs]
        assert record[f"theory_{name}_mean"] == pytest.approx(np.mean(values))
        assert record[f"theory_{name}_sd_over_seeds"] == pytest.approx(np.std(values, ddof=1))
    last = [run.theory["label_gap_so_far"][-1] for run in runs]
    assert record["theory_label_gap_so_far_mean"] == pytest.approx(np.mean(last))
    table = tabulate_theory(analyse(measured))
    assert table is not None
    assert table.rows[1][1].startswith(f"{record['theory_entropy_mean']:.2f} ± ")
    assert table.rows[1][3].startswith(f"{100 * record['theory_label_gap_mean']:.1f} ± ")


def test_a_term_that_was_not_measured_is_not_shown(tmp_path: Path) -> None:
    comparison = read([write_run(tmp_path / "run", rounds=4, held=federation(20, 0))])
    assert {term.name for term in recorded_terms(analyse(comparison))} == {t.name for t in TERMS} - {
        "disagreement",
        "wlrc",
    }
    record = as_records(analyse(comparison))[0]
    assert record["theory_wlrc_mean"] is None
    assert record["theory_entropy_mean"] is not None
    assert record["theory_entropy_sd_over_seeds"] is None  # one seed
    assert worst_case(comparison) is None
    page = render(analyse(comparison), [], [])
    assert "<dt>Label entropy</dt>" in page
    assert "<dt>Bound disagreement</dt>" not in page
    assert "<dt>Clients that never train</dt>" not in page


def test_a_run_without_cohorts_has_no_theory_at_all(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=4)
    edit_rows(folder, lambda rows: [row.update(cohort=[], weights=[], metrics={}) for row in rows])
    comparison = read([folder])
    assert tabulate_theory(analyse(comparison)) is None
    assert "theory" not in {picture.name for picture in draw_figures(figure_specs(analyse(comparison)))}
    page = write_report([folder], tmp_path / "out", formats=()).page.read_text()
    assert "Terms of the papers&#39; bounds" not in page


def test_page_and_tables_tell_the_terms_and_their_sources(measured: RunSet, tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "c", ("a", "b"), (0,), rounds=8)
    paths = write_report([out], tmp_path / "out", formats=("svg",))
    page = paths.page.read_text()
    assert "Terms of the papers&#39; bounds (mean over rounds)</h3>" in page
    assert "Theorem 1, eq. 5 and 8" in page
    assert "Terms of the papers' bounds (mean over rounds)" in (paths.page.parent / "table.md").read_text()
    assert ": terms of the papers' bounds (mean over rounds). " in (paths.page.parent / "table.tex").read_text()
    assert "theory_label_gap_mean" in (paths.page.parent / "table.csv").read_text().splitlines()[0]
    assert (paths.page.parent / "figures" / "theory.svg").is_file()
    table = tabulate_theory(analyse(measured))
    assert table is not None
    shown = full_text(table, 400)
    assert [line[0] for line in shown.splitlines() if line.startswith(("a ", "b "))] == ["a", "b"] * 2


# ----------------------------------------------------------------------------------------------- curves


def test_a_curve_is_the_mean_of_stretches_of_rounds(measured: RunSet) -> None:
    runs = measured.counted("a")
    made = mean_by_stretch(runs, "entropy")
    assert len(made.rounds) == STRETCHES
    edges = np.unique(np.linspace(0, 50, STRETCHES + 1).round()).astype(int)
    for stretch, (low, high) in enumerate(pairwise(edges)):
        each = [run.theory["entropy"][low + 1 : high + 1].mean() for run in runs]
        assert made.mean[stretch] == pytest.approx(np.mean(each))
        assert made.high[stretch] - made.mean[stretch] == pytest.approx(np.std(each, ddof=1))
        assert made.rounds[stretch] == pytest.approx(np.arange(low + 1, high + 1).mean())
    assert set(theory_curves(measured, "wlrc")) == {0, 1}


def test_one_seed_has_a_curve_without_a_band(measured: RunSet) -> None:
    made = mean_by_stretch(measured.counted("a")[:1], "label_gap")
    assert np.isfinite(made.mean).all()
    assert np.isnan(made.low).all()


def test_ten_thousand_rounds_take_a_moment() -> None:
    """10^5 replies, 100 participants; a busy machine may hold up one try, not the best of three."""
    rng = np.random.Generator(np.random.Philox(0))
    counts = rng.integers(0, 9, (100, 10)) + 1
    told = replies({r: (np.sort(rng.choice(100, 10, replace=False)), [0.1] * 10) for r in range(1, 10_001)})
    quickest = np.inf
    for _ in range(3):
        began = time.perf_counter()
        of(told, counts, 10_001, unseen=())
        quickest = min(quickest, time.perf_counter() - began)
    assert quickest < 1.0


def test_runs_keep_their_terms_beside_their_rounds(measured: RunSet) -> None:
    run = measured.runs[0]
    assert all(len(values) == len(run.rounds["round"]) for values in run.theory.values())
    assert not set(run.theory) & set(run.rounds)
