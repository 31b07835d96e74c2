"""A model that is loaded, exported or resumed holds all that the run's module held, not only what was averaged."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.deploy.export import export
from fedreach.deploy.saved import load
from fedreach.runs.folder import CONSTANTS, RunFolder

MODULE = '''
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Constants of every kind, drawn by numpy, so that no seed of torch repeats them."""

    def __init__(self, num_classes):
        super().__init__()
        self.last = nn.Linear(64, num_classes)
        self.body = nn.Linear(64, 64).requires_grad_(False)
        self.register_buffer("mask", torch.from_numpy(np.random.rand(64) > 0.5))
        self.register_buffer("order", torch.from_numpy(np.random.permutation(64)))
        self.register_buffer("code", torch.from_numpy(np.random.rand(64).astype("f4")), persistent=False)
        self.register_buffer("coarse", torch.from_numpy(np.random.rand(64)).bfloat16())
        nn.init.eye_(self.body.weight).mul_(float(np.random.rand()) + 0.5)

    def forward(self, x):
        x = x.flatten(1)[:, self.order] * self.mask + self.code + self.coarse
        return self.last(self.body(x))
'''


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return ``make(folder, **options)``, which runs two rounds and returns the last row."""
    (tmp_path / "net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def make(folder, rounds=2, **options):
        data = fr.load("digits").partition("iid", clients=6, participants=3)
        rows = list(fr.run(data, fr.Method(), model="net.py:Net", rounds=rounds, cohort_size=3, out=folder, **options))
        return rows[-1] if rows else None

    return make


def right(model):
    digits = fr.load("digits")
    return float((model.predict(digits.test_x).astype(int) == digits.test_y).mean())


def test_a_loaded_model_says_what_the_run_wrote_down(made):
    row = made("run")
    assert right(load("run")) == pytest.approx(row["test_accuracy"], abs=1e-6)


def test_an_exported_model_says_what_the_run_wrote_down(made, tmp_path):
    row = made("run")
    export(load("run"), tmp_path / "out", "safetensors")
    model = load(tmp_path / "out")
    assert right(model) == pytest.approx(row["test_accuracy"], abs=1e-6)
    assert model.net.coarse.dtype == torch.bfloat16
    export(load("run"), tmp_path / "graph", "torch")
    graph = torch.export.load(tmp_path / "graph" / "model.pt2").module()
    x = load("run").raw(fr.load("digits").test_x)
    assert torch.equal(graph(x), load("run")(x))


def test_a_resumed_run_goes_on_with_the_constants_that_it_began_with(made):
    np.random.seed(0)  # noqa: NPY002
    engine = {"name": "sequential"}  # `auto` goes by time, and two engines round otherwise
    whole = made("whole", rounds=4, engine=engine)
    np.random.seed(0)  # noqa: NPY002
    data = fr.load("digits").partition("iid", clients=6, participants=3)
    rows = fr.run(data, fr.Method(), model="net.py:Net", rounds=4, cohort_size=3, out="cut", engine=engine)
    for _ in range(2):
        next(rows)
    rows.close()
    np.random.seed(7)  # noqa: NPY002
    assert made("cut", rounds=4, engine=engine)["train_loss"] == whole["train_loss"]


def test_constants_are_written_once_and_only_what_is_trained_is_in_a_model(made, tmp_path):
    from safetensors.numpy import load_file

    made("run")
    assert sorted(load_file(tmp_path / "run" / CONSTANTS)) == [
        "body.bias",
        "body.weight",
        "coarse",
        "code",
        "mask",
        "order",
    ]
    assert sorted(load_file(tmp_path / "run" / "last.safetensors")) == ["last.bias", "last.weight"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert CONSTANTS in result["files"]


def test_changed_constants_are_refused(made, tmp_path):
    made("run")
    folder = RunFolder(tmp_path / "run")
    held, _ = folder.read_tensors(CONSTANTS)
    folder.write_tensors(CONSTANTS, held | {"code": held["code"] + 1}, {})
    with pytest.raises(RunFolderError, match=r"constants\.safetensors was altered"):
        load("run")


def test_a_model_without_constants_leaves_no_file_of_them(tmp_path):
    data = fr.load("digits").partition("iid", clients=6, participants=3)
    list(fr.run(data, fr.Method(), model="linear", rounds=1, cohort_size=3, out=tmp_path / "run"))
    assert not (tmp_path / "run" / CONSTANTS).exists()


def rows_of(seed, shift, m=40):
    x = np.random.default_rng(seed).standard_normal((m, 6)).astype("f4") + np.float32(shift)
    return x, (x[:, 0] > shift).astype(int)


def normalized():
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 2)
    return nn.Sequential(*layers)


def test_an_unseen_clients_score_does_not_depend_on_other_unseen_clients(tmp_path):
    found = {}
    for name, more in (("alone", {}), ("beside", {"v1": rows_of(7, -3)})):
        trains = {f"p{i}": rows_of(i, 0) for i in range(4)}
        data = fr.FederatedData.from_clients({**trains, "u0": rows_of(9, 1.5), **more}, participants=list(trains))
        list(fr.run(data, fr.Method(), model=normalized, rounds=2, cohort_size=4, out=tmp_path / name))
        lines = map(json.loads, (tmp_path / name / "clients.jsonl").read_text().splitlines())
        found[name] = [line for line in lines if line["population"] == "unseen"][-1]
    assert found["alone"]["accuracy"][0] == found["beside"]["accuracy"][0]
    assert found["alone"]["loss"][0] == found["beside"]["loss"][0]
    x, y = rows_of(9, 1.5)
    net = load(tmp_path / "beside").net
    with torch.no_grad():
        said = net(torch.from_numpy(x)).argmax(1).numpy()
    assert found["alone"]["accuracy"][0] == pytest.approx((said == y).mean(), abs=1e-9)


class Centred(nn.Module):
    """Normalizes by the batch in code of its own."""

    def forward(self, x):
        return x - x.mean(0)


def centred():
    return nn.Sequential(Centred(), nn.Linear(6, 2))


class CentredIfFull(nn.Module):
    """Normalizes by batches that hold more than a few examples."""

    def forward(self, x):
        return x - x.mean(0) if len(x) > 4 else x


def centred_if_full():
    return nn.Sequential(CentredIfFull(), nn.Linear(6, 2))


@pytest.mark.parametrize("model", [normalized, centred, centred_if_full])
def test_a_clients_predictions_do_not_depend_on_other_rows_of_the_file(model, data, tmp_path):
    from fedreach.deploy.export import predict_file

    list(fr.run(data, fr.Method(), model=model, rounds=1, cohort_size=2, out=tmp_path / "run"))
    trained = load(tmp_path / "run")
    a, b = rows_of(1, 0)[0], rows_of(2, 3)[0]
    found = {}
    for name, parts in (("alone", {"a": a}), ("beside", {"b": b, "a": a})):
        owner = np.concatenate([np.full(len(rows), client) for client, rows in parts.items()])
        np.savez(tmp_path / f"{name}.npz", x=np.concatenate([*parts.values()]), client=owner)
        said, _ = predict_file(trained, tmp_path / f"{name}.npz", client="client")
        found[name] = said.outputs[owner == "a"]
    assert found["alone"].tobytes() == found["beside"].tobytes()


def test_a_saved_model_predicts_in_even_batches_where_it_mixes_examples(data, tmp_path, monkeypatch):
    list(fr.run(data, fr.Method(), model=normalized, rounds=1, cohort_size=2, out=tmp_path / "run"))
    trained = load(tmp_path / "run")
    monkeypatch.setattr("fedreach.deploy.model.EVALUATION_BATCH", 4)
    x = rows_of(1, 0)[0][:9]
    with torch.no_grad():
        parts = [trained.net(part) for part in torch.tensor_split(torch.from_numpy(x), 3)]  # not 4, 4 and 1
    np.testing.assert_allclose(trained.logits(x), torch.cat(parts), rtol=0, atol=1e-6)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    clients = {n: (rng.random((30, 6)), np.arange(30) % 2) for n in "abc"}
    return fr.FederatedData.from_clients(clients, participants=["a", "b"])


def pretrained():
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    nn.init.eye_(net[0].weight)
    net[1].running_mean.fill_(0.25)
    net[0].requires_grad_(False)
    net[1].requires_grad_(False)
    return net.eval()


def test_a_frozen_body_that_is_handed_over_keeps_its_weights_and_the_head_is_drawn(data, tmp_path):
    net = pretrained()
    list(fr.run(data, fr.Method(), model=net, rounds=1, cohort_size=2, out=tmp_path / "run"))
    loaded = load(tmp_path / "run").net
    assert torch.equal(loaded[0].weight, torch.eye(6))
    assert not torch.equal(loaded[3].weight, net[3].weight)


def test_what_is_drawn_and_what_stays_is_said_in_one_line(data, tmp_path, capsys):
    from fedreach.engines.engine import TorchEngine
    from fedreach.engines.models.state import ModuleInstance
    from fedreach.engines.protocols import Task
    from fedreach.engines.sequential import Sequential
    from fedreach.federation.local_sgd import LocalSGD
    from fedreach.federation.solvers import FedAvg

    module = ModuleInstance(pretrained())()
    assert float(module[1].running_mean[0]) == 0.25
    engine = TorchEngine(Sequential, Task(module, data, FedAvg(), LocalSGD(), 0))
    assert engine.note == "model: 14 parameters are trained and initialized again for each seed; 54 are frozen"


def test_lazy_layers_get_their_sizes_before_anything_is_counted(data, tmp_path):
    def lazy():
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))

    (row,) = (
        r for r in fr.run(data, fr.Method(), model=lazy, rounds=1, cohort_size=2, out=tmp_path / "run") if r["round"]
    )
    assert np.isfinite(row["train_loss"])
    assert load(tmp_path / "run").net[0].weight.shape == (8, 6)


def old_weight_norm():
    with warnings.catch_warnings(action="ignore"):  # torch: it is deprecated
        return nn.utils.weight_norm(nn.Linear(6, 2))


class Cached(nn.Linear):
    """Keeps what it computed from its weight when it was made."""

    def __init__(self):
        super().__init__(6, 2)
        self.doubled = 2 * self.weight

    def forward(self, x):
        return nn.functional.linear(x, self.doubled, self.bias)


def tied():
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2))
    net[2].weight = net[0].weight
    return net


def normed():
    return nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))


def test_a_module_that_keeps_a_computed_tensor_is_rejected(data):
    with pytest.raises(ConfigError, match=r"copy\.deepcopy can copy.*Compute such tensors in forward"):
        list(fr.run(data, fr.Method(), model=Cached, rounds=1, cohort_size=2))


@pytest.mark.parametrize("layer", [old_weight_norm(), nn.utils.spectral_norm(nn.Linear(6, 2))])
def test_a_layer_whose_weight_is_computed_by_a_hook_is_not_drawn_anew(layer, data):
    with pytest.raises(ConfigError, match=r"reset_parameters\(\).*got Linear with parameters bias, weight_"):
        list(fr.run(data, fr.Method(), model=layer, rounds=1, cohort_size=2))
    list(fr.run(data, fr.Method(), model={"name": layer, "keep_weights": True}, rounds=1, cohort_size=2))


def test_an_exported_graph_computes_the_weight_from_what_was_trained(data, tmp_path):
    list(fr.run(data, fr.Method(), model=old_weight_norm, rounds=2, cohort_size=2, out=tmp_path / "run"))
    model = load(tmp_path / "run")
    net, x = model.net, torch.from_numpy(np.random.default_rng(1).random((4, 6), np.float32))
    weight = net.weight_g * net.weight_v / net.weight_v.norm(dim=1, keepdim=True)  # eq. 2 of arXiv:1602.07868
    expected = nn.functional.linear(x, weight, net.bias)
    model.save(tmp_path / "model.pt2")
    graph = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(graph(x), expected)


@pytest.mark.parametrize("model", [tied, normed, old_weight_norm])
def test_tied_weights_and_parametrizations_train_and_load(model, data, tmp_path):
    rows = list(fr.run(data, fr.Method(), model=model, rounds=2, cohort_size=2, out=tmp_path / "run"))
    assert np.isfinite(rows[-1]["train_loss"])
    load(tmp_path / "run")
