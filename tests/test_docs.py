"""Every command and every program on a page is run, with few rounds; long prose cannot drift from what works.

They see what the documented installation brings, and the extras that are named beside them, and nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Set
from pathlib import Path

import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import load
from papers import recipe as recipes

from .installed import EXTRAS, environment, extras_named, packages_named

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
FEW = [
    word
    for option in ("rounds=2", "evaluation.every=2", "evaluation.examples_per_client=20", "statistics.last_rounds=1")
    for word in ("--set", option)
]
TWO = "methods={uniform={},full={selection='full'}}"
EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.toml")) if path.name != "pyproject.toml"]
DATA = os.environ.get("FEDREACH_DATA") or str(ROOT.parent / "shared" / "data")


def sections(page: Path) -> list[tuple[str, set[str]]]:
    """Return the sections of a page, and the extras that are named in each, or in the first for the whole page."""
    first, *others = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    shared = extras_named(first)
    return [(first, shared), *((section, shared | extras_named(section)) for section in others)]


BLOCK = re.compile(r"^```(python|sh|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\S+\.(?:py|toml))\n")


def blocks(page: Path) -> list[tuple[str, str, set[str]]]:
    """Return the blocks in their order: language, text, and the extras that are named beside each."""
    return [(language, b, extras) for text, extras in sections(page) for language, b in BLOCK.findall(text)]


def is_long(page: Path) -> bool:
    """Whether what a page shows takes its time."""
    return any(language != "toml" for language, _, _ in blocks(page))


SHOWN = [pytest.param(page, marks=pytest.mark.slow) if is_long(page) else page for page in PAGES]


def run(
    command: list[str], folder: Path, extras: set[str], beside: Set[str] = frozenset()
) -> subprocess.CompletedProcess[str]:
    seen = {**environment(extras, beside), "FEDREACH_DATA": DATA}
    seen["PYTHONPATH"] = os.pathsep.join([seen["PYTHONPATH"], str(ROOT)])  # papers/ is run from the checkout
    done = subprocess.run(command, cwd=folder, env=seen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def quick(line: str) -> list[str]:
    """Return the command with few rounds, one seed, few examples to be scored on, and few figures.

    Where the number of seeds is worked out it has two methods, too.
    """
    words = shlex.split(line, comments=True)
    if words[:3] == ["python", "-m", "papers"]:
        words[0] = sys.executable
    else:
        assert words[0] == "fedreach", f"only commands of FedReach and of papers/ belong into ```sh; got {line!r}"
        words[:1] = [sys.executable, "-m", "fedreach"]
    first = words[2:5] == ["fedreach", "compare", "--set"]  # one page with its figures is enough
    if words[3] in ("run", "compare", "variance"):
        words += FEW
    if words[3] == "variance":
        words += ["--draws", "2,2,2,2", "--formats", "none"]
    if words[3] == "compare":
        words += ["--seeds", "1"] if "--detect" not in words else ["--seeds", "10", "--max-seeds", "11", "--set", TWO]
        words += ["--formats", "" if first else "none"]
    return words


def is_example(line: str) -> bool:
    """Whether a line compares an experiment of ``examples/`` and no more; each of them runs in a test of its own."""
    words = shlex.split(line, comments=True)
    return words[:2] == ["fedreach", "compare"] and len(words) == 3 and ROOT / words[2] in EXAMPLES


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for _, block, _ in blocks(page):
        if named := NAMED.match(block):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
    for language, block, extras in blocks(page):
        if language == "sh":
            for line in block.splitlines():
                if line.strip() and not line.startswith("#") and not is_example(line):
                    run(quick(line), tmp_path, extras)
        elif language == "python" and not block.startswith("# "):
            run([sys.executable, "-c", block], tmp_path, extras)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_where_a_command_needs_an_extra_its_section_names_it(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clarabel", None)  # as if it were not installed
    for text, extras in sections(page):
        assert extras <= EXTRAS.keys()
        for named in set(re.findall(r"fedreach (?:run|compare|partition) (examples/[\w/]+\.toml)", text)):
            assert refused(lambda named=named: load(ROOT / named)) <= extras
        for named in re.findall(r"python -m papers (\w+/\w+)", text):
            for name in recipes.find(named):
                assert refused(lambda name=name: recipes.load(name, "smoke").at()) <= extras


def test_a_missing_extra_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clarabel", None)
    assert refused(lambda: recipes.load("csra/fig5", "smoke").at()) == {"reproduce"}
    assert refused(lambda: recipes.load("csra/fig2a", "smoke").at()) == set()


def refused(made: Callable[[], object]) -> set[str]:
    """Return the extras that this is refused for."""
    try:
        made()
    except ConfigError as error:
        return extras_named(str(error))
    return set()


def test_the_readme_is_short_and_has_a_picture_of_the_report() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    assert [line for line in text.splitlines() if len(line) > 100] == []
    assert len(re.findall(r"\]\(", text)) <= 15
    (picture,) = re.findall(r"!\[[^]]+\]\((\S+?)\)", text)
    assert 10_000 < (ROOT / picture).stat().st_size < 300_000


def test_a_page_names_every_example_and_experiment() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    files = [path for path in (ROOT / "examples").rglob("*.*") if path.suffix in (".py", ".toml")]
    apart = {"flower_app", "papers"}  # folders with a page of their own
    names = {path.relative_to(ROOT).as_posix() for path in files if not apart & set(path.parts)}
    assert {name for name in names if f"(../{name})" not in page} == set()
    assert len(names) > 20


PROGRAMS = [*sorted((ROOT / "examples").glob("*.py")), *sorted((ROOT / "examples" / "deeper").glob("*.py"))]
QUICK = {"03_own_module.py", "11_rounds.py"}  # the others take a minute together
RUN = [path if path.name in QUICK else pytest.param(path, marks=pytest.mark.slow) for path in PROGRAMS]


@pytest.mark.slow
@pytest.mark.parametrize("example", RUN, ids=lambda path: path.name)
def test_an_example_program_runs_and_says_something(example: Path, tmp_path: Path) -> None:
    text = example.read_text(encoding="utf-8")
    for package in packages_named(text):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")
    done = run([sys.executable, str(example)], tmp_path, extras_named(text), packages_named(text))
    assert done.stdout.count("\n") >= 2
    assert "Near chance" not in done.stderr


def test_an_example_that_needs_another_package_names_it(tmp_path: Path) -> None:
    (example,) = [path for path in PROGRAMS if packages_named(path.read_text(encoding="utf-8"))]
    command, seen = [sys.executable, example], environment(set())
    done = subprocess.run(command, cwd=tmp_path, env=seen, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "This example needs the package datasets: pip install datasets\n"


PAPERS = [
    path if path.name == "rademacher.py" else pytest.param(path, marks=pytest.mark.slow)
    for path in sorted((ROOT / "examples" / "papers").glob("*.py"))
]


@pytest.mark.slow
@pytest.mark.parametrize("example", PAPERS, ids=lambda path: path.name)
def test_a_papers_example_says_what_is_claimed_and_what_was_measured(example: Path, tmp_path: Path) -> None:
    extras = extras_named(example.read_text(encoding="utf-8"))
    said = run([sys.executable, str(example), "--quick"], tmp_path, extras).stdout.lower()
    if not Path(DATA, "MNIST").exists():
        pytest.skip("the data files are not here; set FEDREACH_DATA to the folder that holds them")
    assert "claim" in said
    assert "measured" in said


KINDS = ("", "_selection", "_adaptation", "_adaptation_few", "_adaptation_rules", "_weighting", "_radio")
LONG = {f"fashion_mnist{kind}.toml" for kind in KINDS}
"""A minute and more, even with two rounds."""
LONGER = {"breast_cancer.toml", *LONG}
EXPERIMENTS = [pytest.param(path, marks=pytest.mark.slow) if path.name in LONGER else path for path in EXAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXPERIMENTS, ids=lambda path: path.name)
def test_an_example_experiment_runs(example: Path, tmp_path: Path) -> None:
    need_data(example)
    out = tmp_path / "out"
    run(quick(f"fedreach compare {example} --out {out} --quiet"), tmp_path, extras_named(example.read_text("utf-8")))
    assert (out / "report" / "index.html").stat().st_size > 10_000


@pytest.mark.slow
def test_long_examples_are_at_least_right_in_all_their_parts(tmp_path: Path) -> None:
    need_data(ROOT / "examples" / "fashion_mnist.toml")
    words = [quick(f"fedreach partition {ROOT / 'examples' / name}")[3:] for name in sorted(LONG)]
    extras = {extra for name in LONG for extra in extras_named((ROOT / "examples" / name).read_text("utf-8"))}
    program = f"from fedreach.cli import main\nfor words in {words}: main(words, standalone_mode=False)"
    assert run([sys.executable, "-c", program], tmp_path, extras).stdout.count("Clients   100 with") >= len(LONG)


def need_data(example: Path) -> None:
    if example.name.startswith("fashion_mnist") and not Path(DATA, "FashionMNIST").exists():
        pytest.skip("the Fashion-MNIST files are not here; set FEDREACH_DATA to the folder that holds them")


def test_files_that_pages_name_are_there() -> None:
    """`federation/round.py` stands for a file of the package, `benchmarks/moon.py` for one of the repository."""
    records = (ROOT / "docs" / "decisions").glob("*.md")
    pages = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *records]
    places = (ROOT, ROOT / "src" / "fedreach", ROOT / "src" / "fedreach" / "federation", ROOT / "benchmarks")
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"`(?:src/fedreach/)?(\w+/[\w/]+\.py)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert sorted(each for each in named if not any((place / each[1]).exists() for place in places)) == []
