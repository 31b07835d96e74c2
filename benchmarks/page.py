"""The page of results, docs/benchmarks.md: each benchmark writes its own section, between two markers."""

from __future__ import annotations

import platform
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def section(name: str, page: Path = PAGE) -> str:
    """Return what stands in the section of this name; nothing where there is none."""
    _, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->")
    return rest.partition(f"<!-- /{name} -->")[0]


def put(name: str, text: str, page: Path = PAGE) -> None:
    """Put the text into the section of this name, ``<!-- name -->``; all else stays. A new section goes to the end."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = page.read_text(encoding="utf-8")
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
