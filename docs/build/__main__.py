"""Build the site: ``python docs/build`` writes ``site/``; a dead link, a missing anchor or an unknown name ends it.

The generator runs no hooks, so all that is not written by hand is made before it starts: pages in ``build/docs``, and
``build/mkdocs.yml``, which is the one of the repository with the paths and the list of generated pages filled in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import components
import keys
import links
import names
import notebook

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Write the pages, and the site from them, below a folder; ``--pages`` writes the pages alone."""
    if unknown := [word for word in arguments if word.startswith("-") and word != "--pages"]:
        sys.exit(f"python docs/build [FOLDER] [--pages]; got {unknown[0]}.")
    folder = Path(next((word for word in arguments if word != "--pages"), ROOT))
    docs = folder / "build" / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    write_pages(docs)
    if "--pages" in arguments:
        return 0
    config = folder / "build" / "mkdocs.yml"
    config.write_text(json.dumps(configured()), encoding="utf-8")  # JSON is YAML
    generator = Path(sys.executable).with_name("zensical")
    command = [str(generator), "build", "--strict", "--clean", "--config-file", str(config)]
    done = subprocess.run(command, env={**os.environ, "NO_COLOR": "1"}, check=False)
    if done.returncode == 0:
        shutil.rmtree(folder / "site", ignore_errors=True)
        shutil.move(folder / "build" / "site", folder / "site")  # it writes below its configuration only
    return done.returncode


def write_pages(docs: Path) -> None:
    """Write every page and figure below `docs`: those of the repository, and those made from the sources."""
    for source in sorted((ROOT / "docs").iterdir()):
        if source.is_dir() and source.name != "build":
            shutil.copytree(source, docs / source.name)
    made = {**names.pages(), **keys.pages(), **components.pages(), **commands.pages()}
    written = links.pages(ROOT)
    notebook_text, written["tutorial.md"] = notebook.made(written["tutorial.md"])
    for name, text in {**written, **made, "tutorial.ipynb": notebook_text}.items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def configured() -> dict[str, Any]:
    """Return the configuration with paths as seen from its folder, and a folder in the navigation made its pages."""
    import yaml  # comes with the generator

    records = sorted((ROOT / "docs" / "decisions").glob("*.md"), key=lambda path: path.name != "README.md")
    order = [*names.pages(), *components.pages(), *(f"decisions/{path.name}" for path in records)]
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config["docs_dir"], config["site_dir"] = "docs", "site"

    def opened(item: Any) -> Any:
        if isinstance(item, dict):
            return {title: opened(below) for title, below in item.items()}
        if isinstance(item, list):
            return [opened(below) for below in item]
        if item == "results/":
            return papers()
        if item.endswith("/"):
            return [page for page in order if page.startswith(item)]
        return item

    config["nav"] = opened(config["nav"])
    for plugin in config["plugins"]:
        if isinstance(plugin, dict) and "mkdocstrings" in plugin:
            handler = plugin["mkdocstrings"]["handlers"]["python"]
            handler["paths"] = [str(ROOT / path) for path in handler["paths"]]
            handler["options"]["extensions"] = [str(ROOT / path) for path in handler["options"]["extensions"]]
    return config


def papers() -> list[Any]:
    """Return the overview of what papers state, and below each paper the pages of its items."""
    below: dict[str, list[dict[str, str]]] = {}
    for path in sorted((ROOT / "docs" / "results").glob("*.json")):
        paper, _, item = json.loads(path.read_text(encoding="utf-8"))["recipe"].partition("/")
        below.setdefault(paper, []).append({item: f"results/{path.stem}.md"})
    return ["results/index.md", *({paper: pages} for paper, pages in below.items())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
