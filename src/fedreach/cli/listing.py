"""What there is, read from the tables of names and the docstrings behind them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from fedreach import registry


def entries(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return kind, name, one line, options with defaults, and the reference of everything in these kinds."""
    return [_entry(kind, name, thing) for kind in kinds for name, thing in registry.table(kind).items()]


def _entry(kind: str, name: str, thing: Any) -> dict[str, Any]:
    if kind == "data":
        from fedreach.data.sets.catalogue import names as known_sets

        known = {known.name: known for known in known_sets()}[name]
        options: dict[str, Any] = dict.fromkeys(known.options, "")
        return {"kind": kind, "name": name, "summary": known.title, "options": options, "reference": known.reference}
    text = inspect.getdoc(thing) or ""
    summary = text.partition("\n\n")[0].replace("\n", " ")
    if kind == "noise":
        described = re.search(rf'- "{name}": (.*?)(?=\n- "|\n\n)', text, re.DOTALL)
        summary = " ".join(described[1].split()) if described else summary
    found = re.search(r"References?:\s*(.*?)(?:\n\n|\Z)", text, re.DOTALL)
    reference = " ".join(found[1].split()) if found else ""
    return {
        "kind": kind,
        "name": name,
        "summary": summary,
        "options": _options(kind, name, thing),
        "reference": reference,
    }


def _options(kind: str, name: str, thing: Any) -> dict[str, Any]:
    if kind == "engine":  # its options stand in [engine]
        return {}
    given = registry.given(kind, name, thing)
    parameters = inspect.signature(thing).parameters.values()
    empty = inspect.Parameter.empty
    known = {part: key for key, part in registry.table(kind).items()}  # a part that is a default is said by its name
    return {
        p.name: "required" if p.default is empty else known.get(type(p.default), p.default)
        for p in parameters
        if p.name not in given
    }


def text(found: Sequence[dict[str, Any]]) -> str:
    """Return the entries for people."""
    lines: list[str] = []
    kind = None
    for entry in found:
        if entry["kind"] != kind:
            kind = entry["kind"]
            lines += ["", str(kind)] if lines else [str(kind)]
        options = ", ".join(k if v in ("required", "") else f"{k}={v!r}" for k, v in entry["options"].items())
        lines.append(f"  {entry['name']}" + (f" ({options})" if options else ""))
        lines.append(f"      {entry['summary']}")
        if entry["reference"]:
            lines.append(f"      {entry['reference']}")
    return "\n".join(lines)
