"""The plain engine follows torch's own SGD; the fast engine follows the plain one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedreach._util.arrays import finite_rows, weighted_sum
from fedreach._util.errors import ConfigError
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.networks import build
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold

SIZES = (13, 2, 8, 6)  # of which one sample each is held out: 12, 1, 7 and 5 are trained on, in batches of 4
IDS = np.arange(4)

MODELS = {
    "linear": ((1, 6, 6), "image", {}),
    "mlp": ((5,), "features", {"hidden": [6, 4]}),
    "wide": ((5,), "features", {"hidden": [30, 4]}),  # more outputs than a client sees examples
    "lenet": ((1, 16, 16), "image", {}),
    "cnn": ((1, 16, 16), "image", {}),
    "padded": ((3, 8, 12), "image", {}),
    "resnet20": ((1, 8, 8), "image", {"width": 2}),
    "resnet20 batch": ((1, 8, 8), "image", {"width": 2, "norm": "batch"}),
    "lstm": ((6,), "tokens", {"embedding": 3, "hidden": 5}),
}
LOOPS = {
    "epochs": (FedAvg(), LocalSGD(batch_size=4, epochs=2)),
    "one epoch": (FedAvg(), LocalSGD(batch_size=5)),
    "everything": (FedProx(mu=0.3), LocalSGD(batch_size=4, epochs=2, momentum=0.9, weight_decay=0.01, clip_norm=0.5)),
    "steps": (FedProx(mu=0.3), LocalSGD(batch_size=4, steps=5, momentum=0.5)),
    "full batches": (FedAvg(), LocalSGD(batch_size=4, epochs=2, drop_last=True)),
    "steps of full batches": (FedProx(mu=0.3), LocalSGD(batch_size=4, steps=5, drop_last=True)),
}
RATE = 0.05
CHAINS = ("linear", "mlp", "wide", "lenet", "cnn", "padded")  # models that the engine `manual` knows
EVERY = [(Sequential, name) for name in ("mlp", "lenet", "resnet20 batch", "lstm")]
EVERY += [(Vmap, name) for name in ("mlp", "lenet", "resnet20 batch", "lstm")]
EVERY += [(Manual, name) for name in ("mlp", "wide", "lenet")]
EVERY += [(Native, name) for name in ("linear", "mlp", "wide", "lstm")]


def padded(num_classes):
    """Convolutions of uneven filters with zeros around the images, with and without pooling and bias."""
    return nn.Sequential(
        nn.Conv2d(3, 4, (3, 5), padding=(1, 2)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, padding=1, bias=False),
        nn.Conv2d(5, 6, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, num_classes, bias=False),
    )


def make(name, federated):
    shape, kind, options = MODELS[name]
    data = federated(SIZES, shape, kind, num_classes=12 if kind == "tokens" else 3)
    name = {"wide": "mlp", "padded": padded}.get(name, name.split()[0])
    return build(name, shape, data.dataset.num_classes, seed=1, options=options), data


# Both engines do the same arithmetic in another order, in float32. A sum of some hundred products is off by some 1e-6
# of its size, and the local steps carry this on. Batch normalisation over a handful of values magnifies it, until a
# ReLU falls on its other side: shifting the broadcast by 3e-7 moves resnet20 by 1e-6 in two steps, but by 1e-3 in
# three. It is therefore compared over at most two steps, in which clients still differ in number and size of batches.
TOLERANCE = {"resnet20": 1e-4, "resnet20 batch": 3e-5}
FEW_STEPS = {"batch_size": 8, "epochs": 1, "steps": None}


@pytest.mark.parametrize(
    ("kind", "name", "loop"),
    [
        *((Vmap, name, loop) for name in MODELS for loop in ("epochs", "everything")),
        *((Vmap, "mlp", loop) for loop in LOOPS if loop.startswith(("steps", "full"))),
        (Vmap, "resnet20 batch", "full batches"),
        *((Manual, name, loop) for name in CHAINS for loop in ("epochs", "everything", "one epoch")),
        *((Manual, name, loop) for name in ("mlp", "lenet") for loop in LOOPS if loop.startswith("steps")),
        *((Manual, name, "full batches") for name in ("mlp", "wide", "lenet")),
        *((Native, name, loop) for name in ("linear", "mlp", "wide", "lstm") for loop in LOOPS),
    ],
)
@pytest.mark.sampled(3)
def test_the_fast_engines_train_every_model_as_the_sequential_one(kind, name, loop, federated):
    module, data = make(name, federated)
    solver, local = LOOPS[loop]
    local = replace(local, **FEW_STEPS) if name == "resnet20 batch" else local
    plain, fast = (TorchEngine(kind, Task(module, data, solver, local, seed=3)).train for kind in (Sequential, kind))
    broadcast = TorchEngine(Sequential, Task(module, data, solver, local, seed=3)).initial
    one, other = plain(broadcast, IDS, 2, RATE), fast(broadcast, IDS, 2, RATE)
    scale = abs(one.update).max()
    assert scale > 1e-4
    tolerance = TOLERANCE.get(name, 1e-5)
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=tolerance * max(1.0, scale))
    np.testing.assert_allclose(other.loss, one.loss, rtol=tolerance)
    np.testing.assert_array_equal(other.steps, one.steps)
    assert one.trainable == other.trainable


@pytest.mark.parametrize(("kind", "name"), EVERY)
@pytest.mark.parametrize("loop", [{"epochs": 2, "momentum": 0.9}, {"steps": 7}])
@pytest.mark.sampled(4)
def test_dropping_changes_no_bit_where_all_batches_are_full(kind, name, loop, federated):
    shape, of, _ = MODELS[name]
    data = federated((13, 5, 9, 3), shape, of, num_classes=12 if of == "tokens" else 3)  # 12, 4, 8 and 2 are trained on
    module = make(name, federated)[0]
    dropped, kept = (
        TorchEngine(kind, Task(module, data, FedAvg(), LocalSGD(batch_size=4, drop_last=drop, **loop), seed=3))
        for drop in (True, False)
    )
    one, other = (engine.train(engine.initial, IDS, 1, RATE) for engine in (dropped, kept))
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one[:3], other[:3], strict=True))


@pytest.mark.parametrize(("kind", "name"), EVERY)
@pytest.mark.sampled(4)
def test_a_clipped_step_is_the_solvers_whole_correction_shortened(kind, name, federated):
    module, data = make(name, federated)
    updates = []
    for limit in (None, 0.01):
        local = LocalSGD(batch_size=16, steps=1, clip_norm=limit)
        engine = TorchEngine(kind, Task(module, data, FedDyn(), local, seed=3))
        memory = np.random.default_rng(0).standard_normal((len(IDS), engine.num_trainable)).astype(np.float32)
        terms = {"pull": np.full((len(IDS), 1), 0.5, np.float32), "memory": memory}  # longer than the gradient
        updates.append(engine.train(engine.initial, IDS, 1, RATE, terms).update[:, : engine.num_trainable])
    whole, clipped = updates
    length = np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(clipped, whole * (RATE * 0.01 / length), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_clients_measure_with_their_local_models_and_what_was_broadcast_stands_beside(kind, name, federated):
    module, data = make(name, federated)
    engine = TorchEngine(kind, Task(module, data, FedAvg(), LocalSGD(batch_size=4), seed=3))
    update = engine.train(engine.initial, IDS, 1, 2 * RATE).update
    for row, said in enumerate(engine.outputs(engine.initial, update, IDS, before=True)):
        local, before = (engine.logits(engine.initial + u, "train", data.train[row]) for u in (update[row], 0))
        np.testing.assert_allclose(said.logits, local, rtol=0, atol=1e-5)
        np.testing.assert_allclose(said.before, before, rtol=0, atol=1e-5)
        assert said.labels.tolist() == data.labels[data.train[row]].tolist()
        assert abs(local - before).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((Vmap, name) for name in ("linear", "lenet", "resnet20 batch", "lstm")),
        *((Manual, name) for name in ("linear", "wide", "lenet")),
        *((Native, name) for name in ("linear", "wide", "lstm")),
    ],
)
@pytest.mark.parametrize("solver", [Scaffold(), FedDyn(alpha=0.3)])
def test_all_engines_hand_a_solver_what_it_prepared(kind, name, solver, federated):
    """Each client gets its own rows, whatever its place in a stack; numbers reach all parameters."""
    module, data = make(name, federated)
    local = LocalSGD(batch_size=4, epochs=1, **({"steps": 2} if "batch" in name else {}))
    plain, fast = (TorchEngine(kind, Task(module, data, solver, local, seed=3)) for kind in (Sequential, kind))
    p, rng = plain.num_trainable, np.random.Generator(np.random.Philox(5))
    memory = rng.standard_normal((4, p)).astype(np.float32) * 0.1
    state = {"c": rng.standard_normal(p) * 0.1}
    terms = solver.prepare(memory, state, np.array([2.0, 0.1, 1.2, 0.7]))
    one, other = (engine.train(plain.initial, IDS, 2, RATE, terms) for engine in (plain, fast))
    without = plain.train(plain.initial, IDS, 2, RATE, {key: 0 * rows for key, rows in terms.items()})
    assert abs(one.update - without.update).max() > 1e-3  # the terms do something
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=TOLERANCE.get(name, 1e-5))
    np.testing.assert_array_equal(other.steps, one.steps)
    assert one.steps.tolist() == [2] * 4 if "batch" in name else one.steps.tolist() == [3, 1, 2, 2]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_sequential_engine_is_a_plain_loop_of_torch_sgd(loop, federated):
    module, data = make("mlp", federated)
    solver, local = LOOPS[loop]
    engine = TorchEngine(Sequential, Task(module, data, solver, local, seed=3))
    trained = engine.train(engine.initial, IDS, 2, RATE)
    for client in IDS:
        theirs = build("mlp", (5,), 3, seed=1, options={"hidden": [6, 4]})
        first = [p.detach().clone() for p in theirs.parameters()]
        optimiser = torch.optim.SGD(theirs.parameters(), RATE, local.momentum, weight_decay=local.weight_decay)
        losses, seen = 0.0, 0
        for batch in engine.trainer.plans(np.array([client]), 2)[0]:
            batch = batch[batch >= 0]
            x, y = torch.from_numpy(data.dataset.train_x[batch]), torch.from_numpy(data.labels[batch])
            loss = F.cross_entropy(theirs(x), y)
            penalty = sum(((p - q) ** 2).sum() for p, q in zip(theirs.parameters(), first, strict=True))
            optimiser.zero_grad()
            (loss + getattr(solver, "mu", 0.0) / 2 * penalty).backward()
            if local.clip_norm is not None:
                nn.utils.clip_grad_norm_(theirs.parameters(), local.clip_norm)
            optimiser.step()
            losses, seen = losses + loss.item() * len(batch), seen + len(batch)
        move = torch.cat([(p - q).detach().reshape(-1) for p, q in zip(theirs.parameters(), first, strict=True)])
        # clip_grad_norm_ adds 1e-6 to the norm, and the penalty's gradient is summed in another order.
        np.testing.assert_allclose(trained.update[client], move.numpy(), rtol=0, atol=1e-6)
        assert trained.loss[client] == pytest.approx(losses / seen, rel=1e-6)


def test_plain_training_is_torch_sgd_bit_for_bit(federated):
    module, data = make("mlp", federated)
    engine = TorchEngine(
        Sequential, Task(module, data, FedAvg(), LocalSGD(batch_size=4, epochs=2, momentum=0.9), seed=3)
    )
    update = engine.train(engine.initial, np.array([0]), 1, 0.25).update[0]
    theirs = build("mlp", (5,), 3, seed=1, options={"hidden": [6, 4]})
    first = torch.cat([p.detach().reshape(-1) for p in theirs.parameters()])
    optimiser = torch.optim.SGD(theirs.parameters(), 0.25, 0.9)
    for batch in engine.trainer.plans(np.array([0]), 1)[0]:
        x, y = torch.from_numpy(data.dataset.train_x[batch]), torch.from_numpy(data.labels[batch])
        optimiser.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        optimiser.step()
    last = torch.cat([p.detach().reshape(-1) for p in theirs.parameters()])
    assert update.tobytes() == (last - first).numpy().tobytes()


@pytest.mark.parametrize(("kind", "name"), [pair for pair in EVERY if pair[1] not in ("lenet", "lstm")])
def test_fedprox_without_mu_is_fedavg_bit_for_bit(kind, name, federated):
    module, data = make(name, federated)
    local = LOOPS["everything"][1]
    engines = [TorchEngine(kind, Task(module, data, solver, local, seed=3)) for solver in (FedAvg(), FedProx(mu=0.0))]
    one, other = (engine.train(engine.initial, IDS, 1, RATE) for engine in engines)
    assert one.update.tobytes() == other.update.tobytes()


@pytest.mark.parametrize("kind", [Sequential, Vmap, Manual, Native])
@pytest.mark.sampled(3)
def test_a_strong_pull_keeps_the_local_models_near_the_broadcast(kind, federated):
    module, data = make("mlp", federated)
    moved = []
    for mu in (0.0, 1.0, 10.0, 100.0):
        engine = TorchEngine(kind, Task(module, data, FedProx(mu=mu), LocalSGD(batch_size=4, steps=300), seed=3))
        # A step of 0.5 / (1 + mu) is stable for the pull, and 300 of them reach its balance with the gradient.
        moved.append(np.linalg.norm(engine.train(engine.initial, IDS, 1, 0.5 / (1 + mu)).update, axis=1).max())
    assert moved == sorted(moved, reverse=True)
    # In balance mu |w - w0| = |g|, and the gradient here is below 2.
    assert moved[-1] < 2 / 100


@pytest.mark.parametrize(("kind", "name"), [pair for pair in EVERY if pair[1] not in ("lenet", "lstm")])
def test_a_client_trains_the_same_whoever_else_is_in_the_cohort(kind, name, federated):
    module, data = make(name, federated)
    solver, local = LOOPS["everything"]
    engine = TorchEngine(
        kind, Task(module, data, solver, replace(local, **FEW_STEPS) if kind is Vmap else local, seed=3)
    )
    together = engine.train(engine.initial, IDS, 1, RATE)
    tolerance = 0.0 if kind in (Sequential, Native) else TOLERANCE.get(name, 1e-5)
    for cohort in ([2], [1, 2], [0, 2, 3]):
        apart = engine.train(engine.initial, np.array(cohort), 1, RATE)
        np.testing.assert_allclose(apart.update, together.update[cohort], rtol=0, atol=tolerance)
        np.testing.assert_allclose(apart.loss, together.loss[cohort], rtol=tolerance)


@pytest.mark.parametrize(("kind", "name"), EVERY)
@pytest.mark.sampled(2)
def test_training_twice_gives_the_same_bits_and_leaves_the_broadcast_alone(kind, name, federated):
    module, data = make(name, federated)
    engine = TorchEngine(kind, Task(module, data, *LOOPS["everything"], seed=3))
    broadcast = engine.initial.copy()
    broadcast.setflags(write=False)
    one = engine.train(broadcast, IDS, 1, RATE)
    engine.predict(broadcast * 2, "test", np.arange(5))
    other = engine.train(broadcast, IDS, 1, RATE)
    assert one.update.tobytes() == other.update.tobytes()
    assert one.loss.tobytes() == other.loss.tobytes()
    assert one.update.tobytes() != engine.train(broadcast, IDS, 2, RATE).update.tobytes()


@pytest.mark.parametrize("kind", [Sequential, Vmap, Native])
def test_one_client_with_an_infinite_sample_does_not_disturb_the_others(kind, federated):
    # Filled-up places of a stack have weight 0, and 0 times infinity would be nan.
    module, data = make("mlp", federated)
    data.dataset.train_x[0] = np.inf
    guilty = [0 in data.train[client] for client in IDS]
    assert sum(guilty) == 1
    engine = TorchEngine(kind, Task(module, data, FedAvg(), LocalSGD(batch_size=4), seed=3))
    update = engine.train(engine.initial, IDS, 1, 0.1).update
    assert (~np.isfinite(update).all(axis=1)).tolist() == guilty


def test_the_model_of_the_user_is_copied_and_left_alone(federated):
    module, data = make("mlp", federated)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for kind in (Sequential, Vmap):
        engine = TorchEngine(kind, Task(module, data, FedAvg(), LocalSGD(), seed=3))
        engine.train(engine.initial, IDS, 1, 0.5)
        engine.predict(engine.initial + 1, "test", np.arange(5))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize(("kind", "name"), EVERY)
@pytest.mark.sampled(4)
def test_the_number_of_threads_changes_no_bit(name, kind, federated, monkeypatch):
    # Else these clients would all be one stack.
    monkeypatch.setattr("fedreach.engines.vmap.STACK_BYTES", 1)
    monkeypatch.setattr("fedreach.engines.manual.MAX_CLIENTS", 1)
    monkeypatch.setattr("fedreach.engines.engine.EVALUATION_PART", 5)
    module, data = make(name, federated)
    index = np.arange(sum(SIZES))[::-1].copy()
    found = []
    for threads in (1, 3):
        engine = TorchEngine(kind, Task(module, data, *LOOPS["everything"], 3), threads=threads)
        trained = engine.train(engine.initial, IDS, 1, RATE)
        found.append((trained.update, trained.loss, *engine.predict(engine.initial, "train", index)))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", [Sequential, Vmap, Manual, Native])
def test_torchs_own_threads_change_no_bit_and_are_left_as_they_were(kind, federated):
    shape, width = (40, 40), 900  # large enough for torch to divide a kernel among threads
    data = federated((300, 200), shape, "features", 3)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        engine = TorchEngine(
            kind,
            Task(
                build("mlp", shape, 3, seed=1, options={"hidden": [width]}), data, FedAvg(), LocalSGD(batch_size=200), 3
            ),
        )
        trained = engine.train(engine.initial, np.arange(2), 1, RATE)
        found.append((trained.update, *engine.predict(engine.initial, "train", np.arange(500))))
        assert torch.get_num_threads() == threads
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_a_stack_is_cut_into_parts_that_stay_small_and_hold_everybody_once(federated, monkeypatch):
    module, data = make("mlp", federated)
    engine = TorchEngine(Vmap, Task(module, data, FedAvg(), LocalSGD(), 0))
    assert [len(group) for group in engine.groups(IDS)] == [4]
    monkeypatch.setattr("fedreach.engines.vmap.STACK_BYTES", 2 * 4 * engine.layout.size)
    groups = engine.groups(IDS)
    assert [len(group) for group in groups] == [2, 2]
    assert sorted(np.concatenate(groups)) == IDS.tolist()


@pytest.mark.parametrize("kind", [Sequential, Vmap])
def test_the_masks_of_dropout_do_not_depend_on_the_number_of_threads(kind, federated, monkeypatch):
    monkeypatch.setattr("fedreach.engines.vmap.STACK_BYTES", 1)
    module = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 3))
    found = [
        TorchEngine(kind, Task(module, federated(SIZES), FedAvg(), LocalSGD(), 0), threads=threads)
        for threads in (1, 3)
    ]
    one, other = (engine.train(engine.initial, IDS, 1, RATE).update for engine in found)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), "must accept two examples"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "must return 3 numbers per example"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused_before_round_1(module, message, federated):
    with pytest.raises(ConfigError, match=message):
        TorchEngine(Sequential, Task(module, federated(SIZES), FedAvg(), LocalSGD(), 0))


def test_processes_add_up_updates_to_the_bits_of_one(federated, monkeypatch):
    monkeypatch.setattr("fedreach._util.arrays.BLOCK", 7)
    module, data = make("mlp", federated)
    engine = TorchEngine(Sequential, Task(module, data, *LOOPS["epochs"], 3), threads=3)
    trained = engine.train(engine.initial, IDS, 1, RATE)
    weights = np.array([0.1, 0.7, 0.15, 0.05])
    expected = weighted_sum(weights, trained.update.copy())
    assert engine.workers.shares(trained.update) or engine.threads == 1
    assert engine.weighted_sum(weights, trained.update).tobytes() == expected.tobytes()
    some = trained.update[1:3]  # as where a client was lost
    assert engine.weighted_sum(weights[1:3], some).tobytes() == weighted_sum(weights[1:3], some.copy()).tobytes()


@pytest.mark.parametrize("kind", [Sequential, Native])
def test_every_engine_adds_up_and_looks_at_updates_as_numpy_does(kind, federated):
    module, data = make("mlp", federated)
    engine = TorchEngine(kind, Task(module, data, *LOOPS["epochs"], 3))
    rng = np.random.Generator(np.random.Philox(5))
    update = rng.standard_normal((30, 5000)).astype(np.float32) * 10.0 ** rng.integers(-30, 30, (30, 5000))
    update = update.astype(np.float32)
    weights = rng.dirichlet(np.ones(30))
    for part in (update, update[:, 3:4001], update[::2], update[:, ::2], update[:0]):
        assert (
            engine.trainer.add_up(weights[: len(part)], part).tobytes()
            == weighted_sum(weights[: len(part)], part).tobytes()
        )
    update[3, 17], update[5, 4999], update[8, 0], update[9] = np.nan, np.inf, -np.inf, 3e38
    group = np.array([3, 4, 5, 8, 9, 10])
    assert finite_rows(update[group]).tolist() == [False, True, False, False, True, True]
