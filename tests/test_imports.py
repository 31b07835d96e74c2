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
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedreach"

LAYERS = (
    ("errors", "streams", "arrays", "tables", "registry"),
    ("storage", "data", "models"),
    ("theory", "wireless"),
    ("federation",),
    ("engines", "evaluation", "config"),
    ("simulation",),
    ("testing", "planning", "runs"),
    ("experiments",),
    ("reproduce", "flower"),
    ("cli",),
)
"""Each may import what stands before it; only those of the first layer import each other."""

ELSEWHERE = {
    "report": {"errors", "arrays", "tables", "theory"},  # reads run folders only; theory is arithmetic
    "cli": {"report"},  # beside all the layers before it
    "__main__": {"cli"},
}


def allowed(part: str) -> set[str]:
    """Return the parts that a part may import."""
    before: set[str] = set()
    for layer in LAYERS:
        if part in layer:
            siblings = set(layer) if layer is LAYERS[0] else {part}
            return siblings | before | ELSEWHERE.get(part, set())
        before |= set(layer)
    return {part} | ELSEWHERE[part]


def imported(file: Path) -> list[tuple[str, int]]:
    """Return the (module, line) that a file imports from, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            found += [
                (f"{node.module}.{alias.name}" if node.module == "fedreach" else str(node.module), node.lineno)
                for alias in node.names
            ]
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.startswith("my_"))


def test_each_part_imports_only_what_stands_before_it() -> None:
    wrong = []
    for file in FILES:
        part = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue  # names that are looked up when they are used
        for module, line in imported(file):
            if module.startswith("fedreach.") and not module.startswith("fedreach.__"):
                target = module.split(".")[1]
                if target not in allowed(part):
                    wrong.append(f"{file.relative_to(ROOT)}:{line}: {part} must not import {target}")
    assert wrong == []


def test_the_rule_knows_every_part() -> None:
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    known = {part for layer in LAYERS for part in layer} | set(ELSEWHERE) | {"__main__"}
    assert parts <= known, "a new package needs its place in LAYERS"


def test_only_the_flower_package_imports_flwr() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in FILES
        for module, line in imported(file)
        if module.split(".")[0] == "flwr" and "flower" not in file.parts
    ]
    assert wrong == []


def loaded(statement: str) -> set[str]:
    """Return the packages in memory after a statement in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*sys.modules, file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


HEAVY = {"torch", "flwr", "matplotlib", "pandas", "scipy", "sklearn", "torchvision", "tensorboard"}


def test_the_package_is_imported_without_anything_heavy() -> None:
    assert not loaded("import fedreach") & {*HEAVY, "numpy"}


def test_decisions_and_checks_of_an_experiment_need_no_torch() -> None:
    statement = "import fedreach.federation.round, fedreach.federation.participation, fedreach.federation.selection"
    statement += ", fedreach.federation.weighting, fedreach.federation.server, fedreach.federation.solvers"
    assert not loaded(statement) & HEAVY
    assert not loaded("import fedreach.config.load, fedreach.experiments.compare") & HEAVY
    assert not loaded("import fedreach.data.sets.catalogue, fedreach.data.partition, fedreach.data.noise") & HEAVY
    assert not loaded("import fedreach.testing, fedreach.cli.verdicts") & HEAVY


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
    assert {"numpy", "torch", "click"} <= names
    assert not names & {"torchvision", "torchaudio", "pandas", "pyarrow", "scipy", "scikit-learn", "ray", "flwr"}
    assert len(names) <= 12
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
