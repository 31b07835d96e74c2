"""``fedreach.run``: the visible loop, round by round."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreach.data.datasets import Dataset, Recipe
from fedreach.data.federated import FederatedData
from fedreach.experiments.run import each_round_of
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import RoundRow
from fedreach.study.compare import Table
from fedreach.study.method import Method, Part
from fedreach.study.question import Question, ask
from fedreach.threads import one_thread


def run(
    data: FederatedData | Recipe | Dataset,
    method: Method | Mapping[str, Any] | None = None,
    *,
    model: Part = "mlp",
    rounds: int = 50,
    cohort: int | None = None,
    seed: int = 0,
    metrics: Sequence[Part] = (),
    out: Path | str | None = None,
    local: Table = None,
    population: Table = None,
    noise: Part = None,
    shift: Part = None,
    server_data: Table = None,
    radio: Part = None,
    engine: Table = None,
    evaluation: Table = None,
) -> Loop:
    """Return the rounds of one method, each of which is run when it is asked for.

    Each row is a dictionary with the keys of ``rounds.jsonl``: who trained, what it cost, and how good the model then
    was (``id_accuracy`` of participants' held-out data, ``unseen_accuracy``, ``participation_gap``, ...). The model is
    evaluated after every round; ``evaluation={"every": 10}`` is quicker.

    Args:
        data: As for `fedreach.compare`; also what is not named here.
        method: What is run. Default: FedAvg with clients drawn at random.
        seed: Of all that is drawn.
        out: A run folder, in which an interrupted run is gone on with; its rounds so far come first. Default: none is
            kept.

    Example:
        >>> import fedreach as fr
        >>> data = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
        >>> for row in fr.run(data, fr.Method(solver="scaffold"), rounds=2, cohort=4):
        ...     print(row["round"], len(row["cohort"]), row["unseen_accuracy"] > 0)
        1 4 True
        2 4 True
    """
    folder = None if out is None else Path(out)
    place = tempfile.TemporaryDirectory(prefix="fedreach-") if folder is None else None
    folder = Path(place.name) if place is not None else Path(out or "")
    question = ask(
        data,
        None,
        method=method or {},
        model=model,
        metrics=metrics,
        seeds=[seed],
        cohort=cohort,
        out=folder,
        called="run",
        name=folder.name if out is not None else "run",
        rounds=rounds,
        local=local,
        population=population,
        noise=noise,
        shift=shift,
        server_data=server_data,
        radio=radio,
        engine=engine,
        evaluation={"every": 1, **(evaluation or {})},
    )
    return Loop(question if out is None else question.written(), folder, place)


class Loop:
    """The rounds of a run: iterate over it; what is stopped in between goes on where it was."""

    def __init__(self, question: Question, folder: Path, place: Any) -> None:
        self.question, self.folder = question, folder
        self._place = place  # a folder that goes with this object
        self._rounds: Iterator[dict[str, Any]] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._rounds is None:
            self._rounds = self._all()
        return self._rounds

    def __next__(self) -> dict[str, Any]:
        return next(iter(self))

    def _all(self) -> Generator[dict[str, Any], None, None]:
        stored: list[dict[str, Any]] | None = RunFolder(self.folder).rows(RoundRow.FILE)
        for row in self._new():
            if stored is not None:
                yield from (each for each in stored if 0 < each["round"] < row.round)
                stored = None
            yield row.to_json()
        yield from (each for each in stored or () if each["round"])

    def _new(self) -> Generator[RoundRow, None, None]:
        """Yield the rounds that are run now; numeric libraries have one thread while they are."""
        asked = self.question
        rounds = each_round_of(
            asked.experiment.resolved(),
            seed=asked.experiment.seeds[0],
            folder=self.folder,
            base=asked.base,
            method="run",
            dataset=asked.dataset,
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

    def __repr__(self) -> str:
        e = self.question.experiment
        return f"Loop({e.rounds} rounds of {e.name}, seed {e.seeds[0]})"
