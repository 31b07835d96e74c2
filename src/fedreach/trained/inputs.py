"""Raw samples become what a model was trained on, by a module that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fedreach.data.preparation import Preparation
from fedreach.data.sample_format import SampleFormat, form_of
from fedreach.data.target_scale import TargetScale
from fedreach.engines.samples import scaling
from fedreach.errors import RunFolderError
from fedreach.runs.schema import FederationRecord


class Expected(SampleFormat):
    """What samples must be like, for torch."""

    @classmethod
    def of(cls, record: FederationRecord) -> Self:
        """Return what a run was trained on.

        Raises:
            RunFolderError: If its folder does not say, as one of clients that kept their data to themselves.
        """
        said, name = record.dataset, record.dataset["name"]
        if "shape" not in said:
            raise RunFolderError(
                f"{record.FILE} does not say what a sample of {name!r} looks like: its clients kept that to "
                "themselves, or an earlier version wrote it. Build the module yourself and read its weights, "
                "last.safetensors, by safetensors.torch.load_file."
            )
        prepared = None if record.preparation is None else Preparation.of_json(record.preparation)
        scale = tuple(said["mean"]), tuple(said["std"])
        return cls(name, said["kind"], tuple(said["shape"]), *scale, prepared, *form_of(said))

    def module(self) -> nn.Module:
        """Return what makes inputs of raw samples."""
        if self.preparation is not None:
            return Columns(self.preparation)
        if self.kind == "image":
            return Pixels(self.mean, self.std)
        return Tokens() if self.kind == "tokens" else nn.Identity()

    def example(self) -> Tensor:
        """Return two raw samples."""
        return torch.zeros(2, *self.raw_shape, dtype=getattr(torch, self.dtype))

    def raw(self, samples: Any) -> Tensor:
        """Return raw samples as a tensor, see `SampleFormat.array`; they may be one, also that which this returned."""
        if not isinstance(samples, Tensor):
            return torch.from_numpy(self.array(samples))
        if self.layout is not None and samples.dtype == torch.uint8 and samples.shape[1:] == self.raw_shape:
            return samples
        is_raw = samples.dtype == torch.float64 and samples.shape[1:] == self.raw_shape
        if self.preparation is not None and is_raw:
            return samples
        return torch.from_numpy(self.array(samples.detach().cpu().numpy()))


class Pixels(nn.Module):
    """(m, C, H, W) uint8 images become (x / 255 - mean) / std, channel by channel, as when the model was trained.

    Example:
        >>> Pixels([0.5], [0.25])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).round().tolist()
        [[[[-2.0, 2.0]]]]
    """

    factor: Tensor  # (C, 1, 1)
    offset: Tensor  # (C, 1, 1)

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        factor, offset = scaling(255.0, mean, std, 3)
        self.register_buffer("factor", factor)
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.offset, x.float(), self.factor)


class Units(nn.Module):
    """(m, t) outputs on the scale that numbers were learned on become float64 in the units of their columns.

    Example:
        >>> Units(TargetScale((5.0,), (3.0,)))(torch.tensor([[1.0]]))
        tensor([[8.]], dtype=torch.float64)
    """

    mean: Tensor  # (t,)
    sd: Tensor  # (t,)

    def __init__(self, scale: TargetScale) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(scale.mean, dtype=torch.float64))
        self.register_buffer("sd", torch.tensor(scale.sd, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.double() * self.sd + self.mean


class Tokens(nn.Module):
    """(m, T) whole numbers of any type become int64."""

    def forward(self, x: Tensor) -> Tensor:
        return x.long()


class Columns(nn.Module):
    """(m, k) float64 numbers of a table's columns become (m, d) inputs; see `fedreach.data.preparation`.

    An input is a number x, (x - mean) / sd and 0 where it is missing; whether a word is of a category; or whether
    something is missing.

    Example:
        >>> from fedreach.data.input_column import InputColumn
        >>> ward = InputColumn("ward", "category", categories=("heart", "surgery"))
        >>> columns = Columns(Preparation((InputColumn("age", "number", missing=1, mean=40.0, sd=10.0), ward)))
        >>> columns(torch.tensor([[50.0, 1.0], [torch.nan, 0.0], [30.0, -1.0]], dtype=torch.float64)).tolist()
        [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]
    """

    column: Tensor  # (d,) that an input is of
    mean: Tensor  # (d,) of a number
    sd: Tensor  # (d,)
    category: Tensor  # (d,) that an input asks for, nan where it asks for none
    asks_missing: Tensor  # (d,) whether it asks for what is missing

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        rows: list[tuple[int, float, float, float, bool]] = []
        for place, each in enumerate(preparation.used):
            if each.kind != "category":
                rows.append((place, each.mean, each.sd, np.nan, False))
            rows += [(place, 0.0, 1.0, float(category), False) for category in range(len(each.categories))]
            if each.missing:
                rows.append((place, 0.0, 1.0, np.nan, True))
        column, mean, sd, category, asks_missing = zip(*rows, strict=True)
        self.register_buffer("column", torch.tensor(column))
        for name, values in (("mean", mean), ("sd", sd), ("category", category)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        self.register_buffer("asks_missing", torch.tensor(asks_missing))

    def forward(self, raw: Tensor) -> Tensor:
        x = raw.double().index_select(1, self.column)
        gone = torch.isnan(x)
        number = torch.where(gone, 0.0, (x - self.mean) / self.sd)
        asked = (self.asks_missing & gone) | (x == self.category)  # no torch.where: onnxruntime has none for bools
        is_number = self.category.isnan() & ~self.asks_missing
        return torch.where(is_number, number, asked.to(number.dtype)).float()
