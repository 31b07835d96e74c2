"""Who may import whom, what stays out of the quick commands, and what an installation may bring."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedreach"

ARCHITECTURE = ROOT / "ARCHITECTURE.md"


class Row(NamedTuple):
    """A line of the table of packages in ARCHITECTURE.md."""

    layer: int
    folders: list[str]
    imports: list[str]  # none: all on lower floors
    unknown: list[str]


def rows() -> list[Row]:
    """Return the lines of the map."""
    found = []
    for line in ARCHITECTURE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 7 and cells[1].isdigit():
            folders, imports, unknown = (re.findall(r"`([\w.]+)`", cells[i]) for i in (2, 4, 5))
            found.append(Row(int(cells[1]), folders, imports, unknown))
    return found


MAP = rows()


def allowed(part: str) -> set[str]:
    """Return what a part may import: folders, or single files of them."""
    (row,) = [row for row in MAP if part in row.folders]
    before = {folder for other in MAP if other.layer < row.layer for folder in other.folders}
    beside = set(row.folders) if row.layer == 0 else {part}
    return beside | set(row.imports or before - set(row.unknown))


class Imported(NamedTuple):
    """One import: of a module, or of a name in it."""

    module: str
    line: int
    lazy: bool  # inside a function, or for type checkers only
    typing: bool  # for type checkers only


def imported(file: Path) -> list[Imported]:
    """Return what a file imports, anywhere in it, modules by their full name where the file is there."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    eager = {id(node) for node in tree.body} | {
        id(inner) for node in tree.body if isinstance(node, ast.Try) for inner in node.body
    }
    typing = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in node.body
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Imported(alias.name, node.lineno, id(node) not in eager, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                module = full if node.module == "fedreach" or full in MODULES else str(node.module)
                found.append(Imported(module, node.lineno, id(node) not in eager, id(node) in typing))
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.startswith("my_"))
MODULES = {
    ".".join(("fedreach", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def against_the_map(file: Path) -> list[str]:
    """Return the imports of a file that the map does not allow, each with what is wrong."""
    part = part_of(file)
    may, wrong = allowed(part), []
    (unknown,) = [row.unknown for row in MAP if part in row.folders]
    for module, line, lazy, _ in imported(file):
        inside = module.startswith("fedreach.") and not module.startswith("fedreach.__")
        steps = module.removeprefix("fedreach.").split(".")
        if inside and not any(steps[: name.count(".") + 1] == name.split(".") for name in may):
            wrong.append(f"{file.name}:{line}: {part} must not import {'.'.join(steps[:2])}")
        if not inside and not lazy and module.split(".")[0] in unknown:
            wrong.append(f"{file.name}:{line}: {part} must not know {module.split('.')[0]}")
    return wrong


NO_PART = {"__init__", "__main__"}  # names that are looked up when they are used, and the start of the command


def test_each_folder_imports_only_what_the_map_says() -> None:
    assert [line for file in FILES if part_of(file) not in NO_PART for line in against_the_map(file)] == []


def test_the_map_knows_every_folder_and_no_other() -> None:
    mapped = [folder for row in MAP for folder in row.folders]
    assert sorted(mapped) == sorted({part_of(file) for file in FILES} - NO_PART)
    layers = [row.layer for row in MAP]
    assert layers == sorted(layers)


@pytest.mark.parametrize(
    ("place", "statement", "said"),
    [
        ("data/noise.py", "from fedreach.federation.round import plan_round", "data must not import federation.round"),
        ("wireless/radio.py", "def late():\n    import fedreach.data.noise", "wireless must not import data.noise"),
        ("federation/round.py", "import torch", "federation must not know torch"),
        ("report/load.py", "from fedreach.runs.loop import each_round", "report must not import runs.loop"),
        ("runs/loop.py", "from fedreach.experiment.schema import Experiment", "runs must not import experiment.schema"),
    ],
)
def test_an_import_against_the_map_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, statement: str, said: str
) -> None:
    file = tmp_path / place
    file.parent.mkdir()
    file.write_text(f"from __future__ import annotations\n\n{statement}\n", encoding="utf-8")
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    (wrong,) = against_the_map(file)
    assert said in wrong


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the modules that can be reached from themselves, those that reach each other together."""
    reached = {module: set(of) for module, of in imports.items()}
    while True:
        further = {module: of.union(*(reached.get(other, set()) for other in of)) for module, of in reached.items()}
        if further == reached:
            break
        reached = further
    inside = {module for module, of in reached.items() if module in of}
    return sorted(
        {tuple(sorted(other for other in reached[module] & inside if module in reached[other])) for module in inside}
    )


def test_no_file_imports_itself_through_others() -> None:
    """Not even within functions: what is in a circle cannot be read in order. Imports for type checkers may."""
    imports = {
        name: {found.module for found in imported(path) if not found.typing} & MODULES.keys() - {name}
        for name, path in MODULES.items()
    }
    del imports["fedreach"]  # looks names up when they are used
    assert circles(imports) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [("a", "b", "c")]


def test_only_the_flower_package_imports_flwr() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in FILES
        for module, line, _, _ in imported(file)
        if module.split(".")[0] == "flwr" and "flower" not in file.parts
    ]
    assert wrong == []


def modules(statement: str) -> set[str]:
    """Return the modules in memory after a statement in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*sys.modules, file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def loaded(statement: str) -> set[str]:
    """Return the packages in memory after a statement in a fresh interpreter."""
    return {name.partition(".")[0] for name in modules(statement)}


HEAVY = {"torch", "flwr", "matplotlib", "pandas", "scipy", "sklearn", "torchvision", "tensorboard"}


def test_the_package_is_imported_without_anything_heavy() -> None:
    assert not loaded("import fedreach") & {*HEAVY, "numpy", "rich"}


def test_decisions_and_checks_of_an_experiment_need_no_torch() -> None:
    statement = "import fedreach.federation.round, fedreach.federation.participation, fedreach.federation.selection"
    statement += ", fedreach.federation.weighting, fedreach.federation.server, fedreach.federation.solvers"
    assert not loaded(statement) & HEAVY
    assert not loaded("import fedreach.experiment.load, fedreach.experiment.compare") & HEAVY
    assert not loaded("import fedreach.data.sets, fedreach.data.partition, fedreach.data.noise") & HEAVY
    assert not loaded("import fedreach.testing, fedreach.cli.checking") & HEAVY


@pytest.mark.slow
def test_scipy_is_loaded_only_where_something_is_worked_out() -> None:
    """Its distributions take half a second, which neither help nor a worker shall wait for; nor need a report."""
    assert not loaded("import fedreach.report.write") & HEAVY
    assert not loaded("import fedreach.experiment.worker, fedreach.deploy.adapter") & {"scipy", "sklearn"}


@pytest.mark.slow
def test_a_comparison_draws_nothing_until_its_last_run_is_done_and_a_report_needs_no_torch(tmp_path: Path) -> None:
    experiment = tmp_path / "two.toml"
    experiment.write_text("rounds = 2\nseeds = [0, 1]\n[evaluation]\nevery = 1\n[methods.a]\n[methods.b]\n", "utf-8")
    statement = "from fedreach.cli import compare, main\ncompare.write = lambda *_: None\n"
    arguments = ["compare", str(experiment), "--quiet", "--out", str(tmp_path / "out")]
    during = modules(f"{statement}main({arguments!r}, standalone_mode=False)")
    assert not {name.partition(".")[0] for name in during} & {"matplotlib", "PIL", "scipy"}
    arguments = ["report", str(tmp_path / "out")]
    after = modules(f"from fedreach.cli import main\nmain({arguments!r}, standalone_mode=False)")
    assert {"matplotlib.figure", "scipy.special"} <= after  # figures were drawn, and seeds judged
    assert not after & {"torch", "pydantic", "sklearn", "matplotlib.pyplot", "scipy.stats", "scipy.optimize"}


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["--version"], ["init", "x"], ["comparee"]])
def test_quick_commands_load_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    statement = f"import os\nos.chdir({str(tmp_path)!r})\nfrom fedreach.cli import main\n"
    statement += f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
    quickest = float("inf")
    for _ in range(5):  # a busy machine may hold up one try, not the best of several
        began = time.perf_counter()
        assert not loaded(statement) & {*HEAVY, "numpy"}
        quickest = min(quickest, time.perf_counter() - began)
        if quickest < 0.5:
            break
    assert quickest < 0.5 * (1 + os.getloadavg()[0] / (os.cpu_count() or 1))


# ------------------------------------------------------------------------------------------------ the installation


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]


def test_an_installation_stays_light() -> None:
    """No torchvision: three tools of the field replaced a user's CPU build of torch through theirs."""
    required = [r for r in importlib.metadata.requires("fedreach") or [] if "extra ==" not in r]
    names = {name_of(requirement) for requirement in required}
    assert {"numpy", "scipy", "scikit-learn", "torch", "click"} <= names
    assert not names & {"torchvision", "torchaudio", "pandas", "ray", "flwr"}
    assert len(names) <= 17
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert names == {name_of(requirement) for requirement in project["dependencies"]}


def test_the_users_torch_is_left_as_it_is() -> None:
    """Torch may be asked for with a lower bound only: a bound above would have pip exchange a newer build."""
    (torch,) = [r for r in importlib.metadata.requires("fedreach") or [] if name_of(r) == "torch"]
    assert re.fullmatch(r"torch\s*>=\s*[0-9.]+", torch)
    installed = importlib.metadata.version("torch").partition("+")[0]
    lowest = re.search(r"[0-9.]+$", torch)[0]  # type: ignore[index]
    assert [int(n) for n in installed.split(".")] >= [int(n) for n in lowest.split(".")]


def test_constraints_pin_what_is_required() -> None:
    path = ROOT / "constraints.txt"
    if not path.exists():
        pytest.skip("there is no constraints.txt in this checkout")
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        requirement = line.partition("#")[0].strip()
        if requirement and not requirement.startswith("-"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^\s,;]+(\s*;.*)?", requirement), requirement
            pins[name_of(requirement)] = requirement
    required = [r for r in importlib.metadata.requires("fedreach") or [] if "extra ==" not in r]
    assert {name_of(r) for r in required} <= set(pins)


# ------------------------------------------------------------------------------------------------ what to read


def listed_under(heading: str) -> list[Path]:
    """Return the files that a section of ARCHITECTURE.md names, in its order."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [SOURCE / name for name in re.findall(r"`([\w/]+\.py)`", section)]


def module_of(file: Path) -> str:
    return ".".join(("fedreach", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


@pytest.mark.parametrize(
    ("heading", "most"),
    [
        ("Follow one round", 12),
        ("Follow one option", 8),
        ("One comparison from command to page", 40),
    ],
)
def test_the_files_to_read_are_there_and_each_is_tied_to_one_before_by_an_import(heading: str, most: int) -> None:
    files = listed_under(heading)
    assert 3 < len(files) <= most
    for number, file in enumerate(files[1:], 1):
        before = {module_of(other) for other in files[:number]}
        importers = {module_of(other) for other in files[:number] if module_of(file) in reached_from(other)}
        assert importers or before & reached_from(file), f"{file.name} is tied to none of the files before it"


def reached_from(file: Path) -> set[str]:
    """Return the modules that a file imports, and those that the packages among them hand on."""
    direct = {other.module for other in imported(file)}
    return direct.union(*(homes_of(module) for module in direct))


def homes_of(package: str) -> set[str]:
    """Return the modules that a package hands on."""
    path = MODULES.get(package)
    return {other.module for other in imported(path)} if path is not None and path.name == "__init__.py" else set()
