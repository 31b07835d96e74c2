"""``fedreach list`` and ``init``: components and templates."""

import inspect
import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from textwrap import shorten
from typing import Any

import click

from fedreach._util import registry
from fedreach._util.errors import ConfigError, nearest
from fedreach.cli import options

INDENT = 18  # letters of the column of types


@click.command(
    "list",
    epilog="Examples:\n\n\b\n  fedreach list\n  fedreach list selection\n  fedreach list selection --verbose\n"
    "  fedreach list data --json",
)
@click.argument(
    "kind", metavar="[TYPE]", required=False, shell_complete=options.complete(lambda: registry.COMPONENT_TYPES)
)
@options.verbose
@options.as_json
def list_(kind: str | None, as_json: bool) -> None:
    """List components, data sets and theorems.

    Without TYPE, prints the component names of all types. With TYPE, prints a line per component. --verbose adds
    options, use cases and references.
    """
    if kind is not None and kind not in registry.COMPONENT_TYPES:
        raise ConfigError(f"Unknown component type {kind!r}.{nearest(kind, registry.COMPONENT_TYPES)}")
    rows = entries([kind] if kind else list(registry.COMPONENT_TYPES))
    if as_json:
        options.set_json(rows)
    elif options.is_verbose():
        options.echo(text(rows))
    else:
        options.echo(_names_text(rows, options.width()) if kind is None else _summaries_text(rows, options.width()))


@click.command(
    epilog="Examples:\n\n\b\n  fedreach init\n  fedreach init comparison && fedreach compare comparison/experiment.toml"
)
@click.argument("folder", default=".", type=click.Path(path_type=Path, file_okay=False))
@options.as_json
def init(folder: Path, as_json: bool) -> None:
    """Write templates for an experiment, a custom policy and custom data."""
    from fedreach.experiment.templates import write_templates

    written = write_templates(folder)
    if as_json:
        options.set_json({"written": [str(path) for path in written]})
        return
    options.echo("\n".join(f"Wrote {path}" for path in written))
    options.echo(f"\nNext    fedreach compare {written[0]}")


def entries(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the type, name, summary, use case, options and reference of all components of these types."""
    return [_entry(kind, name, thing) for kind in kinds for name, thing in registry.table(kind).items()]


def _entry(kind: str, name: str, thing: Any) -> dict[str, Any]:
    if kind == "data":
        from fedreach.data.sets import options_of
        from fedreach.data.sets.download import sources

        about = sources()[name].title, "", dict.fromkeys(options_of(name), ""), sources()[name].reference
    else:
        text = inspect.getdoc(thing) or ""
        described = re.search(rf'- "{name}": (.*?)(?=\n- "|\n\n)', text, re.DOTALL) if kind == "noise" else None
        summary = " ".join((described[1] if described else text.partition("\n\n")[0]).split())
        when, reference = registry.paragraph(thing, "Use when"), registry.paragraph(thing, "References?")
        if kind == "theorem":
            summary = f"{thing.__name__}: {summary.removeprefix('Return ')}"
        about = summary, when, _options(kind, name, thing), reference
    return dict(zip(("kind", "name", "summary", "when", "options", "reference"), (kind, name, *about), strict=True))


def _options(kind: str, name: str, thing: Any) -> dict[str, Any]:
    if kind == "engine":  # its options are listed in [engine]
        return {}
    runtime_arguments = registry.supplied_arguments(kind, name, thing)
    parameters = inspect.signature(thing).parameters.values()
    empty = inspect.Parameter.empty
    names = {part: key for key, part in registry.table(kind).items()}  # a default component is shown by its name
    return {
        p.name: "required" if p.default is empty else names.get(type(p.default), p.default)
        for p in parameters
        if p.name not in runtime_arguments
    }


def _names_text(rows: Sequence[dict[str, Any]], width: int) -> str:
    """Return a line of names for each type, as many as fit."""
    lines = []
    for kind, group in groupby(rows, itemgetter("kind")):
        names = [entry["name"] for entry in group]
        count = next(k for k in range(len(names), -1, -1) if len(_some(names, k)) <= width - INDENT)
        lines.append(f"{kind:<{INDENT}}{_some(names, count)}")
    return "\n".join([*lines, "", "More    fedreach list TYPE"])


def _some(names: Sequence[str], count: int) -> str:
    more = [f"{len(names) - count} more"] if count < len(names) else []
    return ", ".join([*names[:count], *more])


def _summaries_text(rows: Sequence[dict[str, Any]], width: int) -> str:
    """Return a line for each component of a type."""
    longest = max(len(row["name"]) for row in rows) + 2
    lines = [registry.COMPONENT_TYPES[rows[0]["kind"]].meaning, ""]
    lines += [f"{row['name']:<{longest}}{shorten(row['summary'], width - longest, placeholder='…')}" for row in rows]
    return "\n".join([*lines, "", f"More    fedreach list {rows[0]['kind']} --verbose"])


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the entries with all details."""
    blocks = []
    for kind, group in groupby(rows, itemgetter("kind")):
        lines = [kind]
        for entry in group:
            options = ", ".join(k if v in ("required", "") else f"{k}={v!r}" for k, v in entry["options"].items())
            lines.append(f"  {entry['name']}" + (f" ({options})" if options else ""))
            when = f"Use when: {entry['when']}" if entry["when"] else ""
            lines += [f"      {words}" for words in (entry["summary"], when, entry["reference"]) if words]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
