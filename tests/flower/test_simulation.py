"""In Flower's simulation, on Ray, by `flwr run`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .deployment import Deployment
from .same import METHODS, app_with_both, check_same, need, simulated

pytestmark = pytest.mark.slow

RESOURCES = "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=2"


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("flower"), simulation=True) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return app_with_both(tmp_path_factory.mktemp("app"))


@pytest.mark.parametrize("data", ["digits", "fashion"])
def test_in_flowers_simulation_every_round_and_the_final_model_are_the_simulators(
    data: str, flower: Deployment, app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(data, monkeypatch)
    for method in METHODS:
        out, began = tmp_path / method, time.monotonic()
        flower.run(app, out, f'experiment="{data}.toml" method="{method}"', federation=RESOURCES)
        print(f"{data} {method}: {time.monotonic() - began:.1f} s")
        check_same(simulated(app / "flower_app" / f"{data}.toml", method, tmp_path / f"{method}-simulated"), out)
