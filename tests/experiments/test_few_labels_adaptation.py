"""Clients are adapted by a few labels of their own: a reference, and marked as one wherever it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import EXACT, TINY, Command

from fedreach._util.errors import ConfigError
from fedreach.deploy import saved
from fedreach.deploy.fitted_rule import load
from fedreach.deploy.program import export
from fedreach.experiment.load import load as read
from fedreach.experiment.run import run
from fedreach.runs.adaptation import adaptation_table
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import ADAPTATION_FILE, RunFolder
from fedreach.runs.schema import AdaptationRecord, AdaptedLine

FILES = (*EXACT, AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE)
ADAPTED = """
[methods.nothing]
adaptation = { name = "few_labels", labels = 0 }

[methods.three]
adaptation = { name = "few_labels", labels = 3 }

[methods.bbse]
adaptation = "bbse"
"""
WITHOUT_LINEAR = """
from torch import nn

def net(sample_shape, num_classes):
    return nn.Sequential(nn.Conv2d(1, num_classes, 8), nn.Flatten())
"""


def record_of(folder: Path) -> dict:
    return json.loads((folder / AdaptationRecord.FILE).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_comparison_scores_it_beside_the_others_and_marks_it(home: Path, fedreach: Command) -> None:
    (home / "tiny.toml").write_text(TINY + ADAPTED, encoding="utf-8")
    done = fedreach(
        "compare", "tiny.toml", "--seeds", "1", "--formats", "svg", "--set", "evaluation.inputs=[3]", "--out", "out"
    )
    assert done.exit_code == 0, done.output
    records = {name: record_of(home / "out" / "runs" / name / "seed-0") for name in ("nothing", "three", "bbse")}
    columns = {name: record["columns"]["last"] for name, record in records.items()}
    assert [record.get("needs_labels", False) for record in records.values()] == [True, True, False]
    assert "unseen_oracle_prior_accuracy" not in columns["three"]
    # Without labels it is the model; with three, it is scored on the examples of every other rule with 3 inputs.
    for what in ("accuracy", "loss", "calibration_error"):
        assert columns["nothing"][f"unseen_adapted_{what}"] == columns["nothing"][f"unseen_unadapted_{what}"]
        assert columns["three"][f"unseen_unadapted_3_{what}"] == columns["bbse"][f"unseen_unadapted_3_{what}"]
        assert columns["three"][f"unseen_unadapted_{what}"] == columns["bbse"][f"unseen_unadapted_3_{what}"]
        assert columns["three"][f"unseen_adapted_{what}"] == columns["three"][f"unseen_adapted_3_{what}"]
    assert columns["three"]["unseen_adapted_loss"] < columns["three"]["unseen_unadapted_loss"]
    cost = [records["three"].get(key, 0) for key in ("exchanges", "bytes_up", "bytes_down", "bytes_state")]
    assert cost == [0, 0, 0, 0]  # participants are asked for nothing
    table = (home / "out" / "report" / "table.md").read_text(encoding="utf-8")
    assert [line for line in table.splitlines() if line.startswith("| three") and "| labels" in line]
    assert "Examples with these labels are not scored" in table
    folder = home / "out" / "runs" / "three" / "seed-0"
    for refuse in (lambda: export(folder, home / "client.pyz"), lambda: load(folder), saved.load(folder).adapter):
        with pytest.raises(ConfigError, match=r"FewLabels needs labels .* cannot be deployed"):
            refuse()


@pytest.mark.parametrize("engine", ["manual", "native", "sequential"])
def test_it_serves_what_every_engine_trained(engine: str, home: Path, fedreach: Command) -> None:
    more = ("--set", "method.adaptation=few_labels", "--set", f"engine.name={engine}", "--set", "engine.threads=2")
    done = fedreach("run", "tiny.toml", "--set", "model=mlp", *more, "--out", "out")
    assert done.exit_code == 0, done.output
    assert adaptation_table(RunFolder(home / "out"))[0].endswith(
        "FewLabels(labels=20, strength=1.0), a reference that needs labels"
    )
    found = record_of(home / "out")["columns"]["last"]
    assert found["unseen_adapted_loss"] < found["unseen_unadapted_loss"]


class Killed(Callback):
    """Ends the run after its first round."""

    def round(self, *_: object) -> None:
        raise KeyboardInterrupt


def test_a_run_that_was_interrupted_serves_to_the_same_bits(home: Path) -> None:
    config = TINY.replace("[method]", '[radio]\n\n[method]\nadaptation = "few_labels"')
    (home / "tiny.toml").write_text(config, encoding="utf-8")
    experiment = read(home / "tiny.toml").resolved("uniform")
    run(experiment, seed=0, folder=home / "whole", base=home)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, seed=0, folder=home / "halved", base=home, callbacks=[Killed()])
    assert not (home / "halved" / ADAPTATION_FILE).exists()
    run(experiment, seed=0, folder=home / "halved", base=home)
    for name in FILES:
        assert (home / "whole" / name).read_bytes() == (home / "halved" / name).read_bytes(), name
    assert record_of(home / "whole")["seconds"] == 0  # nobody is asked, on no channel


def test_a_model_without_a_last_linear_layer_is_refused_before_a_round_is_trained(home: Path, refused) -> None:
    (home / "net.py").write_text(WITHOUT_LINEAR, encoding="utf-8")
    more = ("--set", "model=net.py:net", "--set", "method.adaptation=few_labels", "--out", "out")
    said = refused(2, "run", "tiny.toml", *more)
    assert "The model for adaptation FewLabels must have a linear layer" in said
    assert "Use adaptation 'label_shift'" in said
    assert not list((home / "out").rglob("rounds.jsonl"))


def test_options_outside_their_range_are_refused_in_words(refused) -> None:
    said = refused(2, "run", "tiny.toml", "--set", 'method.adaptation={name="few_labels", labels=-1}', "--out", "out")
    assert "FewLabels.labels must be not negative; got -1" in said
