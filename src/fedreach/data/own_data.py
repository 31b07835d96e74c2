"""Examples and whose they are, before it is said who takes part: what one's own data are until then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.data.cells import Cells, named
from fedreach.data.checks import Check, normalisation
from fedreach.data.columns import NO_RULES, ColumnRules
from fedreach.data.datasets import Dataset, from_arrays
from fedreach.data.held_out import APART, Together
from fedreach.data.input_column import Kind
from fedreach.data.preparation import Preparation


class OwnData(ABC):
    """Examples and whose they are: a `Dataset` to be.

    What depends on who takes part, such as the scale of the inputs, is measured when `prepared` is called with the
    training rows of each participant: of nobody else any number is read.
    """

    name: str
    owners: Ints  # (n,)
    owner_names: tuple[str, ...]  # of the N clients
    together: Together = APART  # what is held out together

    @property
    @abstractmethod
    def train_y(self) -> AnyArray:
        """Labels, (n,), or (n, t) numbers to predict."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """c; 0 where labels are numbers."""

    @abstractmethod
    def prepared(self, clients: Sequence[Ints]) -> Dataset:
        """Return the data set, prepared by the training rows of each participant."""


@dataclass(frozen=True, eq=False)
class OwnTable(OwnData):
    """Rows of a table, see `fedreach.data.preparation.Preparation`."""

    name: str
    owners: Ints
    owner_names: tuple[str, ...]
    columns: Mapping[str, Cells | None]
    labels: AnyArray  # (n,), or (n, t) numbers to predict
    classes: tuple[str, ...]  # none where labels are numbers
    places: Ints | None = None  # (n,) where rows stood as they were read
    client_column: str | None = None  # None: the table was handed over without
    label_columns: tuple[str, ...] = ()
    rules: ColumnRules = NO_RULES
    together: Together = APART
    left_out: Mapping[str, str] = field(default_factory=dict)  # by column: rows without it, or why it is no input

    @property
    def train_y(self) -> AnyArray:
        return self.labels

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def prepared(self, clients: Sequence[Ints]) -> Dataset:
        made = Preparation.of(self.columns, clients, self.places, self.rules.kinds)
        x, names = made.written(self.columns), named(self.classes) if self.classes else None
        plain = from_arrays(
            x, self.labels, num_classes=self.num_classes, class_names=names, kind="features", name=self.name
        )
        named_columns: dict[str, Kind] = {} if self.client_column is None else {self.client_column: "client"}
        named_columns |= dict.fromkeys(self.label_columns, "label" if self.classes else "target")
        if self.together.group is not None:
            named_columns[self.together.group] = "group"
        whole = made.described(named_columns, self.classes, self.rules, self.left_out)
        return replace(plain, preparation=whole)


@dataclass(frozen=True, eq=False)
class OwnSamples(OwnData):
    """Samples as they are; only images are put on one scale, that of the participants' pixels."""

    name: str
    owners: Ints
    owner_names: tuple[str, ...]
    plain: Dataset
    together: Together = APART

    @property
    def train_y(self) -> AnyArray:
        return self.plain.train_y

    @property
    def num_classes(self) -> int:
        return self.plain.num_classes

    def prepared(self, clients: Sequence[Ints]) -> Dataset:
        if self.plain.kind != "image":
            return self.plain
        check = Check(self.name)
        mean, std = normalisation(check, self.plain.train_x[np.concatenate(clients)], self.plain.kind, None, None)
        return replace(self.plain, mean=mean, std=std)
