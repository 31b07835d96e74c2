"""Several comparisons on one page: what differs is said, and what cannot be compared is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import TINY, Command, Refused
from tests.experiments.inline import Inline

from fedreach.experiment.compare import compare
from fedreach.experiment.load import load
from fedreach.report.findings import find
from fedreach.report.overview import analyse
from fedreach.report.read import read


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Comparisons that differ in this and that."""
    home = tmp_path_factory.mktemp("merge")
    (home / "tiny.toml").write_text(TINY)
    few = ["rounds=2", "engine.name=sequential"]
    numbers = ["data=diabetes", "method.loss=mse", "partition={name='iid',clients=12}", "baseline=a"]
    numbers += ["methods={a={},b={weighting='equal'}}"]
    for out, options in {
        "a": [],
        "alpha": ["partition.alpha=5.0"],
        "lr": ["local.lr=0.05"],
        "later": ["seeds=[2, 3]"],
        "numbers": numbers,
        "noisy": ["noise={name='symmetric',rate=0.3}", "seeds=[0]"],
    }.items():
        e = load(home / "tiny.toml", [*few, *options, *([] if out == "numbers" else [f"name={out}"])])
        assert not compare(e, out=home / out, base=home, executor=Inline()).failed
    return home


@pytest.mark.slow
def test_methods_of_one_name_are_told_apart_and_differences_are_taken_within_each(made: Path) -> None:
    comparison = read([made / "a", made / "alpha"])
    assert comparison.methods == ("uniform (a)", "entropy (a)", "uniform (alpha)", "entropy (alpha)")
    assert comparison.labels == ("a", "alpha")
    assert comparison.differs == (("partition.alpha", ("0.5", "5.0")),)
    assert comparison.plan.contrasts == [("entropy (a)", "uniform (a)"), ("entropy (alpha)", "uniform (alpha)")]
    analysis = analyse(comparison)
    apart = {(each.first, each.judged.mean) for each in analysis.contrasts["last"]}
    for name in ("a", "alpha"):
        (alone,) = analyse(read([made / name])).contrasts["last"]
        assert (f"entropy ({name})", alone.judged.mean) in apart
    assert find(analysis).warnings[0] == (
        "This report shows 2 comparisons: a, alpha. They differ in partition.alpha (0.5 | 5.0)."
    )


@pytest.mark.slow
def test_with_the_same_clients_differences_go_across(made: Path) -> None:
    comparison = read([made / "a", made / "lr"])
    assert ("uniform (lr)", "uniform (a)") in comparison.plan.contrasts
    found = {(each.first, each.second): each.judged for each in analyse(comparison).contrasts["last"]}
    assert found["uniform (lr)", "uniform (a)"].count == 2  # seeds


def test_other_seeds_of_the_same_methods_are_joined(made: Path) -> None:
    comparison = read([made / "a", made / "later"])
    assert comparison.methods == ("uniform", "entropy")
    assert comparison.seeds == (0, 1, 2, 3)
    assert [len(comparison.counted(method)) for method in comparison.methods] == [4, 4]


def test_labels_that_are_noisy_in_one_are_another_setting_and_no_other_data(made: Path) -> None:
    assert [key for key, _ in read([made / "a", made / "noisy"]).differs] == ["noise", "noise.name", "noise.rate"][1:]


def test_other_data_and_other_scores_are_refused_by_name(made: Path, refused: Refused) -> None:
    said = refused(3, "report", made / "a", made / "numbers")
    assert "cannot be compared, because they have different values of data set: digits (" in said
    assert "diabetes (" in said
    assert "is in" in refused(3, "report", made / "a", made / "a")


def test_the_page_and_machines_are_told_what_differs(made: Path, fedreach: Command, tmp_path: Path) -> None:
    done = fedreach("report", made / "a", made / "alpha", "--out", tmp_path, "--formats", "none", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["comparisons"], said["differs"]) == (["a", "alpha"], {"partition.alpha": ["0.5", "5.0"]})
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Differences between a, alpha" in page
