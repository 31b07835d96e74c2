"""A model with BatchNorm is adapted by refreshed statistics; one without is refused before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import TINY, Command

from fedreach._util.errors import ConfigError
from fedreach.deploy.program import export
from fedreach.runs.schema import AdaptationRecord

NETWORK = """
from torch import nn

def net(sample_shape, num_classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, num_classes)
    )
"""
BRIGHTER = """
[shift]
name = "brightness"
strength = 0.4
"""


@pytest.mark.slow
def test_clients_with_brighter_images_are_adapted_by_their_own_statistics(home: Path, fedreach: Command) -> None:
    (home / "net.py").write_text(NETWORK, encoding="utf-8")
    text = TINY.partition("[methods")[0].replace('"linear"', '"net.py:net"') + BRIGHTER
    found = {}
    for name, rule in (("bare", '{ name = "label_shift", guard = false }'), ("refreshed", '"batchnorm"')):
        adapted = text.replace("[method]", f"[method]\nadaptation = {rule}").replace('baseline = "uniform"\n', "")
        (home / f"{name}.toml").write_text(adapted, encoding="utf-8")
        done = fedreach("run", f"{name}.toml", "--set", "rounds=40", "--set", "engine.name=sequential", "--out", name)
        assert done.exit_code == 0, done.output
        record = json.loads((home / name / AdaptationRecord.FILE).read_text())
        found[name] = record["columns"]["last"]["unseen_adapted_accuracy"]
    assert found["refreshed"] > found["bare"] + 0.1
    with pytest.raises(ConfigError, match=r"BatchNormRefresh changes BatchNorm layers inside the model"):
        export(home / "refreshed", home / "client.pyz", base=home)


def test_a_model_without_batchnorm_is_refused_before_a_round_is_trained(home: Path, refused) -> None:
    said = refused(2, "run", "tiny.toml", "--set", "method.adaptation=batchnorm", "--out", "out")
    assert "BatchNormRefresh must have numeric inputs" in said
    assert "has no such layer" in said
    assert not list((home / "out").rglob("rounds.jsonl"))
