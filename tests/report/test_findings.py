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
    assert findings.headline == "other is best on unseen clients: 61.8%, 10.0 points higher than base"
    assert findings.bullets[0] == "other is better than base."


def test_a_lead_that_costs_more_is_named_with_its_cost(tmp_path: Path) -> None:
    folders = []
    for method, lead, sent in (("base", 0.0, 2_000_000), ("other", 0.1, 3_000_000)):
        for seed, value in enumerate((0.50, 0.52, 0.54, 0.51)):
            unseen = value + lead + 0.001 * seed * (method == "other")
            columns = {"participant_accuracy": [0.1, 0.8], "unseen_accuracy": [0.1, unseen], "bytes_total": [0, sent]}
            folders.append(write_curve(tmp_path / method / str(seed), method, seed, columns))
    findings = find(analyse(read(folders)))
    assert findings.headline.endswith(" higher than base, with 50% more communication")
    assert findings.bullets[0] == "other (50% more communication) is better than base."


def test_an_unclear_lead_is_not_called_better(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.50, 0.60, 0.55], [0.58, 0.56, 0.60])
    assert findings.headline == (
        "other has the best mean on unseen clients (58.0%) but is not significantly better than base"
    )
    assert findings.bullets[0].startswith("The results for other are inconclusive with 3 seeds (MDE ")
    assert " seeds decide all planned comparisons if the observed " in findings.bullets[1]


def test_methods_within_the_margin_are_called_equivalent(tmp_path: Path) -> None:
    base = [0.50, 0.60, 0.55, 0.52]
    findings = found(
        tmp_path, base, [value + more for value, more in zip(base, (0.002, -0.001, 0.001, 0.0), strict=True)]
    )
    assert findings.headline.endswith("and is equivalent to base within ±2 points")
    assert findings.bullets[0] == "other is equivalent to base within ±2 points."


def test_what_the_seeds_could_have_seen_is_said_with_what_they_draw(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.50, 0.60, 0.55], [0.58, 0.56, 0.60])
    said = next(sentence for sentence in findings.bullets if "with 80% power" in sentence)
    assert said.startswith("With 3 seeds, the smallest true difference ")
    assert said.endswith("Each seed draws a new partition, participants, initial model and batches.")


def test_a_lead_in_one_seed_is_not_tested(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.50], [0.90])
    assert findings.headline.endswith("but is not significantly better than base")
    assert findings.warnings[0].startswith("Differences were not tested (one seed")


def test_equal_differences_are_not_tested(tmp_path: Path) -> None:
    findings = found(tmp_path, [0.5, 0.6], [0.75, 0.85])
    assert findings.headline.endswith("but is not significantly better than base")
    assert "all differences are equal" in findings.warnings[0]


def test_a_baseline_in_front_is_said_plainly(tmp_path: Path) -> None:
    clear = found(tmp_path / "clear", [0.60, 0.63, 0.64, 0.60], [0.50, 0.52, 0.54, 0.51])
    assert clear.headline == "No method is better on unseen clients than the baseline base (61.8%)"
    assert clear.bullets[0] == "other is worse than base."
    unclear = found(tmp_path / "unclear", [0.58, 0.56, 0.60], [0.50, 0.60, 0.55])
    assert unclear.bullets[0].startswith("The results for other are inconclusive with 3 seeds")


def test_pairs_are_listed_with_the_better_one_first(comparison: RunSet) -> None:
    analysis = analyse(replace(comparison, plan=replace(comparison.plan, contrasts="all")))
    better = [each for each in analysis.contrasts["last"] if each.judged.conclusion == "better"]
    worse = [each for each in analysis.contrasts["last"] if each.judged.conclusion == "worse"]
    said = find(analysis).bullets[0]
    pairs = [(each.first, each.second) for each in better] + [(each.second, each.first) for each in worse]
    assert pairs
    for second in {second for _, second in pairs}:
        (sentence,) = (each for each in said.split(". ") if each.rstrip(".").endswith(f"better than {second}"))
        assert all(first in sentence for first, other in pairs if other == second)


def test_a_tie_goes_to_the_baseline(tmp_path: Path) -> None:
    assert "the baseline" in found(tmp_path, [0.5, 0.6], [0.6, 0.5]).headline


@pytest.mark.parametrize(
    ("failed", "ending"),
    [("base", "; the baseline base has no result"), ("other", "; no other method has a result")],
)
def test_a_method_without_a_result_is_not_beaten(tmp_path: Path, failed: str, ending: str) -> None:
    out = write_comparison(tmp_path, ["base", "other"], [0], rounds=4)
    fail(out / f"runs/{failed}/seed-0", "client 3, round 4: loss is nan")
    findings = find(analyse(read([out])))
    assert findings.headline.endswith(ending)
    assert any("1 of 2 runs did not finish" in sentence for sentence in findings.warnings)


def test_a_single_method_is_not_compared(tmp_path: Path) -> None:
    findings = find(analyse(read([write_run(tmp_path / "run", rounds=10)])))
    assert findings.headline.startswith("fedavg reaches ")
    assert not any("baseline" in sentence or "seeds" in sentence for sentence in findings.bullets)
    assert "(95% CI over clients" in findings.bullets[0]


def test_without_unseen_clients_no_gap_is_claimed(tmp_path: Path) -> None:
    findings = find(analyse(read([write_run(tmp_path / "run", rounds=10, held=federation(20, 0))])))
    assert "on the test set" in findings.headline
    assert findings.bullets == ("Without unseen clients, there is no participation gap.",)


def test_runs_left_out_are_counted(comparison: RunSet) -> None:
    assert find(analyse(comparison)).warnings[-1].startswith("2 of 25 runs did not finish")


def test_unfinished_results_are_called_so(tmp_path: Path) -> None:
    findings = find(analyse(read([write_comparison(tmp_path, ["a"], [0], rounds=6, finished=False)])))
    assert findings.headline.startswith("So far: a reaches")
    assert findings.warnings[-1] == "The run has not finished. The numbers are from its last evaluated round."


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
    assert ("which includes 0" in find(analyse(read(folders))).bullets[0]) == (shift == 0.0)


def test_what_all_seeds_share_is_said(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a", "b"], [0, 1, 2], rounds=3)
    comparison = replace(read([out]), config={"population": {"seed": 3}, "model": {"seed": 5}, "partition": {}})
    said = " ".join(find(analyse(comparison)).bullets)
    assert "All seeds share the same clients and initial model (population.seed = 3, model.seed = 5)" in said
    assert "draws a new" not in said
    assert tabulate(analyse(comparison)).details.count("All seeds share") == 1
