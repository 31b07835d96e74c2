"""The recipe for a new kind of part, followed in a copy of the package: its files, one row, one field and one line.

Everything else reads the row: `fedreach list`, `fedreach verify`, experiment files, a run's identity, completion.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedreach

pytestmark = pytest.mark.slow  # a copy of the package, in processes

PART = '''\
"""How much of the mean update is followed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from fedreach._util.arrays import Floats
from fedreach.federation.base import Component


class Shrinking(Component):
    """Makes the mean update smaller."""

    component_type = "shrinking"

    @abstractmethod
    def shrunk(self, mean_update: Floats) -> Floats:
        """Return the (p,) step."""


@dataclass(frozen=True)
class Whole(Shrinking):
    """Follow the mean update as it is."""

    def shrunk(self, mean_update):
        return mean_update


@dataclass(frozen=True)
class Scaled(Shrinking):
    """Follow a share of the mean update."""

    factor: float = 0.5

    def shrunk(self, mean_update):
        return self.factor * mean_update


SHRINKINGS = {"whole": Whole, "scaled": Scaled}
'''

CHECKS = '''\
"""Checks of what makes the mean update smaller."""

import numpy as np

from fedreach.testing.base import define_check, fail


@define_check()
def never_longer(subject):
    """The step is no longer than the mean update."""
    if not np.linalg.norm(subject.component.shrunk(np.ones(3))) <= np.sqrt(3):
        fail("it is longer", "three ones")
'''

ROW = """\
    "shrinking": ComponentType(
        "fedreach.federation.shrinking:SHRINKINGS",
        "How much of the mean update is followed.",
        "fedreach.federation.shrinking:Shrinking",
        path=METHOD,
        default="whole",
        checked=True,
    ),
"""

MINE = """\
from dataclasses import dataclass

from fedreach.federation.shrinking import Shrinking


@dataclass(frozen=True)
class Doubled(Shrinking):
    factor: float = 2.0

    def shrunk(self, mean_update):
        return self.factor * mean_update


class Empty:
    pass
"""

MISSPELLED = """\
from fedreach.federation.shrinking import Scaled


class Misspelled(Scaled):
    read_updates = True
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def inserted(file: Path, before: str, lines: str) -> None:
    """Write lines before the one place where this stands."""
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{file.name} has changed: name another place for the recipe's line"
    file.write_text(text.replace(before, lines + before), encoding="utf-8")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return how to run Python with a copy of the package that has the new kind."""
    folder = tmp_path_factory.mktemp("kind")
    package = folder / "src" / "fedreach"
    shutil.copytree(Path(fedreach.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "federation" / "shrinking.py").write_text(PART, encoding="utf-8")
    (package / "testing" / "checks" / "shrinking.py").write_text(CHECKS, encoding="utf-8")
    inserted(package / "_util" / "registry.py", '    "radio": ComponentType(', ROW)
    field = "    shrinking: Shrinking = Whole()\n"
    inserted(package / "federation" / "federation.py", "\n    def __post_init__", field)
    imports = "from fedreach.federation.shrinking import Shrinking, Whole\n"
    inserted(package / "federation" / "federation.py", "from fedreach.federation.types import", imports)
    line = "    step = federation.shrinking.shrunk(step)\n"
    inserted(package / "federation" / "round.py", "    if solver is not None:\n        step, solver_state = ", line)
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    (folder / "misspelled.py").write_text(MISSPELLED, encoding="utf-8")
    (folder / "x.toml").write_text('[methods.a]\n[methods.b]\nshrinking = "scaled"\n', encoding="utf-8")

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), **variables}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    return run


def test_it_is_listed_and_completed(python: Run) -> None:
    told = json.loads(python("-m", "fedreach", "list", "shrinking", "--json").stdout)
    assert [(entry["name"], entry["options"]) for entry in told] == [("whole", {}), ("scaled", {"factor": 0.5})]
    script = "from fedreach.cli import main; main(prog_name='fedreach')"
    for words in ("fedreach list shr", "fedreach verify --kind shr"):
        number = str(len(words.split()) - 1)
        done = python("-c", script, _FEDREACH_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)
        assert done.stdout.strip() == "plain,shrinking", done.stderr


def test_it_is_verified(python: Run) -> None:
    right = python("-m", "fedreach", "verify", "scaled")
    assert (right.returncode, right.stdout.split()[:4]) == (0, ["shrinking", "scaled", "all", "checks"])
    wrong = python("-m", "fedreach", "verify", "mine.py:Doubled")  # whose type is that of its base class
    assert wrong.returncode == 1
    assert 'mine.py:Doubled fails the check "never longer": The step is no longer than the mean update.' in wrong.stdout


def test_an_experiment_may_name_it_and_is_told_what_is_wrong(python: Run) -> None:
    script = """
from pathlib import Path
from fedreach.experiment.load import load
from fedreach.experiment.components import identity
from fedreach._util.errors import FedReachError

file = Path("x.toml")
e = load(file, ["method.shrinking={name='mine.py:Doubled',factor=0.5}"])
print(e.choice("shrinking").options, e.resolved("b").choice("shrinking").name)
about = identity(e.resolved("a"), 0, "a", Path())
print(about["config"]["method"]["shrinking"], list(about["code"]))
print(load(file).model_dump()["method"]["shrinking"])
for wrong in ("shrinkin=scaled", "shrinking=scale", "shrinking.facto=1.0", "shrinking={name='scaled',factor='a'}",
              "shrinking='mine.py:Empty'", "shrinking='misspelled.py:Misspelled'"):
    try:
        load(file, ["method.shrinking=scaled", "method." + wrong])
    except FedReachError as error:
        print(error)
"""
    done = python("-c", script)
    options, settings, default, *refused = done.stdout.splitlines()
    assert options == "{'factor': 0.5} scaled", done.stderr
    assert settings == "{'name': 'mine.py:Doubled', 'factor': 0.5} ['mine.py:Doubled']"
    assert default == "{'name': 'whole'}"
    text = " ".join(refused)
    for rule in (
        "method.shrinkin: unknown key. Did you mean 'shrinking'?",
        "method.shrinking.name: unknown shrinking 'scale'. Did you mean 'scaled'?",
        "method.shrinking.facto: shrinking 'scaled' has no such option. Did you mean 'factor'?",
        "method.shrinking.factor: must be a valid number; got 'a'",
        "'mine.py:Empty' must be an instance of a subclass of fedreach.Shrinking; got Empty.",
        "Misspelled has no attribute `read_updates`. Did you mean `reads_updates`?",
    ):
        assert rule in text, rule


def test_a_round_follows_it(python: Run) -> None:
    script = """
from dataclasses import replace
import numpy as np
from fedreach.federation.shrinking import Scaled
from fedreach.testing.problems import tiny_simulation

whole = tiny_simulation()
half = replace(whole, federation=replace(whole.federation, shrinking=Scaled(0.5)))
start = whole.start().params
full, less = (simulation.step(simulation.start()).state.params - start for simulation in (whole, half))
print(np.allclose(less, full / 2, atol=1e-6), bool(abs(full).max() > 0))
"""
    done = python("-c", script)
    assert done.stdout.split() == ["True", "True"], done.stderr
