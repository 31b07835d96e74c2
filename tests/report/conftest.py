from __future__ import annotations

from pathlib import Path

import pytest

from fedreach.report.numbers import RunSet
from fedreach.report.read import read

from .made_up import fail, write_comparison


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five methods, five seeds; one run failed, one still runs, so nine tenths of what a user meets."""
    out = write_comparison(tmp_path_factory.mktemp("comparison"), rounds=24)
    fail(out / "runs/minimax_gap/seed-2", "client 17, round 24: loss is nan")
    (out / "runs/feddyn/seed-4/result.json").unlink()
    return out


@pytest.fixture(scope="session")
def comparison(folder: Path) -> RunSet:
    return read([folder])
