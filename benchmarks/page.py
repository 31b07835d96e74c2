"""Records of results, `docs/records/NAME.md`: each benchmark writes its own section, between two markers."""

from __future__ import annotations

import platform
from pathlib import Path

RECORDS = Path(__file__).parents[1] / "docs" / "records"


def section(name: str, page: Path) -> str:
    """Return the text of the section of this name; an empty one if the page has none."""
    _, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->")
    return rest.partition(f"<!-- /{name} -->")[0]


def put(name: str, text: str, page: Path | None = None) -> None:
    """Replace the section of this name, ``<!-- name -->``; a new section goes to the end of the page.

    Args:
        page: File, which need not exist; by default the record of the same name.
    """
    page = page or RECORDS / f"{name}.md"
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = page.read_text(encoding="utf-8") if page.exists() else f"# {page.stem}\n"
    head, found, rest = old.partition(begin)
    _, closed, tail = rest.partition(end)
    if found and not closed:
        raise ValueError(f"{page.name} must have {end} after {begin}; add it where the section ends")
    new = f"{begin}\n{text.strip()}\n{end}"
    page.write_text(f"{head}{new}{tail}" if found else f"{old.rstrip()}\n\n{new}\n", encoding="utf-8")


def processor() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
