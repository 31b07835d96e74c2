"""Folders and files of strangers: they run no code unless they are trusted."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import fedreach as fr
from fedreach._util import registry
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach._util.files import signed
from fedreach.cli import main
from fedreach.deploy.saved import load
from fedreach.deploy.weights import KEY, with_digest

EVIL = """
from pathlib import Path
from torch import nn

Path("ran").touch()


def net(sample_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


class Rule:
    pass
"""


def call(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return exit status and stderr of a command in a folder."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(main, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an adapted run of a linear model, and rows to predict."""
    folder = tmp_path_factory.mktemp("honest")
    data = fr.load("digits").partition("dirichlet_by_class", clients=10, alpha=0.5, participants=5)
    method = fr.Method(adaptation="label_shift")
    with fr.run(data, method, rounds=1, cohort_size=2, model="linear", out=folder / "run") as loop:
        list(loop)
    np.savez(folder / "rows.npz", x=data.dataset.test_x[:5])
    return folder


@pytest.fixture
def strangers(honest: Path, tmp_path: Path) -> Path:
    """A copy of it, with a module that leaves a trace if it is imported."""
    folder = shutil.copytree(honest, tmp_path / "strangers")
    for name in ("evil.py", "e+vil.py"):
        (folder / name).write_text(EVIL, encoding="utf-8")
    return folder


def name_code(folder: Path, where: tuple[str, ...], name: str) -> None:
    """Name code in run.json, with a new checksum."""
    path = folder / "run" / "run.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    table = record["config"]
    for key in where:
        table = table[key]
    table["name"] = name
    path.write_text(json.dumps(signed("run.json", record)), encoding="utf-8")


@pytest.mark.parametrize("name", ["evil.py:net", "evil:net", "e+vil.py:net", "e+vil:no name"])
@pytest.mark.parametrize("where", [("model",), ("method", "adaptation"), ("method", "selection"), ("data",)])
def test_a_resealed_run_that_names_code_imports_nothing(
    strangers: Path, where: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_code(strangers, where, name)
    monkeypatch.chdir(strangers)
    monkeypatch.syspath_prepend(str(strangers))
    code, said = call(strangers, "extend", "run", "--rounds", "2")
    assert (code, "names the code 'e" in said) == (2, True), said
    if where[-1] in ("model", "adaptation"):
        for words in (["predict", "run", "rows.npz"], ["export", "run", "--to", "safetensors", "--out", "exported"]):
            code, said = call(strangers, *words)
            assert (code, "--trust-code" in said) == (2, True), said
        with pytest.raises(ConfigError, match="names the code 'e"):
            load("run").adapter()
    assert not (strangers / "ran").exists()
    assert not (strangers / "exported").exists()


def test_an_exported_file_that_names_code_imports_nothing_unless_it_is_trusted(strangers: Path) -> None:
    assert call(strangers, "export", "run", "--to", "safetensors", "--out", "model", "--unadapted")[0] == 0
    file = strangers / "model" / "model.safetensors"
    with safe_open(file, framework="numpy") as opened:
        about = json.loads(opened.metadata()[KEY])
    about["construction"] = {"model": {"name": "evil.py:net"}, "code": {}}
    tensors = load_file(file)
    save_file(tensors, file, {KEY: json.dumps(with_digest(about, tensors))})
    for words in (["predict", "model", "rows.npz"], ["predict", "model/model.safetensors", "rows.npz"]):
        code, said = call(strangers, *words)
        assert (code, "names the code 'evil.py:net'" in said) == (2, True), said
    assert not (strangers / "ran").exists()
    call(strangers, "predict", "model", "rows.npz", "--trust-code")
    assert (strangers / "ran").exists()


def test_a_missing_file_of_the_adaptation_is_an_error_and_not_the_plain_model(strangers: Path) -> None:
    (strangers / "run" / "adaptation.safetensors").unlink()
    for words in (["predict", "run", "rows.npz"], ["export", "run", "--to", "safetensors", "--out", "model"]):
        code, said = call(strangers, *words)
        assert code == 3
        assert "adaptation.safetensors is missing" in said
    assert not (strangers / "model").exists()
    assert call(strangers, "predict", "run", "rows.npz", "--unadapted")[0] == 0
    with pytest.raises(RunFolderError, match=r"adaptation\.safetensors is missing"):
        load(strangers / "run").adapter()


# ---- Paths that lead out of a folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "comparison"
    data = fr.load("digits").partition("dirichlet_by_class", clients=10, alpha=0.5, participants=5)
    fr.compare(data, {"a": {}}, rounds=1, seeds=1, cohort_size=2, model="linear", out=folder, progress=False)
    return folder


@pytest.mark.parametrize("place", ["../elsewhere", "/elsewhere", "runs/../../elsewhere", ""])
def test_a_comparison_that_names_a_folder_outside_of_it_is_refused(compared: Path, tmp_path: Path, place: str) -> None:
    folder = shutil.copytree(compared, tmp_path / "comparison")
    shutil.copytree(folder / "runs" / "a" / "seed-0", tmp_path / "elsewhere")
    record = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    record["runs"]["a"]["0"] = place.replace("/elsewhere", f"{tmp_path}/elsewhere") if place[:1] == "/" else place
    (folder / "comparison.json").write_text(json.dumps(signed("comparison.json", record)), encoding="utf-8")
    before = {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}
    for words in (
        ["report", "comparison"],
        ["extend", "comparison", "--rounds", "2"],
        ["predict", "comparison", "x.npz"],
    ):
        code, said = call(tmp_path, *words)
        assert (code, "must be below this one" in said) == (3, True), said
    assert {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["report", "report/index.html", "report/table.md"])
def test_a_report_is_not_written_through_a_link(compared: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(compared, tmp_path / "comparison")
    shutil.rmtree(folder / "report", ignore_errors=True)
    precious = tmp_path / "precious"
    if name == "report":
        precious.mkdir()
    else:
        precious.write_text("mine", encoding="utf-8")
        (folder / "report").mkdir()
    (folder / name).symlink_to(precious)
    code, said = call(tmp_path, "report", "comparison", "--formats", "none")
    assert (code, "must not be a link" in said) == (3, True), said
    assert list(precious.iterdir()) == [] if precious.is_dir() else precious.read_text(encoding="utf-8") == "mine"


def test_a_run_behind_a_link_is_not_read(compared: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(compared, tmp_path / "comparison")
    run = folder / "runs" / "a" / "seed-0"
    run.rename(tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    code, said = call(tmp_path, "report", "comparison")
    assert (code, "must not be a link" in said) == (3, True), said


# ---- Altered files


@pytest.mark.slow
@pytest.mark.parametrize("form", ["safetensors", "torch", "onnx"])
def test_a_flipped_bit_of_an_exported_model_gives_no_other_predictions(honest: Path, tmp_path: Path, form: str) -> None:
    """Each of 12 flipped bits of the model and its description is an error, or changes nothing."""
    folder = shutil.copytree(honest, tmp_path / "flipped")
    code, said = call(folder, "export", "run", "--to", form, "--out", "model", "--force")
    assert code == 0, said
    words = ["predict", "model", "rows.npz"] if form == "safetensors" else ["model/predict.pyz", "rows.npz"]
    command = [sys.executable, *(["-m", "fedreach"] if form == "safetensors" else []), *words]

    def predicted() -> tuple[int, str, str]:
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    right = predicted()
    assert right[0] == 0, right[2]
    rng = np.random.default_rng(0)
    files = sorted(path for path in (folder / "model").iterdir() if path.suffix != ".pyz")
    for path in files:
        content = path.read_bytes()
        for place in rng.integers(8 * len(content), size=12 // len(files)).tolist():
            flipped = bytearray(content)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(bytes(flipped))
            code, said, cause = predicted()
            assert code == 3 or (code, said) == right[:2], (path.name, place)
            assert "Traceback" not in cause
        path.write_bytes(content)


def test_threads_and_processes_of_an_extension_reject_code_that_no_check_saw(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(EVIL, encoding="utf-8")
    program = (
        "from pathlib import Path\nfrom fedreach._util.registry import load_users\nload_users('evil.py:net', Path())"
    )

    def loads() -> bool:
        return (
            subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False).returncode
            == 0
        )

    with registry.code_of(tmp_path, trust_code=False, workers=True):
        assert not loads()
        with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="names the code"):
            pool.submit(registry.load_users, "evil.py:net", tmp_path).result()
    assert not (tmp_path / "ran").exists()
    assert loads()
    assert (tmp_path / "ran").exists()
