"""The command ``fedreach verify``: a user's part that is right, one that is wrong, and requests that make no sense."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedreach._util import registry
from fedreach.cli import main
from fedreach.testing.base import CheckResults

from ..conftest import Command  # noqa: TID252 (tests are no package that has a name)

MINE = '''\
from dataclasses import dataclass

import numpy as np

import fedreach as fr
from fedreach.federation.selection.losses import Minimax
from fedreach.federation.solvers import FedDyn
from fedreach.federation.types import Cohort


@dataclass(frozen=True)
class LongestWait(fr.Selection):
    """Choose those who waited longest, with some chance for the others."""

    patience: float = 1.0

    def init(self, view):
        return {"ids": view.ids, "waited": np.ones(len(view.ids))}

    def select(self, state, view, k, rng):
        wait = state["waited"][view.available] ** self.patience
        return Cohort(rng.choice(view.ids[view.available], size=k, replace=False, p=wait / wait.sum()))

    def observe(self, state, reports):
        waited = state["waited"] + 1
        waited[np.searchsorted(state["ids"], reports.ids)] = 1
        return {**state, "waited": waited}


class Forgetful(LongestWait):
    def observe(self, state, reports):
        state["waited"][np.searchsorted(state["ids"], reports.ids)] -= 0.5
        return state


@dataclass(frozen=True)
class MyDyn(FedDyn):
    def remember(self, memory, state, update, steps, rate):
        return super().remember(memory[::-1].copy(), state, update, steps, rate)


def most_data(view, k, rng, least=0):
    ids = view.ids[view.available & (view.num_examples >= least)]
    return ids[np.lexsort((ids, -view.num_examples[view.rows(ids)]))[:k]]


def by_position(view, k, rng):
    return np.flatnonzero(view.available)[:k]


def by_loss(reports):
    return 1 / (1 + reports.metrics["loss"])


minimax = Minimax(refresh=3)
number = 5


class Rude(fr.Selection):
    def select(self, state, view, k, rng):
        raise RuntimeError("no clients today")


def margin(y_true, scores):
    two = np.sort(scores, axis=1)[:, -2:]
    return float((two[:, 1] - two[:, 0]).mean())


def by_order(y_true, scores):
    return float(y_true @ np.arange(len(y_true)))
'''


@pytest.fixture
def mine(home: Path) -> Path:
    (home / "mine.py").write_text(MINE, encoding="utf-8")
    return home / "mine.py"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "arguments",
    [
        ["mine.py:LongestWait"],
        ["mine.py:LongestWait", "--set", "patience=0.5"],
        ["mine.py:most_data"],
        ["mine.py:by_loss"],
        ["mine.py:minimax"],
        ["mine.py:margin"],
        ["auroc", "log_loss"],
        ["fedreach.federation.solvers:FedProx", "--set", "mu=0.5"],
        ["average", "--kind", "server"],
        ["clip", "--set", "inner=entropy", "--set", "max=0.3"],
        ["by_examples", "equal"],
    ],
    ids=" ".join,
)
def test_a_right_part_passes(fedreach: Command, mine: Path, arguments: list[str]) -> None:
    result = fedreach("verify", *arguments)
    assert result.exit_code == 0, result.output
    *lines, last = result.stdout.splitlines()
    for line in lines:
        assert re.search(r"all checks passed \(\d+\)$", line)
    assert re.fullmatch(r"All checks passed by \d components? in \d+ s\.", last)


@pytest.mark.parametrize(
    ("arguments", "check", "said"),
    [
        (["mine.py:Forgetful"], "arguments untouched", "observe wrote to state.waited: before ["),
        (["mine.py:MyDyn"], "client memory is independent", "with the others and ["),
        (["mine.py:by_position"], "valid choice", "by_position.select must return participants only; client 0 is not"),
        (["mine.py:most_data", "--set", "least=1000"], "valid choice", "must return at least one of the"),
        (["mine.py:by_order"], "order does not matter", "with the examples in reverse order"),
        (["mine.py:Rude"], "valid choice", "it raised RuntimeError in line 61 of mine.py: no clients today"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_part_is_told_in_words(
    fedreach: Command, mine: Path, arguments: list[str], check: str, said: str
) -> None:
    result = fedreach("verify", *arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert f'fails the check "{check}": ' in result.stdout
    at = result.stdout.index(f'fails the check "{check}": ')
    assert "with:" in result.stdout[at:] or check == "options define the component"
    assert said in result.stdout[at:]
    assert result.stderr.strip() == "error: 1 of 1 components fails a check."


def test_one_cause_is_told_once(fedreach: Command, mine: Path) -> None:
    out = fedreach("verify", "mine.py:Rude").stdout
    assert out.count("no clients today") == 1
    assert out.count("for the same reason") >= 3


def test_json_tells_the_same_to_machines(fedreach: Command, mine: Path) -> None:
    result = fedreach("verify", "mine.py:Forgetful", "by_examples", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["passed"] is False
    assert told["seconds"] > 0
    wrong, right = told["components"]
    assert (right["kind"], right["name"], right["failures"]) == ("weighting", "by_examples", [])
    assert right["checks"] == 8
    breach = next(breach for breach in wrong["failures"] if breach["check"] == "arguments untouched")
    assert breach["statement"] == "A component does not change its arguments."
    assert breach["with"].startswith("6 different clients, 0 to 5")
    assert "state.waited" in breach["happened"]


def test_a_name_of_two_kinds_stands_for_both_unless_the_kind_is_said(fedreach: Command, home: Path) -> None:
    told = json.loads(fedreach("verify", "disagreement", "--json").stdout)
    assert [part["kind"] for part in told["components"]] == ["weighting", "measurement"]
    told = json.loads(fedreach("verify", "disagreement", "--kind", "weighting", "--json").stdout)
    assert [part["kind"] for part in told["components"]] == ["weighting"]


def test_all_checks_are_listed_in_words(fedreach: Command) -> None:
    checks = json.loads(fedreach("verify", "--list", "--json").stdout)
    assert {check["kind"] for check in checks} == set(registry.VERIFIED)
    assert len(checks) > 90
    text = fedreach("verify", "--list").stdout
    for check in checks:
        assert f"  {check['check']}: {check['statement']}" in text


def test_all_components_are_checked_in_a_few_lines(fedreach: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedreach.testing.verify.check_built_in", lambda kind, name: CheckResults(kind, name, 1))
    result = fedreach("verify")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == len(registry.VERIFIED) + 1 <= 25
    assert re.fullmatch(r"selection +(\d+) of \1 components pass", lines[2])
    assert len(fedreach("verify", "--verbose").stdout.splitlines()) > 80


def test_a_check_can_be_left_out(fedreach: Command, mine: Path) -> None:
    assert fedreach("verify", "mine.py:Forgetful", "--without", "arguments untouched").exit_code in (0, 1)
    result = fedreach("verify", "mine.py:Forgetful", "--without", "arguments untouched", "--json")
    (part,) = json.loads(result.stdout)["components"]
    assert "arguments untouched" not in {breach["check"] for breach in part["failures"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scafold"], "Unknown component 'scafold'. Did you mean 'scaffold'? Name a custom component as FILE.py:NAME."),
        (["scaffold", "--kind", "selection"], "Unknown component 'scaffold'."),
        (["uniform", "--kind", "selektion"], "Unknown component type 'selektion'. Did you mean 'selection'?"),
        (["mine.py:LongestWayt"], "mine.py has no 'LongestWayt'. Did you mean 'LongestWait'?"),
        (["nobody.py:X"], "file not found"),
        (["mine.py:number"], "int must be derived from"),
        (["mine.py:LongestWait", "--set", "patients=1.0"], "has no such option. Did you mean 'patience'?"),
        (["mine.py:LongestWait", "--set", "patience"], "--set must be of the form name=value"),
        (["mine.py:minimax", "--set", "refresh=1"], "is an object."),
        (["feddyn", "--set", "alpha=-1.0"], "FedDyn.alpha must be positive; got -1.0."),
        (["uniform", "--without", "renamed"], "Unknown check 'renamed' for uniform."),
        (["--set", "alpha=1.0"], "need the name of a component"),
        (["label_statistics.discrete_laplace"], "Unknown component"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_request_that_makes_no_sense_ends_with_2(
    refused: Callable[..., str], mine: Path, arguments: list[str], said: str
) -> None:
    assert said in refused(2, "verify", *arguments)


def test_a_part_that_was_asked_for_and_cannot_be_tried_is_an_error(
    refused: Callable[..., str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "clarabel", None)
    said = refused(2, "verify", "csra", "--set", "search=paper")
    assert "pip install 'fedreach[reproduce]'" in said


@pytest.mark.slow
def test_every_example_of_the_help_runs(fedreach: Command, home: Path) -> None:
    lines = re.findall(r"^\s*fedreach (verify.*)$", main.commands["verify"].epilog or "", re.MULTILINE)
    assert len(lines) == 4
    assert fedreach("init", ".").exit_code == 0
    (home / "my_solvers.py").write_text(
        "from fedreach.federation.solvers import FedDyn\n\nclass MyDyn(FedDyn): ...\n", encoding="utf-8"
    )
    for line in lines[1:]:  # the first tries everything, which tests/testing does
        result = fedreach(*line.split())
        assert result.exit_code == 0, result.output
