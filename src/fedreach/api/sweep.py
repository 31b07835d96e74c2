"""Run and open sweeps from Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from fedreach._util.errors import ConfigError, RunFolderError, nearest
from fedreach._util.files import below
from fedreach.api.compare import Method, compare, run_call
from fedreach.api.comparison import Comparison, to_frame, toml_of, write_bibliography
from fedreach.data.datasets import Dataset, PartitionSpec
from fedreach.data.federated import FederatedData
from fedreach.experiment.schema import format_setting
from fedreach.report.formats import to_text
from fedreach.report.records import as_records
from fedreach.report.sweep import SweepAnalysis, SweptComparison, tabulate_sweep, write_sweep_report
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, SweepRecord

if TYPE_CHECKING:
    import pandas as pd


def sweep(
    data: FederatedData | PartitionSpec | Dataset,
    methods: Mapping[str, Method | Mapping[str, Any]],
    settings: Mapping[str, Any],
    **options: Any,
) -> Sweep:
    """Compare methods at each of several settings, and return one comparison per setting.

    This function corresponds to ``fedreach compare`` with a table ``[sweep]``. To choose settings instead of comparing
    them, use the argument `tune`.

    Args:
        data: As for `fedreach.compare`.
        methods: As for `fedreach.compare`.
        settings: Option -> values, such as ``{"partition.alpha": [0.1, 1.0]}``, with the keys of an experiment file.
            With several options, the settings are all combinations of their values. ``{"samples": 20,
            "partition.alpha": {"min": 0.01, "max": 10.0, "log": True}}`` draws 20 settings at random.
        **options: All other arguments of `fedreach.compare`.

    Raises:
        ConfigError: If arguments are invalid. This function also raises the other errors of `fedreach.compare`.

    Example:
        >>> import tempfile
        >>> import fedreach as fr
        >>> data = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
        >>> found = fr.sweep(data, {"uniform": {}}, {"partition.alpha": [0.1, 1.0]}, rounds=2, cohort_size=4,
        ...     model="linear", out=tempfile.mkdtemp() + "/alphas", progress=False)
        >>> found
        Sweep(alphas: partition.alpha; 2 settings)
        >>> found[0.1]
        Comparison(alphas: uniform; 1 seed)
    """
    bound = inspect.signature(compare).bind(data, methods, **options)
    bound.apply_defaults()
    arguments = {key: value for key, value in bound.arguments.items() if key not in ("data", "methods")}
    return Sweep(run_call(data, methods, "sweep", sweep=settings, **arguments))


class Sweep:
    """The comparisons of a sweep, read from their folders.

    ``sweep[0.1]``, or ``sweep["partition.alpha = 0.1"]``, is one comparison.

    Args:
        path: Folder of the sweep, from Python or ``fedreach compare``.

    Raises:
        RunFolderError: If the folder contains no sweep.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        record = RunFolder(self.path).read(SweepRecord)
        if record is None:
            raise RunFolderError(
                f"{self.path} is not a sweep: {SweepRecord.FILE} not found. Open a comparison with fedreach.open."
            )
        self.record = record

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.record.name

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """The comparisons that have started, by setting as text."""
        folders = [below(self.path, cell) for cell in self.record.cells]
        cells = zip(map(format_setting, self.record.settings), folders, strict=True)
        return {name: Comparison(cell, self.path) for name, cell in cells if (cell / ComparisonRecord.FILE).exists()}

    @cached_property
    def swept(self) -> SweepAnalysis:
        """All numbers of the HTML report."""
        by_words = {format_setting(setting): setting for setting in self.record.settings}
        cells = [
            SweptComparison(
                by_words[words], comparison.path, comparison.path / "report" / "index.html", comparison.analysis
            )
            for words, comparison in self.comparisons.items()
        ]
        return SweepAnalysis(self.record, tuple(cells))

    def table(self) -> pd.DataFrame | list[dict[str, Any]]:
        """Return a row of numbers for each setting and method, as `Comparison.table` does for each method."""
        rows = [{**cell.setting, **row} for cell in self.swept.cells for row in as_records(cell.analysis)]
        return to_frame(rows)

    def rounds(self) -> pd.DataFrame:
        """Return the rounds of all comparisons, as `Comparison.rounds` does, after one column per swept option."""
        return self._concatenate({words: comparison.rounds() for words, comparison in self.comparisons.items()})

    def clients(self) -> pd.DataFrame:
        """Return the clients of all comparisons, as `Comparison.clients` does, after one column per swept option."""
        return self._concatenate({words: comparison.clients() for words, comparison in self.comparisons.items()})

    def _concatenate(self, frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        import pandas  # optional

        by_words = {format_setting(setting): setting for setting in self.record.settings}
        for words, frame in frames.items():
            for place, (key, value) in enumerate(by_words[words].items()):
                frame.insert(place, key, [value] * len(frame))
        return pandas.concat(frames.values(), ignore_index=True) if frames else pandas.DataFrame()

    def page(self, *formats: str) -> Path:
        """Write the HTML reports of the sweep and its comparisons, and return the path (see `Comparison.page`)."""
        return write_sweep_report(self.path, self.path, formats=formats).page

    def paper(self, width: str | float = "single", *formats: str) -> Path:
        """Write figures along swept options for a paper, as `Comparison.paper` does, and return their folder."""
        written = write_sweep_report(self.path, self.path, formats=formats, paper=width)
        for cell in written.analysis.cells[:1]:  # methods are the same in all of them
            write_bibliography(cell.analysis.comparison, written.paper[0].parent)
        return written.paper[0].parent

    def to_toml(self, path: Path | str | None = None) -> str:
        """Return the sweep as a TOML file, as `Comparison.to_toml` does."""
        return toml_of(self.record.config, self.path, path)

    def __getitem__(self, setting: Any) -> Comparison:
        words = setting if isinstance(setting, str) else format_setting(setting) if isinstance(setting, Mapping) else ""
        if not words or (words not in self.comparisons and len(self.record.keys) == 1):
            words = format_setting({self.record.keys[0]: setting})
        if words not in self.comparisons:
            raise ConfigError(f"Unknown setting {setting!r} in this sweep." + nearest(words, [*self.comparisons]))
        return self.comparisons[words]

    def __iter__(self) -> Iterator[str]:
        return iter(self.comparisons)

    def __len__(self) -> int:
        return len(self.comparisons)

    def __repr__(self) -> str:
        count = len(self.record.settings)
        return f"Sweep({self.name}: {', '.join(self.record.keys)}; {count} setting{'s' * (count != 1)})"

    def __str__(self) -> str:
        """Return the table of the sweep in the width of the terminal."""
        return to_text(tabulate_sweep(self.swept), get_terminal_size((120, 0)).columns)
