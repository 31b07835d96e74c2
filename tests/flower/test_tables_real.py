"""Three SuperNodes with a table each, TLS and keys: one is killed and comes back, one never trained."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr")

from tests.data.test_table_agreement import NAMES, hospitals

from fedreach.evaluation.modes import AdaptationEvaluator
from fedreach.flower.experiment import FlowerExperiment
from fedreach.runs.adaptation import write_adaptation
from fedreach.runs.folder import ADAPTATION_FILE, RunFolder
from fedreach.runs.schema import FederationRecord

from .deployment import APP, Deployment, rows
from .faulty import outcome_of, simulated
from .test_faults_real import missing, online
from .test_tables import FILE

pytestmark = pytest.mark.slow
CHANGES = {
    'participants = ["ash", "birch", "cedar"]': 'participants = ["ash", "birch"]',
    "rounds = 3": "rounds = 10",
    "every = 1": "every = 10",
    '{ name = "label_shift", guard = false }': '"bbse"',  # is fitted by one message to each participant
}
TIMEOUT_SECONDS = 300  # of a reply; Flower gives up that of a node that died after about 60, so that it costs one round
KEYS = 4  # one more than hospitals: until Flower misses a node it refuses its key, so that it comes back with another


class WithKeys(Deployment):
    """Nodes are started one by one, each with a key."""

    def make_keys(self, nodes: int) -> None:
        super().make_keys(KEYS)


def made(folder: Path) -> tuple[Path, Path]:
    """Return the app, and the file of the experiment beside the joined table; each hospital's is NAME.csv."""
    text = FILE
    for old, new in CHANGES.items():
        assert text.count(old) == 1, f"the experiment should hold {old!r} once"
        text = text.replace(old, new)
    app = folder / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__", "keys", "runs"))
    (app / "flower_app" / "hospitals.toml").write_text(text, encoding="utf-8")
    project = app / "pyproject.toml"
    changed = project.read_text(encoding="utf-8").replace("server_app:app", "hospitals:server")
    project.write_text(changed.replace("client_app:app", "hospitals:client"), encoding="utf-8")
    frame = hospitals()
    parts = {name: frame[frame["site"] == name].drop(columns="site") for name in NAMES[:3]}
    del parts["birch"]["age"]
    parts["cedar"].loc[parts["cedar"].index[:3], "ward"] = "rare"
    for name, part in parts.items():
        part.to_csv(folder / f"{name}.csv", index=False)
    pd.concat([part.assign(site=name) for name, part in parts.items()]).to_csv(folder / "all.csv", index=False)
    (folder / "all.toml").write_text(text, encoding="utf-8")
    return app, folder / "all.toml"


def adapted(setup: FlowerExperiment, run: Path, folder: Path) -> bytes:
    """Return the adaptation rule as the simulator fits it to the models of a run."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("serv*"))
    simulation = setup.simulation
    evaluator = AdaptationEvaluator(simulation.engine, simulation.data, simulation.federation.adaptation)
    write_adaptation(RunFolder(folder), simulation.engine.layout, evaluator)
    return (folder / ADAPTATION_FILE).read_bytes()


def test_tables_train_adapt_export_and_predict_as_the_joined_one(tmp_path: Path) -> None:
    app, joined = made(tmp_path)
    out = tmp_path / "out"

    def config(node: int) -> str:
        return f'partition-id={node} name="{NAMES[node]}" data="{tmp_path / NAMES[node]}.csv"'

    with WithKeys(tmp_path / "flower", tls=True, partitions=3) as flower:
        for node in range(3):
            flower.start_node(node, config=config(node))
        # The agreement waits for participants only, and cedar, which is none, is to be named in the record.
        flower.until(lambda: online(flower) == 3, 120, "three nodes to be online")
        run = flower.submit(app, out, f"min-clients=2 patience=120.0 timeout={TIMEOUT_SECONDS}.0")
        flower.until(lambda: len(rows(out)) > 2, 300, "round 2")
        flower.kill("node1")
        flower.start_node(3, config=config(1))
        found = flower.wait(run, out, 900)
    lost, offline = missing(found, 2)
    assert any(lost.values())
    assert 1 in found[-1]["cohort"]
    setup = FlowerExperiment(joined)
    assert outcome_of(out) == simulated(setup, lost=lost, offline=offline)
    assert (out / ADAPTATION_FILE).read_bytes() == adapted(setup, out, tmp_path / "adapted")
    record = RunFolder(out).required(FederationRecord)
    assert list(record.client_names or ()) == list(NAMES[:3])
    assert record.unseen.tolist() == [2]
    calls = [
        ["predict", "out", "cedar.csv", "--out", "said.csv"],
        ["export", "out", "--to", "torch", "--out", "model", "--force"],
    ]
    for words in calls:
        call = [sys.executable, "-m", "fedreach", *words]
        done = subprocess.run(call, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    call = [sys.executable, "model/predict.pyz", "cedar.csv", "--out", "again.csv"]
    done = subprocess.run(call, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rare" in done.stdout
    assert (tmp_path / "said.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()
