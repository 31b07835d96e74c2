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
from fedreach.runs.folder import ADAPTATION_FILE, RunFolder
from fedreach.runs.schema import AdaptationRecord, Result

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


ADAPTED = """
[methods.unadapted]
[methods.adapted]
adaptation = "bbse"
"""


def test_methods_with_a_fitted_rule_have_their_own_noise_and_training(tmp_path: Path) -> None:
    budget = FILE.replace("noise_multiplier = 2.0", "epsilon = 4.0")
    (tmp_path / "adapted.toml").write_text(budget + ADAPTED, encoding="utf-8")
    experiment, runs = load(tmp_path / "adapted.toml"), {}
    for method in ("unadapted", "adapted"):
        options = {"seed": 0, "base": tmp_path, "method": method, "twin": tmp_path / "unadapted"}
        run(experiment.resolved(method), folder=tmp_path / method, **options)
        runs[method] = RunFolder(tmp_path / method)
    unadapted, adapted = (folder.required(Result).privacy or {} for folder in runs.values())
    assert all(3.96 < record["epsilon"] <= 4 for record in (unadapted, adapted))
    assert adapted["noise_multiplier"] > 1.01 * unadapted["noise_multiplier"]
    assert adapted["statement"].startswith("The models with the adaptation rule are (ε = ")
    assert "adaptation rule" not in unadapted["statement"]
    record = runs["adapted"].required(AdaptationRecord)
    assert [*record.rounds] == ["last"]  # and not the best model, which would need a second fit
    assert "participant_adapted_accuracy" not in record.columns["last"]
    bullets = find(analyse(read([tmp_path / "adapted"]))).bullets
    assert adapted["statement"] in bullets[:2]  # which a run prints


def test_the_rule_of_a_run_is_fitted_to_noisy_sums_with_equal_weight_of_each_participant(file: Path) -> None:
    overrides = ["method.adaptation=bbse", "method.aggregation.adaptation_noise=0.001"]
    run(load(file, overrides), seed=0, folder=file.parent / "run", base=file.parent)
    stored = RunFolder(file.parent / "run").read_tensors(ADAPTATION_FILE)
    assert stored is not None
    assert 1e-6 < abs(stored[0]["last/n"][0] - 8) < 0.03  # 8 participants, 10 classes: standard deviation 0.0045


@pytest.mark.parametrize(
    "option", ["evaluation.patience=3", "budget.megabytes=1.0", "population.refit=true"], ids=lambda option: option
)
def test_what_reads_more_than_the_accounting_covers_is_rejected(file: Path, option: str) -> None:
    with pytest.raises(ConfigError, match="DPFedAvg does not account for"):
        load(file, [option])
    load(file, [option, "method.aggregation=mean"])
