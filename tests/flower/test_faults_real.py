"""Real processes that are killed, lie or are late: the run ends as the simulator's without them, bit for bit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedreach.flower.experiment import FlowerExperiment

from .deployment import APP, Deployment, rows
from .faulty import Clients, outcome_of, simulated

pytestmark = pytest.mark.slow

SPOILING = """

# What follows makes some clients wrong in round 2, as the node's config says.

import time

import numpy as np
from flwr.app import Array

from fedreach.flower.messages import seal

app = ClientApp()


@app.query()
@app.query("labels")
@app.query("loss")
@app.train()
@app.evaluate()
def spoil(message: Message, context: Context) -> Message:
    fault, training = context.node_config.get("fault", ""), message.metadata.message_type == "train"
    if not training or message.content["config"]["server-round"] != 2 or not fault:
        return answer(message, context)
    print(f"now {fault}", flush=True)
    time.sleep({"dies": 600, "late": LATE}.get(fault, 0))
    reply = answer(message, context)
    update = np.array(reply.content["update"]["update"].numpy())
    if fault == "nan":
        update[7] = np.nan
    if fault == "shape":
        update = update[:-3]
    reply.content["update"]["update"] = Array(update)
    return seal(reply, reply.metadata.src_node_id)  # a faulty client computes the digest of what it sends
"""


def app_with(folder: Path, experiment: str, *, late: float = 0) -> Path:
    """Return a copy of the template with another experiment; the clients spoil round 2 where they are told to."""
    app = folder / "app"
    shutil.copytree(APP, app)
    (app / "flower_app" / "experiment.toml").write_text(experiment, encoding="utf-8")
    with (app / "flower_app" / "client_app.py").open("a", encoding="utf-8") as file:
        file.write(SPOILING.replace("LATE", str(late)))
    return app


def setup_of(app: Path) -> FlowerExperiment:
    return FlowerExperiment(app / "flower_app" / "experiment.toml", seed=0)


def experiment(clients: int, cohort_size: int, rounds: int, selection: str) -> str:
    return f"""\
name = "faults"
rounds = {rounds}
seeds = [0]

[partition]
name = "dirichlet_by_class"
clients = {clients}
alpha = 0.5

[population]
participants = {clients}

[model]
name = "linear"

[evaluation]
every = {rounds}

[engine]
name = "sequential"

[method]
cohort_size = {cohort_size}
selection = "{selection}"
solver = "scaffold"
"""


def missing(found: list[Mapping[str, list[int]]], clients: int) -> tuple[Clients, Clients]:
    """Return whose replies were lost in each round, and who was not even asked, where all that can be are asked."""
    lost = {row["round"]: set(row["lost"]) for row in found[1:]}
    asked = {row["round"]: {*row["cohort"], *row["lost"]} for row in found[1:]}
    return lost, {number: set(range(clients)) - ids for number, ids in asked.items()}


def test_dead_lying_late_and_joining_clients_leave_the_model_of_the_others(tmp_path: Path) -> None:
    """In round 2 node 1 is killed as it trains, 2 tells NaN, 3 another shape, 4 is late; node 5 joins after round 1."""
    clients, timeout = 6, 60
    app, out = app_with(tmp_path, experiment(clients, clients, 4, "full"), late=timeout + 5), tmp_path / "out"
    faults = {1: "dies", 2: "nan", 3: "shape", 4: "late"}
    with Deployment(tmp_path / "flower", partitions=clients) as flower:
        for node in range(5):
            fault = f' fault="{faults[node]}"' if node in faults else ""
            flower.start_node(node, config=f"partition-id={node} num-partitions={clients}{fault}")
        flower.until(lambda: online(flower) == 5, 60, "five nodes to be online")
        run = flower.submit(app, out, f"min-clients=5 patience=20.0 timeout={timeout}.0")
        flower.until(lambda: len(rows(out)) > 1, 240, "round 1")
        flower.start_node(5)
        flower.until(lambda: trains(flower, "node1", after=2), 60, "node 1 to train in round 2")
        flower.kill("node1")
        flower.start_node(1)  # at once: until Flower misses the old node, two claim to be the client
        found = flower.wait(run, out, 400)
        log = flower.flwr("log", run, "here", "--show")
    assert found[1]["cohort"] == [0, 1, 2, 3, 4]
    assert {1, 2, 3, 4} <= set(found[2]["lost"])
    assert 0 in found[2]["cohort"]
    assert {2, 3} <= set(found[3]["cohort"])  # 1 and 5 may still be about to say who they are
    assert {1, 2, 3, 4, 5} <= set(found[4]["cohort"])
    assert "Client 2 does not count in round 2: its 'update' is not finite" in log
    assert "Client 3 does not count in round 2: its 'update' must be float32 (650,); got float32 (647,)" in log
    for client in (1, 4):
        assert f"Client {client} does not count in round 2: no reply within 60 s" in log
    lost, offline = missing(found, clients)
    assert outcome_of(out) == simulated(setup_of(app), lost=lost, offline=offline)


def online(flower: Deployment) -> int:
    return flower.log("link").read_text(encoding="utf-8").count("Activated node_id")


def trains(flower: Deployment, node: str, *, after: int) -> bool:
    """Whether a node has begun its n-th training."""
    return flower.log(node).read_text(encoding="utf-8").count("Receiving: train message") >= after


def test_a_killed_server_and_a_killed_link_cost_the_round_that_they_were_in(tmp_path: Path) -> None:
    """In round 2 the ServerApp is killed, in round 3 the SuperLink; each time the run is started anew by hand."""
    clients, config = 3, "min-clients=3 patience=120.0 timeout=120.0"
    app, out = app_with(tmp_path, experiment(clients, 2, 4, "uniform")), tmp_path / "out"
    with Deployment(tmp_path / "flower", nodes=clients) as flower:
        run = flower.submit(app, out, config)
        flower.until(lambda: len(rows(out)) > 1, 240, "round 1")
        time.sleep(3)
        flower.kill_server_app()
        assert len(rows(out)) == 2
        assert not (out / "result.json").exists()

        second = flower.submit(app, out, config)
        flower.until(lambda: len(rows(out)) > 2, 240, "round 2")
        time.sleep(3)
        flower.kill("link")  # with the ServerApp, which would end by itself in some seconds, as its parent is gone
        assert not (out / "result.json").exists()
        flower.start_link()

        third = flower.submit(app, out, config)
        found = flower.wait(third, out, 300)
        # The database knows the earlier runs; that they are dead shows after about 45 seconds.
        for earlier in (run, second):
            flower.until(lambda name=earlier: flower.status(name) == "finished:failed", 120, "a dead run to be missed")
        flower.until(lambda: flower.status(third) == "finished:completed", 60, "the last run to end")
    assert [row["round"] for row in found] == [0, 1, 2, 3, 4]
    assert all(row["lost"] == [] for row in found)
    assert outcome_of(out) == simulated(setup_of(app))
