"""A function or class is known by its own code and what it refers to, not by the file or notebook that it is in."""

from __future__ import annotations

import importlib
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedreach._util.code import digest_of_code
from fedreach.experiment.components import code_files
from fedreach.experiment.naming import digest_meaning

SCRIPT = '''\
import math

SIZE = 3
TABLE = {"a": 1}

def helper(x):
    return x + SIZE

def marked(function):
    function.mark = 1
    return function

def other():
    return 0

class Base:
    step = 1

class Part(Base):
    """What it is for."""

    def __init__(self, width=4):
        self.width = width

    @marked
    def weights(self, results):
        return helper(self.width) * math.pi + TABLE["a"]

def around(k):
    def inner(x):
        return x * k
    return inner

closed = around(2)
scale = lambda x: x * SIZE
'''

Digest = Callable[[str, str], str]


def of_file(tmp_path: Path) -> Digest:
    """Return what tells the digest of a name of this text, which stands in a file of an experiment."""

    def digest(text: str, name: str) -> str:
        (tmp_path / "own.py").write_text(text, encoding="utf-8")
        return digest_of_code(tmp_path / "own.py", name)

    return digest


def of_thing(tmp_path: Path) -> Digest:
    """Return what tells the digest of a name of this text, which was run as a script."""

    def digest(text: str, name: str) -> str:
        return digest_meaning(run_as_main(text, "script.py")[name])

    return digest


def run_as_main(*cells: str) -> dict[str, object]:
    """Return the names of texts that were run one after the other, as a notebook does; the last is a name of files."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells[:-1]):
        exec(compile(cell, f"{cells[-1]}{number}", "exec"), names)
    return names


@pytest.fixture(params=[of_file, of_thing], ids=["file", "thing"])
def digest(request: pytest.FixtureRequest, tmp_path: Path) -> Digest:
    return request.param(tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SIZE = 3", "# a comment\nSIZE = 3"),
        ("SIZE = 3", "\n\n\nSIZE = 3"),
        ("    return 0", "    return 1"),
        ("def other", "def another():\n    return 5\n\ndef other"),
        ("What it is for.", "What else it is for."),
        ("import math", "import math, json"),
        ("import math", "print('begun')\nimport math"),
        ("return helper(", "return helper(  # by the width\n            "),
        ("scale = lambda", "result = other()\nprint(Part)\nscale = lambda"),
        ("scale = lambda", "if __name__ == '__main__':\n    other()\nscale = lambda"),
    ],
)
def test_what_it_does_not_refer_to_makes_no_other_identity(digest: Digest, before: str, after: str) -> None:
    assert before in SCRIPT
    assert digest(SCRIPT, "Part") == digest(SCRIPT.replace(before, after), "Part")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x + SIZE", "x - SIZE"),  # a helper
        ("SIZE = 3", "SIZE = 4"),  # a constant that only the helper refers to
        ('{"a": 1}', '{"a": 2}'),
        ("width=4", "width=5"),  # a default
        ("step = 1", "step = 2"),  # a base class
        ("mark = 1", "mark = 2"),  # a decorator
        ("    @marked\n", ""),
        ("self.width = width", "self.width = -width"),
        ("math.pi", "math.e"),
        ("scale = lambda", "SIZE = 5\nscale = lambda"),  # changed later
        ("scale = lambda", "TABLE['a'] = 2\nscale = lambda"),
        ("scale = lambda", "TABLE.update(a=2)\nscale = lambda"),
        ("scale = lambda", "Part.extra = 2\nscale = lambda"),
        ("scale = lambda", "setattr(Base, 'step', 2)\nscale = lambda"),
        ("scale = lambda", "table = TABLE\ntable['a'] = 2\nscale = lambda"),
        ("scale = lambda", "for each in [TABLE]:\n    each['a'] = 2\nscale = lambda"),
        ("scale = lambda", "for key in 'ab':\n    TABLE[key] = 2\nscale = lambda"),
    ],
)
def test_what_it_refers_to_makes_another_identity(digest: Digest, before: str, after: str) -> None:
    assert before in SCRIPT
    assert digest(SCRIPT, "Part") != digest(SCRIPT.replace(before, after), "Part")


def test_a_closure_is_known_by_what_it_closes_over(digest: Digest) -> None:
    assert digest(SCRIPT, "closed") != digest(SCRIPT.replace("around(2)", "around(3)"), "closed")
    assert digest(SCRIPT, "closed") == digest(SCRIPT.replace("SIZE = 3", "SIZE = 4"), "closed")


def test_a_lambda_is_known_by_its_body_and_what_that_refers_to(digest: Digest) -> None:
    assert digest(SCRIPT, "scale") != digest(SCRIPT.replace("x * SIZE", "x / SIZE"), "scale")
    assert digest(SCRIPT, "scale") != digest(SCRIPT.replace("SIZE = 3", "SIZE = 4"), "scale")
    assert digest(SCRIPT, "scale") == digest(SCRIPT.replace("x * k", "x / k"), "scale")


def test_a_local_name_is_not_taken_for_a_constant_of_the_script(digest: Digest) -> None:
    text = "data = 3\n\ndef part(results):\n    data = results\n    return data\n"
    assert digest(text, "part") == digest(text.replace("data = 3", "data = 4"), "part")


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("def part():\n    return eval('SIZE')\n", "it uses eval"),
        ("def part():\n    return globals()['SIZE']\n", "it uses globals"),
        ("def part():\n    return part.__doc__\n", "it may read its own text"),
    ],
)
def test_where_names_are_looked_up_at_run_time_the_whole_file_counts_and_that_is_told(
    tmp_path: Path, text: str, because: str
) -> None:
    file, changed = tmp_path / "own.py", tmp_path / "changed.py"
    file.write_text(text + "SIZE = 3\n")
    changed.write_text(text + "SIZE = 4\n")
    digests = [digest_of_code(each, "part") for each in (file, changed)]
    assert digests[0].split(" ")[0] != digests[1].split(" ")[0]
    assert digests[0].partition(" ")[2] == f"(the whole file counts: {because})"
    found = []
    for each in (file, changed):
        names: dict[str, object] = {"__name__": "__main__"}
        exec(compile(each.read_text(), str(each), "exec"), names)
        found.append(digest_meaning(names["part"]))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("def part():\n    return SIZE\n", "it binds 'SIZE' nowhere at its top"),
        (
            "SIZE = 3\ndef part():\n    return SIZE\ndef change():\n    global SIZE\n    SIZE = 4\n",
            "a function of it rebinds 'SIZE'",
        ),
    ],
)
def test_a_name_that_is_bound_at_run_time_makes_the_whole_file_count(tmp_path: Path, text: str, because: str) -> None:
    digest = of_file(tmp_path)
    assert digest(text, "part").endswith(f"(the whole file counts: {because})")
    assert digest(text, "part") != digest(text + "OTHER = 1\n", "part")


def test_cells_of_a_notebook_may_be_run_in_another_order_and_again(tmp_path: Path) -> None:
    first, second = "def helper(x):\n    return x\n", "def part(x):\n    return helper(x)\n"
    once = run_as_main(first, second, "cell")
    again = run_as_main("x = 1", second, "y = 2", first, first, "other cell")
    assert digest_meaning(once["part"]) == digest_meaning(again["part"])
    later = run_as_main(first, second, first.replace("return x", "return -x"), "cell")
    assert digest_meaning(once["part"]) != digest_meaning(later["part"])


def test_of_a_cell_that_looks_names_up_the_whole_cell_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    text, found = "def part():\n    return eval('SIZE')\n", []
    for size in (3, 4):
        cell = f"{text}SIZE = {size}\n"
        monkeypatch.setitem(linecache.cache, "<cell>0", (len(cell), None, cell.splitlines(True), "<cell>0"))
        found.append(digest_meaning(run_as_main(cell, "<cell>")["part"]))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    "text",
    [
        "import beside\n\ndef part():\n    return beside.RATE\n",
        "from beside import RATE\n\ndef part():\n    return RATE\n",
        "def part():\n    import beside\n    return beside.RATE\n",
        "def part():\n    import importlib\n    return importlib.import_module('beside').RATE\n",
        "from beside import *\n\ndef part():\n    return RATE\n",
    ],
)
def test_a_changed_module_of_ones_own_makes_another_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    live, files = [], []
    for rate in (1, 20):
        (tmp_path / "beside.py").write_text(f"RATE = {rate}\n", encoding="utf-8")
        monkeypatch.delitem(sys.modules, "beside", raising=False)
        importlib.invalidate_caches()
        live.append(digest_meaning(run_as_main(text, "script")["part"]))
        named = code_files("own.py:part", tmp_path)
        assert set(named) == {"own.py:part", "beside.py"}
        files.append([digest_of_code(path) for path in named.values()])
    assert live[0] != live[1]
    assert files[0] != files[1]


def test_a_module_that_is_only_imported_for_what_it_does_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "patches.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "own.py").write_text(
        "import patches\nimport unused\n\ndef part():\n    return 1\n\ndef other():\n    return unused\n"
    )
    assert set(code_files("own.py:part", tmp_path)) == {"own.py:part", "patches.py"}


def test_equal_texts_are_the_same_whether_they_are_one_object_or_two(tmp_path: Path) -> None:
    """A pickle tells them apart, and whether they are one depends on which lines were compiled together."""
    text = "MODE = 'a text with spaces'\ndef part(mode='a text with spaces'):\n    return mode, MODE\n"
    together = run_as_main(text, "script")
    first, rest = text.split("\n", 1)
    assert digest_meaning(together["part"]) == digest_meaning(run_as_main(first, rest, "cell")["part"])


@pytest.mark.slow
def test_a_script_with_a_line_more_goes_on_with_its_comparison(tmp_path: Path) -> None:
    script = """\
import fedreach as fr
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))

if __name__ == "__main__":
    data = fr.load("digits").partition("iid", clients=5, participants=4)
    fr.compare(data, {"fedavg": {}}, model=Net, rounds=1, seeds=1, out="main", progress=False)
"""
    for text in (script, f"# a comment\n{script}\nprint('done')\n"):
        (tmp_path / "main.py").write_text(text, encoding="utf-8")
        subprocess.run([sys.executable, "main.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert len(list((tmp_path / "main" / "parts").glob("*.pkl"))) == 1


def test_where_a_script_lies_makes_no_other_identity() -> None:
    found = []
    for file in ("/here/script.py", "/there/other.py"):
        names: dict[str, object] = {"__name__": "__main__", "__file__": file}
        exec(compile(SCRIPT, file, "exec"), names)
        found.append(digest_meaning(names["Part"]))
    assert found[0] == found[1]


def test_what_a_file_does_when_it_is_run_itself_counts_for_nobody_who_imports_it(tmp_path: Path) -> None:
    digest = of_file(tmp_path)
    run_itself = 'if __name__ == "__main__":\n    TABLE.update(a=2)\n'
    assert digest(SCRIPT, "Part") == digest(SCRIPT + run_itself, "Part")
