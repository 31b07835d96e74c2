"""The short programs of ``examples/``: how short they are, what data they read, and that a wheel runs them.

That each of them runs with the sources as they are stands in `test_docs`.
"""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from fedreach.data.table_source import read_table

from .installed import ROOT, brought, closure, packages_named
from .wheels import Home, home_with_wheel

SHORT = sorted((ROOT / "examples").glob("*.py"))
LINES = 12  # of code
MEGABYTES = 600  # beside torch and what it needs, with the versions of constraints.txt
SECONDS = 0.3  # of `import fedreach`


@pytest.mark.parametrize("example", SHORT, ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_it_is_run(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    tree = ast.parse(text)
    said = ast.get_docstring(tree) or ""
    assert said.splitlines()[-1] == f"python examples/{example.name}"
    code = text.splitlines()[tree.body[0].end_lineno :]
    assert sum(bool(line.strip()) for line in code) <= LINES


def test_they_are_numbered_those_that_go_deeper_after_the_short_ones() -> None:
    programs = [*SHORT, *sorted((ROOT / "examples" / "deeper").glob("*.py"))]
    assert [path.name[:3] for path in programs] == [f"{number:02}_" for number in range(1, len(programs) + 1)]


def test_the_patients_are_made_up_by_formula() -> None:
    """Eight hospitals of 25 patients, of whom other shares come back; those are older, with more days and medicines."""
    hospitals = ("alder", "birch", "cedar", "elm", "hazel", "linden", "oak", "willow")
    rng, rows = np.random.default_rng(7), []
    for hospital, share in zip(hospitals, (0.5, 0.7, 0.3, 0.9, 0.1, 0.6, 0.2, 0.8), strict=True):
        for again in np.arange(25) < round(25 * share):
            age, days = round(rng.normal(62 + 9 * again, 11)), 1 + rng.poisson(4 + 3 * again)
            medicines = rng.poisson(5 + 3 * again)
            smoker = "yes" if rng.random() < 0.2 + 0.25 * again else "no"
            rows.append((hospital, age, days, medicines, smoker, "yes" if again else "no"))
    table = read_table(ROOT / "examples" / "patients.csv")
    assert list(table) == ["hospital", "age", "days", "medicines", "smoker", "readmitted"]
    order = np.random.default_rng(8).permutation(len(rows))
    found = zip(*(column.to_pylist() for column in table.values()), strict=True)
    assert list(found) == [tuple(map(str, rows[row])) for row in order]


# ----------------------------------------------------------------------------------------------------- from a wheel


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """An environment into which pip installed FedReach's wheel, beside a torch that was there."""
    return home_with_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_pip_installs_the_wheel_and_nothing_else_beside_a_torch_that_is_there(home: Home) -> None:
    assert home.installed() == {"fedreach"}
    said = home.python("import fedreach, torch; print(fedreach.__file__, torch.__version__)").split()
    assert Path(said[0]).is_relative_to(home.site)
    assert said[1] == metadata.version("torch")


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_not_the_papers(home: Home) -> None:
    (record,) = home.site.glob("fedreach-*.dist-info/RECORD")
    files = [Path(line.partition(",")[0]) for line in record.read_text(encoding="utf-8").splitlines()]
    packages = {file.parts[0] for file in files if file.parts[0] != ".."}  # beside bin/fedreach
    assert packages == {"fedreach", record.parent.name}
    assert not [file for file in files if "recipes" in file.parts]


@pytest.mark.slow
def test_the_wheel_and_what_it_needs_beside_torch_are_small(home: Home) -> None:
    beside = brought(set()) - closure([("torch", "")]) - {"fedreach"}
    assert {"numpy", "scipy", "cloudpickle"} <= beside
    needs = [Path(str(file.locate())) for name in beside for file in metadata.files(name) or ()]
    wheel, others = (
        sum(file.stat().st_size for file in files if file.is_file()) / 1e6 for files in (home.site.rglob("*"), needs)
    )
    assert 2 < wheel < 10
    assert wheel + others < MEGABYTES


@pytest.mark.slow
def test_it_is_imported_at_once_and_without_torch(home: Home) -> None:
    program = "import time; began = time.process_time(); import fedreach; took = time.process_time() - began\n"
    program += "import sys; print(took, 'torch' in sys.modules)"
    tries = [home.python(program).split() for _ in range(3)]
    assert {loaded for _, loaded in tries} == {"False"}
    assert min(float(took) for took, _ in tries) < SECONDS


@pytest.mark.slow
def test_the_command_compares_from_an_empty_folder(home: Home, tmp_path: Path) -> None:
    few = ["--set", "rounds=2", "--set", "evaluation.every=2", "--seeds", "1", "--formats", "none", "--quiet"]
    home.run([home.bin / "fedreach", "compare", *few], tmp_path)
    assert (tmp_path / "runs" / "digits" / "report" / "index.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("example", SHORT, ids=lambda path: path.name)
def test_an_example_runs_with_the_wheel(example: Path, home: Home, tmp_path: Path) -> None:
    more = packages_named(example.read_text(encoding="utf-8"))
    for package in more:
        pytest.importorskip(package)
    if more:
        home = home_with_wheel(tmp_path, more)
    assert home.run([home.bin / "python", example], tmp_path).count("\n") >= 2
