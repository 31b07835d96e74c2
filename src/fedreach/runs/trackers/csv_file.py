"""The rounds of a run as a table for a spreadsheet."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedreach.data.federated import FederatedData
from fedreach.runs.callbacks import Callback
from fedreach.runs.schema import RoundRow, RunRecord, Timing
from fedreach.runs.trackers.base import Clock, numbers
from fedreach.tables import csv_text

FILE = "rounds.csv"


@dataclass
class CSV(Callback):
    """Writes ``rounds.csv`` into the run folder: a row a round, a column a number.

    When: rounds are looked at in a spreadsheet, or by a program that reads no JSON.
    """

    columns: list[str] = field(init=False, repr=False, default_factory=list)
    waiting: list[dict[str, Any]] = field(init=False, repr=False, default_factory=list)
    clock: Clock = field(init=False, repr=False, default_factory=Clock)

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        self.columns, self.waiting, self.path = [], [], folder / FILE
        self.path.unlink(missing_ok=True)  # it is written anew, from round 0 on

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self.waiting.append({"round": row.round, **numbers(row, timing), "remark": row.remark})
        if self.clock.is_due():
            self._write()

    def close(self, error: BaseException | None) -> None:
        self._write()

    def _write(self) -> None:
        """Append what waits; where columns come with it, as with the first evaluation, all is written anew."""
        if not self.waiting:
            return
        new = dict.fromkeys(key for row in self.waiting for key in row if key not in self.columns)
        rows = [*self._read(), *self.waiting] if new and self.columns else self.waiting
        self.columns += new
        text = csv_text([dict.fromkeys(self.columns) | row for row in rows])
        with self.path.open("w" if new else "a", encoding="utf-8", newline="") as file:
            file.write(text if new else text.partition("\n")[2])
        self.waiting = []

    def _read(self) -> list[dict[str, Any]]:
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
