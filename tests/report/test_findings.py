"""The words must claim no more than the numbers: one test per kind of outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedreach.report.findings import Findings, find
from fedreach.report.numbers import RunSet
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.report.tables import tabulate

from .made_up import fail, federation, write_comparison, write_curve, write_run


def found(tmp_path: Path, base: list[float], other: list[float]) -> Findings:
    """Findings for final accuracies on unseen clients, one per seed."""
    folders = []
    for method, values in (("base", base), ("other", other)):
        for seed, value in enumerate(values):
            columns = {"participant_accuracy": [0.1, 0.8], "unseen_accuracy": [0.1, value]}
            folders.append(write_curve(tmp_path / method / str(seed), method, seed, columns))
    return find(analyse(read(folders)))


def test_a_clear_lead_is_called_significant(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.50, 0.52, 0.54, 0.51], [0.60, 0.63, 0.64, 0.60])
    assert findings.headline == "other is best on unseen clients: 61.8 %, 10.0 points above base"
    assert findings.sentences[0].startswith("Its difference to base is +10.0 points [")
    assert findings.sentences[1] == "Better than base: other."
    assert findings.qualifying == findings.sentences[:2]
    assert findings.qualifying + findings.further == findings.sentences


def test_an_unclear_lead_is_not_called_better(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.50, 0.60, 0.55], [0.58, 0.56, 0.60])
    assert findings.headline == "other is ahead on unseen clients with 58.0 %, but not clearly above base"
    assert findings.sentences[1] == "Inconclusive against base: other."
    assert "About " in findings.sentences[2]
    assert "seeds would decide" in findings.sentences[2]


def test_methods_within_the_margin_are_called_equivalent(tmp_path: Path) -> None:
    base = [0.50, 0.60, 0.55, 0.52]
    findings = found(
        tmp_path, base, [value + more for value, more in zip(base, (0.002, -0.001, 0.001, 0.0), strict=True)]
    )
    assert findings.headline.endswith("and equivalent to base within ± 2 points")
    assert "Equivalent within ± 2 points to base: other." in findings.sentences


def test_what_the_seeds_could_have_seen_is_said_with_what_they_draw(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.50, 0.60, 0.55], [0.58, 0.56, 0.60])
    said = next(sentence for sentence in findings.sentences if "in four of five comparisons" in sentence)
    assert said.startswith("These 3 seeds find a true difference of ")
    assert said.endswith("Every seed draws partition, participants, initial model and batches anew.")


def test_a_lead_in_one_seed_is_not_tested(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.50], [0.90])
    assert "not clearly above base" in findings.headline
    assert findings.sentences[0].startswith("Differences were not tested (one seed")


def test_equal_differences_are_not_tested(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.5, 0.6], [0.75, 0.85])
    assert "not clearly above base" in findings.headline
    assert "all differences are equal" in findings.sentences[0]


def test_a_baseline_in_front_is_said_plainly(tmp_path: Path) -> None:
    clear = found(tmp_path / "clear", [0.60, 0.63, 0.64, 0.60], [0.50, 0.52, 0.54, 0.51])
    assert clear.headline == "No method does better on unseen clients than base, the baseline, with 61.8 %"
    assert clear.sentences[0] == "Worse than base: other."
    unclear = found(tmp_path / "unclear", [0.58, 0.56, 0.60], [0.50, 0.60, 0.55])
    assert unclear.sentences[0] == "Inconclusive against base: other."


def test_a_tie_goes_to_the_baseline(tmp_path: Path) -> None:
    assert "the baseline" in found(tmp_path, [0.5, 0.6], [0.6, 0.5]).headline


@pytest.mark.parametrize(
    ("failed", "ending"),
    [("base", "; base, the baseline, has no result"), ("other", "; no other method has a result")],
)
def test_a_method_without_a_result_is_not_beaten(tmp_path: Path, failed: str, ending: str) -> None:
    out = write_comparison(tmp_path, ["base", "other"], [0], rounds=4)
    fail(out / f"runs/{failed}/seed-0", "client 3, round 4: loss is nan")
    findings = find(analyse(read([out])))
    assert findings.headline.endswith(ending)
    assert any("1 of 2 runs did not finish" in sentence for sentence in findings.sentences)


def test_a_single_method_is_not_compared(tmp_path: Path) -> None:
    findings = find(analyse(read([write_run(tmp_path / "run", rounds=10)])))
    assert findings.headline.startswith("fedavg reaches ")
    assert not any("baseline" in sentence or "seeds" in sentence for sentence in findings.sentences)
    assert "95 % over clients" in findings.sentences[0]


def test_without_unseen_clients_no_gap_is_claimed(tmp_path: Path) -> None:
    findings = find(analyse(read([write_run(tmp_path / "run", rounds=10, held=federation(20, 0))])))
    assert "on the test set" in findings.headline
    assert findings.sentences == ("No client was kept unseen, so there is no participation gap.",)


def test_runs_left_out_are_counted(comparison: RunSet) -> None:
    assert find(analyse(comparison)).sentences[-1].startswith("2 of 25 runs did not finish")


def test_unfinished_results_are_called_so(tmp_path: Path) -> None:
    findings = find(analyse(read([write_comparison(tmp_path, ["a"], [0], rounds=6, finished=False)])))
    assert findings.headline.startswith("So far: a reaches")
    assert "No run of 1 has finished" in findings.sentences[-1]


def test_nothing_to_say_is_said(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a"], [0], rounds=2)
    (out / "runs").rename(out / "elsewhere")
    assert find(analyse(read([out]))).headline == "No run has a result yet"


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_the_gap_is_said_to_be_maybe_none_only_if_its_interval_has_zero(tmp_path: Path, shift: float) -> None:
    folders = []
    for seed, gap in enumerate((-0.01, 0.01, 0.02)):
        columns = {
            "participant_accuracy": [0.8],
            "unseen_accuracy": [0.8 - gap - shift],
            "participation_gap": [gap + shift],
        }
        folders.append(write_curve(tmp_path / str(seed), "m", seed, columns))
    assert ("may be none" in find(analyse(read(folders))).sentences[0]) == (shift == 0.0)


def test_what_all_seeds_share_is_said(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a", "b"], [0, 1, 2], rounds=3)
    comparison = replace(read([out]), config={"population": {"seed": 3}, "model": {"seed": 5}, "partition": {}})
    said = " ".join(find(analyse(comparison)).sentences)
    assert "All seeds share the same clients and initial model (population.seed = 3, model.seed = 5)" in said
    assert "drawn anew" not in said
    assert tabulate(analyse(comparison)).note.count("All seeds share") == 1
