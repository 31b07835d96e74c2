"""Reference page of the keys of an experiment file, from the models that check one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fedreach._util import registry
from fedreach.experiment.schema import PARTS, Experiment

SCHEMA = Experiment.model_json_schema()
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
HEAD = """\
# Keys of an experiment file

An experiment is a TOML file. Every key is optional. `fedreach init` writes a file with comments, and `--set` changes
single keys (`--set local.lr=0.05`). In Python, the tables are dictionaries (`local={"lr": 0.05}`). FedReach reports
all unknown keys, wrong types and values out of range at once, before it reads data.

Where the type is *name*, name a built-in or custom component, alone (`"adam"`) or with its options
(`{ name = "adam", lr = 0.05 }`); each [component](components/selection.md) lists its options. A default of – means
that there is no default, or that the column *meaning* describes it.
"""


def pages() -> dict[str, str]:
    """Return the page."""
    lines = [HEAD]
    for table, rows, sentence in tables("", SCHEMA):
        lines.append(f"## {f'[{table}]' if table else 'At the top'}\n\n{sentence}\n")
        lines.append("| key | meaning | type and range | default |\n| --- | --- | --- | --- |")
        lines += [f"| `{key}` | {meaning} | {kind} | {default} |" for key, kind, default, meaning in rows]
        lines.append("")
    return {"reference/keys.md": "\n".join(lines)}


def tables(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str, str, str]], str]]:
    """Yield the path, rows and description of each table of the file, then those of the tables in it."""
    rows, below = [], []
    required = schema.get("required", [])
    for key, said in schema["properties"].items():
        dotted = f"{path}.{key}".strip(".")
        section = table_of(said)
        if section is not None and not (key in PARTS and path in ("method", "methods.NAME")):
            named = said.get("type") == "object"  # a table of tables, each by a name of the user's
            below.append((f"{dotted}.NAME" if named else dotted, section))
        if section is None or len(kinds(key, said)) > 1 or key in PARTS:
            default = "required" if key in required else value(key, path, said.get("default"))
            rows.append((key, " or ".join(kinds(key, said)), default, meaning(key, path, said)))
    sentence = schema.get("description", "").replace("\n", " ")
    if rows:
        yield path, rows, "" if not path else sentence
    for dotted, section in below:
        yield from tables(dotted, section)


def table_of(said: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of the table that is the value of a key; None for any other value, or a name alone."""
    for option in (said, *said.get("anyOf", ())):
        inner = option.get("additionalProperties")
        name = (inner if isinstance(inner, dict) else option).get("$ref", "").rpartition("/")[2]
        if name and name != "Choice":
            found: dict[str, Any] = SCHEMA["$defs"][name]
            return found
    return None


def kinds(key: str, said: dict[str, Any]) -> list[str]:
    """Return the accepted types in words."""
    if "anyOf" in said:
        return [word for option in said["anyOf"] if option.get("type") != "null" for word in kinds(key, option)]
    if "$ref" in said:
        name = said["$ref"].rpartition("/")[2]
        page = key if key in registry.COMPONENT_TYPES else ""
        return [f"[name](components/{page}.md)" if page else "name" if name == "Choice" else "table"]
    if "enum" in said or "const" in said:
        return [f"`{json.dumps(word)}`" for word in said.get("enum", [said.get("const")])]
    if said["type"] == "array":
        inner = " or ".join(kinds("metric" if key == "metrics" else key, said["items"]))
        return [f"list of {inner}"]
    bounds = " and ".join(f"{sign} {said[bound]}" for bound, sign in BOUNDS.items() if bound in said)
    bounds = bounds or said.get("rule", "")
    word = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    return [f"{word.get(said['type'], 'table')} {bounds}".strip()]


def value(key: str, path: str, default: Any) -> str:
    """Return a default value as TOML."""
    if path == "method" and PARTS.get(key):
        return f'`"{PARTS[key]}"`'
    if default is None:
        return "–"
    if key == "metrics":
        default = [choice["name"] for choice in default]
    if isinstance(default, dict):
        default = default.get("name", "–")
    return f"`{json.dumps(default)}`"


def meaning(key: str, path: str, said: dict[str, Any]) -> str:
    """Return what a key means: its own words, or those of the kind of part that it names."""
    words = said.get("description", "")
    if not words and key in PARTS:
        words = registry.COMPONENT_TYPES[key].meaning
    return words.replace("|", "\\|")
