"""Each setting of the table "As printed" exists, and changes what it names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedreach.experiment.components import federation
from fedreach.experiment.load import checked
from fedreach.experiment.run import run
from fedreach.experiment.schema import Experiment

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "reproducing.md").read_text("utf-8").partition("## As printed\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line[:1] == "|"][2:]
SETTINGS = [tomllib.loads("\n".join(re.findall(r"`([^`]*)`", setting))) for _, _, setting, _ in ROWS]
NAMES = [f"{row[0]}-{i}" for i, row in enumerate(ROWS)]


def an_experiment(settings: dict[str, Any]) -> Experiment:
    method = {key: value for key, value in settings.items() if key != "radio"}
    raw = {
        "rounds": 1,
        "data": {"name": "digits"},
        "model": {"name": "linear"},
        "partition": {"name": "iid", "clients": 6},
        "population": {"participants": "all"},
        "server_data": {"examples": 100},
        "radio": settings.get("radio", "gigahertz"),
        "method": {"cohort_size": 2},
        "methods": {"printed": method},
    }
    return checked(raw, ROOT, "table").resolved("printed")


def default_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the same components without the other options; components without options are left out."""
    return {
        key: {"name": value["name"]} for key, value in settings.items() if isinstance(value, dict) and "name" in value
    }


def test_the_table_has_every_paper_with_experiments_or_algorithms() -> None:
    assert [*dict.fromkeys(row[0] for row in ROWS)] == ["entropy", "disagreement", "SAFARI", "CSRA", "Rademacher"]


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_a_setting_builds_a_component_that_differs_from_the_default(settings: dict[str, Any]) -> None:
    assert settings
    if "paper" in str(settings):
        pytest.importorskip("clarabel", reason="the paper's algorithm needs the extra `reproduce`")
    printed = federation(an_experiment(settings), 0, ROOT)
    usual = federation(an_experiment(default_of(settings)), 0, ROOT)
    for key in settings:
        assert getattr(printed, key) != getattr(usual, key), key


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_a_setting_runs(settings: dict[str, Any], tmp_path: Path) -> None:
    if "paper" in str(settings):
        pytest.importorskip("clarabel", reason="the paper's algorithm needs the extra `reproduce`")
    run(an_experiment(settings), seed=0, folder=tmp_path / "run", base=ROOT)
    assert (tmp_path / "run" / "rounds.jsonl").exists()


def test_the_functions_that_the_section_names_are_in_the_reference() -> None:
    from fedreach.federation import convergence

    named = re.findall(r"`(\w+)`", SECTION.rpartition("|\n")[2])
    assert named == ["printed_bound", "printed_drift"]
    assert all(hasattr(convergence, name) for name in named)
