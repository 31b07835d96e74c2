"""Run one method from Python, round by round."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreach._util.processes import one_thread
from fedreach._util.tables import count_noun
from fedreach.api.compare import ExperimentRequest, Method, Part, Table, build_request
from fedreach.api.comparison import model_of
from fedreach.data.datasets import Dataset, PartitionSpec
from fedreach.data.federated import FederatedData
from fedreach.deploy.fitted_rule import Which
from fedreach.deploy.model import TrainedModel
from fedreach.experiment.load import name_after
from fedreach.experiment.run import each_round_of
from fedreach.runs.folder import RunFolder, json_line
from fedreach.runs.schema import RoundRow


def run(
    data: FederatedData | PartitionSpec | Dataset,
    method: Method | Mapping[str, Any] | None = None,
    *,
    model: Part = "mlp",
    rounds: int = 50,
    cohort_size: int | None = None,
    seed: int = 0,
    metrics: Sequence[Part] = (),
    out: Path | str | None = None,
    local: Table = None,
    population: Table = None,
    augmentation: Part = None,
    noise: Part = None,
    shift: Part = None,
    attack: Part = None,
    server_data: Table = None,
    budget: Table = None,
    radio: Part = None,
    engine: Table = None,
    evaluation: Table = None,
    trackers: Sequence[Part] = (),
) -> Loop:
    """Return an iterator over the rounds of one method, which runs each round on demand.

    Each row is a dictionary with the keys of ``rounds.jsonl``: cohort, costs and scores (``participant_accuracy`` on
    participants' held-out data, ``unseen_accuracy``, ``participation_gap``, ...). The model is evaluated after every
    round; ``evaluation={"every": 10}`` is faster.

    Args:
        data: Data of the clients. For this and all arguments that are not listed here, see `fedreach.compare`.
        method: Method to run. Default: FedAvg with uniform selection.
        seed: Seed of all random draws.
        out: Run folder. If it contains an interrupted run, the iterator returns the stored rounds and then resumes the
            run. Default: a temporary folder.
        trackers: Trackers of the run, as for `fedreach.compare`, except that objects are not copied.

    Example:
        >>> import fedreach as fr
        >>> data = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
        >>> for row in fr.run(data, fr.Method(solver="scaffold"), rounds=2, cohort_size=4):
        ...     print(row["round"], len(row["cohort"]), row["unseen_accuracy"] > 0)
        1 4 True
        2 4 True
    """
    arguments = {key: value for key, value in locals().items() if key not in ("data", "method", "seed", "out")}
    folder = Path(tempfile.mkdtemp(prefix="fedreach-") if out is None else out)
    question = build_request(
        data,
        None,
        method=method or {},
        seeds=[seed],
        out=folder,
        function_name="run",
        name="run" if out is None else name_after(folder, "run"),
        **arguments | {"evaluation": {"every": 1, **(evaluation or {})}},
    )
    return Loop(question if out is None else question.written(), folder, keep=out is not None)


class Loop:
    """Iterator over the rounds of a run; iterating again resumes it.

    `folder` is the run folder. Without `out`, the folder is temporary. FedReach removes it with this object, or at the
    end of a ``with`` block.
    """

    def __init__(self, question: ExperimentRequest, folder: Path, *, keep: bool) -> None:
        self.question, self.folder = question, folder
        self._rounds = _all(question, folder)
        self._end = weakref.finalize(self, _end, self._rounds, None if keep else folder)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        return next(self._rounds)

    def model(self, which: Which | None = None, *, cluster: int | None = None) -> TrainedModel:
        """Return the model after the last round, as `fedreach.api.comparison.ComparedMethod.model` does."""
        return model_of(self.folder, which, cluster, self.folder)

    def close(self) -> None:
        """Stop the run; if `out` was given, the folder keeps the finished rounds, and a new loop resumes the run."""
        self._end()

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        e = self.question.experiment
        return f"Loop({count_noun(e.rounds, 'round')} of {e.name}, seed {e.seeds[0]})"


def _end(rounds: Generator[dict[str, Any], None, None], folder: Path | None) -> None:
    rounds.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _all(question: ExperimentRequest, folder: Path) -> Generator[dict[str, Any], None, None]:
    """Yield the stored rounds, then new ones."""
    stored: list[dict[str, Any]] | None = RunFolder(folder).kept_rows(RoundRow.FILE)
    for row in _new(question, folder):
        if stored is not None:
            yield from (stored_row for stored_row in stored if 0 < stored_row["round"] < row.round)
            stored = None
        yield json.loads(json_line(row.to_json()))  # as it is stored
    yield from (stored_row for stored_row in stored or () if stored_row["round"])


def _new(question: ExperimentRequest, folder: Path) -> Generator[RoundRow, None, None]:
    """Yield new rounds; numeric libraries use one thread meanwhile."""
    experiment = question.experiment
    rounds = each_round_of(
        experiment.resolved(),
        seed=experiment.seeds[0],
        folder=folder,
        base=question.base,
        method="run",
        read=lambda builder: builder.dataset() if question.dataset is None else question.dataset,
    )
    try:
        while True:
            with one_thread():
                row = next(rounds, None)
            if row is None:
                return
            yield row
    finally:
        rounds.close()
