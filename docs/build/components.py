"""Reference pages of all that has a name, a kind a page: what it does, when to use it, its options and source."""

from __future__ import annotations

from typing import Any

from fedreach._util import registry
from fedreach.cli.listing import entries

FROM_CATALOGUE = ("data",)  # known by what the catalogue says, not by their loaders
BLOCK = """\
::: {where}
    options:
      heading: "{name}"
      toc_label: "{name}"
      heading_level: 2
      members: false
      show_symbol_type_heading: false"""


def pages() -> dict[str, str]:
    """Return a page of each kind."""
    return {f"reference/components/{kind}.md": page(kind) for kind in registry.KINDS}


def page(kind: str) -> str:
    """Return a table of the names of a kind, and below it all that is said about each."""
    row, found = registry.KINDS[kind], entries([kind])
    lines = [f"# {kind}", row.meaning]
    if row.path is not None:
        table = ".".join((*row.path, kind))
        lines.append(f"Key: `{table}`" + (f'; default: `"{row.default}"`.' if row.default else "."))
    if row.checks:
        lines.append("`fedreach verify NAME` runs the checks of this kind, on your own as well.")
    if row.users_own and row.base:
        lines.append(f"Your own derives from [`{row.base.rpartition(':')[2]}`][{row.base.replace(':', '.')}].")
    in_full = kind not in FROM_CATALOGUE
    things = registry.table(kind)
    rows = [f"| {named(entry['name'], things[entry['name']], in_full)} | {cell(entry)} |" for entry in found]
    lines.append("\n".join(["| name | what it does, and when |", "| --- | --- |", *rows]))
    if in_full:
        first: dict[str, str] = {}  # several names may stand for one thing
        for name, thing in things.items():
            first.setdefault(dotted(thing), name)
        lines += [BLOCK.format(where=where, name=name) for where, name in first.items()]
    return "\n\n".join(lines) + "\n"


def dotted(thing: Any) -> str:
    """Return where a thing is defined."""
    return f"{thing.__module__}.{thing.__qualname__}"


def named(name: str, thing: Any, in_full: bool) -> str:
    """Return the name, as a link where there is more below."""
    return f"[`{name}`][{dotted(thing)}]" if in_full else f"`{name}`"


def cell(entry: dict[str, str]) -> str:
    """Return what a line of the table says."""
    when = f" *When:* {entry['when']}" if entry["when"] else ""
    reference = f" ({entry['reference']})" if entry["kind"] in FROM_CATALOGUE else ""
    options = (
        f" Options: {', '.join(f'`{name}`' for name in entry['options'])}." if reference and entry["options"] else ""
    )
    return f"{entry['summary']}{reference}{options}{when}".replace("|", "\\|")
