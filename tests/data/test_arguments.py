"""Arguments of another type than they are documented with end in a sentence, not in Python's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import FedReachError
from fedreach._util.streams import generator

TABLE = {"who": ["n", "s", "e"] * 4, "ill": ["no", "yes"] * 6, "x": list(range(12))}
RIGHT: dict[str, Any] = {"client": "who", "label": "ill"}


def frame(table: Any = None, **given: Any) -> object:
    return fr.FederatedData.from_frame(TABLE if table is None else TABLE | table, **{**RIGHT, **given})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frame({"x": None}), "column 'x' must be a list or an array with one value per row; got NoneType."),
        (lambda: frame({"x": "paper"}), "column 'x' must be a list or an array with one value per row; got str."),
        (lambda: frame({"ill": 3}), "column 'ill' must be a list or an array with one value per row; got int."),
        (lambda: frame({"x": [1, 2]}), "columns must have the same length; 'who' has 12 rows, 'x' has 2."),
        (lambda: frame({"ill": ["no"]}), "columns must have the same length; 'who' has 12 rows, 'ill' has 1."),
        (lambda: frame(client=np.zeros(2)), "table: unknown column"),
        (lambda: frame(held_out=b"x"), "population: held_out must be a whole number or a number"),
        (lambda: frame(seed=set()), "seed must be a non-negative whole number; got set()."),
        (lambda: frame(seed=-1), "seed must be a non-negative whole number; got -1."),
        (lambda: frame(name=np.zeros(2)), "from_frame: name must be a string or None; got ndarray."),
        (lambda: frame(participants=float("nan")), "participants must be a number or a list of names; got float."),
        (lambda: fr.load(None), "load: name must be a string; got NoneType."),  # type: ignore[arg-type]
        (lambda: fr.load("mnist", b"x"), "load: folder must be a string or Path or None; got bytes."),  # type: ignore[arg-type]
        (lambda: fr.load("emnist", split=[]), "Unknown emnist split: []."),
        (lambda: fr.load("shakespeare", train_fraction="x"), "shakespeare train_fraction must be in (0, 1]; got 'x'."),
        (lambda: fr.load("a\0b.npz"), "must be a readable .npz file"),
        (lambda: fr.from_arrays(np.eye(2), [0, 1], kind=[]), "from_arrays: kind must be a string or None; got list."),  # type: ignore[arg-type]
        (lambda: fr.from_arrays(np.eye(2), np.array([b"a", b"\x80"])), "must be text or whole numbers; got bytes"),
        (lambda: fr.from_arrays(np.eye(2), [0, 1], num_classes="2"), "num_classes must be a whole number"),  # type: ignore[arg-type]
        (lambda: fr.FederatedData.from_clients({"a": (False, [1])}), "x must have one entry per example"),
        (lambda: fr.FederatedData.from_clients({"a": {"x": 1}}), "must be a Dataset with `__len__`"),
        (lambda: generator(True, "x"), "seed must be a non-negative whole number"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_told(call: Callable[[], object], message: str) -> None:
    with pytest.raises(FedReachError) as refused:
        call()
    assert message in str(refused.value)
