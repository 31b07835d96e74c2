"""A model that leaves the house says what it said at home: with torch or onnxruntime alone, and from its weights."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ConfigError, DataError, RunFolderError
from fedreach.deploy.deployed import format_csv, origin
from fedreach.deploy.export import export, predict_file
from fedreach.deploy.saved import load
from fedreach.federation.adaptation.base import log_softmax

from .worlds import TABLES, World, make

WorldNamed = Callable[[str], World]
QUICK = ("wards",)
SLOW = ("images", "pictures", "tokens", "colours", "features", "numbers", "table")
WORLDS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
OTHER = {"torch": "onnxruntime", "onnx": "torch"}

ALONE = """
import runpy, sys
for name in ({other!r}, "onnx", "safetensors", "scipy", "sklearn", "pydantic", "click"):
    sys.modules[name] = None  # cannot be imported
if {other!r} != "torch":
    import torch
    torch.set_num_threads(1)
for arguments in {calls!r}:
    sys.argv = arguments
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        assert end.code == 0, end.code
    names = [name for name in sys.modules if name.partition(".")[0] == "fedreach"]
    assert all(sys.modules[name].__file__.startswith(arguments[0]) for name in names), names
"""


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


def clients_of(index: Ints) -> dict[str, Ints]:
    """Return who holds which places of an index: one client a single sample, one a few, one the rest."""
    places = np.arange(len(index))
    return {"single": places[:1], "few": places[1:6], "many": places[6:]}


def file_of(w: World, name: str, index: Ints, folder: Path) -> Path:
    """Write rows with their clients and labels, as their owner has them."""
    owner = np.empty(len(index), "U6")
    for client, places in clients_of(index).items():
        owner[places] = client
    if name not in TABLES:
        np.savez(folder / "rows.npz", x=w.at(index), y=w.data.dataset.train_y[index], client=owner)
        return folder / "rows.npz"
    columns = {**w.at(index), "hospital": owner.tolist()}
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(["" if v is None or v != v else v for v in row] for row in zip(*columns.values(), strict=True))
    return folder / "rows.csv"


def asked(w: World) -> Ints:
    return w.held_out()[:40]


def engine(w: World, index: Ints, *, adapted: bool) -> tuple[Floats, list[str] | None]:
    """Return what the engine of the run, and its rule, say of rows, client by client: not by the code that is tried."""
    if w.model().targets is not None:
        return w.logits(index).astype(np.float64), None
    if not adapted:
        return np.exp(log_softmax(w.logits(index).astype(np.float64))), None
    saved = w.model().adaptation
    assert saved is not None
    found, decisions = np.empty((len(index), w.data.dataset.num_classes)), [""] * len(index)
    for places in clients_of(index).values():
        outputs = w.simulation.engine.answers(w.vector(), "true", index[places], inputs=True)
        kept = saved.rule.update(saved.state, saved.rule.start(saved.state), outputs)
        found[places] = np.exp(saved.rule.predict(saved.state, kept, outputs))
        for place in places:
            head = "repaired, " if kept.get("repaired", np.zeros(1)).item() else ""
            decisions[place] = head + ("adapted" if kept.get("adapted", np.ones(1)).item() else "abstained")
    return found, decisions


def read(path: Path) -> tuple[Floats, list[dict[str, str]]]:
    """Return the numbers in a file of predictions, and its rows."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [key for key in rows[0] if key.startswith("p_")] or ["prediction"]
    return np.array([[float(row[key]) for key in keys] for row in rows]), rows


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.sampled(5)
def test_a_process_with_one_library_says_what_the_engine_said(
    world: WorldNamed, name: str, form: Any, tmp_path: Path
) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    w = world(name)
    model, index = w.model(), asked(w)
    rows, adapts = file_of(w, name, index, tmp_path), model.adaptation is not None
    done = export(model, tmp_path / "out", form, force=True)
    assert {each.name for each in (tmp_path / "out").iterdir()} == set(done.files)
    program = str(tmp_path / "out" / "predict.pyz")
    calls = [[program, str(rows), "--out", "plain.csv", "--unadapted"], [program, str(rows), "--out", "adapted.csv"]]
    script = ALONE.format(other=OTHER[form], calls=calls)
    command = [sys.executable, "-I", "-W", "error", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for adapted in (False, True):
        expected, decisions = engine(w, index, adapted=adapted and adapts)
        found, lines = read(tmp_path / ("adapted.csv" if adapted else "plain.csv"))
        if form == "torch":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert [line.get("decision") for line in lines] == (decisions or [None] * len(index))
        if model.targets is None:
            names = model.class_names or tuple(map(str, range(model.num_classes)))
            assert [line["prediction"] for line in lines] == [names[c] for c in expected.argmax(axis=1)]
    with zipfile.ZipFile(program) as archive:
        assert not [name for name in archive.namelist() if str(w.base) in archive.read(name).decode("latin-1")]


@pytest.mark.parametrize("name", ["images", "wards", "tokens", "colours", "numbers"])
@pytest.mark.sampled(4)
def test_weights_make_the_same_model_again(world: WorldNamed, name: str, tmp_path: Path) -> None:
    w = world(name)
    model, index = w.model(), asked(w)
    rows = file_of(w, name, index, tmp_path)
    export(model, tmp_path / "out", "safetensors", force=True)
    for where in (tmp_path / "out", tmp_path / "out" / "model.safetensors"):
        again = load(where, base=w.base)
        assert again.state_dict().keys() == model.state_dict().keys()
        for adapted in (False, True):
            found, about = predict_file(again, rows, unadapted=not adapted)
            expected, decisions = engine(w, index, adapted=adapted and model.adaptation is not None)
            np.testing.assert_array_equal(found.outputs, expected)
            assert list(found.decisions or []) == (decisions or [])
            at_home, home = predict_file(model, rows, unadapted=not adapted)
            assert (format_csv(found, about), about) == (format_csv(at_home, home), home)


def test_a_file_with_numbers_that_are_not_trained_and_code_of_ones_own_gives_them_back(
    world: WorldNamed, tmp_path: Path
) -> None:
    w = world("own")
    export(w.model(), tmp_path / "out", "safetensors", force=True)
    again, x = load(tmp_path / "out", base=w.base), w.at(asked(w))
    np.testing.assert_array_equal(again.logits(x), w.model().logits(x))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own.py").write_text("Net = None\n", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"changed after the run with own\.py:Net"):
        load(tmp_path / "out", base=tmp_path / "elsewhere")


def test_weights_are_of_the_one_model_that_they_say(world: WorldNamed, tmp_path: Path) -> None:
    w = world("tokens")
    for which in ("last", "best"):
        export(w.model(which), tmp_path / which, "safetensors", force=True)
        again, x = load(tmp_path / which), w.at(asked(w))
        np.testing.assert_array_equal(again.logits(x), w.model(which).logits(x))
        assert again.origin.which == which
        with pytest.raises(ConfigError, match="contains only the model"):
            load(tmp_path / which, cluster=0)
    for held, other in (("last", "best"), ("best", "last")):
        with pytest.raises(ConfigError, match=f"contains only the model '{held}'"):
            load(tmp_path / held, other)  # type: ignore[arg-type]


def test_what_is_no_exported_model_is_refused(world: WorldNamed, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is not a model of `fedreach export --to safetensors`"):
        load(tmp_path)
    with pytest.raises(DataError, match="is not a model of"):
        load(world("images").folder / "last.safetensors")
    export(world("images").model(), tmp_path / "out", "torch", unadapted=True)
    with pytest.raises(RunFolderError, match=r"is an exported model with its own program: python .*predict\.pyz FILE"):
        load(tmp_path / "out")


def test_nothing_is_written_over_and_nothing_half_written_stays(world: WorldNamed, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="already exists"):
        export(world("images").model(), tmp_path / "out", "torch", force=True)
    with pytest.raises(ConfigError, match=r"torch\.export cannot trace"):
        export(world("stubborn").model(), tmp_path / "new", "torch", force=True)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["mine.txt", "out"]


def test_labels_are_scored_and_never_looked_at(world: WorldNamed, tmp_path: Path) -> None:
    w = world("wards")
    model, index = w.model(), asked(w)
    rows = file_of(w, "wards", index, tmp_path)
    found, about = predict_file(model, rows)
    expected, _ = engine(w, index, adapted=True)
    right = expected.argmax(axis=1) == w.data.dataset.train_y[index]
    assert found.scores["accuracy"] == pytest.approx(right.mean())
    single, few, many = found.clients
    assert (single.rows, few.rows, many.rows) == (1, 5, len(index) - 6)
    assert many.scores["accuracy"] == pytest.approx(right[6:].mean())
    text = rows.read_text(encoding="utf-8")
    rows.write_text(
        text.replace(",no\n", ",?\n").replace(",yes\n", ",no\n").replace(",?\n", ",yes\n"), encoding="utf-8"
    )
    other, _ = predict_file(model, rows)
    assert format_csv(other, about) == format_csv(found, about)
    assert other.scores["accuracy"] == pytest.approx(1 - right.mean())


def test_a_client_is_adapted_by_its_own_rows_alone(world: WorldNamed, tmp_path: Path) -> None:
    w = world("images")
    model, index = w.model(), asked(w)
    whole, _ = predict_file(model, file_of(w, "images", index, tmp_path))
    few = clients_of(index)["few"]
    np.savez(tmp_path / "one.npz", x=w.at(index[few]))
    alone, _ = predict_file(model, tmp_path / "one.npz")
    np.testing.assert_array_equal(alone.outputs, whole.outputs[few])
    (client,) = alone.clients
    assert (client.name, client.rows, client.scores) == ("", 5, {})


def test_json_tells_what_samples_are_like(world: WorldNamed, tmp_path: Path) -> None:
    export(world("wards").model(), tmp_path / "out", "torch", force=True)
    about = json.loads((tmp_path / "out" / "model.json").read_text(encoding="utf-8"))
    assert (about["kind"], about["classes"], about["client_column"]) == ("table", ["no", "yes"], "hospital")
    assert [each["name"] for each in about["columns"]] == ["age", "pressure", "ward", "smoker"]
    assert about["rule"].startswith("BBSE(")
    others = {each["name"]: each["kind"] for each in about["other_columns"]}
    assert (others["hospital"], others["readmitted"]) == ("client", "label")


def test_a_file_of_one_cluster_gives_no_other_and_says_which(world: WorldNamed, tmp_path: Path) -> None:
    w = world("clusters")
    export(w.model(cluster=1), tmp_path / "out", "safetensors", force=True)
    again, x = load(tmp_path / "out", cluster=1), w.at(asked(w))
    np.testing.assert_array_equal(again.logits(x), w.logits(asked(w), head="1/"))
    assert "last model of cluster 1 (round" in origin(again.about())
    with pytest.raises(ConfigError, match=r"only the model 'last' of cluster 1"):
        load(tmp_path / "out", cluster=0)
