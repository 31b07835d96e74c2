"""Who takes part where an experiment does not say, and what is told of a model that has not learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import load
from fedreach.report.concerns import chance_accuracy, hardly_learned, near_chance_advice
from fedreach.runs.schema import FederationRecord
from papers import recipe as recipes

from ..conftest import TINY, Command, Refused, rows  # noqa: TID252 (tests are no package that has a name)

SHORT = ["--set", "rounds=1", "--set", "evaluation.every=1", "--out", "x"]


def told(fedreach: Command, *arguments: object) -> dict[str, Any]:
    done = fedreach(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ------------------------------------------------------------------------------------------------- who takes part


@pytest.mark.parametrize(
    ("said", "take_part"),
    [
        ("", 20),
        ('participants = "all"', 50),
        ("participants = 0.1", 5),
        ("participants = 7", 7),
        ("participants = [3]", 1),
    ],
)
def test_two_fifths_take_part_unless_an_experiment_says_otherwise(
    fedreach: Command, home: Path, said: str, take_part: int
) -> None:
    (home / "e.toml").write_text(f"[population]\n{said}\n[method]\ncohort_size = 1\n", encoding="utf-8")
    done = fedreach("run", "e.toml", *SHORT)
    assert done.exit_code == 0, done.output
    participate = "participates and holds" if take_part == 1 else "participate and hold"
    assert f"; {take_part} {participate} out 20%, {50 - take_part} never train" in done.stderr
    assert ("unseen_accuracy" in rows(home / "x")[-1]) == (take_part < 50)


def test_a_share_is_one_of_those_that_are_not_excluded(fedreach: Command, home: Path) -> None:
    record = told(fedreach, "partition", "tiny.toml", "--set", "population={exclude_clients=[0,1],participants=0.5}")
    assert len(record["participants"]) == 5  # of 12 clients less 2
    assert not {0, 1} & set(record["participants"])


def test_a_cohort_larger_than_the_share_is_told_with_the_share(refused: Refused, home: Path) -> None:
    (home / "e.toml").write_text("[partition]\nclients = 20\nalpha = 0.5\n", encoding="utf-8")
    said = refused(2, "run", "e.toml")
    assert "method.cohort_size: must be at most the 8 participants; got 10." in said


@pytest.mark.parametrize("wrong", ["1.0", "0", "1.5", "'some'"])
def test_what_is_neither_number_nor_share_nor_all_is_refused(home: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"population\.participants: must be .*'all'; got"):
        load(Path("tiny.toml"), [f"population.participants={wrong}"])


def test_in_csra_everybody_takes_part_but_where_unseen_clients_are_asked_about() -> None:
    for name in recipes.find("csra"):
        recipe = recipes.load(name, "smoke")
        taking_part = {recipe.at(value).population.participants for value in recipe.values or (None,)}
        assert (taking_part == {"all"}) == (name != "csra/control-adapted"), name


# ------------------------------------------------------------------------------------------------- near chance


def record(counts: list[list[int]], participants: list[int]) -> FederationRecord:
    none = np.array([], np.int64)
    return FederationRecord(
        hash="",
        dataset={},
        partition={},
        num_clients=len(counts),
        num_classes=len(counts[0]),
        label_counts=np.array(counts),
        sizes=np.array(counts).sum(axis=1),
        participants=np.array(participants),
        unseen=none,
        participants_without_held_out_data=none,
        statistics={},
        noise=None,
        server_data=None,
    )


def test_chance_is_the_mean_over_participants_of_the_best_single_answer() -> None:
    counts = [[9, 1, 0], [0, 2, 2], [0, 0, 50]]
    assert chance_accuracy(record(counts, [0, 1])) == pytest.approx(
        (0.9 + 0.0) / 2
    )  # the first class; the second has 0.3
    assert chance_accuracy(record(counts, [1, 2])) == pytest.approx((0.5 + 1.0) / 2)
    assert chance_accuracy(record([[], []], [0, 1])) is None  # nobody told labels


@pytest.mark.parametrize(
    ("accuracy", "same", "hardly"),
    [
        (0.24, 0.1, True),
        (0.26, 0.1, False),
        (0.74, 0.5, True),
        (0.76, 0.5, False),
        (0.02, 0.01, True),
        (0.04, 0.01, False),
    ],
)
def test_near_chance_means_less_than_three_times_its_odds(accuracy: float, same: float, hardly: bool) -> None:
    assert hardly_learned(accuracy, same) is hardly


def test_nothing_is_told_of_what_has_learned() -> None:
    assert near_chance_advice({"good": (0.8, 0.1)}) == ""
    both = near_chance_advice({"good": (0.8, 0.1), "bad": (0.15, 0.1), "worse": (0.1, 0.1)})
    assert both.startswith(
        "Near chance: bad 15.0%, worse 10.0% on participants' held-out data; predicting a single class"
    )


def test_a_run_that_has_not_learned_is_told_with_what_to_try(fedreach: Command, home: Path) -> None:
    slow = fedreach("run", "tiny.toml", "--set", "local.lr=1e-6", "--out", "slow", "--quiet")
    assert slow.exit_code == 0, slow.output
    accuracy = rows(home / "slow")[-1]["unseen_accuracy"]
    (said,) = told(fedreach, "run", "tiny.toml", "--set", "local.lr=1e-6", "--out", "slow")["findings"]
    assert f"worse than a linear model: {100 * accuracy:.1f}% on unseen clients" in said
    assert "Try another local.lr, another number of rounds" in said
    assert f"Warning: {said}" in " ".join(slow.stdout.split())
    longer = ["--set", "rounds=20", "--set", "local.epochs=5", "--out", "longer"]
    assert f"{100 * accuracy:.1f}%" not in str(told(fedreach, "run", "tiny.toml", *longer)["findings"])


def test_a_comparison_names_the_methods_that_have_not_learned(fedreach: Command, home: Path) -> None:
    text = TINY.replace("rounds = 4", "rounds = 20").replace("batch_size = 16", "epochs = 5")
    (home / "tiny.toml").write_text(text + "local = { lr = 1e-6 }\n", encoding="utf-8")  # of entropy
    options = ["--seeds", 1, "--formats", "none", "--quiet"]
    done = fedreach("compare", "tiny.toml", *options)
    assert done.exit_code == 0, done.output
    (said,) = told(fedreach, "compare", "tiny.toml", *options)["findings"]
    assert "worse than a linear model: uniform 73.2%, entropy 12.7% on unseen clients" in said
    assert f"Warning: {said}" in " ".join(done.stdout.split())
