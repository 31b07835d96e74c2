"""A file that runs depend on was changed: finished seeds and new ones are not averaged."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import TINY, Command, Refused

from fedreach._util.code import digest_of_code
from fedreach._util.errors import RunFolderError
from fedreach._util.registry import COMPONENT_TYPES, find
from fedreach.data.stored import index_folder
from fedreach.deploy.saved import load as trained_model
from fedreach.experiment import components
from fedreach.experiment.components import file_digests, identity
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.experiment.schema import EngineSection, Experiment
from fedreach.experiment.workers import ComparisonStatus, Resources, run_jobs
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import check_data

OWN = """\
import json
from fedreach.data.datasets import from_npz

def first(view, k, rng):
    {inside}
    return view.ids[:k]

def by_one(reports):
    return [1.0 for _ in reports.ids]

def divided(labels, clients, rng):
    raise NotImplementedError

def data():
    return from_npz("hidden.npz")
"""


@pytest.fixture
def base(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code that imports modules beside it, as one has it whose folder is on Python's path."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(home))
    before = set(sys.modules)
    (home / "alone.py").write_text("RATE = 1\n")
    (home / "deeper.py").write_text("import alone\n")
    (home / "late.py").write_text("RATE = 2\n")
    (home / "stranger.py").write_text("RATE = 3\n")
    (home / "bag" / "inner").mkdir(parents=True)
    for name in ("bag/__init__.py", "bag/one.py", "bag/two.py", "bag/inner/__init__.py", "bag/inner/three.py"):
        (home / name).write_text("")
    (home / "bag" / "one.py").write_text("from . import two\nfrom .inner import three\n")
    (home / "mine.py").write_text(
        "import deeper\nfrom bag.one import two\n"
        + OWN.format(inside="import late, importlib; importlib.import_module('by_name')")
    )
    (home / "by_name.py").write_text("")
    (home / "nested.py").write_text("import bag.inner.three as renamed\n" + OWN.format(inside="pass"))
    yield home
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(home) in str(sys.modules[name].__file__):
            del sys.modules[name]


def table(file: Path, step: int) -> None:
    """Write a table whose numbers `step` decides, and nothing else."""
    rng = np.random.default_rng(step)
    rows = [f"{who},{rng.normal():.3f},{rng.normal():.3f},{'ny'[n % 2]}" for n, who in enumerate("abcdef" * 10)]
    file.write_text("\n".join(["who,x,z,ill", *rows]) + "\n")


def arrays(step: int) -> dict[str, Any]:
    """Return as many samples of other numbers for each `step`."""
    rng = np.random.default_rng(step)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    return {"x": x, "y": (x.sum(axis=1) > 0).astype(np.int64), "client": np.arange(120) % 12}


def folder(place: Path, step: int) -> None:
    """Write a folder of arrays."""
    place.mkdir(exist_ok=True)
    for name, array in arrays(step).items():
        np.save(place / f"{name}.npy", array)


def identity_of(base: Path, *options: str) -> dict[str, str]:
    """Return the digests of all files that belong to a run."""
    experiment = load(base / "tiny.toml", options).resolved()
    found = identity(experiment, 0, "run", base)
    return found["code"] | (found["data"] or {})


# ------------------------------------------------------------------------------------------------------------ code


def test_all_modules_that_code_imports_belong_to_it_wherever_it_imports_them(base: Path) -> None:
    found = identity_of(base, "method.selection=mine.py:first")
    beside = {"alone.py", "deeper.py", "late.py", "by_name.py"}
    bag = {f"bag/{name}" for name in ("__init__.py", "one.py", "two.py", "inner/__init__.py", "inner/three.py")}
    assert set(found) == {"mine.py:first"} | beside | bag


def test_what_a_module_needs_to_be_imported_belongs_to_it_too(base: Path) -> None:
    """A package's own file runs before any module in it."""
    found = identity_of(base, "method.selection=nested.py:first")
    assert set(found) == {"nested.py:first", "bag/__init__.py", "bag/inner/__init__.py", "bag/inner/three.py"}


def test_a_module_by_its_name_brings_what_it_imports(base: Path) -> None:
    assert "alone.py" in identity_of(base, "method.selection=mine:first")
    (base / "bag" / "parts.py").write_text("from .one import two\n" + OWN.format(inside="pass"))
    assert "bag/two.py" in identity_of(base, "method.selection=bag.parts:first")


def test_modules_count_whose_folder_the_code_itself_says(base: Path) -> None:
    (base / "lib").mkdir()
    (base / "lib" / "far.py").write_text("")
    (base / "says.py").write_text(f"import sys\nsys.path.append({str(base / 'lib')!r})\nimport far\n" + OWN)
    (base / "says.py").write_text((base / "says.py").read_text().replace("{inside}", "pass"))
    try:
        assert "lib/far.py" in identity_of(base, "method.selection=says.py:first")
    finally:
        sys.path.remove(str(base / "lib"))


@pytest.mark.parametrize(
    "changed", ["alone.py", "deeper.py", "late.py", "bag/two.py", "bag/inner/three.py", "bag/__init__.py"]
)
def test_a_changed_module_is_another_run_and_a_stranger_is_not(base: Path, changed: str) -> None:
    before = identity_of(base, "method.selection=mine.py:first")
    (base / "stranger.py").write_text("RATE = 4\n")
    assert identity_of(base, "method.selection=mine.py:first") == before
    (base / changed).write_text((base / changed).read_text() + "more = 1\n")
    after = identity_of(base, "method.selection=mine.py:first")
    assert {name for name in after if after[name] != before[name]} == {changed}


@pytest.mark.parametrize(
    "kind", [kind for kind, row in COMPONENT_TYPES.items() if row.path is not None and row.users_own]
)
def test_code_of_every_kind_brings_what_it_imports(base: Path, kind: str) -> None:
    raw: dict[str, Any] = {kind: "mine.py:first"}
    for step in reversed(COMPONENT_TYPES[kind].path or ()):
        raw = {step: raw}
    experiment = Experiment.model_validate(raw).resolved()
    assert "alone.py" in identity(experiment, 0, "run", base)["code"]


def test_code_of_metrics_and_inside_of_parts_brings_what_it_imports(base: Path) -> None:
    inside = {"method": {"server": {"name": "safari", "inner": "mine.py:first"}}}
    for raw in (inside, {"evaluation": {"metrics": ["mine.py:first"]}}):
        experiment = Experiment.model_validate(raw).resolved()
        assert "alone.py" in identity(experiment, 0, "run", base)["code"]


EXPLAINED = """\
'''What it is for.'''
def first(view, k, rng):  # the first ones
    '''Explained.'''

    return (view.ids
            [:k])
"""
PLAIN = "def first(view, k, rng):\n    return view.ids[:k]\n"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (EXPLAINED, True),
        (PLAIN.replace("[:k]", "[: k ]  # comment"), True),
        (PLAIN.replace("[:k]", "[-k:]"), False),
        (PLAIN.replace("first(view", "first(view: object"), False),
        (PLAIN + "first.__doc__\n", True),
        (PLAIN.replace("return", "first.__doc__; return"), False),
        (PLAIN.replace("k, rng", "k, rng=None"), False),
    ],
)
def test_a_comment_is_no_other_run_and_another_meaning_is(base: Path, text: str, same: bool) -> None:
    (base / "own.py").write_text(PLAIN)
    before = identity_of(base, "method.selection=own.py:first")
    (base / "own.py").write_text(text)
    assert (identity_of(base, "method.selection=own.py:first") == before) is same


def test_of_code_that_reads_its_own_text_every_letter_counts(base: Path) -> None:
    """Its docstring may be its data."""
    reading = PLAIN.replace("return", "print(first.__doc__); return")
    (base / "own.py").write_text(reading)
    before = identity_of(base, "method.selection=own.py:first")
    (base / "own.py").write_text(reading + "# new\n")
    assert identity_of(base, "method.selection=own.py:first") != before


def test_the_digest_of_code_is_the_same_in_every_version_of_python(base: Path) -> None:
    """Worked out by 3.11: a run is not refused because Python is a newer one."""
    (base / "own.py").write_text(
        PLAIN + 'class A:\n    x: int = 1\n    def f(self): return f"{self.x=:>5}", 1e3, b"x"\n'
    )
    assert digest_of_code(base / "own.py")[:16] == "22a3bdd0f9228802"


# ------------------------------------------------------------------------------------------------------------ data

Write = Callable[[Path, int], None]


def npz(file: Path, step: int) -> None:
    """Write an .npz file."""
    np.savez(file, **arrays(step))


def server(file: Path, step: int) -> None:
    """Write data for the server."""
    np.savez(file, **{key: value for key, value in arrays(step).items() if key != "client"})


def labels(place: Path, step: int) -> None:
    """Write a folder of arrays of which the labels alone are others."""
    folder(place, 0)
    np.save(place / "y.npy", arrays(step)["y"])


FILES: list[tuple[str, Write, list[str], str]] = [
    ("t.csv", table, ["data={name='t.csv',client='who',label='ill'}", "partition={name='natural'}"], "t.csv"),
    ("t.npz", npz, ["data=t.npz", "partition={name='natural'}"], "t.npz"),
    ("box", folder, ["data=box/x.npy", "partition={name='natural'}"], "box/x.npy"),
    ("box", labels, ["data=box/x.npy", "partition={name='natural'}"], "box/y.npy"),
    ("s.npz", server, ["server_data.file=s.npz"], "s.npz"),
    ("p.npz", npz, ["partition={file='p.npz'}"], "p.npz"),
    ("w.npz", npz, ["method.selection={name='mine.py:Reads',table='w.npz'}"], "w.npz"),
]


@pytest.mark.parametrize(("name", "write", "options", "changed"), FILES, ids=[f"{n}-{c}" for n, _, _, c in FILES])
def test_a_replaced_file_of_data_is_another_run(
    base: Path, name: str, write: Write, options: list[str], changed: str
) -> None:
    (base / "mine.py").write_text(
        "from fedreach.federation.selection.random import Uniform\nfrom dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Reads(Uniform):\n    table: str = ''\n"
    )
    write(base / name, 1)
    before = identity_of(base, *options)
    write(base / name, 1)
    assert identity_of(base, *options) == before
    write(base / name, 2)
    after = identity_of(base, *options)
    assert changed in {key for key in after if after[key] != before[key]}


def test_a_folder_of_arrays_counts_with_its_index(base: Path) -> None:
    folder(base / "box", 1)
    before = identity_of(base, "data=box/x.npy", "partition={name='natural'}")
    index_folder(base / "box")
    after = identity_of(base, "data=box/x.npy", "partition={name='natural'}")
    assert set(after) - set(before) == {"box/dataset.json"}


def test_a_file_is_read_once_by_a_process_unless_it_was_changed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz(base / "t.npz", 1)
    options = ["data=t.npz", "partition={name='natural'}"]
    identity_of(base, *options)
    monkeypatch.setattr(components.hashlib, "file_digest", lambda *given: pytest.fail("it was read again"))
    identity_of(base, *options)


# --------------------------------------------------------------------------------------------------- what is said


def test_a_run_on_replaced_data_is_not_taken_for_finished(fedreach: Command, refused: Refused, home: Path) -> None:
    table(home / "t.csv", 1)
    options = ["--set", "data={name='t.csv',client='who',label='ill'}", "--set", "partition={name='natural'}"]
    command = ["run", "tiny.toml", *options, "--set", "population.participants=4", "--out", "x"]
    assert fedreach(*command).exit_code == 0
    kept = (home / "t.csv").read_bytes()
    table(home / "t.csv", 2)
    said = refused(3, *command)
    assert said.startswith("x was created with other versions of your files: since then, t.csv was changed. Restore")
    assert "Restore the old versions, or choose another folder with --out" in said
    (home / "t.csv").write_bytes(kept)
    assert fedreach(*command).exit_code == 0


def test_the_refusal_says_why_the_whole_file_counts(fedreach: Command, refused: Refused, home: Path) -> None:
    part = "def first(view, k, rng):\n    return eval('view.ids[:k]')\n"
    (home / "own.py").write_text(part)
    command = ["run", "tiny.toml", "--set", "method.selection=own.py:first", "--out", "x", "-q"]
    assert fedreach(*command).exit_code == 0
    (home / "own.py").write_text(part + "OTHER = 1\n")
    assert "own.py:first was changed (the whole file counts: it uses eval)" in refused(3, *command)


def test_a_line_that_a_part_does_not_refer_to_leaves_a_run_finished(fedreach: Command, home: Path) -> None:
    (home / "own.py").write_text(PLAIN)
    command = ["run", "tiny.toml", "--set", "method.selection=own.py:first", "--out", "x", "-q"]
    assert fedreach(*command).exit_code == 0
    before = (home / "x" / "timing.jsonl").read_bytes()
    (home / "own.py").write_text("import json\n" + PLAIN + "def other():\n    return json\n")
    assert fedreach(*command).exit_code == 0
    assert (home / "x" / "timing.jsonl").read_bytes() == before


NATURAL = (
    TINY.replace("clients = 12", 'name = "natural"').replace("alpha = 0.5", "").replace("rounds = 4", "rounds = 2")
)
COMPARED = f"""
data = {{ name = "t.csv", client = "who", label = "ill" }}
{NATURAL.replace("participants = 6", "participants = 4")}
selection = "mine.py:first"
"""


@pytest.mark.slow
def test_seeds_are_not_added_to_those_of_other_files(fedreach: Command, refused: Refused, base: Path) -> None:
    (base / "mine.py").write_text("import deeper\n" + OWN.format(inside="import late"))
    (base / "tiny.toml").write_text(COMPARED, encoding="utf-8")
    table(base / "t.csv", 1)
    command = ["compare", "tiny.toml", "--out", "x", "--formats", "none"]
    done = fedreach(*command)
    assert done.exit_code == 0, done.output
    for changed in ("t.csv", "alone.py", "late.py"):
        kept = (base / changed).read_bytes()
        table(base / changed, 2) if changed == "t.csv" else (base / changed).write_text("RATE = 9\n")
        said = refused(3, *command, "--seeds", "4", "--add-seeds")
        assert f"since then, {changed} was changed" in said
        assert not (base / "x" / "runs" / "uniform" / "seed-2").exists()
        (base / changed).write_bytes(kept)


def job(base: Path, seed: int, **more: Any) -> None:
    """Run one method with one seed, as a worker of a comparison does."""
    experiment = load(base / "tiny.toml", ["data=mine.py:data"]).resolved()
    run(experiment, seed=seed, folder=base / "x" / str(seed), base=base, agreed=base / "x", **more)


def test_data_of_a_function_are_compared_by_what_it_returned(base: Path) -> None:
    """Nobody knows which file it reads."""
    (base / "tiny.toml").write_text(NATURAL, encoding="utf-8")
    np.savez(base / "hidden.npz", **arrays(1))
    job(base, 0)
    np.savez(base / "hidden.npz", **arrays(2))
    with pytest.raises(RunFolderError, match=r"data 'mine\.py:data' differ from the data of other runs in .*x \("):
        job(base, 1)
    assert not (base / "x" / "1" / "rounds.jsonl").exists()
    np.savez(base / "hidden.npz", **arrays(1))
    job(base, 1)


def test_a_file_that_is_changed_while_a_comparison_runs_fails_the_runs_that_begin_later(base: Path) -> None:
    (base / "tiny.toml").write_text(NATURAL, encoding="utf-8")
    np.savez(base / "hidden.npz", **arrays(1))
    files = file_digests(load(base / "tiny.toml", ["data=mine.py:data"]).resolved(), base)
    job(base, 0, files=files)
    (base / "alone.py").write_text("RATE = 9\n")
    with pytest.raises(RunFolderError, match=r"Since the comparison began, alone\.py was changed\. Restore the old"):
        job(base, 1, files=files)
    assert not (base / "x" / "1").exists()


def test_a_file_of_code_is_read_again_once_it_was_changed(base: Path) -> None:
    """As in a notebook: what is noted as its digest is that of the code that runs."""
    own = base / "own.py"
    own.write_text("def first(): return 1\n")
    assert find("model", "own.py:first", base)() == 1
    stamp = own.stat()
    own.write_text("def first(): return 2\n")
    os.utime(own, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert find("model", "own.py:first", base)() == 2


def test_where_no_run_finished_data_may_be_others(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    check_data(folder, "1" * 64, "mine")
    check_data(folder, "1" * 64, "mine")
    with pytest.raises(RunFolderError, match="data 'mine' differ from the data of other runs in"):
        check_data(folder, "2" * 64, "mine")
    run_jobs(EngineSection(), [], ComparisonStatus([]), Resources(out=tmp_path, base=tmp_path))
    check_data(folder, "2" * 64, "mine")


def test_a_model_is_not_made_by_other_code_than_it_was_trained_with(base: Path, fedreach: Command) -> None:
    """What its code imports decides on its numbers, too."""
    (base / "mine.py").write_text(
        "import alone\nfrom torch import nn\n"
        "def net(sample_shape, num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    command = ["run", "tiny.toml", "-q", "--set", "model=mine.py:net", "--set", "rounds=1", "--out", "x"]
    assert fedreach(*command).exit_code == 0
    trained_model(base / "x")
    (base / "alone.py").write_text("RATE = 9\n")
    with pytest.raises(RunFolderError, match=r"alone\.py changed after the run with mine\.py:net"):
        trained_model(base / "x")


def test_a_package_without_init_in_another_is_read_without_being_imported(tmp_path: Path) -> None:
    """Python asks modules that are not imported where such a package lies, and ends in a KeyError."""
    (tmp_path / "proj" / "utils").mkdir(parents=True)
    (tmp_path / "proj" / "utils" / "plots.py").write_text("def draw(): pass")
    found = list(components._find_modules("proj.utils.plots", tmp_path))
    assert [name for _, name in found] == ["proj.utils.plots"]
    assert "proj" not in sys.modules
