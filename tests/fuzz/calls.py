"""Python's front door: `compare`, `run`, `load`, `from_frame`, `from_clients` with arguments of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import fedreach as fr
from fedreach.api.compare import build_request

from .campaign import Target
from .damage import SCALARS, SURROGATES, TEXTS, VALUES
from .experiments import NAMES

ANYTHING = st.one_of(
    SCALARS,
    VALUES,
    SURROGATES,
    st.none(),
    st.binary(max_size=5),
    st.sampled_from(NAMES),
    st.sampled_from(
        [
            object(),
            len,
            np.float32(1),
            np.array([1, 2]),
            np.array(["a", None], object),
            {1: 2},
            set(),
            print,
            type,
            range(3),
            Path("x"),
            b"x",
            1j,
            np.nan,
            np.zeros((0, 3)),
            np.zeros((3, 0)),
            [[1, 2], [3]],
            [[], []],
        ]
    ),
)
COLUMN = st.one_of(
    st.lists(SCALARS | st.none() | st.sampled_from(["a", "b", 1, 2.5, True]), min_size=12, max_size=12),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=12, max_size=12),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    st.lists(SCALARS, max_size=3),
    ANYTHING,
)
KEYS = st.sampled_from(["drop", "category", "number", "date", "boolean", "missing", "decimal"])
COLUMNS = st.dictionaries(
    KEYS, ANYTHING | st.lists(st.sampled_from(["x", "who", "a", "?", 1, ","]), max_size=2) | TEXTS
)
WHO, ILL = ["n", "s", "e", "n"] * 3, ["no", "yes", "yes"] * 4


@st.composite
def frames(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the arguments of `from_frame`."""
    table: Any = {"who": WHO, "ill": ILL, "x": list(range(12))}
    for _ in range(draw(st.integers(0, 2))):
        table[draw(st.sampled_from(["who", "ill", "x"]) | TEXTS)] = draw(COLUMN)
    table = draw(ANYTHING) if draw(st.integers(0, 5)) == 0 else table
    what = draw(st.sampled_from([{"label": "ill"}, {"target": "x"}, {"target": ["x", "ill"]}]))
    given: dict[str, Any] = {"table": table, "client": "who", **what}
    for _ in range(draw(st.integers(0, 1))):
        key = draw(st.sampled_from(["client", "label", "target", "participants", "held_out", "seed", "name"]))
        given[key] = draw(ANYTHING)
    if draw(st.booleans()):
        given["columns"] = draw(ANYTHING | COLUMNS)
    return given


def of_frame(folder: Path, given: dict[str, Any]) -> None:
    given = dict(given)
    data = fr.FederatedData.from_frame(given.pop("table"), **given)
    data.digest()
    repr(data)


X = st.one_of(
    st.sampled_from(
        [
            np.zeros((4, 2)),
            np.zeros((4, 1, 3, 3), np.uint8),
            np.zeros((4, 5), np.int64),
            np.zeros(4),
            np.zeros((4, 2), "M8[s]"),
        ]
    ),
    st.lists(st.lists(SCALARS, min_size=2, max_size=2), min_size=4, max_size=4),
    ANYTHING,
)
Y = st.lists(st.integers(0, 2), min_size=4, max_size=4) | st.lists(SCALARS, min_size=4, max_size=4) | ANYTHING
CLIENTS = st.dictionaries(TEXTS | st.integers() | st.none(), st.tuples(X, Y) | ANYTHING, max_size=3) | ANYTHING
OTHERS = st.dictionaries(
    st.sampled_from(["participants", "held_out", "seed", "kind", "num_classes", "name"]), ANYTHING, max_size=1
)


def of_clients(folder: Path, given: tuple[Any, dict[str, Any]]) -> None:
    fr.FederatedData.from_clients(given[0], **given[1]).digest()


ARRAYS = st.fixed_dictionaries(
    {"train_x": X, "train_y": Y},
    optional=dict.fromkeys(
        ("test_x", "test_y", "owners", "owner_names", "num_classes", "class_names", "kind", "mean", "std", "name"),
        ANYTHING,
    ),
)


def of_arrays(folder: Path, given: dict[str, Any]) -> None:
    fr.from_arrays(**given)


LOADS = st.tuples(
    st.sampled_from(["digits", "mnist", "breast_cancer", "emnist", "shakespeare", "no.npz", "x.npy"]) | ANYTHING,
    st.dictionaries(
        st.sampled_from(["folder", "split", "classes", "labels", "stride", "kind", "roles", "x"]), ANYTHING, max_size=2
    ),
)


def loaded(folder: Path, given: tuple[Any, dict[str, Any]]) -> None:
    fr.load(given[0], **{"folder": folder, **given[1], "download": False})


METHOD_KEYS = st.sampled_from(
    ["selection", "weighting", "server", "solver", "loss", "adaptation", "cohort_size", "local", "aggregation", "x"]
)
METHODS = (
    st.dictionaries(
        TEXTS | st.sampled_from(["a", "b"]), st.dictionaries(METHOD_KEYS, ANYTHING, max_size=2) | ANYTHING, max_size=2
    )
    | ANYTHING
)
STUDY_KEYS = [
    "seeds",
    "rounds",
    "cohort_size",
    "model",
    "local",
    "engine",
    "evaluation",
    "name",
    "baseline",
    "metrics",
    "radio",
    "noise",
]
KEYWORDS = st.dictionaries(st.sampled_from(STUDY_KEYS), ANYTHING, max_size=2)


@st.composite
def studies(draw: st.DrawFn) -> tuple[Any, Any, dict[str, Any]]:
    """Draw the arguments of `compare`."""
    toy = fr.FederatedData.from_frame({"who": WHO, "ill": ILL, "x": list(range(12))}, client="who", label="ill")
    data = draw(st.just(toy) | st.just(toy.dataset) | ANYTHING)
    return data, draw(METHODS | st.just({"a": {}})), draw(KEYWORDS)


def asked(folder: Path, given: tuple[Any, Any, dict[str, Any]]) -> None:
    """All that `compare` checks before it reads or writes anything."""
    right = {"method": {}, "model": "mlp", "metrics": (), "seeds": 1, "cohort_size": None, "out": folder / "o"}
    build_request(given[0], given[1], **{**right, **given[2]}, function_name="compare")


TARGETS = [
    Target("from_frame", frames(), of_frame, 2),
    Target("from_clients", st.tuples(CLIENTS, OTHERS), of_clients, 2),
    Target("from_arrays", ARRAYS, of_arrays, 2),
    Target("load", LOADS, loaded),
    Target("questions of compare", studies(), asked, 2),
]
