"""Build the site: ``python docs/build`` writes ``site/`` and fails on a dead link, a missing anchor or an unknown name.

The generator runs no hooks, so all generated files are written before it starts: pages in ``build/docs``, and
``build/mkdocs.yml``, a copy of the repository's file with paths and the list of generated pages filled in.
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
    """Write the pages and the site into a folder; with ``--pages`` only the pages."""
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
        shutil.move(folder / "build" / "site", folder / "site")  # the generator writes next to its configuration
    return done.returncode


def write_pages(docs: Path) -> None:
    """Write all pages and figures into `docs`: those of the repository and the generated ones."""
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
    """Return the configuration with absolute paths, and with generated pages in place of their folder in `nav`."""
    import yaml  # installed with the generator

    generated = [*names.pages(), *components.pages()]
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config["docs_dir"], config["site_dir"] = "docs", "site"

    def with_pages(item: Any) -> Any:
        if isinstance(item, dict):
            return {title: with_pages(entry) for title, entry in item.items()}
        if isinstance(item, list):
            return [with_pages(entry) for entry in item]
        if item.endswith("/"):
            return [page for page in generated if page.startswith(item)]
        return item

    config["nav"] = with_pages(config["nav"])
    for plugin in config["plugins"]:
        if isinstance(plugin, dict) and "mkdocstrings" in plugin:
            handler = plugin["mkdocstrings"]["handlers"]["python"]
            handler["paths"] = [str(ROOT / path) for path in handler["paths"]]
            handler["options"]["extensions"] = [str(ROOT / path) for path in handler["options"]["extensions"]]
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
