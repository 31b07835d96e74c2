"""An option that is out of range is rejected with the same words from Python, from a file, and from --set."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedreach as fr
from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.experiment.load import load
from fedreach.experiment.schema import BudgetSection, Experiment, LocalSection, StatisticsSection
from fedreach.federation.local_sgd import Adam, LocalSGD, UnevenSteps
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.server import FedAdam
from fedreach.federation.weighting import ByEntropy
from fedreach.runs.budget import Budget

OPTIONS: list[tuple[str, Callable[..., Any], str, Any]] = [
    *(
        (f"local.{option}", LocalSGD, option, value)
        for option, value in {
            "lr": -1.0,
            "batch_size": 0,
            "epochs": 0,
            "steps": 0,
            "momentum": 1.0,
            "weight_decay": -0.5,
            "clip_norm": 0.0,
            "schedule": "cosin",
            "decay": 2.0,
            "schedule_rounds": 0,
        }.items()
    ),
    *(
        (f"statistics.{option}", AnalysisPlan, option, value)
        for option, value in {"margin_points": 0.0, "last_rounds": 0, "detect_points": 101.0, "max_seeds": 0}.items()
    ),
    ("budget.megabytes", Budget, "megabytes", 0.0),
    ("method.selection.candidates", PowerOfChoice, "candidates", 0),
    ("method.server.lr", FedAdam, "lr", 0.0),
    ("method.weighting.temperature", ByEntropy, "temperature", -1.0),
    ("local.optimizer.beta1", Adam, "beta1", 1.0),
]
NAMES = {
    "method.selection": "power_of_choice",
    "method.server": "adam",
    "method.weighting": "entropy",
    "local.optimizer": "adam",
}


@pytest.mark.parametrize(("key", "component", "option", "value"), OPTIONS, ids=[key for key, *_ in OPTIONS])
def test_an_option_out_of_range_is_rejected_with_the_same_words(
    key: str, component: Callable[..., Any], option: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(fr.ConfigError) as in_python:
        component(**{option: value})
    words = str(in_python.value).partition(f".{option} ")[2]
    assert words.startswith("must be ")

    section, _, _ = key.rpartition(".")
    written = repr(value).replace("'", '"')
    named = f'name = "{NAMES[section]}"\n' if section in NAMES else ""
    (tmp_path / "own.toml").write_text(f"[{section}]\n{named}{option} = {written}\n", encoding="utf-8")
    with pytest.raises(fr.ConfigError) as in_file:
        load(tmp_path / "own.toml")
    assert words in str(in_file.value)

    first = [f"{section}.name={NAMES[section]}"] if section in NAMES else []
    with pytest.raises(fr.ConfigError) as on_command_line:
        load(None, [*first, f"{key}={written}"])
    assert words in str(on_command_line.value)


def test_uneven_steps_out_of_range_are_rejected_with_the_same_words() -> None:
    with pytest.raises(fr.ConfigError) as in_python:
        UnevenSteps(min=0, max=3)
    words = str(in_python.value).partition("UnevenSteps.min ")[2]
    with pytest.raises(fr.ConfigError, match=re.escape(words)):
        load(None, ["local.steps={min=0,max=3}"])


SECTIONS = [(LocalSection, LocalSGD), (StatisticsSection, AnalysisPlan), (BudgetSection, Budget)]


@pytest.mark.parametrize(("section", "dataclass"), SECTIONS)
def test_a_section_has_the_options_and_defaults_of_its_dataclass(section: Any, dataclass: Any) -> None:
    made = section()
    fields = dataclasses.fields(dataclass)
    assert list(section.model_fields) == [field.name for field in fields]
    assert all(getattr(made, field.name) == field.default for field in fields if field.name != "optimizer")
    assert Experiment().local == LocalSection()
    described = section.model_json_schema()["properties"]
    assert all(described[field.name].get("description") for field in fields)
