"""Experiment files and --set: trees that were right, until some of their values became others."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st

from fedreach._util.registry import COMPONENT_TYPES, table
from fedreach.experiment.load import load

from .campaign import Target, WrongError
from .damage import DEEP, SURROGATES, TEXTS, VALUES, damaged

RIGHT: dict[str, Any] = {
    "name": "right",
    "rounds": 2,
    "seeds": [0],
    "baseline": "a",
    "target_accuracy": 0.5,
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet_by_class", "clients": 8, "alpha": 0.5},
    "noise": {"name": "symmetric", "rate": 0.1},
    "shift": {"name": "brightness", "strength": 0.2, "share": 0.5},
    "population": {"participants": 4, "exclude_clients": [], "participation": "always", "held_out": 0.2},
    "server_data": {"examples": 10},
    "radio": {"name": "gigahertz"},
    "budget": {"megabytes": 100.0},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch_size": 16, "epochs": 1, "momentum": 0.0, "schedule": "constant"},
    "engine": {"name": "sequential", "threads": 1},
    "evaluation": {"every": 1, "inputs": [5], "metrics": ["accuracy", "auroc"]},
    "statistics": {"contrasts": "all", "correction": "holm"},
    "run": {"checkpoint_seconds": 2.0},
    "method": {"cohort_size": 2, "selection": "uniform", "weighting": "by_examples", "server": {"name": "average"}},
    "methods": {"a": {}, "b": {"selection": {"name": "power_of_choice", "candidates": 3}, "local": {"epochs": 1}}},
}
KEYS = sorted(
    {key for value in RIGHT.values() if isinstance(value, dict) for key in value}
    | {
        *RIGHT,
        "seed",
        "file",
        "folder",
        "inner",
        "parts",
        "examples_per_client",
        "patience",
        "steps",
        "clip_norm",
        "decay",
    }
    | {
        "device",
        "precision",
        "loss",
        "adaptation",
        "solver",
        "aggregation",
        "allocation",
        "label_statistics",
        "download",
    }
)
NAMES = sorted(
    {name for kind, row in COMPONENT_TYPES.items() if row.table for name in table(kind)} | {"a", "b", "natural"}
)
OPTION_VALUES = VALUES | st.sampled_from(NAMES) | st.fixed_dictionaries({"name": st.sampled_from(NAMES) | TEXTS})


def _paths(tree: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = []
    for key, value in tree.items() if isinstance(tree, dict) else ():
        found += [(*before, key), *_paths(value, (*before, key))]
    return found


PATHS = _paths(RIGHT)
NEAR = {
    bool: st.booleans(),
    int: st.integers(0, 12),
    float: st.floats(0, 1, exclude_min=True, allow_subnormal=False),
    str: st.sampled_from(NAMES),
}


def near(path: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Return values like the one that stands there, half of which are right."""
    value: Any = RIGHT
    for step in path:
        value = value[step]
    return NEAR.get(type(value), st.just(value).map(deepcopy))  # which the next change may enter


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an experiment in which one to four values are others, gone, or added."""
    tree: dict[str, Any] = json.loads(json.dumps(RIGHT))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        path = draw(st.sampled_from(PATHS))
        holder = tree
        for step in path[:-1]:
            holder = holder.get(step) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            continue
        what = draw(st.sampled_from(["other", "other", "other", "gone", "added"]))
        if what == "gone":
            holder.pop(path[-1], None)
        else:
            key = path[-1] if what == "other" else draw(st.sampled_from(KEYS) | TEXTS)
            holder[key] = draw(near(path) if what == "other" and draw(st.booleans()) else OPTION_VALUES)
    return tree


def written(tree: dict[str, Any]) -> bytes:
    """Return the tree as TOML."""
    return tomli_w.dumps(tree).encode("utf-8", "surrogatepass")


DEEP_TEXTS = st.sampled_from(
    [
        b"a = " + b"[" * DEEP + b"]" * DEEP,
        b"a = " + b"{a=" * DEEP + b"1" + b"}" * DEEP,
        b"rounds = " + b"9" * 5000,
        b"rounds = 0x" + b"f" * 10**5,
        b"[" + b"a." * 1000 + b"b]\nx = 1",
        b"a." * 1000 + b"b = 1",
        b"rounds = 1979-05-27T07:32:00Z",
        b"[[rounds]]\n[[rounds]]",
        b"[[methods]]\nselection = 'uniform'",
        b"rounds = 2\nrounds = 3",
        b"name = '" + b"x" * 10**6 + b"'",
    ]
)
FILES = trees().map(written) | DEEP_TEXTS | damaged(written(RIGHT)) | st.binary(max_size=80)


def of_file(folder: Path, content: bytes) -> None:
    (folder / "x.toml").write_bytes(content)
    load(folder / "x.toml")


def of_json(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text, encoding="utf-8")
    load(folder / "run.json")


JSON = trees().map(lambda tree: {"config": tree}) | VALUES | st.dictionaries(TEXTS | SURROGATES, VALUES | SURROGATES)
JSON_TEXTS = JSON.map(lambda value: json.dumps(value, default=str)) | st.sampled_from(
    [
        "[" * DEEP,
        '{"a":' * DEEP,
        "[" * 10**5 + "]" * 10**5,
        '{"config": {"rounds": ' + "9" * 5000 + "}}",
        '{"rounds": 1e999}',
    ]
)


@st.composite
def settings_of(draw: st.DrawFn) -> list[str]:
    """Draw what --set is given."""
    paths = [".".join(map(str, path)) for path in PATHS] + ["evaluation.metrics[0]", "evaluation.metrics.1", "seeds[9]"]
    found = []
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=2)):
        found.append(f"{'.'.join(map(str, path))}={as_toml(draw(near(path)))}")
    for _ in range(draw(st.integers(0 if found else 1, 1))):
        key = draw(st.sampled_from([*paths, "int", "data", "model.hidden", "methods.x.y.z", "partition.a.b"]) | TEXTS)
        value = draw(
            OPTION_VALUES.map(as_toml)
            | TEXTS
            | SURROGATES
            | st.sampled_from(["[" * DEEP, "9" * 5000, "3", "{a=1}", "[]"])
        )
        found.append(f"{key}={value}" if draw(st.integers(0, 9)) else value)
    return found


def as_toml(value: Any) -> str:
    """Return a value as it stands behind a = in TOML."""
    try:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(str(key))} = {as_toml(inner)}" for key, inner in value.items()) + "}"
        return tomli_w.dumps({"v": value}).partition("=")[2].strip()
    except (TypeError, ValueError):
        return str(value)


def of_settings(folder: Path, overrides: list[str]) -> None:
    (folder / "right.toml").write_bytes(written(RIGHT))
    made = load(folder / "right.toml", overrides)
    if load(folder / "right.toml", overrides) != made and "nan" not in repr(made):
        raise WrongError("the same settings must give the same experiment")


TARGETS = [
    Target("experiment files", FILES, of_file, 4),
    Target("run.json as an experiment", JSON_TEXTS, of_json, 2),
    Target("--set", settings_of(), of_settings, 4),
]
