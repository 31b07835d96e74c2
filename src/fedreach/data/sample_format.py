"""What a sample must be like that a model is given: as those that it was trained on. It needs numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedreach.arrays import AnyArray, Floats
from fedreach.data.checks import Check, Kind
from fedreach.data.preparation import Preparation
from fedreach.data.several import described, layout_of_json, layout_to_json, shapes
from fedreach.errors import ConfigError, DataError

DTYPES = {"image": "uint8", "tokens": "int64", "features": "float32", "table": "float64", "several": "uint8"}
"""What raw samples of a kind are handed to a model as."""


@dataclass(frozen=True)
class SampleFormat:
    """What a sample must be like that a model is given.

    Example:
        >>> from fedreach.data.input_column import InputColumn
        >>> ward = InputColumn("ward", "category", categories=("heart", "surgery"))
        >>> table = SampleFormat("wards", "features", (2,), preparation=Preparation((ward,)))
        >>> table.array({"ward": ["surgery", "eyes", None]}).tolist()
        [[1.0], [-1.0], [nan]]
        >>> SampleFormat.of_json("wards", table.to_json()) == table
        True
    """

    name: str  # of the data set
    kind: Kind
    shape: tuple[int, ...]  # of a sample as it was trained on
    mean: tuple[float, ...] = ()  # (C,) of images
    std: tuple[float, ...] = ()  # (C,)
    preparation: Preparation | None = None  # of a table
    layout: np.dtype[Any] | None = None  # of records of several inputs, see `fedreach.data.several`
    positions: tuple[int, ...] = ()  # of labels, where each position has one

    @property
    def dtype(self) -> str:
        """What raw samples are handed to a model as."""
        return DTYPES[self.kind if self.preparation is None else "table"]

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Of a raw sample; that of a table has one number for each column that is used."""
        if self.layout is not None:
            return (self.layout.itemsize,)
        return self.shape if self.preparation is None else (len(self.preparation.used),)

    @property
    def sample_shape(self) -> Any:
        """Shape of an example as a model's maker is told; of several inputs that of each, by name or in order."""
        return self.shape if self.layout is None else shapes(self.layout)

    def refuse_form(self, what: str) -> None:
        """Refuse what handles one input and one answer an example.

        Raises:
            ConfigError: If there are several inputs, or answers at positions.
        """
        has = "several inputs" if self.layout is not None else "an answer at every position" if self.positions else ""
        if has:
            raise ConfigError(
                f"{what} handles one input and one answer an example, and this model has {has}. Call it in Python: "
                "fedreach.trained.load(run).predict(inputs); --to safetensors writes it for that."
            )

    def array(self, samples: Any) -> AnyArray:
        """Return raw samples as an array that a model is called with.

        Args:
            samples: A table where the model was trained on one; or else an array; images may come without channels
                where they have one.

        Raises:
            ConfigError: If a column of the table is missing, or it is no table.
            DataError: If the samples are not like those that the model was trained on.
        """
        if self.preparation is not None:
            return self.preparation.raw(samples)
        check = Check(self.name, "samples for the model of")
        x, _ = check.samples("x", samples, self.kind)
        if self.layout is not None:
            if x.dtype != self.layout:
                raise check.error(
                    f"x must hold inputs as in training, {described(self.layout)}; got {described(x.dtype)}"
                )
            return x.view(np.uint8).reshape(len(x), -1)
        if x.shape[1:] != self.shape:
            one = ". A single one is x[None]" if np.shape(samples) == self.shape else ""
            raise check.error(f"x must hold samples of shape {self.shape} as in training; got {x.shape}{one}")
        return np.require(x, np.int64 if self.kind == "tokens" else x.dtype, ["C", "W"])

    def of_columns(self, numbers: Floats) -> AnyArray:
        """Return raw samples that stand in a table, a sample a row and a number of it a column.

        Args:
            numbers: (m, k), k as many as a sample has, its last axis the fastest.

        Raises:
            DataError: If they are not like those that the model was trained on.

        Example:
            >>> SampleFormat("digits", "image", (1, 2, 2)).of_columns(np.array([[0.0, 1.0, 2.0, 255.0]])).tolist()
            [[[[0, 1], [2, 255]]]]
        """
        size = int(np.prod(self.shape))
        if numbers.shape[1] != size:
            raise DataError(
                f"The model takes samples of shape {self.shape}, that is {size} columns beside those of client and "
                f"label; got {numbers.shape[1]}."
            )
        if self.kind != "features":
            top = 255.0 if self.kind == "image" else float(2**62)
            bad = np.flatnonzero(~((numbers >= 0) & (numbers <= top) & (np.floor(numbers) == numbers)).all(axis=1))
            if len(bad):
                rule = "0 to 255" if self.kind == "image" else "at least 0"
                raise DataError(
                    f"The model takes whole numbers, {rule}; {len(bad)} rows hold others, the first is row {bad[0]}."
                )
            numbers = numbers.astype(self.dtype)
        return self.array(numbers.reshape(-1, *self.shape))

    def to_json(self) -> dict[str, Any]:
        """Return what raw samples are like, as plain JSON values for who reads the file of a model."""
        said: dict[str, Any] = {"kind": self.kind, "dtype": self.dtype, "shape": list(self.raw_shape)}
        said |= {} if self.layout is None else {"inputs": layout_to_json(self.layout)}
        said |= {"positions": list(self.positions)} if self.positions else {}
        if self.preparation is None:
            return said | ({"mean": list(self.mean), "std": list(self.std)} if self.kind == "image" else {})
        used, columns = self.preparation.used, self.preparation.columns
        return said | {
            "kind": "table",
            "columns": [each.to_json() for each in used],
            "other_columns": [each.to_json() for each in columns if each not in used],
            "features": list(self.preparation.feature_names),
        }

    @classmethod
    def of_json(cls, name: str, said: Mapping[str, Any]) -> Self:
        """Return what `to_json` told of the samples of a data set; further keys may stand beside it."""
        if said["kind"] != "table":
            mean, std = (tuple(said.get(key, ())) for key in ("mean", "std"))
            return cls(name, said["kind"], tuple(said["shape"]), mean, std, None, *form_of(said))
        others = said["other_columns"]  # those of client and labels come first, as in training
        last = [each for each in others if each["kind"] in ("left out", "dropped")]
        first = [each for each in others if each not in last]
        preparation = Preparation.of_json([*first, *said["columns"], *last])
        return cls(name, "features", (len(said["features"]),), preparation=preparation)


def form_of(said: Mapping[str, Any]) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return the layout of several inputs, if there are any, and the positions of labels, as a file tells them."""
    return layout_of_json(said["inputs"]) if "inputs" in said else None, tuple(said.get("positions", ()))
