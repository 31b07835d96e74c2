"""Between real processes: a SuperLink with TLS and node authentication, SuperNodes, and `flwr run`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedreach.runs.folder import ADAPTATION_FILE
from fedreach.runs.schema import AdaptationRecord, AdaptedLine

from .deployment import Deployment
from .same import METHODS, app_with_both, check_same, need, simulated

pytestmark = pytest.mark.slow

NODES = 4


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("flower"), NODES, tls=True) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return app_with_both(tmp_path_factory.mktemp("app"))


@pytest.mark.parametrize("data", ["digits", "fashion"])
def test_between_machines_every_round_and_the_final_model_are_the_simulators(
    data: str, flower: Deployment, app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(data, monkeypatch)
    for method in METHODS:
        out, began = tmp_path / method, time.monotonic()
        config = f'experiment="{data}.toml" method="{method}" min-clients=3'
        flower.run(app, out, config)
        print(f"{data} {method}: {time.monotonic() - began:.1f} s")
        check_same(simulated(app / "flower_app" / f"{data}.toml", method, tmp_path / f"{method}-simulated"), out)


def test_between_machines_clients_are_adapted_as_in_the_simulator(
    flower: Deployment, app: Path, tmp_path: Path
) -> None:
    flower.run(app, tmp_path / "real", 'experiment="digits.toml" method="adapted" min-clients=3', seconds=500)
    ours = simulated(app / "flower_app" / "digits.toml", "adapted", tmp_path / "simulated")
    check_same(ours, tmp_path / "real")
    for name in (AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE):
        assert (tmp_path / "real" / name).read_bytes() == (ours / name).read_bytes(), name


def online(flower: Deployment) -> set[str]:
    told = json.loads(flower.flwr("supernode", "list", "here", "--format", "json"))
    return {node["node-id"] for node in told["nodes"] if node["status"] == "online"}


def test_who_is_not_registered_or_does_not_use_tls_stays_outside(flower: Deployment) -> None:
    flower.until(lambda: len(online(flower)) == NODES, 60, "the nodes that are registered")
    inside = online(flower)
    stranger = flower.started.pop(flower.start_node(NODES, register=False))
    plain = flower.start_node(NODES + 1, secure=False)
    assert stranger.wait(60) != 0
    told = flower.log(f"node{NODES}").read_text(encoding="utf-8")
    assert "Exit Code: 305" in told
    assert "[code: 2004] Failed to activate SuperNode" in told
    refused = "Connection attempt failed, retrying"
    flower.until(lambda: flower.log(plain).read_text(encoding="utf-8").count(refused) > 2, 60, "three attempts")
    assert online(flower) == inside
    flower.kill(plain)
    flower.start_node(NODES)  # the same node and key, now registered
    flower.until(lambda: len(online(flower)) == NODES + 1, 60, "the node to be let in")
    flower.kill(f"node{NODES}")
