"""Reference pages of components, one page per type: summary, when to use it, options and source."""

from __future__ import annotations

from typing import Any

from fedreach._util import registry
from fedreach.cli.listing import entries

FROM_CATALOGUE = ("data",)  # described by the catalog, not by the docstring of the loader
ELSEWHERE = ("theorem",)  # documented on another page of the reference
BLOCK = """\
::: {where}
    options:
      heading: "{name}"
      toc_label: "{name}"
      heading_level: 2
      members: false
      show_symbol_type_heading: false"""


def pages() -> dict[str, str]:
    """Return one page per component type."""
    return {f"reference/components/{kind}.md": page(kind) for kind in registry.COMPONENT_TYPES}


def page(kind: str) -> str:
    """Return a table of the components of a type, followed by the documentation of each."""
    row, found = registry.COMPONENT_TYPES[kind], entries([kind])
    lines = [f"# {kind}", row.meaning]
    if row.path is not None:
        table = ".".join((*row.path, kind))
        lines.append(f"Key: `{table}`" + (f'; default: `"{row.default}"`.' if row.default else "."))
    if row.checked:
        lines.append("`fedreach verify NAME` runs the checks of this type, also on custom components.")
    if row.users_own and row.base:
        lines.append(f"Custom components derive from [`{row.base.rpartition(':')[2]}`][{row.base.replace(':', '.')}].")
    in_full = kind not in FROM_CATALOGUE
    things = registry.table(kind)
    rows = [f"| {named(entry['name'], things[entry['name']], in_full)} | {cell(entry)} |" for entry in found]
    lines.append("\n".join(["| name | summary, and when to use it |", "| --- | --- |", *rows]))
    if in_full:
        first: dict[str, str] = {}  # several names may refer to one component
        for name, thing in things.items():
            first.setdefault(dotted(thing), name)
        lines += [BLOCK.format(where=where, name=name) for where, name in first.items() if kind not in ELSEWHERE]
    return "\n\n".join(lines) + "\n"


def dotted(thing: Any) -> str:
    """Return the full name of a class or function."""
    return f"{thing.__module__}.{thing.__qualname__}"


def named(name: str, thing: Any, in_full: bool) -> str:
    """Return the name, as a link if the page documents it."""
    return f"[`{name}`][{dotted(thing)}]" if in_full else f"`{name}`"


def cell(entry: dict[str, str]) -> str:
    """Return the text of a row of the table."""
    when = f" *When:* {entry['when']}" if entry["when"] else ""
    reference = f" ({entry['reference']})" if entry["kind"] in FROM_CATALOGUE else ""
    options = (
        f" Options: {', '.join(f'`{name}`' for name in entry['options'])}." if reference and entry["options"] else ""
    )
    return f"{entry['summary']}{reference}{options}{when}".replace("|", "\\|")
