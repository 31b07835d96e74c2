"""The site documents all public names, has no dead links, and loads nothing from other servers."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, urlsplit

import click
import pytest
from pydantic import BaseModel

import fedreach
import fedreach.flower
from fedreach._util import registry
from fedreach.cli import main
from fedreach.experiment.schema import Choice, Experiment

from .installed import ROOT
from .test_docs import quick, run

FRONT_DOORS = ("fedreach.deploy", "fedreach.testing")
BUILDER = ROOT / "docs" / "build"


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILDER), *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of every page, by its path."""
    folder = tmp_path_factory.mktemp("pages")
    done = build(folder, "--pages")
    assert done.returncode == 0, done.stderr
    docs = folder / "build" / "docs"
    return {
        path.relative_to(docs).as_posix(): path.read_text("utf-8")
        for path in docs.rglob("*")
        if path.suffix in (".md", ".ipynb")
    }


@pytest.mark.slow
def test_every_public_name_is_on_the_site(pages: dict[str, str]) -> None:
    names = [f"fedreach.{name}" for name in fedreach.__all__]
    names += [f"fedreach.flower.{name}" for name in fedreach.flower.__all__]
    for door in FRONT_DOORS:
        module = importlib.import_module(door)
        own = [name for name, thing in vars(module).items() if name[0] != "_" and callable(thing)]
        names += [f"{door}.{name}" for name in getattr(module, "__all__", own)]
    shown = {name for text in pages.values() for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}
    assert [name for name in names if name not in shown] == []
    assert len(names) > 20


@pytest.mark.slow
def test_every_key_is_on_the_site_with_its_meaning(pages: dict[str, str]) -> None:
    page = pages["reference/keys.md"]
    tables = dict(re.findall(r"^## (?:\[(.*?)\]|At the top)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    wrong, checked = [], 0
    for path, key, holds_a_table in fields("", Experiment):
        row = re.search(rf"^\| `{key}` \| (.*?) \| (.+?) \| (.+?) \|$", tables.get(path, ""), re.MULTILINE)
        if (row is None and not holds_a_table) or (row is not None and not row[1]):
            wrong.append(f"{path}.{key}")
        checked += 1
    assert wrong == []
    assert checked > 90


def fields(path: str, model: type[BaseModel]) -> Iterator[tuple[str, str, bool]]:
    """Yield the table, the key, and whether its value is a table, of all keys of an experiment file."""
    for key, field in model.model_fields.items():
        inner = [each for each in models_of(field.annotation) if each is not Choice]
        named = "dict" in str(field.annotation) and inner
        yield path, key, bool(inner)
        for each in inner:
            yield from fields(f"{path}.{key}{'.NAME' if named else ''}".strip("."), each)


def models_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in models_of(each)]


@pytest.mark.parametrize("kind", registry.COMPONENT_TYPES)
@pytest.mark.slow
def test_every_component_is_on_the_site_with_when_to_use_it(kind: str, pages: dict[str, str]) -> None:
    page = pages[f"reference/components/{kind}.md"]
    assert registry.COMPONENT_TYPES[kind].meaning in page
    for name, thing in registry.table(kind).items():
        (row,) = re.findall(rf"^\| \[?`{name}`.*$", page, re.MULTILINE)
        if kind in ("data", "theorem"):
            continue
        assert "*When:*" in row, name
        assert f"::: {thing.__module__}.{thing.__qualname__}\n" in page, name


@pytest.mark.slow
def test_every_command_and_option_is_on_the_site(pages: dict[str, str]) -> None:
    page = pages["reference/commands.md"]
    for name, command in main.commands.items():
        context = click.Context(command)
        (section,) = re.findall(rf"^## fedreach {name} {{.*?\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
        assert str(command.help).split(".")[0].replace("\b\n", "").split("\n")[0] in section
        for parameter in command.params:
            said = parameter.opts if isinstance(parameter, click.Option) else [parameter.make_metavar(context)]
            assert all(word in section for word in said), (name, said)


def test_every_written_page_is_in_the_navigation() -> None:
    """Decision records and pages of papers are not: only links lead to them."""
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert {path.name for path in (ROOT / "docs").glob("*.md") if f": {path.name}\n" not in config} == set()
    assert "decisions/" not in config
    assert "results/" not in config


@pytest.mark.slow
def test_a_link_to_a_file_that_is_not_there_ends_the_build(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(BUILDER)!r}); import links; from pathlib import Path; "
        "links.with_links(Path(sys.argv[1]), Path('docs/page.md'), 'see [there](../src/gone.py)')"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "docs/page.md: links to ../src/gone.py, but src/gone.py does not exist.\n"


# ------------------------------------------------------------------------------------------------- as it is built


class Page(HTMLParser):
    """The files that a page loads, its links, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.folder = path.parent
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.images: list[dict[str, str | None]] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.ids |= {word for key in ("id", "name") if (word := said.get(key))}
        if tag in ("script", "img", "iframe", "source") and said.get("src"):
            self.loaded.append(str(said["src"]))
        if tag == "link" and said.get("rel") in ("stylesheet", "icon", "preconnect", "preload") and said.get("href"):
            self.loaded.append(str(said["href"]))
        if tag == "a" and said.get("href"):
            self.links.append(str(said["href"]))
        if tag == "img":
            self.images.append(said)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Every page of the site, by its path; built as by `make docs`."""
    if not Path(sys.executable).with_name("zensical").exists():
        pytest.skip("the site's generator is not installed: pip install 'fedreach[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    built = folder / "site"
    return {path.relative_to(built).as_posix(): Page(path) for path in built.rglob("*.html")}


@pytest.mark.slow
def test_nothing_is_loaded_from_other_servers(site: dict[str, Page]) -> None:
    loaded = {address for page in site.values() for address in page.loaded}
    assert [address for address in loaded if urlsplit(address).netloc] == []
    folder = site["index.html"].folder
    styles = "".join(path.read_text("utf-8") for path in folder.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*\)|@import", styles) == []
    assert loaded


@pytest.mark.slow
def test_every_link_and_anchor_leads_somewhere(site: dict[str, Page]) -> None:
    dead = []
    root = site["index.html"].folder
    for name, page in site.items():
        for address in page.links + page.loaded:
            parts = urlsplit(address)
            if parts.netloc or parts.scheme or name == "404.html":
                continue
            target = Path(os.path.normpath(page.folder / unquote(parts.path))) if parts.path else root / name
            inside = site.get(target.relative_to(root).as_posix())
            if not target.is_file() or (parts.fragment and inside and unquote(parts.fragment) not in inside.ids):
                dead.append((name, address))
    assert dead == []


@pytest.mark.slow
def test_every_public_name_has_its_own_anchor(site: dict[str, Page]) -> None:
    ids = {word for page in site.values() for word in page.ids}
    assert [name for name in fedreach.__all__ if f"fedreach.{name}" not in ids] == []
    assert "fedreach.federation.selection.random.Uniform" in ids


@pytest.mark.slow
def test_every_picture_is_described(site: dict[str, Page]) -> None:
    images = [image for page in site.values() for image in page.images]
    assert [image for image in images if not image.get("alt")] == []
    assert len(images) > 10


@pytest.mark.slow
def test_the_tutorial_runs_as_a_notebook(pages: dict[str, str], tmp_path: Path) -> None:
    """One process runs the cells in order, as a kernel does, with `%%writefile` and `!`."""
    script = [PRELUDE]
    for cell in json.loads(pages["tutorial.ipynb"])["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            continue
        if source.startswith("%%writefile "):
            head, _, text = source.partition("\n")
            script.append(f"Path({head.split()[1]!r}).write_text({text!r})")
        elif source.startswith("!"):
            script += [f"subprocess.run({quick(line.removeprefix('!'))!r}, check=True)" for line in source.splitlines()]
        else:
            script.append(source)
    run([sys.executable, "-c", "\n".join(script)], tmp_path, set())
    for name in ("hospitals/runs/adapted", "own-method/runs/by_root"):
        result = json.loads((tmp_path / "runs" / name / "seed-0" / "result.json").read_text("utf-8"))
        assert result["status"] == "finished"


PRELUDE = "import subprocess, sys\nfrom pathlib import Path\nsys.path.insert(0, '')"
