"""The engine in C: what only it has. That it trains as the plain one is shown in `test_engines_agree`."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr
from fedreach._util.arrays import weighted_sum
from fedreach._util.errors import ConfigError, TrainingError
from fedreach.data.splits import ClientIndex
from fedreach.engines.batches import batch_plans
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.native import library, trainer
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedProx, Scaffold

SIZES = (13, 2, 8, 6)
IDS = np.arange(4)


def both(module, data, local=None, solver=None):
    """Return what the plain engine and this one make of round 2."""
    local, solver = local or LocalSGD(batch_size=4), solver or FedAvg()
    engines = [TorchEngine(kind, Task(module, data, solver, local, seed=3)) for kind in (Sequential, Native)]
    return [engine.train(engine.initial, IDS, 2, 0.05) for engine in engines]


def broad(inputs=141, bias=True, classes=3):
    """A first layer so large, before few examples, that its weights are not formed in training."""
    layers = (nn.Linear(inputs, 130, bias=bias), nn.ReLU(), nn.Linear(130, 7, bias=bias), nn.Linear(7, classes))
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", [128, 141])
@pytest.mark.parametrize("loop", [{"batch_size": 5}, {"batch_size": 4, "epochs": 2}, {"batch_size": 3, "steps": 7}])
def test_a_first_layer_that_is_formed_last_moves_as_any_other(loop, inputs, bias, federated):
    torch.manual_seed(0)
    one, other = both(broad(inputs, bias), federated(SIZES, (inputs,), "features"), LocalSGD(**loop))
    assert abs(one.update).max() > 1e-2
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)
    np.testing.assert_allclose(other.loss, one.loss, rtol=1e-5)
    np.testing.assert_array_equal(other.steps, one.steps)


@dataclass(frozen=True)
class Decay(fr.LocalSolver):
    """A user's solver without memory: g + 0.5 w, that is, pull 0.5 and shift 0.5 w0."""

    affine: ClassVar[bool] = True

    def correct(self, gradient, params, broadcast):
        return gradient + 0.5 * params


@dataclass(frozen=True)
class Back(Decay):
    """The same shift for all clients, and no pull."""

    affine: ClassVar[bool] = True

    def correct(self, gradient, params, broadcast):
        return gradient + 0.3 * broadcast


@dataclass(frozen=True)
class Strength(FedProx):
    """A pull of one number a client, and an unused vector."""

    affine: ClassVar[bool] = True
    sends_note: ClassVar[bool] = False

    def prepare(self, memory, state, share):
        return {"strength": share[:, None].astype(np.float32), "memory": memory}

    def remember(self, memory, state, update, steps, lr):
        return memory

    def conclude(self, state, reports, mean_update, n):
        return mean_update, state

    def adapted(self, params, state):
        return params

    def correct(self, gradient, params, broadcast, strength, memory):
        return gradient + strength * (params - broadcast) + 0.1 * broadcast


RULES = [
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"clip_norm": 0.2},
    {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 0.2},
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bias", [True, False])
def test_every_rule_holds_with_and_without_bias(rule, bias, federated, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(
        trainer.np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype)
    )  # what memory may hold
    data = federated(SIZES, (20,), "features")
    one, other = both(broad(20, bias), data, LocalSGD(batch_size=4, epochs=2, **rule))
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("solver", [FedProx(mu=2.0), Decay(), Back(), Strength()])
def test_whatever_affine_solver_a_user_writes_is_followed(solver, bias, federated):
    torch.manual_seed(0)
    module, data = broad(20, bias), federated(SIZES, (20,), "features")
    d = sum(parameter.numel() for parameter in module.parameters())
    terms = {}
    if isinstance(solver, Strength):
        rng = np.random.Generator(np.random.Philox(1))
        terms = {"strength": rng.random((4, 1), np.float32), "memory": rng.random((4, d), np.float32)}
    plain, engine, without = (
        TorchEngine(kind, Task(module, data, part, LocalSGD(batch_size=4), 3))
        for kind, part in ((Sequential, solver), (Native, solver), (Sequential, FedAvg()))
    )
    one, other = (e.train(e.initial, IDS, 2, 0.1, terms).update for e in (plain, engine))
    assert abs(one - without.train(plain.initial, IDS, 2, 0.1).update).max() > 1e-3
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("classes", [2, 16, 40])
def test_any_width_and_number_of_classes_will_do(width, classes, federated):
    data = federated((150, 2, 40, 70), (width,), "features", num_classes=classes)
    module = build("mlp", (width,), classes, seed=1, options={"hidden": [width, 2 * width + 1]})
    for local in (LocalSGD(batch_size=37), LocalSGD(batch_size=300, epochs=2, momentum=0.5)):
        one, other = both(module, data, local)
        np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)
        np.testing.assert_allclose(other.loss, one.loss, rtol=1e-5)


def test_products_longer_than_a_block_are_added_up(federated):
    data = federated((9, 2, 8, 6), (700,), "features")
    module = build("mlp", (700,), 3, seed=1, options={"hidden": [20]})
    one, other = both(module, data, LocalSGD(batch_size=4), FedProx(mu=0.1))
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)


def test_bytes_are_normalised_on_the_way(federated):
    data = federated(SIZES, (3, 4, 4), "image")
    assert data.dataset.train_x.dtype == np.uint8
    assert data.dataset.mean
    one, other = both(build("mlp", (3, 4, 4), 3, seed=1, options={"hidden": [20]}), data)
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [30.0, 1e4])
def test_logits_far_apart_neither_overflow_nor_vanish(scale, federated):
    module, data = build("linear", (5,), 3, seed=1), federated(SIZES, (5,), "features")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    one, other = both(module, data)
    assert one.loss.max() > scale / 10
    # A weight of this size can only move by its last bit, 1e-7 of it.
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5 + 1e-7 * scale)
    np.testing.assert_allclose(other.loss, one.loss, rtol=1e-5)


def test_an_infinite_sample_is_noticed_by_the_engine_itself(federated):
    data = federated(SIZES, (5,), "features")
    data.dataset.train_x[0] = np.inf
    guilty = [0 in data.train[client] for client in IDS]
    assert sum(guilty) == 1
    for hidden in ([], [6], [6, 4]):
        module = (
            build("mlp", (5,), 3, seed=1, options={"hidden": hidden}) if hidden else build("linear", (5,), 3, seed=1)
        )
        trained = both(module, data)[1]
        assert trained.finite is not None
        assert (~trained.finite).tolist() == (~np.isfinite(trained.update).all(axis=1)).tolist() == guilty


def test_batches_are_drawn_as_numpy_draws_them():
    rng = np.random.Generator(np.random.Philox(1))
    sizes = np.concatenate([[1, 1, 2, 3, 4], rng.integers(1, 400, 20)])
    train = ClientIndex(rng.permutation(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
    locals_ = [LocalSGD(batch_size=b, epochs=e) for b in (1, 7, 64, 1000) for e in (1, 3)]
    locals_ += [LocalSGD(batch_size=b, steps=s) for b in (1, 7, 64) for s in (1, 5, 200)]
    locals_ += [replace(local, drop_last=True) for local in locals_]
    for number, local in enumerate(locals_):
        for seed in (number, 2**31 + number, 2**64 + 1, 2**150 + 3):
            for client in rng.permutation(len(sizes))[:5]:
                found = library.batch_plan_in_c(seed, number, client, train, local)
                np.testing.assert_array_equal(
                    found, batch_plans(seed, number, np.array([client]), [train[client]], local)[0]
                )
    assert library.draws_as_numpy_does()


def test_where_another_numpy_draws_otherwise_it_says_so(federated, monkeypatch):
    monkeypatch.setattr(trainer, "draws_as_numpy_does", lambda: False)
    assert "its batches differ from those of the installed release of NumPy" in refused(federated)


def test_terms_of_a_solver_are_numbers_and_vectors(federated):
    module, data = build("linear", (5,), 3, seed=1), federated(SIZES, (5,), "features")
    solver, rng = Strength(), np.random.Generator(np.random.Philox(1))
    terms = {"strength": rng.random((4, 1), np.float32), "memory": rng.random((4, 18), np.float32)}
    one, other = (
        engine.train(engine.initial, IDS, 1, 0.1, terms).update
        for engine in (
            TorchEngine(kind, Task(module, data, solver, LocalSGD(batch_size=4), 3)) for kind in (Sequential, Native)
        )
    )
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)


def test_a_wide_layer_before_few_examples_takes_memory_for_these_only(federated):
    module = nn.Sequential(nn.Linear(4, 60_000), nn.ReLU(), nn.Linear(60_000, 3))
    one, other = both(module, federated(SIZES, (4,), "features"))
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)
    engine = TorchEngine(Native, Task(module, federated(SIZES, (4,), "features"), FedAvg(), LocalSGD(batch_size=4), 3))
    engine.train(engine.initial, IDS, 2, 0.05)
    assert engine.trainer.memory.nbytes < 150 * 60_000 * 4


def test_numbers_of_other_types_are_taken_as_they_are_meant(federated):
    module, data = build("linear", (5,), 3, seed=1), federated(SIZES, (5,), "features")
    narrow = ClientIndex(data.train.order.astype(np.int32), np.repeat(data.train.offsets, 2)[::2])
    other = replace(data, train=narrow)
    one = TorchEngine(Native, Task(module, data, FedAvg(), LocalSGD(), 5))
    two = TorchEngine(Native, Task(module, other, FedAvg(), LocalSGD(), np.int64(5)))
    expected = one.train(one.initial, IDS, 1, 0.1).update
    assert two.train(two.initial, IDS.astype(np.int32), np.int64(1), 0.1).update.tobytes() == expected.tobytes()


def test_what_would_lead_c_astray_is_refused(federated):
    module, data = build("linear", (5,), 3, seed=1), federated(SIZES, (5,), "features")
    engine = TorchEngine(Native, Task(module, data, FedAvg(), LocalSGD(), 5))
    with pytest.raises(ValueError, match="weights must have shape"):
        engine.trainer.add_up(np.ones(3), np.ones((4, 2), np.float32))
    empty = ClientIndex(data.train.order, np.array([0, 12, 12, 19, 24]))
    engine = TorchEngine(Native, Task(module, replace(data, train=empty), FedAvg(), LocalSGD(), 5))
    with pytest.raises(TrainingError, match="Client 1 must have training examples"):
        engine.train(engine.initial, IDS, 1, 0.1)
    with pytest.raises(ConfigError, match="from 0 to 2 for 3 classes; got labels from 0 to 3"):
        TorchEngine(
            Native, Task(module, replace(data, labels=data.labels + (data.labels == 2)), FedAvg(), LocalSGD(), 5)
        )


@pytest.mark.parametrize("name", ["train", "test"])
def test_it_judges_as_torch_does(name, federated):
    data = federated((150, 2, 40, 70), (3, 4, 4), "image")
    module = build("mlp", (3, 4, 4), 3, seed=1, options={"hidden": [20, 7]})
    plain, engine = (TorchEngine(kind, Task(module, data, FedAvg(), LocalSGD(), 5)) for kind in (Sequential, Native))
    params, index = plain.initial * 3, np.arange(len(plain.trainer.samples[name]))[::-1].copy()
    (right, loss), (right_in_c, loss_in_c) = (e.predict(params, name, index) for e in (plain, engine))
    np.testing.assert_array_equal(right_in_c, right)
    np.testing.assert_allclose(loss_in_c, loss, rtol=1e-5, atol=1e-6)
    assert 0 < right.mean() < 1
    params[:] = np.nan
    right, loss = engine.predict(params, name, index)
    np.testing.assert_array_equal(right, plain.predict(params, name, index)[0])
    assert np.isnan(loss).all()


def test_data_without_a_test_set_will_do(federated):
    data = federated(SIZES, (5,), "features")
    d = replace(data.dataset, test_x=data.dataset.test_x[:0], test_y=data.dataset.test_y[:0])
    one, other = both(build("linear", (5,), 3, seed=1), replace(data, dataset=d))
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)


def test_groups_hold_everybody_once_and_become_smaller(federated, monkeypatch):
    monkeypatch.setattr(trainer, "PRODUCTS", 50)
    monkeypatch.setattr(trainer, "PRODUCTS_OF_A_CLIENT", 1)
    data = federated(tuple(range(2, 40)), (5,), "features")
    engine = TorchEngine(Native, Task(build("linear", (5,), 3, seed=1), data, FedAvg(), LocalSGD(), 0), threads=1)
    ids = np.arange(38)[::-1].copy()
    assert [len(group) for group in engine.groups(ids)] == [38]  # nobody else could take a part
    groups = engine.trainer.groups(ids, 3)
    assert sorted(np.concatenate(groups)) == ids[::-1].tolist()
    work = [int(data.train.sizes[ids[group]].sum()) for group in groups]
    assert len(groups) > 5
    assert work[0] == max(work)
    assert work[-1] < work[0] / 2
    assert len(engine.trainer.groups(ids[:1], 3)) == 1


def test_a_client_trains_to_the_same_bits_in_any_group(federated):
    torch.manual_seed(0)
    data = federated((200, 60, 20, 3), (141,), "features")  # only some see so few that the first layer is formed last
    for solver in (FedAvg(), FedProx(mu=0.1), Scaffold()):
        engine = TorchEngine(Native, Task(broad(), data, solver, LocalSGD(batch_size=8), 3))
        drift = np.zeros((4, engine.num_trainable), np.float32)
        drift[1] = 0.01
        terms = {"drift": drift} if isinstance(solver, Scaffold) else {}
        together = engine.train(engine.initial, IDS, 1, 0.1, terms).update
        for some in ([0], [1], [2], [3], [2, 3], [0, 2]):
            own = {name: rows[some] for name, rows in terms.items()}
            apart = engine.train(engine.initial, np.array(some), 1, 0.1, own).update
            assert apart.tobytes() == together[some].tobytes()


def test_one_large_client_costs_the_others_no_memory(federated):
    data = federated((20_000, *[5] * 300), (3,), "features")
    engine = TorchEngine(
        Native, Task(build("linear", (3,), 3, seed=1), data, FedAvg(), LocalSGD(batch_size=10, epochs=3), 0)
    )
    engine.train(engine.initial, np.arange(301), 1, 0.1)
    assert engine.trainer.room.nbytes < 8 * 20_000 * 4 + 1000


@dataclass(frozen=True)
class Cubed(FedProx):
    """Inherits `affine`, but is not."""

    def correct(self, gradient, params, broadcast):
        return gradient + (params - broadcast) ** 3


@dataclass(frozen=True)
class CubedAndSaysSo(Cubed):
    affine: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("module", "solver", "reason"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), FedAvg(), "got Sequential: it has a layer Tanh"),
        (nn.Sequential(*(nn.Linear(5, 5) for _ in range(64)), nn.Linear(5, 3)), FedAvg(), "more than 64 layers"),
        (nn.Sequential(nn.Linear(5, 3)), Cubed(), "requires a solver with `affine = True`.*got Cubed"),
        (nn.Sequential(nn.Linear(5, 3)), CubedAndSaysSo(), "got CubedAndSaysSo"),
    ],
)
def test_what_it_cannot_train_is_refused(module, solver, reason, federated):
    module = nn.Sequential(nn.Flatten(), *module)
    with pytest.raises(ConfigError, match=reason):
        TorchEngine(Native, Task(module, federated(SIZES, (5,), "features"), solver, LocalSGD(), 0))


# ------------------------------------------------------------------------------------------------------ compiling


@pytest.fixture
def no_library(tmp_path, monkeypatch):
    """Forget what was compiled, and compile into a new folder; without optimising, which takes a tenth of the time."""
    monkeypatch.setattr(library, "OPTIONS", ("-O0", *library.OPTIONS[1:]))
    monkeypatch.setattr(library, "cache_folder", lambda: tmp_path / "cache")
    library._load_once.cache_clear()
    yield tmp_path
    library._load_once.cache_clear()


def refused(federated):
    module, data = nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), federated(SIZES, (5,), "features")
    with pytest.raises(ConfigError, match="a C compiler") as caught:
        TorchEngine(Native, Task(module, data, FedAvg(), LocalSGD(), 0))
    return str(caught.value)


def test_it_is_compiled_once_and_kept(no_library):
    first = library.library()
    (kept,) = (no_library / "cache" / "native").iterdir()
    made = kept.stat().st_mtime_ns
    library._load_once.cache_clear()
    again = library.library()
    assert again is not first
    assert kept.stat().st_mtime_ns == made
    assert [path.suffix for path in (no_library / "cache" / "native").iterdir()] == [".so"]


def test_without_a_compiler_it_says_so_and_auto_takes_another_engine(no_library, federated, monkeypatch):
    from fedreach.engines.choice import choose

    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler was found (cc, gcc or clang)" in refused(federated)
    data = federated(SIZES, (5,), "features")
    chosen = choose(Task(build("linear", (5,), 3, seed=0), data, FedAvg(), LocalSGD(), 0))
    assert chosen.name != "native"
    assert "no C compiler" in chosen.refused["native"]


def test_the_compiler_that_cc_names_is_taken(no_library, federated, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    assert "the compiler 'no-such-compiler' from the environment variable CC was not found" in refused(federated)
    for command, answer in (
        ("false", "false failed"),
        ("true", "true failed"),  # it ends well, but with nothing
        ("gcc '-O1", "CC is not a valid command"),
    ):
        library._load_once.cache_clear()
        monkeypatch.setenv("CC", command)
        assert answer in refused(federated)
    monkeypatch.setenv("CC", "gcc")
    assert answer in refused(federated)  # a compiler that failed is not asked again and again


def test_what_a_compiler_says_in_other_letters_is_no_obstacle(no_library, federated, monkeypatch):
    script = no_library / "compiler"
    script.write_bytes(b"#!/bin/sh\nprintf 'error: gr\\374ner' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    assert "failed: error: gr\ufffdner" in refused(federated)


@pytest.mark.slow
def test_a_library_of_which_a_part_is_missing_is_compiled_anew(no_library):
    library.library()
    (kept,) = (no_library / "cache" / "native").iterdir()
    whole = kept.read_bytes()
    for part in (b"", whole[:100], whole[:5000], whole[: len(whole) // 2] + bytes(len(whole) // 2)):
        library._load_once.cache_clear()
        kept.unlink()  # what is loaded may be mapped
        kept.write_bytes(part)
        assert library.library().memory_numbers
        assert whole in [path.read_bytes() for path in (no_library / "cache" / "native").iterdir()]


def test_a_user_without_a_home_has_it_among_temporary_files(no_library, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(library, "cache_folder", homeless)
    monkeypatch.setattr(library.tempfile, "gettempdir", lambda: str(no_library / "tmp"))
    assert library.library().train
    assert [path.suffix for path in (no_library / "tmp").glob("*/*")] == [".so"]


def test_elsewhere_than_on_posix_it_says_so(no_library, federated, monkeypatch):
    monkeypatch.setattr(library.os, "name", "nt")
    monkeypatch.setattr(library.platform, "system", lambda: "Windows")
    with pytest.raises(library.NoLibraryError, match="supports Linux and macOS only, not Windows"):
        library.library()


def test_a_cache_that_others_can_write_to_is_not_trusted(no_library, monkeypatch):
    folder = no_library / "cache" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setattr(library.tempfile, "gettempdir", lambda: str(no_library / "tmp"))
    library.library()
    assert not list(folder.iterdir())
    assert [path.suffix for path in (no_library / "tmp").glob("*/*")] == [".so"]


def test_a_cache_that_cannot_be_made_is_done_without(no_library, monkeypatch):
    (no_library / "cache").write_text("a file, not a folder")
    monkeypatch.setattr(library.tempfile, "gettempdir", lambda: str(no_library / "tmp"))
    library.library()
    assert [path.suffix for path in (no_library / "tmp").glob("*/*")] == [".so"]
    (Path(no_library) / "tmp").rename(no_library / "elsewhere")
    (no_library / "tmp").write_text("no folder either")
    library._load_once.cache_clear()
    with pytest.raises(library.NoLibraryError, match="cannot be stored or loaded"):
        library.library()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are options for x86")
@pytest.mark.parametrize("without", ["-mno-avx512f", "-mno-avx", "-mno-fma"])
@pytest.mark.sampled(3)
def test_processors_with_smaller_vectors_train_as_well(without, no_library, federated, monkeypatch):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    monkeypatch.setenv("CC", f"gcc {without}")
    monkeypatch.setattr(library, "OPTIONS", ("-O2", *library.OPTIONS[1:]))
    torch.manual_seed(0)
    data = federated((60, 2, 8, 6), (141,), "features")
    for module in (broad(), build("mlp", (141,), 3, seed=1, options={"hidden": [20, 7]})):
        one, other = both(module, data, LocalSGD(batch_size=30))
        np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)
        engine = TorchEngine(Native, Task(module, data, FedAvg(), LocalSGD(), 0))
        weights = np.array([0.1, 0.6, 0.2, 0.1])
        assert engine.trainer.add_up(weights, one.update).tobytes() == weighted_sum(weights, one.update).tobytes()
