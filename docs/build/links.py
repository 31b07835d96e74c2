"""Pages of the repository for the site: a linked file of the repository becomes a page with its text."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCES = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml", ".csv": "text", ".c": "c", ".h": "c", ".yml": "yaml"}
UNSEARCHED = "---\nsearch: { exclude: true }\n---\n\n"  # files of code are not found by a search
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")  # they are in the navigation


def pages(root: Path) -> dict[str, str]:
    """Return the text of every page of ``docs/`` and of every file that a page links to, by its path on the site.

    Raises:
        SystemExit: If the target of a link does not exist.
    """
    folders = [root / "docs", root / "docs" / "decisions", root / "docs" / "results"]
    waiting = [path.relative_to(root) for folder in folders for path in sorted(folder.glob("*.md"))]
    waiting += [Path(name) for name in ALWAYS]
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        if place(path) in found:
            continue
        text = (root / path).read_text(encoding="utf-8")
        if path.suffix == ".md":
            text, linked = with_links(root, path, text)
            waiting += linked
        else:
            language = LANGUAGES.get(path.suffix, "text")
            text = f"{UNSEARCHED}# {path.name}\n\n`{path.as_posix()}`\n\n````{language}\n{text}\n````\n"
        found[place(path)] = text
    return found


def place(path: Path) -> str:
    """Return the path on the site of a file of the repository."""
    if path.parts[0] == "docs":
        return PurePosixPath(*path.parts[1:]).as_posix()
    shown = PurePosixPath("repository", *(part.lstrip(".") for part in path.parts))  # the generator skips hidden ones
    return shown.as_posix() + ("" if path.suffix == ".md" else ".md")


def with_links(root: Path, page: Path, text: str) -> tuple[str, list[Path]]:
    """Return the text of a page with the links of the site, and the files of the repository that it links to."""
    linked: list[Path] = []
    folder = PurePosixPath(place(page)).parent

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / match[1]))
        if target.parts[:2] == ("docs", "reference"):  # made from the sources
            return match[0]
        if not (root / target).is_file():
            raise SystemExit(f"{page}: links to {match[1]}, but {target} does not exist.")
        if target.parts[0] != "docs" or target.suffix == ".md":
            linked.append(target)
        return os.path.relpath(place(target), folder) + (match[2] or "")

    pieces = FENCES.split(text)
    pieces[::2] = [LINK.sub(moved, piece) for piece in pieces[::2]]
    return "".join(pieces), linked
