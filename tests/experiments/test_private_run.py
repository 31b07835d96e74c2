"""A private experiment: its result and report state the guarantee, and what would spend more is rejected."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.report.findings import find
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import Result

FILE = """
rounds = 2
evaluation.every = 2
partition = { name = "iid", clients = 10 }
population.participants = 8
model = "linear"
engine.name = "sequential"
local.steps = 1
[method]
cohort_size = 4
selection = "poisson"
weighting = "equal"
aggregation = { name = "dp_fedavg", clip = 0.1, delta = 1e-5, noise_multiplier = 2.0, accountant = "rdp" }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "private.toml").write_text(FILE, encoding="utf-8")
    return tmp_path / "private.toml"


def test_the_result_and_the_report_state_the_guarantee(file: Path) -> None:
    folder = file.parent / "run"
    result = run(load(file), seed=0, folder=folder, base=file.parent)
    assert result is not None
    assert result.privacy is not None
    assert (result.privacy["rounds"], result.privacy["participants"], result.privacy["cohort_size"]) == (2, 8, 4)
    stored = RunFolder(folder).required(Result).privacy
    assert stored == result.privacy
    statement = stored["statement"]
    assert statement.startswith(
        f"The models are (ε = {math.ceil(1000 * stored['epsilon']) / 1000:g}, δ = 1e-05)-private"
    )
    assert statement in find(analyse(read([folder]))).bullets


def test_with_secure_aggregation_the_result_and_the_report_state_both_guarantees(file: Path) -> None:
    overrides = ["method.label_statistics=secure_aggregation", "method.selection=full"]
    result = run(load(file, overrides), seed=0, folder=file.parent / "run", base=file.parent)
    assert result is not None
    stored = RunFolder(file.parent / "run").required(Result).privacy
    assert stored is not None
    assert stored == result.privacy
    assert (stored["cohort_size"], stored["server"]["participations"]) == (8, 2)
    assert stored["server"]["noise_multiplier"] == pytest.approx(2 * math.sqrt(5 / 7))  # the worst cohort of up to 8
    assert stored["server"]["epsilon"] > stored["epsilon"]
    assert stored["statement"] in find(analyse(read([file.parent / "run"]))).bullets


@pytest.mark.parametrize(
    "option", ["evaluation.patience=3", "budget.megabytes=1.0", "population.refit=true"], ids=lambda option: option
)
def test_what_reads_more_than_the_accounting_covers_is_rejected(file: Path, option: str) -> None:
    with pytest.raises(ConfigError, match="DPFedAvg does not account for"):
        load(file, [option])
    load(file, [option, "method.aggregation=mean"])
