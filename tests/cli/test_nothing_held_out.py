"""Clients with one row, or of one group, from the table to the page: what is not known is said, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Command

HEAD = "hospital,patient,day,age,ill\n"
MANY = [
    f"{who},p{who}{row // 4},{row},{(7 * row) % 50},{'yes' if row % 3 else 'no'}" for who in "ab" for row in range(16)
]
FEW = [f"{who},p{who},1,{age},{ill}" for who, age, ill in (("c", 1, "no"), ("d", 2, "yes"), ("e", 4, "no"))]
EXPERIMENT = """\
baseline = "uniform"
seeds = [0, 1]
rounds = 2
[data]
name = "visits.csv"
client = "hospital"
label = "ill"
group = "patient"
[partition]
name = "natural"
seed = 0
[population]
participants = {participants}
[method]
cohort_size = 2
[engine]
name = "sequential"
[methods.uniform]
[methods.full]
selection = "full"
"""


@pytest.fixture
def asked(home: Path):
    """Return what writes the table and an experiment on some of its clients."""
    (home / "visits.csv").write_text(HEAD + "\n".join([*MANY, *FEW]) + "\n")

    def write(participants: str, more: str = "") -> str:
        (home / "few.toml").write_text(EXPERIMENT.format(participants=participants) + more)
        return "few.toml"

    return write


def test_participants_with_one_row_train_and_that_they_are_not_tested_is_said(fedreach: Command, asked) -> None:
    result = fedreach("run", asked('["a", "c"]'), "--out", "o")
    assert result.exit_code == 0, result.output
    assert "held-out rows: all rows of one 'patient' together" in result.stderr
    assert "participants without held-out examples train but are not scored: c" in result.stderr
    assert json.loads(Path("o/federation.json").read_text())["participants_without_held_out_data"] == [2]


def test_where_nobody_holds_anything_out_unseen_clients_are_compared_all_the_same(fedreach: Command, asked) -> None:
    result = fedreach("compare", asked('["c", "d"]'), "--out", "o", "--formats", "svg")
    assert result.exit_code == 0, result.output
    assert "no participant holds out examples, so FedReach cannot score participants" in result.stderr
    for method in ("uniform", "full"):
        record = json.loads(Path(f"o/runs/{method}/seed-0/result.json").read_text())
        assert (record["status"], record.get("best_round")) == ("finished", None)  # not round 0
    assert "unseen" in Path("o/report/table.csv").read_text()
    assert "4/4 runs" in result.output
    page = Path("o/report/index.html").read_text().lower()
    assert ">nan" not in page
    assert " nan" not in page


def test_where_nothing_at_all_is_tested_the_comparison_says_so(fedreach: Command, asked) -> None:
    everybody = asked('["c", "d", "e"]', '[data.columns]\ndrop = ["day"]\n')
    (Path("visits.csv")).write_text(HEAD + "\n".join(FEW) + "\n")
    result = fedreach("compare", everybody, "--out", "o", "--formats", "svg")
    assert result.exit_code == 0, result.output
    assert "FedReach cannot score participants" in result.output
    run = fedreach("run", everybody, "--out", "single")
    assert "The best round is unknown" in run.output


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("[method.adaptation]\nname = 'label_shift'\n", "LabelShift is fitted to held-out examples of participants"),
        ("[evaluation]\npatience = 3\n", "evaluation.patience needs held-out examples of participants"),
    ],
)
def test_what_is_decided_by_held_out_rows_is_refused_before_the_first_round(fedreach, asked, command, more, words):
    result = fedreach(command, asked('["c", "d"]', more), "--out", "o")
    assert result.exit_code
    assert words in result.output
    assert not list(Path("o").rglob("rounds.jsonl"))
