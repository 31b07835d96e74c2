"""Any module on Flower: clients that answer by messages give the simulator's run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedreach.experiment.build import Builder
from fedreach.flower.app import client_app
from fedreach.flower.experiment import FlowerExperiment

from ..engines.zoo_runs import SEED, cases, finish  # noqa: TID252 (tests are no package that has a name)
from .in_process import InProcess
from .same import rows_of


@pytest.mark.parametrize("name", cases())
@pytest.mark.sampled(4)
def test_flower_gives_the_simulators_run_of_any_module(name: str, tmp_path: Path) -> None:
    w = finish(name, tmp_path)
    setup = FlowerExperiment(w.base / "zoo.toml", seed=SEED)
    setup.strategy(tmp_path / "flower", timeout=5, patience=5).run(InProcess(setup.client_app(), range(6)))
    rows = rows_of(tmp_path / "flower")
    assert len(rows) == len(w.rows) == 3
    for mine, other in zip(w.rows, rows, strict=True):
        assert other.keys() == mine.keys()
        for key, value in mine.items():  # losses are means over other batches
            assert other[key] == (pytest.approx(value, abs=1e-6) if "loss" in key else value), key
    for file in ("last.safetensors", "best.safetensors"):
        assert (tmp_path / "flower" / file).read_bytes() == (w.folder / file).read_bytes(), file


def test_an_engine_that_computes_something_else_gives_way_on_clients_too(tmp_path: Path) -> None:
    w = finish("MaskedGradient", tmp_path)
    setup = FlowerExperiment(w.base / "zoo.toml", seed=SEED)
    builder = Builder(setup.experiment, setup.base)
    app = client_app(builder.federation(SEED), builder.model(), lambda context: setup.data, engine="vmap")
    with pytest.warns(UserWarning, match="vmap computes different results from torch for this model: param"):
        setup.strategy(tmp_path / "flower", timeout=5, patience=5).run(InProcess(app, range(6)))
    last = "last.safetensors"
    assert (tmp_path / "flower" / last).read_bytes() == (w.folder / last).read_bytes()
