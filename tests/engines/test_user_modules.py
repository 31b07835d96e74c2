"""Any torch module trains in both engines: shared, frozen and random layers, batch statistics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedreach._util.errors import TrainingError
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.flat import bind
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import Simulation

ENGINES = [Sequential, Vmap]
SIZES = (13, 2, 8, 6)
IDS = np.arange(4)
EVERYTHING = LocalSGD(batch_size=4, epochs=2, momentum=0.9, weight_decay=0.1, clip_norm=1.0)


class Tied(nn.Module):
    """Reads and writes tokens with the same matrix."""

    def __init__(self, words: int, width: int):
        super().__init__()
        self.read = nn.Embedding(words, width)
        self.write = nn.Linear(width, words)
        self.write.weight = self.read.weight

    def forward(self, tokens):
        return self.write(self.read(tokens).mean(dim=-2))


def both(module, data, local=EVERYTHING, lr=0.1):
    engines = [TorchEngine(kind, Task(module, data, FedAvg(), local, seed=3)) for kind in ENGINES]
    return engines[0], *(engine.train(engine.initial, IDS, 1, lr) for engine in engines)


def test_tied_weights_are_one_tensor_and_train_as_one(federated):
    torch.manual_seed(0)
    module, data = Tied(7, 3), federated(SIZES, (5,), "tokens", num_classes=7)
    engine, plain, fast = both(module, data)
    assert engine.layout.size == 7 * 3 + 7
    np.testing.assert_allclose(fast.update, plain.update, rtol=0, atol=1e-5)
    assert abs(plain.update[:, :21]).max() > 1e-3


def test_frozen_parameters_neither_travel_nor_move(federated):
    torch.manual_seed(0)
    module, data = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), federated(SIZES)
    module[0].requires_grad_(False)
    engine, plain, fast = both(module, data)
    assert engine.layout.parameters == ("2.weight", "2.bias")
    assert (engine.layout.num_trainable, engine.layout.size) == (18, 18)
    np.testing.assert_allclose(fast.update, plain.update, rtol=0, atol=1e-5)
    for trained in (plain, fast):
        assert trained.update.any(axis=1).all()
    assert {name: value.tolist() for name, value in engine.constants.items()} == {
        "0.weight": module[0].weight.tolist(),
        "0.bias": module[0].bias.tolist(),
    }


@pytest.mark.parametrize("kind", ENGINES)
def test_dropout_is_drawn_in_training_by_seed_and_round_and_is_off_in_evaluation(kind, federated):
    torch.manual_seed(0)
    module, data = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 3)), federated((1, 1, 1, 1), (16,))
    state = torch.random.get_rng_state()
    updates = {}
    for seed, round_ in ((3, 1), (3, 2), (4, 1)):
        engine = TorchEngine(kind, Task(module, data, FedAvg(), LocalSGD(), seed=seed))
        one, other = (engine.train(engine.initial, IDS, round_, 0.1).update for _ in range(2))
        assert one.tobytes() == other.tobytes()
        updates[seed, round_] = one.tobytes()
    assert len(set(updates.values())) == 3  # with one sample a client, the masks are all that differs
    losses = [engine.predict(engine.initial, "train", np.arange(4))[1] for _ in range(2)]
    assert losses[0].tobytes() == losses[1].tobytes()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_each_client_of_a_stack_draws_its_own_dropout(federated):
    # Four clients with the same three samples in one full batch: without dropout they would be equal.
    data = federated((4, 4, 4, 4), num_classes=2)
    for client in IDS:
        data.dataset.train_x[data.train[client]] = np.arange(12).reshape(3, 4)
        data.labels[data.train[client]] = [0, 1, 1]
    torch.manual_seed(0)
    for layers, distinct in (([nn.Linear(4, 2)], 1), ([nn.Dropout(0.5), nn.Linear(4, 2)], 4)):
        engine = TorchEngine(Vmap, Task(nn.Sequential(*layers), data, FedAvg(), LocalSGD(batch_size=9), seed=3))
        update = engine.train(engine.initial, IDS, 1, 0.1).update
        assert len({row.round(6).tobytes() for row in update + 0.0}) == distinct


def normalised(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.BatchNorm1d(4, momentum=0.2), nn.Linear(4, 3))


@pytest.mark.parametrize("kind", ENGINES)
def test_running_statistics_follow_the_formula_and_no_decay_or_clipping_touches_them(kind, federated):
    data = federated((9, 7))
    task = Task(normalised(), data, FedAvg(), replace(EVERYTHING, batch_size=4, epochs=1), seed=3)
    engine, plain = TorchEngine(kind, task), TorchEngine(Sequential, task)
    update = engine.train(engine.initial, np.arange(2), 1, 0.1).update
    names = list(engine.layout.views(torch.zeros(engine.layout.size)))
    assert names[-2:] == ["0.running_mean", "0.running_var"]
    for client in range(2):
        mean, variance = np.zeros(4), np.ones(4)  # as BatchNorm begins
        for batch in plain.trainer.plans(np.array([client]), 1)[0]:
            x = data.dataset.train_x[batch[batch >= 0]].astype(float)
            mean = 0.8 * mean + 0.2 * x.mean(axis=0)
            variance = 0.8 * variance + 0.2 * x.var(axis=0, ddof=1)
        np.testing.assert_allclose(update[client, -8:], np.concatenate([mean, variance - 1]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ENGINES)
def test_statistics_are_averaged_with_the_weights_and_evaluation_uses_them(kind, federated):
    data = federated((9, 5))
    parts = (Full(), ByExamples(), FedAvg(), LocalSGD(lr=0.1, batch_size=4), Average(momentum=0.9))
    federation = Federation(*parts, cohort_size=2, seed=3)
    engine = TorchEngine(kind, Task(normalised(), data, FedAvg(), federation.local, seed=3))
    simulation = Simulation(federation, data, engine, rounds=3)
    state = simulation.start()
    for _ in range(3):
        before = state.params
        state, _, update = simulation.step(state)
        models = before + update
        # Clients train on 8 and 4 samples; momentum moves the parameters, not the statistics.
        np.testing.assert_allclose(state.params[-8:], (2 * models[0, -8:] + models[1, -8:]) / 3, rtol=1e-5, atol=1e-6)
    module = normalised()
    bind(module, torch.from_numpy(state.params))
    x, y = torch.from_numpy(data.dataset.test_x), data.dataset.test_y
    w = {name: t.detach().numpy() for name, t in module.state_dict().items()}
    scaled = (x.numpy() - w["0.running_mean"]) / np.sqrt(w["0.running_var"] + 1e-5) * w["0.weight"] + w["0.bias"]
    logits = scaled @ w["1.weight"].T + w["1.bias"]
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    _, loss = engine.predict(state.params, "test", np.arange(len(y)))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "who"),
    [(Sequential, "Client 1 failed in round 7"), (Vmap, r"One of the clients \[0, 1\] failed in round 7")],
)
def test_a_client_that_a_layer_refuses_is_named_with_round_and_cause(kind, who, federated):
    # BatchNorm cannot normalise the single sample of client 1.
    engine = TorchEngine(kind, Task(normalised(), federated((9, 2)), FedAvg(), LocalSGD(batch_size=8), seed=3))
    with pytest.raises(TrainingError, match=rf"{who}.*Expected more than 1 value per channel"):
        engine.train(engine.initial, np.arange(2), 7, 0.1)


def test_a_group_of_one_is_named_without_asking_for_more(federated):
    engine = TorchEngine(Vmap, Task(normalised(), federated((9, 2)), FedAvg(), LocalSGD(batch_size=8), seed=3))
    with pytest.raises(TrainingError, match=r"^Client 1 failed in round 7: .*[^.]\.$"):
        engine.train(engine.initial, np.array([1]), 7, 0.1)


@pytest.mark.parametrize("kind", ENGINES)
def test_batchnorm_meets_no_last_batch_of_one_where_it_is_dropped(kind, federated):
    # Client 0 trains on nine examples: two batches of four, and one more.
    data, local = federated((10, 9)), LocalSGD(batch_size=4)
    with pytest.raises(TrainingError, match=r"set local\.drop_last = true to skip incomplete batches"):
        trained(kind, data, local)
    done = trained(kind, data, replace(local, drop_last=True))
    assert done.steps.tolist() == [2, 2]
    assert np.isfinite(done.update).all()


@pytest.mark.parametrize("local", [LocalSGD(batch_size=4, drop_last=True), LocalSGD(batch_size=1)])
@pytest.mark.parametrize("kind", ENGINES)
def test_where_dropping_would_not_help_batchnorms_failure_says_what_would(kind, local, federated):
    with pytest.raises(TrainingError) as failed:
        trained(kind, federated((9, 2)), local)
    assert "BatchNorm cannot normalize a batch of one example. Raise local.batch_size" in str(failed.value)
    assert "use GroupNorm" in str(failed.value)


def test_another_failure_in_a_batch_of_one_is_told_as_it_is(federated):
    class Lonely(nn.Module):
        def forward(self, x):
            if len(x) == 1:
                raise ValueError("one is too few")
            return x

    module = nn.Sequential(Lonely(), *normalised())
    engine = TorchEngine(Sequential, Task(module, federated((9, 2)), FedAvg(), LocalSGD(), seed=3))
    with pytest.raises(TrainingError, match=r"^Client 1 failed in round 7: one is too few$"):
        engine.train(engine.initial, np.arange(2), 7, 0.1)


def trained(kind, data, local):
    engine = TorchEngine(kind, Task(normalised(), data, FedAvg(), local, seed=3))
    return engine.train(engine.initial, np.arange(2), 7, 0.1)
