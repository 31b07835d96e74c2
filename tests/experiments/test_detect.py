"""How many seeds a comparison has: declared, or by Stein's two stages; and what results may not change any more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.evaluation.statistics import plan_seeds
from fedreach.experiment.compare import check_declared, compare
from fedreach.experiment.load import load
from fedreach.experiment.schema import Experiment
from fedreach.experiment.workers import ComparisonCallback, ComparisonStatus
from fedreach.report.analysis import differences_by_seed
from fedreach.report.read import read, seeds_to_detect
from fedreach.report.write import write_report
from fedreach.runs.schema import ComparisonRecord, Result

from ..report.made_up import rewrite  # noqa: TID252 (tests are no package that has a name)

PILOT = 10
TWO = ["rounds=2", "methods={uniform={},full={selection='full'}}", "baseline=uniform", "method.cohort_size=3"]
TWO += ["evaluation.every=1", "evaluation.local=false", "target_accuracy=0.5", "run.checkpoint_seconds=1000.0"]


def experiment(*more: str, seeds: int = PILOT) -> Experiment:
    return load(None, [*TWO, f"seeds={list(range(seeds))}", *more])


DETECT = ("statistics.detect_points=2.5", "statistics.max_seeds=16", "statistics.last_rounds=2")


class Told(ComparisonCallback):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.why: list[str] = []
        self.began = 0

    def begin(self) -> None:
        self.began += 1

    def planned(self, why: str) -> None:
        self.why.append(why)


def run(out: Path, e: Experiment, **how: Any) -> tuple[ComparisonStatus, Told]:
    told = Told()
    return compare(e, out=out, base=out, workers=1, callbacks=[told], further=seeds_to_detect, **how), told


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("detect") / "study"
    status, told = run(out, experiment(*DETECT))
    assert not status.failed
    assert (told.began, len(told.why)) == (2, 1)
    return out


def report(out: Path) -> dict[str, bytes]:
    write_report([out], out, formats=None)
    return {path.name: path.read_bytes() for path in sorted((out / "report").iterdir()) if path.is_file()}


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_the_number_of_seeds_is_what_the_pilot_asks_for(study: Path) -> None:
    comparison = read([study])
    assert comparison.pilot == tuple(range(PILOT))
    pilot, reason = differences_by_seed(comparison, "full", "uniform", "last", of=comparison.pilot)
    assert not reason
    assert list(pilot) == list(range(PILOT))
    (wanted,) = plan_seeds([pilot], 0.025)
    assert wanted is not None
    assert len(comparison.seeds) == min(max(wanted, PILOT), 16) > PILOT
    assert {run.seed for run in comparison.runs} == set(comparison.seeds)


@pytest.mark.slow
def test_all_seeds_have_a_say_in_the_mean_and_the_pilot_alone_in_the_spread(study: Path) -> None:
    records = json.loads(report(study)["table.json"])
    assert records["statistics"]["pilot"] == list(range(PILOT))
    (contrast,) = records["contrasts"]
    assert contrast["difference_seeds"] == len(records["statistics"]["seeds"])
    assert contrast["difference_conclusion"] in ("better", "worse", "equivalent", "inconclusive")
    half = (contrast["difference_high"] - contrast["difference_low"]) / 2
    assert half < 0.025 or len(records["statistics"]["seeds"]) == 16


@pytest.mark.slow
def test_a_study_that_was_stopped_ends_in_the_same_bytes(study: Path, tmp_path: Path) -> None:
    whole = report(study)
    for name, lost in {"in the pilot": [3, 7, 11], "in the second stage": [PILOT, PILOT + 1]}.items():
        out = tmp_path / name
        shutil.copytree(study, out)
        for seed in lost:
            for folder in out.glob(f"runs/*/seed-{seed}"):
                shutil.rmtree(folder)
        status, told = run(out, experiment(*DETECT))
        assert status.skipped == len(status.jobs) - len([1 for seed in lost if seed >= PILOT]) * 2
        again = report(out)
        assert {k: v for k, v in again.items() if k != "index.html"} == {
            k: v for k, v in whole.items() if k != "index.html"
        }
        assert told.why


def test_a_finished_study_trains_nothing(study: Path) -> None:
    before = (study / ComparisonRecord.FILE).read_bytes()
    status, told = run(study, experiment(*DETECT))
    assert told.began == 0
    assert status.skipped == len(status.jobs)
    assert (study / ComparisonRecord.FILE).read_bytes() == before


def test_where_the_rule_asks_for_more_than_the_most_it_is_said(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "fine"
    shutil.copytree(study, out)
    stored = json.loads((out / ComparisonRecord.FILE).read_text())
    stored["statistics"] |= {"detect_points": 0.1, "max_seeds": 40}
    rewrite(out / ComparisonRecord.FILE, stored)
    number, why = seeds_to_detect(out)
    assert number == 40
    assert why.endswith("max_seeds limits their number to 40")


def stored(out: Path, e: Experiment, *, result: bool = True, **more: Any) -> ComparisonRecord:
    """Return the record of a comparison, with a result or none yet."""
    place = Path("runs/uniform/seed-0")
    (out / place).mkdir(parents=True)
    if result:
        (out / place / Result.FILE).write_text("{}")
    return ComparisonRecord(
        name="x",
        baseline="uniform",
        target_accuracy=None,
        methods=list(e.methods),
        seeds=list(e.seeds),
        runs={"uniform": {"0": str(place)}},
        statistics=dict(vars(e.plan)),
        config={},
        **more,
    )


def test_a_comparison_is_not_ended_early(tmp_path: Path) -> None:
    before = stored(tmp_path, experiment(seeds=8))
    with pytest.raises(RunFolderError, match="8 planned seeds; 3 of these seeds are missing now"):
        check_declared(experiment(seeds=5), before, tmp_path, add_seeds=False)
    with pytest.raises(RunFolderError, match="must not decide when to stop"):
        check_declared(experiment(seeds=5), before, tmp_path, add_seeds=True)


def test_seeds_are_added_only_by_name_and_the_record_keeps_it(tmp_path: Path) -> None:
    before = stored(tmp_path, experiment(seeds=3))
    with pytest.raises(RunFolderError, match=r"results of 3 seeds; got 8 seeds.*--detect.*--add-seeds"):
        check_declared(experiment(seeds=8), before, tmp_path, add_seeds=False)
    assert check_declared(experiment(seeds=8), before, tmp_path, add_seeds=True) == (3,)
    assert check_declared(experiment(seeds=3), before, tmp_path, add_seeds=False) == ()


def test_questions_are_not_changed_once_there_are_results(tmp_path: Path) -> None:
    before = stored(tmp_path, experiment())
    for change in ("margin_points=5.0", "correction='max_t'", "contrasts='all'", "last_rounds=2", "detect_points=2.0"):
        with pytest.raises(RunFolderError, match=f"statistics.{change.partition('=')[0]}"):
            check_declared(experiment(f"statistics.{change}"), before, tmp_path, add_seeds=True)


def test_before_there_is_a_result_everything_may_be_changed(tmp_path: Path) -> None:
    before = stored(tmp_path, experiment(seeds=8), result=False)
    assert check_declared(experiment("statistics.margin_points=5.0", seeds=3), before, tmp_path, add_seeds=False) == ()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["statistics.detect_points=2.0", "seeds=[0,1,2]"], "needs a pilot of at least 10 seeds; `seeds` has 3"),
        (["statistics.detect_points=2.0", "statistics.max_seeds=5"], "at least the 10 seeds of the pilot; got 5"),
        (["statistics.detect_points=2.0", "methods={uniform={}}"], "requires at least two methods; got one"),
        (["statistics.contrasts=[]"], "have at least 1 item; got []"),
        (["statistics.contrasts=[['full']]"], "contrasts[0]: must have at least 2 items; got ['full']"),
        (["statistics.contrasts=[['full','unifrom']]"], "got ['full', 'unifrom']. Did you mean 'uniform'"),
        (
            ["statistics.contrasts=[['full','full']]"],
            "each pair once; got ['full', 'full']",
        ),
        (["statistics.contrasts=[['full','uniform'],['uniform','full']]"], "each pair once; got ['uniform', 'full']"),
        (["statistics.last_rounds=5"], "at most the 2 evaluated rounds; got 5"),
        (["statistics.margin_points=0"], "margin_points"),
        (["statistics.correction='bonferroni'"], "holm"),
    ],
)
def test_questions_that_make_no_sense_are_refused(wrong: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(*wrong)
    assert words in str(caught.value)


def test_a_number_of_seeds_that_nobody_can_say_is_not_the_pilots(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"statistics.detect_points requires `further`"):
        compare(experiment(*DETECT), out=tmp_path / "out", base=tmp_path)
    assert not (tmp_path / "out").exists()


def test_statistics_change_no_run() -> None:
    assert experiment(*DETECT).resolved("full") == experiment().resolved("full")


def test_a_pilot_that_is_too_small_and_a_limit_without_a_rule_are_refused(refused: Callable[..., str]) -> None:
    said = refused(2, "compare", "tiny.toml", "--detect", 2.0)
    assert "needs a pilot of at least 10 seeds; `seeds` has 2. Use --seeds 20 or more." in said


@pytest.mark.slow
def test_seeds_of_a_finished_comparison_stay_what_they_were(
    fedreach: Callable[..., Any], refused: Callable[..., str]
) -> None:
    assert fedreach("compare", "tiny.toml", "--formats", "none", "--seeds", 3).exit_code == 0
    assert "3 planned seeds; 1 of these seeds are missing now" in refused(3, "compare", "tiny.toml", "--seeds", 2)
    assert "--add-seeds" in refused(3, "compare", "tiny.toml", "--seeds", 4)
    more = fedreach("compare", "tiny.toml", "--seeds", 4, "--add-seeds", "--formats", "none", "--json")
    told = json.loads(more.stdout)
    assert told["statistics"]["looks"] == [3]
    assert [each["difference_conclusion"] for each in told["contrasts"]] == ["inconclusive"]
    assert [each["difference_seeds_needed"] for each in told["contrasts"]] == [None]
