"""Three SuperNodes with a table each, TLS and keys: one is killed and comes back, one never trained."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr")

from tests.data.test_table_agreement import NAMES, hospitals

from fedreach.flower import FlowerExperiment
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord

from .deployment import APP, Deployment, rows
from .faulty import outcome_of, simulated
from .test_faults_real import missing
from .test_tables import FILE

pytestmark = pytest.mark.slow
FORGOTTEN_SECONDS = 75  # until then Flower takes a node that died for one that is there, and refuses its key
PARTICIPANTS = 'participants = ["ash", "birch"]'


class WithKeys(Deployment):
    """Nodes are started one by one, each with a key."""

    def make_keys(self, nodes: int) -> None:
        super().make_keys(3)


def made(folder: Path) -> tuple[Path, Path]:
    """Return the app, and the file of the experiment beside the joined table; each hospital's is NAME.csv."""
    text = FILE.replace('participants = ["ash", "birch", "cedar"]', PARTICIPANTS).replace("rounds = 3", "rounds = 16")
    text = text.replace("every = 1", "every = 16")
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


def test_tables_train_adapt_export_and_predict_as_the_joined_one(tmp_path: Path) -> None:
    app, joined = made(tmp_path)
    out = tmp_path / "out"

    def config(node: int) -> str:
        return f'partition-id={node} name="{NAMES[node]}" data="{tmp_path / NAMES[node]}.csv"'

    with WithKeys(tmp_path / "flower", tls=True, partitions=3) as flower:
        for node in range(3):
            flower.start_node(node, config=config(node))
        run = flower.submit(app, out, "min-clients=2 patience=60.0 timeout=45.0")
        flower.until(lambda: len(rows(out)) > 2, 240, "round 2")
        flower.kill("node1")
        time.sleep(FORGOTTEN_SECONDS)
        flower.start_node(1, config=config(1))
        found = flower.wait(run, out, 800)
    lost, offline = missing(found, 2)
    assert 1 in found[-1]["cohort"]
    setup = FlowerExperiment(joined)
    assert outcome_of(out) == simulated(setup, lost=lost, offline=offline)
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
    call = [sys.executable, "model/predict.py", "cedar.csv", "--out", "again.csv"]
    done = subprocess.run(call, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rare" in done.stdout
    assert (tmp_path / "said.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()
