"""A sweep from Python is that of a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedreach as fr
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.experiment.load import load


@pytest.mark.slow
def test_a_sweep_from_python_is_opened_printed_and_written_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.5, participants=6)
    found = fr.sweep(
        data,
        {"uniform": {}, "entropy": fr.Method(weighting=lambda reports: [1.0 for _ in reports.ids])},
        {"partition.alpha": [0.1, 1.0]},
        tune={"local.lr": [0.1, 0.3]},
        rounds=2,
        cohort_size=3,
        model="linear",
        engine={"name": "sequential"},
        out="s",
        progress=False,
    )
    assert [*found] == ["partition.alpha = 0.1", "partition.alpha = 1.0"]
    assert found[0.1].path == found["partition.alpha = 0.1"].path == found[{"partition.alpha": 0.1}].path
    assert re.search(r"partition.alpha = 1.0 +entropy", " ".join(str(found).split()))
    assert len(found.table()) == 4
    assert len(found[1.0]["entropy"].model().predict(fr.load("digits").test_x[:3])) == 3
    text = found.to_toml("s.toml")
    assert load(Path("s.toml")).sweep == load(Path("s.toml"), ["rounds=2"]).sweep
    assert '"partition.alpha" = [' in text
    again = fr.Sweep("s")
    assert repr(again) == "Sweep(s: partition.alpha; 2 settings)"
    assert again.page().exists()
    with pytest.raises(ConfigError, match=r"Unknown setting 0\.2 in this sweep"):
        again[0.2]
    assert repr(fr.open("s")) == repr(again)
    with pytest.raises(RunFolderError, match="nowhere is not a sweep"):
        fr.Sweep("nowhere")
    with pytest.raises(TypeError, match="round"):
        fr.sweep(data, {"a": {}}, {"partition.alpha": [0.1]}, round=2)
