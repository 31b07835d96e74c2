"""What a sweep's folder holds: the numbers of its comparisons, by their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreach.report.analysis.analysis import Analysis
from fedreach.runs.schema import SweepRecord


@dataclass(frozen=True)
class Cell:
    """One comparison of a sweep."""

    setting: Mapping[str, Any]
    folder: Path
    page: Path
    analysis: Analysis


@dataclass(frozen=True)
class Swept:
    """The comparisons of a sweep that have begun, in the order of their settings."""

    record: SweepRecord
    cells: tuple[Cell, ...]
    settings: tuple[Mapping[str, Any], ...]  # of all, those that have not begun, too

    @property
    def name(self) -> str:
        """What it is called."""
        return self.record.name

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, in the order in which they are met."""
        return tuple(dict.fromkeys(m for cell in self.cells for m in cell.analysis.comparison.methods))
