"""Open the results in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedreach._util.errors import RunFolderError
from fedreach.api.comparison import Comparison, RunAt, clients_of, model_of, rounds_of
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, RunRecord, SweepRecord

if TYPE_CHECKING:
    import pandas as pd

    from fedreach.api.sweep import Sweep
    from fedreach.deploy.fitted_rule import Which
    from fedreach.deploy.model import TrainedModel


def open(path: Path | str) -> Comparison | Sweep | Run:  # noqa: A001  # fedreach.open
    """Return the run, comparison or sweep in a folder, from Python or the command line.

    Args:
        path: Folder of a run (`Run`), a comparison (`Comparison`) or a sweep (`Sweep`).

    Raises:
        RunFolderError: If the folder contains no run, comparison or sweep.

    Example:
        >>> open("runs/nowhere")
        Traceback (most recent call last):
        fedreach.RunFolderError: runs/nowhere must contain a run, a comparison or a sweep: ...
    """
    folder = Path(path)
    if (folder / SweepRecord.FILE).exists():
        from fedreach.api.sweep import Sweep  # imported late: it loads torch, which comparisons do not need

        return Sweep(folder)
    if (folder / ComparisonRecord.FILE).exists():
        return Comparison(folder)
    if (folder / RunRecord.FILE).exists():
        return Run(folder)
    raise RunFolderError(
        f"{folder} must contain a run, a comparison or a sweep: {RunRecord.FILE}, {ComparisonRecord.FILE} and "
        f"{SweepRecord.FILE} not found. Pass the folder that you set as `out` or --out."
    )


class Run:
    """One run, read from its folder: its rounds, clients and model.

    Args:
        path: Run folder.

    Raises:
        RunFolderError: If the folder is not a run folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.record = RunFolder(self.path).required(RunRecord)

    @property
    def method(self) -> str:
        """Name of the method in its comparison; "run" for a single run."""
        return self.record.method

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.record.seed

    def rounds(self) -> pd.DataFrame:
        """Return a row for each round, with the columns of `Comparison.rounds`."""
        return rounds_of([self._at])

    def clients(self) -> pd.DataFrame:
        """Return a row for each client of each evaluation, with the columns of `Comparison.clients`."""
        return clients_of([self._at])

    def model(
        self,
        which: Which = "last",
        *,
        cluster: int | None = None,
        base: Path | str | None = None,
        trust_code: bool = False,
    ) -> TrainedModel:
        """Return the complete model. `fedreach.api.comparison.ComparedMethod.model` describes the arguments."""
        return model_of(self.path, which, cluster, self._parts_folder, base, trust_code=trust_code)

    @property
    def _at(self) -> RunAt:
        return RunAt(self.method, self.seed, self.path)

    @property
    def _parts_folder(self) -> Path:
        """Folder with components without names; for a run in a comparison or sweep, that of the comparison or sweep."""
        above: list[Path] = [folder for folder in self.path.resolve().parents if (folder / "parts").is_dir()]
        has_parts = (self.path / "parts").is_dir()
        return self.path if has_parts or not above else above[0]

    def __repr__(self) -> str:
        return f"Run({self.method}, seed {self.seed})"
