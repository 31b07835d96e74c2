"""In one process, but through the bytes that would travel: Flower's clients give the simulator's run, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedreach._util.streams import generator
from fedreach.experiment.run import run
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.local import LocalClient

from .in_process import InProcess
from .same import SIX_CLIENTS, rows_of

TINY = """
name = "tiny"
rounds = 4
[partition]
name = "dirichlet_by_class"
alpha = 0.3
clients = 8
[population]
participants = 5
[model]
name = "linear"
[method]
cohort_size = 3
[evaluation]
every = 2
local = false
[engine]
name = "sequential"
"""

PARTS = {
    "minimax, by label entropy": ["method.selection=minimax", "method.weighting=entropy"],
    "convex hull": ["method.selection=convex_hull"],
    "csra with a radio": ["method.selection=csra", "radio.name=gigahertz"],
    "losses of all": ["method.selection=power_of_choice"],
    "losses of a batch": ['method.selection={name="power_of_choice", loss="batch", batch_size=8}'],
    "clusters": [
        'method.selection={name="clustered", eps1=1000.0, eps2=0.0, thresholds="absolute", first_round=1}',
        "method.cohort_size=5",
    ],
    "IFCA, where replies get lost": [
        'method.selection={name="ifca", n_clusters=3}',
        "method.solver=feddyn",
        'population.participation={name="bernoulli", act_prob=0.9, reply_prob=0.7}',
    ],
    "k-means of updates": ["method.selection=update_kmeans", "method.cohort_size=4"],
    "Rademacher": ["method.selection=rademacher"],
    "shifted unseen clients": ["shift.name=brightness", "shift.strength=0.4", "shift.share=0.5"],
    "label divergence": ["method.selection=kl_filter"],
    "disagreement": ["method.weighting=disagreement"],
    "noised labels": ['method.label_statistics={name="discrete_laplace", epsilon=1.0}', "method.weighting=entropy"],
    "secure aggregation": ["method.label_statistics=secure_aggregation", "method.weighting=entropy"],
    "secure aggregation of disagreements": [
        "method.label_statistics=secure_aggregation",
        "method.weighting=disagreement",
    ],
    "draws": ["method.selection=urns_by_similarity", "method.weighting=by_draws"],
    "secure aggregation of draws": [
        "method.label_statistics=secure_aggregation",
        "method.selection=multinomial",
        "method.weighting={name='product', parts=['by_draws', 'by_examples']}",
    ],
    "HiCS, FedAU": [
        "method.selection={name='hics', temperature=0.1}",
        "method.weighting=fedau",
        "population.participation={name='bernoulli', act_prob=0.9}",
    ],
    "FedVARP, FedAvgM": ["method.aggregation=fedvarp", "method.server=fedavgm"],
    "MIFA where replies get lost": [
        "method.aggregation=mifa",
        "population.participation={name='bernoulli', act_prob=0.9, reply_prob=0.7}",
        "local.schedule=exponential",
        "local.decay=0.5",
    ],
    "FedNova, uneven steps": ["method.weighting=fednova", "local.steps={min=1, max=6}"],
    "SCAFFOLD, uneven steps": ["method.solver=scaffold", "local.steps={min=1, max=6, drawn='client'}"],
    "secure aggregation where replies get lost": [
        "method.label_statistics={name='secure_aggregation', threshold=0.5}",
        "method.cohort_size=5",
        "population.participation={name='bernoulli', act_prob=0.9, reply_prob=0.7}",
    ],
    "secure aggregation, uneven steps": ["method.label_statistics=secure_aggregation", "local.steps={min=1, max=6}"],
    "AdamW at clients": ['local.optimizer={name="adamw", beta2=0.99}', "local.lr=0.01", "local.weight_decay=0.1"],
    "RMSprop at clients": [
        'local.optimizer={name="torch", optimizer="RMSprop", options={alpha=0.9}}',
        "local.lr=0.01",
    ],
    "SAFARI": ['method.server={name="safari", client_probability=0.5}', "server_data.examples=100"],
    "the server alone, until it stops": [
        'method.server={name="server_only", held_out=0.2, patience=1, steps=5, lr=5.0}',
        "server_data.examples=40",
    ],
    "fine-tuning": ['method.server={name="fine_tune", inner="adam"}', "server_data.examples=100"],
    "fine-tuning at the end, under secure aggregation": [
        'method.server={name="fine_tune", when="end"}',
        "method.label_statistics=secure_aggregation",
        "server_data.examples=100",
    ],
    "FedDF": ['method.server={name="feddf", batch_size=16}', "server_data.examples=100"],
    "FedDF in clusters": [
        'method.selection={name="clustered", eps1=1000.0, eps2=0.0, thresholds="absolute", first_round=1}',
        "method.server=feddf",
        "server_data.examples=100",
        "method.cohort_size=5",
    ],
    "Adam": ["method.server=adam"],
    "SCAFFOLD": ["method.solver=scaffold"],
    "MOON, whose clients keep a model": [
        "model.name=tests_dropout.py:normed",
        "local.drop_last=true",
        'method.loss={name="moon", mu=5.0}',
        'population.participation={name="bernoulli", act_prob=0.9, reply_prob=0.7}',
    ],
    "FedNTD in clusters, FedProx": [
        'method.selection={name="clustered", eps1=1000.0, eps2=0.0, thresholds="absolute", first_round=1}',
        "method.loss=fedntd",
        "method.solver=fedprox",
        "method.weighting={name='clip', inner='by_examples', max=0.3}",
        "method.cohort_size=5",
    ],
    "FedSAM under secure aggregation": ["method.loss=fedsam", "method.label_statistics=secure_aggregation"],
    "SCAFFOLD in half": ['method.solver={name="scaffold", memory_dtype="float16"}'],
    "SCAFFOLD by examples": ['method.solver={name="scaffold", by_examples=true}'],
    "FedDyn": ["method.solver=feddyn"],
    "FedDyn in clusters": [
        'method.selection={name="clustered", eps1=1000.0, eps2=0.0, thresholds="absolute", first_round=1}',
        "method.solver=feddyn",
        "method.cohort_size=5",
    ],
    "FedProx, momentum, schedule": [
        "method.solver=fedprox",
        "local.momentum=0.5",
        "local.schedule=cosine",
        "local.decay=0.1",
    ],
    "augmented": ["augmentation={name='flip_and_crop', padding=1}"],
    "warmup": ["local.schedule=warmup", "local.schedule_rounds=3"],
    "a schedule of one's own": ["local.schedule=tests_dropout.py:slower"],
    "who can be reached": ['population.participation={name="bernoulli", act_prob=0.7, reply_prob=0.7}'],
    "label noise": ['noise={name="symmetric", rate=0.3}'],
    "seeds of its own": ["partition.seed=3", "population.seed=4", "model.seed=5"],
    "dropout": ["model.name=tests_dropout.py:net"],
    "labels at every position": [
        "data.name=tests_dropout.py:texts",
        "partition={name='iid', clients=8}",
        "model.name=tests_dropout.py:Causal",
        "method.selection=power_of_choice",
    ],
    "several inputs": [
        "data.name=tests_dropout.py:pairs",
        "model.name=tests_dropout.py:Two",
        "method.adaptation=label_shift",
    ],
    "sign flip": ["attack={name='sign_flip', share=0.4, strength=10}", "local.clip_norm=0.5"],
    "sign flip, enormous": ["attack={name='sign_flip', share=0.4, strength=1e22}", "method.selection=full"],
    "Gaussian noise, SCAFFOLD, disagreement": [
        "attack={name='gaussian_noise', share=0.4}",
        "method.solver=scaffold",
        "method.weighting=disagreement",
    ],
    "ALIE": [
        "attack={name='alie', share=0.4}",
        "method.aggregation=median",
        "population.participation={name='bernoulli', act_prob=0.9, reply_prob=0.7}",
    ],
    "inner product, in probes": ["attack={name='inner_product', share=0.4}", "method.selection=minimax"],
    "replay, SCAFFOLD": [
        "attack={name='replay', share=0.4}",
        "method.solver=scaffold",
        "local.steps={min=1, max=6}",
        "local.schedule=exponential",
        "local.decay=0.5",
    ],
    "label flip": ["attack={name='label_flip', share=0.4}"],
    "model replacement, secure aggregation": [
        "attack={name='model_replacement', share=0.4}",
        "method.label_statistics=secure_aggregation",
    ],
    "false loss": ["attack={name='false_loss', share=0.4}", "method.selection=power_of_choice"],
    "false labels": [
        "attack={name='false_labels', share=0.4}",
        "method.weighting=entropy",
        "method.selection=kl_filter",
    ],
    "false examples": [
        "attack={name='false_examples', share=0.4, factor=1e12}",
        "method.weighting=fednova",
    ],
    "a model that returns a dictionary": ["model.name=tests_dropout.py:Mapped", "model.output=scores"],
}
HIDDEN = {
    "secure aggregation": ("weights", "train_loss"),
    "secure aggregation of disagreements": ("weights", "train_loss", "metrics"),
}
HIDDEN["secure aggregation of draws"] = HIDDEN["secure aggregation, uneven steps"] = HIDDEN["secure aggregation"]
HIDDEN["secure aggregation where replies get lost"] = HIDDEN["secure aggregation"]
HIDDEN["FedSAM under secure aggregation"] = HIDDEN["secure aggregation"]
HIDDEN["model replacement, secure aggregation"] = HIDDEN["secure aggregation"]
HIDDEN["fine-tuning at the end, under secure aggregation"] = HIDDEN["secure aggregation"]
NET = """
import numpy as np
import torch
from torch import nn
from fedreach import from_arrays
from fedreach.data.several import next_token_labels
def texts():
    tokens = np.random.default_rng(0).integers(0, 9, (120, 5))
    labels = next_token_labels(tokens, (np.arange(5) < 3) | (tokens[:, :1] > 4))
    return from_arrays(tokens[20:], labels[20:], tokens[:20], labels[:20], kind="tokens", num_classes=9)
class Causal(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(9, 4), nn.Linear(4, 9))
def pairs():
    rng = np.random.default_rng(0)
    x = {"tokens": rng.integers(0, 9, (240, 5)), "age": rng.normal(size=(240, 2))}
    return from_arrays(x, rng.integers(0, 3, 240))
class Two(nn.Module):
    def __init__(self, sample_shape, num_classes):
        super().__init__()
        assert sample_shape == {"age": (2,), "tokens": (5,)}
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(6, num_classes)
    def forward(self, age, tokens):
        return self.last(torch.cat([age, self.words(tokens).mean(1)], 1))
def net(sample_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, num_classes))
def normed(sample_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, num_classes))
def slower(round_):
    return 1 / round_
class Mapped(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
    def forward(self, x):
        return {"inputs": x, "scores": super().forward(x.flatten(1))}
"""


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.sampled(9)
def test_flower_gives_the_simulators_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "tests_dropout.py").write_text(NET)
    monkeypatch.chdir(tmp_path)  # to which paths of overrides are relative
    setup = FlowerExperiment(tmp_path / "tiny.toml", overrides=tuple(PARTS[name]))
    run(setup.experiment, seed=setup.seed, folder=tmp_path / "simulator", base=setup.base)
    if name == "noised labels":
        repeat_noise(setup, monkeypatch)
    grid = InProcess(setup.client_app(), range(8))
    setup.strategy(tmp_path / "flower", timeout=5, patience=5).run(grid)

    ours, theirs = rows_of(tmp_path / "simulator"), rows_of(tmp_path / "flower")
    assert len(theirs) == setup.experiment.rounds + 1
    for mine, other in zip(ours, theirs, strict=True):
        if name.startswith("sign flip"):
            assert set(other.pop("refused", {})) == {f"client {client}" for client in other["lost"]}
        assert other.keys() == mine.keys()
        for key in mine.keys() - set(HIDDEN.get(name, ())):
            if key.endswith("_loss") or key == "train_loss":
                assert other[key] == pytest.approx(mine[key], abs=1e-6), key  # evaluated client by client
            else:
                assert other[key] == mine[key], key
    for file in ("last.safetensors", "best.safetensors"):
        assert (tmp_path / "flower" / file).read_bytes() == (tmp_path / "simulator" / file).read_bytes(), file
    if name in ("FedDyn in clusters", "IFCA, where replies get lost", "k-means of updates"):
        assert len(theirs[-1]["clusters"]) == 5
        assert len(set(theirs[-1]["clusters"])) > 1
    if name in HIDDEN:
        assert all(weight is None for row in theirs for weight in row["weights"])


def test_a_client_keeps_the_bits_that_the_simulator_keeps_for_it() -> None:
    """Under momentum the local steps count for more than their number, and float16 rounds what is kept."""
    scaffold = 'method.solver={name="scaffold", memory_dtype="float16"}'
    setup = FlowerExperiment(overrides=(*SIX_CLIENTS, "local.momentum=0.5", scaffold))
    simulation, federation = setup.simulation, setup.simulation.federation
    start, view = simulation.start(), simulation.first_view
    state, result, _ = simulation.step(start)
    assert state.memory is not None
    local = LocalClient(result.cohort[0], setup.data, federation, simulation.engine.task.module)
    row = view.rows(local.ids)
    share = float(view.num_examples[row[0]] / view.num_examples.mean())
    nothing = np.zeros(local.engine.num_trainable, np.float32)
    kept = local.train(start.params, 1, federation.local.lr_at(1, simulation.rounds), share, nothing, {}).memory
    assert kept is not None
    assert kept.tobytes() == state.memory.read(row)[0].tobytes()


def repeat_noise(setup: FlowerExperiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients draw the noise of the simulator, where that of a real client comes from its machine."""
    counts, rng = setup.data.label_counts()[setup.data.population.participants], generator(0, "label-statistics")
    told = setup.simulation.federation.label_statistics.release(counts, rng)
    released = dict(zip(setup.data.population.participants.tolist(), told, strict=True))
    monkeypatch.setattr(LocalClient, "released_counts", lambda self: released[self.client])
