"""A run's model, whole: what the engine says of raw samples, here and where there is torch alone."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedreach._util.arrays import Ints
from fedreach._util.errors import ConfigError, DataError, RunFolderError
from fedreach.deploy.model import Expected
from fedreach.deploy.saved import load
from fedreach.deploy.weights import content
from fedreach.engines.models.networks import MODELS, build
from fedreach.federation.adaptation.base import log_softmax
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import AdaptedLine

from ..report.made_up import listed, rewrite  # noqa: TID252 (tests are no package that has a name)
from .worlds import OWN, World, make

WorldNamed = Callable[[str], World]
ALL = ("images", "colours", "features", "tokens", "own", "table")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As engines compute: with more, a product is added up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> WorldNamed:
    """Finished runs by name, each made when it is first asked for."""
    made: dict[str, World] = {}

    def call(name: str) -> World:
        if name not in made:
            made[name] = make(name, tmp_path_factory.mktemp(name))
        return made[name]

    return call


# ------------------------------------------------------------------------------------------------ what it says


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("name", [*ALL, "stubborn"])
@pytest.mark.sampled(4)
def test_it_says_of_raw_samples_what_the_engine_says_to_the_bit(world: WorldNamed, name: str, which: str) -> None:
    w = world(name)
    model, index = w.model(which), w.held_out()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in torch.split(model.raw(w.at(index)), 256)])
    expected = w.logits(index, which)
    np.testing.assert_array_equal(logits.numpy(), expected, strict=True)
    np.testing.assert_array_equal(model.predict_proba(w.at(index)), np.exp(log_softmax(expected.astype(float))))
    classes, names = model.predict(w.at(index)), w.data.dataset.class_names
    assert classes.tolist() == [c if names is None else names[c] for c in expected.argmax(axis=1).tolist()]
    assert which == "best" or len(set(classes.tolist())) > 1  # or a constant would do


def test_the_best_model_is_another_one_than_the_last(world: WorldNamed) -> None:
    last, best = (world("tokens").model(which) for which in ("last", "best"))
    assert last.origin.round == 3
    assert best.origin.round < 3
    assert not last.net.output.weight.equal(best.net.output.weight)  # type: ignore[operator,union-attr]


def test_classes_are_called_what_the_data_call_them(world: WorldNamed) -> None:
    assert world("colours").model().class_names == ("red", "green", "blue")
    assert world("table").model().class_names == ("no", "yes")
    assert world("images").model().class_names is None
    assert world("images").model().predict(world("images").at(np.arange(3))).dtype == np.int64


def test_no_samples_have_no_classes(world: WorldNamed) -> None:
    for name in ALL:
        w = world(name)
        nothing, model = w.at(np.empty(0, np.int64)), w.model()
        assert model.predict(nothing).shape == (0,)
        assert model.predict_proba(nothing).shape == (0, model.num_classes)


def test_tensors_and_other_whole_numbers_do_as_well(world: WorldNamed) -> None:
    for name, dtype in (
        ("images", torch.uint8),
        ("tokens", torch.int32),
        ("tokens", torch.uint8),
        ("features", torch.float64),
    ):
        w = world(name)
        x = w.at(np.arange(9))
        np.testing.assert_array_equal(w.model().predict(torch.tensor(x).to(dtype)), w.model().predict(x))


# ----------------------------------------------------------------------------------------------------- tables


def test_a_table_of_pandas_says_the_same_as_a_dictionary(world: WorldNamed) -> None:
    w = world("table")
    rows = w.at(np.arange(40))
    frame = pd.DataFrame(rows).assign(further=1)[::-1]
    assert w.model().predict(frame).tolist() == w.model().predict(rows).tolist()[::-1]


def test_columns_of_a_table_are_told_and_become_one_number_each(world: WorldNamed) -> None:
    model = world("table").model()
    assert model.columns == ("age", "pressure", "ward", "smoker")
    assert model.feature_names is not None
    assert model.feature_names[:4] == ("age", "pressure", "pressure is missing", "ward = heart")
    raw = model.raw(
        {
            "age": [50.5, None, 3],
            "pressure": [None, 120, 1.5],
            "ward": ["surgery", "eyes", None],
            "smoker": ["True", "False", "True"],
        }
    )
    nan = float("nan")
    expected = [[50.5, nan, 1, 1], [nan, 120, -1, 0], [3, 1.5, nan, 1]]
    np.testing.assert_array_equal(raw.numpy(), np.array(expected), strict=True)


def test_inputs_of_a_table_are_made_to_the_bit_as_for_training(world: WorldNamed) -> None:
    w = world("table")
    model, prepared = w.model(), w.data.dataset.preparation
    assert prepared is not None
    odd = {
        "age": [None, 1e30, -7.25, 50.0],
        "pressure": [1.1, None, None, 140.0],
        "ward": ["eyes", None, "heart", "surgery"],
        "smoker": ["True", "False", "maybe", None],
    }
    for table in (w.rows, odd):
        np.testing.assert_array_equal(model.inputs(model.raw(table)).numpy(), prepared.inputs(table), strict=True)
    np.testing.assert_array_equal(model.inputs(model.raw(w.rows)).numpy(), w.data.dataset.train_x, strict=True)


# ------------------------------------------------------------------------------------------- a module of torch


def test_it_is_in_evaluation_mode_and_wants_no_gradient(world: WorldNamed) -> None:
    for name in ("own", "colours"):  # dropout and BatchNorm
        w = world(name)
        model, x = w.model(), w.model().raw(w.at(np.arange(8)))
        assert not any(part.training for part in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert model(x).equal(model(x))
        # Nor does it depend on who else is asked about, but for rounding.
        torch.testing.assert_close(torch.cat([model(one) for one in x.split(1)]), model(x), rtol=1e-5, atol=1e-5)


def test_it_can_be_trained_further_and_then_predicts_once_it_is_in_evaluation_mode(world: WorldNamed) -> None:
    w = world("own")
    model, index = w.model().requires_grad_(True).train(), np.arange(64)
    torch.manual_seed(0)
    x, y = model.raw(w.at(index)), torch.tensor(w.data.dataset.train_y[index])
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    before = float(F.cross_entropy(model(x), y).detach())
    for _ in range(40):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    for ask in (model.predict, model.predict_proba, model.answers):
        with pytest.raises(ConfigError, match=r"in training mode.*Call model\.eval\(\) first"):
            ask(w.at(index))
    with pytest.raises(ConfigError, match="in training mode"):
        model.save(w.base / "no.pt2")
    assert float(F.cross_entropy(model.eval()(x), y).detach()) < before
    assert (model.predict(w.at(index)) == y.numpy()).mean() > 0.9


@pytest.mark.parametrize("name", [*ALL])
def test_a_copy_a_pickle_and_a_state_say_the_same(world: WorldNamed, name: str) -> None:
    w = world(name)
    model = w.model()
    x = model.raw(w.at(np.arange(20)))
    other = w.model()
    for tensor in (*other.parameters(), *other.buffers()):
        tensor.zero_()
    other.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other):
        assert twin(x).equal(model(x))
        assert (twin.class_names, twin.columns, twin.training) == (model.class_names, model.columns, False)
        next(twin.net.parameters()).add_(1.0)
        assert not next(twin.net.parameters()).equal(next(model.net.parameters()))  # a storage of its own


def test_parameters_share_no_storage(world: WorldNamed) -> None:
    from safetensors.torch import save  # which refuses tensors that do

    assert save({name: value.contiguous() for name, value in world("colours").model().state_dict().items()})
    places = [tensor.untyped_storage().data_ptr() for tensor in world("colours").model().parameters()]
    assert len(set(places)) == len(places)


@pytest.mark.slow
def test_a_module_of_ones_own_comes_out_of_a_pickle_in_another_process(world: WorldNamed, tmp_path: Path) -> None:
    w = world("own")
    model, samples = w.model(), w.at(np.arange(20))
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    np.save(tmp_path / "x.npy", samples)
    code = (
        "import pickle, numpy as np\nprint(pickle.load(open('model.pickle', 'rb')).predict(np.load('x.npy')).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == model.predict(samples).tolist()


def test_it_says_what_it_is(world: WorldNamed) -> None:
    assert repr(world("images").model("best")).startswith(
        "TrainedModel(\n  run on digits, seed 1, best\n  (inputs): Pixels()"
    )


def test_it_moves_to_another_device_whole(world: WorldNamed) -> None:
    for name in ALL:
        model = world(name).model().to("meta")
        assert model(world(name).model().raw(world(name).at(np.arange(2))).to("meta")).device.type == "meta"


# ----------------------------------------------------------------------------------- where there is torch alone

ALONE = """
import json, sys
sys.modules["fedreach"] = None  # cannot be imported
import torch
torch.set_num_threads(1)

def number(column, value):
    if value is None or value != value:
        return float("nan")
    if column["kind"] == "number":
        return float(value)
    if column["kind"] == "boolean":
        return float(value.lower() == "true")
    return column["categories"].index(value) if value in column["categories"] else -1

for name in sys.argv[1:]:
    extra = {"fedreach.json": ""}
    model = torch.export.load(f"{name}.pt2", extra_files=extra).module()
    about = json.loads(extra["fedreach.json"])
    x = torch.load(f"{name}.pt")
    if about["kind"] == "table":
        rows = json.load(open(f"{name}.json"))
        x = torch.tensor([[number(c, row[c["name"]]) for c in about["columns"]] for row in rows], dtype=torch.float64)
    logits = {m: model(x[:m]) for m in (0, 1, 2, 3, len(x))}
    names = about["classes"] or range(len(logits[1][0]))
    try:
        refused = str(model(torch.zeros_like(x, dtype=torch.float16)))
    except Exception as error:
        refused = str(error)
    classes = [names[c] for c in logits[len(x)].argmax(1)]
    torch.save({"logits": logits, "classes": classes, "about": about, "refused": refused}, f"{name}.out")
"""
"""What a process without FedReach does with files, whose names are its arguments; only of tables it has the rows."""


class Alone(NamedTuple):
    """What a process without FedReach said, and what it was asked about."""

    said: dict[str, Any]
    index: Ints
    folder: Path


@pytest.fixture(scope="module")
def alone(world: WorldNamed, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Alone]:
    """A world's file in a process without FedReach, which is the same for all."""
    folder = tmp_path_factory.mktemp("alone")
    for name in ALL:
        w = world(name)
        w.model().save(folder / f"{name}.pt2")
        torch.save(w.model().raw(w.at(asked(w))), folder / f"{name}.pt")
    rows = world("table").at(asked(world("table")))
    of_rows = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    plain = [{key: getattr(value, "item", lambda v=value: v)() for key, value in row.items()} for row in of_rows]
    (folder / "table.json").write_text(json.dumps(plain), encoding="utf-8")
    (folder / "table.pt").write_bytes((folder / "images.pt").read_bytes())  # which is not looked at
    command = [sys.executable, "-I", "-W", "error", "-c", ALONE, *ALL]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return lambda name: Alone(torch.load(folder / f"{name}.out"), asked(world(name)), world(name).base)


def asked(w: World) -> Ints:
    return w.held_out()[:50]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_file_gives_the_same_bits_where_there_is_torch_alone(
    world: WorldNamed, alone: Callable[[str], Alone], name: str
) -> None:
    w, (said, index, _) = world(name), alone(name)
    model = w.model()
    x = model.raw(w.at(index))
    for m, logits in said["logits"].items():
        assert logits.equal(model(x[:m])), m
    assert said["classes"] == model.predict(w.at(index)).tolist()
    assert "dtype" in said["refused"]  # the file itself says that other numbers are none of its


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("images", "image", "uint8"),
        ("colours", "image", "uint8"),
        ("features", "features", "float32"),
        ("tokens", "tokens", "int64"),
        ("table", "table", "float64"),
    ],
)
def test_a_file_tells_what_it_is(alone: Callable[[str], Alone], name: str, kind: str, dtype: str) -> None:
    said, _, folder = alone(name)
    about = said["about"]
    assert (about["kind"], about["dtype"], about["seed"], about["model"], about["round"]) == (kind, dtype, 1, "last", 3)
    assert str(folder) not in str(about)
    if name == "table":
        assert about["features"][:2] == ["age", "pressure"]
        ward = {"name": "ward", "kind": "category", "categories": ["heart", "surgery"]}
        assert {**about["columns"][2], **ward} == about["columns"][2]


def test_a_file_is_written_whole_or_not_at_all(world: WorldNamed, tmp_path: Path) -> None:
    model, path = world("images").model(), tmp_path / "deep" / "model.pt2"
    path.parent.mkdir()
    path.write_text("an older one", encoding="utf-8")
    model.save(str(path))
    assert path.stat().st_size > 1000
    assert [each.name for each in path.parent.iterdir()] == ["model.pt2"]
    with pytest.raises(ConfigError, match=r"must end with \.pt2, the format of torch\.export; got model\.onnx"):
        model.save(tmp_path / "model.onnx")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot be written: .*\. Choose another file"):
        model.save(tmp_path / "file" / "model.pt2")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("library", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(MODELS))
def test_torch_can_follow_every_model_of_fedreach(name: str, library: str, tmp_path: Path) -> None:
    expected = (
        Expected("made up", "tokens", (7,)) if name == "lstm" else Expected("x", "image", (1, 16, 16), (0.5,), (0.25,))
    )
    model = nn.Sequential(expected.module(), build(name, expected.shape, 10, seed=0)).eval().requires_grad_(False)
    raw = torch.randint(10, (5, *expected.shape)).to(expected.example().dtype)
    if library == "torch":
        (tmp_path / "model.pt2").write_bytes(content(model, expected.example(), library, {}))
        assert torch.export.load(tmp_path / "model.pt2").module()(raw).equal(model(raw))
        return
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(content(model, expected.example(), library, {}))
    for m in (1, 5):
        said = session.run(None, {"samples": raw[:m].numpy()})[0]
        np.testing.assert_allclose(said, model(raw[:m]).numpy(), rtol=1e-5, atol=1e-6)


def test_what_torch_cannot_follow_is_refused_with_what_to_do(world: WorldNamed, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"torch\.export cannot trace the module of this model: .*or pickle the model"
    ):
        world("stubborn").model().save(tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------- adaptation


@pytest.mark.parametrize("name", ["images", "tokens"])
def test_the_rule_beside_it_serves_clients_as_the_run_did(world: WorldNamed, name: str) -> None:
    w = world(name)
    for which in ("last", "best"):
        model, adapted = w.model(which), {}
        for line in RunFolder(w.folder).records(AdaptedLine):
            if (line.model, line.population, line.mode) == (which, "unseen", "adapted"):
                adapted = dict(zip(line.ids, line.accuracy, strict=True))
        assert len(adapted) == 2
        assert model.adaptation is not None
        assert model.adaptation.round == model.origin.round
        for client, accuracy in adapted.items():
            index = np.concatenate([w.data.train[client], w.data.held_out[client]])
            mine, answers = model.adapter(), model.answers(w.at(index))
            outputs = w.simulation.engine.answers(w.vector(which), "true", index, inputs=True)
            for ours, theirs in zip(answers, (outputs.logits, outputs.features, outputs.inputs), strict=True):
                np.testing.assert_array_equal(ours, theirs, strict=True)  # type: ignore[arg-type]
            classes = mine.fit(*answers).predict(*answers)
            assert mine.guarded_
            assert (classes == w.data.dataset.train_y[index]).mean() == pytest.approx(accuracy, abs=1e-9)
            rule, state = model.adaptation.rule, model.adaptation.state
            kept = rule.update(state, rule.start(state), outputs)
            np.testing.assert_array_equal(mine.predict_proba(*answers), np.exp(rule.predict(state, kept, outputs)))


def test_a_repaired_client_is_asked_about_again(world: WorldNamed) -> None:
    w = world("images")
    pale = (w.at(np.arange(60)) * 0.3 + 5).astype(np.uint8)
    answers = w.model().answers(pale)
    assert w.model().adapter().fit(*answers).decision_.startswith("repaired")


def test_where_there_is_no_rule_that_is_said(world: WorldNamed, tmp_path: Path) -> None:
    model = world("own").model()
    assert model.adaptation is None
    with pytest.raises(ConfigError, match=r"has no adaptation rule.*Call predict, or run with method\.adaptation"):
        model.adapter()
    shutil.copytree(world("images").folder, tmp_path / "gone")
    gone = load(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert len(gone.predict(world("images").at(np.arange(3)))) == 3
    with pytest.raises(RunFolderError, match="the folder of the adaptation rule, is missing"):
        gone.adapter()


def test_tokens_have_logits_and_features_and_no_inputs_that_could_be_repaired(world: WorldNamed) -> None:
    answers = world("tokens").model().answers(world("tokens").at(np.arange(4)))
    assert (answers.logits.shape, answers.inputs) == ((4, 12), None)


# ------------------------------------------------------------------------------------------------ refused samples


@pytest.mark.parametrize(
    ("name", "samples", "said"),
    [
        ("images", np.zeros((3, 1, 8, 8)), r"of 'digits': x must be uint8 \(n, C, H, W\) for images; got .*float64"),
        ("images", np.zeros((3, 1, 9, 8), np.uint8), r"x must be examples of shape \(1, 8, 8\).*got \(3, 1, 9, 8\)"),
        ("colours", np.zeros((3, 8, 8), np.uint8), r"got \(3, 1, 8, 8\)\. For a single example, use x\[None\]"),
        ("colours", np.zeros((5, 8, 8, 3), np.uint8), r"channels first; got.*Use x\.transpose"),
        ("images", "digits.npz", r"x must be numbers of shape"),
        ("images", {"x": [1]}, r"x must be an array; got dict"),
        ("features", np.zeros((3, 4), np.float32), r"examples of shape \(5,\), as in training; got \(3, 4\)"),
        ("features", np.zeros(5, np.float32), r"numbers of shape \(n, \.\.\.\); got shape \(5,\)"),
        ("features", np.full((3, 5), np.nan), r"must be finite"),
        ("features", [["a"] * 5], r"must be numbers of shape"),
        ("features", [[1, 2], [3]], r"must be one rectangular array"),
        ("tokens", np.zeros((3, 7), np.float32), r"integers >= 0 for tokens"),
        ("tokens", np.full((3, 7), -1), r"smallest -1"),
        ("tokens", np.full((3, 7), 12), r"rejects these examples.*index out of range.*values in the range"),
        ("table", np.zeros((3, 4)), r"table must have named columns.*got ndarray"),
        ("table", {"age": [1], "pressure": [1], "ward": ["heart"]}, r"missing column 'smoker'\. Known"),
        ("table", {"age": [1], "pressure": [1], "ward": [[2]], "smoker": ["True"]}, r"'ward' must contain words"),
        ("table", {"age": ["x"], "pressure": [1], "ward": ["a"], "smoker": ["True"]}, r"'age' must contain numbers"),
        (
            "table",
            {"age": [1, 2], "pressure": [1], "ward": ["a"], "smoker": [True]},
            r"all columns must have the same length",
        ),
        (
            "table",
            {"age": [np.inf], "pressure": [1], "ward": ["a"], "smoker": ["b"]},
            r"'age' must be finite, .*got 1 infinite",
        ),
    ],
)
def test_samples_unlike_those_of_training_are_refused(world: WorldNamed, name: str, samples: Any, said: str) -> None:
    model = world(name).model()
    for ask in (model.predict, model.predict_proba, model.answers):
        with pytest.raises((DataError, ConfigError), match=said):
            ask(samples)


# ------------------------------------------------------------------------------------------------ refused folders


def changed(folder: Path, file: str, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    change(content)
    rewrite(folder / file, content)


def test_of_several_models_one_must_be_named(world: WorldNamed) -> None:
    w = world("clusters")
    with pytest.raises(
        ConfigError, match=r"has (\d) models, one per cluster: cluster must be from 0 to \d; got None\. rounds"
    ):
        w.model()
    with pytest.raises(ConfigError, match=r"cluster must be from 0 to \d; got 9"):
        w.model(cluster=9)
    index = w.held_out()
    said = []
    for number in (0, 1):
        with torch.no_grad():
            said.append(w.model(cluster=number)(torch.from_numpy(w.at(index))).numpy())
        np.testing.assert_array_equal(said[-1], w.logits(index, head=f"{number}/"))
    assert not np.array_equal(*said)
    with pytest.raises(ConfigError, match=r"has one model for all clients; got 0\. Remove `cluster`"):
        world("features").model(cluster=0)


def test_a_module_of_ones_own_is_found_and_must_be_what_was_trained(
    world: WorldNamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world("own")
    monkeypatch.chdir(w.base)
    assert load("run").predict(w.at(np.arange(5))).shape == (5,)  # the current folder, where nothing is said
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"used own\.py:Net, but .*own\.py does not exist\. Pass `base`"):
        load(w.folder)
    (tmp_path / "own.py").write_text(OWN.replace("0.3", "0.4"), encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"own\.py changed after the run with own\.py:Net"):
        load(w.folder)


def test_what_is_drawn_and_not_trained_is_drawn_as_in_the_run(world: WorldNamed) -> None:
    net, trained = world("own").model().net, world("own").simulation.engine.task.module
    assert torch.equal(net.order, trained.order)
    assert net.order.tolist() != sorted(net.order.tolist())


def test_a_run_that_names_no_model_takes_the_one_that_is_given(world: WorldNamed, tmp_path: Path) -> None:
    w = world("features")
    shutil.copytree(w.folder, tmp_path / "run")
    changed(tmp_path / "run", "run.json", lambda run: run["config"].pop("model"))
    with pytest.raises(ConfigError, match=r"so the run folder does not name the model\. Pass `model`"):
        load(tmp_path / "run")
    model = load(tmp_path / "run", model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 4)))
    np.testing.assert_array_equal(model.predict(w.rows), w.model().predict(w.rows))
    with pytest.raises(
        RunFolderError, match=r"weights of another model: '1\.bias' is \(4,\) in the file and missing in the model"
    ):
        load(tmp_path / "run", model=lambda: nn.Linear(5, 4))


def test_a_folder_without_such_a_model_says_why(world: WorldNamed, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(world("features").folder, folder)
    with pytest.raises(
        ConfigError, match=r"which must be 'last', 'best' or 'refit'; got 'lst'\. Did you mean 'last'\?"
    ):
        load(folder, "lst")  # type: ignore[arg-type]
    (folder / "best.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"best\.safetensors is missing\. Copy the complete run folder"):
        load(folder, "best")
    listed(folder)
    with pytest.raises(RunFolderError, match=r"No participant holds out examples, so there is no best model"):
        load(folder, "best")
    (folder / "last.safetensors").unlink()
    listed(folder)
    with pytest.raises(
        RunFolderError, match=r"has no last model: last\.safetensors not found\. The run is not finished"
    ):
        load(folder)
    changed(folder, "federation.json", lambda federation: federation["dataset"].pop("shape"))
    with pytest.raises(RunFolderError, match=r"does not describe the examples of 'numbers'\. The clients did not"):
        load(folder)
    (folder / "federation.json").unlink()
    listed(folder)
    with pytest.raises(RunFolderError, match=r"federation\.json not found\. The run is not finished"):
        load(folder)
    with pytest.raises(RunFolderError, match=r"is not a run folder: run\.json not found"):
        load(tmp_path)
