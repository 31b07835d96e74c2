from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedreach.errors import ConfigError
from fedreach.report.load import read
from fedreach.report.render.tensorboard import tag_of, write_events
from fedreach.report.values import Comparison

from .made_up import write_comparison


def test_event_files_hold_the_rows(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's own imports
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = write_comparison(tmp_path / "runs", ["a"], [0, 1], rounds=6)
    paths = write_events(read([out]), tmp_path / "events")
    for run, path in zip(read([out]).runs, paths, strict=True):
        events = accumulator.EventAccumulator(str(path))
        events.Reload()
        assert set(events.Tags()["scalars"]) == {tag_of(name) for name in run.rounds} - {"round"}
        for name in ("unseen_accuracy", "train_loss"):
            known = np.isfinite(run.column(name))
            scalars = events.Scalars(tag_of(name))
            assert [scalar.step for scalar in scalars] == run.column("round")[known].tolist()
            assert [scalar.value for scalar in scalars] == pytest.approx(run.column(name)[known].tolist(), rel=1e-6)
            # Each round takes 0.006 + 0.002 seconds in the made-up runs.
            assert [s.wall_time for s in scalars] == pytest.approx([0.008 * s.step for s in scalars])


def test_event_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    out = write_comparison(tmp_path / "runs", ["a"], [0], rounds=3)
    one, two = (write_events(read([out]), tmp_path / name)[0] for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_without_tensorboard_the_extra_is_named(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ConfigError, match=r"fedreach\[tracking\]"):
        write_events(comparison, tmp_path)
